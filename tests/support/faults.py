"""The N-th operation on files fails, or ends the process.

Operations are those that Python itself reports of (opening, renaming, making directories), flushing
to disk, and HDF5's writes. Removing what is temporary is left out: where that fails, it is left.

As a program, `faults.py JOB FOLDER new|old`: a job is killed at its N-th operation, N = 1, 2, ...
until it gets by, each time in a fork; what a kill left that it must not is printed.
"""

from __future__ import annotations

import errno
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any
from unittest import mock

if __name__ == "__main__":
    sys.path[:0] = [str(Path(__file__).parents[2]), str(Path(__file__).parent)]

from helpers import snapshot
from jobs import JOBS, prepare

from rnnconvert.containers.h5_stream import PythonFile

EVENTS = ("open", "os.rename", "os.mkdir", "os.chmod", "tempfile.mkstemp", "tempfile.mkdtemp")
ERRORS: dict[str, BaseException] = {
    "broken": OSError(errno.EIO, "Input/output error"),
    "full": OSError(errno.ENOSPC, "No space left on device"),
    "forbidden": PermissionError(errno.EACCES, "Permission denied"),
    "Ctrl-C": KeyboardInterrupt(),
}
PREFIX = ".rnnconvert-"


@dataclass
class Fault:
    """Fails one operation on files below `folder`.

    Attributes:
        at: which one fails, counted from 1; 0 for none.
        error: None for a SIGKILL.
        done: the operations so far.
    """

    folder: str
    at: int
    error: BaseException | None
    done: list[str] = field(default_factory=list)

    def __call__(self, name: str, path: Any = None) -> None:
        if path is not None and not os.fspath(path).startswith(self.folder):
            return
        self.done.append(name)
        if len(self.done) != self.at:
            return
        if self.error is None:
            os.kill(os.getpid(), signal.SIGKILL)
        else:
            raise self.error


_current: Fault | None = None


def _hook(event: str, arguments: tuple[Any, ...]) -> None:
    if _current is None or event not in EVENTS or not arguments:
        return
    path = arguments[0]
    if event == "open" and isinstance(path, str) and os.path.isdir(path):
        return  # to remove what is in it
    if isinstance(path, str | bytes | os.PathLike):
        _current(event, os.fsdecode(path))


def listen() -> None:
    """Hear of operations from here on, for good: Python can't take it back."""
    sys.addaudithook(_hook)


@contextmanager
def failing(fault: Fault) -> Iterator[None]:
    global _current

    def counted(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            if _current is not None:
                _current(name)
            return original(*arguments)

        return call

    with (
        mock.patch.object(os, "fsync", counted("fsync", os.fsync)),
        mock.patch.object(PythonFile, "_put", counted("_put", PythonFile._put)),
    ):
        _current = fault
        try:
            yield
        finally:
            _current = None


def numbers(variant: str) -> Iterator[int]:
    """1, 2, ... in random steps that grow, since late writes are one as another.

    Each variant of a job has other steps, so that they do not all try the same numbers. With
    TEST_EVERYTHING=1 in the environment, every number.
    """
    if os.environ.get("TEST_EVERYTHING"):
        yield from range(1, 5000)
        return
    random = Random(variant)
    at = 1
    while at < 5000:
        yield at
        at += random.randint(1, max(1, at * 7 // 8))


# --- killed -------------------------------------------------------------------------------------


def _in_a_fork(name: str, folder: Path, source_name: str, at: int, *, old: bool) -> int:
    """Do a job whose N-th operation is a SIGKILL; returns how it ended."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            job, fault = JOBS[name], Fault(str(folder), at, None)
            output = None if job.output is None else folder / job.output
            source = folder / source_name
            with open(os.devnull, "w") as nothing, failing(fault):
                os.dup2(nothing.fileno(), 1)
                job.run(source, output, force=old)
            code = 0
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


Files = dict[str, bytes]


def _what_was_lost(before: Files, after: Files, whole: Files) -> str | None:
    """The input is as it was; what is written is as it was, or new; nothing else is there.

    Where several files belong together and the system can't exchange them at once, the old ones
    may lie under a temporary name.
    """
    kept = {name: data for name, data in after.items() if PREFIX not in name}
    if kept in (before, whole):
        return None
    spare = set(after.values())
    changed = {name for name in {*before, *whole} if before.get(name) != whole.get(name)}
    for name in {*kept, *before} - changed:
        if kept.get(name) != before.get(name):
            return f"{name} is lost, or too much"
    if not {before[name] for name in changed if name in before} <= spare:
        return f"the old files are lost; left: {sorted(after)}"
    return None


def main() -> None:
    name, place, which = sys.argv[1:]
    job, folder, old = JOBS[name], Path(place), which == "old"
    tempfile.tempdir = str(folder / "scratch")
    if job.needs == "tensorflow":
        import tensorflow  # noqa: F401  # so that no fork has to
    listen()
    source, _ = prepare(folder, job, old=old)
    assert _in_a_fork(name, folder, source.name, 0, old=old) == 0
    whole, killed = snapshot(folder), 0
    for at in numbers(f"{name} {old}"):
        prepare(folder, job, old=old)
        before = snapshot(folder)
        code = _in_a_fork(name, folder, source.name, at, old=old)
        after = snapshot(folder)
        if code == 0:
            assert after == whole
            break
        assert code == -signal.SIGKILL, code
        killed += 1
        lost = _what_was_lost(before, after, whole)
        if lost is not None:
            print(f"killed at operation {at}: {lost}")
    assert killed > 3
    print(f"{killed} kills")


if __name__ == "__main__":
    main()

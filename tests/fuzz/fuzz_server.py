"""One process that has imported everything, and a fork of it for each mutant: some 50 ms apiece."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import resource
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

DEADLINE = 10.0
MOST_MEMORY = 512 * 2**20
_KILLED_AFTER = 60.0
"""Seconds by the clock: of a busy machine, on which the seconds of work take many times as long."""
_MODULES = (
    "cli.main", "cli.commands", "cli.output", "cli.run",
    "keras_models.convert", "keras_models.rebuilt", "keras_models.inspect", "keras_models.compare",
    "keras_models.files.zip_file", "keras_models.files.weights_h5",
    "checkpoints.convert", "checkpoints.inspect", "checkpoints.compare",
)  # fmt: skip
_OF_GRAPHS = ("graphs.inspect", "graphs.convert", "graphs.compare", "graphs.framework")
Tell = Callable[[dict[str, Any]], None]


@dataclass(frozen=True)
class Run:
    """How a command ended.

    Attributes:
        arguments: of the command line.
        code: exit code; None where it was killed.
        seconds: of the processor's time that it took.
        memory: bytes, its most; without what TensorFlow took where that was imported before.
        said: stdout and stderr.
    """

    arguments: tuple[str, ...]
    code: int | None
    seconds: float
    memory: int
    said: str

    def fault(self, allowed: Sequence[int]) -> str | None:
        """What it did that no file may make it do; None where all is well."""
        if self.code is None:
            return f"killed, after {self.seconds:.1f} s of work {self.said}"
        if self.code not in allowed:
            return f"exit code {self.code}: {(self.said.strip().splitlines() or [''])[-1][:200]}"
        if "Traceback (most" in self.said or "--debug shows where" in self.said:
            return f"a traceback: {self.said.strip().splitlines()[-1][:200]}"
        if self.seconds > DEADLINE:
            return f"{self.seconds:.1f} s"
        if self.memory > MOST_MEMORY:
            return f"{self.memory:,} bytes of memory"
        return None


def import_everything(*, graphs: bool = False) -> None:
    """What the commands import when they need it, so that no fork has to do it again."""
    for name in (*_MODULES, *(_OF_GRAPHS if graphs else ())):
        importlib.import_module(f"rnnconvert.{name}")
    _warm_up()
    assert graphs or "tensorflow" not in sys.modules  # every fork would copy its tables of pages


def _warm_up() -> None:
    """Do once what is imported, or made and kept, when it is first needed."""
    from helpers import make_model_h5

    said = [os.dup(1), os.dup(2)]
    with tempfile.TemporaryDirectory() as name:
        model = str(make_model_h5(Path(name) / "m.h5"))
        output = str(Path(name) / "out.h5")
        for arguments in (
            ["inspect", model],
            ["cudnn-to-keras", model, "-o", output, "--verify", "layers"],
        ):
            call(arguments, Path(name) / "log", 0)
    os.dup2(said[0], 1)
    os.dup2(said[1], 2)


# --- in the fork --------------------------------------------------------------------------------


def call(arguments: Sequence[str], log: Path, least: int) -> Run:
    """Call the command line in this process, which is a fork; its words go to `log`.

    Args:
        least: bytes of memory that are not its own.
    """
    from rnnconvert.cli.main import main

    began = time.process_time()
    with log.open("w") as said:
        os.dup2(said.fileno(), 1)
        os.dup2(said.fileno(), 2)
    sys.argv = ["rnnconvert", *arguments]
    code = 70
    try:
        main()
        code = 0
    except SystemExit as stop:
        code = int(stop.code or 0)
    except BaseException:
        import traceback

        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    text = log.read_text(encoding="utf-8", errors="replace")
    return Run(tuple(arguments), code, time.process_time() - began, most_memory() - least, text)


def most_memory() -> int:
    """Bytes that this process has had at most.

    Linux' `ru_maxrss` goes on through `exec`, and so counts what started the process.
    """
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def forked(work: Callable[[Tell], None]) -> tuple[list[dict[str, Any]], int]:
    """Do `work` in a fork of this process, which must have no threads of its own.

    Returns:
        What it told before it ended, and the number of the signal that ended it; 0 for none.
    """
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        _be_the_child(work, writing)
    os.close(writing)
    text = bytearray()
    with contextlib.closing(os.fdopen(reading, "rb", buffering=0)) as pipe:
        while ready := select.select([pipe], [], [], _KILLED_AFTER)[0]:
            piece = pipe.read(65536)
            if not piece:
                break
            text += piece
    if not ready:
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    told = [json.loads(line) for line in text.decode().splitlines()]
    return told, max(0, -os.waitstatus_to_exitcode(status))


def _be_the_child(work: Callable[[Tell], None], writing: int) -> None:
    try:
        with os.fdopen(writing, "w", buffering=1) as pipe:
            work(lambda message: print(json.dumps(message), file=pipe))
    finally:
        os._exit(0)


# --- one command in a process of its own --------------------------------------------------------


def run_alone(arguments: Sequence[str], log: Path) -> Run:
    """Run one command in a fresh interpreter, whatever threads and memory this process has."""
    words = [sys.executable, __file__, str(log), *arguments]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        return Run(tuple(arguments), None, 0.0, 0, f"with exit code {done.returncode}")
    return Run(**json.loads(log.with_suffix(".json").read_text()))


if __name__ == "__main__":
    place = Path(sys.argv[1])
    found = call(sys.argv[2:], place, 0)
    place.with_suffix(".json").write_text(json.dumps(asdict(found)))

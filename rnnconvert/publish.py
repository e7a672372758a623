"""Writing a file so that it appears whole or not at all.

A temporary file beside the target, patched and verified there, flushed to disk, then renamed. A
kill at any moment leaves the target as it was and at most one file with the prefix `.rnnconvert-`.

What takes long to import stands in functions: `inspect` imports this, and mostly writes nothing.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from rnnconvert.errors import FULL_DISK, OutputError
from rnnconvert.exchange import exchange

PREFIX = ".rnnconvert-"


def append_text(path: Path, content: str) -> None:
    """Append to a small text file; what can't be encoded is escaped."""
    with write_errors(path), path.open("ab") as file:
        file.write(content.encode("utf-8", "backslashreplace"))


def bytes_of(path: Path) -> int:
    """Of a file, or of all files in a directory; 0 for what can't be looked at."""
    with contextlib.suppress(OSError):
        if path.is_dir():
            return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
        return path.stat().st_size
    return 0


def scratch_directory() -> Path:
    """Where temporary files lie that are no output's.

    Raises:
        OutputError: there is no such place.
    """
    try:
        import tempfile

        return Path(tempfile.gettempdir())
    except OSError as error:
        raise OutputError(f"no directory for temporary files: {error.strerror}") from error


@contextmanager
def temporary_file(directory: Path, suffix: str) -> Iterator[Path]:
    """An empty file of our own in `directory`, removed on the way out if it is still there."""
    try:
        import tempfile

        handle, name = tempfile.mkstemp(suffix, PREFIX, directory)
    except OSError as error:
        raise OutputError(f"can't write to {directory}: {error.strerror}") from error
    os.close(handle)
    path = Path(name)
    try:
        yield path
    finally:
        with contextlib.suppress(FileNotFoundError):
            path.unlink()


@contextmanager
def temporary_directory(parent: Path) -> Iterator[Path]:
    """A directory with the prefix in `parent`, removed at the end with all that is left in it."""
    try:
        import tempfile

        path = Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))
    except OSError as error:
        raise OutputError(f"can't write to {parent}: {error.strerror}") from error
    try:
        yield path
    finally:
        with uninterrupted():
            _remove_tree(path)


@contextmanager
def write_errors(output: Path) -> Iterator[None]:
    """Errors of the file system while writing, as OutputError with a reason."""
    try:
        yield
    except OSError as error:
        reason = FULL_DISK.get(error.errno or 0) or error.strerror or str(error)
        raise OutputError(f"can't be written: {reason}", path=str(output)) from error


def publish(temporary: Path, output: Path) -> None:
    """Flush `temporary` to disk, give it ordinary permissions, and rename it to `output`."""
    with write_errors(output):
        _make_ready(temporary, output)
        os.replace(temporary, output)
        _flush_directory(output.parent)


def publish_together(files: Sequence[tuple[Path, Path]]) -> None:
    """Publish files that belong together: all of them, or what was there before.

    What is replaced steps aside first, the last file before the others, and comes back if anything
    fails. A kill leaves it under names with the prefix, and never a new file beside an old one.

    Args:
        files: temporary file and target of each; last the one by which the others are found.
    """
    aside: list[tuple[Path, Path]] = []
    with write_errors(files[-1][1]):
        for temporary, target in files:
            _make_ready(temporary, target)
        with uninterrupted():
            try:
                for _, target in reversed(files):
                    if target.exists() or target.is_symlink():
                        aside.append((_unused_name(target), target))
                        os.replace(target, aside[-1][0])
                for temporary, target in files:
                    os.replace(temporary, target)
            except BaseException:
                for temporary, target in files:
                    if not temporary.exists():
                        target.unlink(missing_ok=True)
                _bring_back(aside)
                raise
            try:
                for directory in {target.parent for _, target in files}:
                    _flush_directory(directory)
            finally:
                for old, _ in aside:
                    with contextlib.suppress(OSError):
                        old.unlink()


def publish_directory(temporary: Path, output: Path) -> None:
    """Flush a directory to disk and rename it to `output`; one that is there changes places.

    Args:
        temporary: in a temporary directory of its own, where the replaced one is left.
    """
    with write_errors(output):
        for path in sorted(temporary.rglob("*")):
            if path.is_file():
                _flush(path, os.O_RDWR)
            elif path.is_dir():
                _flush_directory(path)
        _flush_directory(temporary)
        with uninterrupted():
            _take_place(temporary, output)
            _flush_directory(output.parent)


def _take_place(temporary: Path, output: Path) -> None:
    if not output.exists():
        os.rename(temporary, output)
        return
    if exchange(temporary, output):
        return
    aside = _unused_name(output)
    try:
        os.rename(output, aside)
        os.rename(temporary, output)
    except BaseException:
        if not temporary.exists():
            os.rename(output, temporary)
        _bring_back([(aside, output)])
        raise
    _remove_tree(aside)


def _remove_tree(path: Path) -> None:
    import shutil

    shutil.rmtree(path, ignore_errors=True)


def _bring_back(aside: Sequence[tuple[Path, Path]]) -> None:
    for old, target in reversed(aside):
        if old.exists() or old.is_symlink():
            os.rename(old, target)


def _unused_name(target: Path) -> Path:
    """Beside `target`, for what it replaces."""
    return target.with_name(f"{PREFIX}{os.urandom(8).hex()}.old")


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Ctrl-C and SIGTERM wait until the files have changed places, which takes no time."""
    waiting: list[tuple[int, FrameType | None]] = []
    before: dict[int, Any] = {}
    try:
        for number in (int(signal.SIGINT), int(signal.SIGTERM)):
            before[number] = signal.signal(number, lambda *caught: waiting.append(caught))
    except ValueError:  # not in the main thread, which alone hears them
        yield
        return
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if waiting:
            signal.raise_signal(waiting[0][0])


def _make_ready(temporary: Path, output: Path) -> None:
    """Give a file the permissions that `output` has or would get, and flush it to disk."""
    mode = output.stat().st_mode & 0o777 if output.exists() else _usual_mode(output.parent)
    temporary.chmod(mode)
    _flush(temporary, os.O_RDWR)


def _usual_mode(directory: Path) -> int:
    """Permissions of a new file there, asked by making one: the umask can't be read on its own."""
    probe = directory / f"{PREFIX}{os.urandom(8).hex()}"
    handle = os.open(probe, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666)
    try:
        return os.fstat(handle).st_mode & 0o777
    finally:
        os.close(handle)
        probe.unlink()


def write_text(output: Path, content: str) -> None:
    """Write a small text file (the report) atomically, replacing an older one."""
    with write_errors(output):
        directory = output.parent
        with temporary_file(directory, ".json") as temporary:
            temporary.write_text(content, encoding="utf-8")
            publish(temporary, output)


def _flush_directory(directory: Path) -> None:
    with contextlib.suppress(OSError):  # not every file system can flush a directory
        _flush(directory, os.O_RDONLY)


def _flush(path: Path, flags: int) -> None:
    handle = os.open(path, flags)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)

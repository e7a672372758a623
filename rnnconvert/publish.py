"""Writing a file so that it appears whole or not at all.

A temporary file beside the target, patched and verified there, flushed to disk, then renamed. A
kill at any moment leaves the target as it was and at most one file with the prefix `.rnnconvert-`.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rnnconvert.errors import FULL_DISK, OutputError, UsageError

PREFIX = ".rnnconvert-"


def default_output(source: Path, suffix: str, extension: str | None = None) -> Path:
    """`model.h5` to `model.portable.h5`; a name without a known extension gets `.h5`.

    Keras 3 goes by the extension: it loads no HDF5 file under another name than .h5 or .hdf5.
    """
    if source.suffix in (".h5", ".hdf5", ".keras"):
        return source.with_name(f"{source.stem}{suffix}{extension or source.suffix}")
    return source.with_name(f"{source.name}{suffix}{extension or '.h5'}")


def check_output(source: Path, output: Path, *, force: bool, in_place: bool) -> None:
    """Refuse an output that can't or mustn't be written, before any work is done.

    Raises:
        UsageError: output and input are the same file and `in_place` was not asked for.
        OutputError: it exists, or its directory is missing or not writable.
    """
    directory = output.parent
    if not directory.is_dir():
        raise OutputError(f"the directory {directory} does not exist", path=str(output))
    if output.exists() or output.is_symlink():
        if output.exists() and output.samefile(source):
            if not in_place:
                raise UsageError(
                    "output and input are the same file; use --in-place to replace the input",
                    path=str(output),
                )
        elif output.exists() and not output.is_file():
            raise OutputError("the output is not a regular file", path=str(output))
        elif not force:
            raise OutputError("the output exists; use --force to overwrite it", path=str(output))
    if not os.access(directory, os.W_OK):
        raise OutputError(f"the directory {directory} is not writable", path=str(output))


@contextmanager
def temporary_file(directory: Path, suffix: str) -> Iterator[Path]:
    """An empty file of our own in `directory`, removed on the way out if it is still there."""
    try:
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
    path = Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


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
        temporary.chmod(output.stat().st_mode & 0o777 if output.exists() else 0o666 & ~_mask())
        _flush(temporary, os.O_RDWR)
        os.replace(temporary, output)
        with contextlib.suppress(OSError):  # not every file system can flush a directory
            _flush(output.parent, os.O_RDONLY)


def publish_directory(temporary: Path, output: Path) -> None:
    """Flush a directory to disk and rename it to `output`; one that is there steps aside.

    Args:
        temporary: in a temporary directory of its own, where the replaced one is left.
    """
    with write_errors(output):
        temporary.chmod(0o777 & ~_mask())
        for path in sorted(temporary.rglob("*")):
            if path.is_file():
                _flush(path, os.O_RDWR)
        aside = temporary.with_name("replaced") if output.exists() else None
        if aside:
            os.rename(output, aside)
        try:
            os.rename(temporary, output)
        except OSError:
            if aside:
                os.rename(aside, output)
            raise


def _mask() -> int:
    """The permissions that the user takes from new files."""
    mask = os.umask(0)
    os.umask(mask)
    return mask


def write_text(output: Path, content: str) -> None:
    """Write a small text file (the report) atomically, replacing an older one."""
    with write_errors(output):
        directory = output.parent
        with temporary_file(directory, ".json") as temporary:
            temporary.write_text(content, encoding="utf-8")
            publish(temporary, output)


def _flush(path: Path, flags: int) -> None:
    handle = os.open(path, flags)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)

"""Writing a file so that it appears whole or not at all.

A temporary file beside the target, patched and verified there, flushed to disk, then renamed. A
kill at any moment leaves the target as it was and at most one file with the prefix `.rnnconvert-`.

What takes long to import stands in functions: `inspect` imports this, and mostly writes nothing.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from rnnconvert.errors import FULL_DISK, OutputError, UsageError
from rnnconvert.exchange import exchange

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


@dataclass(frozen=True)
class Footprint:
    """What one conversion reads and writes.

    Attributes:
        reads: files, and directories with all that is in them.
        writes: files, and directories that are replaced as a whole.
    """

    reads: tuple[Path, ...]
    writes: tuple[Path, ...] = ()


def refuse_overlap(reads: Iterable[Path], output: Path, *, what: str = "output") -> None:
    """Raise UsageError where writing `output` would destroy an input, or part of one.

    Args:
        what: the output is, for the message.
    """
    place = output.resolve()
    for path in reads:
        source = path.resolve()
        if source == place or (output.exists() and path.exists() and output.samefile(path)):
            raise UsageError(f"{what} and input are the same file", path=str(output))
        if source in place.parents:
            raise UsageError(f"the {what} would be inside the input", path=str(output))
        if place in source.parents and not output.is_file():
            raise UsageError(f"the {what} would replace what the input lies in", path=str(output))


def refuse_clashes(conversions: Sequence[Footprint]) -> None:
    """Several conversions must not write to one place, nor one over the input of another.

    Raises:
        UsageError: two of them would.
    """
    written: set[str] = set()
    for conversion in conversions:
        for path in conversion.writes:
            place = os.path.normcase(path.resolve())
            if place in written:
                raise UsageError(f"several inputs would be written as {path}")
            written.add(place)
    read = {os.path.normcase(path.resolve()) for each in conversions for path in each.reads}
    for conversion in conversions:
        for path in conversion.writes:
            target = path.resolve()
            over = {os.path.normcase(each) for each in (target, *target.parents)} & read
            if over:
                raise UsageError(f"{min(over)} is an input, and another one would be written there")


def check_report(report: Path, models: Iterable[Path], *, is_read: bool) -> None:
    """Refuse a report that would replace a model, or can't be written.

    Args:
        report: the file to write; or, `is_read`, to read where it exists.
        models: files and directories of inputs and outputs.

    Raises:
        UsageError: the report would replace a model, or lie in the directory of one.
        OutputError: it can't be written, or would replace what is no report.
    """
    _refuse_over_models(report, models, "report")
    if report.exists():
        if not report.is_file():
            raise OutputError("the report's path is not a regular file", path=str(report))
        if not is_read and not _is_report(report):
            raise OutputError("the file exists and is no report; it is kept", path=str(report))
    if not (is_read and report.exists()):
        _require_writable(report.parent)


def check_appendable(path: Path, models: Iterable[Path]) -> None:
    """Refuse a text file that would be appended to a model, or can't be written.

    Args:
        path: the file to append to, or to make.
        models: files and directories of inputs and outputs.

    Raises:
        UsageError: it is a model, or would lie in the directory of one.
        OutputError: it can't be written, or holds something other than text.
    """
    for model in models:
        refuse_overlap([model], path, what="text file")
    if path.exists() and not path.is_file():
        raise OutputError("expected a regular file to append to", path=str(path))
    _require_writable(path.parent)
    with write_errors(path):
        content = path.read_bytes() if path.exists() else b""
    if b"\0" in content or not _is_utf8(content):
        raise OutputError("the file exists and is no text; it is kept", path=str(path))


def append_text(path: Path, content: str) -> None:
    """Append to a small text file; what can't be encoded is escaped."""
    with write_errors(path), path.open("ab") as file:
        file.write(content.encode("utf-8", "backslashreplace"))


def _is_utf8(content: bytes) -> bool:
    try:
        content.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def check_page(page: Path, others: Iterable[Path]) -> None:
    """As `check_report`, for the page of `--html`, which replaces a page of ours only."""
    _refuse_over_models(page, others, "page")
    if page.exists():
        if not page.is_file():
            raise OutputError("the page's path is not a regular file", path=str(page))
        if not _is_page(page):
            raise OutputError("the file exists and is no page of rnnconvert; it is kept",
                              path=str(page))  # fmt: skip
    _require_writable(page.parent)


def _refuse_over_models(written: Path, models: Iterable[Path], what: str) -> None:
    try:
        for path in models:
            refuse_overlap([path], written, what=what)
    except UsageError as error:
        raise UsageError(f"the {what} would replace a model, or a part of one",
                         path=str(written)) from error  # fmt: skip


PAGE_MARK = '<meta name="generator" content="rnnconvert">'
"""In each page of ours, near its beginning."""
_MARK_WITHIN = 1000


def _is_page(path: Path) -> bool:
    """Whether a file holds nothing, or what `--html` wrote."""
    try:
        with path.open("rb") as file:
            start = file.read(_MARK_WITHIN)
    except OSError:
        return False
    return not start or PAGE_MARK.encode() in start


def _is_report(path: Path) -> bool:
    """Whether a file holds nothing, or what `--report` wrote."""
    try:
        content = json.loads(path.read_text(encoding="utf-8") or "[]")
    except (OSError, ValueError, RecursionError):
        return False
    reports = content if isinstance(content, list) else [content]
    return all(isinstance(report, dict) and "schema" in report for report in reports)


def _require_writable(directory: Path) -> None:
    if not directory.is_dir():
        raise OutputError(f"the directory {directory} does not exist")
    if not os.access(directory, os.W_OK):
        raise OutputError(f"the directory {directory} is not writable")


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

"""Names of outputs, and what they may not do: replace an input, each other or a foreign file."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from rnnconvert.errors import OutputError, UsageError
from rnnconvert.publish import write_errors


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

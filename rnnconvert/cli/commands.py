"""What the commands do with their arguments: call the pipeline for each input, print, count.

Imports stand where they are needed: `inspect` should not wait for what only a conversion uses.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rnnconvert.cli.output import Output
from rnnconvert.errors import (
    ConversionError,
    OutputError,
    UnreadableInputError,
    UsageError,
    last_resort,
)

if TYPE_CHECKING:
    from rnnconvert.options import Options
    from rnnconvert.publish import Footprint
    from rnnconvert.report import Report

NEEDS_WORK = 1


def convert_all(
    output: Output,
    *,
    paths: Sequence[Path],
    output_path: str | None = None,
    jobs: int = 1,
    **options: Any,
) -> int:
    """Convert every input; the worst exit code wins. An interrupted run reports what it did."""
    from rnnconvert.options import Options

    target = _output_path(output_path)
    chosen = Options.of(hashes=output.wants_report, **options)
    if len(paths) > 1 and target is not None and not target.is_dir():
        raise UsageError("with several inputs the output must be an existing directory",
                         path=str(target))  # fmt: skip
    _refuse_clashes(output, paths, target, chosen)
    codes: dict[int, int] = {}
    work = partial(_convert_one, target=target, options=chosen)
    try:
        for index, outcome in _outcomes(work, paths, jobs):
            codes[index] = _tell(output, paths[index], *outcome, chosen)
    except KeyboardInterrupt:
        for index, path in enumerate(paths):
            if index not in codes:
                output.failed_report(chosen.command, path, _interrupted())
        output.finish()
        raise
    output.finish()
    return max(codes.values())


def _tell(
    output: Output,
    path: Path,
    report: Report | None,
    error: ConversionError | None,
    options: Options,
) -> int:
    """Print the outcome of one conversion; returns its exit code."""
    if report is not None:
        output.conversion(report, options, failed=error is not None)
    else:
        output.failed_report(options.command, path, error)
    if error is not None:
        if output.debug:
            output.traceback(error)
        output.error(error)
        return error.exit_code
    needs_work = report is not None and report.verdict != "nothing-to-convert"
    return NEEDS_WORK if options.check and needs_work else 0


def _interrupted() -> ConversionError:
    return ConversionError("interrupted before it was done")


def inspect_all(output: Output, *, paths: Sequence[Path], **options: Any) -> int:
    """Inspect every input; the worst exit code wins."""
    from rnnconvert import inspection
    from rnnconvert.options import Options

    _check_report(output, paths)
    chosen = Options.of(hashes=output.wants_report, **options)
    codes = []
    for path in paths:
        try:
            output.inspection(inspection.run(path, chosen))
            codes.append(0)
        except ConversionError as error:
            if output.debug:
                output.traceback(error)
            output.failed_report("inspect", path, error)
            output.error(error)
            codes.append(error.exit_code)
    output.finish()
    return max(codes)


def verify_pair(output: Output, *, original: Path, converted: Path, **options: Any) -> int:
    """Compare two files. A report that exists is one to check the files by."""
    from rnnconvert import comparison
    from rnnconvert.options import Options

    _check_report(output, [original, converted], may_exist=True)
    earlier = output.take_existing_report()
    chosen = Options.of(hashes=output.wants_report, **options)
    code = 0
    try:
        report = comparison.run(original, converted, chosen, earlier)
        output.comparison(report, earlier)
    except ConversionError as error:
        if error.report is not None:
            output.comparison(error.report, earlier)
        else:
            output.failed_report("verify", original, error)
        if output.debug:
            output.traceback(error)
        output.error(error)
        code = error.exit_code
    output.finish()
    return code


def _output_path(given: str | None) -> Path | None:
    """The output as a path; a directory that is asked for by a slash must be there."""
    if given is None:
        return None
    path = Path(given)
    if given.endswith(("/", os.sep)) and not path.is_dir():
        raise OutputError("the directory does not exist", path=given)
    return path


def _refuse_clashes(
    output: Output, paths: Sequence[Path], target: Path | None, options: Options
) -> None:
    """Two inputs must not be written to one place, nor one over another, nor the report over any.

    Raises:
        UsageError: that would happen.
        OutputError: the report can't be written.
    """
    from rnnconvert.publish import refuse_clashes

    footprints = []
    if len(paths) > 1 or output.writes_report:
        footprints = [_footprint(path, target, options) for path in paths]
    refuse_clashes(footprints)
    reads = [path for each in footprints for path in each.reads]
    output.check_report_path(reads, [p for each in footprints for p in each.writes])


def _footprint(path: Path, target: Path | None, options: Options) -> Footprint:
    """What the conversion of one input reads and writes; of one that can't be read, nothing."""
    from rnnconvert import conversion
    from rnnconvert.publish import Footprint

    try:
        return conversion.footprint(path, target, options)
    except ConversionError:  # it is told in its turn
        return Footprint(_files(path))


def _check_report(output: Output, paths: Sequence[Path], *, may_exist: bool = False) -> None:
    """Refuse a report that would replace a part of a model, before any work is done."""
    if output.writes_report:
        models = [file for path in paths for file in _files(path)]
        output.check_report_path(models, [], may_exist=may_exist)


def _files(path: Path) -> tuple[Path, ...]:
    """The files of a model, or its directory; of what is no model, what was given."""
    from rnnconvert.containers.checkpoint import find_checkpoint, open_checkpoint

    if os.path.exists(path / "saved_model.pb"):  # takes names that are too long, as none
        return (path,)
    with suppress(ConversionError), last_resort():
        found = find_checkpoint(path)
        if found is not None:
            graph = found.prefix.with_name(f"{found.prefix.name}.meta")
            return (graph, *found.tables, *open_checkpoint(found).files)
    return () if path.is_dir() else (path,)


Outcome = tuple["Report | None", "ConversionError | None"]


def _outcomes(
    work: Callable[[Path], Outcome], paths: Sequence[Path], jobs: int
) -> Iterator[tuple[int, Outcome]]:
    """The index of each input and what became of it, in their order."""
    if jobs == 1 or len(paths) == 1:
        for index, path in enumerate(paths):
            yield index, work(path)
        return
    from rnnconvert.cli.workers import Died, side_by_side

    done: dict[int, Outcome] = {}
    told = 0
    try:
        for index, outcome in side_by_side(work, paths, min(jobs, len(paths))):
            if isinstance(outcome, Died):
                outcome = (
                    None,
                    UnreadableInputError(
                        f"the process that worked on it died ({outcome}); nothing was written",
                        path=str(paths[index]),
                    ),
                )
            done[index] = outcome
            while told in done:
                yield told, done[told]
                told += 1
    except KeyboardInterrupt:
        for index in sorted(index for index in done if index >= told):
            yield index, done[index]
        raise


def _convert_one(path: Path, target: Path | None, options: Options) -> Outcome:
    from rnnconvert import conversion

    try:
        return conversion.run(path, target, options), None
    except ConversionError as error:
        return error.report, error

"""What the commands do with their arguments: call the pipeline for each input, print, count.

Imports stand where they are needed: `inspect` should not wait for what only a conversion uses.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rnnconvert.cli.output import Output
from rnnconvert.errors import ConversionError, OutputError, UsageError

if TYPE_CHECKING:
    from rnnconvert.options import Options
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
    """Convert every input; the worst exit code wins."""
    from rnnconvert.options import Options

    target = _output_path(output_path)
    chosen = Options.of(hashes=output.wants_report, **options)
    if len(paths) > 1 and target is not None and not target.is_dir():
        raise UsageError("with several inputs the output must be an existing directory",
                         path=str(target))  # fmt: skip
    _refuse_clashes(paths, target, chosen)
    output.check_report_path(paths, target)
    outcomes = _for_each(partial(_convert_one, target=target, options=chosen), paths, jobs)
    codes = []
    for path, (report, error) in zip(paths, outcomes, strict=True):
        if report is not None:
            output.conversion(report, chosen, failed=error is not None)
        else:
            output.failed_report(chosen.command, path, error)
        if error is not None:
            if output.debug:
                output.traceback(error)
            output.error(error)
            codes.append(error.exit_code)
        elif chosen.check and report is not None and report.verdict != "nothing-to-convert":
            codes.append(NEEDS_WORK)
        else:
            codes.append(0)
    output.finish()
    return max(codes)


def inspect_all(output: Output, *, paths: Sequence[Path], **options: Any) -> int:
    """Inspect every input; the worst exit code wins."""
    from rnnconvert import inspection
    from rnnconvert.options import Options

    output.check_report_path(paths, None)
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

    output.check_report_path([original, converted], None)
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


def _refuse_clashes(paths: Sequence[Path], target: Path | None, options: Options) -> None:
    """Two inputs must not be written to one place, nor one over another."""
    from rnnconvert.publish import default_output

    if len(paths) < 2 or options.in_place:
        return
    outputs = [default_output(path, options.suffix, options.extension) for path in paths]
    if target is not None:
        outputs = [target / output.name for output in outputs]
    twice = sorted({output for output in outputs if outputs.count(output) > 1})
    if twice:
        raise UsageError(f"several inputs would be written as {twice[0]}")
    overwritten = {path.absolute() for path in paths} & {path.absolute() for path in outputs}
    if overwritten:
        raise UsageError(f"{min(overwritten)} is an input, and another one would be written there")


def _for_each(
    work: Callable[[Path], Any], paths: Sequence[Path], jobs: int
) -> list[tuple[Report | None, ConversionError | None]]:
    if jobs == 1 or len(paths) == 1:
        return [work(path) for path in paths]
    import multiprocessing
    from concurrent.futures import ProcessPoolExecutor

    # Spawned: a fork of a process that has TensorFlow's threads waits for ever for their locks.
    workers = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(min(jobs, len(paths)), mp_context=workers) as pool:
        return list(pool.map(work, paths))


def _convert_one(
    path: Path, target: Path | None, options: Options
) -> tuple[Report | None, ConversionError | None]:
    from rnnconvert import conversion

    try:
        return conversion.run(path, target, options), None
    except ConversionError as error:
        return error.report, error

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
from rnnconvert.cli.supervise import working_on
from rnnconvert.containers import deadline
from rnnconvert.errors import (
    ConversionError,
    OutputError,
    UnreadableInputError,
    UsageError,
    last_resort,
)

if TYPE_CHECKING:
    from rnnconvert.cli.ci import CiFiles
    from rnnconvert.cli.progress_bar import ProgressBar
    from rnnconvert.options import Options
    from rnnconvert.publish import Footprint

NEEDS_WORK = 1


def convert_all(
    output: Output,
    *,
    paths: Sequence[Path],
    output_path: str | None = None,
    jobs: int = 1,
    include: Sequence[str] = (),
    exclude: Sequence[str] = (),
    resume: bool = False,
    summary: str | None = None,
    annotations: str | None = None,
    **options: Any,
) -> int:
    """Convert every input; the worst exit code wins. An interrupted run reports what it did."""
    from rnnconvert.cli.ci import CiFiles
    from rnnconvert.commands.folder import Wanted, find_models, mirrored
    from rnnconvert.options import Options

    chosen = Options.of(hashes=output.documents.are_wanted, **options)
    found = find_models(paths, Wanted(tuple(include), tuple(exclude)),
                        None if output_path is None else Path(output_path))  # fmt: skip
    models = [model.path for model in found.models]
    ci = CiFiles(summary, annotations)
    if not found.is_folder:
        target = _output_path(output_path)
        if len(models) > 1 and target is not None and not target.is_dir():
            raise UsageError("with several inputs the output must be an existing directory",
                             path=str(target))  # fmt: skip
        pairs = list(zip(models, [target] * len(models), strict=True))
        return _convert(output, ci, pairs, jobs, chosen, resume=resume)
    root = None if output_path is None else Path(output_path)
    if root is not None and root.exists() and not root.is_dir():
        raise UsageError("with a folder as input the output must be a directory", path=str(root))
    output.show_as_batch()
    with mirrored(found.models, root, chosen) as targets:
        work = list(zip(models, targets, strict=True))
        return _convert(output, ci, work, jobs, chosen, resume=resume, others=found.left_alone())


def _convert(
    output: Output,
    ci: CiFiles,
    pairs: Sequence[Pair],
    jobs: int,
    options: Options,
    *,
    resume: bool,
    others: Sequence[str] = (),
) -> int:
    """Convert each model to its target, those apart that an earlier run has done."""
    _refuse_clashes(output, ci, pairs, options)
    codes: dict[int, int] = {}
    if resume:
        pairs = _not_done(output, pairs, options)
    paths = [path for path, _ in pairs]
    try:
        with output.working_on(paths) as bar:
            work = partial(_convert_one, options=options)
            for index, outcome in _outcomes(work, pairs, jobs, bar, apart=not output.debug):
                ci.add(paths[index], outcome, check=options.check)
                codes[index] = _tell(output, paths[index], outcome, options)
                output.documents.save()
    except KeyboardInterrupt:
        for index, path in enumerate(paths):
            if index not in codes:
                output.unfinished(options.command, path, _interrupted())
                ci.add(path, _interrupted())
        output.finish(others)
        ci.write()
        raise
    output.finish(others)
    ci.write()
    return max(codes.values(), default=0)


def _not_done(output: Output, pairs: Sequence[Pair], options: Options) -> list[Pair]:
    """What an earlier run has not done; of the rest the report's entries are kept.

    Raises:
        UsageError: there is no report to go by.
    """
    from rnnconvert.commands.resume import read_entries, was_done

    report = output.documents.report
    if report is None:
        raise UsageError("--resume needs --report FILE, which says what an earlier run has done")
    output.show_as_batch()
    entries, left = read_entries(report), []
    for path, target in pairs:
        entry = entries.get(str(path))
        if entry is not None and was_done(entry, path, options):
            output.done_before(str(path), entry)
        else:
            left.append((path, target))
    return left


def _tell(output: Output, path: Path, outcome: Outcome, options: Options) -> int:
    """Print the outcome of one conversion; returns its exit code."""
    if isinstance(outcome, ConversionError):
        output.failure(options.command, path, outcome)
        return outcome.exit_code
    output.conversion(outcome, options)
    needs_work = outcome.verdict != "nothing-to-convert"
    return NEEDS_WORK if options.check and needs_work else 0


def _interrupted() -> ConversionError:
    return ConversionError("interrupted before it was done")


def export_one(output: Output, *, path: Path, output_path: str, **options: Any) -> int:
    """Export one model."""
    from rnnconvert.exports import export_model
    from rnnconvert.exports.options import ExportOptions

    chosen = ExportOptions.of(hashes=output.documents.are_wanted, **options)
    target = _output_path(output_path)
    assert target is not None
    _check_report(output, [path, target])
    code = 0
    working_on(path)
    try:
        with output.working_on([path]) as bar:
            if bar is not None:
                bar.begin(path)
            report = export_model(path, target, chosen)
        output.exported(report)
    except ConversionError as error:
        output.failure("export", path, error)
        code = error.exit_code
    output.finish()
    return code


def inspect_all(
    output: Output,
    *,
    paths: Sequence[Path],
    include: Sequence[str] = (),
    exclude: Sequence[str] = (),
    **options: Any,
) -> int:
    """Inspect every input; the worst exit code wins."""
    from rnnconvert.commands.folder import Wanted, find_models
    from rnnconvert.options import Options

    found = find_models(paths, Wanted(tuple(include), tuple(exclude)))
    paths = [model.path for model in found.models]
    if found.is_folder:
        output.show_as_batch()
    _check_report(output, paths)
    chosen = Options.of(hashes=output.documents.are_wanted, **options)
    codes = []
    work = partial(_inspect_one, options=chosen)
    with output.working_on(paths) as bar:
        pairs = [(path, None) for path in paths]
        for index, outcome in _outcomes(work, pairs, 1, bar, apart=not output.debug):
            if isinstance(outcome, ConversionError):
                output.failure("inspect", paths[index], outcome)
                codes.append(outcome.exit_code)
            else:
                output.inspection(outcome)
                codes.append(0)
    output.finish(found.left_alone())
    return max(codes)


def verify_pair(
    output: Output,
    *,
    original: Path,
    converted: Path,
    summary: str | None = None,
    annotations: str | None = None,
    **options: Any,
) -> int:
    """Compare two files. A report that exists is one to check the files by."""
    from rnnconvert.cli.ci import CiFiles
    from rnnconvert.commands import verify as comparison
    from rnnconvert.options import Options

    _check_report(output, [original, converted], may_exist=True)
    ci = CiFiles(summary, annotations)
    ci.require_writable([file for path in (original, converted) for file in _files(path)])
    earlier = output.documents.take_existing_report()
    chosen = Options.of(hashes=output.documents.are_wanted, **options)
    code = 0
    working_on(f"{original} or {converted}")
    try:
        with output.working_on([original]) as bar:
            if bar is not None:
                bar.begin(original)
            report = comparison.verify_paths(original, converted, chosen, earlier)
        output.comparison(report, earlier)
        ci.add(converted, report)
    except ConversionError as error:
        ci.add(converted, error)
        if error.report is not None:
            output.comparison(error.report, earlier)
            output.error(error)
        else:
            output.failure("verify", original, error)
        code = error.exit_code
    output.finish()
    ci.write()
    return code


def _output_path(given: str | None) -> Path | None:
    """The output as a path; a directory that is asked for by a slash must be there."""
    if given is None:
        return None
    path = Path(given)
    if given.endswith(("/", os.sep)) and not path.is_dir():
        raise OutputError("the directory does not exist", path=given)
    return path


def _refuse_clashes(output: Output, ci: CiFiles, pairs: Sequence[Pair], options: Options) -> None:
    """Two inputs must not be written to one place, nor one over another, nor a text over any.

    Raises:
        UsageError: that would happen.
        OutputError: the report can't be written.
    """
    from rnnconvert.publish import refuse_clashes

    footprints = []
    if len(pairs) > 1 or output.documents.are_written or ci.paths:
        footprints = list(_footprints(pairs, options, apart=not output.debug))
    refuse_clashes(footprints)
    reads = [path for each in footprints for path in each.reads]
    writes = [path for each in footprints for path in each.writes]
    output.documents.check_paths(reads, writes)
    ci.require_writable([*reads, *writes])


def _footprints(pairs: Sequence[Pair], options: Options, *, apart: bool) -> Iterator[Footprint]:
    """What each conversion reads and writes; of an input that can't be read, nothing is written."""
    from rnnconvert.publish import Footprint

    work = partial(_footprint, options=options)
    for index, outcome in _outcomes(work, pairs, 1, None, apart=apart, quick=True):
        failed = isinstance(outcome, ConversionError)  # it is told in its turn
        yield Footprint(_files(pairs[index][0])) if failed else outcome


def _footprint(pair: Pair, options: Options) -> Outcome:
    from rnnconvert.commands import convert as conversion

    try:
        return conversion.footprint(*pair, options)
    except ConversionError as error:
        return error


def _check_report(output: Output, paths: Sequence[Path], *, may_exist: bool = False) -> None:
    """Refuse a report that would replace a part of a model, before any work is done."""
    if output.documents.are_written:
        models = [file for path in paths for file in _files(path)]
        output.documents.check_paths(models, [], may_exist=may_exist)


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


Outcome = Any
"""What a command found or did, or the ConversionError that came instead."""
Pair = tuple[Path, "Path | None"]
"""A model, and where its output goes."""


def _outcomes(
    work: Callable[[Pair], Outcome],
    pairs: Sequence[Pair],
    jobs: int,
    bar: ProgressBar | None,
    *,
    apart: bool,
    quick: bool = False,
) -> Iterator[tuple[int, Outcome]]:
    """The index of each input and what became of it, in their order.

    Args:
        apart: each of several inputs may only cost itself, even if a library crashes on it.
        quick: the work takes less time than a new process: see `in_workers`.
    """
    if len(pairs) == 1 or (jobs == 1 and not (apart and deadline.is_allowed())):
        for index, pair in enumerate(pairs):
            working_on(pair[0])
            if bar is not None:
                bar.begin(pair[0])
            outcome = work(pair)
            if bar is not None:
                bar.end(range(index + 1))
            yield index, outcome
        return
    from rnnconvert.cli.workers import Died, in_workers

    done: dict[int, Outcome] = {}
    told = 0
    try:
        for index, outcome in in_workers(work, pairs, min(jobs, len(pairs)), fork=quick):
            if isinstance(outcome, Died):
                outcome = UnreadableInputError(str(outcome), path=str(pairs[index][0]))
            done[index] = outcome
            if bar is not None:
                bar.end(list(done))
            while told in done:
                yield told, done[told]
                told += 1
    except KeyboardInterrupt:
        for index in sorted(index for index in done if index >= told):
            yield index, done[index]
        raise


def _inspect_one(pair: Pair, options: Options) -> Outcome:
    from rnnconvert.commands import inspect as inspection

    try:
        return inspection.inspect_path(pair[0], options)
    except ConversionError as error:
        return error


def _convert_one(pair: Pair, options: Options) -> Outcome:
    from rnnconvert.commands import convert as conversion
    from rnnconvert.verification.frameworks import number_names_anew

    number_names_anew()
    try:
        return conversion.convert_path(*pair, options)
    except ConversionError as error:
        return error

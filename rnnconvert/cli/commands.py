"""What the commands do with their arguments: call the pipeline for each input, print, count.

Imports stand where they are needed: `inspect` should not wait for what only a conversion uses.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rnnconvert.cli.outcomes import (
    Outcome,
    Pair,
    Workers,
    convert_one,
    inspect_one,
    outcomes,
    seeming_models,
)
from rnnconvert.cli.output import Output
from rnnconvert.cli.supervise import working_on
from rnnconvert.errors import ConversionError, OutputError, UsageError, last_resort
from rnnconvert.stores.urls import StoreUrl, place_of

if TYPE_CHECKING:
    from rnnconvert.cli.ci import CiFiles
    from rnnconvert.commands.folder import FoundModel, FoundModels
    from rnnconvert.options import Options
    from rnnconvert.outputs import Footprint
    from rnnconvert.report import Report
    from rnnconvert.stores.finding import StoredModel
    from rnnconvert.stores.folder import Source, Target

NEEDS_WORK = 1


def convert_all(
    output: Output,
    *,
    paths: Sequence[Path | StoreUrl],
    output_path: str | None = None,
    jobs: int = 1,
    engine: str = "local",
    scheduler: str | None = None,
    include: Sequence[str] = (),
    exclude: Sequence[str] = (),
    resume: bool = False,
    summary: str | None = None,
    annotations: str | None = None,
    **options: Any,
) -> int:
    """Convert every input; the worst exit code wins. An interrupted run reports what it did."""
    from rnnconvert.cli.ci import CiFiles
    from rnnconvert.commands.folder import Wanted
    from rnnconvert.options import Options
    from rnnconvert.stores.folder import find_placed, targets_of

    chosen = Options.of(hashes=output.documents.are_wanted, **options)
    workers = Workers.chosen(jobs, engine, scheduler)
    target = None if output_path is None else place_of(output_path)
    ci = CiFiles(summary, annotations)
    with ExitStack() as stack:
        with seeming_models(apart=not output.debug) as seems:
            wanted = Wanted(tuple(include), tuple(exclude), seems)
            found = stack.enter_context(find_placed(paths, wanted, target))
        if found.is_folder:
            output.show_as_batch()
        else:
            _require_directory(output_path)
        targets = stack.enter_context(targets_of(found, target, chosen))
        _refuse_clashes(output, ci, found.models, targets, chosen)
        pairs = [(m.source, place) for m, place in zip(found.models, targets, strict=True)]
        return _convert(output, ci, pairs, workers, chosen, found, resume=resume)


def _convert(
    output: Output,
    ci: CiFiles,
    pairs: Sequence[Pair],
    workers: Workers,
    options: Options,
    found: FoundModels,
    *,
    resume: bool,
) -> int:
    """Convert each model to its target, those apart that an earlier run has done."""
    codes: dict[int, int] = {}
    if resume:
        pairs = _not_done(output, pairs, options)
    paths = [path for path, _ in pairs]
    try:
        with output.working_on(paths) as bar:
            work = partial(convert_one, options=options)
            for index, outcome in outcomes(work, pairs, workers, bar, apart=not output.debug):
                if outcome is None:
                    found.others += 1
                    codes[index] = 0
                    continue
                ci.add(paths[index], outcome, check=options.check)
                codes[index] = _tell(output, paths[index], outcome, options)
                output.documents.save()
    except KeyboardInterrupt:
        for index, path in enumerate(paths):
            if index not in codes:
                output.unfinished(options.command, path, _interrupted())
                ci.add(path, _interrupted())
        output.finish(found.left_alone())
        ci.write()
        raise
    output.finish(found.left_alone())
    ci.write()
    return max(codes.values(), default=0)


def _not_done(output: Output, pairs: Sequence[Pair], options: Options) -> list[Pair]:
    """What an earlier run has not done; of the rest the report's entries are kept.

    Raises:
        UsageError: there is no report to go by.
    """
    from rnnconvert.commands.resume import read_entries, was_done
    from rnnconvert.stores.resume import is_unchanged

    report = output.documents.report
    if report is None:
        raise UsageError("--resume needs --report FILE, which says what an earlier run has done")
    output.show_as_batch()
    entries, left = read_entries(report), []
    for path, target in pairs:
        entry = entries.get(str(path))
        if entry is not None and was_done(entry, path, options, is_unchanged):
            output.done_before(str(path), entry)
        else:
            left.append((path, target))
    return left


def _tell(output: Output, path: Source, outcome: Outcome, options: Options) -> int:
    """Print the outcome of one conversion; returns its exit code."""
    if isinstance(outcome, ConversionError):
        output.failure(options.command, path, outcome)
        return outcome.exit_code
    output.conversion(outcome, options)
    needs_work = outcome.verdict != "nothing-to-convert"
    return NEEDS_WORK if options.check and needs_work else 0


def _interrupted() -> ConversionError:
    return ConversionError("interrupted before it was done")


def export_one(output: Output, *, path: Path | StoreUrl, output_path: str, **options: Any) -> int:
    """Export one model."""
    from dataclasses import replace

    from rnnconvert.cli.config import from_settings
    from rnnconvert.exports import export_model
    from rnnconvert.exports.options import ExportOptions
    from rnnconvert.stores.work import on_models, to_place

    chosen = ExportOptions.of(hashes=output.documents.are_wanted, **options)
    chosen = replace(chosen, settings=from_settings())
    _require_directory(output_path)
    target = place_of(output_path)
    _check_report(output, [path, target])
    code = 0
    working_on(path)

    def export(source: Path) -> Report:
        return to_place(lambda place: export_model(source, place, chosen), target, chosen.general)

    try:
        with output.working_on([path]) as bar:
            if bar is not None:
                bar.begin(path.name)
            report = on_models(export, [path])
        output.exported(report)
    except ConversionError as error:
        output.failure("export", path, error)
        code = error.exit_code
    output.finish()
    return code


def inspect_all(
    output: Output,
    *,
    paths: Sequence[Path | StoreUrl],
    include: Sequence[str] = (),
    exclude: Sequence[str] = (),
    **options: Any,
) -> int:
    """Inspect every input; the worst exit code wins."""
    from rnnconvert.commands.folder import Wanted
    from rnnconvert.options import Options
    from rnnconvert.stores.folder import find_placed

    with (
        seeming_models(apart=not output.debug) as seems,
        find_placed(paths, Wanted(tuple(include), tuple(exclude), seems)) as found,
    ):
        pairs: list[Pair] = [(model.source, None) for model in found.models]
    models = [model for model, _ in pairs]
    if found.is_folder:
        output.show_as_batch()
    _check_report(output, models)
    chosen = Options.of(hashes=output.documents.are_wanted, **options)
    codes = [0]
    work = partial(inspect_one, options=chosen)
    with output.working_on(models) as bar:
        for index, outcome in outcomes(work, pairs, Workers(), bar, apart=not output.debug):
            if outcome is None:
                found.others += 1
            elif isinstance(outcome, ConversionError):
                output.failure("inspect", models[index], outcome)
                codes.append(outcome.exit_code)
            else:
                output.inspection(outcome)
    output.finish(found.left_alone())
    return max(codes)


def verify_pair(
    output: Output,
    *,
    original: Path | StoreUrl,
    converted: Path | StoreUrl,
    summary: str | None = None,
    annotations: str | None = None,
    **options: Any,
) -> int:
    """Compare two files. A report that exists is one to check the files by."""
    from rnnconvert.cli.ci import CiFiles
    from rnnconvert.commands import verify as comparison
    from rnnconvert.options import Options
    from rnnconvert.stores.work import on_models

    _check_report(output, [original, converted], may_exist=True)
    ci = CiFiles(summary, annotations)
    ci.require_writable(_local_files([original, converted]))
    earlier = output.documents.take_existing_report()
    chosen = Options.of(hashes=output.documents.are_wanted, **options)
    code = 0
    working_on(f"{original} or {converted}")
    try:
        with output.working_on([original]) as bar:
            if bar is not None:
                bar.begin(original.name)
            report = on_models(
                lambda one, other: comparison.verify_paths(one, other, chosen, earlier),
                [original, converted],
            )
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


def _require_directory(given: str | None) -> None:
    """A local directory that is asked for by a slash must be there; those of stores never are."""
    if given is not None and given.endswith(("/", os.sep)) and isinstance(place_of(given), Path) \
            and not Path(given).is_dir():  # fmt: skip
        raise OutputError("the directory does not exist", path=given)


def _refuse_clashes(
    output: Output,
    ci: CiFiles,
    models: Sequence[FoundModel],
    targets: Sequence[Target],
    options: Options,
) -> None:
    """Two inputs must not be written to one place, nor one over another, nor a text over any.

    Raises:
        UsageError: that would happen.
        OutputError: the report can't be written.
    """
    from rnnconvert.outputs import refuse_clashes
    from rnnconvert.stores.folder import refuse_stored_clashes

    footprints = []
    if len(models) > 1 or output.documents.are_written or ci.paths:
        pairs = list(zip(models, targets, strict=True))
        footprints = [
            *_footprints(pairs, options, apart=not output.debug),
            *_stored_footprints(pairs, options),
        ]
    refuse_clashes(footprints)
    refuse_stored_clashes(models, targets, options)
    reads = [path for each in footprints for path in each.reads]
    writes = [path for each in footprints for path in each.writes]
    output.documents.check_paths(reads, writes)
    ci.require_writable([*reads, *writes])


def _footprints(
    pairs: Sequence[tuple[FoundModel, Target]], options: Options, *, apart: bool
) -> Iterator[Footprint]:
    """What the conversions of local models read and write; where one can't be read, nothing is
    written.
    """
    from rnnconvert.outputs import Footprint

    local = [(model.path, target) for model, target in pairs if model.stored is None]
    work = partial(_footprint, options=options)
    for index, outcome in outcomes(work, local, Workers(), None, apart=apart):
        failed = isinstance(outcome, ConversionError)  # it is told in its turn
        yield Footprint(_files(local[index][0])) if failed else outcome


def _footprint(pair: tuple[Path, Target], options: Options) -> Outcome:
    from rnnconvert.commands import convert as conversion
    from rnnconvert.outputs import Footprint

    path, target = pair
    if target is not None and not isinstance(target, Path):
        return Footprint(_files(path))
    try:
        return conversion.footprint(path, target, options)
    except ConversionError as error:
        return error


def _stored_footprints(
    pairs: Sequence[tuple[FoundModel, Target]], options: Options
) -> Iterator[Footprint]:
    """What the conversions of models in a store write on this machine."""
    from rnnconvert.commands import convert as conversion
    from rnnconvert.outputs import Footprint

    for model, target in pairs:
        if model.stored is not None and isinstance(target, Path):
            yield Footprint((), tuple(conversion.possible_outputs(model.path, target, options)))


def _check_report(
    output: Output, places: Sequence[Path | StoreUrl | StoredModel], *, may_exist: bool = False
) -> None:
    """Refuse a report that would replace a part of a model, before any work is done."""
    if output.documents.are_written:
        models = _local_files(places)
        output.documents.check_paths(models, [], may_exist=may_exist)


def _local_files(places: Sequence[Path | StoreUrl | StoredModel]) -> list[Path]:
    return [file for place in places if isinstance(place, Path) for file in _files(place)]


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

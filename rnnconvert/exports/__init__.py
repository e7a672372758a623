"""Export: a model of any kind to another runtime, proved in that runtime.

report = export_model(Path("model.h5"), Path("model.onnx"), ExportOptions())
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rnnconvert.containers.budget import max_bytes
from rnnconvert.errors import NotConvertibleError, OutputError, UsageError, errors_of, last_resort
from rnnconvert.exports.options import ExportOptions
from rnnconvert.exports.targets import Target, export_target
from rnnconvert.kinds import Kind, kind_of
from rnnconvert.outputs import check_output, refuse_overlap
from rnnconvert.publish import (
    publish_together,
    scratch_directory,
    temporary_directory,
    write_errors,
)
from rnnconvert.report import NOTHING_WRITTEN, FileInfo, LevelResult, Report

if TYPE_CHECKING:
    from rnnconvert.exports.sources import Source

STACKS = (Kind.CHECKPOINT, Kind.META_GRAPH)
"""Kinds of which RNN stacks are exported."""


def export_model(path: Path, output: Path, options: ExportOptions) -> Report:
    """Export one model. A ConversionError carries a partial report, if there is one.

    Args:
        path: of any kind, see `kinds.Kind`.
        output: file to write; a directory where the input holds several stacks or layers.

    Raises:
        ConversionError: a subclass for each exit code; see `errors`.
    """
    general = options.general
    with max_bytes(general.max_bytes), errors_of(path), last_resort():
        target = export_target(output, options.to, stateful_step=options.stateful_step)
        options = options.for_target(target.name)
        if general.device == "gpu":
            raise UsageError("--device gpu: an export is proved on the CPU, where it runs anywhere")
        kind = kind_of(path)
        refuse_overlap([path], output)
        _check_directory(path, output, options)
        module = target.load()
        return _export(path, output, kind, target, module, options)


def _check_directory(path: Path, output: Path, options: ExportOptions) -> None:
    """Refuse an output that can't be written, before any work is done."""
    force = options.general.force or options.general.dry_run
    if output.is_dir():
        return
    if output.suffix:
        check_output(path, output, force=force, in_place=False)
    elif not output.parent.is_dir():
        raise OutputError(f"the directory {output.parent} does not exist", path=str(output))


def _export(
    path: Path, output: Path, kind: Kind, target: Target, module: Any, options: ExportOptions
) -> Report:
    # What is imported here brings code that only an export needs.
    from rnnconvert.exports.proof import prove
    from rnnconvert.exports.sources import open_sources
    from rnnconvert.exports.streaming import with_states

    general = options.general
    with (
        temporary_directory(scratch_directory()) as work,
        open_sources(path, kind, target, options, work) as sources,
    ):
        report = _first_report(path, kind, sources.report, sources.notes, general.hashes)
        targets = _output_paths(path, output, target, sources.models)
        written: list[Any] = []
        levels: list[LevelResult] = []
        folder = scratch_directory() if general.dry_run else targets[0].parent
        with temporary_directory(folder if folder.is_dir() else folder.parent) as made:
            for source, place in zip(sources.models, targets, strict=True):
                ready = with_states(source, options)
                with write_errors(place):
                    done = module.write(ready, made / place.name, options)
                written.append(done)
                if general.verify == "model":
                    levels += prove(ready, module.runner(made / place.name, done), done, options)
            files = [(made / name, place.parent / name)
                     for place, done in zip(targets, written, strict=True)
                     for name in reversed(done.files)]  # fmt: skip
            report = _finish(report, written, levels, options)
            result = _described(output, target, files, options)
            if general.dry_run:
                return report
            _check_all(path, files, options)
            with write_errors(output):
                targets[0].parent.mkdir(exist_ok=True)
            publish_together(files)
    return replace(report, output=result)


def _first_report(
    path: Path, kind: Kind, before: Report, notes: Sequence[str], with_hash: bool
) -> Report:
    """What the conversion that went before found, as the beginning of the export's own report."""
    info = before.input  # of a checkpoint, which may be given by its prefix: all of its files
    if kind not in STACKS:
        info = FileInfo.of(path, kind.value, with_hash=with_hash)
    asked = LevelResult.nothing_to_run("nothing was converted before the export")
    converted = before.command != "export" and before.verdict != "nothing-to-convert"
    container = info.container if kind is Kind.KERAS_WEIGHTS else before.input.container

    version, backend = before.input.keras_version, before.input.backend
    info = replace(info, container=container, keras_version=version, backend=backend)
    return replace(
        before,
        command="export",
        input=info,
        output=None,
        weights_level=before.weights_level if converted else asked,
        layers_level=before.layers_level if converted else asked,
        warnings=(*before.warnings, *notes),
    )


def _finish(
    report: Report, written: Sequence[Any], levels: Sequence[LevelResult], options: ExportOptions
) -> Report:
    """The report with what was written and proved.

    Raises:
        DifferenceError: a level failed.
        NotConvertibleError: `--strict`, and a doubt is left.
    """
    asked = options.general.verify
    proved = bool(levels) and all(level.status == "passed" for level in levels)
    assumptions = tuple(each for done in written for each in done.assumptions)
    warnings = tuple(note for done in written for note in done.notes)
    report = replace(
        report,
        model_level=tuple(levels) or (LevelResult.not_asked(asked),),
        exported=tuple(written),
        assumptions=(*report.assumptions, *assumptions),
        warnings=(*report.warnings, *warnings),
        verdict="equivalent" if proved else "unverified",  # what was converted is not the export
    )
    report.raise_if_different(NOTHING_WRITTEN)
    if options.general.strict:
        report.raise_if_in_doubt(NOTHING_WRITTEN)
    return report


# --- files ----------------------------------------------------------------------------------


def _output_paths(path: Path, output: Path, target: Target, models: Sequence[Source]) -> list[Path]:
    """Where each model goes: one file, or one for each name in a directory."""
    names = [model.name for model in models]
    if len(names) == 1:
        if output.is_dir():
            return [output / f"{path.stem}{target.extension}"]
        return [output if output.suffix else output.with_name(output.name + target.extension)]
    if output.suffix and not output.is_dir():
        one = ", or pick one with --scope" if models[0].kind in STACKS else ""
        raise UsageError(
            f"{len(names)} models ({', '.join(names)}): give a directory as output (and --to "
            f"{target.name}){one}",
            path=str(output),
        )
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise UsageError(f"several layers would be written as {twice[0]}{target.extension}")
    return [output / f"{name}{target.extension}" for name in names]


def _check_all(path: Path, files: Sequence[tuple[Path, Path]], options: ExportOptions) -> None:
    for _, place in files:
        refuse_overlap([path], place)
        if place.parent.is_dir():
            check_output(path, place, force=options.general.force, in_place=False)


def _described(
    output: Path, target: Target, files: Sequence[tuple[Path, Path]], options: ExportOptions
) -> FileInfo:
    """The main file as the report's output; of several models, all of their files."""
    mains = [pair for pair in files if pair[1].suffix == target.extension]
    if not mains:
        raise NotConvertibleError("no file was written, a bug of rnnconvert")
    made = [temporary for temporary, _ in mains]
    info = FileInfo.of(made[0], target.name, with_hash=options.general.hashes, files=made)
    return replace(info, path=str(mains[0][1] if len(mains) == 1 else output))

"""TensorFlow's graphs: their cuDNN ops lowered to ordinary ones in a copy, and verified there."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import replace
from pathlib import Path

from rnnconvert.errors import NotConvertibleError, OutputError, UsageError
from rnnconvert.graphs import lowering
from rnnconvert.graphs.inspect import (
    LoweredOp,
    describe_graph,
    lowering_options,
    only_rebuilds,
    require_tensorflow,
    without_effect,
)
from rnnconvert.graphs.verify.compare import BY_REFERENCE
from rnnconvert.hashes import sha256
from rnnconvert.keras_models.files.saved_model import has_keras_config
from rnnconvert.kinds import Kind
from rnnconvert.options import SUFFIX, Options
from rnnconvert.outputs import Footprint, check_output, refuse_overlap
from rnnconvert.progress import tell
from rnnconvert.publish import (
    publish_directory,
    publish_together,
    scratch_directory,
    temporary_directory,
    write_errors,
)
from rnnconvert.report import NOTHING_WRITTEN, LevelResult, Report
from rnnconvert.verification.devices import no_tensorflow_gpu

_VARIABLES = "variables"
"""The folder of a SavedModel that holds its checkpoint."""
_MODELS = ("saved_model.pb", "saved_model.pbtxt")
_PARTS = (*_MODELS, _VARIABLES, "assets", "assets.extra", "keras_metadata.pb", "fingerprint.pb")
"""What TensorFlow and Keras write into the directory of a SavedModel."""


def convert_graph(source: Path, output: Path | None, kind: Kind, options: Options) -> Report:
    """Lower the graph of a SavedModel directory, a frozen graph or a MetaGraph.

    Raises:
        ConversionError: a subclass for each exit code; see `errors`.
    """
    require_tensorflow()
    require_tensorflow_gpu(kind, options)
    skipped = LevelResult.skipped("not reached")
    info = describe_graph(source, kind, options.hashes)
    report = Report("cudnn-to-keras", info, weights_level=skipped, layers_level=skipped,
                    model_level=(skipped,))  # fmt: skip
    opened = lowering.open_graph(source)
    if options.check:
        planned = lowering.plan_model(opened, options=lowering_options(options))
        return _told(report, planned, opened, kind, options)
    output = _output_path(source, output, kind)
    writes = not options.dry_run
    _check_output(source, output, kind, force=options.force or not writes)
    with temporary_directory(output.parent if writes else scratch_directory()) as work:
        target = work / output.name
        with write_errors(output):
            files = lower(opened, target, kind, options)
        report = _told(report, files, opened, kind, options)
        if not files.lowered:
            return report
        report = _verify(report, opened, target, kind, options)
        result = replace(describe_graph(target, kind, options.hashes), path=str(output))
        if not writes:
            return report
        _publish(target, output, kind)
    return replace(report, output=result)


def _told(
    report: Report,
    files: lowering.LoweredFiles,
    opened: lowering.OpenedGraph,
    kind: Kind,
    options: Options,
) -> Report:
    """The report with the ops that are lowered and left; its verdict where nothing is lowered.

    Raises:
        NotConvertibleError: nothing, though the model has CuDNN layers.
    """
    report = replace(
        report,
        layers=tuple(LoweredOp(op) for op in (*files.lowered, *files.left)),
        warnings=(*files.warnings, *without_effect(options)),
    )
    if files.lowered:
        return report
    if _only_rebuilds(opened, kind):
        raise NotConvertibleError(
            "a Keras model with CuDNN layers, saved without its functions (save_traces=False), "
            "so there is no graph to lower; --to keras rebuilds it"
        ).with_report(replace(report, verdict="not-convertible"))
    return replace(report, verdict="nothing-to-convert")


def _only_rebuilds(opened: lowering.OpenedGraph, kind: Kind) -> bool:
    if kind is not Kind.SAVED_MODEL or not has_keras_config(opened.path):
        return False
    return only_rebuilds(opened.path, opened.message.meta_graphs)


def require_tensorflow_gpu(kind: Kind, options: Options) -> None:
    """Raise UsageError where `--device gpu` can't be done: a GPU of torch alone runs no graph."""
    if options.device != "gpu" or options.verify != "model":
        return
    reason = no_tensorflow_gpu() if kind is not Kind.META_GRAPH else "MetaGraphs run on the CPU"
    if reason:
        raise UsageError(f"--device gpu: {reason}")


def lower(
    source: Path | lowering.OpenedGraph, target: Path, kind: Kind, options: Options
) -> lowering.LoweredFiles:
    """Write the lowered graph to `target`, which is of the same kind."""
    chosen = lowering_options(options)
    if kind is Kind.SAVED_MODEL:
        target.mkdir()
        return lowering.lower_saved_model_dir(source, target, options=chosen)
    if kind is Kind.GRAPH:
        return lowering.lower_frozen_graph(source, target, options=chosen)
    return lowering.lower_meta_graph_file(source, target, options=chosen)


# --- files ----------------------------------------------------------------------------------


def _output_path(source: Path, output: Path | None, kind: Kind) -> Path:
    """Of a MetaGraph the .meta file: its checkpoint goes by the same name."""
    extension = {Kind.SAVED_MODEL: "", Kind.GRAPH: ".pb", Kind.META_GRAPH: ".meta"}[kind]
    stem = source.name if kind is Kind.SAVED_MODEL else source.stem
    name = f"{stem}{SUFFIX}{extension}"
    if output is None:
        return source.with_name(name)
    if kind is not Kind.SAVED_MODEL and output.is_dir():
        return output / name
    if kind is Kind.META_GRAPH and output.suffix != extension:
        return output.with_name(output.name + extension)  # it was given as a prefix
    return output


def graph_footprint(source: Path, output: Path | None, kind: Kind) -> Footprint:
    """What `run` would read and write."""
    output = _output_path(source, output, kind)
    if kind is Kind.SAVED_MODEL:
        return Footprint((source,), (output,))
    files = _files(source, kind)
    return Footprint(tuple(files), tuple(_moved(file, source, output) for file in files))


def _check_output(source: Path, output: Path, kind: Kind, *, force: bool) -> None:
    """Refuse an output that can't or mustn't be written."""
    if kind is not Kind.SAVED_MODEL:
        files = _files(source, kind)
        for file in files:
            refuse_overlap(files, _moved(file, source, output))
            check_output(file, _moved(file, source, output), force=force, in_place=False)
        return
    refuse_overlap([source], output)
    if not output.parent.is_dir():
        raise OutputError(f"the directory {output.parent} does not exist", path=str(output))
    if output.exists():
        if not force:
            raise OutputError("the output exists; use --force to replace it", path=str(output))
        _require_replaceable(output)
    if not os.access(output.parent, os.W_OK):
        raise OutputError(f"the directory {output.parent} is not writable", path=str(output))


def _require_replaceable(output: Path) -> None:
    """Refuse to replace a directory that holds anything but one SavedModel, or nothing.

    Raises:
        OutputError: it does.
    """
    if not output.is_dir():
        raise OutputError("the output is no directory, and is kept", path=str(output))
    names = sorted(path.name for path in output.iterdir())
    if names and not any(name in _MODELS for name in names):
        raise OutputError("the directory holds no SavedModel, and is kept", path=str(output))
    foreign = [name for name in names if name not in _PARTS]
    variables = output / _VARIABLES
    if variables.is_dir():
        inner = sorted(path.name for path in variables.iterdir())
        foreign += [f"{_VARIABLES}/{name}" for name in inner if not name.startswith("variables.")]
    if foreign:
        raise OutputError(
            f"the directory holds {foreign[0]}, which is no part of a SavedModel, and is kept",
            path=str(output),
        )


def _files(source: Path, kind: Kind) -> list[Path]:
    """The files of a graph; a MetaGraph comes last, after the checkpoint that it needs."""
    if kind is Kind.GRAPH:
        return [source]
    return [*reversed(lowering.checkpoint_files(source.with_suffix(""))), source]


def _moved(file: Path, source: Path, output: Path) -> Path:
    """Where a file of NAME.meta goes for OTHER.meta."""
    rest = file.name.removeprefix(source.stem)
    return output.with_name(output.stem + rest) if file != source else output


def _publish(target: Path, output: Path, kind: Kind) -> None:
    if kind is Kind.SAVED_MODEL:
        publish_directory(target, output)
        return
    publish_together([(file, _moved(file, target, output)) for file in _files(target, kind)])


# --- verification ---------------------------------------------------------------------------


def _verify(
    report: Report, source: lowering.OpenedGraph, written: Path, kind: Kind, options: Options
) -> Report:
    asked = LevelResult.not_asked(options.verify)
    if options.verify == "none":
        return replace(report, weights_level=asked, layers_level=asked, model_level=(asked,),
                       verdict="unverified")  # fmt: skip
    target = lowering.open_graph(written)
    weights = _check_weights(source, target, kind)
    report = replace(report, weights_level=weights, layers_level=asked, model_level=(asked,),
                     verdict="equivalent")  # fmt: skip
    if options.verify in ("layers", "model"):
        tell("proving each op")
        report = replace(report, layers_level=_check_ops(source, target, options))
    if options.verify == "model":
        tell("running both graphs")
        report = replace(report, model_level=run_signatures(source, target, kind, options))
    report.raise_if_different(NOTHING_WRITTEN)
    if options.strict:
        report.raise_if_in_doubt(NOTHING_WRITTEN, gpu=options.device == "gpu")
    return report


def _choices(options: Options) -> lowering.Choices:
    inputs, default = options.inputs, lowering.Choices()
    return lowering.Choices(
        inputs.seed,
        inputs.batch or default.batch,
        options.unroll or inputs.timesteps or default.timesteps,
        unrolled=options.unroll is not None,
        tolerance=inputs.tolerance if inputs.asked_tolerance else None,
    )


def _check_weights(
    source: lowering.OpenedGraph, target: lowering.OpenedGraph, kind: Kind
) -> LevelResult:
    """Variables' files are the source's, byte for byte, and so are a graph's constants."""
    pairs = []
    old, new = source.path, target.path
    if kind is Kind.SAVED_MODEL:
        files = sorted(file for file in (old / _VARIABLES).glob("*") if file.is_file())
        pairs = [(file, new / _VARIABLES / file.name) for file in files]
    elif kind is Kind.META_GRAPH:
        pairs = [(file, _moved(file, old, new)) for file in _files(old, kind)[:-1]]
    for file, copy in pairs:
        if sha256(file) != sha256(copy):
            return LevelResult("failed", detail=f"{file.name} is another file", worst=file.name)
    same, changed = lowering.changed_constants(source, target)
    if changed:
        detail = f"the constant {changed[0]} is another"
        return LevelResult("failed", detail=detail, worst=changed[0])
    detail = f"{len(pairs)} files of variables and {same} constants, byte for byte"
    return LevelResult("passed", detail=detail)


def _check_ops(
    source: lowering.OpenedGraph, target: lowering.OpenedGraph, options: Options
) -> LevelResult:
    """Every lowered op by itself, with the model's parameters."""
    results = lowering.verify_layers(
        source,
        lowered=target,
        choices=_choices(options),
        options=lowering_options(options),
        allow_code=options.permissions.allow_code,
    )
    if not results:
        return LevelResult.nothing_to_run("none of the lowered ops computes a layer's outputs")
    level = LevelResult.of_all(
        [
            replace(result, device="cpu", engine="tensorflow against the float64 reference")
            for result in results
        ]
    )
    counts = Counter(result.status for result in results)
    told = ", ".join(f"{count} {status}" for status, count in sorted(counts.items()))
    reason = None if options.permissions.allow_code else lowering.why_not_run(source)
    alone = f"; with the files' parameters, the model was not run: {reason}" if reason else ""
    return replace(level, detail=f"ops one by one: {told}{alone}")


def run_signatures(
    source: Path | lowering.OpenedGraph,
    target: Path | lowering.OpenedGraph,
    kind: Kind,
    options: Options,
) -> tuple[LevelResult, ...]:
    """The level `model`: on the CPU, and on a GPU where there is one and `--device` lets it.

    Args:
        source: a graph with cuDNN ops.
        target: a graph of the same kind without them.
    """
    source, target = lowering.open_graph(source), lowering.open_graph(target)
    choices = _choices(options)
    if kind is Kind.META_GRAPH:
        results = lowering.verify_meta_graph(
            source, target, choices=choices, allow_code=options.permissions.allow_code
        )
        levels = [
            replace(_named("op", result), device="cpu", engine=BY_REFERENCE) for result in results
        ]
        no_gpu: str | None = "MetaGraphs are run on the CPU only"
    else:
        levels = _signatures(source, target, kind, options, "reference")
        no_gpu = no_tensorflow_gpu()
    levels = levels or [LevelResult.nothing_to_run("the model has no signature to run", "cpu")]
    if options.device == "cpu":
        return tuple(levels)
    if no_gpu:
        return (*levels, LevelResult.skipped(no_gpu, "gpu"))
    return (*levels, *_signatures(source, target, kind, options, "gpu"))


def _signatures(
    source: lowering.OpenedGraph,
    target: lowering.OpenedGraph,
    kind: Kind,
    options: Options,
    original_on: str,
) -> list[LevelResult]:
    verify = {
        Kind.SAVED_MODEL: lowering.verify_saved_model,
        Kind.GRAPH: lowering.verify_frozen_graph,
    }[kind]
    results = verify(
        source,
        target,
        choices=_choices(options),
        original_on=original_on,
        allow_code=options.permissions.allow_code,
    )
    return [_named("signature", result) for result in results]


def _named(kind: str, result: LevelResult) -> LevelResult:
    """With the name of the signature or op as its detail."""
    return replace(result, detail=f"{kind} {result.name}" if result.name else None)

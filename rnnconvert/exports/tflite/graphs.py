"""TensorFlow graphs as TFLite: lowered with a fixed number of steps, then converted."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from rnnconvert.errors import NotConvertibleError, UsageError
from rnnconvert.exports.graph_proof import signature_of
from rnnconvert.exports.options import ExportOptions
from rnnconvert.exports.sources import Source
from rnnconvert.exports.tflite.conversion import converted_saved_model
from rnnconvert.exports.tflite.flatfile import LSTM, operators_of
from rnnconvert.exports.tflite.recurrent import MOST_UNROLLED
from rnnconvert.exports.tflite.running import runtime_of
from rnnconvert.exports.written import Written
from rnnconvert.graphs import lowering
from rnnconvert.graphs.convert import lower
from rnnconvert.graphs.inspect import require_tensorflow
from rnnconvert.graphs.ops import FORWARD
from rnnconvert.kinds import Kind
from rnnconvert.publish import scratch_directory, temporary_directory
from rnnconvert.verification.frameworks import native_stderr_closed


def write_tflite_graph(source: Source, path: Path, options: ExportOptions) -> Written:
    """Write one signature of a SavedModel, or a frozen graph.

    Raises:
        UsageError: the number of time steps is not given, or too large.
        NotConvertibleError: TFLite has no operator for something in it, or it may do harm when it
            is loaded.
    """
    require_tensorflow()
    reason = lowering.why_not_run(source.original)
    if reason and not options.general.permissions.allow_code:
        raise NotConvertibleError(f"its graph has to be loaded for an export: {reason}")
    planned = lowering.plan_model(source.original)
    steps = options.general.inputs.timesteps
    if planned.lowered and steps is None:
        raise UsageError(
            "cuDNN operators of a graph are unrolled for TFLite: give the number of time steps by "
            "--timesteps"
        )
    if planned.lowered and steps is not None and steps > MOST_UNROLLED:
        raise UsageError(
            f"--timesteps {steps}: cuDNN operators of a graph are unrolled for TFLite, for at most "
            f"{MOST_UNROLLED} steps; --to onnx takes any number"
        )
    with temporary_directory(scratch_directory()) as work:
        place = source.original
        if planned.lowered or planned.left:
            place = work / source.original.name
            general = replace(options.general, dry_run=False, unroll=steps)
            lower(source.original, place, source.kind, general)
        content, notes = _converted(place, source.kind, work, options)
    path.write_bytes(content)
    inputs, outputs = _names(content)
    counts = operators_of(content)
    return Written(
        target="tflite",
        runtime=runtime_of(counts),
        files=(path.name,),
        operators={LSTM: 0, "WHILE": 0, **counts},
        loops=tuple(f"{op.name}: unrolled" for op in planned.lowered if op.op in FORWARD),
        inputs=inputs,
        outputs=outputs,
        timesteps=steps if planned.lowered else None,
        notes=notes,
    )


def _converted(
    place: Path, kind: Kind, work: Path, options: ExportOptions
) -> tuple[bytes, tuple[str, ...]]:
    """A lowered graph by TensorFlow's converter, and what to say of its other signatures."""
    if kind is Kind.GRAPH:
        saved = work / "saved"
        with native_stderr_closed():
            _save_frozen(lowering.read_graph_def(place), saved)
        return converted_saved_model(saved, options), ()
    name, others = signature_of(place)
    told = f"the signature {name} is exported; others are {', '.join(others)}"
    return converted_saved_model(place, options, signature=name), (told,) if others else ()


def _names(content: bytes) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Of the only signature, as it is in the file."""
    from ai_edge_litert.interpreter import Interpreter

    with native_stderr_closed():
        [names] = Interpreter(model_content=content).get_signature_list().values()
    return tuple(names["inputs"]), tuple(names["outputs"])


def _save_frozen(graph_def: Any, place: Path) -> None:
    """A frozen graph as a SavedModel: what it reads to what nothing reads."""
    import tensorflow as tf

    from rnnconvert.graphs.verify.runners import CPU, frozen_runner

    with frozen_runner(graph_def, CPU) as runner:
        signature = runner.signatures["graph"]
    if signature.problem:
        raise NotConvertibleError(signature.problem)
    wrapped = tf.compat.v1.wrap_function(
        lambda: tf.graph_util.import_graph_def(graph_def, name=""), []
    )
    get = wrapped.graph.as_graph_element
    feeds = {name: get(spec.tensor) for name, spec in signature.inputs.items()}
    fetches = {name.replace(":", "_"): get(tensor) for name, tensor in signature.outputs.items()}
    pruned = wrapped.prune(list(feeds.values()), fetches)
    specs = [tf.TensorSpec(feed.shape, feed.dtype, name=name) for name, feed in feeds.items()]
    module = tf.Module()
    module.function = tf.function(lambda *arrays: pruned(*arrays), input_signature=specs)
    concrete = module.function.get_concrete_function()
    tf.saved_model.save(module, str(place), signatures=concrete)

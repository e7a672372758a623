"""A lowered MetaGraph, op by op: what a training graph without signatures can be checked by."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from rnnconvert.graphs import ops
from rnnconvert.graphs.framework import data_inputs, tf
from rnnconvert.graphs.lower.meta import clean_saveable_objects, find_ops_in_meta_graph
from rnnconvert.graphs.opening import OpenedGraph, checkpoint_files, open_graph
from rnnconvert.graphs.ops import CudnnOp
from rnnconvert.graphs.verify import reference
from rnnconvert.graphs.verify.compare import compare_outputs, first_line
from rnnconvert.graphs.verify.permission import why_not_run_meta_graph
from rnnconvert.graphs.verify.reference_graph import ReferenceGraphs, settings_of
from rnnconvert.graphs.verify.runners import CPU, FAILURES, new_session
from rnnconvert.graphs.verify.signature_inputs import Choices, shapes_of
from rnnconvert.graphs.verify.verify import not_run
from rnnconvert.report import LevelResult

_FREE_INPUT_SIZE = 5


def verify_meta_graph(
    original: Path | OpenedGraph,
    lowered: Path | OpenedGraph,
    *,
    choices: Choices | None = None,
    allow_code: bool = False,
) -> list[LevelResult]:
    """Import a lowered MetaGraph, restore its checkpoint, and feed each forward op's inputs.

    The op's outputs are compared with what the reference makes of the same inputs and of the
    parameters that were restored (random ones where there is no checkpoint).

    Args:
        original, lowered: the two .meta files, read or not, with their checkpoints beside them.
        choices: of the inputs.
        allow_code: run ops, too, that are not known to be harmless.

    Returns:
        One result for each forward op of the main graph, under its name. One that is skipped for
        them all where the graph may not be run.
    """
    choices = choices or Choices()
    source, changed = open_graph(original), open_graph(lowered)
    meta_graph, copy = source.message, changed.copy()
    runs = [node.name for node in meta_graph.graph_def.node if node.op in ops.FORWARD]
    reason = why_not_run_meta_graph(meta_graph, runs) or why_not_run_meta_graph(copy, runs)
    if reason and not allow_code:
        return [not_run(reason)]
    nodes = {node.name: node for node in meta_graph.graph_def.node}
    prefix = changed.path.with_suffix("")
    graph = tf.Graph()
    with graph.as_default(), new_session(graph, CPU, optimize=False) as session:
        try:
            saver = tf.compat.v1.train.import_meta_graph(copy, clear_devices=True)
            restored = saver is not None and bool(checkpoint_files(prefix))
            if restored:
                saver.restore(session, str(prefix))
        except FAILURES as error:
            return [_does_not_load(source, first_line(error))]
        return [
            _verify_op(session, nodes[op.name], op, restored, choices)
            for op in find_ops_in_meta_graph(meta_graph)
            if op.op in ops.FORWARD and not op.function
        ]


def _does_not_load(original: OpenedGraph, reason: str) -> LevelResult:
    """The result where the lowered graph does not load: a failure, unless the original doesn't."""
    source, prefix = original.copy(), original.path.with_suffix("")
    references = ReferenceGraphs()
    references.replace_ops(source.graph_def)
    clean_saveable_objects(source)  # no loader takes them
    graph = tf.Graph()
    try:
        with graph.as_default(), new_session(graph, CPU) as session:
            saver = tf.compat.v1.train.import_meta_graph(source, clear_devices=True)
            if saver is not None and checkpoint_files(prefix):
                saver.restore(session, str(prefix))
    except FAILURES as error:
        reason = f"the original does not load: {first_line(error)}"
        return LevelResult("skipped", reason=reason)
    return LevelResult("failed", reason=f"the lowered graph does not load: {reason}")


def _verify_op(
    session: Any, node: Any, op: CudnnOp, restored: bool, choices: Choices
) -> LevelResult:
    try:
        feeds = _feeds(session, node, op, restored, choices)
        lstm = op.mode == "lstm"
        found = session.run([f"{node.name}:{index}" for index in range(3 if lstm else 2)], feeds)
    except (tf.errors.OpError, ValueError, TypeError) as error:
        return LevelResult("skipped", name=op.name, reason=f"it can't be fed: {first_line(error)}")
    names = [_tensor(reference_) for reference_ in data_inputs(node)]
    given = [feeds.get(name, np.zeros((), np.float32)) for name in names]
    wanted = reference.forward(settings_of(node), *given)
    outputs = ops.op_output_names(op.op) or ()
    result = compare_outputs(
        op.name,
        dict(zip(outputs, found, strict=False)),
        dict(zip(outputs[: len(found)], wanted, strict=False)),
        op.dtype,
        choices.tolerance,
    )
    shapes = shapes_of({name.split(":")[0]: value for name, value in feeds.items()})
    return replace(result, inputs=shapes, seed=choices.seed)


def _feeds(
    session: Any, node: Any, op: CudnnOp, restored: bool, choices: Choices
) -> dict[str, Any]:
    """Values for the op's input tensors; the parameters are those that were restored."""
    if op.num_layers is None or op.units is None:
        raise ValueError(op.problem)
    generator = np.random.default_rng(choices.seed)
    steps, batch = choices.timesteps, choices.batch
    pairs = op.num_layers * (2 if op.direction == "bidirectional" else 1)
    lead = (pairs, batch) if op.time_major else (batch, pairs)
    outer = (steps, batch) if op.time_major else (batch, steps)
    sizes: dict[int, tuple[int, ...]] = {
        0: (*outer, op.input_size or _FREE_INPUT_SIZE),
        1: (*lead, op.num_proj or op.units),
    }
    if op.mode == "lstm":
        sizes[2] = (*lead, op.units)
    names = [_tensor(each) for each in data_inputs(node)]
    kind = tf.as_dtype(op.dtype).as_numpy_dtype
    feeds: dict[str, Any] = {}
    for index, shape in sizes.items():
        shape = _as_known(session.graph.get_tensor_by_name(names[index]), shape)
        feeds.setdefault(names[index], (0.7 * generator.standard_normal(shape)).astype(kind))
    if op.op == "CudnnRNNV3":
        feeds[names[4]] = generator.integers(1, steps + 1, batch).astype(np.int32)
    if restored:
        feeds[names[3]] = session.run(names[3])
    else:
        width = feeds[names[0]].shape[2]
        count = reference.buffer_size(settings_of(node), op.num_layers, width, op.units)
        feeds[names[3]] = (0.3 * generator.standard_normal(count)).astype(kind)
    return feeds


def _tensor(reference_: str) -> str:
    return reference_ if ":" in reference_ else f"{reference_}:0"


def _as_known(tensor: Any, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape, but with the sizes that the graph fixes."""
    if tensor.shape.rank is None:
        return shape
    return tuple(
        size if fixed is None else fixed for fixed, size in zip(tensor.shape, shape, strict=True)
    )

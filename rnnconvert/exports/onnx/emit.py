"""tf2onnx, with ONNX's own recurrent operators in the place of markers."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from rnnconvert.errors import NotConvertibleError
from rnnconvert.exports.onnx.markers import MARKER
from rnnconvert.exports.onnx.operators import LOOPS, OPERATORS, Recurrent

DEFAULT_OPSET = 17


def convert_function(
    function: Any, signature: Sequence[Any], opset: int, recurrent: Mapping[int, Recurrent]
) -> Any:
    """The ONNX model of a tf.function, as a protobuf.

    Args:
        function: traced by `signature`.
        recurrent: what the markers in it stand for, by their attribute `seed`.

    Raises:
        NotConvertibleError: an op of it has no ONNX form.
    """
    import tf2onnx

    with quietly() as said:
        model, _ = tf2onnx.convert.from_function(
            function,
            input_signature=list(signature),
            opset=opset,
            custom_op_handlers={MARKER: (_handler(recurrent), [])},
        )
    require_known(model, said)
    return model


def _handler(recurrent: Mapping[int, Recurrent]) -> Callable[..., None]:
    def handle(context: Any, node: Any, name: str, args: Any) -> None:
        put(context, node, recurrent[node.get_attr_value("seed")])

    return handle


def put(context: Any, node: Any, what: Recurrent) -> None:
    """Replace a marker, whose inputs and outputs are those of CudnnRNNV3."""
    given = list(node.input)
    results = operator(context, what, given[0], given[4], given[1:3])
    replace_outputs(context, node, results)


def operator(
    context: Any, what: Recurrent, sequences: str, lengths: str, states: Sequence[str]
) -> list[str]:
    """Make the nodes of one operator.

    float16 is computed in float32, for which alone onnxruntime has kernels; the weights are stored
    as float16.

    Args:
        sequences: tensor (time, batch, inputs).
        lengths, states: tensors, used where `what` says so; states are (directions, batch, units).

    Returns:
        Outputs (time, batch, directions * units) and the last states.
    """
    from onnx import TensorProto
    from tf2onnx import utils

    half = what.directions[0].dtype.name == "float16"

    def as_dtype(tensor: str, dtype: int) -> str:
        return str(context.make_node("Cast", [tensor], attr={"to": dtype}).output[0])

    def wide(tensor: str) -> str:
        return as_dtype(tensor, TensorProto.FLOAT) if half else tensor

    def stored(kind: str) -> str:
        if kind not in what.tensors:
            return ""
        values = np.ascontiguousarray(what.tensors[kind])
        return wide(context.make_const(utils.make_name(f"{what.name}_{kind}"), values).output[0])

    inputs = [wide(sequences), *(stored(kind) for kind in ("W", "R", "B"))]
    inputs.append(lengths if what.has_lengths else "")
    parts = 2 if what.operator == "LSTM" else 1
    if what.has_states:
        inputs += [wide(state) for state in states[:parts]]
    while not inputs[-1]:
        inputs.pop()
    made = context.make_node(
        what.operator, inputs, output_count=1 + parts, attr=what.attributes,
        name=utils.make_name(what.name), skip_conversion=True,
    )  # fmt: skip
    results = [_join(context, made.output[0], what), *made.output[1:]]
    return [as_dtype(result, TensorProto.FLOAT16) if half else str(result) for result in results]


def replace_outputs(context: Any, node: Any, results: Sequence[str]) -> None:
    """All that read a node's outputs read `results`; the node goes."""
    outputs = list(node.output)
    known = [(context.get_shape(output), context.get_dtype(output)) for output in outputs]
    context.remove_node(node.name)
    for old, new, (shape, dtype) in zip(outputs, results, known, strict=False):
        if shape is not None:
            context.set_shape(new, shape)
        context.set_dtype(new, dtype)
        context.replace_all_inputs(old, new)


def _join(context: Any, outputs: str, what: Recurrent) -> str:
    """(time, directions, batch, units) to (time, batch, directions * units)."""
    from tf2onnx import utils

    if len(what.directions) == 1:
        axis = context.make_const(utils.make_name("axis"), np.array([1], np.int64)).output[0]
        return str(context.make_node("Squeeze", [outputs, axis]).output[0])
    turned = context.make_node("Transpose", [outputs], attr={"perm": [0, 2, 1, 3]}).output[0]
    shape = context.make_const(utils.make_name("shape"), np.array([0, 0, -1], np.int64)).output[0]
    return str(context.make_node("Reshape", [turned, shape]).output[0])


# --- what came out --------------------------------------------------------------------------


@contextmanager
def quietly() -> Iterator[list[str]]:
    """tf2onnx logs what it can't convert, with tracebacks; the sentences are kept."""
    said: list[str] = []
    logger = logging.getLogger("tf2onnx")
    keeper = logging.Handler(logging.ERROR)
    keeper.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
    before = logger.propagate, logger.handlers[:]
    logger.propagate, logger.handlers = False, [keeper]
    children = [
        child for name, child in logging.Logger.manager.loggerDict.items()
        if name.startswith("tf2onnx.") and isinstance(child, logging.Logger)
    ]  # fmt: skip
    levels = [child.level for child in children]
    try:
        yield said
    finally:
        logger.propagate, logger.handlers = before
        for child, level in zip(children, levels, strict=True):
            child.setLevel(level)


def all_nodes(graph: Any) -> Iterator[Any]:
    """The nodes of a graph and of the graphs inside them."""
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from all_nodes(attribute.g)
            for inner in attribute.graphs:
                yield from all_nodes(inner)


def require_known(model: Any, said: Sequence[str] = ()) -> None:
    """Raise for ops that are still TensorFlow's.

    Raises:
        NotConvertibleError: it names them.
    """
    from onnx import defs

    known = {schema.name for schema in defs.get_all_schemas()}
    foreign = [
        node for node in all_nodes(model.graph)
        if node.op_type not in known or node.domain not in ("", "ai.onnx")
    ]  # fmt: skip
    if foreign:
        named = dict.fromkeys(f"{node.op_type} ({node.name})" for node in foreign)
        raise NotConvertibleError(
            f"no ONNX form of the TensorFlow op {', '.join(list(named)[:3])} is known"
        )


def node_counts(model: Any) -> dict[str, int]:
    """Recurrent operators and loops, those that are not there too, and all other nodes."""
    found = Counter(node.op_type for node in all_nodes(model.graph))
    named = {name: found.pop(name, 0) for name in (*OPERATORS, *LOOPS)}
    return {**named, "others": sum(found.values())}

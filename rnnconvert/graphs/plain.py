"""The cuDNN ops of a graph, read without TensorFlow: what `inspect` shows where it is missing.

Ops and their settings are all there. Sizes are those that the graph itself notes; TensorFlow's
inference, which is not here, tells more. (Formats: tensorflow/core/protobuf/{saved_model,
meta_graph,saved_object_graph}.proto, tensorflow/core/framework/{graph,function,attr_value,
tensor_shape}.proto.)
"""

from __future__ import annotations

import struct
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from rnnconvert.containers.checkpoint import index_path, open_checkpoint
from rnnconvert.containers.checkpoint.dtypes import NAMES
from rnnconvert.containers.checkpoint.files import (
    Malformed,
    open_file,
    reading,
    require_no_lfs_pointer,
)
from rnnconvert.containers.checkpoint.wire import Message, encode_part
from rnnconvert.containers.graph_def import Graph, GraphNode, GraphValue, parse_graph
from rnnconvert.errors import UnreadableInputError
from rnnconvert.graphs import ops
from rnnconvert.graphs.ops import CudnnOp
from rnnconvert.kinds import Kind

WHY_UNKNOWN = "not noted in the graph; TensorFlow, which is not installed, tells more"
_VARIABLES = frozenset({"Variable", "VariableV2", "VarHandleOp"})
_PARAMS = 3
_TWINS = ("api_implements", "api_preferred_device")
"""Attributes of Keras' plain LSTM and GRU, which have a variant for each device."""

Shape = tuple[int | None, ...] | None


@dataclass(frozen=True)
class PlainGraph:
    """A MetaGraph, or a frozen graph as one.

    Attributes:
        graph: its nodes.
        signatures: their names.
        roots: functions that are run from outside.
        variants: of functions that have one for each device: what it implements, the device.
    """

    graph: Graph
    signatures: tuple[str, ...]
    roots: tuple[str, ...]
    variants: dict[str, tuple[bytes, bytes]]


def read(path: Path, kind: Kind) -> list[PlainGraph]:
    """The graphs of a model.

    Raises:
        UnreadableInputError: missing, damaged or something else; or variables that are missing.
    """
    file = path / "saved_model.pb" if kind is Kind.SAVED_MODEL else path
    require_no_lfs_pointer(file)
    with reading(file.name), open_file(file) as (opened, _):
        content = opened.read()
        if kind is Kind.SAVED_MODEL:
            parts = [bytes(part) for part in Message(content).parts(2)]
        else:
            parts = [encode_part(2, content) if kind is Kind.GRAPH else content]
        graphs = [_plain(part) for part in parts]
    if not graphs or not all(_is_graph(each.graph) for each in graphs):
        raise UnreadableInputError(f"{file.name} is no {kind.title.split(' ', 1)[1]}: no nodes")
    if kind is Kind.SAVED_MODEL and any(_has_variables(each.graph) for each in graphs):
        _require_variables(path / "variables" / "variables")
    return graphs


def plain_checkpoint_files(prefix: Path) -> list[Path]:
    """The files of the checkpoint beside a MetaGraph; none where there is none."""
    if not index_path(prefix).exists():
        return [prefix] if prefix.is_file() else []
    checkpoint = open_checkpoint(prefix)
    checkpoint.require_values()
    return list(checkpoint.files)


def _require_variables(prefix: Path) -> None:
    if not plain_checkpoint_files(prefix):
        raise UnreadableInputError(
            "the model's variables are missing: expected variables/variables.index; copy the whole "
            "directory, not the .pb alone"
        )


def _plain(content: bytes) -> PlainGraph:
    message = Message(content)
    names = [Message(entry).text(1) for entry in message.parts(5)]
    objects = Message(message.part(7))
    library = Message(Message(message.part(2)).part(2))
    gradients = [Message(part).text(2) for part in library.parts(2)]
    gradients += [Message(part).text(1) for part in library.parts(3)]
    return PlainGraph(
        parse_graph(content),
        tuple(name for name in names if not name.startswith("__saved_model_")),
        (*(Message(entry).text(1) for entry in objects.parts(2)), *gradients),
        {name: both for name, both in map(_variant, library.parts(1)) if all(both)},
    )


def _variant(part: memoryview) -> tuple[str, tuple[bytes, bytes]]:
    function = Message(part)
    found = {}
    for entry in map(Message, function.parts(5)):
        found[entry.text(1)] = bytes(Message(entry.part(2)).part(2))
    first, second = (found.get(name, b"") for name in _TWINS)
    return Message(function.part(1)).text(1), (first, second)


def _is_graph(graph: Graph) -> bool:
    nodes = [node for body in graph.nodes.values() for node in body.values()]
    return bool(nodes) and all(node.name and node.op for node in nodes)


def _has_variables(graph: Graph) -> bool:
    return any(node.op in _VARIABLES for node in graph.main.values())


# --- who is reached ---------------------------------------------------------------------------


def _reached(plain: PlainGraph) -> tuple[frozenset[str], frozenset[str]]:
    """Functions that running the model gets to, and those that only GPU variants get to."""
    by_task = defaultdict(list)
    for name, (task, device) in plain.variants.items():
        by_task[task].append((name, device))
    twins = frozenset(
        name
        for group in by_task.values()
        if any(device == b"CPU" for _, device in group)
        for name, device in group
        if device == b"GPU"
    )
    starts = [*plain.roots, *_called_in(plain.graph, "")]
    reached = _closure(plain.graph, starts, twins)
    return reached, _closure(plain.graph, twins, frozenset()) - reached


def _closure(graph: Graph, starts: Iterable[str], stop: frozenset[str]) -> frozenset[str]:
    todo, found = list(starts), set[str]()
    while todo:
        name = todo.pop()
        if name in graph.nodes and name and name not in found | stop:
            found.add(name)
            todo += _called_in(graph, name)
    return frozenset(found)


def _called_in(graph: Graph, function: str) -> Iterator[str]:
    """Functions that the nodes of a function name: as their op, or in an attribute."""
    for node in graph.nodes[function].values():
        yield node.op
        for entry in map(Message, node.message.parts(5)):
            value = Message(entry.part(2))
            for named in (value.part(10), *Message(value.part(1)).parts(9)):
                yield Message(named).text(1)


# --- ops --------------------------------------------------------------------------------------


def find_plain_ops(plain: PlainGraph, name: str) -> Iterator[CudnnOp]:
    """Every cuDNN op, in the order in which they stand there.

    Args:
        plain: a graph.
        name: of its file, for messages.
    """
    with reading(name):
        reached, twins = _reached(plain)
        for function, nodes in plain.graph.nodes.items():
            for node in nodes.values():
                if node.op in ops.ALL:
                    reachable = function == "" or function in reached
                    yield _op(plain.graph, function, node, reachable, function in twins)


def _op(graph: Graph, function: str, node: GraphNode, reachable: bool, twin: bool) -> CudnnOp:
    running = node.op in ops.FORWARD | ops.BACKWARD
    layers, units, width = _sizes(graph, function, node) if running else (None, None, None)
    known = running or node.op in ops.TO_CANONICAL
    kind, params = _params(graph, function, node) if known else ("", ())
    return CudnnOp(
        name=node.name,
        function=function,
        op=node.op,
        mode=_text(node, "rnn_mode") or "lstm",
        num_layers=layers,
        units=units,
        input_size=width,
        direction=_text(node, "direction") or "unidirectional",
        input_mode=_text(node, "input_mode") or "linear_input",
        num_proj=_value(node, "num_proj").signed(3),
        dtype=NAMES.get(_value(node, "T").unsigned(6), "unknown"),
        is_training=_flag(node, "is_training", True) if node.op in ops.FORWARD else None,
        dropout=struct.unpack("<f", _value(node, "dropout").unsigned(4).to_bytes(4, "little"))[0],
        time_major=_flag(node, "time_major", True),
        params=params,
        params_kind=kind,
        reachable=reachable,
        gpu_twin=twin,
        problem=None if layers and units else WHY_UNKNOWN,
    )


def _value(node: GraphNode, name: str) -> Message:
    return node.attribute(name) or Message(b"")


def _text(node: GraphNode, name: str) -> str:
    return _value(node, name).text(2)


def _flag(node: GraphNode, name: str, default: bool) -> bool:
    value = node.attribute(name)
    return default if value is None else bool(value.unsigned(5))


def _params(graph: Graph, function: str, node: GraphNode) -> tuple[str, tuple[str, ...]]:
    """What the parameters are, and the variable's or constant's name."""
    source = graph.source(_input(graph, function, node, _PARAMS))
    found = graph.node(source) if source is not None else None
    if found is not None and found.op in _VARIABLES:
        return "variable", (_text(found, "shared_name") or found.name,)
    return ("constant", (found.name,)) if found and found.op == "Const" else ("unknown", ())


def _input(graph: Graph, function: str, node: GraphNode, place: int) -> GraphValue:
    inputs = graph.inputs(function, node)
    if place >= len(inputs) or inputs[place].node not in graph.nodes[function]:
        raise Malformed(f"{node.op} {node.name} has inputs of the wrong number or name")
    return inputs[place]


def _sizes(
    graph: Graph, function: str, node: GraphNode
) -> tuple[int | None, int | None, int | None]:
    """Layers, units and input size, as far as shapes are noted."""
    x, h, c = (_noted(graph, _input(graph, function, node, place)) for place in range(3))
    axis = 0 if _flag(node, "time_major", True) else 1
    directions = 2 if _text(node, "direction") == "bidirectional" else 1
    pairs = _axis(h, axis)
    state = c if _value(node, "num_proj").signed(3) else h
    layers = pairs // directions if pairs and pairs % directions == 0 else None
    return layers, _axis(state, 2) or None, _axis(x, 2) or None


def _axis(shape: Shape, axis: int) -> int | None:
    return shape[axis] if shape is not None and axis < len(shape) else None


def _noted(graph: Graph, value: GraphValue) -> Shape:
    """The shape that a graph notes for a tensor, at its node or where it is handed on from."""
    for at in (value, graph.source(value)):
        if at is None:
            continue
        node = graph.node(at)
        shapes = Message(_value(node, "_output_shapes").part(1)).parts(7)
        if at.output < len(shapes):
            return _shape(Message(shapes[at.output]))
        if node.op == "Const":
            return _shape(Message(Message(_value(node, "value").part(8)).part(2)))
        if node.op in _VARIABLES or node.op == "Placeholder":
            given = node.attribute("shape")
            return None if given is None else _shape(Message(given.part(7)))
    return None


def _shape(message: Message) -> Shape:
    if message.unsigned(3):
        return None
    sizes = [Message(part).signed(1) for part in message.parts(2)]
    return tuple(size if size >= 0 else None for size in sizes)

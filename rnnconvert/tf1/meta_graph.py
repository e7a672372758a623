"""What the graph beside a checkpoint (NAME.meta) says of cuDNN's parameter buffers.

Only the few fields of a MetaGraphDef that are needed are read, without TensorFlow. (Formats:
tensorflow/core/protobuf/meta_graph.proto, tensorflow/core/framework/{graph,node_def,attr_value,
tensor}.proto.)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path

from rnnconvert.containers.checkpoint.files import open_file, reading
from rnnconvert.containers.checkpoint.wire import Message, decode_text, decode_varints

_RUNNING = frozenset(
    f"CudnnRNN{kind}{version}" for kind in ("", "Backprop") for version in ("", "V2", "V3")
)
_TO_CANONICAL = frozenset({"CudnnRNNParamsToCanonical", "CudnnRNNParamsToCanonicalV2"})
_MAKING = frozenset(
    {"CudnnRNNParamsSize", "CudnnRNNCanonicalToParams", "CudnnRNNCanonicalToParamsV2"}
)
"""They have the sizes as their first three inputs, as those of `_TO_CANONICAL`."""
_PARAMS = 3
"""The input of `_RUNNING` and `_TO_CANONICAL` that is the buffer."""
_VARIABLES = frozenset({"Variable", "VariableV2", "VarHandleOp"})
_ASSIGN = frozenset({"Assign", "AssignVariableOp"})
_PASSING = frozenset(
    {"Identity", "ReadVariableOp", "Enter", "RefEnter", "Switch", "RefSwitch", "StopGradient"}
)
"""Ops whose first input comes out as it is."""
_DEFAULTS = {
    "rnn_mode": "lstm",
    "direction": "unidirectional",
    "input_mode": "linear_input",
}
_INT_TYPES = {3: 4, 9: 8}
"""DT_INT32 and DT_INT64, and their bytes."""
_INT_VALUES = {3: 7, 9: 10}
"""Their fields of a TensorProto."""


@dataclass(frozen=True)
class GraphLayer:
    """What ops say of one buffer; sizes are None where the graph has no constant for them."""

    cell: str
    direction: str
    input_mode: str
    num_proj: int
    num_layers: int | None = None
    num_units: int | None = None
    input_size: int | None = None


@dataclass(frozen=True)
class _Node:
    op: str
    inputs: tuple[str, ...]
    """Names of the nodes, without the number of their output; no control inputs."""
    message: Message

    def attribute(self, name: str) -> Message:
        """An AttrValue; an empty one where the node leaves it at its default."""
        for entry in map(Message, self.message.parts(5)):
            if entry.text(1) == name:
                return Message(entry.part(2))
        return Message(b"")


def read_layers(path: Path) -> dict[str, tuple[GraphLayer, ...]]:
    """Every variable that cuDNN ops read as their buffer, and what they say of it.

    Where they contradict each other, a variable has several.

    Args:
        path: of the `.meta` file.

    Raises:
        UnreadableInputError: missing, cut short or damaged.
    """
    with reading(path.name), open_file(path) as (file, _):
        content = file.read()
        if b"CudnnRNN" not in content:
            return {}
        nodes = dict(_nodes(content))
        said: dict[str, list[GraphLayer]] = {}
        for node in nodes.values():
            if node.op in _RUNNING | _TO_CANONICAL:
                variable = _variable(nodes, node.inputs[_PARAMS : _PARAMS + 1])
                if variable is not None:
                    said.setdefault(variable, []).append(_layer(nodes, node))
        makers = _makers(nodes, said)
        return {
            name: _merged(layers + [_layer(nodes, maker) for maker in makers[name]])
            for name, layers in said.items()
        }


def _nodes(meta_graph: bytes) -> Iterator[tuple[str, _Node]]:
    """The nodes of the graph; those inside functions hold no variables."""
    for part in Message(Message(meta_graph).part(2)).parts(1):
        message = Message(part)
        names = (decode_text(name) for name in message.parts(3))
        inputs = tuple(name.split(":")[0] for name in names if not name.startswith("^"))
        yield message.text(1), _Node(message.text(2), inputs, message)


def _variable(nodes: Mapping[str, _Node], inputs: tuple[str, ...]) -> str | None:
    """The variable that the first of these inputs comes from."""
    seen = set()
    while inputs and inputs[0] in nodes and inputs[0] not in seen:
        name = inputs[0]
        if nodes[name].op in _VARIABLES:
            return name
        if nodes[name].op not in _PASSING:
            return None
        seen.add(name)
        inputs = nodes[name].inputs
    return None


def _makers(nodes: Mapping[str, _Node], wanted: Mapping[str, object]) -> dict[str, list[_Node]]:
    """For each wanted variable, the cuDNN ops that what is assigned to it is made by."""
    found: dict[str, list[_Node]] = {name: [] for name in wanted}
    for node in nodes.values():
        if node.op not in _ASSIGN:
            continue
        variable = _variable(nodes, node.inputs[:1])
        if variable in found:
            found[variable] += _ancestors(nodes, node.inputs[1:])
    return found


def _ancestors(nodes: Mapping[str, _Node], inputs: tuple[str, ...]) -> list[_Node]:
    """The nearest ops of `_MAKING` above these inputs."""
    found, seen, waiting = [], set(inputs), list(inputs)
    while waiting:
        node = nodes.get(waiting.pop())
        if node is None:
            continue
        if node.op in _MAKING:
            found.append(node)
            continue
        further = set(node.inputs) - seen
        seen |= further
        waiting += further
    return found


def _layer(nodes: Mapping[str, _Node], node: _Node) -> GraphLayer:
    cell, direction, input_mode = (
        decode_text(node.attribute(name).part(2)) or default for name, default in _DEFAULTS.items()
    )
    num_proj = node.attribute("num_proj").unsigned(3)
    known = () if node.op in _RUNNING else node.inputs[:3]
    layers, units, inputs = (*(_constant(nodes, name) for name in known), None, None, None)[:3]
    return GraphLayer(cell, direction, input_mode, num_proj, layers, units, inputs)


def _constant(nodes: Mapping[str, _Node], name: str) -> int | None:
    """The value of a node that is a whole number from 1 on, else None."""
    node = nodes.get(name)
    if node is None or node.op != "Const":
        return None
    tensor = Message(node.attribute("value").part(8))
    dtype = tensor.unsigned(1)
    if dtype not in _INT_TYPES:
        return None
    content = tensor.part(4)
    if content:
        value = int.from_bytes(content[: _INT_TYPES[dtype]], "little", signed=True)
    else:
        packed = tensor.part(_INT_VALUES[dtype])
        value = int(decode_varints(packed, 1)[0]) if packed else 0
    return value if value > 0 else None


def _merged(layers: list[GraphLayer]) -> tuple[GraphLayer, ...]:
    """Layers without those that only say less than others."""
    distinct = list(dict.fromkeys(layers))
    return tuple(
        layer
        for layer in distinct
        if not any(layer != other and _says_less(layer, other) for other in distinct)
    )


def _says_less(layer: GraphLayer, other: GraphLayer) -> bool:
    """Whether `other` agrees and knows more."""
    pairs = [(getattr(layer, f.name), getattr(other, f.name)) for f in fields(GraphLayer)]
    return all(one is None or one == two for one, two in pairs)

"""What the graph beside a checkpoint (NAME.meta) says of cuDNN's parameter buffers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields

from rnnconvert.containers.checkpoint.wire import Message, decode_text, decode_varints
from rnnconvert.containers.graph_def import VARIABLES, Graph, GraphNode, GraphValue

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
_ASSIGN = frozenset({"Assign", "AssignVariableOp"})
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


def read_layers(graph: Graph) -> dict[str, tuple[GraphLayer, ...]]:
    """Every variable that cuDNN ops read as their buffer, and what they say of it.

    Where they contradict each other, a variable has several. (Those inside functions are left out:
    they hold no variables.)
    """
    said: dict[str, list[GraphLayer]] = {}
    for node in graph.main.values():
        if node.op in _RUNNING | _TO_CANONICAL:
            variable = _variable(graph, node, _PARAMS)
            if variable is not None:
                said.setdefault(variable, []).append(_layer(graph.main, node))
    makers = _makers(graph, said)
    return {
        name: _merged(layers + [_layer(graph.main, maker) for maker in makers[name]])
        for name, layers in said.items()
    }


def cudnn_buffers(graph: Graph) -> list[str]:
    """The variables that cuDNN's forward ops read."""
    found = [
        _variable(graph, node, _PARAMS)
        for node in graph.main.values()
        if node.op in _RUNNING and "Backprop" not in node.op
    ]
    return list(dict.fromkeys(name for name in found if name is not None))


def _variable(graph: Graph, node: GraphNode, place: int) -> str | None:
    """The variable that an input of a node comes from."""
    if len(node.inputs) <= place:
        return None
    source = graph.source(GraphValue("", *node.inputs[place]))
    return source.node if source is not None and graph.node(source).op in VARIABLES else None


def _makers(graph: Graph, wanted: Mapping[str, object]) -> dict[str, list[GraphNode]]:
    """For each wanted variable, the cuDNN ops that what is assigned to it is made by."""
    found: dict[str, list[GraphNode]] = {name: [] for name in wanted}
    for node in graph.main.values():
        if node.op not in _ASSIGN:
            continue
        variable = _variable(graph, node, 0)
        if variable in found:
            found[variable] += _ancestors(graph.main, _names(node)[1:])
    return found


def _names(node: GraphNode) -> list[str]:
    return [name for name, _ in node.inputs]


def _ancestors(nodes: Mapping[str, GraphNode], inputs: list[str]) -> list[GraphNode]:
    """The nearest ops of `_MAKING` above these inputs."""
    found, seen, waiting = [], set(inputs), list(inputs)
    while waiting:
        node = nodes.get(waiting.pop())
        if node is None:
            continue
        if node.op in _MAKING:
            found.append(node)
            continue
        further = set(_names(node)) - seen
        seen |= further
        waiting += further
    return found


def _layer(nodes: Mapping[str, GraphNode], node: GraphNode) -> GraphLayer:
    empty = Message(b"")
    cell, direction, input_mode = (
        decode_text((node.attribute(name) or empty).part(2)) or default
        for name, default in _DEFAULTS.items()
    )
    num_proj = (node.attribute("num_proj") or empty).unsigned(3)
    known = [] if node.op in _RUNNING else _names(node)[:3]
    layers, units, inputs = (*(_constant(nodes, name) for name in known), None, None, None)[:3]
    return GraphLayer(cell, direction, input_mode, num_proj, layers, units, inputs)


def _constant(nodes: Mapping[str, GraphNode], name: str) -> int | None:
    """The value of a node that is a whole number from 1 on, else None."""
    node = nodes.get(name)
    if node is None or node.op != "Const":
        return None
    stored = node.attribute("value")
    tensor = Message(b"" if stored is None else stored.part(8))
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

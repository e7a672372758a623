"""The object graph of a checkpoint whose CuDNN layers become plain ones.

Keras restores an object-based checkpoint along its objects, by the names of attributes: a plain
layer keeps its variables in an object `cell`, a CuDNN layer holds them itself. So each converted
layer gets that object. The optimizer's state has the shapes of the old variables, and is left out.
(Format: TrackableObjectGraph in tensorflow/core/protobuf/trackable_object_graph.proto.)
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from rnnconvert.containers.checkpoint.wire import Message, encode_number, encode_part
from rnnconvert.containers.object_graph import GRAPH_KEY
from rnnconvert.errors import NotConvertibleError

__all__ = ["GRAPH_KEY", "is_optimizer", "with_cells"]

_NODES, _CHILDREN, _VARIABLES, _SAVER, _HAS_VALUES = 1, 1, 2, 4, 5
_CELL, _OPTIMIZER = "cell", "optimizer"
_SLOT = "/.OPTIMIZER_SLOT/"


def is_optimizer(key: str) -> bool:
    """Whether a key of a checkpoint belongs to the state of the model's optimizer."""
    return key.startswith(f"{_OPTIMIZER}/") or _SLOT in key


def with_cells(graph: bytes, layers: Sequence[Collection[str]]) -> bytes:
    """The graph with an object `cell` in each layer.

    Args:
        graph: a serialized TrackableObjectGraph.
        layers: for each layer the keys of its variables.

    Raises:
        NotConvertibleError: the variables of a layer are no attributes of one object.
        Malformed: the graph is damaged.
    """
    nodes = [Message(part) for part in Message(graph).parts(_NODES)]
    keys = [{Message(part).text(3) for part in node.parts(_VARIABLES)} for node in nodes]
    cells: list[bytes] = []
    encoded = {}
    for variables in layers:
        own = {number for number, found in enumerate(keys) if found & set(variables)}
        holders = [n for n, node in enumerate(nodes) if len(own) == len(variables) <= len(
            [part for part in node.parts(_CHILDREN) if _target(part) in own]
        )]  # fmt: skip
        if not holders:
            raise NotConvertibleError(
                f"{', '.join(sorted(variables))}: the object graph has no layer that holds them"
            )
        for holder in holders:
            children = nodes[holder].parts(_CHILDREN)
            cell = len(nodes) + len(cells)
            inner = [bytes(part) for part in children if _target(part) in own]
            outer = [bytes(part) for part in children if _target(part) not in own]
            cells.append(_node(inner))
            outer.append(encode_number(1, cell) + encode_part(2, _CELL.encode()))
            encoded[holder] = _node(outer, nodes[holder])
    root = encoded.get(0) or _node([bytes(part) for part in nodes[0].parts(_CHILDREN)], nodes[0])
    encoded[0] = _without_optimizer(Message(root))
    every = [encoded.get(n) or _copy(node) for n, node in enumerate(nodes)]
    return _without_strays([*every, *cells])


def _without_strays(nodes: Sequence[bytes]) -> bytes:
    """The graph; what nothing refers to any more is left as an empty object, for numbers count."""
    reached, waiting = {0}, [0]
    while waiting:
        targets = {_target(part) for part in Message(nodes[waiting.pop()]).parts(_CHILDREN)}
        waiting += [number for number in targets - reached if number < len(nodes)]
        reached |= targets
    kept = [node if number in reached else b"" for number, node in enumerate(nodes)]
    return b"".join(encode_part(_NODES, node) for node in kept)


def _target(reference: memoryview) -> int:
    return Message(reference).unsigned(1)


def _node(children: Iterable[bytes], like: Message | None = None) -> bytes:
    """A node with these children, and all but slots of another one."""
    found = b"".join(encode_part(_CHILDREN, child) for child in children)
    for field in (_VARIABLES, _SAVER, _HAS_VALUES) if like is not None else ():
        assert like is not None
        found += b"".join(encode_part(field, bytes(part)) for part in like.parts(field))
    return found


def _copy(node: Message) -> bytes:
    return _node([bytes(part) for part in node.parts(_CHILDREN)], node)


def _without_optimizer(root: Message) -> bytes:
    kept = [part for part in root.parts(_CHILDREN) if Message(part).text(2) != _OPTIMIZER]
    return _node([bytes(part) for part in kept], root)

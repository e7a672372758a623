"""The object graph of a checkpoint, with cells in what were CuDNN layers."""

from __future__ import annotations

import pytest

from rnnconvert.checkpoints.objects import is_optimizer, with_cells
from rnnconvert.containers.checkpoint.wire import encode_number, encode_part
from rnnconvert.containers.object_graph import parse_object_graph
from rnnconvert.errors import NotConvertibleError

KEYS = [f"layer-0/{name}/.ATTRIBUTES/VARIABLE_VALUE" for name in ("kernel", "recurrent", "bias")]


def node(*, variable: str = "", slots: bytes = b"", **children: int) -> bytes:
    found = b"".join(
        encode_part(1, encode_number(1, at) + encode_part(2, name.encode()))
        for name, at in children.items()
    )
    if variable:
        value = encode_part(1, b"VARIABLE_VALUE") + encode_part(3, variable.encode())
        found += encode_part(2, value)
    return found + (encode_part(3, slots) if slots else b"")


GRAPH = b"".join(
    encode_part(1, part)
    for part in (
        node(layer=1, same=1, optimizer=6, dense=7),
        node(kernel=2, recurrent=3, bias=4, state=5),
        *(node(variable=key) for key in KEYS),
        node(),
        node(slots=encode_number(1, 2) + encode_part(2, b"m"), step=5),
        node(kernel=5),
    )
)


def test_variables_move_into_a_cell():
    graph = parse_object_graph(with_cells(GRAPH, [KEYS]))
    assert len(graph.nodes) == 9
    assert graph.nodes[0].children == {"layer": 1, "same": 1, "dense": 7}  # no optimizer
    assert graph.nodes[1].children == {"state": 5, "cell": 8}
    assert graph.nodes[8].children == {"kernel": 2, "recurrent": 3, "bias": 4}
    assert [graph.nodes[n].variable.key for n in (2, 3, 4)] == KEYS
    assert graph.nodes[7].children == {"kernel": 5}
    assert graph.nodes[6].children == {}  # the optimizer, which nothing refers to


def test_variables_of_no_layer_are_refused():
    with pytest.raises(NotConvertibleError, match="no layer that holds them"):
        with_cells(GRAPH, [[*KEYS, "layer-1/kernel"]])


def test_what_belongs_to_the_optimizer():
    assert is_optimizer("optimizer/iter/.ATTRIBUTES/VARIABLE_VALUE")
    assert is_optimizer("layer-0/kernel/.OPTIMIZER_SLOT/optimizer/m/.ATTRIBUTES/VARIABLE_VALUE")
    assert not is_optimizer(KEYS[0])

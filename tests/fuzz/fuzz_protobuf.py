"""Damage done to protocol buffers that stay well-formed: every length is right again afterwards."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

from fuzz_mutate import mutate_bytes

from rnnconvert.containers.checkpoint.table import open_table, write_table

_NUMBERS = (0, 1, 2, 7, 127, 2**31 - 1, 2**31, 2**32, 2**63 - 1, 2**63, 2**64 - 1)
_OPS = (
    "CudnnRNN", "CudnnRNNV2", "CudnnRNNV3", "CudnnRNNParamsToCanonical", "CudnnRNNBackprop",
    "Const", "ReadFile", "WriteFile", "Placeholder", "Identity", "NoOp", "While", "PartitionedCall",
    "StatefulPartitionedCall", "VarHandleOp", "RestoreV2", "NoSuchOp", "",
)  # fmt: skip


# --- without a schema -------------------------------------------------------------------------


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at


def _encoded(value: int) -> bytes:
    made = bytearray()
    while value > 0x7F:
        made.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*made, value])


def parsed(data: bytes) -> list[tuple[int, Any]] | None:
    """The fields of a message, (key, value) each; None where the bytes are none."""
    fields: list[tuple[int, Any]] = []
    at = 0
    try:
        while at < len(data):
            key, at = _varint(data, at)
            kind = key & 7
            if kind == 0:
                value, at = _varint(data, at)
                fields.append((key, value))
                continue
            size = {1: 8, 5: 4}.get(kind, -1)
            if kind == 2:
                size, at = _varint(data, at)
            if size < 0 or size > len(data) - at or not 0 < key >> 3 < 600:
                return None
            fields.append((key, data[at : at + size]))
            at += size
    except IndexError:
        return None
    return fields


def written(fields: list[tuple[int, Any]]) -> bytes:
    made = bytearray()
    for key, value in fields:
        made += _encoded(key)
        if key & 7 == 2:
            made += _encoded(len(value))
        made += _encoded(value) if isinstance(value, int) else value
    return bytes(made)


def mutate_message(data: bytes, rng: random.Random) -> bytes:
    """One field somewhere in a message left out, doubled, exchanged, or of another value."""
    fields = parsed(data)
    if not fields:
        return mutate_bytes(data, rng)
    at = rng.randrange(len(fields))
    key, value = fields[at]
    what = rng.randrange(10)
    if what == 0:
        del fields[at]
    elif what == 1:
        fields.insert(at, fields[at])
    elif what == 2:
        same = [other for other in fields if other[0] & 7 == key & 7]
        fields[at] = key, rng.choice(same)[1]
    elif isinstance(value, int):
        fields[at] = key, rng.choice(_NUMBERS)
    elif key & 7 == 2 and what > 3 and parsed(value):
        fields[at] = key, mutate_message(value, rng)
    else:
        size = len(value)
        value = mutate_bytes(value, rng)
        fields[at] = key, value if key & 7 == 2 else value[:size].ljust(size, b"\0")
    return written(fields)


def of_message(path: Path, rng: random.Random) -> None:
    path.write_bytes(mutate_message(path.read_bytes(), rng))


def table_messages(path: Path, rng: random.Random) -> None:
    """The message of one entry of a checkpoint's table changed; checksums are right."""
    items = [(bytes(key), bytes(value)) for key, value in open_table(path).items()]
    at = rng.randrange(len(items))
    items[at] = items[at][0], mutate_message(items[at][1], rng)
    with path.open("wb") as file:
        write_table(file, items)


# --- graphs -----------------------------------------------------------------------------------


def graph(path: Path, rng: random.Random) -> None:
    """One thing changed in a frozen graph, a SavedModel or a MetaGraph, by its name."""
    from rnnconvert.graphs.framework import GraphDef, MetaGraphDef, SavedModel

    kind = {".pb": GraphDef, ".meta": MetaGraphDef}[path.suffix]
    if path.name == "saved_model.pb":
        kind = SavedModel
    message = kind.FromString(path.read_bytes())
    meta = message.meta_graphs[0] if kind is SavedModel else message
    definition = message if kind is GraphDef else meta.graph_def
    changes = [
        _op,
        _op,
        _input,
        _input,
        _attribute,
        _attribute,
        _constant,
        _constant,
        _nodes,
        _loop,
    ]
    if kind is not GraphDef:
        changes += [_signature, _signature]
    rng.choice(changes)(definition, meta, rng)
    path.write_bytes(message.SerializeToString())


def _some_nodes(definition: Any, rng: random.Random) -> Any:
    """The nodes of the graph, or of one of its functions."""
    functions = definition.library.function
    if functions and rng.random() < 0.5:
        return rng.choice(functions).node_def
    return definition.node


def _node(definition: Any, rng: random.Random) -> Any:
    """Of the graph or a function; one of cuDNN more often than not."""
    nodes = _some_nodes(definition, rng)
    cudnn = [node for node in nodes if "Cudnn" in node.op]
    return rng.choice(cudnn if cudnn and rng.random() < 0.5 else nodes)


def _op(definition: Any, _: Any, rng: random.Random) -> None:
    node = _node(definition, rng)
    if rng.random() < 0.3:
        node.name = rng.choice(("", "x", node.name + "/../x", _node(definition, rng).name))
    else:
        node.op = rng.choice((*_OPS, _node(definition, rng).op))


def _input(definition: Any, _: Any, rng: random.Random) -> None:
    node = _node(definition, rng)
    other = rng.choice(_some_nodes(definition, rng)).name
    new = rng.choice(
        (other, f"{other}:{rng.randrange(9)}", f"^{other}", node.name, "", ":", "x:-1")
    )
    if node.input and rng.random() < 0.8:
        at = rng.randrange(len(node.input))
        if rng.random() < 0.2:
            del node.input[at]
        else:
            node.input[at] = new
    else:
        node.input.append(new)


def _attribute(definition: Any, _: Any, rng: random.Random) -> None:
    node = _node(definition, rng)
    if not node.attr:
        return
    name = rng.choice(sorted(node.attr))
    value = node.attr[name]
    what = rng.randrange(8)
    if what == 0:
        del node.attr[name]
    elif what == 1:
        value.i = rng.choice((-1, 0, 3, 2**31, 2**62))
    elif what == 2:
        value.s = rng.choice(
            (b"", b"lstm", b"gru", b"rnn_relu", b"bidirectional", b"skip_input", b"\xff")
        )
    elif what == 3:
        value.type = rng.choice((0, 1, 2, 7, 19, 20, 99))
    elif what == 4:
        value.shape.dim.add(size=rng.choice((-1, 0, 5, 2**40)))
    elif what == 5:
        value.func.name = rng.choice(
            [f.signature.name for f in definition.library.function] or ["f"]
        )
    elif what == 6:
        value.f = rng.choice((-1.0, float("nan"), 1e30))
    else:
        value.CopyFrom(_node(definition, rng).attr[name])


def _constant(definition: Any, _: Any, rng: random.Random) -> None:
    constants = [n for n in definition.node if n.op == "Const"]
    for function in definition.library.function:
        constants += [n for n in function.node_def if n.op == "Const"]
    tensor = rng.choice(constants).attr["value"].tensor
    what = rng.randrange(6)
    if what == 0 and tensor.tensor_shape.dim:
        rng.choice(tensor.tensor_shape.dim).size = rng.choice((-1, 0, 1, 3, 2**20, 2**40, 2**62))
    elif what == 1:
        tensor.tensor_shape.dim.add(size=rng.choice((0, 1, 4, 2**31)))
    elif what == 2:
        tensor.tensor_content = mutate_bytes(tensor.tensor_content, rng)
    elif what == 3:
        tensor.dtype = rng.choice((0, 1, 2, 3, 7, 10, 19, 99))
    elif what == 4:
        tensor.tensor_shape.unknown_rank = True
    else:
        tensor.float_val.append(rng.choice((0.0, float("inf"))))


def _nodes(definition: Any, _: Any, rng: random.Random) -> None:
    nodes = _some_nodes(definition, rng)
    at = rng.randrange(len(nodes))
    if rng.random() < 0.5:
        del nodes[at]
    else:
        nodes.add().CopyFrom(nodes[at])


def _loop(definition: Any, _: Any, rng: random.Random) -> None:
    """A function that calls itself, that two others call in turn, or that is missing."""
    functions = definition.library.function
    if not functions:
        made = functions.add()
        made.signature.name = "endless"
    function = rng.choice(functions)
    what = rng.randrange(4)
    if what == 0:
        del functions[rng.randrange(len(functions))]
        return
    if what == 1:
        function.signature.name = rng.choice(functions).signature.name
        return
    called = function if what == 2 else rng.choice(functions)
    for nodes, name in (
        (function.node_def, called.signature.name),
        (definition.node, function.signature.name),
    ):
        call = nodes.add(
            name=f"call_{name}",
            op=rng.choice(("PartitionedCall", "StatefulPartitionedCall", "While", name)),
        )
        for attribute in ("f", "body", "cond"):
            call.attr[attribute].func.name = name


def _signature(definition: Any, meta: Any, rng: random.Random) -> None:
    """What a SavedModel or a MetaGraph says beside its nodes."""
    signatures = list(meta.signature_def.values())
    what = rng.randrange(6)
    if what < 3 and signatures:
        signature = rng.choice(signatures)
        infos = [*signature.inputs.values(), *signature.outputs.values()]
        if infos and what:
            info = rng.choice(infos)
            info.name = rng.choice(
                ("", ":0", "x:0", f"{_node(definition, rng).name}:{rng.randrange(9)}")
            )
        else:
            signature.method_name = "x"
    elif what == 3:
        meta.saver_def.restore_op_name = rng.choice(("", "x", _node(definition, rng).name))
    elif what == 4 and meta.object_graph_def.nodes:
        node = rng.choice(meta.object_graph_def.nodes)
        node.children.add(local_name="x", node_id=rng.choice((0, 10**6, 2**31 - 1)))
    else:
        meta.collection_def["saved_model_init_op"].node_list.value.append(
            _node(definition, rng).name
        )

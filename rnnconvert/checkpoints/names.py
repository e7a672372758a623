"""What the names of a checkpoint's variables say: which cell they are of, and where it stands.

A tensor of a cell is called PLACE/CELL/TENSOR, CELL being what its class calls itself and PLACE
what runs it: `rnn`, `rnn/multi_rnn_cell/cell_N`, `bidirectional_rnn/{fw,bw}`,
`stack_bidirectional_rnn/cell_N/bidirectional_rnn/{fw,bw}`, or anything at all.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from rnnconvert.containers.checkpoint import VariableInfo, find_checkpoint, open_checkpoint
from rnnconvert.containers.checkpoint.files import Malformed, reading
from rnnconvert.containers.checkpoint.wire import Message
from rnnconvert.errors import ConversionError
from rnnconvert.layouts.tf1_cells import TF1_CELLS

OBJECT_SUFFIX = "/.ATTRIBUTES/VARIABLE_VALUE"
"""How the keys of an object-based checkpoint (tf.train.Checkpoint) end."""
_OBJECT_GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH"
SAVED_CELL = "rnn/multi_rnn_cell/cell_{layer}/cudnn_compatible_lstm_cell"
"""What a Saver calls a layer of a CudnnLSTM."""
_OBJECT_CELL = re.compile(r"(?P<path>.+?)(?:/cell-(?P<layer>[0-9]+))?/(?P<tensor>kernel|bias)")

_OWN = frozenset(scope for layout in TF1_CELLS for scope in layout.scopes)
_NORMALISING = "layer_norm_basic_lstm_cell"
_NUMBERED = re.compile(r"(.+?)(?:_[0-9]+)?")
_RUNS = re.compile(r"(?:rnn(?:_[0-9]+)?|cell_[0-9]+|fw|bw)")
"""What stands before a cell of any class."""
_OWN_TENSORS = frozenset(
    name for layout in TF1_CELLS for block in layout.blocks for name in (block.kernel, block.bias)
)
_MODERN = {"weights": "kernel", "biases": "bias"}
"""By the names of TF up to 1.1."""
_WEIGHTS = frozenset(
    {"kernel", "bias", "weights", "biases", "w_ru", "b_ru", "w_c", "b_c", "gamma", "beta"}
)
"""Last parts of the names of weights; what is called WEIGHTS/NAME is an optimizer's slot."""
DIRECTION_OF = {"fw": "forward", "bw": "backward"}


@dataclass(frozen=True)
class CellName:
    """The parsed name of a cell's scope.

    Attributes:
        scope: in full.
        kind: its last part, as the class calls itself.
        group: what all cells of one RNN have in common, up to and with the part that runs it.
        form: "single", "layers" (MultiRNNCell), "directions" (bidirectional), "stack"
            (stack_bidirectional) or "chains" (bidirectional, each direction a MultiRNNCell).
        layer, direction: of this cell.
    """

    scope: str
    kind: str
    group: str
    form: str
    layer: int = 0
    direction: str = "forward"


@dataclass(frozen=True)
class Names:
    """The variables of a checkpoint by the names that a Saver gives them.

    Attributes:
        variables: name to variable; a variable's own name differs in an object-based checkpoint.
        unclear: for each path of an object-based checkpoint that may be a CudnnLSTM or not, what
            it would be called if it was one, and its variables.
    """

    variables: Mapping[str, VariableInfo]
    unclear: Mapping[str, Mapping[str, VariableInfo]]


def saver_names(variables: Mapping[str, VariableInfo], prefix: Path | None) -> Names:
    """Names without what an object-based checkpoint adds.

    There a CudnnLSTM is PATH/kernel and PATH/bias, or PATH/cell-N/kernel and so on. So may be a
    dense layer, or another cell; the stored object graph, where it can be read, tells them apart:
    variables have their name in it, and what cuDNN's layer saves is no variable.
    """
    plain: dict[str, VariableInfo] = {}
    objects: dict[str, VariableInfo] = {}
    for name, info in variables.items():
        if name.endswith(OBJECT_SUFFIX):
            objects[name.removesuffix(OBJECT_SUFFIX)] = info
        else:
            plain[name] = info
    pairs = _lstm_pairs(objects)
    graph = _object_graph(prefix, variables) if pairs else None
    unclear: dict[str, dict[str, VariableInfo]] = {}
    for key, info in objects.items():
        real_name = None if graph is None else graph.get(info.name)
        saved_name = pairs.get(key)
        if saved_name and graph is None:
            path = _OBJECT_CELL.fullmatch(key)
            assert path is not None  # or it was no pair
            unclear.setdefault(path["path"], {})[saved_name] = info
        elif saved_name and real_name == "":
            plain.setdefault(saved_name, info)
        elif real_name and _cell_at(real_name.split("/")) is not None:
            plain.setdefault(real_name, info)
        else:
            plain.setdefault(key, info)
    return Names(plain, unclear)


def _lstm_pairs(objects: Mapping[str, VariableInfo]) -> dict[str, str]:
    """The keys that may be a CudnnLSTM's kernel or bias, and what a Saver would call them."""
    found: dict[str, str] = {}
    for key, info in objects.items():
        match = _OBJECT_CELL.fullmatch(key)
        if match is None or match["tensor"] != "kernel" or ".OPTIMIZER_SLOT" in key:
            continue
        scope = key.removesuffix("/kernel")
        bias = objects.get(f"{scope}/bias")
        if bias is None or f"{scope}/recurrent_kernel" in objects or len(info.shape) != 2:
            continue
        rows, columns = info.shape
        if columns % 4 == 0 and 0 < columns // 4 < rows and bias.shape == (columns,):
            cell = f"{match['path']}/{SAVED_CELL.format(layer=int(match['layer'] or 0))}"
            found |= {f"{scope}/{tensor}": f"{cell}/{tensor}" for tensor in ("kernel", "bias")}
    return found


def _object_graph(
    prefix: Path | None, variables: Mapping[str, VariableInfo]
) -> dict[str, str] | None:
    """For each key the name of its variable, "" where it is none; None if it can't be read."""
    if prefix is None or _OBJECT_GRAPH not in variables:
        return None
    try:
        found = find_checkpoint(prefix)
        stored = open_checkpoint(found).read(_OBJECT_GRAPH) if found else None
        if stored is None or stored.shape != ():
            return None
        with reading(_OBJECT_GRAPH):
            return dict(_attributes(stored.item()))
    except ConversionError:  # an index without its data: the caller says what is unclear
        return None


def _attributes(graph: bytes) -> Iterator[tuple[str, str]]:
    """Key and name of each attribute in a TrackableObjectGraph."""
    if not isinstance(graph, bytes):
        raise Malformed("it is no string")
    for node in Message(graph).parts(1):
        for attribute in map(Message, Message(node).parts(2)):
            yield attribute.text(3), attribute.text(2)


# --- cells ----------------------------------------------------------------------------------


def cells(variables: Mapping[str, VariableInfo]) -> dict[str, dict[str, VariableInfo]]:
    """The tensors of every cell of TF1: scope, then name inside it.

    Slots are left out, and so are cells of Keras, which have a `recurrent_kernel`. Tensors have
    the names of TF 1.2 and later, unless both names are there.
    """
    found: dict[str, dict[str, VariableInfo]] = {}
    for name, info in variables.items():
        parts = name.split("/")
        place = _cell_at(parts)
        if place is None or parts[-2] in _WEIGHTS or ".OPTIMIZER_SLOT" in parts:
            continue
        scope = "/".join(parts[: place + 1])
        head, last = parts[place + 1 : -1], parts[-1]
        modern = "/".join([*head, _MODERN.get(last, last)])
        held = found.setdefault(scope, {})
        held["/".join([*head, last]) if modern in held else modern] = info
    return {
        scope: tensors
        for scope, tensors in found.items()
        if "recurrent_kernel" not in tensors and not _OWN_TENSORS.isdisjoint(tensors)
    }


def _cell_at(parts: list[str]) -> int | None:
    """Which part of a tensor's name is its cell: the last one of a known class, else one that
    follows what runs cells."""
    places = range(len(parts) - 2, -1, -1)
    for place in places:
        kind = plain(parts[place])
        if kind in _OWN or kind == _NORMALISING:
            return place
    for place in places:
        is_cell = plain(parts[place]).endswith("_cell") and plain(parts[place]) != "multi_rnn_cell"
        if is_cell and place and _RUNS.fullmatch(parts[place - 1]):
            return place
    return None


def plain(part: str) -> str:
    """A part of a name without the number that makes it unique."""
    match = _NUMBERED.fullmatch(part)
    return match[1] if match else part


def parse_variable_name(scope: str, scopes: Mapping[str, object]) -> CellName:
    """Where a cell stands, by its scope.

    Args:
        scope: of the cell.
        scopes: of all cells; `fw` and `bw` are directions only where both are there.
    """
    *place, kind = scope.split("/")
    layer, inner = 0, ""
    if len(place) > 1 and plain(place[-2]) == "multi_rnn_cell" and _index(place[-1]) is not None:
        layer, inner = _index(place[-1]) or 0, "layers"
        place = place[:-2]
    if not (place and _is_direction(place, scopes)):
        group = "/".join(place) if inner else scope
        return CellName(scope, kind, group, inner or "single", layer)
    direction = DIRECTION_OF[place[-1]]
    place = place[:-1]
    if inner:
        return CellName(scope, kind, "/".join(place), "chains", layer, direction)
    if len(place) > 1 and _index(place[-2]) is not None:
        return CellName(
            scope, kind, "/".join(place[:-2]), "stack", _index(place[-2]) or 0, direction
        )
    return CellName(scope, kind, "/".join(place), "directions", 0, direction)


def _index(part: str) -> int | None:
    """N of cell_N."""
    match = re.fullmatch(r"cell_([0-9]{1,6})", part)
    return int(match[1]) if match else None


def _is_direction(place: list[str], scopes: Mapping[str, object]) -> bool:
    if place[-1] not in DIRECTION_OF:
        return False
    if len(place) > 1 and plain(place[-2]) == "bidirectional_rnn":
        return True
    other = "/".join([*place[:-1], "bw" if place[-1] == "fw" else "fw", ""])
    return any(scope.startswith(other) for scope in scopes)

"""From the tensors of single cells to stacks: layers, directions and sizes, by shapes alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import product
from typing import NamedTuple

from rnnconvert.checkpoints import names
from rnnconvert.checkpoints.graph_cells import CellFacts, read_cell
from rnnconvert.checkpoints.names import CellName
from rnnconvert.checkpoints.stack import DIRECTIONS, CellPlace, Stack
from rnnconvert.containers.checkpoint import VariableInfo
from rnnconvert.containers.checkpoint.files import reading
from rnnconvert.containers.graph_def import Graph
from rnnconvert.errors import NotConvertibleError
from rnnconvert.layouts import tf1_cells
from rnnconvert.layouts.tf1_cells import Tf1Cell
from rnnconvert.layouts.weights import FLOAT_DTYPES
from rnnconvert.options import StackOptions
from rnnconvert.report import Assumption

_LSTM_CLIPS = frozenset({"lstm_cell", "lstm_block_wrapper", "lstm_fused_cell"})
_BASIC = "basic_lstm_cell"
_WITH_ACTIVATION = frozenset({"lstm_cell", "gru_cell"})
"""Cells that are run with other activations; `basic_rnn_cell` is looked at in `find`.

BasicLSTMCell takes one too, which is said along with its forget bias.
"""
_TANH_TOO = "its activation is taken to be tanh, the default, unless --activation says otherwise"
_NOT_STORED = "a checkpoint does not store it and no graph (.meta) beside it tells it"
_CUDNN_KINDS = frozenset(
    {"cudnn_compatible_lstm_cell", "cudnn_compatible_gru_cell", "basic_rnn_cell"}
)
"""The cells that cuDNN's layers save their weights as."""


@dataclass(frozen=True)
class Candidate:
    """A stack, or the reason why there is none.

    Attributes:
        scope: what it is called.
        stack, problem: exactly one of them is not None.
        warnings: sentences on how it was put together.
        prefix: where cuDNN's layer may have saved it; None where no such layer saves it so.
        full_scope: a longer name, for when another stack has the same scope.
    """

    scope: str
    stack: Stack | None = None
    problem: str | None = None
    warnings: tuple[str, ...] = ()
    prefix: str | None = None
    full_scope: str = ""


class _Cell(NamedTuple):
    """One cell with its sizes."""

    name: CellName
    layout: Tf1Cell
    inputs: int
    units: int
    dtype: str
    tensors: Mapping[str, VariableInfo]
    told: CellFacts | None

    @property
    def kind(self) -> tuple[object, ...]:
        """What all cells of a stack have in common."""
        return self.layout.cell, self.layout.forget_bias, self.units, self.dtype, self.told

    @property
    def scope(self) -> str:
        """What the names of its variables begin with."""
        return common_scope(info.name for info in self.tensors.values())


def cell_stacks(
    variables: Mapping[str, VariableInfo],
    options: StackOptions,
    graph: Callable[[], Graph | None],
) -> tuple[Candidate, ...]:
    """All stacks of TF1 cells, with those that cuDNN's layers save beside their buffer.

    Args:
        variables: by the names that a Saver gives them.
        graph: reads the graph beside the checkpoint, where there is one.
    """
    found = names.cells(variables)
    groups: dict[tuple[str, str], list[CellName]] = {}
    for scope in found:
        name = names.parse_variable_name(scope, found)
        groups.setdefault((name.group, name.form), []).append(name)
    candidates = []
    for (group, form), members in groups.items():
        try:
            cells = [_cell(member, found[member.scope], graph) for member in members]
            candidates += _stacks(group, form, cells, options)
        except (NotConvertibleError, ValueError) as error:
            scope = _stack_scope(group, form, members[0].kind)
            candidates.append(Candidate(scope, problem=f"{scope}: {error}"))
    return tuple(candidates)


def common_scope(variables: Iterable[str]) -> str:
    """The longest scope that holds all of these variables."""
    scopes = [name.split("/")[:-1] for name in variables]
    shared = []
    for parts in zip(*scopes, strict=False):
        if len(set(parts)) > 1:
            break
        shared.append(parts[0])
    return "/".join(shared)


# --- one cell -------------------------------------------------------------------------------


def _cell(
    name: CellName, tensors: Mapping[str, VariableInfo], graph: Callable[[], Graph | None]
) -> _Cell:
    """Which cell it is, its sizes, and what the graph says of it.

    Raises:
        NotConvertibleError, ValueError: the message lacks the stack.
    """
    layout = tf1_cells.find_tf1(name.kind, tensors)
    dtypes = {info.dtype for info in tensors.values()}
    if len(dtypes) != 1 or not dtypes <= set(FLOAT_DTYPES):
        raise ValueError(
            f"tensors of {name.scope}: expected one dtype of {', '.join(FLOAT_DTYPES)}, found "
            + ", ".join(sorted(dtypes))
        )
    inputs, units = _sizes(name, layout, tensors)
    told = _told(name, layout, tensors, graph)
    return _Cell(name, layout, inputs, units, dtypes.pop(), tensors, told)


def _told(
    name: CellName,
    layout: Tf1Cell,
    tensors: Mapping[str, VariableInfo],
    graph: Callable[[], Graph | None],
) -> CellFacts | None:
    """What the graph says of a cell, as far as its variables leave it open.

    Raises:
        NotConvertibleError: it says that the cell has no counterpart.
    """
    found = graph() if layout.cell != "gru" else None  # CudnnCompatibleGRUCell has no options
    if found is None:
        return None
    bias = layout.blocks[-1].bias
    with reading("the graph beside the checkpoint"):
        told = read_cell(found, layout.cell, (tensors[bias].name, f"{name.scope}/{bias}"))
    if told is not None and told.problem:
        raise NotConvertibleError(f"{name.scope}, says the graph: {told.problem}")
    return told


def _sizes(name: CellName, layout: Tf1Cell, tensors: Mapping[str, VariableInfo]) -> tuple[int, int]:
    """Input size and units, after a check of all shapes."""
    first = layout.blocks[0]
    shape = tensors[first.kernel].shape
    gates = len(first.gates)
    units = shape[1] // gates if len(shape) == 2 else 0
    if not units or shape[1] % gates or shape[0] <= units:
        raise ValueError(
            f"{tensors[first.kernel].name}: expected shape (input size + units, {gates} * units), "
            f"found {shape}"
        )
    inputs = shape[0] - units
    rows = {"xh": inputs + units, "x": inputs, "h": units}
    expected: dict[str, tuple[int, ...]] = {}
    for block in layout.blocks:
        columns = len(block.gates) * units
        expected |= {block.kernel: (rows[block.rows], columns), block.bias: (columns,)}
    for inner, info in tensors.items():
        size = expected.get(inner, expected[first.bias])  # else one of TF 1.3's two biases
        if info.shape != size:
            raise ValueError(
                f"{info.name}: expected shape {size} in a {name.kind} of {units} units on "
                f"{inputs} inputs, found {info.shape}"
            )
    return inputs, units


# --- many cells -----------------------------------------------------------------------------


def _stacks(group: str, form: str, cells: list[_Cell], options: StackOptions) -> list[Candidate]:
    """The stacks that the cells of one group are: one, if nothing stands against it."""
    held: dict[tuple[int, str], _Cell] = {}
    for cell in cells:
        place = (cell.name.layer, cell.name.direction)
        if place in held:
            raise ValueError(f"{held[place].name.scope} and {cell.name.scope} are in one place")
        held[place] = cell
    directions = DIRECTIONS if form in ("directions", "stack", "chains") else DIRECTIONS[:1]
    missing = [
        f"layer {layer} {direction}"
        for layer, direction in product(range(max(held)[0] + 1), directions)
        if (layer, direction) not in held
    ]
    if missing:
        raise ValueError(f"the tensors of {', '.join(missing[:3])} are missing")
    ordered = [held[place] for place in sorted(held, key=lambda p: (p[0], DIRECTIONS.index(p[1])))]
    scope = _stack_scope(group, form, ordered[0].name.kind)
    parts = _uniform(ordered, chains=form == "chains")
    if len(parts) > 1:
        return _split(scope, parts, options)
    prefix = None
    if form in ("layers", "stack") and all(c.name.kind in _CUDNN_KINDS for c in ordered):
        prefix = _outside(group)
    full = common_scope(f"{cell.name.scope}/" for cell in ordered)
    stack = _stack(scope, ordered, options)
    warnings: tuple[str, ...] = ()
    if _BASIC in _kinds(ordered) and stack.told is None and not stack.assumptions:
        warnings = (f"{scope}: {_TANH_TOO}",) if options.activation is None else ()
    return [Candidate(scope, stack, None, warnings, prefix, full)]


def _uniform(cells: list[_Cell], *, chains: bool) -> list[list[_Cell]]:
    """The cells in as few stacks as can be: all layers alike, each reading the one below.

    Args:
        chains: the directions meet above the last layer only.
    """
    layers = sorted({cell.name.layer for cell in cells})
    sides = len({cell.name.direction for cell in cells})
    if chains and len(layers) > 1 and sides > 1:
        return [part for side in _by(cells, lambda c: c.name.direction)
                for part in _uniform(side, chains=False)]  # fmt: skip
    inputs = {(cell.name.layer > layers[0], cell.inputs) for cell in cells}
    fits = len({cell.kind for cell in cells}) == 1 and len(inputs) == min(len(layers), 2)
    if fits and all(not upper or size == sides * cells[0].units for upper, size in inputs):
        return [cells]
    if len(layers) > 1:
        return [part for layer in _by(cells, lambda c: c.name.layer)
                for part in _uniform(layer, chains=False)]  # fmt: skip
    return [[cell] for cell in cells]


def _by(cells: list[_Cell], key: Callable[[_Cell], object]) -> list[list[_Cell]]:
    parts: dict[object, list[_Cell]] = {}
    for cell in cells:
        parts.setdefault(key(cell), []).append(cell)
    return list(parts.values())


def _split(scope: str, parts: list[list[_Cell]], options: StackOptions) -> list[Candidate]:
    """A stack for each part; how they were joined, the checkpoint can't tell any more."""
    found = []
    for cells in parts:
        own = common_scope(cell.name.scope for cell in cells)
        found.append(Candidate(own, _stack(own, cells, options), full_scope=own))
    listed = ", ".join(candidate.scope for candidate in found)
    backward = [
        candidate.scope
        for candidate, cells in zip(found, parts, strict=True)
        if {cell.name.direction for cell in cells} == {"backward"}
    ]
    text = f"{scope}: its layers differ, or each direction has its own; taken apart into {listed}"
    if backward:
        text += f"; {', '.join(backward)} read time backwards"
    return [replace(found[0], warnings=(text,)), *found[1:]]


def _stack_scope(group: str, form: str, kind: str) -> str:
    """What a stack is called: the scope of the layer, or of what runs its cells."""
    if form == "single":
        return group.rpartition("/")[0] or group
    if kind in _CUDNN_KINDS and form in ("layers", "stack"):
        return _outside(group) or group
    return group or kind


def _outside(group: str) -> str:
    """The scope around `rnn` or `stack_bidirectional_rnn`, if the group is in one of them."""
    head, _, last = group.rpartition("/")
    return head if names.plain(last) in ("rnn", "stack_bidirectional_rnn") else group


def _stack(scope: str, cells: list[_Cell], options: StackOptions) -> Stack:
    first = cells[0]
    directions = list(dict.fromkeys(cell.name.direction for cell in cells))
    layers = sorted({cell.name.layer for cell in cells})
    places = tuple(
        CellPlace(
            layer=layers.index(cell.name.layer),
            direction=DIRECTIONS[directions.index(cell.name.direction)],
            scope=cell.scope,
            layout=f"tf1:{names.plain(cell.name.kind)}",
            tensors={inner: info.name for inner, info in cell.tensors.items()},
        )
        for cell in cells
    )
    forget_bias, assumed = _forget_bias(cells, options)
    activation, assumed_too = _activation(cells, options)
    return Stack(
        scope=scope,
        cell=first.layout.cell,
        num_layers=len(layers),
        num_units=first.units,
        input_size=first.inputs,
        direction="bidirectional" if len(directions) > 1 else "unidirectional",
        dtype=first.dtype,
        opaque=None,
        places=places,
        forget_bias=forget_bias,
        activation=activation,
        assumptions=(*assumed, *assumed_too, *_clip(cells)),
        told=first.told,
    )


def _forget_bias(cells: list[_Cell], options: StackOptions) -> tuple[float, list[Assumption]]:
    """What an LSTM adds to its forget gate, and what had to be assumed of it.

    Raises:
        NotConvertibleError: the graph computes it, and no option says what comes out.
    """
    default, told = cells[0].layout.forget_bias, cells[0].told
    if told is not None and told.forget_bias is not None:
        return told.forget_bias, []
    if not default:
        return 0.0, []
    if options.forget_bias is not None:
        return options.forget_bias, []
    if told is not None and told.computed:
        raise NotConvertibleError(
            f"the graph computes what {cells[0].name.scope} adds to its forget gate "
            f"({told.computed}); give it by --forget-bias"
        )
    kinds = _kinds(cells)
    text = f"TensorFlow's default for {' and '.join(kinds)}; {_NOT_STORED}, --forget-bias gives it"
    if _BASIC in kinds and options.activation is None:
        text += f"; {_TANH_TOO}"
    if "lstm_cell" in kinds:
        text += (
            " (CudnnCompatibleLSTMCell, which TensorFlow 1.5 saves under the name lstm_cell "
            "too, has 0)"
        )
    return default, [Assumption("forget_bias", default, text)]


def _activation(cells: list[_Cell], options: StackOptions) -> tuple[str, list[Assumption]]:
    """What cells compute their state by; of a BasicRNNCell `find` decides."""
    told, kinds = cells[0].told, _kinds(cells)
    if told is not None and told.activation is not None:
        return told.activation, []
    if not {_BASIC, *_WITH_ACTIVATION} & set(kinds) or "w_c" in cells[0].tensors:
        return "tanh", []
    if options.activation is not None or _BASIC in kinds:
        return options.activation or "tanh", []
    text = f"TensorFlow's default for {' and '.join(kinds)}; {_NOT_STORED}, --activation gives it"
    return "tanh", [Assumption("activation", "tanh", text)]


def _clip(cells: list[_Cell]) -> list[Assumption]:
    if cells[0].told is not None or not _LSTM_CLIPS & set(_kinds(cells)):
        return []
    text = (
        f"{_NOT_STORED}, and the block cells of TensorFlow up to 1.3 clip the cell state at 3 by "
        "default"
    )
    return [Assumption("cell_clip", None, text)]


def _kinds(cells: list[_Cell]) -> list[str]:
    return sorted({names.plain(cell.name.kind) for cell in cells})

"""The weights of TensorFlow 1's recurrent cells, as its checkpoints name and store them.

A cell multiplies row vectors: its kernels are (rows, gates*units), the gates side by side, and
where one kernel serves input and state, the rows of x come first: [x, h] @ kernel. There is one
bias per kernel, but for TF 1.3's checkpoints of cuDNN layers, which keep cuDNN's two beside it.

Names are those inside the scope of the cell: `kernel`, `gates/kernel`, `w_ru`, ... TF up to 1.1
says `weights` and `biases` where later versions say `kernel` and `bias`; both are read.

What a checkpoint does not tell, its graph does, or the caller must know: the `forget_bias` that an
LSTM cell adds (1.0 by default, 0.0 for CudnnCompatibleLSTMCell), the activation of a cell, whether
the state is clipped. LSTMCell and LSTMBlockCell use the same names, and in TF 1.5
CudnnCompatibleLSTMCell says `lstm_cell` too.

Source: the tensors that TF 1.2 to 1.15 save for each cell, run beside cuDNN's equations.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from rnnconvert.errors import NotConvertibleError
from rnnconvert.layouts.cells import CELLS, require_same_function
from rnnconvert.layouts.interpret import copy_block
from rnnconvert.layouts.weights import FLOAT_DTYPES, Array, RnnWeights, merge_bias, split_bias

T = TypeVar("T")


@dataclass(frozen=True)
class CellBlock:
    """One kernel of a cell and its bias.

    Attributes:
        gates: the gates side by side, in stored order.
        rows: "xh" (rows of the input, then of the state), "x" or "h".
        kernel, bias: names of the tensors.
    """

    gates: tuple[str, ...]
    rows: str
    kernel: str
    bias: str


@dataclass(frozen=True)
class Tf1Cell:
    """How a class of TF1 stores a cell.

    Attributes:
        scopes: the last part of the scope its tensors lie in, as the class names it by itself.
        cell: name of the cell; the first one of a BasicRNNCell is the class' default.
        forget_bias: what the class adds to the forget gate by default; it is not stored.
    """

    scopes: tuple[str, ...]
    cell: str
    blocks: tuple[CellBlock, ...]
    forget_bias: float = 0.0


@dataclass(frozen=True)
class KernelPart:
    """Where the matrix of a gate stands in a kernel of a cell: transposed, (n, units).

    Attributes:
        kind: "kernel", which multiplies the input, or "recurrent", which multiplies the state.
        gate: of the cell.
        tensor: name of the kernel.
        rows, columns: of the kernel.
    """

    kind: str
    gate: str
    tensor: str
    rows: slice
    columns: slice


_ICFO = (CellBlock(("i", "c", "f", "o"), "xh", "kernel", "bias"),)
_RNN = (CellBlock(("h",), "xh", "kernel", "bias"),)
_GRU = (
    CellBlock(("r", "z"), "xh", "gates/kernel", "gates/bias"),
    CellBlock(("n",), "xh", "candidate/kernel", "candidate/bias"),
)
_GRU_BLOCK = (CellBlock(("r", "z"), "xh", "w_ru", "b_ru"), CellBlock(("n",), "xh", "w_c", "b_c"))
_CUDNN_GRU = (
    CellBlock(("r", "z"), "xh", "gates/kernel", "gates/bias"),
    CellBlock(("n",), "x", "candidate/input_projection/kernel", "candidate/input_projection/bias"),
    CellBlock(
        ("n",), "h", "candidate/hidden_projection/kernel", "candidate/hidden_projection/bias"
    ),
)

CUDNN_LSTM = Tf1Cell(("cudnn_compatible_lstm_cell",), "lstm", _ICFO)
CUDNN_GRU = Tf1Cell(("cudnn_compatible_gru_cell",), "gru", _CUDNN_GRU)
RNN_TANH = Tf1Cell(("basic_rnn_cell",), "rnn_tanh", _RNN)
RNN_RELU = Tf1Cell(("basic_rnn_cell",), "rnn_relu", _RNN)

TF1_CELLS: tuple[Tf1Cell, ...] = (
    # what tf.contrib.cudnn_rnn's layers save, and its CudnnCompatible cells
    CUDNN_LSTM,
    CUDNN_GRU,
    RNN_TANH,
    RNN_RELU,
    # BasicLSTMCell; LSTMCell and LSTMBlockCell; LSTMBlockFusedCell of TF <= 1.4 and later
    Tf1Cell(
        ("basic_lstm_cell", "lstm_cell", "lstm_block_wrapper", "lstm_fused_cell"),
        "lstm",
        _ICFO,
        forget_bias=1.0,
    ),
    # GRUCell, and GRUBlockCellV2 of TF 1.4 and later; GRUBlockCell of TF <= 1.4 and later
    Tf1Cell(("gru_cell", "GRUBlockCellV2"), "gru_reset_before", _GRU),
    Tf1Cell(("gru_cell", "GRUBlockCell"), "gru_reset_before", _GRU_BLOCK),
)

_SEPARATE = (("bias_cudnn_0", "bias_cudnn_1"), ("bias_cudnn 0", "bias_cudnn 1"))
"""TF 1.3's input and recurrent bias of the first kernel, LSTM and GRU (with a blank)."""

_OLD_NAMES = {"weights": "kernel", "biases": "bias"}
_ROUNDING = {2: 2.0**-7, 4: 2.0**-22, 8: 2.0**-51}
"""By the size of the dtype: two units in the last place, relative (of bfloat16 for 2 bytes)."""


def find_tf1(scope: str, names: Collection[str], activation: str = "tanh") -> Tf1Cell:
    """The layout of the cell in a scope, by the scope's name and the tensors in it.

    Args:
        scope: last part of the scope, e.g. "basic_lstm_cell" or "gru_cell_1".
        names: names of the tensors in it, the cell's own weights only.
        activation: "tanh" or "relu", of a BasicRNNCell.

    Raises:
        NotConvertibleError: no known cell, or one with peepholes, a projection or layer
            normalisation, which no Keras layer has.
        ValueError: tensors of the cell are missing or too many.

    Example:
        >>> find_tf1("basic_lstm_cell_1", ["kernel", "bias"]).forget_bias
        1.0
    """
    plain = re.sub(r"_[0-9]+$", "", scope)
    layouts = [layout for layout in TF1_CELLS if plain in layout.scopes]
    if not layouts:
        known = dict.fromkeys(name for layout in TF1_CELLS for name in layout.scopes)
        reason = "it normalises its gates" if "layer_norm" in plain else "it is not known"
        raise NotConvertibleError(
            f"cell {scope} can't be converted: {reason}; known: {', '.join(known)}"
        )
    found = {_modern(name) for name in names}
    _refuse_extensions(scope, found)
    separate = {name for pair in _SEPARATE for name in pair}
    for layout in layouts:
        if layout.cell in ("rnn_tanh", "rnn_relu") and layout.cell != f"rnn_{activation}":
            continue
        if found - separate == _names(layout):
            return layout
    choices = dict.fromkeys(", ".join(sorted(_names(layout))) for layout in layouts)
    raise ValueError(
        f"tensors of {scope}: expected {' or '.join(choices)}; found {', '.join(sorted(found))}"
    )


def unpack_tf1(
    layout: Tf1Cell, tensors: Mapping[str, Array], forget_bias: float | None = None
) -> RnnWeights:
    """The tensors of a cell, to the canonical form.

    A bias that serves input and state is split in halves, unless TF 1.3's two are there.

    Args:
        layout: of `TF1_CELLS`, by `find`.
        tensors: by their names inside the scope.
        forget_bias: what the cell adds to the forget gate of an LSTM; None is its class' default.

    Raises:
        ValueError: shapes, dtypes or biases contradict each other, or a tensor is missing.

    Example:
        >>> tensors = {"kernel": np.zeros((5, 12)), "bias": np.zeros(12)}  # 2 inputs, 3 units
        >>> weights = unpack_tf1(find_tf1("basic_lstm_cell", tensors), tensors)
        >>> weights.bias.sum(axis=0)[1]  # of the forget gate, whose 1.0 is not stored
        array([1., 1., 1.])
    """
    stored = modern_names({name: np.asarray(array) for name, array in tensors.items()})
    gates = CELLS[layout.cell].gates
    inputs, units = require_tf1_shapes(
        layout, {name: array.shape for name, array in stored.items()}
    )
    dtype = _one_dtype(layout, stored)
    kernel = np.empty((len(gates), units, inputs), dtype)
    recurrent = np.empty((len(gates), units, units), dtype)
    targets = {"kernel": kernel, "recurrent": recurrent}
    for part in kernel_parts(layout, inputs, units):
        block = stored[part.tensor][part.rows, part.columns]
        copy_block(block.T, targets[part.kind][gates.index(part.gate)])
    return RnnWeights(
        layout.cell, kernel, recurrent, unpack_tf1_biases(layout, stored, forget_bias)
    )


def modern_names(tensors: Mapping[str, T]) -> dict[str, T]:
    """The tensors of a cell by the names that TF 1.2 and later give them.

    Raises:
        ValueError: one is there twice.

    Example:
        >>> modern_names({"weights": 1, "biases": 2})
        {'kernel': 1, 'bias': 2}
    """
    found = {_modern(name): tensor for name, tensor in tensors.items()}
    if len(found) != len(tensors):
        raise ValueError(f"a tensor is there twice, by its old and its new name: {sorted(tensors)}")
    return found


def kernel_parts(layout: Tf1Cell, inputs: int, units: int) -> Iterator[KernelPart]:
    """Where each matrix stands.

    Example:
        >>> [part.rows for part in kernel_parts(RNN_TANH, 2, 3)]
        [slice(0, 2, None), slice(2, 5, None)]
    """
    for block in layout.blocks:
        end = _rows(block, inputs, units)
        rows = {"kernel": slice(0, inputs), "recurrent": slice(end - units, end)}
        for place, gate in enumerate(block.gates):
            columns = slice(place * units, (place + 1) * units)
            for kind, served in (("kernel", "x"), ("recurrent", "h")):
                if served in block.rows:
                    yield KernelPart(kind, gate, block.kernel, rows[kind], columns)


def unpack_tf1_biases(
    layout: Tf1Cell, tensors: Mapping[str, Array], forget_bias: float | None = None
) -> Array:
    """The biases of a cell, (2, gates, units), by their names inside the scope; as `unpack_tf1`."""
    gates = CELLS[layout.cell].gates
    added = layout.forget_bias if forget_bias is None else forget_bias
    first = layout.blocks[0]
    units = len(tensors[first.bias]) // len(first.gates)
    dtype = tensors[first.bias].dtype.newbyteorder("=")
    bias = np.empty((2, len(gates), units), dtype)
    for block in layout.blocks:
        halves = _halves(block, tensors, added).reshape(2, len(block.gates), units)
        for place, gate in enumerate(block.gates):
            for half, rows in enumerate("xh"):
                if rows in block.rows:
                    bias[half, gates.index(gate)] = halves[half, place]
    return bias


def pack_tf1(
    layout: Tf1Cell, weights: RnnWeights, forget_bias: float | None = None
) -> dict[str, Array]:
    """The canonical form, to the tensors of a cell: the inverse of `unpack`.

    Biases are merged where the cell has one for input and state.

    Raises:
        NotConvertibleError: the layout's cell is another function than the weights'.

    Example:
        >>> tensors = {"kernel": np.ones((5, 3)), "bias": np.ones(3)}
        >>> layout = find_tf1("basic_rnn_cell", tensors)
        >>> sorted(pack_tf1(layout, unpack_tf1(layout, tensors)))
        ['bias', 'kernel']
    """
    require_same_function(weights.cell, layout.cell)
    gates, inputs, units = CELLS[layout.cell].gates, weights.input_dim, weights.units
    bias = weights.bias
    if bias is None:
        bias = np.zeros((2, len(gates), units), weights.dtype)
    tensors = pack_tf1_biases(layout, bias, forget_bias)
    for block in layout.blocks:
        shape = (_rows(block, inputs, units), len(block.gates) * units)
        tensors[block.kernel] = np.empty(shape, weights.dtype)
    for part in kernel_parts(layout, inputs, units):
        matrix = getattr(weights, part.kind)[gates.index(part.gate)]
        copy_block(matrix.T, tensors[part.tensor][part.rows, part.columns])
    return tensors


def pack_tf1_biases(
    layout: Tf1Cell, bias: Array, forget_bias: float | None = None
) -> dict[str, Array]:
    """The biases of a cell, of a canonical one (2, gates, units); as `pack_tf1`."""
    gates = CELLS[layout.cell].gates
    merged = merge_bias(bias)
    if layout.cell == "lstm":
        added = layout.forget_bias if forget_bias is None else forget_bias
        merged[gates.index("f")] -= bias.dtype.type(added)
    kinds = {"x": bias[0], "h": bias[1], "xh": merged}
    return {
        block.bias: kinds[block.rows][[gates.index(gate) for gate in block.gates]].reshape(-1)
        for block in layout.blocks
    }


# --- names, shapes and biases ---------------------------------------------------------------


def _modern(name: str) -> str:
    """The name that TF 1.2 and later give a tensor."""
    head, slash, last = name.rpartition("/")
    return head + slash + _OLD_NAMES.get(last, last)


def _names(layout: Tf1Cell) -> set[str]:
    return {name for block in layout.blocks for name in (block.kernel, block.bias)}


def _refuse_extensions(scope: str, names: Collection[str]) -> None:
    """Raise NotConvertibleError where a cell has weights that its Keras twin has no place for."""
    for belongs, what in (
        (lambda name: name.endswith("_diag"), "peepholes"),
        (lambda name: name.startswith("projection/"), "a projection of its output"),
        (lambda name: name.endswith(("/gamma", "/beta")), "layer normalisation"),
    ):
        found = sorted(filter(belongs, names))
        if found:
            raise NotConvertibleError(
                f"cell {scope} has {what} ({', '.join(found)}); neither cuDNN nor Keras has such a "
                "layer, so no weights make it equal"
            )


def _rows(block: CellBlock, inputs: int, units: int) -> int:
    return {"xh": inputs + units, "x": inputs, "h": units}[block.rows]


def require_tf1_shapes(layout: Tf1Cell, shapes: Mapping[str, tuple[int, ...]]) -> tuple[int, int]:
    """Input size and units, by the first kernel, after a check of all shapes.

    Args:
        shapes: of its tensors, by `modern_names`.

    Raises:
        ValueError: one is missing, or has another shape.
    """
    missing = _names(layout) - set(shapes)
    if missing:
        raise ValueError(
            f"tensors {', '.join(sorted(missing))} of a {layout.scopes[0]} are missing; "
            f"found {', '.join(sorted(shapes))}"
        )
    first = layout.blocks[0]
    shape = shapes[first.kernel]
    units = shape[1] // len(first.gates) if len(shape) == 2 else 0
    if not units or shape[1] % len(first.gates) or shape[0] <= units:
        raise ValueError(
            f"{first.kernel} of a {layout.scopes[0]}: expected (input size + units, "
            f"{len(first.gates)} * units), found {shape}"
        )
    inputs = shape[0] - units
    for block in layout.blocks:
        columns = len(block.gates) * units
        expected = {block.kernel: (_rows(block, inputs, units), columns), block.bias: (columns,)}
        for name, size in expected.items():
            if shapes[name] != size:
                raise ValueError(
                    f"{name} of a {layout.scopes[0]} of {units} units on {inputs} inputs: "
                    f"expected shape {size}, found {shapes[name]}"
                )
    return inputs, units


def _one_dtype(layout: Tf1Cell, tensors: Mapping[str, Array]) -> np.dtype[np.generic]:
    dtypes = {array.dtype.newbyteorder("=") for array in tensors.values()}
    if len(dtypes) != 1 or not {dtype.name for dtype in dtypes} <= set(FLOAT_DTYPES):
        raise ValueError(
            f"tensors of a {layout.scopes[0]}: expected one dtype of {', '.join(FLOAT_DTYPES)}, "
            f"found {', '.join(sorted(dtype.name for dtype in dtypes))}"
        )
    return dtypes.pop()


def _halves(block: CellBlock, tensors: Mapping[str, Array], forget_bias: float) -> Array:
    """Input and recurrent bias of a block, (2, gates*units), the forget bias added."""
    bias = tensors[block.bias]
    if block.rows != "xh":
        return np.stack([bias, bias])  # the cell takes the one that it has a kernel for
    forget = np.repeat([gate == "f" for gate in block.gates], len(bias) // len(block.gates))
    pair = _separate(block, tensors)
    if pair is None:
        bias = bias.copy()
        bias[forget] += bias.dtype.type(forget_bias)
        return split_bias(bias)
    pair[0, forget] += bias.dtype.type(forget_bias)
    return pair


def _separate(block: CellBlock, tensors: Mapping[str, Array]) -> Array | None:
    """TF 1.3's two biases of a block, (2, gates*units), or None.

    Raises:
        ValueError: one of them is missing, has another shape, or their sum is not the bias.
    """
    for names in _SEPARATE:
        present = [name for name in names if name in tensors]
        if not present:
            continue
        bias = tensors[block.bias]
        shapes = [tensors[name].shape for name in present]
        if shapes != [bias.shape, bias.shape]:
            raise ValueError(
                f"{' and '.join(names)}: expected both, of shape {bias.shape} like {block.bias}, "
                f"found {dict(zip(present, shapes, strict=True))}"
            )
        pair = np.stack([tensors[name] for name in names])
        found, expected = merge_bias(pair).astype("float64"), bias.astype("float64")
        rounding = _ROUNDING[bias.dtype.itemsize]
        if not np.allclose(found, expected, rtol=rounding, atol=0.0, equal_nan=True):
            raise ValueError(f"{' and '.join(names)} don't add up to {block.bias}")
        return pair
    return None

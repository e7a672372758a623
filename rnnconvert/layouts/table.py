"""Every weight layout that rnnconvert speaks, as data. `interpret.py` reads it, both ways.

Sources: cuDNN developer guide (`cudnnGetRNNWeightParams`) for gate numbering, the Keras 2 sources
(`CuDNNGRU`/`CuDNNLSTM`, `_convert_rnn_weights`) for the split layout, the torch documentation of
`nn.LSTM`/`nn.GRU`/`nn.RNN`, and the ONNX operator specification of `LSTM`/`GRU`/`RNN`.

The trap in Keras' split CuDNN layout: each gate's (input_dim, units) block is handed to cuDNN as it
lies in memory and read there as (units, input_dim). The block is not the transposed matrix, it is
the matrix' buffer under another shape; only for input_dim == units do the two look alike.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from rnnconvert.errors import NotConvertibleError
from rnnconvert.layouts.cells import CELLS, require_same_function


class MatrixForm(Enum):
    """How the (units, n) matrices of the gates are stored.

    Example:
        >>> find("torch", "lstm").matrix
        <MatrixForm.ROWS: 'gates stacked by rows: (gates*units, n)'>
    """

    ROWS = "gates stacked by rows: (gates*units, n)"
    COLUMNS = "transposed, gates side by side: (n, gates*units)"
    CUDNN_COLUMNS = "each gate's (units, n) buffer shown as (n, units), side by side"
    SEPARATE = "one (units, n) array per gate"


class BiasForm(Enum):
    """How input bias and recurrent bias are stored.

    Example:
        >>> find("keras", "gru").bias
        <BiasForm.TWO_ROWS: '(2, gates*units)'>
    """

    MERGED = "their sum: (gates*units,)"
    TWO_ROWS = "(2, gates*units)"
    CONCATENATED = "input then recurrent: (2*gates*units,)"
    TWO_TENSORS = "two arrays of (gates*units,)"
    SEPARATE = "one (units,) array per gate, input biases first"


@dataclass(frozen=True)
class Layout:
    """How one program stores one cell.

    Attributes:
        name: the family, e.g. "keras" or "keras-cudnn".
        cell: name of the cell.
        gates: the cell's gates in stored order.
        matrix: form of the kernel and of the recurrent kernel.
        bias: form of the bias.
        tensors: names of kernel, recurrent kernel and bias tensors. In the SEPARATE forms a name
            is a pattern with `{gate}`; in TWO_TENSORS the bias name is "input|recurrent".
        leading: number of leading axes of size 1 (ONNX: the direction).
        needs_bias: the program has no form without biases.

    Example:
        >>> [layout.name for layout in LAYOUTS if layout.cell == "gru_reset_before"]
        ['keras', 'onnx']
    """

    name: str
    cell: str
    gates: tuple[str, ...]
    matrix: MatrixForm
    bias: BiasForm
    tensors: tuple[str, str, str]
    leading: int = 0
    needs_bias: bool = False


_KERAS = ("kernel", "recurrent_kernel", "bias")
_TORCH = ("weight_ih", "weight_hh", "bias_ih|bias_hh")
_ONNX = ("W", "R", "B")
_CUDNN = ("W_{gate}", "R_{gate}", "bW_{gate}|bR_{gate}")
_IFCO = ("i", "f", "c", "o")
_ZRN = ("z", "r", "n")
_RZN = ("r", "z", "n")
_H = ("h",)
_M, _B = MatrixForm, BiasForm

LAYOUTS: tuple[Layout, ...] = (
    # Keras 2 and 3: LSTM, GRU(reset_after=True), GRU(reset_after=False), SimpleRNN
    Layout("keras", "lstm", _IFCO, _M.COLUMNS, _B.MERGED, _KERAS),
    Layout("keras", "gru", _ZRN, _M.COLUMNS, _B.TWO_ROWS, _KERAS),
    Layout("keras", "gru_reset_before", _ZRN, _M.COLUMNS, _B.MERGED, _KERAS),
    Layout("keras", "rnn_tanh", _H, _M.COLUMNS, _B.MERGED, _KERAS),
    Layout("keras", "rnn_relu", _H, _M.COLUMNS, _B.MERGED, _KERAS),
    # Keras 2: CuDNNLSTM, CuDNNGRU
    Layout("keras-cudnn", "lstm", _IFCO, _M.CUDNN_COLUMNS, _B.CONCATENATED, _KERAS, 0, True),
    Layout("keras-cudnn", "gru", _ZRN, _M.CUDNN_COLUMNS, _B.CONCATENATED, _KERAS, 0, True),
    # cuDNN's canonical matrices and vectors, as cudnnGetRNNWeightParams hands them out
    Layout("cudnn", "lstm", _IFCO, _M.SEPARATE, _B.SEPARATE, _CUDNN, 0, True),
    Layout("cudnn", "gru", _RZN, _M.SEPARATE, _B.SEPARATE, _CUDNN, 0, True),
    Layout("cudnn", "rnn_tanh", _H, _M.SEPARATE, _B.SEPARATE, _CUDNN, 0, True),
    Layout("cudnn", "rnn_relu", _H, _M.SEPARATE, _B.SEPARATE, _CUDNN, 0, True),
    # torch.nn.LSTM, GRU, RNN (one layer, one direction; torch calls the gates i f g o and r z n)
    Layout("torch", "lstm", _IFCO, _M.ROWS, _B.TWO_TENSORS, _TORCH),
    Layout("torch", "gru", _RZN, _M.ROWS, _B.TWO_TENSORS, _TORCH),
    Layout("torch", "rnn_tanh", _H, _M.ROWS, _B.TWO_TENSORS, _TORCH),
    Layout("torch", "rnn_relu", _H, _M.ROWS, _B.TWO_TENSORS, _TORCH),
    # ONNX operators; gru needs linear_before_reset=1, gru_reset_before 0
    Layout("onnx", "lstm", ("i", "o", "f", "c"), _M.ROWS, _B.CONCATENATED, _ONNX, 1),
    Layout("onnx", "gru", _ZRN, _M.ROWS, _B.CONCATENATED, _ONNX, 1),
    Layout("onnx", "gru_reset_before", _ZRN, _M.ROWS, _B.CONCATENATED, _ONNX, 1),
    Layout("onnx", "rnn_tanh", _H, _M.ROWS, _B.CONCATENATED, _ONNX, 1),
    Layout("onnx", "rnn_relu", _H, _M.ROWS, _B.CONCATENATED, _ONNX, 1),
)

NAMES = tuple(dict.fromkeys(layout.name for layout in LAYOUTS))


def find(name: str, cell: str) -> Layout:
    """The layout `name` for `cell`.

    Raises:
        NotConvertibleError: when that program has no such cell; the message says why.

    Example:
        >>> find("onnx", "lstm").gates
        ('i', 'o', 'f', 'c')
    """
    if name not in NAMES:
        raise ValueError(f"unknown layout {name!r}; known: {', '.join(NAMES)}")
    if cell not in CELLS:
        raise ValueError(f"unknown cell {cell!r}; known: {', '.join(CELLS)}")
    cells = {layout.cell: layout for layout in LAYOUTS if layout.name == name}
    if cell in cells:
        return cells[cell]
    if cell == "gru_reset_before" and "gru" in cells:
        require_same_function(cell, "gru")
    raise NotConvertibleError(f"layout {name} has no {cell} cell; it has {', '.join(cells)}")

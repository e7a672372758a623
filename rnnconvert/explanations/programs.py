"""The topics on programs: how each stores the weights of a layer."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from rnnconvert.explanations.facts import (
    CLASSES,
    INPUTS,
    UNITS,
    cells_of,
    gate_columns,
    matrix,
    paragraph,
    stacked,
    stored_shapes,
    symbols_of,
    table,
)
from rnnconvert.layouts import MatrixForm, find, relay_block
from rnnconvert.layouts.tf1_cells import TF1_CELLS, Tf1Cell
from rnnconvert.layouts.tf1_cells import pack_tf1 as pack_tf1


def split() -> str:
    gate = np.arange(1.0, 7.0).reshape(3, 2)
    stored = relay_block(MatrixForm.SEPARATE, MatrixForm.CUDNN_COLUMNS, gate)
    keras_block = relay_block(MatrixForm.SEPARATE, MatrixForm.COLUMNS, gate)
    return f"""\
Keras' split layout: CuDNNLSTM and CuDNNGRU in Keras 2.0.9 to 2.15

{cells_of("keras-cudnn")}

The kernels have the shapes and the gate order of a plain LSTM's and GRU's, and other numbers:

{gate_columns(find("keras-cudnn", "lstm").gates, "d")}

The trap: Keras flattens each gate's (d, U) block as it lies in memory, and cuDNN reads these
numbers as its matrix (U, d). So the block is not the transposed matrix; it is the matrix' buffer
shown under another shape. With d = 2 and U = 3:

  cuDNN's matrix W (3, 2)        {matrix(gate)}
  the block of a CuDNNLSTM       {matrix(stored)}      the same buffer as (2, 3)
  the block of a Keras LSTM      {matrix(keras_block)}      W transposed

{_by_gate()}

The bias holds the input biases of all gates, then the recurrent biases of all gates, in the same
gate order (explain biases). CuDNN layers always have both, and always use tanh and sigmoid.

  from rnnconvert import layouts
  layouts.convert({{"kernel": ..., "recurrent_kernel": ..., "bias": ...}},
                  "keras-cudnn", "keras", "lstm")
"""


def _by_gate() -> str:
    layout = find("keras-cudnn", "lstm")
    rows, columns = stored_shapes(layout, INPUTS, UNITS)["kernel"]
    return paragraph(
        f"""To convert, take each gate's block by itself, {len(layout.gates)} blocks ({rows},
        {UNITS}) of a kernel ({rows}, {columns}): block.reshape(U, d).T. Where d equals U this is a
        plain transpose, so tests with square kernels can't see the mistake of transposing, or of
        copying, everything. Recurrent blocks (U, U) are always transposed."""
    )


def keras() -> str:
    return f"""\
Keras 2 and 3: LSTM, GRU, SimpleRNN

{cells_of("keras")}

Each gate's matrix is transposed, the gates lie side by side; a layer computes x @ kernel:

{gate_columns(find("keras", "lstm").gates, "d")}

{gate_columns(find("keras", "gru").gates, "d")}

GRU(reset_after=True) keeps two biases, row 0 beside the kernel, row 1 beside the recurrent kernel;
the others keep the sum. GRU(reset_after=False) is another function (explain gru). CuDNNLSTM and
CuDNNGRU have the same shapes but for the bias, and other numbers (explain split). Bidirectional
holds two layers, forward first. Plain layers of Keras before 2.3 use hard_sigmoid by default
(explain hard-sigmoid).
"""


def torch() -> str:
    torch_order, keras_order = (" ".join(find(name, "gru").gates) for name in ("torch", "keras"))
    return f"""\
torch: nn.LSTM, nn.GRU, nn.RNN

{cells_of("torch")}

Gates are stacked by rows; a layer computes x @ weight_ih.T:

{stacked(find("torch", "lstm").gates, "d")}

The names end in the layer and the direction: weight_ih_l0, weight_ih_l0_reverse, weight_ih_l1, ...
torch calls the LSTM's gates i f g o. Both biases are always kept, and the GRU is Keras'
reset_after=True; torch has no other. To Keras, transpose, add the two biases of an LSTM (explain
biases), and reorder the GRU's gates from {torch_order} to {keras_order}.
"""


def onnx() -> str:
    onnx_order, keras_order = (" ".join(find(name, "lstm").gates) for name in ("onnx", "keras"))
    return f"""\
ONNX: the operators LSTM, GRU, RNN

{cells_of("onnx")}

The first axis is the direction (2 for direction="bidirectional"); gates are stacked by rows:

{stacked(find("onnx", "lstm").gates, "d")}

The LSTM's order is {onnx_order}, unlike Keras' and torch's {keras_order}. B holds the input biases
Wb of all gates, then the recurrent ones Rb. linear_before_reset=1 is Keras' reset_after=True; 0,
which is ONNX' default, is reset_after=False (explain gru). ONNX calls the GRU's gate n h.
"""


def tf1() -> str:
    rows = dict.fromkeys(row for cell in TF1_CELLS for row in _blocks(cell))
    functions = "\n".join(f"  {', '.join(cell.scopes)}: {_function(cell)}" for cell in TF1_CELLS)
    return f"""\
TensorFlow 1: cells, and what tf.contrib.cudnn_rnn saves

{table(("scope of the cell", "gates", "kernel", "bias beside it"), rows)}

Where a kernel has d+U rows, those of x come first, then those of h. (Up to TF 1.1 kernel and bias
are called weights and biases.) What they compute:

{functions}

An LSTM cell adds its forget bias to the gate f; a checkpoint does not store it, nor the activation
of a cell, nor whether its state is clipped. The graph beside it (.meta) tells them, and is read
where it is there; without it they are assumed, and the verdict says so. TF 1 calls the gates
i j f o and r u c.

The layers CudnnLSTM, CudnnGRU, CudnnRNNTanh and CudnnRNNRelu save both their flat buffer (explain
opaque), <layer>/opaque_kernel, and the tensors above, one cell for each layer and direction:

  <layer>/rnn/multi_rnn_cell/cell_0/cudnn_compatible_lstm_cell/kernel          one direction
  <layer>/stack_bidirectional_rnn/cell_0/bidirectional_rnn/fw/.../kernel       two: fw and bw

where gates/bias and the bias of an LSTM or RNN are sums of cuDNN's two (explain biases).
"""


def _blocks(cell: Tf1Cell) -> Iterator[tuple[str, ...]]:
    """A row for each kernel of a cell; the first one says whose it is."""
    shapes = symbols_of(lambda weights: pack_tf1(cell, weights), cell.cell)
    scope = cell.scopes[0] + (", ..." if len(cell.scopes) > 1 else "")
    for block in cell.blocks:
        kernel = f"{block.kernel} {shapes[block.kernel]}"
        bias = f"{block.bias.rpartition('/')[2]} {shapes[block.bias]}"
        yield scope if block is cell.blocks[0] else "", " ".join(block.gates), kernel, bias


def _function(cell: Tf1Cell) -> str:
    added = f", forget bias {cell.forget_bias:g}" if cell.cell == "lstm" else ""
    return CLASSES["keras", cell.cell] + added

"""The topics on numbers: biases and counts."""

from __future__ import annotations

import numpy as np

from rnnconvert.explanations.facts import CLASSES, bias_vectors, formula, table, tensors, who
from rnnconvert.layouts import (
    CELLS,
    LAYOUTS,
    BiasForm,
    Layout,
    find,
    merge_bias,
    parameter_count,
    split_bias,
)
from rnnconvert.layouts.tf1_cells import TF1_CELLS

COUNTED = (
    ("keras", "rnn_tanh", 4, 5),
    ("keras", "lstm", 4, 5),
    ("keras-cudnn", "lstm", 4, 5),
    ("keras", "gru_reset_before", 4, 5),
    ("keras", "gru", 4, 5),
    ("keras-cudnn", "gru", 4, 5),
    ("keras-cudnn", "gru", 7, 200),
    ("keras-cudnn", "gru", 200, 200),
    ("keras-cudnn", "gru", 200, 2),
)
"""Examples: layout, cell, inputs, units."""


def biases() -> str:
    pair = np.array([[0.5], [0.25]], "float32")
    merged = merge_bias(pair)
    halves = split_bias(merged)
    split = find("keras-cudnn", "gru"), find("keras", "gru")
    forget = sorted({cell.forget_bias for cell in TF1_CELLS if cell.cell == "lstm"})
    return f"""\
Two biases or one

cuDNN has two biases per gate: bW beside the input kernel, bR beside the recurrent kernel.

{_bias_forms()}

Where only the sum enters the equations, Keras keeps the sum: one rounded addition in the weights'
own precision, {pair[0, 0]:g} + {pair[1, 0]:g} = {merged[0]:g}. These are the cells:
{", ".join(name for name, cell in CELLS.items() if cell.merges_biases)}.

Back, a sum can be split in many ways; Keras takes halves, and so does rnnconvert:
{merged[0]:g} = {halves[0, 0]:g} + {halves[1, 0]:g}. That computes the same; the two original \
numbers are gone.

A GRU with reset_after=True has bRn inside the product with the reset gate, n = tanh(x Wn' + bWn +
r * (h Rn' + bRn)), so nothing is added: CuDNNGRU's {_bias(split[0])} becomes {_bias(split[1])} for
Keras by a reshape, bit for bit.

A shape tells whose bias it is:

{_bias_shapes()}

TensorFlow 1's LSTM cells add a forget bias that no checkpoint stores: {forget[-1]:g} by default,
{forget[0]:g} for CudnnCompatibleLSTMCell. Keras starts the trained bias at 1 instead \
(unit_forget_bias).
"""


def _bias_forms() -> str:
    """Every form of biases, and the programs that use it."""
    lines = []
    for form in BiasForm:
        lines.append(f"  {form.value}")
        for layout in LAYOUTS:
            if layout.bias is form and layout.cell not in ("rnn_tanh", "rnn_relu"):
                name = who(layout) if "keras" in layout.name else f"{who(layout)} {layout.cell}"
                shapes = list(tensors(layout).items())[2:]
                lines.append(f"      {name:24}{', '.join(f'{n} {shape}' for n, shape in shapes)}")
    return "\n".join(lines)


def _bias_shapes() -> str:
    """The shape of every Keras layer's bias."""
    keras = [layout for layout in LAYOUTS if "keras" in layout.name and layout.cell != "rnn_relu"]
    return "\n".join(f"  {_bias(layout):10}{who(layout)}" for layout in keras)


def counts() -> str:
    layouts = [layout for layout in LAYOUTS if layout.name.startswith("keras")]
    formulas = [
        (
            CLASSES[layout.name, layout.cell],
            formula(len(layout.gates), "U", "d", bias_vectors(layout)),
        )
        for layout in layouts
        if layout.cell != "rnn_relu"
    ]
    few, many = (_count("keras", cell, 4, 5) for cell in ("gru_reset_before", "gru"))
    gates = len(CELLS["gru"].gates)
    return f"""\
Number of weights: gates * units * (inputs + units + biases)

For one direction of one layer of U units on d inputs:

{table(("layer", "weights"), formulas)}

An LSTM keeps the sum of cuDNN's two biases, so it has one fewer per gate and unit than a CuDNNLSTM.
Bidirectional doubles. The next layer's d is U, or 2U after a Bidirectional that concatenates.

{chr(10).join(_counted(*case) for case in COUNTED)}

A model's summary adds other layers: a PReLU on (200, 200), one slope for each, has {200 * 200}.

Backwards: count / (gates * U) - d - U is the number of biases, which tells the layout. A GRU of 5
units on 4 inputs has

  {few} weights: {few} / {gates * 5} - 4 - 5 = {few // (gates * 5) - 9}, so reset_after=False
  {many} weights: {many} / {gates * 5} - 4 - 5 = {many // (gates * 5) - 9}, so reset_after=True, \
or CuDNNGRU

'rnnconvert explain MODEL.h5' does it for the layers of a file.
"""


def _bias(layout: Layout) -> str:
    return tensors(layout)["bias"]


def _count(name: str, cell: str, inputs: int, units: int) -> int:
    return parameter_count(CELLS[cell], inputs, units, bias_vectors(find(name, cell)))


def _counted(name: str, cell: str, inputs: int, units: int) -> str:
    layout = find(name, cell)
    text = formula(len(layout.gates), units, inputs, bias_vectors(layout))
    who = f"{CLASSES[name, cell]}, {units} units on {inputs} inputs:"
    return f"  {who:50}{text} = {_count(name, cell, inputs, units)}"

"""The topics on functions: what LSTM, GRU and hard_sigmoid compute."""

from __future__ import annotations

import numpy as np

from rnnconvert.explanations.facts import (
    CLASSES,
    INPUTS,
    UNITS,
    bias_vectors,
    formula,
    gate_columns,
    paragraph,
    programs_of,
)
from rnnconvert.layouts import CELLS, LAYOUTS, find, gate_slices, parameter_count

_VECTORS = """\
x and h are row vectors of d inputs and U units, * is element by element, W' is W transposed. Each
gate has its own W (U, d), R (U, U) and two biases bW and bR (U)."""


def lstm() -> str:
    cell = CELLS["lstm"]
    functions = {gate: "sigmoid" if gate in cell.sigmoid_gates else "tanh" for gate in cell.gates}
    equations = "\n".join(
        f"  {gate} = {function}(x W{gate}' + h R{gate}' + bW{gate} + bR{gate})"
        for gate, function in functions.items()
    )
    return f"""\
LSTM: {len(cell.gates)} gates

{equations}
  C_new = f * C + i * c
  h_new = o * tanh(C_new)

{_VECTORS} C is the cell state.
Only the sum bW + bR enters, so most programs keep one bias (explain biases).

How programs store it ('explain NAME' says more):

{programs_of("lstm")}

torch calls the gate c by the name g, TensorFlow 1 by j. The kernel of a Keras LSTM:

{gate_columns(find("keras", "lstm").gates, "d")}

In a CuDNNLSTM the same columns hold other numbers: see 'explain split'.

Weights of {UNITS} units on {INPUTS} inputs:
{_counts("lstm")}
"""


def gru() -> str:
    cell = CELLS["gru"]
    sigmoids = "\n".join(
        f"  {gate} = sigmoid(x W{gate}' + h R{gate}' + bW{gate} + bR{gate})"
        for gate in cell.sigmoid_gates
    )
    h, r, recurrent = np.array([1.0, 2.0]), np.array([0.5, 1.0]), np.array([[0.0, 1.0], [1.0, 0.0]])
    after, before = r * (h @ recurrent), (r * h) @ recurrent
    return f"""\
GRU: {len(cell.gates)} gates, and two functions of one name

{sigmoids}
  n = tanh(x Wn' + bWn + r * (h Rn' + bRn))      reset_after=True: cuDNN, torch
  n = tanh(x Wn' + bn + (r * h) Rn')             reset_after=False: the paper, TensorFlow 1's cells
  h_new = (1 - z) * n + z * h

{_VECTORS}

The reset gate r acts after the product with Rn, or before it. These are different functions: the
product mixes the units, so scaling them before is not scaling them after. With h = {_row(h)},
r = {_row(r)} and Rn' = [[0, 1], [1, 0]]:

  r * (h Rn') = {_row(after)}      (r * h) Rn' = {_row(before)}

No weights make them equal, in either direction, and rnnconvert refuses: "CuDNNGRU is not compatible
with GRU(reset_after=False)" means to build the model with reset_after=True. reset_after=False was
Keras' default until TensorFlow 2, and is what every file means that was written before the option.
With reset_after=True the bias bRn stands inside the product with r, so a GRU keeps both biases; the
shape of the bias tells a file's GRUs apart.

reset_after=True, as programs store it:

{programs_of("gru")}

reset_after=False:

{programs_of("gru_reset_before")}

{_gru_names()}

{gate_columns(find("keras", "gru").gates, "d")}

Weights of {UNITS} units on {INPUTS} inputs:
{_counts("gru", "gru_reset_before")}
"""


def hard_sigmoid() -> str:
    from rnnconvert.keras_models.planning import HARD_SIGMOID_RATIO
    from rnnconvert.references.keras import ACTIVATIONS

    old, new = ACTIVATIONS["hard_sigmoid/keras2"], ACTIVATIONS["hard_sigmoid/keras3"]
    points = np.array([-3.0, -2.5, -1.0, 0.0, 1.0, 2.5, 3.0])
    rows = {
        "x": points,
        "Keras 2, clip(0.2 x + 0.5)": old(points),
        "Keras 3, clip(x / 6 + 0.5)": new(points),
        f"Keras 3 of {HARD_SIGMOID_RATIO} x": new(HARD_SIGMOID_RATIO * points),
    }
    width = max(map(len, rows))
    drawn = "\n".join(
        f"  {name.ljust(width)}" + "".join(f"{value:8.4f}" for value in values)
        for name, values in rows.items()
    )
    gates = "\n".join(f"  {CLASSES['keras', name]:24}{_scaled(name)}" for name in ("lstm", "gru"))
    return f"""\
hard_sigmoid: one name, two functions

{drawn}

So a model of Keras 2 whose layers use recurrent_activation='hard_sigmoid' loads in Keras 3 and
predicts something else. Old(x) is New({HARD_SIGMOID_RATIO} x): with the sigmoid gates' columns of
kernel, recurrent kernel and bias times {HARD_SIGMOID_RATIO}, Keras 3 computes the old function:

{gates}

rnnconvert does this unless --target keras2 is given, and marks the file. The candidate's columns,
behind tanh, stay.

A config that does not name the recurrent activation means its Keras' default: hard_sigmoid before
Keras 2.3, sigmoid since. CuDNNLSTM and CuDNNGRU always use sigmoid and are not concerned.
"""


def _gru_names() -> str:
    return paragraph(
        f"""Keras and ONNX call the gate n by the name h, TensorFlow 1 calls z u and n c. Beware of
        the order: Keras begins with {find("keras", "gru").gates[0]}, cuDNN and torch with
        {find("cudnn", "gru").gates[0]}."""
    )


def _row(values: np.ndarray) -> str:
    return "(" + ", ".join(f"{value:g}" for value in values) + ")"


def _scaled(cell: str) -> str:
    slices = gate_slices(find("keras", cell), UNITS)
    columns = (
        f"{gate} {slices[gate].start}-{slices[gate].stop - 1}" for gate in CELLS[cell].sigmoid_gates
    )
    return f"columns of {UNITS} units: {', '.join(columns)}"


def _counts(*cells: str) -> str:
    """The number of weights of the example in Keras' layouts."""
    lines = []
    for layout in LAYOUTS:
        if layout.cell in cells and layout.name.startswith("keras"):
            gates, biases = len(layout.gates), bias_vectors(layout)
            count = parameter_count(CELLS[layout.cell], INPUTS, UNITS, biases)
            name = CLASSES[layout.name, layout.cell]
            lines.append(f"  {name:24}{formula(gates, UNITS, INPUTS, biases)} = {count}")
    return "\n".join(lines)

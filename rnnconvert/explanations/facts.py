"""Facts of the layout table in words: gate orders, shapes, counts, small pictures."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from math import prod
from textwrap import fill

import numpy as np

from rnnconvert.layouts import CELLS, LAYOUTS, Layout, RnnWeights, pack

INPUTS, UNITS = 5, 6
"""The example of all topics. Never as many inputs as units: equal sizes hide mistakes."""
_D, _U = 5, 7
"""Sizes by which lengths are recognised: d, U, d+U and the multiples of U all differ."""

_WIDTH = 98
"""Of a line."""

CLASSES = {
    ("keras", "lstm"): "LSTM",
    ("keras", "gru"): "GRU(reset_after=True)",
    ("keras", "gru_reset_before"): "GRU(reset_after=False)",
    ("keras", "rnn_tanh"): "SimpleRNN",
    ("keras", "rnn_relu"): "SimpleRNN(activation='relu')",
    ("keras-cudnn", "lstm"): "CuDNNLSTM",
    ("keras-cudnn", "gru"): "CuDNNGRU",
    ("cudnn", "lstm"): "CUDNN_LSTM",
    ("cudnn", "gru"): "CUDNN_GRU",
    ("cudnn", "rnn_tanh"): "CUDNN_RNN_TANH",
    ("cudnn", "rnn_relu"): "CUDNN_RNN_RELU",
    ("torch", "lstm"): "nn.LSTM",
    ("torch", "gru"): "nn.GRU",
    ("torch", "rnn_tanh"): "nn.RNN",
    ("torch", "rnn_relu"): "nn.RNN(nonlinearity='relu')",
    ("onnx", "lstm"): "LSTM",
    ("onnx", "gru"): "GRU, linear_before_reset=1",
    ("onnx", "gru_reset_before"): "GRU, linear_before_reset=0",
    ("onnx", "rnn_tanh"): "RNN",
    ("onnx", "rnn_relu"): "RNN, activations=['Relu']",
}
"""By (layout, cell): what the program calls it."""


def example(cell: str, inputs: int, units: int) -> RnnWeights:
    """Weights of one layer, all zero."""
    gates = len(CELLS[cell].gates)
    shapes = (gates, units, inputs), (gates, units, units), (2, gates, units)
    return RnnWeights(cell, *(np.zeros(shape) for shape in shapes))


def stored_shapes(layout: Layout, inputs: int, units: int) -> dict[str, tuple[int, ...]]:
    """The tensors of a layer and their shapes, as the code that converts makes them."""
    tensors = pack(layout, example(layout.cell, inputs, units))
    return {name: array.shape for name, array in tensors.items()}


def symbols(shape: Sequence[int]) -> str:
    """A shape made with the sizes `_D` and `_U`, in letters: (12, 28) is (d+U, 4U)."""
    known = {_D: "d", _U: "U", _D + _U: "d+U"}
    words = [
        known.get(n) or (f"{n // _U}U" if n and n % _U == 0 else str(n)) for n in shape
    ]  # fmt: skip
    return f"({', '.join(words)}{',' if len(words) == 1 else ''})"


def tensors(layout: Layout) -> dict[str, str]:
    """The tensors of a layout and their shapes in letters; a `*` stands for the gate."""
    shapes = stored_shapes(layout, _D, _U)
    patterns = [part for name in layout.tensors for part in name.split("|")]
    return {
        pattern.format(gate="*"): symbols(shapes[pattern.format(gate=layout.gates[0])])
        for pattern in patterns
    }


def symbols_of(
    packed: Callable[[RnnWeights], Mapping[str, np.ndarray]], cell: str
) -> dict[str, str]:
    """Shapes in letters of the tensors that a function makes of a layer's weights."""
    return {name: symbols(array.shape) for name, array in packed(example(cell, _D, _U)).items()}


def bias_vectors(layout: Layout) -> int:
    """How many biases per gate a layout stores, 1 or 2."""
    weights = sum(prod(shape) for shape in stored_shapes(layout, _D, _U).values())
    return weights // (len(layout.gates) * _U) - _D - _U


def formula(gates: int, units: int | str, inputs: int | str, biases: int) -> str:
    """gates * units * (inputs + units + biases)."""
    return f"{gates}*{units}*({inputs}+{units}+{biases})"


# --- tables and pictures --------------------------------------------------------------------


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Columns of equal width, indented."""
    lines = [list(header), *map(list, rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    padded = (
        "  ".join(word.ljust(width) for word, width in zip(line, widths, strict=True))
        for line in lines
    )
    return "\n".join(f"  {line}".rstrip() for line in padded)


def programs_of(cell: str) -> str:
    """Every program that has a cell: gate order, tensors, shapes."""
    rows = [
        (
            who(layout),
            " ".join(layout.gates),
            "  ".join(f"{name} {shape}" for name, shape in tensors(layout).items()),
        )
        for layout in LAYOUTS
        if layout.cell == cell
    ]
    return table(("class or program", "gates", "tensors"), rows)


def who(layout: Layout) -> str:
    """The Keras class, or the program."""
    return CLASSES[layout.name, layout.cell] if "keras" in layout.name else layout.name


def cells_of(name: str) -> str:
    """Every cell that a program has: gate order, tensors, shapes."""
    found = [layout for layout in LAYOUTS if layout.name == name]
    header = ("cell", "gates", *tensors(found[0]))
    rows = [
        (CLASSES[name, layout.cell], " ".join(layout.gates), *tensors(layout).values())
        for layout in found
    ]
    return table(header, rows)


def gate_columns(gates: Sequence[str], rows: str) -> str:
    """Gates as blocks of columns; `rows` says how many rows there are."""
    edge = "".join("+-------" for _ in gates) + "+"
    names = "".join(f"|   {gate}   " for gate in gates) + "|"
    below = "".join("    U   " for _ in gates)
    margin = " " * (len(rows) + 1)
    lines = [margin + edge, f"{rows} {names}", margin + edge, margin + below]
    return "\n".join(f"  {line}".rstrip() for line in lines)


def stacked(gates: Sequence[str], columns: str) -> str:
    """Gates as blocks of rows; `columns` says how many columns there are."""
    lines = [f"  +---{'-' * len(columns)}---+"]
    for gate in gates:
        lines += [f"U |   {gate.ljust(len(columns))}   |", lines[0]]
    lines.append(f"      {columns}")
    return "\n".join(f"  {line}" for line in lines)


def matrix(rows: np.ndarray) -> str:
    """A small matrix in brackets."""
    return "[" + ", ".join("[" + ", ".join(f"{n:g}" for n in row) + "]" for row in rows) + "]"


def paragraph(text: str) -> str:
    """A paragraph with generated words in it, broken into lines."""
    return fill(" ".join(text.split()), _WIDTH, break_long_words=False, break_on_hyphens=False)

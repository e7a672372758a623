"""TF1's recurrent layers on the tensors as they are stored. float64.

Two references: cuDNN's flat buffer, cut here anew, by cuDNN's equations (its developer guide), and
the cells of `tf.nn.rnn_cell` and `tf.contrib.rnn` by the equations in their documentation. Neither
shares code with `layouts` or with the other references: agreement is what a proof rests on.
Inputs and outputs are batch-major, initial states are zero.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

Float = np.ndarray[Any, np.dtype[np.float64]]
State = tuple[Float, Float]
"""h and c; only an LSTM looks at c."""
Step = Callable[[Float, State], State]
"""Input of one step (batch, inputs) and the state before it, to the state after it."""
Runner = tuple[Step, int]
"""One direction of one layer: its step and its units."""
Product = Callable[[Float], Float]
"""Vectors (n, columns) times a matrix: (n, rows)."""
_AT_ONCE = 2**19
"""Numbers of a matrix that are in memory at a time."""


def run_opaque(
    cell: str,
    num_layers: int,
    num_units: int,
    input_size: int,
    direction: str,
    buffer: Any,
    x: Any,
) -> tuple[Float, Float, Float | None]:
    """Run a stack from cuDNN's flat buffer.

    The buffer has, for every layer and direction, the gates' input matrices and then their
    recurrent matrices, each (units, inputs) row by row; after all of those, for every layer and
    direction, the gates' input biases and then their recurrent biases.

    Args:
        cell: "lstm", "gru", "rnn_tanh" or "rnn_relu".
        direction: "unidirectional" or "bidirectional".
        buffer: (elements,), an array or what gives slices as arrays do.
        x: input, (batch, time, input_size).

    Returns:
        Outputs (batch, time, directions * units), last h and last c (None but for an lstm), both
        (layers * directions, batch, units).

    Raises:
        ValueError: the buffer has another size.
    """
    gates = {"lstm": 4, "gru": 3, "rnn_tanh": 1, "rnn_relu": 1}[cell]
    sides = {"unidirectional": 1, "bidirectional": 2}[direction]
    matrices, biases, start = [], [], 0
    for place in range(num_layers * sides):
        inputs = input_size if place < sides else sides * num_units
        w = partial(_times_cut, buffer, start, inputs, gates * num_units)
        r = partial(_times_cut, buffer, start + gates * num_units * inputs, num_units,
                    gates * num_units)  # fmt: skip
        start += gates * num_units * (inputs + num_units)
        matrices.append((w, r))
    size, both = buffer.shape[0], 2 * gates * num_units
    if size < start + num_layers * sides * both:
        missing = start + num_layers * sides * both - size
        raise ValueError(f"the buffer ends {missing} elements too early")
    for _ in range(num_layers * sides):
        bias = np.asarray(buffer[start : start + both], np.float64)
        biases.append((bias[: both // 2], bias[both // 2 :]))
        start += both
    if size > start:
        raise ValueError(f"{size - start} elements of the buffer are left over")
    runners = [
        (_cudnn_step(cell, *own, *bias), num_units)
        for own, bias in zip(matrices, biases, strict=True)
    ]
    layers = [runners[first : first + sides] for first in range(0, len(runners), sides)]
    outputs, states = _run_layers(layers, x)
    c = np.stack([c for _, c in states]) if cell == "lstm" else None
    return outputs, np.stack([h for h, _ in states]), c


def run_cells(
    kind: str,
    tensors_per_layer: Sequence[Mapping[str, Mapping[str, Any]]],
    x: Any,
    *,
    forget_bias: float | None = None,
    activation: str = "tanh",
) -> tuple[Float, tuple[Float, ...], tuple[Float, ...] | None]:
    """Run a stack of TF1 cells.

    Args:
        kind: last part of a cell's scope, e.g. "basic_lstm_cell" or "gru_cell_1".
        tensors_per_layer: for each layer "forward", and "backward" where there is one, to the
            tensors by their names inside the cell's scope, e.g. "gates/kernel": arrays, or of
            matrices what gives rows as arrays do. Each layer reads
            the joined outputs of all directions below, as MultiRNNCell and
            `stack_bidirectional_dynamic_rnn` have it.
        x: input, (batch, time, inputs).
        forget_bias: what an LSTM adds to its forget gate; None is the default of its class.
        activation: a key of ACTIVATIONS; the block cells and cuDNN's know "tanh" only.

    Returns:
        Outputs (batch, time, directions * units), last h and last c of every layer and direction,
        each (batch, units); None for c but for an LSTM.

    Raises:
        ValueError: an unknown cell, or other tensors than it has (peepholes, a projection).
    """
    plain = re.sub(r"_[0-9]+$", "", kind)
    layers = [
        [
            _tf1_runner(plain, directions[name], forget_bias, activation)
            for name in ("forward", "backward")
            if name in directions
        ]
        for directions in tensors_per_layer
    ]
    outputs, states = _run_layers(layers, x)
    c = tuple(c for _, c in states) if "lstm" in plain else None
    return outputs, tuple(h for h, _ in states), c


# --- time, directions, layers ---------------------------------------------------------------


def _run_layers(layers: Sequence[Sequence[Runner]], x: Any) -> tuple[Float, list[State]]:
    """Outputs of the top layer, and the last states, forward before backward."""
    sequence = np.asarray(x, np.float64)
    states = []
    for directions in layers:
        sides = []
        for backwards, (step, units) in enumerate(directions):
            outputs, state = _scan(step, units, sequence[:, ::-1] if backwards else sequence)
            sides.append(outputs[:, ::-1] if backwards else outputs)
            states.append(state)
        sequence = np.concatenate(sides, axis=2)
    return sequence, states


def _scan(step: Step, units: int, x: Float) -> tuple[Float, State]:
    zeros = np.zeros((x.shape[0], units))
    state = (zeros, zeros)
    outputs = np.empty((*x.shape[:2], units))
    for t in range(x.shape[1]):
        state = step(x[:, t], state)
        outputs[:, t] = state[0]
    return outputs, state


def _logistic(z: Float) -> Float:
    return np.exp(-np.logaddexp(0.0, -z))


def _relu(z: Float) -> Float:
    return np.where(z > 0.0, z, 0.0)


def _elu(z: Float) -> Float:
    return np.where(z < 0.0, np.exp(np.minimum(z, 0.0)) - 1.0, z)


ACTIVATIONS: dict[str, Callable[[Float], Float]] = {
    "tanh": np.tanh,
    "relu": _relu,
    "sigmoid": _logistic,
    "linear": lambda z: z,
    "elu": _elu,
    "selu": lambda z: 1.0507009873554805 * np.where(z < 0.0, 1.6732632423543772 * _elu(z), z),
    "softplus": lambda z: np.log1p(np.exp(-np.abs(z))) + np.maximum(z, 0.0),
    "softsign": lambda z: z / (np.abs(z) + 1.0),
}
"""By Keras' names; the constants of SELU are those of its paper (Klambauer et al., 2017)."""


# --- cuDNN ----------------------------------------------------------------------------------


def _times_cut(buffer: Any, start: int, columns: int, rows: int, vectors: Float) -> Float:
    """`vectors` (n, columns) times the matrix (rows, columns) that lies in the buffer from `start`
    on, transposed; some of its rows are read at a time."""
    product = np.empty((len(vectors), rows))
    count = max(1, _AT_ONCE // columns)
    for row in range(0, rows, count):
        end = min(rows, row + count)
        numbers = np.asarray(buffer[start + row * columns : start + end * columns], np.float64)
        product[:, row:end] = vectors @ numbers.reshape(end - row, columns).T
    return product


def _cudnn_step(cell: str, w: Product, r: Product, b_w: Float, b_r: Float) -> Step:
    """cuDNN's cell; w and r give the products with all gates' matrices, biases (gates*units,)."""

    def lstm(x: Float, state: State) -> State:
        z = w(x) + r(state[0]) + (b_w + b_r)
        i, f, new, o = np.split(z, 4, axis=1)
        c = _logistic(f) * state[1] + _logistic(i) * np.tanh(new)
        return _logistic(o) * np.tanh(c), c

    def gru(x: Float, state: State) -> State:
        h = state[0]
        from_x = np.split(w(x) + b_w, 3, axis=1)
        from_h = np.split(r(h) + b_r, 3, axis=1)
        reset = _logistic(from_x[0] + from_h[0])
        update = _logistic(from_x[1] + from_h[1])
        new = np.tanh(from_x[2] + reset * from_h[2])
        return (1.0 - update) * new + update * h, state[1]

    def simple(x: Float, state: State) -> State:
        z = w(x) + r(state[0]) + (b_w + b_r)
        return _relu(z) if cell == "rnn_relu" else np.tanh(z), state[1]

    return {"lstm": lstm, "gru": gru}.get(cell, simple)


# --- TF1's cells ----------------------------------------------------------------------------

_FORGET_BIAS = {
    "basic_lstm_cell": 1.0,
    "lstm_cell": 1.0,
    "lstm_block_wrapper": 1.0,
    "lstm_fused_cell": 1.0,
    "cudnn_compatible_lstm_cell": 0.0,
}
_GRU_CELLS = ("gru_cell", "GRUBlockCell", "GRUBlockCellV2")
_GRU_BLOCK = {
    "w_ru": "gates/kernel",
    "b_ru": "gates/bias",
    "w_c": "candidate/kernel",
    "b_c": "candidate/bias",
}
"""GRUBlockCell's names, by those of GRUCell; the tensors are the same."""


def _tf1_runner(
    kind: str, tensors: Mapping[str, Any], forget_bias: float | None, activation: str
) -> Runner:
    held = _wide(tensors)
    if kind in _FORGET_BIAS:
        kernel, bias = _only(kind, held, "kernel", "bias")
        added = _FORGET_BIAS[kind] if forget_bias is None else forget_bias
        return _tf1_lstm(kernel, bias, added, activation), kernel.shape[1] // 4
    if kind in _GRU_CELLS:
        held = {_GRU_BLOCK.get(name, name): array for name, array in held.items()}
        weights = _only(kind, held, *_GRU_BLOCK.values())
        gates, gates_bias, kernel, bias = weights
        return _tf1_gru(gates, gates_bias, kernel, bias, activation), weights[2].shape[1]
    if kind == "cudnn_compatible_gru_cell":
        x_side, h_side = "candidate/input_projection", "candidate/hidden_projection"
        names = [f"{part}/{end}" for part in (x_side, h_side) for end in ("kernel", "bias")]
        weights = _only(kind, held, "gates/kernel", "gates/bias", *names)
        return _tf1_cudnn_gru(*weights), weights[2].shape[1]
    if kind == "basic_rnn_cell":
        kernel, bias = _only(kind, held, "kernel", "bias")
        return _tf1_basic(kernel, bias, activation), kernel.shape[1]
    raise ValueError(f"no equations for a cell {kind}")


def _wide(tensors: Mapping[str, Any]) -> dict[str, Any]:
    """By today's names, without the addends of the biases that TF 1.3 also kept; vectors in
    float64."""
    found = {}
    for name, array in tensors.items():
        if name.startswith("bias_cudnn"):
            continue
        modern = re.sub(r"\bweights$", "kernel", re.sub(r"\bbiases$", "bias", name))
        found[modern] = array if len(array.shape) > 1 else np.asarray(array[:], np.float64)
    return found


def _times(vectors: Float, stored: Any) -> Float:
    """`vectors` (n, rows) times a matrix (rows, columns), of which some rows are read at a time."""
    product = np.zeros((len(vectors), stored.shape[1]))
    count = max(1, _AT_ONCE // stored.shape[1])
    for start in range(0, stored.shape[0], count):
        rows = np.asarray(stored[start : start + count], np.float64)
        product += vectors[:, start : start + count] @ rows
    return product


def _only(kind: str, tensors: Mapping[str, Any], *names: str) -> list[Any]:
    """The tensors of these names, if there are no others: others would change the function."""
    if set(tensors) != set(names):
        raise ValueError(
            f"tensors of {kind}: expected {', '.join(names)}; found {', '.join(sorted(tensors))}"
        )
    return [tensors[name] for name in names]


def _tf1_lstm(kernel: Any, bias: Float, forget_bias: float, activation: str) -> Step:
    function = ACTIVATIONS[activation]

    def step(x: Float, state: State) -> State:
        h, c = state
        i, j, f, o = np.split(_times(np.hstack([x, h]), kernel) + bias, 4, axis=1)
        c = _logistic(f + forget_bias) * c + _logistic(i) * function(j)
        return _logistic(o) * function(c), c

    return step


def _tf1_gru(
    gates: Any, gates_bias: Float, candidate: Any, candidate_bias: Float, activation: str
) -> Step:
    function = ACTIVATIONS[activation]

    def step(x: Float, state: State) -> State:
        h, c = state
        both = _times(np.hstack([x, h]), gates)
        r, u = np.split(_logistic(both + gates_bias), 2, axis=1)
        new = function(_times(np.hstack([x, r * h]), candidate) + candidate_bias)
        return u * h + (1.0 - u) * new, c

    return step


def _tf1_cudnn_gru(
    gates: Any, gates_bias: Float, x_kernel: Any, x_bias: Float, h_kernel: Any, h_bias: Float
) -> Step:
    def step(x: Float, state: State) -> State:
        h, c = state
        both = _times(np.hstack([x, h]), gates)
        r, u = np.split(_logistic(both + gates_bias), 2, axis=1)
        new = np.tanh(_times(x, x_kernel) + x_bias + r * (_times(h, h_kernel) + h_bias))
        return u * h + (1.0 - u) * new, c

    return step


def _tf1_basic(kernel: Any, bias: Float, activation: str) -> Step:
    function = ACTIVATIONS[activation]

    def step(x: Float, state: State) -> State:
        return function(_times(np.hstack([x, state[0]]), kernel) + bias), state[1]

    return step

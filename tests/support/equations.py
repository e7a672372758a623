"""Forward passes in plain numpy, written from the equations: the judges of the layout tests.

They share no code with the interpreter of `rnnconvert.layouts` and only borrow its `RnnWeights` to
hold arrays:

- `canonical_forward`: the equations in the docstring of `layouts/cells.py`, canonical weights;
- `keras_forward`: the equations of Keras' LSTM and GRU, with switches for wrong ones;
- `onnx_forward`: the equations of the ONNX operators LSTM, GRU and RNN;
- `read_as_cudnn`: what cuDNN finds in the buffer that a Keras CuDNN layer hands over.

Inputs are (batch, time, input_dim), states (batch, units), results all hidden states (batch, time,
units). States come as a pair (h, c); only the LSTM looks at c.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from rnnconvert.layouts import RnnWeights

Array = np.ndarray
State = tuple[Array, Array]
Activation = Callable[[Array], Array]

GATES = {
    "lstm": ("i", "f", "c", "o"),
    "gru": ("r", "z", "n"),
    "gru_reset_before": ("r", "z", "n"),
    "rnn_tanh": ("h",),
    "rnn_relu": ("h",),
}


def sigmoid(x: Array) -> Array:
    return 0.5 * (1.0 + np.tanh(0.5 * x))


def relu(x: Array) -> Array:
    return np.maximum(x, 0.0)


def random_weights(
    rng: np.random.Generator, cell: str, input_dim: int, units: int, dtype: str = "float64"
) -> RnnWeights:
    """Canonical weights from N(0, 0.7), input and recurrent biases unequal and not zero."""
    gates = len(GATES[cell])
    shapes = ((gates, units, input_dim), (gates, units, units), (2, gates, units))
    return RnnWeights(cell, *(rng.normal(0.0, 0.7, shape).astype(dtype) for shape in shapes))


def random_input(
    rng: np.random.Generator, batch: int, time: int, input_dim: int, units: int
) -> tuple[Array, State]:
    """An input sequence and an initial state (h, c), all standard normal."""
    state = (rng.normal(size=(batch, units)), rng.normal(size=(batch, units)))
    return rng.normal(size=(batch, time, input_dim)), state


def _scan(step: Callable[[Array, Array, Array], State], x: Array, state: State) -> Array:
    """All hidden states of the recurrence (x_t, h, c) -> (h, c)."""
    outputs = []
    for t in range(x.shape[1]):
        state = step(x[:, t], *state)
        outputs.append(state[0])
    return np.stack(outputs, axis=1)


def canonical_forward(weights: RnnWeights, x: Array, state: State) -> Array:
    """The cell's equations on canonical weights."""
    gates = GATES[weights.cell]
    kernel = dict(zip(gates, weights.kernel, strict=True))
    recurrent = dict(zip(gates, weights.recurrent, strict=True))
    assert weights.bias is not None
    input_bias = dict(zip(gates, weights.bias[0], strict=True))
    recurrent_bias = dict(zip(gates, weights.bias[1], strict=True))

    def step(x_t: Array, h: Array, c: Array) -> State:
        xw = {gate: x_t @ kernel[gate].T + input_bias[gate] for gate in gates}
        hr = {gate: h @ recurrent[gate].T + recurrent_bias[gate] for gate in gates}
        if weights.cell == "lstm":
            i, f, o = (sigmoid(xw[gate] + hr[gate]) for gate in "ifo")
            c = f * c + i * np.tanh(xw["c"] + hr["c"])
            return o * np.tanh(c), c
        if weights.cell in ("gru", "gru_reset_before"):
            r, z = (sigmoid(xw[gate] + hr[gate]) for gate in "rz")
            if weights.cell == "gru":
                n = np.tanh(xw["n"] + r * hr["n"])
            else:
                n = np.tanh(xw["n"] + (r * h) @ recurrent["n"].T + recurrent_bias["n"])
            return (1.0 - z) * n + z * h, c
        activation = np.tanh if weights.cell == "rnn_tanh" else relu
        return activation(xw["h"] + hr["h"]), c

    return _scan(step, x, state)


def keras_forward(
    tensors: Mapping[str, Array],
    cell: str,
    x: Array,
    state: State,
    *,
    recurrent_activation: Activation = sigmoid,
    activation: Activation = np.tanh,
    reset_after: bool = True,
    keep_share: bool = True,
    go_backwards: bool = False,
    use_initial_state: bool = True,
) -> Array:
    """Keras' `LSTM` or `GRU(reset_after=True)`. The defaults are the function of a CuDNN layer.

    Args:
        reset_after: False computes the candidate from (r*h)R + b.
        keep_share: z is the share of h that is kept; False makes it the candidate's share.
        go_backwards: the last time step first.
        use_initial_state: False starts from zeros.
    """
    kernel, recurrent, bias = (tensors[name] for name in ("kernel", "recurrent_kernel", "bias"))
    units = len(recurrent)

    def lstm(x_t: Array, h: Array, c: Array) -> State:
        i, f, g, o = np.split(x_t @ kernel + h @ recurrent + bias, 4, axis=1)
        i, f, o = (recurrent_activation(gate) for gate in (i, f, o))
        c = f * c + i * activation(g)
        return o * activation(c), c

    def gru(x_t: Array, h: Array, c: Array) -> State:
        x_z, x_r, x_h = np.split(x_t @ kernel + bias[0], 3, axis=1)
        h_z, h_r, h_h = np.split(h @ recurrent + bias[1], 3, axis=1)
        z, r = recurrent_activation(x_z + h_z), recurrent_activation(x_r + h_r)
        inner = r * h_h
        if not reset_after:
            inner = (r * h) @ recurrent[:, 2 * units :] + bias[1, 2 * units :]
        candidate = activation(x_h + inner)
        kept, new = (h, candidate) if keep_share else (candidate, h)
        return z * kept + (1.0 - z) * new, c

    if go_backwards:
        x = x[:, ::-1]
    if not use_initial_state:
        state = (np.zeros_like(state[0]), np.zeros_like(state[1]))
    return _scan({"lstm": lstm, "gru": gru}[cell], x, state)


def onnx_forward(tensors: Mapping[str, Array], cell: str, x: Array, state: State) -> Array:
    """ONNX' LSTM (gates i o f c), GRU (z r h) or RNN with default activations, one direction.

    The cell `gru` is `linear_before_reset=1`, `gru_reset_before` is 0.
    """
    count = len(GATES[cell])
    w = np.split(tensors["W"][0], count)
    r = np.split(tensors["R"][0], count)
    b = np.split(tensors["B"][0], 2 * count)
    wb, rb = b[:count], b[count:]

    def linear(gate: int, x_t: Array, h: Array) -> Array:
        return x_t @ w[gate].T + h @ r[gate].T + wb[gate] + rb[gate]

    def step(x_t: Array, h: Array, c: Array) -> State:
        if cell == "lstm":
            i_t, o_t, f_t = (sigmoid(linear(gate, x_t, h)) for gate in (0, 1, 2))
            c = f_t * c + i_t * np.tanh(linear(3, x_t, h))
            return o_t * np.tanh(c), c
        if cell in ("gru", "gru_reset_before"):
            z_t, r_t = (sigmoid(linear(gate, x_t, h)) for gate in (0, 1))
            if cell == "gru":
                h_t = np.tanh(x_t @ w[2].T + r_t * (h @ r[2].T + rb[2]) + wb[2])
            else:
                h_t = np.tanh(linear(2, x_t, r_t * h))
            return (1.0 - z_t) * h_t + z_t * h, c
        activation = np.tanh if cell == "rnn_tanh" else relu
        return activation(linear(0, x_t, h)), c

    return _scan(step, x, state)


def read_as_cudnn(tensors: Mapping[str, Array], cell: str) -> RnnWeights:
    """The weights that cuDNN finds in the buffer which a Keras CuDNN layer hands over.

    The layer flattens each gate's columns as they lie, in cuDNN's order of gates: kernel,
    recurrent kernel, input biases, recurrent biases. cuDNN cuts the buffer into (units, input_dim)
    and (units, units) matrices and (units,) vectors.
    """
    keras_order = {"lstm": "ifco", "gru": "zrn"}[cell]
    gates = GATES[cell]
    input_dim, units = len(tensors["kernel"]), len(tensors["recurrent_kernel"])

    pieces = []
    for name in ("kernel", "recurrent_kernel"):
        for gate in gates:
            first = keras_order.index(gate) * units
            pieces.append(tensors[name][:, first : first + units].ravel())
    for half in np.split(tensors["bias"], 2):
        for gate in gates:
            first = keras_order.index(gate) * units
            pieces.append(half[first : first + units])
    buffer = np.concatenate(pieces)

    kernel_size, recurrent_size = len(gates) * units * input_dim, len(gates) * units * units
    kernel, recurrent, bias = np.split(buffer, [kernel_size, kernel_size + recurrent_size])
    return RnnWeights(
        cell,
        kernel.reshape(len(gates), units, input_dim),
        recurrent.reshape(len(gates), units, units),
        bias.reshape(2, len(gates), units),
    )

"""Keras' equations of LSTM, GRU and SimpleRNN on Keras' weights. float64.

Written from the documentation of the Keras layers: `z = x @ kernel + h @ recurrent_kernel + bias`,
columns split into i, f, c, o (LSTM) or z, r, h (GRU). It shares no code with `layouts`, nor with
the other reference.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

Float = np.ndarray[Any, np.dtype[np.float64]]
_AT_ONCE = 2**19
"""Numbers of a matrix that are in memory at a time."""


def sigmoid(x: Float) -> Float:
    e = np.exp(-np.abs(x))
    return np.where(x >= 0, 1 / (1 + e), e / (1 + e))


ACTIVATIONS: dict[str, Callable[[Float], Float]] = {
    "tanh": np.tanh,
    "sigmoid": sigmoid,
    "linear": lambda x: x,
    "relu": lambda x: np.maximum(x, 0.0),
    "hard_sigmoid/keras2": lambda x: np.clip(0.2 * x + 0.5, 0.0, 1.0),
    "hard_sigmoid/keras3": lambda x: np.clip(x / 6.0 + 0.5, 0.0, 1.0),
    "softsign": lambda x: x / (1.0 + np.abs(x)),
    "softplus": lambda x: np.logaddexp(x, 0.0),
    "elu": lambda x: np.where(x > 0, x, np.expm1(np.minimum(x, 0.0))),
    "selu": lambda x: (
        1.0507009873554805 * np.where(x > 0, x, 1.6732632423543772 * np.expm1(np.minimum(x, 0.0)))
    ),
}


def run_keras_layer(
    cell: str,
    tensors: Mapping[str, Any],
    x: Float,
    h: Float,
    c: Float | None = None,
    *,
    activation: str = "tanh",
    recurrent_activation: str = "sigmoid",
) -> tuple[Float, Float, Float | None]:
    """Run one direction of one plain layer.

    Args:
        cell: "lstm", "gru" (reset_after=True), "gru_reset_before", "rnn_tanh" or "rnn_relu".
        tensors: "kernel" (input_dim, gates*units), "recurrent_kernel" (units, gates*units) and,
            unless the layer has none, "bias": arrays, or what gives rows as arrays do.
        x: input, (batch, time, input_dim).
        h, c: initial states, (batch, units); c for an lstm only.
        activation, recurrent_activation: keys of ACTIVATIONS.

    Returns:
        Outputs (batch, time, units), last h, last c (None but for an lstm).
    """
    recurrent_kernel = tensors["recurrent_kernel"]
    batch, steps, width = x.shape
    from_x = times(x.reshape(batch * steps, width), tensors["kernel"]).reshape(batch, steps, -1)
    bias = np.asarray(tensors.get("bias", np.zeros(from_x.shape[2])), np.float64)
    act, gate = ACTIVATIONS[activation], ACTIVATIONS[recurrent_activation]
    outputs = []
    for t in range(steps):
        xt, from_h = from_x[:, t], times(h, recurrent_kernel)
        if cell == "lstm":
            assert c is not None
            i, f, g, o = np.split(xt + from_h + bias, 4, axis=1)
            c = gate(f) * c + gate(i) * act(g)
            h = gate(o) * act(c)
        elif cell == "gru":
            rows = bias if bias.ndim == 2 else np.stack([bias, np.zeros_like(bias)])
            xz, xr, xh = np.split(xt + rows[0], 3, axis=1)
            hz, hr, hh = np.split(from_h + rows[1], 3, axis=1)
            z, r = gate(xz + hz), gate(xr + hr)
            h = z * h + (1 - z) * act(xh + r * hh)
        elif cell == "gru_reset_before":
            hz, hr, _ = np.split(from_h, 3, axis=1)
            xz, xr, xh = np.split(xt + bias, 3, axis=1)
            z, r = gate(xz + hz), gate(xr + hr)
            _, _, hh = np.split(times(r * h, recurrent_kernel), 3, axis=1)
            h = z * h + (1 - z) * act(xh + hh)
        else:
            h = act(xt + from_h + bias)
        outputs.append(h)
    return np.stack(outputs, axis=1), h, c


def times(vectors: Float, stored: Any) -> Float:
    """`vectors` (n, rows) times a matrix (rows, columns), of which some rows are read at a time."""
    product = np.zeros((len(vectors), stored.shape[1]))
    chunk = (getattr(stored, "chunks", None) or (1,))[0]
    count = max(1, _AT_ONCE // (chunk * stored.shape[1])) * chunk
    for start in range(0, stored.shape[0], count):
        rows = np.asarray(stored[start : start + count], np.float64)
        product += vectors[:, start : start + count] @ rows
    return product

"""cuDNN's equations on the weights of Keras' CuDNN layers as they are stored. float64.

Written from the cuDNN developer guide's equations. It shares no code with `layouts`, nor with the
other reference: agreement of the two is what the level `layers` proves.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

Float = np.ndarray[Any, np.dtype[np.float64]]
_AT_ONCE = 2**19
"""Numbers of a matrix that are in memory at a time."""


def run_cudnn_layer(
    cell: str,
    tensors: Mapping[str, Any],
    x: Float,
    h: Float,
    c: Float | None = None,
) -> tuple[Float, Float, Float | None]:
    """Run one direction of one CuDNN layer.

    Args:
        cell: "lstm" or "gru".
        tensors: "kernel" (input_dim, gates*units), "recurrent_kernel" (units, gates*units) and
            "bias" (2*gates*units,), in the split layout: arrays, or what gives rows as arrays do.
        x: input, (batch, time, input_dim).
        h, c: initial states, (batch, units); c for an lstm only.

    Returns:
        Outputs (batch, time, units), last h, last c (None for a gru).
    """
    units = h.shape[1]
    batch, steps, width = x.shape
    products = _products(tensors["kernel"], x.reshape(batch * steps, width), units)
    count = len(products)
    inputs = [product.reshape(batch, steps, units) for product in products]
    bias = np.asarray(tensors["bias"], np.float64).reshape(2 * count, units)
    input_bias, recurrent_bias = bias[:count], bias[count:]
    outputs = []
    for step in range(steps):
        from_x = [product[:, step] for product in inputs]
        from_h = _products(tensors["recurrent_kernel"], h, units)
        if cell == "lstm":
            assert c is not None
            z = [a + p + b + q for a, p, b, q in
                 zip(from_x, input_bias, from_h, recurrent_bias, strict=True)]  # fmt: skip
            new = np.tanh(z[2])
            c = _logistic(z[1]) * c + _logistic(z[0]) * new
            h = _logistic(z[3]) * np.tanh(c)
        else:
            # Keras' CuDNNGRU holds update, reset, new.
            update = _logistic(from_x[0] + input_bias[0] + from_h[0] + recurrent_bias[0])
            reset = _logistic(from_x[1] + input_bias[1] + from_h[1] + recurrent_bias[1])
            new = np.tanh(from_x[2] + input_bias[2] + reset * (from_h[2] + recurrent_bias[2]))
            h = (1.0 - update) * new + update * h
        outputs.append(h)
    return np.stack(outputs, axis=1), h, c


def _products(stored: Any, vectors: Float, units: int) -> list[Float]:
    """`vectors` (n, wide) times the matrix of each gate: (n, units) each.

    What the layer hands to cuDNN is every gate's block, flattened as it lies in memory; cuDNN reads
    it as a row-major matrix of (units, wide). Some rows of the block make some rows of that matrix
    and the beginning of the next one, which waits for the rows that follow.
    """
    wide = vectors.shape[1]
    gates = range(0, stored.shape[1], units)
    products = [np.zeros((len(vectors), units)) for _ in gates]
    waiting = [np.empty(0) for _ in gates]
    done = 0
    for rows in _some_rows(stored):
        piece = np.asarray(stored[rows])
        for gate, start in enumerate(gates):
            numbers = piece[:, start : start + units].astype(np.float64).ravel()
            if len(waiting[gate]):
                numbers = np.concatenate([waiting[gate], numbers])
            whole = len(numbers) // wide
            matrix = numbers[: whole * wide].reshape(whole, wide)
            products[gate][:, done : done + whole] = vectors @ matrix.T
            waiting[gate] = numbers[whole * wide :].copy()
        done += whole
    return products


def _some_rows(stored: Any) -> Iterator[slice]:
    """Rows of a matrix that need little memory; whole chunks, where it is stored in such."""
    chunk = (getattr(stored, "chunks", None) or (1,))[0]
    count = max(1, _AT_ONCE // (chunk * stored.shape[1])) * chunk
    for start in range(0, stored.shape[0], count):
        yield slice(start, start + count)


def _logistic(z: Float) -> Float:
    return 0.5 * (1.0 + np.tanh(0.5 * z))

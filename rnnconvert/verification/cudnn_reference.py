"""cuDNN's equations on the weights of Keras' CuDNN layers as they are stored. float64.

Written from the cuDNN developer guide's equations. It shares no code with `layouts`, nor with the
other reference: agreement of the two is what the level `layers` proves.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

Float = np.ndarray[Any, np.dtype[np.float64]]


def run(
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
            "bias" (2*gates*units,), in the split layout.
        x: input, (batch, time, input_dim).
        h, c: initial states, (batch, units); c for an lstm only.

    Returns:
        Outputs (batch, time, units), last h, last c (None for a gru).
    """
    units = h.shape[1]
    wide = x.shape[2]
    # What the layer hands to cuDNN: every gate's block, flattened as it lies in memory. cuDNN reads
    # it as a row-major matrix of (units, inputs).
    inputs = _buffers(tensors["kernel"], units, (units, wide))
    recurrents = _buffers(tensors["recurrent_kernel"], units, (units, units))
    count = len(inputs)
    bias = np.asarray(tensors["bias"], np.float64).reshape(2 * count, units)
    input_bias, recurrent_bias = bias[:count], bias[count:]
    outputs = []
    for step in range(x.shape[1]):
        from_x = [np.einsum("bi,ui->bu", x[:, step], w) for w in inputs]
        from_h = [np.einsum("bv,uv->bu", h, r) for r in recurrents]
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


def _buffers(stored: Any, units: int, shape: tuple[int, int]) -> list[Float]:
    stored = np.asarray(stored)
    return [
        np.array(stored[:, start : start + units], np.float64).ravel().reshape(shape)
        for start in range(0, stored.shape[1], units)
    ]


def _logistic(z: Float) -> Float:
    return 0.5 * (1.0 + np.tanh(0.5 * z))

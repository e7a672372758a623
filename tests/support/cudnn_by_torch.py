"""torch's LSTM and GRU in float64 on stored CuDNN weights, read as cuDNN reads them.

Written for these tests from cuDNN's documentation; it shares nothing with rnnconvert.
"""

from __future__ import annotations

import numpy as np
import torch

GATES = {"lstm": 4, "gru": 3}


def weights(cell: str, inputs: int, units: int, seed: int, dtype: str = "float64") -> list:
    """Random kernel, recurrent kernel and bias as stored, no bias zero, no two alike."""
    generator = np.random.default_rng(seed)
    columns = GATES[cell] * units
    shapes = [(inputs, columns), (units, columns), (2 * columns,)]
    return [(0.5 * generator.standard_normal(shape)).astype(dtype) for shape in shapes]


def run(cell: str, stored: list, x, states=None, *, go_backwards: bool = False):  # type: ignore[no-untyped-def]
    """Outputs (batch, time, units) and the last states, each (batch, units), in float64."""
    kernel, recurrent, bias = (np.asarray(array, np.float64) for array in stored)
    units = recurrent.shape[0]
    module = {"lstm": torch.nn.LSTM, "gru": torch.nn.GRU}[cell](
        kernel.shape[0], units, batch_first=True, dtype=torch.float64
    )
    halves = bias.reshape(2, -1)
    with torch.no_grad():
        module.weight_ih_l0.copy_(torch.from_numpy(_rows(cell, kernel, units)))
        module.weight_hh_l0.copy_(torch.from_numpy(_rows(cell, recurrent, units)))
        module.bias_ih_l0.copy_(torch.from_numpy(_in_torch_order(cell, halves[0])))
        module.bias_hh_l0.copy_(torch.from_numpy(_in_torch_order(cell, halves[1])))
        x = np.asarray(x, np.float64)
        x = np.ascontiguousarray(x[:, ::-1] if go_backwards else x)
        first = None
        if states is not None:
            first = [torch.from_numpy(np.asarray(s, np.float64)[None].copy()) for s in states]
            first = tuple(first) if cell == "lstm" else first[0]
        outputs, last = module(torch.from_numpy(x), first)
    last = list(last) if cell == "lstm" else [last]
    return outputs.numpy(), [state[0].numpy() for state in last]


def _rows(cell: str, stored: np.ndarray, units: int) -> np.ndarray:
    """The block of each gate, as its floats lie in memory, is a (units, inputs) matrix."""
    blocks = np.split(stored, GATES[cell], axis=1)
    matrices = [np.frombuffer(b.tobytes(), b.dtype).reshape(units, b.shape[0]) for b in blocks]
    return _in_torch_order(cell, np.concatenate(matrices))


def _in_torch_order(cell: str, gates: np.ndarray) -> np.ndarray:
    """Keras stores a GRU's z, r, n; torch wants r, z, n. An LSTM's gates are in torch's order."""
    if cell == "lstm":
        return gates
    z, r, n = np.split(gates, 3)
    return np.concatenate([r, z, n])

"""The canonical form of the weights of one direction of one recurrent layer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from rnnconvert.layouts.cells import CELLS

FLOAT_DTYPES = ("float16", "float32", "float64", "bfloat16")
Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True, eq=False)
class RnnWeights:
    """Weights of one direction of one layer; gates in the cell's own order (`Cell.gates`).

    Attributes:
        cell: name of the cell, a key of `CELLS`.
        kernel: (gates, units, input_dim).
        recurrent: (gates, units, units).
        bias: (2, gates, units), input bias then recurrent bias; None where the layer has none.

    Raises:
        ValueError: when the shapes or dtypes do not fit together.

    Example:
        >>> weights = RnnWeights("rnn_tanh", np.ones((1, 3, 2)), np.zeros((1, 3, 3)), None)
        >>> weights.units, weights.input_dim
        (3, 2)
    """

    cell: str
    kernel: Array
    recurrent: Array
    bias: Array | None

    def __post_init__(self) -> None:
        if self.cell not in CELLS:
            raise ValueError(f"unknown cell {self.cell!r}; known: {', '.join(CELLS)}")
        gates = len(CELLS[self.cell].gates)
        if self.kernel.ndim != 3 or self.kernel.shape[0] != gates:
            raise ValueError(
                f"kernel of a {self.cell}: expected ({gates}, units, input_dim), "
                f"found {self.kernel.shape}"
            )
        units = self.kernel.shape[1]
        if self.recurrent.shape != (gates, units, units):
            raise ValueError(
                f"recurrent kernel of a {self.cell}: expected {(gates, units, units)}, "
                f"found {self.recurrent.shape}"
            )
        if self.bias is not None and self.bias.shape != (2, gates, units):
            raise ValueError(
                f"bias of a {self.cell}: expected {(2, gates, units)}, found {self.bias.shape}"
            )
        arrays = [self.kernel, self.recurrent] + ([] if self.bias is None else [self.bias])
        dtypes = {array.dtype.name for array in arrays}
        if len(dtypes) != 1 or not dtypes <= set(FLOAT_DTYPES):
            raise ValueError(
                f"expected one dtype of {', '.join(FLOAT_DTYPES)}, "
                f"found {', '.join(sorted(dtypes))}"
            )

    @property
    def units(self) -> int:
        return int(self.kernel.shape[1])

    @property
    def input_dim(self) -> int:
        return int(self.kernel.shape[2])

    @property
    def dtype(self) -> np.dtype[np.generic]:
        return self.kernel.dtype


def merge_bias(bias: Array) -> Array:
    """Sum of input and recurrent bias, (2, ...) to (...): one rounded addition in its dtype.

    Example:
        >>> merge_bias(np.array([[1.0, 2.0], [0.5, 0.25]]))
        array([1.5 , 2.25])
    """
    return np.add(bias[0], bias[1])


def split_bias(bias: Array) -> Array:
    """Two halves, (...) to (2, ...), whose sum is `bias` bit for bit.

    Keras halves, and so do we; the second half is the rest, so that the sum is exact for odd
    subnormal numbers too.

    Example:
        >>> split_bias(np.array([1.0, 3.0]))
        array([[0.5, 1.5],
               [0.5, 1.5]])
    """
    half = np.multiply(bias, bias.dtype.type(0.5)).astype(bias.dtype)
    rest = np.subtract(bias, half, out=half.copy(), where=np.isfinite(half) & (bias != 0))
    return np.stack([half, rest])

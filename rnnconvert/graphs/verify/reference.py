"""cuDNN's RNN in numpy, float64, one number of the equations after another. Slow and plain.

Written from the cuDNN developer guide, for checking lowered graphs. It shares nothing with the rest
of this package: not the layout of the parameters, not a shape, not an equation.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Settings:
    """An op's attributes, as its node has them."""

    rnn_mode: str
    direction: str
    input_mode: str = "linear_input"
    num_proj: int = 0
    time_major: bool = True


@dataclass(frozen=True)
class _Matrices:
    """Parameters of one direction of one layer: a list of matrices or vectors, one for each gate.

    `of_input` is None where there is no matrix: each gate sees the input itself.
    """

    of_input: list[Array] | None
    of_state: list[Array]
    projection: Array | None
    input_bias: list[Array]
    state_bias: list[Array]


def forward(
    settings: Settings,
    x: Array,
    h: Array,
    c: Array,
    params: Array,
    lengths: Array | None = None,
) -> tuple[Array, Array, Array]:
    """The op's output, output_h and output_c in float64; ValueError if the shapes do not fit."""
    lstm = settings.rnn_mode == "lstm"
    x, h, c, params = (np.asarray(array, np.float64) for array in (x, h, c, params))
    if not settings.time_major:
        x = np.swapaxes(x, 0, 1)
    steps, batch, width = x.shape
    shape_h, shape_c = h.shape, c.shape
    states = h.shape[0 if settings.time_major else 1]
    wanted = (states, batch) if settings.time_major else (batch, states)
    if h.shape[:2] != wanted or (lstm and c.shape[:2] != wanted):
        raise ValueError(f"states of shape {h.shape} and {c.shape} with a batch of {batch}")
    if lengths is not None and (np.shape(lengths) != (batch,) or np.max(lengths) > steps):
        raise ValueError(f"lengths {lengths} with a batch of {batch} and {steps} steps")
    directions = 2 if settings.direction == "bidirectional" else 1
    units = c.shape[-1] if lstm else h.shape[-1]
    cells = _read(settings, params, states // directions, directions, width, units)
    # Without time_major the states' memory is read in the same order as with it.
    h = h.reshape(states, batch, -1).copy()
    c = c.reshape(states, batch, -1).copy() if lstm else np.zeros_like(h)
    ends = np.full(batch, steps) if lengths is None else np.asarray(lengths)
    for first in range(0, states, directions):
        numbers = range(first, first + directions)
        x = np.concatenate(
            [
                _one_direction(settings, cells[n], x, h[n], c[n], ends, n % directions)
                for n in numbers
            ],
            axis=2,
        )
    output = x if settings.time_major else np.swapaxes(x, 0, 1)
    return output, h.reshape(shape_h), c.reshape(shape_c) if lstm else np.zeros(())


def _one_direction(
    settings: Settings, cell: _Matrices, x: Array, h: Array, c: Array, ends: Array, backwards: int
) -> Array:
    """Outputs (time, batch, outputs) of one cell; its states h and c (batch, ...) move in place."""
    outputs = np.zeros((*x.shape[:2], h.shape[1]))
    for sample, end in enumerate(ends):
        times = range(int(end))
        for t in reversed(times) if backwards else times:
            h[sample], c[sample] = _step(
                settings.rnn_mode, cell, x[t, sample], h[sample], c[sample]
            )
            outputs[t, sample] = h[sample]
    return outputs


def _read(
    settings: Settings, params: Array, layers: int, directions: int, width: int, units: int
) -> list[_Matrices]:
    """Cut the flat buffer: all matrices, cell by cell, then all biases, cell by cell."""
    gates = {"lstm": 4, "gru": 3}.get(settings.rnn_mode, 1)
    seen = settings.num_proj or units
    skip = settings.input_mode == "skip_input" or (
        settings.input_mode == "auto_select" and width == units
    )
    buffer = _Buffer(np.ravel(params))
    kernels = []
    for layer in range(layers):
        for _ in range(directions):
            of_input = None
            if layer or not skip:
                columns = directions * seen if layer else width
                of_input = [buffer.take(units, columns) for _ in range(gates)]
            of_state = [buffer.take(units, seen) for _ in range(gates)]
            projection = buffer.take(seen, units) if settings.num_proj else None
            kernels.append((of_input, of_state, projection))
    cells = []
    for of_input, of_state, projection in kernels:
        input_bias = [buffer.take(units) for _ in range(gates)]
        state_bias = [buffer.take(units) for _ in range(gates)]
        cells.append(_Matrices(of_input, of_state, projection, input_bias, state_bias))
    if buffer.position != buffer.numbers.size:
        raise ValueError(f"the layers take {buffer.position} of {buffer.numbers.size} parameters")
    return cells


@dataclass
class _Buffer:
    """A flat array that is read from its start."""

    numbers: Array
    position: int = 0

    def take(self, *shape: int) -> Array:
        count = int(np.prod(shape))
        taken = self.numbers[self.position : self.position + count]
        self.position += count
        if taken.size != count:
            raise ValueError(f"the layers take more than the {self.numbers.size} parameters")
        return taken.reshape(shape)


def _step(mode: str, cell: _Matrices, x: Array, h: Array, c: Array) -> tuple[Array, Array]:
    """h and c after one step of one sample; all are vectors."""
    gates = range(len(cell.of_state))
    from_x = [x if cell.of_input is None else cell.of_input[g] @ x for g in gates]
    from_x = [from_x[g] + cell.input_bias[g] for g in gates]
    from_h = [cell.of_state[g] @ h + cell.state_bias[g] for g in gates]
    if mode == "lstm":
        into, forget, new, out = (a + b for a, b in zip(from_x, from_h, strict=True))
        c = _logistic(forget) * c + _logistic(into) * np.tanh(new)
        h = _logistic(out) * np.tanh(c)
        return (h if cell.projection is None else cell.projection @ h), c
    if mode == "gru":
        reset, update = _logistic(from_x[0] + from_h[0]), _logistic(from_x[1] + from_h[1])
        new = np.tanh(from_x[2] + reset * from_h[2])
        return (1.0 - update) * new + update * h, c
    total = from_x[0] + from_h[0]
    return (np.tanh(total) if mode == "rnn_tanh" else np.maximum(total, 0.0)), c


def _logistic(z: Array) -> Array:
    return 0.5 * (1.0 + np.tanh(0.5 * z))


def to_canonical(
    settings: Settings, params: Array, layers: int, width: int, units: int, counts: tuple[int, int]
) -> list[Array]:
    """The matrices of the buffer one by one, then its biases, in the buffer's own dtype.

    Args:
        settings: of the op.
        params: the flat buffer.
        layers, width, units: number of layers, input size, number of units.
        counts: how many matrices and biases the op gives; a check.
    """
    directions = 2 if settings.direction == "bidirectional" else 1
    matrices: list[Array] = []
    biases: list[Array] = []
    for cell in _read(settings, params, layers, directions, width, units):
        matrices += [*(cell.of_input or []), *cell.of_state]
        matrices += [cell.projection] if cell.projection is not None else []
        biases += [*cell.input_bias, *cell.state_bias]
    if (len(matrices), len(biases)) != counts:
        raise ValueError(f"{len(matrices)} matrices and {len(biases)} biases, expected {counts}")
    return matrices + biases


def buffer_size(settings: Settings, layers: int, width: int, units: int) -> int:
    """Length of the flat buffer."""
    directions = 2 if settings.direction == "bidirectional" else 1
    gates = {"lstm": 4, "gru": 3}.get(settings.rnn_mode, 1)
    seen = settings.num_proj or units
    skip = settings.input_mode == "skip_input" or (
        settings.input_mode == "auto_select" and width == units
    )
    total = 0
    for layer in range(layers):
        columns = directions * seen if layer else (0 if skip else width)
        per_gate = units * columns + units * seen + 2 * units
        total += directions * (gates * per_gate + settings.num_proj * units)
    return total

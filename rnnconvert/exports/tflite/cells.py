"""The equations of Keras' recurrent cells as plain TensorFlow ops, which TFLite has."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

States = Any
"""Nested lists of tensors, as Keras has them for a cell."""


@dataclass(frozen=True)
class Steps:
    """A cell, cut in two.

    Attributes:
        project: inputs (rows, features) to what `step` takes of them: for all steps at once.
        step: projected inputs (batch, ...) and states to the output and the next states.
    """

    project: Callable[[Any], Any]
    step: Callable[[Any, States], tuple[Any, States]]


def steps_of(cell: Any) -> Callable[[], Steps] | None:
    """How to cut a cell (its weights are read when it is called); None for others than Keras'."""
    import keras

    cutters = {
        keras.layers.LSTMCell: _lstm,
        keras.layers.GRUCell: _gru,
        keras.layers.SimpleRNNCell: _simple,
    }
    if type(cell) is keras.layers.StackedRNNCells:
        cells = [steps_of(each) for each in cell.cells]
        found = [each for each in cells if each is not None]
        return (lambda: _stacked([each() for each in found])) if len(found) == len(cells) else None
    cut = cutters.get(type(cell))
    return None if cut is None else lambda: cut(cell)


def _stacked(cells: Sequence[Steps]) -> Steps:
    def step(inputs: Any, states: States) -> tuple[Any, States]:
        new = []
        for cell, state in zip(cells, states, strict=True):
            inputs, after = cell.step(cell.project(inputs), list(state))
            new.append(after)
        return inputs, new

    return Steps(lambda rows: rows, step)


def _affine(kernel: Any, bias: Any) -> Callable[[Any], Any]:
    import tensorflow as tf

    return lambda rows: tf.matmul(rows, kernel) if bias is None else tf.matmul(rows, kernel) + bias


def _lstm(cell: Any) -> Steps:
    """Gates in the order i, f, o, c: one sigmoid for three."""
    import tensorflow as tf

    def reordered(value: Any) -> Any:
        i, f, c, o = tf.split(tf.convert_to_tensor(value), 4, axis=-1)
        return tf.concat([i, f, o, c], axis=-1)

    units = cell.units
    kernel, recurrent = reordered(cell.kernel), reordered(cell.recurrent_kernel)

    def step(inputs: Any, states: States) -> tuple[Any, States]:
        hidden, carry = states
        both = inputs + tf.matmul(hidden, recurrent)
        i, f, o = tf.split(cell.recurrent_activation(both[:, : 3 * units]), 3, axis=1)
        carry = f * carry + i * cell.activation(both[:, 3 * units :])
        hidden = o * cell.activation(carry)
        return hidden, [hidden, carry]

    return Steps(_affine(kernel, reordered(cell.bias) if cell.use_bias else None), step)


def _gru(cell: Any) -> Steps:
    """Gates in Keras' order z, r, n; the reset gate before or after the matrix product."""
    import tensorflow as tf

    units = cell.units
    gates = 2 * units
    recurrent = tf.convert_to_tensor(cell.recurrent_kernel)
    bias = tf.convert_to_tensor(cell.bias) if cell.use_bias else None
    after = bias[1] if bias is not None and cell.reset_after else None
    product = _affine(recurrent, after)

    def reset_after(inputs: Any, hidden: Any) -> tuple[Any, Any]:
        of_state = product(hidden)
        both = cell.recurrent_activation(inputs[:, :gates] + of_state[:, :gates])
        z, r = tf.split(both, 2, axis=1)
        return z, inputs[:, gates:] + r * of_state[:, gates:]

    def reset_before(inputs: Any, hidden: Any) -> tuple[Any, Any]:
        of_state = tf.matmul(hidden, recurrent[:, :gates])
        z, r = tf.split(cell.recurrent_activation(inputs[:, :gates] + of_state), 2, axis=1)
        return z, inputs[:, gates:] + tf.matmul(r * hidden, recurrent[:, gates:])

    def step(inputs: Any, states: States) -> tuple[Any, States]:
        [hidden] = states
        z, candidate = (reset_after if cell.reset_after else reset_before)(inputs, hidden)
        new = cell.activation(candidate)
        hidden = new + z * (hidden - new)
        return hidden, [hidden]

    first = bias[0] if bias is not None and cell.reset_after else bias
    return Steps(_affine(tf.convert_to_tensor(cell.kernel), first), step)


def _simple(cell: Any) -> Steps:
    import tensorflow as tf

    recurrent = tf.convert_to_tensor(cell.recurrent_kernel)
    bias = tf.convert_to_tensor(cell.bias) if cell.use_bias else None

    def step(inputs: Any, states: States) -> tuple[Any, States]:
        hidden = cell.activation(inputs + tf.matmul(states[0], recurrent))
        return hidden, [hidden]

    return Steps(_affine(tf.convert_to_tensor(cell.kernel), bias), step)

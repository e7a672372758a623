"""Long sequences: a loop, each turn of which is a block of steps.

Each unrolled step costs operators in the file, and TensorFlow's converter time and memory. TFLite
has a loop, `WHILE`; what goes around in it is copied in each turn, all outputs too. So a turn has
about as many steps as there are turns.
"""

from __future__ import annotations

from collections.abc import Callable
from math import isqrt
from typing import Any

from rnnconvert.exports.tflite.cells import States

Run = Callable[[Any, Any, Any, States], tuple[list[Any], States]]
"""Sequences (batch, steps, features), their mask (batch, steps) or None, the output (batch, units)
and the states before the first step; to the outputs of all steps, and the states after them."""


def block_size(length: int) -> int:
    """Steps of a block: of the sizes about the root of the length, that which unrolls fewest.

    Unrolled are the steps of one block, and those that are left after the last whole one.

    >>> block_size(1000), block_size(1009)
    (37, 36)
    """
    root = isqrt(length)
    return min(range(root, 2 * root), key=lambda size: size + length % size)


def run_in_blocks(
    run: Run, sequences: Any, mask: Any, output: Any, states: States, size: int, keep: bool
) -> tuple[Any, Any, States]:
    """What `run` gives for the whole sequences, by a loop over blocks of `size` steps.

    Args:
        run: of a few steps; see `Run`, of which the next four arguments are those.
        sequences: the number of steps is known.
        mask: or None.
        output: before the first step.
        states: before the first step.
        size: of a block.
        keep: all outputs are wanted.

    Returns:
        All outputs (batch, steps, units), None unless they are wanted; the last one; the states.
    """
    import keras
    import tensorflow as tf

    batch, length = sequences.shape[:2]
    turns = length // size
    whole = turns * size
    blocks = _cut(sequences, turns, size)
    masks = None if mask is None else _cut(mask, turns, size)

    def turn(place: Any, output: Any, flat: list[Any], kept: list[Any]) -> tuple[Any, ...]:
        found, after = run(
            tf.gather(blocks, place),
            None if masks is None else tf.gather(masks, place),
            output,
            keras.tree.pack_sequence_as(states, flat),
        )
        if keep:  # behind the others: after the last turn the first block is in front
            kept = [tf.concat([kept[0][1:], tf.stack(found, axis=1)[None]], axis=0)]
        return place + 1, found[-1], keras.tree.flatten(after), kept

    rows, units = tf.shape(sequences)[0], output.shape[-1]
    start: tuple[Any, ...] = tf.constant(0), output, keras.tree.flatten(states), []
    if keep:
        start = *start[:3], [tf.zeros((turns, rows, size, units))]
    shapes = keras.tree.map_structure(lambda value: value.shape, list(start))
    if keep:
        shapes[3] = [tf.TensorShape((turns, batch, size, units))]
    _, output, flat, kept = tf.while_loop(
        lambda place, *_: place < turns, turn, start, shape_invariants=tuple(shapes)
    )
    states = keras.tree.pack_sequence_as(states, flat)
    ends = [_joined(value) for value in kept]
    if whole < length:
        left = None if mask is None else mask[:, whole:]
        found, states = run(sequences[:, whole:], left, output, states)
        output = found[-1]
        ends += [tf.stack(found, axis=1)]
    return (tf.concat(ends, axis=1) if keep else None), output, states


def _cut(values: Any, turns: int, size: int) -> Any:
    """(batch, steps, ...) to (turns, batch, size, ...), without the steps that are left."""
    import tensorflow as tf

    batch, _, *rest = values.shape
    shape = (-1 if batch is None else batch, turns, size, *rest)
    cut = tf.reshape(values[:, : turns * size], shape)
    return tf.transpose(cut, (1, 0, *range(2, len(shape))))


def _joined(values: Any) -> Any:
    """(turns, batch, size, units) to (batch, turns * size, units)."""
    import tensorflow as tf

    turns, batch, size, units = values.shape
    shape = (-1 if batch is None else batch, turns * size, units)
    return tf.reshape(tf.transpose(values, (1, 0, 2, 3)), shape)

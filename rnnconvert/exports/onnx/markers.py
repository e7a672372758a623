"""Recurrent layers of a Keras model, traced as one TensorFlow op each.

TensorFlow's own shape inference has to pass the op, and nothing may compute it: CudnnRNNV3 has all
that (a sequence with initial states and lengths in, all outputs and last states out), and no kernel
on the CPU. `emit` puts ONNX's operator in its place.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from rnnconvert.exports.onnx.operators import OnnxCell, Recurrent, cell_of

MARKER = "CudnnRNNV3"


@dataclass
class Marked:
    """What the markers of one traced model stand for.

    Attributes:
        recurrent: by the marker's attribute `seed`.
        native: paths of the layers that became markers.
        left: path and reason of those that did not.
    """

    recurrent: dict[int, Recurrent] = field(default_factory=dict)
    native: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)


@contextmanager
def marked(model: Any) -> Iterator[Marked]:
    """While it is open, calls of the model's recurrent layers trace markers.

    Layers that ONNX has no operator for are left alone.
    """
    import keras

    found = Marked()
    patched: list[Any] = []

    def patch(layer: Any, call: Any) -> None:
        object.__setattr__(layer, "call", call)
        patched.append(layer)

    for layer in _all_layers(model):
        if isinstance(layer, keras.layers.TimeDistributed):
            patch(layer, _folded(layer))
        elif isinstance(layer, keras.layers.Bidirectional):
            both = _both_cells(layer)
            if both is not None:
                patch(layer, _bidirectional(layer, both, found))
        elif isinstance(layer, keras.layers.RNN):
            cells = _cells(layer)
            if isinstance(cells, str):
                found.left.append(f"{layer.path}: {cells}")
            else:
                patch(layer, _sequential(layer, cells, found))
                found.native.append(layer.path)
    try:
        yield found
    finally:
        for layer in patched:
            object.__delattr__(layer, "call")


def _all_layers(model: Any) -> list[Any]:
    """Every layer once, wrapped ones and those of inner models too."""
    return list({id(layer): layer for layer in model._flatten_layers()}.values())


def _cells(layer: Any) -> list[OnnxCell] | str:
    """The cells of a layer from the bottom up; or why ONNX can't say it."""
    import keras

    stacked = isinstance(layer.cell, keras.layers.StackedRNNCells)
    cells = [cell_of(cell) for cell in (layer.cell.cells if stacked else [layer.cell])]
    reasons = [cell for cell in cells if isinstance(cell, str)]
    return reasons[0] if reasons else [cell for cell in cells if isinstance(cell, OnnxCell)]


def _both_cells(layer: Any) -> list[OnnxCell] | None:
    """Forward and backward cell of a Bidirectional, where both fit into one ONNX operator."""
    forward, backward = layer.forward_layer, layer.backward_layer
    cells: list[OnnxCell] = []
    for each in (forward, backward):
        own = _cells(each)
        if isinstance(own, str) or len(own) != 1:
            return None
        cells += own
    facts = [(w.cell, w.units, w.input_dim, w.bias is None) for w in (c.weights for c in cells)]
    fits = facts[0] == facts[1] and not forward.go_backwards and backward.go_backwards
    return cells if fits else None


# --- the calls ------------------------------------------------------------------------------


def _sequential(layer: Any, cells: Sequence[OnnxCell], found: Marked) -> Any:
    """The call of an RNN layer; of stacked cells, one operator after another."""
    is_stacked = type(layer.cell).__name__ == "StackedRNNCells"

    def call(sequences: Any, initial_state: Any = None, mask: Any = None, training: Any = False,
             ) -> Any:  # fmt: skip
        import tensorflow as tf

        given = _per_cell(initial_state, len(cells), is_stacked)
        outputs, states = sequences, []
        mask = _plain_mask(mask)
        for number, (cell, state) in enumerate(zip(cells, given, strict=True)):
            name = f"{layer.name}_{number}" if is_stacked else layer.name
            outputs, last, [own] = _run(
                found, name, [cell], outputs, state, mask, layer.go_backwards and not number,
                zeros=layer.zero_output_for_mask,
            )  # fmt: skip
            states.append(own)
            if layer.go_backwards and not number:
                # What follows, and Keras' own output, has the order of processing.
                outputs = [tf.reverse(outputs[0], [1])]
                mask = None if mask is None else tf.reverse(mask, [1])
            outputs = outputs[0]
        result = outputs if layer.return_sequences else last[0]
        if not layer.return_state:
            return result
        return (result, *(states if is_stacked else states[0]))

    return call


def _bidirectional(layer: Any, cells: Sequence[OnnxCell], found: Marked) -> Any:
    """The call of a Bidirectional whose directions are one operator."""

    def call(sequences: Any, initial_state: Any = None, mask: Any = None, training: Any = None,
             ) -> Any:  # fmt: skip
        states = None
        if initial_state is not None:
            half = len(initial_state) // 2
            states = [list(initial_state[:half]), list(initial_state[half:])]
        outputs, last, own = _run(
            found, layer.name, cells, sequences, states, _plain_mask(mask), False,
            zeros=layer.forward_layer.zero_output_for_mask,
        )  # fmt: skip
        merged = _merge(layer.merge_mode, *(outputs if layer.return_sequences else last))
        if not layer.return_state:
            return merged
        merged = merged if isinstance(merged, tuple) else (merged,)
        return (*merged, *own[0], *own[1])

    return call


def _merge(mode: str | None, one: Any, other: Any) -> Any:
    import tensorflow as tf

    if mode == "concat":
        return tf.concat([one, other], -1)
    if mode == "sum":
        return one + other
    if mode == "ave":
        return (one + other) / 2
    return one * other if mode == "mul" else (one, other)


def _folded(layer: Any) -> Any:
    """The call of a TimeDistributed: time is folded into the batch, which Keras loops over."""

    def call(inputs: Any, training: Any = None, mask: Any = None) -> Any:
        import tensorflow as tf

        sizes = tf.shape(inputs)
        flat = tf.reshape(inputs, tf.concat([[sizes[0] * sizes[1]], sizes[2:]], 0))
        flat.set_shape((None, *inputs.shape[2:]))
        given = {}
        if mask is not None and len(mask.shape) > 2 and layer.layer._call_has_mask_arg:
            given["mask"] = tf.reshape(
                mask, tf.concat([[sizes[0] * sizes[1]], tf.shape(mask)[2:]], 0)
            )
        if layer.layer._call_has_training_arg:
            given["training"] = False
        result = layer.layer.call(flat, **given)
        shaped = tf.reshape(result, tf.concat([sizes[:2], tf.shape(result)[1:]], 0))
        shaped.set_shape((*inputs.shape[:2], *result.shape[1:]))
        return shaped

    return call


def _per_cell(initial_state: Any, count: int, is_stacked: bool) -> list[Any]:
    """The initial states of each cell: None, or a list with one list of them."""
    if initial_state is None:
        return [None] * count
    listed = list(initial_state) if isinstance(initial_state, list | tuple) else [initial_state]
    if not is_stacked:
        return [[listed]]
    return [[list(own) if isinstance(own, list | tuple) else [own]] for own in listed]


def _plain_mask(mask: Any) -> Any:
    """(batch, time) of booleans."""
    import tensorflow as tf

    if isinstance(mask, list | tuple):
        mask = mask[0]
    if mask is None:
        return None
    mask = tf.cast(mask, tf.bool)
    return mask[:, :, 0] if len(mask.shape) == 3 else mask


# --- one operator ---------------------------------------------------------------------------


def _run(
    found: Marked,
    name: str,
    cells: Sequence[OnnxCell],
    sequences: Any,
    states: Any,
    mask: Any,
    reverse: bool,
    *,
    zeros: bool,
) -> tuple[list[Any], list[Any], list[list[Any]]]:
    """Trace one operator.

    Args:
        cells: of one direction, or of forward and backward.
        sequences: (batch, time, inputs).
        states: of each direction, or None for zeros.
        mask: (batch, time), or None. Any mask: the steps that it leaves are moved to the front for
            the operator, whose lengths they are, and its outputs back to where they belong.
        reverse: one direction, from the last step on.
        zeros: outputs of masked steps are zeros, and not those of the step before.

    Returns:
        Of each direction, in the order of the time: the outputs (batch, time, units), the last
        output (batch, units) and the states. The last output is what Keras gives: of the step that
        is processed last.
    """
    import tensorflow as tf

    dtype = tf.as_dtype(cells[0].weights.dtype.name)
    sequences = tf.cast(sequences, dtype)
    lengths = None
    if mask is not None:
        sequences, lengths = _compacted(sequences, mask)
    recurrent = Recurrent(
        tuple(cell.weights for cell in cells), tuple(cell.activations for cell in cells), reverse,
        states is not None, mask is not None, name,
    )  # fmt: skip
    initial = _initial(cells, states, sequences, dtype)
    outputs, last = _marker(found, recurrent, sequences, initial, lengths)
    by_direction = tf.split(outputs, len(cells), -1) if len(cells) > 1 else [outputs]
    ends = [[part[number] for part in last] for number in range(len(cells))]
    if mask is None:
        return by_direction, [end[0] for end in ends], ends
    backward = [reverse] if len(cells) == 1 else [False, True]
    spread = [_spread(o, mask, b, zeros) for o, b in zip(by_direction, backward, strict=True)]
    final = [_last_output(e[0], mask, b, zeros) for e, b in zip(ends, backward, strict=True)]
    some = tf.reduce_any(mask, 1)[:, None]  # where no step is left, the states stay
    ends = [
        [tf.where(some, part, initial[place][number]) for place, part in enumerate(end)]
        for number, end in enumerate(ends)
    ]
    return spread, final, ends


def _initial(cells: Sequence[Any], states: Any, sequences: Any, dtype: Any) -> list[Any]:
    """Initial states: one tensor (directions, batch, units) for h, and one for the LSTM's c."""
    import tensorflow as tf

    parts = 2 if cells[0].weights.cell == "lstm" else 1
    if states is not None:
        return [tf.stack([tf.cast(own[part], dtype) for own in states]) for part in range(parts)]
    shape = tf.stack([len(cells), tf.shape(sequences)[0], cells[0].weights.units])
    return [tf.zeros(shape, dtype) for _ in range(parts)]


def _marker(
    found: Marked, recurrent: Recurrent, sequences: Any, initial: Sequence[Any], lengths: Any
) -> tuple[Any, list[Any]]:
    """The op: outputs (batch, time, directions * units), and last states as `_initial`."""
    import tensorflow as tf

    number = len(found.recurrent) + 1
    found.recurrent[number] = recurrent
    time_major = tf.transpose(sequences, [1, 0, 2])
    sizes = tf.shape(time_major)
    made = tf.raw_ops.CudnnRNNV3(
        input=time_major,
        input_h=initial[0],
        input_c=initial[-1],
        params=tf.zeros([1], sequences.dtype),
        sequence_lengths=tf.fill([sizes[1]], sizes[0]) if lengths is None else lengths,
        rnn_mode="lstm",
        direction="bidirectional" if len(recurrent.directions) == 2 else "unidirectional",
        is_training=False,
        seed=number,
    )
    units, count = recurrent.directions[0].units, len(recurrent.directions)
    outputs = made.output
    outputs.set_shape((time_major.shape[0], time_major.shape[1], count * units))
    last = [made.output_h, made.output_c][: len(initial)]
    for part in last:
        part.set_shape((count, time_major.shape[1], units))
    return tf.transpose(outputs, [1, 0, 2]), last


# --- masks ----------------------------------------------------------------------------------


def _compacted(sequences: Any, mask: Any) -> tuple[Any, Any]:
    """The steps that the mask leaves in front, in their order; and how many they are."""
    import tensorflow as tf

    steps = tf.shape(sequences)[1]
    places = tf.cast(tf.range(steps), tf.float32)[None, :]
    keys = places + tf.cast(steps, tf.float32) * tf.cast(tf.logical_not(mask), tf.float32)
    order = tf.math.top_k(-keys, steps, sorted=True).indices
    shape = sequences.shape
    sequences = tf.gather(sequences, order, batch_dims=1)
    sequences.set_shape(shape)
    return sequences, tf.reduce_sum(tf.cast(mask, tf.int32), 1)


def _last_output(state: Any, mask: Any, backward: bool, zeros: bool) -> Any:
    """Zeros where no step is left, or where the last one is masked and that gives zeros."""
    import tensorflow as tf

    kept = tf.reduce_any(mask, 1)[:, None]
    if zeros:
        kept = mask[:, :1] if backward else mask[:, -1:]
    return tf.where(kept, state, tf.zeros_like(state))


def _spread(outputs: Any, mask: Any, backward: bool, zeros: bool) -> Any:
    """Outputs back at their steps; a masked step repeats what was processed before it, or zeros."""
    import tensorflow as tf

    counts = tf.cumsum(tf.cast(mask, tf.int32), axis=1)
    nothing = tf.zeros_like(outputs[:, :1])
    if backward:  # what was processed before is the next step that the mask leaves
        before = counts - tf.cast(mask, tf.int32)
        padded = tf.concat([outputs, nothing], 1)
        place = tf.where(before < counts[:, -1:], before, tf.shape(outputs)[1])
    else:
        padded, place = tf.concat([nothing, outputs], 1), counts
    found = tf.gather(padded, place, batch_dims=1)
    found.set_shape(outputs.shape)
    return tf.where(mask[:, :, None], found, tf.zeros_like(found)) if zeros else found

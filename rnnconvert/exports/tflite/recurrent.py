"""Recurrent layers as TensorFlow ops that TFLite has: steps of plain ops, or its own LSTM operator.

Keras' loop becomes `TensorListReserve` in a TFLite conversion, which needs a batch size. Here each
time step is a few plain ops; the inputs' part of all steps is one matrix product. Up to 128 steps
are written one after the other, which every delegate of TFLite takes; more of them as a loop over
blocks of steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from rnnconvert.errors import NotConvertibleError
from rnnconvert.exports.tflite.blocks import block_size, run_in_blocks
from rnnconvert.exports.tflite.cells import States, Steps, steps_of

UNROLLED = 128
"""The most steps of a layer that are written one after the other, where a loop can be."""
MOST_UNROLLED = 1000
"""The most steps where a loop can't be. For one layer the converter then takes about a minute and
1 GB more."""


@dataclass
class Forms:
    """How the recurrent layers of one model are written; counts what was done.

    Attributes:
        batch: the batch size, where it is fixed: TFLite's LSTM operator needs one.
        fused: names of the layers that became the operator.
        loops: of the others, the name and what was written; once for each call.
    """

    batch: int | None
    fused: list[str] = field(default_factory=list)
    loops: list[str] = field(default_factory=list)


@contextmanager
def replaced_calls(model: Any, forms: Forms) -> Iterator[None]:
    """Within, every recurrent layer of a Keras model computes by the functions of this module."""
    with ExitStack() as stack:
        for layer in layers_with_steps(model):
            stack.enter_context(_replaced_call(layer, forms))
        yield


def layers_with_steps(model: Any) -> list[Any]:
    """All layers with time steps, those inside wrappers and nested models too."""
    import keras

    return [layer for layer in model._flatten_layers() if isinstance(layer, keras.layers.RNN)]


def can_fuse(layer: Any) -> bool:
    """Whether TFLite's LSTM operator computes what the layer does, without a mask."""
    import keras

    cell = layer.cell
    return (
        type(layer) in (keras.layers.LSTM, keras.layers.RNN)
        and type(cell) is keras.layers.LSTMCell
        and cell.activation is keras.activations.tanh
        and cell.recurrent_activation is keras.activations.sigmoid
        and not layer.return_state
    )


@contextmanager
def _replaced_call(layer: Any, forms: Forms) -> Iterator[None]:
    import keras

    own = (keras.layers.LSTM, keras.layers.GRU, keras.layers.SimpleRNN, keras.layers.RNN)
    steps = steps_of(layer.cell) if type(layer) in own else None
    unroll, keras_call = layer.unroll, layer.call

    def by_keras(sequences: Any, *args: Any, **kwargs: Any) -> Any:
        """Keras' own step, unrolled."""
        _require_few_steps(layer, sequences.shape[1])
        forms.loops.append(f"{layer.name}: unrolled")
        return keras_call(sequences, *args, **kwargs)

    def call(
        sequences: Any, initial_state: Any = None, mask: Any = None, training: Any = False
    ) -> Any:
        if mask is None and initial_state is None and forms.batch and can_fuse(layer):
            forms.fused.append(layer.name)
            return _fused_lstm(layer, sequences, forms.batch)
        assert steps is not None
        return _computed(layer, steps(), sequences, initial_state, mask, forms)

    object.__setattr__(layer, "call", by_keras if steps is None else call)
    layer.unroll = steps is None
    try:
        yield
    finally:
        object.__delattr__(layer, "call")
        layer.unroll = unroll


def _require_few_steps(layer: Any, length: int | None) -> None:
    if length is not None and length > MOST_UNROLLED:
        raise NotConvertibleError(
            f"the layer {layer.name} ({type(layer).__name__}) gets {length} steps, and is unrolled "
            f"for TFLite, for at most {MOST_UNROLLED}: give fewer by --timesteps, or --to onnx"
        )


# --- by steps -------------------------------------------------------------------------------


def _computed(
    layer: Any, steps: Steps, sequences: Any, initial_state: States, mask: Any, forms: Forms
) -> Any:
    """What Keras' `RNN.call` gives."""
    import keras
    import tensorflow as tf

    length = sequences.shape[1]
    if length is None:
        raise NotConvertibleError(
            f"the layer {layer.name} gets sequences of unknown length: give it by --timesteps"
        )
    if initial_state is None:
        initial_state = layer.get_initial_state(batch_size=tf.shape(sequences)[0])
    if not keras.tree.is_nested(initial_state):
        initial_state = [initial_state]
    states = keras.tree.map_structure(tf.convert_to_tensor, list(initial_state))
    kept = None if mask is None else keras.tree.flatten(mask)[0]
    if layer.go_backwards:
        sequences = tf.reverse(sequences, [1])
        kept = None if kept is None else tf.reverse(kept, [1])
    zeros = tf.zeros((tf.shape(sequences)[0], layer.cell.output_size))
    run = partial(_run, steps, zeros if layer.zero_output_for_mask else None)
    if length <= UNROLLED:
        forms.loops.append(f"{layer.name}: unrolled")
        found, states = run(sequences, kept, zeros, states)
        output = tf.stack(found, axis=1) if layer.return_sequences else found[-1]
    else:
        size = block_size(length)
        forms.loops.append(f"{layer.name}: a WHILE over blocks of {size} of its {length} steps")
        outputs, last, states = run_in_blocks(
            run, sequences, kept, zeros, states, size, layer.return_sequences
        )
        output = outputs if layer.return_sequences else last
    return (output, *states) if layer.return_state else output


def _run(
    steps: Steps, repeated: Any, sequences: Any, mask: Any, output: Any, states: States
) -> tuple[list[Any], States]:
    """Step after step, without a loop; see `blocks.Run`.

    Masked steps keep the states, and give `repeated`, or where that is None the output before.
    """
    import keras
    import tensorflow as tf

    masks = None if mask is None else tf.unstack(mask, axis=1)
    outputs = []
    for place, inputs in enumerate(_per_step(steps.project, sequences)):
        found, new = steps.step(inputs, states)
        if masks is not None:
            keep = masks[place][:, None]
            found = tf.where(keep, found, output if repeated is None else repeated)
            new = keras.tree.map_structure(lambda a, b, k=keep: tf.where(k, a, b), new, states)
        outputs.append(found)
        output, states = found, new
    return outputs, states


def _per_step(project: Callable[[Any], Any], sequences: Any) -> list[Any]:
    """(batch, time, features) to the projected (batch, ...) of each step, by one product."""
    import tensorflow as tf

    batch, length, features = sequences.shape
    rows = project(tf.reshape(sequences, (-1, features)))
    shape = (-1 if batch is None else batch, length, rows.shape[-1])
    steps: list[Any] = tf.unstack(tf.reshape(rows, shape), axis=1)
    return steps


# --- TFLite's own LSTM operator -------------------------------------------------------------


def _fused_lstm(layer: Any, sequences: Any, batch: int) -> Any:
    """The layer as a function that the TFLite converter takes for Keras' LSTM.

    It knows it by the attribute and by the places of arguments and results, throws away what the
    function computes, and uses the second result only: all outputs. States start as zeros.
    """
    import tensorflow as tf

    cell = layer.cell
    bias = tf.convert_to_tensor(cell.bias) if cell.use_bias else tf.zeros((4 * cell.units,))

    def stand_in(x: Any, h: Any, c: Any, kernel: Any, recurrent: Any, bias: Any) -> Any:
        ends = tf.reduce_sum(kernel) + tf.reduce_sum(recurrent) + tf.reduce_sum(bias)
        y = tf.zeros((*tf.unstack(tf.shape(x)[:2]), cell.units)) + tf.reduce_sum(x) + ends
        return y[:, -1], y, h, c, tf.constant(0.0)

    function = tf.function(
        stand_in,
        autograph=False,
        experimental_attributes={
            "api_implements": "lstm_keras",
            "time_major": False,
            "go_backwards": False,
        },
    )
    x = tf.reverse(sequences, [1]) if layer.go_backwards else sequences
    zeros = tf.zeros((batch, cell.units))
    kernel, recurrent = (tf.convert_to_tensor(w) for w in (cell.kernel, cell.recurrent_kernel))
    outputs = function(x, zeros, zeros, kernel, recurrent, bias)[1]
    return outputs if layer.return_sequences else outputs[:, -1]

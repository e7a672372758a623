"""Recurrent layers as TensorFlow ops that TFLite has: unrolled steps, or its own LSTM operator.

Keras' loop becomes `TensorListReserve` in a TFLite conversion, which needs a batch size. Here each
time step is a few plain ops; the inputs' part of all steps is one matrix product.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

from rnnconvert.errors import NotConvertibleError

States = Any
"""Nested lists of tensors, as Keras has them for a cell."""


@dataclass
class Forms:
    """How the recurrent layers of one model are written; counts what was done.

    Attributes:
        batch: the batch size, where it is fixed: TFLite's LSTM operator needs one.
        fused: names of the layers that became the operator.
        unrolled: names of the others; once for each call.
    """

    batch: int | None
    fused: list[str] = field(default_factory=list)
    unrolled: list[str] = field(default_factory=list)


@contextmanager
def replaced_calls(model: Any, forms: Forms) -> Iterator[None]:
    """Within, every recurrent layer of a Keras model computes by the functions of this module."""
    with ExitStack() as stack:
        for layer in recurrent_layers(model):
            stack.enter_context(_replaced_call(layer, forms))
        yield


def recurrent_layers(model: Any) -> list[Any]:
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
    steps = _steps_of(layer.cell) if type(layer) in own else None
    before = layer.unroll
    if steps is None:  # Keras' own step, unrolled
        layer.unroll = True
        forms.unrolled.append(layer.name)
        try:
            yield
        finally:
            layer.unroll = before
        return

    def call(
        sequences: Any, initial_state: Any = None, mask: Any = None, training: Any = False
    ) -> Any:
        if mask is None and initial_state is None and forms.batch and can_fuse(layer):
            forms.fused.append(layer.name)
            return _fused_lstm(layer, sequences, forms.batch)
        forms.unrolled.append(layer.name)
        return _unrolled(layer, steps(), sequences, initial_state, mask)

    object.__setattr__(layer, "call", call)
    try:
        yield
    finally:
        object.__delattr__(layer, "call")


# --- unrolled -------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Steps:
    """A cell, cut in two.

    Attributes:
        project: inputs (rows, features) to what `step` takes of them: for all steps at once.
        step: projected inputs (batch, ...) and states to the output and the next states.
    """

    project: Callable[[Any], Any]
    step: Callable[[Any, States], tuple[Any, States]]


def _unrolled(layer: Any, steps: _Steps, sequences: Any, initial_state: States, mask: Any) -> Any:
    """What Keras' `RNN.call` gives, without a loop."""
    import keras
    import tensorflow as tf

    if sequences.shape[1] is None:
        raise NotConvertibleError(
            f"the layer {layer.name} gets sequences of unknown length: give it by --timesteps"
        )
    if initial_state is None:
        initial_state = layer.get_initial_state(batch_size=tf.shape(sequences)[0])
    if not keras.tree.is_nested(initial_state):
        initial_state = [initial_state]
    states = keras.tree.map_structure(tf.convert_to_tensor, list(initial_state))
    outputs, states = _loop(layer, steps, sequences, states, mask)
    output = tf.stack(outputs, axis=1) if layer.return_sequences else outputs[-1]
    return (output, *states) if layer.return_state else output


def _loop(
    layer: Any, steps: _Steps, sequences: Any, states: States, mask: Any
) -> tuple[list[Any], States]:
    """Outputs step by step in the order of computation, and the last states.

    Masked steps keep the states, and repeat the last output or give zeros, as the layer says.
    """
    import keras
    import tensorflow as tf

    inputs = _per_step(steps.project, sequences)
    masks = None if mask is None else tf.unstack(keras.tree.flatten(mask)[0], axis=1)
    order = range(len(inputs))
    outputs: list[Any] = []
    previous = None
    for place in reversed(order) if layer.go_backwards else order:
        output, new = steps.step(inputs[place], states)
        if masks is not None:
            keep = masks[place][:, None]
            if previous is None or layer.zero_output_for_mask:
                previous = tf.zeros_like(output)
            output = tf.where(keep, output, previous)
            new = keras.tree.map_structure(lambda a, b, k=keep: tf.where(k, a, b), new, states)
        outputs.append(output)
        previous, states = output, new
    return outputs, states


def _per_step(project: Callable[[Any], Any], sequences: Any) -> list[Any]:
    """(batch, time, features) to the projected (batch, ...) of each step, by one product."""
    import tensorflow as tf

    batch, length, features = sequences.shape
    rows = project(tf.reshape(sequences, (-1, features)))
    shape = (-1 if batch is None else batch, length, rows.shape[-1])
    steps: list[Any] = tf.unstack(tf.reshape(rows, shape), axis=1)
    return steps


def _steps_of(cell: Any) -> Callable[[], _Steps] | None:
    """How to cut a cell (its weights are read when it is called); None for others than Keras'."""
    import keras

    cutters = {
        keras.layers.LSTMCell: _lstm,
        keras.layers.GRUCell: _gru,
        keras.layers.SimpleRNNCell: _simple,
    }
    if type(cell) is keras.layers.StackedRNNCells:
        cells = [_steps_of(each) for each in cell.cells]
        found = [each for each in cells if each is not None]
        return (lambda: _stacked([each() for each in found])) if len(found) == len(cells) else None
    cut = cutters.get(type(cell))
    return None if cut is None else lambda: cut(cell)


def _stacked(cells: Sequence[_Steps]) -> _Steps:
    def step(inputs: Any, states: States) -> tuple[Any, States]:
        new = []
        for cell, state in zip(cells, states, strict=True):
            inputs, after = cell.step(cell.project(inputs), list(state))
            new.append(after)
        return inputs, new

    return _Steps(lambda rows: rows, step)


def _affine(kernel: Any, bias: Any) -> Callable[[Any], Any]:
    import tensorflow as tf

    return lambda rows: tf.matmul(rows, kernel) if bias is None else tf.matmul(rows, kernel) + bias


def _lstm(cell: Any) -> _Steps:
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

    return _Steps(_affine(kernel, reordered(cell.bias) if cell.use_bias else None), step)


def _gru(cell: Any) -> _Steps:
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
    return _Steps(_affine(tf.convert_to_tensor(cell.kernel), first), step)


def _simple(cell: Any) -> _Steps:
    import tensorflow as tf

    recurrent = tf.convert_to_tensor(cell.recurrent_kernel)
    bias = tf.convert_to_tensor(cell.bias) if cell.use_bias else None

    def step(inputs: Any, states: States) -> tuple[Any, States]:
        hidden = cell.activation(inputs + tf.matmul(states[0], recurrent))
        return hidden, [hidden]

    return _Steps(_affine(tf.convert_to_tensor(cell.kernel), bias), step)


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

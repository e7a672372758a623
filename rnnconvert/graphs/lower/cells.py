"""One direction of one layer in ordinary TensorFlow ops.

Equations (cuDNN developer guide; x, h row vectors):

    LSTM  i=s(xWi'+hRi'+bWi+bRi)  f=s(..)  n=tanh(..)  o=s(..)   c' = f*c + i*n     h' = o*tanh(c')
    GRU   r=s(..)  z=s(..)  n=tanh(xWn'+bWn + r*(hRn'+bRn))      h' = (1-z)*n + z*h
    RNN   h' = act(xW'+hR'+bW+bR)

Three forms: TensorFlow's fused BlockLSTM where it fits, a loop otherwise, and on request the loop
unrolled. In the latter two the input's matmul is done once, ahead, for all time steps.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rnnconvert.graphs.framework import tf

Step = Callable[[Any, Any, Any], tuple[Any, Any]]
"""(what the input adds to the gates, h, c) to the next (h, c)."""


@dataclass(frozen=True)
class Weights:
    """Tensors of one direction of one layer, gates stacked along the first axis.

    Attributes:
        kernel: (gates * units, inputs), or None: each gate sees the input itself (skip input).
        recurrent: (gates * units, outputs).
        projection: (outputs, units), or None.
        input_bias, recurrent_bias: (gates * units,).
    """

    kernel: Any | None
    recurrent: Any
    projection: Any | None
    input_bias: Any
    recurrent_bias: Any


def run_fused_lstm(weights: Weights, x: Any, h: Any, c: Any) -> tuple[Any, Any]:
    """TensorFlow's fused LSTM over all steps of x (time, batch, inputs); h and c of every step.

    BlockLSTM, never BlockLSTMV2: the gradient that TensorFlow registers for V2 is that of the other
    version, with another order of gates, and silently wrong. Its gates are i c f o. Its defaults
    clip the cell state at 3 and add 1 to the forget gate. It has no float64 kernel.
    """
    units = weights.recurrent.shape[1]
    kernel = weights.kernel
    if kernel is None:
        kernel = tf.tile(tf.eye(units, dtype=x.dtype), [4, 1])
    matrix = tf.concat([_gates_icfo(kernel), _gates_icfo(weights.recurrent)], axis=1)
    no_peephole = tf.zeros([units], x.dtype)
    result = tf.raw_ops.BlockLSTM(
        seq_len_max=tf.shape(x, out_type=tf.int64)[0], x=x, cs_prev=c, h_prev=h,
        w=tf.transpose(matrix), wci=no_peephole, wcf=no_peephole, wco=no_peephole,
        b=_gates_icfo(weights.input_bias + weights.recurrent_bias),
        forget_bias=0.0, cell_clip=-1.0, use_peephole=False,
    )  # fmt: skip
    return result.h, result.cs


def _gates_icfo(gates: Any) -> Any:
    i, f, c, o = tf.split(gates, 4)
    return tf.concat([i, c, f, o], axis=0)


def loop_over_steps(mode: str, weights: Weights, x: Any, h: Any, c: Any) -> tuple[Any, Any]:
    """A loop over all steps of x (time, batch, inputs); h and c of every step.

    For cells without c, `c` is handed through and what is returned for it means nothing.
    """
    from_input, step = _prepare(mode, weights, x)
    steps = tf.shape(from_input)[0]
    parts = tf.TensorArray(x.dtype, steps, element_shape=from_input.shape[1:]).unstack(from_input)
    outputs = tf.TensorArray(x.dtype, steps, element_shape=h.shape)
    # No maximum_iterations: it costs three more ops in every turn.
    if mode != "lstm":

        def advance(t: Any, h: Any, outputs: Any) -> tuple[Any, ...]:
            h, _ = step(parts.read(t), h, None)
            return t + 1, h, outputs.write(t, h)

        _, _, outputs = tf.while_loop(lambda t, *_: t < steps, advance, (0, h, outputs))
        return outputs.stack(), c
    cells = tf.TensorArray(x.dtype, steps, element_shape=c.shape)

    def advance_lstm(t: Any, h: Any, c: Any, outputs: Any, cells: Any) -> tuple[Any, ...]:
        h, c = step(parts.read(t), h, c)
        return t + 1, h, c, outputs.write(t, h), cells.write(t, c)

    *_, outputs, cells = tf.while_loop(
        lambda t, *_: t < steps, advance_lstm, (0, h, c, outputs, cells)
    )
    return outputs.stack(), cells.stack()


def run_unrolled(
    mode: str,
    weights: Weights,
    x: Any,
    h: Any,
    c: Any,
    *,
    steps: int,
    backwards: bool,
    valid: Any | None,
) -> tuple[Any, Any, Any]:
    """Each step as ops of its own; all outputs (time, batch, outputs), the last h and the last c.

    Args:
        steps: number of time steps, which x must have.
        backwards: from the last step to the first.
        valid: (time, batch, 1), False where a sequence has ended: the states stay, the output is 0.
    """
    from_input, step = _prepare(mode, weights, x)
    parts = tf.unstack(from_input, steps)
    masks = tf.unstack(valid, steps) if valid is not None else None
    outputs = [None] * steps
    for t in range(steps)[:: -1 if backwards else 1]:
        next_h, next_c = step(parts[t], h, c)
        if masks is None:
            h, c, outputs[t] = next_h, next_c, next_h
        else:
            h = tf.where(masks[t], next_h, h)
            c = tf.where(masks[t], next_c, c) if mode == "lstm" else c
            outputs[t] = tf.where(masks[t], next_h, tf.zeros_like(next_h))
    return tf.stack(outputs), h, c


def _prepare(mode: str, weights: Weights, x: Any) -> tuple[Any, Step]:
    """What the input adds to the gates in every step, (time, batch, gates), and the step."""
    units = weights.recurrent.shape[0] // {"lstm": 4, "gru": 3}.get(mode, 1)
    bias = weights.input_bias
    if mode != "gru":
        bias += weights.recurrent_bias
    if weights.kernel is None:
        from_input = tf.tile(x, [1, 1, weights.recurrent.shape[0] // units]) + bias
    else:
        time, batch, width = tf.unstack(tf.shape(x))
        flat = tf.reshape(x, tf.stack([time * batch, width]))
        flat = tf.nn.bias_add(tf.matmul(flat, weights.kernel, transpose_b=True), bias)
        from_input = tf.reshape(flat, tf.stack([time, batch, weights.recurrent.shape[0]]))
    # Transposed once, ahead of all steps.
    recurrent = tf.transpose(weights.recurrent)
    if mode == "lstm":
        projection = weights.projection
        return from_input, _lstm_step(
            recurrent, None if projection is None else tf.transpose(projection)
        )
    if mode == "gru":
        return from_input, _gru_step(recurrent, weights.recurrent_bias, units)
    activation = tf.tanh if mode == "rnn_tanh" else tf.nn.relu
    return from_input, lambda gates, h, c: (activation(gates + tf.matmul(h, recurrent)), c)


def _lstm_step(recurrent: Any, projection: Any | None) -> Step:
    def step(gates: Any, h: Any, c: Any) -> tuple[Any, Any]:
        i, f, n, o = tf.split(gates + tf.matmul(h, recurrent), 4, axis=-1)
        c = tf.sigmoid(f) * c + tf.sigmoid(i) * tf.tanh(n)
        h = tf.sigmoid(o) * tf.tanh(c)
        return (h if projection is None else tf.matmul(h, projection)), c

    return step


def _gru_step(recurrent: Any, bias: Any, units: int) -> Step:
    def step(gates: Any, h: Any, c: Any) -> tuple[Any, Any]:
        from_state = tf.nn.bias_add(tf.matmul(h, recurrent), bias)
        both, new = tf.split(gates, [2 * units, units], axis=-1)
        both_from_state, new_from_state = tf.split(from_state, [2 * units, units], axis=-1)
        r, z = tf.split(tf.sigmoid(both + both_from_state), 2, axis=-1)
        n = tf.tanh(new + r * new_from_state)
        return n + z * (h - n), c

    return step

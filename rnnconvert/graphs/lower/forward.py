"""cuDNN's forward pass over all layers and directions, in ordinary TensorFlow ops."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rnnconvert.graphs.framework import tf
from rnnconvert.graphs.lower import cells, layout
from rnnconvert.graphs.lower.cells import Weights
from rnnconvert.graphs.lower.layout import RnnShape


@dataclass(frozen=True)
class Sequences:
    """What the lengths of the sequences mean for a layer; all of it does nothing without lengths.

    Attributes:
        lengths: (batch,), or None: every sequence is as long as the input.
        valid: (time, batch, 1), False after a sequence's end; None without lengths.
    """

    lengths: Any | None
    valid: Any | None

    @classmethod
    def of(cls, lengths: Any | None, steps: Any) -> Sequences:
        if lengths is None:
            return cls(None, None)
        # Not by a slice with a new axis, for which TFLite has no operator.
        return cls(lengths, tf.expand_dims(tf.transpose(tf.sequence_mask(lengths, steps)), 2))

    def masked(self, x: Any) -> Any:
        """0 after each sequence's end."""
        return x if self.valid is None else tf.where(self.valid, x, tf.zeros_like(x))

    def reversed(self, x: Any) -> Any:
        """Each sequence backwards; what comes after its end stays there."""
        if self.lengths is None:
            return tf.reverse(x, [0])
        return tf.reverse_sequence(x, self.lengths, seq_axis=0, batch_axis=1)

    def last(self, states: Any, first: Any) -> Any:
        """The state after each sequence's last step, of the states after every step."""
        if self.lengths is None:
            return states[-1]
        lengths = tf.cast(self.lengths, tf.int32)
        places = tf.stack([tf.maximum(lengths - 1, 0), tf.range(tf.size(lengths))], axis=1)
        some = (lengths > 0)[:, tf.newaxis]
        return tf.where(some, tf.gather_nd(states, places), first)


def split_params(shape: RnnShape, params: Any, input_size: Any) -> list[Weights]:
    """The weights of each (layer, direction) pair; running this checks the buffer's length.

    Args:
        shape: of the RNN.
        params: the flat buffer.
        input_size: a tensor to take where shape.input_size is None.
    """
    regions = shape.regions()
    tensors: dict[tuple[str, int], Any] = {}
    if any(-1 in region.shape for region in regions):
        sizes = [
            tf.stack([input_size if size == -1 else size for size in region.shape])
            for region in regions
        ]
        lengths = tf.stack([tf.reduce_prod(size) for size in sizes])
    else:
        sizes = [region.shape for region in regions]
        lengths = [_length(size) for size in sizes]
    parts = tf.split(params, lengths, num=len(regions))
    for region, part, size in zip(regions, parts, sizes, strict=True):
        tensors[region.kind, region.pair] = (
            tf.reshape(part, size) if len(region.shape) > 1 else part
        )
    return [
        Weights(
            kernel=tensors.get((layout.INPUT_KERNEL, pair)),
            recurrent=tensors[layout.RECURRENT_KERNEL, pair],
            projection=tensors.get((layout.PROJECTION, pair)),
            input_bias=tensors[layout.INPUT_BIAS, pair],
            recurrent_bias=tensors[layout.RECURRENT_BIAS, pair],
        )
        for pair in range(shape.pairs)
    ]


def _length(size: tuple[int, ...]) -> int:
    return size[0] * (size[1] if len(size) > 1 else 1)


def run_forward(
    shape: RnnShape,
    x: Any,
    h: Any,
    c: Any,
    params: Any,
    lengths: Any | None = None,
    *,
    time_major: bool = True,
    unroll: int | None = None,
) -> tuple[Any, Any, Any]:
    """The op's output, output_h and output_c.

    Args:
        shape: of the RNN.
        x: (time, batch, inputs), or (batch, time, inputs) without time_major.
        h, c: (pairs, batch, outputs or units), or (batch, pairs, ...) without time_major, which is
            read as the former without a transposition: TensorFlow hands the memory to cuDNN so.
            c matters for an LSTM only.
        params: the flat buffer.
        lengths: of the sequences, (batch,): outputs are 0 after them, states those at their ends.
        time_major: as above; output and states are laid out in the same way.
        unroll: number of time steps, each to become ops of its own; None for a loop.

    Returns:
        Three tensors; the last is a scalar without meaning for cells other than an LSTM.
    """
    dtype = x.dtype
    if dtype in (tf.float16, tf.bfloat16):  # computed in float32 by cuDNN, and by TensorFlow for it
        x, h, c, params = (tf.cast(tensor, tf.float32) for tensor in (x, h, c, params))
    if not time_major:
        x, h, c = _to_time_major(shape, x, h, c)
    weights = split_params(shape, params, tf.shape(x)[2])
    h = tf.unstack(h, shape.pairs)
    c = tf.unstack(c, shape.pairs) if shape.mode == "lstm" else h
    results = _layers(shape, weights, x, h, c, lengths, unroll)
    if not time_major:
        results = _to_batch_major(shape, *results)
    output, last_h, last_c = (tf.cast(tensor, dtype) for tensor in results)
    return output, last_h, last_c


def _to_time_major(shape: RnnShape, x: Any, h: Any, c: Any) -> tuple[Any, Any, Any]:
    batch = tf.shape(x)[0]
    h = tf.reshape(h, tf.stack([shape.pairs, batch, shape.output_size]))
    if shape.mode == "lstm":
        c = tf.reshape(c, tf.stack([shape.pairs, batch, shape.units]))
    return tf.transpose(x, [1, 0, 2]), h, c


def _to_batch_major(shape: RnnShape, output: Any, h: Any, c: Any) -> tuple[Any, Any, Any]:
    batch = tf.shape(output)[1]
    h = tf.reshape(h, tf.stack([batch, shape.pairs, shape.output_size]))
    if shape.mode == "lstm":
        c = tf.reshape(c, tf.stack([batch, shape.pairs, shape.units]))
    return tf.transpose(output, [1, 0, 2]), h, c


def _layers(
    shape: RnnShape,
    weights: list[Weights],
    x: Any,
    h: list[Any],
    c: list[Any],
    lengths: Any | None,
    unroll: int | None,
) -> tuple[Any, Any, Any]:
    """All layers on a time-major input: output, and the last h and c of all pairs."""
    sequences = Sequences.of(lengths, tf.shape(x)[0])
    last_h, last_c = [], []
    x = sequences.masked(x)
    for layer in range(shape.num_layers):
        outputs = []
        for direction in range(shape.directions):
            pair = layer * shape.directions + direction
            output, next_h, next_c = _one_direction(
                shape, weights[pair], x, h[pair], c[pair], sequences, direction == 1, unroll
            )
            outputs.append(output)
            last_h.append(next_h)
            last_c.append(next_c)
        x = sequences.masked(tf.concat(outputs, axis=-1) if len(outputs) > 1 else outputs[0])
    return x, tf.stack(last_h), tf.stack(last_c) if shape.mode == "lstm" else tf.zeros([], x.dtype)


def _one_direction(
    shape: RnnShape,
    weights: Weights,
    x: Any,
    h: Any,
    c: Any,
    sequences: Sequences,
    backwards: bool,
    unroll: int | None,
) -> tuple[Any, Any, Any]:
    """Output of all steps, last h and last c of one direction of one layer."""
    if unroll is not None:
        return cells.run_unrolled(
            shape.mode, weights, x, h, c,
            steps=unroll, backwards=backwards, valid=sequences.valid,
        )  # fmt: skip
    given = sequences.reversed(x) if backwards else x
    if shape.mode == "lstm" and not shape.num_proj and x.dtype == tf.float32:
        hs, cs = cells.run_fused_lstm(weights, given, h, c)
    else:
        hs, cs = cells.loop_over_steps(shape.mode, weights, given, h, c)
    last_c = sequences.last(cs, c) if shape.mode == "lstm" else c
    return (sequences.reversed(hs) if backwards else hs), sequences.last(hs, h), last_c

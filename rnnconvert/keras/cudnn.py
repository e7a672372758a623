"""One CuDNN layer on cuDNN itself, fed as Keras 2's layer fed it. Needs a GPU.

Keras 2 flattened each gate's stored block as it lies and handed cuDNN one buffer: the input
matrices, the recurrent matrices, the input biases, the recurrent biases, each in cuDNN's order of
the gates (LSTM i f g o, GRU r z n).
"""

from __future__ import annotations

from typing import Any

GATES = {"lstm": (0, 1, 2, 3), "gru": (1, 0, 2)}
"""cuDNN's gates as places in Keras' order (i f g o; z r n)."""


def run_on_tensorflow(
    cell: str, weights: tuple[Any, Any, Any], sequences: Any, states: list[Any]
) -> tuple[Any, list[Any]]:
    """TensorFlow's op CudnnRNNV3.

    Args:
        cell: "lstm" or "gru".
        weights: kernel (inputs, gates*units), recurrent_kernel (units, gates*units), bias
            (2*gates*units,), all as Keras 2 stored them.
        sequences: (batch, time, inputs).
        states: (batch, units) each: h, and c of an LSTM.

    Returns:
        All outputs (batch, time, units) and the last states.
    """
    import tensorflow as tf

    params = tf.concat([tf.reshape(part, [-1]) for part in _parts(cell, weights)], axis=0)
    batch, steps = tf.shape(sequences)[0], tf.shape(sequences)[1]
    h = states[0][tf.newaxis]
    output, h, c, _, _ = tf.raw_ops.CudnnRNNV3(
        input=tf.transpose(sequences, [1, 0, 2]),
        input_h=h,
        input_c=states[1][tf.newaxis] if cell == "lstm" else tf.zeros([], h.dtype),
        params=params,
        sequence_lengths=tf.fill([batch], steps),
        rnn_mode=cell,
        is_training=False,
        time_major=True,
    )
    last = [h[0], c[0]] if cell == "lstm" else [h[0]]
    return tf.transpose(output, [1, 0, 2]), last


def run_on_torch(
    cell: str, weights: tuple[Any, Any, Any], sequences: Any, states: list[Any]
) -> tuple[Any, list[Any]]:
    """torch's LSTM or GRU: cuDNN's where the tensors are on a GPU. Arguments as above."""
    import torch

    kernel, recurrent_kernel, _ = weights
    inputs, units = kernel.shape[0], recurrent_kernel.shape[0]
    module = {"lstm": torch.nn.LSTM, "gru": torch.nn.GRU}[cell](
        inputs, units, batch_first=True, device=kernel.device, dtype=kernel.dtype
    )
    parts = [part.reshape(-1) for part in _parts(cell, weights)]
    gates = len(GATES[cell])
    places = [parts[start : start + gates] for start in range(0, 4 * gates, gates)]
    names = ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0")
    with torch.no_grad():
        for name, blocks in zip(names, places, strict=True):
            parameter = getattr(module, name)
            parameter.copy_(torch.cat(blocks).reshape(parameter.shape))
        module.flatten_parameters()
        given = [state[None].contiguous() for state in states]
        output, last = module(sequences, tuple(given) if cell == "lstm" else given[0])
    return output, [state[0] for state in (last if cell == "lstm" else [last])]


def _parts(cell: str, weights: tuple[Any, Any, Any]) -> list[Any]:
    """The blocks of all gates in the order of cuDNN's buffer."""
    kernel, recurrent_kernel, bias = weights
    units, order = recurrent_kernel.shape[0], GATES[cell]
    parts = []
    for matrix in (kernel, recurrent_kernel):
        parts += [matrix[:, gate * units : (gate + 1) * units] for gate in order]
    half_size = len(order) * units
    for half in (bias[:half_size], bias[half_size:]):
        parts += [half[gate * units : (gate + 1) * units] for gate in order]
    return parts

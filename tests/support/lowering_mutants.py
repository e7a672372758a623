"""Wrong lowerings, each as what to patch; every level of verification must catch them all."""

from __future__ import annotations

from collections.abc import Callable

import tensorflow as tf
from lowering_torch import UNITS

from rnnconvert.graphs.lower import cells, forward
from rnnconvert.graphs.lower.layout import RnnShape


def _regions(order: Callable[[list, RnnShape], list]):  # type: ignore[no-untyped-def, type-arg]
    whole = RnnShape.regions
    return RnnShape, "regions", lambda self: order(whole(self), self)


def _by_pair(regions: list, shape: RnnShape) -> list:  # type: ignore[type-arg]
    """torch's own order: matrices and biases of a layer together."""
    return sorted(regions, key=lambda region: region.pair)


def _biases_first(regions: list, shape: RnnShape) -> list:  # type: ignore[type-arg]
    return sorted(regions, key=lambda region: len(region.shape))


def _recurrent_first(regions: list, shape: RnnShape) -> list:  # type: ignore[type-arg]
    return [*regions[1:2], *regions[:1], *regions[2:]]


def _recurrent_bias_first(regions: list, shape: RnnShape) -> list:  # type: ignore[type-arg]
    biases = regions[-2 * shape.pairs :]
    swapped = [biases[n ^ 1] for n in range(len(biases))]
    return [*regions[: -2 * shape.pairs], *swapped]


def _directions_outside(regions: list, shape: RnnShape) -> list:  # type: ignore[type-arg]
    return sorted(
        regions,
        key=lambda region: (len(region.shape) == 1, region.pair % 2, region.pair),
    )


def _one_bias_for_both(weights: cells.Weights) -> cells.Weights:
    return cells.Weights(
        weights.kernel, weights.recurrent, weights.projection,
        weights.input_bias + weights.recurrent_bias, 0.0 * weights.recurrent_bias,
    )  # fmt: skip


def _split(change: Callable[[cells.Weights], cells.Weights]):  # type: ignore[no-untyped-def]
    whole = forward.split_params
    return forward, "split_params", lambda *args: [change(each) for each in whole(*args)]


def _gates(order: list[int]) -> Callable[[cells.Weights], cells.Weights]:
    def change(weights: cells.Weights) -> cells.Weights:
        def move(tensor):  # type: ignore[no-untyped-def]
            parts = tf.split(tensor, len(order))
            return tf.concat([parts[gate] for gate in order], 0)

        return cells.Weights(
            move(weights.kernel), move(weights.recurrent), None,
            move(weights.input_bias), move(weights.recurrent_bias),
        )  # fmt: skip

    return change


def _matrix_as_it_lies(weights: cells.Weights) -> cells.Weights:
    """Each gate's numbers read as (inputs, units): what a Keras kernel would be."""
    kernel = weights.kernel
    width = kernel.shape[1]
    gates = tf.reshape(kernel, [-1, width, UNITS])
    kernel = tf.reshape(tf.transpose(gates, [0, 2, 1]), [-1, width])
    return cells.Weights(
        kernel, weights.recurrent, None, weights.input_bias, weights.recurrent_bias
    )


def _reset_before(recurrent, bias, units):  # type: ignore[no-untyped-def]
    def step(gates, h, c):  # type: ignore[no-untyped-def]
        r, z = tf.split(
            tf.sigmoid(gates[:, : 2 * units] + h @ recurrent[:, : 2 * units] + bias[: 2 * units]),
            2, axis=-1,
        )  # fmt: skip
        n = gates[:, 2 * units :] + (r * h) @ recurrent[:, 2 * units :] + bias[2 * units :]
        n = tf.tanh(n)
        return n + z * (h - n), c

    return step


def _last_as_first(self, states, first):  # type: ignore[no-untyped-def]
    return states[-1]


MUTANTS: dict[str, tuple[str, tuple[object, str, object]]] = {
    "parameters layer by layer": ("gru", _regions(_by_pair)),
    "biases before matrices": ("gru", _regions(_biases_first)),
    "recurrent kernel first": ("lstm", _regions(_recurrent_first)),
    "recurrent bias first": ("gru", _regions(_recurrent_bias_first)),
    "all layers of a direction together": ("rnn_tanh", _regions(_directions_outside)),
    "GRU with one bias": ("gru", _split(_one_bias_for_both)),
    "GRU gates z r n": ("gru", _split(_gates([1, 0, 2]))),
    "LSTM gates i c f o": ("lstm", _split(_gates([0, 2, 1, 3]))),
    "LSTM gates i f o c": ("lstm", _split(_gates([0, 1, 3, 2]))),
    "matrices of Keras' orientation": ("lstm", _split(_matrix_as_it_lies)),
    "GRU resetting before the matmul": ("gru", (cells, "_gru_step", _reset_before)),
    "LSTM gates unsorted for BlockLSTM": ("lstm", (cells, "_gates_icfo", lambda gates: gates)),
    "relu for tanh": ("rnn_tanh", (tf, "tanh", tf.nn.relu)),
    "states at the input's end, not the sequence's": (
        "lstm", (forward.Sequences, "last", _last_as_first),
    ),
    "whole input reversed, not each sequence": (
        "gru", (forward.Sequences, "reversed", lambda self, x: tf.reverse(x, [0])),
    ),
    "outputs after a sequence's end": (
        "rnn_relu", (forward.Sequences, "masked", lambda self, x: x),
    ),
}  # fmt: skip

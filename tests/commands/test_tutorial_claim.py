"""A public tutorial's claim, as a test: a Bidirectional CuDNN GRU over reversed right-padded
sequences equals the masked portable Bidirectional(GRU) on the valid steps.

CuDNN layers take no mask. For a bidirectional layer on padded sequences one ran two of them: one
on the padded input as it is, one on the input with each sequence reversed within its own length
(`tf.reverse_sequence`, the padding stays on the right), whose outputs are then reversed back in the
same way. On the valid steps that is what `Masking` and `Bidirectional(GRU)` compute. To reverse the
whole time axis instead, as `Bidirectional` does, starts the second layer in the padding.
"""

from __future__ import annotations

import numpy as np
import pytest

from rnnconvert import layouts

keras = pytest.importorskip("keras", reason="Keras 3 is not installed")
pytest.importorskip("keras.ops", reason="Keras 3 is not installed")
pytestmark = pytest.mark.slow

from rnnconvert.keras import CuDNNGRU

UNITS, INPUTS, TIME = 4, 3, 8
LENGTHS = np.array([8, 5, 1, 6])
PADDING = -7.0
"""A value that no input has, and that a layer which reads it can't overlook."""
TOLERANCE = 1e-6
WRONG = 0.05
KINDS = ("kernel", "recurrent_kernel", "bias")
VALID = np.arange(TIME) < LENGTHS[:, np.newaxis]


@pytest.fixture(scope="module")
def x() -> np.ndarray:
    """(batch, time, inputs), padded on the right to one length."""
    values = np.random.default_rng(0).standard_normal((len(LENGTHS), TIME, INPUTS))
    values[~VALID] = PADDING
    return values.astype("float32")


@pytest.fixture(scope="module")
def weights() -> list[list[np.ndarray]]:
    """Of the forward and the backward layer, as a CuDNNGRU holds them; unequal bias halves."""
    rng = np.random.default_rng(1)
    shapes = [(INPUTS, 3 * UNITS), (UNITS, 3 * UNITS), (6 * UNITS,)]
    draws = [[0.7 * rng.standard_normal(shape) for shape in shapes] for _ in range(2)]
    return [[array.astype("float32") for array in own] for own in draws]


def reversed_by_length(sequences: np.ndarray) -> np.ndarray:
    """Each sequence turned round within its length; the padding stays where it is."""
    turned = sequences.copy()
    for row, length in zip(turned, LENGTHS, strict=True):
        row[:length] = row[:length][::-1]
    return turned


def numpy(tensor) -> np.ndarray:
    return np.asarray(keras.ops.convert_to_numpy(tensor))


def cudnn(stored: list[np.ndarray], sequences: np.ndarray) -> np.ndarray:
    """All outputs of one CuDNNGRU, which sees no mask."""
    layer = CuDNNGRU(UNITS, return_sequences=True)
    layer.build(sequences.shape)
    layer.set_weights(stored)
    return numpy(layer(sequences))


@pytest.fixture(scope="module")
def portable(weights):
    """`Masking` and `Bidirectional(GRU)` with the converted weights, by return_sequences."""

    def run(sequences: np.ndarray, return_sequences: bool, mask: bool = True) -> np.ndarray:
        gru = keras.layers.GRU(UNITS, reset_after=True, return_sequences=return_sequences)
        layers = [keras.layers.Masking(PADDING)] if mask else []
        both = keras.layers.Bidirectional(gru)
        model = keras.Sequential([keras.Input((TIME, INPUTS)), *layers, both])
        converted = [
            layouts.convert(dict(zip(KINDS, own, strict=True)), "keras-cudnn", "keras", "gru")
            for own in weights
        ]
        both.set_weights([own[kind] for own in converted for kind in KINDS])
        return numpy(model(sequences))

    return run


@pytest.fixture(scope="module")
def by_hand(x, weights) -> np.ndarray:
    """What the tutorial computes: (batch, time, 2 * units), of use on the valid steps."""
    forward = cudnn(weights[0], x)
    backward = reversed_by_length(cudnn(weights[1], reversed_by_length(x)))
    return np.concatenate([forward, backward], axis=-1)


def test_the_claim_holds_on_the_valid_steps(x, by_hand, portable):
    gap = np.abs(by_hand - portable(x, return_sequences=True))
    assert gap[VALID].max() <= TOLERANCE


def test_it_says_nothing_of_the_padding(x, by_hand, portable):
    """There cuDNN goes on computing, and the masked layer repeats itself."""
    gap = np.abs(by_hand - portable(x, return_sequences=True))
    assert gap[~VALID].max() > WRONG


def test_the_last_states(x, weights, portable):
    """Without return_sequences: each direction's output at its last valid step."""
    last = (np.arange(len(LENGTHS)), LENGTHS - 1)
    forward = cudnn(weights[0], x)[last]
    backward = cudnn(weights[1], reversed_by_length(x))[last]
    found = np.concatenate([forward, backward], axis=-1)
    expected = portable(x, return_sequences=False)
    assert np.abs(found - expected).max() <= TOLERANCE
    at_the_end = cudnn(weights[0], x)[:, -1]
    short = LENGTHS < TIME
    assert np.abs(at_the_end - expected[:, :UNITS])[short].max() > WRONG


def test_it_does_not_hold_for_bidirectional_as_it_is(x, weights, portable):
    """Its backward layer has read the padding before it comes to the sequence."""
    both = keras.layers.Bidirectional(CuDNNGRU(UNITS, return_sequences=True))
    both.build(x.shape)
    both.set_weights([*weights[0], *weights[1]])
    gap = np.abs(numpy(both(x)) - portable(x, return_sequences=True))
    assert gap[..., :UNITS][VALID].max() <= TOLERANCE
    backward, full = gap[..., UNITS:].max(axis=-1), LENGTHS == TIME
    assert backward[full].max() <= TOLERANCE
    for row in np.flatnonzero(~full):
        assert backward[row][VALID[row]].max() > WRONG


def test_it_does_not_hold_without_the_way_back(x, weights, portable):
    """The outputs, too, must be reversed within their lengths."""
    expected = portable(x, return_sequences=True)[..., UNITS:]
    found = cudnn(weights[1], reversed_by_length(x))
    longer = (LENGTHS > 1)[:, np.newaxis]
    assert np.abs(found - expected)[VALID & longer].max() > WRONG


def test_it_does_not_hold_without_the_mask(x, by_hand, portable):
    """The portable layer, too, needs to know what is padding."""
    unmasked = portable(x, return_sequences=True, mask=False)
    assert np.abs(by_hand - unmasked)[VALID].max() > WRONG

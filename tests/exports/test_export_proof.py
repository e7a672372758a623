"""The proof in the runtime catches a wrong file; and then nothing is written."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from export_models import saved, sequential

import rnnconvert
from rnnconvert.errors import DifferenceError

pytestmark = pytest.mark.slow
for name in ("tensorflow", "keras", "onnx", "tf2onnx", "onnxruntime"):
    pytest.importorskip(name, reason=f"{name} is not installed")
from keras import layers

from rnnconvert.exports.onnx import markers, operators


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """A GRU and an LSTM that goes backwards, over a mask."""
    model = sequential(
        layers.Masking(0.0),
        layers.GRU(6, return_sequences=True),
        layers.LSTM(4, go_backwards=True, return_sequences=True),
    )
    return saved(model, tmp_path_factory.mktemp("models") / "model.keras")


def of_tensors(change: Any) -> Any:
    """A mutant of what is written as W, R and B."""
    right = operators.Recurrent.tensors.fget
    return property(lambda self: change(self, dict(right(self))))


def of_attributes(change: Any) -> Any:
    right = operators.Recurrent.attributes.fget
    return property(lambda self: change(self, dict(right(self))))


def gates_in_keras_order(self: Any, tensors: dict[str, Any]) -> dict[str, Any]:
    if self.operator == "LSTM":
        for key, array in tensors.items():
            halves = np.split(array, 2, axis=1) if key == "B" else [array]
            turned = [np.concatenate([np.split(half, 4, axis=1)[gate] for gate in (0, 2, 3, 1)], 1)
                      for half in halves]  # fmt: skip
            tensors[key] = np.concatenate(turned, axis=1)
    return tensors


def biases_swapped(self: Any, tensors: dict[str, Any]) -> dict[str, Any]:
    if self.operator == "GRU":
        tensors["B"] = np.concatenate(np.split(tensors["B"], 2, axis=1)[::-1], axis=1)
    return tensors


def without_linear_before_reset(self: Any, attributes: dict[str, Any]) -> dict[str, Any]:
    attributes.pop("linear_before_reset", None)
    return attributes


def the_other_way(self: Any, attributes: dict[str, Any]) -> dict[str, Any]:
    if attributes["direction"] == "reverse":
        attributes["direction"] = "forward"
    return attributes


def sigmoid_for_tanh(self: Any, attributes: dict[str, Any]) -> dict[str, Any]:
    attributes["activations"] = [*attributes["activations"][:-1], "Sigmoid"]
    return attributes


MUTANTS = {
    "gate order": ("tensors", of_tensors(gates_in_keras_order)),
    "biases swapped": ("tensors", of_tensors(biases_swapped)),
    "linear_before_reset missing": ("attributes", of_attributes(without_linear_before_reset)),
    "direction": ("attributes", of_attributes(the_other_way)),
    "activation": ("attributes", of_attributes(sigmoid_for_tanh)),
}


@pytest.mark.parametrize("mutant", MUTANTS)
@pytest.mark.sampled(8)
def test_a_wrong_operator_is_found_out(mutant, source, tmp_path, monkeypatch):
    monkeypatch.setattr(operators.Recurrent, *MUTANTS[mutant])
    with pytest.raises(DifferenceError, match="nothing was written") as caught:
        rnnconvert.export(source, tmp_path / "model.onnx")
    assert caught.value.exit_code == 1
    assert caught.value.report.verdict == "different"
    assert not list(tmp_path.iterdir())


@pytest.mark.corpus
def test_a_mask_taken_for_padding_on_the_right_is_found_out(source, tmp_path, monkeypatch):
    """tf2onnx's way: lengths alone. It is right for padding on the right, and for nothing else."""
    import tensorflow as tf

    def lengths_alone(sequences: Any, mask: Any) -> Any:
        return sequences, tf.reduce_sum(tf.cast(mask, tf.int32), 1)

    monkeypatch.setattr(markers, "_compacted", lengths_alone)
    with pytest.raises(DifferenceError, match="differs by"):
        rnnconvert.export(source, tmp_path / "model.onnx")
    assert not list(tmp_path.iterdir())


def test_a_swapped_output_is_found_out(tmp_path, monkeypatch):
    import keras

    x = keras.Input((None, 5))
    y, h, c = layers.LSTM(4, return_sequences=True, return_state=True)(x)
    path = saved(keras.Model(x, [y, h, c]), tmp_path / "model.keras")
    from rnnconvert.exports import onnx as target

    right = target.runner

    def swapped(place: Any, written: Any) -> Any:
        run = right(place, written)
        return lambda arrays: [run(arrays)[at] for at in (0, 2, 1)]

    monkeypatch.setattr(target, "runner", swapped)
    with pytest.raises(DifferenceError):
        rnnconvert.export(path, tmp_path / "model.onnx")


@pytest.mark.corpus
def test_what_is_right_passes_in_several_sizes_and_masks(source, tmp_path):
    report = rnnconvert.export(source, tmp_path / "model.onnx")
    [level] = report.model_level
    assert level.status == "passed"
    assert "3x7x5, 3x7x5, 1x7x5, 4x12x5" in level.detail  # the second with holes in its mask
    assert 0.0 <= level.max_abs <= level.tolerance

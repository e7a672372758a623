"""Weights of a subclassed model, which has no config: converted, in order, loaded in Keras 3."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import rnnconvert

keras = pytest.importorskip("keras", reason="Keras 3 is not installed")

FOLDER = Path(__file__).parents[2] / "fixtures" / "subclassed"
PRODUCERS = ["tf115", "tf23", "tf210", "tf215"]
LAYERS = ["last", "words", "gru", "lstm", "plain", "both"]
RECURRENT = ["gru", "lstm", "plain", "both", "both"]


class Model(keras.Model):
    """The user's own code, with portable layers in the places of the CuDNN ones."""

    def __init__(self):
        super().__init__(name="own")
        layers = keras.layers
        self.last = layers.Dense(2)
        self.words = layers.Embedding(9, 4)
        self.gru = layers.GRU(5, return_sequences=True)
        self.lstm = layers.LSTM(3, return_sequences=True)
        self.plain = layers.LSTM(7, return_sequences=True)
        self.both = layers.Bidirectional(layers.GRU(2))

    def call(self, x):
        return self.last(self.both(self.plain(self.gru(self.lstm(self.words(x))))))


def data_of(producer: str) -> dict[str, np.ndarray]:
    with np.load(FOLDER / producer / "data.npz") as data:
        return dict(data)


@pytest.fixture
def model():
    keras.backend.clear_session()
    model = Model()
    model(np.zeros((1, 6), "int32"))
    return model


def difference(model, producer: str) -> float:
    data = data_of(producer)
    return float(np.abs(keras.ops.convert_to_numpy(model(data["x"])) - data["y"]).max())


@pytest.mark.parametrize("producer", PRODUCERS)
@pytest.mark.sampled(4)
def test_the_h5_file_is_loaded_by_the_users_own_model(producer, model, tmp_path):
    source, output = FOLDER / producer / "weights.h5", tmp_path / "out.h5"
    report = rnnconvert.convert(source, output, device="cpu")
    assert report.verdict == "equivalent"
    assert [layer.site.path.split("/")[0] for layer in report.layers] == RECURRENT
    model.load_weights(output)
    assert difference(model, producer) < 1e-5


@pytest.mark.parametrize("producer", PRODUCERS)
def test_the_names_are_reported_in_the_order_of_the_file(producer):
    found = rnnconvert.inspect(FOLDER / producer / "weights.h5").to_dict()
    names = [name.split("/")[0] for name in data_of(producer)["names"]]
    assert [layer["name"] for layer in found["model"]] == list(dict.fromkeys(names)) == LAYERS
    assert [layer["path"].split("/")[0] for layer in found["layers"]] == RECURRENT


@pytest.mark.parametrize("producer", PRODUCERS)
@pytest.mark.corpus
def test_unconverted_weights_are_no_weights_of_keras_3(producer, model):
    """The old file is not loaded, or gives something else."""
    try:
        model.load_weights(FOLDER / producer / "weights.h5")
    except ValueError:
        return
    assert difference(model, producer) > 1e-3


@pytest.mark.parametrize("producer", PRODUCERS)
@pytest.mark.corpus
def test_the_checkpoint_gives_each_recurrent_layer(producer, model, tmp_path):
    """By the names of the model's attributes, which are all that a checkpoint has."""
    source = FOLDER / producer / "weights"
    found = rnnconvert.inspect(source).found
    assert sorted(stack.scope for stack in found.stacks) == [
        "both/backward_layer", "both/forward_layer", "gru", "lstm", "plain",
    ]  # fmt: skip
    assert rnnconvert.convert(source, tmp_path / "out.npz").is_equivalent
    rnnconvert.convert(FOLDER / producer / "weights.h5", tmp_path / "out.h5")
    model.load_weights(tmp_path / "out.h5")
    layers = {"gru": model.gru, "lstm": model.lstm, "plain": model.plain,
              "both/forward_layer": model.both.forward_layer,
              "both/backward_layer": model.both.backward_layer}  # fmt: skip
    with np.load(tmp_path / "out.npz") as arrays:
        for scope, layer in layers.items():
            for weight in layer.weights:
                stored = arrays[f"{scope}/layer_0/forward/{weight.name}"]
                assert np.array_equal(stored, keras.ops.convert_to_numpy(weight)), weight.path

"""The proof takes the user's way: `keras.models.load_model(path)`, then evaluate, then fit."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import h5py
import numpy as np
import pytest
from helpers import read_config, write_config
from models import FIXTURES

import rnnconvert
from rnnconvert import DifferenceError, NotConvertibleError
from rnnconvert.keras_models.files import h5_patch
from rnnconvert.keras_models.verify import loads
from rnnconvert.verification.frameworks import CannotRun

keras = pytest.importorskip("keras", reason="Keras 3 is not installed")
pytest.importorskip("keras.ops", reason="Keras 3 is not installed")
pytestmark = pytest.mark.slow

COMPILED = FIXTURES / "k224" / "plain_compiled" / "model.h5"


def spoil_config(path: Path) -> None:
    """A key that no Keras knows, which no repair takes away."""
    config = read_config(path)
    config["config"]["layers"][-1]["config"]["no_such_key"] = 1
    write_config(path, config)


def spoil_training(path: Path) -> None:
    """An optimizer that Keras can't make, so that the file loads with compile=False only."""
    with h5py.File(path, "r+") as file:
        training = json.loads(file.attrs["training_config"])
        training["optimizer_config"]["config"]["learning_rate"] = "fast"
        file.attrs["training_config"] = json.dumps(training)


def freeze_last_layer(path: Path) -> None:
    config = read_config(path)
    config["config"]["layers"][-1]["config"]["trainable"] = False
    write_config(path, config)


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (spoil_config, "load_model(path) raises"),
        (spoil_training, "loads with compile=False only"),
        (freeze_last_layer, "is trainable in one model only"),
    ],
)
@pytest.mark.sampled(2)
def test_a_wrong_file_is_a_failure_and_not_written(spoil, words, tmp_path, monkeypatch):
    apply = h5_patch.apply

    def apply_and_spoil(plan, file, path, **options):
        checked = apply(plan, file, path, **options)
        spoil(path)
        return checked

    monkeypatch.setattr(h5_patch, "apply", apply_and_spoil)
    with pytest.raises(DifferenceError) as caught:
        rnnconvert.convert(COMPILED, tmp_path / "out.h5", device="cpu")
    assert words in str(caught.value)
    assert caught.value.report.verdict == "different"
    assert not (tmp_path / "out.h5").exists()


def test_evaluate_and_one_step_are_compared(tmp_path):
    report = rnnconvert.convert(COMPILED, tmp_path / "out.h5", device="cpu")
    detail = report.model_level[0].detail
    assert "evaluate gives the same accuracy, loss" in detail
    assert "one step of Adam" in detail
    assert keras.models.load_model(tmp_path / "out.h5").compiled


def test_for_keras_2_it_is_loaded_there(tmp_path):
    pytest.importorskip("tf_keras", reason="tf_keras is not installed")
    report = rnnconvert.convert(COMPILED, tmp_path / "out.h5", device="cpu", target="keras2")
    assert report.proved == "model"
    assert "tf_keras" in report.model_level[0].detail


# --- nothing to convert ---------------------------------------------------------------------


@pytest.fixture(scope="module")
def written_by_keras3(tmp_path_factory):
    """Files of this very Keras: one that it loads, and two that it does not."""
    folder = tmp_path_factory.mktemp("keras3")
    layers = keras.layers
    model = keras.Sequential([keras.Input((7, 3)), layers.LSTM(4), layers.Dense(2)])
    model.compile("adam", "mean_squared_error")
    model.save(folder / "fine.h5")
    model.compile("adam", "mse", metrics=["mae"])
    model.save(folder / "short_names.h5")
    ids = keras.Input((7,))
    hidden = layers.Embedding(9, 3, mask_zero=True)(ids)
    hidden = layers.GRU(4)(layers.Dropout(0.5)(hidden))
    keras.Model(ids, keras.ops.reshape(hidden * 2.0, (-1, 2, 2))).save(folder / "mask.h5")
    return folder


def test_it_is_shown_by_loading(cli, written_by_keras3):
    told = cli("cudnn-to-keras", written_by_keras3 / "fine.h5")
    assert told.code == 0
    assert f"nothing to convert: no CuDNN layer, and keras {keras.__version__}" in told.out
    assert rnnconvert.convert(written_by_keras3 / "fine.h5").proved == "model"


def test_a_file_that_needs_nothing_known_and_does_not_load(written_by_keras3, tmp_path):
    shutil.copyfile(written_by_keras3 / "fine.h5", tmp_path / "m.h5")
    spoil_config(tmp_path / "m.h5")
    with pytest.raises(NotConvertibleError, match="load_model") as caught:
        rnnconvert.convert(tmp_path / "m.h5")
    assert caught.value.report.verdict == "not-convertible"


def test_without_keras_it_is_said_to_be_untried(cli, written_by_keras3, monkeypatch):
    def no_keras():
        raise CannotRun("Keras 3 can't be imported")

    monkeypatch.setattr(loads, "import_keras", no_keras)
    told = cli("cudnn-to-keras", written_by_keras3 / "fine.h5")
    assert told.code == 0
    assert "that Keras 3 loads it is not tried: no Keras here" in told.out
    assert cli("cudnn-to-keras", written_by_keras3 / "fine.h5", "--strict").code == 4


@pytest.mark.parametrize("name", ["short_names", "mask"])
def test_what_keras_3_writes_and_does_not_read(name, written_by_keras3, tmp_path):
    source, output = written_by_keras3 / f"{name}.h5", tmp_path / "out.h5"
    with pytest.raises((ValueError, TypeError)):
        keras.models.load_model(source)
    report = rnnconvert.convert(source, output, device="cpu")
    assert (report.verdict, report.proved) == ("equivalent", "model")
    assert rnnconvert.convert(output).verdict == "nothing-to-convert"


def test_a_mask_reaches_its_layer_again(written_by_keras3, tmp_path):
    """Against numpy: the GRU stops where the padding begins."""
    rnnconvert.convert(written_by_keras3 / "mask.h5", tmp_path / "out.h5", device="cpu")
    model = keras.models.load_model(tmp_path / "out.h5")
    long = np.array([[1, 2, 3, 4, 0, 0, 0]], "float32")
    padded = keras.ops.convert_to_numpy(model(long))
    other = np.array([[1, 2, 3, 4, 5, 0, 0]], "float32")
    assert np.abs(padded - keras.ops.convert_to_numpy(model(other))).max() > 1e-4
    gru = next(layer for layer in model.layers if type(layer).__name__ == "GRU")
    embedding = next(layer for layer in model.layers if type(layer).__name__ == "Embedding")
    short = gru(embedding(long)[:, :4])
    expected = keras.ops.convert_to_numpy(short).reshape(1, 2, 2) * 2
    assert np.abs(padded - expected).max() < 1e-6

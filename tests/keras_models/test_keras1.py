"""Files of Keras 1.2.2, from TensorFlow and from Theano: Keras 3 gives the numbers of Keras 1."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import h5py
import numpy as np
import pytest
from models import thinned

import rnnconvert
from rnnconvert.errors import NotConvertibleError
from rnnconvert.keras_models.config.keras1 import port_keras1
from rnnconvert.keras_models.files import keras1
from rnnconvert.keras_models.files.keras1 import rebuild_keras1
from rnnconvert.keras_models.verify import keras1_reference

keras = pytest.importorskip("keras", reason="Keras 3 is not installed")

FOLDER = Path(__file__).parents[2] / "fixtures" / "keras1"
MODELS = sorted(path.parent for path in FOLDER.glob("*/*/model.h5"))
NAMES = [f"{folder.parent.name}-{folder.name}" for folder in MODELS]
REAL = Path(__file__).parents[3] / "shared" / "real-models" / "keras1_lstm.h5"


def arrays(folder: Path, kind: str) -> list[np.ndarray]:
    with np.load(folder / "data.npz") as data:
        count = sum(name.startswith(kind) for name in data.files)
        return [data[f"{kind}{place}"] for place in range(count)]


def worst(path: Path, folder: Path) -> float:
    """Largest difference between what Keras 3 and what Keras 1 computed."""
    keras.backend.clear_session()
    model = keras.models.load_model(path)
    inputs = arrays(folder, "x")
    found = model(inputs if len(inputs) > 1 else inputs[0], training=False)
    found = found if isinstance(found, list | tuple) else [found]
    expected = arrays(folder, "y")
    assert [tuple(array.shape) for array in found] == [array.shape for array in expected]
    pairs = zip(expected, found, strict=True)
    return max(float(np.abs(a - keras.ops.convert_to_numpy(b)).max()) for a, b in pairs)


@pytest.mark.parametrize("folder", thinned(MODELS, 2), ids=NAMES)
@pytest.mark.sampled(2)
def test_a_model_of_keras_1(folder, tmp_path):
    output = tmp_path / "out.h5"
    report = rnnconvert.convert(folder / "model.h5", output, device="cpu")
    assert report.verdict == "equivalent"
    assert report.input.container == "keras1-h5"
    assert worst(output, folder) < 1e-5


def test_as_a_keras_file(tmp_path):
    folder = FOLDER / "tensorflow" / "bidirectional"
    rnnconvert.convert(folder / "model.h5", tmp_path / "out.keras", verify="weights")
    assert worst(tmp_path / "out.keras", folder) < 1e-5


@pytest.mark.parametrize("case", ["lstm", "gru"])
@pytest.mark.parametrize("backend", ["tensorflow", "theano"])
def test_weights_alone_are_those_of_the_whole_model(backend, case, tmp_path):
    folder = FOLDER / backend / case
    rebuild_keras1(folder / "weights.h5", tmp_path / "weights.h5")
    rebuild_keras1(folder / "model.h5", tmp_path / "model.h5")
    with h5py.File(tmp_path / "weights.h5") as a, h5py.File(tmp_path / "model.h5") as b:
        names = list(a.attrs["layer_names"])
        assert names == list(b["model_weights"].attrs["layer_names"])
        for name in names:
            for weight in a[name].attrs["weight_names"]:
                kept = b["model_weights"][name][weight][()]
                assert np.array_equal(a[name][weight][()], kept)


def test_the_trained_file(tmp_path):
    if not REAL.exists():
        pytest.skip(f"{REAL.name} is not beside the checkout")
    report = rnnconvert.convert(REAL, tmp_path / "out.h5", device="cpu")
    assert report.verdict == "equivalent"
    keras.models.load_model(tmp_path / "out.h5")


# --- gate by gate --------------------------------------------------------------------------------


def separate(path: Path, layer: str) -> dict[str, np.ndarray]:
    """A layer's arrays as Keras 1 stored them, by "W_i", "U_i", ..."""
    with h5py.File(path) as file:
        group = file["model_weights"][layer]
        return {
            name.decode().removesuffix(":0").removeprefix(f"{layer}_"): group[name][()]
            for name in group.attrs["weight_names"]
        }


@pytest.mark.parametrize(("case", "position"), [("lstm", 1), ("gru", 0)])
def test_the_reference_is_keras_1(case, position, tmp_path):
    """The equations on separate arrays give what Keras 3 gives on the arrays put together."""
    source = FOLDER / "tensorflow" / case / "model.h5"
    rnnconvert.convert(source, tmp_path / "out.h5", verify="weights")
    keras.backend.clear_session()
    model = keras.models.load_model(tmp_path / "out.h5")
    layer = model.layers[position if case == "gru" else 2]
    x = np.random.default_rng(1).standard_normal((2, 7, layer.input.shape[-1])).astype("float32")
    expected = keras1_reference.check_keras1(separate(source, layer.name), x.astype(np.float64))
    assert np.abs(expected - keras.ops.convert_to_numpy(layer(x))).max() < 1e-5


@pytest.mark.parametrize("order", ["icfo", "ifoc", "fico"])
def test_mutants_of_the_gates_order_are_caught(order, tmp_path, monkeypatch):
    """By the numbers of Keras 1, and by the level `weights` alone."""
    monkeypatch.setitem(keras1.GATES, "LSTM", order)
    monkeypatch.setitem(keras1.GATES, "ConvLSTM2D", order)
    folder = FOLDER / "tensorflow" / "lstm"
    rnnconvert.convert(folder / "model.h5", tmp_path / "out.h5", verify="none")
    assert worst(tmp_path / "out.h5", folder) > 1e-4
    with pytest.raises(rnnconvert.DifferenceError, match="put together"):
        rnnconvert.convert(folder / "model.h5", tmp_path / "other.h5", verify="weights")
    assert not (tmp_path / "other.h5").exists()


def test_a_kernel_of_theano_is_turned_round(tmp_path, monkeypatch):
    """Theano convolved where TensorFlow correlates: without the turn the numbers are others."""
    folder = FOLDER / "theano" / "convolution"
    monkeypatch.setattr(keras1.np, "flip", lambda array, axes: array)
    rebuild_keras1(folder / "model.h5", tmp_path / "rebuilt.h5")
    monkeypatch.undo()
    rnnconvert.convert(tmp_path / "rebuilt.h5", tmp_path / "out.h5", verify="weights")
    assert worst(tmp_path / "out.h5", folder) > 1e-3


# --- what has no counterpart ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("layer", "reason"),
    [
        ({"class_name": "Highway", "config": {"name": "h"}}, "Highway of Keras 1"),
        ({"class_name": "BatchNormalization", "config": {"name": "b", "mode": 2}}, "mode=1 or 2"),
        ({"class_name": "Merge", "config": {"name": "m", "mode": "cos"}}, "mode='cos'"),
        ({"class_name": "Merge", "config": {"name": "m", "layers": []}}, "Merge of models"),
    ],
)
def test_what_ended_with_keras_1_is_refused_by_name(layer, reason):
    _, changes = port_keras1({"class_name": "Sequential", "config": [layer]})
    assert any(reason in problem for problem in changes.problems)


def test_an_even_kernel_of_theano_with_same_is_refused(tmp_path):
    """Theano pads it on the left, TensorFlow on the right: no kernel makes that the same."""
    path = tmp_path / "even.h5"
    with h5py.File(FOLDER / "theano/convolution/model.h5") as file:
        config = json.loads(file.attrs["model_config"])
    config["config"][0]["config"]["filter_length"] = 2
    shutil.copy(FOLDER / "theano/convolution/model.h5", path)
    with h5py.File(path, "r+") as file:
        file.attrs["model_config"] = json.dumps(config)
        group = file["model_weights/convolution1d_1"]
        del group["convolution1d_1_W"]
        group["convolution1d_1_W"] = np.zeros((2, 1, 5, 4), "float32")
    with pytest.raises(NotConvertibleError, match="even kernel"):
        rnnconvert.convert(path, tmp_path / "out.h5")


def test_an_unknown_array_is_named(tmp_path):
    path = tmp_path / "odd.h5"
    with h5py.File(path, "w") as file:
        file.attrs["keras_version"] = b"1.2.2"
        file.attrs["layer_names"] = [b"dense_1"]
        group = file.create_group("dense_1")
        group.attrs["weight_names"] = [b"dense_1_oddity"]
        group["dense_1_oddity"] = np.zeros((2, 3))
    with pytest.raises(NotConvertibleError, match="dense_1_oddity"):
        rnnconvert.convert(path, tmp_path / "out.h5")

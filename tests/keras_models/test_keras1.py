"""Files of Keras 1.2.2, from TensorFlow and from Theano: Keras 3 gives the numbers of Keras 1."""

from __future__ import annotations

import re
from pathlib import Path

import h5py
import numpy as np
import pytest

import rnnconvert
from rnnconvert.errors import NotConvertibleError
from rnnconvert.keras_models.config import keras1_spatial
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


@pytest.mark.parametrize("folder", MODELS, ids=NAMES)
@pytest.mark.sampled(16)
def test_a_model_of_keras_1(folder, tmp_path):
    output = tmp_path / "out.h5"
    report = rnnconvert.convert(folder / "model.h5", output, device="cpu")
    assert report.verdict == "equivalent"
    assert report.input.container == "keras1-h5"
    assert worst(output, folder) < 1e-5


@pytest.mark.corpus
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


@pytest.mark.corpus
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
@pytest.mark.sampled(3)
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


def spatial(class_name: str, **config) -> dict:
    return {"class_name": class_name, "config": {"name": "layer", "border_mode": "same", **config}}


@pytest.mark.parametrize(
    "layer",
    [
        spatial("Convolution1D", filter_length=2, subsample_length=1),
        spatial("Convolution2D", nb_row=3, nb_col=4, subsample=[1, 1], dim_ordering="th"),
        spatial("Convolution2D", nb_row=3, nb_col=3, subsample=[1, 2], dim_ordering="tf"),
        spatial("MaxPooling2D", pool_size=[2, 2], strides=[1, 1], dim_ordering="th"),
        spatial("AveragePooling1D", pool_length=3, stride=2),
    ],
    ids=["even", "even in 2D", "steps", "pooling over 2", "pooling in steps"],
)
def test_same_that_theano_pads_on_other_sides_is_refused(layer):
    """No kernel makes that the same; TensorFlow's is its own."""
    model = {"class_name": "Sequential", "config": [layer]}
    (problem,) = port_keras1(model, theano=True)[1].problems
    assert "Theano pads on other sides" in problem
    assert not port_keras1(model)[1].problems


@pytest.mark.parametrize(
    "layer",
    [
        spatial("Convolution2D", nb_row=3, nb_col=5, subsample=[1, 1], dim_ordering="th"),
        spatial("Convolution2D", nb_row=1, nb_col=1, subsample=[2, 2], dim_ordering="th"),
        spatial("MaxPooling2D", pool_size=[3, 1], strides=[1, 1], dim_ordering="th"),
    ],
)
def test_same_that_theano_pads_alike_is_not(layer):
    model = {"class_name": "Sequential", "config": [layer]}
    assert not port_keras1(model, theano=True)[1].problems


@pytest.mark.parametrize(
    ("layers", "reason"),
    [
        ([spatial("UpSampling2D", size=[2, 2])], "not in the file; .* don't say it either"),
        (
            [spatial("MaxPooling2D", pool_size=[2, 2], strides=[2, 2], dim_ordering="th"),
             spatial("MaxPooling2D", pool_size=[2, 2], strides=[2, 2], dim_ordering="tf"),
             spatial("ZeroPadding2D", padding=[1, 1])],
            "not in the file; .* are of both orders",
        ),
        (
            [spatial("Deconvolution2D", nb_row=3, nb_col=3, subsample=[2, 2], dim_ordering="tf",
                     output_shape=[None, 8, 8, 3])],
            "output_shape Keras 3 can't be given",
        ),
        (
            [{"class_name": "Convolution1D", "config": {"name": "c", "border_mode": "full"}}],
            "border_mode full",
        ),
    ],
)  # fmt: skip
def test_what_the_file_does_not_tell_is_refused(layers, reason):
    _, changes = port_keras1({"class_name": "Sequential", "config": layers})
    assert len(changes.problems) == 1
    assert re.search(reason, changes.problems[0])


@pytest.mark.corpus
def test_an_order_of_axes_that_is_lost_is_seen(tmp_path, monkeypatch):
    """Keras 1 saved it for no ZeroPadding2D, and Keras 3 would take the other one."""
    monkeypatch.setattr(keras1_spatial, "_set_order", lambda node, orders, changes: None)
    folder = FOLDER / "theano" / "channels_first"
    rnnconvert.convert(folder / "model.h5", tmp_path / "out.h5", verify="weights")
    with pytest.raises(ValueError, match="Shape mismatch"):
        worst(tmp_path / "out.h5", folder)


@pytest.mark.corpus
def test_sides_of_padding_that_are_exchanged_are_seen(tmp_path, monkeypatch):
    sides = {"ZeroPadding1D": ("right", "left"), "ZeroPadding2D": keras1_spatial._SIDES}
    monkeypatch.setattr(keras1_spatial, "_SIDES", sides)
    folder = FOLDER / "theano" / "pictures"
    rnnconvert.convert(folder / "model.h5", tmp_path / "out.h5", verify="weights")
    assert worst(tmp_path / "out.h5", folder) > 1e-3


def test_a_convolution_in_a_file_of_weights_alone_is_refused(tmp_path):
    """Its two orders of axes look alike, and Theano's kernels like TensorFlow's."""
    path = tmp_path / "weights.h5"
    source = FOLDER / "theano" / "pictures" / "model.h5"
    with h5py.File(source) as model, h5py.File(path, "w") as weights:
        weights.attrs["layer_names"] = model["model_weights"].attrs["layer_names"]
        for name in model["model_weights"]:
            model.copy(f"model_weights/{name}", weights)
    with pytest.raises(NotConvertibleError, match="does not say the order of its axes"):
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

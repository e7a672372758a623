"""Files of Keras 2.2.4 on Theano: its convolutions turned their kernels round."""

from __future__ import annotations

import shutil
from pathlib import Path

import h5py
import numpy as np
import pytest

import rnnconvert
from rnnconvert.errors import NotConvertibleError
from rnnconvert.keras_models.config import channels_first
from rnnconvert.keras_models.files import theano
from rnnconvert.kinds import Kind, kind_of

keras = pytest.importorskip("keras", reason="Keras 3 is not installed")

FOLDER = Path(__file__).parents[2] / "fixtures" / "theano"
CASES = ["pictures", "convolutions"]


def differences(path: Path, case: str) -> list[float]:
    """Of each output, between Keras 3 and Keras 2.2.4 on Theano."""
    keras.backend.clear_session()
    with np.load(FOLDER / case / "data.npz") as data:
        found = keras.models.load_model(path)(data["x0"], training=False)
        found = found if isinstance(found, list | tuple) else [found]
        expected = [data[f"y{place}"] for place in range(len(data.files) - 1)]
    assert [tuple(array.shape) for array in found] == [array.shape for array in expected]
    pairs = zip(expected, found, strict=True)
    return [float(np.abs(a - keras.ops.convert_to_numpy(b)).max()) for a, b in pairs]


CHANNELS_FIRST = ("convolutions", "pictures")
ENDINGS = dict.fromkeys(CHANNELS_FIRST, " is as in Keras 2")
"""Of the verdict, where there is a condition."""


@pytest.mark.parametrize("case", CASES)
@pytest.mark.sampled(2)
def test_a_model_of_theano(case, tmp_path):
    assert kind_of(FOLDER / case / "model.h5") is Kind.THEANO
    report = rnnconvert.convert(FOLDER / case / "model.h5", tmp_path / "out.h5", device="cpu")
    assert report.is_equivalent
    assert report.verdict.endswith(ENDINGS.get(case, "equivalent"))
    assert (report.input.container, report.input.backend) == ("theano-h5", None)
    assert max(differences(tmp_path / "out.h5", case)) < 1e-5


@pytest.mark.corpus
def test_as_a_keras_file(tmp_path):
    source = FOLDER / "pictures" / "model.h5"
    rnnconvert.convert(source, tmp_path / "out.keras", verify="weights")
    assert max(differences(tmp_path / "out.keras", "pictures")) < 1e-5


def test_kernels_that_are_not_turned_are_seen(tmp_path, monkeypatch):
    monkeypatch.setattr(theano.np, "flip", lambda array, axes: array)
    theano.rebuild_theano(FOLDER / "convolutions" / "model.h5", tmp_path / "rebuilt.h5")
    monkeypatch.undo()
    rnnconvert.convert(tmp_path / "rebuilt.h5", tmp_path / "out.h5", verify="weights")
    wrong = [place for place, gap in enumerate(differences(tmp_path / "out.h5", "convolutions"))
             if gap > 1e-3]  # fmt: skip
    assert wrong == [0, 3, 4, 6, 7, 8, 9]


@pytest.mark.corpus
def test_depthwise_kernels_that_are_turned_are_seen(tmp_path, monkeypatch):
    monkeypatch.setattr(theano, "_KERNELS", (*theano._KERNELS, "depthwise_kernel"))
    source = FOLDER / "convolutions" / "model.h5"
    rnnconvert.convert(source, tmp_path / "out.h5", verify="weights")
    wrong = [place for place, gap in enumerate(differences(tmp_path / "out.h5", "convolutions"))
             if gap > 1e-3]  # fmt: skip
    assert wrong == [1, 2, 5]


@pytest.mark.corpus
def test_rows_and_columns_that_are_exchanged_are_seen(tmp_path, monkeypatch):
    """A Permute on each side that brings the channels last and the picture on its side."""
    right = channels_first._permute

    def turned(entry, inner, side):
        made = right(entry, inner, side)
        if made["config"].get("dims") in ([2, 3, 1], [3, 1, 2]):
            made["config"]["dims"] = [3, 2, 1]
        return made

    monkeypatch.setattr(channels_first, "_permute", turned)
    rnnconvert.convert(FOLDER / "convolutions" / "model.h5", tmp_path / "out.h5", verify="weights")
    keras.backend.clear_session()
    model = keras.models.load_model(tmp_path / "out.h5")
    with np.load(FOLDER / "convolutions" / "data.npz") as data:
        found = keras.ops.convert_to_numpy(model(data["x0"], training=False)[0])
        assert found.shape != data["y0"].shape


def changed(tmp_path: Path, change) -> Path:
    path = tmp_path / "changed.h5"
    shutil.copy(FOLDER / "convolutions" / "model.h5", path)
    with h5py.File(path, "r+") as file:
        change(file)
    return path


def as_text(old: str, new: str):
    def change(file):
        config = file.attrs["model_config"]
        text = config if isinstance(config, str) else config.decode()
        file.attrs["model_config"] = text.replace(old, new)

    return change


def only_weights(file):
    del file.attrs["model_config"]
    weights = file["model_weights"]
    for name in list(weights):
        file.move(f"model_weights/{name}", name)
    for key, value in weights.attrs.items():
        file.attrs[key] = value
    del file["model_weights"]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (as_text('"padding": "valid"', '"padding": "same"'), "Theano pads on other sides"),
        (as_text('"ConvLSTM2D"', '"OwnLayer"'), "OwnLayer on Theano"),
        (only_weights, "does not say how it pads"),
    ],
    ids=["padding", "own layer", "weights alone"],
)
def test_what_is_not_told_is_refused(change, reason, tmp_path):
    with pytest.raises(NotConvertibleError, match=reason):
        rnnconvert.convert(changed(tmp_path, change), tmp_path / "out.h5")
    assert not (tmp_path / "out.h5").exists()


def test_it_is_not_loaded_as_it_is():
    with pytest.raises(NotConvertibleError, match="rnnconvert convert it first"):
        rnnconvert.keras.load_model(FOLDER / "convolutions" / "model.h5")

"""Weights-only files, and Keras' own `.keras` format."""

from __future__ import annotations

import h5py
import numpy as np
import pytest
from models import OWN, WEIGHTS_ONLY, predict, worst_difference

import rnnconvert

KERAS = [
    model
    for model in OWN
    if model.name
    in (
        "k224-bi", "k224-siamese", "k224-stateful", "k224-plain_lstm", "tf115-encdec",
        "tf210-double", "tf215-embed_bi", "tf215-half", "tf215-nested", "tf215-return_state",
        "tf215-td_model", "tf215-plain_timemajor",
    )
]  # fmt: skip


def tensors(path):
    with h5py.File(path) as file:
        weights = file.get("model_weights", file)
        found = {}
        weights.visititems(
            lambda name, item: (
                found.update({name: item[()]}) if isinstance(item, h5py.Dataset) else None
            )
        )
        return found


@pytest.mark.parametrize("path", WEIGHTS_ONLY, ids=lambda path: "-".join(path.parts[-4:-1]))
@pytest.mark.sampled(6)
def test_a_weights_only_file_becomes_what_its_whole_model_becomes(path, tmp_path):
    whole = path.with_name("model.h5" if path.with_name("model.h5").exists() else "full.h5")
    weights = rnnconvert.convert(path, tmp_path / "w.h5", verify="layers")
    model = rnnconvert.convert(whole, tmp_path / "m.h5", verify="layers")
    rescaled = any(layer.changes and not layer.site.is_cudnn for layer in model.layers)
    if rescaled or weights.verdict == "nothing-to-convert":
        # Weights alone do not say that a layer used hard_sigmoid: nothing to do, and a warning.
        assert not any(layer.site.is_cudnn for layer in weights.layers)
        assert weights.verdict == "nothing-to-convert"
        return
    mine, theirs = tensors(tmp_path / "w.h5"), tensors(tmp_path / "m.h5")
    assert mine.keys() == theirs.keys()
    assert all(np.array_equal(mine[name], theirs[name]) for name in mine)


def test_plain_weights_of_old_keras_get_a_warning(tmp_path):
    path = next(path for path in WEIGHTS_ONLY if path.parent.name == "plain_lstm")
    report = rnnconvert.convert(path, tmp_path / "w.h5", verify="layers")
    assert "hard_sigmoid" in report.warnings[0]


@pytest.mark.slow
@pytest.mark.parametrize("model", KERAS, ids=lambda model: model.name)
@pytest.mark.sampled(6)
def test_keras_format(model, tmp_path):
    keras = pytest.importorskip("keras.models", reason="Keras 3 is not installed")
    report = rnnconvert.convert(model.path, tmp_path / "out.keras", verify="layers")
    assert report.output.container == "keras"
    loaded = keras.load_model(tmp_path / "out.keras")
    found = predict(loaded, model.inputs())
    assert worst_difference(found, model.outputs()) <= model.tolerance
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.keras"]

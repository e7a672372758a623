"""Layers that Keras 3 has in another form: the numbers are those of the old library."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import rnnconvert
from rnnconvert.errors import NotConvertibleError
from rnnconvert.keras_models.config import layer_forms, port

keras = pytest.importorskip("keras", reason="Keras 3 is not installed")

WHOLE = Path(__file__).parents[3] / "fixtures" / "whole"
MODELS = sorted(path.parent for path in WHOLE.glob("*/forms_*/model.h5"))
NAMES = [f"{folder.parent.name}-{folder.name}" for folder in MODELS]


def arrays(folder: Path, kind: str) -> list[np.ndarray]:
    with np.load(folder / "data.npz") as data:
        count = sum(name.startswith(kind) for name in data.files)
        return [data[f"{kind}{place}"] for place in range(count)]


def wrong_outputs(folder: Path, tmp_path: Path) -> list[int]:
    """Places of the outputs that are not those of the old library."""
    rnnconvert.convert(folder / "model.h5", tmp_path / "out.h5", verify="none")
    keras.backend.clear_session()
    found = keras.models.load_model(tmp_path / "out.h5")(arrays(folder, "x")[0], training=False)
    expected = arrays(folder, "y")
    assert len(found) == len(expected)
    return [
        place
        for place, (a, b) in enumerate(zip(expected, found, strict=True))
        if np.abs(a - keras.ops.convert_to_numpy(b)).max() > 1e-5
    ]


def test_there_are_models():
    assert len(MODELS) >= 3


@pytest.mark.parametrize("folder", MODELS, ids=NAMES)
@pytest.mark.sampled(3)
def test_every_output_is_that_of_the_old_library(folder, tmp_path):
    assert wrong_outputs(folder, tmp_path) == []


def test_a_causal_that_is_lost_is_seen(tmp_path, monkeypatch):
    def lost(node, entry, changes):
        entry["config"].pop("causal", None)

    monkeypatch.setattr(layer_forms, "_causal_by_call", lost)
    assert wrong_outputs(WHOLE / "tf23" / "forms_attention", tmp_path)


def test_another_threshold_is_seen(tmp_path, monkeypatch):
    def wrong(path, node, changes):
        node.entry["class_name"] = "ReLU"
        del node.config["theta"]

    monkeypatch.setattr(layer_forms, "_as_relu", wrong)
    assert wrong_outputs(WHOLE / "tf23" / "forms_attention", tmp_path)


def test_what_is_gone_is_refused_by_name():
    layer = {"class_name": "LocallyConnected1D", "config": {"name": "local", "filters": 3}}
    model = {"class_name": "Sequential", "config": {"name": "m", "layers": [layer]}}
    assert port(model, None, "2.2.4").problems == (
        "model/local: LocallyConnected1D has no counterpart in Keras 3",
    )
    assert port(model, None, "2.2.4", "keras2").problems == ()


def test_a_constraint_that_is_gone_is_left_out_with_a_warning():
    layer = {"class_name": "LSTM", "config": {"name": "l", "units": 3, "kernel_constraint":
             {"class_name": "RadialConstraint", "config": {}}}}  # fmt: skip
    model = {"class_name": "Sequential", "config": {"name": "m", "layers": [layer]}}
    result = port(model, None, "2.2.4-tf")
    assert result.model["config"]["layers"][0]["config"]["kernel_constraint"] is None
    assert "kernel_constraint RadialConstraint left out" in result.warnings[0]


def test_several_axes_of_a_normalization_are_refused():
    """Keras 3 keeps only a single axis of an .h5 file's layer, and takes the last otherwise."""
    layer = {"class_name": "LayerNormalization", "config": {"name": "norm", "axis": [1, 2]}}
    model = {"class_name": "Sequential", "config": {"name": "m", "layers": [layer]}}
    assert "axes [1, 2]" in port(model, None, "2.2.4-tf").problems[0]
    layer["config"]["axis"] = [2]
    assert port(model, None, "2.2.4-tf").problems == ()


def test_a_resize_of_the_old_kind_is_refused(tmp_path):
    layer = {
        "class_name": "UpSampling2D",
        "config": {"name": "up", "size": [2, 2], "interpolation": "bilinear"},
    }
    model = {"class_name": "Sequential", "config": {"name": "m", "layers": [layer]}}
    assert "bilinear" in port(model, None, "2.2.4").problems[0]
    assert port(model, None, "2.10.0").problems == ()


def test_a_refused_layer_leaves_no_file(tmp_path):
    sources = sorted(WHOLE.glob("tf210/calls_refused/model.h5"))
    with pytest.raises(NotConvertibleError):
        rnnconvert.convert(sources[0], tmp_path / "out.h5", verify="weights")
    assert not list(tmp_path.iterdir())

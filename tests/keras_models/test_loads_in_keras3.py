"""Every fixture, converted, loads in Keras 3 with `load_model(path)` and predicts the same."""

from __future__ import annotations

from pathlib import Path

import pytest
from models import ENDS, FURTHER, NEWEST, OWN, Model, predict, swept, train, worst_difference

import rnnconvert

pytestmark = pytest.mark.slow
keras = pytest.importorskip("keras", reason="Keras 3 is not installed")


def check(model: Model, tmp_path: Path) -> None:
    output = tmp_path / "converted.h5"
    report = rnnconvert.convert(model.path, output)
    path = output if report.verdict != "nothing-to-convert" else model.path
    assert report.verdict in ("equivalent", "nothing-to-convert")
    if report.verdict == "equivalent":
        level = report.model_level[0]
        assert level.status == ("skipped" if model.has_lambda else "passed"), level
    keras.backend.clear_session()
    if model.has_lambda:
        with pytest.raises(ValueError, match="arbitrary code execution"):
            keras.models.load_model(path)
        return
    loaded = keras.models.load_model(path)
    found = predict(loaded, model.inputs())
    assert worst_difference(found, model.outputs()) <= model.tolerance


@pytest.mark.parametrize("model", swept(ENDS, NEWEST), ids=lambda model: model.name)
@pytest.mark.sampled(64)
@pytest.mark.thinned(3)
def test_own_fixture(model, tmp_path):
    check(model, tmp_path)


@pytest.mark.corpus
@pytest.mark.skipif(not FURTHER, reason="the folder of further fixtures is not beside the checkout")
@pytest.mark.parametrize("model", FURTHER, ids=lambda model: model.name)
@pytest.mark.thinned(3)
def test_further_fixture(model, tmp_path):
    check(model, tmp_path)


@pytest.mark.parametrize("name", ["k224-compiled", "tf215-compiled"])
@pytest.mark.corpus
def test_a_converted_compiled_model_can_be_trained(name, tmp_path):
    model = next(m for m in OWN if m.name == name.replace("-", "-plain_"))
    output = tmp_path / "converted.h5"
    rnnconvert.convert(model.path, output)
    loaded = keras.models.load_model(output)
    assert loaded.compiled
    train(loaded, model)


def test_weights_only_output_loads_into_a_portable_twin(tmp_path):
    """`--to weights` and a converted weights-only file hold the same, and Keras 3 loads both."""
    model = next(m for m in OWN if m.name == "k224-seq_lstm")
    weights = model.path.with_name("weights.h5")
    rnnconvert.convert(model.path, tmp_path / "a.h5", to="weights")
    rnnconvert.convert(weights, tmp_path / "b.h5")
    layers = keras.layers
    for name in ("a.h5", "b.h5"):
        shape = model.inputs()[0].shape[1:]
        twin = keras.Sequential(
            [
                keras.Input(shape),
                layers.LSTM(6, return_sequences=True),
                layers.LSTM(4),
                layers.Dense(3),
            ]
        )
        twin.load_weights(tmp_path / name)
        assert worst_difference(predict(twin, model.inputs()), model.outputs()) <= 1e-5


def test_stateful_model_carries_its_state_over(tmp_path):
    import numpy as np

    model = next(m for m in OWN if m.name == "k224-stateful")
    rnnconvert.convert(model.path, tmp_path / "converted.h5")
    loaded = keras.models.load_model(tmp_path / "converted.h5")
    predict(loaded, model.inputs())
    again = predict(loaded, model.inputs())
    with np.load(model.path.with_name("data.npz")) as data:
        assert worst_difference(again, [data["again0"]]) <= 1e-5

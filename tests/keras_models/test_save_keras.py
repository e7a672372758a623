"""The config of a written `.keras` file: that of the portable .h5, which every Keras 3 reads."""

from __future__ import annotations

import json
import zipfile

import pytest
from helpers import make_model_h5

import rnnconvert

pytestmark = pytest.mark.slow
pytest.importorskip("keras", reason="Keras 3 is not installed")


def written_config(path):
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None
        return json.loads(archive.read("config.json"))


def test_it_has_none_of_the_keys_that_only_the_writing_keras_knows(tmp_path):
    source = make_model_h5(tmp_path / "model.h5")
    report = rnnconvert.convert(source, tmp_path / "out.keras", to="keras")
    assert report.model_level[0].status == "passed"
    config = written_config(tmp_path / "out.keras")
    assert sorted(config) == ["class_name", "config", "module", "registered_name"]
    lstm = config["config"]["layers"][1]
    assert lstm["class_name"] == "LSTM"
    assert lstm["config"] == {
        "name": "cu_lstm",
        "trainable": True,
        "units": 6,
        "return_sequences": True,
        "activation": "tanh",
        "recurrent_activation": "sigmoid",
        "use_bias": True,
        "dropout": 0.0,
        "recurrent_dropout": 0.0,
    }


@pytest.mark.corpus
def test_a_model_compiled_and_never_trained(fixtures_dir, tmp_path):
    """Its optimizer has counters only, which are no state to carry over."""
    source = fixtures_dir / "keras" / "tf215" / "plain_two_outputs" / "model.h5"
    report = rnnconvert.convert(source, tmp_path / "out.keras", to="keras")
    assert report.verdict == "equivalent"
    compiled = written_config(tmp_path / "out.keras")["compile_config"]
    assert compiled["optimizer"]["module"] == "keras.optimizers"
    assert compiled["optimizer"]["class_name"] == "RMSprop"

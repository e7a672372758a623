"""The table of what Keras 3 accepts, against files that are known to load and not to load."""

from __future__ import annotations

import json
from pathlib import Path

import h5py
import pytest

import rnnconvert
from rnnconvert import DifferenceError
from rnnconvert.keras_models.config.accepted import accepted_keys, known_versions, versions_with
from rnnconvert.keras_models.config.static_check import refused
from rnnconvert.keras_models.files.h5 import open_keras_h5
from rnnconvert.keras_models.planning import make_plan
from rnnconvert.keras_models.verify import loads, model_level
from rnnconvert.verification.frameworks import CannotRun

FIXTURES = Path(__file__).parents[3] / "fixtures"
MODELS = sorted(FIXTURES.glob("keras/*/*/model.h5"))
COMPILED = FIXTURES / "keras" / "k224" / "plain_compiled" / "model.h5"


def test_the_table_knows_what_changed_between_versions():
    assert known_versions()[0] == "3.0"
    assert versions_with("layers", "LSTM") == known_versions()
    assert versions_with("layers", "LSTM", "use_cudnn")[0] == "3.2"
    assert versions_with("layers", "LSTM", "time_major") == ()
    assert versions_with("layers", "CuDNNLSTM") == ()
    assert "units" in (accepted_keys("layers", "GRU") or ())


@pytest.mark.corpus
def test_every_converted_fixture_is_accepted():
    """They are loaded by Keras itself in the tests of whole files."""
    wrong = {}
    for path in MODELS:
        with open_keras_h5(path) as file:
            plan = make_plan(file)
            if not plan.problems:
                config = plan.model_config or file.model_config
                wrong[path] = refused(config, plan.training_config)
    assert len(wrong) > 80
    assert not {path: texts for path, texts in wrong.items() if texts}


def test_most_files_of_keras_2_are_refused_as_they_are():
    found = 0
    for path in FIXTURES.glob("keras/tf*/*/model.h5"):
        with open_keras_h5(path) as file:
            found += bool(refused(file.model_config, file.training_config))
    assert found > 20


@pytest.mark.parametrize(
    ("config", "word"),
    [
        ({"class_name": "SGD", "config": {"lr": 0.1}}, "takes no 'lr'"),
        ({"class_name": "Nadam", "config": {"schedule_decay": 0.1}}, "schedule_decay"),
        ({"class_name": "SGD", "config": {"clipnorm": 1.0, "clipvalue": 1.0}}, "takes one of"),
        ({"class_name": "Mine", "config": {}}, "no optimizer Mine"),
        ({"class_name": "SGD", "config": {"learning_rate": {"class_name": "CosineDecay"}}},
         "without its module"),
    ],
)  # fmt: skip
def test_optimizers_that_keras_refuses(config, word):
    model = {"class_name": "Sequential", "config": {"name": "s", "layers": []}}
    (text,) = refused(model, {"optimizer_config": config})
    assert word in text


def test_without_keras_the_table_decides(tmp_path, monkeypatch):
    def no_keras():
        raise CannotRun("Keras 3 can't be imported")

    for module in (loads, model_level):
        monkeypatch.setattr(module, "import_keras", no_keras)
    report = rnnconvert.convert(COMPILED, tmp_path / "out.h5", device="cpu")
    assert report.proved == "weights" or report.proved == "layers"
    assert "checked against the table of Keras 3, not tried" in report.depth

    apply = rnnconvert.keras_models.files.h5_patch.apply

    def apply_and_spoil(plan, file, path, **options):
        checked = apply(plan, file, path, **options)
        with h5py.File(path, "r+") as written:
            config = json.loads(written.attrs["model_config"])
            config["config"]["layers"][-1]["config"]["no_such_key"] = 1
            written.attrs["model_config"] = json.dumps(config)
        return checked

    monkeypatch.setattr(rnnconvert.keras_models.files.h5_patch, "apply", apply_and_spoil)
    with pytest.raises(DifferenceError, match="takes no 'no_such_key'"):
        rnnconvert.convert(COMPILED, tmp_path / "other.h5", device="cpu")

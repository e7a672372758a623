"""Lambda layers of Keras 2 on every route: written so that Keras 3 loads them with consent."""

from __future__ import annotations

import json
import os
from pathlib import Path

import h5py
import numpy as np
import pytest

pytestmark = pytest.mark.slow
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
keras = pytest.importorskip("keras")
tf_keras = pytest.importorskip("tf_keras")
layers = tf_keras.layers


def halve(x):  # type: ignore[no-untyped-def]
    return 0.5 * x


class Holder:
    """Keras 2 writes a method by its name alone; of a plain function it writes the bytecode."""

    def halve(self, x):  # type: ignore[no-untyped-def]
        return halve(x)


def make(path: Path, function, **saving) -> tuple[np.ndarray, np.ndarray]:  # type: ignore[no-untyped-def]
    """A saved model of Keras 2; an input, and what it gives there."""
    tf_keras.backend.clear_session()
    tf_keras.utils.set_random_seed(3)
    model = tf_keras.Sequential(
        [
            layers.Input((7, 5)),
            layers.Lambda(function),
            layers.GRU(4, bias_initializer="random_normal", return_sequences=True),
            layers.Lambda(lambda x: x[:, -1], output_shape=lambda shape: (shape[0], shape[2])),
        ]
    )
    model.save(path, **saving)
    x = np.random.default_rng(1).standard_normal((2, 7, 5)).astype("float32")
    return x, model.predict(x, verbose=0)


def scaled():  # type: ignore[no-untyped-def]
    """A lambda with a closure and a default."""
    scale = 1.5
    return lambda x, more=0.25: x * scale + more


def configs(path: Path) -> list[dict]:
    with h5py.File(path) as file:
        model = json.loads(file.attrs["model_config"])
    return [
        layer["config"] for layer in model["config"]["layers"] if layer["class_name"] == "Lambda"
    ]


def test_a_list_becomes_what_keras_3_loads(cli, tmp_path):
    x, y = make(tmp_path / "model.h5", scaled())
    done = cli("cudnn-to-keras", "model.h5", "-o", "new.h5", "--json")
    assert done.code == 0
    report = json.loads(done.out)
    assert (
        "is a Lambda layer, whose code is in the file"
        in (report["verification"]["model"][0]["reason"])
    )
    assert any("only in the version of Python that wrote it" in w for w in report["warnings"])
    first, second = configs(tmp_path / "new.h5")
    assert first["function"]["class_name"] == "__lambda__"
    assert second["output_shape"]["class_name"] == "__lambda__"
    with pytest.raises(ValueError, match="safe_mode=False"):
        keras.models.load_model(tmp_path / "new.h5")
    loaded = keras.models.load_model(tmp_path / "new.h5", safe_mode=False)
    np.testing.assert_allclose(loaded.predict(x, verbose=0), y, atol=1e-6)
    done = cli("cudnn-to-keras", "model.h5", "-o", "other.h5", "--allow-code", "--json")
    assert json.loads(done.out)["verification"]["model"][0]["status"] == "passed"


def test_keras_2_keeps_its_form(cli, tmp_path):
    make(tmp_path / "model.h5", scaled())
    cli("cudnn-to-keras", "model.h5", "-o", "new.h5", "--target", "keras2")
    if (tmp_path / "new.h5").exists():  # else there was nothing to convert
        assert configs(tmp_path / "new.h5") == configs(tmp_path / "model.h5")


@pytest.mark.corpus
def test_a_savedmodel_names_the_cause_on_every_route(cli, tmp_path):
    x, y = make(tmp_path / "model", lambda x: 1.5 * x, save_format="tf")
    done = cli("cudnn-to-keras", "model", "--to", "keras", "-o", "new.keras")
    assert done.code == 4
    assert "model/lambda is a Lambda layer, whose code is in the file" in done.err
    assert "(--allow-code runs it); --to h5 needs no Keras" in done.err
    assert cli("cudnn-to-keras", "model", "--to", "h5", "-o", "new.h5").code == 0
    done = cli("cudnn-to-keras", "model", "--to", "keras", "-o", "new.keras", "--allow-code")
    assert done.code == 0
    for name in ("new.h5", "new.keras"):
        loaded = keras.models.load_model(tmp_path / name, safe_mode=False)
        np.testing.assert_allclose(loaded.predict(x, verbose=0), y, atol=1e-6)
    done = cli("inspect", "model")
    assert done.code == 0
    assert "model/lambda is a Lambda layer, whose code is in the file" in done.err


@pytest.mark.corpus
def test_a_function_that_is_not_in_the_file_is_named(cli, tmp_path, monkeypatch):
    x, y = make(tmp_path / "model", Holder().halve, save_format="tf")
    told = "model/lambda is a Lambda layer that calls halve, which is not in the file"
    done = cli("cudnn-to-keras", "model", "--to", "keras", "-o", "new.keras")
    assert (done.code, "model/lambda_1 is a Lambda layer, whose code" in done.err) == (4, True)
    done = cli("cudnn-to-keras", "model", "--to", "keras", "-o", "new.keras", "--allow-code")
    assert (done.code, told in done.err) == (4, True)
    assert "--custom-objects module:name" in done.err
    done = cli("cudnn-to-keras", "model", "--to", "h5", "-o", "new.h5", "--allow-code", "--json")
    assert done.code == 0
    report = json.loads(done.out)
    reason = report["verification"]["model"][0]["reason"]
    assert told in reason
    assert "--custom-objects module:name" in reason
    assert any("custom_objects={'halve': ...}" in warning for warning in report["warnings"])
    (tmp_path / "mine.py").write_text("def halve(x):\n    return 0.5 * x\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    consent = ("--allow-code", "--custom-objects", "mine:halve")
    done = cli("cudnn-to-keras", "model", "--to", "keras", "-o", "new.keras", *consent)
    assert done.code == 0
    for name in ("new.h5", "new.keras"):
        loaded = keras.models.load_model(
            tmp_path / name, custom_objects={"halve": halve}, safe_mode=False
        )
        np.testing.assert_allclose(loaded.predict(x, verbose=0), y, atol=1e-6)


def test_the_module_of_a_function_is_never_imported(cli, tmp_path):
    """A name that the file gives is looked up in custom_objects, and nowhere else."""
    make(tmp_path / "model.h5", Holder().halve)
    cli("cudnn-to-keras", "model.h5", "-o", "new.h5")
    first, _ = configs(tmp_path / "new.h5")
    assert first["function"] == {
        "class_name": "function", "config": "halve", "module": "builtins",
        "registered_name": "halve",
    }  # fmt: skip
    assert "module" not in first

"""Every optimizer, schedule, loss and metric of Keras 2, as Keras 3 compiles it.

`fixtures/make_compiled.py` recorded in each old library what `evaluate` gave, and the loss after
three steps of training.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import h5py
import numpy as np
import pytest
from models import swept

import rnnconvert
from rnnconvert.keras_models.config.training import translate
from rnnconvert.keras_models.config.training_optimizer import Untranslatable

FIXTURES = Path(__file__).parents[3] / "fixtures" / "compiled"
STACKS = sorted(path.stem for path in FIXTURES.glob("*.json"))
VERSIONS = {"k224": "2.2.4", "k231": "2.3.1", "tf115": "2.2.4-tf", "tf23": "2.4.0",
            "tf210": "2.10.0", "tf215": "2.15.0"}  # fmt: skip
LEFT_OUT = ("clipvalue=", "schedule_decay=", "decay=0.1 of", "ema", "beta=", "MeanRelativeError",
            "focal_crossentropy", "Mean", "class_id", "F1", "R2")  # fmt: skip


def cases_of(stack: str) -> list[dict]:
    return json.loads((FIXTURES / f"{stack}.json").read_text())["cases"]


def data() -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """The same as in the script that made the fixtures."""
    random = np.random.RandomState(7)
    x = random.normal(size=(8, 4)).astype("float32")
    classes = random.randint(0, 3, size=8)
    return x, {
        "one-hot": np.eye(3, dtype="float32")[classes],
        "class": classes.astype("float32")[:, None],
        "binary": random.randint(0, 2, size=(8, 3)).astype("float32"),
        "sign": (2 * random.randint(0, 2, size=(8, 3)) - 1).astype("float32"),
        "real": random.uniform(0.1, 1.0, size=(8, 3)).astype("float32"),
    }


def weights_of(stack: str) -> list[np.ndarray]:
    with h5py.File(FIXTURES / f"{stack}.h5", "r") as file:
        return [
            file["model_weights"][layer][name][()]
            for layer in ("hidden", "out")
            for name in file["model_weights"][layer].attrs["weight_names"]
        ]


def takes_logits_of_softmax(case: dict) -> bool:
    """On TensorFlow Keras takes the logits of the model's softmax for those of a sigmoid."""
    said = json.dumps(case["training_config"]["loss"]) + case["name"]
    logits = "from_logits': True" in case["name"]
    binary = "binary" in said.lower() or case["target"] == "binary"
    return binary or logits


def compiled_args(training: dict) -> dict:
    from keras.src.legacy.saving.saving_utils import compile_args_from_training_config

    return compile_args_from_training_config(json.loads(json.dumps(training)))


@pytest.fixture(scope="module")
def model():
    keras = pytest.importorskip("keras", reason="Keras 3 is not installed")
    layers = keras.layers
    return keras.Sequential([
        keras.Input((4,)), layers.Dense(5, activation="tanh", name="hidden"),
        layers.Dense(3, activation="softmax", name="out"),
    ])  # fmt: skip


@pytest.mark.parametrize("kind", swept(["optimizer", "loss", "metric", "form"], ["form"]))
@pytest.mark.parametrize("stack", swept(STACKS, ["tf210"]))
@pytest.mark.thinned(3)
def test_compiles_and_gives_the_old_figures(stack, kind, model):
    x, targets = data()
    weights = weights_of(stack)
    wrong = []
    cases = [case for case in cases_of(stack) if case["kind"] == kind]
    for case in cases:
        try:
            training, left = translate(
                case["training_config"], keras_version=VERSIONS[stack], outputs=("out",)
            )
        except Untranslatable:
            assert stack == "tf115", case["name"]
            assert "osine" in case["name"]  # it grew with the similarity
            continue
        assert all(any(word in text for word in LEFT_OUT) for text in left), (case["name"], left)
        model.set_weights(weights)
        model.compile(**compiled_args(training), run_eagerly=True)
        if kind == "optimizer":
            continue  # their figures are those of the next test
        found = np.ravel(model.evaluate(x, targets[case["target"]], batch_size=8, verbose=0))
        found = found[: len(case["figures"])]  # without metrics Keras 3 lists the loss twice
        same = np.allclose(found, case["figures"][: len(found)], rtol=2e-5, atol=1e-6)
        if (not same and not takes_logits_of_softmax(case)) or (
            len(found) < len(case["figures"]) and not left
        ):
            wrong.append((case["name"], found.tolist(), case["figures"]))
    assert not wrong
    assert cases


def trains_alike(stack: str, case: dict) -> bool:
    """Whether the old library's steps can be compared.

    Keras 2.2 and 2.3 read their step counter while they moved it; Nadam and two clippings have no
    equal in Keras 3; RMSprop adds epsilon elsewhere.
    """
    others = ("Nadam", "RMSprop", "both clips", "all")
    return stack.startswith("tf") and not any(word in case["name"] for word in others)


@pytest.mark.slow
@pytest.mark.parametrize("stack", [name for name in STACKS if name in ("tf115", "tf215")])
@pytest.mark.corpus  # the level `model` trains one step, too
@pytest.mark.thinned(2)
def test_three_steps_of_training_give_the_old_loss(stack, model):
    """With each optimizer and schedule once: it shows that every number means the same."""
    x, targets = data()
    weights = weights_of(stack)
    wrong, ran = [], 0
    for case in cases_of(stack):
        if case["kind"] != "optimizer" or not trains_alike(stack, case):
            continue
        training, _ = translate(case["training_config"], keras_version=VERSIONS[stack])
        model.set_weights(weights)
        model.compile(**compiled_args(training), run_eagerly=True)
        for _ in range(3):
            model.train_on_batch(x, targets["one-hot"])
        loss = np.ravel(model.evaluate(x, targets["one-hot"], batch_size=8, verbose=0))[0]
        if abs(loss - case["loss_after_steps"]) > 5e-5 * loss:
            wrong.append((case["name"], loss, case["loss_after_steps"]))
        ran += 1
    assert not wrong
    assert ran >= 15


@pytest.mark.corpus
@pytest.mark.parametrize("stack", ["k224", "tf215"])
@pytest.mark.thinned(2)
def test_every_file_loads_compiled(stack, tmp_path):
    """Whole files: converted, then loaded by the user's own line."""
    keras = pytest.importorskip("keras", reason="Keras 3 is not installed")
    source, output = tmp_path / "model.h5", tmp_path / "out.h5"
    for case in cases_of(stack):
        shutil.copyfile(FIXTURES / f"{stack}.h5", source)
        with h5py.File(source, "r+") as file:
            file.attrs["training_config"] = json.dumps(case["training_config"])
        report = rnnconvert.convert(source, output, verify="weights", force=True)
        path = source if report.verdict == "nothing-to-convert" else output
        loaded = keras.models.load_model(path)
        assert loaded.compiled or any("TensorFlow 1.15 grows" in w for w in report.warnings)


def test_decay_becomes_a_schedule_that_keras_finds():
    training = {
        "loss": "mse", "metrics": [], "loss_weights": None, "sample_weight_mode": None,
        "optimizer_config": {"class_name": "Adam", "config": {"lr": 0.5, "decay": 0.25}},
    }  # fmt: skip
    rate = translate(training)[0]["optimizer_config"]["config"]["learning_rate"]
    assert rate == {
        "module": "keras.optimizers.schedules", "class_name": "InverseTimeDecay",
        "registered_name": None,
        "config": {"initial_learning_rate": 0.5, "decay_steps": 1, "decay_rate": 0.25,
                   "staircase": False, "name": "InverseTimeDecay"},
    }  # fmt: skip


def test_for_keras_2_it_stays_as_it_is():
    """TensorFlow 1.15 asks for the key `sample_weight_mode`."""
    training = {"loss": "cosine", "metrics": ["acc"],
                "optimizer_config": {"class_name": "Nadam", "config": {"decay": 0.1}}}  # fmt: skip
    found, left = translate(training, "keras2")
    assert found == {**training, "loss_weights": None, "sample_weight_mode": None}
    assert not left


def test_metrics_of_a_model_with_two_outputs():
    """Keras 2 took one flat list for every output, Keras 3 takes a list for each."""
    training = {"loss": {"a": "mse", "b": "binary_crossentropy"}, "metrics": ["acc"],
                "optimizer_config": {"class_name": "SGD", "config": {}}}  # fmt: skip
    found, _ = translate(training, outputs=("a", "b"))
    assert found["loss"] == {"a": "mean_squared_error", "b": "binary_crossentropy"}
    assert found["metrics"] == [["acc"], ["acc"]]


def test_what_keras_3_does_not_have_is_named():
    optimizer = {"class_name": "SGD", "config": {
        "learning_rate": {"class_name": "Mine", "config": {"initial_learning_rate": 0.1}},
        "clipnorm": 1.0, "clipvalue": 0.5, "momentum": 0.9,
    }}  # fmt: skip
    training = {"loss": "mse", "metrics": ["mae", "my_metric"], "optimizer_config": optimizer}
    found, left = translate(training)
    assert found["metrics"] == ["mean_absolute_error"]
    assert found["optimizer_config"]["config"] == {
        "learning_rate": 0.1, "clipnorm": 1.0, "momentum": 0.9
    }  # fmt: skip
    assert [word in text for word, text in zip(("my_metric", "Mine", "clipvalue=0.5"), left,
                                               strict=True)] == [True] * 3  # fmt: skip

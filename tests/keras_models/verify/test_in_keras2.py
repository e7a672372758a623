"""What both models of the level `model` have in our translation is run by Keras 2's own classes."""

from __future__ import annotations

import sys
from pathlib import Path

import h5py
import numpy as np
import pytest

import rnnconvert
from rnnconvert.errors import DifferenceError, NotConvertibleError
from rnnconvert.keras_models.config import layer_forms, merge_masks, structure
from rnnconvert.keras_models.config.channels_first import has_channels_first
from rnnconvert.keras_models.config.shared_forms import shared_forms
from rnnconvert.keras_models.config.tensorflow_calls.writer import Writer
from rnnconvert.keras_models.verify import keras2_engine

keras = pytest.importorskip("keras", reason="Keras 3 is not installed")
tf_keras = pytest.importorskip("tf_keras", reason="tf_keras is not installed")
pytestmark = pytest.mark.slow

FIXTURES = Path(__file__).parents[3] / "fixtures"
ATTENTION = FIXTURES / "whole" / "tf23" / "forms_attention" / "model.h5"
NEW_ATTENTION = FIXTURES / "whole" / "tf215" / "forms_attention" / "model.h5"
MERGED = FIXTURES / "zoo" / "tf210" / "Concatenate_masked" / "model.h5"
TIME_MAJOR = FIXTURES / "keras" / "tf215" / "plain_timemajor" / "model.h5"
MULTIPLIED = FIXTURES / "zoo" / "tf210" / "Multiply_masked" / "model.h5"


def filled(model) -> None:
    random = np.random.default_rng(4)
    model.set_weights([random.normal(0, 0.4, w.shape) for w in model.get_weights()])


@pytest.fixture(scope="module")
def concat(tmp_path_factory) -> Path:
    """The score modes of Keras 2.9 and later, beside a CuDNNLSTM."""
    from tf_keras.src.layers.rnn.cudnn_lstm import CuDNNLSTM

    layers = tf_keras.layers
    x = layers.Input((6, 5))
    a = layers.LSTM(4, return_sequences=True)(x)
    b = CuDNNLSTM(3, return_sequences=True)(x)
    b = layers.Dense(4)(b)
    attention = layers.Attention(score_mode="concat", name="by_concat")([a, b])
    heads = layers.MultiHeadAttention(2, 3)(a, b, use_causal_mask=True)
    model = tf_keras.Model(x, [attention, heads])
    filled(model)
    path = tmp_path_factory.mktemp("concat") / "model.h5"
    model.save(path)
    return path


def detail(report) -> str:
    (level,) = [each for each in report.model_level if each.device == "cpu"]
    assert level.status == "passed"
    return level.detail


@pytest.mark.parametrize(
    ("source", "named"),
    [(ATTENTION, "additive_attention"), (NEW_ATTENTION, "multi_head_attention"),
     (MERGED, "concatenate"), (MULTIPLIED, "multiply"), ("concat", "by_concat"),
     (TIME_MAJOR, "first, second")],
    ids=["before 2.9", "2.15", "concatenate", "multiply", "beside CuDNN layers", "time-major"],
)  # fmt: skip
@pytest.mark.sampled(6)
def test_it_is_run_and_agrees(source, named, tmp_path, request):
    source = source if isinstance(source, Path) else request.getfixturevalue(source)
    said = detail(rnnconvert.convert(source, tmp_path / "out.h5", device="cpu"))
    assert f"tf_keras {tf_keras.__version__} runs " in said
    assert named in said


# --- wrong translations, which two models of our own translation can't show ----------------


def causal_lost(monkeypatch) -> None:
    def lost(node, entry, changes):
        entry["config"].pop("causal", None)

    monkeypatch.setattr(layer_forms, "_causal_by_call", lost)


def causal_everywhere(monkeypatch) -> None:
    right = layer_forms._causal_by_call

    def wrong(node, entry, changes):
        if "causal" in entry["config"]:
            entry["config"]["causal"] = True
        right(node, entry, changes)

    monkeypatch.setattr(layer_forms, "_causal_by_call", wrong)


def before_the_forms(monkeypatch, change) -> None:
    """Change a layer's config before it is ported, for Keras 3 only."""
    right = layer_forms._drop_radial_constraints

    def wrong(path, config, changes):
        change(config)
        right(path, config, changes)

    monkeypatch.setattr(layer_forms, "_drop_radial_constraints", wrong)


def score_mode_swapped(monkeypatch) -> None:
    def swapped(config):
        if "score_mode" in config:
            config["score_mode"] = "dot" if config["score_mode"] == "concat" else "concat"
            config["use_scale"] = config["score_mode"] == "dot"  # as many weights

    before_the_forms(monkeypatch, swapped)


def threshold_lost(monkeypatch) -> None:
    def lost(path, node, changes):
        node.entry["class_name"] = "ReLU"
        del node.config["theta"]

    monkeypatch.setattr(layer_forms, "_as_relu", lost)


def causal_call_lost(monkeypatch) -> None:
    right = layer_forms._tensors

    def lost(value, names):
        if isinstance(value, dict):
            value = {key: item for key, item in value.items() if key != "use_causal_mask"}
        return right(value, names)

    monkeypatch.setattr(layer_forms, "_tensors", lost)


def masks_by_or(monkeypatch) -> None:
    write = Writer.op

    def joined(self, class_name, *arguments, **settings):
        name = "LogicalOr" if class_name == "LogicalAnd" else class_name
        return write(self, name, *arguments, **settings)

    monkeypatch.setattr(Writer, "op", joined)


def mask_of_the_first(monkeypatch) -> None:
    right = merge_masks._counts

    def first(writer, mask):
        return right(writer, frozenset(sorted(mask, key=str)[:1]))

    monkeypatch.setattr(merge_masks, "_counts", first)


def axes_kept(monkeypatch) -> None:
    right = structure._transpose

    def kept(name, reference):
        return {**right(name, reference), "config": {"axes": [0, 1, 2]}}

    monkeypatch.setattr(structure, "_transpose", kept)


MUTANTS = [
    (causal_lost, ATTENTION), (causal_everywhere, ATTENTION), (score_mode_swapped, "concat"),
    (threshold_lost, ATTENTION), (causal_call_lost, "concat"), (masks_by_or, MERGED),
    (masks_by_or, MULTIPLIED), (mask_of_the_first, MERGED),
    (axes_kept, TIME_MAJOR),
]  # fmt: skip


@pytest.mark.parametrize(("spoil", "source"), MUTANTS)
@pytest.mark.sampled(12)
@pytest.mark.thinned(2)
def test_a_wrong_form_is_seen(spoil, source, tmp_path, monkeypatch, request):
    source = source if isinstance(source, Path) else request.getfixturevalue(source)
    spoil(monkeypatch)
    with pytest.raises(DifferenceError, match="the original in Keras 2: tf_keras"):
        rnnconvert.convert(source, tmp_path / "out.h5", device="cpu")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("spoil", "source"), [MUTANTS[0], MUTANTS[5], MUTANTS[8]])
def test_without_it_they_are_not(spoil, source, tmp_path, monkeypatch):
    """So the check is what sees them."""
    spoil(monkeypatch)
    monkeypatch.setattr(keras2_engine, "confirm", lambda *arguments: "")
    report = rnnconvert.convert(source, tmp_path / "out.h5", device="cpu")
    assert report.verdict == "equivalent"


# --- where it can't be run ------------------------------------------------------------------


def assumed(report):
    """The verdict's condition, and why; the whole of it is in the JSON too."""
    (assumption,) = report.assumptions
    assert report.verdict == f"equivalent, if {assumption}"
    assert report.proved == "model"
    assert report.to_dict()["assumptions"] == [assumption.to_dict()]
    assert "assumptions" not in report.to_dict()["verification"]["model"][0]
    return assumption


def test_without_tf_keras_the_verdict_has_a_condition(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tf_keras", None)
    assumption = assumed(rnnconvert.convert(ATTENTION, tmp_path / "out.h5", device="cpu"))
    assert str(assumption).startswith("the form of attention, ")
    assert str(assumption).endswith(" is as in Keras 2")
    assert "tf_keras is not installed (pip install tf_keras)" in assumption.why


def test_what_tf_keras_does_not_run_is_a_condition(tmp_path, monkeypatch):
    def fails(*arguments, **named):
        raise ValueError("no such layer")

    monkeypatch.setattr(keras2_engine, "_load_and_run", fails)
    assumption = assumed(rnnconvert.convert(MERGED, tmp_path / "out.h5", device="cpu"))
    assert str(assumption).startswith("the form of concatenate ")
    assert "no such layer" in assumption.why


def test_an_old_softmax_is_a_condition(tmp_path):
    layers = tf_keras.layers
    model = tf_keras.Sequential(
        [layers.Input((6, 5)), layers.LSTM(4, return_sequences=True), layers.Softmax(name="old")]
    )
    filled(model)
    model.save(tmp_path / "m.h5")
    with h5py.File(tmp_path / "m.h5", "r+") as file:
        for group in (file, file["model_weights"]):
            group.attrs["keras_version"] = "2.4.0"
    assumption = assumed(rnnconvert.convert(tmp_path / "m.h5", tmp_path / "out.h5", device="cpu"))
    assert str(assumption) == "the form of old is as in Keras 2"
    assert "Softmax of Keras before 2.5" in assumption.why


def test_channels_first_is_seen_in_a_wrapper():
    conv = {"class_name": "Conv2D", "config": {"name": "c", "data_format": "channels_first"}}
    wrapped = {"class_name": "TimeDistributed", "config": {"name": "t", "layer": conv}}
    model = {"class_name": "Sequential", "config": {"name": "m", "layers": [wrapped]}}
    assert has_channels_first(model)
    conv["config"]["data_format"] = "channels_last"
    assert not has_channels_first(model)


def test_strict_does_not_let_it_pass(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tf_keras", None)
    with pytest.raises(NotConvertibleError, match="--strict: the form of attention, "):
        rnnconvert.convert(ATTENTION, tmp_path / "out.h5", device="cpu", strict=True)
    assert not list(tmp_path.iterdir())


def test_verify_has_the_condition_too(tmp_path, monkeypatch):
    rnnconvert.convert(ATTENTION, tmp_path / "out.h5", verify="weights")
    monkeypatch.setitem(sys.modules, "tf_keras", None)
    assumed(rnnconvert.verify(ATTENTION, tmp_path / "out.h5", device="cpu"))


def test_only_what_is_alike_is_run():
    lstm = {"class_name": "LSTM", "config": {"name": "l", "units": 3}}
    attention = {"class_name": "Attention", "config": {"name": "a"}}
    model = {"class_name": "Sequential", "config": {"name": "m", "layers": [lstm, attention]}}
    assert shared_forms(model, "2.3.0-tf") == ("a",)
    assert shared_forms(model, "3.5.0") == ()
    del model["config"]["layers"][1]
    assert shared_forms(model, "2.3.0-tf") == ()

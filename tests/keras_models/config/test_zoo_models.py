"""Models of layers that Keras 3 has in another form, by the old libraries' own predictions."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import rnnconvert
from rnnconvert.keras_models import planning
from rnnconvert.keras_models.config import hard_sigmoid, merge_masks, port
from rnnconvert.keras_models.config.layer_order import layer_order
from rnnconvert.keras_models.config.tensorflow_calls.writer import Writer

keras = pytest.importorskip("keras", reason="Keras 3 is not installed")

ZOO = Path(__file__).parents[3] / "fixtures" / "zoo"
MODELS = sorted(path.parent for path in ZOO.glob("*/*/model.h5"))
NAMES = [f"{folder.parent.name}-{folder.name}" for folder in MODELS]


def arrays(folder: Path, kind: str) -> list[np.ndarray]:
    with np.load(folder / "data.npz") as data:
        count = sum(name.startswith(kind) for name in data.files)
        return [data[f"{kind}{place}"] for place in range(count)]


def largest_difference(folder: Path, tmp_path: Path) -> float:
    """Between the old library's outputs and those of the converted model, loaded by Keras 3."""
    rnnconvert.convert(folder / "model.h5", tmp_path / "out.h5", verify="none", force=True)
    inputs = arrays(folder, "x")
    model = keras.models.load_model(tmp_path / "out.h5")
    found = model(inputs if len(inputs) > 1 else inputs[0], training=False)
    found = found if isinstance(found, list | tuple) else [found]
    expected = arrays(folder, "y")
    assert len(found) == len(expected)
    return max(
        float(np.abs(a - keras.ops.convert_to_numpy(b)).max())
        for a, b in zip(expected, found, strict=True)
    )


def test_there_are_models():
    assert len(MODELS) >= 14


@pytest.mark.parametrize("folder", MODELS, ids=NAMES)
@pytest.mark.sampled(5)
def test_the_numbers_are_those_of_the_old_library(folder, tmp_path):
    assert largest_difference(folder, tmp_path) < 1e-5


@pytest.mark.parametrize("case", ["k224/hard_sigmoid_RNN", "tf210/Concatenate_masked"])
@pytest.mark.sampled(2)
def test_the_whole_proof_passes_and_nothing_is_left_to_do(case, tmp_path):
    report = rnnconvert.convert(ZOO / case / "model.h5", tmp_path / "out.h5")
    assert report.verdict == "equivalent"
    assert [level.status for level in report.model_level if level.device == "cpu"] == ["passed"]
    again = rnnconvert.convert(tmp_path / "out.h5", tmp_path / "again.h5")
    assert again.verdict == "nothing-to-convert"


# --- wrong translations are seen ------------------------------------------------------------


def test_another_slope_is_seen(tmp_path, monkeypatch):
    monkeypatch.setattr(hard_sigmoid, "_SLOPE", {"scale": 1 / 6, "offset": 0.5})
    assert largest_difference(ZOO / "k224" / "hard_sigmoid_Activation_masked", tmp_path) > 1e-3


def test_unscaled_weights_are_seen(tmp_path, monkeypatch):
    monkeypatch.setattr(planning, "HARD_SIGMOID_RATIO", 1.0)
    assert largest_difference(ZOO / "k224" / "hard_sigmoid_SeparableConv1D", tmp_path) > 1e-3


def test_masks_joined_by_or_are_seen(tmp_path, monkeypatch):
    write = Writer.op

    def joined(self, class_name, *arguments, **settings):
        name = "LogicalOr" if class_name == "LogicalAnd" else class_name
        return write(self, name, *arguments, **settings)

    monkeypatch.setattr(Writer, "op", joined)
    assert largest_difference(ZOO / "tf210" / "Concatenate_masked", tmp_path) > 1e-3


def test_masks_left_to_keras_3_are_seen(tmp_path, monkeypatch):
    monkeypatch.setattr(merge_masks, "_is_merge", lambda entry: False)
    assert largest_difference(ZOO / "tf210" / "Multiply_masked", tmp_path) > 1e-4


def test_weights_in_the_old_order_are_seen(tmp_path, monkeypatch):
    monkeypatch.setattr(
        "rnnconvert.keras_models.planning.changed_order", lambda before, after: (None, [])
    )
    with pytest.raises(ValueError, match="Weight count mismatch"):
        largest_difference(ZOO / "tf210" / "image_to_text", tmp_path)


# --- what can't be told is refused ----------------------------------------------------------


def call(*names: str) -> list:
    return [[[name, 0, 0, {}] for name in names]]


def entry(class_name: str, name: str, inbound: list, **config) -> dict:
    return {"class_name": class_name, "name": name, "inbound_nodes": inbound,
            "config": {"name": name, **config}}  # fmt: skip


def merged(*readers: dict, merge: str = "Add", **config) -> dict:
    """Two embeddings with masks, merged, and what reads that; the last reader is the output."""
    layers = [
        entry("InputLayer", "x", [], batch_input_shape=[None, 6]),
        entry("InputLayer", "z", [], batch_input_shape=[None, 6]),
        entry("Embedding", "a", call("x"), input_dim=7, output_dim=4, mask_zero=True),
        entry("Embedding", "b", call("z"), input_dim=7, output_dim=4, mask_zero=True),
        entry(merge, "merge", call("a", "b"), **config),
        *readers,
    ]
    names = {
        "input_layers": [["x", 0, 0], ["z", 0, 0]],
        "output_layers": [[layers[-1]["name"], 0, 0]],
    }
    return {"class_name": "Model", "config": {"name": "m", "layers": layers, **names}}


LSTM = entry("LSTM", "lstm", call("merge"), units=3)


def classes(model: dict) -> list[str]:
    return [layer["class_name"] for layer in model["config"]["layers"]]


def test_a_merge_before_a_recurrent_layer_has_its_mask_made_anew():
    ported = port(merged(LSTM), None, "2.3.1")
    assert not ported.problems
    assert {"Copy", "LogicalAnd", "Where", "Masking"} <= set(classes(ported.model))


def test_a_merge_whose_mask_nobody_uses_is_left_alone():
    dense = entry("Dense", "dense", call("merge"), units=3)
    assert "Masking" not in classes(port(merged(dense), None, "2.3.1").model)


@pytest.mark.parametrize(
    ("model", "why"),
    [
        (merged(LSTM, merge="Concatenate", axis=1), "joins other things than features"),
        (
            merged(LSTM, entry("Flatten", "flat", call("merge")),
                   entry("Concatenate", "both", call("lstm", "flat"))),
            "both layers that skip masked steps and others",
        ),
        (merged(entry("Attention", "att", call("merge", "merge"))), "Attention"),
    ],
    ids=["time", "both", "attention"],
)  # fmt: skip
def test_a_merge_that_cannot_be_followed_is_refused(model, why):
    (problem,) = port(model, None, "2.3.1").problems
    assert problem.startswith("model/merge: ")
    assert why in problem
    assert not port(model, None, "2.3.1", "keras2").problems


@pytest.mark.parametrize(
    ("class_name", "config", "why"),
    [
        ("SeparableConv1D", {"padding": "causal"}, "causal"),
        ("RandomCrop", {"height": 2, "width": 2}, "crops when it predicts"),
    ],
)
def test_what_computes_something_else_is_refused(class_name, config, why):
    layer = {"class_name": class_name, "config": {"name": "l", **config}}
    model = {"class_name": "Sequential", "config": {"name": "m", "layers": [layer]}}
    (problem,) = port(model, None, "2.10.0").problems
    assert why in problem
    assert port(model, None, "2.10.0", "keras2").problems == ()


def test_the_order_of_layers_follows_their_depth():
    model = merged(LSTM)
    assert layer_order(model) == ["x", "z", "a", "b", "merge", "lstm"]
    model["config"]["layers"][4]["inbound_nodes"] = call("c", "b")
    model["config"]["layers"].append(entry("Dropout", "c", call("a"), rate=0.1))
    assert layer_order(model) == ["x", "a", "z", "c", "b", "merge", "lstm"]

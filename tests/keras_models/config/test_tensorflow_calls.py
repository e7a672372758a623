"""TensorFlow calls as operations of Keras 3: the numbers are those of the TensorFlow that saved."""

from __future__ import annotations

import inspect
import json
import shutil
from pathlib import Path

import h5py
import numpy as np
import pytest
from models import swept

import rnnconvert
from rnnconvert.errors import NotConvertibleError
from rnnconvert.keras_models.config import port
from rnnconvert.keras_models.config.tensorflow_calls import functions, node_defs
from rnnconvert.keras_models.config.tensorflow_calls.values import CallTensor, Refused
from rnnconvert.keras_models.config.tensorflow_calls.writer import Writer
from rnnconvert.keras_models.files.h5 import open_keras_h5

keras = pytest.importorskip("keras", reason="Keras 3 is not installed")

WHOLE = Path(__file__).parents[3] / "fixtures" / "whole"
MODELS = sorted(path.parent for path in WHOLE.glob("*/calls_*/model.h5"))
TRANSLATED = [folder for folder in MODELS if folder.name != "calls_refused"]
NEWEST_CALLS = {folder.name: folder for folder in TRANSLATED}.values()
NAMES = [f"{folder.parent.name}-{folder.name}" for folder in TRANSLATED]


def arrays(folder: Path, kind: str) -> list[np.ndarray]:
    with np.load(folder / "data.npz") as data:
        count = sum(name.startswith(kind) for name in data.files)
        return [data[f"{kind}{place}"] for place in range(count)]


def ported(folder: Path, target: Path) -> Path:
    """The file with its config rewritten, without any verification."""
    shutil.copy(folder / "model.h5", target)
    with open_keras_h5(target) as file:
        result = port(file.model_config, None, file.keras_version)
    assert not result.problems
    with h5py.File(target, "r+") as file:
        file.attrs["model_config"] = json.dumps(result.model)
    return target


def predictions(path: Path, folder: Path) -> list[np.ndarray]:
    keras.backend.clear_session()
    model = keras.models.load_model(path, compile=False)
    found = model(arrays(folder, "x"), training=False)
    found = found if isinstance(found, list | tuple) else [found]
    return [keras.ops.convert_to_numpy(array) for array in found]


def wrong_outputs(path: Path, folder: Path) -> list[int]:
    """Places of the outputs that are not those of the old library."""
    expected, found = arrays(folder, "y"), predictions(path, folder)
    assert len(found) == len(expected) > 2
    return [
        place
        for place, (a, b) in enumerate(zip(expected, found, strict=True))
        if a.shape != b.shape or np.abs(a - b.astype(np.float64)).max() > 1e-5
    ]


@pytest.mark.parametrize("folder", swept(TRANSLATED, NEWEST_CALLS), ids=NAMES)
@pytest.mark.sampled(6)
def test_every_output_is_that_of_the_old_library(folder, tmp_path):
    assert wrong_outputs(ported(folder, tmp_path / "ported.h5"), folder) == []


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="TensorFlow is the judge")
@pytest.mark.parametrize("name", ["tf23/calls_comparisons", "tf210/calls_named"])
def test_the_level_model_asks_tensorflow_itself(name, tmp_path):
    """The original's calls are run by TensorFlow; a translation that is wrong is found."""
    source = WHOLE / name / "model.h5"
    report = rnnconvert.convert(source, tmp_path / "out.h5", device="cpu")
    assert report.model_level[0].status == "passed", report.model_level
    assert rnnconvert.convert(tmp_path / "out.h5", tmp_path / "again.h5").verdict == (
        "nothing-to-convert"
    )


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="TensorFlow is the judge")
def test_the_level_model_sees_a_wrong_translation(tmp_path, monkeypatch):
    wrong = functions.FUNCTIONS["math.subtract"]
    monkeypatch.setitem(functions.FUNCTIONS, "__operators__.add", wrong)
    with pytest.raises(rnnconvert.DifferenceError):
        rnnconvert.convert(WHOLE / "tf210/calls_named/model.h5", tmp_path / "out.h5")


@pytest.mark.parametrize("producer", ["tf115", "tf23", "tf210"])
def test_what_has_no_counterpart_is_refused_by_name_all_at_once(producer, tmp_path):
    with pytest.raises(NotConvertibleError) as caught:
        rnnconvert.convert(WHOLE / producer / "calls_refused/model.h5", tmp_path / "out.h5")
    text = str(caught.value)
    assert "LRN" in text or "nn.local_response_normalization" in text
    assert producer != "tf210" or "image.flip_left_right" in text
    assert not (tmp_path / "out.h5").exists()


def test_an_operation_whose_automatic_name_is_taken_needs_a_newer_keras():
    with open_keras_h5(WHOLE / "tf210/calls_named/model.h5") as file:
        result = port(file.model_config, None, file.keras_version)
    assert [point for point in result.target_points if "Keras 3.11" in point and "Mean" in point]


def test_keras2_keeps_the_calls():
    with open_keras_h5(WHOLE / "tf210/calls_slices/model.h5") as file:
        result = port(file.model_config, None, file.keras_version, "keras2")
    kept = {layer["class_name"] for layer in result.model["config"]["layers"]}
    assert {"TFOpLambda", "SlicingOpLambda"} <= kept
    assert not result.warnings
    assert not result.problems


# --- mutants: a translation that is wrong in one thing changes a recorded output -----------------


def changed(translation, argument, change):
    """The translation with one argument changed."""
    signature = inspect.signature(translation)

    def wrong(*arguments, **keywords):
        bound = signature.bind(*arguments, **keywords)
        bound.apply_defaults()
        bound.arguments[argument] = change(bound.arguments[argument])
        return translation(*bound.args, **bound.kwargs)

    wrong.__signature__ = signature
    return wrong


def _next_axis(axis):
    return axis if isinstance(axis, list) else {1: 2, 2: 1, -1: -2}[axis]


def other_axis(translation):
    return changed(translation, "axis", _next_axis)


def other_keepdims(translation):
    return changed(translation, "keepdims", lambda keep: not keep)


def swapped(translation):
    def wrong(w, x, y):
        return translation(w, y, x)

    return wrong


F = functions.FUNCTIONS
MUTANTS = [
    ("calls_slices", "concat", other_axis(F["concat"])),
    ("calls_slices", "stack", other_axis(F["stack"])),
    ("calls_slices", "split", other_axis(F["split"])),
    ("calls_slices", "expand_dims", other_axis(F["expand_dims"])),
    ("calls_slices", "gather", other_axis(F["gather"])),
    ("calls_reductions", "math.reduce_mean", other_axis(F["math.reduce_mean"])),
    ("calls_reductions", "math.reduce_max", other_keepdims(F["math.reduce_max"])),
    ("calls_reductions", "math.reduce_sum", other_keepdims(F["math.reduce_sum"])),
    ("calls_reductions", "math.cumsum", other_axis(F["math.cumsum"])),
    ("calls_reductions", "linalg.matmul", lambda w, a, b, transpose_a=None, transpose_b=None:
        F["linalg.matmul"](w, a, b, transpose_a=transpose_b, transpose_b=transpose_a)),
    ("calls_activations", "nn.relu", F["nn.softplus"]),
    ("calls_activations", "nn.selu", F["nn.elu"]),
    ("calls_activations", "math.sigmoid", F["nn.tanh"]),
    ("calls_activations", "nn.softmax", F["nn.log_softmax"]),
    ("calls_activations", "nn.leaky_relu", lambda w, features, alpha=0.3:
        F["nn.leaky_relu"](w, features, alpha)),
    ("calls_arithmetic", "math.subtract", swapped(F["math.subtract"])),
    ("calls_arithmetic", "math.truediv", swapped(F["math.truediv"])),
    ("calls_arithmetic", "math.floormod", F["math.floordiv"]),
    ("calls_arithmetic", "math.maximum", F["math.minimum"]),
    ("calls_comparisons", "math.greater", F["math.less"]),
    ("calls_comparisons", "math.argmax", F["math.argmin"]),
    ("calls_comparisons", "where", lambda w, condition, x, y: F["where"](w, condition, y, x)),
    ("calls_where", "where", lambda w, condition, x, y: F["where"](w, condition, y, x)),
    ("calls_where", "select", lambda w, condition, x, y: F["select"](w, condition, y, x)),
    ("calls_where", "select", F["where"]),
]  # fmt: skip


@pytest.mark.parametrize(
    ("case", "name", "wrong"),
    MUTANTS,
    ids=[f"{name}-{i}" for i, (_, name, _) in enumerate(MUTANTS)],
)
@pytest.mark.sampled(18)
def test_mutants_of_translations_are_caught(case, name, wrong, tmp_path, monkeypatch):
    import tensorflow as tf

    monkeypatch.setitem(functions.FUNCTIONS, name, wrong)
    folder = WHOLE / "tf210" / case
    try:
        found = wrong_outputs(ported(folder, tmp_path / "wrong.h5"), folder)
    except (ValueError, TypeError, RuntimeError, tf.errors.InvalidArgumentError):
        return  # Keras does not even load or run it
    assert found


@pytest.mark.parametrize("mask", ["begin_mask", "end_mask", "shrink_axis_mask", "new_axis_mask"])
def test_mutants_of_masks_are_caught(mask, tmp_path, monkeypatch):
    """A StridedSlice whose mask is not looked at gives another slice."""
    genuine = node_defs._slices

    def without(places, attributes):
        return genuine(places, {**attributes, mask: {"i": "0"}})

    monkeypatch.setattr(node_defs, "_slices", without)
    folder = WHOLE / "tf23" / "calls_slices"
    try:
        found = wrong_outputs(ported(folder, tmp_path / "wrong.h5"), folder)
    except (AssertionError, ValueError, TypeError, RuntimeError):
        return
    assert found


@pytest.mark.parametrize(
    ("function", "arguments", "reason"),
    [
        ("reshape", [None, [2, -1, -1]], "more than one size"),
        ("where", [None], "another length"),
        ("math.cumsum", [None, 1, True], "exclusive"),
        ("gather", [None, [0], None, 1, 1], "batch_dims"),
        ("norm", [None, 3], "ord"),
        ("cast", [None, 5], "dtype"),
        ("pad", [None, [[0, 0]], "WRAP"], "mode"),
    ],
)
def test_arguments_without_a_counterpart_are_refused(function, arguments, reason):
    with pytest.raises(Refused, match=reason):
        functions.FUNCTIONS[function](None, *arguments)


@pytest.mark.parametrize("by_rows", [True, False])
def test_where_of_tensorflow_1_takes_rows_or_single_values(by_rows):
    """Its condition has one value for each row, or is of the values' shape."""
    x, y = np.random.default_rng(1).normal(0, 1, (2, 3, 4, 3))
    condition = np.array([True, False, True]) if by_rows else x > 0
    expected = np.stack([x[0], y[1], x[2]]) if by_rows else np.maximum(x, 0) + np.where(x > 0, 0, y)
    writer = Writer("select", set(), "float32", {0})
    functions.FUNCTIONS["select"](writer, *(CallTensor(name, 0, 0) for name in "cxy"))
    known = {"c": condition, "x": x, "y": y}
    run = {"Transpose": keras.ops.transpose, "Where": keras.ops.where}
    for entry in writer.entries:
        (call,) = entry["inbound_nodes"]
        inputs = [known[tensor["config"]["keras_history"][0]] for tensor in call["args"]]
        known[entry["name"]] = run[entry["class_name"]](*inputs)
    found = keras.ops.convert_to_numpy(known[writer.entries[-1]["name"]])
    assert np.allclose(found, expected, atol=1e-6)

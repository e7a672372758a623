"""Optimizer state is converted with its weights, in every naming, or dropped with the reason."""

from __future__ import annotations

import h5py
import numpy as np
import pytest
from models import NEWEST, OLDEST, OWN, swept, train

import rnnconvert

pytestmark = pytest.mark.slow

STATES = [model for model in OWN if model.path.parent.name.startswith("opt_")]
EQUAL = [model for model in STATES if "unequal" not in model.name]
UNEQUAL = [model for model in STATES if "unequal" in model.name]


def original_slots(path):
    """Weight name to its slots in the file's order: by shape, which differs for every weight."""
    with h5py.File(path) as file:
        weights = {}
        for layer in file["model_weights"].attrs["layer_names"]:
            group = file["model_weights"][layer]
            for name in group.attrs["weight_names"]:
                weights[group[name].shape] = (layer, name)
        assert len(weights) == 8  # all shapes differ, so that shapes can tell the slots apart
        slots = {shape: [] for shape in weights}
        state = file["optimizer_weights"]
        for name in state.attrs["weight_names"]:
            if state[name].shape in slots:
                slots[state[name].shape].append(state[name][()])
    return slots


def convert_slots(slots):
    """The expected slots, as tf_keras converts weights: merged biases take either half."""
    shapes = list(slots)
    gru = [shape for shape in shapes if shape in ((5, 18), (6, 18), (36,))]
    lstm = [shape for shape in shapes if shape in ((6, 16), (4, 16), (32,))]
    assert len(gru) == len(lstm) == 3
    expected = {}
    for cell, own in (("gru", sorted(gru, key=_order)), ("lstm", sorted(lstm, key=_order))):
        for index in range(len(slots[own[0]])):
            tensors = {
                kind: slots[shape][index]
                for kind, shape in zip(("kernel", "recurrent_kernel", "bias"), own, strict=True)
            }
            made = by_tf_keras(cell, list(tensors.values()))
            if cell == "lstm":
                made[2] = tensors["bias"][:16]
            for shape, slot in zip(own, made, strict=True):
                expected.setdefault(shape, []).append(slot)
    return {**slots, **expected}


def by_tf_keras(cell, arrays):
    """What tf_keras makes of a CuDNN layer's three arrays when a portable layer loads them."""
    layers = pytest.importorskip("tf_keras", reason="tf_keras is not installed").layers
    from tf_keras.src.saving.legacy.hdf5_format import preprocess_weights_for_loading

    layer = layers.LSTM(4) if cell == "lstm" else layers.GRU(6, reset_after=True)
    layer.build((None, None, len(arrays[0])))
    return preprocess_weights_for_loading(layer, arrays, "2.2.4", "tensorflow")


def _order(shape):
    return {(5, 18): 0, (6, 18): 1, (36,): 2, (6, 16): 0, (4, 16): 1, (32,): 2}[shape]


def same_multiset(found, expected):
    def key(values):
        return sorted((a.shape, a.tobytes()) for a in values)

    return key(found) == key(expected)


@pytest.mark.parametrize("model", swept(EQUAL, NEWEST), ids=lambda model: model.name)
@pytest.mark.sampled(2)
def test_keras2_file_holds_the_permuted_slots(model, tmp_path):
    output = tmp_path / "converted.h5"
    report = rnnconvert.convert(model.path, output, target="keras2", verify="layers")
    assert report.optimizer.state == "converted"
    expected = [slot for own in convert_slots(original_slots(model.path)).values() for slot in own]
    with h5py.File(output) as file:
        state = file["optimizer_weights"]
        found = [state[name][()] for name in state.attrs["weight_names"]]
    assert same_multiset([slot for slot in found if slot.ndim], expected)


@pytest.mark.parametrize("model", swept(EQUAL, OLDEST), ids=lambda model: model.name)
@pytest.mark.corpus
@pytest.mark.thinned(2)
def test_tf_keras_resumes_from_it(model, tmp_path):
    tf_keras = pytest.importorskip("tf_keras")
    output = tmp_path / "converted.h5"
    rnnconvert.convert(model.path, output, target="keras2", verify="layers")
    tf_keras.backend.clear_session()
    loaded = tf_keras.models.load_model(output)
    with h5py.File(output) as file:
        state = file["optimizer_weights"]
        stored = [state[name][()] for name in state.attrs["weight_names"]]
    own = loaded.optimizer.variables
    variables = [variable.numpy() for variable in (own() if callable(own) else own)]
    assert len(variables) == len(stored)
    for mine, its in zip(stored, variables, strict=True):
        assert np.array_equal(mine, its)
    train(loaded, model)


@pytest.mark.parametrize("model", swept(EQUAL, NEWEST), ids=lambda model: model.name)
@pytest.mark.sampled(8)
@pytest.mark.thinned(2)
def test_keras3_resumes_from_the_keras_format(model, tmp_path):
    keras = pytest.importorskip("keras")
    output = tmp_path / "converted.keras"
    report = rnnconvert.convert(model.path, output, verify="layers")
    assert report.optimizer.state == "converted"
    loaded = keras.models.load_model(output)
    slots = [v.numpy() for v in loaded.optimizer.variables if len(v.shape)]
    expected = [slot for own in convert_slots(original_slots(model.path)).values() for slot in own]
    assert same_multiset(slots, expected)
    by_weight = dict(
        zip([w.shape for w in loaded.trainable_weights], loaded.trainable_weights, strict=True)
    )
    for slot in slots:  # each slot has the shape of its weight, at its weight's place
        assert slot.shape in by_weight
    train(loaded, model)


@pytest.mark.parametrize("model", UNEQUAL, ids=lambda model: model.name)
def test_slots_that_disagree_are_dropped_with_the_reason(model, tmp_path):
    report = rnnconvert.convert(model.path, tmp_path / "a.h5", target="keras2", verify="layers")
    assert report.optimizer.state == "dropped"
    assert "disagree" in report.optimizer.notes[0]
    with h5py.File(tmp_path / "a.h5") as file:
        assert "optimizer_weights" not in file


@pytest.mark.parametrize("model", swept(STATES, STATES[:2]), ids=lambda model: model.name)
@pytest.mark.corpus
@pytest.mark.thinned(2)
def test_keras3_trains_the_h5_with_a_fresh_optimizer(model, tmp_path):
    """Keras 3 can't restore state from any .h5, and with state in the file its fit fails."""
    keras = pytest.importorskip("keras")
    output = tmp_path / "converted.h5"
    report = rnnconvert.convert(model.path, output, verify="layers")
    assert report.optimizer.state == "dropped"
    assert "--to keras" in report.optimizer.notes[0]
    keras.backend.clear_session()
    loaded = keras.models.load_model(output)
    train(loaded, model)


def test_drop(tmp_path):
    report = rnnconvert.convert(
        EQUAL[0].path, tmp_path / "a.h5", target="keras2", optimizer="drop", verify="layers"
    )
    assert report.optimizer.state == "dropped"
    with h5py.File(tmp_path / "a.h5") as file:
        assert "optimizer_weights" not in file

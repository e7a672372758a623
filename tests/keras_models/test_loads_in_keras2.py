"""Converted files in Keras 2 (tf_keras): the same numbers, and the same bits as its conversion."""

from __future__ import annotations

import h5py
import numpy as np
import pytest
from models import ENDS, NEWEST, OLDEST, ROOT, Model, predict, swept, worst_difference

import rnnconvert

pytestmark = pytest.mark.slow
tf_keras = pytest.importorskip("tf_keras", reason="tf_keras is not installed")

LOADABLE = [model for model in ENDS if not model.has_lambda]
BY_THE_OLDEST = [model for model in LOADABLE if model in OLDEST]
"""One writer is enough where each model takes Keras seconds."""
CUDNN = [model for model in LOADABLE if not model.path.parent.name.startswith("plain_")]


@pytest.mark.parametrize("model", BY_THE_OLDEST, ids=lambda model: model.name)
@pytest.mark.sampled(32)
@pytest.mark.thinned(2)
def test_target_keras2(model, tmp_path):
    output = tmp_path / "converted.h5"
    report = rnnconvert.convert(model.path, output, target="keras2", verify="layers")
    path = output if report.verdict != "nothing-to-convert" else model.path
    tf_keras.backend.clear_session()
    loaded = tf_keras.models.load_model(path)
    found = predict(loaded, model.inputs())
    assert worst_difference(found, model.outputs()) <= model.tolerance


@pytest.mark.corpus
@pytest.mark.parametrize(
    "model", [m for m in CUDNN if m in BY_THE_OLDEST], ids=lambda model: model.name
)
@pytest.mark.thinned(2)
def test_default_target_loads_in_keras2_unless_the_report_names_a_point(model, tmp_path):
    output = tmp_path / "converted.h5"
    report = rnnconvert.convert(model.path, output, verify="layers")
    nested_or_states = {"nested", "nested_frozen", "wide", "encdec", "bi_state", "td_model"}
    assert bool(report.target_points) == (model.path.parent.name in nested_or_states)
    if report.target_points:
        return  # loading it in Keras 2 is what the report warns of
    tf_keras.backend.clear_session()
    loaded = tf_keras.models.load_model(output)
    found = predict(loaded, model.inputs())
    assert worst_difference(found, model.outputs()) <= model.tolerance


@pytest.mark.parametrize("model", swept(CUDNN, NEWEST), ids=lambda model: model.name)
@pytest.mark.sampled(42)
@pytest.mark.thinned(2)
def test_weights_equal_tf_keras_own_conversion_bit_for_bit(model, tmp_path):
    """tf_keras converts while loading; its weights, in the file's order, against ours."""
    layers = tf_keras.layers
    tf_keras.backend.clear_session()
    oracle = tf_keras.models.load_model(
        model.path,
        custom_objects={"CuDNNLSTM": layers.LSTM, "CuDNNGRU": layers.GRU},
        compile=False,
    )
    output = tmp_path / "converted.h5"
    rnnconvert.convert(model.path, output, verify="layers")
    with h5py.File(output) as file:
        for layer in oracle.layers:
            weights = layer.trainable_weights + layer.non_trainable_weights
            group = file["model_weights"][layer.name]
            parts = [name for name in group.attrs if name.startswith("weight_names")]
            names = [name for part in sorted(parts) for name in group.attrs[part]]
            assert len(names) == len(weights)
            for name, weight in zip(names, weights, strict=True):
                mine = group[name][()]
                assert mine.dtype == weight.numpy().dtype
                assert np.array_equal(mine, weight.numpy()), f"{layer.name}: {name}"


WHOLE = ROOT / "fixtures" / "whole"
CALLS = [
    Model(f"{path.parts[-3]}-{path.parts[-2]}", path)
    for path in sorted(WHOLE.glob("tf2*/*/model.h5"))
    if path.parts[-2] != "calls_refused"
]


@pytest.mark.parametrize("model", CALLS, ids=lambda model: model.name)
@pytest.mark.sampled(12)
def test_tensorflow_calls_are_left_to_keras2(model, tmp_path):
    """What Keras 2 reads stays as it is: calls of every TensorFlow, attention of its own."""
    rnnconvert.convert(model.path, tmp_path / "out.h5", target="keras2", verify="layers")
    tf_keras.backend.clear_session()
    loaded = tf_keras.models.load_model(tmp_path / "out.h5")
    (inputs,) = model.inputs()
    with np.load(model.path.with_name("data.npz")) as data:
        expected = [data[f"y{place}"] for place in range(len(data.files) - 1)]
    found = [np.asarray(one) for one in loaded(inputs, training=False)]
    assert [one.shape for one in found] == [one.shape for one in expected]
    assert worst_difference(found, expected) <= model.tolerance

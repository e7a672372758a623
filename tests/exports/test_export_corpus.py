"""Every case at hand to ONNX, or a reason: a sweep."""

from __future__ import annotations

import pytest
from export_cases import (
    CHECKPOINTS,
    FIXTURES,
    FOLDERS,
    FURTHER_CASES,
    GRAPHS,
    KERAS_1,
    REASONS,
    ZIPS,
    name_of,
)
from export_models import saved
from models import REAL

import rnnconvert
from rnnconvert.errors import ConversionError
from rnnconvert.exports.options import OPSETS

pytestmark = [pytest.mark.slow, pytest.mark.corpus]
for name in ("tensorflow", "keras", "onnx", "tf2onnx", "onnxruntime"):
    pytest.importorskip(name, reason=f"{name} is not installed")
import keras
from keras import layers

REASONS = {
    **REASONS,
    # checkpoints and models
    "cudnn_gru_double": "float64",
    "dtln_lambda_savedmodel": "no ONNX form of the TensorFlow op RFFT",
    "weights.h5": "holds no architecture",  # of Keras 1
    # graphs
    "contrib_table": "tf2onnx can't convert the graph",
    "ops_loop": "no valid ONNX",
}
KERAS_1_WEIGHTS = FIXTURES / "keras1/tensorflow/lstm/weights.h5"
LOOPS = {"plain_export"}
"""Graphs in which an ordinary LSTM is a loop already, and tf2onnx leaves it one."""


@pytest.mark.parametrize("opset", [opset for opset in OPSETS if opset not in (15, 17)])
@pytest.mark.thinned(2)
def test_every_opset(opset, tmp_path):
    """Every recurrent operator, a mask, a loop, convolutions, and operators that came or changed.

    `onnx.checker` passes before a file is written; onnxruntime runs it in the proof. 15 and 17, the
    default, are what other tests write.
    """
    words, numbers = keras.Input((None,), dtype="int32"), keras.Input((12, 5))
    embedded = layers.Embedding(9, 5, mask_zero=True)(words)
    seen = layers.LayerNormalization()(layers.Conv1D(4, 3, activation="relu")(numbers))
    outputs = [
        layers.Bidirectional(layers.LSTM(4, return_sequences=True))(embedded),
        layers.GRU(3, reset_after=False, go_backwards=True)(embedded),
        layers.SimpleRNN(3, return_sequences=True)(seen),
        layers.LSTM(3, activation="silu")(seen),
        layers.Softmax()(layers.TimeDistributed(layers.Dense(2))(seen)),
        layers.GlobalMaxPooling1D()(layers.MaxPooling1D(2)(seen)),
    ]
    source = saved(keras.Model([words, numbers], outputs), tmp_path / "model.keras")
    report = rnnconvert.export(source, tmp_path / "model.onnx", opset=opset)
    assert report.proved == "model"
    [written] = report.exported
    assert written.versions["opset"] == opset
    found = {name: written.operators[name] for name in ("LSTM", "GRU", "RNN", "Loop")}
    assert found == {"LSTM": 1, "GRU": 1, "RNN": 1, "Loop": 1}
    graph = FIXTURES / "savedmodels/tf115/contrib_gru_bi2/model"
    [written] = rnnconvert.export(graph, tmp_path / "graph.onnx", opset=opset).exported
    assert (written.versions["opset"], written.operators["GRU"]) == (opset, 2)


@pytest.mark.parametrize(
    "path",
    [*REAL, *FOLDERS, *CHECKPOINTS, *GRAPHS, *KERAS_1, KERAS_1_WEIGHTS, *ZIPS, *FURTHER_CASES],
    ids=lambda path: "-".join(path.parts[-3:]),
)
@pytest.mark.thinned(4)
def test_to_onnx_or_a_reason(path, tmp_path):
    name = name_of(path)
    folder = tmp_path / "out"
    folder.mkdir()
    if name in REASONS:
        with pytest.raises(ConversionError, match=REASONS[name]):
            rnnconvert.export(path, folder, to="onnx")
        assert not list(folder.iterdir())
        return
    report = rnnconvert.export(path, folder, to="onnx")
    assert report.is_equivalent
    assert report.proved == "model", report.model_level
    assert len(list(folder.iterdir())) == len(report.exported)
    for written in report.exported:
        loops = written.operators["Loop"] + written.operators["Scan"]
        assert (loops > 0) == bool(written.loops)
        assert not loops or "convlstm" in name or name in LOOPS

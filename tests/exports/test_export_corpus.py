"""Every model at hand to ONNX, or a reason: a sweep."""

from __future__ import annotations

from pathlib import Path

import pytest
from export_models import saved
from models import FURTHER, REAL, SHARED

import rnnconvert
from rnnconvert.errors import ConversionError
from rnnconvert.exports.options import OPSETS

pytestmark = [pytest.mark.slow, pytest.mark.corpus]
for name in ("tensorflow", "keras", "onnx", "tf2onnx", "onnxruntime"):
    pytest.importorskip(name, reason=f"{name} is not installed")
import keras
from keras import layers

FIXTURES = Path(__file__).parents[2] / "fixtures"
CHECKPOINTS = sorted(
    {path.name: path for path in (FIXTURES / "checkpoints").glob("*/*") if path.is_dir()}.values()
)
"""Each case once, by its newest writer in the order of names."""
NEWEST_FURTHER = sorted({model.path.parent.name: model.path for model in FURTHER}.values())
GRAPHS = sorted((FIXTURES / "savedmodels").glob("*/*/model")) + sorted(
    (FIXTURES / "savedmodels").glob("*/*/frozen.pb")
)
FOLDERS = sorted(path for path in (SHARED / "real-models").glob("*") if path.is_dir())
OTHERS = [
    *(FIXTURES / "keras1").glob("*/*/*.h5"),
    *(FIXTURES / "keras_zip").rglob("*.keras"),
]
REASONS = {
    # checkpoints
    "cudnn_gru_double": "float64",
    "cudnn_gru_raw": "give --cell",
    "cudnn_lstm_disagree": "disagree",
    "layer_norm_lstm": "normalises its gates",
    "lstm_peephole": "peepholes",
    "lstm_projection": "projection",
    # graphs
    "contrib_table": "tf2onnx can't convert the graph",
    "ops_loop": "no valid ONNX",
    # models
    "calamari_index_only": "is missing",
    "double": "float64",
    "dtln_lambda_savedmodel": "no ONNX form of the TensorFlow op RFFT",
    "lam": "Lambda",
    "plain_lam": "Lambda",
    "weights.h5": "holds no architecture",  # of Keras 1
}
LOOPS = {"plain_export"}
"""Graphs in which an ordinary LSTM is a loop already, and tf2onnx leaves it one."""


def name_of(path: Path) -> str:
    generic = ("model", "model.h5", "full.h5", "frozen.pb", "model.keras")
    return path.parent.name if path.name in generic else path.name


@pytest.mark.parametrize("opset", OPSETS)
def test_every_opset(opset, tmp_path):
    """Every recurrent operator, a mask, a loop, convolutions, and operators that came or changed.

    `onnx.checker` passes before a file is written; onnxruntime runs it in the proof.
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
    [*REAL, *FOLDERS, *CHECKPOINTS, *GRAPHS, *OTHERS, *NEWEST_FURTHER],
    ids=lambda path: "-".join(path.parts[-3:]),
)
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

"""Every model at hand to ONNX, or a reason: a sweep."""

from __future__ import annotations

from pathlib import Path

import pytest
from models import FURTHER, REAL, SHARED

import rnnconvert
from rnnconvert.errors import ConversionError

pytestmark = [pytest.mark.slow, pytest.mark.corpus]
for name in ("tensorflow", "keras", "onnx", "tf2onnx", "onnxruntime"):
    pytest.importorskip(name, reason=f"{name} is not installed")

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

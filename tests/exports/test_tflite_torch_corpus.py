"""Every model at hand to TFLite and to torch, or a reason: a sweep."""

from __future__ import annotations

from pathlib import Path

import pytest
from models import FURTHER, OWN, REAL, SHARED

import rnnconvert
from rnnconvert.errors import ConversionError

pytestmark = [pytest.mark.slow, pytest.mark.corpus]
for name in ("tensorflow", "keras", "ai_edge_litert", "torch", "safetensors"):
    pytest.importorskip(name, reason=f"{name} is not installed")

FIXTURES = Path(__file__).parents[2] / "fixtures"
CHECKPOINTS = sorted(path for path in (FIXTURES / "checkpoints").glob("tf115/*") if path.is_dir())
FOLDERS = sorted(path for path in (SHARED / "real-models").glob("*") if path.is_dir())
KERAS1 = sorted((FIXTURES / "keras1").glob("tensorflow/*/model.h5"))
MODELS = [model.path for model in OWN if "k224" in model.name]
FEW = [path for path in MODELS if path.parent.name in ("bi", "embed_bi", "encdec", "plain_masked",
       "plain_nested", "plain_rnn_cells", "stateful", "td_model", "return_state")]  # fmt: skip
"""For TFLite, whose conversion takes seconds."""
REASONS = {
    "cudnn_gru_raw": "give --cell",
    "cudnn_lstm_disagree": "disagree",
    "layer_norm_lstm": "normalises its gates",
    "lstm_peephole": "peepholes",
    "lstm_projection": "projection",
    "calamari_index_only": "is missing",
    "dtln_lambda_savedmodel": "Lambda",
    "lam": "Lambda",
    "plain_lam": "Lambda",
}
NO_TORCH = {"plain_convlstm": "ConvLSTM2D", "convlstm": "ConvLSTM2D",
            "channels_first": "ZeroPadding2D: channels_first"}  # fmt: skip
NO_TFLITE = {"half": "float16", "double": "float64", "cudnn_lstm_half": "float16",
             "cudnn_gru_double": "float64",
             "dtln_lambda_savedmodel": "no builtin operator"}  # fmt: skip


def name_of(path: Path) -> str:
    generic = ("model", "model.h5", "full.h5", "model.keras")
    return path.parent.name if path.name in generic else path.name


def swept(path: Path, to: str, folder: Path, reasons: dict[str, str], **options: int) -> None:
    name = name_of(path)
    folder.mkdir()
    if name in reasons:
        with pytest.raises(ConversionError, match=reasons[name]):
            rnnconvert.export(path, folder, to=to, **options)
        assert not list(folder.iterdir())
        return
    report = rnnconvert.export(path, folder, to=to, **options)
    assert report.is_equivalent
    assert report.proved == "model", report.model_level
    files = {written for each in report.exported for written in each.files}
    assert {file.name for file in folder.iterdir()} == files


def ids(path: Path) -> str:
    return "-".join(path.parts[-3:])


@pytest.mark.parametrize(
    "path",
    [*REAL, *FOLDERS, *CHECKPOINTS, *KERAS1, *MODELS, *(model.path for model in FURTHER)],
    ids=ids,
)
def test_to_torch_or_a_reason(path, tmp_path):
    swept(path, "torch", tmp_path / "out", {**REASONS, **NO_TORCH})


@pytest.mark.parametrize("path", [*REAL, *FOLDERS, *CHECKPOINTS[::6], *KERAS1[:2], *FEW], ids=ids)
def test_to_tflite_or_a_reason(path, tmp_path):
    """For its own number of steps, or six."""
    reasons = {**REASONS, **NO_TFLITE}
    try:
        swept(path, "tflite", tmp_path / "out", reasons)
    except rnnconvert.UsageError as error:
        if "--timesteps" not in str(error):
            raise
        swept(path, "tflite", tmp_path / "again", reasons, timesteps=6)

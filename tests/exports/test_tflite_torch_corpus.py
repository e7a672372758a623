"""Every case at hand to TFLite and to torch, or a reason: a sweep."""

from __future__ import annotations

from pathlib import Path

import pytest
from export_cases import (
    CHECKPOINTS,
    FOLDERS,
    FURTHER_CASES,
    KERAS_1,
    OWN_CASES,
    REASONS,
    name_of,
)
from models import REAL

import rnnconvert
from rnnconvert.errors import ConversionError

pytestmark = [pytest.mark.slow, pytest.mark.corpus]
for name in ("tensorflow", "keras", "ai_edge_litert", "torch", "safetensors"):
    pytest.importorskip(name, reason=f"{name} is not installed")

FEW = frozenset(
    "bi embed_bi encdec plain_masked plain_nested plain_rnn_cells stateful td_model "
    "return_state".split()
)
"""For TFLite, whose conversion takes seconds."""
FEW_CASES = [path for path in OWN_CASES if name_of(path) in FEW]
SHORT = [path for path in REAL if not path.name.startswith("pipr")]
"""Real models but the one of 2,000 steps, of which one proof takes a minute."""
NO_TORCH = {"plain_convlstm": "ConvLSTM2D", "convlstm": "ConvLSTM2D",
            "channels_first": "ZeroPadding2D: channels_first"}  # fmt: skip
NO_TFLITE = {"half": "float16", "double": "float64", "cudnn_lstm_half": "float16",
             "cudnn_gru_double": "float64",
             "dtln_lambda_savedmodel": "no builtin operator"}  # fmt: skip


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
    [*REAL, *FOLDERS, *CHECKPOINTS[::3], *KERAS_1[:2], *OWN_CASES, *FURTHER_CASES],
    ids=ids,
)
@pytest.mark.thinned(4)
def test_to_torch_or_a_reason(path, tmp_path):
    swept(path, "torch", tmp_path / "out", {**REASONS, **NO_TORCH})


@pytest.mark.parametrize(
    "path", [*SHORT, *FOLDERS, *CHECKPOINTS[::6], *KERAS_1[:2], *FEW_CASES], ids=ids
)
@pytest.mark.thinned(4)
def test_to_tflite_or_a_reason(path, tmp_path):
    """For its own number of steps, or six; real models for one sequence, LSTMs as one operator."""
    reasons = {**REASONS, **NO_TFLITE}
    options = {"batch": 1} if path in REAL else {}
    try:
        swept(path, "tflite", tmp_path / "out", reasons, **options)
    except rnnconvert.UsageError as error:
        if "--timesteps" not in str(error):
            raise
        swept(path, "tflite", tmp_path / "again", reasons, timesteps=6, **options)

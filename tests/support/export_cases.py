"""What the sweeps of exports run on: every case that another one does not already prove.

How a model was stored, by which version, with which optimizer or what of it was frozen makes no
difference to an export, which begins with the converted model; the tests of reading and converting
sweep that.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from models import FURTHER, OWN, SHARED

FIXTURES = Path(__file__).parents[2] / "fixtures"
_GENERIC = ("model", "model.h5", "full.h5", "frozen.pb", "model.keras")
_ONLY_STORED = re.compile(
    r"(^|_)(opt|adam|adadelta|adagrad|momentum|rmsprop|average|v1|object|sharded|partitioned|scope"
    r"|built|halved|frozen_branch|frozen_model|nested_frozen)(_|$)"
)
"""In the name of a case that is another one stored otherwise."""


def name_of(path: Path) -> str:
    """Of a case: of the file, or its folder where all files have one name."""
    return path.parent.name if path.name in _GENERIC else path.name


def _cases(paths: Iterable[Path]) -> list[Path]:
    """Each case once, by its newest writer in the order of paths."""
    newest = {name_of(path): path for path in sorted(paths)}
    return [path for name, path in newest.items() if not _ONLY_STORED.search(name)]


CHECKPOINTS = _cases(path for path in (FIXTURES / "checkpoints").glob("*/*") if path.is_dir())
GRAPHS = _cases(
    [*(FIXTURES / "savedmodels").glob("*/*/model"), *(FIXTURES / "savedmodels").glob("*/*/*.pb")]
)
FOLDERS = sorted(path for path in (SHARED / "real-models").glob("*") if path.is_dir())
KERAS_1 = sorted((FIXTURES / "keras1").glob("tensorflow/*/model.h5"))
ZIPS = _cases((FIXTURES / "keras_zip").rglob("*.keras"))
OWN_CASES = _cases(model.path for model in OWN)
_KNOWN = {name_of(path).removeprefix("plain_") for path in OWN_CASES}
FURTHER_CASES = [
    path
    for path in _cases(model.path for model in FURTHER)
    if name_of(path).removeprefix("plain_") not in _KNOWN
]

REASONS = {
    "calamari_index_only": "is missing",
    "cudnn_gru_raw": "give --cell",
    "cudnn_lstm_disagree": "disagree",
    "dtln_lambda_savedmodel": "Lambda",
    "layer_norm_lstm": "normalises its gates",
    "lstm_peephole": "peepholes",
    "lstm_projection": "projection",
    "plain_lam": "Lambda",
}
"""Cases that no target takes, and what is said of them."""

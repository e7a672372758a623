"""How often one conversion opens, reads and plans its source.

A path is opened once to tell its kind and once for the work; what was opened is handed down. At the
level `model` Keras loads the original as a user would, which opens it again.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

import rnnconvert
from rnnconvert.containers import safe_h5, safe_zip
from rnnconvert.containers.checkpoint import v2
from rnnconvert.keras_models import planning

FIXTURES = Path(__file__).parents[2] / "fixtures"


@pytest.fixture
def counted(monkeypatch) -> Callable[..., Counter[str]]:
    """Counts the calls of functions that take a path, by the name of the file."""

    def count(owner: object, name: str, path_of: Callable[..., Path]) -> Counter[str]:
        calls: Counter[str] = Counter()
        before = getattr(owner, name)

        def called(*given, **more):
            calls[Path(path_of(*given)).name] += 1
            return before(*given, **more)

        monkeypatch.setattr(owner, name, called)
        return calls

    return count


def source(tmp_path: Path, fixture: str, name: str) -> Path:
    place = FIXTURES / fixture
    (shutil.copytree if place.is_dir() else shutil.copy)(place, tmp_path / name)
    return tmp_path / name


def test_a_keras_h5_file(tmp_path, counted):
    path = source(tmp_path, "keras/k224/bi/model.h5", "in.h5")
    opened = counted(safe_h5, "_stream", lambda path, mode: path)
    plans = counted(planning, "_plan_model", lambda file, *more: file.path)
    rnnconvert.convert(path, tmp_path / "out.h5", verify="layers")
    temporary = [name for name in opened if name != "in.h5"]
    assert opened["in.h5"] == 2  # its kind, the work
    assert plans["in.h5"] == 1
    assert [opened[name] for name in temporary] == [2]  # written, and read again
    assert [plans[name] for name in temporary] == [1]  # nothing may be left to do


def test_a_keras_h5_file_that_keras_loads_too(tmp_path, counted):
    pytest.importorskip("keras", reason="keras is not installed")
    path = source(tmp_path, "keras/k224/bi/model.h5", "in.h5")
    opened = counted(safe_h5, "_stream", lambda path, mode: path)
    plans = counted(planning, "_plan_model", lambda file, *more: file.path)
    rnnconvert.convert(path, tmp_path / "out.h5", verify="model")
    # Its kind, the work; then: code in it? does Keras need help? its load; forms of both sides?
    assert (opened["in.h5"], plans["in.h5"]) == (6, 2)


def test_a_keras_zip_file(tmp_path, counted):
    path = source(tmp_path, "keras_zip/tf215/bi/model.keras", "in.keras")
    opened = counted(safe_zip.SafeZip, "__init__", lambda self, path, *more: path)
    plans = counted(planning, "_plan_model", lambda file, *more: file.path)
    rnnconvert.convert(path, tmp_path / "out.h5", verify="layers")
    assert opened["in.keras"] == 1
    assert sum(plans.values()) == 2  # of what was rebuilt, and of what was written


def test_a_checkpoint(tmp_path, counted):
    path = source(tmp_path, "checkpoints/tf115/cudnn_lstm", "in") / "model.ckpt"
    parsed = counted(v2, "open_table", lambda path: path)
    tensors = counted(v2, "_checked_chunks", lambda place: place.name)
    rnnconvert.convert(path, tmp_path / "out.h5", verify="layers")
    assert parsed == {"model.ckpt.index": 1}
    # A tensor is read to be written, to be compared with what was written, and to be run.
    assert set(tensors.values()) <= {1, 2, 3}


@pytest.mark.parametrize(
    ("fixture", "name", "file"),
    [
        ("savedmodels/tf115/contrib_gru_bi2/model", "in", "saved_model.pb"),
        ("savedmodels/tf115/frozen_contrib_gru2/frozen.pb", "in.pb", "in.pb"),
    ],
    ids=["savedmodel", "frozen"],
)
def test_a_graph(tmp_path, counted, fixture, name, file):
    pytest.importorskip("tensorflow", reason="TensorFlow is not installed")
    from rnnconvert.graphs import opening

    path = source(tmp_path, fixture, name)
    parsed = counted(opening, "_parse", lambda path, *more: path.parent.name + path.name)
    rnnconvert.convert(path, tmp_path / ("out" + path.suffix), verify="model")
    assert sorted(parsed.values()) == [1, 1], parsed  # the source, and what was written

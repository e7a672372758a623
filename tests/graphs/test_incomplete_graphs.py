"""SavedModels of which a part is missing: what it is, and what to do."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

FIXTURES = Path(__file__).parents[2] / "fixtures" / "savedmodels"
COMMANDS = (("inspect",), ("cudnn-to-keras", "-o", "out"), ("cudnn-to-keras", "--check"))


@pytest.fixture
def model(tmp_path) -> Path:
    """With two data files, and assets."""
    source = FIXTURES / "tf112" / "contrib_table" / "model"
    return Path(shutil.copytree(source, tmp_path / "model"))


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_without_its_graph(command, cli, model):
    (model / "saved_model.pb").unlink()
    done = cli(*command, "model")
    assert done.code == 3
    assert "model: saved_model.pb is missing beside variables/variables.index" in done.err
    assert "copy the whole directory" in done.err
    assert "rnnconvert inspect model/variables/variables" in done.err
    assert cli("inspect", "model/variables/variables").code == 0


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("*-00001-of-*", "a data file is missing: variables.data-00001-of-00002; put it beside"),
        ("*.data-*", "missing: variables.data-00000-of-00002, variables.data-00001-of-00002; put"),
        ("*.index", "variables.index is missing beside its data files; copy all files of the"),
        ("*", "the model's variables are missing: expected variables/variables.index; copy the"),
    ],
)
def test_without_some_of_its_variables(command, pattern, message, cli, model):
    for path in (model / "variables").glob(pattern):
        path.unlink()
    done = cli(*command, "model")
    assert (done.code, done.out) == (3, "")
    assert message in done.err

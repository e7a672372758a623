"""Damaged SavedModels and MetaGraphs on which TensorFlow's own reader aborts or raises."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

pytest.importorskip("tensorflow", reason="TensorFlow is not installed")

from models import ROOT, SHARED

from rnnconvert.containers.checkpoint import open_checkpoint

pytestmark = pytest.mark.slow
ATTACKS = sorted((SHARED / "attacks").glob("tf*_*/*"))


@pytest.mark.skipif(not ATTACKS, reason=f"{SHARED} is not here")
@pytest.mark.parametrize("path", ATTACKS, ids=lambda path: path.parent.name)
def test_each_ends_with_one_line(path, cli):
    source = path / "model.meta" if (path / "model.meta").exists() else path
    for command in (("inspect",), ("cudnn-to-keras", "--check"), ("cudnn-to-keras", "-o", "new")):
        done = cli(*command, source)
        inspected = command == ("inspect",) and done.code == 0  # an empty .meta: the checkpoint
        assert inspected or (done.code in (3, 4) and done.err.count("error:") == 1), command
        assert "bug of rnnconvert" not in done.err


@pytest.mark.parametrize("wrong", [b"\x0e", b"\x07"], ids=["unknown wire type", "end of group"])
def test_an_index_is_not_read_by_tensorflow(wrong, cli, tmp_path):
    """The first bytes of the table's entries are made nonsense, with a checksum that is not."""
    source = ROOT / "fixtures" / "savedmodels" / "tf15" / "contrib_lstm" / "model"
    model = Path(shutil.copytree(source, tmp_path / "model"))
    index = model / "variables" / "variables.index"
    name = next(iter(open_checkpoint(model / "variables" / "variables").variables)).encode()
    content = index.read_bytes()
    at = content.index(name) + len(name)
    index.write_bytes(content[:at] + wrong + content[at + 1 :])
    for command in ("inspect", "cudnn-to-keras"):
        done = cli(command, model)
        assert (done.code, done.err.count("\n")) == (3, 1)
        assert "variables.index" in done.err

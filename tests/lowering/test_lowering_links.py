"""Links in a SavedModel's directory: none is dropped silently, and none leads to a foreign file."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

pytest.importorskip("tensorflow", reason="TensorFlow is not installed")

from helpers import snapshot
from models import ROOT

pytestmark = pytest.mark.slow


@pytest.fixture
def model(tmp_path) -> Path:
    source = ROOT / "fixtures" / "savedmodels" / "tf112" / "contrib_table" / "model"
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "secret.txt").write_text("somebody else's")
    return Path(shutil.copytree(source, tmp_path / "model"))


def test_links_inside_are_followed_and_copied(cli, model, tmp_path):
    (model / "assets.extra").symlink_to("assets", target_is_directory=True)
    (model / "again.txt").symlink_to("assets/vocabulary.txt")
    assert cli("cudnn-to-keras", "model", "-o", "new", "--verify", "layers").code == 0
    words = (model / "assets" / "vocabulary.txt").read_bytes()
    for name in ("assets/vocabulary.txt", "assets.extra/vocabulary.txt", "again.txt"):
        copy = tmp_path / "new" / name
        assert (copy.read_bytes(), copy.is_symlink()) == (words, False)


@pytest.mark.parametrize("name", ["assets.extra", "assets/more"])
@pytest.mark.parametrize("target", ["../elsewhere", "elsewhere/secret.txt", "/etc/passwd"])
def test_links_that_lead_out_are_refused(name, target, cli, model, tmp_path):
    (model / name).symlink_to(tmp_path / target.removeprefix("../"))
    before = snapshot(tmp_path)
    for more in (("-o", "new"), ("--check",)):
        done = cli("cudnn-to-keras", "model", *more)
        assert done.code == 3
        assert f"{name} is a link that leads out of the SavedModel" in done.err
        assert "cp -rL" in done.err
    assert snapshot(tmp_path) == before


@pytest.mark.parametrize(("target", "reason"), [("..", "out of"), (".", "in a circle"),
                                                ("missing", "to nothing")])  # fmt: skip
def test_so_are_those_that_lead_nowhere(target, reason, cli, model):
    (model / "assets" / "more").symlink_to(target)
    if target == "..":
        (model / "assets" / "more").unlink()
        (model / "more").symlink_to("..")
    done = cli("cudnn-to-keras", "model", "-o", "new")
    assert done.code == 3
    assert reason in done.err

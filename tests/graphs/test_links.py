"""Links in a SavedModel's directory: none is dropped silently, and none leads to a foreign file."""

from __future__ import annotations

import json
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
@pytest.mark.sampled(3)
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
@pytest.mark.sampled(2)
def test_so_are_those_that_lead_nowhere(target, reason, cli, model):
    (model / "assets" / "more").symlink_to(target)
    if target == "..":
        (model / "assets" / "more").unlink()
        (model / "more").symlink_to("..")
    done = cli("cudnn-to-keras", "model", "-o", "new")
    assert done.code == 3
    assert reason in done.err


def in_cache(model: Path, repository: Path) -> Path:
    """A model as the cache of Hugging Face holds it: links to files that are named by a hash."""
    snapshot_of, blobs = repository / "snapshots" / "4f2a", repository / "blobs"
    blobs.mkdir(parents=True)
    for number, path in enumerate(sorted(model.rglob("*"))):
        if path.is_file():
            link = snapshot_of / path.relative_to(model)
            link.parent.mkdir(parents=True, exist_ok=True)
            blob = Path(shutil.copy(path, blobs / f"{number:064}"))
            up = Path(*[".."] * (len(link.relative_to(repository).parts) - 1))
            link.symlink_to(up / "blobs" / blob.name)
    return snapshot_of


@pytest.mark.corpus
def test_links_of_a_cache_of_downloads_are_followed(cli, model, tmp_path):
    """The words are read through a link too: they came with the model."""
    source = in_cache(model, tmp_path / "models--somebody--words")
    assert (source / "saved_model.pb").is_symlink()
    assert cli("inspect", source).code == 0
    found = cli("cudnn-to-keras", source, "-o", "new", "--json")
    assert found.code == 0, found.err
    assert json.loads(found.out)["verification"]["model"][0]["status"] == "passed"
    assert not any(path.is_symlink() for path in (tmp_path / "new").rglob("*"))
    words = (model / "assets" / "vocabulary.txt").read_bytes()
    assert (tmp_path / "new" / "assets" / "vocabulary.txt").read_bytes() == words


@pytest.mark.parametrize(
    "target", ["../../../elsewhere/secret.txt", "../../../models--other--x/blobs/1"]
)
def test_others_of_it_are_refused(target, cli, model, tmp_path):
    """Also into the cache of another model."""
    source = in_cache(model, tmp_path / "models--somebody--words")
    (tmp_path / "models--other--x" / "blobs").mkdir(parents=True)
    (tmp_path / "models--other--x" / "blobs" / "1").write_text("of another model")
    (source / "more").symlink_to(target)
    assert (source / "more").exists()
    done = cli("cudnn-to-keras", source, "-o", "new")
    assert done.code == 3
    assert "more is a link that leads out of the SavedModel" in done.err

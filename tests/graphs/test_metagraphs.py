"""MetaGraphs (.meta) with their checkpoints: lowered, restored and trained on by TensorFlow."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from helpers import snapshot

import rnnconvert
from rnnconvert import UnreadableInputError

pytestmark = pytest.mark.slow
tf = pytest.importorskip("tensorflow", reason="TensorFlow is not installed")

FIXTURES = Path(__file__).parents[2] / "fixtures" / "checkpoints"
TRAINING = [FIXTURES / stack / "cudnn_lstm_adam" for stack in ("tf15", "tf115")]


@pytest.fixture
def folder(tmp_path) -> Path:
    return Path(shutil.copytree(TRAINING[0], tmp_path / "model"))


@pytest.mark.parametrize("case", TRAINING, ids=lambda path: path.parts[-2])
def test_a_training_graph_restores_runs_trains_and_saves(case, tmp_path):
    report = rnnconvert.convert(case / "model.ckpt.meta", tmp_path / "new.meta")
    assert report.verdict == "equivalent"
    assert report.weights_level.status == "passed"
    assert [level.status for level in report.model_level] == ["passed", "skipped"]
    data = np.load(case / "data.npz")
    with tf.Graph().as_default() as graph, tf.compat.v1.Session() as session:
        saver = tf.compat.v1.train.import_meta_graph(tmp_path / "new.meta")
        saver.restore(session, str(tmp_path / "new"))
        x = graph.get_tensor_by_name("Placeholder:0")
        given = data["x"].transpose(1, 0, 2)  # time major
        feeds = {x: given}
        output = session.run("cudnn_lstm/CudnnRNN:0", feeds)
        np.testing.assert_allclose(output.transpose(1, 0, 2), data["y"], atol=1e-5)
        before = session.run("cudnn_lstm/opaque_kernel:0")
        (train,) = graph.get_collection("train_op")
        for _ in range(5):
            session.run(train, feeds)
        trained = session.run("cudnn_lstm/opaque_kernel:0")
        assert np.abs(trained - before).max() > 1e-4
        saver.save(session, str(tmp_path / "trained"), write_meta_graph=False)
    # The canonical tensors of the new checkpoint are compared with its buffer, bit for bit.
    kept = rnnconvert.convert(tmp_path / "trained", tmp_path / "o.npz", to="npz", verify="layers")
    assert kept.verdict == "equivalent"


@pytest.mark.corpus
def test_the_command(cli, folder, tmp_path):
    shown = cli("inspect", "model/model.ckpt.meta")
    assert shown.code == 0
    assert "CudnnRNNBackprop" in shown.out
    before = snapshot(folder)
    assert cli("cudnn-to-keras", "--check", "model/model.ckpt.meta").code == 1
    assert cli("cudnn-to-keras", "-n", "model/model.ckpt.meta").code == 0
    assert snapshot(folder) == before
    done = cli("cudnn-to-keras", "model/model.ckpt.meta")
    assert done.code == 0
    assert "written model/model.ckpt.portable.meta" in done.out
    new = {name for name in snapshot(folder) if name not in before}
    assert new == {
        "model.ckpt.portable.data-00000-of-00001",
        "model.ckpt.portable.index",
        "model.ckpt.portable.meta",
    }
    again = cli("cudnn-to-keras", "model/model.ckpt.meta")
    assert again.code == 5
    assert "the output exists" in again.err
    clean = cli("cudnn-to-keras", "model/model.ckpt.portable.meta", "-o", "unused")
    assert clean.code == 0
    assert "nothing to convert" in clean.out
    as_prefix = cli("cudnn-to-keras", "model/model.ckpt.meta", "-o", "other")
    assert as_prefix.code == 0
    assert {"other.meta", "other.index"} <= {path.name for path in tmp_path.iterdir()}


def test_its_stacks_as_keras_models(cli, folder):
    """The graph's checkpoint, as if it had been given."""
    assert cli("cudnn-to-keras", "model/model.ckpt.meta", "--to", "h5", "-o", "m.h5").code == 0
    assert cli("inspect", "m.h5").code == 0


def test_an_incomplete_checkpoint(folder):
    (folder / "model.ckpt.data-00000-of-00001").unlink()
    before = snapshot(folder)
    with pytest.raises(UnreadableInputError, match="missing"):
        rnnconvert.convert(folder / "model.ckpt.meta")
    assert snapshot(folder) == before


def test_a_meta_that_is_no_graph(folder):
    (folder / "model.ckpt.meta").write_bytes(b"\x00\x01 no graph at all")
    with pytest.raises(UnreadableInputError, match=r"model\.ckpt\.meta"):
        rnnconvert.convert(folder / "model.ckpt.meta")

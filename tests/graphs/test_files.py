"""Reading and writing the files: what is no model, what is missing, what can't be written."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

pytest.importorskip("tensorflow")

import numpy as np
import tensorflow as tf
from helpers import snapshot
from lowering_graphs import checkpointed, forward_op, placeholders, run_graph, tf1, worst
from lowering_torch import Oracle

from rnnconvert.errors import NotConvertibleError, OutputError, UnreadableInputError
from rnnconvert.graphs import lowering

pytestmark = pytest.mark.slow

GARBAGE = {
    "empty": (b"", "is empty"),
    "text": (b"this is not a graph at all\n", "no "),
    "random": (np.random.default_rng(5).bytes(4000), "no "),
    "zeros": (bytes(64), "no "),
    "git-lfs": (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 5\n", "git lfs"),
    "hdf5": (b"\x89HDF\r\n\x1a\n" + bytes(100), "no "),
}


def frozen(oracle: Oracle, path: Path) -> Path:
    with tf.Graph().as_default() as graph:
        x, h, c, _, lengths = placeholders(oracle, tf.float32)
        result = forward_op(oracle, 1, x, h, c, tf.constant(oracle.values["params"]), lengths)
        tf.identity(result.output, name="y")
        tf.identity(result.output_h, name="hn")
    path.write_bytes(graph.as_graph_def().SerializeToString())
    return path


def saved(oracle: Oracle, path: Path) -> Path:
    class Module(tf.Module):
        def __init__(self) -> None:
            super().__init__()
            self.params = tf.Variable(oracle.values["params"])

        @tf.function(input_signature=[tf.TensorSpec([None, None, oracle.inputs])])
        def __call__(self, x):  # type: ignore[no-untyped-def]
            h = tf.zeros([oracle.layers, tf.shape(x)[1], 4])
            return forward_op(oracle, 1, x, h, 0.0, self.params, is_training=False).output

    tf.saved_model.save(Module(), str(path))
    return path


# ---- frozen graphs


def test_a_frozen_graph(tmp_path):
    oracle = Oracle("lstm", 2)
    source, target = frozen(oracle, tmp_path / "model.pb"), tmp_path / "lowered.pb"
    before = source.read_bytes()
    result = lowering.lower_frozen_graph(source, target)
    assert len(result.lowered) == 1
    feeds = {name: oracle.values[name] for name in ("x", "h", "c")}
    found = run_graph(lowering.read_graph_def(target), ["y", "hn"], feeds)
    assert worst(found, oracle) < 5e-6
    assert source.read_bytes() == before


@pytest.mark.parametrize("name", GARBAGE)
def test_garbage_is_no_graph(name, tmp_path):
    content, message = GARBAGE[name]
    path = tmp_path / "model.pb"
    path.write_bytes(content)
    with pytest.raises(UnreadableInputError, match=message):
        lowering.lower_frozen_graph(path, tmp_path / "out.pb")
    assert not (tmp_path / "out.pb").exists()


@pytest.mark.parametrize("name", GARBAGE)
def test_garbage_is_no_saved_model(name, tmp_path):
    content, message = GARBAGE[name]
    folder, target = tmp_path / "model", tmp_path / "out"
    folder.mkdir()
    target.mkdir()
    (folder / "saved_model.pb").write_bytes(content)
    with pytest.raises(UnreadableInputError, match=message):
        lowering.lower_saved_model_dir(folder, target)


@pytest.mark.parametrize("name", GARBAGE)
def test_garbage_is_no_meta_graph(name, tmp_path):
    content, message = GARBAGE[name]
    path = tmp_path / "model.meta"
    path.write_bytes(content)
    with pytest.raises(UnreadableInputError, match=message):
        lowering.lower_meta_graph_file(path, tmp_path / "out.meta")


def test_a_saved_models_pb_is_no_frozen_graph(tmp_path):
    path = saved(Oracle("gru"), tmp_path / "model") / "saved_model.pb"
    with pytest.raises(UnreadableInputError, match=r"no graph|holds no nodes"):
        lowering.read_graph_def(path)


def test_every_truncation_of_a_graph_is_refused_or_readable(tmp_path):
    source = frozen(Oracle("gru"), tmp_path / "model.pb")
    content = source.read_bytes()
    path = tmp_path / "cut.pb"
    for end in range(0, len(content), max(1, len(content) // 60)):
        path.write_bytes(content[:end])
        try:
            graph_def = lowering.read_graph_def(path)
            lowering.lower_graph_def(graph_def)
        except (UnreadableInputError, NotConvertibleError):
            continue


def test_flipped_bytes_end_in_an_error_of_ours_or_a_graph(tmp_path):
    source = frozen(Oracle("gru"), tmp_path / "model.pb")
    content = bytearray(source.read_bytes())
    path = tmp_path / "changed.pb"
    generator = np.random.default_rng(11)
    for _ in range(60):
        changed = bytearray(content)
        for _ in range(3):
            changed[generator.integers(len(changed))] = generator.integers(256)
        path.write_bytes(changed)
        try:
            lowering.find_ops(lowering.read_graph_def(path))
        except UnreadableInputError:
            continue


def test_a_missing_file(tmp_path):
    with pytest.raises(UnreadableInputError, match="No such file"):
        lowering.read_graph_def(tmp_path / "nothing.pb")
    with pytest.raises(UnreadableInputError, match=r"saved_model\.pb"):
        lowering.read_saved_model(tmp_path)


def test_split_and_text_saved_models_are_named(tmp_path):
    (tmp_path / "saved_model.pbtxt").write_text("saved_model_schema_version: 1")
    with pytest.raises(NotConvertibleError, match="a text SavedModel"):
        lowering.read_saved_model(tmp_path)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_target_that_cannot_be_written(tmp_path):
    source = frozen(Oracle("gru"), tmp_path / "model.pb")
    (tmp_path / "closed").mkdir(mode=0o500)
    with pytest.raises(OutputError, match="Permission denied"):
        lowering.lower_frozen_graph(source, tmp_path / "closed" / "out.pb")


def test_a_target_in_a_missing_directory(tmp_path):
    source = frozen(Oracle("gru"), tmp_path / "model.pb")
    with pytest.raises(OutputError, match="No such file"):
        lowering.lower_frozen_graph(source, tmp_path / "none" / "out.pb")


# ---- variables


def test_missing_variables(tmp_path):
    model = saved(Oracle("gru"), tmp_path / "model")
    shutil.rmtree(model / "variables")
    with pytest.raises(UnreadableInputError, match="variables are missing"):
        lowering.read_saved_model(model)


def test_a_missing_shard(tmp_path):
    model = saved(Oracle("gru"), tmp_path / "model")
    (model / "variables" / "variables.data-00000-of-00001").unlink()
    with pytest.raises(UnreadableInputError, match="a data file is missing"):
        lowering.read_saved_model(model)


def test_a_missing_index(tmp_path):
    model = saved(Oracle("gru"), tmp_path / "model")
    (model / "variables" / "variables.index").unlink()
    with pytest.raises(UnreadableInputError, match=r"variables\.index is missing"):
        lowering.read_saved_model(model)


@pytest.mark.parametrize("name", ["variables.index", "variables.data-00000-of-00001"])
def test_truncated_variables(name, tmp_path):
    model = saved(Oracle("gru"), tmp_path / "model")
    path = model / "variables" / name
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(UnreadableInputError, match=r"cut short|truncated"):
        lowering.read_saved_model(model)


def test_a_shard_of_another_count_is_missing(tmp_path):
    model = saved(Oracle("gru"), tmp_path / "model")
    shard = model / "variables" / "variables.data-00000-of-00001"
    shard.rename(shard.with_name("variables.data-00000-of-00002"))
    with pytest.raises(UnreadableInputError, match="a data file is missing"):
        lowering.read_saved_model(model)


def test_a_special_file_is_not_copied(tmp_path):
    model = saved(Oracle("gru"), tmp_path / "model")
    os.mkfifo(model / "pipe")
    (tmp_path / "out").mkdir()
    with pytest.raises(UnreadableInputError, match="pipe is not a regular file"):
        lowering.lower_saved_model_dir(model, tmp_path / "out")


# ---- MetaGraphs


@pytest.mark.parametrize("version", [1, 2])
def test_a_meta_graph_and_its_checkpoint(version, tmp_path):
    oracle = Oracle("gru", 2)
    source = checkpointed(oracle, tmp_path, version)
    before = snapshot(tmp_path)
    (tmp_path / "out").mkdir()
    target = tmp_path / "out" / "new.meta"
    result = lowering.lower_meta_graph_file(source, target)
    assert result.lowered[0].params == ("buffer",)
    assert {name: before[name] for name in before} == {
        name: content for name, content in snapshot(tmp_path).items() if "out" not in name
    }
    with tf.Graph().as_default() as graph, tf1.Session(graph=graph) as session:
        saver = tf1.train.import_meta_graph(str(target))
        saver.restore(session, str(tmp_path / "out" / "new"))
        feeds = {f"{name}:0": oracle.values[name] for name in ("x", "h")}
        y = session.run("y:0", {**feeds, "c:0": oracle.values["h"]})
    np.testing.assert_allclose(y, oracle.values["y"], atol=1e-6)
    (verified,) = lowering.verify_meta_graph(source, target)
    assert verified.status == "passed"


def test_a_meta_graph_without_a_checkpoint(tmp_path):
    source = checkpointed(Oracle("gru"), tmp_path, 2)
    for path in lowering.checkpoint_files(source.with_suffix("")):
        path.unlink()
    (tmp_path / "out").mkdir()
    lowering.lower_meta_graph_file(source, tmp_path / "out" / "new.meta")
    assert set(snapshot(tmp_path / "out")) == {"new.meta"}
    (verified,) = lowering.verify_meta_graph(source, tmp_path / "out" / "new.meta")
    assert verified.status == "passed"


def test_an_index_at_which_tensorflow_aborts_is_read_without_it(tmp_path):
    """An entry that claims 2**63 - 1 bytes ended the process in TensorFlow's reader."""
    from rnnconvert.containers.checkpoint import bundle, table
    from rnnconvert.graphs.opening import checkpoint_files

    prefix = tmp_path / "variables"
    entry = bundle.Entry("float32", (96,), 0, 0, 2**63 - 1, 0)
    with bundle.index_path(prefix).open("wb") as file:
        table.write_table(
            file, [(b"", bundle.encode_header()), (b"kernel", bundle.encode_entry(entry))]
        )
    bundle.data_path(prefix).write_bytes(bytes(384))
    with pytest.raises(UnreadableInputError, match="float32 of shape"):
        checkpoint_files(prefix)

"""A graph is run only when every op in it is known to be harmless."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("tensorflow")

import numpy as np
import tensorflow as tf
from graph_attacks import MAKERS, meta_graph, theft
from lowering_graphs import forward_op, tf1
from lowering_torch import UNITS, Oracle
from models import ROOT, SHARED

from rnnconvert.graphs import lowering
from rnnconvert.graphs.framework import op_def
from rnnconvert.graphs.verify.harmless import (
    ASSET_READERS,
    CHECKPOINT_READERS,
    CHECKPOINT_WRITERS,
    HARMLESS,
)

pytestmark = pytest.mark.slow
KINDS = list(MAKERS)


@pytest.fixture
def secret(tmp_path) -> Path:
    (tmp_path / "secret").write_text("somebody else's")
    return tmp_path / "secret"


@pytest.fixture
def loot(tmp_path) -> Path:
    return tmp_path / "loot"


def lowered(kind: str, path: Path, output: Path) -> Path:
    """A lowered copy, beside which `verify` is asked for the original."""
    (output / "copy").mkdir()
    if kind == "frozen":
        lowering.lower_frozen_graph(path, output / "copy" / "model.pb")
        return output / "copy" / "model.pb"
    if kind == "meta":
        lowering.lower_meta_graph_file(path, output / "copy" / "model.meta")
        return output / "copy" / "model.meta"
    lowering.lower_saved_model_dir(path, output / "copy")
    return output / "copy"


def levels_of(shown: str) -> dict:
    return json.loads(shown)["verification"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_graph_that_copies_a_file_is_never_run_unasked(kind, cli, tmp_path, secret, loot):
    path = MAKERS[kind](tmp_path, theft(secret, loot))
    for name, level in (("one", "layers"), ("two", "model")):
        done = cli("cudnn-to-keras", path, "-o", name, "--verify", level, "--json")
        assert (done.code, done.err) == (0, "")
        levels = levels_of(done.out)
        assert levels["layers"]["status"] == "passed"
        assert "the model was not run: the op " in levels["layers"]["detail"]
        assert not loot.exists()
    assert {level["status"] for level in levels["model"]} == {"skipped"}
    reason = levels["model"][0]["reason"]
    assert "the op WriteFile is" in reason or "the op ReadFile is" in reason
    assert "(node " in reason
    assert "--allow-code runs it" in reason
    done = cli("verify", path, lowered(kind, path, tmp_path), "--json")
    assert done.code == 0
    assert {level["status"] for level in levels_of(done.out)["model"]} == {"skipped"}
    assert not loot.exists()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.sampled(3)
def test_with_consent_it_is_run(kind, cli, tmp_path, secret, loot):
    path = MAKERS[kind](tmp_path, theft(secret, loot))
    done = cli("cudnn-to-keras", path, "-o", "new", "--allow-code", "--json")
    assert done.code == 0
    assert levels_of(done.out)["model"][0]["status"] == "passed"
    assert loot.read_text() == secret.read_text()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.sampled(3)
def test_the_same_graph_without_that_op_is_run(kind, cli, tmp_path):
    path = MAKERS[kind](tmp_path, None)
    done = cli("cudnn-to-keras", path, "-o", "new", "--json")
    assert done.code == 0
    levels = levels_of(done.out)
    assert levels["model"][0]["status"] == "passed"
    assert "not run" not in levels["layers"]["detail"]
    done = cli("verify", path, lowered(kind, path, tmp_path), "--json")
    assert done.code == 0
    assert levels_of(done.out)["model"][0]["status"] == "passed"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.sampled(2)
def test_a_converted_file_is_no_more_trusted_than_the_original(kind, cli, tmp_path, secret, loot):
    (tmp_path / "good").mkdir()
    (tmp_path / "bad").mkdir()
    good = MAKERS[kind](tmp_path / "good", None)
    bad = MAKERS[kind](tmp_path / "bad", theft(secret, loot))
    done = cli("verify", good, lowered(kind, bad, tmp_path), "--json")
    assert {level["status"] for level in levels_of(done.out)["model"]} == {"skipped"}
    assert not loot.exists()


# ---- ops that look harmless, and are not


def stateless_reader(secret: Path, _: Path):
    return lambda: tf.raw_ops.ReadFile(filename=str(secret)).op


def printer(_: Path, loot: Path):
    return lambda: tf.raw_ops.PrintV2(input="x", output_stream=f"file://{loot}")


def globber(secret: Path, _: Path):
    return lambda: tf.raw_ops.MatchingFiles(pattern=f"{secret.parent}/*").op


def memory_mapper(secret: Path, _: Path):
    return lambda: (
        tf.raw_ops.ImmutableConst(dtype=tf.float32, shape=[1], memory_region_name=str(secret)).op
    )


def python_caller(_: Path, loot: Path):
    return lambda: tf.numpy_function(loot.touch, [], tf.float32, stateful=False).op


def other_checkpoint(secret: Path, _: Path):
    return lambda: (
        tf.raw_ops.RestoreV2(
            prefix=str(secret), tensor_names=["a"], shape_and_slices=[""], dtypes=[tf.float32]
        )[0].op
    )


def saver(_: Path, loot: Path):
    return lambda: tf.raw_ops.SaveV2(
        prefix=str(loot), tensor_names=["a"], shape_and_slices=[""], tensors=[tf.zeros(3)]
    )


def vocabulary(secret: Path, _: Path):
    def make():
        table = tf.raw_ops.HashTableV2(key_dtype=tf.string, value_dtype=tf.int64)
        return tf.raw_ops.InitializeTableFromTextFileV2(
            table_handle=table, filename=str(secret), key_index=-2, value_index=-1
        )

    return make


HARMS = {
    maker.__name__: maker
    for maker in (
        stateless_reader, printer, globber, memory_mapper, python_caller, other_checkpoint, saver,
        vocabulary,
    )
}  # fmt: skip


@pytest.mark.parametrize("kind", ["frozen", "tf1", "meta"])
@pytest.mark.parametrize("harm", HARMS)
def test_no_op_touches_a_file_of_the_graphs_choice(kind, harm, tmp_path, secret, loot):
    path = MAKERS[kind](tmp_path, HARMS[harm](secret, loot))
    reason = lowering.why_not_run(path)
    assert reason is not None
    assert "(node " in reason


def test_the_saver_of_a_training_graph_may_not_run_while_it_restores(tmp_path):
    """That would write over the checkpoint that is being read."""
    path = meta_graph(tmp_path, None)
    assert lowering.why_not_run(path) is None
    proto = tf1.MetaGraphDef.FromString(path.read_bytes())
    (restore,) = [n for n in proto.graph_def.node if n.name == "save/restore_all"]
    restore.input.append("^save/SaveV2")
    path.write_bytes(proto.SerializeToString())
    assert "SaveV2 would touch a file that is not the model's own (node save/SaveV2)" in (
        lowering.why_not_run(path) or ""
    )


def test_a_function_may_not_hide_an_op_of_the_same_name(tmp_path):
    path = MAKERS["frozen"](tmp_path, None)
    graph_def = lowering.read_graph_def(path)
    graph_def.library.function.add().signature.name = "WriteFile"
    graph_def.node.add(name="call", op="WriteFile")
    path.write_bytes(graph_def.SerializeToString())
    assert "the op WriteFile" in (lowering.why_not_run(path) or "")


def test_a_function_that_is_only_named_counts(tmp_path):
    path = MAKERS["frozen"](tmp_path, None)
    graph_def = lowering.read_graph_def(path)
    node = graph_def.node.add(name="call", op="PartitionedCall")
    node.attr["f"].func.attr["g"].func.name = "EagerPyFunc"
    path.write_bytes(graph_def.SerializeToString())
    assert "the function EagerPyFunc" in (lowering.why_not_run(path) or "")


# ---- what is computed of a graph before it is run: sizes, and the parameters of an op


def decoded(secret: Path, kind: tf.DType) -> tf.Tensor:
    return tf.io.decode_raw(tf.raw_ops.ReadFile(filename=str(secret)), kind)


def test_sizes_are_not_read_from_a_file_that_the_graph_names(secret):
    secret.write_bytes(np.array([1, 3, UNITS], "int32").tobytes())
    oracle = Oracle("gru")
    with tf.Graph().as_default() as graph:
        x = tf1.placeholder(tf.float32, [None, None, 5])
        h = tf.reshape(tf1.placeholder(tf.float32, None), decoded(secret, tf.int32))
        forward_op(oracle, 2, x, h, h, tf.constant(oracle.values["params"]))
    (op,) = lowering.find_ops(graph.as_graph_def())
    assert (op.units, op.num_layers) == (None, None)


def test_parameters_are_not_read_from_such_a_file(secret, tmp_path):
    oracle = Oracle("gru")
    secret.write_bytes(oracle.values["params"].tobytes())
    with tf.Graph().as_default() as graph:
        x = tf1.placeholder(tf.float32, [None, None, 5])
        h = tf.zeros([1, tf.shape(x)[1], UNITS])
        params = tf.ensure_shape(decoded(secret, tf.float32), oracle.values["params"].shape)
        forward_op(oracle, 2, x, h, h, params)
    path = tmp_path / "model.pb"
    path.write_bytes(graph.as_graph_def().SerializeToString())
    (result,) = lowering.verify_layers(path)
    assert result.status == "skipped"
    assert "they depend on ReadFile, a ReadFile" in result.reason
    (result,) = lowering.verify_layers(path, allow_code=True)
    assert result.status == "passed"


# ---- vocabularies


class Words(tf.Module):
    """A table from a file, which becomes an asset."""

    def __init__(self, vocabulary: Path) -> None:
        super().__init__()
        self.table = tf.lookup.StaticHashTable(
            tf.lookup.TextFileInitializer(
                str(vocabulary), tf.string, tf.lookup.TextFileIndex.WHOLE_LINE, tf.int64,
                tf.lookup.TextFileIndex.LINE_NUMBER,
            ),
            -1,
        )  # fmt: skip

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, name="words")])
    def __call__(self, words):  # type: ignore[no-untyped-def]
        return {"y": self.table.lookup(words)}


@pytest.fixture
def with_words(tmp_path, secret) -> Path:
    module = Words(secret)
    tf.saved_model.save(module, str(tmp_path / "model"), signatures=module.__call__)
    return tmp_path / "model"


def test_a_vocabulary_among_the_assets_is_read(with_words):
    assert lowering.why_not_run(with_words) is None
    (result,) = lowering.verify_saved_model(with_words, with_words)
    assert result.status == "passed"


@pytest.mark.parametrize("name", ["../../secret", "{}/secret"])
def test_one_elsewhere_is_not(name, with_words, tmp_path):
    proto = lowering.read_saved_model(with_words)
    (asset,) = proto.meta_graphs[0].asset_file_def
    asset.filename = name.format(tmp_path)
    (with_words / "saved_model.pb").write_bytes(proto.SerializeToString())
    assert "InitializeTableFromTextFileV2 would touch" in (lowering.why_not_run(with_words) or "")


def test_nor_one_that_is_assigned_to_the_variable_of_the_assets_path(with_words, secret):
    proto = lowering.read_saved_model(with_words)
    graph_def = proto.meta_graphs[0].graph_def
    (assign,) = [node for node in graph_def.node if node.op == "AssignVariableOp"]
    path = graph_def.node.add(name="elsewhere", op="Const")
    path.attr["dtype"].type = tf.string.as_datatype_enum
    path.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(str(secret)))
    other = graph_def.node.add(name="again", op="AssignVariableOp", input=assign.input)
    other.input[1] = "elsewhere"
    (with_words / "saved_model.pb").write_bytes(proto.SerializeToString())
    assert "InitializeTableFromTextFileV2 would touch" in (lowering.why_not_run(with_words) or "")


def test_nor_one_behind_a_link(with_words, secret):
    (asset,) = (with_words / "assets").iterdir()
    asset.unlink()
    asset.symlink_to(secret)
    assert "InitializeTableFromTextFileV2 would touch" in (lowering.why_not_run(with_words) or "")


def test_words_are_not_taken_from_a_linked_folder(with_words, tmp_path, secret):
    from rnnconvert.graphs.verify.signature_inputs import words_of_assets

    assert words_of_assets(with_words) == ("somebody else's",)
    (with_words / "assets").rename(tmp_path / "elsewhere")
    (with_words / "assets").symlink_to(tmp_path / "elsewhere")
    assert words_of_assets(with_words) == ()


# ---- the list itself


def test_no_op_with_the_name_of_a_file_is_on_the_list():
    """By the names of inputs and attributes; what is on it all the same is named here."""
    known = {"TensorSliceDataset"}  # is_files: a hint for the optimizer
    suspicious = ("file", "path", "url", "address", "directory", "descriptor_source", "container_")
    for name in HARMLESS - known:
        definition = op_def(name)
        for given in (*definition.input_arg, *definition.attr) if definition else ():
            fine = given.name in ("config_proto", "top_paths")
            assert fine or not any(word in given.name for word in suspicious), (name, given.name)
    assert not HARMLESS & (ASSET_READERS | CHECKPOINT_READERS | CHECKPOINT_WRITERS)


@pytest.mark.parametrize(
    "name",
    "Abort DebugIdentityV2 DumpTensor EagerPyFunc ImmutableConst MatchingFiles PrintV2 PyFunc "
    "PyFuncStateless ReadFile RemoteCall SaveDataset TFRecordDataset WriteFile".split(),
)
def test_what_is_known_to_do_harm_is_not_on_it(name):
    assert name not in HARMLESS


def _graphs_in(root: Path) -> list[Path]:
    saved = [path.parent for path in root.rglob("saved_model.pb")]
    return sorted([*saved, *root.rglob("frozen*.pb"), *root.rglob("*.meta")])


@pytest.mark.corpus
def test_the_ops_of_every_real_graph_are_on_it():
    graphs = _graphs_in(ROOT / "fixtures")
    assert len(graphs) > 20
    assert [path for path in graphs if lowering.why_not_run(path)] == []


@pytest.mark.corpus
@pytest.mark.skipif(not (SHARED / "fixtures").is_dir(), reason=f"{SHARED} is not here")
def test_so_are_those_of_further_ones():
    assert [path for path in _graphs_in(SHARED / "fixtures") if lowering.why_not_run(path)] == []


@pytest.mark.corpus
@pytest.mark.parametrize("path", _graphs_in(SHARED / "fixtures" / "contrib_savedmodels"), ids=str)
@pytest.mark.thinned(2)
def test_further_ones_reach_the_level_model(path, cli, tmp_path):
    """The lowered graph, too, has nothing in it that is not on the list."""
    done = cli("cudnn-to-keras", path, "-o", tmp_path / "new", "--json")
    assert done.code == 0
    assert levels_of(done.out)["model"][0]["status"] == "passed"

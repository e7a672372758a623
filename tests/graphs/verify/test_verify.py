"""The reference against torch; verification of lowered models; wrong lowerings are caught."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("tensorflow")

import numpy as np
import tensorflow as tf
from lowering_graphs import cudnn_nodes, forward_op, frozen, tf1
from lowering_mutants import MUTANTS
from lowering_torch import UNITS, Oracle
from models import SHARED

from rnnconvert.graphs import lowering
from rnnconvert.graphs.lower import layout
from rnnconvert.graphs.verify import reference
from rnnconvert.graphs.verify.reference_graph import ReferenceGraphs
from rnnconvert.report import LevelResult

pytestmark = pytest.mark.slow

EXPECTED = SHARED / "fixtures" / "contrib_savedmodels" / "expected"


# ---- the reference


@pytest.mark.parametrize("mode", ["lstm", "gru", "rnn_tanh", "rnn_relu"])
@pytest.mark.parametrize(
    "more",
    [
        {},
        {"layers": 3, "bidirectional": True},
        {"layers": 2, "bidirectional": True, "lengths": True},
        {"skip": True, "layers": 2},
    ],
    ids=["plain", "deep", "lengths", "skip"],
)
def test_the_reference_is_torchs(mode, more):
    _check_reference(Oracle(mode, double=True, **more))


@pytest.mark.parametrize("both", [False, True])
def test_the_reference_projects_as_torch(both):
    _check_reference(Oracle("lstm", 2, both, proj=3, double=True))


def _check_reference(oracle: Oracle) -> None:
    values = oracle.values
    settings = reference.Settings(**oracle.attributes, num_proj=oracle.proj)
    found = reference.forward(
        settings, values["x"], values["h"], values["c"], values["params"], values["lengths"]
    )
    for array, name in zip(found, ("y", "hn", "cn"), strict=True):
        np.testing.assert_allclose(array, values[name], atol=1e-13)


@pytest.mark.skipif(not EXPECTED.exists(), reason=f"{EXPECTED} is not here")
def test_the_reference_on_all_genuine_cases():
    for path in sorted(EXPECTED.glob("*.npz")):
        with np.load(path) as data:
            meta = json.loads(str(data["meta"]))
            settings = reference.Settings(
                meta["mode"],
                "bidirectional" if meta["bi"] else "unidirectional",
                "skip_input" if meta["skip"] else "linear_input",
                meta["proj"],
            )
            given = [data[name] for name in ("x", "h0", "c0", "flat", "lens")]
            found = reference.forward(settings, *given)
            for array, name in zip(
                found[: 3 if meta["mode"] == "lstm" else 2], "yhc", strict=False
            ):
                np.testing.assert_allclose(array, data[f"{name}v"], atol=1e-6, err_msg=path.name)


def test_the_reference_refuses_what_does_not_fit_together():
    oracle = Oracle("gru")
    values = oracle.values
    settings = reference.Settings(**oracle.attributes)
    x, h, c, params = (values[name] for name in ("x", "h", "c", "params"))
    with pytest.raises(ValueError, match="more than the 131 parameters"):
        reference.forward(settings, x, h, c, params[:-1])
    with pytest.raises(ValueError, match="of 133 parameters"):
        reference.forward(settings, x, h, c, np.append(params, 0.0))
    with pytest.raises(ValueError, match="batch of 3"):
        reference.forward(settings, x, h[:, :2], c, params)
    with pytest.raises(ValueError, match="lengths"):
        reference.forward(settings, x, h, c, params, np.array([1, 2]))


def test_the_references_size_and_canonical_form():
    oracle = Oracle("lstm", 2, True, proj=3)
    settings = reference.Settings(**oracle.attributes, num_proj=3)
    params = oracle.values["params"]
    assert reference.buffer_size(settings, 2, 5, UNITS) == params.size
    parts = reference.to_canonical(settings, params, 2, 5, UNITS, (36, 32))
    np.testing.assert_array_equal(np.concatenate([part.ravel() for part in parts]), params)


# ---- frozen graphs through verification


def verified(oracle: Oracle, folder: Path, **attributes) -> LevelResult:
    source = frozen(oracle, folder / "model.pb", **attributes)
    lowering.lower_frozen_graph(source, folder / "lowered.pb")
    (result,) = lowering.verify_frozen_graph(source, folder / "lowered.pb")
    return result


@pytest.mark.parametrize("mode", ["lstm", "gru", "rnn_tanh", "rnn_relu"])
@pytest.mark.sampled(2)
def test_a_right_lowering_passes(mode, tmp_path):
    result = verified(Oracle(mode, 2, True), tmp_path)
    assert result.status == "passed", result
    assert 0.0 < result.max_abs < result.tolerance
    assert result.inputs["x"] == (5, 5, 5)
    assert result.worst


@pytest.mark.parametrize("name", MUTANTS)
@pytest.mark.sampled(8)
def test_a_wrong_lowering_is_caught(name, tmp_path, monkeypatch):
    mode, patch = MUTANTS[name]
    monkeypatch.setattr(*patch)
    result = verified(Oracle(mode, 2, True), tmp_path)
    assert result.status == "failed", result
    assert result.max_abs > 1000 * result.tolerance


def test_the_mutants_patch_what_is_used():
    """A patch of something that nothing uses would prove nothing: all names must exist."""
    for _, (owner, attribute, _) in MUTANTS.values():
        assert hasattr(owner, attribute)
    assert layout.INPUT_KERNEL


# ---- SavedModels through verification


class Model(tf.Module):
    """A GRU on embedded words or numbers, with what the tests want besides."""

    def __init__(self, oracle: Oracle) -> None:
        super().__init__()
        self.oracle = oracle
        self.params = tf.Variable(oracle.values["params"])
        embedding = np.random.default_rng(1).standard_normal((9, 5))
        self.embedding = tf.Variable(embedding.astype("float32"))

    @tf.function(input_signature=[tf.TensorSpec([None, 4], tf.float32)])
    def indices(self, ids):  # type: ignore[no-untyped-def]
        """Floats that are whole numbers, as Keras' Embedding takes them."""
        return {"y": self._rnn(tf.gather(self.embedding, tf.cast(ids, tf.int32)))}

    @tf.function(input_signature=[tf.TensorSpec([None, None, 5], tf.float32)])
    def noisy(self, x):  # type: ignore[no-untyped-def]
        return {"y": self._rnn(x) + tf.random.normal([])}

    @tf.function(input_signature=[tf.TensorSpec([2], tf.float32)])
    def never(self, x):  # type: ignore[no-untyped-def]
        tf.debugging.assert_greater(x, 1e9)
        return {"y": self._rnn(tf.zeros([2, 2, 5]))}

    def _rnn(self, x):  # type: ignore[no-untyped-def]
        h = tf.zeros([1, tf.shape(x)[1], 4])
        return forward_op(self.oracle, 1, x, h, 0.0, self.params, is_training=False).output


@pytest.fixture(scope="module")
def signatures(tmp_path_factory) -> dict[str, LevelResult]:
    folder = tmp_path_factory.mktemp("signatures")
    model = Model(Oracle("gru"))
    tf.saved_model.save(
        model,
        str(folder / "model"),
        signatures={"indices": model.indices, "noisy": model.noisy, "never": model.never},
    )
    (folder / "lowered").mkdir()
    lowering.lower_saved_model_dir(folder / "model", folder / "lowered")
    results = lowering.verify_saved_model(folder / "model", folder / "lowered")
    return {result.name: result for result in results}


def test_every_signature_gets_a_result(signatures):
    assert set(signatures) == {"indices", "noisy", "never"}


def test_inputs_may_be_indices(signatures):
    assert signatures["indices"].status == "passed"
    assert signatures["indices"].inputs == {"ids": (3, 4)}


def test_a_random_signature_is_skipped_with_the_reason(signatures):
    assert signatures["noisy"].status == "skipped"
    assert "twice gives two results" in signatures["noisy"].reason


def test_a_signature_that_takes_no_random_input_is_skipped_with_the_reason(signatures):
    assert signatures["never"].status == "skipped"
    assert "does not run on random inputs" in signatures["never"].reason


def test_a_lowered_model_that_does_not_run_fails(tmp_path):
    source = frozen(Oracle("gru"), tmp_path / "model.pb", version=1)
    lowering.lower_frozen_graph(source, tmp_path / "lowered.pb")
    graph_def = lowering.read_graph_def(tmp_path / "lowered.pb")
    params = next(node for node in graph_def.node if node.op == "Const")
    params.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(np.zeros(7, np.float32)))
    (tmp_path / "broken.pb").write_bytes(graph_def.SerializeToString())
    (result,) = lowering.verify_frozen_graph(source, tmp_path / "broken.pb")
    assert result.status == "failed"
    assert "the lowered model does not load: can't split axis of size 7" in result.reason
    splits = [
        node for node in graph_def.node if node.op == "Const" and "CudnnRNN/lowered" in node.name
    ]
    sizes = next(node for node in splits if node.attr["value"].tensor.tensor_shape.dim)
    sizes.op = "Placeholder"
    sizes.attr.pop("value")
    (tmp_path / "broken.pb").write_bytes(graph_def.SerializeToString())
    (result,) = lowering.verify_frozen_graph(source, tmp_path / "broken.pb")
    assert result.status == "failed"
    assert "the lowered model does not run" in result.reason


def test_an_original_with_unknown_ops_is_skipped_with_the_reason(tmp_path):
    source = frozen(Oracle("gru"), tmp_path / "model.pb", version=1)
    graph_def = lowering.read_graph_def(source)
    graph_def.node.add(name="mine", op="MyCompanysOp", input=["y"])
    source.write_bytes(graph_def.SerializeToString())
    lowering.lower_frozen_graph(source, tmp_path / "lowered.pb")
    (result,) = lowering.verify_frozen_graph(source, tmp_path / "lowered.pb")
    assert result.status == "skipped"
    assert result.reason == (
        "the op MyCompanysOp is not known to be harmless (node mine); --allow-code runs it"
    )
    (result,) = lowering.verify_frozen_graph(source, tmp_path / "lowered.pb", allow_code=True)
    assert result.status == "skipped"
    assert "the original does not load" in result.reason
    assert "MyCompanysOp" in result.reason


def test_a_reference_graph_has_no_cudnn_ops_and_computes_canonical_forms():
    with tf.Graph().as_default() as graph:
        params = tf1.placeholder(tf.float32, [132], name="params")
        sizes = {"num_layers": 1, "num_units": 4, "input_size": 5}
        parts = tf.raw_ops.CudnnRNNParamsToCanonical(
            **sizes, params=params, num_params=6, rnn_mode="gru"
        )
        back = tf.raw_ops.CudnnRNNCanonicalToParams(
            **sizes, weights=parts.weights, biases=parts.biases, rnn_mode="gru"
        )
        size = tf.raw_ops.CudnnRNNParamsSize(**sizes, T=tf.float32, S=tf.int32, rnn_mode="gru")
        tf.identity(back, name="back")
        tf.identity(size, name="size")
    graph_def = graph.as_graph_def()
    references = ReferenceGraphs()
    assert references.replace_ops(graph_def) == 3
    assert not cudnn_nodes(graph_def)
    flat = np.arange(132, dtype=np.float32)
    with tf.Graph().as_default() as again, tf1.Session(graph=again) as session:
        tf.graph_util.import_graph_def(graph_def, name="")
        found, length = session.run(["back:0", "size:0"], {"params:0": flat})
    np.testing.assert_array_equal(found, flat)
    np.testing.assert_array_equal(length, [132])

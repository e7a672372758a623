"""SavedModels of TensorFlow 2: functions in functions, loops, tables, gradients, GPU twins."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

pytest.importorskip("tensorflow")

import numpy as np
import tensorflow as tf
from helpers import snapshot
from lowering_graphs import cudnn_nodes, forward_op, op_types, tf1
from lowering_torch import INPUTS, UNITS, Oracle
from models import SHARED

from rnnconvert.graphs import lowering
from rnnconvert.graphs.verify import reference

pytestmark = pytest.mark.slow

PLAIN_LSTM = SHARED / "real-models" / "netsec_plain_lstm_savedmodel"


class Nested(tf.Module):
    """CudnnRNNV3 with lengths in a function that another function calls."""

    def __init__(self, oracle: Oracle) -> None:
        super().__init__()
        self.oracle = oracle
        self.params = tf.Variable(oracle.values["params"], name="buffer")

    @tf.function
    def inner(self, x, h, c, lengths):  # type: ignore[no-untyped-def]
        return forward_op(self.oracle, 3, x, h, c, self.params, lengths, is_training=False)

    @tf.function
    def __call__(self, x, h, c, lengths):  # type: ignore[no-untyped-def]
        result = self.inner(x, h, c, lengths)
        return {"y": result.output, "hn": result.output_h, "cn": result.output_c}


class Looped(tf.Module):
    """CudnnRNNV2 in the body of a while loop, each turn on the last turn's state."""

    def __init__(self, oracle: Oracle) -> None:
        super().__init__()
        self.oracle = oracle
        self.params = tf.Variable(oracle.values["params"], name="buffer")

    @tf.function
    def __call__(self, x, h, turns):  # type: ignore[no-untyped-def]
        for _ in tf.range(turns):
            h = forward_op(self.oracle, 2, x, h, 0.0, self.params, is_training=False).output_h
        return {"hn": h}


class Words(tf.Module):
    """Words through a table from an asset, an embedding, and a GRU over batch-major input."""

    def __init__(self, oracle: Oracle, vocabulary: Path) -> None:
        super().__init__()
        self.oracle = oracle
        self.table = tf.lookup.StaticHashTable(
            tf.lookup.TextFileInitializer(
                str(vocabulary), tf.string, tf.lookup.TextFileIndex.WHOLE_LINE,
                tf.int64, tf.lookup.TextFileIndex.LINE_NUMBER,
            ),
            default_value=0,
        )  # fmt: skip
        generator = np.random.default_rng(3)
        self.embedding = tf.Variable(generator.standard_normal((4, INPUTS)).astype("float32"))
        self.params = tf.Variable(oracle.values["params"])

    @tf.function(input_signature=[tf.TensorSpec([None, None], tf.string)])
    def __call__(self, words):  # type: ignore[no-untyped-def]
        x = tf.gather(self.embedding, self.table.lookup(words))
        h = tf.zeros([tf.shape(x)[0], 1, UNITS])
        lengths = tf.fill([tf.shape(x)[0]], tf.shape(x)[1])
        result = forward_op(
            self.oracle, 3, x, h, 0.0, self.params, lengths,
            time_major=False, is_training=False,
        )  # fmt: skip
        return {"y": result.output}


class Trained(tf.Module):
    """Gradients within the model: of a function that is called, and of a loop over the op."""

    def __init__(self, oracle: Oracle, version: int) -> None:
        super().__init__()
        self.oracle, self.version = oracle, version
        self.params = tf.Variable(oracle.values["params"], name="buffer")

    @tf.function
    def inner(self, x, h, c, lengths):  # type: ignore[no-untyped-def]
        result = forward_op(self.oracle, self.version, x, h, c, self.params, lengths)
        return result.output, result.output_h

    @tf.function
    def step(self, x, h, c, lengths):  # type: ignore[no-untyped-def]
        values = self.oracle.values
        with tf.GradientTape() as tape:
            tape.watch([x, h])
            y, hn = self.inner(x, h, c, lengths)
            loss = tf.reduce_sum(y * values["wy"]) + tf.reduce_sum(hn * values["wh"])
        gradients = tape.gradient(loss, [x, h, self.params])
        return dict(zip(("gx", "gh", "gp"), gradients, strict=True))

    @tf.function
    def loop(self, x, h, lengths):  # type: ignore[no-untyped-def]
        with tf.GradientTape() as tape:
            for _ in tf.range(3):
                h = forward_op(self.oracle, self.version, x, h, h, self.params, lengths).output_h
            loss = tf.reduce_sum(h)
        return {"gp": tape.gradient(loss, self.params)}


def specs(oracle: Oracle, *, free: bool = False) -> list[tf.TensorSpec]:
    pairs = oracle.layers * oracle.directions
    width = None if free else oracle.inputs
    return [
        tf.TensorSpec([None, None, width], name="x"),
        tf.TensorSpec([pairs, None, oracle.proj or UNITS], name="h"),
        tf.TensorSpec([pairs, None, UNITS], name="c"),
        tf.TensorSpec([None], tf.int32, name="lengths"),
    ]


def save_nested(oracle: Oracle, path: Path, *, free: bool = False) -> Path:
    module = Nested(oracle)
    signature = module.__call__.get_concrete_function(*specs(oracle, free=free))
    tf.saved_model.save(module, str(path), signatures=signature)
    return path


def lower(source: Path, target: Path, **options) -> lowering.LoweredFiles:
    target.mkdir()
    return lowering.lower_saved_model_dir(
        source, target, options=lowering.LoweringOptions(**options)
    )


def graph_of(path: Path):
    return lowering.read_saved_model(path).meta_graphs[0].graph_def


def inputs(oracle: Oracle) -> dict[str, tf.Tensor]:
    return {name: tf.constant(oracle.values[name]) for name in ("x", "h", "c", "lengths")}


@pytest.fixture(scope="module")
def nested(tmp_path_factory) -> tuple[Oracle, Path, Path, lowering.LoweredFiles]:
    folder = tmp_path_factory.mktemp("nested")
    oracle = Oracle("lstm", 2, True, lengths=True)
    source = save_nested(oracle, folder / "model")
    (source / "assets.extra").mkdir()
    (source / "assets.extra" / "warm_up").write_bytes(b"requests")
    return oracle, source, folder / "lowered", lower(source, folder / "lowered")


def test_functions_in_functions(nested):
    oracle, source, lowered, result = nested
    assert "" not in {op.function for op in result.lowered}
    assert cudnn_nodes(graph_of(source))
    assert not cudnn_nodes(graph_of(lowered))
    found = tf.saved_model.load(str(lowered)).signatures["serving_default"](**inputs(oracle))
    for name in ("y", "hn", "cn"):
        np.testing.assert_allclose(found[name], oracle.values[name], atol=2e-6)


def test_what_is_found_before_it_is_lowered(nested):
    _, source, _, _ = nested
    meta_graph = lowering.read_saved_model(source).meta_graphs[0]
    found = lowering.find_ops_in_meta_graph(meta_graph)
    assert all(op.needs_lowering for op in found)
    op = found[0]
    assert (op.op, op.mode, op.num_layers, op.units, op.input_size) == (
        "CudnnRNNV3", "lstm", 2, UNITS, INPUTS,
    )  # fmt: skip
    assert (op.direction, op.dtype, op.is_training) == ("bidirectional", "float32", False)
    assert (op.params, op.params_kind) == (("buffer",), "variable")
    assert op.function in op.place


def test_tensorflow_1s_loader_takes_it_too(nested):
    oracle, _, lowered, _ = nested
    with tf.Graph().as_default() as graph, tf1.Session(graph=graph) as session:
        meta_graph = tf1.saved_model.load(session, ["serve"], str(lowered))
        signature = meta_graph.signature_def["serving_default"]
        feeds = {
            signature.inputs[name].name: oracle.values[name] for name in ("x", "h", "c", "lengths")
        }
        y = session.run(signature.outputs["y"].name, feeds)
    np.testing.assert_allclose(y, oracle.values["y"], atol=2e-6)


def test_everything_else_in_the_directory_is_copied(nested):
    _, source, lowered, _ = nested
    before, after = snapshot(source), snapshot(lowered)
    assert set(before) == set(after)
    changed = {name for name in before if before[name] != after[name]}
    assert changed == {"saved_model.pb", "fingerprint.pb"}


def test_the_fingerprint_is_of_the_new_graph(nested):
    _, source, lowered, _ = nested
    old, new = (
        tf.saved_model.experimental.read_fingerprint(str(path)) for path in (source, lowered)
    )
    assert new.saved_model_checksum != old.saved_model_checksum


def test_signatures_and_versions_stay(nested):
    _, source, lowered, _ = nested
    before, after = (lowering.read_saved_model(path).meta_graphs[0] for path in (source, lowered))
    assert before.signature_def == after.signature_def
    assert before.object_graph_def == after.object_graph_def
    assert before.graph_def.versions == after.graph_def.versions
    assert list(before.meta_info_def.tags) == list(after.meta_info_def.tags)
    listed = {op.name for op in after.meta_info_def.stripped_op_list.op}
    functions = {function.signature.name for function in after.graph_def.library.function}
    assert op_types(after.graph_def) - functions <= listed


def test_lowering_twice_changes_nothing(nested, tmp_path):
    _, _, lowered, _ = nested
    again = lower(lowered, tmp_path / "again")
    assert again.lowered == ()
    assert snapshot(tmp_path / "again") == snapshot(lowered)


def test_the_same_input_gives_the_same_bytes(nested, tmp_path):
    _, source, lowered, _ = nested
    tf.function(lambda: tf.while_loop(lambda i: i < 3, lambda i: [i + 1], [0]))()  # moves counters
    lower(source, tmp_path / "again")
    before, after = snapshot(lowered), snapshot(tmp_path / "again")
    assert after["saved_model.pb"] == before["saved_model.pb"]


def test_gradients_through_the_loaded_signature_are_torchs(nested):
    oracle, _, lowered, _ = nested
    model = tf.saved_model.load(str(lowered))
    given = inputs(oracle)
    with tf.GradientTape() as tape:
        tape.watch([given["x"], given["h"], given["c"]])
        found = model.signatures["serving_default"](**given)
        loss = sum(
            tf.reduce_sum(found[name] * oracle.values[weight])
            for name, weight in (("y", "wy"), ("hn", "wh"), ("cn", "wc"))
        )
    gradients = tape.gradient(loss, [model.params, given["x"], given["h"], given["c"]])
    for gradient, name in zip(gradients, ("gp", "gx", "gh", "gc"), strict=True):
        np.testing.assert_allclose(gradient, oracle.values[name], atol=1e-5)


@pytest.mark.corpus
def test_a_gru_can_be_trained_further_and_saved_again(tmp_path):
    oracle = Oracle("gru")
    lower(save_nested(oracle, tmp_path / "model"), tmp_path / "lowered")
    model = tf.saved_model.load(str(tmp_path / "lowered"))
    losses = []
    for _ in range(10):
        with tf.GradientTape() as tape:
            y = model(*inputs(oracle).values())["y"]
            loss = tf.reduce_mean(tf.square(y - 0.25))
        model.params.assign_sub(0.5 * tape.gradient(loss, model.params))
        losses.append(float(loss))
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] < 0.8 * losses[0]
    tf.saved_model.save(model, str(tmp_path / "saved"), signatures=model.signatures)
    saved = tf.saved_model.load(str(tmp_path / "saved"))
    found = saved.signatures["serving_default"](**inputs(oracle))
    np.testing.assert_array_equal(found["y"], model(*inputs(oracle).values())["y"])


def test_an_input_size_that_the_functions_do_not_know(tmp_path):
    oracle = Oracle("gru", 2, True)
    result = lower(save_nested(oracle, tmp_path / "model", free=True), tmp_path / "lowered")
    assert result.lowered[0].input_size == INPUTS  # from the length of the variable
    model = tf.saved_model.load(str(tmp_path / "lowered"))
    found = model.signatures["serving_default"](**inputs(oracle))
    np.testing.assert_allclose(found["y"], oracle.values["y"], atol=2e-6)


def test_in_the_body_of_a_loop(tmp_path):
    oracle = Oracle("rnn_tanh", 1, True)
    module = Looped(oracle)
    x, h, _, _ = specs(oracle)
    signature = module.__call__.get_concrete_function(x, h, tf.TensorSpec([], tf.int32, "turns"))
    tf.saved_model.save(module, str(tmp_path / "model"), signatures=signature)
    lower(tmp_path / "model", tmp_path / "lowered")
    run = tf.saved_model.load(str(tmp_path / "lowered")).signatures["serving_default"]
    given = inputs(oracle)
    found = run(x=given["x"], h=given["h"], turns=tf.constant(1))["hn"]
    np.testing.assert_allclose(found, oracle.values["hn"], atol=2e-6)
    twice = run(x=given["x"], h=given["h"], turns=tf.constant(2))["hn"]
    again = run(x=given["x"], h=found, turns=tf.constant(1))["hn"]
    np.testing.assert_allclose(twice, again, atol=2e-6)
    (result,) = lowering.verify_saved_model(tmp_path / "model", tmp_path / "lowered")
    assert result.status == "passed"


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.corpus
def test_gradients_within_the_model(version, tmp_path):
    oracle = Oracle("gru", lengths=version == 3)
    module = Trained(oracle, version)
    x, h, c, lengths = specs(oracle)
    tf.saved_model.save(
        module,
        str(tmp_path / "model"),
        signatures={
            "step": module.step.get_concrete_function(x, h, c, lengths),
            "loop": module.loop.get_concrete_function(x, h, lengths),
        },
    )
    lower(tmp_path / "model", tmp_path / "lowered")
    run = tf.saved_model.load(str(tmp_path / "lowered")).signatures
    given = inputs(oracle)
    found = run["step"](**given)
    for name in ("gx", "gh", "gp"):
        np.testing.assert_allclose(found[name], oracle.values[name], atol=5e-6)
    gradient = run["loop"](x=given["x"], h=given["h"], lengths=given["lengths"])["gp"].numpy()
    direction = np.random.default_rng(2).standard_normal(gradient.shape)
    up, down = (_chained_sum(oracle, step * direction) for step in (1e-4, -1e-4))
    assert (gradient * direction).sum() == pytest.approx((up - down) / 2e-4, rel=1e-4)


def _chained_sum(oracle: Oracle, moved: np.ndarray) -> float:
    h, values = oracle.values["h"], oracle.values
    for _ in range(3):
        _, h, _ = reference.forward(
            reference.Settings(**oracle.attributes),
            values["x"], h, h, values["params"] + moved, values["lengths"],
        )  # fmt: skip
    return float(h.sum())


def test_tables_and_assets(tmp_path):
    vocabulary = tmp_path / "vocabulary.txt"
    vocabulary.write_text("a\ncat\nsat\ndown\n")
    module = Words(Oracle("gru"), vocabulary)
    tf.saved_model.save(module, str(tmp_path / "model"))
    words = tf.constant([["cat", "sat", "down", "a", "cat"], ["sat", "a", "a", "down", "sat"]])
    lower(tmp_path / "model", tmp_path / "lowered")
    shutil.rmtree(tmp_path / "model")
    vocabulary.unlink()
    found = tf.saved_model.load(str(tmp_path / "lowered")).signatures["serving_default"](words)["y"]
    numbers = np.array([[1, 2, 3, 0, 1], [2, 0, 0, 3, 2]])
    x = module.embedding.numpy()[numbers]
    zeros = np.zeros((2, 1, UNITS))
    settings = reference.Settings("gru", "unidirectional", time_major=False)
    wanted, _, _ = reference.forward(settings, x, zeros, zeros, module.params.numpy())
    np.testing.assert_allclose(found, wanted, atol=2e-6)


# ---- Keras


def _plain_keras_model(path: Path) -> Path:
    tf_keras = pytest.importorskip("tf_keras")
    model = tf_keras.Sequential(
        [tf_keras.layers.Input([None, 3]), tf_keras.layers.LSTM(4), tf_keras.layers.Dense(2)]
    )
    model.save(str(path), save_format="tf")
    return path


@pytest.fixture(scope="module")
def plain(tmp_path_factory) -> Path:
    return _plain_keras_model(tmp_path_factory.mktemp("plain") / "model")


@pytest.mark.corpus
def test_gpu_twins_of_plain_keras_layers_are_left_alone(plain, tmp_path):
    graph_def = graph_of(plain)
    assert cudnn_nodes(graph_def)  # the ops are there, and mean nothing
    found = lowering.find_ops_in_meta_graph(lowering.read_saved_model(plain).meta_graphs[0])
    assert found
    assert all(op.gpu_twin and not op.needs_lowering for op in found)
    result = lower(plain, tmp_path / "lowered")
    assert result.lowered == ()
    assert len(result.left) == len(found)
    assert graph_of(tmp_path / "lowered") == graph_def
    assert snapshot(plain) == snapshot(tmp_path / "lowered")


@pytest.mark.corpus
def test_a_gpu_function_without_a_twin_for_the_cpu_is_lowered(plain, tmp_path):
    """The op itself is what counts where nothing else can run in its place."""
    saved_model = lowering.read_saved_model(plain)
    graph_def = saved_model.meta_graphs[0].graph_def
    for function in graph_def.library.function:
        for name in ("api_preferred_device", "api_implements"):
            function.attr.pop(name, None)
    names = [function.signature.name for function in graph_def.library.function]
    for_gpu = next(name for name in names if name.startswith("__inference_gpu_lstm"))
    call = next(node for node in graph_def.node if node.op == "StatefulPartitionedCall")
    call.attr["f"].func.name = for_gpu
    found = lowering.find_ops(graph_def)
    assert [op.function for op in found if op.needs_lowering] == [for_gpu]


@pytest.mark.skipif(not PLAIN_LSTM.exists(), reason=f"{PLAIN_LSTM} is not here")
@pytest.mark.corpus
def test_a_real_plain_lstm_model_needs_nothing(tmp_path):
    found = lowering.find_ops_in_meta_graph(lowering.read_saved_model(PLAIN_LSTM).meta_graphs[0])
    assert len(found) > 10
    assert not any(op.needs_lowering for op in found)


def test_keras_description_of_cudnn_layers_is_left_out(nested, tmp_path):
    _, source, _, _ = nested
    model = shutil.copytree(source, tmp_path / "model")
    (model / "keras_metadata.pb").write_bytes(b'{"class_name": "CuDNNLSTM"}')
    result = lower(model, tmp_path / "lowered")
    assert not (tmp_path / "lowered" / "keras_metadata.pb").exists()
    assert "tf.saved_model.load" in result.warnings[-1]
    assert result.graphs[0].changed
    (model / "keras_metadata.pb").write_bytes(b'{"class_name": "LSTM"}')
    lower(model, tmp_path / "other")
    assert (tmp_path / "other" / "keras_metadata.pb").exists()


def test_unreachable_functions_are_left_alone(nested):
    _, source, _, _ = nested
    meta_graph = lowering.read_saved_model(source).meta_graphs[0]
    library = meta_graph.graph_def.library
    inner = next(f for f in library.function if any(n.op == "CudnnRNNV3" for n in f.node_def))
    unused = library.function.add()
    unused.CopyFrom(inner)
    unused.signature.name = "unused"
    kept = unused.SerializeToString()
    result = lowering.lower_meta_graph(meta_graph)
    assert [op.function for op in result.left] == ["unused"]
    assert not result.left[0].gpu_twin
    assert unused.SerializeToString() == kept

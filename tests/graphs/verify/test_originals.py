"""The unmodified original on a device of TensorFlow's: the way there, walked on the CPU.

What needs cuDNN's kernels is in tests/gpu/test_gpu_lowering.py.
"""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("tensorflow")

import numpy as np
import tensorflow as tf
from helpers import snapshot
from lowering_graphs import cudnn_nodes, frozen, tf1
from lowering_torch import Oracle
from models import ROOT

from rnnconvert.errors import UsageError
from rnnconvert.graphs import lowering
from rnnconvert.graphs.verify import runners, verify
from rnnconvert.graphs.verify.compare import BY_REFERENCE
from rnnconvert.graphs.verify.originals import loadable_saved_model, reference_saved_model

pytestmark = pytest.mark.slow

FIXTURES = ROOT / "fixtures" / "savedmodels"
CPU = "/CPU:0"
ON_CPU = f"tensorflow, the original on {CPU}, TF32 off"


class Dense(tf.Module):
    """Words through a table, then a matrix: no cuDNN op."""

    def __init__(self, factor: float = 1.0) -> None:
        super().__init__()
        keys, values = tf.constant(["a", "b"]), tf.constant([3, 4], tf.int64)
        self.table = tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer(keys, values), 0)
        kernel = factor * np.random.default_rng(2).standard_normal((5, 4))
        self.kernel = tf.Variable(kernel.astype("float32"))

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, name="words")])
    def words(self, words):  # type: ignore[no-untyped-def]
        return {"y": tf.gather(self.kernel, self.table.lookup(words))}

    @tf.function(input_signature=[tf.TensorSpec([None, None, 5], name="x")])
    def numbers(self, x):  # type: ignore[no-untyped-def]
        return {"y": x @ self.kernel}


def dense_saved_model(path: Path, factor: float = 1.0) -> Path:
    module = Dense(factor)
    signatures = {"words": module.words, "numbers": module.numbers}
    tf.saved_model.save(module, str(path), signatures=signatures)
    return path


def dense_graph(factor: float = 1.0) -> tf.Graph:
    """TensorFlow 1's, with a node on a GPU."""
    with tf.Graph().as_default() as graph:
        x = tf1.placeholder(tf.float32, [None, 5], name="x")
        kernel = np.random.default_rng(2).standard_normal((5, 4)).astype("float32")
        with tf.device("/gpu:0"):
            y = tf.matmul(x, tf.constant(factor * kernel), name="product")
        tf.identity(y, name="y")
    return graph


def dense_frozen(path: Path, factor: float = 1.0) -> Path:
    path.write_bytes(dense_graph(factor).as_graph_def().SerializeToString())
    return path


def dense_saved_model_of_1(path: Path, factor: float = 1.0) -> Path:
    config = tf1.ConfigProto(allow_soft_placement=True)
    with dense_graph(factor).as_default() as graph, tf1.Session(graph=graph, config=config) as run:
        tensors = [graph.get_tensor_by_name(f"{name}:0") for name in "xy"]
        tf1.saved_model.simple_save(run, str(path), {"x": tensors[0]}, {"y": tensors[1]})
    return path


MAKERS = {
    "tf2": (dense_saved_model, lowering.verify_saved_model, {"numbers", "words"}),
    "tf1": (dense_saved_model_of_1, lowering.verify_saved_model, {"serving_default"}),
    "frozen": (dense_frozen, lowering.verify_frozen_graph, {"graph"}),
}


@pytest.mark.parametrize("kind", MAKERS)
def test_the_original_itself_runs_on_the_device(kind, tmp_path):
    make, check, names = MAKERS[kind]
    source, other = make(tmp_path / "a"), make(tmp_path / "b")
    results = check(source, other, original_on=CPU)
    assert {result.name for result in results} == names
    for result in results:
        assert (result.status, result.max_abs, result.engine) == ("passed", 0.0, ON_CPU)


@pytest.mark.parametrize("kind", MAKERS)
def test_a_difference_from_the_original_is_caught(kind, tmp_path):
    make, check, _ = MAKERS[kind]
    source, other = make(tmp_path / "a"), make(tmp_path / "b", 1.001)
    for result in check(source, other, original_on=CPU):
        assert (result.status, result.engine) == ("failed", ON_CPU)
        assert result.max_abs > 5 * result.tolerance


@pytest.mark.parametrize("name", ["tf115/contrib_gru_bi2", "tf215/ops_v3", "tf115/frozen_keras"])
@pytest.mark.sampled(2)
def test_cudnn_ops_on_a_device_without_them_are_skipped_never_passed(name, tmp_path):
    source, target = FIXTURES / name / "model", tmp_path / "lowered"
    if source.is_dir():
        target.mkdir()
        lowering.lower_saved_model_dir(source, target)
        check = lowering.verify_saved_model
    else:
        source = FIXTURES / name / "frozen.pb"
        lowering.lower_frozen_graph(source, target)
        check = lowering.verify_frozen_graph
    before = snapshot(source) if source.is_dir() else source.read_bytes()
    (result,) = check(source, target, original_on=CPU)
    assert (result.status, result.engine) == ("skipped", ON_CPU)
    assert "the original does not" in result.reason
    assert "Cudnn" in result.reason
    assert before == (snapshot(source) if source.is_dir() else source.read_bytes())


def test_the_reference_is_told_apart(tmp_path):
    source, target = frozen(Oracle("gru"), tmp_path / "model.pb"), tmp_path / "lowered.pb"
    lowering.lower_frozen_graph(source, target)
    (result,) = lowering.verify_frozen_graph(source, target)
    assert (result.status, result.engine) == ("passed", BY_REFERENCE)


@pytest.mark.parametrize("kind", MAKERS)
@pytest.mark.parametrize("allowed", [False, True])
def test_tf32_is_off_while_the_original_runs(kind, allowed, tmp_path, monkeypatch):
    make, check, names = MAKERS[kind]
    source = make(tmp_path / "a")
    seen = []
    run = verify.first_that_runs
    tf32 = tf.config.experimental.tensor_float_32_execution_enabled

    def watched(*args):  # type: ignore[no-untyped-def]
        seen.append(tf32())
        return run(*args)

    monkeypatch.setattr(verify, "first_that_runs", watched)
    before = tf32()
    try:
        tf.config.experimental.enable_tensor_float_32_execution(allowed)
        check(source, source, original_on=CPU)
        assert tf32() is allowed
    finally:
        tf.config.experimental.enable_tensor_float_32_execution(before)
    assert seen == [False] * len(names)


@pytest.mark.parametrize("kind", MAKERS)
@pytest.mark.parametrize("device", ["gpu", "/GPU:0", "/CPU:9", "tpu", ""])
def test_a_device_that_is_not_there(kind, device, tmp_path):
    if "gpu" in device.lower() and tf.config.list_physical_devices("GPU"):
        pytest.skip("there is a GPU")
    _, check, _ = MAKERS[kind]
    with pytest.raises(UsageError, match=r"TensorFlow has no device .*; it has .*CPU:0"):
        check(tmp_path / "a", tmp_path / "b", original_on=device)


def test_where_the_nodes_of_a_graph_go(monkeypatch):
    """To the device, but for those that name one."""
    graphs = []
    make = runners.new_session
    monkeypatch.setattr(
        runners, "new_session", lambda graph, device: graphs.append(graph) or make(graph, device)
    )
    x = np.ones((2, 5), "float32")
    for device in (CPU, "/GPU:0"):
        with runners.frozen_runner(dense_graph().as_graph_def(), device) as runner:
            assert runner.run("graph", {"x": x})["y:0"].shape == (2, 4)
        devices = {op.name: op.device for op in graphs[-1].get_operations()}
        assert devices["product"] == "/device:GPU:0"
        assert devices["y"] == f"/device:{device.lstrip('/')}"


def test_a_session_for_the_cpu_sees_no_gpu():
    graph = tf.Graph()
    with runners.new_session(graph, CPU) as on_cpu, runners.new_session(graph, "/GPU:0") as on_gpu:
        assert on_cpu._config.device_count["GPU"] == 0
        assert "GPU" in on_cpu._config.device_count
        assert "GPU" not in on_gpu._config.device_count
        for session in (on_cpu, on_gpu):
            assert session._config.allow_soft_placement
            assert session._config.gpu_options.allow_growth


def test_only_what_no_loader_takes_is_repaired():
    source = FIXTURES / "tf115" / "contrib_gru_bi2" / "model"
    saved_model = lowering.read_saved_model(source)
    with loadable_saved_model(source, saved_model) as folder:
        assert folder != source
        copied = lowering.read_saved_model(folder).meta_graphs[0]
        assert copied.graph_def == saved_model.meta_graphs[0].graph_def
        assert "saveable_objects" not in copied.collection_def
        assert snapshot(folder / "variables") == snapshot(source / "variables")
    assert not folder.exists()
    assert "saveable_objects" in saved_model.meta_graphs[0].collection_def


def test_a_model_that_loads_is_run_from_where_it_is():
    source = FIXTURES / "tf215" / "ops_v3" / "model"
    with loadable_saved_model(source, lowering.read_saved_model(source)) as folder:
        assert folder == source


def test_the_reference_copy_has_no_cudnn_ops_and_the_original_keeps_them():
    source = FIXTURES / "tf215" / "ops_v3" / "model"
    saved_model = lowering.read_saved_model(source)
    with reference_saved_model(source, saved_model) as folder:
        assert not cudnn_nodes(lowering.read_saved_model(folder).meta_graphs[0].graph_def)
    assert cudnn_nodes(saved_model.meta_graphs[0].graph_def)

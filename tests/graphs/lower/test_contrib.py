"""Genuine TensorFlow 1.8 SavedModels of tf.contrib.cudnn_rnn's layers, against torch's numbers."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("tensorflow")

import numpy as np
import tensorflow as tf
from lowering_graphs import cudnn_nodes, tf1
from models import SHARED

from rnnconvert.errors import UnreadableInputError
from rnnconvert.graphs import lowering

FOLDER = SHARED / "fixtures" / "contrib_savedmodels"
CALAMARI = SHARED / "real-models" / "calamari_index_only" / "0.ckpt.meta"
MODELS = sorted(path.name for path in (FOLDER / "tf1.8.0").glob("*") if path.is_dir())
TRAINING = [name for name in MODELS if name.endswith("_train")]

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not FOLDER.exists(), reason=f"no genuine models: {FOLDER} is not here"),
]


def expected(name: str) -> dict[str, np.ndarray]:
    with np.load(FOLDER / "expected" / f"{name.removesuffix('_train')}.npz") as data:
        return {key: data[key] for key in data.files}


def lowered(name: str, folder: Path) -> Path:
    target = folder / name
    target.mkdir()
    result = lowering.lower_saved_model_dir(FOLDER / "tf1.8.0" / name, target)
    assert {op.op for op in result.lowered} >= {"CudnnRNN", "CudnnRNNCanonicalToParams"}
    return target


def inputs(name: str, values: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    given = {"x": values["x"], "h0": values["h0"]}
    return {**given, "c0": values["c0"]} if name.startswith("lstm") else given


@pytest.mark.corpus
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.sampled(3)
def test_tensorflow_1s_loader_gives_torchs_outputs(name, tmp_path):
    path, values = lowered(name, tmp_path), expected(name)
    with tf.Graph().as_default() as graph, tf1.Session(graph=graph) as session:
        meta_graph = tf1.saved_model.load(session, ["serve"], str(path))
        assert not cudnn_nodes(meta_graph.graph_def)
        signature = meta_graph.signature_def["serving_default"]
        feeds = {signature.inputs[key].name: value for key, value in inputs(name, values).items()}
        found = session.run({k: v.name for k, v in signature.outputs.items()}, feeds)
    check(found, values, name)
    assert (path / "assets" / "vocab.txt").read_text() == "a\nb\n"


@pytest.mark.parametrize("name", [name for name in MODELS if "L2_bi" in name])
@pytest.mark.corpus
def test_tensorflow_2s_loader_gives_torchs_outputs(name, tmp_path):
    path, values = lowered(name, tmp_path), expected(name)
    run = tf.saved_model.load(str(path)).signatures["serving_default"]
    given = {key: tf.constant(value) for key, value in inputs(name, values).items()}
    check(run(**given), values, name)


def check(found, values: dict[str, np.ndarray], name: str) -> None:
    for key in ("y", "hn", "cn")[: 3 if name.startswith("lstm") else 2]:
        np.testing.assert_allclose(found[key], values[key], atol=1e-5)


def test_the_original_does_not_load():
    with pytest.raises(KeyError, match="opaque_kernel_saveable"):
        tf.saved_model.load(str(FOLDER / "tf1.8.0" / MODELS[0]))


@pytest.mark.parametrize("name", TRAINING)
@pytest.mark.corpus
def test_training_goes_on_in_a_saved_model(name, tmp_path):
    path, values = lowered(name, tmp_path), expected(name)
    with tf.Graph().as_default() as graph, tf1.Session(graph=graph) as session:
        meta_graph = tf1.saved_model.load(session, ["serve"], str(path))
        signature = meta_graph.signature_def["serving_default"]
        feeds = {signature.inputs[key].name: value for key, value in inputs(name, values).items()}
        losses = _train(session, signature.outputs["loss"].name, feeds)
    assert losses[-1] < losses[0]
    assert losses == sorted(losses, reverse=True)


@pytest.mark.parametrize("mode", ["lstm", "gru"])
@pytest.mark.sampled(2)
def test_a_meta_graph_restores_trains_and_saves_its_checkpoint(mode, tmp_path):
    source = FOLDER / "tf1.8.0" / f"ck_{mode}_L2_bi_p0.meta"
    target = tmp_path / "model.meta"
    lowering.lower_meta_graph_file(source, target)
    results = lowering.verify_meta_graph(source, target)
    assert [result.status for result in results] == ["passed", "passed"]
    values = expected(f"{mode}_L2_bi_p0")
    buffer = f"cudnn_{mode}/opaque_kernel"
    with tf.Graph().as_default() as graph, tf1.Session(graph=graph) as session:
        tf1.train.import_meta_graph(str(target))
        # The layer's own saver, which goes through the canonical ops.
        session.run("save/restore_all", {"save/Const:0": str(tmp_path / "model")})
        restored = session.run(f"{buffer}:0")
        # Merged biases may come back halved (two restore ops race); the kernels never move.
        kernels = restored.size - 2 * 2 * 2 * 4 * {"lstm": 4, "gru": 3}[mode]
        np.testing.assert_array_equal(restored[:kernels], values["flat"][:kernels])
        feeds = {f"{name}:0": value for name, value in inputs(mode, values).items()}
        losses = _train(session, "Sum:0", feeds)
        assert losses[-1] < losses[0]
        trained = session.run(f"{buffer}:0")
        session.run("save/control_dependency", {"save/Const:0": str(tmp_path / "trained")})
    _check_canonical(tmp_path / "trained", buffer, trained, mode)


def _train(session, loss: str, feeds) -> list[float]:
    (step,) = (
        op for op in session.graph.get_operations() if op.type == "NoOp" and op.name == "Adam"
    )
    return [float(session.run([loss, step], feeds)[0]) for _ in range(20)]


def _check_canonical(prefix: Path, buffer: str, trained: np.ndarray, mode: str) -> None:
    """The saved canonical kernel of the first cell is cut out of the saved buffer."""
    reader = tf.train.load_checkpoint(str(prefix))
    np.testing.assert_array_equal(reader.get_tensor(buffer), trained)
    (name,) = (
        key
        for key in reader.get_variable_to_shape_map()
        if "cell_0/bidirectional_rnn/fw" in key
        and key.endswith({"lstm": "lstm_cell/kernel", "gru": "gates/kernel"}[mode])
    )
    gates = {"lstm": 4, "gru": 3}[mode]
    from_input = trained[: gates * 4 * 5].reshape(gates, 4, 5)
    from_state = trained[gates * 4 * 5 :][: gates * 4 * 4].reshape(gates, 4, 4)
    cells = np.concatenate([from_input, from_state], axis=2)
    order = {"lstm": [0, 2, 1, 3], "gru": [0, 1]}[mode]  # TensorFlow 1's i c f o, and r u
    wanted = np.concatenate([cells[gate].T for gate in order], axis=1)
    np.testing.assert_array_equal(reader.get_tensor(name), wanted)


def test_a_genuine_frozen_graph(tmp_path):
    target = tmp_path / "lowered.pb"
    result = lowering.lower_frozen_graph(FOLDER / "frozen115.pb", target)
    assert result.lowered[0].params_kind == "constant"
    (verified,) = lowering.verify_frozen_graph(FOLDER / "frozen115.pb", target)
    assert verified.status == "passed"
    assert verified.max_abs < 1e-6


@pytest.mark.skipif(not CALAMARI.exists(), reason=f"{CALAMARI} is not here")
@pytest.mark.corpus
def test_a_real_meta_graph_of_1_8_with_its_data_missing(tmp_path):
    meta_graph = lowering.read_meta_graph(CALAMARI)
    (op, *_) = (op for op in lowering.find_ops_in_meta_graph(meta_graph) if op.op == "CudnnRNN")
    assert (op.mode, op.units, op.input_size, op.direction) == ("lstm", 200, 720, "bidirectional")
    lowering.lower_meta_graph(meta_graph)
    assert not cudnn_nodes(meta_graph.graph_def)
    with pytest.raises(UnreadableInputError, match="data file is missing"):
        lowering.lower_meta_graph_file(CALAMARI, tmp_path / "out.meta")

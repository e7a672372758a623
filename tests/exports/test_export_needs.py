"""The errors with which people came from other exporters: the command gets past each of them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from export_models import operators, run_onnx, saved, sequential
from models import OWN

import rnnconvert

pytestmark = pytest.mark.slow
for name in ("tensorflow", "keras", "onnx", "tf2onnx", "onnxruntime", "ai_edge_litert"):
    pytest.importorskip(name, reason=f"{name} is not installed")
from keras import layers

FIXTURES = Path(__file__).parents[2] / "fixtures"


def fixture(name: str) -> Path:
    return next(model.path for model in OWN if model.name == name)


@pytest.mark.parametrize(
    ("said", "source", "operator"),
    [
        ("Tensorflow op [.../CudnnRNNV3: CudnnRNNV3] is not supported",
         FIXTURES / "savedmodels/tf215/ops_v3/model", "LSTM"),
        ("rnn mode other than gru are not supported yet",
         FIXTURES / "savedmodels/tf15/contrib_lstm/model", "LSTM"),
        ("op [...cudnn_compatible_lstm_cell/BlockLSTM: BlockLSTM] is not supported",
         FIXTURES / "checkpoints/tf112/lstm_block_fused", "LSTM"),
        ("GRU with linear_before_reset is not supported", fixture("k224-seq_gru"), "GRU"),
        ("Currently only two types of recurrent Keras layers are supported, LSTM and SimpleRNN. "
         "You tried to load a layer of class: CuDNNLSTM.", fixture("k224-seq_lstm"), "LSTM"),
        ("tf2onnx.convert.from_keras: KeyError: keras_tensor_5", fixture("tf215-bi"), "LSTM"),
        ("frozen graph with CuDNNGRU", FIXTURES / "savedmodels/tf115/frozen_keras/frozen.pb",
         "GRU"),
        ("KeyError: opaque_kernel_saveable", FIXTURES / "checkpoints/tf115/cudnn_lstm", "LSTM"),
    ],
    ids=lambda value: None if isinstance(value, Path) else str(value)[:40],
)  # fmt: skip
@pytest.mark.sampled(4)
def test_the_command_gets_past_to_onnx(said, source, operator, tmp_path):
    report = rnnconvert.export(source, tmp_path / "model.onnx")
    assert report.is_equivalent
    assert report.proved == "model"
    assert operators(tmp_path / "model.onnx")[operator] >= 1
    assert report.exported[0].operators["Loop"] == 0


@pytest.mark.parametrize(
    ("said", "source", "options", "own_operators"),
    [
        ("Here is a list of operators for which you will need custom implementations: CudnnRNN.",
         FIXTURES / "savedmodels/tf115/contrib_gru_bi2/model", {"timesteps": 6}, 0),
        ("'CuDNNLSTM' object has no attribute '_num_inputs'", fixture("k224-seq_lstm"),
         {"timesteps": 6}, 0),
        ("weights of a Bidirectional CuDNNLSTM into TFLiteLSTMCell", fixture("k224-bi"),
         {"timesteps": 6, "batch": 1}, 2),
        ("drop every .*opaque_.* variable", FIXTURES / "checkpoints/tf115/cudnn_lstm",
         {"batch": 1}, 1),
    ],
    ids=lambda value: value[:40] if isinstance(value, str) else None,
)  # fmt: skip
@pytest.mark.corpus
def test_the_command_gets_past_to_tflite(said, source, options, own_operators, tmp_path):
    report = rnnconvert.export(source, tmp_path / "model.tflite", **options)
    assert report.proved == "model"
    [written] = report.exported
    assert written.operators["UNIDIRECTIONAL_SEQUENCE_LSTM"] == own_operators
    assert not [name for name in written.operators if name.startswith(("Flex", "Cudnn"))]


@pytest.mark.corpus
def test_a_graph_trained_on_a_gpu_goes_to_tflite(tmp_path):
    """TensorFlow's own converter refuses it."""
    import tensorflow as tf

    source = FIXTURES / "savedmodels/tf215/ops_v3/model"
    with pytest.raises(Exception, match="Custom ops: CudnnRNNV3"):
        tf.lite.TFLiteConverter.from_saved_model(str(source)).convert()
    report = rnnconvert.export(source, tmp_path / "model.tflite", timesteps=6)
    assert report.proved == "model"


@pytest.mark.corpus
def test_bidirectional_with_use_cudnn(tmp_path):
    """Keras sets the flag of a Bidirectional's layers back; its export then names CudnnRNNV3."""
    both = layers.Bidirectional(layers.GRU(4, use_cudnn=False, return_sequences=True))
    model = sequential(both, layers.Bidirectional(layers.LSTM(3, use_cudnn=True)))
    path = tmp_path / "model.onnx"
    assert rnnconvert.export(saved(model, tmp_path / "model.keras"), path).proved == "model"
    found = operators(path)
    assert (found["GRU"], found["LSTM"], "Loop" in found) == (1, 1, False)


@pytest.mark.corpus
def test_linear_before_reset_is_there_exactly_where_it_belongs(tmp_path):
    """Missing, it is wrong by 0.1 without an error; and with reset_after=False it is wrong."""
    import onnx

    for after in (True, False):
        source = saved(sequential(layers.GRU(4, reset_after=after)), tmp_path / "model.keras")
        rnnconvert.export(source, tmp_path / "model.onnx", force=True)
        [node] = [n for n in onnx.load(str(tmp_path / "model.onnx")).graph.node
                  if n.op_type == "GRU"]  # fmt: skip
        found = {attribute.name: attribute.i for attribute in node.attribute}
        assert found["linear_before_reset"] == after


def test_a_mask_is_no_loop(tmp_path):
    """Embedding(mask_zero) and LSTM became a Loop, or were right for padding on the right only."""
    model = sequential(
        layers.Embedding(9, 5, mask_zero=True), layers.LSTM(4), shape=(None,), dtype="int32"
    )
    path = tmp_path / "model.onnx"
    rnnconvert.export(saved(model, tmp_path / "model.keras"), path)
    assert operators(path)["LSTM"] == 1
    assert "Loop" not in operators(path)
    padded = np.array([[0, 0, 3, 0, 5, 1, 0]], np.int32)
    alone = np.array([[3, 5, 1]], np.int32)
    np.testing.assert_allclose(run_onnx(path, [padded])[0], run_onnx(path, [alone])[0], atol=1e-6)

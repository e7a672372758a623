"""What was converted goes on to TFLite and ONNX by their own tools, and computes the same there."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rnnconvert

pytestmark = pytest.mark.slow
tf = pytest.importorskip("tensorflow", reason="TensorFlow is not installed")
keras = pytest.importorskip("keras", reason="Keras 3 is not installed")

FIXTURES = Path(__file__).parents[2] / "fixtures"
GRAPH = FIXTURES / "savedmodels/tf115/contrib_gru_bi2"
STEPS = 6
TOLERANCE = 1e-5


def converted(name: str, folder: Path) -> tuple[Any, np.ndarray, np.ndarray]:
    """A converted Keras model, its input, and what the original predicted for it."""
    fixture = FIXTURES / "keras/k224" / name
    rnnconvert.convert(fixture / "model.h5", folder / "out.h5", verify="weights")
    with np.load(fixture / "data.npz") as data:
        return keras.models.load_model(folder / "out.h5"), data["x0"], data["y0"]


def lowered(folder: Path) -> tuple[Path, dict[str, np.ndarray], dict[str, np.ndarray]]:
    """A SavedModel lowered with `unroll`, and the inputs and outputs of the original."""
    rnnconvert.convert(GRAPH / "model", folder / "lowered", verify="weights", unroll=STEPS)
    with np.load(GRAPH / "data.npz") as data:
        inputs = {name: data[f"in/{name}"] for name in ("x", "h0")}
        outputs = {name: data[f"out/{name}"] for name in ("y", "hn", "logits")}
    return folder / "lowered", inputs, outputs


def unrolled(layer: Any) -> Any:
    """A new layer of the same config, whose time steps are ops of their own."""
    config = layer.get_config()
    for part in (
        config,
        *(config[k]["config"] for k in ("layer", "backward_layer") if k in config),
    ):
        if "unroll" in part:
            part["unroll"] = True
    return layer.__class__.from_config(config)


def run_tflite(content: bytes, inputs: dict[str, np.ndarray] | np.ndarray) -> dict[str, Any]:
    """Run the only signature; no op may need TensorFlow's Flex delegate."""
    interpreter = tf.lite.Interpreter(model_content=content)
    operators = {operator["op_name"] for operator in interpreter._get_ops_details()}
    assert not {name for name in operators if name.startswith("Flex")}
    [(signature, names)] = interpreter.get_signature_list().items()
    if isinstance(inputs, np.ndarray):
        [name] = names["inputs"]
        inputs = {name: inputs}
    return interpreter.get_signature_runner(signature)(**inputs)


def assert_same(found: dict[str, Any], expected: dict[str, np.ndarray]) -> None:
    assert set(found) == set(expected)
    for name, values in expected.items():
        np.testing.assert_allclose(found[name], values, rtol=0, atol=TOLERANCE, err_msg=name)


@pytest.mark.parametrize("name", ["seq_gru"])
@pytest.mark.corpus
def test_keras_to_tflite(name, tmp_path):
    model, x, y = converted(name, tmp_path)
    flat = keras.models.clone_model(
        model, input_tensors=keras.Input(x.shape[1:]), clone_function=unrolled
    )
    flat.set_weights(model.get_weights())
    content = tf.lite.TFLiteConverter.from_keras_model(flat).convert()
    [found] = run_tflite(content, x).values()
    np.testing.assert_allclose(found, y, rtol=0, atol=TOLERANCE)


@pytest.mark.corpus
def test_lowered_graph_to_tflite(tmp_path):
    path, inputs, outputs = lowered(tmp_path)
    content = tf.lite.TFLiteConverter.from_saved_model(str(path)).convert()
    assert_same(run_tflite(content, inputs), outputs)


def run_onnx(path: Path, inputs: dict[str, np.ndarray]) -> dict[str, Any]:
    runtime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    session = runtime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(None, inputs), strict=True))


@pytest.mark.parametrize("name", ["bi", "seq_gru"])
@pytest.mark.corpus
def test_keras_to_onnx(name, tmp_path):
    tf2onnx = pytest.importorskip("tf2onnx", reason="tf2onnx is not installed")
    model, x, y = converted(name, tmp_path)
    signature = [tf.TensorSpec((None, None, x.shape[2]), tf.float32, name="x")]
    function = tf.function(lambda x: model(x, training=False), input_signature=signature)
    path = tmp_path / "model.onnx"
    tf2onnx.convert.from_function(function, input_signature=signature, output_path=str(path))
    [found] = run_onnx(path, {"x": x}).values()
    np.testing.assert_allclose(found, y, rtol=0, atol=TOLERANCE)


@pytest.mark.corpus  # test_export_onnx has the same graphs by our own command
def test_lowered_graph_to_onnx(tmp_path):
    pytest.importorskip("tf2onnx", reason="tf2onnx is not installed")
    path, inputs, outputs = lowered(tmp_path)
    output = tmp_path / "model.onnx"
    arguments = ["--saved-model", str(path), "--output", str(output)]
    command = [sys.executable, "-m", "tf2onnx.convert", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert_same(run_onnx(output, inputs), outputs)

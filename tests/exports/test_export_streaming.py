"""One time step at a time: T single steps give what one run of T gives."""

from __future__ import annotations

import numpy as np
import pytest
from export_models import predict, run_onnx, saved, sequential, streams

import rnnconvert
from rnnconvert.errors import NotConvertibleError, UsageError

pytestmark = pytest.mark.slow
for name in ("tensorflow", "keras", "onnx", "tf2onnx", "onnxruntime"):
    pytest.importorskip(name, reason=f"{name} is not installed")
import keras
from keras import layers

MODELS = dict(streams())
STEPS = 6


def run_steps(run, x, states):
    """Every step's outputs, one list for each output; states go on from step to step."""
    found = []
    for step in range(x.shape[1]):
        results = run([x[:, step : step + 1], *states])
        cut = len(results) - len(states)
        found.append(results[:cut])
        states = results[cut:]
    return list(zip(*found, strict=True))


@pytest.mark.parametrize("target", ["onnx", "keras"])
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.sampled(8)
@pytest.mark.thinned(2)
def test_single_steps_are_one_run(name, target, tmp_path):
    source = saved(MODELS[name], tmp_path / "model.keras")
    path = tmp_path / f"step.{target}"
    report = rnnconvert.export(source, path, stateful_step=True)
    assert report.proved == "model"
    [written] = report.exported
    generator = np.random.default_rng(5)
    x = generator.normal(0.0, 1.0, (3, STEPS, 5)).astype("float32")
    if name == "embedding":
        x = generator.integers(0, 11, (3, STEPS)).astype("int32")  # steps of padding among them
    original = keras.models.load_model(source)
    expected = predict(original, [x])
    model = keras.models.load_model(path) if target == "keras" else None
    sizes = [layer.shape[-1] for layer in keras.models.load_model(path).inputs[1:]] if model else []
    if not sizes:
        import onnxruntime

        session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
        sizes = [value.shape[-1] for value in session.get_inputs()[1:]]
    assert len(sizes) == len(written.inputs) - 1
    states = [np.zeros((3, size), "float32") for size in sizes]
    run = (lambda given: predict(model, given)) if model else (lambda given: run_onnx(path, given))
    outputs = run_steps(run, x, states)
    for wanted, found in zip(expected, outputs, strict=True):
        last = found[-1]
        joined = np.concatenate(found, 1) if last.ndim == wanted.ndim == 3 else last
        np.testing.assert_allclose(joined, wanted, atol=2e-6)


@pytest.mark.parametrize(
    ("model", "named"),
    [
        (lambda: sequential(layers.Bidirectional(layers.LSTM(3, name="a"), name="both")), "both"),
        (lambda: sequential(layers.GRU(3, go_backwards=True, name="late")), "late"),
        (lambda: sequential(layers.Conv1D(4, 3, name="conv"), layers.GRU(3)), "conv"),
        (
            lambda: sequential(
                layers.LSTM(3, return_sequences=True), layers.GlobalMaxPooling1D(name="pool")
            ),
            "pool",
        ),
        (lambda: sequential(layers.Dense(3)), "no recurrent layer"),
    ],
    ids=["bidirectional", "backwards", "convolution", "pooling", "nothing"],
)
def test_what_can_not_stream_is_named(model, named, tmp_path):
    source = saved(model(), tmp_path / "model.keras")
    with pytest.raises(NotConvertibleError, match=named):
        rnnconvert.export(source, tmp_path / "step.onnx", stateful_step=True)
    assert not (tmp_path / "step.onnx").exists()


def test_keras_is_a_target_of_steps_only(tmp_path):
    source = saved(sequential(layers.GRU(3)), tmp_path / "model.keras")
    with pytest.raises(UsageError, match="--stateful-step"):
        rnnconvert.export(source, tmp_path / "step.keras")


def test_a_checkpoint_of_tensorflow_1_streams(fixtures_dir, tmp_path):
    source = fixtures_dir / "checkpoints/tf115/cudnn_lstm"
    report = rnnconvert.export(source, tmp_path / "step.onnx", stateful_step=True)
    assert report.exported[0].operators["LSTM"] == 1
    assert len(report.exported[0].inputs) == 3
    assert report.proved == "model"


def test_older_versions_of_keras_3_know_every_key_of_the_written_file(tmp_path):
    """Keras 3.15 writes quantization_config and more, which 3.6 refuses, as 3.3 Orthogonal."""
    import json
    import zipfile

    source = saved(MODELS["lstm"], tmp_path / "model.keras")
    path = tmp_path / "step.keras"
    rnnconvert.export(source, path, stateful_step=True, verify="none")
    with zipfile.ZipFile(path) as archive:
        text = archive.read("config.json").decode()
    assert "LSTM" in text
    assert json.loads(text)["class_name"] == "Functional"
    for key in ("quantization_config", "input_axes", "output_axes", "Orthogonal"):
        assert key not in text

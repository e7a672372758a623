"""Bad input of `export`: one clear line, the right exit code, nothing written."""

from __future__ import annotations

import importlib.util
import json

import pytest
from helpers import make_model_h5, read_config, write_config

pytest.importorskip("tensorflow", reason="TensorFlow is not installed")
pytest.importorskip("tf2onnx", reason="tf2onnx is not installed")


@pytest.fixture
def model(tmp_path):
    return make_model_h5(tmp_path / "m.h5")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["-o", "m.onnx", "--to", "tflite"], "--to tflite writes .tflite, and the output is named"),
        (["-o", "m.h5x"], "--to is missing"),
        (["-o", "m.onnx", "--opset", "9"], "--opset 9: expected 13 to 18"),
        (["-o", "m.onnx", "--opset", "12"], "--opset 12: expected 13 to 18"),
        (["-o", "m.onnx", "--opset", "19"], "--opset 19: expected 13 to 18"),
        (["-o", "m.tflite", "--opset", "15"], "--opset is for --to onnx"),
        (["-o", "m.onnx", "--quantize", "dynamic"], "--quantize is for --to tflite"),
        (["-o", "m.safetensors", "--quantize", "dynamic"], "--quantize is for --to tflite"),
        (["-o", "m.onnx", "--allow-select-ops"], "--allow-select-ops is for --to tflite"),
        (["-o", "m.onnx", "--device", "gpu"], "--device gpu"),
        (["-o", "m.keras"], "--stateful-step"),
        (["--to", "onnx"], "--output"),
    ],
)
def test_usage(cli, model, tmp_path, arguments, said):
    result = cli("export", model, *arguments)
    assert result.code == 2, result.err
    assert said in result.err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m.h5"]


def test_input_and_output(cli, model, tmp_path):
    assert cli("export", tmp_path / "none.h5", "-o", "m.onnx").code == 3
    (tmp_path / "broken.h5").write_bytes(model.read_bytes()[:2000])
    assert cli("export", "broken.h5", "-o", "m.onnx").code == 3
    (tmp_path / "m.onnx").write_text("old")
    result = cli("export", model, "-o", "m.onnx")
    assert (result.code, "--force" in result.err) == (5, True)
    assert (tmp_path / "m.onnx").read_text() == "old"
    assert cli("export", model, "-o", "no/where.onnx").code == 5
    result = cli("export", model, "--to", "onnx", "-o", "m.h5")
    assert (result.code, "--to onnx writes .onnx" in result.err) == (2, True)


def test_a_missing_extra_is_one_line_with_the_command(cli, model, tmp_path, monkeypatch):
    right = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *a: None if name == "tf2onnx" else right(name, *a)
    )
    result = cli("export", model, "-o", "m.onnx")
    assert result.code == 2
    assert result.err.strip().endswith(
        "export to ONNX needs tf2onnx: pip install 'rnnconvert[onnx]'"
    )
    assert not (tmp_path / "m.onnx").exists()


def test_lambdas_custom_layers_and_float64_are_named(cli, fixtures_dir, tmp_path):
    keras = fixtures_dir / "keras/tf215"
    result = cli("export", keras / "plain_lam/model.h5", "-o", "m.onnx")
    assert (result.code, "Lambda" in result.err) == (4, True)
    result = cli("export", keras / "double/model.h5", "-o", "m.onnx")
    assert (result.code, "float64" in result.err) == (4, True)
    extra = {"class_name": "MyOwn", "config": {"name": "mine", "trainable": True}}
    own = make_model_h5(tmp_path / "own.h5", extra_layers=[extra])
    result = cli("export", own, "-o", "m.onnx")
    assert (result.code, "MyOwn" in result.err) == (4, True)
    assert not (tmp_path / "m.onnx").exists()


def test_ragged_inputs_are_named(cli, model, tmp_path):
    config = read_config(model)
    inputs = {"batch_input_shape": [None, None, 5], "dtype": "float32", "sparse": False,
              "ragged": True, "name": "words"}  # fmt: skip
    config["config"]["layers"].insert(0, {"class_name": "InputLayer", "config": inputs})
    write_config(model, config)
    result = cli("export", model, "-o", "m.onnx")
    assert result.code == 4, result.err
    assert "input words is ragged" in result.err
    assert not (tmp_path / "m.onnx").exists()


def test_several_layers_need_a_directory(cli, fixtures_dir, tmp_path):
    weights = fixtures_dir / "keras/tf215/seq_gru/weights.h5"
    result = cli("export", weights, "-o", "m.onnx")
    assert (result.code, "give a directory" in result.err) == (2, True)
    assert not list(tmp_path.iterdir())


def test_what_it_prints_and_reports(cli, model, tmp_path):
    result = cli("export", model, "-o", "m.onnx", "--report", "r.json")
    assert result.code == 0, result.err
    assert "operators: 1 LSTM, 1 GRU, 0 RNN, 0 Loop" in result.out
    assert "opset 17" in result.out
    assert result.out.rstrip().endswith("equivalent (whole model)")
    report = json.loads((tmp_path / "r.json").read_text())
    assert report["command"] == "export"
    assert report["output"]["path"] == "m.onnx"
    [exported] = report["exported"]
    assert exported["operators"]["GRU"] == 1
    assert exported["recurrent_layers"] == {"native": 2, "loops": []}
    [level] = report["verification"]["model"]
    assert (level["status"], report["proved"]) == ("passed", "model")
    assert level["engine"].startswith("onnxruntime")
    (tmp_path / "m.onnx").unlink()
    result = cli("export", model, "-o", "m.onnx", "--dry-run")
    assert (result.code, "would be written" in result.out) == (0, True)
    assert not (tmp_path / "m.onnx").exists()
    assert not list(tmp_path.glob(".rnnconvert-*"))

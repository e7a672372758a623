"""Bad input of `export`: one clear line, the right exit code, nothing written."""

from __future__ import annotations

import importlib.util
import json

import pytest
from helpers import make_model_h5, read_config, write_config

pytest.importorskip("tensorflow", reason="TensorFlow is not installed")
for name in ("tf2onnx", "ai_edge_litert", "torch", "safetensors"):
    pytest.importorskip(name, reason=f"{name} is not installed")

OUTPUTS = ["m.onnx", "m.tflite", "m.safetensors"]
"""One for each target."""


@pytest.fixture
def model(tmp_path):
    return make_model_h5(tmp_path / "m.h5")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["-o", "m.onnx", "--to", "tflite"], "--to tflite writes .tflite, and the output is named"),
        (["-o", "m.tflite", "--to", "torch"], "--to torch writes .safetensors, and the output"),
        (
            ["-o", "m.safetensors", "--to", "onnx"],
            "--to onnx writes .onnx, and the output is named",
        ),
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


def test_a_setting_is_for_the_targets_that_have_it(cli, model, tmp_path, monkeypatch):
    """A setting is for all exports of a project: it is no mistake in those to other targets."""
    settings = tmp_path / "pyproject.toml"
    settings.write_text('[tool.rnnconvert]\nopset = 15\nquantize = "dynamic"\nverify = "none"\n')
    assert cli("export", model, "-o", "m.safetensors").code == 0
    monkeypatch.setenv("RNNCONVERT_OPSET", "9")
    assert cli("export", model, "-o", "n.safetensors").code == 0
    result = cli("export", model, "-o", "m.onnx")
    assert (result.code, "--opset 9: expected 13 to 18" in result.err) == (2, True)
    result = cli("export", model, "-o", "o.safetensors", "--opset", "15")
    assert (result.code, "--opset is for --to onnx" in result.err) == (2, True)


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


def refused(result, code, *parts):
    """One line, which says all the parts."""
    assert result.code == code, result.err
    [line] = [line for line in result.err.splitlines() if not line.startswith("warning:")]
    for part in parts:
        assert part in line


@pytest.mark.parametrize("output", OUTPUTS)
def test_lambdas_and_custom_layers_are_named(output, cli, fixtures_dir, tmp_path):
    model = fixtures_dir / "keras/tf215/plain_lam/model.h5"
    refused(cli("export", model, "-o", output), 4, "model/lambda is a Lambda layer", "--allow-code")
    extra = {"class_name": "MyOwn", "config": {"name": "mine", "trainable": True}}
    own = make_model_h5(tmp_path / "own.h5", extra_layers=[extra])
    refused(cli("export", own, "-o", output), 4, "mine", "MyOwn")
    assert [path.name for path in tmp_path.iterdir()] == ["own.h5"]


def test_a_lambda_that_may_run_has_no_torch_form(cli, fixtures_dir, tmp_path):
    model = fixtures_dir / "keras/tf215/plain_lam/model.h5"
    result = cli("export", model, "-o", "m.safetensors", "--allow-code")
    refused(result, 4, "'lambda' (Lambda) has no torch form")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("output", ["m.onnx", "m.tflite"])
def test_float64_is_named(output, cli, fixtures_dir, tmp_path):
    model = fixtures_dir / "keras/tf215/double/model.h5"
    refused(cli("export", model, "-o", output), 4, "float64")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "path", ["checkpoints/tf115/cudnn_gru", "savedmodels/tf115/contrib_gru_bi2/model"]
)
def test_an_unknown_number_of_steps_is_asked_for(path, cli, fixtures_dir, tmp_path):
    refused(cli("export", fixtures_dir / path, "-o", "m.tflite"), 2, "unrolled", "--timesteps")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("output", OUTPUTS)
def test_ragged_inputs_are_named(output, cli, model, tmp_path):
    config = read_config(model)
    inputs = {"batch_input_shape": [None, None, 5], "dtype": "float32", "sparse": False,
              "ragged": True, "name": "words"}  # fmt: skip
    config["config"]["layers"].insert(0, {"class_name": "InputLayer", "config": inputs})
    write_config(model, config)
    refused(cli("export", model, "-o", output), 4, "input words is ragged")
    assert [path.name for path in tmp_path.iterdir()] == ["m.h5"]


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

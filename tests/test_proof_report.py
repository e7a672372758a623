"""The report's verdict: what it assumes, how deep it was proved, and what --strict refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import rnnconvert
from rnnconvert.report import Assumption, FileInfo, LevelResult, Report

PASSED = LevelResult("passed", max_abs=0.0, tolerance=0.0)
LAMBDA = LevelResult.skipped("a Lambda needs --allow-code", "cpu")
NO_GPU = LevelResult.skipped("no CUDA device", "gpu")
ASSUMED = Assumption("forget_bias", 1.0, "rnn: TensorFlow's default")
BASIC_LSTM = Path(__file__).parents[1] / "fixtures" / "checkpoints" / "tf115" / "basic_lstm"


def report(*model: LevelResult, layers: LevelResult = PASSED, **more) -> Report:
    info = FileInfo("m.h5", 1, "keras-h5-model")
    return Report("cudnn-to-keras", info, weights_level=PASSED, layers_level=layers,
                  model_level=model, verdict="equivalent", **more)  # fmt: skip


@pytest.mark.parametrize(
    ("model", "proved", "depth"),
    [
        ((PASSED,), "model", "whole model"),
        ((PASSED, NO_GPU), "model", "whole model"),
        ((LAMBDA, NO_GPU), "layers",
         "weights, layers; the whole model was not run: a Lambda needs --allow-code"),
        ((PASSED, LAMBDA), "layers",
         "weights, layers; the whole model was not run: a Lambda needs --allow-code"),
        ((NO_GPU,), "layers", "weights, layers; the whole model was not run: not asked for"),
        ((LevelResult.not_asked("layers"),), "layers",
         "weights, layers; the whole model was not run: not asked for (--verify layers)"),
    ],
)  # fmt: skip
def test_how_deep_the_proof_went(model, proved, depth):
    found = report(*model)
    assert (found.proved, found.depth) == (proved, depth)
    assert found.to_dict()["proved"] == proved


def test_an_assumption_stands_in_the_verdict():
    other = Assumption("activation", "tanh", "rnn_1: TensorFlow's default")
    found = report(PASSED, assumptions=(ASSUMED, ASSUMED, other))
    assert found.verdict == "equivalent, if forget_bias is 1.0 and activation is tanh"
    document = json.loads(found.to_json())
    assert document["verdict"] == found.verdict
    assert document["assumptions"][0] == {
        "what": "forget_bias", "value": 1.0, "why": "rnn: TensorFlow's default"
    }  # fmt: skip
    assert found.is_equivalent
    assert report(PASSED).verdict == "equivalent"
    assert Report("verify", found.input, verdict="different", assumptions=(other,)).verdict == (
        "different"
    )


@pytest.mark.parametrize(
    ("found", "doubts"),
    [
        (report(PASSED, NO_GPU), []),
        (report(PASSED, layers=LevelResult.skipped("weights only")), []),
        (report(LevelResult.nothing_to_run("no model in it")), []),
        (report(LevelResult.not_asked("layers")), []),
        (report(LAMBDA), ["level model could not run: a Lambda needs --allow-code"]),
        (report(PASSED, assumptions=(ASSUMED,)), ["forget_bias is 1.0: rnn: TensorFlow's default"]),
    ],
)
def test_what_strict_does_not_let_pass(found, doubts):
    assert found.doubts() == doubts


def test_a_gpu_that_was_asked_for_counts():
    assert report(PASSED, NO_GPU).doubts(gpu=True) == ["level model could not run: no CUDA device"]


def test_a_checkpoint_without_a_graph(cli, tmp_path):
    arguments = ("cudnn-to-keras", BASIC_LSTM, "-o", "m.h5", "--verify", "layers")
    strict = cli(*arguments, "--strict")
    assert strict.code == 4
    assert "forget_bias is 1.0" in strict.err
    assert not (tmp_path / "m.h5").exists()
    done = cli(*arguments)
    assert "equivalent, if forget_bias is 1.0 (weights, layers; the whole" in done.out
    assert "assumed: forget_bias is 1.0" in done.err
    told = cli(*arguments, "--strict", "--force", "--forget-bias", "1")
    assert "equivalent (weights, layers; the whole" in told.out
    again = cli("verify", BASIC_LSTM, "m.h5", "--verify", "layers", "--strict")
    assert again.code == 4
    assert "forget_bias is 1.0" in again.err


def test_inspect_lists_the_assumptions():
    found = rnnconvert.inspect(BASIC_LSTM)
    assert [str(each) for each in found.assumptions] == ["forget_bias is 1.0"]
    assert found.to_dict()["assumptions"][0]["value"] == 1.0

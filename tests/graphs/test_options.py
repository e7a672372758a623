"""Graphs: `--check` that only looks, and sizes that only the user knows."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("tensorflow", reason="TensorFlow is not installed")

import tensorflow as tf
from helpers import snapshot
from lowering_graphs import forward_op, tf1
from lowering_torch import UNITS, Oracle

from rnnconvert.graphs import convert as graphs

pytestmark = pytest.mark.slow
FIXTURES = Path(__file__).parents[2] / "fixtures"
CASES = {
    "saved model": FIXTURES / "savedmodels/tf215/ops_v3/model",
    "frozen graph": FIXTURES / "savedmodels/tf115/frozen_contrib_gru2/frozen.pb",
    "meta graph": FIXTURES / "checkpoints/tf15/cudnn_lstm_adam/model.ckpt.meta",
}


@pytest.mark.parametrize("case", CASES)
def test_check_looks_at_the_graph_and_makes_no_other(case, cli, tmp_path, monkeypatch):
    def never(*_, **__):
        raise AssertionError("it was lowered")

    inspected = json.loads(cli("inspect", CASES[case], "--json").out)
    with monkeypatch.context() as patch:
        patch.setattr(graphs, "lower", never)
        patch.setattr(graphs, "temporary_directory", never)
        done = cli("cudnn-to-keras", CASES[case], "--check", "--json")
    assert done.code == 1
    assert json.loads(done.out)["layers"] == inspected["layers"]
    assert snapshot(tmp_path) == {}


def test_check_says_what_a_conversion_would(cli, tmp_path):
    """Also of a graph that needs nothing, of one that can't be lowered, and of a broken one."""
    plain = FIXTURES / "savedmodels/tf215/plain_export/model"
    assert cli("cudnn-to-keras", plain, "--check").code == 0
    oracle = Oracle("gru", layers=2)
    with tf.Graph().as_default() as graph:
        x = tf1.placeholder(tf.float32, [None, None, 5])
        h = tf.zeros([2, tf.shape(x)[1], UNITS])
        forward_op(oracle, 2, x, h, h, tf.constant(oracle.values["params"]), dropout=0.5)
    (tmp_path / "dropout.pb").write_bytes(graph.as_graph_def().SerializeToString())
    done = cli("cudnn-to-keras", "dropout.pb", "--check")
    assert (done.code, "--ignore-dropout" in done.err) == (4, True)
    assert cli("cudnn-to-keras", "dropout.pb", "--check", "--ignore-dropout").code == 1


@pytest.fixture
def unknown_sizes(tmp_path) -> Path:
    oracle = Oracle("lstm", layers=2)
    with tf.Graph().as_default() as graph:
        leaves = [tf1.placeholder(tf.float32, name=name) for name in ("x", "h", "c", "params")]
        tf.identity(forward_op(oracle, 2, *leaves, is_training=False).output, name="y")
    (tmp_path / "model.pb").write_bytes(graph.as_graph_def().SerializeToString())
    return tmp_path / "model.pb"


def test_sizes_that_the_graph_does_not_tell_are_taken_from_the_options(cli, unknown_sizes):
    sizes = ("--layers", 2, "--units", UNITS, "--input-size", 5)
    for command in (("cudnn-to-keras", "--verify", "weights"), ("inspect",)):
        asked = cli(*command, unknown_sizes)
        assert "give --layers and --units" in "".join((asked.out + asked.err).split("\n")), command
    assert cli("cudnn-to-keras", unknown_sizes).code == 4
    (op,) = json.loads(cli("inspect", unknown_sizes, *sizes, "--json").out)["layers"]
    assert (op["layers"], op["units"], op["input_dim"]) == (2, UNITS, 5)
    done = cli("cudnn-to-keras", unknown_sizes, *sizes, "-o", "new.pb", "--json")
    assert (done.code, json.loads(done.out)["verdict"]) == (0, "equivalent")
    compared = cli("verify", unknown_sizes, "new.pb", *sizes)
    assert compared.code == 0


def test_options_that_a_graph_has_no_use_for_are_named(cli):
    given = ("--cell", "gru", "--forget-bias", "0.5")
    for command in ("cudnn-to-keras", "inspect"):
        check = ("--check",) if command == "cudnn-to-keras" else ()
        done = cli(command, CASES["frozen graph"], *given, *check, "--json")
        (warning,) = json.loads(done.out)["warnings"]
        assert warning.startswith("--cell, --forget-bias: without effect on a graph")

"""Convolutions of `channels_first`, which Keras 3 can't compute on every machine."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from rnnconvert.keras_models.config import port

keras = pytest.importorskip("keras", reason="Keras 3 is not installed")

FIRST = {"data_format": "channels_first"}


def conv(class_name: str, name: str = "conv", **config) -> dict:
    return {"class_name": class_name, "config": {"name": name, "kernel_size": [2, 3],
            "filters": 2, **FIRST, **config}}  # fmt: skip


def within(entry: dict, wrapper: str = "TimeDistributed") -> dict:
    name = f"in_{wrapper.lower()}"
    return {"class_name": wrapper, "config": {"name": name, "layer": entry}}


def sequential(*layers: dict) -> dict:
    return {"class_name": "Sequential", "config": {"name": "m", "layers": list(layers)}}


def dims(entry: dict) -> list[int]:
    while entry["class_name"] == "TimeDistributed":
        entry = entry["config"]["layer"]
    return entry["config"]["dims"]


@pytest.mark.parametrize(
    ("layer", "before", "after"),
    [
        (conv("Conv1D"), [2, 1], [2, 1]),
        (conv("SeparableConv2D"), [2, 3, 1], [3, 1, 2]),
        (conv("Conv3DTranspose"), [2, 3, 4, 1], [4, 1, 2, 3]),
        (within(conv("Conv2D")), [2, 3, 1], [3, 1, 2]),
        (within(within(conv("Conv2D"))), [2, 3, 1], [3, 1, 2]),
        (conv("ConvLSTM2D"), [1, 3, 4, 2], [3, 1, 2]),
        (conv("ConvLSTM2D", return_sequences=True), [1, 3, 4, 2], [1, 4, 2, 3]),
    ],
    ids=["1D", "2D", "3D", "in steps", "in steps of steps", "recurrent", "recurrent steps"],
)
def test_a_permute_stands_on_each_side(layer, before, after):
    ported = port(sequential(layer), None, "2.2.4")
    assert not ported.problems
    first, middle, last = ported.model["config"]["layers"]
    assert (dims(first), dims(last)) == (before, after)
    assert "channels_first" not in str(middle)
    assert (
        first["class_name"]
        == last["class_name"]
        == ("TimeDistributed" if layer["class_name"] == "TimeDistributed" else "Permute")
    )
    kept = port(sequential(layer), None, "2.2.4", "keras2").model
    assert [entry["class_name"] for entry in kept["config"]["layers"]] == [layer["class_name"]]


@pytest.mark.parametrize(
    ("layer", "reason"),
    [
        (conv("Conv2D", activation="softmax"), "activation along an axis"),
        (within(conv("ConvLSTM2D"), "Bidirectional"), "in a Bidirectional"),
        (conv("ConvLSTM2D", return_state=True), "return_state=True"),
    ],
)
def test_what_is_not_the_same_is_refused(layer, reason):
    (problem,) = port(sequential(layer), None, "2.2.4").problems
    assert reason in problem
    assert not port(sequential(layer), None, "2.2.4", "keras2").problems


def test_readers_and_outputs_read_behind_the_permute():
    def entry(name, class_name, *inbound, **config):
        return {"class_name": class_name, "name": name, "inbound_nodes": [[[one, 0, 0, {}]] for one
                in inbound], "config": {"name": name, **config}}  # fmt: skip

    layers = [
        entry("x", "InputLayer", batch_input_shape=[None, 2, 6, 5], dtype="float32"),
        entry("z", "InputLayer", batch_input_shape=[None, 2, 6, 5], dtype="float32"),
        entry("c", "Conv2D", "x", "z", kernel_size=[2, 3], filters=3, **FIRST),
        entry("flat", "Flatten", "c"),
    ]
    config = {"name": "m", "layers": layers, "input_layers": [["x", 0, 0], ["z", 0, 0]],
              "output_layers": [["flat", 0, 0], ["c", 1, 0]]}  # fmt: skip
    ported = port({"class_name": "Model", "config": config}, None, "2.2.4")
    model = keras.models.Model.from_config(ported.model["config"])
    assert [tuple(one.shape) for one in model.outputs] == [(None, 45), (None, 3, 5, 3)]


WITHOUT_ONEDNN = """
import sys
sys.path[:0] = sys.argv[1:3]
import rnnconvert
from test_theano import FOLDER, differences
rnnconvert.convert(FOLDER / "convolutions/model.h5", sys.argv[3] + "/out.h5", verify="weights")
assert max(differences(sys.argv[3] + "/out.h5", "convolutions")) < 1e-5
"""


@pytest.mark.corpus
def test_it_runs_where_tensorflow_has_no_channels_first(tmp_path):
    """Without oneDNN TensorFlow refuses such convolutions on a CPU."""
    pytest.importorskip("tensorflow", reason="TensorFlow is not installed")
    folder = os.path.dirname(os.path.dirname(__file__))
    root = os.path.dirname(os.path.dirname(folder))
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_ONEDNN, folder, root, str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "TF_ENABLE_ONEDNN_OPTS": "0", "KERAS_BACKEND": "tensorflow"},
    )
    assert done.returncode == 0, done.stderr[-2000:]

"""Exported to ONNX: native operators, and the numbers that the old libraries gave."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from export_models import operators, predict, run_onnx, saved, sequential
from models import NEWEST, OWN, Model, swept, worst_difference

import rnnconvert

pytestmark = pytest.mark.slow
for name in ("tensorflow", "keras", "onnx", "tf2onnx", "onnxruntime"):
    pytest.importorskip(name, reason=f"{name} is not installed")
import keras
import onnx
from keras import layers

from rnnconvert.exports import sources
from rnnconvert.keras_models.plan import Site

ROOT = Path(__file__).parents[2]
GRAPHS = ROOT / "fixtures/savedmodels"
LOOPS = {"plain_convlstm"}
"""ONNX has no convolutional LSTM."""
REFUSED = {"double", "plain_lam"}
NATIVE = {
    "bi": {"LSTM": 1, "GRU": 1},
    "embed_bi": {"LSTM": 1, "GRU": 1},
    "go_backwards": {"LSTM": 1, "GRU": 1},
    "half": {"LSTM": 1, "GRU": 1},
    "plain_gru_before": {"GRU": 2},
    "plain_masked": {"LSTM": 2},
    "plain_rnn_cells": {"LSTM": 2, "GRU": 2, "RNN": 1},
    "plain_td": {"LSTM": 1},
    "return_state": {"LSTM": 1, "GRU": 1},
    "siamese": {"GRU": 2},
}
"""Cases of the default suite, and their recurrent operators."""
CASES = [m for m in NEWEST if m.path.parent.name not in REFUSED]
QUICK = [model for model in CASES if model.path.parent.name in NATIVE]


@pytest.mark.parametrize("model", swept(CASES, QUICK), ids=lambda model: model.name)
@pytest.mark.sampled(6)
@pytest.mark.thinned(3)
def test_what_the_old_library_predicted(model: Model, tmp_path):
    path = tmp_path / "model.onnx"
    report = rnnconvert.export(model.path, path)
    assert report.verdict == "equivalent"
    assert report.proved == "model"
    found = operators(path)
    name = model.path.parent.name
    assert {kind: n for kind, n in found.items() if kind in ("LSTM", "GRU", "RNN")} == NATIVE.get(
        name, {kind: n for kind, n in found.items() if kind in ("LSTM", "GRU", "RNN")}
    )
    if name not in LOOPS:
        assert not {"Loop", "If", "Scan"} & set(found)
        assert not report.exported[0].loops
    if not report.exported[0].inputs[len(model.inputs()) :]:  # without states of its own
        assert worst_difference(run_onnx(path, model.inputs()), model.outputs()) <= model.tolerance


def test_states_of_a_stateful_model_are_inputs_and_outputs(tmp_path):
    [model] = [m for m in OWN if m.name == "k224-stateful"]
    path = tmp_path / "model.onnx"
    report = rnnconvert.export(model.path, path)
    [written] = report.exported
    states = written.inputs[1:]
    assert len(states) == 3  # h and c of the LSTM, h of the GRU
    assert written.outputs[1:] == tuple(f"{name}_out" for name in states)
    [x], [y] = model.inputs(), model.outputs()
    shapes = [[d.dim_value for d in v.type.tensor_type.shape.dim]
              for v in onnx.load(str(path)).graph.input]  # fmt: skip
    given = [np.zeros((len(x), shape[-1]), np.float32) for shape in shapes[1:]]
    first = run_onnx(path, [x, *given])
    assert np.abs(first[0] - y).max() <= 1e-5
    second = run_onnx(path, [x, *first[1:]])
    assert np.abs(second[0] - y).max() > 1e-3  # it goes on where it stopped
    level = report.model_level[0]
    assert "3 batches in a row" in level.detail


@pytest.mark.parametrize(
    ("place", "native"),
    [
        ("tf115/contrib_gru_bi2", {"GRU": 2}),
        ("tf15/contrib_lstm", {"LSTM": 1}),
        ("tf115/contrib_relu_bi", {"RNN": 1}),
        ("tf112/contrib_tanh2", {"RNN": 2}),
        ("tf115/frozen_contrib_gru2", {"GRU": 2}),
        ("tf215/ops_v3", {"LSTM": 2}),
        ("tf23/ops_v1", {"GRU": 2}),
    ],
)
@pytest.mark.sampled(4)
def test_graphs_by_torch(place, native, tmp_path):
    """cuDNN ops of graphs become operators; torch computed what is expected of them."""
    folder = GRAPHS / place
    source = folder / ("frozen.pb" if "frozen" in place else "model")
    path = tmp_path / "model.onnx"
    report = rnnconvert.export(source, path)
    assert report.verdict == "equivalent"
    found = operators(path)
    assert {kind: n for kind, n in found.items() if kind in ("LSTM", "GRU", "RNN")} == native
    assert "Loop" not in found
    with np.load(folder / "data.npz") as data:
        meta = json.loads(str(data["meta"]))
        given = {name: data[f"in/{name}"] for name in report.exported[0].inputs
                 if f"in/{name}" in data}  # fmt: skip
        if "frozen" in place:
            tensors = {tensor.split(":")[0]: name for name, tensor in meta["inputs"].items()}
            given = {name: data[f"in/{tensors[name]}"] for name in report.exported[0].inputs}
        outputs = run_onnx(path, [given[name] for name in report.exported[0].inputs])
        for name, found_value in zip(report.exported[0].outputs, outputs, strict=True):
            key = name
            if "frozen" in place:
                by_tensor = {t.replace(":", "_"): n for n, t in meta["outputs"].items()}
                if name not in by_tensor:
                    continue
                key = by_tensor[name]
            np.testing.assert_allclose(found_value, data[f"out/{key}"], atol=1e-5, rtol=0)


# --- what Keras' layers can be --------------------------------------------------------------

ACTIVATIONS = ("linear", "tanh", "sigmoid", "relu", "hard_sigmoid", "elu", "leaky_relu",
               "softplus", "softsign")  # fmt: skip


@pytest.mark.parametrize(
    "layer",
    [
        *(pytest.param(lambda a=a: layers.LSTM(4, activation=a), id=f"lstm-{a}")
          for a in ACTIVATIONS),
        *(pytest.param(lambda a=a: layers.GRU(4, recurrent_activation=a), id=f"gru-{a}")
          for a in ("hard_sigmoid", "relu")),
        pytest.param(lambda: layers.GRU(4, use_bias=False, reset_after=False), id="gru-no-bias"),
        pytest.param(lambda: layers.LSTM(4, use_bias=False, unroll=True), id="lstm-no-bias"),
        pytest.param(lambda: layers.SimpleRNN(4, go_backwards=True, return_sequences=True,
                                              activation="relu"), id="rnn-backwards"),
        pytest.param(lambda: layers.GRU(4, dropout=0.3, recurrent_dropout=0.2), id="dropout"),
        pytest.param(lambda: layers.Bidirectional(layers.LSTM(4, return_sequences=True),
                     backward_layer=layers.LSTM(3, return_sequences=True, go_backwards=True)),
                     id="two-widths"),
        pytest.param(lambda: layers.Bidirectional(layers.GRU(4, recurrent_activation="relu"),
                                                  merge_mode="mul"), id="bi-mul"),
        pytest.param(lambda: layers.RNN([layers.LSTMCell(4), layers.GRUCell(3)],
                                        go_backwards=True), id="stacked-backwards"),
    ],
)  # fmt: skip
@pytest.mark.sampled(6)
def test_every_kind_of_layer(layer, tmp_path):
    """The layer in onnxruntime, and as Keras itself runs it."""
    model = sequential(layer(), shape=(6, 5))
    source = saved(model, tmp_path / "model.keras")
    path = tmp_path / "model.onnx"
    report = rnnconvert.export(source, path, verify="none")
    assert report.verdict == "unverified"
    assert not set(operators(path)) & {"Loop", "Scan"}
    x = np.random.default_rng(1).normal(0.0, 1.0, (3, 6, 5)).astype("float32")
    [found], [expected] = run_onnx(path, [x]), predict(model, [x])
    # A gate of relu has no bound: what is left of rounding depends on the processor.
    np.testing.assert_allclose(found, expected, atol=1e-5 * max(1.0, np.abs(expected).max()))
    assert report.exported[0].native >= 1


MASKS = [
    (kind, sequences, zeros)
    for kind in ("LSTM", "GRU", "SimpleRNN", "backwards", "bidirectional")
    for sequences in (False, True)
    for zeros in (False, True)
]
FEW = [("LSTM", True, True), ("GRU", False, False), ("backwards", True, False),
       ("bidirectional", True, False)]  # fmt: skip


@pytest.mark.parametrize("case", swept(MASKS, FEW), ids=str)
@pytest.mark.sampled(2)
@pytest.mark.thinned(2)
def test_every_mask(case, tmp_path):
    """Padding on the right, on the left, holes, and a sequence of nothing but padding."""
    kind, sequences, zeros = case
    options = {"return_sequences": sequences, "return_state": kind in ("LSTM", "GRU"),
               "zero_output_for_mask": zeros}  # fmt: skip
    if kind == "bidirectional":
        layer = layers.Bidirectional(layers.GRU(4, **options))
    elif kind == "backwards":
        layer = layers.LSTM(4, go_backwards=True, **options)
    else:
        layer = getattr(layers, kind)(4, **options)
    x = keras.Input((None, 5))
    model = keras.Model(x, layer(layers.Masking(9.0)(x)))
    path = tmp_path / "model.onnx"
    rnnconvert.export(saved(model, tmp_path / "model.keras"), path, verify="none")
    assert not set(operators(path)) & {"Loop", "Scan"}
    values = np.random.default_rng(2).normal(0.0, 1.0, (6, 7, 5)).astype("float32")
    values[1, 4:] = values[2, :3] = values[3, 2:4] = values[4, ::2] = values[5] = 9.0
    for found, expected in zip(run_onnx(path, [values]), predict(model, [values]), strict=True):
        np.testing.assert_allclose(found, expected, atol=1e-6)


@pytest.mark.corpus
def test_an_activation_that_onnx_has_not_is_a_loop_and_said_so(tmp_path):
    model = sequential(layers.LSTM(4, activation="silu"), layers.Dense(2))
    path = tmp_path / "model.onnx"
    report = rnnconvert.export(saved(model, tmp_path / "model.keras"), path)
    [reason] = report.exported[0].loops
    assert "activation silu" in reason
    assert report.exported[0].operators["Loop"] == 1
    assert report.exported[0].native == 0


def test_initial_states_that_the_model_computes(tmp_path):
    x, z = keras.Input((None, 5)), keras.Input((3,))
    h, c = layers.Dense(4)(z), layers.Dense(4)(z)
    y = layers.LSTM(4)(x, initial_state=[h, c])
    model = keras.Model([x, z], y)
    path = tmp_path / "model.onnx"
    rnnconvert.export(saved(model, tmp_path / "model.keras"), path)
    generator = np.random.default_rng(1)
    given = [
        generator.normal(size=(2, 6, 5)).astype("f"),
        generator.normal(size=(2, 3)).astype("f"),
    ]
    np.testing.assert_allclose(run_onnx(path, given)[0], predict(model, given)[0], atol=1e-6)


def test_batch_and_time_are_open_versions_are_told_and_the_file_is_small(tmp_path):
    model = sequential(layers.GRU(64, return_sequences=True), layers.LSTM(32))
    path = tmp_path / "model.onnx"
    report = rnnconvert.export(saved(model, tmp_path / "model.keras"), path, opset=15)
    made = onnx.load(str(path))
    onnx.checker.check_model(made, full_check=True)
    assert report.exported[0].versions == {"opset": 15, "ir_version": made.ir_version}
    [given] = made.graph.input
    assert [d.dim_value for d in given.type.tensor_type.shape.dim] == [0, 0, 5]
    weights = sum(weight.nbytes for weight in model.get_weights())
    assert path.stat().st_size <= 1.05 * weights
    generator = np.random.default_rng(1)
    for batch, steps in ((1, 1), (4, 20)):
        x = generator.normal(size=(batch, steps, 5)).astype("f")
        np.testing.assert_allclose(run_onnx(path, [x])[0], predict(model, [x])[0], atol=1e-5)


@pytest.mark.corpus
def test_weights_of_a_layer_that_is_called_twice_are_stored_once(tmp_path):
    a, b, shared = keras.Input((None, 5)), keras.Input((None, 5)), layers.LSTM(48)
    model = keras.Model([a, b], layers.Subtract()([shared(a), shared(b)]))
    path = tmp_path / "model.onnx"
    rnnconvert.export(saved(model, tmp_path / "model.keras"), path)
    assert operators(path)["LSTM"] == 2
    assert path.stat().st_size <= 1.1 * sum(weight.nbytes for weight in model.get_weights())


def test_a_checkpoint_and_weights_alone(tmp_path):
    """A model for each stack or layer."""
    source = ROOT / "fixtures/checkpoints/tf115/cudnn_two_stacks"
    folder = tmp_path / "stacks"
    report = rnnconvert.export(source, folder, to="onnx")
    assert report.verdict == "equivalent"
    files = sorted(folder.glob("*.onnx"))
    assert len(files) == 2 == len(report.exported)
    assert all(set(operators(file)) & {"LSTM", "GRU"} for file in files)
    [model] = [m for m in OWN if m.name == "tf215-seq_gru"]
    weights = model.path.with_name("weights.h5")
    report = rnnconvert.export(weights, tmp_path / "layers", to="onnx")
    assert len(list((tmp_path / "layers").glob("*.onnx"))) == len(report.exported)
    assert "Loop" not in set().union(*(operators(f) for f in (tmp_path / "layers").glob("*.onnx")))


@pytest.mark.parametrize("name", ["", "model.ckpt", "model.ckpt.index"])
@pytest.mark.sampled(2)
def test_a_checkpoint_by_its_directory_prefix_or_index(name, tmp_path):
    folder = ROOT / "fixtures/checkpoints/tf115/cudnn_lstm"
    report = rnnconvert.export(folder / name, tmp_path / "model.onnx")
    assert report.proved == "model"
    assert report.input.path == str(folder / name)
    size = sum(file.stat().st_size for file in folder.glob("model.ckpt.*"))
    assert report.input.bytes == size


@pytest.mark.corpus
def test_both_directions_of_each_layer_of_a_weights_only_file(tmp_path):
    """A `.weights.h5` has the backward one first; the layers in a row give what torch gave."""
    source = ROOT / "fixtures/keras_zip/tf215/bi/new.weights.h5"
    report = rnnconvert.export(source, tmp_path, to="onnx")
    assert report.proved == "model"
    lstm, gru = (
        tmp_path / f"layers.{name}.forward_layer.onnx"
        for name in ("bidirectional", "bidirectional_1")
    )
    assert sorted(tmp_path.iterdir()) == sorted([lstm, gru])
    with np.load(source.with_name("data.npz")) as data:
        [joined] = run_onnx(lstm, [data["x0"]])
        [steps] = run_onnx(gru, [joined])
        forward, backward = steps[:, -1, :4], steps[:, 0, 4:]
        found = (forward + backward) @ data["w0012"] + data["w0013"]
        np.testing.assert_allclose(found, data["y0"], atol=1e-5)


def test_directions_of_two_layers_are_not_mixed():
    """Of two layers alike, in the order of a `.weights.h5`; and by names that differ."""

    def site(path):
        direction = "backward" if "backward_" in path else "forward"
        return Site(path, "lstm", "keras", "LSTM", 4, 3, direction, (), None, None, {})

    def paired(*paths):
        found = sources._by_layer([site(path) for path in paths])
        return [(one.path, other and other.path) for one, other in found]

    one, two = "layers/bidirectional", "layers/bidirectional_1"
    orders = [f"{one}/backward_layer", f"{one}/forward_layer", f"{two}/backward_layer",
              f"{two}/forward_layer"]  # fmt: skip
    expected = [(f"{owner}/forward_layer", f"{owner}/backward_layer") for owner in (one, two)]
    assert paired(*orders) == expected
    assert paired("b/forward_lstm", "b/backward_lstm_1") == [
        ("b/forward_lstm", "b/backward_lstm_1")
    ]
    assert paired("lstm", "backward_lstm") == [("lstm", None), ("backward_lstm", None)]
    assert paired("m/lstm", "m/gru") == [("m/lstm", None), ("m/gru", None)]

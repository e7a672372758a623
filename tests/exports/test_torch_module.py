"""Export to torch: every layer's numbers, the names of the state_dict, and what is refused."""

from __future__ import annotations

import ast
import subprocess
import sys

import numpy as np
import pytest
from written_models import (
    FEATURES,
    MASK_VALUE,
    STEPS,
    TOLERANCE,
    assert_right,
    filled,
    largest_difference,
    of_sequences,
    predicted,
    sequences,
    with_holes,
    written,
)

import rnnconvert
from rnnconvert.errors import DifferenceError, NotConvertibleError, UsageError

pytestmark = pytest.mark.slow
keras = pytest.importorskip("keras", reason="Keras 3 is not installed")
torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("safetensors", reason="safetensors is not installed")

from rnnconvert.exports import torch_module

layers = keras.layers


def assert_same(model, arrays, path, **options):
    done, run = written(torch_module, filled(model), path, **options)
    expected = predicted(model, arrays)
    scale = max(1.0, *(float(np.abs(values).max()) for values in expected))
    assert largest_difference(expected, run(arrays)) < TOLERANCE * scale
    return done


# --- recurrent layers -----------------------------------------------------------------------

RECURRENT = {
    "lstm": lambda **more: layers.LSTM(4, **more),
    "lstm_no_bias": lambda **more: layers.LSTM(4, use_bias=False, **more),
    "lstm_hard": lambda **more: layers.LSTM(4, recurrent_activation="hard_sigmoid", **more),
    "lstm_relu": lambda **more: layers.LSTM(4, activation="relu", **more),
    "gru": lambda **more: layers.GRU(4, **more),
    "gru_no_bias": lambda **more: layers.GRU(4, use_bias=False, **more),
    "gru_hard": lambda **more: layers.GRU(4, recurrent_activation="hard_sigmoid", **more),
    "gru_before": lambda **more: layers.GRU(4, reset_after=False, **more),
    "gru_before_no_bias": lambda **more: layers.GRU(4, reset_after=False, use_bias=False, **more),
    "rnn": lambda **more: layers.SimpleRNN(4, **more),
    "rnn_relu": lambda **more: layers.SimpleRNN(4, activation="relu", **more),
    "rnn_sigmoid": lambda **more: layers.SimpleRNN(4, activation="sigmoid", **more),
    "cell": lambda **more: layers.RNN(layers.GRUCell(4), **more),
    "stacked": lambda **more: layers.RNN([layers.LSTMCell(4), layers.GRUCell(3)], **more),
}
NATIVE = {"lstm": 1, "lstm_no_bias": 1, "gru": 1, "gru_no_bias": 1, "rnn": 1, "rnn_relu": 1,
          "cell": 1, "stacked": 2}  # fmt: skip


@pytest.mark.parametrize("name", RECURRENT)
@pytest.mark.sampled(8)
def test_recurrent_layers(name, tmp_path):
    """Masked and not, forwards and backwards, with states in and out, in one model."""
    make = RECURRENT[name]
    x, masked = keras.Input((None, FEATURES)), keras.Input((STEPS, FEATURES))
    behind = layers.Masking(MASK_VALUE)(masked)
    outputs = []
    for place in (x, behind):
        sequence, *states = make(return_sequences=True, return_state=True)(place)
        again = make(go_backwards=True, return_sequences=True, return_state=True)
        outputs += [sequence, *states, *again(place, initial_state=states)]
        outputs.append(make()(place))
        outputs.append(make(return_sequences=True, zero_output_for_mask=True)(place))
    model = filled(keras.Model([x, masked], outputs))
    done, run = written(torch_module, model, tmp_path / "model.safetensors")
    arrays = [sequences(4, 7), with_holes(sequences(4, seed=5))]
    assert_right(run, model, arrays)
    assert done.native == 8 * NATIVE.get(name, 0)
    assert len(done.loops) == (0 if name in NATIVE else 8)
    assert len(done.notes) == len(done.loops)


@pytest.mark.parametrize("merge", ["concat", "sum", "ave", "mul", None])
@pytest.mark.parametrize("name", ["lstm", "gru", "rnn", "gru_before"])
@pytest.mark.sampled(12)
@pytest.mark.thinned(2)
def test_bidirectional(name, merge, tmp_path):
    make = RECURRENT[name]
    x, masked = keras.Input((None, FEATURES)), keras.Input((STEPS, FEATURES))
    behind = layers.Masking(MASK_VALUE)(masked)
    outputs = []
    for place in (x, behind):
        full = layers.Bidirectional(make(return_sequences=True, return_state=True),
                                    merge_mode=merge)  # fmt: skip
        found = full(place)
        states = found[-(4 if name == "lstm" else 2) :]
        outputs += found
        again = layers.Bidirectional(make(return_sequences=True), merge_mode=merge)
        outputs += keras.tree.flatten(again(place, initial_state=list(states)))
        outputs += keras.tree.flatten(layers.Bidirectional(make(), merge_mode=merge)(place))
    model = filled(keras.Model([x, masked], outputs))
    done, run = written(torch_module, model, tmp_path / "model.safetensors")
    arrays = [sequences(4, 7), with_holes(sequences(4, seed=5))]
    assert_right(run, model, arrays)
    assert done.native == (0 if name == "gru_before" else 6)


def test_two_different_directions(tmp_path):
    both = layers.Bidirectional(
        layers.LSTM(4, return_sequences=True),
        backward_layer=layers.LSTM(3, return_sequences=True, go_backwards=True),
    )
    turned = layers.Bidirectional(
        layers.GRU(4, return_sequences=True, go_backwards=True),
        backward_layer=layers.GRU(4, return_sequences=True),
    )
    x = keras.Input((STEPS, FEATURES))
    model = keras.Model(x, [both(x), turned(x)])
    done = assert_same(model, [sequences(3)], tmp_path / "model.safetensors")
    assert done.native == 4


def test_names_are_those_of_torch(tmp_path):
    """The tensors fit torch's own modules by name, and these give what Keras gives."""
    from safetensors.torch import load_file

    bi = layers.Bidirectional(layers.LSTM(4, return_sequences=True))
    model = filled(of_sequences(bi, layers.GRU(3, return_sequences=True)))
    path = tmp_path / "model.safetensors"
    written(torch_module, model, path)
    tensors = load_file(path)
    lstm, gru = torch.nn.LSTM(FEATURES, 4, batch_first=True, bidirectional=True), torch.nn.GRU(8, 3)
    for module, name in ((lstm, "lstm_1."), (gru, "gru_1.")):
        state = {k.removeprefix(name): v for k, v in tensors.items() if k.startswith(name)}
        module.load_state_dict(state, strict=True)
    x = sequences(3)
    with torch.no_grad():
        between = lstm(torch.from_numpy(x))[0]
        found = gru(between.transpose(0, 1))[0].transpose(0, 1)
    assert largest_difference(predicted(model, [x]), [found.numpy()]) < TOLERANCE
    assert len(tensors) == 8 + 4


# --- other layers ---------------------------------------------------------------------------

IMAGES = (9, 8, 3)
OTHERS = {
    "conv1d_causal": [layers.Conv1D(4, 3, padding="causal", dilation_rate=2, activation="relu")],
    "conv1d_same": [layers.Conv1D(4, 4, padding="same", strides=2)],
    "conv1d_groups": [layers.Conv1D(6, 2), layers.Conv1D(4, 2, groups=2, use_bias=False)],
    "depthwise1d": [layers.DepthwiseConv1D(3, depth_multiplier=2, padding="same")],
    "separable1d": [layers.SeparableConv1D(4, 3, depth_multiplier=2, activation="tanh")],
    "pools": [layers.MaxPooling1D(2, padding="same"), layers.AveragePooling1D(2, padding="same")],
    "pools_valid": [layers.MaxPooling1D(2, strides=1), layers.AveragePooling1D(3)],
    "global_max": [layers.GlobalMaxPooling1D()],
    "global_mean": [layers.GlobalAveragePooling1D()],
    "batch_norm": [layers.BatchNormalization(), layers.Flatten(), layers.BatchNormalization()],
    "batch_norm_axis": [layers.BatchNormalization(axis=1, scale=False, center=False)],
    "layer_norm": [layers.LayerNormalization(), layers.LayerNormalization(axis=[1, 2])],
    "layer_norm_bare": [layers.LayerNormalization(scale=False, center=False)],
    "layer_norm_scale": [layers.LayerNormalization(center=False, epsilon=0.1)],
    "unit_norm": [layers.UnitNormalization()],
    "shapes": [layers.Reshape((5, -1)), layers.Permute((2, 1)), layers.Flatten(),
               layers.RepeatVector(3)],
    "padding": [layers.ZeroPadding1D((1, 2)), layers.Cropping1D((0, 1)), layers.UpSampling1D(2)],
    "relus": [layers.ReLU(max_value=1.5, negative_slope=0.1, threshold=0.2),
              layers.LeakyReLU(0.2), layers.ELU(0.7)],
    "prelu": [layers.PReLU(), layers.PReLU(shared_axes=[1])],
    "softmax": [layers.Softmax(axis=1), layers.Activation("softmax")],
    "dense": [layers.Dense(4, activation="gelu"), layers.Dense(3, use_bias=False)],
    "dropped": [layers.Dropout(0.5), layers.SpatialDropout1D(0.5), layers.GaussianNoise(1.0)],
    "time": [layers.TimeDistributed(layers.Dense(4, activation="relu")),
             layers.TimeDistributed(layers.BatchNormalization())],
    "rescaled": [layers.Rescaling(0.5, 2.0)],
}  # fmt: skip
ON_IMAGES = {
    "conv2d": [layers.Conv2D(4, (3, 2), strides=(2, 1), padding="same"), layers.Conv2D(2, 2)],
    "separable2d": [layers.SeparableConv2D(4, 3, padding="same"), layers.DepthwiseConv2D(2)],
    "pools2d": [layers.MaxPooling2D(2, padding="same"), layers.AveragePooling2D((2, 3), 1)],
    "borders2d": [layers.ZeroPadding2D(((1, 0), (2, 1))), layers.Cropping2D(1),
                  layers.UpSampling2D((2, 3))],
    "global2d": [layers.GlobalAveragePooling2D(keepdims=True), layers.Flatten()],
    "steps_of_images": [layers.TimeDistributed(layers.Conv1D(4, 3)),
                        layers.TimeDistributed(layers.LSTM(4)), layers.GRU(2)],
}  # fmt: skip


@pytest.mark.parametrize("name", OTHERS)
def test_layers_of_sequences(name, tmp_path):
    model = of_sequences(*OTHERS[name], steps=10)
    assert_same(model, [sequences(3, 10)], tmp_path / "model.safetensors")


@pytest.mark.parametrize("name", ON_IMAGES)
def test_layers_of_images(name, tmp_path):
    x = y = keras.Input(IMAGES)
    for layer in ON_IMAGES[name]:
        y = layer(y)
    images = np.random.default_rng(0).normal(size=(3, *IMAGES)).astype(np.float32)
    assert_same(keras.Model(x, y), [images], tmp_path / "model.safetensors")


@pytest.mark.parametrize(
    "name",
    "linear relu relu6 tanh sigmoid hard_sigmoid softmax softplus softsign elu selu silu gelu mish "
    "exponential leaky_relu log_softmax hard_silu hard_tanh log_sigmoid".split(),
)
def test_activations(name, tmp_path):
    x = keras.Input((STEPS, FEATURES))
    model = keras.Model(x, layers.Activation(name)(x))
    assert_same(model, [4 * sequences(3)], tmp_path / "model.safetensors")


def test_merging(tmp_path):
    one, two = keras.Input((STEPS, FEATURES)), keras.Input((STEPS, FEATURES))
    both = [one, two]
    outputs = [
        layers.Add()(both), layers.Subtract()(both), layers.Multiply()(both),
        layers.Average()(both), layers.Maximum()(both), layers.Minimum()(both),
        layers.Concatenate()(both), layers.Concatenate(axis=1)(both),
        layers.Dot(axes=2)(both), layers.Dot(axes=(1, 1), normalize=True)(both),
        layers.Attention()(both), layers.Attention(score_mode="concat", use_scale=True)(both),
        layers.AdditiveAttention()([one, two, one]),
    ]  # fmt: skip
    model = keras.Model(both, outputs)
    arrays = [sequences(3), sequences(3, seed=1)]
    assert_same(model, arrays, tmp_path / "model.safetensors")


def test_masks_through_other_layers(tmp_path):
    """Masks of an embedding and of Masking, handed on, joined and used."""
    words, x = keras.Input((STEPS,), dtype="int32"), keras.Input((STEPS, FEATURES))
    embedded = layers.Embedding(11, FEATURES, mask_zero=True)(words)
    masked = layers.Masking(MASK_VALUE)(x)
    plain = layers.Dense(FEATURES)(layers.Reshape((STEPS, FEATURES))(x))
    outputs = []
    for joined in (
        layers.Add()([embedded, masked]), layers.Add()([masked, plain]),
        layers.Concatenate()([embedded, masked]), layers.Concatenate()([masked, plain]),
        layers.Concatenate(axis=1)([masked, plain]),
        layers.Attention()([embedded, masked]), layers.Attention()([plain, masked]),
        layers.TimeDistributed(layers.Dense(4))(layers.Dropout(0.3)(embedded)),
    ):  # fmt: skip
        outputs.append(layers.LSTM(3)(joined))
    outputs.append(layers.GlobalAveragePooling1D()(layers.Add()([embedded, masked])))
    given = keras.ops.not_equal(words, 2)
    outputs.append(layers.GRU(3)(plain, mask=given))
    outputs.append(layers.GlobalAveragePooling1D()(masked, mask=given))
    outputs.append(layers.Attention()([plain, plain], mask=[given, None]))
    model = filled(keras.Model([words, x], outputs))
    path = tmp_path / "model.safetensors"
    _, run = written(torch_module, model, path)
    ids = np.random.default_rng(2).integers(0, 4, (3, STEPS)).astype(np.int32)
    ids[:, 2] = 1
    arrays = [ids, with_holes(sequences(3))]
    assert_right(run, model, arrays)


def test_nested_and_shared_models(tmp_path):
    inner = keras.Sequential([keras.Input((STEPS, FEATURES)), layers.LSTM(4), layers.Dense(3)])
    y = keras.Input((STEPS, FEATURES))
    middle = keras.Model(y, [inner(y), layers.GRU(2)(y)])
    one, two = keras.Input((STEPS, FEATURES)), keras.Input((3, STEPS, FEATURES))
    first, second = middle(one)
    again, _ = middle(layers.Dense(FEATURES)(one))
    outputs = [layers.Concatenate()([first, second, again]),
               layers.TimeDistributed(inner)(two)]  # fmt: skip
    model = keras.Model([one, two], outputs)
    arrays = [sequences(4), np.stack([sequences(3, seed=s) for s in range(4)])]
    done = assert_same(model, arrays, tmp_path / "model.safetensors")
    assert done.native == 2


@pytest.mark.parametrize("dtype", ["float16", "float64"])
def test_dtypes(dtype, tmp_path):
    x = keras.Input((STEPS, FEATURES), dtype=dtype)
    stack = layers.Dense(3, dtype=dtype)(layers.LSTM(4, dtype=dtype)(x))
    model = filled(keras.Model(x, stack))
    _, run = written(torch_module, model, tmp_path / "model.safetensors")
    x = sequences(3).astype(dtype)
    [found] = run([x])
    assert found.dtype == dtype
    tolerance = {"float16": 5e-3, "float64": 1e-12}[dtype]
    assert largest_difference(predicted(model, [x]), [found]) < tolerance


# --- the written program --------------------------------------------------------------------

PROGRAM = """
import sys, json, torch
sys.path.insert(0, sys.argv[1])
from model import load
model = load(sys.argv[1] + "/model.safetensors")
y = model(torch.ones(2, 6, 5))
loaded = {name.partition(".")[0] for name in sys.modules}
print(json.dumps([y.tolist(), sorted(loaded & {"keras", "tensorflow", "rnnconvert"})]))
"""


def test_program_needs_torch_and_safetensors_only(tmp_path):
    import json

    model = filled(of_sequences(layers.GRU(4, reset_after=False), layers.Dense(3)))
    written(torch_module, model, tmp_path / "model.safetensors")
    command = [sys.executable, "-c", PROGRAM, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path)
    found, loaded = json.loads(done.stdout)
    assert loaded == []
    expected = predicted(model, [np.ones((2, STEPS, FEATURES), np.float32)])
    assert largest_difference(expected, [np.array(found)]) < TOLERANCE


def test_same_bytes_twice(tmp_path):
    def files(folder):
        folder.mkdir()
        model = filled(of_sequences(
            layers.LSTM(4, name="a"), layers.Dense(3, name="b"), layers.BatchNormalization(name="c")
        ))  # fmt: skip
        written(torch_module, model, folder / "model.safetensors")
        return [path.read_bytes() for path in sorted(folder.iterdir())]

    first, second = files(tmp_path / "a"), files(tmp_path / "b")
    assert len(first) == 2
    assert first == second


HOSTILE = ('x"""\nimport os\nos.abort()\n"""', "a'); raise SystemExit #", "\u202eevil\u2028x", "\\")


def test_names_never_become_source(tmp_path):
    """Layers with hostile names: the same program as with plain names, but for comments."""

    def program(names, folder):
        folder.mkdir()
        x = keras.Input((STEPS, FEATURES), name=names[0])
        y = layers.LSTM(4, name=names[1])(x)
        y = layers.Dense(3, name=names[2])(y)
        model = filled(keras.Model(x, y, name=names[3]))
        _, run = written(torch_module, model, folder / "model.safetensors")
        assert run([sequences(2)])[0].shape == (2, 3)
        return (folder / "model.py").read_text()

    hostile = program(HOSTILE, tmp_path / "hostile")
    plain = program(("a", "b", "c", "d"), tmp_path / "plain")
    assert hostile.isascii()
    assert ast.dump(ast.parse(hostile)) == ast.dump(ast.parse(plain))


def test_a_file_that_would_hide_torch(tmp_path):
    done, run = written(
        torch_module, filled(of_sequences(layers.LSTM(4))), tmp_path / "torch.safetensors"
    )
    assert done.files == ("torch.safetensors", "torch_model.py")
    assert run([sequences(2)])[0].shape == (2, 4)


@pytest.mark.parametrize(
    ("target", "package", "extra"),
    [("torch", "safetensors", "torch"), ("tflite", "ai_edge_litert", "tflite")],
)
def test_a_missing_package(target, package, extra, monkeypatch):
    import importlib.util

    from rnnconvert.exports.targets import TARGETS

    real = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == package else real(name)
    )
    with pytest.raises(UsageError, match=rf"needs {package}: pip install 'rnnconvert\[{extra}\]'"):
        TARGETS[target].load()


@pytest.mark.corpus
def test_states_are_named_in_the_program(saved, tmp_path):
    report = rnnconvert.export(saved, tmp_path / "model.safetensors", stateful_step=False)
    assert report.exported[0].notes == ()
    assert "are states" not in (tmp_path / "model.py").read_text()
    x = keras.Input((STEPS, FEATURES))
    path = tmp_path / "forward.keras"
    filled(keras.Model(x, layers.LSTM(4)(x))).save(path)
    report = rnnconvert.export(path, tmp_path / "step.safetensors", stateful_step=True)
    assert report.model_level[0].status == "passed"
    assert "The last 2 inputs are states" in (tmp_path / "step.py").read_text()


# --- refused, and mutants -------------------------------------------------------------------


class Custom(keras.layers.Layer):
    def call(self, x):
        return x + 1


def test_all_that_has_no_torch_form_is_named(tmp_path):
    x = keras.Input((STEPS, FEATURES))
    y = layers.LSTM(4, return_sequences=True, activation="glu", name="odd")(x)
    y = Custom(name="mine")(y)
    y = layers.GroupNormalization(2, name="groups")(y)
    model = filled(keras.Model(x, keras.ops.erf(y)))
    with pytest.raises(NotConvertibleError) as error:
        written(torch_module, model, tmp_path / "model.safetensors")
    assert error.value.exit_code == 4
    for part in ("'odd' (activation 'glu')", "'mine' (Custom)", "'groups'", "(Erf, an"):
        assert part in error.value.message
    assert list(tmp_path.iterdir()) == []


MUTANTS = {
    "two gates": ("lstm_1.weight_hh_l0", lambda a: np.concatenate([a[4:8], a[:4], a[8:]])),
    "bias halves": ("gru_1.bias_ih_l0", lambda a: a[::-1].copy()),
    "direction": ("lstm_1.weight_ih_l0_reverse", lambda a: a[:, ::-1].copy()),
    "one value": ("gru_1.weight_hh_l0", lambda a: a + (np.arange(a.size) == 7).reshape(a.shape)),
    "dense": ("linear_1.weight", lambda a: a[::-1].copy()),
}


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    bi = layers.Bidirectional(layers.LSTM(4, return_sequences=True))
    model = filled(of_sequences(bi, layers.GRU(3), layers.Dense(2)))
    path = tmp_path_factory.mktemp("saved") / "model.keras"
    model.save(path)
    return path


def test_whole_command(saved, tmp_path):
    report = rnnconvert.export(saved, tmp_path / "model.safetensors")
    assert report.verdict == "equivalent"
    assert report.model_level[0].status == "passed"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model.py", "model.safetensors"]


@pytest.mark.parametrize("mutant", MUTANTS)
@pytest.mark.sampled(8)
def test_mutants_are_caught(mutant, saved, tmp_path, monkeypatch):
    from rnnconvert.exports.torch_module import writing

    name, change = MUTANTS[mutant]
    save = writing._save

    def changed(tensors, names, path):
        assert not np.array_equal(change(tensors[name]), tensors[name])
        values = np.asarray(change(tensors[name]), tensors[name].dtype)
        save({**tensors, name: values}, names, path)

    monkeypatch.setattr(writing, "_save", changed)
    with pytest.raises(DifferenceError) as error:
        rnnconvert.export(saved, tmp_path / "model.safetensors")
    assert error.value.exit_code == 1
    assert list(tmp_path.iterdir()) == []


def test_reset_after_mutant_is_caught(tmp_path, monkeypatch):
    """A GRU with the reset gate before the product, written as torch's own, which has it after."""
    from rnnconvert.exports.torch_module import recurrent

    path = tmp_path / "model.keras"
    filled(of_sequences(layers.GRU(4, reset_after=False))).save(path)
    real = recurrent._gru_form

    def wrong(emitter, layer, cell):
        form = real(emitter, layer, cell)
        return recurrent.CellForm("gru", recurrent._native("GRU", form.weights), form.weights, None)

    assert rnnconvert.export(path, tmp_path / "good.safetensors").verdict == "equivalent"
    monkeypatch.setattr(recurrent, "_gru_form", wrong)
    with pytest.raises(DifferenceError):
        rnnconvert.export(path, tmp_path / "bad.safetensors")
    assert not (tmp_path / "bad.safetensors").exists()

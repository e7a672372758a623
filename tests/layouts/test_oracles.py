"""The layouts against programs that don't know them: torch, Keras 2 and 3, and the ONNX equations.

Everything is random and rectangular: input_dim 5, units 4, unequal biases, random initial state.
"""

from __future__ import annotations

import numpy as np
import pytest
from equations import (
    GATES,
    Array,
    State,
    canonical_forward,
    onnx_forward,
    random_input,
    random_weights,
    read_as_cudnn,
)

from rnnconvert import layouts
from rnnconvert.layouts import RnnWeights

BATCH, TIME, INPUT_DIM, UNITS = 3, 7, 5, 4
SEEDS = (0, 1)
ALL_OF_CUDNN = ("lstm", "gru", "rnn_tanh", "rnn_relu")
KERAS_CUDNN = ("lstm", "gru")


@pytest.fixture(scope="module")
def torch():
    return pytest.importorskip("torch", reason="torch is the oracle")


@pytest.fixture(scope="module")
def tf_keras():
    return pytest.importorskip("tf_keras", reason="Keras 2 is the oracle")


@pytest.fixture(scope="module")
def hdf5_format(tf_keras):
    return pytest.importorskip(
        "tf_keras.src.saving.legacy.hdf5_format", reason="Keras 2 is the oracle"
    )


@pytest.fixture(scope="module")
def keras():
    module = pytest.importorskip("keras", reason="Keras 3 is the oracle")
    if int(module.__version__.split(".")[0]) < 3:
        pytest.skip("Keras 3 is the oracle; this is an older one")
    return module


def problem(cell: str, seed: int) -> tuple[RnnWeights, Array, State]:
    rng = np.random.default_rng(seed)
    weights = random_weights(rng, cell, INPUT_DIM, UNITS)
    return (weights, *random_input(rng, BATCH, TIME, INPUT_DIM, UNITS))


def cudnn_tensors(cell: str, seed: int) -> dict[str, Array]:
    """What a Keras 2 CuDNN layer stores, made without `layouts`: float32, any number anywhere."""
    rng = np.random.default_rng(seed)
    gates = len(GATES[cell])
    shapes = {
        "kernel": (INPUT_DIM, gates * UNITS),
        "recurrent_kernel": (UNITS, gates * UNITS),
        "bias": (2 * gates * UNITS,),
    }
    return {name: rng.normal(0.0, 0.7, s).astype("float32") for name, s in shapes.items()}


def assert_same(found: dict[str, Array], expected: dict[str, Array]) -> None:
    """Equal bit for bit."""
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array, err_msg=name, strict=True)


def run_torch(torch, cell: str, tensors: dict[str, Array], x: Array, state: State) -> Array:
    """All hidden states of a torch module with these weights."""
    classes = {"lstm": torch.nn.LSTM, "gru": torch.nn.GRU}
    options = {} if cell in classes else {"nonlinearity": cell.removeprefix("rnn_")}
    module = classes.get(cell, torch.nn.RNN)(
        x.shape[2], state[0].shape[1], batch_first=True, **options
    )
    module.to(torch.tensor(x).dtype)
    module.load_state_dict({f"{name}_l0": torch.tensor(a) for name, a in tensors.items()})
    h, c = (torch.tensor(part)[None] for part in state)
    with torch.no_grad():
        output, _ = module(torch.tensor(x), (h, c) if cell == "lstm" else h)
    return output.numpy()


def run_keras(
    layer, to_tensor, cell: str, tensors: dict[str, Array], x: Array, state: State
) -> Array:
    """All hidden states of a Keras layer (of Keras 2 or 3) with these weights."""
    layer.build(x.shape)
    layer.set_weights([tensors[name] for name in ("kernel", "recurrent_kernel", "bias")])
    initial = [to_tensor(part) for part in (state if cell == "lstm" else state[:1])]
    return np.asarray(layer(to_tensor(x), initial_state=initial))


# --- cuDNN's equations ----------------------------------------------------------------------


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("cell", ALL_OF_CUDNN)
def test_cudnn_matrices_are_the_canonical_ones(cell, seed):
    weights, _, _ = problem(cell, seed)
    tensors = layouts.pack(layouts.find("cudnn", cell), weights)
    for place, gate in enumerate(GATES[cell]):
        np.testing.assert_array_equal(tensors[f"W_{gate}"], weights.kernel[place])
        np.testing.assert_array_equal(tensors[f"R_{gate}"], weights.recurrent[place])
        np.testing.assert_array_equal(tensors[f"bW_{gate}"], weights.bias[0, place])
        np.testing.assert_array_equal(tensors[f"bR_{gate}"], weights.bias[1, place])


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("cell", KERAS_CUDNN)
def test_split_layout_is_what_cudnn_reads(cell, seed):
    """Against the flat buffer that a Keras CuDNN layer makes, cut as cuDNN cuts it."""
    tensors = cudnn_tensors(cell, seed)
    expected = read_as_cudnn(tensors, cell)
    found = layouts.unpack(layouts.find("keras-cudnn", cell), tensors)
    np.testing.assert_array_equal(found.kernel, expected.kernel, strict=True)
    np.testing.assert_array_equal(found.recurrent, expected.recurrent, strict=True)
    np.testing.assert_array_equal(found.bias, expected.bias, strict=True)


# --- torch ----------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("cell", ALL_OF_CUDNN)
def test_torch_computes_the_equations(torch, cell, seed):
    weights, x, state = problem(cell, seed)
    tensors = layouts.pack(layouts.find("torch", cell), weights)
    found = run_torch(torch, cell, tensors, x, state)
    expected = canonical_forward(weights, x, state)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)


# --- Keras 2 --------------------------------------------------------------------------------


def keras2_layer(tf_keras, cell: str):
    if cell == "lstm":
        return tf_keras.layers.LSTM(UNITS, return_sequences=True)
    return tf_keras.layers.GRU(UNITS, reset_after=True, return_sequences=True)


@pytest.mark.slow
@pytest.mark.parametrize("function", ["preprocess_weights_for_loading", "_convert_rnn_weights"])
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("cell", KERAS_CUDNN)
def test_keras_loads_cudnn_weights_as_we_convert_them(tf_keras, hdf5_format, cell, seed, function):
    tensors = cudnn_tensors(cell, seed)
    layer = keras2_layer(tf_keras, cell)
    loaded = getattr(hdf5_format, function)(layer, list(tensors.values()))
    found = layouts.convert(tensors, "keras-cudnn", "keras", cell)
    assert_same(found, dict(zip(tensors, loaded, strict=True)))


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("cell", "class_name"), [("lstm", "CuDNNLSTM"), ("gru", "CuDNNGRU")])
def test_keras_loads_plain_weights_into_cudnn_layers_as_we_do(hdf5_format, cell, class_name, seed):
    tensors = layouts.convert(cudnn_tensors(cell, seed), "keras-cudnn", "keras", cell)
    layer = type(class_name, (), {})()  # Keras looks at the name of the class only
    loaded = hdf5_format._convert_rnn_weights(layer, list(tensors.values()))
    found = layouts.convert(tensors, "keras", "keras-cudnn", cell)
    assert_same(found, dict(zip(tensors, loaded, strict=True)))


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("cell", KERAS_CUDNN)
def test_keras_and_torch_agree_on_cudnn_weights(tf_keras, torch, cell, seed):
    """Both from the same CuDNN tensors, each through its own layout, and cuDNN's reading."""
    tensors = cudnn_tensors(cell, seed)
    _, x, state = problem(cell, seed)
    x, state = x.astype("float32"), tuple(part.astype("float32") for part in state)

    to_keras = layouts.convert(tensors, "keras-cudnn", "keras", cell)
    layer = keras2_layer(tf_keras, cell)
    by_keras = run_keras(layer, tf_keras.backend.constant, cell, to_keras, x, state)
    to_torch = layouts.convert(tensors, "keras-cudnn", "torch", cell)
    by_torch = run_torch(torch, cell, to_torch, x, state)

    np.testing.assert_allclose(by_keras, by_torch, rtol=0, atol=1e-5)
    expected = canonical_forward(read_as_cudnn(tensors, cell), x, state)
    np.testing.assert_allclose(by_keras, expected, rtol=0, atol=1e-5)


# --- Keras 3 --------------------------------------------------------------------------------


def keras3_layer(keras, cell: str):
    options = {"return_sequences": True, "dtype": "float64"}
    if cell == "lstm":
        return keras.layers.LSTM(UNITS, **options)
    if cell in ("gru", "gru_reset_before"):
        return keras.layers.GRU(UNITS, reset_after=cell == "gru", **options)
    return keras.layers.SimpleRNN(UNITS, activation=cell.removeprefix("rnn_"), **options)


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("cell", GATES)
def test_keras_3_computes_the_equations(keras, cell, seed):
    weights, x, state = problem(cell, seed)
    tensors = layouts.pack(layouts.find("keras", cell), weights)
    layer = keras3_layer(keras, cell)
    found = run_keras(layer, keras.ops.convert_to_tensor, cell, tensors, x, state)
    expected = canonical_forward(weights, x, state)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)


# --- ONNX -----------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("cell", GATES)
def test_onnx_computes_the_equations(cell, seed):
    weights, x, state = problem(cell, seed)
    tensors = layouts.pack(layouts.find("onnx", cell), weights)
    found = onnx_forward(tensors, cell, x, state)
    expected = canonical_forward(weights, x, state)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)


def test_onnx_shapes_have_a_direction():
    weights, _, _ = problem("gru", seed=0)
    tensors = layouts.pack(layouts.find("onnx", "gru"), weights)
    shapes = {name: array.shape for name, array in tensors.items()}
    assert shapes == {"W": (1, 12, 5), "R": (1, 12, 4), "B": (1, 24)}


@pytest.mark.parametrize("cell", KERAS_CUDNN)
def test_cudnn_weights_reach_onnx(cell):
    tensors = cudnn_tensors(cell, seed=0)
    _, x, state = problem(cell, seed=0)
    found = onnx_forward(layouts.convert(tensors, "keras-cudnn", "onnx", cell), cell, x, state)
    expected = canonical_forward(read_as_cudnn(tensors, cell), x, state)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)

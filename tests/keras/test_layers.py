"""rnnconvert.keras' layers against torch's LSTM and GRU on the same stored weights."""

from __future__ import annotations

import numpy as np
import pytest

keras = pytest.importorskip("keras", reason="Keras 3 is not installed")
pytest.importorskip("keras.ops", reason="Keras 3 is not installed")
pytest.importorskip("torch", reason="torch, the reference of these tests, is not installed")

import cudnn_by_torch as oracle

from rnnconvert.keras import CuDNNGRU, CuDNNLSTM, custom_objects, hard_sigmoid_keras2

CELLS = {"lstm": CuDNNLSTM, "gru": CuDNNGRU}
STATES = {"lstm": 2, "gru": 1}
BATCH, TIME, INPUTS, UNITS = 3, 6, 5, 4
TOLERANCE = {"float64": 1e-14, "float32": 1e-6, "float16": 5e-3}

each_cell = pytest.mark.parametrize("cell", CELLS)


def inputs(seed: int = 1, time: int = TIME) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((BATCH, time, INPUTS))


def first_states(cell: str, seed: int = 2) -> list[np.ndarray]:
    generator = np.random.default_rng(seed)
    return [0.7 * generator.standard_normal((BATCH, UNITS)) for _ in range(STATES[cell])]


def made(cell: str, dtype: str = "float64", seed: int = 3, **options):
    """A layer with random weights, and these weights."""
    layer = CELLS[cell](UNITS, dtype=dtype, **options)
    layer.build((BATCH, TIME, INPUTS))
    stored = oracle.weights(cell, INPUTS, UNITS, seed, dtype)
    layer.set_weights(stored)
    return layer, stored


def numpy(tensor) -> np.ndarray:
    return np.asarray(keras.ops.convert_to_numpy(tensor), np.float64)


def close(found, expected, dtype: str = "float64") -> None:
    np.testing.assert_allclose(numpy(found), expected, rtol=0, atol=TOLERANCE[dtype])


# --- the function ---------------------------------------------------------------------------


@each_cell
@pytest.mark.parametrize("dtype", TOLERANCE)
def test_equals_torch(cell: str, dtype: str) -> None:
    layer, stored = made(cell, dtype, return_sequences=True, return_state=True)
    x = inputs().astype(dtype)
    output, *states = layer(x)
    expected, last = oracle.run(cell, stored, x)
    assert keras.backend.standardize_dtype(output.dtype) == dtype
    close(output, expected, dtype)
    for found, state in zip(states, last, strict=True):
        close(found, state, dtype)


@each_cell
@pytest.mark.parametrize("go_backwards", [False, True])
@pytest.mark.parametrize("return_sequences", [False, True])
@pytest.mark.parametrize("return_state", [False, True])
def test_flags(cell: str, go_backwards: bool, return_sequences: bool, return_state: bool) -> None:
    flags = {
        "go_backwards": go_backwards,
        "return_sequences": return_sequences,
        "return_state": return_state,
    }
    layer, stored = made(cell, **flags)
    x = inputs()
    found = layer(x)
    outputs, last = oracle.run(cell, stored, x, go_backwards=go_backwards)
    expected = outputs if return_sequences else outputs[:, -1]
    if not return_state:
        close(found, expected)
        return
    assert len(found) == 1 + STATES[cell]
    for part, right in zip(found, [expected, *last], strict=True):
        close(part, right)


@each_cell
@pytest.mark.parametrize("form", ["keyword", "positional", "in the input"])
def test_initial_states(cell: str, form: str) -> None:
    layer, stored = made(cell, return_sequences=True)
    x, states = inputs(), first_states(cell)
    expected, _ = oracle.run(cell, stored, x, states)
    x, *states = (keras.ops.convert_to_tensor(array) for array in (x, *states))
    if form == "keyword":
        found = layer(x, initial_state=states)
    else:
        found = layer(x, states) if form == "positional" else layer([x, *states])
    close(found, expected)


@each_cell
def test_wrong_number_of_initial_states(cell: str) -> None:
    layer, _ = made(cell)
    with pytest.raises(ValueError, match="initial states, got 3"):
        layer(inputs(), initial_state=[*first_states("lstm"), *first_states("gru")])


@each_cell
def test_stateful_over_batches(cell: str) -> None:
    model = keras.Sequential([keras.Input(batch_shape=(BATCH, TIME, INPUTS), dtype="float64")])
    layer, stored = made(cell, stateful=True, return_sequences=True)
    model.add(layer)
    first, second = inputs(1), inputs(2)
    whole, _ = oracle.run(cell, stored, np.concatenate([first, second], axis=1))
    predict = model.predict_on_batch
    close(predict(first), whole[:, :TIME])
    close(predict(second), whole[:, TIME:])
    layer.reset_states()
    close(predict(first), whole[:, :TIME])
    layer.reset_state()
    close(layer(first), whole[:, :TIME])
    close(layer(second), whole[:, TIME:])


def test_states_are_no_weights() -> None:
    layer, _ = made("lstm", stateful=True)
    assert [weight.name for weight in layer.weights] == ["kernel", "recurrent_kernel", "bias"]
    assert len(layer.variables) == 5
    assert len(layer.non_trainable_variables) == 2


def test_stateful_needs_a_batch_size() -> None:
    with pytest.raises(ValueError, match="fixed batch size"):
        CuDNNGRU(UNITS, stateful=True).build((None, TIME, INPUTS))


@each_cell
def test_unknown_time_dimension(cell: str) -> None:
    layer, stored = made(cell, "float32", return_sequences=True)
    x = keras.Input((None, INPUTS))
    model = keras.Model(x, keras.layers.GlobalMaxPooling1D()(layer(x)))
    assert layer.output.shape == (None, None, UNITS)
    for time in (5, 9):
        data = inputs(time=time)
        expected, _ = oracle.run(cell, stored, data)
        close(model.predict_on_batch(data.astype("float32")), expected.max(axis=1), "float32")


@each_cell
def test_mixed_precision(cell: str) -> None:
    stored = oracle.weights(cell, INPUTS, UNITS, 3, "float32")
    mixed = CELLS[cell](UNITS, dtype="mixed_float16", return_sequences=True)
    mixed.build((BATCH, TIME, INPUTS))
    mixed.set_weights(stored)
    found = mixed(inputs())
    assert keras.backend.standardize_dtype(found.dtype) == "float16"
    assert {weight.dtype for weight in mixed.weights} == {"float32"}
    close(found, oracle.run(cell, stored, inputs())[0], "float16")


# --- inside other layers --------------------------------------------------------------------


@each_cell
@pytest.mark.parametrize("merge_mode", ["concat", "sum", "ave", "mul", None])
@pytest.mark.sampled(2)
def test_bidirectional(cell: str, merge_mode: str | None) -> None:
    layer = CELLS[cell](UNITS, return_sequences=True, dtype="float64", name="cu")
    both = keras.layers.Bidirectional(layer, merge_mode=merge_mode, dtype="float64")
    both.build((BATCH, TIME, INPUTS))
    ahead, back = (oracle.weights(cell, INPUTS, UNITS, seed) for seed in (4, 5))
    both.set_weights([*ahead, *back])
    x = inputs()
    found = both(x)
    forward, _ = oracle.run(cell, ahead, x)
    backward = oracle.run(cell, back, x, go_backwards=True)[0][:, ::-1]
    if merge_mode is None:
        close(found[0], forward)
        close(found[1], backward)
        return
    merged = {
        "concat": np.concatenate([forward, backward], axis=-1),
        "sum": forward + backward,
        "ave": (forward + backward) / 2,
        "mul": forward * backward,
    }
    close(found, merged[merge_mode])
    assert isinstance(both.forward_layer, CELLS[cell])
    assert both.forward_layer.name == "forward_cu"


@each_cell
def test_bidirectional_states(cell: str) -> None:
    both = keras.layers.Bidirectional(
        CELLS[cell](UNITS, return_state=True, dtype="float64"), dtype="float64"
    )
    both.build((BATCH, TIME, INPUTS))
    ahead, back = (oracle.weights(cell, INPUTS, UNITS, seed) for seed in (4, 5))
    both.set_weights([*ahead, *back])
    x, one, two = inputs(), first_states(cell, 6), first_states(cell, 7)
    tensors = [keras.ops.convert_to_tensor(state) for state in (*one, *two)]
    output, *states = both(x, initial_state=tensors)
    _, forward = oracle.run(cell, ahead, x, one)
    _, backward = oracle.run(cell, back, x, two, go_backwards=True)
    close(output, np.concatenate([forward[0], backward[0]], axis=-1))
    for found, expected in zip(states, [*forward, *backward], strict=True):
        close(found, expected)


@each_cell
def test_time_distributed(cell: str) -> None:
    layer, stored = made(cell, "float32")
    parts = np.stack([inputs(8), inputs(9)], axis=1).astype("float32")
    found = keras.layers.TimeDistributed(layer)(parts)
    for index in range(2):
        expected, _ = oracle.run(cell, stored, parts[:, index])
        close(found[:, index], expected[:, -1], "float32")


@each_cell
def test_shared_and_nested(cell: str) -> None:
    layer, stored = made(cell, "float32")
    x = keras.Input((TIME, INPUTS))
    inner = keras.Model(x, layer(x))
    one, two = keras.Input((TIME, INPUTS)), keras.Input((TIME, INPUTS))
    model = keras.Model([one, two], keras.layers.subtract([inner(one), inner(two)]))
    a, b = inputs(1).astype("float32"), inputs(2).astype("float32")
    expected = oracle.run(cell, stored, a)[0][:, -1] - oracle.run(cell, stored, b)[0][:, -1]
    close(model([a, b]), expected, "float32")
    assert len(model.weights) == 3


@each_cell
def test_gradients_reach_every_weight(cell: str) -> None:
    model = keras.Sequential([keras.Input((TIME, INPUTS)), CELLS[cell](UNITS)])
    model.compile("sgd", "mse")
    before = model.get_weights()
    model.train_on_batch(inputs().astype("float32"), np.ones((BATCH, UNITS), "float32"))
    assert all((old != new).any() for old, new in zip(before, model.get_weights(), strict=True))


# --- masks ----------------------------------------------------------------------------------


@each_cell
def test_an_upstream_mask_is_refused(cell: str) -> None:
    x = keras.Input((TIME,))
    masked = keras.layers.Embedding(7, INPUTS, mask_zero=True)(x)
    with pytest.raises(ValueError, match=r"Masking is not supported for CuDNN RNNs\."):
        CELLS[cell](UNITS)(masked)
    states = [keras.Input((UNITS,)) for _ in range(STATES[cell])]
    with pytest.raises(ValueError, match="Masking is not supported"):
        CELLS[cell](UNITS)(masked, initial_state=states)


@each_cell
def test_a_mask_argument_is_refused(cell: str) -> None:
    layer, _ = made(cell)
    with pytest.raises(ValueError, match="Masking is not supported"):
        layer(inputs(), mask=np.ones((BATCH, TIME), bool))
    both = keras.layers.Bidirectional(CELLS[cell](UNITS))
    with pytest.raises(ValueError, match="Masking is not supported"):
        both(inputs().astype("float32"), mask=np.ones((BATCH, TIME), bool))


# --- configs and weights --------------------------------------------------------------------

KERAS2_CONFIG = {
    "name": "cu_dnn_1",
    "trainable": False,
    "dtype": "float32",
    "units": UNITS,
    "kernel_initializer": {"class_name": "VarianceScaling", "config": {"seed": 7}},
    "recurrent_initializer": {"class_name": "Orthogonal", "config": {"gain": 1.0, "seed": None}},
    "bias_initializer": {"class_name": "Zeros", "config": {}},
    "kernel_regularizer": {"class_name": "L2", "config": {"l2": 0.25}},
    "recurrent_regularizer": None,
    "bias_regularizer": None,
    "activity_regularizer": None,
    "kernel_constraint": {"class_name": "NonNeg", "config": {}},
    "recurrent_constraint": None,
    "bias_constraint": None,
    "return_sequences": True,
    "return_state": True,
    "go_backwards": True,
    "stateful": False,
    "time_major": False,
    "implementation": 1,
    "recurrent_activation": "sigmoid",
}


@each_cell
def test_config_round_trip(cell: str) -> None:
    layer = CELLS[cell].from_config(dict(KERAS2_CONFIG))
    assert (layer.name, layer.trainable, layer.units) == ("cu_dnn_1", False, UNITS)
    assert float(layer.kernel_regularizer.l2) == 0.25
    assert isinstance(layer.kernel_constraint, keras.constraints.NonNeg)
    config = layer.get_config()
    assert {"time_major", "implementation"}.isdisjoint(config)
    assert all(config[flag] for flag in ("return_sequences", "return_state", "go_backwards"))
    again = CELLS[cell].from_config(layer.get_config())
    assert again.get_config() == config
    entry = keras.saving.serialize_keras_object(layer)
    assert entry["registered_name"] == f"rnnconvert>{CELLS[cell].__name__}"
    assert keras.saving.deserialize_keras_object(entry).get_config() == config


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("time_major", True),
        ("activation", "relu"),
        ("recurrent_activation", "hard_sigmoid"),
        ("use_bias", False),
        ("reset_after", False),
        ("dropout", 0.1),
    ],
)
def test_other_functions_are_refused(key: str, value: object) -> None:
    with pytest.raises(ValueError, match=key):
        CuDNNGRU(UNITS, **{key: value})


def test_unknown_keys_are_refused() -> None:
    with pytest.raises(ValueError, match="peephole"):
        CuDNNLSTM(UNITS, peephole=True)


@each_cell
def test_weights_as_keras_2_had_them(cell: str) -> None:
    layer = CELLS[cell](UNITS, name="cu")
    layer.build((None, TIME, INPUTS))
    gates = oracle.GATES[cell]
    assert [weight.path for weight in layer.weights] == [
        "cu/kernel",
        "cu/recurrent_kernel",
        "cu/bias",
    ]
    assert [tuple(weight.shape) for weight in layer.weights] == [
        (INPUTS, gates * UNITS),
        (UNITS, gates * UNITS),
        (2 * gates * UNITS,),
    ]


def test_initial_forget_bias() -> None:
    expected = np.zeros(8 * UNITS)
    expected[5 * UNITS : 6 * UNITS] = 1
    for unit_forget_bias in (True, False):
        layer = CuDNNLSTM(UNITS, unit_forget_bias=unit_forget_bias)
        layer.build((None, TIME, INPUTS))
        assert layer.get_config()["unit_forget_bias"] is unit_forget_bias
        np.testing.assert_array_equal(layer.get_weights()[2], expected * unit_forget_bias)


@each_cell
@pytest.mark.parametrize("extension", [".keras", ".h5"])
@pytest.mark.sampled(2)
def test_saved_and_loaded(cell: str, extension: str, tmp_path) -> None:
    layer, _ = made(cell, "float32", return_sequences=True)
    wrapped = keras.layers.Bidirectional(CELLS[cell](UNITS))
    plain = keras.layers.Dense(2, activation=hard_sigmoid_keras2)
    model = keras.Sequential([keras.Input((TIME, INPUTS)), layer, wrapped, plain])
    path = tmp_path / f"model{extension}"
    model.save(path)
    again = keras.models.load_model(path, custom_objects=custom_objects())
    x = inputs().astype("float32")
    np.testing.assert_array_equal(numpy(again(x)), numpy(model(x)))
    assert isinstance(again.layers[0], CELLS[cell])


def test_keras_2_hard_sigmoid() -> None:
    x = np.array([-3.0, -2.5, -1.0, 0.0, 1.0, 2.5, 3.0])
    close(hard_sigmoid_keras2(keras.ops.convert_to_tensor(x)), [0, 0, 0.3, 0.5, 0.7, 1, 1])

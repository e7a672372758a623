"""TF1's cells: against TensorFlow's own kernels and cells, and against their equations.

Oracles: the cells that tf_keras keeps of `tf.nn.rnn_cell`, TensorFlow's fused operators, outputs of
a TF 1.15 run (files beside the checkout), and `tf1_forward`, the equations on stored tensors.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Mapping

import numpy as np
import pytest
from equations import Array, canonical_forward, random_input, relu, sigmoid
from hypothesis import given, settings
from hypothesis import strategies as st
from models import SHARED

from rnnconvert.errors import NotConvertibleError
from rnnconvert.layouts import CELLS, RnnWeights, merge_bias, tf1_cells
from rnnconvert.layouts.tf1_cells import TF1_CELLS, Tf1Cell, find_tf1, pack_tf1, unpack_tf1

BATCH, TIME, INPUTS, UNITS = 3, 6, 5, 4
CONTRIB = SHARED / "fixtures" / "contrib"

LSTM_NAMES = ("kernel", "bias")
GRU_NAMES = ("gates/kernel", "gates/bias", "candidate/kernel", "candidate/bias")
BLOCK_NAMES = ("w_ru", "b_ru", "w_c", "b_c")
CUDNN_GRU_NAMES = (
    "gates/kernel",
    "gates/bias",
    "candidate/input_projection/kernel",
    "candidate/input_projection/bias",
    "candidate/hidden_projection/kernel",
    "candidate/hidden_projection/bias",
)
FOUND = {
    "cudnn_compatible_lstm_cell": (LSTM_NAMES, "lstm"),
    "cudnn_compatible_gru_cell": (CUDNN_GRU_NAMES, "gru"),
    "basic_rnn_cell": (LSTM_NAMES, "rnn_tanh"),
    "basic_lstm_cell": (LSTM_NAMES, "lstm"),
    "lstm_cell": (LSTM_NAMES, "lstm"),
    "lstm_block_wrapper": (LSTM_NAMES, "lstm"),
    "lstm_fused_cell": (LSTM_NAMES, "lstm"),
    "gru_cell": (GRU_NAMES, "gru_reset_before"),
    "GRUBlockCellV2": (GRU_NAMES, "gru_reset_before"),
    "GRUBlockCell": (BLOCK_NAMES, "gru_reset_before"),
}
"""Scope: the tensors in it, the cell they are of."""

pytestmark = pytest.mark.filterwarnings("error::RuntimeWarning")


@pytest.fixture(scope="module")
def tensorflow():
    os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")
    return pytest.importorskip("tensorflow", reason="TensorFlow is the oracle")


def layout_id(layout: Tf1Cell) -> str:
    return f"{layout.scopes[-1]}-{layout.cell}"


each_layout = pytest.mark.parametrize("layout", TF1_CELLS, ids=layout_id)


def random_tensors(
    layout: Tf1Cell, seed: int = 0, inputs: int = INPUTS, units: int = UNITS, dtype="float64"
) -> dict[str, Array]:
    """Random tensors, of the shapes that LAYOUT's class has."""
    rng = np.random.default_rng(seed)
    rows = {"xh": inputs + units, "x": inputs, "h": units}
    tensors = {}
    for block in layout.blocks:
        columns = len(block.gates) * units
        tensors[block.kernel] = rng.normal(0.0, 0.7, (rows[block.rows], columns)).astype(dtype)
        tensors[block.bias] = rng.normal(0.0, 0.7, columns).astype(dtype)
    return tensors


# --- the equations, on the tensors as TF1 stores them ---------------------------------------


def tf1_forward(
    scope: str, tensors: Mapping[str, Array], x: Array, state, forget_bias: float = 0.0
) -> Array:
    """All hidden states, (batch, time, units), by the documentation of the classes."""
    h, c = state
    outputs = []
    for x_t in x.transpose(1, 0, 2):
        xh = np.hstack([x_t, h])
        if "lstm" in scope:
            i, j, f, o = np.split(xh @ tensors["kernel"] + tensors["bias"], 4, axis=1)
            c = sigmoid(f + forget_bias) * c + sigmoid(i) * np.tanh(j)
            h = sigmoid(o) * np.tanh(c)
        elif "rnn" in scope:
            activation = relu if "relu" in scope else np.tanh
            h = activation(xh @ tensors["kernel"] + tensors["bias"])
        else:
            h = gru_step(tensors, x_t, h)
        outputs.append(h)
    return np.stack(outputs, axis=1)


def gru_step(tensors: Mapping[str, Array], x: Array, h: Array) -> Array:
    tensors = dict(zip(GRU_NAMES, tensors.values(), strict=True)) if "w_ru" in tensors else tensors
    xh = np.hstack([x, h])
    r, u = np.split(sigmoid(xh @ tensors["gates/kernel"] + tensors["gates/bias"]), 2, axis=1)
    if "candidate/kernel" in tensors:
        rh = np.hstack([x, r * h])
        candidate = np.tanh(rh @ tensors["candidate/kernel"] + tensors["candidate/bias"])
    else:
        side = "candidate/{}_projection/{}".format
        hidden = h @ tensors[side("hidden", "kernel")] + tensors[side("hidden", "bias")]
        given = x @ tensors[side("input", "kernel")] + tensors[side("input", "bias")]
        candidate = np.tanh(given + r * hidden)
    return u * h + (1.0 - u) * candidate


@pytest.mark.parametrize("seed", [0, 1])
@each_layout
def test_the_equations(layout, seed):
    tensors = random_tensors(layout, seed)
    x, state = random_input(np.random.default_rng(seed), BATCH, TIME, INPUTS, UNITS)
    scope = layout.scopes[0] + layout.cell
    expected = tf1_forward(scope, tensors, x, state, layout.forget_bias)
    found = canonical_forward(unpack_tf1(layout, tensors), x, state)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("forget_bias", [0.0, 1.0, -0.3])
def test_the_forget_bias_is_the_callers(forget_bias):
    layout = find_tf1("basic_lstm_cell", LSTM_NAMES)
    tensors = random_tensors(layout)
    x, state = random_input(np.random.default_rng(0), BATCH, TIME, INPUTS, UNITS)
    expected = tf1_forward("lstm", tensors, x, state, forget_bias)
    found = canonical_forward(unpack_tf1(layout, tensors, forget_bias), x, state)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("scope", "expected"), [("basic_lstm_cell", 1.0), ("cudnn_compatible_lstm_cell", 0.0)]
)
def test_the_forget_bias_of_a_class(scope, expected):
    assert find_tf1(scope, LSTM_NAMES).forget_bias == expected


# --- TensorFlow itself ----------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("class_name", "options"),
    [
        ("BasicLSTMCell", {}),
        ("BasicLSTMCell", {"forget_bias": 0.25}),
        ("LSTMCell", {}),
        ("GRUCell", {}),
        ("BasicRNNCell", {}),
        ("BasicRNNCell", {"activation": "relu"}),
    ],
)
@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")
def test_the_cells_of_tensorflow(tensorflow, class_name, options):
    """The cell makes its own variables; their names say which layout they have."""
    cells = pytest.importorskip(
        "tf_keras.src.layers.rnn.legacy_cells", reason="tf_keras keeps TF1's cells"
    )
    v1 = tensorflow.compat.v1
    rng = np.random.default_rng(0)
    x, (h, c) = random_input(rng, BATCH, TIME, INPUTS, UNITS)
    with v1.Graph().as_default(), v1.Session() as session:
        cell = getattr(cells, class_name)(UNITS, **options)
        state = cells.LSTMStateTuple(c, h) if "LSTM" in class_name else v1.constant(h)
        outputs = []
        for x_t in x.transpose(1, 0, 2):
            output, state = cell(v1.constant(x_t), state)
            outputs.append(output)
        scopes, tensors = set(), {}
        for variable in v1.global_variables():
            scope, _, name = variable.name.removesuffix(":0").partition("/")
            scopes.add(scope)
            tensors[name] = rng.normal(0.0, 0.7, variable.shape)
            variable.load(tensors[name], session)
        expected = np.stack(session.run(outputs), axis=1)
    (scope,) = scopes
    layout = find_tf1(scope, tensors, options.get("activation", "tanh"))
    weights = unpack_tf1(layout, tensors, options.get("forget_bias"))
    found = canonical_forward(weights, x, (h, c))
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("forget_bias", [0.0, 1.0])
def test_the_fused_lstm_of_tensorflow(tensorflow, forget_bias):
    """What LSTMBlockCell, and CudnnCompatibleLSTMCell with forget_bias=0, call."""
    layout = find_tf1("lstm_cell", LSTM_NAMES)
    tensors = random_tensors(layout, dtype="float32")
    x, (h, c) = random_input(np.random.default_rng(0), BATCH, TIME, INPUTS, UNITS)
    zeros, state = np.zeros(UNITS, "float32"), (c.astype("float32"), h.astype("float32"))
    outputs = []
    for x_t in x.transpose(1, 0, 2).astype("float32"):
        step = tensorflow.raw_ops.LSTMBlockCell(
            x=x_t, cs_prev=state[0], h_prev=state[1], w=tensors["kernel"], b=tensors["bias"],
            wci=zeros, wcf=zeros, wco=zeros, forget_bias=forget_bias, cell_clip=-1.0,
        )  # fmt: skip
        state = (step.cs, step.h)
        outputs.append(step.h.numpy())
    found = canonical_forward(unpack_tf1(layout, tensors, forget_bias), x, (h, c))
    np.testing.assert_allclose(found, np.stack(outputs, axis=1), rtol=0, atol=2e-6)


@pytest.mark.slow
def test_the_fused_gru_of_tensorflow(tensorflow):
    layout = find_tf1("GRUBlockCell", BLOCK_NAMES)
    tensors = random_tensors(layout, dtype="float32")
    x, (h, _) = random_input(np.random.default_rng(0), BATCH, TIME, INPUTS, UNITS)
    outputs, state = [], h.astype("float32")
    for x_t in x.transpose(1, 0, 2).astype("float32"):
        state = tensorflow.raw_ops.GRUBlockCell(x=x_t, h_prev=state, **tensors).h
        outputs.append(state.numpy())
    found = canonical_forward(unpack_tf1(layout, tensors), x, (h, h))
    np.testing.assert_allclose(found, np.stack(outputs, axis=1), rtol=0, atol=2e-6)


@pytest.mark.slow
@pytest.mark.skipif(not CONTRIB.exists(), reason="no files beside the checkout")
@pytest.mark.parametrize("case", ["canonical_lstm_uni", "canonical_gru_bi"])
def test_checkpoints_of_tensorflow_1(tensorflow, case):
    """Two layers of CudnnCompatible cells, saved and run by TF 1.15."""
    reader = tensorflow.train.load_checkpoint(str(CONTRIB / case / "saver_v2" / "model"))
    scopes: dict[str, dict[str, Array]] = {}
    for name in reader.get_variable_to_shape_map():
        before, scope, inside = name.partition("cudnn_compatible_")
        kind, _, tensor = inside.partition("/")
        scopes.setdefault(f"{before}{scope}{kind}", {})[tensor] = reader.get_tensor(name)
    with np.load(CONTRIB / case / "xy.npz") as data:
        x, expected = data["x"].transpose(1, 0, 2), data["y"].transpose(1, 0, 2)
    for _, layer in itertools.groupby(sorted(scopes), lambda scope: scope.split("cell_")[1][0]):
        outputs = []
        for scope in sorted(layer, key=lambda scope: "/bw/" in scope):
            tensors = scopes[scope]
            weights = unpack_tf1(find_tf1(scope.rpartition("/")[2], tensors), tensors)
            turn = slice(None, None, -1 if "/bw/" in scope else 1)
            zeros = np.zeros((len(x), weights.units))
            outputs.append(canonical_forward(weights, x[:, turn], (zeros, zeros))[:, turn])
        x = np.concatenate(outputs, axis=2)
    np.testing.assert_allclose(x, expected, rtol=0, atol=2e-6)


# --- properties -----------------------------------------------------------------------------


@each_layout
@settings(max_examples=20, deadline=None, database=None)
@given(
    inputs=st.integers(1, 7), units=st.integers(1, 7), seed=st.integers(0, 2**32 - 1),
    dtype=st.sampled_from(["float16", "float32", "float64"]),
)  # fmt: skip
def test_tensors_come_back_bit_for_bit(layout, inputs, units, seed, dtype):
    tensors = random_tensors(layout, seed, inputs, units, dtype)
    weights = unpack_tf1(layout, tensors, forget_bias=0.0)
    assert (weights.input_dim, weights.units) == (inputs, units)
    again = pack_tf1(layout, weights, forget_bias=0.0)
    assert again.keys() == tensors.keys()
    for name, expected in tensors.items():
        assert again[name].dtype == expected.dtype
        assert again[name].shape == expected.shape
        assert again[name].tobytes() == expected.tobytes()


@each_layout
def test_weights_come_back_but_for_the_split_of_a_merged_bias(layout):
    rng = np.random.default_rng(0)
    gates = len(CELLS[layout.cell].gates)
    shapes = ((gates, UNITS, INPUTS), (gates, UNITS, UNITS), (2, gates, UNITS))
    weights = RnnWeights(layout.cell, *(rng.normal(size=shape) for shape in shapes))
    found = unpack_tf1(layout, pack_tf1(layout, weights))
    np.testing.assert_array_equal(found.kernel, weights.kernel)
    np.testing.assert_array_equal(found.recurrent, weights.recurrent)
    merged, expected = merge_bias(found.bias), merge_bias(weights.bias)
    np.testing.assert_allclose(merged, expected, rtol=0, atol=1e-15)  # (b - 1) + 1 is rounded
    if layout.cell == "gru":
        np.testing.assert_array_equal(found.bias[:, 2], weights.bias[:, 2])


def test_weights_without_a_bias_get_zeros():
    weights = RnnWeights("gru", np.ones((3, 4, 5)), np.ones((3, 4, 4)), None)
    tensors = pack_tf1(tf1_cells.CUDNN_GRU, weights)
    assert {n: a.shape for n, a in tensors.items() if n.endswith("bias")} == {
        "gates/bias": (8,),
        "candidate/input_projection/bias": (4,),
        "candidate/hidden_projection/bias": (4,),
    }
    assert not any(a.any() for n, a in tensors.items() if n.endswith("bias"))


def test_big_endian_tensors_become_native():
    tensors = random_tensors(tf1_cells.CUDNN_GRU)
    swapped = {name: array.astype(">f8") for name, array in tensors.items()}
    found = unpack_tf1(tf1_cells.CUDNN_GRU, swapped)
    expected = unpack_tf1(tf1_cells.CUDNN_GRU, tensors)
    np.testing.assert_array_equal(found.kernel, expected.kernel, strict=True)
    np.testing.assert_array_equal(found.bias, expected.bias, strict=True)


def test_a_function_that_the_cell_does_not_compute():
    weights = unpack_tf1(tf1_cells.CUDNN_GRU, random_tensors(tf1_cells.CUDNN_GRU))
    with pytest.raises(NotConvertibleError, match="different functions"):
        pack_tf1(find_tf1("gru_cell", GRU_NAMES), weights)
    tanh = unpack_tf1(tf1_cells.RNN_TANH, random_tensors(tf1_cells.RNN_TANH))
    with pytest.raises(NotConvertibleError, match="rnn_tanh cell cannot be written as a rnn_relu"):
        pack_tf1(tf1_cells.RNN_RELU, tanh)


# --- names ----------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", ["", "_1", "_12"])
@pytest.mark.parametrize("scope", FOUND)
def test_layouts_are_found_by_scope_and_tensors(scope, suffix):
    names, cell = FOUND[scope]
    layout = find_tf1(scope + suffix, names)
    assert layout.cell == cell
    assert scope in layout.scopes
    assert {name for block in layout.blocks for name in (block.kernel, block.bias)} == set(names)


def test_a_gru_block_cell_of_tf_1_15_lies_in_the_scope_of_a_gru_cell():
    assert find_tf1("gru_cell", BLOCK_NAMES).blocks[0].kernel == "w_ru"


def test_the_activation_of_a_basic_rnn_cell_must_be_said():
    assert find_tf1("basic_rnn_cell", LSTM_NAMES).cell == "rnn_tanh"
    assert find_tf1("basic_rnn_cell", LSTM_NAMES, activation="relu").cell == "rnn_relu"


@pytest.mark.parametrize("scope", ["basic_lstm_cell", "gru_cell"])
def test_names_up_to_tf_1_1(scope):
    names = FOUND[scope][0]
    old = [name.replace("kernel", "weights").replace("bias", "biases") for name in names]
    layout = find_tf1(scope, old)
    assert layout == find_tf1(scope, names)
    tensors = random_tensors(layout)
    found = unpack_tf1(layout, dict(zip(old, (tensors[name] for name in names), strict=True)))
    np.testing.assert_array_equal(found.kernel, unpack_tf1(layout, tensors).kernel)
    with pytest.raises(ValueError, match="there twice, by its old and its new name"):
        unpack_tf1(layout, {**tensors, old[0]: tensors[names[0]]})


@pytest.mark.parametrize(
    ("scope", "names", "message"),
    [
        (
            "lstm_cell",
            (*LSTM_NAMES, "w_f_diag", "w_i_diag"),
            r"cell lstm_cell has peepholes \(w_f_diag, w_i_diag\); neither cuDNN nor Keras",
        ),
        (
            "lstm_cell_1",
            (*LSTM_NAMES, "projection/kernel"),
            r"cell lstm_cell_1 has a projection of its output \(projection/kernel\)",
        ),
        ("lstm_cell", (*LSTM_NAMES, "projection/weights"), "has a projection of its output"),
        (
            "layer_norm_basic_lstm_cell",
            ("kernel", "input/gamma"),
            "cell layer_norm_basic_lstm_cell can't be converted: it normalises its gates",
        ),
        ("basic_lstm_cell", (*LSTM_NAMES, "input/gamma"), "has layer normalisation"),
        ("nas_cell", LSTM_NAMES, "nas_cell can't be converted: it is not known; known: cudnn_comp"),
    ],
)
def test_cells_that_no_layer_can_be(scope, names, message):
    with pytest.raises(NotConvertibleError, match=message):
        find_tf1(scope, names)


@pytest.mark.parametrize(
    ("scope", "names", "message"),
    [
        (
            "gru_cell",
            GRU_NAMES[:3],
            "tensors of gru_cell: expected candidate/bias, candidate/kernel, gates/bias, "
            "gates/kernel or b_c, b_ru, w_c, w_ru; found candidate/kernel, gates/bias, "
            "gates/kernel",
        ),
        (
            "basic_rnn_cell",
            ("kernel", "bias", "kernel/Adam"),
            "tensors of basic_rnn_cell: expected bias, kernel; found bias, kernel, kernel/Adam",
        ),
    ],
)
def test_tensors_missing_or_too_many(scope, names, message):
    with pytest.raises(ValueError, match="tensors of") as caught:
        find_tf1(scope, names)
    assert str(caught.value) == message


# --- TF 1.3's separate biases ---------------------------------------------------------------

SEPARATE = {
    "cudnn_compatible_lstm_cell": ("bias", "bias_cudnn_0", "bias_cudnn_1"),
    "cudnn_compatible_gru_cell": ("gates/bias", "bias_cudnn 0", "bias_cudnn 1"),
}


def with_separate(scope: str) -> tuple[Tf1Cell, dict[str, Array], Array, Array]:
    merged, first, second = SEPARATE[scope]
    layout = find_tf1(scope, [*FOUND[scope][0], first, second])
    tensors = random_tensors(layout, dtype="float32")
    halves = np.random.default_rng(5).normal(size=(2, *tensors[merged].shape)).astype("float32")
    tensors.update({merged: halves[0] + halves[1], first: halves[0], second: halves[1]})
    return layout, tensors, halves[0], halves[1]


@pytest.mark.parametrize("scope", SEPARATE)
def test_separate_biases_survive(scope):
    layout, tensors, first, second = with_separate(scope)
    bias = unpack_tf1(layout, tensors).bias
    stored = layout.blocks[0].gates
    for place, gate in enumerate(stored):
        index = CELLS[layout.cell].gates.index(gate)
        columns = slice(place * UNITS, (place + 1) * UNITS)
        np.testing.assert_array_equal(bias[:, index], [first[columns], second[columns]])


@pytest.mark.parametrize("scope", SEPARATE)
def test_separate_biases_that_contradict(scope):
    layout, tensors, first, _ = with_separate(scope)
    merged, *names = SEPARATE[scope]
    with pytest.raises(ValueError, match=f"{names[0]} and {names[1]} don't add up to {merged}"):
        unpack_tf1(layout, {**tensors, names[0]: first * np.float32(1.00001)})
    with pytest.raises(ValueError, match=r"expected both, of shape .*, found"):
        unpack_tf1(layout, {name: a for name, a in tensors.items() if name != names[1]})
    with pytest.raises(ValueError, match=r"expected both, of shape .*, found"):
        unpack_tf1(layout, {**tensors, names[1]: first[:-1]})


# --- shapes and dtypes ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("scope", "spoil", "message"),
    [
        ("lstm_cell", {"kernel": (9,)}, r"kernel of a basic_lstm_cell: expected .*, found \(9,\)"),
        ("lstm_cell", {"kernel": (9, 15)}, r"expected \(input size \+ units, 4 \* units\), found"),
        ("lstm_cell", {"kernel": (4, 16)}, r"expected \(input size \+ units, 4 \* units\), found"),
        ("lstm_cell", {"kernel": (9, 0)}, r"expected \(input size \+ units, 4 \* units\), found"),
        (
            "lstm_cell",
            {"bias": (20,)},
            r"bias of a basic_lstm_cell of 4 units on 5 inputs: expected shape \(16,\), found",
        ),
        ("gru_cell", {"candidate/kernel": (8, 4)}, r"candidate/kernel .* \(9, 4\), found \(8, 4\)"),
        (
            "cudnn_compatible_gru_cell",
            {"candidate/input_projection/kernel": (4, 4)},
            r"input_projection/kernel .* of 4 units on 5 inputs: expected shape \(5, 4\), found",
        ),
        ("gru_cell", {"gates/bias": None}, "tensors gates/bias of a gru_cell are missing; found"),
    ],
)
def test_shapes_that_contradict(scope, spoil, message):
    layout = find_tf1(scope, FOUND[scope][0])
    tensors = random_tensors(layout)
    for name, shape in spoil.items():
        del tensors[name]
        if shape is not None:
            tensors[name] = np.zeros(shape)
    with pytest.raises(ValueError, match=message):
        unpack_tf1(layout, tensors)


def test_dtypes_that_contradict():
    tensors = random_tensors(tf1_cells.CUDNN_LSTM)
    with pytest.raises(ValueError, match=r"expected one dtype of .*, found float32, float64"):
        unpack_tf1(tf1_cells.CUDNN_LSTM, {**tensors, "bias": tensors["bias"].astype("float32")})
    whole = {name: array.astype("int32") for name, array in tensors.items()}
    with pytest.raises(ValueError, match=r"expected one dtype of .*, found int32"):
        unpack_tf1(tf1_cells.CUDNN_LSTM, whole)

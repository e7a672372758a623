"""What can't be converted is refused, and the message says why."""

from __future__ import annotations

import numpy as np
import pytest
from equations import GATES, random_weights

from rnnconvert import layouts
from rnnconvert.errors import NotConvertibleError
from rnnconvert.layouts import RnnWeights

RESET = (
    "a GRU that resets after the matmul (cuDNN, reset_after=True) and one that resets "
    "before it (reset_after=False) are different functions: r*(hR+b) is not (r*h)R+b, "
    "and no weights make them equal; use reset_after=True, or retrain"
)


def weights_of(cell: str) -> RnnWeights:
    return random_weights(np.random.default_rng(0), cell, input_dim=3, units=4)


def tensors_of(name: str, cell: str, **changes: np.ndarray | None) -> dict[str, np.ndarray]:
    """Valid tensors of a layout, input_dim 3, units 4, with changes; None removes a tensor."""
    tensors = {**layouts.pack(layouts.find(name, cell), weights_of(cell)), **changes}
    return {key: array for key, array in tensors.items() if array is not None}


def zeros(*shape: int, dtype: str = "float64") -> np.ndarray:
    return np.zeros(shape, dtype)


# --- pairs that no weights make equal -------------------------------------------------------


@pytest.mark.parametrize("name", ["keras-cudnn", "cudnn", "torch"])
def test_programs_without_reset_before_say_why(name):
    with pytest.raises(NotConvertibleError) as caught:
        layouts.find(name, "gru_reset_before")
    assert str(caught.value) == RESET
    assert caught.value.exit_code == 4


@pytest.mark.parametrize(
    ("source", "target"), [("gru", "gru_reset_before"), ("gru_reset_before", "gru")]
)
@pytest.mark.parametrize("name", ["keras", "onnx"])
def test_no_gru_is_packed_as_the_other(name, source, target):
    with pytest.raises(NotConvertibleError) as caught:
        layouts.pack(layouts.find(name, target), weights_of(source))
    assert str(caught.value) == RESET


@pytest.mark.parametrize("target", ["keras-cudnn", "cudnn", "torch"])
def test_convert_refuses_reset_before(target):
    tensors = tensors_of("keras", "gru_reset_before")
    with pytest.raises(NotConvertibleError) as caught:
        layouts.convert(tensors, "keras", target, "gru_reset_before")
    assert str(caught.value) == RESET


def test_no_cell_is_packed_as_another():
    for source in GATES:
        for target in GATES:
            if source == target:
                layouts.require_same_function(source, target)
                continue
            with pytest.raises(NotConvertibleError):
                layouts.pack(layouts.find("keras", target), weights_of(source))


def test_another_cell_is_named():
    with pytest.raises(NotConvertibleError) as caught:
        layouts.pack(layouts.find("torch", "lstm"), weights_of("gru"))
    assert str(caught.value) == "a gru cell cannot be written as a lstm cell"


@pytest.mark.parametrize("cell", ["rnn_tanh", "rnn_relu"])
def test_keras_has_no_cudnn_simple_rnn(cell):
    with pytest.raises(NotConvertibleError) as caught:
        layouts.find("keras-cudnn", cell)
    assert str(caught.value) == f"layout keras-cudnn has no {cell} cell; it has lstm, gru"


def test_every_pair_is_found_or_refused():
    found = {(row.name, row.cell): row for row in layouts.LAYOUTS}
    assert len(found) == len(layouts.LAYOUTS)
    for name in layouts.NAMES:
        for cell in layouts.CELLS:
            if (name, cell) in found:
                assert layouts.find(name, cell) is found[name, cell]
            else:
                with pytest.raises(NotConvertibleError):
                    layouts.find(name, cell)


# --- unknown names --------------------------------------------------------------------------


def test_unknown_layout():
    with pytest.raises(ValueError, match="unknown layout") as caught:
        layouts.find("pytorch", "gru")
    assert str(caught.value) == (
        "unknown layout 'pytorch'; known: keras, keras-cudnn, cudnn, torch, onnx"
    )


CELL_MESSAGE = "unknown cell 'GRU'; known: lstm, gru, gru_reset_before, rnn_tanh, rnn_relu"


def test_unknown_cell():
    with pytest.raises(ValueError, match="unknown cell") as caught:
        layouts.find("keras", "GRU")
    assert str(caught.value) == CELL_MESSAGE


def test_unknown_cell_of_weights():
    with pytest.raises(ValueError, match="unknown cell") as caught:
        RnnWeights("GRU", zeros(3, 4, 3), zeros(3, 4, 4), None)
    assert str(caught.value) == CELL_MESSAGE


# --- weights that don't fit together --------------------------------------------------------


@pytest.mark.parametrize(
    ("kernel", "recurrent", "bias", "message"),
    [
        pytest.param(
            zeros(4, 4, 3),
            zeros(3, 4, 4),
            None,
            "kernel of a gru: expected (3, units, input_dim), found (4, 4, 3)",
            id="four gates",
        ),
        pytest.param(
            zeros(3, 12),
            zeros(3, 4, 4),
            None,
            "kernel of a gru: expected (3, units, input_dim), found (3, 12)",
            id="stacked kernel",
        ),
        pytest.param(
            zeros(3, 4, 3),
            zeros(3, 4, 3),
            None,
            "recurrent kernel of a gru: expected (3, 4, 4), found (3, 4, 3)",
            id="recurrent kernel not square",
        ),
        pytest.param(
            zeros(3, 4, 3),
            zeros(3, 4, 4),
            zeros(3, 4),
            "bias of a gru: expected (2, 3, 4), found (3, 4)",
            id="one bias",
        ),
        pytest.param(
            zeros(3, 4, 3),
            zeros(3, 4, 4, dtype="float32"),
            None,
            "expected one dtype of float16, float32, float64, bfloat16, found float32, float64",
            id="two dtypes",
        ),
        pytest.param(
            zeros(3, 4, 3),
            zeros(3, 4, 4),
            zeros(2, 3, 4, dtype="float16"),
            "expected one dtype of float16, float32, float64, bfloat16, found float16, float64",
            id="bias of another dtype",
        ),
        pytest.param(
            zeros(3, 4, 3, dtype="int32"),
            zeros(3, 4, 4, dtype="int32"),
            None,
            "expected one dtype of float16, float32, float64, bfloat16, found int32",
            id="whole numbers",
        ),
        pytest.param(
            zeros(3, 4, 3, dtype="complex64"),
            zeros(3, 4, 4, dtype="complex64"),
            None,
            "expected one dtype of float16, float32, float64, bfloat16, found complex64",
            id="complex numbers",
        ),
    ],
)
def test_weights_that_do_not_fit(kernel, recurrent, bias, message):
    with pytest.raises(ValueError, match="expected") as caught:
        RnnWeights("gru", kernel, recurrent, bias)
    assert str(caught.value) == message


def test_weights_describe_themselves():
    weights = RnnWeights("gru", zeros(3, 4, 5), zeros(3, 4, 4), None)
    assert (weights.units, weights.input_dim, weights.dtype) == (4, 5, np.float64)


# --- tensors that don't fit the layout ------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "cell", "changes", "message"),
    [
        pytest.param(
            "keras",
            "gru",
            {"recurrent_kernel": None},
            "tensor recurrent_kernel is missing; found bias, kernel",
            id="missing recurrent kernel",
        ),
        pytest.param(
            "keras-cudnn",
            "lstm",
            {"bias": None},
            "tensor bias is missing; found kernel, recurrent_kernel",
            id="missing bias that must be there",
        ),
        pytest.param(
            "torch",
            "gru",
            {"bias_hh": None},
            "tensor bias_hh is missing; found bias_ih, weight_hh, weight_ih",
            id="missing second bias",
        ),
        pytest.param(
            "cudnn",
            "rnn_tanh",
            {"bR_h": None},
            "tensor bR_h is missing; found R_h, W_h, bW_h",
            id="missing separate bias",
        ),
        pytest.param(
            "keras",
            "lstm",
            {"kernel": zeros(3, 15)},
            "kernel: expected a matrix with 4 gates along axis 1, found (3, 15)",
            id="columns that are no gates",
        ),
        pytest.param(
            "torch",
            "lstm",
            {"weight_hh": zeros(15, 4)},
            "weight_hh: expected a matrix with 4 gates along axis 0, found (15, 4)",
            id="rows that are no gates",
        ),
        pytest.param(
            "keras",
            "gru",
            {"kernel": zeros(36)},
            "kernel: expected a matrix with 3 gates along axis 1, found (36,)",
            id="flat kernel",
        ),
        pytest.param(
            "onnx",
            "lstm",
            {"W": zeros(2, 16, 3)},
            "W: expected one direction, shape (1, ...), found (2, 16, 3)",
            id="two directions",
        ),
        pytest.param(
            "keras",
            "lstm",
            {"bias": zeros(15)},
            "bias: expected 2 x 4 gates, found (2, 15)",
            id="bias that is no gates",
        ),
        pytest.param(
            "keras",
            "lstm",
            {"bias": zeros(32)},
            "bias of a lstm: expected (2, 4, 4), found (2, 4, 8)",
            id="bias of a CuDNNLSTM in an LSTM",
        ),
        pytest.param(
            "keras-cudnn",
            "lstm",
            {"bias": zeros(16)},
            "bias of a lstm: expected (2, 4, 4), found (2, 4, 2)",
            id="bias of an LSTM in a CuDNNLSTM",
        ),
        pytest.param(
            "keras",
            "gru",
            {"bias": zeros(12)},
            "bias: expected (2, gates*units), found (12,)",
            id="bias of reset_after=False",
        ),
        pytest.param(
            "keras",
            "lstm",
            {"recurrent_kernel": zeros(5, 16)},
            "recurrent kernel of a lstm: expected (4, 4, 4), found (4, 4, 5)",
            id="recurrent kernel not square",
        ),
        pytest.param(
            "keras",
            "lstm",
            {"bias": zeros(16, dtype="float32")},
            "expected one dtype of float16, float32, float64, bfloat16, found float32, float64",
            id="two dtypes",
        ),
    ],
)
def test_tensors_that_do_not_fit(name, cell, changes, message):
    with pytest.raises(ValueError, match=r"missing|expected") as caught:
        layouts.unpack(layouts.find(name, cell), tensors_of(name, cell, **changes))
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("name", "cell", "changes"),
    [
        pytest.param("keras", "gru", {"bias": zeros(12, 2)}, id="transposed bias"),
        pytest.param("keras", "gru", {"bias": zeros(24)}, id="bias of a CuDNNGRU in a GRU"),
        pytest.param(
            "keras-cudnn", "gru", {"bias": zeros(2, 12)}, id="bias of a GRU in a CuDNNGRU"
        ),
        pytest.param("keras", "lstm", {"bias": zeros(2, 8)}, id="merged bias in two rows"),
        pytest.param("torch", "lstm", {"bias_ih": None}, id="second bias without the first"),
        pytest.param(
            "torch", "lstm", {"bias_hh": zeros(16, dtype="float32")}, id="biases of two dtypes"
        ),
        pytest.param(
            "cudnn", "gru", {"W_z": zeros(4, 3, dtype="float32")}, id="gates of two dtypes"
        ),
    ],
)
def test_tensors_of_another_form_are_refused(name, cell, changes):
    with pytest.raises(ValueError, match=r"missing|expected"):
        layouts.unpack(layouts.find(name, cell), tensors_of(name, cell, **changes))


@pytest.mark.parametrize("target", ["gru", "gru_reset_before"])
def test_bias_of_another_cell_is_refused(target):
    source = "lstm" if target == "gru" else "gru"
    bias = tensors_of("keras", source)["bias"]
    with pytest.raises(NotConvertibleError):
        layouts.relay_bias(layouts.find("keras", source), layouts.find("keras", target), bias)

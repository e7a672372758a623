"""A published CuDNNGRU(2) and its Keras twin, to the last digit, and known parameter counts."""

from __future__ import annotations

import numpy as np
import pytest
from equations import random_weights

from rnnconvert import layouts
from rnnconvert.layouts import CELLS, BiasForm, parameter_count

CUDNN = {
    "kernel": np.array(
        [
            [0.05315638, 0.48983377, 0.21304148, -0.61902946, -0.5883764, 0.8355501],
            [0.6174968, -0.06659609, -0.7425384, -0.09426457, 0.267847, -0.10589522],
        ],
        "float32",
    ),
    "recurrent_kernel": np.array(
        [
            [-0.6191499, -0.00290711, -0.3616762, 0.498306, -0.34991384, 0.33924466],
            [0.33154872, 0.03050954, 0.03058927, 0.340796, 0.5393269, 0.69368124],
        ],
        "float32",
    ),
    "bias": np.zeros(12, "float32"),
}
KERAS = {
    "kernel": np.array(
        [
            [0.05315638, 0.6174968, 0.21304148, -0.7425384, -0.5883764, 0.267847],
            [0.48983377, -0.06659609, -0.61902946, -0.09426457, 0.8355501, -0.10589522],
        ],
        "float32",
    ),
    "recurrent_kernel": np.array(
        [
            [-0.6191499, 0.33154872, -0.3616762, 0.03058927, -0.34991384, 0.5393269],
            [-0.00290711, 0.03050954, 0.498306, 0.340796, 0.33924466, 0.69368124],
        ],
        "float32",
    ),
    "bias": np.zeros((2, 6), "float32"),
}


@pytest.mark.parametrize(
    ("source", "target", "tensors", "expected"),
    [("keras-cudnn", "keras", CUDNN, KERAS), ("keras", "keras-cudnn", KERAS, CUDNN)],
    ids=["to-keras", "to-cudnn"],
)
def test_worked_example(source, target, tensors, expected):
    found = layouts.convert(tensors, source, target, "gru")
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        assert found[name].dtype == np.float32
        np.testing.assert_array_equal(found[name], array, strict=True)


def test_rectangular_example():
    """Small whole numbers, d = 2 and U = 3: what the square example can't show."""
    block = np.array([[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]])
    tensors = {
        "kernel": np.hstack([block, block + 10, block + 20]),
        "recurrent_kernel": np.zeros((3, 9)),
        "bias": np.arange(18.0),
    }
    found = layouts.convert(tensors, "keras-cudnn", "keras", "gru")
    assert found["kernel"].tolist() == [
        [0, 2, 4, 10, 12, 14, 20, 22, 24],
        [1, 3, 5, 11, 13, 15, 21, 23, 25],
    ]
    assert found["bias"].tolist() == [list(range(9)), list(range(9, 18))]


@pytest.mark.parametrize(
    ("cell", "input_dim", "units", "biases", "count"),
    [
        ("gru_reset_before", 4, 5, 1, 150),
        ("gru", 4, 5, 2, 165),
        ("gru", 7, 200, 2, 125_400),
        ("gru", 200, 200, 2, 241_200),
        ("gru", 200, 2, 2, 1_224),
        ("lstm", 7, 50, 2, 11_800),
        ("lstm", 7, 50, 1, 11_600),
        ("lstm", 7, 50, 0, 11_400),
        ("rnn_tanh", 4, 5, 1, 50),
    ],
)
def test_known_parameter_counts(cell, input_dim, units, biases, count):
    assert parameter_count(CELLS[cell], input_dim, units, biases) == count


@pytest.mark.parametrize("layout", layouts.LAYOUTS, ids=lambda row: f"{row.name}-{row.cell}")
def test_parameter_count_is_the_size_of_the_packed_tensors(layout):
    weights = random_weights(np.random.default_rng(0), layout.cell, input_dim=3, units=4)
    biases = 1 if layout.bias is BiasForm.MERGED else 2
    size = sum(array.size for array in layouts.pack(layout, weights).values())
    assert size == parameter_count(CELLS[layout.cell], 3, 4, biases)

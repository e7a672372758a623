"""The right conversion passes, every wrong one is caught, and weak tests are shown to be weak."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from equations import (
    Array,
    State,
    canonical_forward,
    keras_forward,
    random_input,
    random_weights,
    read_as_cudnn,
)
from mutants import BOTH, FUNCTION_MUTANTS, TENSOR_MUTANTS, FunctionMutant, Mutant, right

from rnnconvert import layouts

THRESHOLD = 1e-3
SEEDS = (0, 1, 2)
MUTANTS = TENSOR_MUTANTS + FUNCTION_MUTANTS
CASES = [
    pytest.param(mutant, cell, id=f"{cell}-{mutant.name}")
    for mutant in MUTANTS
    for cell in mutant.cells
]

Problem = tuple[str, dict[str, Array], Array, State]
"""Cell, tensors of a Keras CuDNN layer, input, initial state."""


def problem(cell: str, seed: int, *, batch=2, time=6, input_dim=3, units=4) -> Problem:
    """The design that catches everything: random, biases included, input_dim != units."""
    rng = np.random.default_rng(seed)
    weights = random_weights(rng, cell, input_dim, units)
    tensors = layouts.pack(layouts.find("keras-cudnn", cell), weights)
    return (cell, tensors, *random_input(rng, batch, time, input_dim, units))


def error(mutant: Mutant | FunctionMutant | None, case: Problem) -> float:
    """Largest difference between a conversion (None: the right one) and what cuDNN computes."""
    cell, tensors, x, state = case
    expected = canonical_forward(read_as_cudnn(tensors, cell), x, state)
    convert = mutant.apply if isinstance(mutant, Mutant) else right
    flags = mutant.flags if isinstance(mutant, FunctionMutant) else {}
    found = keras_forward(convert(tensors, cell), cell, x, state, **flags)
    return float(np.max(np.abs(found - expected)))


def missed(case: Problem, threshold: float = THRESHOLD) -> set[str]:
    """Names of the mutants that this problem does not tell from the right conversion."""
    cell = case[0]
    return {
        mutant.name
        for mutant in MUTANTS
        if cell in mutant.cells and error(mutant, case) <= threshold
    }


def names(cell: str, *prefixes: str) -> set[str]:
    return {
        mutant.name
        for mutant in MUTANTS
        if cell in mutant.cells and mutant.name.startswith(prefixes)
    }


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("cell", BOTH)
def test_right_conversion_computes_what_cudnn_computes(cell, seed):
    assert error(None, problem(cell, seed)) <= 1e-12


@pytest.mark.parametrize(("mutant", "cell"), CASES)
def test_mutant_is_caught(mutant, cell):
    assert min(error(mutant, problem(cell, seed)) for seed in SEEDS) > THRESHOLD


def test_there_are_enough_mutants():
    assert len(TENSOR_MUTANTS) >= 22
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)


@pytest.mark.parametrize("cell", BOTH)
def test_no_mutant_is_counted_twice(cell):
    _, tensors, _, _ = problem(cell, seed=0)
    wrong = {m.name: m.apply(tensors, cell) for m in TENSOR_MUTANTS if cell in m.cells}
    expected = right(tensors, cell)
    for name, found in wrong.items():
        assert {k: v.shape for k, v in found.items()} == {k: v.shape for k, v in expected.items()}
        assert not _equal(found, expected), name
    for (first, a), (second, b) in itertools.combinations(wrong.items(), 2):
        assert not _equal(a, b), f"{first} = {second}"


def _equal(first: dict[str, Array], second: dict[str, Array]) -> bool:
    return all(np.array_equal(first[name], second[name]) for name in second)


# --- weak designs: which mutants they miss, and why -----------------------------------------


@pytest.mark.parametrize("cell", BOTH)
def test_constant_weights_and_large_inputs_catch_no_wrong_tensor(cell):
    """Every permutation of equal numbers is the same, and large inputs drive the gates to 1.

    A saturated gate doesn't see its bias either. What is left are functions without saturation.
    """
    units, time, input_dim = 4, 10, 10
    _, tensors, _, _ = problem(cell, seed=0, input_dim=input_dim, units=units)
    constant = {name: np.full_like(array, 0.5) for name, array in tensors.items()}
    x = np.arange(100.0).reshape(1, time, input_dim)
    zeros = np.zeros((1, units))
    weak = missed((cell, constant, x, (zeros, zeros)))
    assert weak >= {mutant.name for mutant in TENSOR_MUTANTS if cell in mutant.cells}
    assert weak >= {"function: Keras 2 hard_sigmoid", "function: initial state ignored"}


@pytest.mark.parametrize("cell", BOTH)
def test_zero_biases_miss_the_errors_of_the_bias(cell):
    """A fresh Keras layer: all ways to shuffle or lose zeros are equal."""
    cell, tensors, x, state = problem(cell, seed=0)
    fresh = {**tensors, "bias": np.zeros_like(tensors["bias"])}
    assert missed((cell, fresh, x, state)) == names(cell, "bias:")


@pytest.mark.parametrize("cell", BOTH)
def test_square_kernels_miss_the_order_of_the_buffer(cell):
    """For input_dim == units the re-laying is a transposition, from whichever side it is done."""
    assert missed(problem(cell, seed=0, input_dim=4, units=4)) == {
        "kernel: re-laid by the inverse conversion"
    }


@pytest.mark.parametrize("cell", BOTH)
def test_one_step_from_zero_misses_the_recurrent_kernel(cell):
    """A zero h hides the recurrent kernel, and one step has no direction in time."""
    cell, tensors, x, state = problem(cell, seed=0, time=1)
    zeros = (np.zeros_like(state[0]), np.zeros_like(state[1]))
    expected = names(cell, "recurrent:") | {
        "function: the other direction in time",
        "function: initial state ignored",
    }
    assert missed((cell, tensors, x, zeros)) >= expected


@pytest.mark.parametrize("cell", BOTH)
def test_one_unit_misses_transpositions(cell):
    """A (1, 1) recurrent block has no orientation, and a (d, 1) one is its own re-laying."""
    assert missed(problem(cell, seed=0, units=1)) >= {
        "kernel: untouched",
        "kernel: re-laid by the inverse conversion",
        "recurrent: untouched",
        "recurrent: transposed as one matrix",
        "buffer: nothing but the bias converted",
    }

"""The flat buffer's layout as data: lengths, and finding a size from a length. No TensorFlow."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from math import prod

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lowering_torch import Oracle

from rnnconvert.graphs.lower.layout import GATES, RnnShape, solve

SHAPES = st.builds(
    RnnShape,
    mode=st.sampled_from(sorted(GATES)),
    num_layers=st.integers(1, 5),
    units=st.integers(1, 40),
    input_size=st.integers(1, 40),
    bidirectional=st.booleans(),
    skip_input=st.booleans(),
)


@given(SHAPES)
def test_the_regions_fill_the_buffer(shape):
    assert sum(prod(region.shape) for region in shape.regions()) == shape.size()


@given(SHAPES, st.sampled_from(["num_layers", "units", "input_size"]))
def test_one_size_follows_from_the_length(shape, unknown):
    if shape.skip_input and unknown == "input_size":
        return  # the length does not depend on it
    asked = replace(shape, **{unknown: 1})
    assert solve(asked, unknown, shape.size()) == shape
    assert solve(asked, unknown, shape.size() + 1) in (None, *_others(shape, unknown))


def _others(shape: RnnShape, unknown: str) -> list[RnnShape]:
    """Where one more number is just one more input, layer or unit."""
    return [
        other
        for other in [replace(shape, **{unknown: getattr(shape, unknown) + 1})]
        if other.size() == shape.size() + 1
    ]


@pytest.mark.parametrize("mode", sorted(GATES))
@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("both", [False, True])
def test_torch_has_as_many_parameters(mode, layers, both):
    for proj in (0, 3) if mode == "lstm" else (0,):
        oracle = Oracle(mode, layers, both, proj)
        shape = RnnShape(mode, layers, 4, 5, both, num_proj=proj)
        assert shape.size() == oracle.values["params"].size


def test_the_length_needs_the_input_size():
    with pytest.raises(ValueError, match="input size"):
        RnnShape("gru", 1, 4, None).size()
    assert RnnShape("gru", 1, 4, None, skip_input=True).size() == 3 * 4 * (4 + 2)


def test_solving_for_absurd_lengths_is_quick():
    for unknown in ("num_layers", "units", "input_size"):
        assert solve(RnnShape("lstm", 1, 1, 1), unknown, 2**62 + 1) is None


def test_importing_it_imports_no_tensorflow():
    code = (
        "import sys; from rnnconvert.graphs import lowering;"
        "lowering.LoweringOptions(); dir(lowering);"
        "sys.exit('tensorflow' in sys.modules or 'google.protobuf' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0

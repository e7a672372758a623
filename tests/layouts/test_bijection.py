"""Every layout is a bijection, bit for bit, but for merged biases, whose sum is kept bit for bit.

Kernels are random bit patterns (NaN and infinity included), biases finite ones with many
subnormals. input_dim and units always differ: square matrices hide errors of the re-laying.
"""

from __future__ import annotations

import importlib.util

import numpy as np
import pytest
from equations import Array
from hypothesis import given, settings
from hypothesis import strategies as st

from rnnconvert import layouts
from rnnconvert.layouts import BiasForm, Layout, RnnWeights

EXPONENT_BITS = {"float16": 5, "float32": 8, "float64": 11, "bfloat16": 8}
NAMES = tuple(EXPONENT_BITS)
MERGING = tuple(layout for layout in layouts.LAYOUTS if layout.bias is BiasForm.MERGED)


def installed_dtypes() -> list[np.dtype]:
    """All dtypes but bfloat16, and that too where ml_dtypes is installed."""
    names = NAMES if importlib.util.find_spec("ml_dtypes") else NAMES[:-1]
    return [as_dtype(name) for name in names]


def as_dtype(name: str) -> np.dtype:
    if name == "bfloat16":
        return np.dtype(pytest.importorskip("ml_dtypes", reason="bfloat16 needs it").bfloat16)
    return np.dtype(name)


def layout_id(layout: Layout) -> str:
    return f"{layout.name}-{layout.cell}"


pytestmark = pytest.mark.filterwarnings("error")
all_layouts = pytest.mark.parametrize("layout", layouts.LAYOUTS, ids=layout_id)
merging_layouts = pytest.mark.parametrize("layout", MERGING, ids=layout_id)
all_dtypes = pytest.mark.parametrize("name", NAMES)

properties = settings(max_examples=40, deadline=None, database=None)
seeds = st.integers(0, 2**32 - 1)
dtypes = st.sampled_from(installed_dtypes())
shapes = st.tuples(st.integers(1, 7), st.integers(1, 7)).filter(lambda shape: shape[0] != shape[1])
"""(input_dim, units)"""


def random_bits(rng: np.random.Generator, shape: tuple[int, ...], dtype: np.dtype) -> Array:
    """Any bit pattern, read-only: no conversion may write to its input."""
    array = np.frombuffer(rng.bytes(int(np.prod(shape)) * dtype.itemsize), dtype)
    return array.reshape(shape)


def random_bias(
    rng: np.random.Generator, shape: tuple[int, ...], dtype: np.dtype, *, below_two: bool = False
) -> Array:
    """Finite numbers, a third of them subnormal; `below_two` leaves room for a sum."""
    unsigned = np.dtype(f"u{dtype.itemsize}")
    bits = random_bits(rng, shape, dtype).view(unsigned).copy()
    exponent_bits = EXPONENT_BITS[dtype.name]
    mantissa_bits = 8 * dtype.itemsize - 1 - exponent_bits
    top_exponent_bit = unsigned.type(1 << (mantissa_bits + exponent_bits - 1))
    exponent = unsigned.type(((1 << exponent_bits) - 1) << mantissa_bits)
    bits[rng.random(shape) < 1 / 3] &= ~exponent
    not_finite = (bits & exponent) == exponent
    bits[np.full(shape, True) if below_two else not_finite] &= ~top_exponent_bit
    array = bits.view(dtype)
    array.flags.writeable = False
    return array


def weights_of_random_bits(
    cell: str, shape: tuple[int, int], dtype: np.dtype, seed: int, *, with_bias: bool = True
) -> RnnWeights:
    rng = np.random.default_rng(seed)
    input_dim, units = shape
    gates = len(layouts.CELLS[cell].gates)
    return RnnWeights(
        cell,
        random_bits(rng, (gates, units, input_dim), dtype),
        random_bits(rng, (gates, units, units), dtype),
        random_bias(rng, (2, gates, units), dtype, below_two=True) if with_bias else None,
    )


def assert_same_bits(found: Array, expected: Array) -> None:
    assert found.dtype == expected.dtype
    assert found.shape == expected.shape
    assert found.tobytes() == expected.tobytes()


def assert_same_tensors(found: dict[str, Array], expected: dict[str, Array]) -> None:
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        assert_same_bits(found[name], array)


@all_layouts
@properties
@given(dtype=dtypes, shape=shapes, seed=seeds, with_bias=st.booleans())
@pytest.mark.sampled(3)
def test_packed_weights_unpack_to_themselves(layout, dtype, shape, seed, with_bias):
    weights = weights_of_random_bits(layout.cell, shape, dtype, seed, with_bias=with_bias)
    tensors = layouts.pack(layout, weights)
    assert all(array.flags.c_contiguous for array in tensors.values())
    found = layouts.unpack(layout, tensors)
    assert found.cell == layout.cell
    assert_same_bits(found.kernel, weights.kernel)
    assert_same_bits(found.recurrent, weights.recurrent)
    if not with_bias:
        assert_no_bias(layout, found)
    elif layout.bias is BiasForm.MERGED:
        merged = layouts.merge_bias(weights.bias)
        np.testing.assert_array_equal(layouts.merge_bias(found.bias), merged)
    else:
        assert_same_bits(found.bias, weights.bias)


def assert_no_bias(layout: Layout, found: RnnWeights) -> None:
    """No bias stays none, or becomes zeros where the program must have one."""
    if layout.needs_bias:
        gates = len(layouts.CELLS[layout.cell].gates)
        assert_same_bits(found.bias, np.zeros((2, gates, found.units), found.dtype))
    else:
        assert found.bias is None


@merging_layouts
@properties
@given(dtype=dtypes, shape=shapes, seed=seeds)
def test_merged_bias_is_split_and_merged_without_loss(layout, dtype, shape, seed):
    """All finite numbers up to the largest; -0.0 may come back as 0.0."""
    kernel_name, recurrent_name, bias_name = layout.tensors
    tensors = layouts.pack(layout, weights_of_random_bits(layout.cell, shape, dtype, seed))
    bias = random_bias(np.random.default_rng(seed), tensors[bias_name].shape, dtype)
    tensors[bias_name] = bias
    again = layouts.pack(layout, layouts.unpack(layout, tensors))
    assert_same_bits(again[kernel_name], tensors[kernel_name])
    assert_same_bits(again[recurrent_name], tensors[recurrent_name])
    np.testing.assert_array_equal(again[bias_name], bias)
    nonzero = bias != 0
    assert_same_bits(again[bias_name][nonzero], bias[nonzero])


@all_dtypes
def test_split_bias_at_the_edges_of_the_number_range(name):
    """The smallest, odd and largest subnormals, the smallest normals, and the largest number."""
    dtype = as_dtype(name)
    unsigned = np.dtype(f"u{dtype.itemsize}")
    mantissa_bits = 8 * dtype.itemsize - 1 - EXPONENT_BITS[dtype.name]
    infinity = ((1 << EXPONENT_BITS[dtype.name]) - 1) << mantissa_bits
    subnormals = [1, 2, 3, 5, 7, (1 << mantissa_bits) - 1]
    normals = [1 << mantissa_bits, (1 << mantissa_bits) + 1, (3 << mantissa_bits) + 1]
    bits = np.array([*subnormals, *normals, infinity - 1], unsigned)
    bias = np.concatenate([bits.view(dtype), -bits.view(dtype)])
    halves = layouts.split_bias(bias)
    assert halves.dtype == dtype
    assert_same_bits(layouts.merge_bias(halves), bias)


@all_dtypes
def test_split_bias_of_infinity(name):
    bias = np.array([np.inf, -np.inf]).astype(as_dtype(name))
    assert_same_bits(layouts.merge_bias(layouts.split_bias(bias)), bias)


# --- the piecewise functions ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("source_name", "target_name"), [("keras-cudnn", "keras"), ("keras", "keras-cudnn")]
)
@pytest.mark.parametrize("cell", ["lstm", "gru"])
@properties
@given(dtype=dtypes, shape=shapes, seed=seeds)
def test_piecewise_conversion_equals_convert(source_name, target_name, cell, dtype, shape, seed):
    source, target = layouts.find(source_name, cell), layouts.find(target_name, cell)
    tensors = layouts.pack(source, weights_of_random_bits(cell, shape, dtype, seed))
    from_slices = layouts.gate_slices(source, units=shape[1])
    to_slices = layouts.gate_slices(target, units=shape[1])
    kernel_name, recurrent_name, bias_name = source.tensors

    found = {bias_name: layouts.relay_bias(source, target, tensors[bias_name])}
    for name in (kernel_name, recurrent_name):
        found[name] = np.empty_like(tensors[name])
        for gate in source.gates:
            block = tensors[name][:, from_slices[gate]]
            relaid = layouts.relay_block(source.matrix, target.matrix, block)
            found[name][:, to_slices[gate]] = relaid

    assert_same_tensors(found, layouts.convert(tensors, source_name, target_name, cell))


@all_layouts
def test_gate_slices_cut_the_stacked_axis(layout):
    slices = layouts.gate_slices(layout, units=5)
    assert tuple(slices) == layout.gates
    assert [(s.start, s.stop) for s in slices.values()] == [
        (5 * place, 5 * place + 5) for place in range(len(layout.gates))
    ]

"""Stacks of 1 to 3 layers, one direction and both, on torch, against the equations in numpy."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from gpu_torch import (
    cudnn_arguments,
    expected_output,
    module_of,
    random_inputs,
    random_stack,
    run_module,
)

from rnnconvert.keras_models.verify.torch_engine import torch_tolerance
from rnnconvert.layouts import opaque, opaque_shape
from rnnconvert.layouts.opaque_shape import OpaqueShape
from rnnconvert.verification.devices import tf32_off

BATCH, TIME = 3, 7
DTYPES = ("float32", "float16", "float64")
SHAPES = [
    OpaqueShape(cell, layers, 4, 5, direction)
    for cell, layers, direction in itertools.product(
        opaque_shape.CUDNN_CELLS, (1, 2, 3), opaque_shape.DIRECTIONS
    )
]
WIDE = [OpaqueShape("lstm", 1, 256, 128), OpaqueShape("gru", 1, 128, 256)]
"""Sizes for which cuDNN has other kernels: weights in registers, tensor cores."""


def shape_id(shape: OpaqueShape) -> str:
    units = f"{shape.input_size}x{shape.num_units}"
    return f"{shape.cell}-{shape.num_layers}-{shape.direction}-{units}"


each_shape = pytest.mark.parametrize("shape", SHAPES + WIDE, ids=shape_id)
each_dtype = pytest.mark.parametrize("dtype", DTYPES)


def problem(shape: OpaqueShape, dtype: str):
    """Weights, and inputs with what the equations make of them."""
    stack = random_stack(shape, dtype)
    x, state = random_inputs(shape, BATCH, TIME, dtype)
    return stack, x, state, expected_output(shape, stack, x, state)


def tolerance(shape: OpaqueShape, dtype: str, expected: np.ndarray) -> float:
    """Rounding of as many layers as there are; relu's outputs have no bound."""
    width = shape.num_units + max(shape.input_size, len(shape.directions) * shape.num_units)
    largest = max(1.0, float(np.abs(expected).max()))
    return shape.num_layers * torch_tolerance(dtype, width, TIME) * largest


@each_dtype
@each_shape
@pytest.mark.sampled(3)
def test_unpacked_buffers_in_torch(device, within, shape, dtype):
    """The weights go through our buffer and back before torch gets them."""
    stack, x, state, expected = problem(shape, dtype)
    stack = opaque.unpack_buffer(shape, opaque.pack_buffer(shape, stack))
    with tf32_off("torch"):
        found = run_module(module_of(shape, stack, device), shape.cell, x, state, device)
    assert found.dtype == dtype
    worst = float(np.abs(found.astype(np.float64) - expected).max())
    within(device, dtype, worst, tolerance(shape, dtype, expected))


@pytest.mark.gpu
@each_dtype
@each_shape
def test_cudnn_on_our_buffer(cuda, within, shape, dtype):
    """cuDNN computes on the packed buffer itself; its other weights are NaN."""
    import torch

    stack, x, state, expected = problem(shape, dtype)
    module = module_of(shape, stack, cuda)
    arguments = cudnn_arguments(module, shape, opaque.pack_buffer(shape, stack), x, state, cuda)
    with tf32_off("torch"), torch.no_grad():
        output = torch._cudnn_rnn(*arguments)[0]
    found = output.transpose(0, 1).double().cpu().numpy()
    worst = float(np.abs(found - expected).max())
    within(cuda, dtype, worst, tolerance(shape, dtype, expected))


@each_shape
@pytest.mark.sampled(18)
def test_the_call_of_cudnn_is_well_formed(shape):
    """Without a GPU: torch's own model of the operator takes the call and tells the sizes."""
    torch = pytest.importorskip("torch", reason="torch is not installed")
    fake = pytest.importorskip("torch._subclasses.fake_tensor")
    stack, x, state, expected = problem(shape, "float32")
    module = module_of(shape, stack, "cpu")
    buffer = opaque.pack_buffer(shape, stack)
    arguments = cudnn_arguments(module, shape, buffer, x, state, "cpu")
    with fake.FakeTensorMode() as mode:
        given = torch.utils._pytree.tree_map_only(torch.Tensor, mode.from_tensor, arguments)
        output, last, *_ = torch._cudnn_rnn(*given)
    assert tuple(output.transpose(0, 1).shape) == expected.shape
    assert tuple(last.shape) == state[0].shape


@pytest.mark.parametrize("cell", opaque_shape.CUDNN_CELLS)
def test_a_wrong_buffer_is_caught(device, cell):
    """The comparison can fail: the buffer read from its end, or shifted by one matrix."""
    shape = OpaqueShape(cell, 2, 4, 5, "bidirectional")
    stack, x, state, expected = problem(shape, "float32")
    buffer = opaque.pack_buffer(shape, stack)
    for spoiled in (buffer[::-1].copy(), np.roll(buffer, 4 * 5)):
        module = module_of(shape, opaque.unpack_buffer(shape, spoiled), device)
        found = run_module(module, cell, x, state, device)
        assert np.abs(found - expected).max() > 100 * tolerance(shape, "float32", expected)

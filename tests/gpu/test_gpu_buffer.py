"""cuDNN's parameter buffer on the device itself: torch packs it, NVIDIA's library describes it."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from dataclasses import asdict
from typing import Any

import gpu_cudnn_library
import numpy as np
import pytest
from cudnn_library import DTYPES
from gpu_torch import buffer_of, flatten_arguments, module_of, random_stack
from opaque_shapes import SHAPES, expected_answer, random_shape

from rnnconvert.layouts import opaque
from rnnconvert.layouts.opaque_shape import OpaqueShape

QUESTIONS = 200


def shape_id(shape: OpaqueShape) -> str:
    projection = f"-proj{shape.num_proj}" if shape.num_proj else ""
    return f"{shape.cell}-{shape.num_layers}-{shape.direction}{projection}"


each_shape = pytest.mark.parametrize("shape", SHAPES, ids=shape_id)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@each_shape
def test_torch_packs_what_we_pack(device, within, shape, dtype):
    """Bit for bit."""
    stack = random_stack(shape, dtype)
    found = buffer_of(module_of(shape, stack, device), shape, device)
    expected = opaque.pack_buffer(shape, stack)
    assert (found.dtype, found.size) == (expected.dtype, expected.size)
    different = found.reshape(-1).view("u1") != expected.view("u1")
    within(device, dtype, float(np.count_nonzero(different)), 0.0)


@each_shape
def test_the_call_of_torchs_packing_is_well_formed(shape):
    """A CPU build of torch takes the arguments and then says that it has no cuDNN."""
    torch = pytest.importorskip("torch", reason="torch is not installed")
    arguments = flatten_arguments(module_of(shape, random_stack(shape, "float32"), "cpu"), shape)
    with pytest.raises(NotImplementedError, match="_cudnn_rnn_flatten_weight"):
        torch._cudnn_rnn_flatten_weight(*arguments)
    with pytest.raises(TypeError):
        torch._cudnn_rnn_flatten_weight(*arguments[:-1])


@pytest.mark.gpu
def test_the_library_on_this_device_puts_everything_where_we_do(cuda):
    """cudnnGetRNNWeightParams with a real handle of the cuDNN that torch uses."""
    rng = random.Random(1)
    shapes = [*SHAPES, *(random_shape(rng) for _ in range(QUESTIONS))]
    questions = [{**asdict(shape), "dtype": rng.choice(list(DTYPES))} for shape in shapes]
    found = ask(questions)
    import torch

    assert found["version"] == torch.backends.cudnn.version()
    for shape, question, answer in zip(shapes, questions, found["answers"], strict=True):
        assert answer == expected_answer(shape), question


def ask(questions: list[dict[str, Any]]) -> dict[str, Any]:
    """The library's answers, from a process of its own: it may crash."""
    done = subprocess.run(
        [sys.executable, gpu_cudnn_library.__file__],
        input=json.dumps(questions), capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    if done.returncode == gpu_cudnn_library.NO_LIBRARY:
        pytest.skip(done.stderr.strip())
    assert done.returncode == 0, done.stderr or f"the library crashed ({done.returncode})"
    return json.loads(done.stdout)

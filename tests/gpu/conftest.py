"""Fixtures of the GPU tests.

The tests of calculations run on the CPU too, so that they are known to work before they meet a GPU:
`device` is "cpu" and "cuda", and what is on "cuda" has the mark `gpu`. Nothing here needs more than
numpy, h5py, click, torch and pytest.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gpu_figures
import pytest


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> str:
    """torch's name of the device."""
    return available(request.param)


@pytest.fixture
def cuda() -> str:
    """For what has no counterpart on a CPU."""
    return available("cuda")


def available(device: str) -> str:
    """The device, or the test is skipped."""
    torch = pytest.importorskip("torch", reason="torch is not installed")
    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip(f"torch {torch.__version__} sees no CUDA device")
    if device == "cuda" and not torch.backends.cudnn.is_available():
        pytest.skip(f"torch {torch.__version__} has no cuDNN")
    return device


@pytest.fixture
def within(request: pytest.FixtureRequest) -> Callable[..., None]:
    """Assert that a worst difference is within its tolerance; it goes into the figures first."""

    def check(device: str, dtype: str, max_abs: float, tolerance: float) -> None:
        gpu_figures.record(_name(request.node), device, dtype, max_abs, tolerance)
        assert max_abs <= tolerance

    return check


@pytest.fixture
def note(request: pytest.FixtureRequest) -> Callable[..., None]:
    """Put a difference into the figures; nothing is asked of it."""

    def add(device: str, dtype: str, max_abs: float, what: str) -> None:
        test = f"{_name(request.node)}: {what}"
        gpu_figures.record(test, device, dtype, max_abs, None)

    return add


def _name(node: Any) -> str:
    return str(node.originalname)

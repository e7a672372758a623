"""Comparing arrays that a lowered graph and the reference gave."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

TOLERANCES = {"float64": 1e-10, "float32": 2e-5, "float16": 1e-2, "bfloat16": 5e-2}
"""Largest difference of an output whose numbers are about 1, by the lowest precision in play."""


@dataclass(frozen=True)
class SignatureResult:
    """How one signature of the lowered model compares with the reference.

    Attributes:
        signature: its name; for a frozen graph "graph"; for a MetaGraph the name of an op; for the
            level `layers` the place of an op.
        status: "passed", "failed" or "skipped".
        reason: why it failed without numbers, or was skipped.
        max_abs: largest difference of all outputs.
        tolerance: that of the output with the largest difference in relation to its tolerance.
        worst: that output, and the place in it.
        inputs: shapes of what was fed.
        seed: of the inputs.
        original: what computed the original's side: "reference" (its cuDNN ops by numpy, the rest
            by TensorFlow on the CPU), or the TensorFlow device that the original itself ran on.
    """

    signature: str
    status: str
    reason: str | None = None
    max_abs: float | None = None
    tolerance: float | None = None
    worst: str | None = None
    inputs: Mapping[str, tuple[int, ...]] | None = None
    seed: int | None = None
    original: str = "reference"


def compare_outputs(
    name: str,
    found: Mapping[str, Any],
    wanted: Mapping[str, Any],
    precision: str,
    tolerance: Callable[[float], float] | None = None,
) -> SignatureResult:
    """Compare all outputs; the worst is that which is farthest beyond its tolerance.

    Args:
        name: for the result.
        found, wanted: arrays by output.
        precision: the lowest in play, a key of TOLERANCES.
        tolerance: what was asked for instead, from the largest output.
    """
    worst = (-1.0, 0.0, "no output")
    largest = 0.0
    for key in sorted(wanted):
        a, b = np.asarray(found[key]), np.asarray(wanted[key])
        if a.shape != b.shape:
            return SignatureResult(
                name, "failed", f"{key}: shape {a.shape}, but the original gives {b.shape}"
            )
        difference, place = _largest_difference(a, b)
        allowed = _tolerance(b, precision, tolerance)
        largest = max(largest, difference)
        excess = difference / allowed if allowed else (np.inf if difference else 0.0)
        if excess > worst[0]:
            worst = (excess, allowed, f"{key}{list(place)}" if a.ndim else key)
    status = "passed" if worst[0] <= 1.0 else "failed"
    return SignatureResult(name, status, None, largest, worst[1], worst[2])


def first_line(error: Exception) -> str:
    """What TensorFlow said, without the places in its sources and the graph."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    at = next((n for n, line in enumerate(lines) if line.startswith("[[")), None)
    no_kernel = next((line for line in lines if "No OpKernel was registered" in line), None)
    if no_kernel is not None:  # what follows is a list of all kernels
        return no_kernel
    if at:
        return lines[at - 1]
    return lines[0] if lines else type(error).__name__


def _largest_difference(a: Any, b: Any) -> tuple[float, tuple[int, ...]]:
    """The largest difference and its place; infinite where only one side is a number."""
    if not a.size:
        return 0.0, ()
    if a.dtype.kind in "OSU":
        apart = (a != b).astype(np.float64)
    else:
        wide = np.complex128 if a.dtype.kind == "c" else np.float64
        a, b = a.astype(wide), b.astype(wide)
        with np.errstate(invalid="ignore"):
            apart = np.abs(a - b)
        same = (a == b) | (np.isnan(a) & np.isnan(b))
        apart = np.where(same, 0.0, np.where(np.isfinite(apart), apart, np.inf))
    place = np.unravel_index(int(np.argmax(apart)), a.shape)
    return float(apart[place]), tuple(int(index) for index in place)


def _tolerance(wanted: Any, precision: str, asked: Callable[[float], float] | None) -> float:
    """Nothing for whole numbers, words and truth values; else by precision and size."""
    if wanted.dtype.kind in "OSUbiu":
        return 0.0
    sizes = np.abs(wanted.astype(np.complex128))
    sizes = sizes[np.isfinite(sizes)]
    largest = float(sizes.max(initial=0.0))
    if asked is not None:
        return asked(largest)
    return max(1.0, largest) * max(
        TOLERANCES.get(kind, 0.0) for kind in (precision, wanted.dtype.name)
    )

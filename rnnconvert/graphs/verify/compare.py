"""Comparing arrays that a lowered graph and the reference gave."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from rnnconvert.report import LevelResult
from rnnconvert.verification.compare import (
    Difference,
    compare_arrays,
    in_tolerances,
    largest_of,
)

TOLERANCES = {"float64": 1e-10, "float32": 2e-5, "float16": 1e-2, "bfloat16": 5e-2}
"""Largest difference of an output whose numbers are about 1, by the lowest precision in play."""

BY_REFERENCE = "tensorflow, cuDNN ops of the original by the float64 reference"
"""The engine of the level `model` where no GPU runs the original."""


def compare_outputs(
    name: str,
    found: Mapping[str, Any],
    wanted: Mapping[str, Any],
    precision: str,
    tolerance: Callable[[float], float] | None = None,
) -> LevelResult:
    """Compare all outputs; the worst is that which is farthest beyond its tolerance.

    Args:
        name: for the result: of a signature; for a frozen graph "graph"; for a MetaGraph the name
            of an op; for the level `layers` the place of an op.
        found, wanted: arrays by output.
        precision: the lowest in play, a key of TOLERANCES.
        tolerance: what was asked for instead, from the largest output.

    Returns:
        Passed or failed; `max_abs` is the largest difference of all outputs, `tolerance` and
        `worst` are those of the output with the largest difference in units of its tolerance.
    """
    worst = (-1.0, 0.0, "no output")
    largest = 0.0
    for key in sorted(wanted):
        got, expected = np.asarray(found[key]), np.asarray(wanted[key])
        if got.shape != expected.shape:
            reason = f"{key}: shape {got.shape}, but the original gives {expected.shape}"
            return LevelResult("failed", reason=reason, name=name)
        difference = compare_arrays(expected, got)
        allowed = _tolerance(expected, precision, tolerance)
        largest = max(largest, difference.max_abs)
        excess = in_tolerances(difference.max_abs, allowed)
        if excess > worst[0]:
            worst = (excess, allowed, _where(difference, key))
    status = "passed" if worst[0] <= 1.0 else "failed"
    return LevelResult(status, name=name, max_abs=largest, tolerance=worst[1], worst=worst[2])


def _where(difference: Difference, output: str) -> str:
    return difference.at(output) if difference.place else output


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


def _tolerance(wanted: Any, precision: str, asked: Callable[[float], float] | None) -> float:
    """Nothing for whole numbers, words and truth values; else by precision and size."""
    if wanted.dtype.kind in "OSUbiu":
        return 0.0
    largest = largest_of(wanted)
    if asked is not None:
        return asked(largest)
    return max(1.0, largest) * max(
        TOLERANCES.get(kind, 0.0) for kind in (precision, wanted.dtype.name)
    )

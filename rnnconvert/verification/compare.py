"""Comparing two arrays: the worst element and where it is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Difference:
    """The largest difference of two arrays.

    Attributes:
        max_abs: the difference; infinite where one side is NaN and the other is not.
        max_rel: the same, divided by the expected value there.
        place: index of the element.
    """

    max_abs: float
    max_rel: float
    place: tuple[int, ...]

    def at(self, name: str) -> str:
        """E.g. "dense_1[2, 0]"."""
        return f"{name}[{', '.join(str(index) for index in self.place)}]"


def compare_arrays(expected: Any, found: Any) -> Difference:
    """The largest difference of two arrays of one shape. Equal infinities and NaN are equal.

    Words are 1 apart where they are not the same, complex numbers by the size of the difference.
    """
    a, b = _comparable(expected), _comparable(found)
    if not a.size:
        return Difference(0.0, 0.0, ())
    gap = (a != b).astype(np.float64) if _is_text(a) else _gaps(a, b)
    place = np.unravel_index(int(np.argmax(gap)), gap.shape)
    worst = float(gap[place])
    size = 1.0 if _is_text(a) else float(abs(a[place]))
    relative = worst / max(size, 1e-300) if worst and np.isfinite(worst) else worst
    return Difference(worst, relative, tuple(int(index) for index in place))


def _comparable(values: Any) -> Any:
    """As float64 or complex128; words as they are."""
    array = np.asarray(values)
    if _is_text(array):
        return array
    return array.astype(np.complex128 if array.dtype.kind == "c" else np.float64)


def _is_text(array: Any) -> bool:
    return array.dtype.kind in "OSU"


def _gaps(a: Any, b: Any) -> Any:
    with np.errstate(invalid="ignore", over="ignore"):  # inf - inf
        gap = np.where((a == b) | (np.isnan(a) & np.isnan(b)), 0.0, np.abs(a - b))
    return np.where(np.isnan(gap), np.inf, gap)


_MOST_STEPS = 64


def by_step(expected: Any, found: Any) -> tuple[float, ...]:
    """The largest difference at each time step, axis 1; empty where there is no such axis.

    Of more than 64 steps, some are taken together.
    """
    a, b = np.asarray(expected, np.float64), np.asarray(found, np.float64)
    if a.ndim < 3 or not a.size:
        return ()
    parts = np.array_split(np.arange(a.shape[1]), min(a.shape[1], _MOST_STEPS))
    return tuple(compare_arrays(a[:, part], b[:, part]).max_abs for part in parts)


def largest_of(values: Any) -> float:
    """Largest absolute value; NaN and infinity do not count."""
    wide = np.abs(_comparable(values))
    return float(wide.max(initial=0.0, where=np.isfinite(wide)))


def in_tolerances(gap: float, tolerance: float) -> float:
    """A difference in units of the tolerance; a tolerance of 0 allows only 0."""
    if gap == 0:
        return 0.0
    return gap / tolerance if tolerance and np.isfinite(gap) else np.inf

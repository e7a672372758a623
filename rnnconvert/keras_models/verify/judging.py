"""What two models gave, compared output by output: the worst place, and what is allowed there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from rnnconvert.errors import NotConvertibleError
from rnnconvert.keras_models.verify.keras_engine import ModelRunner, Outputs
from rnnconvert.options import Inputs
from rnnconvert.report import LevelResult, Part
from rnnconvert.verification.compare import (
    Difference,
    by_step,
    compare_arrays,
    in_tolerances,
    largest_of,
)
from rnnconvert.verification.inputs import Array
from rnnconvert.verification.rounding import EPS, MOST, WOBBLES

_RECURRENT = ("LSTM", "GRU", "SimpleRNN", "CuDNNLSTM", "CuDNNGRU", "RNN", "Bidirectional",
              "ConvLSTM1D", "ConvLSTM2D", "ConvLSTM3D")  # fmt: skip


@dataclass(frozen=True)
class Worst:
    """The worst place of a comparison, in units of its tolerance.

    Attributes:
        difference: there; of an output unless only a layer's output is beyond its tolerance.
        name: of the output or layer.
        where: name, index and batch.
        tolerance: there.
        in_tolerances: difference by tolerance; above 1 the models differ.
        first: the first layer whose output is beyond its tolerance.
        by_step: the difference over time, of an output or layer that has time steps.
        parts: every output and layer that was compared.
    """

    difference: Difference
    name: str
    where: str
    tolerance: float
    in_tolerances: float
    first: str | None = None
    by_step: tuple[float, ...] = ()
    parts: tuple[Part, ...] = ()


Tolerance = Callable[[int, str, Array], float]
"""Tolerance of the output or layer of this name in this batch, given what is expected of it."""


def worst_of(expected: list[Outputs], found: list[Outputs], tolerance: Tolerance) -> Worst:
    """The worst output; or, where all outputs agree and a layer's doesn't, the worst layer."""
    of_outputs: list[Worst] = []
    of_layers: list[Worst] = []
    for batch, (one, other) in enumerate(zip(expected, found, strict=True)):
        if [a.shape for a in one.outputs.values()] != [a.shape for a in other.outputs.values()]:
            shapes = [[array.shape for array in o.outputs.values()] for o in (one, other)]
            raise NotConvertibleError(
                f"the models can't be compared: outputs of {shapes[0]} and of {shapes[1]}"
            )
        pairs = zip(one.outputs, one.outputs.values(), other.outputs.values(), strict=True)
        of_outputs += [judge(batch, name, a, b, tolerance) for name, a, b in pairs]
        of_layers += [
            judge(batch, name, a, other.layers[name], tolerance)
            for name, a in one.layers.items()
            if name in other.layers and other.layers[name].shape == a.shape
        ]
    beyond = [place for place in of_layers if place.in_tolerances > 1]
    worst = max(of_outputs, key=badness)
    if beyond and worst.in_tolerances <= 1:
        worst = max(beyond, key=badness)
    return replace(
        worst, first=beyond[0].name if beyond else None, parts=parts_of([*of_layers, *of_outputs])
    )


def parts_of(places: list[Worst]) -> tuple[Part, ...]:
    """Each output and layer once: of several batches, where it is worst."""
    by_name: dict[str, Worst] = {}
    for place in places:
        by_name[place.name] = max(by_name.get(place.name, place), place, key=badness)
    return tuple(
        Part(each.name, each.difference.max_abs, each.tolerance, each.by_step)
        for each in by_name.values()
    )


def badness(place: Worst) -> tuple[float, float]:
    """By which the worst of several places is found."""
    return place.in_tolerances, place.difference.max_abs


def judge(batch: int, name: str, a: Array, b: Array, tolerance: Tolerance) -> Worst:
    """One output or layer of a batch: where it differs most."""
    gap = compare_arrays(a, b)
    allowed = tolerance(batch, name, a)
    where = gap.at(name) + (f" of batch {batch + 1}" if batch else "")
    ratio = in_tolerances(gap.max_abs, allowed)
    return Worst(gap, name, where, allowed, ratio, by_step=by_step(a, b))


def native_tolerance(runner: ModelRunner, batches: list[list[Array]], inputs: Inputs) -> Tolerance:
    """Roundings in the dtype that the model computes in: one for each layer and time step."""
    if inputs.asked_tolerance:
        return lambda batch, name, values: inputs.tolerance(largest_of(values))
    eps = coarsest_eps(runner.model)
    steps = max((a.shape[1] for batch in batches for a in batch if a.ndim > 1), default=1)
    roundings = _roundings(runner.model, steps)
    return lambda batch, name, values: 2.0 * eps * roundings * largest_of(values)


def _roundings(model: Any, steps: int) -> int:
    layers = model._flatten_layers(include_self=False)
    recurrent = sum(type(layer).__name__ in _RECURRENT for layer in layers)
    return len(list(model._flatten_layers())) + recurrent * steps


def coarsest_eps(model: Any) -> float:
    """Of the coarsest dtype that a layer with weights computes in."""
    names = {str(layer.compute_dtype) for layer in model._flatten_layers() if layer.weights}
    return max((EPS.get(name, 0.0) for name in names), default=0.0) or EPS["float32"]


def filled(result: LevelResult, worst: Worst, detail: str) -> LevelResult:
    """The result of a level: passed or failed as its worst place is, with its numbers."""
    failed = worst.in_tolerances > 1
    return replace(
        result,
        status="failed" if failed else "passed",
        detail=detail,
        max_abs=worst.difference.max_abs,
        max_rel=worst.difference.max_rel,
        tolerance=worst.tolerance,
        worst=worst.where,
        first_difference=worst.first if failed else None,
        parts=worst.parts,
    )


# --- rounding, measured in float64 ----------------------------------------------------------


def rounding_of(moved: Sequence[Outputs], floor: float) -> tuple[Tolerance, Tolerance]:
    """What rounding may do to a model, measured on it; and that, but never more than a part of it.

    Args:
        moved: what the model gave in float64 for each batch, with each weight moved by one rounding
            of its dtype.
        floor: of the tolerance, in units of the largest value.
    """

    def rounding(batch: int, name: str, values: Array) -> float:
        other = {**moved[batch].layers, **moved[batch].outputs}[name]
        return WOBBLES * compare_arrays(values, other).max_abs + floor * largest_of(values)

    def tolerance(batch: int, name: str, values: Array) -> float:
        return min(rounding(batch, name, values), MOST * largest_of(values))

    return rounding, tolerance


def widened(batch: list[Array]) -> list[Array]:
    """Inputs in float64, where they are floats."""
    return [array.astype(np.float64) if array.dtype.kind == "f" else array for array in batch]

"""The levels `weights` and `layers` of a checkpoint's weights that were streamed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from rnnconvert.checkpoints.load import unpack_biases
from rnnconvert.checkpoints.rewrite import Packable
from rnnconvert.checkpoints.stack import CellPlace, Stack
from rnnconvert.checkpoints.stored_matrices import matrices_in
from rnnconvert.checkpoints.streams import StreamedWeights
from rnnconvert.checkpoints.verify import (
    bias_problem,
    check_stack_layers,
    run_places,
    run_source,
    weights_detail,
)
from rnnconvert.containers.checkpoint import Checkpoint
from rnnconvert.layouts.weights import Array
from rnnconvert.options import Options
from rnnconvert.progress import tell
from rnnconvert.report import LevelResult
from rnnconvert.verification.compare import largest_of

_AT_ONCE = 2**20
"""Numbers that are compared at once."""


@dataclass(frozen=True)
class StreamedLevels:
    """The levels of a stack that was streamed; `layers` is None where it was not asked for."""

    weights: LevelResult
    layers: LevelResult | None


@dataclass(frozen=True)
class WrittenPlaces:
    """Where a stack is in what was written.

    Attributes:
        places: of its tensors, layer by layer, forward before backward.
        rows: gives any of these tensors by its name, to be read by slices of its first axis.
        read: gives one as a whole, checked against its checksum where there is one.
        is_copied: they are the source's tensors, which were copied as they are.
    """

    places: Sequence[CellPlace]
    rows: Callable[[str], Any]
    read: Callable[[str], Array]
    is_copied: bool = False

    def bias(self, place: CellPlace, stack: Stack) -> Array:
        """(2, gates, units); a merged bias as halves."""
        named = {kind: self.read(name) for kind, name in place.tensors.items() if "bias" in kind}
        # As `rewrite.unpack_place`.
        forget_bias = stack.forget_bias if place in stack.places else None
        return unpack_biases(stack, place, named, forget_bias)


def check_streamed(
    stack: Stack, weights: Sequence[StreamedWeights], written: WrittenPlaces, checkpoint: Checkpoint
) -> LevelResult:
    """The level `weights` of a stack that was streamed."""
    for number, (own, place) in enumerate(zip(weights, written.places, strict=True)):
        if written.is_copied:
            problem = _copied_problem(place, written, checkpoint)
        else:
            problem = _matrix_problem(own, place, written) or bias_problem(
                stack.cell, own.bias, written.bias(place, stack)
            )
        if problem:
            return LevelResult("failed", detail=f"{stack.scope} layer {number}: {problem}")
    detail = weights_detail(stack.scope, stack.cell, len(weights))
    if stack.opaque is not None:
        detail += ", matrices of the buffer give its bits"
    return LevelResult("passed", detail=detail)


def _matrix_problem(own: StreamedWeights, place: CellPlace, written: WrittenPlaces) -> str | None:
    """What is wrong with matrices: they were compared where they went, which must be where the
    layout of the target has them."""
    for found in own.found:
        if found.difference:
            return found.difference
    shapes = {kind: written.rows(name).shape for kind, name in place.tensors.items()}
    expected = matrices_in(own.cell, place, shapes, own.dtype.itemsize)
    for kind, gate in expected:
        if own.written.get((kind, gate)) != expected[kind, gate]:
            return f"{kind} of gate {gate} is not where a reader looks for it"
    return None


def _copied_problem(place: CellPlace, written: WrittenPlaces, checkpoint: Checkpoint) -> str | None:
    """What differs in a place whose tensors were copied."""
    for name in place.tensors.values():
        one, other = checkpoint.rows(name), written.rows(name)
        if one.shape != other.shape or one.dtype != other.dtype:
            return f"{name} has another shape or type"
        count = max(1, _AT_ONCE * one.shape[0] // max(1, checkpoint.variables[name].size))
        for start in range(0, one.shape[0], count):
            rows = slice(start, start + count)
            if one[rows].tobytes() != other[rows].tobytes():
                return f"{name} differs"
    return None


def check_slots(slots: Sequence[Packable]) -> list[LevelResult]:
    """What was wrong with slots when they were written; empty where nothing was."""
    return [
        LevelResult("failed", detail=f"{own.variable}: {found.difference}")
        for own in slots
        for found in own.found
        if found.difference
    ]


def check_levels(
    stack: Stack,
    weights: Sequence[StreamedWeights],
    written: WrittenPlaces,
    checkpoint: Checkpoint,
    options: Options,
    *,
    adds_up: bool,
) -> StreamedLevels:
    """The levels of a stack that was streamed.

    Args:
        options: which levels are asked for, and with which inputs.
        adds_up: some of its biases were added up.
    """
    checked = check_streamed(stack, weights, written, checkpoint)
    if options.verify not in ("layers", "model") or checked.status != "passed":
        return StreamedLevels(checked, None)
    tell(f"proving the layers of {stack.scope}")
    biases = [written.bias(place, stack) for place in written.places] if adds_up else []
    layers = check_stack_layers(
        stack, run_source(stack, checkpoint.rows),
        partial(run_places, stack, written.places, written.rows), options.inputs,
        rounded=max(map(largest_of, biases)) if biases else None,
    )  # fmt: skip
    return StreamedLevels(checked, layers)

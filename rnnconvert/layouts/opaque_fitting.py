"""Which hyperparameters would fit a buffer of another size than was expected."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import product

from rnnconvert.layouts.opaque_shape import CUDNN_CELLS, DIRECTIONS, OpaqueShape


def fitting(size: int, near: OpaqueShape) -> tuple[OpaqueShape, ...]:
    """Hyperparameters whose buffer has `size` elements, those with the fewest changes first.

    Tries every cell, direction and input mode, 1 to 4 layers and as many as `near` has, with its
    projection and without, always with its number of units; input_size is solved for.
    """
    near = near.resolved
    counts, projections = {near.num_layers, 1, 2, 3, 4}, {near.num_proj, 0}
    found = []
    for cell, layers, direction, projection in product(
        CUDNN_CELLS, sorted(counts), DIRECTIONS, sorted(projections)
    ):
        if projection and cell != "lstm":
            continue
        least = OpaqueShape(cell, layers, near.num_units, 1, direction, num_proj=projection)
        per_input = len(least.directions) * len(least.gates) * least.num_units
        further_inputs, rest = divmod(size - least.size, per_input)
        if further_inputs >= 0 and not rest:
            found.append(replace(least, input_size=1 + further_inputs))
        skipping = replace(least, input_size=near.num_units, input_mode="skip_input")
        if skipping.size == size:
            found.append(skipping)
    return tuple(sorted(found, key=lambda shape: len(changes(near, shape))))


def changes(near: OpaqueShape, other: OpaqueShape) -> list[str]:
    """The hyperparameters of `other` that differ from those of `near`."""
    return [f"{name}={value}" for name, value in vars(other).items() if value != vars(near)[name]]


def misfit(shape: OpaqueShape, size: int) -> str:
    """Why `size` elements are wrong for `shape`, and which hyperparameters would be right."""
    message = f"the buffer has {size} elements; expected {shape.size} for {shape}; "
    others = [changes(shape.resolved, other) for other in fitting(size, shape)]
    nearest = [", ".join(words) for words in others if len(words) == len(others[0])]
    if not nearest:
        return message + "no other cell, direction, input size or number of layers fits either"
    return message + f"{size} would fit {listed(nearest, ' or ')}"


def listed(items: Sequence[str], joint: str = ", ") -> str:
    """The first few items in words."""
    return joint.join(items[:3]) + (f"{joint}..." if len(items) > 3 else "")

"""Stacks of every form whose buffers torch and NVIDIA's library are compared on."""

from __future__ import annotations

import itertools
import random
from typing import Any

from rnnconvert.layouts import opaque_shape
from rnnconvert.layouts.opaque_shape import OpaqueShape, Region

SHAPES = [
    OpaqueShape(cell, layers, 4, 5, direction)
    for cell, layers, direction in itertools.product(
        opaque_shape.CUDNN_CELLS, (1, 2, 3), opaque_shape.DIRECTIONS
    )
] + [
    OpaqueShape("lstm", layers, 4, 5, direction, num_proj=3)
    for layers, direction in itertools.product((1, 2), opaque_shape.DIRECTIONS)
]


def random_shape(rng: random.Random) -> OpaqueShape:
    cell = rng.choice(opaque_shape.CUDNN_CELLS)
    units = rng.choice([1, 2, 3, 5, 8, 17, 32, 64])
    mode = rng.choice(["linear_input", "linear_input", "skip_input"])
    return OpaqueShape(
        cell,
        num_layers=rng.randint(1, 4),
        num_units=units,
        input_size=units if mode == "skip_input" else rng.choice([1, 3, 4, 7, 16, 64, 129]),
        direction=rng.choice(list(opaque_shape.DIRECTIONS)),
        input_mode=mode,
        num_proj=rng.randint(0, units) if cell == "lstm" and rng.random() < 0.5 else 0,
    )


def expected_answer(shape: OpaqueShape) -> dict[str, Any]:
    """What `OpaqueShape` says, in the library's terms."""
    found: dict[str, Any] = {"size": shape.size, "matrices": [], "biases": []}
    for region in shape.regions:
        kind = "biases" if region.kind.endswith("bias") else "matrices"
        layer = region.layer * len(shape.directions) + shape.directions.index(region.direction)
        rows = [*region.shape, 1][:2]
        found[kind].append([layer, linear_layer(shape, region), region.offset, rows])
    return found


def linear_layer(shape: OpaqueShape, region: Region) -> int:
    """cuDNN's number of a matrix or bias: gates of the input, then recurrent ones, projection."""
    count = len(shape.gates)
    if region.gate is None:
        return 2 * count
    return shape.gates.index(region.gate) + (count if region.kind.startswith("recurrent") else 0)

"""Stacks of every form whose buffers torch and NVIDIA's library are compared on."""

import itertools

from rnnconvert.layouts import opaque
from rnnconvert.layouts.opaque import OpaqueShape

SHAPES = [
    OpaqueShape(cell, layers, 4, 5, direction)
    for cell, layers, direction in itertools.product(
        opaque.CUDNN_CELLS, (1, 2, 3), opaque.DIRECTIONS
    )
] + [
    OpaqueShape("lstm", layers, 4, 5, direction, num_proj=3)
    for layers, direction in itertools.product((1, 2), opaque.DIRECTIONS)
]

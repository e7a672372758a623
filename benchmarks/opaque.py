"""Speed of unpacking and packing cuDNN's parameter buffer, beside numpy's copy in the same run.

usage: python benchmarks/opaque.py [GIGABYTES]       (default 1)

GB/s of the buffer, the best of seven runs in turn. `unpack` makes views only, which takes the same
time for any size; another row copies every array too, as a caller does who keeps them.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from rnnconvert.layouts import opaque, opaque_arrays

SHAPES = {
    "lstm, 4 layers, bidirectional": opaque.OpaqueShape("lstm", 4, 1, 500, "bidirectional"),
    "gru, 1 layer": opaque.OpaqueShape("gru", 1, 1, 300),
}


def with_bytes(shape: opaque.OpaqueShape, count: int) -> opaque.OpaqueShape:
    """The shape with as many units as fit into `count` bytes of float32."""
    low, high = 1, 2**20
    while high - low > 1:
        middle = (low + high) // 2
        fits = replace(shape, num_units=middle).size * 4 <= count
        low, high = (middle, high) if fits else (low, middle)
    return replace(shape, num_units=low)


def best_times(functions: dict[str, Callable[[], Any]], runs: int = 7) -> dict[str, float]:
    """Best time of each in seconds; in turn, so that other work on the machine hits all alike."""
    best = dict.fromkeys(functions, float("inf"))
    for _ in range(runs):
        for label, function in functions.items():
            start = time.perf_counter()
            result = function()
            best[label] = min(best[label], time.perf_counter() - start)
            del result
    return best


def measure(name: str, shape: opaque.OpaqueShape) -> None:
    buffer = np.random.default_rng(0).random(shape.size, "float32")
    layers = opaque.unpack_buffer(shape, buffer)
    arrays = opaque_arrays.to_arrays(shape, layers)
    if not np.array_equal(opaque.pack_buffer(shape, layers), buffer):
        raise SystemExit("pack is not the inverse of unpack")
    rows = {
        "numpy copy of the buffer": buffer.copy,
        "pack": lambda: opaque.pack_buffer(shape, layers),
        "unpack, and copy every array": lambda: [
            array.copy()
            for array in opaque_arrays.to_arrays(
                shape, opaque.unpack_buffer(shape, buffer)
            ).values()
        ],
        "from_arrays (one array per gate)": lambda: opaque_arrays.from_arrays(arrays),
        "unpack (views only)": lambda: opaque.unpack_buffer(shape, buffer),
    }
    for label, seconds in best_times(rows).items():
        views = label.endswith("(views only)")
        speed = f"{seconds * 1e6:.0f} us" if views else f"{buffer.nbytes / seconds / 1e9:.2f} GB/s"
        print(f"| {name}, {shape.num_units} units | {label} | {speed} |")


def main() -> None:
    count = int(float(sys.argv[1]) * 1e9) if len(sys.argv) > 1 else 10**9
    print("| buffer | what | speed |\n| --- | --- | --- |")
    for name, shape in SHAPES.items():
        measure(name, with_bytes(shape, count))


if __name__ == "__main__":
    main()

"""Keras models with random weights for the tests of export, and how they are written and run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rnnconvert.exports.options import ExportOptions
from rnnconvert.exports.sources import Source
from rnnconvert.exports.written import Written
from rnnconvert.kinds import Kind

STEPS, FEATURES = 6, 5
MASK_VALUE = 9.0
TOLERANCE = 3e-6
"""Of float32 outputs about as large as 1."""


def of_sequences(*stack: Any, steps: int | None = STEPS, features: int = FEATURES) -> Any:
    """A model of layers one after the other."""
    import keras

    x = y = keras.Input((steps, features))
    for layer in stack:
        y = layer(y)
    return keras.Model(x, y)


def filled(model: Any, seed: int = 3) -> Any:
    """All weights random: no bias is zero, no two are equal; variances are positive."""
    generator = np.random.default_rng(seed)
    for variable in model.variables:
        values = generator.normal(0, 0.4, variable.shape)
        if "variance" in variable.path:
            values = np.abs(values) + 0.3
        if variable.dtype.startswith(("float", "bfloat")):
            variable.assign(values)
    return model


def sequences(batch: int, steps: int = STEPS, features: int = FEATURES, seed: int = 0) -> Any:
    return np.random.default_rng(seed).normal(size=(batch, steps, features)).astype(np.float32)


def with_holes(x: Any, seed: int = 1) -> Any:
    """Masked steps of every kind: at the beginning, in the middle, at the end, and all of them."""
    hit = np.random.default_rng(seed).random(x.shape[:2]) < 0.4
    places = np.arange(x.shape[1])
    hit[0] = places % 5 % 2 == 0
    hit[1] = places >= x.shape[1] // 2
    hit[2] = True
    found = x.copy()
    found[hit] = MASK_VALUE
    return found


def written(target: Any, model: Any, path: Path, **options: Any) -> tuple[Written, Any]:
    """What the target's writer tells, and the written model as a function of arrays."""
    source = Source("", model, path, Kind.KERAS_H5)
    done = target.write(source, path, ExportOptions.of(**options))
    return done, target.runner(path, done)


def predicted(model: Any, arrays: Sequence[Any]) -> list[Any]:
    """Keras' own outputs."""
    import keras

    found = model(list(arrays) if len(arrays) > 1 else arrays[0], training=False)
    return [keras.ops.convert_to_numpy(value) for value in keras.tree.flatten(found)]


def largest_difference(expected: Sequence[Any], found: Sequence[Any]) -> float:
    assert [a.shape for a in expected] == [a.shape for a in found]
    assert all(np.isfinite(a).all() for a in found)
    return max(float(np.abs(a - b).max()) for a, b in zip(expected, found, strict=True))


def assert_right(run: Any, model: Any, arrays: Sequence[Any]) -> None:
    """What was written gives the numbers of the original."""
    assert largest_difference(predicted(model, arrays), run(arrays)) < TOLERANCE

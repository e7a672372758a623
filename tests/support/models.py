"""The models that the end-to-end tests run on: this project's fixtures, and more where present."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]
FIXTURES = ROOT / "fixtures" / "keras"
SHARED = ROOT.parent / "shared"
"""A folder of further data beside the checkout; tests that need it say so when it is missing."""


@dataclass(frozen=True)
class Model:
    """A model file with inputs and the outputs that the original library (or torch) gave."""

    name: str
    path: Path

    @property
    def tolerance(self) -> float:
        return 5e-3 if "half" in self.name else 1e-5

    @property
    def has_lambda(self) -> bool:
        return self.path.parent.name in ("lam", "plain_lam")

    def inputs(self) -> list[np.ndarray]:
        folder = self.path.parent
        if (folder / "data.npz").exists():
            return _arrays(folder / "data.npz", "x")
        return _arrays(folder / "x.npz", "arr_")

    def outputs(self) -> list[np.ndarray]:
        folder = self.path.parent
        if (folder / "data.npz").exists():
            return _arrays(folder / "data.npz", "y")
        if (folder / "expected.npz").exists():
            return _arrays(folder / "expected.npz", "y")
        return _arrays(folder / "y.npz", "arr_")


def _arrays(path: Path, prefix: str) -> list[np.ndarray]:
    with np.load(path) as data:
        return [data[name] for name in sorted(data.files) if name.startswith(prefix)]


def _models(pattern: str, root: Path) -> list[Model]:
    found = sorted(root.glob(pattern))
    return [Model("-".join(path.relative_to(root).parts[:-1]), path) for path in found]


OWN = _models("*/*/model.h5", FIXTURES)
FURTHER = _models("keras/*/*/full.h5", SHARED / "fixtures") + _models(
    "plain/*/*/full.h5", SHARED / "fixtures"
)
WEIGHTS_ONLY = [
    path
    for model in OWN + FURTHER
    for path in [model.path.with_name("weights.h5")]
    if path.exists()
]
"""Weights-only files; the whole model lies beside each."""
REAL = sorted(
    path
    for path in (SHARED / "real-models").glob("*")
    if path.is_file() and path.name not in ("README.md", "git_lfs_pointer.hdf5")
)


def _case(model: Model) -> str:
    return model.path.parent.name


_LARGE = "wide"
"""A case of some million weights, which the sweeps run."""
NEWEST = [m for case, m in {_case(model): model for model in OWN}.items() if case != _LARGE]
OLDEST = {_case(model): model for model in reversed(OWN)}.values()
"""One fixture for each distinct case, by its newest and by its oldest writer."""
ENDS = [model for model in OWN if model in (*NEWEST, *OLDEST)]
"""Both of them: what lies between is left out where each one costs a run of Keras."""


def swept(items: Iterable[Any], default: Collection[Any]) -> list[Any]:
    """For `parametrize`: all items; those not in `default` are tested by the sweeps only."""
    return [
        pytest.param(item, marks=() if item in default else pytest.mark.corpus) for item in items
    ]


_LONG = 50
"""Time steps from which tracing a graph, which takes seconds, is faster than eager steps."""


def predict(keras_model: object, inputs: list[np.ndarray]) -> list[np.ndarray]:
    """All outputs of a Keras model, the whole input as one batch."""
    given = inputs if len(inputs) > 1 else inputs[0]
    if max(each.shape[1] for each in inputs if each.ndim > 1) > _LONG:
        outputs = keras_model.predict_on_batch(given)  # type: ignore[attr-defined]
    else:
        outputs = keras_model(given, training=False)  # type: ignore[operator]
    outputs = outputs if isinstance(outputs, list | tuple) else [outputs]
    return [np.asarray(output) for output in outputs]


def train(keras_model: object, model: Model) -> None:
    """One step of training on a fixture's data; eager, since tracing it takes seconds."""
    keras_model.run_eagerly = True  # type: ignore[attr-defined]
    keras_model.fit(model.inputs()[0], model.outputs()[0], verbose=0)  # type: ignore[attr-defined]


def worst_difference(found: list[np.ndarray], expected: list[np.ndarray]) -> float:
    assert len(found) == len(expected)
    return max(float(np.abs(a - b).max()) for a, b in zip(found, expected, strict=True))

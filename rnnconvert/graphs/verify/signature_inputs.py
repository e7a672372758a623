"""Random inputs for a model's signatures, from what is known of their dtypes and shapes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

_FREE_RANK = 3  # where a graph does not tell even the rank: time, batch, inputs
_FREE_SIZE = 5


@dataclass(frozen=True)
class InputSpec:
    """An input of a signature.

    Attributes:
        tensor: name of the tensor in the graph; "" where it is not fed by name.
        dtype: numpy's name of it, or "string".
        shape: None for sizes that are free; None as a whole where the rank is.
    """

    tensor: str
    dtype: str
    shape: tuple[int | None, ...] | None


@dataclass(frozen=True)
class Choices:
    """How inputs are chosen.

    Attributes:
        seed: of all random numbers.
        batch, timesteps: for the free sizes of the first and second axis.
        strings: values for string inputs.
        unrolled: the lowered model takes no other number of time steps than `timesteps`, and the
            signature does not tell which axis they are on.
        tolerance: from the largest output to the largest difference that is allowed; None derives
            it from the precision.
    """

    seed: int = 0
    batch: int = 3
    timesteps: int = 7
    strings: tuple[str, ...] = ("a", "b")
    unrolled: bool = False
    tolerance: Callable[[float], float] | None = None


def make_inputs(specs: Mapping[str, InputSpec], choices: Choices) -> list[dict[str, Any]]:
    """Inputs to try, the best first: a signature does not tell which of its sizes belong together,
    nor which of its numbers are indices.

    The first has `batch` and `timesteps` on the first two axes wherever they are free; the second
    exchanges them, the third has one size for all. Then the same with small whole numbers.
    """
    sizes = [
        (choices.batch, choices.timesteps),
        (choices.timesteps, choices.batch),
        (_FREE_SIZE, _FREE_SIZE),
    ]
    return [
        {
            name: _values(spec, pair, whole, choices, np.random.default_rng([choices.seed, number]))
            for number, (name, spec) in enumerate(sorted(specs.items()))
        }
        for whole in (False, True)
        for pair in sizes
    ]


def _values(
    spec: InputSpec,
    sizes: tuple[int, int],
    whole: bool,
    choices: Choices,
    generator: np.random.Generator,
) -> Any:
    given = (None,) * _FREE_RANK if spec.shape is None else spec.shape
    free = [*sizes, *[_FREE_SIZE] * len(given)]
    shape = [size if size is not None else free[axis] for axis, size in enumerate(given)]
    if spec.dtype == "string":
        words = np.array(choices.strings, object)
        return generator.choice(words, shape)
    kind = np.dtype(spec.dtype).kind
    if kind in "iu" or (whole and kind == "f"):
        # Small: an index into any vocabulary, a length of any sequence.
        return generator.integers(1, 3, shape).astype(spec.dtype)
    if kind == "b":
        return generator.integers(0, 2, shape).astype(bool)
    if kind == "c":
        return generator.standard_normal(shape).astype(spec.dtype)
    return (0.7 * generator.standard_normal(shape)).astype(spec.dtype)


def words_of_assets(directory: Path, limit: int = 8) -> tuple[str, ...]:
    """Some lines of the text files among a SavedModel's assets: words that its tables know.

    Links are not followed: they may lead to anybody's words.
    """
    words: list[str] = []
    folder = directory / "assets"
    is_own = folder.is_dir() and not folder.is_symlink()
    for path in sorted(folder.iterdir()) if is_own else ():
        if not path.is_file() or path.is_symlink():
            continue
        with path.open("rb") as file:
            start = file.read(4096)
        try:
            lines = start.decode("utf-8").splitlines()
        except UnicodeDecodeError:
            continue
        words += [line for line in lines if 0 < len(line) < 80]
    return tuple(words[:limit])


def shapes_of(inputs: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """Shapes of what was fed, for the report."""
    return {name: tuple(np.shape(value)) for name, value in inputs.items()}

"""rnnconvert: Keras models with cuDNN recurrent layers, made portable, and proved equal.

    >>> import rnnconvert
    >>> report = rnnconvert.convert("model.h5", "out.h5")      # doctest: +SKIP
    >>> report.verdict                                          # doctest: +SKIP
    'equivalent'

Importing this imports numpy and h5py, never TensorFlow, Keras or torch.
"""

from __future__ import annotations

from os import PathLike
from pathlib import Path
from typing import Any

from rnnconvert.errors import (
    ConversionError,
    DifferenceError,
    NotConvertibleError,
    OutputError,
    UnreadableInputError,
    UsageError,
)

__all__ = [
    "ConversionError",
    "DifferenceError",
    "NotConvertibleError",
    "OutputError",
    "UnreadableInputError",
    "UsageError",
    "__version__",
    "convert",
    "inspect",
    "layouts",
]


def convert(
    source: str | PathLike[str], output: str | PathLike[str] | None = None, **options: Any
) -> Any:
    """Convert a Keras HDF5 file with CuDNN layers to one that loads anywhere.

    Args:
        source: the input file; it is never changed, unless with `in_place=True`.
        output: where to write; default `model.h5` to `model.portable.h5` beside the input.
        **options: fields of `rnnconvert.pipeline.Options`, named as on the command line:
            to, verify, target, optimizer, force, in_place, dry_run, check, hashes, inputs.

    Returns:
        The `Report`; `report.to_dict()` is its JSON form.

    Raises:
        ConversionError: one subclass for each exit code. Its `report` tells how far it got.
    """
    from rnnconvert.pipeline import Options, run

    return run(Path(source), Path(output) if output is not None else None, Options(**options))


def inspect(path: str | PathLike[str], *, target: str = "keras3", hashes: bool = True) -> Any:
    """What is inside a Keras HDF5 file and what `convert` would do. Writes nothing.

    Returns:
        An `Inspection`, a frozen dataclass; `.to_dict()` is its JSON form.

    Raises:
        ConversionError: the file can't be read or is no model.
    """
    from rnnconvert.inspection import run

    return run(Path(path), target=target, hashes=hashes)


def __getattr__(name: str) -> str:
    if name == "__version__":  # reading the metadata takes a while; few need it
        import importlib.metadata

        return importlib.metadata.version("rnnconvert")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

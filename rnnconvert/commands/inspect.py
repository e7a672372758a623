"""What is inside a model, and what a conversion would do. Nothing is written."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from rnnconvert.containers.budget import max_bytes
from rnnconvert.errors import errors_of, last_resort
from rnnconvert.kinds import GRAPHS, Kind, kind_of
from rnnconvert.options import Options

if TYPE_CHECKING:
    from rnnconvert.checkpoints.inspect import CheckpointInspection
    from rnnconvert.graphs.inspect import GraphInspection
    from rnnconvert.keras_models.inspect import Inspection


def inspect_path(
    path: Path, options: Options
) -> Inspection | CheckpointInspection | GraphInspection:
    """Inspect one model.

    Args:
        options: of it `target`, `hashes` and `stack` are read.

    Raises:
        ConversionError: it can't be read, or is no model.
    """
    with max_bytes(options.max_bytes), errors_of(path), last_resort():
        kind = kind_of(path)
        # What is imported here brings code that only such inputs need.
        if kind is Kind.CHECKPOINT:
            from rnnconvert.checkpoints import inspect as checkpoints

            return checkpoints.inspect_checkpoint(path, options)
        if kind in GRAPHS:
            from rnnconvert.graphs import inspect as graphs

            return graphs.inspect_graph(path, kind, options)
        from rnnconvert.keras_models import inspect as keras

        return keras.inspect_keras(path, kind, target=options.target, hashes=options.hashes)

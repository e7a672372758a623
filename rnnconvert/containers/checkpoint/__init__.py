"""TensorFlow checkpoints, version 1 and 2, read and written with numpy alone."""

from __future__ import annotations

from pathlib import Path

from rnnconvert.containers.checkpoint.bundle import data_path, index_path
from rnnconvert.containers.checkpoint.files import require_no_lfs_pointer
from rnnconvert.containers.checkpoint.locate import find_checkpoint
from rnnconvert.containers.checkpoint.v1 import open_slices
from rnnconvert.containers.checkpoint.v2 import open_bundle
from rnnconvert.containers.checkpoint.variables import (
    Checkpoint,
    CheckpointPath,
    RawPlace,
    Source,
    VariableInfo,
)
from rnnconvert.containers.checkpoint.writer import write_checkpoint
from rnnconvert.errors import UnreadableInputError

__all__ = [
    "Checkpoint",
    "CheckpointPath",
    "RawPlace",
    "Source",
    "VariableInfo",
    "data_path",
    "find_checkpoint",
    "index_path",
    "open_checkpoint",
    "write_checkpoint",
]


def open_checkpoint(path: Path | CheckpointPath) -> Checkpoint:
    """Open a checkpoint by anything that `find_checkpoint` takes, or by what it gave.

    Raises:
        UnreadableInputError: no checkpoint, or one whose index can't be read.
        UsageError: a directory with several checkpoints.
    """
    found = path if isinstance(path, CheckpointPath) else _require_checkpoint(path)
    return open_bundle(found) if found.version == 2 else open_slices(found)


def _require_checkpoint(path: Path) -> CheckpointPath:
    found = find_checkpoint(path)
    if found is None:
        if path.is_file():
            require_no_lfs_pointer(path)
        raise UnreadableInputError(
            f"{path} is no TensorFlow checkpoint; expected its prefix, its .index file, a version "
            "1 file, or a directory with a 'checkpoint' file"
        )
    return found

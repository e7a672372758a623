"""Keras models in any container, opened as the HDF5 file that they are or can be rebuilt as."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from rnnconvert.keras_models.files.h5 import KerasH5, describe_h5, open_keras_h5
from rnnconvert.keras_models.files.rebuilt import Rebuilt
from rnnconvert.kinds import Kind
from rnnconvert.publish import scratch_directory, temporary_file, write_errors
from rnnconvert.report import FileInfo


@contextmanager
def open_keras(path: Path, kind: Kind, *, with_hash: bool) -> Iterator[tuple[FileInfo, KerasH5]]:
    """What the report says of a Keras file, and the file, opened as HDF5.

    Args:
        kind: one of `kinds.KERAS`, or a SavedModel.

    Raises:
        UnreadableInputError: it is damaged.
        NotConvertibleError: it can't be rebuilt as an HDF5 file.
    """
    if kind is Kind.KERAS_H5:
        with open_keras_h5(path) as file:
            yield describe_h5(file, with_hash=with_hash), file
        return
    info = FileInfo.of(path, kind.value, with_hash=with_hash)
    with rebuilt_h5(path, kind) as (rebuilt, _), open_keras_h5(rebuilt) as file:
        if kind in (Kind.SAVED_MODEL, Kind.KERAS):  # which say it inside
            info = replace(info, keras_version=file.keras_version, backend=file.backend)
        yield info, file


@contextmanager
def rebuilt_h5(source: Path, kind: Kind) -> Iterator[tuple[Path, tuple[str, ...]]]:
    """The Keras model of another container as a temporary HDF5 file, and warnings."""
    with temporary_file(scratch_directory(), ".h5") as file:
        with write_errors(file.parent):
            rebuilt = _rebuild(source, file, kind)
        yield file, rebuilt.warnings


def _rebuild(source: Path, target: Path, kind: Kind) -> Rebuilt:
    # Imported where it is met: an HDF5 file needs none of them.
    if kind is Kind.SAVED_MODEL:
        from rnnconvert.keras_models.files import saved_model

        return saved_model.rebuild_saved_model(source, target)
    if kind is Kind.KERAS_1:
        from rnnconvert.keras_models.files import keras1

        return keras1.rebuild_keras1(source, target)
    if kind is Kind.THEANO:
        from rnnconvert.keras_models.files import theano

        return theano.rebuild_theano(source, target)
    if kind is Kind.KERAS:
        from rnnconvert.keras_models.files import zip_file

        return zip_file.rebuild_zip(source, target)
    from rnnconvert.keras_models.files import weights_h5

    return weights_h5.rebuild_weights(source, target)

"""What a path holds: one answer for every command. The content decides, never the name."""

from __future__ import annotations

import enum
from pathlib import Path

from rnnconvert.containers import safe_h5
from rnnconvert.containers.checkpoint import find_checkpoint
from rnnconvert.containers.sniff import exists, is_zip, require_hdf5
from rnnconvert.errors import UnreadableInputError


class Kind(enum.Enum):
    """A kind of model; the value is its name in reports, but for HDF5, which has two."""

    KERAS_H5 = "keras-h5"
    KERAS_1 = "keras1-h5"
    KERAS_WEIGHTS = "keras-weights"
    KERAS = "keras"
    SAVED_MODEL = "savedmodel"
    GRAPH = "frozen-graph"
    META_GRAPH = "meta-graph"
    CHECKPOINT = "tf-checkpoint"

    @property
    def title(self) -> str:
        """For sentences."""
        return _TITLES[self]


_TITLES = {
    Kind.KERAS_H5: "a Keras HDF5 file",
    Kind.KERAS_1: "a Keras HDF5 file of Keras 1",
    Kind.KERAS_WEIGHTS: "a .weights.h5 file of Keras 3's form",
    Kind.KERAS: "a .keras file",
    Kind.SAVED_MODEL: "a SavedModel",
    Kind.GRAPH: "a frozen graph",
    Kind.META_GRAPH: "a MetaGraph",
    Kind.CHECKPOINT: "a checkpoint",
}

_SAVED_MODELS = ("saved_model.pb", "saved_model.pbtxt", "saved_model.cpb")
KERAS = (Kind.KERAS_H5, Kind.KERAS_1, Kind.KERAS_WEIGHTS, Kind.KERAS)
GRAPHS = (Kind.SAVED_MODEL, Kind.GRAPH, Kind.META_GRAPH)


def kind_of(path: Path) -> Kind:
    """The kind of model that a path holds.

    Protobufs have no magic number: graphs alone go by their names (.pb, .meta).

    Raises:
        UnreadableInputError: missing, damaged, or none of them.
        UsageError: several models, of which one has to be chosen.
    """
    is_file = exists(path) and path.is_file()
    if is_file and path.suffix == ".meta" and path.stat().st_size:
        return Kind.META_GRAPH
    if path.is_dir() and any((path / name).is_file() for name in _SAVED_MODELS):
        return Kind.SAVED_MODEL
    if find_checkpoint(path) is not None:
        return Kind.CHECKPOINT
    if is_file and path.stat().st_size:
        if is_zip(path):
            return Kind.KERAS
        if path.suffix == ".pb":
            return Kind.GRAPH
    if path.is_dir():
        _refuse_served(path)
        _refuse_without_graph(path)
    require_hdf5(path)
    with safe_h5.open_h5(path) as file:
        if safe_h5.has(file, "model_weights") or "layer_names" in file.attrs:
            from rnnconvert.containers.keras1 import is_keras1

            return Kind.KERAS_1 if is_keras1(file) else Kind.KERAS_H5
        from rnnconvert.containers.keras_weights import is_keras_weights  # few files need it

        return Kind.KERAS_WEIGHTS if is_keras_weights(file) else Kind.KERAS_H5


def _refuse_served(path: Path) -> None:
    """TensorFlow Serving keeps models as DIRECTORY/VERSION: name the one to give."""
    inner = sorted(path.glob("*/saved_model.pb"))
    if inner:
        raise UnreadableInputError(
            f"a directory of {len(inner)} SavedModels; give one of them, as {inner[-1].parent}"
        )


def _refuse_without_graph(path: Path) -> None:
    """A SavedModel's directory of which only other files were copied."""
    others = ("keras_metadata.pb", "fingerprint.pb", "variables/variables.index", "assets")
    found = [name for name in others if (path / name).exists()]
    if not found:
        return
    checkpoint = path / "variables" / "variables"
    more = ""
    if checkpoint.with_name("variables.index").exists():
        more = f"; what a checkpoint alone tells: rnnconvert inspect {checkpoint}"
    raise UnreadableInputError(
        f"saved_model.pb is missing beside {found[0]}: it holds the graph of a SavedModel; copy "
        f"the whole directory{more}"
    )

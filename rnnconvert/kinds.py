"""What a path holds: one answer for every command. The content decides, never the name."""

from __future__ import annotations

import enum
import re
from pathlib import Path

import h5py

from rnnconvert.containers import safe_h5
from rnnconvert.containers.sniff import exists, is_hdf5, is_zip, require_hdf5
from rnnconvert.errors import UnreadableInputError


class Kind(enum.Enum):
    """A kind of model; the value is its name in reports, but for HDF5, which has two."""

    KERAS_H5 = "keras-h5"
    KERAS_1 = "keras1-h5"
    THEANO = "theano-h5"
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
    Kind.THEANO: "a Keras HDF5 file of Keras 2 on Theano",
    Kind.KERAS_WEIGHTS: "a .weights.h5 file of Keras 3's form",
    Kind.KERAS: "a .keras file",
    Kind.SAVED_MODEL: "a SavedModel",
    Kind.GRAPH: "a frozen graph",
    Kind.META_GRAPH: "a MetaGraph",
    Kind.CHECKPOINT: "a checkpoint",
}

_BESIDE_THE_GRAPH = (
    "keras_metadata.pb", "fingerprint.pb", "variables/variables.index", "assets",
)  # fmt: skip
"""What lies beside a SavedModel's graph, also where that was not copied."""
_SAVED_MODELS = ("saved_model.pb", "saved_model.pbtxt", "saved_model.cpb")
KERAS = (Kind.KERAS_H5, Kind.KERAS_1, Kind.THEANO, Kind.KERAS_WEIGHTS, Kind.KERAS)
GRAPHS = (Kind.SAVED_MODEL, Kind.GRAPH, Kind.META_GRAPH)
KERAS_FILES = ("h5", "keras", "weights")
EXTENSIONS = {
    ".h5": "h5", ".hdf5": "h5", ".keras": "keras",
    ".npz": "npz", ".pb": "graph", ".meta": "graph",
}  # fmt: skip
"""What `--to` an output's extension stands for."""
KERAS_1_NAME = re.compile(r"(.*)_(W|U|b)(?:_([ifcozrh]))?(?:_\d+)?")
"""Arrays of Keras 1's layers."""
VARS, LAYERS, OLD_LAYERS = "vars", "layers", "_layer_checkpoint_dependencies"
"""Groups of `.weights.h5`: the variables of an object, and its layers in two versions' names."""


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
    if not (is_file and _is_surely_hdf5(path)) and _is_checkpoint(path):
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
            if is_keras1(file):
                return Kind.KERAS_1
            return Kind.THEANO if is_of_theano(file) else Kind.KERAS_H5
        return Kind.KERAS_WEIGHTS if is_keras_weights(file) else Kind.KERAS_H5


def _is_surely_hdf5(path: Path) -> bool:
    """Whether a file is HDF5, and no index beside it makes its name that of a checkpoint."""
    try:
        return is_hdf5(path) and not path.with_name(f"{path.name}.index").exists()
    except OSError:
        return False


def _is_checkpoint(path: Path) -> bool:
    from rnnconvert.containers.checkpoint import find_checkpoint  # an HDF5 file needs none of it

    return find_checkpoint(path) is not None


def is_saved_model(path: Path) -> bool:
    """Whether a directory is a SavedModel, or what is left of one without its graph."""
    if not path.is_dir():
        return False
    if any((path / name).is_file() for name in _SAVED_MODELS):
        return True
    return any((path / name).is_file() for name in _BESIDE_THE_GRAPH)  # "assets" is any folder


MODEL_NAMES = (".h5", ".hdf5", ".keras", ".pb")
"""Files of these names are taken for models, though damaged, unless their content is another."""


def seems_model(path: Path) -> bool:
    """Whether a file in a folder is to be worked on: by its content, or its name if it has none.

    Raises:
        UnreadableInputError: it can't be read.
    """
    if is_hdf5(path):
        with safe_h5.open_h5(path) as file:
            is_keras = safe_h5.has(file, "model_weights") or "layer_names" in file.attrs
            return is_keras or is_keras_weights(file)
    if is_zip(path):
        from rnnconvert.containers.safe_zip import SafeZip

        with SafeZip(path, path.stat().st_size) as archive:
            return "config.json" in archive.members
    return path.suffix in MODEL_NAMES


def is_keras1(file: h5py.File) -> bool:
    """Whether Keras 1 wrote an HDF5 file: by its version, or by how its arrays are called."""
    weights = file
    if safe_h5.has(file, "model_weights"):
        weights = safe_h5.get_group(file, "model_weights")
    version = safe_h5.text_attribute(weights, "keras_version") or safe_h5.text_attribute(
        file, "keras_version"
    )
    if version is not None:
        return version.startswith("1.")
    for group in safe_h5.strings(weights, "layer_names") or []:
        names = safe_h5.strings(safe_h5.get_group(weights, group), "weight_names") or []
        if any(KERAS_1_NAME.fullmatch(name.removesuffix(":0")) for name in names):
            return True
    return False


def is_of_theano(file: h5py.File) -> bool:
    """Whether Keras on Theano wrote an HDF5 file."""
    owners = [file]
    if safe_h5.has(file, "model_weights"):
        owners.append(safe_h5.get_group(file, "model_weights"))
    return any(safe_h5.text_attribute(owner, "backend") == "theano" for owner in owners)


def is_keras_weights(file: h5py.File) -> bool:
    """Whether an opened HDF5 file is a `.weights.h5` of the newer form."""
    if "layer_names" in file.attrs or safe_h5.has(file, "model_weights"):
        return False
    return safe_h5.has(file, VARS) or any(
        name.startswith((LAYERS, OLD_LAYERS)) for name in safe_h5.names(file)
    )


def _refuse_served(path: Path) -> None:
    """TensorFlow Serving keeps models as DIRECTORY/VERSION: name the one to give."""
    inner = sorted(path.glob("*/saved_model.pb"))
    if inner:
        raise UnreadableInputError(
            f"a directory of {len(inner)} SavedModels; give one of them, as {inner[-1].parent}"
        )


def _refuse_without_graph(path: Path) -> None:
    """A SavedModel's directory of which only other files were copied."""
    found = [name for name in _BESIDE_THE_GRAPH if (path / name).exists()]
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

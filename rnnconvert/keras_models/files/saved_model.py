"""A Keras model out of a SavedModel: its config and weights as a Keras 2 HDF5 file.

Nothing of the SavedModel is run and its graph is not even read. What comes out is the file that
`model.save("m.h5")` of the writer's Keras would have made: CuDNN layers and their weights as they
are. The HDF5 pipeline converts it from there.
"""

from __future__ import annotations

import json
from collections.abc import Container, Iterator
from pathlib import Path

import h5py

from rnnconvert.containers import safe_h5
from rnnconvert.containers.checkpoint import Checkpoint, index_path, open_checkpoint
from rnnconvert.containers.checkpoint.files import is_there
from rnnconvert.containers.object_graph import ObjectGraph, Variable, read_object_graph
from rnnconvert.errors import NotConvertibleError, UnreadableInputError
from rnnconvert.keras_models.config.tree import layer_name, root, show_path
from rnnconvert.keras_models.files.attributes import write_names, write_text_attribute
from rnnconvert.keras_models.files.layer_variables import LayerFinder
from rnnconvert.keras_models.files.rebuilt import Rebuilt
from rnnconvert.keras_models.files.saved_config import (
    SavedConfig,
    has_keras_config,
    saved_config_of,
)
from rnnconvert.keras_models.files.store import require_few

__all__ = ["SavedConfig", "has_keras_config", "rebuild_saved_model", "saved_config_of"]

_STATE = ("optimizer", "keras_api")
"""Children of a model that hold training's state: the optimizer's variables, the metrics'."""


def rebuild_saved_model(saved_model: Path, target: Path) -> Rebuilt:
    """Write the Keras model of a SavedModel directory as a Keras 2 whole-model HDF5 file.

    Args:
        saved_model: the directory that holds `saved_model.pb`.
        target: the file to write; replaced where it exists.

    Raises:
        UnreadableInputError: no SavedModel; a file of it is missing or damaged.
        NotConvertibleError: it holds no Keras configuration, or weights whose order is not known.
        OSError: the target can't be written.
    """
    config = saved_config_of(saved_model)
    checkpoint = _open_variables(saved_model)
    graph = read_object_graph(checkpoint)
    if graph is None:
        raise NotConvertibleError(
            "the variables are saved by name and not by object, which no Keras exporter does, so "
            "they can't be told apart; --to savedmodel lowers the graph instead"
        )
    require_few(root(config.model))
    finder = LayerFinder(graph, config.trains)
    groups: dict[str, dict[str, Variable]] = {}
    used: set[int] = set()
    with_weights = finder.with_weights(0)
    for layer, at in finder.layers(root(config.model), 0):
        owned = finder.owned(layer, at).all
        if at in with_weights and not owned:
            raise NotConvertibleError(
                f"{show_path(layer.path)}: the layer had weights, but the object graph of the "
                "variables tells of none; --to savedmodel lowers the graph instead"
            )
        used.update(owned)
        name = layer_name(layer.entry)
        groups[_free_name(name, groups)] = _named(name, graph, owned, checkpoint)
    _write(target, config, groups, checkpoint)
    return Rebuilt(config.keras_version, tuple(_left_out(config, graph, used)))


def _open_variables(saved_model: Path) -> Checkpoint:
    prefix = saved_model / "variables" / "variables"
    if not is_there(index_path(prefix)):
        raise UnreadableInputError(
            "variables/variables.index is missing; copy the whole directory of the SavedModel"
        )
    return open_checkpoint(prefix)


def _named(
    layer: str, graph: ObjectGraph, owned: list[int], checkpoint: Checkpoint
) -> dict[str, Variable]:
    """A layer's variables by the names that they get in the file.

    Raises:
        UnreadableInputError: a variable is not in the checkpoint.
        NotConvertibleError: it is of a type that Keras' HDF5 files can't hold.
    """
    found: dict[str, Variable] = {}
    for at in owned:
        variable = graph.variable(at)
        if variable is None or variable.key not in checkpoint.variables:
            key = "an object of another kind" if variable is None else variable.key
            raise UnreadableInputError(
                f"{show_path((layer,))}: expected the values of a variable in the checkpoint under "
                f"variables/, found none ({key}); the SavedModel is damaged, copy it again"
            )
        _require_number(layer, variable, checkpoint)
        found[_free_name(_name_in_file(layer, variable), found, ":0")] = variable
    return found


def _name_in_file(layer: str, variable: Variable) -> str:
    """TensorFlow's name of a variable; by its place in the graph where it has none."""
    name = variable.name or f"{layer}/{variable.key.partition('/.ATTRIBUTES')[0]}"
    return name.strip("/")


def _free_name(name: str, taken: Container[str], end: str = "") -> str:
    """The name with the end that Keras gives it; numbered where there is one like it.

    Custom layers whose config is empty have no name but their class'.
    """
    wanted, count = f"{name}{end}", 0
    while wanted in taken:
        count += 1
        wanted = f"{name}_{count}{end}"
    return wanted


def _require_number(layer: str, variable: Variable, checkpoint: Checkpoint) -> None:
    dtype = checkpoint.variables[variable.key].dtype
    if dtype in ("string", "bfloat16") or dtype.startswith("q"):
        raise NotConvertibleError(
            f"{show_path((layer,))}: {variable.name} is of the type {dtype}, which HDF5 files of "
            "Keras can't hold; --to savedmodel lowers the graph instead"
        )


def _left_out(config: SavedConfig, graph: ObjectGraph, used: set[int]) -> Iterator[str]:
    """Sentences about what the SavedModel holds and the rebuilt file does not."""
    left = {at for at, node in enumerate(graph.nodes) if node.variable is not None} - used
    members = graph.nodes[0].children.items()
    of_model = graph.below(node for name, node in members if name not in _STATE)
    strays = sorted(left & of_model)
    state = len(left) - len(strays)
    if config.compiled or state:
        yield (
            f"the training config and {state} variables of optimizer and metrics are left out; "
            "call model.compile(...) to train"
        )
    if strays:
        names = [graph.nodes[at].variable for at in strays[:4]]
        listed = ", ".join(variable.name or variable.key for variable in names if variable)
        yield f"{len(strays)} variables that belong to no layer are left out: {listed}"


# --- the file -------------------------------------------------------------------------------


def _write(
    target: Path,
    config: SavedConfig,
    groups: dict[str, dict[str, Variable]],
    checkpoint: Checkpoint,
) -> None:
    """Write the file; `groups` are the layers by name, each with its variables by theirs.

    Raises:
        UnreadableInputError: a name that can't stand in an HDF5 file, or damaged values.
    """
    try:
        with safe_h5.open_h5(target, "w") as file:
            weights = file.create_group("model_weights")
            for owner in (file, weights):
                write_text_attribute(owner, "backend", config.backend or "tensorflow")
                if config.keras_version is not None:
                    write_text_attribute(owner, "keras_version", config.keras_version)
            write_text_attribute(file, "model_config", json.dumps(config.model))
            write_names(weights, "layer_names", list(groups))
            for name, variables in groups.items():
                _write_layer(weights, name, variables, checkpoint)
    except ValueError as error:  # of h5py: one name lies below another, or is no Unicode
        raise UnreadableInputError(f"the SavedModel's names can't be written: {error}") from error


def _write_layer(
    weights: h5py.Group, layer: str, variables: dict[str, Variable], checkpoint: Checkpoint
) -> None:
    for name in (layer, *variables):
        if any(part in ("", ".", "..") or "\0" in part for part in name.split("/")):
            raise UnreadableInputError(f"refused as unsafe: the name {name!r} in the SavedModel")
    group = weights.create_group(layer)
    for name, variable in variables.items():
        values = checkpoint.read(variable.key)
        # No times: the file's bytes shall depend on the model only.
        group.create_dataset(name, data=values, track_times=False)
    write_names(group, "weight_names", list(variables))

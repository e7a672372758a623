"""A functional model inside a Sequential: Keras 3 builds it inside a functional model only."""

from __future__ import annotations

from typing import Any

from rnnconvert.keras_models.config.changes import Changes, ConfigChange
from rnnconvert.keras_models.config.structure import is_functional
from rnnconvert.keras_models.config.tree import Config, Node, layer_name, members, show_path


def repair_models_in_sequential(node: Node, changes: Changes) -> None:
    """A Sequential that holds a functional model, as a functional model of the same layers.

    Such a model returns a list of one to the next layer of a Sequential, which refuses it; in a
    functional model the next layer takes the one tensor out of it.
    """
    layers = members(node.entry)
    if node.class_name != "Sequential" or not any(is_functional(entry) for entry in layers):
        return
    layers = [*_input_layer(layers), *layers]
    if layers[0].get("class_name") != "InputLayer":
        return
    entries: list[Config] = []
    for entry in layers:
        name = layer_name(entry)
        call = [[[entries[-1]["name"], 0, 0, {}]]] if entries else []
        entries.append({**entry, "name": name, "inbound_nodes": call})
    path = show_path(node.path)
    changes.put(path, node.entry, "class_name", "Model")
    changes.changes.append(ConfigChange(path, "config", "sequential", "functional"))
    changes.point(f"{path}: a Sequential with a functional model in it, as only Keras 3 reads it")
    node.entry["config"] = {
        "name": node.config["name"],
        "layers": entries,
        "input_layers": [[entries[0]["name"], 0, 0]],
        "output_layers": [[entries[-1]["name"], 0, 0]],
    }


def _input_layer(layers: list[Config]) -> list[Config]:
    """The InputLayer to put in front: that of the model that comes first, under another name."""
    first = layers[0]
    if first.get("class_name") == "InputLayer":
        return []
    inner: list[Any] = members(first)
    if not inner or inner[0].get("class_name") != "InputLayer":
        return _input_layer(inner) if inner else []
    config = {**inner[0]["config"], "name": f"{layer_name(first)}_input"}
    return [{"class_name": "InputLayer", "config": config}]

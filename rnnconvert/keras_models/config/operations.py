"""Operations as layers of a functional model, which Keras 3 writes into `.h5` and does not find.

A mask of an Embedding or Masking becomes NotEqual and Any, a slice GetItem, a sum Add: Keras 3's
`.keras` files name their modules, its `.h5` files only their classes, which `load_model` takes for
layers ("Unknown layer: 'NotEqual'"). With the module they load in every Keras 3.
"""

from __future__ import annotations

from rnnconvert.keras_models.config.accepted import module_of_operation
from rnnconvert.keras_models.config.changes import Changes
from rnnconvert.keras_models.config.tree import (
    MODEL_CLASSES,
    Config,
    members,
    root,
    show_path,
    walk,
)


def name_operations(model: Config, changes: Changes) -> None:
    """Give every operation of a model's config the module that Keras 3 finds it in."""
    for node in walk(root(model)):
        for entry in members(node.entry):
            module = _module(entry)
            if module is not None:
                path = show_path((*node.path, str(entry.get("name"))))
                changes.put(path, entry, "registered_name", entry["class_name"])
                changes.put(path, entry, "module", module)


def _module(entry: Config) -> str | None:
    """Of an operation without one. A layer of the same name has settings that all layers have."""
    config, name = entry.get("config"), str(entry.get("class_name"))
    if "module" in entry or not isinstance(config, dict) or name in MODEL_CLASSES:
        return None
    if {"trainable", "dtype", "batch_shape", "layers"} & set(
        config
    ) or "inbound_nodes" not in entry:
        return None
    return module_of_operation(name)

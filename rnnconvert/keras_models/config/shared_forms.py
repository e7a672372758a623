"""Layers of a Keras 2 model that both sides of the level `model` have in our own translation."""

from __future__ import annotations

import copy

from rnnconvert.keras_models.config.changes import Changes
from rnnconvert.keras_models.config.channels_first import port_channels_first
from rnnconvert.keras_models.config.layer_forms import port_forms
from rnnconvert.keras_models.config.merge_masks import port_merge_masks
from rnnconvert.keras_models.config.tree import Config, parse_version, root, show_path, walk

_ATTENTIONS = ("AdditiveAttention", "Attention", "MultiHeadAttention")
"""Keras 3 reads their configs as they are, or nearly, and may mean something else by them."""


def shared_forms(model: Config, keras_version: str | None) -> tuple[str, ...]:
    """Names of the layers whose form for Keras 3 is written alike into both models.

    What is wrong there is wrong on both sides, and no comparison of them shows it.

    Args:
        model: the original's `model_config`; not changed.
        keras_version: of its writer; a Keras 3 needs no translation.
    """
    version = parse_version(keras_version)
    if version is not None and version[0] >= 3:
        return ()
    model, changes = copy.deepcopy(model), Changes()
    nodes = list(walk(root(model)))
    found = [show_path(node.path) for node in nodes if node.class_name in _ATTENTIONS]
    found += [show_path(node.path) for node in nodes if node.config.get("time_major") is True]
    for node in nodes:
        port_channels_first(node, changes)
        port_merge_masks(node, changes)
    for node in walk(root(model)):
        port_forms(node, keras_version, changes)
    found += [change.path for change in changes.changes]
    return tuple(dict.fromkeys(path.rpartition("/")[2] for path in found))

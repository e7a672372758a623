"""Would Keras 3 build this model? Answered from the table of what it accepts, without Keras."""

from __future__ import annotations

from collections.abc import Iterator

from rnnconvert.keras_models.config.accepted import known_versions, versions_with
from rnnconvert.keras_models.config.tree import MODEL_CLASSES, Config, Node, root, show_path, walk

_READ_BY_LOADERS = frozenset(
    {"batch_input_shape", "input_shape", "layer", "cell", "cells", "module"}
)
"""Keys that Keras' `from_config` or its reader of old files takes out before the constructor."""
_OWN_FROM_CONFIG = frozenset({"InputLayer", "RNN", "StackedRNNCells", "Bidirectional", "Lambda"})
"""Classes whose config is not their constructor's."""


def refused(model: Config, training: Config | None = None, version: str | None = None) -> list[str]:
    """What a version of Keras 3 would refuse to build; [] where the table knows of nothing.

    A class that no Keras has is the user's own, and not judged.

    Args:
        version: e.g. "3.4"; default the newest in the table.
    """
    version = version or known_versions()[-1]
    found = [text for node in walk(root(model)) for text in _refused_layer(node, version)]
    return [*found, *(_refused_optimizer(training, version) if training else ())]


def _refused_layer(node: Node, version: str) -> Iterator[str]:
    name, path = node.class_name, show_path(node.path)
    known = versions_with("layers", name)
    if name in MODEL_CLASSES or not known or "axes" in node.config:
        return
    if version not in known:
        yield f"{path}: Keras {version} has no layer {name}"
    elif name not in _OWN_FROM_CONFIG:
        for key in sorted(set(node.config) - _READ_BY_LOADERS):
            if version not in versions_with("layers", name, key):
                yield f"{path}: {name} of Keras {version} takes no {key!r}"


def _refused_optimizer(training: Config, version: str) -> Iterator[str]:
    optimizer = training.get("optimizer_config") or {}
    name, config = str(optimizer.get("class_name")), optimizer.get("config") or {}
    if version not in versions_with("optimizers", name):
        yield f"training_config: Keras {version} has no optimizer {name}"
        return
    for key in sorted(config):
        if version not in versions_with("optimizers", name, key):
            yield f"training_config: {name} of Keras {version} takes no {key!r}"
    rate = config.get("learning_rate")
    if isinstance(rate, dict) and not str(rate.get("module", "")).startswith("keras."):
        yield f"training_config: Keras finds no {rate.get('class_name')} without its module"
    clips = [key for key in ("clipnorm", "clipvalue", "global_clipnorm") if config.get(key)]
    if len(clips) > 1:
        yield f"training_config: Keras 3 takes one of {' and '.join(clips)}"

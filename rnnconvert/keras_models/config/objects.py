"""Initializers, regularizers, constraints and activations, in forms that every Keras reads.

None of them but the activations counts when a model predicts; yet one that a Keras does not know
keeps the whole model from loading. The forms were read off the sources of Keras 3.0 to 3.15, and
tried there and in Keras 2.2.4 to 2.15.
"""

from __future__ import annotations

from typing import Any

from rnnconvert.keras_models.config.builtin import KERAS_LAYERS
from rnnconvert.keras_models.config.changes import Changes
from rnnconvert.keras_models.config.tree import Config

INITIALIZER_ALIASES = {"Orthogonal": "orthogonal"}
"""Keras 3.0 to 3.3 call the class OrthogonalInitializer, Keras 2 Orthogonal; all know the alias."""

_NOT_IN_KERAS_3 = {
    "initializer": ("UniformUnitScaling",),
    "constraint": ("RadialConstraint", "radial_constraint"),
}
"""What Keras 2 had and Keras 3 has not; without it the layer has Keras' default."""

_ACTIVATIONS = {"softmax_v2": "softmax", "log_softmax_v2": "log_softmax"}
"""TensorFlow's own names of functions, as early `tf.keras` wrote them."""


def repair_objects(path: str, config: Config, target: str, changes: Changes) -> None:
    """Rewrite the initializers, regularizers, constraints and activations of a layer's config.

    Args:
        path: of the layer, for the record.
        config: the layer's; changed in place.
        target: "keras3" or "keras2". What Keras 2 reads and Keras 3 does not stays for Keras 2.
        changes: collects what was done.
    """
    for key in list(config):
        kind = key.rpartition("_")[2]
        name = _name(config[key])
        if kind in _NOT_IN_KERAS_3 and name in _NOT_IN_KERAS_3[kind] and target == "keras3":
            changes.warn(f"{path}: Keras 3 has no {kind} {name}; left out")
            changes.drop(path, config, key)
        elif kind == "initializer" and name == "recurrent_identity":  # of Keras 2.3
            changes.put(path, config, key, "identity")
        elif kind == "initializer" and isinstance(config[key], dict):
            _repair_initializer(f"{path}.{key}", config[key], target, changes)
            if config.get("dtype") == "float16" and target == "keras3":
                _replace_orthogonal(path, config, key, changes)
        if key in ("activation", "recurrent_activation") and _function(config[key]) in _ACTIVATIONS:
            changes.put(path, config, key, _ACTIVATIONS[_function(config[key])])
        elif key in ("activation", "recurrent_activation") and target == "keras3":
            _repair_layer_as_activation(f"{path}.{key}", config[key], changes)


def _function(value: Any) -> str:
    """The name of a function, given as that or, since Keras 2.13, as an object; else ""."""
    if isinstance(value, dict) and value.get("class_name") == "function":
        value = value.get("config")
    return value if isinstance(value, str) else ""


def _repair_layer_as_activation(path: str, value: Any, changes: Changes) -> None:
    """A layer that was given as an activation, as `Dense(3, activation=LeakyReLU(0.2))`."""
    if not isinstance(value, dict) or value.get("class_name") not in KERAS_LAYERS:
        return
    if not str(value.get("module")).startswith("keras"):
        changes.put(path, value, "module", "keras.layers")
        changes.put(path, value, "registered_name", None)
    changes.point(f"{path}: a layer as an activation, which only Keras 3.10 and later read")


def _repair_initializer(path: str, value: Config, target: str, changes: Changes) -> None:
    name = value.get("class_name")
    if name in INITIALIZER_ALIASES:
        changes.put(path, value, "class_name", INITIALIZER_ALIASES[name])
    inner = value.get("config")
    if isinstance(inner, dict):
        changes.drop(path, inner, "dtype")
        # Keras < 2.3 means the truncated one, and knows it by no other name.
        if inner.get("distribution") == "normal" and target == "keras3":
            changes.put(path, inner, "distribution", "truncated_normal")


def _replace_orthogonal(path: str, config: Config, key: str, changes: Changes) -> None:
    """Another initializer in a float16 layer: torch has no orthogonal matrices of that type."""
    if _name(config[key]) == "orthogonal":
        changes.put(path, config, key, "glorot_uniform")
        changes.warn(
            f"{path}: {key} orthogonal, which Keras on torch can't compute in float16, is "
            "glorot_uniform now; it counts only where the layer gets new weights"
        )


def _name(value: Any) -> Any:
    return value.get("class_name") if isinstance(value, dict) else value

"""Layers that Keras 3 has in another form: under another class, or called in another way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rnnconvert.keras_models.config.builtin import GONE_IN_KERAS_3
from rnnconvert.keras_models.config.changes import Changes, ConfigChange
from rnnconvert.keras_models.config.keras2_form import is_multi_backend
from rnnconvert.keras_models.config.structure import STATEFUL_CALLS
from rnnconvert.keras_models.config.tensorflow_calls.reading import entry_name, references
from rnnconvert.keras_models.config.tensorflow_calls.rewiring import behind_their_inputs
from rnnconvert.keras_models.config.tensorflow_calls.values import keras_tensor
from rnnconvert.keras_models.config.tree import Config, Node, members, parse_version, show_path

SOFTMAX_WITH_MASKS = (2, 5, 0)
"""Keras 2's first version whose Softmax leaves masked steps out."""
_ATTENTIONS = ("Attention", "AdditiveAttention")

_OTHERWISE: dict[str, tuple[Callable[[Config], bool], str]] = {
    "SeparableConv1D": (
        lambda config: config.get("padding") == "causal",
        "with padding causal, which Keras 3 has for Conv1D only",
    ),
    "Softmax": (
        lambda config: isinstance(config.get("axis"), list) and len(config["axis"]) > 1,
        "over several axes, which Keras 3 computes otherwise once loaded from an .h5 file",
    ),
    "RandomCrop": (
        lambda config: True,
        "crops when it predicts, too, in Keras 2, and in Keras 3 leaves the picture as it is",
    ),
}
"""Layers that exist in Keras 3 and compute something else there: when, and what."""


def port_forms(node: Node, keras_version: str | None, changes: Changes) -> None:
    """Bring one layer, and a functional model's calls of its layers, to Keras 3's form.

    A layer without any form in Keras 3 is a problem.

    Args:
        node: changed in place.
        keras_version: of the writer, e.g. "2.2.4-tf".
        changes: collects what was done.
    """
    if str(node.entry.get("module")).startswith("keras.src.ops"):
        return  # an operation, of the name of a layer
    path = show_path(node.path)
    if node.class_name == "ThresholdedReLU":
        _as_relu(path, node, changes)
    elif node.class_name in GONE_IN_KERAS_3 and node.role != "model":
        changes.problem(f"{path}: {node.class_name} has no counterpart in Keras 3")
    version = parse_version(keras_version)
    if node.class_name == "CategoryEncoding" and "max_tokens" in node.config:
        changes.put(path, node.config, "num_tokens", node.config["max_tokens"])
        changes.drop(path, node.config, "max_tokens")
    if node.class_name == "Hashing" and (version is None or version < (2, 10, 0)):
        changes.problem(f"{path}: Hashing of Keras before 2.10, which gave other numbers")
    if node.class_name == "Softmax" and version is not None and version < SOFTMAX_WITH_MASKS:
        _without_mask(path, node, changes)
    old = is_multi_backend(keras_version, below=(2, 4, 0))
    if old and node.config.get("interpolation") == "bilinear":
        changes.problem(
            f"{path}: {node.class_name} with bilinear interpolation as Keras up to 2.3 computed "
            "it, from the corners of the pixels; Keras 3 does from their centres"
        )
    _drop_radial_constraints(path, node.config, changes)
    axis = node.config.get("axis")
    if node.class_name in _OTHERWISE and _OTHERWISE[node.class_name][0](node.config):
        changes.problem(f"{path}: {node.class_name} {_OTHERWISE[node.class_name][1]}")
    if node.class_name == "LayerNormalization" and isinstance(axis, list) and len(axis) > 1:
        changes.problem(
            f"{path}: LayerNormalization over the axes {axis}, which Keras 3 forgets when it loads "
            "an .h5 file"
        )
    if node.class_name == "AdditiveAttention":
        changes.drop(path, node.config, "score_mode")  # it has only one
    elif node.class_name == "Attention" and node.config.get("score_mode") == "dot":
        changes.drop(path, node.config, "score_mode")  # which Keras 3 takes for the function dot
    if "output_layers" not in node.config:
        return
    for entry in members(node.entry):
        if entry.get("class_name") in _ATTENTIONS:
            _causal_by_call(node, entry, changes)
        if entry.get("class_name") not in STATEFUL_CALLS:
            _name_tensors(node, entry, changes)


def _drop_radial_constraints(path: str, config: Config, changes: Changes) -> None:
    for key, value in list(config.items()):
        name = value.get("class_name") if isinstance(value, dict) else value
        if key.endswith("_constraint") and name in ("RadialConstraint", "radial_constraint"):
            changes.put(path, config, key, None)
            changes.warn(f"{path}: {key} {name} left out, Keras 3 has none; it matters to training")


def _without_mask(path: str, node: Node, changes: Changes) -> None:
    """An Activation knows no mask, nor did a Softmax up to TensorFlow 2.3 (Keras 2.4.0)."""
    if node.config.get("axis", -1) == -1:
        changes.put(path, node.entry, "class_name", "Activation")
        changes.drop(path, node.config, "axis")
        changes.put(path, node.config, "activation", "softmax")


def _as_relu(path: str, node: Node, changes: Changes) -> None:
    """x where it is beyond theta, else 0: a ReLU with a threshold."""
    theta = node.config.get("theta", 1.0)
    if isinstance(theta, dict):  # an array, as TensorFlow 1.15 to 2.3 write it
        theta = theta.get("value")
    changes.put(path, node.entry, "class_name", "ReLU")
    changes.drop(path, node.config, "theta")
    changes.put(path, node.config, "threshold", float(theta))


def _causal_by_call(node: Node, entry: Config, changes: Changes) -> None:
    """`causal=True` of the layer is an argument of its calls in Keras 3."""
    path = show_path((*node.path, entry_name(entry)))
    causal = entry["config"].get("causal")
    changes.drop(path, entry["config"], "causal")
    if not causal:
        return
    for call in entry.get("inbound_nodes") or []:
        last = call[-1]
        last[3:] = [{**(last[3] if len(last) > 3 else {}), "use_causal_mask": True}]
    changes.point(f"{path}: causal=True as an argument of its call, which only Keras 3 reads")


def _name_tensors(node: Node, entry: Config, changes: Changes) -> None:
    """Tensors given by name, as `attention(q, value=v)`: Keras 3's form of a call."""
    names = {entry_name(member) for member in members(node.entry)}
    nodes = entry.get("inbound_nodes")
    if not isinstance(nodes, list) or "node_def" in (entry.get("config") or {}):
        return
    for place, call in enumerate(nodes):
        keywords = call[-1][3] if _has_keywords(call) else {}
        if not references(keywords, names):
            continue
        tensors = [keras_tensor(argument[:3]) for argument in call]
        nodes[place] = {
            "args": tensors if len(tensors) == 1 else [tensors],
            "kwargs": _tensors(keywords, names),
        }
        path = show_path((*node.path, entry_name(entry)))
        changes.changes.append(ConfigChange(path, "inbound_nodes", "by keyword", "Keras 3's form"))
        changes.point(f"{path}: tensors passed by name, which only Keras 3 reads")
        node.config["layers"] = behind_their_inputs(node.config["layers"])


def _has_keywords(call: Any) -> bool:
    if not isinstance(call, list) or not call or not all(isinstance(one, list) for one in call):
        return False
    return len(call[-1]) > 3 and isinstance(call[-1][3], dict)


def _tensors(value: Any, names: set[str]) -> Any:
    if isinstance(value, list):
        if references([value], names) and isinstance(value[0], str):
            return keras_tensor(value)
        return [_tensors(item, names) for item in value]
    if isinstance(value, dict):
        return {key: _tensors(item, names) for key, item in value.items()}
    return value

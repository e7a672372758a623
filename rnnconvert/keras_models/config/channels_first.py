"""Convolutions of `data_format="channels_first"`, which Keras 3 can't compute on every machine.

On a CPU TensorFlow refuses them or, by oneDNN, gives wrong numbers for three dimensions, dilations
and strides, without a word (Keras 3.15, TensorFlow 2.20). So the channels become the last axis
before such a layer and the axis that they were behind it. Its weights are the same in both orders.
"""

from __future__ import annotations

import copy
from typing import Any

from rnnconvert.keras_models.config.changes import Changes
from rnnconvert.keras_models.config.structure import redirect
from rnnconvert.keras_models.config.tree import (
    Config,
    Node,
    layer_name,
    members,
    root,
    show_path,
    walk,
)

_RANKS = {
    "Conv1D": 1, "Conv2D": 2, "Conv3D": 3, "Conv1DTranspose": 1, "Conv2DTranspose": 2,
    "Conv3DTranspose": 3, "SeparableConv1D": 1, "SeparableConv2D": 2, "DepthwiseConv1D": 1,
    "DepthwiseConv2D": 2, "ConvLSTM1D": 1, "ConvLSTM2D": 2, "ConvLSTM3D": 3,
}  # fmt: skip
"""Class to how many axes it looks at beside the channels."""
_OVER_AN_AXIS = ("softmax", "log_softmax")
"""Activations that are computed along the last axis."""


def port_channels_first(node: Node, changes: Changes) -> None:
    """Give the convolutions of one model their channels last, with a Permute on each side.

    Args:
        node: changed in place; anything but a model is left alone.
        changes: collects what was done, and as problems what can't be told to be the same.
    """
    if not isinstance(node.config.get("layers"), list):
        return
    layers = node.config["layers"]
    for entry in list(members(node.entry)):
        inner = _innermost(entry)
        if inner.get("class_name") not in _RANKS:
            continue
        if inner["config"].get("data_format") != "channels_first":
            continue
        path = show_path((*node.path, layer_name(entry)))
        reason = _reason_against(entry, inner)
        if reason:
            changes.problem(
                f"{path}: data_format channels_first {reason}, which rnnconvert can't write with "
                "the channels last; and with channels first Keras 3 does not run it everywhere"
            )
            continue
        if "output_layers" in node.config:
            _around_calls(node.config, entry, inner)
        elif node.class_name == "Sequential":
            place = layers.index(entry)
            layers[place : place + 1] = [
                _permute(entry, inner, "before"), entry, _permute(entry, inner, "after")
            ]  # fmt: skip
        else:
            continue
        changes.put(path, inner["config"], "data_format", "channels_last")
        changes.point(
            f"{path}: channels_first as channels_last between two Permute layers, in the file for "
            "Keras 3 only"
        )


def has_channels_first(model: Config) -> bool:
    """Whether a model has such a convolution."""
    return any(
        node.class_name in _RANKS and node.config.get("data_format") == "channels_first"
        for node in walk(root(model))
    )


def _innermost(entry: Config) -> Config:
    """The layer itself, without the TimeDistributed layers around it."""
    while entry.get("class_name") in ("TimeDistributed", "Bidirectional"):
        entry = entry["config"]["layer"]
    return entry


def _reason_against(entry: Config, inner: Config) -> str:
    """Why the layer is not the same with its channels last; "" where it is."""
    activation = inner["config"].get("activation")
    if isinstance(activation, dict) or activation in _OVER_AN_AXIS:
        return "with an activation along an axis"
    while entry is not inner:
        if entry["class_name"] == "Bidirectional":
            return "in a Bidirectional"
        entry = entry["config"]["layer"]
    if inner["config"].get("return_state"):
        return "with return_state=True"
    if any(isinstance(call, list) and len(call) > 1 for call in entry.get("inbound_nodes") or []):
        return "with initial states"
    return ""


def _around_calls(config: Config, entry: Config, inner: Config) -> None:
    name = layer_name(entry)
    for index, call in enumerate(entry["inbound_nodes"]):
        before = _permute(entry, inner, f"before_{index}")
        after = _permute(entry, inner, f"after_{index}")
        redirect(config, [name, index, 0], [layer_name(after), 0, 0])
        before |= {"name": layer_name(before), "inbound_nodes": [[[*call[0][:3], {}]]]}
        after |= {"name": layer_name(after), "inbound_nodes": [[[name, index, 0, {}]]]}
        call[0][:3] = [layer_name(before), 0, 0]
        config["layers"] += [before, after]


def _permute(entry: Config, inner: Config, side: str) -> Config:
    """A Permute in as many TimeDistributed layers as the convolution is in."""
    rank = _RANKS[inner["class_name"]]
    steps = 0  # axes before the channels
    if inner["class_name"].startswith("ConvLSTM"):
        steps = int(side.startswith("before") or bool(inner["config"].get("return_sequences")))
    places = list(range(steps + 1, steps + rank + 2))
    moved = places[1:] + places[:1] if side.startswith("before") else places[-1:] + places[:-1]
    dims = [*range(1, steps + 1), *moved]
    name = f"{layer_name(entry)}.{side}"
    made = _like(inner, "Permute", name, {"dims": dims})
    for wrapper in _wrappers(entry, inner):
        made["config"]["name"] += ".permute"
        made = _like(wrapper, "TimeDistributed", name, {"layer": made})
    return made


def _wrappers(entry: Config, inner: Config) -> list[Config]:
    """The TimeDistributed layers around a layer, the inner one first."""
    found: list[Config] = []
    while entry is not inner:
        found.insert(0, entry)
        entry = entry["config"]["layer"]
    return found


def _like(entry: Config, class_name: str, name: str, settings: dict[str, Any]) -> Config:
    """A layer that computes in the dtype of another one."""
    kept = {"dtype": copy.deepcopy(entry["config"]["dtype"])} if "dtype" in entry["config"] else {}
    config = {"name": name, "trainable": True, **kept, **settings}
    return {"class_name": class_name, "config": config}

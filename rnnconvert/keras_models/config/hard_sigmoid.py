"""Keras 2's hard_sigmoid, clip(0.2x + 0.5), where Keras 3 has another function under its name.

Where a layer's weights stand right before the function, they are scaled for Keras 3's one: the
gates of recurrent layers, and `SCALED`. Everywhere else it is put together from layers here.
"""

from __future__ import annotations

from typing import Any

from rnnconvert.keras_models.config.changes import ABSENT, Changes, ConfigChange
from rnnconvert.keras_models.config.recurrent import RECURRENT_CLASSES, activation_name
from rnnconvert.keras_models.config.tree import Config, Node, layer_name, members, show_path

NAME = "hard_sigmoid"
SCALED: dict[str, str] = dict.fromkeys(
    """
    Dense EinsumDense Conv1D Conv2D Conv3D Conv1DTranspose Conv2DTranspose Conv3DTranspose
    Convolution1D Convolution2D Convolution3D Deconvolution2D Deconvolution3D
    """.split(),
    "kernel",
) | {
    "SeparableConv1D": "pointwise_kernel",
    "SeparableConv2D": "pointwise_kernel",
    "SeparableConvolution1D": "pointwise_kernel",
    "SeparableConvolution2D": "pointwise_kernel",
    "DepthwiseConv1D": "depthwise_kernel",
    "DepthwiseConv2D": "depthwise_kernel",
}
"""Layers that are the function of a linear one: class to the weight that is scaled, beside bias."""

_SLOPE = {"scale": 0.2, "offset": 0.5}


def port_hard_sigmoid(node: Node, changes: Changes) -> None:
    """Write one layer's hard_sigmoid as Keras 3 computes it, where scaled weights can't do it.

    Args:
        node: changed in place; of a layer outside a model a neighbour is added to the model's.
        changes: collects what was done.
    """
    if activation_name(node.config.get("activation")) != NAME or node.role == "model":
        return
    if node.class_name == "Activation":
        _as_two_layers(node, changes)
    elif node.class_name in RECURRENT_CLASSES:
        path = show_path(node.path)
        changes.put(path, node.config, "activation", _as_object(node.config))
        changes.point(f"{path}: activation hard_sigmoid of Keras 2 as an object, which only Keras "
                      "3.10 and later read")  # fmt: skip


def _as_object(config: Config) -> Config:
    """The function as a model of two layers, in the dtype of the layer that calls it."""
    dtype = {"dtype": config["dtype"]} if config.get("dtype") else {}
    parts = (
        ("Rescaling", {"name": "slope", **_SLOPE}),
        ("ReLU", {"name": "clip", "max_value": 1.0}),
    )
    layers = [
        {"module": "keras.layers", "class_name": name, "config": {**values, **dtype},
         "registered_name": None}
        for name, values in parts
    ]  # fmt: skip
    return {
        "module": "keras",
        "class_name": "Sequential",
        "config": {"name": NAME, "layers": layers},
        "registered_name": None,
    }


def _as_two_layers(node: Node, changes: Changes) -> None:
    """An Activation as ReLU(max_value=1) after a Rescaling, which may stand outside a wrapper."""
    path = show_path(node.path)
    changes.put(path, node.entry, "class_name", "ReLU")
    changes.drop(path, node.config, "activation")
    changes.put(path, node.config, "max_value", 1.0)
    member = node
    while member.role != "member":
        assert member.parent is not None
        member = member.parent
    assert member.parent is not None
    kept = ("trainable", "dtype")
    config: Config = {key: value for key, value in node.config.items() if key in kept}
    _insert_before(member, "Rescaling", {**config, **_SLOPE}, changes)


def _insert_before(member: Node, class_name: str, config: Config, changes: Changes) -> None:
    """A new layer right before a member of a model, called wherever that is called."""
    assert member.parent is not None
    layers = member.parent.config["layers"]
    taken = {layer_name(entry) for entry in members(member.parent.entry)}
    name = f"{layer_name(member.entry)}_slope"
    while name in taken:
        name += "_"
    new: Config = {"class_name": class_name, "config": {"name": name, **config}}
    if "output_layers" in member.parent.config:
        calls = member.entry["inbound_nodes"]
        new |= {
            "name": name,
            "inbound_nodes": [_taken_over(calls, i, name) for i in range(len(calls))],
        }
    place = next(i for i, entry in enumerate(layers) if entry is member.entry)
    layers.insert(place, new)
    path = show_path((*member.parent.path, name))
    changes.changes.append(ConfigChange(path, "class_name", ABSENT, class_name))


def _taken_over(calls: list[Any], place: int, name: str) -> Any:
    """The call of the new layer: that of the old one, which from now on is called on the new."""
    call = calls[place]
    if isinstance(call, dict):  # Keras 3's form
        tensor = call["args"][0]
        calls[place] = {**call, "args": [_tensor_of(tensor, [name, place, 0])]}
        return {"args": [tensor], "kwargs": {}}
    calls[place] = [[name, place, 0, *call[0][3:]]]
    return [[*call[0][:3], {}]]


def _tensor_of(tensor: Config, history: list[Any]) -> Config:
    return {**tensor, "config": {**tensor["config"], "keras_history": history}}

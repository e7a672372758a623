"""Keras 1's layers of pictures, volumes and sequences: order of axes, padding, and Theano's ways.

They have the names and keys of Keras 2 already.
"""

from __future__ import annotations

from typing import Any

from rnnconvert.keras_models.config.changes import Changes
from rnnconvert.keras_models.config.theano import refuse_theano_padding
from rnnconvert.keras_models.config.tree import Config, Node, root, show_path, walk

_SILENT = ("ZeroPadding2D", "ZeroPadding3D", "Cropping2D", "Cropping3D", "UpSampling2D",
           "UpSampling3D")  # fmt: skip
"""They have an order of axes, which Keras 1 did not save."""
_WITHOUT_EFFECT = ("SpatialDropout2D", "SpatialDropout3D")
"""The same, where it matters to training only."""
_SIDES = {"ZeroPadding1D": ("left", "right"), "ZeroPadding2D": ("top", "bottom", "left", "right")}


def port_spatial_layers(model: Config, changes: Changes, *, theano: bool) -> None:
    """Give every layer its order of axes and Keras 2's form of padding.

    What the file does not tell, or what only Theano computes, is a problem.

    Args:
        model: changed in place.
        changes: collects the problems.
        theano: whether Theano computed it.
    """
    nodes = [node for node in walk(root(model)) if node.role != "model"]
    orders = {str(node.config["data_format"]) for node in nodes if "data_format" in node.config}
    for node in nodes:
        if node.class_name in (*_SILENT, *_WITHOUT_EFFECT):
            _set_order(node, orders, changes)
        if node.class_name in ("ZeroPadding1D", "ZeroPadding2D"):
            sides = _SIDES[node.class_name]
            node.config["padding"] = _zero_padding(node.config.get("padding"), sides)
        if node.class_name == "Conv2DTranspose":
            _drop_output_shape(node, changes)
        if node.config.get("padding") == "full":
            path = show_path(node.path)
            changes.problem(f"{path}: border_mode full, which ended with Keras 1")
        if theano:
            refuse_theano_padding(node, changes)


def _set_order(node: Node, orders: set[str], changes: Changes) -> None:
    """The order of the layers that do say it: in Keras 1 it came from one setting for all."""
    if len(orders) == 1:
        node.config["data_format"] = next(iter(orders))
    elif node.class_name in _SILENT:
        found = "are of both orders" if orders else "don't say it either"
        changes.problem(
            f"{show_path(node.path)}: {node.class_name} of Keras 1, whose order of axes "
            f"(dim_ordering) is not in the file; the model's other layers {found}"
        )


def _zero_padding(padding: Any, sides: tuple[str, ...]) -> Any:
    """What is added on each side, by name or in one row: in pairs."""
    if isinstance(padding, dict):
        padding = [padding.get(f"{side}_pad", 0) for side in sides]
    if isinstance(padding, list) and len(padding) == 4:
        return [padding[:2], padding[2:]]
    return padding


def _drop_output_shape(node: Node, changes: Changes) -> None:
    """Keras 1 was told the size of the output, Keras 2 computes it; one to one they agree."""
    node.config.pop("output_shape", None)
    if node.config.get("strides", 1) not in (1, [1, 1]):
        changes.problem(
            f"{show_path(node.path)}: Deconvolution2D of Keras 1 with a subsample, whose "
            "output_shape Keras 3 can't be given"
        )

"""Which layers of a config get a mask when the model runs. cuDNN's layers refuse one.

Keras passes a mask on from layer to layer, beside the data, until a layer takes it away. Which
layers do was found by running each of them in Keras 2.2.4 and 2.15.
"""

from __future__ import annotations

from typing import Any

from rnnconvert.keras_models.config.builtin import GONE_IN_KERAS_3, KERAS_LAYERS
from rnnconvert.keras_models.config.recurrent import RECURRENT_CLASSES
from rnnconvert.keras_models.config.structure import each_reference, member_names
from rnnconvert.keras_models.config.tensorflow_calls import CALL_CLASSES
from rnnconvert.keras_models.config.tree import (
    MODEL_CLASSES,
    Config,
    Node,
    children,
    layer_name,
    root,
    show_path,
)

PASS_ON = frozenset(
    """
    Activation ActivityRegularization Add AdditiveAttention AlphaDropout Attention Average
    BatchNormalization BatchNormalizationV1 Bidirectional Concatenate Dense Dropout ELU
    EinsumDense GaussianDropout GaussianNoise GroupNormalization Identity InputLayer
    LayerNormalization LeakyReLU Maximum Merge Minimum MultiHeadAttention Multiply PReLU ReLU
    Softmax SpatialDropout1D SpatialDropout2D SpatialDropout3D Subtract SyncBatchNormalization
    ThresholdedReLU
    TimeDistributed UnitNormalization
    """.split()
)
_TAKE_AWAY = ((KERAS_LAYERS | GONE_IN_KERAS_3) - PASS_ON) | set(CALL_CLASSES)
"""Any other class is the user's own, which may pass a mask on."""

_RECURRENT = (*RECURRENT_CLASSES, "RNN")


def masked_layers(model_config: Config) -> dict[str, str]:
    """Recurrent layers that get a mask: path to what makes the mask."""
    found: dict[str, str] = {}
    _flow(root(model_config), None, found)
    return found


def _flow(node: Node, mask: str | None, found: dict[str, str]) -> str | None:
    """What made the mask of a layer's output, given that of its input; None where there is none."""
    name, path = node.class_name, show_path(node.path)
    if name == "Masking" or (name == "Embedding" and node.config.get("mask_zero")):
        return path
    if name in _RECURRENT:
        if mask is not None:
            found[path] = mask
        return mask if node.config.get("return_sequences") else None
    if "output_layers" in node.config:
        return _flow_functional(node, mask, found)
    if name in MODEL_CLASSES:
        for child in children(node):
            mask = _flow(child, mask, found)
        return mask
    if name in _TAKE_AWAY:
        return None
    after = mask
    for child in children(node):  # the layers of a wrapper
        through = _flow(child, mask, found)
        after = through if child.key == "layer" else after
    return after


def _flow_functional(node: Node, mask: str | None, found: dict[str, str]) -> str | None:
    """The same for a graph of layers: passed on until nothing changes any more."""
    names = member_names(node.config)
    inside = {str(child.entry.get("name") or layer_name(child.entry)): child
              for child in children(node)}  # fmt: skip
    made: dict[str, str] = {}
    changed = True
    while changed:
        changed = False
        for name, child in inside.items():
            is_input = child.class_name == "InputLayer"
            incoming = mask if is_input else _incoming(child, inside, made, names)
            outgoing = _flow(child, incoming, found)
            if outgoing is not None and name not in made:
                made[name] = outgoing
                changed = True
    return _of_references(node.config["output_layers"], inside, made, names)


def _incoming(
    child: Node, inside: dict[str, Node], made: dict[str, str], names: set[str]
) -> str | None:
    calls = child.entry.get("inbound_nodes") or []
    if any(_names_a_mask(call) for call in calls):
        return "the argument mask of its call"
    return _of_references(calls, inside, made, names)


def _of_references(
    value: Any, inside: dict[str, Node], made: dict[str, str], names: set[str]
) -> str | None:
    """The first mask that comes along a reference; the states of a layer carry none."""
    found: list[Any] = []
    each_reference(value, names, found.append)
    for name, _, tensor, *_ in found:
        if name in made and not (tensor and inside[name].class_name in _RECURRENT):
            return made[name]
    return None


def _names_a_mask(call: Any) -> bool:
    references = call if isinstance(call, list) else []
    return any(
        isinstance(reference, list)
        and len(reference) > 3
        and isinstance(reference[3], dict)
        and reference[3].get("mask") is not None
        for reference in references
    )

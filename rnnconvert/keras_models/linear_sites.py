"""Finding the weights of layers whose hard_sigmoid needs them scaled: Dense and convolutions."""

from __future__ import annotations

import re

from rnnconvert.keras_models.config.hard_sigmoid import NAME, SCALED
from rnnconvert.keras_models.config.recurrent import activation_name
from rnnconvert.keras_models.config.tree import (
    Config,
    Node,
    children,
    layer_name,
    root,
    show_path,
    walk,
)
from rnnconvert.keras_models.plan import Site, Tensor
from rnnconvert.keras_models.sites import FoundSites

_VARIABLE = re.compile(
    r"^(?:(.*)/)?(kernel|pointwise_kernel|depthwise_kernel|bias)(_\d+)?$", re.DOTALL
)


def find_linear(groups: dict[str, list[Tensor]], config: Config) -> FoundSites:
    """The layers of `SCALED` with hard_sigmoid, and their weights.

    Args:
        groups: top-level layer name to its tensors, in the file's order.
        config: the model_config.
    """
    found = FoundSites()
    for top in children(root(config)):
        nodes = [node for node in walk(top) if node.class_name in SCALED]
        wanted = [node for node in nodes if _is_hard_sigmoid(node)]
        for node in wanted:
            tensors = _weights_of(node, nodes, groups.get(top.path[0], []))
            if tensors is None:
                found.problems.append(
                    f"{show_path(node.path)}: {node.class_name} with activation hard_sigmoid, "
                    "another function in Keras 3, and its weights can't be told from others'; "
                    "use --target keras2 to leave it"
                )
            else:
                found.sites.append(_site(node, tensors))
    return found


def _is_hard_sigmoid(node: Node) -> bool:
    return activation_name(node.config.get("activation")) == NAME


def _weights_of(node: Node, nodes: list[Node], tensors: list[Tensor]) -> dict[str, Tensor] | None:
    """The weights that the layer scales, by name; None where names and order leave a doubt."""
    for name in _names(node):
        parents: dict[str, dict[str, Tensor]] = {}
        for tensor in tensors:
            match = _VARIABLE.match(tensor.name)
            if match and name in (match.group(1) or "").split("/"):
                parent = f"{match.group(1)}:{match.group(3) or ''}"
                parents.setdefault(parent, {})[match.group(2)] = tensor
        same = [other for other in nodes if name in _names(other)]
        trained = {_is_frozen(other) for other in same}
        if len(parents) == len(same) and (len(same) == 1 or len(trained) == 1):
            place = next(i for i, other in enumerate(same) if other.entry is node.entry)
            return _chosen(node, list(parents.values())[place])
    return None


def _chosen(node: Node, tensors: dict[str, Tensor]) -> dict[str, Tensor] | None:
    bias = node.config.get("use_bias", True) if node.class_name != "EinsumDense" else None
    kinds = [SCALED[node.class_name], *(["bias"] if "bias" in tensors else [])]
    if kinds[0] not in tensors or (bias is not None and bool(bias) != ("bias" in tensors)):
        return None
    return {kind: tensors[kind] for kind in kinds}


def _names(node: Node) -> list[str]:
    """The layer's own name, and those of the wrappers around it: a variable may carry either."""
    found = [layer_name(node.entry)]
    while node.role == "wrapped" and node.parent is not None:
        node = node.parent
        found.append(layer_name(node.entry))
    return found


def _is_frozen(node: Node) -> bool:
    above: Node | None = node
    while above is not None:
        if above.config.get("trainable") is False:
            return True
        above = above.parent
    return False


def _site(node: Node, tensors: dict[str, Tensor]) -> Site:
    shape = next(iter(tensors.values())).shape
    return Site(
        show_path(node.path), "linear", "keras", node.class_name, shape[-1], shape[0], "forward",
        (), NAME, None, tensors,
    )  # fmt: skip

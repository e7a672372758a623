"""What the first versions of Keras 3 can't read in any form: named, and never silently wrong.

Found by loading every fixture in Keras 3.0 to 3.15; docs/compatibility.md has the table.
"""

from __future__ import annotations

from rnnconvert.keras_models.config.changes import Changes
from rnnconvert.keras_models.config.tree import Config, Node, children, root, show_path, walk

_IDENTITY = ("Identity", "identity")


def name_first_versions(model: Config, changes: Changes) -> None:
    """Note each point that keeps a version of Keras 3 from reading the ported config.

    Args:
        model: the ported config; changed in place where Keras 3.0 and 3.1 would read the weights in
            another order without a word.
        changes: collects the points.
    """
    for node in walk(root(model)):
        path = show_path(node.path)
        if node.class_name == "Bidirectional" and node.config.get("layer", {}).get(
            "config", {}
        ).get("return_state"):
            changes.point(
                f"{path}: Bidirectional with return_state, which only Keras 3.2 and later read"
            )
        for key, value in node.config.items():
            name = value.get("class_name") if isinstance(value, dict) else value
            if key.endswith("_initializer") and name in _IDENTITY:
                changes.point(f"{path}: {key} Identity, which only Keras 3.2 and later read")
    mixed = [show_path(top.path) for top in children(root(model)) if _is_partly_frozen(top)]
    if mixed:
        kept_out = _keep_first_versions_out(model, changes)
        for path in mixed:
            changes.point(
                f"{path}: frozen layers beside others in one part, whose weights only Keras 3.2 "
                "and later read in the right order; "
                + ("3.0 and 3.1 refuse the file" if kept_out else "do not use 3.0 and 3.1")
            )


def _is_partly_frozen(top: Node) -> bool:
    """Whether some of a part's weights are frozen and others are not.

    Keras writes the trainable ones first. Keras 3.0 and 3.1 build a frozen layer with trainable
    variables, and so read the weights in the order of the layers.
    """
    return len(set(_frozen_flags(top, False))) > 1


def _frozen_flags(node: Node, above: bool) -> list[bool]:
    """For each layer with weights at or below `node` whether it is frozen."""
    frozen = above or node.config.get("trainable") is False
    has_weights = any(key.endswith("_initializer") for key in node.config)
    found = [frozen] if has_weights else []
    for child in children(node):
        found += _frozen_flags(child, frozen)
    return found


def _keep_first_versions_out(model: Config, changes: Changes) -> bool:
    """Write out a default that Keras 3.0 and 3.1 do not know; False where there is no place."""
    for node in walk(root(model)):
        if node.class_name in ("LSTM", "GRU"):
            changes.put(show_path(node.path), node.config, "use_cudnn", "auto")
            return True
    return False

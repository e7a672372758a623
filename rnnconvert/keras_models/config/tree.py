"""Walking a Keras config: which layer dicts it holds, where, and in which order of weights.

A layer dict is `{"class_name": ..., "config": {...}}`; models hold lists of them, wrappers one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

Config = dict[str, Any]

MODEL_CLASSES = ("Sequential", "Functional", "Model")
WRAPPED_KEYS = ("layer", "backward_layer", "cell")


@dataclass(frozen=True)
class Node:
    """A layer dict and its place.

    Attributes:
        entry: the layer dict itself; changing it changes the config.
        path: names from the model's top-level layer down to this one.
        role: "model" for the root, "member" of a model's layer list, "wrapped" in another layer.
        parent: the node that holds it, None for the root.
        key: the key of the parent's config under which it lies.
    """

    entry: Config
    path: tuple[str, ...]
    role: str
    parent: Node | None = None
    key: str = ""
    ancestors: tuple[Config, ...] = field(default=(), repr=False)

    @property
    def class_name(self) -> str:
        return str(self.entry.get("class_name"))

    @property
    def config(self) -> Config:
        config = self.entry.get("config")
        return config if isinstance(config, dict) else {}


def is_layer(value: object) -> bool:
    return isinstance(value, dict) and "class_name" in value and "config" in value


def is_operation(entry: object) -> bool:
    """Whether an entry of a functional model is an operation of Keras 3, `keras.ops`, no layer."""
    return isinstance(entry, dict) and str(entry.get("module")).startswith("keras.src.ops.")


def layer_name(entry: Config) -> str:
    """Name of a layer dict: in its config, or (functional members) beside it."""
    config = entry.get("config")
    name = config.get("name") if isinstance(config, dict) else None
    return str(name or entry.get("name") or entry.get("class_name"))


def members(entry: Config) -> list[Config]:
    """The layer list of a model dict; [] for anything else. Keras < 2.2.3 has a bare list."""
    config = entry.get("config")
    if isinstance(config, list):
        layers: object = config
    else:
        layers = config.get("layers") if isinstance(config, dict) else None
    if not isinstance(layers, list):
        return []
    return [layer for layer in layers if is_layer(layer)]


def children(node: Node) -> list[Node]:
    """The nodes directly below `node`, in config order."""

    def below(entry: Config, role: str, key: str) -> Node:
        path = (*node.path, layer_name(entry))
        return Node(entry, path, role, node, key, (*node.ancestors, node.entry))

    found = [below(entry, "member", "layers") for entry in members(node.entry)]
    for key in WRAPPED_KEYS:
        if is_layer(node.config.get(key)):
            found.append(below(node.config[key], "wrapped", key))
    cells = node.config.get("cells")
    if isinstance(cells, list):
        found += [below(cell, "wrapped", "cells") for cell in cells if is_layer(cell)]
    return found


def root(model_config: Config) -> Node:
    return Node(model_config, (), "model")


def walk(node: Node) -> Iterator[Node]:
    """`node` and all nodes below it, in config order."""
    yield node
    for child in children(node):
        yield from walk(child)


def unfolded(node: Node) -> int:
    """How many layers there are at and below a node when each Bidirectional has both directions.

    A Bidirectional mostly writes one of its two layers; one in another one in another ... stands
    for a number of layers that doubles with each.
    """
    found = 1
    below = children(node)
    for child in below:
        twice = node.class_name == "Bidirectional" and len(below) == 1
        found += (2 if twice else 1) * unfolded(child)
    return found


def parse_version(text: str | None) -> tuple[int, ...] | None:
    """A Keras version such as "2.2.4-tf", as numbers; None where there is none."""
    match = re.match(r"(\d+)\.(\d+)(?:\.(\d+))?", text or "")
    return tuple(int(part or 0) for part in match.groups()) if match else None


def show_path(path: tuple[str, ...]) -> str:
    return "/".join(("model", *path))

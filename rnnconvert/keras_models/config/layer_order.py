"""The order in which Keras lists a functional model's layers, and reads their weights.

Keras lists layers by their depth: how far they stand from the outputs. An operation that is added
before one of two layers side by side makes the other layers before it deeper, and so changes the
order in which an .h5 file's weights are read.
"""

from __future__ import annotations

from typing import Any

from rnnconvert.keras_models.config.structure import each_reference, member_names
from rnnconvert.keras_models.config.tree import (
    Config,
    Node,
    layer_name,
    members,
    root,
    show_path,
    walk,
)

Call = tuple[str, int]  # layer, which of its calls


def layer_order(model: Config) -> list[str]:
    """The names of a functional model's layers in Keras' order, of layers that lead to an output.

    Args:
        model: the model's dict, in Keras 2's form or in Keras 3's.
    """
    graph = _Graph(model)
    finished = graph.from_outputs()
    depths: dict[Call, int] = {}
    of_layers: dict[str, int] = {}
    for call in reversed(finished):
        depth = max(depths.get(call, 0), of_layers.get(call[0], 0))
        of_layers[call[0]] = depths[call] = depth
        for needed in graph.needs(call):
            depths[needed] = max(depth + 1, depths.get(needed, 0))
    first_seen = {name: place for place, name in enumerate(graph.seen)}
    return sorted(of_layers, key=lambda name: (-of_layers[name], first_seen[name]))


class _Graph:
    """Which call needs which others."""

    def __init__(self, model: Config) -> None:
        self.config = model["config"]
        self.entries = {str(e.get("name") or layer_name(e)): e for e in members(model)}
        self.names = member_names(self.config)
        self.seen: list[str] = []
        """Layers in the order in which they are met, going back from the outputs."""
        everything: list[Any] = []
        for value in (self.config["layers"], self.config["output_layers"]):
            each_reference([e["inbound_nodes"] for e in value] if value is self.config["layers"]
                           else value, self.names, everything.append)  # fmt: skip
        self._first: dict[str, int] = {}
        for name, node, *_ in everything:
            self._first[name] = min(node, self._first.get(name, node))

    def needs(self, call: Call) -> list[Call]:
        nodes = self.entries[call[0]].get("inbound_nodes") or []
        return self._calls(nodes[call[1]]) if call[1] < len(nodes) else []

    def _calls(self, value: Any) -> list[Call]:
        """The calls that a config value refers to; a nested model's first one may have number 1."""
        found: list[Any] = []
        each_reference(value, self.names, found.append)
        return [(name, node - self._first[name]) for name, node, *_ in found]

    def from_outputs(self) -> list[Call]:
        """Every call behind those that it needs."""
        finished: dict[Call, None] = {}
        waiting = [(call, False) for call in reversed(self._calls(self.config["output_layers"]))]
        started: set[Call] = set()
        while waiting:
            call, done = waiting.pop()
            if done:
                finished[call] = None
            elif call not in started:
                started.add(call)
                if call[0] not in self.seen:
                    self.seen.append(call[0])
                waiting.append((call, True))
                waiting += [(needed, False) for needed in reversed(self.needs(call))]
        return list(finished)


def changed_order(before: Config, after: Config) -> tuple[list[str] | None, list[str]]:
    """Whether the weights of a ported model are read in another order than they lie in the file.

    Args:
        before, after: the model_config as it was, and ported.

    Returns:
        The new order of the top-level layers, None where it is the old one; and problems: nested
        models whose layers have another order now.
    """
    problems: list[str] = []
    old = {node.path: node for node in walk(root(before)) if _is_functional(node)}
    new_order = None
    for node in walk(root(after)):
        was = old.get(node.path)
        if was is None or not _is_functional(node):
            continue
        kept = {str(e.get("name") or layer_name(e)) for e in members(was.entry)}
        if {str(e.get("name") or layer_name(e)) for e in members(node.entry)} == kept:
            continue
        order = layer_order(node.entry)
        if [n for n in order if n in kept] == [n for n in layer_order(was.entry) if n in order]:
            continue
        if node.role == "model":
            new_order = order
        else:
            problems.append(
                f"{show_path(node.path)}: a nested model whose weights Keras 3 would read in "
                "another order than they lie in the file"
            )
    return new_order, problems


def _is_functional(node: Node) -> bool:
    return "output_layers" in node.config and isinstance(node.config.get("layers"), list)

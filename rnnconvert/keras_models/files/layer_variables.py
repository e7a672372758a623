"""Which variables a Keras layer owns in an object graph, in the order in which Keras 2 saves them.

Keras 2 saves `layer.trainable_weights + layer.non_trainable_weights`. A SavedModel with traced
functions holds both as lists. Where the lists are missing (`save_traces=False`, TensorFlow 1) the
order follows from the config: a layer's own variables in the order in which it made them, then
those of the layers inside it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from rnnconvert.containers.object_graph import ObjectGraph
from rnnconvert.errors import NotConvertibleError
from rnnconvert.keras_models.config.builtin import GONE_IN_KERAS_3, KERAS_LAYERS
from rnnconvert.keras_models.config.recurrent import RECURRENT_CLASSES
from rnnconvert.keras_models.config.tree import Node, children, show_path

_ATTENTION_PARTS = ("_query_dense", "_key_dense", "_value_dense", "_output_dense")
"""Layers inside a MultiHeadAttention, in the order in which it makes them; no config tells it."""

_NEVER_TRAIN = ("moving_mean", "moving_variance")
"""Attributes of BatchNormalization, for graphs that don't tell which variables train."""

_NO_WEIGHTS = ("keras_api", "_random_generator")
"""Children of a layer that hold lists of its weights, or the state of random numbers."""

_BUILT_IN = KERAS_LAYERS | GONE_IN_KERAS_3
_INSTEAD = "--to savedmodel lowers the graph instead"


@dataclass(frozen=True)
class Owned:
    """Nodes of variables in Keras' order: those that train, and those that don't."""

    trainable: list[int] = field(default_factory=list)
    frozen: list[int] = field(default_factory=list)

    @property
    def all(self) -> list[int]:
        """Each once: a layer that is used twice has its variables only once."""
        return list(dict.fromkeys(self.trainable + self.frozen))


@dataclass(frozen=True)
class LayerFinder:
    """Finds layers and their variables.

    Attributes:
        graph: of the checkpoint.
        trains: variables by name, and whether they train; empty where that is not known.
    """

    graph: ObjectGraph
    trains: Mapping[str, bool]

    def layers(self, model: Node, at: int) -> list[tuple[Node, int]]:
        """The layers of a model, each with its object, in the order of `model.layers`.

        An InputLayer of a Sequential is left out: TensorFlow 1 has it in the graph only, later
        versions in the config only, and it is none of `model.layers`.

        Args:
            model: of the config.
            at: the model's object.

        Raises:
            NotConvertibleError: config and graph don't have the same number of layers.
        """
        objects = [found for _, found in self.graph.numbered(at, "layer-")]
        entries = [node for node in children(model) if node.role == "member"]
        if len(entries) != len(objects) and "input_layers" not in model.config:
            entries = [node for node in entries if node.class_name != "InputLayer"]
            if len(objects) == len(entries) + 1 and objects[0] not in self.with_weights(at):
                objects = objects[1:]
        if len(entries) != len(objects):
            raise NotConvertibleError(
                f"{show_path(model.path)}: the config has {len(entries)} layers, the object graph "
                f"of the variables {len(objects)}; {_INSTEAD}"
            )
        return list(zip(entries, objects, strict=True))

    def with_weights(self, at: int) -> set[int]:
        """Objects of those layers of a model that had weights when it was saved."""
        return {found for _, found in self.graph.numbered(at, "layer_with_weights-")}

    def owned(self, layer: Node, at: int) -> Owned:
        """The variables of one layer.

        Args:
            layer: of the config.
            at: the layer's object.

        Raises:
            NotConvertibleError: their order can't be known.
        """
        listed = self.graph.listed(at, "variables")
        if listed is not None:
            trainable = self.graph.listed(at, "trainable_variables") or []
            return Owned(trainable, [found for found in listed if found not in set(trainable)])
        holder = self.graph.child(at, "cell") if layer.class_name in RECURRENT_CLASSES else None
        owned = self._own(layer, at if holder is None else holder)
        for part, found in self._parts(layer, at):
            inner = self.owned(part, found)
            owned.trainable.extend(inner.trainable)
            owned.frozen.extend(inner.frozen)
        self._require_complete(layer, at, owned)
        return Owned([], owned.all) if layer.config.get("trainable") is False else owned

    def _own(self, layer: Node, at: int) -> Owned:
        """Variables that an object holds itself, in the order in which it made them."""
        owned = Owned()
        for attribute, found in self.graph.nodes[at].children.items():
            if self.graph.variable(found) is not None:
                trains = self.trains.get(self._name(found), attribute not in _NEVER_TRAIN)
                (owned.trainable if trains else owned.frozen).append(found)
        known = all(self._name(found) in self.trains for found in owned.all)
        if len(owned.all) > 1 and not known and layer.class_name not in _BUILT_IN:
            raise NotConvertibleError(
                f"{show_path(layer.path)}: which weights of the custom class {layer.class_name} "
                f"train, and so their order, is not known; {_INSTEAD}"
            )
        return owned

    def _parts(self, layer: Node, at: int) -> list[tuple[Node, int]]:
        """Layers inside a layer, each with its object, in Keras' order."""
        below = children(layer)
        if any(node.role == "member" for node in below):
            return self.layers(layer, at)
        if layer.class_name == "MultiHeadAttention":
            dense = {"class_name": "EinsumDense", "config": {}}
            return [
                (Node(dense, (*layer.path, name), "wrapped"), self._child(layer, at, name))
                for name in _ATTENTION_PARTS
            ]
        by_key = {node.key: node for node in below}
        if layer.class_name == "Bidirectional" and "layer" in by_key:
            backward = by_key.get("backward_layer", by_key["layer"])
            both = (("forward_layer", by_key["layer"]), ("backward_layer", backward))
            return [(node, self._child(layer, at, name)) for name, node in both]
        cells = [node for node in below if node.key == "cells"]
        if cells:
            return self._cells(layer, at, cells)
        return [(node, self._child(layer, at, node.key)) for node in below]

    def _cells(self, layer: Node, at: int, cells: list[Node]) -> list[tuple[Node, int]]:
        objects = self.graph.listed(at, "cells")
        if objects is None or len(objects) != len(cells):
            found = "none: TensorFlow 1.12 does not save them" if not objects else len(objects)
            raise NotConvertibleError(
                f"{show_path(layer.path)}: expected {len(cells)} cells with weights in the object "
                f"graph of the variables, found {found}; {_INSTEAD}"
            )
        return list(zip(cells, objects, strict=True))

    def _child(self, layer: Node, at: int, name: str) -> int:
        found = self.graph.child(at, name)
        if found is None:
            raise NotConvertibleError(
                f"{show_path(layer.path)}: expected {name} in the object graph of the variables, "
                f"found {', '.join(self.graph.nodes[at].children) or 'nothing'}; {_INSTEAD}"
            )
        return found

    def _require_complete(self, layer: Node, at: int, owned: Owned) -> None:
        """Refuse a layer with variables in a place that its config does not tell."""
        if any(node.role == "member" for node in children(layer)):
            return
        attributes = self.graph.nodes[at].children
        starts = [found for name, found in attributes.items() if name not in _NO_WEIGHTS]
        left = sorted(
            found
            for found in self.graph.below(starts) - set(owned.all)
            if self.graph.variable(found) is not None
        )
        if left:
            names = ", ".join(self._name(found) for found in left[:4])
            raise NotConvertibleError(
                f"{show_path(layer.path)}: a {layer.class_name} with weights in objects of its own "
                f"({names}), whose order is not known; {_INSTEAD}"
            )

    def _name(self, at: int) -> str:
        variable = self.graph.variable(at)
        return "" if variable is None else variable.name

"""The parameters that a cuDNN op receives, from the model's files, without running the model.

They are a variable or a constant, or computed from some: then the part of the graph that computes
them is cut out and run by itself, on the CPU, with the variables' values from the checkpoint.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rnnconvert.errors import ConversionError
from rnnconvert.graphs.find.origins import origins, turned
from rnnconvert.graphs.find.scopes import Library, Scope
from rnnconvert.graphs.find.shapes import VARIABLES, Shapes
from rnnconvert.graphs.framework import GraphDef, data_inputs, node_attribute, op_def, tf
from rnnconvert.graphs.verify.compare import first_line
from rnnconvert.graphs.verify.harmless import HARMLESS
from rnnconvert.graphs.verify.reference_graph import ReferenceGraphs
from rnnconvert.graphs.verify.runners import CPU, FAILURES, new_session
from rnnconvert.graphs.verify.variables import Variables

Array = np.ndarray[Any, Any]

_FAR = 5_000  # tensors that a search backwards visits at most
_DEEP = 200  # nodes in a row that are cut out
_SEVERAL = "they come from more than one place in the graph"
_INPUTS = frozenset({"Placeholder", "PlaceholderV2", "PlaceholderWithDefault"})


class Unavailable(Exception):
    """The parameters can't be told from the files; the message says why."""


@dataclass(frozen=True)
class _Place:
    """Where a tensor is made: output `index` of `node`, or a variable (node None).

    Attributes:
        keys: of the variable in the checkpoint; several where its name does not tell.
        name: of the variable or node.
    """

    scope: Scope
    node: Any | None
    index: int
    keys: frozenset[str]
    name: str

    def same(self, other: _Place) -> bool:
        here, there = (place.node and (place.scope.name, place.name) for place in (self, other))
        return here == there and self.index == other.index


class Parameters:
    """Answers what tensors of one graph hold, as far as its files alone decide that.

    Args:
        library: of the graph.
        shapes: which know what variables the graph's concrete functions are bound to.
        variables: their values.
        constants: by concrete function, the nodes of constants that its last arguments are bound
            to; None where that is no constant.
    """

    def __init__(
        self,
        library: Library,
        shapes: Shapes,
        variables: Variables,
        constants: Mapping[str, Sequence[str | None]] | None = None,
    ) -> None:
        self._library, self._shapes, self._variables = library, shapes, variables
        self._constants = constants or {}

    def value(self, scope: Scope, reference: str) -> Array:
        """The value of a tensor.

        Raises:
            Unavailable: it depends on an input, on more than the files hold, or on what can't be
                told from them.
        """
        return _Excerpt(self).value(self.place(scope, reference))

    def place(self, scope: Scope, reference: str) -> _Place:
        """Where a tensor is made; the one place of all that it may be handed on from."""
        places = self._places(scope, reference)
        variables = [place for place in places if place.node is None]
        if len(variables) == len(places):
            known = [place.keys for place in variables if place.keys]
            keys = frozenset[str].intersection(*known) if known else frozenset[str]()
            if known and not keys:
                raise Unavailable(_SEVERAL)
            return _Place(scope, None, 0, keys, places[0].name)
        if not all(place.same(places[0]) for place in places):
            raise Unavailable(_SEVERAL)
        return places[0]

    def _places(self, scope: Scope, reference: str) -> Sequence[_Place]:
        todo, visited, found = [(scope, reference)], set[tuple[str, str]](), []
        while todo:
            scope, reference = todo.pop()
            if (scope.name, reference) in visited:
                continue
            visited.add((scope.name, reference))
            producer = self._library.producer(scope, reference)
            if producer is None or producer.index < 0 or len(visited) > _FAR:
                raise Unavailable(f"where {reference} comes from can't be told")
            variable = self._variable(scope, producer.node, producer.index)
            if variable is not None:
                found.append(variable)
                continue
            handed_on = origins(self._library, scope, reference)
            handed_on += turned(self._library, scope, reference)
            if producer.node is None:
                handed_on += self._bound(scope, producer.index)
            todo += handed_on
            if handed_on:
                continue
            if producer.node is None:
                raise Unavailable(f"they are an argument of {scope.name}, which nothing here calls")
            found.append(
                _Place(scope, producer.node, producer.index, frozenset(), producer.node.name)
            )
        if not found:
            raise Unavailable(f"{reference} goes round in a loop")
        return found

    def _bound(self, scope: Scope, index: int) -> list[tuple[Scope, str]]:
        """The constant that an argument of a concrete function is bound to, if so."""
        bound = self._constants.get(scope.name, ())
        index -= len(scope.arguments) - len(bound)
        name = bound[index] if 0 <= index < len(bound) else None
        return [] if name is None else [(self._library.main, name)]

    def _variable(self, scope: Scope, node: Any | None, index: int) -> _Place | None:
        keys: frozenset[str]
        if node is None:
            captured = self._shapes.capture(scope, index)
            if captured is None:
                return None
            keys = self._variables.keys_of_object(captured.number)
            keys = keys or self._variables.keys_of_name(captured.name)
            return _Place(scope, None, 0, keys, captured.name)
        if node.op not in VARIABLES:
            return None
        name = node_attribute(node, "shared_name") or node.name
        keys = self._variables.keys_of_name(name) or self._variables.keys_of_name(node.name)
        return _Place(scope, None, 0, keys, name)

    def read(self, place: _Place) -> Array:
        """The value of a variable."""
        if len(place.keys) != 1:
            several = f"{len(place.keys)} variables of the name" if place.keys else "no variable"
            raise Unavailable(f"the checkpoint has {several} {place.name}")
        (key,) = place.keys
        try:
            return self._variables.read(key)
        except ConversionError as error:
            raise Unavailable(f"{key} can't be read: {error}") from error

    def calls(self, node: Any) -> bool:
        return any(self._library.called(node))


class _Excerpt:
    """The part of a graph, across its functions, that computes one tensor."""

    def __init__(self, parameters: Parameters) -> None:
        self._parameters = parameters
        self._graph_def = GraphDef()
        self._feeds: dict[str, Array] = {}
        self._names: dict[tuple[str, str], str] = {}

    def value(self, place: _Place) -> Array:
        if place.node is None:
            return self._parameters.read(place)
        if place.node.op == "Const":
            return _constant(place.node)
        fetch = self._tensor(place, 0)
        references = ReferenceGraphs()
        references.replace_ops(self._graph_def)  # canonical forms
        try:
            with tf.Graph().as_default() as graph:
                tf.graph_util.import_graph_def(self._graph_def, name="")
            with new_session(graph, CPU) as session:
                return np.asarray(session.run(fetch, self._feeds))
        except FAILURES as error:
            raise Unavailable(f"what computes them does not run: {first_line(error)}") from error

    def _tensor(self, place: _Place, depth: int) -> str:
        """Name in the excerpt of a tensor that is made there, with all that it needs."""
        if depth > _DEEP:
            raise Unavailable(f"more than {_DEEP} nodes in a row compute them")
        if place.node is None:
            return self._feed(place)
        key = (place.scope.name, place.node.name)
        if key not in self._names:
            self._require_plain(place.node)
            inputs = [
                self._tensor(self._parameters.place(place.scope, reference), depth + 1)
                for reference in data_inputs(place.node)
            ]
            self._names[key] = f"node_{len(self._names)}"
            added = self._graph_def.node.add(name=self._names[key], op=place.node.op, input=inputs)
            for name, value in place.node.attr.items():
                if not name.startswith("_"):
                    added.attr[name].CopyFrom(value)
        return f"{self._names[key]}:{place.index}"

    def _feed(self, place: _Place) -> str:
        key = ("", f"variable {place.name} {sorted(place.keys)}")
        if key not in self._names:
            value = self._parameters.read(place)
            self._names[key] = f"node_{len(self._names)}"
            added = self._graph_def.node.add(name=self._names[key], op="Placeholder")
            added.attr["dtype"].type = tf.as_dtype(value.dtype).as_datatype_enum
            self._feeds[f"{self._names[key]}:0"] = value
        return f"{self._names[key]}:0"

    def _require_plain(self, node: Any) -> None:
        """Raise unless a node gives the same whenever it is given the same, and does nothing else.

        That TensorFlow calls it stateless is not enough: so it calls ReadFile.
        """
        definition = op_def(node.op)
        if node.op in _INPUTS:
            raise Unavailable(f"they depend on the input {node.name}")
        plain = definition is not None and not definition.is_stateful and node.op in HARMLESS
        if not plain or self._parameters.calls(node):
            raise Unavailable(f"they depend on {node.name}, a {node.op}")


def _constant(node: Any) -> Array:
    try:
        return np.asarray(tf.make_ndarray(node_attribute(node, "value")))
    except (ValueError, TypeError) as error:
        raise Unavailable(f"the constant {node.name} is damaged: {first_line(error)}") from error

"""A graph and its function library, seen as bodies of nodes that call one another.

References to tensors are written differently in the main graph (`node`, `node:1`) and in functions
(`argument`, `node:output_name:0`); a Scope hides the difference.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from rnnconvert.graphs.framework import data_inputs, op_def, output_lengths

_ARGUMENTS_BEHIND = {
    "PartitionedCall": 0,
    "StatefulPartitionedCall": 0,
    "While": 0,
    "StatelessWhile": 0,
    "If": 1,
    "StatelessIf": 1,
    "Case": 1,
    "StatelessCase": 1,
}
"""Ops that call functions, and how many inputs stand before the function's arguments."""


@dataclass(frozen=True)
class Producer:
    """Where a reference leads: output `index` of `node`, or function argument `index` (node None).

    `index` is -1 where the op is unknown to TensorFlow, so that its outputs can't be counted.
    """

    node: Any | None
    index: int


class Scope:
    """The main graph, or the body of one function.

    Attributes:
        name: of the function; "" for the main graph.
        nodes: the proto's repeated field of nodes.
        function: the FunctionDef; None for the main graph.
    """

    def __init__(self, nodes: Any, function: Any | None = None) -> None:
        self.nodes = nodes
        self.function = function
        self.name: str = function.signature.name if function is not None else ""
        self.by_name: dict[str, Any] = {node.name: node for node in nodes}
        arguments = function.signature.input_arg if function is not None else ()
        self.arguments: dict[str, int] = {arg.name: i for i, arg in enumerate(arguments)}

    def producer(self, reference: str, signatures: dict[str, Any]) -> Producer | None:
        """What a data reference refers to; None if it is not there.

        Args:
            reference: as it stands in a node's input.
            signatures: of library functions, whose names may stand as ops.
        """
        if self.function is None:
            name, _, index = reference.partition(":")
            known = name in self.by_name and (index or "0").isdecimal()
            return Producer(self.by_name[name], int(index or 0)) if known else None
        name, *rest = reference.split(":")
        if name in self.arguments:
            return Producer(None, self.arguments[name])
        if name not in self.by_name or not rest:
            return None
        node = self.by_name[name]
        return Producer(node, _flat_index(node, rest, signatures))

    def reference(self, name: str, output: str, position: int, index: int) -> str:
        """A reference to a tensor, as this scope writes it.

        Args:
            name: of the node.
            output, position: its output argument, and the place within that.
            index: the tensor's number among all outputs of the node.
        """
        if self.function is not None:
            return f"{name}:{output}:{position}"
        return f"{name}:{index}" if index else name


def _flat_index(node: Any, rest: list[str], signatures: dict[str, Any]) -> int:
    definition = signatures.get(node.op) or op_def(node.op)
    if definition is None:
        return -1
    before = 0
    for output, length in output_lengths(node, definition):
        if output == rest[0]:
            position = rest[1] if len(rest) > 1 else "0"
            return before + int(position) if position.isdecimal() else -1
        before += length
    return -1


@dataclass(frozen=True)
class FunctionCall:
    """A place where a function is called: input `offset + k` of `node` is its argument k."""

    scope: Scope
    node: Any
    offset: int


class Library:
    """All scopes of a GraphDef, who calls whom, and what running the model can reach.

    Args:
        graph_def: with its function library.
        roots: functions that are run from outside (a SavedModel's concrete functions).
    """

    def __init__(self, graph_def: Any, roots: Iterable[str] = ()) -> None:
        self.graph_def = graph_def
        self.main = Scope(graph_def.node)
        self.functions = {f.signature.name: f for f in graph_def.library.function}
        self.signatures = {name: f.signature for name, f in self.functions.items()}
        self.scopes = {name: Scope(f.node_def, f) for name, f in self.functions.items()}
        self.callers: dict[str, list[FunctionCall]] = defaultdict(list)
        for scope in self.all_scopes():
            for node in scope.nodes:
                for name in self.called(node):
                    offset = 0 if node.op == name else _ARGUMENTS_BEHIND.get(node.op)
                    if offset is not None:
                        self.callers[name].append(FunctionCall(scope, node, offset))
        gradients = [g.gradient_func for g in graph_def.library.registered_gradients]
        twins = self._gpu_twins()
        starts = [*roots, *gradients, *self._called_in(self.main)]
        self.reachable = self._closure(starts, stop=twins)
        self.twins = self._closure(twins) - self.reachable

    def all_scopes(self) -> list[Scope]:
        return [self.main, *self.scopes.values()]

    def called(self, node: Any) -> Iterator[str]:
        """Names of the library functions that a node names: as its op, or in its attributes."""
        if node.op in self.functions:
            yield node.op
        for value in node.attr.values():
            names = [value.func.name, *(function.name for function in value.list.func)]
            yield from (name for name in names if name in self.functions)

    def producer(self, scope: Scope, reference: str) -> Producer | None:
        return scope.producer(reference, self.signatures)

    def arguments_given(self, scope: Scope, index: int) -> list[tuple[Scope, str]]:
        """What callers that can be reached hand over as argument `index` of a function."""
        given = []
        for call in self.callers[scope.name]:
            inputs = data_inputs(call.node)
            live = call.scope is self.main or call.scope.name in self.reachable
            if live and index + call.offset < len(inputs):
                given.append((call.scope, inputs[index + call.offset]))
        return given

    def _called_in(self, scope: Scope) -> list[str]:
        return [name for node in scope.nodes for name in self.called(node)]

    def _closure(self, starts: Iterable[str], stop: frozenset[str] = frozenset()) -> frozenset[str]:
        todo, found = list(starts), set()
        while todo:
            name = todo.pop()
            if name in self.functions and name not in found and name not in stop:
                found.add(name)
                todo += self._called_in(self.scopes[name])
        return frozenset(found)

    def _gpu_twins(self) -> frozenset[str]:
        """The GPU variants of functions that have a CPU variant too.

        Keras wrote its plain LSTM and GRU so; TensorFlow picks the variant by the device.
        """
        variants = defaultdict(list)
        for function in self.functions.values():
            if function.attr["api_implements"].s if "api_implements" in function.attr else b"":
                variants[function.attr["api_implements"].s].append(function)
        return frozenset(
            function.signature.name
            for group in variants.values()
            if any(_preferred_device(other) == b"CPU" for other in group)
            for function in group
            if _preferred_device(function) == b"GPU"
        )


def _preferred_device(function: Any) -> bytes:
    return (
        function.attr["api_preferred_device"].s if "api_preferred_device" in function.attr else b""
    )

"""The graph beside a checkpoint (NAME.meta): its nodes, and where a value comes from and goes to.

Only the few fields of a MetaGraphDef that are needed are read, without TensorFlow. (Formats:
tensorflow/core/protobuf/meta_graph.proto, tensorflow/core/framework/{graph,function,node_def,
attr_value,tensor}.proto.)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from rnnconvert.containers.checkpoint.files import open_file, reading, require_no_lfs_pointer
from rnnconvert.containers.checkpoint.wire import Buffer, Message, decode_text
from rnnconvert.errors import UnreadableInputError

VARIABLES = frozenset({"Variable", "VariableV2", "VarHandleOp"})
_PASSING = frozenset(
    {"Identity", "ReadVariableOp", "Enter", "RefEnter", "Switch", "RefSwitch", "StopGradient",
     "Cast", "Snapshot", "EnsureShape", "CheckNumerics", "PreventGradient"}
)  # fmt: skip
"""Ops whose first input comes out as it is (of another type after a Cast)."""
_BRANCHING = frozenset({"Switch", "RefSwitch"})
"""Those of them with two outputs."""
_CALLED = ("f", "body", "cond", "then_branch", "else_branch", "branches")
"""Attributes that name functions which an op hands its inputs to."""
_CALLING = frozenset(
    {"While", "StatelessWhile", "If", "StatelessIf", "Case", "StatelessCase", "PartitionedCall",
     "StatefulPartitionedCall", "SymbolicGradient", "RemoteCall", "XlaLaunch"}
)  # fmt: skip
"""The ops that do; any other op may itself be the name of a function."""
_DECIDING = frozenset({"If", "StatelessIf", "Case", "StatelessCase"})
"""Ops whose first input decides, and is handed to no function."""
ARGUMENT = "argument of a function"
"""The op of the nodes that stand for a function's arguments."""


class GraphValue(NamedTuple):
    """One output of a node; `function` is "" in the graph itself."""

    function: str
    node: str
    output: int = 0


class Use(NamedTuple):
    """A node that takes a value, as its input number `place`."""

    function: str
    node: GraphNode
    place: int

    def value(self, output: int = 0) -> GraphValue:
        return GraphValue(self.function, self.node.name, output)


@dataclass(frozen=True)
class GraphNode:
    """A node; `inputs` are (node, output) without control inputs."""

    name: str
    op: str
    inputs: tuple[tuple[str, int], ...] = ()
    message: Message = field(default_factory=lambda: Message(b""))

    def attribute(self, name: str) -> Message | None:
        """An AttrValue; None where the node leaves it at its default."""
        for entry in map(Message, self.message.parts(5)):
            if entry.text(1) == name:
                return Message(entry.part(2))
        return None


@dataclass(frozen=True)
class Graph:
    """Nodes by function and name, and the names of each function's arguments."""

    nodes: Mapping[str, Mapping[str, GraphNode]]
    arguments: Mapping[str, tuple[str, ...]]

    @property
    def main(self) -> Mapping[str, GraphNode]:
        """The nodes of the graph itself."""
        return self.nodes[""]

    def node(self, value: GraphValue) -> GraphNode:
        return self.nodes[value.function][value.node]

    def inputs(self, function: str, node: GraphNode) -> list[GraphValue]:
        return [GraphValue(function, *given) for given in node.inputs]

    def uses(self, value: GraphValue, *, joined: bool = False) -> Iterator[Use]:
        """The nodes that take a value, also through ops that hand it on, and inside functions.

        Args:
            joined: go on through ConcatV2, which joins the parts of a partitioned variable.
        """
        waiting, seen = [value], set()
        while waiting:
            at = waiting.pop()
            if at in seen:
                continue
            seen.add(at)
            for use in self._consumers.get(at, ()):
                inner = self._arguments(use)
                if use.node.op in _PASSING and use.place == 0:
                    waiting += [use.value(n) for n in range(1 + (use.node.op in _BRANCHING))]
                elif joined and use.node.op == "ConcatV2":
                    waiting.append(use.value())
                elif inner:
                    waiting += inner
                else:
                    yield use

    def source(self, value: GraphValue) -> GraphValue | None:
        """Where a value comes from, before all ops that hand it on; None where that is unclear."""
        seen = set()
        while value not in seen and value.node in self.nodes[value.function]:
            seen.add(value)
            node = self.node(value)
            before = self.inputs(value.function, node)[:1] if node.op in _PASSING else []
            if node.op == ARGUMENT:
                before = self._given.get((value.function, value.node), [])
                if len(set(before)) != 1:
                    return None
            if not before:
                return value
            value = before[0]
        return None

    def _arguments(self, use: Use) -> list[GraphValue]:
        """The arguments of functions that a node hands its input to."""
        place = use.place - (use.node.op in _DECIDING)
        return [
            GraphValue(callee, self.arguments[callee][place])
            for callee in self._callees.get((use.function, use.node.name), ())
            if 0 <= place < len(self.arguments[callee])
        ]

    @cached_property
    def _consumers(self) -> dict[GraphValue, list[Use]]:
        found: dict[GraphValue, list[Use]] = {}
        for function, nodes in self.nodes.items():
            for node in nodes.values():
                for place, given in enumerate(node.inputs):
                    found.setdefault(GraphValue(function, *given), []).append(
                        Use(function, node, place)
                    )
        return found

    @cached_property
    def _callees(self) -> dict[tuple[str, str], list[str]]:
        """The functions that a node calls, as far as there are any."""
        if not self.arguments:
            return {}
        return {
            (function, node.name): callees
            for function, nodes in self.nodes.items()
            for node in nodes.values()
            if (callees := [name for name in _called(node) if name in self.arguments])
        }

    @cached_property
    def _given(self) -> dict[tuple[str, str], list[GraphValue]]:
        """For an argument of a function, what its callers give for it."""
        found: dict[tuple[str, str], list[GraphValue]] = {}
        for function, name in self._callees:
            node = self.nodes[function][name]
            for place, value in enumerate(self.inputs(function, node)):
                for argument in self._arguments(Use(function, node, place)):
                    found.setdefault((argument.function, argument.node), []).append(value)
        return found


def _called(node: GraphNode) -> Iterator[str]:
    """The names of all functions that a node may call."""
    yield node.op
    for name in _CALLED if node.op in _CALLING else ():
        value = node.attribute(name)
        if value is not None:
            functions = [value.part(10), *Message(value.part(1)).parts(9)]
            yield from (Message(function).text(1) for function in functions)


def graph_path(prefix: Path) -> Path | None:
    """The file with the graph of a checkpoint: its `.meta`, or that of the SavedModel it is of."""
    meta = prefix.with_name(f"{prefix.name}.meta")
    if meta.is_file():
        return meta
    saved_model = prefix.parent.parent / "saved_model.pb"
    inside = prefix.name == prefix.parent.name == "variables"
    return saved_model if inside and saved_model.is_file() else None


def read_graph(path: Path) -> Graph:
    """The graph of a MetaGraph, or the first one of a SavedModel.

    Args:
        path: of the file, see `graph_path`.

    Raises:
        UnreadableInputError: missing, cut short or damaged.
    """
    require_no_lfs_pointer(path)
    with reading(path.name), open_file(path) as (file, _):
        content: Buffer = file.read()
        if path.suffix == ".pb":
            content = next(iter(Message(content).parts(2)), b"")
        graph = parse_graph(content)
    if not graph.main:
        raise UnreadableInputError(
            f"{path.name} holds no graph, it is empty or damaged; copy it again, or remove it to "
            "convert the checkpoint without what it says"
        )
    return graph


def parse_graph(content: Buffer) -> Graph:
    """The graph of a serialized MetaGraphDef; raises Malformed where it is none."""
    graph = Message(Message(content).part(2))
    nodes = {"": _nodes(graph.parts(1))}
    arguments: dict[str, tuple[str, ...]] = {}
    for part in Message(graph.part(2)).parts(1):
        function = Message(part)
        signature = Message(function.part(1))
        own = tuple(Message(argument).text(1) for argument in signature.parts(2))
        arguments[signature.text(1)] = own
        nodes[signature.text(1)] = {
            **{name: GraphNode(name, ARGUMENT) for name in own},
            **_nodes(function.parts(3)),
        }
    return Graph(nodes, arguments)


def _nodes(parts: list[memoryview]) -> dict[str, GraphNode]:
    messages = map(Message, parts)
    found = ((message.text(1), message) for message in messages)
    return {name: GraphNode(name, m.text(2), tuple(_inputs(m)), m) for name, m in found}


def _inputs(message: Message) -> Iterator[tuple[str, int]]:
    """ "node", "node:1", or inside a function "node:output:1"; the last number counts.

    (An op with several named outputs counts them anew for each; of those no output is looked at.)
    """
    for name in map(decode_text, message.parts(3)):
        if not name.startswith("^"):
            node, *rest = name.split(":")
            last = rest[-1] if rest else "0"
            yield node, int(last) if last.isascii() and last.isdigit() and len(last) < 9 else 0

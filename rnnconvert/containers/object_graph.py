"""The object graph of a TensorFlow checkpoint: which Python object held which variable.

The keys of an object-based checkpoint are paths through that graph, and which of several paths was
taken changes from version to version (`layer_with_weights-0/kernel/...`, `variables/0/...`). The
graph itself does not: its edges are the names of attributes.
(Format: TrackableObjectGraph in tensorflow/core/protobuf/trackable_object_graph.proto.)
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from rnnconvert.containers.checkpoint import Checkpoint
from rnnconvert.containers.checkpoint.files import Malformed, reading
from rnnconvert.containers.checkpoint.wire import Message
from rnnconvert.errors import UnreadableInputError

GRAPH_KEY = "_CHECKPOINTABLE_OBJECT_GRAPH"
_VALUE = "VARIABLE_VALUE"


@dataclass(frozen=True)
class Variable:
    """A variable of a checkpoint.

    Attributes:
        name: which TensorFlow gave it, e.g. "both/forward_lstm/lstm_cell/kernel"; may be empty.
        key: under which its values lie in the checkpoint.
    """

    name: str
    key: str


@dataclass(frozen=True)
class TrackedObject:
    """A node of the graph: its children by their names, in the order in which it got them."""

    children: dict[str, int]
    variable: Variable | None


@dataclass(frozen=True)
class ObjectGraph:
    """The nodes; a node's number is its place, and 0 is the root."""

    nodes: tuple[TrackedObject, ...]

    def child(self, at: int, name: str) -> int | None:
        return self.nodes[at].children.get(name)

    def variable(self, at: int) -> Variable | None:
        return self.nodes[at].variable

    def listed(self, at: int, name: str) -> list[int] | None:
        """The items of a list that a node holds under `name`, in order; None without a list."""
        found = self.child(at, name)
        return None if found is None else [node for _, node in self.numbered(found, "")]

    def numbered(self, at: int, prefix: str) -> list[tuple[int, int]]:
        """Children called `prefix` and a number, as (number, node), in the order of the numbers."""
        children = self.nodes[at].children
        numbers = {
            int(digits): node
            for name, node in children.items()
            for digits in [name.removeprefix(prefix)]
            if name.startswith(prefix) and digits.isascii() and digits.isdigit() and len(digits) < 9
        }
        return sorted(numbers.items())

    def below(self, starts: Iterable[int]) -> set[int]:
        """All nodes that can be reached from `starts`, themselves included."""
        found: set[int] = set()
        waiting = list(starts)
        while waiting:
            at = waiting.pop()
            if at not in found:
                found.add(at)
                waiting += self.nodes[at].children.values()
        return found


def read_object_graph(checkpoint: Checkpoint) -> ObjectGraph | None:
    """The graph of an object-based checkpoint; None where the variables are saved by name.

    Raises:
        UnreadableInputError: the graph is damaged.
    """
    if GRAPH_KEY not in checkpoint.variables:
        return None
    stored = checkpoint.read(GRAPH_KEY)
    if stored.dtype != object or stored.size != 1:
        raise UnreadableInputError(f"{GRAPH_KEY} of the variables: expected one string")
    with reading(f"{GRAPH_KEY} of the variables"):
        return parse_object_graph(stored.item())


def parse_object_graph(buffer: bytes) -> ObjectGraph:
    """Raises Malformed where the bytes are no object graph."""
    parts = Message(buffer).parts(1)
    if not parts:
        raise Malformed("the object graph has no root")
    return ObjectGraph(tuple(_parse_node(Message(part), len(parts)) for part in parts))


def _parse_node(message: Message, count: int) -> TrackedObject:
    """A node of a graph of `count` nodes."""
    variable = None
    for part in message.parts(2):
        attribute = Message(part)
        if attribute.text(1) == _VALUE:
            variable = Variable(attribute.text(2), attribute.text(3))
    children: dict[str, int] = {}
    for part in message.parts(1):
        reference = Message(part)
        at = reference.unsigned(1)
        if at >= count:
            raise Malformed(f"a reference to object {at} of {count}")
        children[reference.text(2)] = at
    return TrackedObject(children, variable)

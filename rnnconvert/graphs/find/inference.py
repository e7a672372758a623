"""TensorFlow's own shape inference on the part of a graph that some tensors need.

The part ends at function calls and at ops that are not known to be harmless; placeholders stand
there. To learn a shape TensorFlow computes what it can from constants, even ReadFile of one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from rnnconvert.graphs.find.scopes import Library, Scope
from rnnconvert.graphs.framework import (
    GraphDef,
    data_inputs,
    input_types,
    node_attribute,
    op_def,
    tf,
)
from rnnconvert.graphs.verify.harmless import HARMLESS

_LARGE = 2**16  # bytes of a constant beyond which only its shape is copied


def infer(library: Library, scope: Scope, references: Sequence[str]) -> dict[str, Any]:
    """Symbolic tensors, with inferred shapes, of a scope's references and all that they need."""
    copy = _Copy(library, scope, references)
    with tf.Graph().as_default() as graph:
        tf.graph_util.import_graph_def(copy.graph_def, name="")
        return {
            reference: graph.get_tensor_by_name(name) for reference, name in copy.tensors.items()
        }


def proto_shape(shape: Any) -> tuple[int | None, ...] | None:
    if shape is None or shape.unknown_rank:
        return None
    return tuple(dim.size if dim.size >= 0 else None for dim in shape.dim)


def recorded_shape(scope: Scope, reference: str) -> tuple[int | None, ...] | None:
    """The shape that a FunctionDef notes for an argument."""
    if scope.function is None or reference not in scope.arguments:
        return None
    noted = scope.function.arg_attr.get(scope.arguments[reference])
    if noted is None or "_output_shapes" not in noted.attr:
        return None
    shapes = noted.attr["_output_shapes"].list.shape
    return proto_shape(shapes[0]) if len(shapes) == 1 else None


class _Copy:
    """The ancestors of some tensors as a GraphDef of its own, without devices or calls.

    Attributes:
        graph_def: the copy.
        tensors: name in the copy of each reference that was asked for.
    """

    def __init__(self, library: Library, scope: Scope, references: Sequence[str]) -> None:
        self.graph_def = GraphDef()
        self.graph_def.versions.CopyFrom(library.graph_def.versions)
        self._library, self._scope = library, scope
        self._placeholders: dict[str, str] = {}
        kept = {node.name: node for node in self._ancestors(references)}
        self._kept = kept
        for node in kept.values():
            self._add(node)
        wanted = [ref for ref in dict.fromkeys(references) if self._inside(ref)]
        self.tensors = {ref: self._name(ref, 0) for ref in wanted}

    def _ancestors(self, references: Sequence[str]) -> Iterator[Any]:
        todo, seen = list(references), set()
        while todo:
            producer = self._library.producer(self._scope, todo.pop())
            node = producer.node if producer else None
            if node is None or node.name in seen or self._is_border(node):
                continue
            seen.add(node.name)
            if not _is_large(node):
                todo += data_inputs(node)
            yield node

    def _is_border(self, node: Any) -> bool:
        known = node.op in HARMLESS and op_def(node.op) is not None
        return not known or any(self._library.called(node))

    def _inside(self, reference: str) -> bool:
        producer = self._library.producer(self._scope, reference)
        return (
            producer is not None and producer.node is not None and producer.node.name in self._kept
        )

    def _add(self, node: Any) -> None:
        if _is_large(node):
            self._placeholder(
                node.name, node_attribute(node, "dtype"), node_attribute(node, "value")
            )
            return
        added = self.graph_def.node.add()
        added.CopyFrom(node)
        added.device = ""
        for name in ("_class", "_output_shapes"):
            if name in added.attr:
                del added.attr[name]
        del added.input[:]
        pairs = zip(data_inputs(node), input_types(node), strict=False)
        added.input.extend(self._name(reference, kind) for reference, kind in pairs)

    def _name(self, reference: str, kind: int) -> str:
        """Name in the copy; a tensor from beyond the border becomes a placeholder of that type."""
        producer = self._library.producer(self._scope, reference)
        if producer is not None and producer.node is not None and self._inside(reference):
            return f"{producer.node.name}:{producer.index}"
        if reference not in self._placeholders:
            name = f"rnnconvert_border_{len(self._placeholders)}"
            self._placeholders[reference] = name
            self._placeholder(name, kind, None, recorded_shape(self._scope, reference))
        return f"{self._placeholders[reference]}:0"

    def _placeholder(
        self,
        name: str,
        kind: Any,
        like: Any | None,
        sizes: tuple[int | None, ...] | None = None,
    ) -> None:
        node = self.graph_def.node.add(name=name, op="Placeholder")
        node.attr["dtype"].type = kind
        if like is not None:
            node.attr["shape"].shape.CopyFrom(like.tensor_shape)
        elif sizes is None:
            node.attr["shape"].shape.unknown_rank = True
        else:
            for size in sizes:
                node.attr["shape"].shape.dim.add(size=-1 if size is None else size)


def _is_large(node: Any) -> bool:
    return node.op == "Const" and node.ByteSize() > _LARGE

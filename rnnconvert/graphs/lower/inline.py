"""Putting a traced body in the place of a node.

The body's nodes go under `<name>/lowered/`, and the node itself becomes an IdentityN of the same
name and with the same outputs, so that every consumer, signature, control dependency and fetch by
name stays valid. A call of a function in the node's place would not do: TensorFlow 1's gradients
through such calls fail or are wrong, and its optimizer crashes on them in a while frame.
"""

from __future__ import annotations

import re
from typing import Any

from rnnconvert.graphs.find.scopes import Library, Scope
from rnnconvert.graphs.framework import NodeDef, data_inputs, op_def, output_lengths, strip_defaults

_DROPPED = ("_class", "_output_shapes", "_gradient_op_type")
"""Attributes that hold for the old op only: its place, its shapes, another gradient for it."""

_FRAMES = frozenset({"Enter", "RefEnter"})


class Inliner:
    """Puts bodies into the scopes of one library.

    Args:
        library: whose GraphDef is changed.
    """

    def __init__(self, library: Library) -> None:
        self._library = library
        self._function_names = set(library.functions)

    def replace(self, scope: Scope, node: Any, body: Any) -> list[str]:
        """Make a node an IdentityN that is fed by a body's nodes.

        Args:
            scope: of the node.
            node: a cuDNN op.
            body: the traced graph; it is used once for each place, as often as one likes.

        Returns:
            Names of the new nodes.
        """
        if scope.function is not None:
            _rename_outputs(scope, node)
        prefix = _free_prefix(scope, node.name)
        place = _Place(scope, prefix, node, body)
        functions = self._copy_functions(body, node.name)
        added = place.pivots()
        added += [place.copy(operation, functions) for operation in place.operations]
        outputs = [place.reference(tensor) for tensor in body.outputs]
        for new in added:
            scope.nodes.append(new)
            scope.by_name[new.name] = scope.nodes[-1]
        _become_identity(node, outputs, [tensor.dtype for tensor in body.outputs])
        return [new.name for new in added]

    def _copy_functions(self, body: Any, site: str) -> dict[str, str]:
        """Add the loops' functions to the library, under names of this place; old to new names.

        Each place needs its own: the gradient of a loop derives further names from them.
        """
        library = {f.signature.name: f for f in body.as_graph_def().library.function}
        ordered: list[str] = []
        todo = list(body.as_graph_def().node)
        while todo:
            for name in _functions_named(todo.pop(0), library):
                if name not in ordered:
                    ordered.append(name)
                    todo += library[name].node_def
        renamed = {name: self._free_name(site, name) for name in ordered}
        for name in ordered:
            added = self._library.graph_def.library.function.add()
            added.CopyFrom(library[name])
            added.signature.name = renamed[name]
            for inner in added.node_def:
                _finish(inner, renamed)
        return renamed

    def _free_name(self, site: str, name: str) -> str:
        role = re.sub(r"_\d+$", "", name)
        base = re.sub(r"\W", "_", f"{site}_lowered_{role}")
        free, count = base, 0
        while free in self._function_names:
            count += 1
            free = f"{base}_{count}"
        self._function_names.add(free)
        return free


class _Place:
    """A body on its way into a scope: what its nodes and tensors are called there."""

    def __init__(self, scope: Scope, prefix: str, node: Any, body: Any) -> None:
        self._scope, self._prefix = scope, prefix
        self._inputs = data_inputs(node)
        self._controls = [name for name in node.input if name.startswith("^")]
        self._arguments = {t.op.name: number for number, t in enumerate(body.inputs)}
        self._types = [t.dtype.as_datatype_enum for t in body.inputs]
        needed = _ancestors(body.outputs)
        self.operations = [
            op for op in body.get_operations()
            if op.name in needed and op.name not in self._arguments
        ]  # fmt: skip
        used = {t.op.name for op in self.operations for t in op.inputs}
        used |= {t.op.name for t in body.outputs}
        # In the frame of a TensorFlow 1 loop, what has no input of its own must hang on one.
        self._framed = any(each.op in _FRAMES for each in scope.nodes)
        self._pivots = [
            number for name, number in self._arguments.items()
            if name in used or (self._framed and number == 0)
        ]  # fmt: skip

    def pivots(self) -> list[Any]:
        """An Identity for each input: they carry the old node's control dependencies and frame."""
        nodes = []
        for number in self._pivots:
            node = NodeDef(name=self._pivot(number), op="Identity")
            node.input.extend([self._inputs[number], *self._controls])
            node.attr["T"].type = self._types[number]
            nodes.append(node)
        return nodes

    def copy(self, operation: Any, functions: dict[str, str]) -> Any:
        """A node of the body as a node of the scope."""
        node = NodeDef()
        node.CopyFrom(operation.node_def)
        node.name = self._prefix + operation.name
        del node.input[:]
        node.input.extend(self.reference(tensor) for tensor in operation.inputs)
        # A body's inputs are ordered before everything in it; nothing need wait for them again.
        node.input.extend(
            f"^{self._name(control)}"
            for control in operation.control_inputs
            if control.name not in self._arguments
        )
        if self._framed and not node.input:
            node.input.append(f"^{self._pivot(0)}")
        _finish(node, functions)
        return node

    def reference(self, tensor: Any) -> str:
        """How the scope refers to a tensor of the body."""
        if tensor.op.name in self._arguments:
            name = self._pivot(self._arguments[tensor.op.name])
            return self._scope.reference(name, "output", 0, 0)
        index = tensor.value_index
        position = index
        for output, length in output_lengths(tensor.op.node_def, tensor.op.op_def):
            if position < length:
                return self._scope.reference(self._name(tensor.op), output, position, index)
            position -= length
        raise AssertionError(f"{tensor.name} is no output")

    def _name(self, operation: Any) -> str:
        return self._prefix + operation.name

    def _pivot(self, number: int) -> str:
        return f"{self._prefix}input_{number}"


def _ancestors(tensors: list[Any]) -> set[str]:
    """Names of all operations that these tensors need."""
    todo, found = [tensor.op for tensor in tensors], set()
    while todo:
        operation = todo.pop()
        if operation.name not in found:
            found.add(operation.name)
            todo += [tensor.op for tensor in operation.inputs] + list(operation.control_inputs)
    return found


def _free_prefix(scope: Scope, name: str) -> str:
    prefix, count = f"{name}/lowered/", 0
    while any(taken.startswith(prefix) for taken in scope.by_name):
        count += 1
        prefix = f"{name}/lowered_{count}/"
    return prefix


def _functions_named(node: Any, library: dict[str, Any]) -> list[str]:
    """Functions of `library` in a node's attributes, by the attributes' names."""
    return [
        name
        for key in sorted(node.attr)
        for name in [node.attr[key].func.name, *(f.name for f in node.attr[key].list.func)]
        if name in library
    ]


def _finish(node: Any, functions: dict[str, str]) -> None:
    """Point a node to the renamed functions, and leave out what old TensorFlows may not know."""
    for value in node.attr.values():
        if value.func.name in functions:
            value.func.name = functions[value.func.name]
    for name in _DROPPED:
        if name in node.attr:
            del node.attr[name]
    strip_defaults(node)


def _become_identity(node: Any, inputs: list[str], types: list[Any]) -> None:
    for name in list(node.attr):
        if not name.startswith("_") or name in _DROPPED:
            del node.attr[name]
    node.op, node.device = "IdentityN", ""
    controls = [name for name in node.input if name.startswith("^")]
    del node.input[:]
    node.input.extend([*inputs, *controls])
    node.attr["T"].list.type.extend(kind.as_datatype_enum for kind in types)


def _rename_outputs(scope: Scope, node: Any) -> None:
    """In a function, references name the output: all of an IdentityN's are in its `output`."""
    numbers: dict[str, str] = {}
    total = 0
    for output, length in output_lengths(node, op_def(node.op)):
        for position in range(length):
            numbers[f"{node.name}:{output}:{position}"] = f"{node.name}:output:{total}"
            total += 1
    for consumer in scope.nodes:
        for number, reference in enumerate(consumer.input):
            if reference in numbers:
                consumer.input[number] = numbers[reference]
    for name, reference in list(scope.function.ret.items()):  # type: ignore[union-attr]
        if reference in numbers:
            scope.function.ret[name] = numbers[reference]  # type: ignore[union-attr]

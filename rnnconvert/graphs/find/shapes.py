"""What a graph tells before it runs: sizes, constant values, and where tensors come from.

TensorFlow's own shape inference does the work within one scope (`inference`). Questions that lead
across a call of a function, around a loop or through what a loop keeps for its gradient are
followed along `origins`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from rnnconvert.graphs.find.inference import infer, proto_shape, recorded_shape
from rnnconvert.graphs.find.origins import origins
from rnnconvert.graphs.find.scopes import Library, Scope
from rnnconvert.graphs.framework import data_inputs, node_attribute, tf

VARIABLES = frozenset({"VarHandleOp", "VariableV2", "Variable"})
_TYPES = frozenset(
    kind.as_datatype_enum for kind in vars(tf.dtypes).values() if isinstance(kind, tf.DType)
)
_FAR = 20_000  # nodes that a search backwards visits at most
_DEEP = 200  # nodes in a row that hand a tensor on

Answer = TypeVar("Answer")


@dataclass(frozen=True)
class ShapeSource:
    """Where a tensor comes from.

    Attributes:
        kind: "variable", "constant", "computed" (from the variables named) or "unknown".
        names: of the variable or constant; of all variables, or constants of numbers, behind a
            computed tensor.
        shape: of a variable, None for each size that is not known; None where nothing is known.
    """

    kind: str
    names: tuple[str, ...] = ()
    shape: tuple[int | None, ...] | None = None


@dataclass(frozen=True)
class Captured:
    """A variable that is handed to a concrete function as one of its last arguments.

    Attributes:
        name: of the variable.
        shape: None for each size that is not known.
        number: of its node in the SavedModel's object graph; -1 where there is none.
    """

    name: str
    shape: tuple[int | None, ...]
    number: int = -1


class Shapes:
    """Answers about the tensors of a graph.

    Args:
        library: of the graph.
        captured: for concrete functions of a SavedModel's object graph: what its last arguments
            are bound to; None where that is no variable.
    """

    def __init__(
        self, library: Library, captured: Mapping[str, Sequence[Captured | None]] | None = None
    ) -> None:
        self._library = library
        self._captured = captured or {}
        self._inferred: dict[tuple[str, str], Any] = {}
        self.trouble: str | None = None
        """Why TensorFlow could not infer shapes somewhere, if so: what it said first."""

    def prepare(self, scope: Scope, references: Sequence[str]) -> None:
        """Infer the shapes of many tensors of a scope at once, which is faster than one by one."""
        found: dict[str, Any] = {}
        try:
            found = infer(self._library, scope, references)
        except (ValueError, TypeError, KeyError, tf.errors.OpError) as error:
            self.trouble = self.trouble or str(error).splitlines()[0]
        for reference in references:
            self._inferred[scope.name, reference] = found.get(reference)

    def _tensor(self, scope: Scope, reference: str) -> Any | None:
        if (scope.name, reference) not in self._inferred:
            self.prepare(scope, [reference])
        return self._inferred[scope.name, reference]

    def size(self, scope: Scope, reference: str, axis: int) -> int | None:
        """Size of a tensor along an axis, or None."""

        def local(scope: Scope, reference: str) -> int | None:
            tensor = self._tensor(scope, reference)
            if tensor is not None and tensor.shape.rank is not None:
                return tensor.shape[axis] if axis < tensor.shape.rank else None
            shape = recorded_shape(scope, reference) or self._variable_shape(scope, reference)
            return shape[axis] if shape and axis < len(shape) else None

        return self._follow(scope, reference, local)

    def constant(self, scope: Scope, reference: str) -> int | None:
        """Value of a scalar integer tensor, or None."""

        def local(scope: Scope, reference: str) -> int | None:
            tensor = self._tensor(scope, reference)
            value = tf.get_static_value(tensor) if tensor is not None else None
            if value is None:
                producer = self._library.producer(scope, reference)
                node = producer.node if producer else None
                tensor_proto = (
                    node_attribute(node, "value") if node and node.op == "Const" else None
                )
                value = _scalar(tensor_proto)
            return int(value) if value is not None and value.size == 1 else None

        return self._follow(scope, reference, local)

    def source(self, scope: Scope, reference: str) -> ShapeSource:
        """Where a tensor comes from."""

        def local(scope: Scope, reference: str) -> ShapeSource | None:
            return self._local_source(scope, reference)

        found = self._follow(scope, reference, local)
        if found is not None:
            return found
        behind = self._behind(scope, reference)
        return ShapeSource("computed", behind) if behind else ShapeSource("unknown")

    def _local_source(self, scope: Scope, reference: str) -> ShapeSource | None:
        producer = self._library.producer(scope, reference)
        if producer is None:
            return None
        node = producer.node
        if node is None:
            captured = self.capture(scope, producer.index)
            return ShapeSource("variable", (captured.name,), captured.shape) if captured else None
        if node.op == "Const":
            value = node_attribute(node, "value")
            if value is None or value.dtype not in _TYPES:
                return None
            names = (node.name,) if tf.as_dtype(value.dtype).is_floating else ()
            return ShapeSource("constant", names, proto_shape(value.tensor_shape))
        if node.op in VARIABLES:
            name = node_attribute(node, "shared_name") or node.name
            return ShapeSource("variable", (name,), proto_shape(node_attribute(node, "shape")))
        return None

    def _variable_shape(self, scope: Scope, reference: str) -> tuple[int | None, ...] | None:
        source = self._local_source(scope, reference)
        return source.shape if source else None

    def capture(self, scope: Scope, index: int) -> Captured | None:
        """The variable that an argument of a concrete function is bound to, if so."""
        bound = self._captured.get(scope.name, ())
        index -= len(scope.arguments) - len(bound)
        return bound[index] if 0 <= index < len(bound) else None

    def _follow(
        self, scope: Scope, reference: str, local: Callable[[Scope, str], Answer | None]
    ) -> Answer | None:
        """The answer at a tensor, or at those that are handed on to it; None if they disagree."""
        visited: set[tuple[str, str]] = set()

        def ask(scope: Scope, reference: str, depth: int = 0) -> Answer | None:
            if (scope.name, reference) in visited or depth > _DEEP:
                return None
            visited.add((scope.name, reference))
            answer = local(scope, reference)
            if answer is not None:
                return answer
            handed_on = origins(self._library, scope, reference)
            answers = {ask(*origin, depth + 1) for origin in handed_on} - {None}
            return answers.pop() if len(answers) == 1 else None

        return ask(scope, reference)

    def _behind(self, scope: Scope, reference: str) -> tuple[str, ...]:
        """Names of all variables that a tensor is computed from; of constants in a frozen graph."""
        todo = [(scope, reference)]
        visited: set[tuple[str, str]] = set()
        names: dict[str, set[str]] = {"variable": set(), "constant": set()}
        while todo and len(visited) < _FAR:
            scope, reference = todo.pop()
            if (scope.name, reference) in visited:
                continue
            visited.add((scope.name, reference))
            source = self._local_source(scope, reference)
            if source is not None:
                names[source.kind].update(source.names)
                continue
            producer = self._library.producer(scope, reference)
            if producer is not None and producer.node is not None:
                todo += [(scope, each) for each in data_inputs(producer.node)]
            else:
                todo += origins(self._library, scope, reference)
        return tuple(sorted(names["variable"] or names["constant"]))


def _scalar(tensor: Any | None) -> Any | None:
    """Value of a small TensorProto of whole numbers, or None."""
    if tensor is None or tensor.dtype not in (tf.int32, tf.int64) or tensor.tensor_shape.dim:
        return None
    return tf.make_ndarray(tensor)

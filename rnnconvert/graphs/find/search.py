"""Finding the cuDNN RNN ops of a graph, and the sizes of each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rnnconvert.errors import UnreadableInputError
from rnnconvert.graphs import ops
from rnnconvert.graphs.find.scopes import Library, Scope
from rnnconvert.graphs.find.shapes import Captured, Shapes, ShapeSource
from rnnconvert.graphs.framework import data_inputs, declared_inputs, node_attribute, op_def, tf
from rnnconvert.graphs.lower.layout import RnnShape, solve
from rnnconvert.graphs.ops import CudnnOp, LoweringOptions

_MAX_LAYERS = 1024
_RUNNING = ops.FORWARD | ops.BACKWARD


@dataclass(frozen=True)
class FoundOp:
    """A cuDNN op with what is needed to lower it.

    Attributes:
        op: what is told of it.
        scope: that holds it.
        node: the NodeDef.
        shape: its parameters' layout; None where `op.problem` says why it is not known.
    """

    op: CudnnOp
    scope: Scope
    node: Any
    shape: RnnShape | None


class _UnknownSize(Exception):
    """The graph does not tell a size; the message says which, and what to give."""


def find_ops(
    graph_def: Any,
    *,
    roots: Iterable[str] = (),
    captured: Mapping[str, Sequence[Captured | None]] | None = None,
    options: LoweringOptions | None = None,
) -> tuple[CudnnOp, ...]:
    """All cuDNN RNN ops of a graph and its functions, in the order in which they stand there.

    Args:
        graph_def: is not changed.
        roots: functions that are run from outside: a SavedModel's concrete functions.
        captured: what those are bound to.
        options: sizes to take where the graph does not tell.
    """
    library = Library(graph_def, roots)
    found = search(library, Shapes(library, captured), options or LoweringOptions())
    return tuple(each.op for each in found)


def search(library: Library, shapes: Shapes, options: LoweringOptions) -> list[FoundOp]:
    """As `find_ops`, with all that lowering needs."""
    found = []
    for scope in library.all_scopes():
        nodes = [node for node in scope.nodes if node.op in ops.ALL]
        for node in nodes:
            _require_sound(node)
        if nodes:
            wanted = [ref for node in nodes for ref in data_inputs(node)[:4]]
            shapes.prepare(scope, list(dict.fromkeys(wanted)))
        found += [_describe(library, shapes, scope, node, options) for node in nodes]
    return found


def _require_sound(node: Any) -> None:
    """Raise unless a node has the attributes and inputs that its op declares."""
    definition = op_def(node.op)
    assert definition is not None  # TensorFlow has had these ops since 1.2
    for declared in definition.attr:
        value = node_attribute(node, declared.name)
        allowed = declared.allowed_values.list
        choices = {*allowed.type, *(text.decode() for text in allowed.s)}
        if value is None or (choices and value not in choices):
            raise UnreadableInputError(
                f"the graph is damaged: {node.op} {node.name} has no valid {declared.name}"
            )
    if (
        declared_inputs(node) != len(data_inputs(node))
        or (node_attribute(node, "num_proj") or 0) < 0
    ):
        raise UnreadableInputError(
            f"the graph is damaged: {node.op} {node.name} has inputs of the wrong number or size"
        )


def _describe(
    library: Library, shapes: Shapes, scope: Scope, node: Any, options: LoweringOptions
) -> FoundOp:
    shape, problem = None, None
    try:
        shape = _resolve(shapes, scope, node, options)
    except _UnknownSize as error:
        problem = str(error) + (f" ({shapes.trouble})" if shapes.trouble else "")
    running = node.op in _RUNNING
    inputs = data_inputs(node)
    has_params = running or node.op in ops.TO_CANONICAL
    source = shapes.source(scope, inputs[3]) if has_params else ShapeSource("")
    is_main = scope is library.main
    training, time_major = node_attribute(node, "is_training"), node_attribute(node, "time_major")
    op = CudnnOp(
        name=node.name,
        function=scope.name,
        op=node.op,
        mode=str(node_attribute(node, "rnn_mode")),
        num_layers=shape.num_layers if shape else None,
        units=shape.units if shape else None,
        input_size=shape.input_size if shape else None,
        direction=str(node_attribute(node, "direction")),
        input_mode=str(node_attribute(node, "input_mode")),
        num_proj=int(node_attribute(node, "num_proj") or 0),
        dtype=tf.as_dtype(node_attribute(node, "T")).name,
        is_training=None if training is None else bool(training),
        dropout=float(node_attribute(node, "dropout") or 0.0),
        time_major=True if time_major is None else bool(time_major),
        params=source.names,
        params_kind=source.kind,
        reachable=is_main or scope.name in library.reachable,
        gpu_twin=scope.name in library.twins,
        problem=problem,
    )
    return FoundOp(op, scope, node, shape)


def _resolve(shapes: Shapes, scope: Scope, node: Any, options: LoweringOptions) -> RnnShape:
    """The op's sizes: what the graph tells, else what the options say, else from the buffer."""
    known = _Known(
        mode=str(node_attribute(node, "rnn_mode")),
        bidirectional=node_attribute(node, "direction") == "bidirectional",
        input_mode=str(node_attribute(node, "input_mode")),
        num_proj=int(node_attribute(node, "num_proj") or 0),
    )
    inputs = data_inputs(node)
    if node.op in _RUNNING:
        known = _running_sizes(shapes, scope, node, inputs, known)
    else:
        layers, units, width = (shapes.constant(scope, reference) for reference in inputs[:3])
        known = replace(known, num_layers=layers, units=units, input_size=width)
    known = replace(
        known,
        num_layers=known.num_layers or options.num_layers,
        units=known.units or options.num_units,
        input_size=known.input_size or options.input_size,
    )
    shape = _complete(known, dynamic_input=node.op in _RUNNING)
    if shape.num_layers > _MAX_LAYERS:
        raise _UnknownSize(f"{shape.num_layers} layers: more than {_MAX_LAYERS} are not lowered")
    return shape


@dataclass(frozen=True)
class _Known:
    """What the graph tells of one op; None for what it does not."""

    mode: str
    bidirectional: bool
    input_mode: str
    num_proj: int
    num_layers: int | None = None
    units: int | None = None
    input_size: int | None = None
    length: int | None = None

    def rnn(self, *, skip: bool) -> RnnShape:
        return RnnShape(
            self.mode, self.num_layers or 0, self.units or 0, self.input_size,
            self.bidirectional, skip, self.num_proj,
        )  # fmt: skip


def _running_sizes(
    shapes: Shapes, scope: Scope, node: Any, inputs: list[str], known: _Known
) -> _Known:
    """Sizes of a forward or backward op, from its tensors: input, input_h, input_c, params."""
    time_major = node_attribute(node, "time_major")
    layer_axis = 0 if time_major is None or time_major else 1
    # With a projection h has its size; only c has the number of units.
    state = inputs[2] if known.num_proj else inputs[1]
    pairs = shapes.size(scope, inputs[1], layer_axis)
    directions = 2 if known.bidirectional else 1
    if pairs is not None and (pairs == 0 or pairs % directions):
        raise _UnknownSize(f"input_h has {pairs} states: expected layers times {directions}")
    return replace(
        known,
        num_layers=pairs // directions if pairs else None,
        units=shapes.size(scope, state, 2),
        input_size=shapes.size(scope, inputs[0], 2),
        length=shapes.size(scope, inputs[3], 0),
    )


def _complete(known: _Known, *, dynamic_input: bool) -> RnnShape:
    """Fill in one unknown size by the buffer's length, and check the length.

    Args:
        known: what is known.
        dynamic_input: the input size may stay unknown: the running graph will see it.
    """
    for name in ("num_layers", "units", "input_size"):
        if getattr(known, name) is not None and getattr(known, name) < 1:
            raise _UnknownSize(f"{_names([name])} is {getattr(known, name)}")
    unknown = [name for name in ("num_layers", "units") if getattr(known, name) is None]
    if len(unknown) > 1 or (unknown and (known.length is None or known.input_size is None)):
        raise _UnknownSize(f"{_names(unknown)} can't be told from the graph; {_give(unknown)}")
    automatic = known.input_mode == "auto_select"
    if known.input_size is None:
        return _without_input_size(known, automatic, dynamic_input)
    skip = known.input_mode == "skip_input"
    skip = skip or (automatic and known.input_size == known.units)
    if not unknown:
        shape = known.rnn(skip=skip)
        if known.length is not None and shape.size() != known.length:
            raise _UnknownSize(
                f"the parameters have {known.length} numbers, but {_sizes(shape)} take "
                f"{shape.size()}"
            )
        return shape
    assert known.length is not None
    solved = solve(known.rnn(skip=skip), unknown[0], known.length)
    if automatic and unknown == ["units"]:  # units equal to the input size would mean skip input
        skipping = replace(known.rnn(skip=True), units=known.input_size)
        if skipping.size() == known.length:
            return skipping
    if solved is None:
        raise _UnknownSize(
            f"no {_names(unknown)} gives parameters of {known.length} numbers; {_give(unknown)}"
        )
    return solved


def _without_input_size(known: _Known, automatic: bool, dynamic: bool) -> RnnShape:
    skipping = known.rnn(skip=True)
    if known.input_mode == "skip_input":
        return replace(skipping, input_size=known.units)
    if known.length is not None:
        if automatic and skipping.size() == known.length:
            return replace(skipping, input_size=known.units)
        solved = solve(known.rnn(skip=False), "input_size", known.length)
        if solved is None:
            raise _UnknownSize(
                f"no input size gives parameters of {known.length} numbers with "
                f"{known.num_layers} layers of {known.units} units"
            )
        return solved
    if automatic or not dynamic:
        raise _UnknownSize(f"input_size can't be told from the graph; {_give(['input_size'])}")
    return known.rnn(skip=False)


def _names(unknown: list[str]) -> str:
    return " and ".join("num_units" if name == "units" else name for name in unknown)


def _give(unknown: list[str]) -> str:
    options = " and ".join(_OPTIONS[name] for name in unknown)
    return f"give {options} (in Python {_names(unknown)})"


_OPTIONS = {"num_layers": "--layers", "units": "--units", "input_size": "--input-size"}


def _sizes(shape: RnnShape) -> str:
    return (
        f"{shape.num_layers} layers of {shape.units} units on {shape.input_size} inputs"
        + (", bidirectional," if shape.bidirectional else "")
        + (f" projected to {shape.num_proj}" if shape.num_proj else "")
    )

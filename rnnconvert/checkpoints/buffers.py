"""cuDNN's flat buffers in a checkpoint, and the tensors of cells that hold the same weights."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from rnnconvert.checkpoints.groups import Candidate
from rnnconvert.checkpoints.meta_graph import GraphLayer
from rnnconvert.checkpoints.stack import Stack
from rnnconvert.containers.checkpoint import VariableInfo
from rnnconvert.layouts.opaque_fitting import fitting
from rnnconvert.layouts.opaque_shape import OpaqueShape
from rnnconvert.layouts.weights import FLOAT_DTYPES
from rnnconvert.options import StackOptions

OPAQUE = "opaque_kernel"
"""What cuDNN's layers call their buffer."""
FLAGS = {
    "cell": "--cell",
    "num_layers": "--layers",
    "num_units": "--units",
    "input_size": "--input-size",
    "direction": "--direction",
}
"""The options that say what a buffer is."""
_BIASES = ("bias", "biases", "beta", "gamma")
"""Other vectors than buffers."""

Layers = Callable[[], Mapping[str, tuple[GraphLayer, ...]]]
"""What the ops of the graph beside the checkpoint say, by variable."""


@dataclass(frozen=True)
class Raw:
    """A variable that is cuDNN's buffer."""

    info: VariableInfo
    scope: str

    @property
    def what(self) -> str:
        return f"{self.info.name} ({self.info.size} elements)"


def raw_variables(
    variables: Mapping[str, VariableInfo],
    candidates: Sequence[Candidate],
    options: StackOptions,
    layers_of: Layers,
) -> list[Raw]:
    """The buffers: by their name, by the graph, or because the options name one."""
    vectors = {
        name: info
        for name, info in variables.items()
        if len(info.shape) == 1 and info.dtype in FLOAT_DTYPES
    }
    found = {name for name in vectors if name.split("/")[-1] == OPAQUE}
    members = {v for each in candidates if each.stack for v in each.stack.variables}
    if options.scope in vectors and vectors[options.scope].name not in members:
        found.add(options.scope)
    if not found:
        found |= vectors.keys() & layers_of().keys()
    return [Raw(vectors[name], _scope_of(name)) for name in sorted(found)]


def _scope_of(name: str) -> str:
    head, _, last = name.rpartition("/")
    return head if head and last == OPAQUE else name


def join_buffers(
    raws: Sequence[Raw],
    candidates: Sequence[Candidate],
    variables: Mapping[str, VariableInfo],
    options: StackOptions,
    layers_of: Layers,
) -> list[Candidate]:
    """Every buffer with the cells that hold the same weights; and all that has no counterpart."""
    pairs = _pairs(raws, candidates)
    taken = [index for _, index in pairs.values()]
    joined = [_both(raw, candidates[index]) for raw, index in pairs.values()]
    rest = [each for index, each in enumerate(candidates) if index not in taken]
    for raw in raws:
        if raw.info.name in pairs:
            continue
        beside = next((each for each in rest if each.prefix == raw.scope), None)
        if beside is not None and beside.stack is not None:
            other = beside.stack
            text = (
                f"{raw.what}, {raw.info.dtype}: the tensors of cells in its scope make "
                f"{other.shape.size} of {other.dtype} ({other.shape})"
            )
            joined.append(Candidate(raw.scope, problem=text))
            rest.remove(beside)
            continue
        rivals = [each for each in rest if _fits(raw, each)]
        if rivals:
            listed = ", ".join(each.scope for each in rivals)
            text = f"{raw.what}: it can't be told which buffer belongs to the cells in {listed}"
            joined.append(Candidate(raw.scope, problem=text))
        else:
            joined.append(_alone(raw, options, layers_of))
    known = {raw.info.name for raw in raws}
    sizes = Counter(_size(each) for each in rest)
    return joined + [
        _with_unnamed_buffer(each, variables, known) if sizes[_size(each)] == 1 else each
        for each in rest
    ]


def _pairs(raws: Sequence[Raw], candidates: Sequence[Candidate]) -> dict[str, tuple[Raw, int]]:
    """For a buffer's name, the buffer and the number of its candidate.

    First those in the same scope, then those in the scope around it, then all: where exactly one
    buffer and one candidate have the same size.
    """
    found: dict[str, tuple[Raw, int]] = {}
    for near in (
        lambda raw, each: each.prefix == raw.scope,
        lambda raw, each: each.prefix == raw.scope.rpartition("/")[0],
        lambda raw, each: True,
    ):
        taken = {index for _, index in found.values()}
        fits = [
            (raw, index)
            for raw in raws
            for index, each in enumerate(candidates)
            if raw.info.name not in found and index not in taken and _fits(raw, each)
            if near(raw, each)
        ]
        of_raw = Counter(raw.info.name for raw, _ in fits)
        of_index = Counter(index for _, index in fits)
        for raw, index in fits:
            if of_raw[raw.info.name] == of_index[index] == 1:
                found[raw.info.name] = (raw, index)
    return found


def _fits(raw: Raw, candidate: Candidate) -> bool:
    stack = candidate.stack
    return stack is not None and (_size(candidate), stack.dtype) == (raw.info.size, raw.info.dtype)


def _size(candidate: Candidate) -> int | None:
    """Elements of its buffer; None where cuDNN's layers save no such cells."""
    stack = candidate.stack
    return None if stack is None or candidate.prefix is None else stack.shape.size


def _both(raw: Raw, candidate: Candidate) -> Candidate:
    assert candidate.stack is not None
    stack = replace(candidate.stack, scope=raw.scope, opaque=raw.info.name)
    return replace(candidate, scope=raw.scope, stack=stack, full_scope=raw.info.name)


def _with_unnamed_buffer(
    candidate: Candidate, variables: Mapping[str, VariableInfo], known: set[str]
) -> Candidate:
    """Up to TF 1.4 the user named the buffer: the only vector of that size is taken for it."""
    stack, size = candidate.stack, _size(candidate)
    if stack is None or size is None:
        return candidate
    found = [
        info
        for name, info in variables.items()
        if info.shape == (size,)
        and info.dtype == stack.dtype
        and info.name not in known | set(stack.variables)
        and name.split("/")[-1] not in _BIASES
        and name.rpartition("/")[0] not in variables  # or it is a slot
    ]
    if len(found) != 1:
        return candidate
    # Not an assumption: its values are compared with those of the cells when it is read.
    text = f"{stack.scope}: {found[0].name} is taken for its buffer, by its size"
    stack = replace(stack, opaque=found[0].name)
    return replace(candidate, stack=stack, warnings=(*candidate.warnings, text))


# --- buffers alone --------------------------------------------------------------------------


def _alone(raw: Raw, options: StackOptions, layers_of: Layers) -> Candidate:
    """The stack of a buffer without cells beside it."""
    told = {name: getattr(options, name) for name in FLAGS}
    rest: dict[str, object] = {}
    if None in told.values():
        layers = layers_of().get(raw.info.name, ())
        if len(layers) > 1:
            text = f"{raw.what}: the ops of the graph contradict each other: "
            return Candidate(raw.scope, problem=text + "; ".join(map(str, layers)))
        for layer in layers:
            said = {name: getattr(layer, name) for name in FLAGS}
            wrong = [name for name in FLAGS if None not in (told[name], said[name])
                     and told[name] != said[name]]  # fmt: skip
            if wrong:
                listed = ", ".join(f"{FLAGS[n]} {told[n]} (graph: {said[n]})" for n in wrong)
                return Candidate(raw.scope, problem=f"{raw.what}: the graph contradicts {listed}")
            told = {name: said[name] if told[name] is None else told[name] for name in FLAGS}
            rest = {"input_mode": layer.input_mode, "num_proj": layer.num_proj}
    missing = [name for name, value in told.items() if value is None]
    if missing:
        return Candidate(raw.scope, problem=_ask(raw, told, missing))
    shape = OpaqueShape(**told, **rest)  # type: ignore[arg-type]
    if shape.projection:
        text = f"{raw.what}: it projects to {shape.projection} units (num_proj); Keras has no such"
        return Candidate(raw.scope, problem=f"{text} layer")
    if shape.size != raw.info.size:
        text = f"{raw.what}: expected {shape.size} for {shape}"
        return Candidate(raw.scope, problem=text + _suggested(raw, told))
    stack = Stack(
        raw.scope, shape.cell, shape.num_layers, shape.num_units, shape.input_size,
        shape.direction, raw.info.dtype, raw.info.name, (), input_mode=shape.resolved.input_mode,
    )  # fmt: skip
    return Candidate(raw.scope, stack, full_scope=raw.info.name)


def _ask(raw: Raw, told: Mapping[str, object], missing: Sequence[str]) -> str:
    flags = ", ".join(FLAGS[name] for name in missing)
    text = (
        f"{raw.what}: neither tensors of cells nor a graph (.meta) beside it tell its sizes; "
        f"give {flags}"
    )
    return text + _suggested(raw, told)


def _suggested(raw: Raw, told: Mapping[str, object]) -> str:
    """Values that fit the buffer's size and the options, nearest to the latter; "" if none."""
    if told["num_units"] is None:
        return ""
    hints = {cell: cell in raw.scope for cell in ("gru", "rnn_tanh", "rnn_relu")}
    first = {"cell": next((c for c, hinted in hints.items() if hinted), "lstm"),
             "num_layers": 1, "input_size": 1, "direction": "unidirectional"}  # fmt: skip
    given = {name: value for name, value in told.items() if value is not None}
    near = OpaqueShape(**{**first, **given})  # type: ignore[arg-type]
    plain = [s for s in fitting(raw.info.size, near) if s.input_mode == "linear_input"]
    # Those that leave the options as they are, if there are any.
    shapes = [s for s in plain if all(getattr(s, n) == v for n, v in given.items())] or plain
    listed = [
        " ".join(f"{flag} {getattr(shape, name)}" for name, flag in FLAGS.items())
        for shape in shapes[:3]
    ]
    more = " or ..." if len(shapes) > 3 else ""
    return f"; {raw.info.size} would fit {' or '.join(listed)}{more}" if listed else ""

"""Finding the RNNs of a checkpoint by the names and shapes of its variables.

cuDNN's layers save their weights twice: as one flat buffer, `.../opaque_kernel`, and as tensors of
cells. Both are put together by their sizes, since their scopes differ where a layer was built
before it was called. What neither tells comes from the caller, or from the graph beside the
checkpoint (NAME.meta); otherwise it is a problem, or TensorFlow's default and said so.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path

from rnnconvert.checkpoints import names
from rnnconvert.checkpoints.buffers import FLAGS, join_buffers, raw_variables
from rnnconvert.checkpoints.cudnn_forms import op_output_stacks
from rnnconvert.checkpoints.graph_cells import CellFacts
from rnnconvert.checkpoints.groups import Candidate, cell_stacks
from rnnconvert.checkpoints.keras_forms import KERAS, keras_stacks
from rnnconvert.checkpoints.meta_graph import GraphLayer, cudnn_buffers, read_layers
from rnnconvert.checkpoints.stack import FoundStacks, Stack, StackSlot
from rnnconvert.containers.checkpoint import VariableInfo
from rnnconvert.containers.checkpoint.files import Malformed, reading
from rnnconvert.containers.graph_def import Graph, graph_path, read_graph
from rnnconvert.errors import UnreadableInputError, UsageError
from rnnconvert.options import StackOptions
from rnnconvert.report import Assumption

_ACTIVATIONS = {"tanh": "rnn_tanh", "relu": "rnn_relu"}
_LISTED = 10


def find_stacks(
    variables: Mapping[str, VariableInfo], options: StackOptions, *, prefix: Path | None = None
) -> FoundStacks:
    """All RNNs of a checkpoint.

    Args:
        variables: of the checkpoint; only names, types and shapes are used.
        options: what a checkpoint can't tell.
        prefix: the checkpoint's, to look into PREFIX.meta and into the stored object graph where
            the variables leave something open.

    Raises:
        UsageError: `options.scope` is the scope of none, or an option has no possible value.
        UnreadableInputError: PREFIX.meta is needed and damaged.
    """
    graph = cache(lambda: _graph_of(prefix))
    layers = cache(lambda: _layers_of(graph()))
    saved = names.saver_names(variables, prefix)
    by_name, unclear = _decide(saved, options)
    candidates = [
        *cell_stacks(by_name, options, graph),
        *op_output_stacks(by_name, options),
        *keras_stacks(variables, options),
    ]
    raws = raw_variables(by_name, candidates, options, layers)
    joined = join_buffers(raws, candidates, by_name, options, layers)
    named = _unique(_with_activation(each, options) for each in joined)
    chosen = _choose(named, options, unclear)
    checked = [_checked(each, options) for each in chosen]
    return FoundStacks(
        tuple(_finished(each.stack, variables) for each in checked if each.stack is not None),
        (
            *(warning for each in checked for warning in each.warnings),
            *(text for path, text in unclear.items() if _in_scope(path, options.scope)),
            *(() if any(map(_is_cudnn, checked)) else _cudnn_in_graph_only(prefix, graph)),
        ),
        tuple(each.problem for each in checked if each.problem is not None),
    )


def _graph_of(prefix: Path | None) -> Graph | None:
    """The graph of the checkpoint, None where it is not there."""
    path = None if prefix is None else graph_path(prefix)
    return None if path is None else read_graph(path)


def _layers_of(graph: Graph | None) -> Mapping[str, tuple[GraphLayer, ...]]:
    """What cuDNN's ops say of their buffers; nothing where there is no graph."""
    if graph is None:
        return {}
    with reading("the graph beside the checkpoint"):
        return read_layers(graph)


def _is_cudnn(candidate: Candidate) -> bool:
    return candidate.stack is not None and candidate.stack.is_cudnn


def _cudnn_in_graph_only(prefix: Path | None, read_graph: Callable[[], Graph | None]) -> list[str]:
    """Where cuDNN's ops are in the graph, and what they read was saved as tensors of cells."""
    path = None if prefix is None else graph_path(prefix)
    try:
        graph = read_graph()
        buffers = [] if graph is None else cudnn_buffers(graph)
    except (UnreadableInputError, Malformed):
        return []  # what needs the graph says that it is damaged
    if path is None or not buffers:
        return []
    model = path if path.suffix == ".meta" else path.parent
    return [
        f"cuDNN is in the graph beside it and not in the checkpoint: {path.name} runs "
        f"{len(buffers)} cuDNN layers ({', '.join(buffers[:_LISTED])}), whose weights were saved "
        f"as tensors of cells; to run the graph without cuDNN convert {model.name}"
    ]


def _decide(
    saved: names.Names, options: StackOptions
) -> tuple[dict[str, VariableInfo], dict[str, str]]:
    """Take what may be a CudnnLSTM or not as one if the options say so; else say so."""
    by_name, warnings = dict(saved.variables), {}
    for path, variables in saved.unclear.items():
        if options.scope == path and options.cell == "lstm":
            by_name |= variables
        else:
            warnings[path] = (
                f"{path} may be a CudnnLSTM, a dense layer or another cell: the object graph that "
                f"tells them apart can't be read; left alone (--scope {path} --cell lstm takes it "
                "as a CudnnLSTM)"
            )
    return by_name, warnings


# --- all stacks -----------------------------------------------------------------------------


def _with_activation(candidate: Candidate, options: StackOptions) -> Candidate:
    """A BasicRNNCell does not store its activation: the graph says it, the option, the name of
    the layer, or it is the default.
    """
    stack = candidate.stack
    if stack is None or stack.cell not in _ACTIVATIONS.values() or not stack.places:
        return candidate
    if stack.places[0].layout == KERAS:
        return candidate  # a SimpleRNN, which takes any activation
    cells = set(_ACTIVATIONS.values())
    if stack.told is not None:
        if stack.activation not in _ACTIVATIONS:
            problem = (
                f"{stack.scope}, says the graph: the activation of its BasicRNNCell is "
                f"{stack.activation}; only {' and '.join(_ACTIVATIONS)} are converted"
            )
            return Candidate(stack.scope, problem=problem)
        return replace(candidate, stack=replace(stack, cell=_ACTIVATIONS[stack.activation]))
    told = cells & {_ACTIVATIONS.get(options.activation or "", ""), options.cell or ""}
    if not told:
        parts = {names.plain(part) for part in f"{stack.scope}/{stack.places[0].scope}".split("/")}
        told = {cell for cell in cells if f"cudnn_{cell}" in parts}
    if len(told) == 1:
        return replace(candidate, stack=replace(stack, cell=told.pop()))
    why = (
        "TensorFlow's default for basic_rnn_cell; a checkpoint does not store it and no graph "
        "(.meta) beside it tells it, --activation gives it"
    )
    assumed = Assumption("activation", "tanh", why)
    return replace(candidate, stack=replace(stack, assumptions=(*stack.assumptions, assumed)))


def _unique(candidates: Iterable[Candidate]) -> list[Candidate]:
    """Longer scopes where several stacks would be called the same."""
    listed = list(candidates)
    count = Counter(each.scope for each in listed if each.stack)
    longer = [
        replace(each, scope=each.full_scope, stack=replace(each.stack, scope=each.full_scope))
        if each.stack and count[each.scope] > 1
        else each
        for each in listed
    ]
    return sorted(longer, key=lambda each: each.scope)


def _choose(
    candidates: list[Candidate], options: StackOptions, unclear: Mapping[str, str]
) -> list[Candidate]:
    """Those in the scope that the options name."""
    scope = options.scope
    chosen = [
        each
        for each in candidates
        if _in_scope(each.scope, scope) or (each.stack and each.stack.opaque == scope)
    ]
    if scope is not None and not chosen and not any(_in_scope(path, scope) for path in unclear):
        scopes = sorted({each.scope for each in candidates} | set(unclear))
        more = f" and {len(scopes) - _LISTED} more" if len(scopes) > _LISTED else ""
        there = f"there are {', '.join(scopes[:_LISTED])}{more}" if scopes else "there is none"
        raise UsageError(f"no recurrent layer in the scope {scope!r}; {there}")
    return chosen


def _in_scope(scope: str, wanted: str | None) -> bool:
    return wanted is None or scope == wanted or scope.startswith(f"{wanted}/")


def _checked(candidate: Candidate, options: StackOptions) -> Candidate:
    """A problem where the options say otherwise than the checkpoint."""
    stack = candidate.stack
    if stack is None:
        return candidate
    if stack.told is not None:
        _require_no_contradiction(stack, stack.told, options)
    wrong = [
        f"{flag} {getattr(options, name)} (found: {getattr(stack, name)})"
        for name, flag in FLAGS.items()
        if getattr(options, name) not in (None, getattr(stack, name))
    ]
    if not wrong:
        return candidate
    text = f"{stack.scope}: the checkpoint contradicts {', '.join(wrong)}; --scope picks stacks"
    return replace(candidate, stack=None, problem=text)


def _require_no_contradiction(stack: Stack, told: CellFacts, options: StackOptions) -> None:
    """Raise UsageError where an option says otherwise than the graph beside the checkpoint."""
    for name, flag in (("forget_bias", "--forget-bias"), ("activation", "--activation")):
        given, found = getattr(options, name), getattr(told, name)
        fixed = (
            name == "forget_bias"
            and not found
            and stack.places[0].layout.endswith("cudnn_compatible_lstm_cell")
        )  # has none, so the option is for other stacks
        if given is None or found is None or fixed:
            continue
        same = given == found if isinstance(given, str) else abs(given - found) < 1e-6
        if not same:
            raise UsageError(
                f"{stack.scope}: {flag} {given}, but the graph beside the checkpoint (.meta) says "
                f"{found}; leave the option out, or pick a stack with --scope"
            )


def _finished(stack: Stack, variables: Mapping[str, VariableInfo]) -> Stack:
    """With its slots, and its name in what is said of it."""
    assumptions = tuple(
        replace(each, why=f"{stack.scope}: {each.why}") for each in stack.assumptions
    )
    return replace(stack, slots=_slots(stack, variables), assumptions=assumptions)


def _slots(stack: Stack, variables: Mapping[str, VariableInfo]) -> tuple[StackSlot, ...]:
    """What an optimizer keeps for the buffer: BUFFER/NAME, maybe in a scope of the optimizer."""
    if stack.opaque is None:
        return ()
    found = []
    for name, info in variables.items():
        owner, _, last = name.rpartition("/")
        own = owner == stack.opaque or (
            owner.endswith(f"/{stack.opaque}") and owner not in variables
        )
        if own and info.shape == variables[stack.opaque].shape:
            found.append(StackSlot(last, name))
    return tuple(found)

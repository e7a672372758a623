"""Why the RNN stacks of a checkpoint can't become what was asked for, and what an output lacks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rnnconvert import layouts
from rnnconvert.checkpoints.inspect import THE_WAY, origin
from rnnconvert.checkpoints.names import OBJECT_SUFFIX
from rnnconvert.checkpoints.stack import FoundStacks, Stack
from rnnconvert.containers.checkpoint import Checkpoint
from rnnconvert.errors import NotConvertibleError
from rnnconvert.options import Options


def problems_of(checkpoint: Checkpoint, found: FoundStacks, options: Options) -> tuple[str, ...]:
    """All reasons against a conversion, with its `to` decided."""
    problems = [*found.problems, *_skipping(found.stacks)]
    if options.is_inverse:
        problems += _other_functions(found.stacks)
    elif options.to == "checkpoint" and options.names == "keras":
        problems += _restored_by_object(found.stacks)
    if not problems and not found.stacks:
        problems.append(_no_stack(checkpoint))
    return tuple(problems)


def for_the_code(stacks: Sequence[Stack], options: Options) -> Iterator[str]:
    """What the output does not hold, and the code that uses it must say."""
    renamed = options.to == "checkpoint" and options.names == "keras"
    for stack in stacks:
        needs = []
        if options.to != "checkpoint" and stack.scope.endswith("/backward_layer"):
            needs.append("its input in reverse, for it read time backwards")
        if options.to in ("npz", "weights") or renamed:
            if stack.function != "tanh":
                needs.append(f"activation={stack.function!r}")
            if stack.cell == "gru_reset_before":
                needs.append("reset_after=False")
        if needs:
            yield f"{stack.scope}: give its layer {' and '.join(needs)}"


def _skipping(stacks: Sequence[Stack]) -> Iterator[str]:
    for stack in stacks:
        if stack.is_skipping:
            yield (
                f"{stack.scope}: skip_input, whose arithmetic is known from cuDNN's documentation "
                "only; `rnnconvert opaque unpack --input-mode skip_input` cuts its buffer"
            )


def _other_functions(stacks: Sequence[Stack]) -> Iterator[str]:
    """Stacks that cuDNN has no mode for."""
    for stack in stacks:
        if stack.cell in ("lstm", "gru") and stack.function != "tanh":
            own = f"{stack.scope}: its activation is {stack.function}"
            yield f"{own}, cuDNN's {stack.cell} has tanh"
        try:
            layouts.find("cudnn", stack.cell)
        except NotConvertibleError as error:
            yield f"{stack.scope}: {error}"


def _restored_by_object(stacks: Sequence[Stack]) -> Iterator[str]:
    """CuDNN layers of Keras that are restored along an object graph, never by other names."""
    for stack in stacks:
        if stack.is_cudnn and any(name.endswith(OBJECT_SUFFIX) for name in stack.variables):
            yield (
                f"{stack.scope}: Keras restores an object-based checkpoint along its objects, so "
                "--names keras would hide its weights; leave that option out"
            )


def _no_stack(checkpoint: Checkpoint) -> str:
    names = ", ".join(list(checkpoint.variables)[:4])
    form = origin(checkpoint.variables)
    return (
        "no cuDNN layer and no RNN cell of TensorFlow 1 or Keras among its "
        f"{len(checkpoint.variables)} variables ({names}, ...)"
        + (f"; it is {form}: {THE_WAY}" if form else "")
    )

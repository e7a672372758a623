"""A TensorFlow checkpoint compared with another one, or with the Keras file of its RNN stack."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from rnnconvert import layouts
from rnnconvert.checkpoints.inspect import (
    assumptions_of,
    describe_checkpoint,
    open_stacks,
    stack_layers,
)
from rnnconvert.checkpoints.load import load_weights
from rnnconvert.checkpoints.stack import FoundStacks, Stack
from rnnconvert.checkpoints.verify import (
    check_stack_layers,
    check_stack_weights,
    largest_bias,
    run_source,
    run_written,
)
from rnnconvert.containers.checkpoint import Checkpoint
from rnnconvert.errors import NotConvertibleError, errors_of
from rnnconvert.keras_models.files.h5 import KerasH5
from rnnconvert.keras_models.opening import open_keras
from rnnconvert.keras_models.plan import Site
from rnnconvert.keras_models.planning import make_plan
from rnnconvert.kinds import Kind
from rnnconvert.layouts import RnnWeights
from rnnconvert.options import Options
from rnnconvert.report import FileInfo, LevelResult, Report


@dataclass(frozen=True)
class _Side:
    """A checkpoint with its stacks."""

    info: FileInfo
    checkpoint: Checkpoint
    found: FoundStacks


def compare_checkpoints(
    original: tuple[Path, Kind],
    converted: tuple[Path, Kind],
    options: Options,
    check: Callable[[FileInfo, FileInfo], None],
) -> Report:
    """Compare RNN stacks, which must be as many and of the same sizes on both sides.

    Args:
        original, converted: path and kind of each; one of them at least is a checkpoint.
        check: called before anything is compared.

    Returns:
        The report, whatever its levels say.

    Raises:
        NotConvertibleError: the stacks are not comparable.
    """
    swapped = original[1] is not Kind.CHECKPOINT
    first, second = (converted, original) if swapped else (original, converted)
    with errors_of(first[0]):
        source = _open(first[0], options)
    with errors_of(second[0]):
        info, weights = _other_side(second, source.found.stacks, options)
    infos = (info, source.info) if swapped else (source.info, info)
    check(*infos)
    skipped = LevelResult.nothing_to_run(
        "a checkpoint holds no model; its stacks ran at level layers"
    )
    layers = asked = LevelResult.not_asked(options.verify)
    pairs = list(zip(source.found.stacks, weights, strict=True))
    if options.verify != "weights":
        layers = LevelResult.of_all([
            check_stack_layers(
                stack, run_source(stack, source.checkpoint.read), partial(run_written, stack, own),
                options.inputs, rounded=largest_bias(own),
            )
            for stack, own in pairs
        ])  # fmt: skip
    return Report(
        "verify",
        *infos,
        layers=stack_layers(source.found, "keras"),
        warnings=source.found.warnings,
        assumptions=assumptions_of(source.found),
        verdict="equivalent",
        weights_level=LevelResult.of_all([
            check_stack_weights(
                stack, load_weights(stack, source.checkpoint), own, source.checkpoint
            )
            for stack, own in pairs
        ]),
        layers_level=layers,
        model_level=(skipped if options.verify == "model" else asked,),
    )  # fmt: skip


def _open(path: Path, options: Options) -> _Side:
    checkpoint, found = open_stacks(path, options)
    if found.problems or not found.stacks:
        problems = found.problems or ("no RNN stack in the checkpoint",)
        raise NotConvertibleError(f"can't be compared: {'; '.join(problems)}")
    return _Side(describe_checkpoint(path, checkpoint, options.hashes), checkpoint, found)


def _other_side(
    model: tuple[Path, Kind], stacks: Sequence[Stack], options: Options
) -> tuple[FileInfo, list[Sequence[RnnWeights]]]:
    """The same stacks' weights in the other model."""
    path, kind = model
    if kind is Kind.CHECKPOINT:
        other = _open(path, options)
        by_scope = {stack.scope: stack for stack in other.found.stacks}
        if len(by_scope) != len(stacks):
            raise _unlike(f"{len(stacks)} RNN stacks in one, {len(by_scope)} in the other")
        chosen = [by_scope.get(stack.scope) for stack in stacks]
        if len(stacks) == 1:  # whatever it is called
            chosen = list(by_scope.values())
        found: list[Sequence[RnnWeights]] = []
        for stack, same in zip(stacks, chosen, strict=True):
            if same is None:
                raise _unlike(f"{stack.scope} is in one of them only")
            found.append(_fitting(stack, load_weights(same, other.checkpoint)))
        return other.info, found
    if len(stacks) != 1:
        scopes = ", ".join(stack.scope for stack in stacks)
        raise _unlike(f"{len(stacks)} RNN stacks ({scopes}); pick one with --scope")
    with open_keras(path, kind, with_hash=options.hashes) as (info, file):
        return info, [_fitting(stacks[0], _of_keras(file, stacks[0].function))]


def _of_keras(file: KerasH5, activation: str) -> list[RnnWeights]:
    """The recurrent layers of a Keras file, forward before backward.

    Raises:
        NotConvertibleError: one of them has another activation.
    """
    sites = [change.site for change in make_plan(file).sites]
    # The two of a Bidirectional are neighbours, in either order.
    above = [site.path.rpartition("/")[0] for site in sites]
    order = sorted(
        range(len(sites)), key=lambda n: (above.index(above[n]), sites[n].direction == "backward")
    )
    return [_weights_of(file, sites[n], activation) for n in order]


def _weights_of(file: KerasH5, site: Site, activation: str) -> RnnWeights:
    if (site.activation or activation) != activation:
        raise _unlike(
            f"{site.path} computes its state by {site.activation}, the checkpoint by {activation}"
        )
    if not site.is_cudnn and site.recurrent_activation not in (None, "sigmoid"):
        raise _unlike(f"{site.path} computes its gates by {site.recurrent_activation}")
    tensors = {kind: file.read(tensor.path) for kind, tensor in site.tensors.items()}
    return layouts.unpack(layouts.find(site.layout, site.cell), tensors)


def _fitting(stack: Stack, weights: Sequence[RnnWeights]) -> Sequence[RnnWeights]:
    count = stack.num_layers * len(stack.directions)
    if len(weights) != count:
        raise _unlike(f"{count} layers and directions in one, {len(weights)} in the other")
    for place, own in enumerate(weights):
        layouts.require_same_function(stack.cell, own.cell)
        size = (stack.num_units, stack.input_dim(place // len(stack.directions)))
        if own.kernel.shape[1:] != size:
            raise _unlike(f"layer {place}: {size} units and inputs in one, {own.kernel.shape[1:]}")
    return weights


def _unlike(what: str) -> NotConvertibleError:
    return NotConvertibleError(f"can't be compared: {what}")

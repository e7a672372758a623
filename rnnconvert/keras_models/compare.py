"""Two Keras files compared.

Both are brought to the portable form by their own plans, tensor by tensor, and must then hold the
same weights; their layers and the whole models must compute the same.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from rnnconvert.errors import NotConvertibleError, errors_of
from rnnconvert.keras_models.edits import apply_edit
from rnnconvert.keras_models.files.h5 import KerasH5
from rnnconvert.keras_models.opening import open_keras
from rnnconvert.keras_models.plan import Edit, Plan, Scale, SiteChange, Tensor
from rnnconvert.keras_models.planning import hard_sigmoid_flavours, make_plan
from rnnconvert.keras_models.verify.levels import Side, check_pairs
from rnnconvert.keras_models.verify.model_level import check_everywhere
from rnnconvert.kinds import Kind
from rnnconvert.layouts import require_same_function
from rnnconvert.options import Options
from rnnconvert.progress import tell
from rnnconvert.report import FileInfo, LevelResult, Report
from rnnconvert.verification.compare import compare_arrays


@dataclass(frozen=True)
class _Side:
    """One of the two files; `file` and `plan` are None for a .keras file, which Keras reads.

    `path` is that of the file to read: a temporary one, where the model was rebuilt.
    """

    info: FileInfo
    path: Path
    file: KerasH5 | None = None
    plan: Plan | None = None


def compare_keras(
    original: tuple[Path, Kind],
    converted: tuple[Path, Kind],
    options: Options,
    check: Callable[[FileInfo, FileInfo], None],
) -> Report:
    """Compare two Keras models or weights files.

    Args:
        original, converted: path and kind of each.
        check: called before anything is compared.

    Returns:
        The report, whatever its levels say.
    """
    with ExitStack() as stack:
        sides = []
        for path, kind in (original, converted):
            with errors_of(path):
                sides.append(_open(path, kind, stack, options.hashes))
        first, second = sides
        check(first.info, second.info)
        report = Report(
            "verify",
            first.info,
            second.info,
            layers=first.plan.sites if first.plan else (),
            verdict="equivalent",
            weights_level=_weights(first, second, options),
            layers_level=_layers(first, second, options),
            model_level=(LevelResult.not_asked(options.verify),),
        )
        if options.verify != "model":
            return report
        tell("running both models in Keras")
        levels = check_everywhere(
            first.path, second.path, options.inputs, options.permissions, options.device, _no_torch
        )
        return replace(report, model_level=levels)


def _open(path: Path, kind: Kind, stack: ExitStack, with_hash: bool) -> _Side:
    if kind is Kind.KERAS:
        return _Side(FileInfo.of(path, kind.value, with_hash=with_hash), path)
    info, file = stack.enter_context(open_keras(path, kind, with_hash=with_hash))
    plan = make_plan(file)
    if plan.problems:
        raise NotConvertibleError("; ".join(plan.problems), problems=plan.problems)
    return _Side(info, file.path, file, plan)


def _no_torch() -> LevelResult:
    return LevelResult.skipped("Keras sees no GPU", "gpu")


# --- weights --------------------------------------------------------------------------------


def _weights(first: _Side, second: _Side, options: Options) -> LevelResult:
    """Every tensor of both, in the portable form, must be the same to the last bit.

    Merged biases and rescaled gates were rounded once on one side at least: one unit in the last
    place is allowed for them.
    """
    if first.file is None or second.file is None:
        return LevelResult("skipped", reason="a .keras file, which only Keras reads")
    if options.inputs.asked_tolerance:
        return LevelResult.nothing_to_run(
            "a tolerance was asked for, and weights are compared to the last bit"
        )
    ones, others = _tensors(first), _tensors(second)
    if len(ones) != len(others):
        return LevelResult(
            "skipped", reason=f"{len(ones)} tensors in one file, {len(others)} in the other"
        )
    rounded = 0
    for (name, edit, load), (_, other_edit, other_load) in zip(ones, others, strict=True):
        rounds = [e for e in (edit, other_edit) if isinstance(e, Scale) or (e and e.merges)]
        gap = _gap(load(), other_load(), ulps=1 if rounds else 0)
        rounded += bool(rounds)
        if gap:
            return LevelResult("failed", detail=f"{name}: {gap}", worst=name)
    detail = f"{len(ones) - rounded} tensors the same to the last bit in the portable form"
    if rounded:
        detail += f", {rounded} rounded ones within one unit in the last place"
    return LevelResult("passed", detail=detail)


_Loaded = tuple[str, Edit | None, Callable[[], Any]]


def _tensors(side: _Side) -> list[_Loaded]:
    """Path, edit and portable value of each tensor, in the file's order."""
    assert side.file is not None
    assert side.plan is not None
    edits = {change.source.path: change for change in side.plan.tensor_changes}

    def portable(tensor: Tensor) -> Any:
        stored = side.file.read(tensor.path)  # type: ignore[union-attr]
        if tensor.path not in edits:
            return stored
        change = edits[tensor.path]
        made = np.empty(change.target.shape, stored.dtype)
        if isinstance(change.edit, Scale):  # which writes the scaled gates only
            made[...] = stored
        apply_edit(change.edit, stored, made)
        return made

    return [
        (
            tensor.path,
            edits[tensor.path].edit if tensor.path in edits else None,
            partial(portable, tensor),
        )
        for tensors in side.file.groups.values()
        for tensor in tensors
    ]


def _gap(one: Any, other: Any, ulps: int) -> str | None:
    """What is different between two arrays, if more than `ulps` units in the last place."""
    if one.shape != other.shape or one.dtype != other.dtype:
        return f"{one.dtype} {one.shape} in one file, {other.dtype} {other.shape} in the other"
    if one.tobytes() == other.tobytes():
        return None
    worst = compare_arrays(one, other)
    if one.dtype.kind == "f" and worst.max_abs <= ulps * float(np.spacing(abs(one[worst.place]))):
        return None
    return f"{worst.at('element ')} differs by {worst.max_abs:.3g}"


# --- layers ---------------------------------------------------------------------------------


def _layers(first: _Side, second: _Side, options: Options) -> LevelResult:
    if options.verify == "weights":
        return LevelResult.not_asked(options.verify)
    if first.plan is None or second.plan is None:
        return LevelResult("skipped", reason="a .keras file, which only Keras reads")
    ones, others = first.plan.sites, second.plan.sites
    if len(ones) != len(others) or not ones:
        return LevelResult(
            "skipped",
            reason=f"{len(ones)} recurrent layers in one file, {len(others)} in the other",
        )
    pairs = []
    for one, other in zip(ones, others, strict=True):
        _require_comparable(one, other)
        pairs.append((_side(first, one, second), _side(second, other, first)))
    return check_pairs(pairs, options.inputs)


def _require_comparable(one: SiteChange, other: SiteChange) -> None:
    """Raise where two layers have other sizes, or are cells that no weights make equal."""
    a, b = one.site, other.site
    if {a.cell, b.cell} != {"rnn_tanh", "rnn_relu"}:
        require_same_function(a.cell, b.cell)
    if (a.units, a.input_dim) != (b.units, b.input_dim):
        raise NotConvertibleError(
            f"can't be compared: {a.path} has {a.units} units on {a.input_dim} inputs, "
            f"{b.path} has {b.units} on {b.input_dim}"
        )


def _side(side: _Side, change: SiteChange, other: _Side) -> Side:
    assert side.file is not None
    assert other.file is not None
    flavour = hard_sigmoid_flavours(side.file, other.file)[0]
    return Side(change.site, side.file, flavour, tuple(c.edit for c in change.changes))

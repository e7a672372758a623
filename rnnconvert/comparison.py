"""Two model files compared, whoever made them: `rnnconvert verify A B`.

Both are brought to the portable form by their own plans, tensor by tensor, and must then hold the
same weights; their layers and the whole models must compute the same.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from rnnconvert.containers import keras_h5
from rnnconvert.containers.keras_h5 import KerasH5, open_keras_h5
from rnnconvert.conversion.rebuilt import rebuilt_h5
from rnnconvert.edits import apply_edit
from rnnconvert.errors import (
    ConversionError,
    DifferenceError,
    NotConvertibleError,
    UnreadableInputError,
    UsageError,
)
from rnnconvert.kinds import KERAS, Kind, kind_of
from rnnconvert.layouts import require_same_function
from rnnconvert.options import Options
from rnnconvert.plan import Edit, Plan, Scale, SiteChange, Tensor
from rnnconvert.planning import hard_sigmoid_flavours, make_plan
from rnnconvert.report import FileInfo, LevelResult, Report
from rnnconvert.verification.compare import compare
from rnnconvert.verification.devices import require_gpu
from rnnconvert.verification.levels import Side, check_pairs
from rnnconvert.verification.model_level import check_everywhere


@dataclass(frozen=True)
class _Side:
    """One of the two files; `file` and `plan` are None for a .keras file, which Keras reads."""

    info: FileInfo
    file: KerasH5 | None = None
    plan: Plan | None = None


def run(original: Path, converted: Path, options: Options, earlier: Path | None = None) -> Report:
    """Compare two files.

    Args:
        original, converted: Keras .h5 files, whole models or weights only, or .keras files.
        options: of it `verify`, `device`, `inputs`, `permissions` and `hashes` are read.
        earlier: a report of an earlier conversion or comparison, whose hashes must be those of the
            two files.

    Raises:
        DifferenceError: they differ, or are not the files of the earlier report.
        NotConvertibleError: they can't be compared; nothing about them could be.
        UnreadableInputError: a file can't be read.
    """
    if options.verify == "none":
        raise UsageError("verify with --verify none would compare nothing")
    if options.device == "gpu" and options.verify == "model":
        require_gpu()
    with ExitStack() as stack:
        sides = []
        for path in (original, converted):
            try:
                sides.append(_open(path, stack, options.hashes or earlier is not None))
            except ConversionError as error:
                error.path = error.path or str(path)
                raise
        first, second = sides
        if earlier is not None:
            _require_same_files(earlier, first.info, second.info)
        report = Report(
            "verify",
            first.info,
            second.info,
            layers=first.plan.sites if first.plan else (),
            verdict="equivalent",
        )
        return _compare(report, first, second, options)


def _open(path: Path, stack: ExitStack, with_hash: bool) -> _Side:
    kind = kind_of(path)
    if kind is Kind.KERAS:
        return _Side(FileInfo.of(path, kind.value, with_hash=with_hash))
    if kind not in KERAS:
        raise NotConvertibleError(f"can't be compared: {kind.title}, and no Keras file")
    if kind is Kind.KERAS_WEIGHTS:
        info = FileInfo.of(path, kind.value, with_hash=with_hash)
        path, _ = stack.enter_context(rebuilt_h5(path, kind))
    file = stack.enter_context(open_keras_h5(path))
    if kind is Kind.KERAS_H5:
        info = keras_h5.describe(file, with_hash=with_hash)
    plan = make_plan(file)
    if plan.problems:
        raise NotConvertibleError("; ".join(plan.problems), problems=plan.problems)
    return _Side(info, file, plan)


def _require_same_files(earlier: Path, first: FileInfo, second: FileInfo) -> None:
    """The hashes that an earlier report recorded, against those of the files now."""
    try:
        report = json.loads(earlier.read_text(encoding="utf-8"))
        recorded = [report["input"]["sha256"], (report["output"] or {}).get("sha256")]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UnreadableInputError(
            f"not the report of one conversion or comparison ({error!r})", path=str(earlier)
        ) from error
    for hash_then, info in zip(recorded, (first, second), strict=True):
        if not hash_then:
            raise UsageError(f"the report holds no hash to check {info.path} by", path=str(earlier))
        if hash_then != info.sha256:
            raise DifferenceError(
                f"not the file of {earlier}: SHA-256 was {hash_then}, is {info.sha256}",
                path=info.path,
            )


def _compare(report: Report, first: _Side, second: _Side, options: Options) -> Report:
    report = replace(
        report,
        weights_level=_weights(first, second, options),
        layers_level=_layers(first, second, options),
    )
    if options.verify == "model":
        levels = check_everywhere(
            Path(first.info.path), Path(second.info.path), options.inputs, options.permissions,
            options.device, _no_torch,
        )  # fmt: skip
        report = replace(report, model_level=levels)
    else:
        report = replace(report, model_level=(LevelResult.not_asked(options.verify),))
    report.raise_if_different()
    if all(level.status == "skipped" for _, level in report.levels):
        reasons = dict.fromkeys(str(level.reason) for _, level in report.levels)
        error = NotConvertibleError(f"can't be compared: {'; '.join(reasons)}")
        raise error.with_report(replace(report, verdict="unverified"))
    return report


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
        return LevelResult(
            "skipped", reason="a tolerance was asked for, and weights are compared to the last bit"
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
    worst = compare(one, other)
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

"""The levels `weights` and `layers`: the written file against its source, site by site."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import numpy as np

from rnnconvert.edits import check_edit, side_by_side
from rnnconvert.errors import UsageError
from rnnconvert.plan import Edit, Plan, Relay, Scale, SiteChange, TensorChange
from rnnconvert.report import LevelResult
from rnnconvert.verification import cudnn_reference, keras_reference

TIMESTEPS = 7
BATCH = 3
_EPS64 = float(np.finfo(np.float64).eps)


class Reader(Protocol):
    """An opened container, as far as verification needs it."""

    def loader(self, path: str) -> Callable[[], Any]: ...

    def read(self, path: str) -> np.ndarray[Any, Any]: ...


@dataclass(frozen=True)
class Inputs:
    """How the random inputs of the level `layers` are made."""

    seed: int = 0
    batch: int = BATCH
    timesteps: int = TIMESTEPS
    rtol: float | None = None
    atol: float | None = None

    def __post_init__(self) -> None:
        for name in ("rtol", "atol"):
            value = getattr(self, name)
            if value is not None and not 0 <= value < np.inf:
                raise UsageError(f"{name}={value}: expected a number from 0")
        if self.seed < 0 or self.batch < 1 or self.timesteps < 1:
            raise UsageError("seed must be 0 or more, batch and timesteps at least 1")


def check_weights(plan: Plan, source: Reader, written: Reader) -> tuple[LevelResult, list[str]]:
    """Every changed tensor relayed in reverse gives the source's bits; sums within half an ulp.

    Returns:
        The result, and warnings about weights that no training leaves behind.
    """
    counts = {"exact": 0, "merged": 0, "scaled": 0}
    suspicions: list[str] = []
    changes = (*plan.tensor_changes, *plan.optimizer.changes)
    checks = [
        partial(
            _check_tensor,
            change,
            source.loader(change.source.path),
            written.loader(change.target.path),
        )
        for change in changes
    ]
    for change, (difference, suspicion) in zip(changes, side_by_side(checks), strict=True):
        if difference:
            failure = f"{change.target.path}: {difference}"
            return LevelResult("failed", detail=failure, worst=change.target.path), suspicions
        counts[_kind_of_check(change.edit)] += 1
        suspicions += suspicion
    parts = [
        text.format(counts[kind])
        for kind, text in (
            ("exact", "round trip bit-exact on {} tensors"),
            ("merged", "{} merged biases within 0.5 ulp"),
            ("scaled", "{} rescaled tensors within 0.5 ulp"),
        )
        if counts[kind]
    ]
    detail = ", ".join(parts) or "no tensor changes, only the config"
    return LevelResult("passed", detail=detail), suspicions


def _check_tensor(
    change: TensorChange, source: Callable[[], Any], written: Callable[[], Any]
) -> tuple[str | None, list[str]]:
    """The difference in one tensor, if any, and what is odd about its source."""
    here = source()
    return check_edit(change.edit, here, written()), _suspicion(change, here)


def _kind_of_check(edit: Edit) -> str:
    if isinstance(edit, Scale):
        return "scaled"
    return "merged" if edit.merges and not edit.is_slot else "exact"


def _suspicion(change: TensorChange, values: Any) -> list[str]:
    """NaN, infinity, or a kernel of zeros: converted all the same, but worth a word."""
    with np.errstate(invalid="ignore", over="ignore"):
        ends = [(block.min(), block.max()) for block in _blocks(values)]  # NaN goes through both
        largest = float(np.abs(ends).max()) if ends else 1.0
    if not np.isfinite(largest):
        return [f"{change.source.path} holds NaN or infinity"]
    is_slot = isinstance(change.edit, Relay) and change.edit.is_slot
    if largest == 0 and len(change.source.shape) > 1 and not is_slot:
        return [f"{change.source.path} is all zeros"]
    return []


def _blocks(values: Any) -> Iterable[Any]:
    """Some rows at a time, so that a large tensor needs little memory."""
    rows = max(1, 2**20 // max(1, int(np.prod(values.shape[1:]))))
    for start in range(0, values.shape[0], rows):
        yield values[start : start + rows]


def check_layers(
    plan: Plan, source: Reader, written: Reader, flavours: tuple[str, str], inputs: Inputs
) -> LevelResult:
    """The source's equations on the source's weights against Keras' on the written ones.

    Args:
        flavours: whose hard_sigmoid the source's and the written file's weights are made for.
    """
    generator = np.random.default_rng(inputs.seed)
    worst = LevelResult("passed", device="cpu", max_abs=0.0, max_rel=0.0, tolerance=0.0)
    worst_ratio = -1.0
    ran, skipped = 0, []
    for change in plan.sites:
        if not change.changes:
            continue
        if change.site.cell == "conv_lstm":
            skipped.append(f"{change.site.path} ({change.site.class_name}: weights level only)")
            continue
        missing = _unknown_activation(change)
        if missing:
            skipped.append(f"{change.site.path} (activation {missing} is not known here)")
            continue
        result = _check_site(change, source, written, flavours, generator, inputs)
        ran += 1
        assert result.max_abs is not None
        assert result.tolerance is not None
        ratio = _ratio(result.max_abs, result.tolerance)
        if ratio > worst_ratio:
            worst, worst_ratio = result, ratio
    if not ran:
        reason = "; ".join(skipped) or "no recurrent layer changes its weights"
        return LevelResult("skipped", reason=reason)
    detail = f"{ran} layers, {inputs.timesteps} time steps, batch {inputs.batch}, random states"
    if skipped:
        detail += f"; not run: {'; '.join(skipped)}"
    return LevelResult(
        "passed" if worst_ratio <= 1 else "failed",
        detail=detail,
        device="cpu",
        max_abs=worst.max_abs,
        max_rel=worst.max_rel,
        tolerance=worst.tolerance,
        worst=worst.worst,
    )


def _ratio(difference: float, tolerance: float) -> float:
    """Difference in units of the tolerance; a tolerance of 0 allows only 0."""
    if difference == 0:
        return 0.0
    return difference / tolerance if tolerance and np.isfinite(difference) else np.inf


def _unknown_activation(change: SiteChange) -> str | None:
    for name in (change.site.activation, change.site.recurrent_activation):
        if name not in (None, "hard_sigmoid", *keras_reference.ACTIVATIONS):
            return name
    return None


def _check_site(
    change: SiteChange,
    source: Reader,
    written: Reader,
    flavours: tuple[str, str],
    generator: np.random.Generator,
    inputs: Inputs,
) -> LevelResult:
    site = change.site
    old = {kind: source.read(tensor.path) for kind, tensor in site.tensors.items()}
    new = {kind: written.read(tensor.path) for kind, tensor in site.tensors.items()}
    x = generator.standard_normal((inputs.batch, inputs.timesteps, site.input_dim))
    h = generator.standard_normal((inputs.batch, site.units)) * 0.5
    c = generator.standard_normal((inputs.batch, site.units)) if site.cell == "lstm" else None
    with np.errstate(invalid="ignore", over="ignore"):
        if site.is_cudnn:
            expected = cudnn_reference.run(site.cell, old, x, h, c)
            found = keras_reference.run(site.cell, new, x, h, c)
        else:
            expected = _run_plain(site.cell, old, x, h, c, change, flavours[0])
            found = _run_plain(site.cell, new, x, h, c, change, flavours[1])
    return _compare(change, old, expected, found, inputs)


def _run_plain(
    cell: str, tensors: dict[str, Any], x: Any, h: Any, c: Any, change: SiteChange, flavour: str
) -> tuple[Any, ...]:
    recurrent = change.site.recurrent_activation or "sigmoid"
    if recurrent == "hard_sigmoid":
        recurrent = f"hard_sigmoid/{flavour}"
    return keras_reference.run(
        cell, tensors, x, h, c,
        activation=change.site.activation or "tanh", recurrent_activation=recurrent,
    )  # fmt: skip


def _compare(
    change: SiteChange, old: dict[str, Any], expected: Any, found: Any, inputs: Inputs
) -> LevelResult:
    tolerance = layer_tolerance(change, old, inputs.timesteps)
    scale = max(_largest(part) for part in expected if part is not None)
    if inputs.atol is not None or inputs.rtol is not None:
        tolerance = (inputs.atol or 0.0) + (inputs.rtol or 0.0) * scale
    worst, max_abs, max_rel = "", 0.0, 0.0
    for name, a, b in zip(("output", "h", "c"), expected, found, strict=True):
        if a is None:
            continue
        with np.errstate(invalid="ignore"):  # inf - inf
            difference = np.where(np.isnan(a) & np.isnan(b), 0.0, np.abs(a - b))
        difference = np.where(np.isnan(difference), np.inf, difference)
        place = np.unravel_index(int(np.argmax(difference)), difference.shape)
        if difference[place] >= max_abs:
            max_abs = float(difference[place])
            max_rel = max_abs / max(float(abs(a[place])), 1e-300) if max_abs else 0.0
            worst = f"{change.site.path} {name}[{', '.join(str(int(i)) for i in place)}]"
    return LevelResult("passed", max_abs=max_abs, max_rel=max_rel, tolerance=tolerance, worst=worst)


def _largest(values: Any) -> float:
    """Largest absolute value; NaN and infinity do not count."""
    wide = np.abs(np.asarray(values, np.float64))
    return float(wide.max(initial=0.0, where=np.isfinite(wide)))


def layer_tolerance(change: SiteChange, old: dict[str, Any], timesteps: int) -> float:
    """How far two float64 runs of one layer may differ; docs/verification.md derives it.

    Summing d+U products in another order: (d+U) * eps64 for each time step. A weight that was
    rounded once (a merged bias, a rescaled gate) moves a gate by at most eps/2 of its dtype times
    the sum of what was rounded.
    """
    site = change.site
    width = site.input_dim + site.units
    tolerance = 8.0 * timesteps * width * _EPS64
    eps = float(np.finfo(old["kernel"].dtype).eps)
    if any(isinstance(c.edit, Relay) and c.edit.merges for c in change.changes):
        largest = _largest(old["bias"]) * 2  # infinity does not count: it would allow anything
        tolerance += 2.0 * timesteps * eps * max(largest, 1.0)
    if any(isinstance(c.edit, Scale) for c in change.changes):
        rows = sum(
            _largest(np.abs(values.astype(np.float64)).sum(axis=0))
            for values in old.values()
            if values.ndim == 2
        )
        tolerance += 2.0 * timesteps * eps * max(rows, 1.0)
    return tolerance

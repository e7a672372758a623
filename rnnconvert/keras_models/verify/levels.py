"""The levels `weights` and `layers`: the written file against its source, site by site."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import Any, Protocol

import numpy as np

from rnnconvert.containers.tiles import MovedTensor, largest_of_bits, side_by_side
from rnnconvert.keras_models.edits import check_edit, row_bands
from rnnconvert.keras_models.plan import Edit, Plan, Relay, Scale, Site, TensorChange
from rnnconvert.options import Inputs
from rnnconvert.progress import counted_off
from rnnconvert.references import cudnn as cudnn_reference
from rnnconvert.references import keras as keras_reference
from rnnconvert.report import LevelResult, Part, counted
from rnnconvert.verification.compare import (
    Difference,
    by_step,
    compare_arrays,
    in_tolerances,
    largest_of,
)
from rnnconvert.verification.inputs import BATCH, TIMESTEPS
from rnnconvert.verification.rounding import EPS

_FLAGS = ("return_sequences", "return_state", "go_backwards", "stateful")
"""Those that decide what a layer computes; time_major and unroll only say how."""
_LARGE = 2**20
_FEW_STEPS = 2


class Reader(Protocol):
    """An opened container, as far as verification needs it."""

    def read(self, path: str) -> np.ndarray[Any, Any]: ...

    def rows(self, path: str) -> Any:
        """A tensor that is read by slices of its first axis, or an array."""


def check_weights(
    plan: Plan, source: Reader, written: Reader, found: Mapping[str, MovedTensor] | None = None
) -> tuple[LevelResult, list[str]]:
    """Every changed tensor relayed in reverse gives the source's bits; sums within half an ulp.

    Args:
        found: what was found of tensors that are checked already, by their paths in the source.

    Returns:
        The result, and warnings about weights that no training leaves behind.
    """
    counts = {"exact": 0, "merged": 0, "scaled": 0}
    suspicions: list[str] = []
    for change in counted_off(
        (*plan.tensor_changes, *plan.optimizer.changes), "proving weights", "tensors"
    ):
        seen = (found or {}).get(change.source.path)
        if seen is None:
            here, there = source.read(change.source.path), written.read(change.target.path)
            seen = MovedTensor(check_edit(change.edit, here, there), largest_of_bits(here))
        if seen.difference:
            failure = f"{change.target.path}: {seen.difference}"
            return LevelResult("failed", detail=failure, worst=change.target.path), suspicions
        counts[_kind_of_check(change.edit)] += 1
        suspicions += _suspicion(change, seen.largest)
    parts = [
        text.format(counted(counts[kind], *names))
        for kind, text, names in (
            ("exact", "round trip bit-exact on {}", ("tensor", "tensors")),
            ("merged", "{} within 0.5 ulp", ("merged bias", "merged biases")),
            ("scaled", "{} within 0.5 ulp", ("rescaled tensor", "rescaled tensors")),
        )
        if counts[kind]
    ]
    detail = ", ".join(parts) or "no tensor changes, only the config"
    return LevelResult("passed", detail=detail), suspicions


def _kind_of_check(edit: Edit) -> str:
    if isinstance(edit, Scale):
        return "scaled"
    return "merged" if edit.merges and not edit.is_slot else "exact"


def _suspicion(change: TensorChange, largest: float | None) -> list[str]:
    """NaN, infinity, or a kernel of zeros: converted all the same, but worth a word."""
    assert largest is not None
    if not np.isfinite(largest):
        return [f"{change.source.path} holds NaN or infinity"]
    is_slot = isinstance(change.edit, Relay) and change.edit.is_slot
    if largest == 0 and len(change.source.shape) > 1 and not is_slot:
        return [f"{change.source.path} is all zeros"]
    return []


@dataclass(frozen=True)
class Side:
    """One of two layers that must compute the same.

    Attributes:
        site: what it is, in the layout it is stored in.
        reader: where its tensors are read.
        flavour: whose hard_sigmoid its weights are made for, "keras2" or "keras3".
        edits: what was or would be done to make it portable; a merged or rescaled weight was
            rounded once.
    """

    site: Site
    reader: Reader
    flavour: str
    edits: tuple[Edit, ...] = ()

    def tensors(self) -> dict[str, Any]:
        return {kind: self.reader.rows(tensor.path) for kind, tensor in self.site.tensors.items()}

    @property
    def shows_flags(self) -> bool:
        """A weights-only file says nothing of flags and activations."""
        return bool(self.site.class_name)

    @property
    def flags(self) -> str:
        """E.g. "forward, return_sequences"."""
        return ", ".join((self.site.direction, *sorted(set(_FLAGS) & set(self.site.flags))))

    @property
    def why_not(self) -> str | None:
        """Why this layer can't be run here."""
        if self.site.cell == "conv_lstm":
            return f"{self.site.class_name}: weights level only"
        for name in (self.site.activation, self.site.recurrent_activation):
            if name not in (None, "hard_sigmoid", *keras_reference.ACTIVATIONS):
                return f"activation {name} is not known here"
        return None


def check_layers(
    plan: Plan,
    source: Reader,
    written: Reader,
    written_sites: Sequence[Site],
    flavours: tuple[str, str],
    inputs: Inputs,
) -> LevelResult:
    """The source's equations on the source's weights against Keras' on the written ones.

    Args:
        plan: of the conversion.
        source, written: the opened containers.
        written_sites: the recurrent layers as found in the written file.
        flavours: whose hard_sigmoid the source's and the written file's weights are made for.
    """
    pairs = []
    for change, after in zip(plan.sites, written_sites, strict=True):
        if change.changes:
            edits = tuple(tensor.edit for tensor in change.changes)
            pairs.append(
                (
                    Side(change.site, source, flavours[0], edits),
                    Side(after, written, flavours[1]),
                )
            )
    return check_pairs(pairs, inputs)


def check_pairs(pairs: Sequence[tuple[Side, Side]], inputs: Inputs) -> LevelResult:
    """Each pair of layers on the same random input and states, in float64.

    Some rows of a matrix are in memory at a time. Layers of over `_LARGE` weights run `_FEW_STEPS`.
    """
    generator = np.random.default_rng(inputs.seed)
    worst = LevelResult("passed", device="cpu", max_abs=0.0, max_rel=0.0, tolerance=0.0)
    worst_ratio = -1.0
    parts: list[Part] = []
    skipped = []
    for one, other in counted_off(pairs, "proving layers", "layers"):
        why_not = one.why_not or other.why_not
        if why_not:
            skipped.append(f"{one.site.path} ({why_not})")
            continue
        if one.shows_flags and other.shows_flags and one.flags != other.flags:
            detail = f"{one.site.path} is {one.flags}, the other {other.flags}"
            return LevelResult("failed", detail=detail, worst=one.site.path)
        result = _check_pair(one, other, generator, inputs)
        parts += result.parts
        assert result.max_abs is not None
        assert result.tolerance is not None
        ratio = in_tolerances(result.max_abs, result.tolerance)
        if ratio > worst_ratio:
            worst, worst_ratio = result, ratio
    if not parts:
        if skipped:
            return LevelResult.skipped("; ".join(skipped))
        return LevelResult.nothing_to_run("no recurrent layer changes its weights")
    counts = sorted({_steps(one.site, inputs) for one, other in pairs}, reverse=True)
    steps, batch = " or ".join(str(count) for count in counts), inputs.batch or BATCH
    detail = f"{len(parts)} layers, {steps} time steps, batch {batch}, random states"
    if skipped:
        detail += f"; not run: {'; '.join(skipped)}"
    return replace(
        worst, status="passed" if worst_ratio <= 1 else "failed", detail=detail, seed=inputs.seed,
        parts=tuple(parts),
    )  # fmt: skip


def _check_pair(
    one: Side, other: Side, generator: np.random.Generator, inputs: Inputs
) -> LevelResult:
    site, batch = one.site, inputs.batch or BATCH
    steps = _steps(site, inputs)
    old, new = one.tensors(), other.tensors()
    x = generator.standard_normal((batch, steps, site.input_dim))
    h = generator.standard_normal((batch, site.units)) * 0.5
    c = generator.standard_normal((batch, site.units)) if site.cell == "lstm" else None
    runs = [partial(_run, one, old, x, h, c), partial(_run, other, new, x, h, c)]
    lines = [runs] if site.parameters <= _LARGE else [[run] for run in runs]
    expected, found = chain(*side_by_side(*lines))
    tolerance = layer_tolerance(site, (*one.edits, *other.edits), old, steps)
    if inputs.asked_tolerance:
        scale = max(largest_of(part) for part in expected if part is not None)
        tolerance = inputs.tolerance(scale)
    worst, where = Difference(0.0, 0.0, ()), ""
    for name, a, b in zip(("output", "h", "c"), expected, found, strict=True):
        if a is None:
            continue
        here = compare_arrays(a, b)
        if here.max_abs >= worst.max_abs:
            worst, where = here, here.at(f"{site.path} {name}")
    part = Part(site.path, worst.max_abs, tolerance, by_step(expected[0], found[0]))
    return LevelResult(
        "passed", device="cpu", max_abs=worst.max_abs, max_rel=worst.max_rel,
        tolerance=tolerance, worst=where, parts=(part,),
    )  # fmt: skip


def _steps(site: Site, inputs: Inputs) -> int:
    """Each step multiplies with the whole recurrent kernel, so a large layer takes few.

    The states that it begins with are random: one step shows what the recurrent weights do, the
    second what the first hands on.
    """
    return inputs.timesteps or (TIMESTEPS if site.parameters <= _LARGE else _FEW_STEPS)


@np.errstate(invalid="ignore", over="ignore")
def _run(side: Side, tensors: dict[str, Any], x: Any, h: Any, c: Any) -> tuple[Any, ...]:
    site = side.site
    if site.is_cudnn:
        return cudnn_reference.run_cudnn_layer(site.cell, tensors, x, h, c)
    recurrent = site.recurrent_activation or "sigmoid"
    if recurrent == "hard_sigmoid":
        recurrent = f"hard_sigmoid/{side.flavour}"
    return keras_reference.run_keras_layer(
        site.cell, tensors, x, h, c,
        activation=site.activation or _default_activation(site.cell),
        recurrent_activation=recurrent,
    )  # fmt: skip


def _default_activation(cell: str) -> str:
    return "relu" if cell == "rnn_relu" else "tanh"


def layer_tolerance(
    site: Site, edits: Iterable[Edit], old: dict[str, Any], timesteps: int
) -> float:
    """How far two float64 runs of one layer may differ; docs/verification.md derives it.

    Summing d+U products in another order: (d+U) * eps64 for each time step. A weight that was
    rounded once (a merged bias, a rescaled gate) moves a gate by at most eps/2 of its dtype times
    the sum of what was rounded.
    """
    edits = tuple(edits)
    width = site.input_dim + site.units
    tolerance = 8.0 * timesteps * width * EPS["float64"]
    if any(isinstance(edit, Relay) and edit.merges for edit in edits):
        # infinity does not count: it would allow anything
        largest = largest_of(old["bias"][...]) * 2
        tolerance += 2.0 * timesteps * EPS[old["bias"].dtype.name] * max(largest, 1.0)
    if any(isinstance(edit, Scale) for edit in edits):
        rows = sum(largest_of(_column_sums(each)) for each in old.values() if each.ndim == 2)
        eps = max(EPS[values.dtype.name] for values in old.values())
        tolerance += 2.0 * timesteps * eps * max(rows, 1.0)
    return tolerance


def _column_sums(stored: Any) -> Any:
    """Of the absolute values."""
    return sum(np.abs(stored[rows].astype(np.float64)).sum(axis=0) for rows in row_bands(stored))

"""The levels `weights` and `layers`: the written file against its source, site by site."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol

import numpy as np

from rnnconvert.edits import check_edit, side_by_side
from rnnconvert.plan import Edit, Plan, Relay, Scale, Site, TensorChange
from rnnconvert.report import LevelResult, counted
from rnnconvert.rounding import EPS
from rnnconvert.verification import cudnn_reference, keras_reference
from rnnconvert.verification.compare import Difference, compare, in_tolerances, largest_of
from rnnconvert.verification.inputs import BATCH, TIMESTEPS, Inputs

_FLAGS = ("return_sequences", "return_state", "go_backwards", "stateful")
"""Those that decide what a layer computes; time_major and unroll only say how."""


class Reader(Protocol):
    """An opened container, as far as verification needs it."""

    def loader(self, path: str) -> Callable[[], Any]: ...

    def read(self, path: str) -> np.ndarray[Any, Any]: ...


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
    """Some rows at a time, so that a large tensor needs little memory; whole rows of chunks."""
    rows = max(1, 2**20 // max(1, int(np.prod(values.shape[1:]))))
    chunks = getattr(values, "chunks", None)
    if chunks:
        rows = chunks[0] * max(1, rows // chunks[0])
    for start in range(0, values.shape[0], rows):
        yield values[start : start + rows]


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
        return {kind: self.reader.read(tensor.path) for kind, tensor in self.site.tensors.items()}

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
    """Each pair of layers on the same random input and states, in float64."""
    generator = np.random.default_rng(inputs.seed)
    worst = LevelResult("passed", device="cpu", max_abs=0.0, max_rel=0.0, tolerance=0.0)
    worst_ratio = -1.0
    ran, skipped = 0, []
    for one, other in pairs:
        why_not = one.why_not or other.why_not
        if why_not:
            skipped.append(f"{one.site.path} ({why_not})")
            continue
        if one.shows_flags and other.shows_flags and one.flags != other.flags:
            detail = f"{one.site.path} is {one.flags}, the other {other.flags}"
            return LevelResult("failed", detail=detail, worst=one.site.path)
        result = _check_pair(one, other, generator, inputs)
        ran += 1
        assert result.max_abs is not None
        assert result.tolerance is not None
        ratio = in_tolerances(result.max_abs, result.tolerance)
        if ratio > worst_ratio:
            worst, worst_ratio = result, ratio
    if not ran:
        if skipped:
            return LevelResult.skipped("; ".join(skipped))
        return LevelResult.nothing_to_run("no recurrent layer changes its weights")
    steps, batch = inputs.timesteps or TIMESTEPS, inputs.batch or BATCH
    detail = f"{ran} layers, {steps} time steps, batch {batch}, random states"
    if skipped:
        detail += f"; not run: {'; '.join(skipped)}"
    return replace(
        worst, status="passed" if worst_ratio <= 1 else "failed", detail=detail, seed=inputs.seed
    )


def _check_pair(
    one: Side, other: Side, generator: np.random.Generator, inputs: Inputs
) -> LevelResult:
    site, batch = one.site, inputs.batch or BATCH
    steps = inputs.timesteps or TIMESTEPS
    old, new = one.tensors(), other.tensors()
    x = generator.standard_normal((batch, steps, site.input_dim))
    h = generator.standard_normal((batch, site.units)) * 0.5
    c = generator.standard_normal((batch, site.units)) if site.cell == "lstm" else None
    with np.errstate(invalid="ignore", over="ignore"):
        expected = _run(one, old, x, h, c)
        found = _run(other, new, x, h, c)
    tolerance = layer_tolerance(site, (*one.edits, *other.edits), old, steps)
    if inputs.asked_tolerance:
        scale = max(largest_of(part) for part in expected if part is not None)
        tolerance = inputs.tolerance(scale)
    worst, where = Difference(0.0, 0.0, ()), ""
    for name, a, b in zip(("output", "h", "c"), expected, found, strict=True):
        if a is None:
            continue
        here = compare(a, b)
        if here.max_abs >= worst.max_abs:
            worst, where = here, here.at(f"{site.path} {name}")
    return LevelResult(
        "passed", device="cpu", max_abs=worst.max_abs, max_rel=worst.max_rel,
        tolerance=tolerance, worst=where,
    )  # fmt: skip


def _run(side: Side, tensors: dict[str, Any], x: Any, h: Any, c: Any) -> tuple[Any, ...]:
    site = side.site
    if site.is_cudnn:
        return cudnn_reference.run(site.cell, tensors, x, h, c)
    recurrent = site.recurrent_activation or "sigmoid"
    if recurrent == "hard_sigmoid":
        recurrent = f"hard_sigmoid/{side.flavour}"
    return keras_reference.run(
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
    eps = EPS[old["kernel"].dtype.name]
    if any(isinstance(edit, Relay) and edit.merges for edit in edits):
        largest = largest_of(old["bias"]) * 2  # infinity does not count: it would allow anything
        tolerance += 2.0 * timesteps * eps * max(largest, 1.0)
    if any(isinstance(edit, Scale) for edit in edits):
        rows = sum(
            largest_of(np.abs(values.astype(np.float64)).sum(axis=0))
            for values in old.values()
            if values.ndim == 2
        )
        tolerance += 2.0 * timesteps * eps * max(rows, 1.0)
    return tolerance

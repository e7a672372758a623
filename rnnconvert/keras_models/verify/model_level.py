"""The level `model`: both whole models run on the same inputs, and every output is compared.

docs/verification.md derives the tolerances.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from rnnconvert.errors import NotConvertibleError
from rnnconvert.keras_models.verify import keras2_engine
from rnnconvert.keras_models.verify.compiled import Differs, Pair, check_compiled
from rnnconvert.keras_models.verify.keras_engine import (
    CannotLoad,
    ModelRunner,
    Outputs,
    as_float64,
    device_name,
    engine_name,
    load,
    load_as,
    quiet,
)
from rnnconvert.options import Inputs, Permissions
from rnnconvert.report import LevelResult, Part
from rnnconvert.verification.compare import (
    Difference,
    by_step,
    compare_arrays,
    in_tolerances,
    largest_of,
)
from rnnconvert.verification.devices import find_gpu, tf32_off
from rnnconvert.verification.frameworks import CannotRun, NothingToRun, import_keras
from rnnconvert.verification.inputs import Array, ModelInput, make, slots_of
from rnnconvert.verification.memory import require_memory
from rnnconvert.verification.rounding import EPS

BATCHES_OF_A_STATEFUL_MODEL = 3
_WOBBLES = 16.0
"""How many times the effect of one rounding of every weight is taken for rounding."""
_MOST = 0.01
"""No tolerance goes beyond this part of the largest output, or a wrong function could pass."""
_RECURRENT = ("LSTM", "GRU", "SimpleRNN", "CuDNNLSTM", "CuDNNGRU", "RNN", "Bidirectional",
              "ConvLSTM1D", "ConvLSTM2D", "ConvLSTM3D")  # fmt: skip


def check_everywhere(
    original: Path,
    converted: Path,
    inputs: Inputs,
    permissions: Permissions,
    device: str,
    on_torch: Callable[[], LevelResult],
    user_loads_in: str = "any",
) -> tuple[LevelResult, ...]:
    """The level `model` on the CPU, and on a GPU where there is one and `device` lets it.

    Args:
        original, converted, inputs, permissions: as of `check_models`.
        device: "auto", "cpu" or "gpu".
        on_torch: the check layer by layer, for a GPU that torch sees and Keras doesn't.
        user_loads_in: as of `check_models`.
    """
    results = [check_models(original, converted, inputs, permissions, user_loads_in=user_loads_in)]
    if device != "cpu":
        gpu = find_gpu()
        if gpu.engine is None:
            results.append(LevelResult("skipped", device="gpu", reason=gpu.looked_for))
        elif gpu.engine == "torch":
            results.append(on_torch())
        else:
            results.append(
                check_models(
                    original, converted, inputs, permissions, "gpu", user_loads_in=user_loads_in
                )
            )
    return tuple(results)


def check_models(
    original: Path,
    converted: Path,
    inputs: Inputs,
    permissions: Permissions,
    device: str = "cpu",
    *,
    user_loads_in: str = "any",
) -> LevelResult:
    """Run two model files beside each other in Keras.

    Args:
        original, converted: files of any kind that Keras 3 or `rnnconvert.keras` loads.
        inputs: seed, sizes and tolerances.
        permissions: which code of the files may run.
        device: "cpu" or "gpu"; on a GPU CuDNN layers run on cuDNN itself, and TF32 is off.
        user_loads_in: what `converted` was written for: "keras3" loads it by Keras' own
            `load_model(path)`, "keras2" by that of tf_keras; "any" where it may be any model.

    Returns:
        Passed; failed, also where the library that it was written for does not load `converted`;
        or skipped with the reason why the models can't run here.

    Raises:
        NotConvertibleError: they can't be compared: other inputs or outputs.
    """
    try:
        keras = import_keras()
        require_memory(original, converted)
    except CannotRun as error:
        return LevelResult("skipped", reason=str(error), device=device)
    result = LevelResult("passed", device=device, engine=engine_name(), seed=inputs.seed)
    with keras.device(device_name(device)), quiet(), ExitStack() as stack:
        if device == "gpu":
            from rnnconvert.keras.layers import on_cudnn

            stack.enter_context(tf32_off(keras.backend.backend()))
            stack.enter_context(on_cudnn())
            result = replace(result, engine=f"{result.engine}, cuDNN, TF32 off")
        return _Check(converted, inputs, permissions, user_loads_in, result).run(original)


@dataclass(frozen=True)
class _Original:
    """The first model, loaded and run."""

    runner: ModelRunner
    slots: list[ModelInput]
    batches: list[list[Array]]
    outputs: list[Outputs]


@dataclass(frozen=True)
class _Check:
    """One run of the level: the second model, what it is run with, and the result to fill in."""

    converted: Path
    inputs: Inputs
    permissions: Permissions
    user_loads_in: str
    result: LevelResult

    def run(self, path: Path) -> LevelResult:
        """Whether the original at `path` runs or not, the converted model has to load."""
        try:
            original: _Original | CannotRun | NotConvertibleError = self._original(path)
        except (CannotRun, NotConvertibleError) as error:
            original = error
        try:
            second = ModelRunner(load_as(self.converted, self.permissions, self.user_loads_in))
        except CannotLoad as error:
            return replace(self.result, status="failed", detail=f"the converted model: {error}")
        except CannotRun as error:
            skipped = LevelResult.skipped(f"the converted model: {error}", self.result.device)
            return replace(skipped, excused=isinstance(error, NothingToRun))
        if isinstance(original, _Original):
            return self._compare(original, second)
        return LevelResult.skipped(
            f"the original: {original} (the converted model loads)", self.result.device
        )

    def _original(self, path: Path) -> _Original:
        runner = ModelRunner(load(path, self.permissions))
        slots = slots_of(runner.model)
        return _Original(runner, slots, *_run_original(runner, slots, self.inputs))

    def _compare(self, original: _Original, second: ModelRunner) -> LevelResult:
        first, batches, expected = original.runner, original.batches, original.outputs
        inputs, result = self.inputs, self.result
        try:
            _require_same_inputs(original.slots, slots_of(second.model))
            found = [second.run(arrays) for arrays in batches]
        except NotConvertibleError:
            raise
        except Exception as error:
            text = f"the original ran, the converted model does not: {error}"
            return replace(result, status="failed", detail=text)
        worst = _worst(expected, found, native_tolerance(first, batches, inputs))
        if worst.in_tolerances > 1 and not inputs.asked_tolerance:
            runners = (first, second)
            filled = _arbitrate(result, worst, runners, batches, self.permissions, inputs.seed)
        else:
            filled = _filled(result, worst, _describe(expected, batches))
        if filled.status != "passed" or self.user_loads_in == "any":
            return filled
        return self._use(original, second, filled)

    def _use(self, original: _Original, second: ModelRunner, passed: LevelResult) -> LevelResult:
        """What the user does next: load it in Keras 2 if it is for that, evaluate, train."""
        batch, outputs = original.batches[0], list(original.outputs[0].outputs.values())
        try:
            if self.user_loads_in == "keras2":
                told = keras2_engine.check(
                    self.converted, original.batches, original.outputs, self.permissions
                )
            elif passed.device == "cpu" and getattr(second.model, "optimizer", None) is not None:
                pair = Pair(original.runner.model, second.model, batch, outputs,
                            self.permissions, self.inputs.seed)  # fmt: skip
                told = check_compiled(pair)
            else:
                return passed
        except CannotRun as error:
            return LevelResult.skipped(str(error), passed.device)
        except Differs as error:
            return replace(passed, status="failed", detail=f"the converted model: {error}",
                           max_abs=None)  # fmt: skip
        return replace(passed, detail=f"{passed.detail}; {told}")


@dataclass(frozen=True)
class Worst:
    """The worst place of a comparison, in units of its tolerance.

    Attributes:
        difference: there; of an output unless only a layer's output is beyond its tolerance.
        name: of the output or layer.
        where: name, index and batch.
        tolerance: there.
        in_tolerances: difference by tolerance; above 1 the models differ.
        first: the first layer whose output is beyond its tolerance.
        by_step: the difference over time, of an output or layer that has time steps.
        parts: every output and layer that was compared.
    """

    difference: Difference
    name: str
    where: str
    tolerance: float
    in_tolerances: float
    first: str | None = None
    by_step: tuple[float, ...] = ()
    parts: tuple[Part, ...] = ()


Tolerance = Callable[[int, str, Array], float]
"""Tolerance of the output or layer of this name in this batch, given what is expected of it."""


def _run_original(
    runner: ModelRunner, slots: list[ModelInput], inputs: Inputs
) -> tuple[list[list[Array]], list[Outputs]]:
    """Batches on which the original runs, and what it gives; open sizes are made large enough."""
    batches = BATCHES_OF_A_STATEFUL_MODEL if runner.is_stateful else 1
    for length in inputs.lengths:
        arrays = make(slots, inputs, length, batches)
        try:
            return arrays, [runner.run(batch) for batch in arrays]
        except Exception as error:  # Keras and its backends raise all kinds of things
            failure = error
    last = (str(failure).strip().splitlines() or [type(failure).__name__])[0]
    raise CannotRun(f"it does not run on inputs made for it: {last}") from failure


def _require_same_inputs(expected: list[ModelInput], found: list[ModelInput]) -> None:
    def show(slots: list[ModelInput]) -> str:
        return ", ".join(f"{slot.shape} {slot.dtype}" for slot in slots)

    if [(slot.shape[1:], slot.dtype) for slot in expected] != [
        (slot.shape[1:], slot.dtype) for slot in found
    ]:
        raise NotConvertibleError(
            f"the models can't be compared: one takes {show(expected)}, the other {show(found)}"
        )


# --- comparing ------------------------------------------------------------------------------


def _worst(expected: list[Outputs], found: list[Outputs], tolerance: Tolerance) -> Worst:
    """The worst output; or, where all outputs agree and a layer's doesn't, the worst layer."""
    of_outputs: list[Worst] = []
    of_layers: list[Worst] = []
    for batch, (one, other) in enumerate(zip(expected, found, strict=True)):
        if [a.shape for a in one.outputs.values()] != [a.shape for a in other.outputs.values()]:
            shapes = [[array.shape for array in o.outputs.values()] for o in (one, other)]
            raise NotConvertibleError(
                f"the models can't be compared: outputs of {shapes[0]} and of {shapes[1]}"
            )
        pairs = zip(one.outputs, one.outputs.values(), other.outputs.values(), strict=True)
        of_outputs += [_judge(batch, name, a, b, tolerance) for name, a, b in pairs]
        of_layers += [
            _judge(batch, name, a, other.layers[name], tolerance)
            for name, a in one.layers.items()
            if name in other.layers and other.layers[name].shape == a.shape
        ]
    beyond = [place for place in of_layers if place.in_tolerances > 1]
    worst = max(of_outputs, key=_badness)
    if beyond and worst.in_tolerances <= 1:
        worst = max(beyond, key=_badness)
    return replace(
        worst, first=beyond[0].name if beyond else None, parts=_parts([*of_layers, *of_outputs])
    )


def _parts(places: list[Worst]) -> tuple[Part, ...]:
    """Each output and layer once: of several batches, where it is worst."""
    by_name: dict[str, Worst] = {}
    for place in places:
        by_name[place.name] = max(by_name.get(place.name, place), place, key=_badness)
    return tuple(
        Part(each.name, each.difference.max_abs, each.tolerance, each.by_step)
        for each in by_name.values()
    )


def _badness(place: Worst) -> tuple[float, float]:
    return place.in_tolerances, place.difference.max_abs


def _judge(batch: int, name: str, a: Array, b: Array, tolerance: Tolerance) -> Worst:
    gap = compare_arrays(a, b)
    allowed = tolerance(batch, name, a)
    where = gap.at(name) + (f" of batch {batch + 1}" if batch else "")
    ratio = in_tolerances(gap.max_abs, allowed)
    return Worst(gap, name, where, allowed, ratio, by_step=by_step(a, b))


def native_tolerance(runner: ModelRunner, batches: list[list[Array]], inputs: Inputs) -> Tolerance:
    """Roundings in the dtype that the model computes in: one for each layer and time step."""
    if inputs.asked_tolerance:
        return lambda batch, name, values: inputs.tolerance(largest_of(values))
    eps = coarsest_eps(runner.model)
    steps = max((a.shape[1] for batch in batches for a in batch if a.ndim > 1), default=1)
    roundings = _roundings(runner.model, steps)
    return lambda batch, name, values: 2.0 * eps * roundings * largest_of(values)


def _roundings(model: Any, steps: int) -> int:
    layers = model._flatten_layers(include_self=False)
    recurrent = sum(type(layer).__name__ in _RECURRENT for layer in layers)
    return len(list(model._flatten_layers())) + recurrent * steps


def coarsest_eps(model: Any) -> float:
    """Of the coarsest dtype that a layer with weights computes in."""
    names = {str(layer.compute_dtype) for layer in model._flatten_layers() if layer.weights}
    return max((EPS.get(name, 0.0) for name in names), default=0.0) or EPS["float32"]


def _describe(outputs: list[Outputs], batches: list[list[Array]]) -> str:
    first = batches[0][0] if batches[0] else np.zeros(0)
    shape = "x".join(str(size) for size in first.shape)
    several = f", {len(batches)} batches in a row" if len(batches) > 1 else ""
    count = len(outputs[0].outputs)
    return (
        f"{count} output{'s' if count > 1 else ''}, {len(outputs[0].layers)} layer calls, "
        f"input {shape}{several}"
    )


def _filled(result: LevelResult, worst: Worst, detail: str) -> LevelResult:
    failed = worst.in_tolerances > 1
    return replace(
        result,
        status="failed" if failed else "passed",
        detail=detail,
        max_abs=worst.difference.max_abs,
        max_rel=worst.difference.max_rel,
        tolerance=worst.tolerance,
        worst=worst.where,
        first_difference=worst.first if failed else None,
        parts=worst.parts,
    )


# --- arbitration in float64 -----------------------------------------------------------------


def _arbitrate(
    result: LevelResult,
    native: Worst,
    runners: tuple[ModelRunner, ModelRunner],
    batches: list[list[Array]],
    permissions: Permissions,
    seed: int,
) -> LevelResult:
    """Run both in float64: is the difference rounding, or another function?

    How much rounding may do to this very model is measured: by the original, run once more with
    each weight moved by one rounding of its dtype.
    """
    import keras

    before = (
        f"differs by {native.difference.max_abs:.2g} in the model's own dtype "
        f"(tolerance {native.tolerance:.2g})"
    )
    if keras.backend.backend() != "tensorflow":
        why = f"{before}; only the TensorFlow backend can tell rounding from a wrong function"
        return _filled(result, native, why)
    first, second = runners
    eps = coarsest_eps(first.model)
    try:
        wide = [_widened(batch) for batch in batches]
        expected, found, moved = (
            [runner.run(batch) for batch in wide]
            for runner in (
                ModelRunner(as_float64(first.model, permissions)),
                ModelRunner(as_float64(second.model, permissions)),
                ModelRunner(as_float64(first.model, permissions, wobble=eps, seed=seed)),
            )
        )
    except CannotRun as error:
        return _filled(result, native, f"{before}; {error}")

    def rounding(batch: int, name: str, values: Array) -> float:
        other = {**moved[batch].layers, **moved[batch].outputs}[name]
        return _WOBBLES * compare_arrays(values, other).max_abs + 1e-12 * largest_of(values)

    def tolerance(batch: int, name: str, values: Array) -> float:
        return min(rounding(batch, name, values), _MOST * largest_of(values))

    worst = _worst(expected, found, tolerance)
    if worst.in_tolerances > 1 and _worst(expected, found, rounding).in_tolerances <= 1:
        return LevelResult(
            "skipped",
            device=result.device,
            reason=f"{worst.where} {before}, but on these inputs so does the original when its "
            "weights are moved by one rounding: it is chaotic, and running it proves nothing",
        )
    result = replace(result, engine=f"{result.engine}, float64")
    verdict = "rounding" if worst.in_tolerances <= 1 else "no rounding"
    return _filled(result, worst, f"{before}, which float64 shows to be {verdict}")


def _widened(batch: list[Array]) -> list[Array]:
    return [array.astype(np.float64) if array.dtype.kind == "f" else array for array in batch]

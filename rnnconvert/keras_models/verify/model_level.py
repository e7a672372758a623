"""The level `model`: both whole models run on the same inputs, and every output is compared.

docs/verification.md derives the tolerances.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from rnnconvert.containers.sniff import is_hdf5
from rnnconvert.errors import NotConvertibleError
from rnnconvert.keras_models.verify import keras2_engine
from rnnconvert.keras_models.verify.compiled import Differs, Pair, check_compiled
from rnnconvert.keras_models.verify.judging import (
    Worst,
    coarsest_eps,
    filled,
    native_tolerance,
    rounding_of,
    widened,
    worst_of,
)
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
from rnnconvert.report import Assumption, LevelResult
from rnnconvert.verification.devices import find_gpu, tf32_off
from rnnconvert.verification.frameworks import CannotRun, NothingToRun, import_keras
from rnnconvert.verification.inputs import Array, ModelInput, make, slots_of
from rnnconvert.verification.memory import require_memory

BATCHES_OF_A_STATEFUL_MODEL = 3


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

    path: Path
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
        return _Original(path, runner, slots, *_run_original(runner, slots, self.inputs))

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
        worst = worst_of(expected, found, native_tolerance(first, batches, inputs))
        if worst.in_tolerances > 1 and not inputs.asked_tolerance:
            runners = (first, second)
            judged = _arbitrate(result, worst, runners, batches, self.permissions, inputs.seed)
        else:
            judged = filled(result, worst, _describe(expected, batches))
        if judged.status == "passed":
            judged = self._confirm(original, judged)
        if judged.status != "passed" or self.user_loads_in == "any":
            return judged
        return self._use(original, second, judged)

    def _confirm(self, original: _Original, passed: LevelResult) -> LevelResult:
        """What both models have in our translation, by Keras 2's own classes."""
        if passed.device != "cpu" or not is_hdf5(original.path):
            return passed
        arguments = original.path, original.batches, original.outputs, self.permissions
        try:
            told = keras2_engine.confirm(*arguments)
        except Differs as error:
            return replace(passed, status="failed", max_abs=None,
                           detail=f"the original in Keras 2: {error}")  # fmt: skip
        if isinstance(told, Assumption):
            return replace(passed, assumptions=(told,))
        return replace(passed, detail=f"{passed.detail}; {told}") if told else passed

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


# --- telling ---------------------------------------------------------------------------------


def _describe(outputs: list[Outputs], batches: list[list[Array]]) -> str:
    first = batches[0][0] if batches[0] else np.zeros(0)
    shape = "x".join(str(size) for size in first.shape)
    several = f", {len(batches)} batches in a row" if len(batches) > 1 else ""
    count = len(outputs[0].outputs)
    return (
        f"{count} output{'s' if count > 1 else ''}, {len(outputs[0].layers)} layer calls, "
        f"input {shape}{several}"
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
        return filled(result, native, why)
    first, second = runners
    eps = coarsest_eps(first.model)
    try:
        wide = [widened(batch) for batch in batches]
        expected, found, moved = (
            [runner.run(batch) for batch in wide]
            for runner in (
                ModelRunner(as_float64(first.model, permissions)),
                ModelRunner(as_float64(second.model, permissions)),
                ModelRunner(as_float64(first.model, permissions, wobble=eps, seed=seed)),
            )
        )
    except CannotRun as error:
        return filled(result, native, f"{before}; {error}")

    rounding, tolerance = rounding_of(moved, 1e-12)
    worst = worst_of(expected, found, tolerance)
    if worst.in_tolerances > 1 and worst_of(expected, found, rounding).in_tolerances <= 1:
        return LevelResult(
            "skipped",
            device=result.device,
            reason=f"{worst.where} {before}, but on these inputs so does the original when its "
            "weights are moved by one rounding: it is chaotic, and running it proves nothing",
        )
    result = replace(result, engine=f"{result.engine}, float64")
    verdict = "rounding" if worst.in_tolerances <= 1 else "no rounding"
    return filled(result, worst, f"{before}, which float64 shows to be {verdict}")

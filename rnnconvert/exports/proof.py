"""The level `model` of an export: the original in Keras, what was written in its own runtime.

Both get the same seeded inputs, in several batch sizes and lengths where the model leaves these
open, and masks of two kinds where a layer masks: padding on the right, and holes anywhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from rnnconvert.exports.options import ExportOptions
from rnnconvert.exports.sources import Source
from rnnconvert.exports.written import Array, Run, Written
from rnnconvert.keras_models.verify.judging import (
    Tolerance,
    Worst,
    badness,
    coarsest_eps,
    filled,
    judge,
    native_tolerance,
    parts_of,
    rounding_of,
    widened,
)
from rnnconvert.keras_models.verify.keras_engine import ModelRunner, as_float64, device_name, load
from rnnconvert.keras_models.verify.model_level import BATCHES_OF_A_STATEFUL_MODEL
from rnnconvert.report import LevelResult
from rnnconvert.verification.compare import largest_of
from rnnconvert.verification.frameworks import CannotRun, import_keras
from rnnconvert.verification.inputs import BATCH, ModelInput, make, slots_of

_CLOSE = 1e-4
"""Of the largest output: a float32 model that is farther off is judged in float64, however many
roundings its time steps would allow."""
_FURTHER = 5
"""Time steps more in a second run, where the length is open."""


@dataclass(frozen=True)
class Trial:
    """One run of both models.

    Attributes:
        batches: inputs of the original; more than one in a row show what a state carries over.
        expected: the original's outputs of each batch, by name.
    """

    batches: list[list[Array]]
    expected: list[dict[str, Array]]


def prove(
    source: Source, run: Run, written: Written, options: ExportOptions
) -> tuple[LevelResult, ...]:
    """Run the original and what was written; every output is compared.

    Args:
        source: what was exported.
        run: the written model, in its runtime.
        written: whose fixed sizes and coarser tolerance, if it has such, are kept to.
        options: of the export; the seed, sizes and tolerances are among them.

    Returns:
        One result: passed, failed, or skipped with the reason.
    """
    if source.is_graph:
        from rnnconvert.exports.graph_proof import prove_graph

        return prove_graph(source, run, written, options)
    result = LevelResult("passed", device="cpu", engine=_engine(written), detail=source.name,
                         seed=options.general.inputs.seed)  # fmt: skip
    try:
        keras = import_keras()
        with keras.device(device_name("cpu")):
            return (_prove_model(source, run, written, options, result),)
    except CannotRun as error:
        return (LevelResult.skipped(f"the original: {error}", "cpu"),)


def _engine(written: Written) -> str:
    import keras

    return f"{written.runtime} against keras {keras.__version__}"


def _prove_model(
    source: Source, run: Run, written: Written, options: ExportOptions, result: LevelResult
) -> LevelResult:
    runner = ModelRunner(load(source.original, options.general.permissions))
    trials = _trials(runner, source, written, options)
    found: list[list[list[Array]]] = []
    for trial in trials:
        try:
            found.append(_run_exported(source, run, trial))
        except CannotRun as error:
            return LevelResult.skipped(f"the exported model: {error}", result.device)
        except Exception as error:  # each runtime has errors of its own
            shapes = [array.shape for array in trial.batches[0]]
            text = f"the original ran on {shapes}, the exported model does not: {error}"
            return replace(result, status="failed", detail=_joined(source.name, text))
    return _compare(runner, trials, found, written, options, result)


# --- running --------------------------------------------------------------------------------


def _trials(
    runner: ModelRunner, source: Source, written: Written, options: ExportOptions
) -> list[Trial]:
    """The original's runs: the first on sizes that it takes, others only where it takes those."""
    slots = slots_of(runner.model)
    inputs = options.general.inputs
    rows = 1 if source.is_step or not source.states else BATCHES_OF_A_STATEFUL_MODEL
    batch = written.batch or inputs.batch or BATCH
    lengths = (written.timesteps,) if written.timesteps else inputs.lengths
    failure: Exception = CannotRun("no inputs were tried")
    for length in lengths:
        chosen = replace(inputs, batch=batch)
        try:
            first = _trial(runner, make(slots, chosen, length, rows))
        except Exception as error:  # Keras and its backends raise all kinds of things
            failure = error
            continue
        return [first, *_further(runner, slots, first, length, written, options)]
    last = (str(failure).strip().splitlines() or [type(failure).__name__])[0]
    raise CannotRun(f"it does not run on inputs made for it: {last}") from failure


def _further(
    runner: ModelRunner,
    slots: list[ModelInput],
    first: Trial,
    length: int,
    written: Written,
    options: ExportOptions,
) -> list[Trial]:
    """Other sizes, and masks with holes. A model with states of its own runs once only."""
    inputs = options.general.inputs
    if runner.is_stateful or len(first.batches) > 1:
        return []
    trials = []
    if any(slot.padding is not None for slot in slots):
        generator = np.random.default_rng(inputs.seed + 1)
        holes = [[_with_holes(slot, array, generator) for slot, array in
                  zip(slots, first.batches[0], strict=True)]]  # fmt: skip
        trials.append(_trial(runner, holes))
    open_length = written.timesteps is None and any(None in slot.shape[1:] for slot in slots)
    open_batch = written.batch is None and all(slot.shape[0] is None for slot in slots)
    sizes = []
    if open_batch:
        sizes.append((1, length))
    if open_length and inputs.timesteps is None:
        sizes.append(((inputs.batch or BATCH) + (1 if open_batch else 0), length + _FURTHER))
    for number, (batch, steps) in enumerate(sizes):
        chosen = replace(inputs, batch=written.batch or batch, seed=inputs.seed + 2 + number)
        try:
            trials.append(_trial(runner, make(slots, chosen, steps, 1)))
        except Exception:  # other open sizes may have to fit
            continue
    return trials


def _with_holes(slot: ModelInput, array: Array, generator: np.random.Generator) -> Array:
    """The input with padding at random steps, the first ones of one sequence among them."""
    if slot.padding is None or array.ndim < 2:
        return array
    holes = array.copy()
    hit = generator.random(array.shape[:2]) < 0.35
    hit[-1, :2] = True
    hit[:, array.shape[1] // 2] = False  # none is empty
    holes[hit] = slot.padding
    return holes


def _trial(runner: ModelRunner, batches: list[list[Array]]) -> Trial:
    return Trial(batches, [runner.run(batch).outputs for batch in batches])


def _run_exported(source: Source, run: Run, trial: Trial) -> list[list[Array]]:
    """The outputs of each batch, without the states, which are handed on."""
    count = len(trial.batches[0])
    batch = trial.batches[0][0].shape[0]
    states = [np.zeros((batch, *state.shape), state.dtype) for state in source.states]
    found = []
    for arrays, expected in zip(trial.batches, trial.expected, strict=True):
        assert len(arrays) == count
        if source.is_step:
            outputs, states = _run_steps(source, run, arrays, states, expected)
        else:
            outputs, states = _split(source, run([*arrays, *states]))
        found.append(outputs)
    return found


def _split(source: Source, results: list[Array]) -> tuple[list[Array], list[Array]]:
    cut = len(results) - len(source.states)
    return results[:cut], results[cut:]


def _run_steps(
    source: Source, run: Run, arrays: list[Array], states: list[Array], expected: dict[str, Array]
) -> tuple[list[Array], list[Array]]:
    """Step after step; outputs of every step side by side, others as the last step gave them."""
    steps = next(a.shape[1] for a, s in zip(arrays, source.stepped, strict=True) if s)
    by_step: list[list[Array]] = []
    for step in range(steps):
        given = [
            array[:, step : step + 1] if stepped else array
            for array, stepped in zip(arrays, source.stepped, strict=True)
        ]
        outputs, states = _split(source, run([*given, *states]))
        by_step.append(outputs)
    joined = []
    for place, wanted in enumerate(expected.values()):
        last = by_step[-1][place]
        is_sequence = last.shape != wanted.shape and last.ndim == wanted.ndim
        joined.append(np.concatenate([o[place] for o in by_step], 1) if is_sequence else last)
    return joined, states


# --- comparing ------------------------------------------------------------------------------


def _compare(
    runner: ModelRunner,
    trials: Sequence[Trial],
    found: Sequence[list[list[Array]]],
    written: Written,
    options: ExportOptions,
    result: LevelResult,
) -> LevelResult:
    result = replace(result, detail=_joined(result.detail, _told(trials)))
    problem = _other_shapes(trials, found)
    if problem:
        return replace(result, status="failed", detail=_joined(result.detail, problem))
    allowed = _tolerances(runner, trials, written, options)
    expected = [trial.expected for trial in trials]
    worst = _worst(trials, expected, found, allowed)
    derived = written.tolerance is None and not options.general.inputs.asked_tolerance
    if worst.in_tolerances > 1 and derived:
        return _arbitrate(runner, trials, found, worst, options, result)
    return filled(result, worst, result.detail or "")


def _worst(
    trials: Sequence[Trial],
    expected: Sequence[list[dict[str, Array]]],
    found: Sequence[list[list[Array]]],
    allowed: Sequence[Tolerance],
) -> Worst:
    """The worst output of all trials."""
    places = [
        _with_input(judge(number, name, wanted, got, tolerance), trial)
        for trial, ones, others, tolerance in zip(trials, expected, found, allowed, strict=True)
        for number, (one, other) in enumerate(zip(ones, others, strict=True))
        for (name, wanted), got in zip(one.items(), other, strict=True)
    ]
    return replace(max(places, key=badness), parts=parts_of(places))


def _with_input(place: Worst, trial: Trial) -> Worst:
    shape = "x".join(str(size) for size in trial.batches[0][0].shape)
    return replace(place, where=f"{place.where} of input ({shape})")


def _other_shapes(trials: Sequence[Trial], found: Sequence[list[list[Array]]]) -> str | None:
    """What is said of outputs that are more, fewer or of other shapes; None where none are."""
    for trial, outputs in zip(trials, found, strict=True):
        for expected, given in zip(trial.expected, outputs, strict=True):
            if len(expected) != len(given):
                return f"{len(expected)} outputs of the original, {len(given)} of the exported one"
            for (name, wanted), got in zip(expected.items(), given, strict=True):
                if wanted.shape != got.shape:
                    return f"{name} is {got.shape}, the original gives {wanted.shape}"
    return None


def _tolerances(
    runner: ModelRunner, trials: Sequence[Trial], written: Written, options: ExportOptions
) -> list[Tolerance]:
    """Of each trial: what was asked for, or the target's own, or roundings of the dtype."""
    inputs = options.general.inputs
    if written.tolerance is not None and not inputs.asked_tolerance:
        coarse = written.tolerance
        return [lambda number, name, values: coarse * largest_of(values)] * len(trials)
    allowed = [native_tolerance(runner, trial.batches, inputs) for trial in trials]
    if inputs.asked_tolerance:
        return allowed
    most = max(_CLOSE, 8.0 * coarsest_eps(runner.model))

    def capped(native: Tolerance) -> Tolerance:
        return lambda number, name, values: min(
            native(number, name, values), most * largest_of(values)
        )

    return [capped(native) for native in allowed]


def _arbitrate(
    runner: ModelRunner,
    trials: Sequence[Trial],
    found: Sequence[list[list[Array]]],
    native: Worst,
    options: ExportOptions,
    result: LevelResult,
) -> LevelResult:
    """Is the difference rounding? What rounding may do is measured on the original in float64."""
    general = options.general
    before = (f"differs by {native.difference.max_abs:.2g} from the original in its own dtype "
              f"(tolerance {native.tolerance:.2g})")  # fmt: skip
    eps = coarsest_eps(runner.model)
    try:
        wide, moved = (
            ModelRunner(
                as_float64(
                    runner.model, general.permissions, wobble=wobble, seed=general.inputs.seed
                )
            )
            for wobble in (0.0, eps)
        )
    except CannotRun as error:
        return filled(result, native, _joined(result.detail, str(error)))
    expected, allowed, measured = [], [], []
    for trial in trials:
        batches = [widened(batch) for batch in trial.batches]
        expected.append([wide.run(batch).outputs for batch in batches])
        rounding, tolerance = rounding_of([moved.run(batch) for batch in batches], eps)
        allowed.append(tolerance)
        measured.append(rounding)
    worst = _worst(trials, expected, found, allowed)
    if worst.in_tolerances > 1 and _worst(trials, expected, found, measured).in_tolerances <= 1:
        return LevelResult.skipped(
            f"{native.where} {before}, but so does the original when its weights are moved by one "
            "rounding: it is chaotic, and running it proves nothing",
            "cpu",
        )
    said = "rounding" if worst.in_tolerances <= 1 else "no rounding"
    text = f"{before}, which float64 shows to be {said}"
    engine = f"{result.engine} in float64"
    return filled(replace(result, engine=engine), worst, _joined(result.detail, text))


def _told(trials: Sequence[Trial]) -> str:
    outputs = len(trials[0].expected[0])
    shapes = [
        "x".join(str(size) for size in array.shape)
        for trial in trials
        for array in trial.batches[0][:1]
    ]
    several = len(trials[0].batches)
    text = f"{outputs} output{'s' if outputs > 1 else ''}, inputs {', '.join(shapes)}"
    return f"{text}, {several} batches in a row" if several > 1 else text


def _joined(first: str | None, second: str) -> str:
    return f"{first}: {second}" if first else second

"""How a model was compiled: one `evaluate` and one training step of original and written model.

The original is compiled as Keras compiled the written file, so what is shown is that the file
loads compiled, that `evaluate` and a step of training run, and that both do the same in both.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rnnconvert.keras_models.verify.keras_engine import as_float64
from rnnconvert.options import Permissions
from rnnconvert.verification.compare import compare_arrays, in_tolerances, largest_of
from rnnconvert.verification.frameworks import CannotRun
from rnnconvert.verification.inputs import Array

LARGEST_TRAINED = 20_000_000
"""Weights up to which a step of training is run: it needs several times their memory."""
LONGEST_EAGER = 400
"""Time steps up to which a model is evaluated and trained step by step, without tracing."""
_LOSS = 1e-3
"""Relative difference of two losses that comes from rounding: a logarithm enlarges it."""
_STEP = 1e-2
"""Difference of two float64 steps, relative to the step: Adam divides rounding by rounding."""
_RANDOM = ("Dropout", "Noise", "Random")
_CONVERTED_BIASES = "global_clipnorm"


class Differs(Exception):
    """The written model does not do what the original does; the text says what."""


@dataclass(frozen=True)
class Pair:
    """Original and written model, the latter compiled; inputs; and the original's outputs."""

    first: Any
    second: Any
    arrays: list[Array]
    outputs: list[Array]
    permissions: Permissions
    seed: int


def check_compiled(pair: Pair) -> str:
    """Evaluate both and train both by one step.

    Returns:
        What was compared, and what was not and why.

    Raises:
        Differs: another loss, metric or step; or the written model raises where the original runs.
    """
    first, second = pair.first, pair.second
    try:
        first.compile_from_config(second.get_compile_config())
        targets = _targets(second, pair.outputs, pair.seed)
    except Exception as error:  # Keras raises all kinds of things
        return f"compiled, but not evaluated: {_first_line(error)}"
    for model in (first, second):
        _run_eagerly(model, pair.arrays)
    rows = max(int(np.prod(array.shape[:-1])) for array in pair.outputs)

    def evaluate(model: Any) -> dict[str, float]:
        found: dict[str, float] = model.evaluate(
            _one_or_all(pair.arrays), _one_or_all(targets), batch_size=len(targets[0]),
            verbose=0, return_dict=True,
        )  # fmt: skip
        return found

    figures = _on_both("evaluate", evaluate, first, second)
    if isinstance(figures, str):
        return figures
    _require_same(*figures, rows)
    told = ", ".join(figures[0])
    return f"evaluate gives the same {told}; {_check_step(pair, targets)}"


def _on_both(what: str, do: Callable[[Any], Any], first: Any, second: Any) -> tuple[Any, Any] | str:
    """What it gives for both; or why it can't be done with the original either.

    Raises:
        Differs: it can be done with the original only.
    """
    try:
        expected = do(first)
    except Exception as error:
        return f"{what} was not run: {_first_line(error)}"
    try:
        return expected, do(second)
    except Exception as error:
        raise Differs(f"{what} runs on the original only: {_first_line(error)}") from error


def _require_same(expected: dict[str, float], found: dict[str, float], rows: int) -> None:
    """The same losses; metrics may count one row otherwise, at the edge of a class."""
    if list(expected) != list(found):
        raise Differs(f"evaluate gives {', '.join(found)} and not {', '.join(expected)}")
    for name, value in expected.items():
        edge = 0.0 if "loss" in name else 1.0 / rows
        allowed = _LOSS * max(1.0, abs(value)) + edge
        if compare_arrays([value], [found[name]]).max_abs > allowed:
            raise Differs(f"evaluate gives {name} {found[name]:.6g}, the original {value:.6g}")


# --- targets --------------------------------------------------------------------------------


def _targets(model: Any, outputs: Sequence[Array], seed: int) -> list[Array]:
    """Targets that the loss of each output can be computed with."""
    generator = np.random.default_rng(seed)
    losses = _losses(model, len(outputs))
    return [_target(loss, array, generator) for loss, array in zip(losses, outputs, strict=True)]


def _losses(model: Any, count: int) -> list[str]:
    """The name of each output's loss, in Keras' spelling of functions; "" for none."""
    loss = model.loss
    if isinstance(loss, dict):
        listed = [loss.get(name) for name in model.output_names]
    elif isinstance(loss, list | tuple):
        listed = list(loss)
    else:
        listed = [loss] * count
    return [_name(each) for each in listed]


def _name(loss: Any) -> str:
    if loss is None or isinstance(loss, str):
        return loss or ""
    name = getattr(loss, "__name__", None) or type(loss).__name__
    return "".join(f"_{c.lower()}" if c.isupper() else c for c in name).lstrip("_")


def _target(loss: str, output: Array, generator: np.random.Generator) -> Array:
    classes = output.shape[-1]
    if loss.startswith("sparse"):
        return generator.integers(0, classes, output.shape[:-1]).astype("float32")
    if loss.startswith("categorical") and "hinge" not in loss:
        chosen = np.asarray(generator.integers(0, classes, output.shape[:-1]))
        return np.asarray(chosen[..., None] == np.arange(classes), "float32")
    if "crossentropy" in loss:
        return generator.integers(0, 2, output.shape).astype("float32")
    return np.asarray(generator.uniform(0.1, 1.0, output.shape), "float32")


# --- training -------------------------------------------------------------------------------


def _check_step(pair: Pair, targets: list[Array]) -> str:
    name = type(pair.second.optimizer).__name__
    weights = sum(int(np.prod(weight.shape)) for weight in pair.second.weights)
    if weights > LARGEST_TRAINED:
        return f"no step of training was run on {weights:,} weights"
    reason = _why_not_comparable(pair.second)
    models = (pair.first, pair.second)
    targets = [target.astype("float64") for target in targets]
    arrays = pair.arrays
    if reason is None:
        try:
            models = _twins(pair)
            arrays = [a.astype("float64") if a.dtype.kind == "f" else a for a in arrays]
        except Exception as error:
            reason = _first_line(error)
    before = [_values(model) for model in models]
    given = _one_or_all(arrays), _one_or_all(targets)
    steps = _on_both("a step of training", lambda model: model.train_on_batch(*given), *models)
    if isinstance(steps, str):
        return steps
    if reason is not None:
        return f"one step of {name} runs (not compared: {reason})"
    count = _require_same_step(before, [_values(model) for model in models])
    return f"one step of {name} moves {count} unconverted weights alike"


def _why_not_comparable(model: Any) -> str | None:
    import keras

    for layer in model._flatten_layers():
        kind = type(layer).__name__
        drops = any(getattr(layer, key, 0) for key in ("dropout", "recurrent_dropout"))
        if drops or any(word in kind for word in _RANDOM):
            return f"{kind} is random" if not drops else f"the dropout of {kind} is random"
    if getattr(model.optimizer, _CONVERTED_BIASES, None):
        return f"{_CONVERTED_BIASES} depends on both biases of cuDNN"
    if keras.backend.backend() != "tensorflow":
        return "only the TensorFlow backend computes it in float64"
    return None


def _twins(pair: Pair) -> tuple[Any, Any]:
    """Both models in float64, where a step tells rounding from another gradient."""
    compiled = pair.second.get_compile_config()
    twins = tuple(as_float64(model, pair.permissions) for model in (pair.first, pair.second))
    for twin in twins:
        twin.compile_from_config(compiled)
        _run_eagerly(twin, pair.arrays)
    return twins[0], twins[1]


def _values(model: Any) -> dict[tuple[str, int], Array]:
    """Layer and index to the values of a trainable weight."""
    import keras

    return {
        (layer.name, place): np.asarray(keras.ops.convert_to_numpy(weight))
        for layer in model.layers
        for place, weight in enumerate(layer.trainable_weights)
    }


def _require_same_step(
    before: Sequence[dict[tuple[str, int], Array]], after: Sequence[dict[tuple[str, int], Array]]
) -> int:
    """Every weight that was the same in both models must be moved alike. Returns their number.

    A converted weight is another one: two biases became one, a gate was rescaled.
    """
    count = 0
    frozen = sorted(set(before[0]) ^ set(before[1]))
    if frozen:
        raise Differs(f"weight {frozen[0][1]} of {frozen[0][0]} is trainable in one model only")
    for key, start in before[0].items():
        other = before[1][key]
        if start.shape != other.shape or not np.array_equal(start, other):
            continue
        one, two = after[0][key] - start, after[1][key] - start
        gap = float(np.linalg.norm(one - two))
        allowed = _STEP * float(np.linalg.norm(one)) + 1e-12 * largest_of(start)
        if not in_tolerances(gap, allowed) <= 1:
            raise Differs(f"one step of training moves weight {key[1]} of {key[0]} otherwise")
        count += 1
    return count


def _run_eagerly(model: Any, arrays: Sequence[Array]) -> None:
    """Tracing for one call of each takes longer than the call, but for very long sequences."""
    import keras

    longest = max((array.shape[1] for array in arrays if array.ndim > 1), default=0)
    if keras.backend.backend() == "tensorflow" and longest <= LONGEST_EAGER:
        model.run_eagerly = True


def _one_or_all(arrays: list[Array]) -> Any:
    return arrays if len(arrays) > 1 else arrays[0]


def _first_line(error: Exception) -> str:
    if isinstance(error, CannotRun):
        return str(error)
    return (str(error).strip().splitlines() or [type(error).__name__])[0]

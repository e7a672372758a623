"""The three levels for RNN stacks of checkpoints: what was written against the source's tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from rnnconvert.checkpoints.stack import CellPlace, Stack
from rnnconvert.containers.checkpoint import Checkpoint
from rnnconvert.keras_models.verify.keras_engine import engine_name, run_file
from rnnconvert.layouts import CELLS, RnnWeights, find, pack
from rnnconvert.layouts import opaque as opaque_layout
from rnnconvert.options import Inputs
from rnnconvert.references import (
    cudnn as cudnn_reference,
)
from rnnconvert.references import (
    keras as keras_reference,
)
from rnnconvert.references import (
    tf1 as tf1_reference,
)
from rnnconvert.report import LevelResult, counted
from rnnconvert.verification.compare import Difference, compare_arrays, in_tolerances, largest_of
from rnnconvert.verification.inputs import BATCH, TIMESTEPS, Array
from rnnconvert.verification.rounding import EPS, MOST, WOBBLES

Run = Callable[[Array], Array]
"""From input (batch, time, inputs) to outputs (batch, time, units of all directions)."""
_LARGE = 2**18
_FEW_STEPS = 3
"""Where a gate has over `_LARGE` weights: the first begins with states of zero, the second is
the first to use the recurrent weights, the third uses what that hands on."""


def check_stack_weights(
    stack: Stack,
    source: Sequence[RnnWeights],
    written: Sequence[RnnWeights],
    checkpoint: Checkpoint,
) -> LevelResult:
    """Written tensors, brought back to the canonical form and the buffer, give the source's bits.

    Args:
        source: canonical weights as read from the checkpoint, layer by layer.
        written: the same, as read back from what was written; a merged bias is there as a sum.
    """
    for place, (one, other) in enumerate(zip(source, written, strict=True)):
        for kind in ("kernel", "recurrent"):
            if getattr(one, kind).tobytes() != getattr(other, kind).tobytes():
                return LevelResult("failed", detail=f"{stack.scope} layer {place}: {kind} differs")
        problem = bias_problem(one.cell, one.bias, other.bias)
        if problem:
            return LevelResult("failed", detail=f"{stack.scope} layer {place}: {problem}")
    detail = weights_detail(stack.scope, stack.cell, len(source))
    if stack.opaque is not None:
        if not _gives_the_buffer(stack, written, checkpoint):
            return LevelResult("failed", detail=f"{stack.opaque}: packed again it has other bits")
        detail += ", matrices of the buffer give its bits"
    return LevelResult("passed", detail=detail)


def weights_detail(scope: str, cell: str, count: int) -> str:
    """What the level `weights` says of `count` layers and directions that passed."""
    merged = count if CELLS[cell].merges_biases else 0
    exact = 3 * count - merged
    detail = f"{scope}: round trip bit-exact on {counted(exact, 'tensor', 'tensors')}"
    if merged:
        biases = counted(merged, "merged bias", "merged biases")
        detail += f", {biases} within one unit in the last place"
    return detail


def bias_problem(cell: str, one: Array | None, other: Array | None) -> str | None:
    """What is wrong with biases (2, gates, units) that were read back; a merged one as halves."""
    if one is None or other is None:
        return None if one is other else "one has biases, the other none"
    wide = np.longdouble
    exact = one.astype(wide).sum(axis=0)
    found = other.astype(wide).sum(axis=0)
    gates = CELLS[cell].gates
    kept = [] if CELLS[cell].merges_biases else [gates.index("n")]
    if any(one[:, k].tobytes() != other[:, k].tobytes() for k in kept):
        return "the candidate's biases differ"
    unit = np.spacing(np.abs(exact).astype(one.dtype)).astype(wide)
    return None if np.all(np.abs(exact - found) <= unit) else "the sum of the biases differs"


def _gives_the_buffer(stack: Stack, written: Sequence[RnnWeights], checkpoint: Checkpoint) -> bool:
    """What was written, packed into a buffer again: all but the biases must be its very bits."""
    assert stack.opaque is not None
    stored = checkpoint.read(stack.opaque)
    places = [(n, d) for n in range(stack.num_layers) for d in stack.directions]
    layers = [
        opaque_layout.PseudoLayer.of(w, *place) for place, w in zip(places, written, strict=True)
    ]
    packed = opaque_layout.pack_buffer(stack.shape, layers)
    matrices = packed.size - sum(layer.bias.size for layer in layers)
    return packed[:matrices].tobytes() == stored[:matrices].tobytes()


# --- running --------------------------------------------------------------------------------


def run_source(stack: Stack, read: Callable[[str], Any]) -> Run:
    """The source's own equations on the source's own tensors, in float64, states zero.

    Args:
        read: gives the tensor of a name: an array, or what gives slices as arrays do.
    """
    if stack.opaque is None:
        return run_places(stack, stack.places, read)
    buffer = read(stack.opaque)
    return lambda x: tf1_reference.run_opaque(
        stack.cell, stack.num_layers, stack.num_units, stack.input_size, stack.direction, buffer, x
    )[0]


def run_places(
    stack: Stack,
    places: Sequence[CellPlace],
    read: Callable[[str], Any],
    of_bias: Callable[[Array], Array] = np.asarray,
) -> Run:
    """The equations of cells of TF1 or layers of Keras on their tensors as they are stored.

    Args:
        places: of the tensors, layer by layer, forward before backward.
        read: gives the tensor of a name: an array, or of a matrix what gives rows as arrays do.
        of_bias: what to take for a bias.
    """
    tensors = [
        {
            inner: of_bias(read(name)[:]) if "bias" in inner else read(name)
            for inner, name in place.tensors.items()
            if "bias_cudnn" not in inner  # TF 1.3's two biases, whose sum is there as well
        }
        for place in places
    ]
    if places[0].layout == "keras-cudnn":
        return lambda x: _run_split(stack, tensors, x)
    if places[0].layout == "keras":
        return lambda x: _run_keras(stack, tensors, x)
    kind = places[0].layout.removeprefix("tf1:")
    count = len(stack.directions)
    layers = [
        dict(zip(stack.directions, tensors[first : first + count], strict=True))
        for first in range(0, len(tensors), count)
    ]
    return lambda x: tf1_reference.run_cells(
        kind, layers, x, forget_bias=stack.forget_bias, activation=stack.function
    )[0]


def _run_split(stack: Stack, tensors: Sequence[dict[str, Array]], x: Array) -> Array:
    """One CuDNN layer of Keras, or a Bidirectional of two."""
    start = _zeros(stack, x)

    def one(place: int, given: Array) -> Array:
        return cudnn_reference.run_cudnn_layer(stack.cell, tensors[place], given, *start)[0]

    return _both_ways(stack, x, one)


def run_written(
    stack: Stack,
    written: Sequence[RnnWeights],
    of_bias: Callable[[Array], Array] = np.asarray,
) -> Run:
    """Keras' equations on the written weights in Keras' layout, in float64.

    Args:
        of_bias: what to take for a bias.
    """
    tensors = [
        {
            name: of_bias(array) if name == "bias" else array
            for name, array in pack(find("keras", weights.cell), weights).items()
        }
        for weights in written
    ]
    return lambda x: _run_keras(stack, tensors, x)


def _run_keras(stack: Stack, tensors: Sequence[dict[str, Any]], x: Array) -> Array:
    """Layers of Keras one after another, each in all its directions."""
    start, count = _zeros(stack, x), len(stack.directions)
    for first in range(0, len(tensors), count):
        own = tensors[first : first + count]

        def one(place: int, given: Array, own: Sequence[dict[str, Any]] = own) -> Array:
            return keras_reference.run_keras_layer(
                stack.cell, own[place], given, *start, activation=stack.function
            )[0]

        x = _both_ways(stack, x, one)
    return x


def _both_ways(stack: Stack, x: Array, run: Callable[[int, Array], Array]) -> Array:
    """One layer in all its directions: `run` takes a direction's number and its input."""
    parts = []
    for place, direction in enumerate(stack.directions):
        order = slice(None, None, 1 if direction == "forward" else -1)
        parts.append(run(place, x[:, order])[:, order])
    return np.concatenate(parts, axis=2)


def _zeros(stack: Stack, x: Array) -> tuple[Array, Array | None]:
    zeros = np.zeros((len(x), stack.num_units))
    return zeros, (zeros if stack.cell == "lstm" else None)


def check_stack_layers(
    stack: Stack,
    source: Run,
    written: Callable[..., Run],
    inputs: Inputs,
    *,
    rounded: float | None,
) -> LevelResult:
    """All layers of a stack in float64: the source's equations against the written tensors'.

    Args:
        written: gives the latter; with `of_bias`, with other biases.
        rounded: the largest bias, where some were added up, and so rounded, on the way. What a
            larger difference may come from is then measured, as at the level `model`: each bias is
            moved by one rounding.
    """
    matrix = stack.num_units * (stack.input_size + stack.num_units)  # of a gate
    steps = TIMESTEPS if matrix <= _LARGE else _FEW_STEPS
    x = _input(stack, inputs, steps).astype(np.float64)
    expected = source(x)
    found = written()(x)
    steps = x.shape[1]
    width = stack.input_size + stack.num_units
    tolerance = 8.0 * stack.num_layers * steps * width * EPS["float64"]
    if rounded is not None:
        tolerance += 2.0 * stack.num_layers * steps * EPS[stack.dtype] * max(1.0, 2.0 * rounded)
    gap = compare_arrays(expected, found)
    if rounded is not None and gap.max_abs > tolerance and not inputs.asked_tolerance:
        moved = written(of_bias=partial(_moved, EPS[stack.dtype], inputs.seed))(x)
        change, most = compare_arrays(found, moved).max_abs, MOST * largest_of(expected)
        if change > most:
            return LevelResult.skipped(
                f"{stack.scope}: one rounding of its biases moves an output by {change:.2g}, so "
                "running its layers proves nothing"
            )
        tolerance = max(tolerance, min(WOBBLES * change, most))
    return _result(stack, gap, tolerance, expected, inputs)


def _moved(eps: float, seed: int, bias: Array) -> Array:
    """A bias of which each number is moved by at most one rounding."""
    generator = np.random.default_rng(seed)
    moved: Array = bias.astype(np.float64) * (1.0 + eps * generator.uniform(-1.0, 1.0, bias.shape))
    return moved


def adds_up_biases(stack: Stack, names: str) -> bool:
    """Whether tensors of these `--names` keep one bias for two; TF1's cells do for a GRU, too."""
    return CELLS[stack.cell].merges_biases or names == "tf1"


def largest_bias(weights: Sequence[RnnWeights]) -> float:
    """The largest absolute value of all biases."""
    return max([largest_of(each.bias) for each in weights if each.bias is not None], default=0.0)


def check_stack_model(
    stack: Stack,
    source: Run,
    model: Path,
    inputs: Inputs,
    device: str,
) -> LevelResult:
    """The written Keras model, run by Keras, against the source's equations in float64.

    Args:
        device: "cpu" or "gpu"; on a GPU TF32 is off.
    """
    x = _input(stack, inputs, TIMESTEPS)
    expected = source(x.astype(np.float64))
    found = run_file(model, x, device)
    width = stack.input_size + stack.num_units
    tolerance = 4.0 * stack.num_layers * x.shape[1] * float(np.sqrt(width)) * EPS[stack.dtype]
    tolerance *= max(1.0, largest_of(expected))
    result = _result(stack, compare_arrays(expected, found), tolerance, expected, inputs)
    return replace(result, device=device, engine=engine_name())


def _input(stack: Stack, inputs: Inputs, steps: int) -> Array:
    generator = np.random.default_rng(inputs.seed)
    shape = (inputs.batch or BATCH, inputs.timesteps or steps, stack.input_size)
    values = generator.standard_normal(shape)
    return values.astype("float32" if stack.dtype == "bfloat16" else stack.dtype)


def _result(
    stack: Stack,
    gap: Difference,
    tolerance: float,
    expected: Array,
    inputs: Inputs,
) -> LevelResult:
    if inputs.asked_tolerance:
        tolerance = inputs.tolerance(largest_of(expected))
    batch, steps = expected.shape[:2]
    return LevelResult(
        "passed" if in_tolerances(gap.max_abs, tolerance) <= 1 else "failed",
        detail=f"{stack.scope}: {stack.num_layers} layers, {steps} time steps, batch {batch}",
        device="cpu", max_abs=gap.max_abs,
        max_rel=gap.max_rel, tolerance=tolerance, worst=gap.at(stack.scope), seed=inputs.seed,
    )  # fmt: skip

"""The level `layers` on a GPU without Keras: torch runs the source's weights on cuDNN itself."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from rnnconvert.keras_models.plan import Plan, SiteChange
from rnnconvert.keras_models.verify.levels import Reader, layer_tolerance
from rnnconvert.options import Inputs
from rnnconvert.references import keras as keras_reference
from rnnconvert.report import LevelResult
from rnnconvert.verification.compare import Difference, compare_arrays, in_tolerances, largest_of
from rnnconvert.verification.devices import tf32_off
from rnnconvert.verification.inputs import BATCH, TIMESTEPS, Array
from rnnconvert.verification.rounding import EPS


def check_layers_on_cudnn(
    plan: Plan, source: Reader, written: Reader, inputs: Inputs, device: str = "cuda"
) -> LevelResult:
    """cuDNN on the source's weights against Keras' equations, in float64, on the written ones.

    Args:
        plan: of the conversion; its CuDNN layers are run.
        source, written: the opened containers.
        inputs: seed, batch, time steps, tolerances.
        device: torch's name of it; "cuda" is cuDNN, "cpu" runs torch's own kernels.

    Returns:
        Passed or failed with the worst layer; skipped where there is none, or torch fails.
    """
    result = _first_result(device, inputs.seed)
    changes = [change for change in plan.sites if change.site.is_cudnn and change.changes]
    if not changes:
        return LevelResult("skipped", device=result.device, reason="no CuDNN layer in the file")
    generator = np.random.default_rng(inputs.seed)
    found: list[LevelResult] = []
    with tf32_off("torch"):
        for change in changes:
            try:
                found.append(_check_site(change, source, written, generator, inputs, device))
            except RuntimeError as error:  # out of memory, or a cuDNN that does not work
                reason = f"{change.site.path}: torch can't run it: {_first_line(error)}"
                return LevelResult("skipped", device=result.device, reason=reason)
    worst = max(found, key=_badness)
    return replace(
        result,
        status="passed" if _badness(worst) <= 1 else "failed",
        detail=f"{len(found)} layers, random states",
        max_abs=worst.max_abs, max_rel=worst.max_rel, tolerance=worst.tolerance,
        worst=worst.worst,
    )  # fmt: skip


def _first_result(device: str, seed: int) -> LevelResult:
    import torch

    if device == "cpu":
        engine = f"torch {torch.__version__}, layer by layer"
        return LevelResult("passed", device="cpu", engine=engine, seed=seed)
    version = torch.backends.cudnn.version()
    engine = f"torch {torch.__version__}, cuDNN {version}, TF32 off, layer by layer"
    return LevelResult("passed", device="gpu", engine=engine, seed=seed)


def _badness(result: LevelResult) -> float:
    """The difference in units of its tolerance."""
    return in_tolerances(result.max_abs or 0.0, result.tolerance or 0.0)


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def run_layer(
    cell: str, tensors: dict[str, Array], x: Array, h: Array, c: Array | None, device: str
) -> tuple[Array, ...]:
    """One CuDNN layer's stored tensors on torch, in the tensors' own dtype.

    Args:
        cell: "lstm" or "gru".
        tensors: "kernel", "recurrent_kernel" and "bias" in Keras' split layout.
        x: (batch, time, inputs); h, c: (batch, units), c for an LSTM only.
        device: torch's name of it.

    Returns:
        Outputs (batch, time, units), last h, and for an LSTM last c.
    """
    import torch

    from rnnconvert.keras.cudnn import run_on_torch

    def give(values: Any) -> Any:
        return torch.tensor(np.asarray(values, tensors["kernel"].dtype), device=device)

    weights = tuple(give(tensors[kind]) for kind in ("kernel", "recurrent_kernel", "bias"))
    states = [give(h)] if c is None else [give(h), give(c)]
    output, last = run_on_torch(cell, weights, give(x), states)
    return tuple(value.cpu().numpy() for value in (output, *last))


def _check_site(
    change: SiteChange, source: Reader, written: Reader, generator: np.random.Generator,
    inputs: Inputs, device: str,
) -> LevelResult:  # fmt: skip
    site = change.site
    old = {kind: source.read(tensor.path) for kind, tensor in site.tensors.items()}
    new = {kind: written.read(tensor.path) for kind, tensor in site.tensors.items()}
    batch, steps = inputs.batch or BATCH, inputs.timesteps or TIMESTEPS
    dtype = old["kernel"].dtype
    shapes = [(batch, steps, site.input_dim), (batch, site.units), (batch, site.units)]
    # Both sides get what the layer's dtype can hold.
    x, h, c = (generator.standard_normal(shape).astype(dtype) for shape in shapes)
    state = c if site.cell == "lstm" else None
    wide = [None if a is None else a.astype(np.float64) for a in (x, h, state)]
    expected = keras_reference.run_keras_layer(site.cell, new, wide[0], wide[1], wide[2])  # type: ignore[arg-type]
    found = run_layer(site.cell, old, x, h, state, device)
    tolerance = layer_tolerance(site, (c.edit for c in change.changes), old, steps)
    tolerance += torch_tolerance(dtype.name, site.input_dim + site.units, steps)
    if inputs.asked_tolerance:
        tolerance = inputs.tolerance(largest_of(expected[0]))
    worst, where = Difference(0.0, 0.0, ()), ""
    for name, a, b in zip(("output", "h", "c"), expected, found, strict=False):
        here = compare_arrays(a, b)
        if here.max_abs >= worst.max_abs:
            worst, where = here, here.at(f"{site.path} {name}")
    return LevelResult("passed", max_abs=worst.max_abs, max_rel=worst.max_rel,
                       tolerance=tolerance, worst=where)  # fmt: skip


def torch_tolerance(dtype: str, width: int, steps: int) -> float:
    """Rounding of one layer in its own dtype: sums of `width` products in each of `steps` steps.

    Random roundings of a sum grow like the root of the number of its terms.
    """
    return 4.0 * steps * float(np.sqrt(width)) * EPS[dtype]

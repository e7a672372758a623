"""Every CuDNN layer of the fixtures on torch, against the references, before and after conversion.

On "cuda" these are cuDNN's kernels; on "cpu" the same code runs on torch's own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

import h5py
import numpy as np
import pytest
from helpers import make_model_h5
from models import OWN
from mutants import TENSOR_MUTANTS

import rnnconvert
from rnnconvert import layouts
from rnnconvert.keras_models.files.h5 import open_keras_h5
from rnnconvert.keras_models.plan import Site
from rnnconvert.keras_models.planning import make_plan
from rnnconvert.keras_models.verify import model_level
from rnnconvert.keras_models.verify.torch_engine import (
    check_layers_on_cudnn,
    run_layer,
    torch_tolerance,
)
from rnnconvert.options import Inputs
from rnnconvert.references import cudnn as cudnn_reference
from rnnconvert.references import keras as keras_reference
from rnnconvert.report import LevelResult
from rnnconvert.verification.devices import Gpu, find_gpu, tf32_off

BATCH, TIME = 3, 7
DTYPES = ("float32", "float16", "float64")
FILES = {
    f"{model.name}-{path.stem}": path
    for model in OWN
    for path in (model.path, model.path.with_name("weights.h5"))
    if "plain" not in model.name and path.exists()
}
ON_CPU = [name for name in FILES if name.startswith("k224") and "opt" not in name][::3]
"""Enough to know that the test works; and the other dtypes."""
RUNS = [
    *(("cpu", name) for name in [*ON_CPU, "tf215-half-model", "tf215-double-model"]),
    *(pytest.param("cuda", name, marks=pytest.mark.gpu) for name in FILES),
]
MUTANTS = [
    pytest.param(mutant, cell, id=f"{cell}-{mutant.name}")
    for mutant in TENSOR_MUTANTS
    for cell in mutant.cells
]
NAMES = {"lstm": "cu_lstm", "gru": "cu_gru"}

each_file = pytest.mark.parametrize(("device", "name"), RUNS, indirect=["device"])
each_dtype = pytest.mark.parametrize("dtype", DTYPES)


@dataclass(frozen=True)
class Layer:
    """One CuDNN layer: its stored tensors, and what the conversion wrote for them."""

    site: Site
    old: dict[str, np.ndarray]
    new: dict[str, np.ndarray]

    def in_dtype(self, dtype: str) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
        """Both in another dtype; what the file doesn't hold is converted from the cast source."""
        if self.old["kernel"].dtype == dtype:
            return self.old, self.new
        old = {kind: array.astype(dtype) for kind, array in self.old.items()}
        return old, layouts.convert(old, "keras-cudnn", "keras", self.site.cell)


@pytest.fixture(scope="module")
def converted(tmp_path_factory) -> Callable[[str], Path]:
    folder = tmp_path_factory.mktemp("gpu")

    @cache
    def convert(name: str) -> Path:
        target = folder / f"{name}.h5"
        rnnconvert.convert(FILES[name], target, verify="weights")
        return target

    return convert


@pytest.fixture(scope="module")
def layers_of(converted) -> Callable[[str], list[Layer]]:
    @cache
    def read(name: str) -> list[Layer]:
        with open_keras_h5(FILES[name]) as source, open_keras_h5(converted(name)) as target:
            found = []
            for change in make_plan(source).sites:
                paths = {kind: tensor.path for kind, tensor in change.site.tensors.items()}
                old, new = (
                    {kind: file.read(path) for kind, path in paths.items()}
                    for file in (source, target)
                )
                if change.site.is_cudnn:
                    found.append(Layer(change.site, old, new))
            return found

    return read


# --- against the references -----------------------------------------------------------------


@each_dtype
@each_file
@pytest.mark.sampled(4)
def test_a_layer_before_and_after(device, within, layers_of, name, dtype):
    """torch on the source's weights; cuDNN's equations on them, Keras' on the converted ones."""
    layers = layers_of(name)
    assert layers
    worst, allowed = 0.0, 1.0
    for seed, layer in enumerate(layers):
        gap, tolerance = compare_layer(layer, dtype, device, seed)
        if gap / tolerance >= worst / allowed:
            worst, allowed = gap, tolerance
    within(device, dtype, worst, allowed)


def compare_layer(layer: Layer, dtype: str, device: str, seed: int) -> tuple[float, float]:
    """The worst difference of outputs and last states, and its tolerance."""
    site = layer.site
    old, new = layer.in_dtype(dtype)
    rng = np.random.default_rng(seed)
    shapes = [(BATCH, TIME, site.input_dim), (BATCH, site.units), (BATCH, site.units)]
    x, h, c = (rng.standard_normal(shape).astype(dtype) for shape in shapes)
    state = c if site.cell == "lstm" else None
    with tf32_off("torch"):
        found = run_layer(site.cell, old, x, h, state, device)
    wide = [None if a is None else a.astype(np.float64) for a in (x, h, state)]
    worst = 0.0
    for run, tensors in (
        (cudnn_reference.run_cudnn_layer, old),
        (keras_reference.run_keras_layer, new),
    ):
        expected = run(site.cell, tensors, *wide)
        assert len(found) == (3 if site.cell == "lstm" else 2)
        for one, other in zip(expected, found, strict=False):
            assert (other.dtype, other.shape) == (dtype, one.shape)
            worst = max(worst, float(np.abs(one - other).max()))
    eps = float(np.finfo(dtype).eps)
    merged = 2 * TIME * eps * max(1.0, 2 * float(np.abs(old["bias"]).max()))
    return worst, torch_tolerance(dtype, site.input_dim + site.units, TIME) + merged


@pytest.mark.parametrize("cell", ["lstm", "gru"])
@pytest.mark.sampled(4)
def test_which_kernels_ran(device, cell):
    """On a GPU it is cuDNN, and not torch's own kernels."""
    import torch

    rng = np.random.default_rng(0)
    gates = {"lstm": 4, "gru": 3}[cell]
    sizes = {"kernel": (5, gates * 4), "recurrent_kernel": (4, gates * 4), "bias": (2 * gates * 4,)}
    tensors = {kind: rng.normal(size=size).astype("float32") for kind, size in sizes.items()}
    h = np.zeros((BATCH, 4), "float32")
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        x = rng.normal(size=(BATCH, TIME, 5)).astype("float32")
        run_layer(cell, tensors, x, h, h if cell == "lstm" else None, device)
    ran = {event.key for event in profile.key_averages()}
    assert f"aten::{cell}" in ran
    assert ("aten::_cudnn_rnn" in ran) == (device == "cuda")


@pytest.mark.gpu
def test_what_tf32_would_do(cuda, note):
    """Why it is off. How much it costs depends on the GPU, so nothing is asked of it."""
    import torch

    rng = np.random.default_rng(0)
    sizes = {"kernel": (96, 4 * 128), "recurrent_kernel": (128, 4 * 128), "bias": (8 * 128,)}
    tensors = {kind: (0.1 * rng.normal(size=s)).astype("float32") for kind, s in sizes.items()}
    x, h, c = (rng.normal(size=s).astype("float32") for s in ((8, 50, 96), (8, 128), (8, 128)))
    wide = [array.astype(np.float64) for array in (x, h, c)]
    expected = cudnn_reference.run_cudnn_layer("lstm", tensors, *wide)[0]
    before = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = True
    try:
        with_it = run_layer("lstm", tensors, x, h, c, cuda)[0]
    finally:
        torch.backends.cudnn.allow_tf32 = before
    with tf32_off("torch"):
        without = run_layer("lstm", tensors, x, h, c, cuda)[0]
    note(cuda, "float32", float(np.abs(with_it - expected).max()), "TF32 on")
    note(cuda, "float32", float(np.abs(without - expected).max()), "TF32 off")
    assert np.abs(without - expected).max() <= torch_tolerance("float32", 96 + 128, 50)


# --- the level `layers` on a GPU ------------------------------------------------------------


def check(source: Path, written: Path, device: str, **inputs) -> LevelResult:
    with open_keras_h5(source) as old, open_keras_h5(written) as new:
        return check_layers_on_cudnn(make_plan(old), old, new, Inputs(**inputs), device)


@each_file
def test_the_check_of_a_whole_file(device, within, converted, layers_of, name):
    result = check(FILES[name], converted(name), device)
    assert result.status == "passed", result
    assert result.device == {"cuda": "gpu", "cpu": "cpu"}[device]
    assert ("TF32 off" in result.engine) == (device == "cuda")
    assert result.detail.startswith(f"{len(layers_of(name))} layers")
    dtype = layers_of(name)[0].old["kernel"].dtype.name
    within(device, dtype, result.max_abs, result.tolerance)


@pytest.fixture(scope="module")
def both_cells(tmp_path_factory) -> Callable[[str], tuple[Path, Path]]:
    """By dtype: a model of both cells, d != units in both, and its right conversion."""
    folder = tmp_path_factory.mktemp("gpu_mutants")

    @cache
    def make(dtype: str) -> tuple[Path, Path]:
        source = make_model_h5(folder / f"{dtype}.h5", dtype=dtype)
        rnnconvert.convert(source, folder / f"{dtype}_right.h5", verify="weights")
        return source, folder / f"{dtype}_right.h5"

    return make


@pytest.fixture
def one_of_each(both_cells) -> tuple[Path, Path]:
    return both_cells("float32")


@pytest.mark.parametrize(("dtype", "margin"), [("float32", 100), ("float16", 1)])
@pytest.mark.parametrize(("mutant", "cell"), MUTANTS)
@pytest.mark.sampled(12)
def test_a_wrong_conversion_is_caught(device, both_cells, tmp_path, mutant, cell, dtype, margin):
    source, right = both_cells(dtype)
    wrong = tmp_path / "wrong.h5"
    wrong.write_bytes(right.read_bytes())
    group = f"model_weights/{NAMES[cell]}/{NAMES[cell]}"
    with h5py.File(source) as old, h5py.File(wrong, "r+") as new:
        tensors = {key.removesuffix(":0"): old[group][key][()] for key in old[group]}
        for kind, values in mutant.apply(tensors, cell).items():
            new[f"{group}/{kind}:0"][...] = values
    result = check(source, wrong, device)
    assert result.status == "failed"
    assert result.max_abs > margin * result.tolerance
    assert NAMES[cell] in result.worst


def test_seed_sizes_and_tolerances_are_used(device, one_of_each):
    result = check(*one_of_each, device, seed=4, batch=2, timesteps=9)
    assert (result.status, result.seed) == ("passed", 4)
    assert result.max_abs != check(*one_of_each, device, batch=2, timesteps=9).max_abs
    tight = check(*one_of_each, device, atol=1e-13)
    assert (tight.status, tight.tolerance) == ("failed", 1e-13)
    assert check(*one_of_each, device, rtol=1e-3).status == "passed"


def test_a_file_without_such_layers_is_skipped(device, one_of_each):
    _, right = one_of_each
    result = check(right, right, device)
    assert result.status == "skipped"
    assert "no CuDNN layer" in result.reason


def test_a_gpu_that_fails_is_a_skip_with_the_reason(device, one_of_each, monkeypatch):
    """Out of memory, say: a failure of the machine proves nothing about the conversion."""
    from rnnconvert.keras import cudnn

    def fail(*_arguments):
        raise RuntimeError("CUDA out of memory. Tried to allocate 20 GiB\nSee documentation")

    monkeypatch.setattr(cudnn, "run_on_torch", fail)
    result = check(*one_of_each, device)
    assert result.status == "skipped"
    assert "CUDA out of memory. Tried to allocate 20 GiB" in result.reason
    assert "\n" not in result.reason


@pytest.mark.parametrize("name", ["k224-bi-model", "k224-encdec-model", "tf215-half-model"])
def test_a_conversion_with_a_gpu(device, tmp_path, monkeypatch, name):
    """`--device gpu` from end to end: the report says what ran there."""
    if device == "cpu":
        pretend_that_torch_has_a_gpu(monkeypatch)
    engine = model_level.find_gpu().engine
    report = rnnconvert.convert(FILES[name], tmp_path / "out.h5", device="gpu")
    assert report.verdict == "equivalent"
    on_gpu = report.model_level[-1]
    assert on_gpu.status == "passed", on_gpu
    assert on_gpu.engine.startswith({"torch": "torch", "keras": "keras"}[engine])
    if device == "cuda":
        assert on_gpu.device == "gpu"
        assert "TF32 off" in on_gpu.engine


def pretend_that_torch_has_a_gpu(monkeypatch) -> None:
    """torch's CPU in place of its GPU, and no Keras."""
    from rnnconvert.commands import convert as conversion
    from rnnconvert.keras_models.verify import torch_engine

    none = LevelResult("skipped", reason="no Keras in this test", device="cpu")
    gpu = Gpu("torch", "pretended")
    monkeypatch.setattr(conversion, "require_gpu", lambda: None)
    monkeypatch.setattr(model_level, "find_gpu", lambda: gpu)
    monkeypatch.setattr(model_level, "check_models", lambda *_, **__: none)
    on_cpu = partial(check_layers_on_cudnn, device="cpu")
    monkeypatch.setattr(torch_engine, "check_layers_on_cudnn", on_cpu)


@pytest.mark.gpu
def test_the_gpu_is_found(cuda):
    found = find_gpu()
    assert found.engine in ("keras", "torch"), found

"""What is found, and what runs where: every machine pretended, none needed."""

from __future__ import annotations

import contextlib
import sys
from functools import partial
from types import ModuleType, SimpleNamespace

import gpu_figures
import pytest

import rnnconvert
from rnnconvert import UsageError
from rnnconvert.keras_models.verify import model_level
from rnnconvert.options import Inputs, Permissions
from rnnconvert.report import LevelResult
from rnnconvert.verification import devices
from rnnconvert.verification.devices import Gpu, find_gpu, require_gpu, tf32_off
from rnnconvert.verification.frameworks import CannotRun


def machine(
    monkeypatch, *, backend: str | None, sees: tuple[str, ...], torch: Exception | None = None
) -> None:
    """A machine with a driver.

    Args:
        backend: of Keras; None where there is no Keras.
        sees: which frameworks see the GPU.
        torch: what importing it raises.
    """

    def keras():
        if backend is None:
            raise CannotRun("Keras 3 can't be imported, keras is missing (pip ...)")
        return SimpleNamespace(backend=SimpleNamespace(backend=lambda: backend))

    def torch_sees():
        if torch is not None:
            raise torch
        return "torch" in sees

    monkeypatch.setattr(devices, "_has_driver", lambda: True)
    monkeypatch.setattr(devices, "import_keras", keras)
    monkeypatch.setattr(devices, "_tensorflow_sees", lambda: "tensorflow" in sees)
    monkeypatch.setattr(devices, "_torch_sees", torch_sees)


# --- what is found --------------------------------------------------------------------------


def test_without_a_driver_nothing_heavy_is_imported(monkeypatch):
    def must_not_run():
        raise AssertionError("Keras was imported")

    monkeypatch.setattr(devices, "DRIVERS", ("no-such-library.so.1", "nor-this.so"))
    monkeypatch.setattr(devices, "import_keras", must_not_run)
    found = find_gpu()
    assert found.engine is None
    assert found.looked_for == "no CUDA device: no CUDA driver (no-such-library.so.1) is installed"


def test_a_library_that_can_be_opened_is_a_driver(monkeypatch):
    import ctypes

    opened = []
    monkeypatch.setattr(devices, "DRIVERS", ("first", "second"))

    def load(name):
        opened.append(name)
        if name == "first":
            raise OSError("no such file")

    monkeypatch.setattr(ctypes, "CDLL", load)
    assert devices._has_driver()
    assert opened == ["first", "second"]


@pytest.mark.parametrize("backend", ["tensorflow", "torch"])
def test_keras_goes_before_torch(monkeypatch, backend):
    machine(monkeypatch, backend=backend, sees=("tensorflow", "torch"))
    assert find_gpu() == Gpu("keras", f"keras on {backend} with a GPU")


@pytest.mark.parametrize("backend", ["tensorflow", "jax"])
def test_torch_alone_sees_it(monkeypatch, backend):
    machine(monkeypatch, backend=backend, sees=("torch",))
    found = find_gpu()
    assert found.engine == "torch"
    assert f"keras on {backend} has no GPU that runs cuDNN" in found.looked_for


def test_torch_without_keras(monkeypatch):
    machine(monkeypatch, backend=None, sees=("torch",))
    found = find_gpu()
    assert found.engine == "torch"
    assert "keras is missing" in found.looked_for


@pytest.mark.parametrize(
    ("torch", "text"),
    [
        (None, "torch sees no CUDA device, or has no cuDNN"),
        (ModuleNotFoundError("No module named 'torch'"), "torch is not installed"),
        (
            OSError("libcudart.so.12: not there\nx"),
            "torch can't be imported: libcudart.so.12: not there",
        ),
        (
            ImportError("libcupti.so.12: not there"),
            "torch can't be imported: libcupti.so.12: not there",
        ),
    ],
    ids=["sees nothing", "missing", "OSError", "ImportError"],
)
def test_a_driver_but_nothing_that_uses_it(monkeypatch, torch, text):
    machine(monkeypatch, backend="tensorflow", sees=(), torch=torch)
    found = find_gpu()
    assert found.engine is None
    assert found.looked_for == (
        f"no usable CUDA device: keras on tensorflow has no GPU that runs cuDNN; {text}"
    )


@pytest.mark.parametrize(
    ("available", "cudnn", "expected"),
    [(True, True, True), (True, False, False), (False, True, False)],
)
def test_torch_needs_a_device_and_cudnn(monkeypatch, available, cudnn, expected):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: available)
    monkeypatch.setattr(torch.backends.cudnn, "is_available", lambda: cudnn)
    assert devices._torch_sees() is expected


@pytest.mark.parametrize("found", [[], ["a GPU"]])
def test_tensorflow_lists_its_devices(monkeypatch, found):
    tensorflow = ModuleType("tensorflow")
    asked = []
    tensorflow.config = SimpleNamespace(
        list_physical_devices=lambda kind: asked.append(kind) or found
    )
    monkeypatch.setitem(sys.modules, "tensorflow", tensorflow)
    assert devices._tensorflow_sees() is bool(found)
    assert asked == ["GPU"]


# --- --device gpu ---------------------------------------------------------------------------


def test_a_required_gpu_that_is_missing(monkeypatch):
    monkeypatch.setattr(devices, "find_gpu", lambda: Gpu(None, "no CUDA device: no CUDA driver"))
    with pytest.raises(UsageError) as caught:
        require_gpu()
    assert str(caught.value) == "--device gpu: no CUDA device: no CUDA driver"
    assert caught.value.exit_code == 2


@pytest.mark.parametrize("engine", ["keras", "torch"])
def test_a_required_gpu_that_is_there(monkeypatch, engine):
    monkeypatch.setattr(devices, "find_gpu", lambda: Gpu(engine, ""))
    require_gpu()


def test_a_conversion_that_needs_a_gpu_writes_nothing_without_one(monkeypatch, tmp_path):
    from helpers import make_model_h5

    monkeypatch.setattr(devices, "_has_driver", lambda: False)
    source = make_model_h5(tmp_path / "m.h5")
    with pytest.raises(UsageError, match="--device gpu: no CUDA device"):
        rnnconvert.convert(source, tmp_path / "out.h5", device="gpu")
    assert [path.name for path in tmp_path.iterdir()] == ["m.h5"]


# --- what runs where ------------------------------------------------------------------------


@pytest.fixture
def ran(monkeypatch) -> list[str]:
    """What `check_everywhere` ran, in order; `everywhere` fills it."""
    found: list[str] = []

    def check(original, converted, inputs, permissions, device="cpu", *, user_loads_in):
        found.append(f"models on {device}")
        return LevelResult("passed", device=device)

    monkeypatch.setattr(model_level, "check_models", check)
    return found


def everywhere(ran: list[str], device: str) -> list[LevelResult]:
    def on_torch() -> LevelResult:
        ran.append("layers on torch")
        return LevelResult("passed", device="gpu")

    check = partial(model_level.check_everywhere, None, None, Inputs(), Permissions())
    return list(check(device, on_torch))


def test_the_cpu_alone_looks_for_no_gpu(monkeypatch, ran):
    monkeypatch.setattr(model_level, "find_gpu", lambda: pytest.fail("looked for a GPU"))
    results = everywhere(ran, "cpu")
    assert ran == ["models on cpu"]
    assert [result.device for result in results] == ["cpu"]


@pytest.mark.parametrize("device", ["auto", "gpu"])
@pytest.mark.parametrize(
    ("engine", "second"), [("keras", "models on gpu"), ("torch", "layers on torch")]
)
def test_a_gpu_comes_after_the_cpu(monkeypatch, ran, device, engine, second):
    monkeypatch.setattr(model_level, "find_gpu", lambda: Gpu(engine, ""))
    results = everywhere(ran, device)
    assert ran == ["models on cpu", second]
    assert [result.device for result in results] == ["cpu", "gpu"]


def test_without_a_gpu_the_report_says_what_was_looked_for(monkeypatch, ran):
    monkeypatch.setattr(model_level, "find_gpu", lambda: Gpu(None, "no CUDA device: no driver"))
    cpu, gpu = everywhere(ran, "auto")
    assert ran == ["models on cpu"]
    assert cpu.status == "passed"
    assert (gpu.status, gpu.device, gpu.reason) == ("skipped", "gpu", "no CUDA device: no driver")


# --- TF32 -----------------------------------------------------------------------------------


@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize("fails", [True, False])
def test_torchs_switches_are_put_back(monkeypatch, before, fails):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    switches = (torch.backends.cuda.matmul, torch.backends.cudnn)
    were = [switch.allow_tf32 for switch in switches]
    try:
        for switch in switches:
            switch.allow_tf32 = before
        with contextlib.suppress(KeyError), tf32_off("torch"):
            assert [switch.allow_tf32 for switch in switches] == [False, False]
            if fails:
                raise KeyError
        assert [switch.allow_tf32 for switch in switches] == [before, before]
    finally:
        for switch, was in zip(switches, were, strict=True):
            switch.allow_tf32 = was


@pytest.mark.parametrize("before", [True, False])
def test_tensorflows_switch_is_put_back(monkeypatch, before):
    now = [before]
    tensorflow = ModuleType("tensorflow")
    tensorflow.config = SimpleNamespace(
        experimental=SimpleNamespace(
            tensor_float_32_execution_enabled=lambda: now[-1],
            enable_tensor_float_32_execution=now.append,
        )
    )
    monkeypatch.setitem(sys.modules, "tensorflow", tensorflow)
    with contextlib.suppress(KeyError), tf32_off("tensorflow"):
        assert now[-1] is False
        raise KeyError
    assert now == [before, False, before]


def test_other_engines_have_no_switch():
    with tf32_off("jax"):
        pass


# --- the figures ----------------------------------------------------------------------------


def test_figures_and_their_table(monkeypatch, tmp_path, within, note):
    monkeypatch.setattr(gpu_figures, "machine", lambda device: {"device": device, "name": "H"})
    path = tmp_path / "figures.jsonl"
    monkeypatch.delenv(gpu_figures.FILE, raising=False)
    within("cuda", "float32", 1e-9, 1e-6)
    monkeypatch.setenv(gpu_figures.FILE, str(path))
    within("cuda", "float32", 1e-7, 1e-6)
    within("cuda", "float32", 2e-6, 1e-4)
    note("cuda", "float32", 3e-3, "TF32 on")
    with pytest.raises(AssertionError):
        within("cuda", "float16", 2.0, 1.0)
    import json

    lines = gpu_figures.table(json.loads(line) for line in path.read_text().splitlines())
    name = "test_figures_and_their_table"
    assert lines.splitlines() == [
        "cuda: name H",
        "",
        "| test | device | dtype | cases | worst difference | its tolerance |",
        "| --- | --- | --- | --- | --- | --- |",
        f"| {name} | cuda | float32 | 2 | 1.0e-07 | 1.0e-06 |",
        f"| {name}: TF32 on | cuda | float32 | 1 | 3.0e-03 | none |",
        f"| {name} | cuda | float16 | 1 | 2.0e+00 | 1.0e+00 |",
    ]


def test_the_driver_is_unknown_without_nvidia_smi(monkeypatch):
    monkeypatch.setenv("PATH", "")
    assert gpu_figures.driver() == "unknown"

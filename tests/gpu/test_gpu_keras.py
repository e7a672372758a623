"""Whole models on a GPU that Keras' own backend (TensorFlow or torch) sees.

On "gpu" the original's CuDNN layers run on cuDNN's kernels; on "cpu" the same tests run without.
"""

from __future__ import annotations

from contextlib import ExitStack

import pytest
from helpers import make_model_h5
from models import OWN, predict, worst_difference

import rnnconvert.keras
from rnnconvert.keras_models.verify.model_level import check_models
from rnnconvert.options import Inputs, Permissions
from rnnconvert.verification.devices import find_gpu, tf32_off
from rnnconvert.verification.frameworks import CannotRun, import_keras

MODELS = {model.name: model for model in OWN if "plain" not in model.name}
RUNS = [
    *(("cpu", name) for name in ("k224-bi", "k224-encdec")),
    *(pytest.param("gpu", name, marks=pytest.mark.gpu) for name in MODELS),
]
each_model = pytest.mark.parametrize(("keras_device", "name"), RUNS, indirect=["keras_device"])
each_device = pytest.mark.parametrize(
    "keras_device", ["cpu", pytest.param("gpu", marks=pytest.mark.gpu)], indirect=True
)

pytestmark = pytest.mark.slow


@pytest.fixture
def keras_device(request) -> str:
    """Keras' name of the device; skipped where there is no Keras, or it sees no GPU."""
    try:
        import_keras()
    except CannotRun as error:
        pytest.skip(str(error))
    if request.param == "gpu":
        found = find_gpu()
        if found.engine != "keras":
            pytest.skip(f"Keras sees no GPU: {found.looked_for}")
    return request.param


@each_model
@pytest.mark.sampled(2)
def test_a_conversion(keras_device, within, tmp_path, name):
    report = rnnconvert.convert(MODELS[name].path, tmp_path / "out.h5", device=keras_device)
    result = report.model_level[-1]
    assert (result.status, result.device) == ("passed", keras_device), result
    assert ("cuDNN, TF32 off" in result.engine) == (keras_device == "gpu")
    dtype = {"half": "float16", "double": "float64"}.get(name.split("-")[1], "float32")
    within(_torchs_name(keras_device), dtype, result.max_abs, result.tolerance)


@each_model
def test_the_original_gives_what_its_library_gave(keras_device, within, name):
    """The outputs beside each fixture were computed by another program."""
    keras = import_keras()
    model = MODELS[name]
    with keras.device(f"{keras_device}:0"), ExitStack() as stack:
        if keras_device == "gpu":
            from rnnconvert.keras.layers import on_cudnn

            stack.enter_context(tf32_off(keras.backend.backend()))
            stack.enter_context(on_cudnn())
        loaded = rnnconvert.keras.load_model(model.path, safe_mode=not model.has_lambda)
        found = predict(loaded, model.inputs())
    gap = worst_difference(found, model.outputs())
    within(_torchs_name(keras_device), "as stored", gap, model.tolerance)


@each_device
def test_a_wrong_conversion_is_caught(keras_device, tmp_path):
    """The halves of a GRU's bias exchanged: the least of the wrong conversions."""
    import h5py

    source = make_model_h5(tmp_path / "m.h5")
    rnnconvert.convert(source, tmp_path / "wrong.h5", verify="weights")
    with h5py.File(tmp_path / "wrong.h5", "r+") as file:
        bias = file["model_weights/cu_gru/cu_gru/bias:0"]
        bias[...] = bias[()][::-1]
    paths = (source, tmp_path / "wrong.h5")
    result = check_models(*paths, Inputs(), Permissions(), keras_device)
    assert result.status == "failed"
    assert result.max_abs > 100 * result.tolerance
    assert result.first_difference == "cu_gru"


def _torchs_name(device: str) -> str:
    return "cuda" if device == "gpu" else device

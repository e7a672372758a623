"""Old files loaded as they are: the outputs are those that cuDNN's equations give."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest
from helpers import make_model_h5, read_config, replace_dataset, write_config
from models import FURTHER, NEWEST, OWN, REAL, Model, predict, swept, worst_difference

import rnnconvert
from rnnconvert import NotConvertibleError, UnreadableInputError

keras = pytest.importorskip("keras", reason="Keras 3 is not installed")
pytest.importorskip("keras.ops", reason="Keras 3 is not installed")

from rnnconvert.keras import CuDNNGRU, CuDNNLSTM, custom_objects, load_model
from rnnconvert.keras.loading import original_config
from rnnconvert.keras_models.files.h5 import open_keras_h5

FURTHER_CUDNN = [model for model in FURTHER if model.path.parents[2].name == "keras"]
RUNNABLE = [
    model
    for model in OWN
    if "plain" not in model.name
    or (not model.has_lambda and model.name.startswith(("k224", "tf215")))
]
LAMBDAS = [model for model in OWN if model.has_lambda]


def own(name: str) -> Model:
    return next(model for model in OWN if model.name == name)


def tolerance(model: Model) -> float:
    return 1e-10 if "double" in model.name else model.tolerance


def run(loaded, inputs: list[np.ndarray]) -> list[np.ndarray]:
    """All outputs of one eager call, which spares TensorFlow the tracing."""
    outputs = loaded(inputs[0] if isinstance(loaded, keras.Sequential) else inputs)
    outputs = outputs if isinstance(outputs, list | tuple) else [outputs]
    return [np.asarray(keras.ops.convert_to_numpy(output), np.float64) for output in outputs]


# --- every file -----------------------------------------------------------------------------


@pytest.mark.parametrize("model", swept(RUNNABLE, NEWEST), ids=lambda model: model.name)
@pytest.mark.sampled(18)
@pytest.mark.thinned(2)
def test_own_fixture(model: Model) -> None:
    before = model.path.read_bytes()
    loaded = load_model(model.path)
    assert model.path.read_bytes() == before
    assert not loaded.compiled
    assert worst_difference(run(loaded, model.inputs()), model.outputs()) <= tolerance(model)
    with np.load(model.path.with_name("data.npz")) as data:
        if "again0" in data:
            again = run(loaded, model.inputs())
            assert worst_difference(again, [data["again0"]]) <= tolerance(model)


@pytest.mark.skipif(not FURTHER, reason="the folder of further fixtures is not beside the checkout")
@pytest.mark.corpus
@pytest.mark.parametrize("model", FURTHER_CUDNN, ids=lambda model: model.name)
def test_further_fixture(model: Model) -> None:
    found = run(load_model(model.path), model.inputs())
    assert worst_difference(found, model.outputs()) <= tolerance(model)


@pytest.mark.skipif(not REAL, reason="the folder of real models is not beside the checkout")
@pytest.mark.parametrize(
    "path", [path for path in REAL if path.name != "keras1_lstm.h5"], ids=lambda path: path.name
)
@pytest.mark.sampled(8)
def test_real_model(path: Path) -> None:
    with open_keras_h5(path) as file:
        whole = file.model_config is not None
    if not whole:
        with pytest.raises(NotConvertibleError, match="no model_config"):
            load_model(path)
        return
    loaded = load_model(path)
    if "plain" in path.name or "lstmcell" in path.name:
        return
    generator = np.random.default_rng(0)
    shapes = [tuple(size or 1 for size in tensor.shape) for tensor in loaded.inputs]
    inputs = [generator.standard_normal(shape).astype("float32") for shape in shapes]
    for output in predict(loaded, inputs):
        assert np.isfinite(output).all()


@pytest.mark.parametrize("name", ["k224-seq_gru", "tf215-bi_none", "k224-stateful"])
def test_predict(name: str) -> None:
    model = own(name)
    loaded = load_model(str(model.path))
    assert worst_difference(predict(loaded, model.inputs()), model.outputs()) <= 1e-5


BACKEND_CASES = ("tf215-seq_lstm", "tf215-seq_gru", "k224-stateful")
IN_ANOTHER_BACKEND = """
import sys
import keras
import numpy as np
from rnnconvert.keras import load_model
assert keras.backend.backend() == sys.argv[1]
for path, data in zip(sys.argv[2::2], sys.argv[3::2]):
    model, data = load_model(path), np.load(data)
    for name in ("y0", "again0"):
        if name in data:
            found = model.predict(data["x0"], verbose=0, batch_size=99)
            print(float(np.abs(found - data[name]).max()))
"""


@pytest.mark.corpus  # test_cudnn_kernels loads models on torch by default
@pytest.mark.parametrize("backend", ["torch", "jax"])
def test_other_backends(backend: str) -> None:
    pytest.importorskip(backend, reason=f"{backend} is not installed")
    paths = [own(name).path for name in BACKEND_CASES]
    arguments = [part for path in paths for part in (path, path.with_name("data.npz"))]
    done = subprocess.run(
        [sys.executable, "-c", IN_ANOTHER_BACKEND, backend, *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "KERAS_BACKEND": backend},
    )
    assert done.returncode == 0, done.stderr
    differences = [float(line) for line in done.stdout.split()]
    assert len(differences) == 4
    assert max(differences) <= 1e-5


# --- what is loaded -------------------------------------------------------------------------


def test_cudnn_layers_keep_their_weights() -> None:
    loaded = load_model(own("k224-bi").path)
    first, second = loaded.layers[:2]
    assert type(first.forward_layer) is type(first.backward_layer) is CuDNNLSTM
    assert type(second.forward_layer) is CuDNNGRU
    with np.load(own("k224-bi").path.with_name("data.npz")) as data:
        stored = [data[f"w{index:04}"] for index in range(12)]
    for weight, array in zip(first.weights + second.weights, stored, strict=True):
        np.testing.assert_array_equal(weight.numpy(), array)


def test_frozen_nested_layers_get_their_own_weights() -> None:
    inner = load_model(own("k224-nested_frozen").path).get_layer("inner")
    assert [layer.name for layer in inner.layers if not layer.trainable] == ["frozen_gru"]
    with h5py.File(own("k224-nested_frozen").path) as file:
        group = file["model_weights/inner"]
        for name in ("frozen_gru", "live_gru"):
            np.testing.assert_array_equal(
                inner.get_layer(name).kernel.numpy(), group[f"{name}/kernel:0"][()]
            )


def test_names_decide_where_they_can(tmp_path: Path) -> None:
    """A Keras that listed a frozen model's weights in another order than Keras 3 does."""
    model = own("tf215-nested_frozen")
    copy = Path(shutil.copy(model.path, tmp_path))
    with h5py.File(copy, "r+") as file:
        attributes = file["model_weights/inner"].attrs
        attributes["weight_names"] = attributes["weight_names"][::-1]
    assert worst_difference(run(load_model(copy), model.inputs()), model.outputs()) <= 1e-5


@pytest.mark.parametrize("name", ["k224-plain_gru", "k224-plain_bi", "tf115-plain_lstm"])
def test_a_ported_file_has_keras_3_hard_sigmoid(name: str, tmp_path: Path) -> None:
    """Its gates were scaled by 1.2, and the file says so."""
    model = own(name)
    rnnconvert.convert(model.path, tmp_path / "out.h5", verify="layers")
    found = run(load_model(tmp_path / "out.h5"), model.inputs())
    assert worst_difference(found, model.outputs()) <= 1e-5


@pytest.mark.parametrize("name", ["k224-bi", "tf215-nested", "tf215-encdec", "k224-plain_bi"])
def test_keras_itself_loads_a_repaired_copy(name: str, tmp_path: Path) -> None:
    model = own(name)
    copy = Path(shutil.copy(model.path, tmp_path))
    with open_keras_h5(copy) as file:
        config = original_config(file)
    write_config(copy, config)
    loaded = keras.models.load_model(copy, custom_objects=custom_objects(), compile=False)
    assert worst_difference(run(loaded, model.inputs()), model.outputs()) <= 1e-5


def test_a_name_without_extension(tmp_path: Path) -> None:
    model = own("k224-seq_lstm")
    path = Path(shutil.copy(model.path, tmp_path / "a model, no extension"))
    assert worst_difference(run(load_model(path), model.inputs()), model.outputs()) <= 1e-5


# --- refused --------------------------------------------------------------------------------


@pytest.mark.parametrize("model", LAMBDAS, ids=lambda model: model.name)
def test_lambda_is_refused(model: Model) -> None:
    with pytest.raises(NotConvertibleError, match=r"model/lambda\w* is a Lambda layer"):
        load_model(model.path)


def test_a_lambda_runs_only_when_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAMBDA_RAN", "")
    monkeypatch.delenv("LAMBDA_RAN")
    mark = lambda x: __import__("os").environ.setdefault("LAMBDA_RAN", "1") and x  # noqa: E731
    code = keras.src.utils.python_utils.func_dump(mark)
    entry = {"class_name": "Lambda", "config": {"name": "lambda_1", "function": list(code)}}
    entry["config"]["function_type"] = "lambda"
    path = make_model_h5(tmp_path / "m.h5", extra_layers=[entry])
    with pytest.raises(NotConvertibleError, match="model/lambda_1 is a Lambda layer"):
        load_model(path)
    assert "LAMBDA_RAN" not in os.environ
    run(load_model(path, safe_mode=False), [np.zeros((1, 5, 5), "float32")])
    assert os.environ["LAMBDA_RAN"]


class Doubled(keras.layers.Layer):
    def call(self, x):
        return 2 * x


def test_custom_classes(tmp_path: Path) -> None:
    entry = {"class_name": "Doubled", "config": {"name": "twice"}}
    path = make_model_h5(tmp_path / "m.h5", extra_layers=[entry])
    with pytest.raises(NotConvertibleError, match=r"twice is of the custom class Doubled; pass it"):
        load_model(path)
    x = np.ones((1, 5, 5), "float32")
    plain = make_model_h5(tmp_path / "p.h5")
    expected = [2 * output for output in run(load_model(plain), [x])]
    found = run(load_model(path, custom_objects={"Doubled": Doubled}), [x])
    assert worst_difference(found, expected) == 0


def test_a_class_of_another_module_is_not_imported(tmp_path: Path) -> None:
    entry = {"class_name": "Popen", "module": "subprocess", "config": {"args": ["true"]}}
    path = make_model_h5(tmp_path / "m.h5", extra_layers=[entry])
    with pytest.raises(NotConvertibleError, match=r"custom class subprocess\.Popen"):
        load_model(path)


def test_files_that_are_no_model(tmp_path: Path) -> None:
    with pytest.raises(UnreadableInputError, match=r"missing\.h5: no such file"):
        load_model(tmp_path / "missing.h5")
    (tmp_path / "text.h5").write_text("no model")
    with pytest.raises(UnreadableInputError, match="text file"):
        load_model(tmp_path / "text.h5")
    with pytest.raises(NotConvertibleError, match="no model_config"):
        load_model(make_model_h5(tmp_path / "w.h5", whole=False))


def test_weights_that_do_not_fit(tmp_path: Path) -> None:
    path = make_model_h5(tmp_path / "m.h5")
    name = "model_weights/cu_gru/cu_gru/kernel:0"
    replace_dataset(path, name, np.zeros((7, 12), "float32"))
    with pytest.raises(UnreadableInputError, match=r"shape \(7, 12\), the config says \(6, 12\)"):
        load_model(path)
    with h5py.File(path, "r+") as file:
        file["model_weights/cu_gru"].attrs["weight_names"] = [b"cu_gru/kernel:0"]
    with pytest.raises(UnreadableInputError, match="cu_gru has 3 weights, the file 1"):
        load_model(path)
    with h5py.File(path, "r+") as file:
        file["model_weights"].attrs["layer_names"] = [b"cu_lstm"]
    with pytest.raises(UnreadableInputError, match="not those of the config: cu_gru"):
        load_model(path)


def test_what_keras_3_has_no_form_for(tmp_path: Path) -> None:
    path = make_model_h5(tmp_path / "m.h5")
    config = read_config(path)
    config["config"]["layers"][0]["config"]["time_major"] = True
    write_config(path, config)
    with pytest.raises(NotConvertibleError, match="time_major=True"):
        load_model(path)
    config["config"]["layers"][0]["config"].update(time_major=False, units="six")
    write_config(path, config)
    with pytest.raises(NotConvertibleError, match="Keras can't build the model"):
        load_model(path)


def test_importing_the_package_imports_no_keras() -> None:
    code = "import json, sys, rnnconvert.keras; print(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"keras", "tensorflow", "torch", "jax"} & set(json.loads(done.stdout))


def test_names_of_the_package() -> None:
    import rnnconvert.keras as package

    assert set(package.__all__) <= set(dir(package))
    assert set(custom_objects()) == {
        "CuDNNLSTM", "CuDNNGRU", "TensorFlowCall", "hard_sigmoid_keras2",
    }  # fmt: skip
    with pytest.raises(AttributeError, match="no attribute 'CuDNNRNN'"):
        package.CuDNNRNN  # noqa: B018

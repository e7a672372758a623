"""The level `model` passes what is right, catches what is wrong, and runs no code of a file."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import zipfile
from pathlib import Path

import h5py
import numpy as np
import pytest
from file_mutants import FILE_MUTANTS, NAMES, layers_of, overwrite, read_tensors
from helpers import make_model_h5, read_config, write_config
from models import FIXTURES
from mutants import TENSOR_MUTANTS

import rnnconvert
import rnnconvert.keras
from rnnconvert import DifferenceError, NotConvertibleError, UsageError
from rnnconvert.keras_models import planning
from rnnconvert.keras_models.files import h5 as keras_h5
from rnnconvert.keras_models.files import h5_patch
from rnnconvert.keras_models.verify import judging
from rnnconvert.keras_models.verify.levels import check_layers
from rnnconvert.options import Inputs, import_objects

keras = pytest.importorskip("keras", reason="Keras 3 is not installed")
pytest.importorskip("keras.ops", reason="Keras 3 is not installed")
pytestmark = pytest.mark.slow

from rnnconvert.keras_models.verify.initial_values import FILL, without_initial_values
from rnnconvert.keras_models.verify.keras_engine import CannotLoad, as_float64, load
from rnnconvert.keras_models.verify.model_level import check_models
from rnnconvert.options import Permissions
from rnnconvert.verification import frameworks

CASES = [(mutant, cell) for mutant in TENSOR_MUTANTS for cell in mutant.cells]


def check(original: Path, converted: Path, **inputs):
    return check_models(original, converted, Inputs(**inputs), Permissions())


@pytest.fixture(scope="module")
def converted(tmp_path_factory):
    """A CuDNN model and its right conversion, d != units in every layer."""
    folder = tmp_path_factory.mktemp("model_level")
    source = make_model_h5(folder / "m.h5")
    rnnconvert.convert(source, folder / "right.h5", verify="weights")
    return source, folder / "right.h5"


def fixture_path(name: str) -> Path:
    return FIXTURES / (name if "/" in name else f"k224/{name}") / "model.h5"


# --- right and wrong conversions ------------------------------------------------------------


def test_the_right_conversion_passes(converted):
    result = check(*converted)
    assert result.status == "passed"
    assert result.device == "cpu"
    assert result.engine == f"keras {keras.__version__} ({keras.backend.backend()})"
    assert 0 <= result.max_abs <= result.tolerance < 1e-4
    assert result.worst.startswith("output 0")
    assert result.seed == 0


@pytest.mark.parametrize(("mutant", "cell"), CASES, ids=lambda part: getattr(part, "name", part))
@pytest.mark.sampled(36)
@pytest.mark.thinned(3)
def test_a_wrong_tensor_is_caught(converted, tmp_path, mutant, cell):
    source, right = converted
    wrong = tmp_path / "wrong.h5"
    wrong.write_bytes(right.read_bytes())
    overwrite(wrong, NAMES[cell], mutant.apply(read_tensors(source, NAMES[cell]), cell))
    result = check(source, wrong)
    assert result.status == "failed"
    assert result.max_abs > 100 * result.tolerance
    assert result.first_difference == NAMES[cell]


@pytest.mark.parametrize("mutant", FILE_MUTANTS, ids=lambda mutant: mutant.name)
@pytest.mark.sampled(4)
def test_a_wrong_config_is_caught_by_both_levels(tmp_path, mutant):
    source, wrong = fixture_path(mutant.fixture), tmp_path / "wrong.h5"
    rnnconvert.convert(source, wrong, verify="weights")
    assert check(source, wrong).status == "passed"
    mutant.apply(wrong)
    result = check(source, wrong)
    assert result.status == "failed"
    assert result.max_abs is not None  # it ran
    if mutant.seen_by_layers:
        with keras_h5.open_keras_h5(source) as old, keras_h5.open_keras_h5(wrong) as new:
            plan, after = planning.make_plan(old), planning.make_plan(new)
            assert not after.problems
            sites = [change.site for change in after.sites]
            layers = check_layers(plan, old, new, sites, ("keras2", "keras2"), Inputs())
        assert layers.status == "failed"


def test_there_are_at_least_twenty_mutants_of_each_cell():
    for cell in ("lstm", "gru"):
        assert sum(cell in mutant.cells for mutant in TENSOR_MUTANTS) >= 20


def test_the_pipeline_writes_nothing_when_the_models_differ(tmp_path, monkeypatch):
    """A wrong conversion that the earlier levels can't see: the wiring of the states."""
    mutant = next(m for m in FILE_MUTANTS if m.name == "initial states exchanged")
    apply = h5_patch.apply

    def spoiled(plan, file, copy, **options):
        checked = apply(plan, file, copy, **options)
        mutant.apply(copy)
        return checked

    monkeypatch.setattr(h5_patch, "apply", spoiled)
    with pytest.raises(DifferenceError, match="level model, cpu: output 0") as caught:
        rnnconvert.convert(fixture_path(mutant.fixture), tmp_path / "out.h5")
    assert "the first layer that differs is decoder" in str(caught.value)
    assert "nothing was written" in str(caught.value)
    report = caught.value.report.to_dict()
    assert report["verdict"] == "different"
    model = report["verification"]["model"][0]
    assert model["status"] == "failed"
    assert model["first_difference"] == "decoder"
    assert list(tmp_path.iterdir()) == []


# --- tolerances -----------------------------------------------------------------------------


def large_recurrent_weights(folder: Path, scale: float) -> tuple[Path, Path]:
    """An LSTM that enlarges every rounding from step to step, and its right conversion."""
    source = make_model_h5(folder / "m.h5", cells=["lstm"], names=["cu_lstm"], units=[6])
    with h5py.File(source, "r+") as file:
        file["model_weights/cu_lstm/cu_lstm/recurrent_kernel:0"][...] *= scale
    rnnconvert.convert(source, folder / "right.h5", verify="weights")
    return source, folder / "right.h5"


def spoil_bias(path: Path) -> None:
    with h5py.File(path, "r+") as file:
        file["model_weights/cu_lstm/cu_lstm/bias:0"][3] += 1e-4


def test_float64_tells_rounding_from_a_wrong_function(tmp_path, monkeypatch):
    monkeypatch.setattr(judging, "_roundings", lambda *_: 0.01)  # beyond it on every processor
    source, right = large_recurrent_weights(tmp_path, 8)
    result = check(source, right, timesteps=60)
    assert result.status == "passed"
    assert "float64 shows to be rounding" in result.detail
    assert result.engine.endswith("float64")
    assert 0 < result.max_abs <= result.tolerance < 1e-2
    spoil_bias(right)
    result = check(source, right, timesteps=60)
    assert result.status == "failed"
    assert "no rounding" in result.detail


@pytest.mark.corpus
def test_a_chaotic_model_proves_nothing_and_says_so(tmp_path):
    source, right = large_recurrent_weights(tmp_path, 20)
    for _ in ("right", "wrong"):
        result = check(source, right, timesteps=100)
        assert result.status == "skipped"
        assert "chaotic" in result.reason
        spoil_bias(right)


@pytest.mark.corpus
def test_what_keras_says_of_our_own_calls_is_not_shown(tmp_path, recwarn):
    """It warns of one array for a model whose inputs are a list of one."""
    report = rnnconvert.convert(
        fixture_path("plain_two_outputs"), tmp_path / "out.h5", device="cpu"
    )
    assert "evaluate gives the same" in report.model_level[0].detail
    assert not [str(each.message) for each in recwarn if "structure" in str(each.message)]


def test_a_tolerance_that_is_asked_for_is_the_one_that_counts(converted):
    tight = check(*converted, rtol=0.0, atol=1e-12)
    assert tight.status == "failed"
    assert tight.tolerance == 1e-12
    assert check(*converted, atol=1.0).tolerance == 1.0


def test_seed_batch_and_timesteps_are_used(converted):
    result = check(*converted, seed=3, batch=5, timesteps=11)
    assert result.seed == 3
    assert "input 5x11x5" in result.detail
    assert result.max_abs != check(*converted, batch=5, timesteps=11).max_abs


# --- what can't be run or compared ----------------------------------------------------------


def lambda_that_writes(path: Path) -> dict:
    """A Lambda layer as Keras 2 stores it: its byte code is in the file."""
    import base64
    import marshal

    code = compile(f"lambda x: open({str(path)!r}, 'w') and x", "m", "eval").co_consts[0]
    function = [base64.b64encode(marshal.dumps(code)).decode(), None, None]
    config = {"name": "evil", "trainable": True, "function": function, "function_type": "lambda",
              "arguments": {}}  # fmt: skip
    return {"class_name": "Lambda", "config": config}


def test_a_lambda_is_never_run_unasked(tmp_path):
    mark = tmp_path / "was here"
    source = make_model_h5(tmp_path / "m.h5", extra_layers=[lambda_that_writes(mark)])
    report = rnnconvert.convert(source, tmp_path / "out.h5")
    assert report.verdict == "equivalent"
    assert report.layers_level.status == "passed"
    skipped = report.model_level[0]
    assert skipped.status == "skipped"
    assert "model/evil is a Lambda layer" in skipped.reason
    assert "--allow-code" in skipped.reason
    with pytest.raises(NotConvertibleError):
        rnnconvert.keras.load_model(source)
    assert not mark.exists()


def test_a_lambda_runs_where_it_is_allowed(tmp_path):
    mark = tmp_path / "was here"
    source = make_model_h5(tmp_path / "m.h5", extra_layers=[lambda_that_writes(mark)])
    rnnconvert.convert(source, tmp_path / "out.h5", allow_code=True)
    assert mark.exists()


def test_a_function_named_by_a_config_is_never_imported(tmp_path):
    """Keras before 3.9 imported any module that a config named (CVE-2025-1550)."""
    source = make_model_h5(tmp_path / "m.h5")
    config = read_config(source)
    config["config"]["layers"][0]["config"]["kernel_initializer"] = {
        "module": "this_module_would_run", "class_name": "Evil", "config": {},
        "registered_name": None,
    }  # fmt: skip
    write_config(source, config)
    report = rnnconvert.convert(source, tmp_path / "out.h5")
    assert report.model_level[0].status == "skipped"
    assert "names this_module_would_run.Evil" in report.model_level[0].reason


CUSTOM = """
import keras

class Double(keras.layers.Layer):
    def call(self, x):
        return 2 * x

everything = {"Double": Double}
"""


@pytest.mark.parametrize("name", ["Double", "everything"])
def test_a_custom_layer_runs_where_its_class_is_given(tmp_path, monkeypatch, name):
    (tmp_path / "my_layers.py").write_text(CUSTOM)
    monkeypatch.syspath_prepend(tmp_path)
    custom = {"class_name": "Double", "config": {"name": "double", "trainable": True}}
    source = make_model_h5(tmp_path / "m.h5", extra_layers=[custom])
    without = rnnconvert.convert(source, tmp_path / "a.h5")
    assert without.layers_level.status == "passed"
    assert "model/double is of the custom class Double" in without.model_level[0].reason
    with_it = rnnconvert.convert(source, tmp_path / "b.h5", custom_objects=[f"my_layers:{name}"])
    assert with_it.model_level[0].status == "passed"


@pytest.mark.parametrize(
    ("spec", "text"),
    [
        ("my_layers", "expected module:name"),
        ("no_such_module_here:Layer", "No module named 'no_such_module_here'"),
        ("json:Layer", "json has no Layer"),
        ("math:pi", "expected a class, a function or a dict"),
    ],
)
def test_custom_objects_that_are_not_there(spec, text):
    with pytest.raises(UsageError, match=text):
        import_objects([spec])


def test_a_model_that_is_too_large_for_the_memory_is_skipped(converted, monkeypatch):
    from rnnconvert.verification import memory

    monkeypatch.setattr(memory, "available_memory", lambda: 100)
    result = check(*converted)
    assert result.status == "skipped"
    assert "of memory" in result.reason


def test_without_keras_the_level_is_skipped_with_the_reason(converted, monkeypatch):
    def missing():
        raise frameworks.CannotRun("Keras 3 can't be imported, keras is missing (pip ...)")

    from rnnconvert.keras_models.verify import model_level

    monkeypatch.setattr(model_level, "import_keras", missing)
    result = check(*converted)
    assert (result.status, result.device) == ("skipped", "cpu")
    assert "Keras 3 can't be imported" in result.reason


def test_other_inputs_or_outputs_can_not_be_compared(converted, tmp_path):
    wide = make_model_h5(tmp_path / "wide.h5", input_dim=8)
    with pytest.raises(NotConvertibleError, match="one takes"):
        check(converted[0], wide)
    long = make_model_h5(tmp_path / "long.h5", units=(6, 7))
    with pytest.raises(NotConvertibleError, match=r"outputs of .*4.* and of .*7"):
        check(converted[0], long)


def test_a_converted_file_that_does_not_load_is_a_failure(converted, tmp_path):
    wrong = tmp_path / "wrong.h5"
    wrong.write_bytes(converted[1].read_bytes())
    with h5py.File(wrong, "r+") as file:
        config = json.loads(file.attrs["model_config"])
        layers_of(config, "LSTM")[0]["units"] = 9
        file.attrs["model_config"] = json.dumps(config)
    assert check(converted[0], wrong).status == "failed"


# --- initial values -------------------------------------------------------------------------


@pytest.fixture
def as_keras_file(converted, tmp_path):
    """The converted model in Keras 3's own format."""
    keras.models.load_model(converted[1], compile=False).save(tmp_path / "m.keras")
    return tmp_path / "m.keras"


def weights_of(model) -> list[np.ndarray]:
    return [np.asarray(weight) for weight in model.get_weights()]


def same(one: list[np.ndarray], other: list[np.ndarray]) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


def test_no_orthogonal_values_are_computed_only_to_be_overwritten(
    converted, as_keras_file, monkeypatch
):
    plain = weights_of(keras.models.load_model(converted[1], compile=False))
    original = weights_of(rnnconvert.keras.load_model(converted[0]))

    def called(*args, **named):
        raise AssertionError("an initial value was computed")

    monkeypatch.setattr(keras.initializers.Orthogonal, "__call__", called)
    assert same(weights_of(load(converted[0], Permissions())), original)
    for path in (converted[1], as_keras_file):
        model = load(path, Permissions())
        assert same(weights_of(model), plain)
        assert same(weights_of(as_float64(model, Permissions())), plain)
    with pytest.raises(AssertionError, match="an initial value was computed"):
        keras.models.load_model(converted[1], compile=False)


def without_a_tensor(source: Path, target: Path) -> Path:
    """A copy that lacks the last recurrent kernel."""
    target.write_bytes(source.read_bytes())
    with h5py.File(target, "r+") as file:
        groups = [g for g in file["model_weights"].values() if len(g.attrs["weight_names"]) == 3]
        names = list(groups[-1].attrs["weight_names"])
        (lost,) = [name for name in names if "recurrent" in str(name)]
        del groups[-1][lost]
        groups[-1].attrs["weight_names"] = [name for name in names if name != lost]
    return target


def test_a_tensor_that_is_missing_is_noticed(converted, as_keras_file, tmp_path):
    source, right = converted
    assert check(source, without_a_tensor(right, tmp_path / "wrong.h5")).status == "failed"
    assert check(without_a_tensor(source, tmp_path / "old.h5"), right).status == "skipped"
    assert check(source, as_keras_file).status == "passed"
    with zipfile.ZipFile(as_keras_file) as old, zipfile.ZipFile(tmp_path / "w.keras", "w") as new:
        for name in old.namelist():
            (tmp_path / name).write_bytes(old.read(name))
        with h5py.File(tmp_path / "model.weights.h5", "r+") as file:
            kernels = []
            file.visit(lambda name: kernels.append(name) if name.endswith("cell/vars/1") else None)
            del file[kernels[0]]
        for name in old.namelist():
            new.write(tmp_path / name, name)
    assert check(source, tmp_path / "w.keras").status == "failed"


FORGETFUL = """
import keras

class Forgetful(keras.layers.Layer):
    def build(self, shape):
        initializer = keras.initializers.GlorotUniform()
        self.kernel = self.add_weight(shape=(shape[-1], 3), initializer=initializer)

    def call(self, x):
        return x @ self.kernel

    def load_own_variables(self, store):
        pass
"""


def test_a_weight_that_is_not_loaded_is_as_random_as_ever(tmp_path):
    """Both models lack it: equal values would hide that."""
    scope: dict = {}
    exec(FORGETFUL, scope)  # a class that pickles nowhere and registers nothing
    inputs = keras.Input((5, 4))
    model = keras.Sequential([inputs, keras.layers.GRU(6), scope["Forgetful"]()])
    model.save(tmp_path / "m.keras")
    permissions = Permissions(custom_objects=scope)
    loaded = load(tmp_path / "m.keras", permissions)
    assert same(weights_of(loaded.layers[0]), weights_of(model.layers[0]))
    (kernel,) = weights_of(loaded.layers[-1])
    assert np.unique(kernel).size == kernel.size
    result = check_models(tmp_path / "m.keras", tmp_path / "m.keras", Inputs(), permissions)
    assert result.status == "failed"


def test_keras_is_left_as_it_was(converted, tmp_path):
    before = keras.layers.Layer.add_weight
    load(converted[1], Permissions())
    assert keras.layers.Layer.add_weight is before
    with pytest.raises(CannotLoad):
        load(without_a_tensor(converted[1], tmp_path / "wrong.h5"), Permissions())
    assert keras.layers.Layer.add_weight is before


def test_only_weights_and_only_of_this_thread_start_filled():
    found = {}

    def build_dense() -> np.ndarray:
        layer = keras.layers.Dense(4)
        layer.build((None, 3))
        return np.array(layer.get_weights()[0])

    def load_nothing():
        if not found:  # the first time
            found["here"] = build_dense()
            other = threading.Thread(target=lambda: found.update(there=build_dense()))
            other.start()
            other.join()
            layer = keras.layers.Layer()
            ones = keras.initializers.Ones()
            count = layer.add_weight(shape=(2,), initializer=ones, dtype="int32", trainable=False)
            found["count"] = np.array(keras.ops.convert_to_numpy(count))
            constant = keras.initializers.Orthogonal(seed=1)((3, 4))
            found["constant"] = np.array(keras.ops.convert_to_numpy(constant))
            return "filled"
        return "random"

    assert without_initial_values(load_nothing) == "random"
    assert (found["here"] == FILL).all()
    assert (found["there"] != FILL).all()
    assert found["count"].tolist() == [1, 1]
    assert np.allclose(found["constant"] @ found["constant"].T, np.eye(3), atol=1e-5)


IN_ANOTHER_BACKEND = """
import sys
from pathlib import Path
import keras
from rnnconvert.options import Inputs
from rnnconvert.options import Permissions
from rnnconvert.keras_models.verify.model_level import check_models
assert keras.backend.backend() == sys.argv[1]

def called(*args, **named):
    raise AssertionError("an initial value was computed")

keras.initializers.Orthogonal.__call__ = called
original, *others = map(Path, sys.argv[2:])
for other in others:
    print(check_models(original, other, Inputs(), Permissions()).status)
"""


@pytest.mark.corpus  # test_cudnn_kernels runs the level on torch by default
@pytest.mark.parametrize("backend", ["torch", "jax"])
def test_other_backends(converted, as_keras_file, tmp_path, backend):
    pytest.importorskip(backend, reason=f"{backend} is not installed")
    wrong = without_a_tensor(converted[1], tmp_path / "wrong.h5")
    done = subprocess.run(
        [sys.executable, "-c", IN_ANOTHER_BACKEND, backend, *converted, as_keras_file, wrong],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "KERAS_BACKEND": backend},
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["passed", "passed", "failed"]

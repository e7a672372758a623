"""No code of a model file runs and no file it names is read, whichever Keras is installed."""

from __future__ import annotations

import builtins
import importlib
import inspect
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import h5py
import hostile_models as hostile
import hostile_run
import pytest

import rnnconvert
from rnnconvert import NotConvertibleError, UnreadableInputError
from rnnconvert.keras_models.config.harmless import CLASSES, FUNCTIONS, OPERATIONS

keras = pytest.importorskip("keras", reason="Keras 3 is not installed")

ROOT = Path(__file__).parents[3]
WHEELS = "TEST_KERAS_WHEELS"
"""Environment variable: a folder that holds one folder per version, each with that Keras in it."""
VERSIONS = ("3.4.1", "3.8.0", "3.10.0", "newest")
ENTRIES = ("verify .h5", "verify .keras", "--to keras", "rnnconvert.keras")
REFUSED_EARLIER = {
    "path for a name": "the config has this layer, the weights don't",
    "unsafe switch": "expected an object, found 'enable_unsafe_deserialization'; the file is",
    "program": "expected an object, found 'call'; the file is damaged",
}
"""What an .h5 with an attack may be refused for before Keras comes into it."""
RUN_WITHOUT_US = {
    "3.4.1": {"old lambda", "program", "node", "type", "custom class"},
    "3.8.0": {"old lambda", "program"},
    "3.10.0": {"old lambda"},
    "newest": set(),
}
"""Attacks that Keras itself, in its safe mode, runs: so they are attacks indeed."""


@pytest.fixture
def mark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file that comes into being where something of a model file runs."""
    path = tmp_path / "mark"
    hostile.write_module(tmp_path, path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, hostile.MODULE, raising=False)
    return path


def require_refused(name: str, said: dict[str, str], ran: bool) -> None:
    """Each way in says what it refuses and what lets it through."""
    assert not ran, name
    assert set(said) == set(ENTRIES)
    wanted = hostile.ATTACKS[name][1]
    for entry in ENTRIES:
        text = said[entry]
        assert not text.startswith(("passed", "None")), (name, entry, text)
        if REFUSED_EARLIER.get(name, "no such text") in text:
            continue
        assert wanted in text, (name, entry, text)
        remedies = ("--allow-code", "--custom-objects", "safe_mode=False", "custom_objects")
        assert any(remedy in text for remedy in remedies), (name, entry, text)
    if name not in REFUSED_EARLIER:
        assert said["--to keras"].startswith("NotConvertibleError")  # exit code 4
    assert "\n" not in said["--to keras"]


def test_every_attack_is_refused_by_the_installed_keras(tmp_path: Path, mark: Path) -> None:
    seen = set()
    for line in hostile_run.guarded(tmp_path, mark):
        require_refused(**line)
        seen.add(line["name"])
    assert seen == set(hostile.ATTACKS)


def _wheel(version: str) -> Path:
    folder = os.environ.get(WHEELS)
    if not folder:
        pytest.skip(f"{WHEELS} names no folder of Keras versions")
    found = [path for path in Path(folder).iterdir() if (path / "keras").is_dir()]
    if version == "newest":
        return max(found, key=lambda path: [int(part) for part in path.name.split(".")])
    if Path(folder) / version not in found:
        pytest.skip(f"Keras {version} is not in {folder}")
    return Path(folder) / version


def _in_child(version: str, mode: str, folder: Path) -> Iterator[dict]:
    paths = (_wheel(version), ROOT, ROOT / "tests")
    done = subprocess.run(
        [sys.executable, ROOT / "tests" / "hostile_run.py", folder, mode],
        capture_output=True,
        text=True,
        check=False,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join(map(str, paths)),
            "KERAS_BACKEND": "torch",
        },
    )
    assert done.returncode == 0, done.stderr
    first, *lines = map(json.loads, done.stdout.splitlines())
    assert first["keras"] == _wheel(version).name
    yield from lines


@pytest.mark.corpus
@pytest.mark.parametrize("version", VERSIONS)
def test_every_attack_is_refused_by_each_keras(version: str, tmp_path: Path) -> None:
    lines = list(_in_child(version, "guarded", tmp_path))
    assert {line["name"] for line in lines} == set(hostile.ATTACKS)
    for line in lines:
        require_refused(**line)


@pytest.mark.corpus
@pytest.mark.parametrize("version", VERSIONS)
def test_the_attacks_are_attacks(version: str, tmp_path: Path) -> None:
    ran = {
        line["name"].rpartition(",")[0]
        for line in _in_child(version, "bare", tmp_path)
        if line["ran"]
    }
    assert ran >= RUN_WITHOUT_US[version]


# --- what is still accepted -----------------------------------------------------------------


def test_the_model_without_an_attack_is_run(tmp_path: Path) -> None:
    h5 = hostile.write_h5(tmp_path / "m.h5", hostile.base_config())
    zipped = hostile.write_keras(tmp_path / "m.keras", hostile.base_config())
    assert rnnconvert.verify(h5, zipped).model_level[0].status == "passed"


def test_how_the_outermost_model_was_compiled_is_not_read(tmp_path: Path, mark: Path) -> None:
    config = hostile.base_config()
    config["compile_config"] = {"optimizer": "sgd", "loss": hostile.THING, "metrics": None}
    path = hostile.write_keras(tmp_path / "m.keras", config)
    assert rnnconvert.verify(path, path).model_level[0].status == "passed"
    assert not mark.exists()


@pytest.mark.parametrize("key", ["loss", "metrics", "optimizer_config"])
@pytest.mark.sampled(2)
def test_a_training_config_is_checked_where_keras_reads_it(
    key: str, tmp_path: Path, mark: Path
) -> None:
    training = {
        "loss": "mean_squared_error",
        "metrics": None,
        "loss_weights": None,
        "optimizer_config": hostile.keras_object("keras.optimizers", "SGD", learning_rate=0.1),
    }
    good = hostile.write_h5(tmp_path / "good.h5", hostile.base_config(), training)
    assert rnnconvert.convert(good, tmp_path / "good.keras").verdict == "equivalent"
    bad = {**training, key: hostile.keras_object(hostile.MODULE, "Thing")}
    path = hostile.write_h5(tmp_path / "bad.h5", hostile.base_config(), bad)
    with pytest.raises(NotConvertibleError, match=r"names hostile_module.Thing.*--allow-code"):
        rnnconvert.convert(path, tmp_path / "bad.keras")
    assert not (tmp_path / "bad.keras").exists()
    assert not mark.exists()


def test_a_lambda_is_kept_and_run_where_it_is_allowed(tmp_path: Path, mark: Path) -> None:
    path = hostile.write_h5(tmp_path / "m.h5", hostile.hostile("old lambda", mark))
    rnnconvert.convert(path, tmp_path / "out.keras", allow_code=True, verify="weights")
    assert (tmp_path / "out.keras").exists()
    assert mark.exists()


# --- files that are not what they seem ------------------------------------------------------


def test_a_file_that_is_hdf5_and_zip_at_once_is_refused(tmp_path: Path, mark: Path) -> None:
    """Keras takes it for a zip by its name, where the content begins as HDF5."""
    h5 = hostile.write_h5(tmp_path / "m.h5", hostile.base_config())
    zipped = hostile.write_keras(tmp_path / "z.keras", hostile.hostile("program", mark))
    both = tmp_path / "both.keras"
    both.write_bytes(h5.read_bytes() + zipped.read_bytes())
    with pytest.raises(UnreadableInputError, match="an HDF5 file and a zip file at once"):
        rnnconvert.verify(both, both)
    assert not mark.exists()


def test_weights_that_lie_in_another_file_are_not_given_to_keras(tmp_path: Path) -> None:
    hostile.write_h5(tmp_path / "secret.h5", hostile.base_config())
    path = hostile.write_h5(tmp_path / "m.h5", hostile.base_config())
    with h5py.File(path, "r+") as file:
        file["model_weights/top_level_model_weights"] = h5py.ExternalLink(
            tmp_path / "secret.h5", "/model_weights/gru"
        )
    with pytest.raises(UnreadableInputError, match="a link out of its place"):
        rnnconvert.verify(path, path)


def test_weights_of_a_zip_that_lie_in_another_file_are_not_given_to_keras(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Linked(h5py.File):
        def create_dataset(self, name: str, **given: object) -> None:
            self[name] = h5py.ExternalLink("secret.h5", "/x")

    with monkeypatch.context() as patch:
        patch.setattr(hostile.h5py, "File", Linked)
        path = hostile.write_keras(tmp_path / "m.keras", hostile.base_config())
    with pytest.raises(UnreadableInputError, match="a link out of its place"):
        rnnconvert.verify(path, path)


@pytest.mark.parametrize(
    "call", [{"node_def": {"op": "WriteFile"}}, {"node_def": None}, {"function": "io.write_file"}]
)
def test_our_layer_of_tensorflow_calls_runs_known_ones_only(call: dict) -> None:
    from rnnconvert.keras.tensorflow_calls import TensorFlowCall

    with pytest.raises(ValueError, match=r"rnnconvert knows|only Keras on TensorFlow"):
        TensorFlowCall(json.dumps(call))


# --- the tables -----------------------------------------------------------------------------

TAKES_CODE = {
    "function", "fn", "f", "func", "body", "body_fun", "cond", "true_fn", "false_fn", "pred",
    "call_fn", "init_fn", "module", "filepath", "path",
}  # fmt: skip
WRAPPERS = {"MeanMetricWrapper", "LossFunctionWrapper"}
"""They take a function, which the config must name: then it is looked up itself."""


def test_no_class_of_the_tables_takes_a_function_or_a_path() -> None:
    checked = 0
    for module, names in {**CLASSES, **OPERATIONS}.items():
        try:
            found = importlib.import_module(module)
        except ImportError:  # of other versions of Keras
            continue
        for name in names - WRAPPERS:
            cls = getattr(found, name, None)
            if inspect.isclass(cls):
                assert not TAKES_CODE & set(inspect.signature(cls.__init__).parameters), name
                checked += 1
    assert checked > 400


def test_no_function_of_the_tables_is_one_of_pythons_own() -> None:
    """Old versions of Keras look among those for a name that they do not know."""
    assert not set().union(*FUNCTIONS.values()) & set(dir(builtins))

"""No heavy framework is imported where none is needed: proved in a fresh interpreter."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from helpers import make_model_h5

FRAMEWORKS = {"tensorflow", "keras", "tf_keras", "torch", "jax"}

RUN = """
import json, os, sys
sys.stdout = open(os.devnull, "w")
from rnnconvert.cli.main import main
sys.argv = ["rnnconvert", *{arguments!r}]
try:
    main()
except SystemExit as stop:
    assert not stop.code, stop.code
"""

TELL = """
import json, sys
sys.__stdout__.write(json.dumps(sorted({name.split(".")[0] for name in sys.modules})))
"""


def imported_by(code: str, *, path: Path | None = None) -> set[str]:
    """Top-level names of all modules that are loaded after `code` ran."""
    environment = dict(os.environ)
    if path is not None:
        environment["PYTHONPATH"] = str(path)
    done = subprocess.run(
        [sys.executable, "-c", code + TELL],
        capture_output=True, text=True, check=False, env=environment,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return set(json.loads(done.stdout))


def command(*arguments: object) -> str:
    return RUN.replace("{arguments!r}", repr([str(word) for word in arguments]))


def test_the_package():
    assert not imported_by("import rnnconvert\n") & FRAMEWORKS


def test_the_public_modules_need_no_import_of_their_own():
    imported_by("import rnnconvert\nrnnconvert.layouts.convert\n")
    imported_by("import rnnconvert\nassert not hasattr(rnnconvert, 'colour')\n")


def test_the_layouts_need_numpy_only():
    found = imported_by("from rnnconvert import layouts\n")
    assert "numpy" in found
    assert not found & (FRAMEWORKS | {"h5py"})


@pytest.mark.parametrize(
    "arguments", [["--help"], ["cudnn-to-keras", "--help"], ["inspect", "-h"]], ids=" ".join
)
def test_help_imports_nothing_but_the_command_line(arguments):
    assert not imported_by(command(*arguments)) & (FRAMEWORKS | {"numpy", "h5py"})


def test_version():
    assert not imported_by(command("--version")) & FRAMEWORKS


def test_inspect(tmp_path):
    model = make_model_h5(tmp_path / "m.h5")
    found = imported_by(command("inspect", model))
    assert "h5py" in found
    assert not found & FRAMEWORKS


@pytest.mark.parametrize("level", ["none", "weights", "layers"])
@pytest.mark.sampled(2)
def test_a_conversion(tmp_path, level):
    model = make_model_h5(tmp_path / "m.h5")
    found = imported_by(command("cudnn-to-keras", model, "--verify", level))
    assert (tmp_path / "m.portable.h5").exists()
    assert not found & FRAMEWORKS


def test_this_check_can_fail(tmp_path):
    for name in FRAMEWORKS:
        (tmp_path / f"{name}.py").write_text("")
    heavy = f"import {', '.join(FRAMEWORKS)}\n"
    assert imported_by(command("--help") + heavy, path=tmp_path) & FRAMEWORKS == FRAMEWORKS


def test_no_filter_plugin_is_loaded_from_disk():
    """HDF5 reads HDF5_PLUGIN_PRELOAD when it is loaded, so it must be set before h5py is."""
    watch = """
import os, sys
os.environ.pop("HDF5_PLUGIN_PRELOAD", None)
class Watch:
    def find_spec(self, name, path=None, target=None):
        if name == "h5py":
            assert os.environ.get("HDF5_PLUGIN_PRELOAD") == "::", "h5py is loaded first"
sys.meta_path.insert(0, Watch())
"""
    for module in (
        "keras_models.convert",
        "keras_models.inspect",
        "keras_models.files.h5",
        "containers.safe_h5",
        "kinds",
    ):
        assert "h5py" in imported_by(f"{watch}\nimport rnnconvert.{module}\n")

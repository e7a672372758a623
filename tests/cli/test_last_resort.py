"""What comes from outside at a bad moment: signals, imports, directories that can't be read."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from helpers import make_model_h5

from rnnconvert import __main__ as program

posix = pytest.mark.skipif(os.name != "posix", reason="signals of POSIX")


@posix
@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_leaves_nothing_behind(tmp_path, number):
    names = [f"layer_{index}" for index in range(100)]
    make_model_h5(tmp_path / "m.h5", cells=["lstm"] * 100, names=names, units=[4, 6] * 50)
    arguments = ["cudnn-to-keras", "m.h5", "--verify", "layers", "--timesteps", "20000"]
    running = subprocess.Popen(
        [sys.executable, "-m", "rnnconvert", *arguments],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        stderr=subprocess.PIPE,
        text=True,
    )
    until = time.monotonic() + 60
    while not any(tmp_path.glob(".rnnconvert-*")):
        assert time.monotonic() < until
        time.sleep(0.05)
    time.sleep(0.5)
    running.send_signal(number)
    _, err = running.communicate(timeout=60)
    assert running.returncode == 130
    assert err.strip() == "interrupted; no unfinished output is left"
    assert [path.name for path in tmp_path.iterdir()] == ["m.h5"]


def test_ctrl_c_while_modules_are_imported(monkeypatch, capsys):
    class Interrupting:
        @staticmethod
        def find_spec(name: str, *_: object) -> None:
            if name == "rnnconvert.cli.main":
                raise KeyboardInterrupt

    monkeypatch.delitem(sys.modules, "rnnconvert.cli.main")
    monkeypatch.setattr(sys, "meta_path", [Interrupting, *sys.meta_path])
    with pytest.raises(SystemExit) as stop:
        program.program()
    assert stop.value.code == 130
    assert capsys.readouterr().err == "interrupted; nothing was written\n"


@pytest.mark.parametrize("spec", ["..x:y", ".:y", "broken_module:y", "no_such_module:y"])
def test_custom_objects_that_can_not_be_imported(cli, tmp_path, monkeypatch, spec):
    (tmp_path / "broken_module.py").write_text("raise RuntimeError('of its own')")
    monkeypatch.syspath_prepend(tmp_path)
    make_model_h5(tmp_path / "m.h5")
    result = cli("cudnn-to-keras", "m.h5", "--custom-objects", spec)
    assert result.code == 2
    assert result.err.startswith(f"error: --custom-objects {spec}: can't be imported (")
    assert result.err.count("\n") == 1


def test_a_directory_that_can_not_be_read(cli, tmp_path, monkeypatch):
    (tmp_path / "models").mkdir()

    def forbidden(path: object = ".") -> None:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(os, "scandir", forbidden)
    monkeypatch.setattr(os, "listdir", forbidden)
    for command in ("inspect", "cudnn-to-keras"):
        result = cli(command, "models")
        assert result.code == 3
        assert "Permission denied" in result.err
        assert result.err.count("\n") == 1


def test_no_plugin_of_hdf5_is_loaded_whatever_the_environment_says(tmp_path):
    code = "import os, rnnconvert.containers.safe_h5; print(os.environ['HDF5_PLUGIN_PRELOAD'])"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join(sys.path),
            "HDF5_PLUGIN_PRELOAD": str(Path(tmp_path)),
        },
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "::\n"

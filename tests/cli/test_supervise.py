"""A crash or an endless loop of a library is one line and exit code 3, and Ctrl-C is heard."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import h5py
import numpy as np
import pytest
from helpers import make_model_h5

import rnnconvert
from rnnconvert.containers import deadline, h5_walk, safe_h5

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")

CRASH = """
import os, signal
from rnnconvert.containers import safe_h5
names = safe_h5.strings
def crash(group, name):
    if "bad" in safe_h5.stream_of(group.file).path.name:
        os.kill(os.getpid(), signal.{signal})
    return names(group, name)
safe_h5.strings = crash
"""
"""What a file whose name has "bad" in it does to the process that reads it."""
LOOP = """
import itertools, pathlib
from rnnconvert.cli import supervise
from rnnconvert.containers import h5_walk, safe_h5
h5_walk._SECONDS, supervise._PATIENCE = {seconds}, 0.5
def loop(*_):
    pathlib.Path("looping").touch()
    sum(itertools.repeat(0))
safe_h5.h5_walk.walk_file = loop
"""
"""C code that holds Python's lock and does not come back."""
LOOP_OF_BAD = LOOP.replace(
    "def loop(*_):",
    """def loop(file, attribute, walk=h5_walk.walk_file):
    if "bad" not in safe_h5.stream_of(file).path.name:
        return walk(file, attribute)""",
)


def start(folder: Path, fault: str, *arguments: str) -> subprocess.Popen[str]:
    """The program as it is installed, with a fault put into it."""
    script = folder / "program.py"
    main = "\nif __name__ == '__main__':\n    from rnnconvert.__main__ import start\n    start()\n"
    script.write_text(fault + main)
    return subprocess.Popen(
        [sys.executable, str(script), *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run(folder: Path, fault: str, *arguments: str) -> tuple[int, str, str]:
    started = start(folder, fault, *arguments)
    out, err = started.communicate(timeout=60)
    return started.returncode, out, err


@pytest.mark.parametrize("name", ["SIGSEGV", "SIGABRT", "SIGBUS"])
@pytest.mark.parametrize(
    "command", [["inspect"], ["cudnn-to-keras", "--verify", "weights"], ["verify", "bad.h5"]]
)
@pytest.mark.sampled(8)
def test_a_crash_is_one_line_and_exit_code_3(tmp_path, name, command):
    make_model_h5(tmp_path / "bad.h5")
    code, out, err = run(tmp_path, CRASH.format(signal=name), *command, "bad.h5")
    path = "bad.h5 or bad.h5" if command[0] == "verify" else "bad.h5"
    assert (code, out) == (3, "")
    assert err == (
        f"error: {path}: a library crashed on it ({name}); it is damaged, copy or download it "
        "again; nothing of it was written\n"
    )
    assert sorted(each.name for each in tmp_path.iterdir()) == ["bad.h5", "program.py"]


def test_a_process_that_is_killed_is_one_too(tmp_path):
    make_model_h5(tmp_path / "bad.h5")
    code, _, err = run(tmp_path, CRASH.format(signal="SIGKILL"), "inspect", "bad.h5")
    assert code == 3
    assert err.startswith("error: bad.h5: the process that worked on it was killed (SIGKILL)")


@pytest.mark.parametrize("command", [["inspect"], ["cudnn-to-keras", "--verify", "weights"]])
def test_a_crash_costs_its_own_file_only(tmp_path, command):
    for name in ("a.h5", "bad.h5", "c.h5"):
        make_model_h5(tmp_path / name)
    code, _, err = run(
        tmp_path, CRASH.format(signal="SIGSEGV"), *command, "a.h5", "bad.h5", "c.h5",
        "--report", "r.json",
    )  # fmt: skip
    assert code == 3
    assert err.count("\n") == 1
    assert err.startswith("error: bad.h5: a library crashed on it (SIGSEGV)")
    reports = json.loads((tmp_path / "r.json").read_text())
    assert [each["verdict"] == "not-convertible" for each in reports] == [False, True, False]
    if command[0] != "inspect":
        assert (tmp_path / "c.portable.h5").exists()


@pytest.mark.parametrize("command", [["inspect"], ["cudnn-to-keras", "--verify", "weights"]])
def test_a_crash_while_a_folder_is_looked_through_costs_its_own_file_only(tmp_path, command):
    (tmp_path / "models").mkdir()
    for name in ("a.h5", "bad.h5", "c.h5"):
        make_model_h5(tmp_path / "models" / name)
    fault = CRASH.format(signal="SIGSEGV").replace("strings", "has")
    code, out, err = run(tmp_path, fault, *command, "models")
    assert code == 3
    assert err.count("\n") == 1
    assert err.startswith("error: models/bad.h5: a library crashed on it (SIGSEGV)")
    assert "models/a.h5" in out
    assert "models/c.h5" in out


def test_a_library_that_does_not_come_to_an_end_is_ended(tmp_path):
    make_model_h5(tmp_path / "m.h5")
    began = time.monotonic()
    code, _, err = run(tmp_path, LOOP.format(seconds=0.5), "inspect", "m.h5")
    assert code == 3
    assert err.startswith("error: m.h5: the HDF5 library does not come to an end with it; ")
    assert err.count("\n") == 1
    assert time.monotonic() - began < 30


@pytest.mark.parametrize("jobs", ["1", "2"])
@pytest.mark.sampled(2)
def test_a_library_that_does_not_come_to_an_end_costs_its_own_file_only(tmp_path, jobs):
    for name in ("a.h5", "bad.h5", "c.h5"):
        make_model_h5(tmp_path / name)
    code, _, err = run(
        tmp_path, LOOP_OF_BAD.format(seconds=0.5), "cudnn-to-keras", "--verify", "weights", "-q",
        "-j", jobs, "a.h5", "bad.h5", "c.h5",
    )  # fmt: skip
    assert code == 3
    assert err.startswith("error: bad.h5: the HDF5 library does not come to an end with it; ")
    assert err.count("\n") == 1
    assert (tmp_path / "a.portable.h5").exists()
    assert (tmp_path / "c.portable.h5").exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_is_heard_even_then(tmp_path, number):
    make_model_h5(tmp_path / "m.h5")
    started = start(tmp_path, LOOP.format(seconds=600), "inspect", "m.h5")
    wait_for(tmp_path / "looping")
    started.send_signal(number)
    _, err = started.communicate(timeout=30)
    assert (started.returncode, err) == (130, "interrupted; nothing was written\n")


@pytest.mark.skipif(sys.platform != "linux", reason="as Linux can do it")
def test_a_kill_ends_both_processes(tmp_path):
    make_model_h5(tmp_path / "m.h5")
    started = start(tmp_path, LOOP.format(seconds=600), "inspect", "m.h5")
    wait_for(tmp_path / "looping")
    child = int(Path(f"/proc/{started.pid}/task/{started.pid}/children").read_text())
    started.kill()
    started.communicate(timeout=30)
    until = time.monotonic() + 10
    while Path(f"/proc/{child}").exists() and _state(child) not in "ZX":
        assert time.monotonic() < until
        time.sleep(0.05)


def _state(process: int) -> str:
    return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]


def wait_for(path: Path) -> None:
    until = time.monotonic() + 60
    while not path.exists():
        assert time.monotonic() < until
        time.sleep(0.05)


def test_each_file_is_walked_over_once(tmp_path, monkeypatch):
    """And in a process of a user's own never: it would end that process."""
    walked = []
    monkeypatch.setattr(h5_walk, "walk_file", lambda file, _: walked.append(file.filename))
    model = make_model_h5(tmp_path / "m.h5")
    rnnconvert.inspect(model)
    assert walked == []
    monkeypatch.setattr(deadline, "_may_end", True)
    rnnconvert.inspect(model)
    rnnconvert.inspect(model)
    assert len(walked) == 1


def test_the_walk_meets_all_that_is_parsed(tmp_path):
    """Every attribute, and every chunk's place; what is odd stops it no more than it must."""
    path = tmp_path / "m.h5"
    with h5py.File(path, "w") as file:
        group = file.create_group("a/b")
        group.attrs["text"] = "t"
        data = group.create_dataset("chunked", (64, 3), "f4", chunks=(2, 3))
        data.attrs["numbers"] = [1, 2]
        data[...] = 1
        file["empty"] = h5py.Empty("f4")
        file["type"] = np.dtype("f4")
        file["type"].attrs["unit"] = "s"
        file["soft"] = h5py.SoftLink("/nowhere")
        file["outside"] = h5py.ExternalLink("/nowhere", "/x")
        file["a/b/loop"] = file["a"]
    met = []
    with safe_h5.open_h5(path) as file:
        h5_walk.walk_file(file, lambda owner, name: met.append((owner.name, name)))
    assert sorted(met) == [("/a/b", "text"), ("/a/b/chunked", "numbers"), ("/type", "unit")]


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&- >&- 2>&-"])
@pytest.mark.sampled(2)
def test_a_closed_stream_is_as_the_null_device(tmp_path, closed):
    make_model_h5(tmp_path / "m.h5")
    line = f'"$0" -m rnnconvert cudnn-to-keras m.h5 --verify weights {closed}'
    done = subprocess.run(["sh", "-c", line, sys.executable], cwd=tmp_path, capture_output=True)
    assert (done.returncode, done.stderr) == (0, b"")
    assert rnnconvert.verify(tmp_path / "m.h5", tmp_path / "m.portable.h5", verify="weights")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_line_that_can_not_be_written_is_an_error(tmp_path):
    make_model_h5(tmp_path / "m.h5")
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "rnnconvert", "inspect", "m.h5"],
            cwd=tmp_path, stdout=full, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
    assert done.returncode == 5
    assert done.stderr.startswith("error: can't be written: no space left on the device")

"""`--engine dask`: the work of a folder on a Dask cluster, and what a killed worker costs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest
from clusters import ROOT, dask_cluster
from helpers import make_model_h5, snapshot

from rnnconvert.cli import cluster
from rnnconvert.cli.outcomes import convert_one
from rnnconvert.errors import OutputError
from rnnconvert.options import Options

FAST = ("--verify", "weights")


def small(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    return make_model_h5(path, cells=["gru"], names=["only"], units=[4])


def slow(path: Path) -> Path:
    """A model whose levels take some seconds."""
    names = [f"layer_{number}" for number in range(20)]
    units = [4, 6] * 10
    return make_model_h5(path, cells=["lstm"] * 20, names=names, units=units)


@pytest.fixture(scope="module")
def scheduler(tmp_path_factory):
    with dask_cluster(tmp_path_factory.mktemp("cluster")) as address:
        yield address


# --- without a cluster ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--engine", "dask"], "--engine dask needs --scheduler ADDRESS"),
        (["--scheduler", "tcp://x:1"], "--scheduler goes with --engine dask"),
        (["--engine", "dask", "--scheduler", "tcp://x:1", "-j", "2"], "--jobs is for this machine"),
    ],
)
def test_options_that_contradict_each_other(cli, tmp_path, options, told):
    small(tmp_path / "m.h5")
    result = cli("cudnn-to-keras", "m.h5", *FAST, *options)
    assert result.code == 2
    assert told in result.err
    assert os.listdir(tmp_path) == ["m.h5"]


def test_a_missing_extra_is_one_line(cli, tmp_path, monkeypatch):
    small(tmp_path / "m.h5")
    monkeypatch.setitem(sys.modules, "distributed", None)
    result = cli("cudnn-to-keras", "m.h5", "--engine", "dask", "--scheduler", "tcp://x:1")
    assert (result.code, result.err) == (
        2,
        "error: a Dask cluster needs packages that are not installed: "
        'pip install "rnnconvert[dask]"\n',
    )


def test_a_scheduler_that_can_not_be_reached(cli, tmp_path, monkeypatch):
    pytest.importorskip("distributed")
    monkeypatch.setattr(cluster, "_PATIENCE", 1)
    small(tmp_path / "m.h5")
    for address in ("tcp://127.0.0.1:9", "nonsense"):
        result = cli("cudnn-to-keras", "m.h5", "--engine", "dask", "--scheduler", address)
        assert result.code == 2
        assert result.err.startswith(f"error: --scheduler {address}: can't be reached (")
        assert result.err.count("\n") == 1
    assert os.listdir(tmp_path) == ["m.h5"]


# --- on one -----------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.corpus
def test_a_folder_becomes_what_it_becomes_on_this_machine(cli, tmp_path, scheduler):
    small(tmp_path / "models" / "a.h5")
    small(tmp_path / "models" / "deep" / "b.hdf5")
    (tmp_path / "models" / "bad.h5").write_bytes(small(tmp_path / "x" / "m.h5").read_bytes()[:2000])
    engine = ("--engine", "dask", "--scheduler", scheduler)
    assert cli("cudnn-to-keras", "models", "-o", "here", *FAST).code == 3
    result = cli("cudnn-to-keras", "models", "-o", "there", *FAST, *engine)
    assert result.code == 3
    assert result.out.splitlines()[-1] == "3 inputs: 2 converted, 1 can't be read"
    assert result.err.startswith("error: models/bad.h5: the HDF5 file is truncated")
    assert snapshot(tmp_path / "there") == snapshot(tmp_path / "here")
    again = cli("cudnn-to-keras", "models", "-o", "there", *FAST, *engine)
    assert again.code == 5
    assert again.err.count("the output exists") == 2


@pytest.mark.slow
@pytest.mark.corpus
def test_workers_without_rnnconvert_or_with_another(cli, tmp_path, scheduler, monkeypatch):
    small(tmp_path / "m.h5")
    arguments = ("cudnn-to-keras", "m.h5", *FAST, "--engine", "dask", "--scheduler", scheduler)
    monkeypatch.setattr(cluster, "_PACKAGE", "a-package-that-no-worker-has")
    result = cli(*arguments)
    assert result.code == 2
    assert " has no rnnconvert: pip install rnnconvert==" in result.err
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("rnnconvert.__version__", "99.0", raising=False)
    result = cli(*arguments)
    assert result.code == 2
    assert "and here is 99.0: install the same version" in result.err
    assert os.listdir(tmp_path) == ["m.h5"]


@pytest.mark.slow
@pytest.mark.corpus
def test_what_is_done_is_told_by_the_scheduler_and_not_done_again(tmp_path, scheduler):
    """As when a worker is killed that had a result which nobody has fetched yet."""
    from distributed import Client

    pair = (small(tmp_path / "m.h5"), tmp_path / "p.h5")
    work = partial(convert_one, options=Options(verify="none"))
    with Client(scheduler, set_as_default=False) as client:
        client.set_metadata(["run"], {})

        def outcome(key: str):
            task = client.submit(cluster._task, work, pair, "run", 0, str(tmp_path), key=key)
            return task.result(timeout=120)

        first = outcome("first")
        assert first.verdict == "unverified"
        written = writing_of(tmp_path / "p.h5")
        assert outcome("second") == first
        assert writing_of(tmp_path / "p.h5") == written
        client.set_metadata(["run", "0"], "begun")  # killed before it could tell
        assert outcome("third") == first
        assert writing_of(tmp_path / "p.h5") == written
        (tmp_path / "p.h5").write_bytes(b"somebody's")
        client.set_metadata(["run", "0"], "begun")
        assert isinstance(outcome("fourth"), OutputError)
        assert (tmp_path / "p.h5").read_bytes() == b"somebody's"
        client.set_metadata(["run"], None)


@pytest.mark.slow
@pytest.mark.corpus
@pytest.mark.skipif(sys.platform != "linux", reason="looks at processes in /proc")
def test_a_worker_that_is_killed_costs_nothing(tmp_path, scheduler):
    from distributed import Client

    running = convert_six(tmp_path, scheduler)
    with Client(scheduler, set_as_default=False) as client:
        wait(lambda: list(tmp_path.glob("out/*.portable.h5")), running)
        time.sleep(1)  # the next ones are begun
        pids = client.run(os.getpid)
        busy = next(worker for worker, tasks in client.processing().items() if tasks)
        children = children_of(pids[busy])
        done = {path: writing_of(path) for path in tmp_path.glob("out/*.portable.h5")}
        os.kill(pids[busy], signal.SIGKILL)
    assert children
    out, err = running.communicate(timeout=240)
    assert (running.returncode, err) == (0, "")
    assert "6 inputs: 6 converted" in out
    assert len(list(tmp_path.glob("out/*.portable.h5"))) == 6
    assert not list(tmp_path.glob("out/.rnnconvert-*"))
    assert done
    assert {path: writing_of(path) for path in done} == done  # not written a second time
    assert not [child for child in children if Path(f"/proc/{child}").exists()]


@pytest.mark.slow
@pytest.mark.corpus
def test_a_scheduler_that_is_lost_costs_what_was_not_done(tmp_path):
    from distributed import Client

    with dask_cluster(tmp_path) as scheduler:
        running = convert_six(tmp_path, scheduler)
        wait(lambda: json.loads((tmp_path / "r.json").read_text() or "[]"), running)
        with Client(scheduler, set_as_default=False) as client:
            client.shutdown()
        out, err = running.communicate(timeout=240)
    assert running.returncode == 3
    lost = err.count("not done: the connection to the scheduler was lost")
    assert 0 < lost < 6
    assert err.count("\n") == lost
    assert f"6 inputs: {6 - lost} converted, {lost} can't be read" in out
    reports = json.loads((tmp_path / "r.json").read_text())
    assert [report["verdict"] for report in reports].count("equivalent") == 6 - lost


def convert_six(directory: Path, scheduler: str) -> subprocess.Popen[str]:
    """The conversion of six models on a cluster, each of which takes some seconds."""
    (directory / "models").mkdir()
    for number in range(6):
        slow(directory / "models" / f"{number}.h5")
    (directory / "r.json").touch()
    command = [
        sys.executable, "-m", "rnnconvert", "cudnn-to-keras", "models", "-o", "out", "--verify",
        "layers", "--timesteps", "1500", "--engine", "dask", "--scheduler", scheduler,
        "--report", "r.json",
    ]  # fmt: skip
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
    return subprocess.Popen(command, cwd=directory, env=environment, text=True,
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE)  # fmt: skip


def wait(found, running: subprocess.Popen[str], seconds: float = 120) -> None:
    until = time.monotonic() + seconds
    while not found():
        assert running.poll() is None, running.communicate()
        assert time.monotonic() < until
        time.sleep(0.05)


def writing_of(path: Path) -> tuple[int, int]:
    """What a second writing of a file would change; reading it changes its access time only."""
    status = path.stat()
    return status.st_ino, status.st_mtime_ns


def children_of(process: int) -> list[int]:
    """Of all its threads, those that run this package."""
    found = Path(f"/proc/{process}/task").glob("*/children")
    return [int(child) for path in found for child in path.read_text().split()]

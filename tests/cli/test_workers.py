"""Several inputs side by side: a dead worker costs its own file, and a signal ends them all."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from helpers import make_model_h5

from rnnconvert.cli import workers
from rnnconvert.cli.workers import Died, KeptWorker, in_workers

FIXTURES = Path(__file__).parents[2] / "fixtures"
posix = pytest.mark.skipif(os.name != "posix", reason="signals of POSIX")


KEPT: list[bytes] = []
"""What a worker that grows does not let go of."""


def behave(item: str) -> str:
    """What a worker does in these tests; it runs in another process."""
    if item == "die":
        os._exit(7)
    if item == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if item == "sleep":
        time.sleep(600)
    if item.startswith("note "):
        Path(item[5:] + ".new").write_text(str(os.getpid()))
        os.rename(item[5:] + ".new", item[5:])
        time.sleep(600)
    if item in ("who", "pid"):
        return str(os.getpid())
    if item == "grow":
        KEPT.append(b"x" * 2**26)
        return str(os.getpid())
    return item.upper()


@posix
def test_a_dead_worker_costs_its_own_item_only():
    items = ["a", "die", "b", "killed", "c"]
    found = dict(in_workers(behave, items, 2))
    assert {index: found[index] for index in (0, 2, 4)} == {0: "A", 2: "B", 4: "C"}
    assert isinstance(found[1], Died)
    assert str(found[1]) == "the process that worked on it died (exit code 7)"
    assert str(found[3]).startswith("the process that worked on it was killed (SIGKILL)")


@posix
def test_a_kept_worker_is_started_again_when_it_has_died():
    kept = KeptWorker(behave)
    assert kept.call("a", lambda: True) == "A"
    assert kept.call("pid", lambda: True) == kept.call("pid", lambda: True)
    assert str(kept.call("killed", lambda: True)).endswith("nothing of it was written")
    assert kept.call("b", lambda: True) == "B"


@posix
def test_a_kept_worker_that_ended_idle_costs_nothing(monkeypatch):
    monkeypatch.setattr(workers, "_IDLE", 0.2)
    kept = KeptWorker(behave)
    first = kept.call("pid", lambda: True)
    kept._worker.process.join(30)
    assert kept._worker.process.exitcode == 0
    assert kept.call("pid", lambda: True) != first


@posix
def test_a_kept_worker_stops_when_nobody_wants_it(monkeypatch):
    monkeypatch.setattr(workers, "_ASK_EVERY", 0.1)
    asked = iter([True, False, False])
    assert isinstance(KeptWorker(behave).call("sleep", lambda: next(asked)), Died)


@posix
@pytest.mark.skipif(sys.platform != "linux", reason="a signal of Linux")
def test_a_worker_ends_with_who_started_it(tmp_path):
    """Who is killed can't stop anybody: the system does."""
    child = os.fork()
    if not child:
        for _ in in_workers(behave, [f"note {tmp_path / 'pid'}"], 1):
            pass
        os._exit(0)
    wait_for(tmp_path / "pid")
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    working = int((tmp_path / "pid").read_text())
    until = time.monotonic() + 30
    while Path(f"/proc/{working}/stat").exists() and time.monotonic() < until:
        if Path(f"/proc/{working}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
            break
        time.sleep(0.05)
    else:
        assert not Path(f"/proc/{working}").exists()


FORKS = """
import os, signal, sys, threading, time
from rnnconvert.cli import workers

def work(item):
    until = time.monotonic() + 20
    while item == "the second" and not idle(os.getppid()) and time.monotonic() < until:
        time.sleep(0.05)
    return item, "compileall" in sys.modules, time.monotonic() < until

def idle(parent):
    # the first worker has ended: this one is the only child that is left
    children = open(f"/proc/{parent}/task/{parent}/children").read().split()
    alive = [child for child in children if open(f"/proc/{child}/stat").read().split()[2] != "Z"]
    return len(alive) == 1

if __name__ == "__main__":
    import compileall  # a module that only a fork of this process has
    assert workers._has_one_thread()
    print(sorted(found for _, found in workers.in_workers(work, ["the first", "the second"], 2)))
    threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
    assert not workers._has_one_thread()
    print(sorted(found for _, found in workers.in_workers(work, ["a", "b"], 2)), flush=True)
    os._exit(0)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="as Linux tells of threads")
def test_workers_are_forked_from_one_thread_and_spawned_from_several(tmp_path):
    """A fork takes no time, but waits for ever for the locks of threads that it does not have.

    The second item waits until the worker of the first one has ended, which has to see that its
    connection was closed, though the second worker was forked with both ends of it.
    """
    (tmp_path / "forks.py").write_text(FORKS)
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "forks.py"], cwd=tmp_path, env=environment,
                          capture_output=True, text=True, timeout=200)  # fmt: skip
    assert done.stdout.splitlines() == [
        "[('the first', True, True), ('the second', True, True)]",
        "[('a', False, True), ('b', False, True)]",
    ], done.stderr


def test_a_worker_takes_item_after_item():
    found = [pid for _, pid in in_workers(behave, ["who"] * 6, 2)]
    assert 1 <= len(set(found)) <= 2
    assert str(os.getpid()) not in found


@pytest.mark.skipif(sys.platform != "linux", reason="as Linux tells of memory")
def test_another_one_takes_the_place_of_a_worker_that_has_grown():
    """The first item is what its growth is measured from; the item that it grew by is not lost."""
    items = ["who", "who", "grow", "who", "who"]
    found = [pid for _, pid in in_workers(behave, items, 1, growth=2**25)]
    assert found[0] == found[1] == found[2] != found[3] == found[4]
    assert len({pid for _, pid in in_workers(behave, items, 1)}) == 1


@pytest.mark.slow
def test_a_report_does_not_depend_on_the_models_before(cli, tmp_path):
    """Keras makes up names of operations, and counts them on from model to model."""
    model = FIXTURES / "keras" / "tf215" / "plain_timemajor" / "model.h5"
    for name in ("a.h5", "b.h5"):
        shutil.copy(model, tmp_path / name)
    result = cli("cudnn-to-keras", "a.h5", "b.h5", "--json")
    first, second = (report["verification"]["model"] for report in json.loads(result.out))
    assert result.code == 0
    assert "transpose" in first[0]["parts"][-1]["name"]
    assert first == second


def start(directory: Path, *arguments: str) -> subprocess.Popen[str]:
    """The command line in a process group of its own."""
    code = "from rnnconvert.cli.main import main; import sys; sys.argv[0] = 'rnnconvert'; main()"
    return subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        cwd=directory,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def wait_for(path: Path, seconds: float = 60) -> None:
    until = time.monotonic() + seconds
    while not path.exists():
        assert time.monotonic() < until, f"{path} did not appear"
        time.sleep(0.05)


def all_gone(group: int, seconds: float = 20) -> bool:
    """Whether no process of a group is left; Python's own helper ends after the others."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.05)
    return False


@posix
@pytest.mark.slow
@pytest.mark.parametrize("way", ["SIGTERM", "Ctrl-C"])
@pytest.mark.corpus
def test_a_signal_ends_all_workers_and_finished_outputs_stay(tmp_path, way):
    """Two of three models have so many layers that their verification takes minutes."""
    make_model_h5(tmp_path / "a.h5", cells=["gru"], names=["only"], units=[4])
    many = [f"layer_{index}" for index in range(20)]
    for name in ("b.h5", "c.h5"):
        cells, units = ["lstm"] * len(many), [64, 48] * (len(many) // 2)
        make_model_h5(tmp_path / name, cells=cells, names=many, units=units)
    running = start(
        tmp_path, "cudnn-to-keras", "a.h5", "b.h5", "c.h5", "-j", "2", "--verify", "layers",
        "--timesteps", "20000", "--report", "report.json",
    )  # fmt: skip
    wait_for(tmp_path / "a.portable.h5")
    time.sleep(0.3)
    if way == "SIGTERM":
        running.terminate()
    else:
        os.killpg(running.pid, signal.SIGINT)
    _, err = running.communicate(timeout=60)
    assert running.returncode == 130, err
    assert err.strip().endswith("interrupted; no unfinished output is left")
    left = sorted(path.name for path in tmp_path.iterdir())
    assert left == ["a.h5", "a.portable.h5", "b.h5", "c.h5", "report.json"]
    reports = json.loads((tmp_path / "report.json").read_text())
    verdicts = {report["input"]["path"]: report["verdict"] for report in reports}
    assert verdicts["a.h5"] == "equivalent"
    assert verdicts["b.h5"] == verdicts["c.h5"] == "not-convertible"
    assert all_gone(running.pid)


@pytest.mark.slow
def test_damaged_inputs_side_by_side(cli, tmp_path):
    for name in ("a.h5", "b.h5", "c.h5"):
        make_model_h5(tmp_path / name)
    (tmp_path / "b.h5").write_bytes((tmp_path / "b.h5").read_bytes()[:3000])
    result = cli("cudnn-to-keras", "a.h5", "b.h5", "c.h5", "-j", "3", "--verify", "weights", "-q")
    assert result.code == 3
    assert result.err.startswith("error: b.h5: the HDF5 file is truncated")
    assert {path.name for path in tmp_path.glob("*.portable.h5")} == {
        "a.portable.h5",
        "c.portable.h5",
    }

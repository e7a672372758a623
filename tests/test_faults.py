"""The N-th operation on files fails, N = 1, 2, ... until a run gets by: nothing is ever lost.

What counts as an operation is told in `support/faults.py`, what is done in `support/jobs.py`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import faults
import pytest
from faults import ERRORS, Fault, failing
from helpers import snapshot
from jobs import JOBS, prepare

from rnnconvert.errors import ConversionError

DEFAULT = {("h5", "broken"), ("h5", "Ctrl-C"), ("checkpoint", "full"), ("inspect h5", "forbidden")}
"""Of the jobs and errors, those that the default tests try, and not at every operation."""


@pytest.fixture(scope="session", autouse=True)
def _listen() -> None:
    faults.listen()


def comparable(files: dict[str, bytes]) -> dict[str, Any]:
    """Reports and graphs by what shows that they are whole.

    TensorFlow numbers the functions that a process makes.
    """
    found: dict[str, Any] = dict(files)
    for name, content in files.items():
        if name == "r.json":  # a report tells of a failure too; it must be whole
            assert json.loads(content)["schema"] == 1
            del found[name]
        elif name.endswith((".pb", ".meta")) and not content.startswith(b"older"):
            found[name] = _nodes(name, content)
    return found


def _nodes(name: str, content: bytes) -> int:
    from tensorflow.core.framework.graph_pb2 import GraphDef
    from tensorflow.core.protobuf.meta_graph_pb2 import MetaGraphDef
    from tensorflow.core.protobuf.saved_model_pb2 import SavedModel

    if name.endswith("fingerprint.pb"):
        return len(content)
    if name.endswith("saved_model.pb"):
        return len(SavedModel.FromString(content).meta_graphs[0].graph_def.node)
    if name.endswith(".meta"):
        return len(MetaGraphDef.FromString(content).graph_def.node)
    return len(GraphDef.FromString(content).node)


def _cases() -> list[Any]:
    """Every job with every error, and over older files and new; most of them in the corpus."""
    found = []
    for name in JOBS:
        for error in ERRORS:
            for old in (True, False):
                marks = [] if (name, error) in DEFAULT and old else [pytest.mark.corpus]
                if not old and JOBS[name].output is None:
                    continue
                words = f"{name}-{error}-{'over older files' if old else 'new'}"
                found.append(pytest.param(name, error, old, id=words, marks=marks))
    return found


@pytest.mark.parametrize(("name", "error", "old"), _cases())
@pytest.mark.thinned(3)
def test_the_nth_operation_fails(tmp_path, monkeypatch, name, error, old):
    job, folder = JOBS[name], tmp_path / "work"
    if job.needs:
        pytest.importorskip(job.needs)
    monkeypatch.setattr(tempfile, "tempdir", str(folder / "scratch"))

    def run(at: int) -> tuple[Fault, dict[str, Any], dict[str, Any], BaseException | None]:
        source, output = prepare(folder, job, old=old)
        before = comparable(snapshot(folder))
        fault, raised = Fault(str(folder), at, ERRORS[error]), None
        with failing(fault):
            try:
                job.run(source, output, force=old)
            except (ConversionError, KeyboardInterrupt) as caught:
                raised = caught
        return fault, before, comparable(snapshot(folder)), raised

    _, _, complete, _ = run(0)
    for at in faults.numbers(f"{name} {error} {old}"):
        fault, before, after, raised = run(at)
        if len(fault.done) < at:
            break
        told = f"operation {at}, {fault.done[-1]}: {raised!r}"
        assert after in (before, complete), told
        if raised is None:  # only what may fail: directories are flushed where that is possible
            assert after == complete, told
        elif error != "Ctrl-C":
            assert isinstance(raised, ConversionError), told
            assert raised.exit_code in (3, 5), told
    assert at > 3
    assert raised is None
    assert after == complete


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize("old", ["old", "new"])
@pytest.mark.parametrize(
    "name",
    [pytest.param(each, marks=[] if each == "h5" else [pytest.mark.corpus]) for each in JOBS],
)
@pytest.mark.sampled(2)
@pytest.mark.thinned(2)
def test_a_kill_at_the_nth_operation(tmp_path, name, old):
    """In a process of its own, which forks: the target is the old or the new, the input untouched.

    Nothing else is left but what has the prefix of temporary files.
    """
    if JOBS[name].needs:
        pytest.importorskip(JOBS[name].needs)
    words = [sys.executable, faults.__file__, name, str(tmp_path / "work"), old]
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
    done = subprocess.run(words, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith(" kills\n")
    assert done.stdout.count("\n") == 1, done.stdout


def test_every_kind_and_command_is_among_the_jobs():
    """Whatever is added to the kinds is to be added to the jobs."""
    from rnnconvert.kinds import kind_of

    with tempfile.TemporaryDirectory() as name:
        made = {}
        for number, (words, job) in enumerate(JOBS.items()):
            folder = Path(name) / str(number)
            folder.mkdir()
            made[words] = kind_of(job.make(folder)).name
    kinds = {
        "KERAS_H5",
        "KERAS_WEIGHTS",
        "KERAS",
        "SAVED_MODEL",
        "GRAPH",
        "META_GRAPH",
        "CHECKPOINT",
    }
    assert set(made.values()) == kinds
    assert {job.command for job in JOBS.values()} == {"convert", "verify", "inspect"}

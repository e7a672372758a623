"""The N-th operation on files fails, N = 1, 2, ... until a run gets by: nothing is ever lost.

Operations are those that Python itself reports of (opening, renaming, making directories), flushing
to disk, and HDF5's writes. Removing what is temporary is left out: where that fails, it is left.
"""

from __future__ import annotations

import errno
import io
import os
import shutil
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import make_model_h5, snapshot

import rnnconvert
from rnnconvert.containers.checkpoint import write_checkpoint
from rnnconvert.containers.h5_stream import Stream
from rnnconvert.errors import ConversionError

FIXTURES = Path(__file__).parents[1] / "fixtures"
EVENTS = ("open", "os.rename", "os.mkdir", "os.chmod", "tempfile.mkstemp", "tempfile.mkdtemp")
ERRORS: dict[str, BaseException] = {
    "broken": OSError(errno.EIO, "Input/output error"),
    "full": OSError(errno.ENOSPC, "No space left on device"),
    "forbidden": PermissionError(errno.EACCES, "Permission denied"),
    "Ctrl-C": KeyboardInterrupt(),
}


@dataclass
class Fault:
    """Fails one operation on files below `folder`.

    Attributes:
        at: which one fails, counted from 1; 0 for none.
        done: the operations so far.
    """

    folder: str
    at: int
    error: BaseException
    done: list[str] = field(default_factory=list)

    def __call__(self, name: str, path: Any = None) -> None:
        if path is not None and not os.fspath(path).startswith(self.folder):
            return
        self.done.append(name)
        if len(self.done) == self.at:
            raise self.error


_current: Fault | None = None


def _hook(event: str, arguments: tuple[Any, ...]) -> None:
    if _current is None or event not in EVENTS or not arguments:
        return
    path = arguments[0]
    if event == "open" and isinstance(path, str) and os.path.isdir(path):
        return  # to remove what is in it
    if isinstance(path, str | bytes | os.PathLike):
        _current(event, os.fsdecode(path))


@pytest.fixture(scope="session", autouse=True)
def _listen() -> None:
    sys.addaudithook(_hook)  # for good: Python can't take it back


@contextmanager
def failing(fault: Fault) -> Iterator[None]:
    global _current
    with pytest.MonkeyPatch.context() as monkeypatch:
        for owner, name in ((os, "fsync"), (Stream, "_put")):
            original = getattr(owner, name)

            def call(*arguments: Any, name: str = name, original: Any = original) -> Any:
                if _current is not None:
                    _current(name)
                return original(*arguments)

            monkeypatch.setattr(owner, name, call)
        _current = fault
        try:
            yield
        finally:
            _current = None


# --- what is converted ----------------------------------------------------------------------


def model(folder: Path) -> Path:
    return make_model_h5(folder / "m.h5", cells=["lstm"], names=["a"], units=[6])


def fixture(name: str) -> Callable[[Path], Path]:
    def copied(folder: Path) -> Path:
        source, target = FIXTURES / name, folder / Path(name).name
        if source.is_dir():
            return Path(shutil.copytree(source, target))
        for file in source.parent.glob(f"{source.stem}.*"):
            shutil.copy(file, folder)
        return target

    return copied


def checkpoint(folder: Path) -> Path:
    values = np.random.default_rng(1).normal(size=(11, 24)).astype("float32")
    cell = "a/rnn/basic_lstm_cell"
    tensors = {f"{cell}/kernel": values, f"{cell}/bias": values[0]}
    write_checkpoint(folder / "c.index", folder / "c.data-00000-of-00001", tensors)
    return folder / "c"


CELL = {"forget_bias": 1.0}
H5 = "out.h5"
JOBS: dict[str, tuple[Callable[[Path], Path], str | None, dict[str, Any]]] = {
    "h5": (model, H5, {}),
    "in place": (model, None, {"in_place": True}),
    "to keras": (model, "out.keras", {}),
    "to weights": (model, H5, {"to": "weights"}),
    "dry run": (model, H5, {"dry_run": True}),
    ".keras": (fixture("keras_zip/tf215/td_model/model.keras"), "out.keras", {}),
    ".weights.h5": (fixture("keras_zip/tf212/seq_lstm/new.weights.h5"), "out.weights.h5", {}),
    "checkpoint": (checkpoint, "out", {"names": "keras", **CELL}),
    "checkpoint to h5": (checkpoint, H5, {"to": "h5", **CELL}),
    "checkpoint to npz": (checkpoint, "out.npz", {"to": "npz", **CELL}),
    "graph": (fixture("savedmodels/tf115/frozen_keras/frozen.pb"), "out.pb", {}),
    "savedmodel": (fixture("savedmodels/tf115/keras_save/model"), "out_model", {}),
    "metagraph": (fixture("checkpoints/tf115/cudnn_lstm_raw_meta/model.ckpt.meta"), "o.meta", {}),
}
OLD = {
    "out": ["out.index", "out.data-00000-of-00001"],
    "o.meta": ["o.meta", "o.index", "o.data-00000-of-00001"],
    "out_model": ["out_model/saved_model.pb", "out_model/variables/variables.index"],
}
DEFAULT = {("h5", "broken"), ("h5", "Ctrl-C"), ("checkpoint", "full"), ("checkpoint", "Ctrl-C")}
CASES = [
    pytest.param(job, error, marks=[] if (job, error) in DEFAULT else [pytest.mark.corpus])
    for job in JOBS
    for error in ERRORS
]


def prepare(folder: Path, job: str, *, old: bool) -> tuple[Path, Path | None]:
    """An empty folder with the input, and perhaps older files where the output goes."""
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "scratch").mkdir(parents=True)
    make, output, _ = JOBS[job]
    source = make(folder)
    if old and output is not None:
        for name in OLD.get(output, [output]):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(f"older {name}".encode())
    return source, None if output is None else folder / output


def comparable(files: dict[str, bytes]) -> dict[str, Any]:
    """Files whose bytes hold the time or running numbers: what shows that they are whole."""
    found: dict[str, Any] = dict(files)
    for name, content in files.items():
        if name.endswith(".keras") and content.startswith(b"PK"):
            with zipfile.ZipFile(io.BytesIO(content)) as archive:
                assert archive.testzip() is None
                found[name] = archive.namelist()
        elif name.endswith((".pb", ".meta")) and not content.startswith(b"older"):
            found[name] = _nodes(name, content)
    return found


def _nodes(name: str, content: bytes) -> int:
    """How many nodes a graph has: TensorFlow numbers functions on, so bytes are others."""
    from tensorflow.core.framework.graph_pb2 import GraphDef
    from tensorflow.core.protobuf.meta_graph_pb2 import MetaGraphDef
    from tensorflow.core.protobuf.saved_model_pb2 import SavedModel

    if name.endswith("saved_model.pb"):
        return len(SavedModel.FromString(content).meta_graphs[0].graph_def.node)
    if name.endswith(".meta"):
        return len(MetaGraphDef.FromString(content).graph_def.node)
    return len(GraphDef.FromString(content).node)


@pytest.mark.parametrize("old", [True, False], ids=["over older files", "new"])
@pytest.mark.parametrize(("job", "error"), CASES)
def test_the_nth_operation_fails(tmp_path, monkeypatch, job, error, old):
    folder = tmp_path / "work"
    monkeypatch.setattr(tempfile, "tempdir", str(folder / "scratch"))
    options = {"verify": "none", "hashes": False, "force": old, **JOBS[job][2]}

    def run(at: int) -> tuple[Fault, dict[str, bytes], dict[str, bytes], BaseException | None]:
        source, output = prepare(folder, job, old=old)
        before = comparable(snapshot(folder))
        fault, raised = Fault(str(folder), at, ERRORS[error]), None
        with failing(fault):
            try:
                rnnconvert.convert(source, output, **options)
            except (ConversionError, KeyboardInterrupt) as caught:
                raised = caught
        return fault, before, comparable(snapshot(folder)), raised

    _, _, complete, _ = run(0)
    for at in _numbers():
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
    assert at > 5
    assert raised is None
    assert after == complete


def _numbers() -> Iterator[int]:
    """1, 2, 3, ... and in steps that grow later, where one write is as another."""
    at = 1
    while at < 5000:
        yield at
        at += max(1, at // 15)

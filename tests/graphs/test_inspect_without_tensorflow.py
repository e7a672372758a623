"""`inspect` of graphs where TensorFlow is not installed: the same ops, and no wrong size."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import pytest
from models import ROOT, SHARED

from rnnconvert.containers.checkpoint.wire import encode_part
from rnnconvert.errors import UnreadableInputError
from rnnconvert.graphs import inspect as graphs
from rnnconvert.kinds import Kind
from rnnconvert.options import Options
from rnnconvert.verification.frameworks import CannotRun

FIXTURES = ROOT / "fixtures"
SIZES = ("num_layers", "units", "input_size")
CASES = [
    FIXTURES / "savedmodels" / "tf112" / "contrib_table" / "model",
    FIXTURES / "savedmodels" / "tf115" / "keras_save" / "model",
    FIXTURES / "savedmodels" / "tf115" / "frozen_keras" / "frozen.pb",
    FIXTURES / "savedmodels" / "tf215" / "ops_loop" / "model",
    FIXTURES / "savedmodels" / "tf215" / "plain_lstm_gru" / "model",
    FIXTURES / "savedmodels" / "tf215" / "plain_untraced" / "model",
    FIXTURES / "checkpoints" / "tf115" / "cudnn_lstm_adam" / "model.ckpt.meta",
]


def kind_of(path: Path) -> Kind:
    kinds = {".meta": Kind.META_GRAPH, ".pb": Kind.GRAPH}
    return Kind.SAVED_MODEL if path.is_dir() else kinds[path.suffix]


def both_ways(path: Path, monkeypatch) -> list[graphs.GraphInspection]:  # type: ignore[no-untyped-def]
    """With TensorFlow, and without."""

    def missing() -> None:
        raise CannotRun("TensorFlow can't be imported")

    options = Options(hashes=False)
    found = [graphs.inspect_graph(path, kind_of(path), options)]
    with monkeypatch.context() as patch:
        patch.setattr(graphs, "import_tensorflow", missing)
        return [*found, graphs.inspect_graph(path, kind_of(path), options)]


def agree(path: Path, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    full, plain = both_ways(path, monkeypatch)
    assert [op.place for op in plain.ops] == [op.place for op in full.ops]
    for one, other in zip(full.ops, plain.ops, strict=True):
        for field in dataclasses.fields(one):
            first, second = getattr(one, field.name), getattr(other, field.name)
            unknown = (
                field.name == "problem"
                or (field.name in SIZES and None in (first, second))
                or (field.name.startswith("params") and other.params_kind == "unknown")
            )
            assert unknown or first == second, (one.place, field.name)
    assert set(plain.signatures) == set(full.signatures)
    for name in ("verdict", "has_keras_config", "only_rebuilds", "input"):
        assert getattr(plain, name) == getattr(full, name), name


@pytest.mark.slow
@pytest.mark.parametrize("path", CASES, ids=lambda path: path.parent.name)
@pytest.mark.sampled(4)
def test_the_same_ops_and_no_wrong_size(path, monkeypatch):
    pytest.importorskip("tensorflow")
    agree(path, monkeypatch)


def _all_graphs() -> list[Path]:
    roots = (FIXTURES, SHARED / "fixtures")
    saved = [path.parent for root in roots for path in root.rglob("saved_model.pb")]
    others = [path for root in roots for path in root.rglob("*.meta")]
    return sorted([*saved, *others])


@pytest.mark.corpus
@pytest.mark.parametrize("path", _all_graphs(), ids=str)
def test_so_in_every_graph(path, monkeypatch):
    pytest.importorskip("tensorflow")
    agree(path, monkeypatch)


def test_it_needs_no_tensorflow_at_all():
    """In a process that can't import it, nor what it brings along."""
    block = "import sys; sys.modules.update({'tensorflow': None, 'google': None}); "
    run = "from rnnconvert.cli.main import main; main()"
    paths = [str(path) for path in CASES]
    done = subprocess.run(
        [sys.executable, "-c", block + run, "inspect", "--json", *paths],
        capture_output=True, text=True, cwd=ROOT, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    reports = found["reports"] if isinstance(found, dict) and "reports" in found else found
    assert len(reports) == len(CASES)
    by_name = {Path(report["input"]["path"]).parent.name: report for report in reports}
    (op,) = [o for o in by_name["contrib_table"]["layers"] if o["class_name"] == "CudnnRNN"]
    assert (op["cell"], op["direction"]) == ("lstm", "bidirectional")
    assert by_name["contrib_table"]["verdict"] == "convertible"
    assert by_name["plain_lstm_gru"]["verdict"] == "nothing-to-convert"
    assert "without TensorFlow" in by_name["ops_loop"]["warnings"][-1]


@pytest.mark.parametrize("content", [b"", b"\xff" * 40, b"no graph at all", encode_part(1, b"")])
def test_what_is_no_graph_is_refused(content, tmp_path, cli, monkeypatch):
    def missing() -> None:
        raise CannotRun("TensorFlow can't be imported")

    monkeypatch.setattr(graphs, "import_tensorflow", missing)
    path = tmp_path / "model.pb"
    path.write_bytes(content)
    done = cli("inspect", path)
    assert (done.code, done.err.count("error:")) == (3, 1)
    assert "bug of rnnconvert" not in done.err


def test_damage_inside_a_node_is_refused(tmp_path, monkeypatch):
    """An attribute of a node is read only when it is asked for."""
    node = encode_part(1, b"y") + encode_part(2, b"NoOp") + encode_part(5, b"\x0a\x7f")
    (tmp_path / "model.pb").write_bytes(encode_part(1, node))

    def missing() -> None:
        raise CannotRun("TensorFlow can't be imported")

    monkeypatch.setattr(graphs, "import_tensorflow", missing)
    with pytest.raises(UnreadableInputError, match="the file is damaged"):
        graphs.inspect_graph(tmp_path / "model.pb", Kind.GRAPH, Options(hashes=False))

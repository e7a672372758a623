"""Damaged SavedModels and MetaGraphs on which TensorFlow's own reader aborts or raises."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

pytest.importorskip("tensorflow", reason="TensorFlow is not installed")

from graph_attacks import MAKERS
from models import ROOT, SHARED

from rnnconvert.containers.checkpoint import open_checkpoint
from rnnconvert.graphs import lowering

pytestmark = pytest.mark.slow
ATTACKS = sorted((SHARED / "attacks").glob("tf*_*/*"))


@pytest.mark.skipif(not ATTACKS, reason=f"{SHARED} is not here")
@pytest.mark.parametrize("path", ATTACKS, ids=lambda path: path.parent.name)
def test_each_ends_with_one_line(path, cli):
    source = path / "model.meta" if (path / "model.meta").exists() else path
    for command in (("inspect",), ("cudnn-to-keras", "--check"), ("cudnn-to-keras", "-o", "new")):
        done = cli(*command, source)
        inspected = command == ("inspect",) and done.code == 0  # an empty .meta: the checkpoint
        assert inspected or (done.code in (3, 4) and done.err.count("error:") == 1), command
        assert "bug of rnnconvert" not in done.err


@pytest.mark.parametrize("wrong", [b"\x0e", b"\x07"], ids=["unknown wire type", "end of group"])
def test_an_index_is_not_read_by_tensorflow(wrong, cli, tmp_path):
    """The first bytes of the table's entries are made nonsense, with a checksum that is not."""
    source = ROOT / "fixtures" / "savedmodels" / "tf15" / "contrib_lstm" / "model"
    model = Path(shutil.copytree(source, tmp_path / "model"))
    index = model / "variables" / "variables.index"
    name = next(iter(open_checkpoint(model / "variables" / "variables").variables)).encode()
    content = index.read_bytes()
    at = content.index(name) + len(name)
    index.write_bytes(content[:at] + wrong + content[at + 1 :])
    for command in ("inspect", "cudnn-to-keras"):
        done = cli(command, model)
        assert (done.code, done.err.count("\n")) == (3, 1)
        assert "variables.index" in done.err


@pytest.mark.parametrize("where", ["object graph", "debug information"])
def test_what_only_tensorflows_loader_stumbles_on_is_a_reason(where, cli, tmp_path):
    """It raises all kinds of things; the level says so, and nothing ends in a traceback."""
    source = ROOT / "fixtures" / "savedmodels" / "tf215" / "ops_v3" / "model"
    model = Path(shutil.copytree(source, tmp_path / "model"))
    if where == "debug information":
        (model / "debug").mkdir()
        (model / "debug" / "saved_model_debug_info.pb").write_bytes(b"\xff" * 9)
    else:
        proto = lowering.read_saved_model(model)
        for node in proto.meta_graphs[0].object_graph_def.nodes:
            for child in node.children:
                child.node_id = 10**6
        (model / "saved_model.pb").write_bytes(proto.SerializeToString())
    done = cli("cudnn-to-keras", model, "-o", "new", "--json")
    assert done.code == 0
    first = json.loads(done.out)["verification"]["model"][0]
    assert (first["status"], "the original does not load" in first["reason"]) == ("skipped", True)


def test_a_training_graph_that_does_not_load_is_skipped_with_the_reason(tmp_path):
    meta = MAKERS["meta"](tmp_path, None)
    proto = lowering.read_meta_graph(meta)
    proto.graph_def.node.add(name="mine", op="MyCompanysOp", input=["y"])
    meta.write_bytes(proto.SerializeToString())
    lowering.lower_meta_graph_file(meta, tmp_path / "new.meta")
    (result,) = lowering.verify_meta_graph(meta, tmp_path / "new.meta", allow_code=True)
    assert result.status == "skipped"
    assert "the original does not load" in result.reason


def test_so_is_one_whose_checkpoint_lacks_a_variable(tmp_path):
    """The original can't be restored either: that is no difference."""
    meta = MAKERS["meta"](tmp_path, None)
    content = meta.read_bytes()
    proto = lowering.read_meta_graph(meta)
    (names,) = [n for n in proto.graph_def.node if n.name == "save/RestoreV2/tensor_names"]
    assert names.attr["value"].tensor.string_val[:] == [b"buffer"]
    names.attr["value"].tensor.string_val[0] = b"butter"
    meta.write_bytes(proto.SerializeToString())
    assert meta.read_bytes() != content
    lowering.lower_meta_graph_file(meta, tmp_path / "new.meta")
    (result,) = lowering.verify_meta_graph(meta, tmp_path / "new.meta")
    assert result.status == "skipped"
    assert "the original does not load" in result.reason

"""`rnnconvert verify` for graphs, checkpoints and Keras models in other containers."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import h5py
import numpy as np
import pytest
from models import ROOT

import rnnconvert
from rnnconvert import DifferenceError, NotConvertibleError
from rnnconvert.containers.checkpoint import open_checkpoint, write_checkpoint

pytestmark = pytest.mark.slow
CHECKPOINTS = ROOT / "fixtures" / "checkpoints"
SAVED = ROOT / "fixtures" / "savedmodels"
STACKS = [CHECKPOINTS / "tf115" / name for name in ("cudnn_lstm_bi2", "cudnn_gru", "cudnn_tanh2")]


def statuses(report) -> list[str]:
    return [level.status for _, level in report.levels if level.device != "gpu"]


# --- checkpoints ----------------------------------------------------------------------------


@pytest.mark.parametrize("case", STACKS, ids=lambda path: path.name)
@pytest.mark.parametrize("to", ["checkpoint", "h5", "keras"])
@pytest.mark.sampled(2)
def test_a_checkpoint_against_what_was_made_of_it(case, to, tmp_path):
    if to == "keras":
        pytest.importorskip("keras.ops", reason="Keras 3 is not installed")
    output = tmp_path / {"checkpoint": "out", "h5": "out.h5", "keras": "out.keras"}[to]
    rnnconvert.convert(case, output, to=to, verify="none")
    for pair in ((case, output), (output, case)):
        report = rnnconvert.verify(*pair)
        assert statuses(report) == ["passed", "passed", "skipped"]
        assert report.is_equivalent
        assert [info.path for info in (report.input, report.output)] == [str(p) for p in pair]
        containers = {report.input.container, report.output.container}
        other = {"checkpoint": "tf-checkpoint-v2", "h5": "keras-h5-model", "keras": "keras"}[to]
        assert other in containers


@pytest.mark.parametrize("part", ["kernel", "recurrent_kernel", "bias"])
def test_one_number_in_a_keras_file_is_found(part, tmp_path):
    rnnconvert.convert(STACKS[0], tmp_path / "out.h5", to="h5", verify="none")
    with h5py.File(tmp_path / "out.h5", "r+") as file:
        found = []
        file.visit(lambda name: found.append(name) if name.endswith(f"/{part}:0") else None)
        file[found[-1]][..., 0] += 1e-3
    with pytest.raises(DifferenceError, match="level weights"):
        rnnconvert.verify(STACKS[0], tmp_path / "out.h5")


def test_layers_of_a_bidirectional_in_the_other_order_are_found(tmp_path):
    """Forward and backward exchanged in the file, with all names right."""
    rnnconvert.convert(STACKS[0], tmp_path / "out.h5", to="h5", verify="none")
    with h5py.File(tmp_path / "out.h5", "r+") as file:
        found = []
        file.visit(lambda name: found.append(name) if name.endswith("/kernel:0") else None)
        one, other = found[0], found[1]
        assert "forward" in one + other
        assert "backward" in one + other
        first, second = file[one][()], file[other][()]
        file[one][...], file[other][...] = second, first
    with pytest.raises(DifferenceError, match="kernel differs"):
        rnnconvert.verify(STACKS[0], tmp_path / "out.h5")


def test_a_variable_of_a_checkpoint_that_differs(tmp_path):
    rnnconvert.convert(STACKS[0], tmp_path / "out", to="checkpoint", verify="none")
    written = open_checkpoint(tmp_path / "out")
    arrays = {name: written.read(name) for name in written.variables}
    name = next(name for name in arrays if name.endswith("kernel"))
    arrays[name] = arrays[name] * 1.001
    write_checkpoint(tmp_path / "other.index", tmp_path / "other.data-00000-of-00001", arrays)
    with pytest.raises(DifferenceError, match="level weights"):
        rnnconvert.verify(tmp_path / "out", tmp_path / "other")


def test_stacks_of_other_sizes(tmp_path):
    rnnconvert.convert(STACKS[0], tmp_path / "out.h5", to="h5", verify="none")
    other = CHECKPOINTS / "tf115" / "cudnn_lstm"
    with pytest.raises(NotConvertibleError, match="be compared"):
        rnnconvert.verify(other, tmp_path / "out.h5")


# --- graphs ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def lowered(tmp_path_factory) -> tuple[Path, Path]:
    pytest.importorskip("tensorflow", reason="TensorFlow is not installed")
    source = SAVED / "tf115" / "contrib_gru_bi2" / "model"
    output = tmp_path_factory.mktemp("graphs") / "lowered"
    rnnconvert.convert(source, output, verify="none")
    return source, output


@pytest.mark.corpus
def test_a_savedmodel_against_the_lowered_one_both_ways_round(lowered):
    for pair in (lowered, lowered[::-1], (lowered[0], lowered[0])):
        report = rnnconvert.verify(*pair)
        assert statuses(report) == ["passed", "skipped", "passed"]
        assert report.is_equivalent


def test_another_variable_is_found(lowered, tmp_path):
    other = Path(shutil.copytree(lowered[1], tmp_path / "other"))
    prefix = other / "variables" / "variables"
    found = open_checkpoint(prefix)
    arrays = {name: found.read(name) for name in found.variables}
    for file in found.files:
        file.unlink()
    arrays["dense/kernel"] = arrays["dense/kernel"] + np.float32(0.01)
    write_checkpoint(
        prefix.with_name("variables.index"),
        prefix.with_name("variables.data-00000-of-00001"),
        arrays,
    )
    with pytest.raises(DifferenceError, match="the variable dense/kernel differs") as caught:
        rnnconvert.verify(lowered[0], other)
    assert [level.status for _, level in caught.value.report.levels][2] == "failed"


def test_a_keras_savedmodel_against_the_keras_file_made_of_it(tmp_path):
    pytest.importorskip("keras.ops", reason="Keras 3 is not installed")
    source = next(path for path in sorted(SAVED.glob("*/keras_save/model")))
    rnnconvert.convert(source, tmp_path / "out.h5", to="h5", verify="none")
    assert statuses(rnnconvert.verify(source, tmp_path / "out.h5")) == ["passed"] * 3


@pytest.mark.corpus
def test_the_command_checks_the_hashes_of_a_savedmodel(cli, lowered, tmp_path):
    done = cli("cudnn-to-keras", lowered[0], "-o", "out", "--report", "r.json")
    assert done.code == 0
    assert cli("verify", lowered[0], "out", "--report", "r.json").code == 0
    (tmp_path / "out" / "assets").mkdir(exist_ok=True)
    (tmp_path / "out" / "assets" / "more.txt").write_text("changed")
    changed = cli("verify", lowered[0], "out", "--report", "r.json")
    assert changed.code == 1
    assert "SHA-256" in changed.err
    assert json.loads((tmp_path / "r.json").read_text())["verdict"] == "equivalent"


def test_kinds_that_have_nothing_in_common(cli, lowered):
    refused = cli("verify", lowered[0], STACKS[0])
    assert refused.code == 4
    assert "a SavedModel and a checkpoint" in refused.err

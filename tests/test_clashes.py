"""No output and no report destroys an input, a part of one, or another output."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from helpers import make_model_h5, snapshot

from rnnconvert.containers.checkpoint import write_checkpoint
from rnnconvert.errors import OutputError, UsageError
from rnnconvert.outputs import Footprint, check_report, refuse_clashes, refuse_overlap

FIXTURES = Path(__file__).parents[1] / "fixtures"


def refused(cli, directory: Path, *arguments: object, code: int = 2) -> str:
    """The message of a command that must change nothing."""
    before = snapshot(directory)
    result = cli(*arguments)
    assert result.code == code, result.err
    assert len(result.err.splitlines()) == 1
    assert snapshot(directory) == before
    return result.err


# --- several inputs -------------------------------------------------------------------------


@pytest.mark.parametrize("jobs", [1, 2])
def test_an_output_that_is_another_input(cli, tmp_path, jobs):
    """`m.keras` becomes m.portable.h5, which is an input as well."""
    shutil.copy(FIXTURES / "keras_zip/tf215/td_model/model.keras", tmp_path / "m.keras")
    make_model_h5(tmp_path / "m.portable.h5")
    told = refused(
        cli, tmp_path, "cudnn-to-keras", "m.keras", "m.portable.h5", "--to", "h5", "-f", "-j", jobs
    )
    assert told.endswith("m.portable.h5 is an input, and another one would be written there\n")


def test_two_kinds_that_would_be_written_to_one_place(cli, tmp_path):
    shutil.copy(FIXTURES / "keras_zip/tf215/td_model/model.keras", tmp_path / "m.keras")
    make_model_h5(tmp_path / "m.h5")
    told = refused(cli, tmp_path, "cudnn-to-keras", "m.keras", "m.h5", "--to", "h5")
    assert told == "error: several inputs would be written as m.portable.h5\n"


def test_one_input_given_twice(cli, tmp_path):
    make_model_h5(tmp_path / "m.h5")
    (tmp_path / "link.h5").symlink_to("m.h5")
    for options in ([], ["--in-place"]):
        told = refused(cli, tmp_path, "cudnn-to-keras", "m.h5", "./m.h5", *options)
        assert "several inputs would be written as" in told
    told = refused(cli, tmp_path, "cudnn-to-keras", "m.h5", "link.h5", "--in-place")
    assert "several inputs would be written as link.h5" in told


def test_inputs_that_do_not_meet(cli, tmp_path):
    for name in ("a.h5", "b.h5"):
        make_model_h5(tmp_path / name)
    assert cli("cudnn-to-keras", "a.h5", "b.h5", "--verify", "none", "-q").code == 0
    assert (tmp_path / "a.portable.h5").exists()
    assert (tmp_path / "b.portable.h5").exists()


def test_clashes_by_their_footprints(tmp_path):
    a, b, folder = tmp_path / "a", tmp_path / "b", tmp_path / "folder"
    refuse_clashes([Footprint((a,), (folder / "a",)), Footprint((b,), (folder / "b",))])
    with pytest.raises(UsageError, match="several inputs"):
        refuse_clashes([Footprint((a,), (folder,)), Footprint((b,), (tmp_path / "x/../folder",))])
    with pytest.raises(UsageError, match="is an input"):
        refuse_clashes([Footprint((a,), (b,)), Footprint((b,), (folder,))])
    with pytest.raises(UsageError, match="is an input"):  # into the directory of another
        refuse_clashes([Footprint((a,), (folder / "x",)), Footprint((folder,), (b,))])


# --- stacks of one checkpoint ---------------------------------------------------------------


def two_scopes(directory: Path) -> Path:
    """A checkpoint whose scopes a/b and a.b are one file name."""
    import numpy as np

    generator = np.random.default_rng(5)
    tensors = {}
    for scope in ("a/b", "a.b"):
        cell = f"{scope}/rnn/basic_lstm_cell"
        tensors[f"{cell}/kernel"] = generator.normal(size=(11, 24)).astype("float32")
        tensors[f"{cell}/bias"] = generator.normal(size=24).astype("float32")
    prefix = directory / "cl"
    write_checkpoint(Path(f"{prefix}.index"), Path(f"{prefix}.data-00000-of-00001"), tensors)
    return prefix


def test_two_scopes_of_one_name(cli, tmp_path):
    two_scopes(tmp_path)
    arguments = ["cudnn-to-keras", "cl", "--to", "h5", "--forget-bias", "1", "--verify", "weights"]
    told = refused(cli, tmp_path, *arguments, "-o", "models")
    assert "a/b" in told
    assert "a.b" in told
    assert "pick one with --scope" in told
    assert not (tmp_path / "models").exists()


# --- reports --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["cl.index", "cl.data-00000-of-00001", "cl.meta"])
@pytest.mark.parametrize("command", ["inspect", "cudnn-to-keras"])
def test_a_report_over_a_file_of_a_checkpoint(cli, tmp_path, name, command):
    two_scopes(tmp_path)
    told = refused(cli, tmp_path, command, "cl", "--report", name)
    assert told == f"error: {name}: the report would replace a model, or a part of one\n"


@pytest.mark.parametrize(
    "name", ["saved/saved_model.pb", "saved/variables/variables.index", "saved/r.json"]
)
def test_a_report_into_a_savedmodel(cli, tmp_path, name):
    variables = tmp_path / "saved/variables"
    variables.mkdir(parents=True)
    (tmp_path / "saved/saved_model.pb").write_bytes(b"\x08\x01")
    (variables / "variables.index").write_bytes(b"x")
    for command in (["inspect"], ["verify", "saved"], ["cudnn-to-keras", "--to", "h5"]):
        told = refused(cli, tmp_path, *command, "saved", "--report", name)
        assert "the report would replace a model, or a part of one" in told


def test_a_report_over_the_output(cli, tmp_path):
    make_model_h5(tmp_path / "m.h5")
    for output in ([], ["-o", "m.portable.h5"], ["-o", "."]):
        told = refused(
            cli, tmp_path, "cudnn-to-keras", "m.h5", "--report", "m.portable.h5", *output
        )
        assert "the report would replace a model" in told


def test_a_report_over_somebodys_file(cli, tmp_path):
    make_model_h5(tmp_path / "m.h5")
    for name, content in (("notes.txt", "my notes"), ("other.json", '{"a": 1}')):
        (tmp_path / name).write_text(content)
        told = refused(cli, tmp_path, "inspect", "m.h5", "--report", name, code=5)
        assert told == f"error: {name}: the file exists and is no report; it is kept\n"


def test_a_report_over_an_older_one(cli, tmp_path):
    for name in ("m.h5", "n.h5"):
        make_model_h5(tmp_path / name)
    for paths in (["m.h5"], ["m.h5", "n.h5"], ["n.h5"]):
        assert cli("inspect", *paths, "--report", "r.json").code == 0
    assert json.loads((tmp_path / "r.json").read_text())["input"]["path"] == "n.h5"
    (tmp_path / "empty").touch()
    assert cli("inspect", "m.h5", "--report", "empty").code == 0


def test_a_report_beside_a_checkpoint_is_fine(tmp_path):
    check_report(tmp_path / "r.json", [tmp_path / "cl.index"], is_read=False)


def test_a_report_in_a_missing_directory_is_refused_before_the_work(cli, tmp_path):
    make_model_h5(tmp_path / "m.h5")
    told = refused(cli, tmp_path, "cudnn-to-keras", "m.h5", "--report", "no/r.json", code=5)
    assert told == "error: the directory no does not exist\n"


# --- directories ----------------------------------------------------------------------------


def test_outputs_in_and_over_a_directory_of_the_input(tmp_path):
    model = tmp_path / "models/saved"
    model.mkdir(parents=True)
    refuse_overlap([model], tmp_path / "models/other")
    for output, told in (
        (model, "the same file"),
        (model / "x.h5", "inside the input"),
        (model / "variables/../y", "inside the input"),
        (tmp_path / "models", "replace what the input lies in"),
        (tmp_path, "replace what the input lies in"),
    ):
        with pytest.raises(UsageError, match=told):
            refuse_overlap([model], output)


def test_a_keras_file_of_a_savedmodel_does_not_go_into_it(cli, tmp_path):
    (tmp_path / "saved").mkdir()
    (tmp_path / "saved/saved_model.pb").write_bytes(b"\x08\x01")
    for output in ("saved/x.h5", "saved"):
        told = refused(cli, tmp_path, "cudnn-to-keras", "saved", "--to", "h5", "-o", output, "-f")
        assert "inside the input" in told


@pytest.mark.parametrize("foreign", ["notes.txt", "variables/mine.npz", "data/x"])
def test_a_directory_with_more_than_a_model_is_kept(tmp_path, foreign):
    graphs = pytest.importorskip("rnnconvert.graphs.convert")
    output = tmp_path / "saved"
    (output / "variables").mkdir(parents=True)
    (output / "assets").mkdir()
    for name in ("saved_model.pb", "variables/variables.index", "assets/vocabulary.txt"):
        (output / name).touch()
    graphs._require_replaceable(output)
    (output / foreign).parent.mkdir(exist_ok=True)
    (output / foreign).touch()
    with pytest.raises(OutputError, match="which is no part of a SavedModel, and is kept"):
        graphs._require_replaceable(output)

"""A folder of models: what is one, where its output goes, and going on after a stop."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
from helpers import make_model_h5, snapshot

from rnnconvert.commands import convert as conversion
from rnnconvert.commands.folder import Wanted, find_models, mirrored
from rnnconvert.errors import UsageError
from rnnconvert.options import Options

ROOT = Path(__file__).parents[2]
CHECKPOINT = ROOT / "fixtures" / "checkpoint_graphs" / "tf115" / "lstm_double"
FAST = ("--verify", "weights")


def small(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    return make_model_h5(path, cells=["gru"], names=["only"], units=[4])


def tree(directory: Path) -> Path:
    """A folder with three models, a damaged one, and what is no model."""
    top = directory / "models"
    small(top / "a.h5")
    small(top / "deep" / "er" / "b.hdf5")
    small(top / "deep" / "without_a_name")
    (top / "bad.h5").write_bytes((top / "a.h5").read_bytes()[:2000])
    (top / "readme.txt").write_text("text")
    (top / "deep" / "numbers.csv").write_text("1,2")
    return top


def found_in(top: Path, *include: str, exclude: tuple[str, ...] = ()):
    found = find_models([top], Wanted(include, exclude))
    return found, [model.path.relative_to(top).as_posix() for model in found.models]


# --- what is found --------------------------------------------------------------------------


def test_models_are_found_by_their_content(tmp_path):
    found, names = found_in(tree(tmp_path))
    assert names == ["a.h5", "bad.h5", "deep/er/b.hdf5", "deep/without_a_name"]
    assert (found.others, found.links, found.is_folder) == (2, 0, True)
    assert [model.below.as_posix() for model in found.models] == [".", ".", "deep/er", "deep"]


def test_hdf5_and_zip_files_of_other_programs_are_left_alone(tmp_path):
    import zipfile

    import h5py

    small(tmp_path / "a.h5")
    with h5py.File(tmp_path / "data.h5", "w") as file:
        file["temperature"] = [1.0, 2.0]
    with zipfile.ZipFile(tmp_path / "data.zip", "w") as archive:
        archive.writestr("numbers.txt", "1")
    found, names = found_in(tmp_path)
    assert (names, found.others) == (["a.h5"], 2)


def test_what_has_the_name_of_a_model_and_is_none_is_not_passed_over(tmp_path):
    small(tmp_path / "a.h5")
    (tmp_path / "empty.h5").write_bytes(b"")
    (tmp_path / "page.keras").write_text("<html>not found</html>")
    assert found_in(tmp_path)[1] == ["a.h5", "empty.h5", "page.keras"]


@pytest.mark.parametrize(
    ("include", "exclude", "names"),
    [
        (("*.h5",), (), ["a.h5", "bad.h5"]),
        (("deep/*",), (), ["deep/er/b.hdf5", "deep/without_a_name"]),
        ((), ("er",), ["a.h5", "bad.h5", "deep/without_a_name"]),
        ((), ("deep/er/*", "bad*"), ["a.h5", "deep/without_a_name"]),
        (("*.h5", "*.hdf5"), ("bad.h5",), ["a.h5", "deep/er/b.hdf5"]),
    ],
)
def test_include_and_exclude(tmp_path, include, exclude, names):
    assert found_in(tree(tmp_path), *include, exclude=exclude)[1] == names


def test_nothing_left_is_a_usage_error(tmp_path):
    with pytest.raises(UsageError, match="no model is left"):
        found_in(tree(tmp_path), "*.pb")


def test_a_savedmodel_is_one_model(tmp_path):
    inner = tmp_path / "a" / "saved"
    (inner / "variables").mkdir(parents=True)
    (inner / "saved_model.pb").write_bytes(b"")
    (inner / "variables" / "variables.index").write_bytes(b"")
    broken = tmp_path / "broken" / "variables"  # its graph was not copied
    broken.mkdir(parents=True)
    (broken / "variables.index").write_bytes(b"")
    (tmp_path / "assets").mkdir()
    small(tmp_path / "assets" / "b.h5")
    assert found_in(tmp_path)[1] == ["a/saved", "assets/b.h5", "broken"]


def test_a_checkpoint_directory_is_one_model_and_hides_no_other(tmp_path):
    run = tmp_path / "run"
    shutil.copytree(CHECKPOINT, run)
    (run / "checkpoint").write_text('model_checkpoint_path: "model.ckpt"\n')
    assert found_in(run) == (found_in(run)[0], ["."])
    assert not found_in(run)[0].is_folder
    small(run / "final" / "m.h5")
    assert found_in(tmp_path)[1] == ["run", "run/final/m.h5"]


def test_each_checkpoint_of_a_directory_without_a_state_file(tmp_path):
    for prefix in ("one", "two"):
        for file in CHECKPOINT.glob("model.ckpt.*"):
            shutil.copy(file, tmp_path / file.name.replace("model.ckpt", prefix))
    assert found_in(tmp_path)[1] == ["one", "two"]


@pytest.mark.skipif(os.name != "posix", reason="symbolic links")
def test_no_link_leads_out_of_the_folder(tmp_path):
    top = tree(tmp_path)
    outside = small(tmp_path / "outside" / "secret.h5")
    (top / "secret.h5").symlink_to(outside)
    (top / "folder").symlink_to(outside.parent)
    (top / "loop").symlink_to(top)
    (top / "dangling.h5").symlink_to("nowhere")
    (top / "same.h5").symlink_to("a.h5")
    found, names = found_in(top)
    assert names == ["a.h5", "bad.h5", "deep/er/b.hdf5", "deep/without_a_name", "same.h5"]
    assert found.links == 4


# --- converting a folder --------------------------------------------------------------------


def test_a_folder_is_mirrored_and_a_bad_file_stops_nothing(cli, tmp_path):
    before = snapshot(tree(tmp_path))
    result = cli("cudnn-to-keras", "models", "-o", "portable", *FAST, "--report", "r.json")
    assert result.code == 3
    assert sorted(snapshot(tmp_path / "portable")) == [
        "a.portable.h5", "deep/er/b.portable.hdf5", "deep/without_a_name.portable.h5",
    ]  # fmt: skip
    assert snapshot(tmp_path / "models") == before
    assert result.out.splitlines()[-2:] == [
        "4 inputs: 3 converted, 1 can't be read", "2 other files left alone",
    ]  # fmt: skip
    assert result.err.startswith("error: models/bad.h5: the HDF5 file is truncated")
    reports = json.loads((tmp_path / "r.json").read_text())
    assert [report["input"]["path"] for report in reports] == [
        "models/a.h5", "models/bad.h5", "models/deep/er/b.hdf5", "models/deep/without_a_name",
    ]  # fmt: skip


def test_an_output_folder_in_the_folder_is_not_walked(cli, tmp_path):
    tree(tmp_path)
    arguments = ["cudnn-to-keras", "models", "-o", "models/portable", *FAST, "--exclude", "bad*"]
    assert cli(*arguments).code == 0
    again = cli(*arguments, "--force")
    assert "3 inputs: 3 converted" in again.out


@pytest.mark.parametrize(("option", "code"), [("--check", 1), ("--dry-run", 0)])
def test_nothing_is_made_where_nothing_is_written(cli, tmp_path, option, code):
    tree(tmp_path)
    before = snapshot(tmp_path)
    result = cli("cudnn-to-keras", "models", "-o", "portable", *FAST, option, "--exclude", "bad*")
    assert result.code == code
    assert snapshot(tmp_path) == before
    assert not (tmp_path / "portable").exists()


def test_directories_of_failed_conversions_are_not_left(cli, tmp_path):
    tree(tmp_path)
    shutil.move(tmp_path / "models" / "bad.h5", tmp_path / "models" / "deep" / "er" / "b.hdf5")
    assert cli("cudnn-to-keras", "models", "-o", "out/portable", *FAST).code == 3
    assert not (tmp_path / "out" / "portable" / "deep" / "er").exists()
    assert (tmp_path / "out" / "portable" / "deep").exists()


def test_two_folders_must_not_meet_in_one(cli, tmp_path):
    small(tmp_path / "one" / "x" / "m.h5")
    small(tmp_path / "two" / "x" / "m.h5")
    before = snapshot(tmp_path)
    result = cli("cudnn-to-keras", "one", "two", "-o", "out", *FAST)
    assert result.code == 2
    assert "several inputs would be written as out/x/m.portable.h5" in result.err
    assert snapshot(tmp_path) == before
    assert not (tmp_path / "out").exists()


def test_a_file_where_the_output_folder_should_be(cli, tmp_path):
    tree(tmp_path)
    (tmp_path / "out").write_text("mine")
    assert cli("cudnn-to-keras", "models", "-o", "out", *FAST).code == 2
    assert (tmp_path / "out").read_text() == "mine"


@pytest.mark.parametrize(("to", "target"), [(None, "out/a/saved.portable"), ("keras", "out/a")])
def test_each_savedmodel_becomes_a_directory_of_its_own(tmp_path, to, target):
    saved = tmp_path / "models" / "a" / "saved"
    saved.mkdir(parents=True)
    (saved / "saved_model.pb").write_bytes(b"")
    found = find_models([tmp_path / "models"], Wanted())
    with mirrored(found.models, tmp_path / "out", Options(to=to)) as targets:
        assert targets == [tmp_path / target]
        assert (tmp_path / "out" / "a").is_dir()
    assert not (tmp_path / "out").exists()  # nothing was written into it


def test_a_folder_without_a_model_is_an_error(cli, tmp_path):
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "readme.txt").write_text("text")
    result = cli("cudnn-to-keras", "models", "-o", "out")
    assert result.code == 3
    assert "a directory without a model" in result.err


def test_inspect_walks_a_folder(cli, tmp_path):
    tree(tmp_path)
    result = cli("inspect", "models", "--exclude", "bad*")
    assert result.code == 0
    assert "3 inputs: 3 convertible" in result.out
    assert cli("inspect", "models").code == 3


@pytest.mark.slow
def test_a_folder_by_several_processes(cli, tmp_path):
    tree(tmp_path)
    assert cli("cudnn-to-keras", "models", "-o", "one", *FAST).code == 3
    assert cli("cudnn-to-keras", "models", "-o", "two", *FAST, "-j", "2").code == 3
    assert snapshot(tmp_path / "one") == snapshot(tmp_path / "two")


# --- stopped and resumed --------------------------------------------------------------------

RESUMED = ("cudnn-to-keras", "models", "-o", "out", *FAST, "--report", "r.json", "--resume")


@pytest.fixture
def calls(monkeypatch):
    """The names of what is converted; a file called "stop.h5" interrupts."""
    real, names = conversion.convert_path, []

    def convert_path(source, output, options):
        if source.name == "stop.h5":
            raise KeyboardInterrupt
        names.append(source.name)
        return real(source, output, options)

    monkeypatch.setattr(conversion, "convert_path", convert_path)
    return names


def test_a_stopped_run_goes_on_where_it_was(cli, tmp_path, calls):
    for name in ("a.h5", "b.h5", "stop.h5", "z.h5"):
        small(tmp_path / "models" / name)
    assert cli(*RESUMED).code == 130
    assert calls == ["a.h5", "b.h5"]
    verdicts = [each["verdict"] for each in json.loads((tmp_path / "r.json").read_text())]
    assert verdicts == ["equivalent", "equivalent", "not-convertible", "not-convertible"]
    before = snapshot(tmp_path / "out")
    (tmp_path / "models" / "stop.h5").rename(tmp_path / "models" / "c.h5")
    calls.clear()
    result = cli(*RESUMED)
    assert (result.code, calls) == (0, ["c.h5", "z.h5"])
    assert "4 inputs: 2 done before, 2 converted" in result.out
    assert snapshot(tmp_path / "out").items() >= before.items()
    calls.clear()
    assert (cli(*RESUMED).code, calls) == (0, [])
    assert len(json.loads((tmp_path / "r.json").read_text())) == 4


def test_a_killed_run_has_saved_its_report(cli, tmp_path, monkeypatch):
    for name in ("a.h5", "b.h5"):
        small(tmp_path / "models" / name)
    real = conversion.convert_path

    def killed(source, output, options):
        if source.name == "b.h5":
            os._exit(9)
        return real(source, output, options)

    monkeypatch.setattr(conversion, "convert_path", killed)
    child = os.fork()
    if not child:
        cli(*RESUMED)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    reports = json.loads((tmp_path / "r.json").read_text())
    assert [report["input"]["path"] for report in reports] == ["models/a.h5"]


@pytest.mark.parametrize(
    "change",
    ["input", "output", "options", "version", "missing"],
)
def test_what_is_not_as_the_report_says_is_done_again(cli, tmp_path, calls, change):
    small(tmp_path / "models" / "a.h5")
    small(tmp_path / "models" / "b.h5")
    assert cli(*RESUMED).code == 0
    calls.clear()
    arguments = [*RESUMED, "--force"]
    if change == "input":
        make_model_h5(tmp_path / "models" / "a.h5", cells=["gru"], names=["other"], units=[4])
    elif change == "output":
        (tmp_path / "out" / "a.portable.h5").write_bytes(b"damaged")
    elif change == "missing":
        (tmp_path / "out" / "a.portable.h5").unlink()
    elif change == "options":
        arguments += ["--target", "keras2"]
    else:
        reports = json.loads((tmp_path / "r.json").read_text())
        reports[0]["tool"]["rnnconvert"] = "0.0.1"
        (tmp_path / "r.json").write_text(json.dumps(reports))
    assert cli(*arguments).code == 0
    assert calls == (["a.h5", "b.h5"] if change == "options" else ["a.h5"])


def test_a_checkpoint_is_resumed_too(cli, tmp_path, calls):
    (tmp_path / "models" / "run").mkdir(parents=True)
    for file in CHECKPOINT.glob("model.ckpt.*"):
        shutil.copy(file, tmp_path / "models" / "run" / file.name)
    small(tmp_path / "models" / "m.h5")
    first = cli(*RESUMED)
    assert first.code == 0, first.err
    calls.clear()
    assert (cli(*RESUMED).code, calls) == (0, [])


def test_resume_needs_a_report(cli, tmp_path):
    tree(tmp_path)
    assert cli("cudnn-to-keras", "models", "-o", "out", "--resume").code == 2
    (tmp_path / "r.json").write_text("[1, 2]")
    assert cli(*RESUMED).code == 5  # it is no report, and is kept
    assert (tmp_path / "r.json").read_text() == "[1, 2]"

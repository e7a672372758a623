"""Models in object stores: what is found, what is written, and what is refused."""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import h5py
import pytest
from clusters import ROOT, dask_cluster
from helpers import make_model_h5, snapshot

import rnnconvert
from rnnconvert.commands import convert as conversion
from rnnconvert.errors import OutputError, UnreadableInputError
from rnnconvert.options import Options

FIXTURES = Path(__file__).parents[2] / "fixtures"
FAST = ("--verify", "weights")


def model(path: Path, name: str = "only") -> bytes:
    path.parent.mkdir(parents=True, exist_ok=True)
    return make_model_h5(path, cells=["gru"], names=[name], units=[4]).read_bytes()


@pytest.fixture
def content(tmp_path_factory) -> bytes:
    return model(tmp_path_factory.mktemp("model") / "m.h5")


def converted(content: bytes, directory: Path) -> bytes:
    """What a conversion on this machine makes of a model."""
    directory.mkdir()
    (directory / "m.h5").write_bytes(content)
    rnnconvert.convert(directory / "m.h5", directory / "out.h5", verify="none")
    return (directory / "out.h5").read_bytes()


# --- one model ------------------------------------------------------------------------------


@pytest.mark.sampled(2)
def test_a_model_is_converted_beside_itself(cli, store, content, tmp_path):
    store.put("a/m.h5", content)
    result = cli("cudnn-to-keras", f"{store.top}/a/m.h5", *FAST)
    assert result.code == 0, result.err
    assert f"written {store.top}/a/m.portable.h5 (" in result.out
    assert store.all() == {
        "a/m.h5": content, "a/m.portable.h5": converted(content, tmp_path / "local"),
    }  # fmt: skip


@pytest.mark.parametrize("output", ["out/p.h5", "out/"])
@pytest.mark.sampled(2)
def test_an_output_has_the_name_that_it_is_given(cli, store, content, output):
    store.put("m.h5", content)
    assert (
        cli("cudnn-to-keras", f"{store.top}/m.h5", "-o", f"{store.top}/{output}", *FAST).code == 0
    )
    name = "out/p.h5" if output == "out/p.h5" else "out/m.portable.h5"
    assert sorted(store.all()) == ["m.h5", name]


def test_from_a_store_to_this_machine_and_back(cli, store, content, tmp_path):
    store.put("m.h5", content)
    assert cli("cudnn-to-keras", f"{store.top}/m.h5", "-o", "out.h5", *FAST).code == 0
    here = (tmp_path / "out.h5").read_bytes()
    (tmp_path / "n.h5").write_bytes(content)
    assert cli("cudnn-to-keras", "n.h5", "-o", f"{store.top}/up/", *FAST).code == 0
    assert store.all() == {"m.h5": content, "up/n.portable.h5": here}


def test_an_output_that_exists_is_kept_unless_forced(cli, store, content):
    store.put("m.h5", content)
    store.put("out.h5", b"mine")
    arguments = ("cudnn-to-keras", f"{store.top}/m.h5", "-o", f"{store.top}/out.h5", *FAST)
    result = cli(*arguments)
    assert result.code == 5
    assert result.err.startswith(f"error: {store.top}/out.h5: the output exists")
    assert store.all()["out.h5"] == b"mine"
    assert cli(*arguments, "--force").code == 0
    assert store.all()["out.h5"].startswith(b"\x89HDF")


@pytest.mark.parametrize(("option", "code"), [("--check", 1), ("--dry-run", 0)])
def test_nothing_is_written_where_nothing_should_be(cli, store, content, option, code):
    store.put("m.h5", content)
    assert cli("cudnn-to-keras", f"{store.top}/m.h5", *FAST, option).code == code
    assert list(store.all()) == ["m.h5"]


def test_inspect_verify_and_export_take_urls(store, content, tmp_path):
    pytest.importorskip("onnxruntime")
    store.put("m.h5", content)
    assert rnnconvert.inspect(f"{store.top}/m.h5").input.path == f"{store.top}/m.h5"
    rnnconvert.convert(f"{store.top}/m.h5", f"{store.top}/p.h5", verify="none")
    report = rnnconvert.verify(f"{store.top}/m.h5", f"{store.top}/p.h5", verify="layers")
    assert (report.verdict, report.output.path) == ("equivalent", f"{store.top}/p.h5")
    report = rnnconvert.export(f"{store.top}/m.h5", f"{store.top}/m.onnx")
    assert (report.verdict, report.output.path) == ("equivalent", f"{store.top}/m.onnx")
    assert sorted(store.all()) == ["m.h5", "m.onnx", "p.h5"]


def test_a_failed_conversion_uploads_nothing(cli, store, content, monkeypatch):
    store.put("m.h5", content)

    def fail(source, output, options):
        Path(output, "half.h5").write_bytes(b"half")
        raise OutputError("no room", path=str(output))

    monkeypatch.setattr("rnnconvert.commands.convert.convert_path", fail)
    result = cli("cudnn-to-keras", f"{store.top}/m.h5", "-o", f"{store.top}/out/", *FAST)
    assert (result.code, result.err) == (5, f"error: {store.top}/out: no room\n")
    assert list(store.all()) == ["m.h5"]


def test_copies_are_private(store, content, monkeypatch):
    store.put("m.h5", content)
    seen = []
    real = conversion.convert_path

    def convert_path(source, output, options):
        seen.append(stat.S_IMODE(source.parent.stat().st_mode))
        return real(source, output, options)

    monkeypatch.setattr("rnnconvert.commands.convert.convert_path", convert_path)
    rnnconvert.convert(f"{store.top}/m.h5", verify="none")
    assert seen == [0o700]


def test_in_place_is_for_local_files(cli, store, content):
    store.put("m.h5", content)
    result = cli("cudnn-to-keras", f"{store.top}/m.h5", "--in-place", *FAST)
    assert result.code == 2
    assert store.all() == {"m.h5": content}


# --- a folder -------------------------------------------------------------------------------


def tree(directory: Path) -> Path:
    top = directory / "models"
    model(top / "a.h5")
    model(top / "deep" / "er" / "b.hdf5")
    model(top / "deep" / "without_a_name")
    (top / "bad.h5").write_bytes((top / "a.h5").read_bytes()[:2000])
    (top / "readme.txt").write_text("text")
    with h5py.File(top / "data.bin", "w") as file:
        file["temperature"] = [1.0, 2.0]
    return top


def test_a_folder_becomes_what_it_becomes_on_this_machine(cli, store, tmp_path):
    top = tree(tmp_path)
    store.put_tree("models", top)
    store.put("models/", b"")  # what some tools put in place of a directory
    store.put("models-2/other.h5", b"")
    before = store.all()
    assert cli("cudnn-to-keras", "models", "-o", "here", *FAST).code == 3
    result = cli(
        "cudnn-to-keras", f"{store.top}/models/", "-o", f"{store.top}/there", *FAST,
        "--report", "r.json",
    )  # fmt: skip
    assert result.code == 3
    assert result.out.splitlines()[-2:] == [
        "4 inputs: 3 converted, 1 can't be read", "2 other files left alone",
    ]  # fmt: skip
    assert result.err.startswith(f"error: {store.top}/models/bad.h5: the HDF5 file is truncated")
    after = store.all()
    here = {f"there/{name}": data for name, data in snapshot(tmp_path / "here").items()}
    assert after == {**before, **here}
    reports = json.loads((tmp_path / "r.json").read_text())
    assert [report["input"]["path"] for report in reports] == [
        f"{store.top}/models/{name}"
        for name in ("a.h5", "bad.h5", "deep/er/b.hdf5", "deep/without_a_name")
    ]
    assert str(tmp_path) not in json.dumps(reports)
    assert list(reports[0]["output"]["stored"]) == [f"{store.top}/there/a.portable.h5"]


def test_a_folder_comes_to_this_machine(cli, store, tmp_path):
    store.put_tree("models", tree(tmp_path))
    arguments = (f"{store.top}/models", "-o", "out", *FAST, "--exclude", "bad*")
    assert cli("cudnn-to-keras", *arguments, "--include", "*.h5").code == 0
    assert sorted(snapshot(tmp_path / "out")) == ["a.portable.h5"]
    assert cli("inspect", f"{store.top}/models", "--exclude", "deep").code == 3


def test_names_that_are_no_safe_paths_are_refused_by_name(cli, store, content, tmp_path):
    bad = ["../evil.h5", "x/../../evil.h5", "a\\b.h5", "a//b.h5", "c.H5", "c.h5", "e\x1bc.h5"]
    # fsspec's own store has no object that is a folder too, the server takes no ends of lines.
    bad += ["d"] if store.top.startswith("s3:") else ["n\nl.h5"]
    for name in (*bad, "good.h5", "d/m.h5"):
        store.put(f"models/{name}", content)
    before = store.all()
    result = cli("cudnn-to-keras", f"{store.top}/models", "-o", "out/portable", *FAST)
    assert result.code == 3
    counts = f"{len(bad) + 2} inputs: {len(bad)} can't be read, 2 converted"
    assert result.out.splitlines()[-1] == counts
    for name in bad:
        shown = name.replace("\n", "\\n").replace("\x1b", "\\x1b")
        assert f"error: {store.top}/models/{shown}: refused as unsafe: " in result.err
    assert sorted(snapshot(tmp_path)) == [
        "out/portable/d/m.portable.h5", "out/portable/good.portable.h5",
    ]  # fmt: skip
    assert store.all() == before


def test_one_bad_name(cli, store, content):
    store.put("models/a\\b.h5", content)
    result = cli("inspect", f"{store.top}/models/a\\b.h5")
    assert result.code == 3
    assert "refused as unsafe: there is a backslash in its name" in result.err
    assert cli("inspect", f"{store.top}/models/..").code == 3


def test_outputs_that_would_meet_are_refused_before_any_work(cli, store, content):
    store.put("one/x/m.h5", content)
    store.put("two/x/m.h5", content)
    top = store.top
    result = cli("cudnn-to-keras", f"{top}/one", f"{top}/two", "-o", f"{top}/out", *FAST, "-f")
    assert result.code == 2
    assert f"could be written as {top}/out/x/m.portable.h5" in result.err
    store.put("one/x/m.portable.h5", content)
    assert cli("cudnn-to-keras", f"{top}/one", *FAST, "-f").code == 2
    assert sorted(store.all()) == ["one/x/m.h5", "one/x/m.portable.h5", "two/x/m.h5"]


def test_a_folder_without_a_model(cli, store):
    store.put("models/readme.txt", b"text")
    result = cli("cudnn-to-keras", f"{store.top}/models", "-o", f"{store.top}/out")
    assert (result.code, result.err) == (
        3,
        f"error: {store.top}/models: a directory without a model: no saved_model.pb and no "
        "checkpoint is in it\n",
    )


def test_nothing_of_that_name(cli, store):
    result = cli("inspect", f"{store.top}/nothing/m.h5")
    assert result.code == 3
    assert "no such object, and none below it" in result.err
    store.put("ckpt-1.notes", b"text")
    result = cli("inspect", f"{store.top}/ckpt-1")
    assert result.code == 3
    assert result.err == f"error: {store.top}/ckpt-1: no such object, and none below it\n"


def test_models_of_several_files(cli, store, tmp_path):
    checkpoint = FIXTURES / "checkpoint_graphs" / "tf115" / "lstm_double"
    store.put_tree("runs/one", checkpoint)
    store.put_tree("runs/two", checkpoint)
    store.put("runs/one/checkpoint", b'model_checkpoint_path: "model.ckpt"\n')
    options = ("--verify", "weights", "--to", "h5")
    shutil.copytree(checkpoint, tmp_path / "here")
    assert cli("inspect", f"{store.top}/runs/two/model.ckpt").code == 0
    assert cli("inspect", f"{store.top}/runs/one").code == 0
    local = cli("cudnn-to-keras", "here/model.ckpt", "-o", "out.h5", *options)
    there = cli("cudnn-to-keras", f"{store.top}/runs", "-o", f"{store.top}/out", *options)
    assert (local.code, there.code) == (0, 0), there.err
    assert "2 inputs: 2 converted" in there.out
    expected = (tmp_path / "out.h5").read_bytes()
    found = {name: data for name, data in store.all().items() if name.startswith("out/")}
    assert found == {
        "out/model.ckpt.portable.h5": expected, "out/two/model.ckpt.portable.h5": expected,
    }  # fmt: skip


@pytest.mark.slow
def test_a_savedmodel_is_one_model(cli, store, tmp_path):
    saved = FIXTURES / "savedmodels" / "tf115" / "contrib_gru_bi2" / "model"
    store.put_tree("models/saved", saved)
    shutil.copytree(saved, tmp_path / "saved")
    arguments = (f"{store.top}/models", "-o", f"{store.top}/out", *FAST)
    result = cli("cudnn-to-keras", *arguments)
    assert result.code == 0, result.err
    found = store.all()
    written = {name for name in found if name.startswith("out/saved.portable/")}
    assert written
    assert cli("cudnn-to-keras", "saved", *FAST).code == 0
    assert written == {
        f"out/saved.portable/{name}" for name in snapshot(tmp_path / "saved.portable")
    }
    again = cli("cudnn-to-keras", *arguments, "--force")
    assert again.code == 5
    assert "several objects, which can't be replaced at once" in again.err
    assert store.all() == found


def test_a_savedmodel_with_a_refused_name_in_it_is_refused_as_a_whole(cli, store, content):
    for name in ("saved_model.pb", "variables/variables.index", "assets/a\\b.txt"):
        store.put(f"models/saved/{name}", b"1")
    store.put("models/m.h5", content)
    result = cli("cudnn-to-keras", f"{store.top}/models", "-o", f"{store.top}/out", *FAST)
    assert result.code == 3
    assert result.out.splitlines()[-1] == "2 inputs: 1 converted, 1 can't be read"
    assert result.err == (
        f"error: {store.top}/models/saved: refused as unsafe: there is a backslash in its name "
        f"({store.top}/models/saved/assets/a\\b.txt)\n"
    )


def test_patterns_mean_what_they_mean_on_this_machine(cli, store, content, tmp_path):
    """A pattern of files does not take a part of a larger model."""
    for name in ("saved/saved_model.pb", "saved/variables/variables.index", "other.pb"):
        store.put(f"models/{name}", b"1")
        (tmp_path / "models" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "models" / name).write_bytes(b"1")
    for place in ("models", f"{store.top}/models"):
        result = cli("inspect", place, "--include", "*.pb")
        assert [line.split()[0] for line in result.out.splitlines()[1:]] == [
            f"{place}/other.pb", "1", "1",
        ]  # fmt: skip
        assert "1 file excluded" in result.out
        result = cli("inspect", place, "--exclude", "saved")
        assert f"{place}/other.pb" in result.out
        assert "saved" not in result.out
        result = cli("inspect", place, "--include", "saved")
        assert f"{place}/saved" in result.out
        assert "other.pb" not in result.out


def test_a_whole_bucket(cli, store, content):
    store.put("a/m.h5", content)
    checkpoint = FIXTURES / "checkpoint_graphs" / "tf115" / "lstm_double"
    store.put_tree("runs", checkpoint)
    result = cli("inspect", store.top)
    assert result.code == 0, result.err
    assert "2 inputs: " in result.out
    store.put("checkpoint", b'model_checkpoint_path: "model.ckpt"\n')
    for path in checkpoint.glob("model.ckpt*"):
        store.put(path.name, path.read_bytes())
    assert "3 inputs: " in cli("inspect", f"{store.top}/").out
    store.put("saved_model.pb", b"1")
    result = cli("inspect", store.top)
    assert result.code == 3
    assert "a bucket as a whole is no model" in result.err


def test_of_several_objects_all_are_uploaded_or_none(store, tmp_path, monkeypatch):
    from rnnconvert.stores import work
    from rnnconvert.stores.urls import place_of

    real, seen = work.upload, []

    def upload(path, url, *, replace):
        seen.append(url.name)
        if len(seen) == 3:
            raise OutputError("the connection is lost", path=str(url))
        return real(path, url, replace=replace)

    for name in ("saved_model.pb", "variables/a", "variables/b.index"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"1")
    monkeypatch.setattr(work, "upload", upload)

    def write(output: Path):
        shutil.copytree(tmp_path, output)

    with pytest.raises(OutputError, match="the connection is lost"):
        work.to_store(write, place_of(f"{store.top}/out"), force=False)
    assert seen == ["a", "saved_model.pb", "b.index"]
    assert store.all() == {}


@pytest.mark.slow
@pytest.mark.corpus
@pytest.mark.parametrize("engine", ["jobs", "dask"])
def test_a_bucket_by_several_processes(s3, tmp_path, engine):
    """The program itself, its workers with connections of their own."""
    store_tree = tree(tmp_path)
    s3.put_tree("models", store_tree)
    options = ("--verify", "weights", "--report", "r.json")
    with dask_cluster(tmp_path) if engine == "dask" else nullcontext("") as address:
        more = ("--engine", "dask", "--scheduler", address) if address else ("--jobs", "2")
        command = [sys.executable, "-m", "rnnconvert", "cudnn-to-keras", f"{s3.top}/models",
                   "-o", f"{s3.top}/out", *options, *more]  # fmt: skip
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True,
                              text=True, check=False)  # fmt: skip
    assert done.returncode == 3, done.stderr
    assert done.stdout.splitlines()[-2:] == [
        "4 inputs: 3 converted, 1 can't be read", "2 other files left alone",
    ]  # fmt: skip
    for name in ("a.h5", "deep/er/b.hdf5", "deep/without_a_name"):
        rnnconvert.convert(store_tree / name, tmp_path / "out.h5", verify="none", force=True)
        stem = Path(name).with_suffix(".portable" + (Path(name).suffix or ".h5")).as_posix()
        assert s3.all()[f"out/{stem}"] == (tmp_path / "out.h5").read_bytes()


# --- what changes meanwhile -----------------------------------------------------------------


@pytest.mark.parametrize("change", ["longer", "shorter", "other"])
def test_what_is_written_while_it_is_read_is_refused(store, content, monkeypatch, change):
    from rnnconvert.stores import access

    store.put("m.h5", content)
    real = access._copy

    def copy(source, target, each, done, total):
        assert each.bytes == len(content)
        longer, shorter = content + b"1" * 1000, content[:-9]
        store.put("m.h5", {"longer": longer, "shorter": shorter, "other": content[::-1]}[change])
        done = real(source, target, each, done, total)
        assert target.tell() <= len(content)
        return done

    monkeypatch.setattr(access, "_copy", copy)
    with pytest.raises(UnreadableInputError, match=r"m\.h5"):
        rnnconvert.convert(f"{store.top}/m.h5", verify="none")


def test_an_output_of_an_attempt_that_was_killed_is_known_by_its_bytes(store, content, tmp_path):
    """As on a cluster, where a worker is killed between an output and the telling of it."""
    from rnnconvert.cli.outcomes import convert_one
    from rnnconvert.commands.folder import Wanted
    from rnnconvert.stores.finding import find_stored
    from rnnconvert.stores.urls import place_of

    store.put("models/m.h5", content)
    with find_stored(place_of(f"{store.top}/models"), Wanted()) as found:
        source = found.models[0].stored
    options = Options(verify="none")
    (tmp_path / "here").mkdir()
    for target in (None, place_of(f"{store.top}/out/"), place_of(f"{store.top}/p.h5"),
                   tmp_path / "here", tmp_path / "p.h5"):  # fmt: skip
        pair = (source, target)
        first = convert_one(pair, options)
        assert first.verdict == "unverified"
        before = (store.all(), snapshot(tmp_path))
        assert isinstance(convert_one(pair, options), OutputError)
        assert convert_one(pair, options, again=True) == first
        assert (store.all(), snapshot(tmp_path)) == before
    for name in ("p.h5", "out/m.portable.h5"):
        store.put(name, b"somebody's")
    (tmp_path / "p.h5").write_bytes(b"somebody's")
    for target in (place_of(f"{store.top}/out/"), place_of(f"{store.top}/p.h5"), tmp_path / "p.h5"):
        assert isinstance(convert_one((source, target), options, again=True), OutputError)
    assert store.all()["p.h5"] == (tmp_path / "p.h5").read_bytes() == b"somebody's"


def test_a_disk_without_room_is_seen_before_anything_is_fetched(cli, store, content, monkeypatch):
    store.put("m.h5", content)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(10, 5, 5))
    result = cli("cudnn-to-keras", f"{store.top}/m.h5", *FAST)
    assert result.code == 5
    assert "more than the 5 that are free" in result.err


def test_a_run_is_resumed(cli, store, content, tmp_path, monkeypatch):
    for name in ("a", "b", "c"):
        store.put(f"models/{name}.h5", content)
    real, names = conversion.convert_path, []

    def convert_path(source, output, options):
        names.append(source.name)
        return real(source, output, options)

    monkeypatch.setattr("rnnconvert.commands.convert.convert_path", convert_path)
    arguments = ("cudnn-to-keras", f"{store.top}/models", "-o", f"{store.top}/out", *FAST,
                 "--report", "r.json", "--resume")  # fmt: skip
    assert cli(*arguments).code == 0
    assert names == ["a.h5", "b.h5", "c.h5"]
    before = store.all()
    result = cli(*arguments)
    assert (result.code, names[3:]) == (0, [])
    assert "3 inputs: 3 done before" in result.out
    assert store.all() == before
    store.put("models/a.h5", model(tmp_path / "other.h5", "other"))
    store.put("out/b.portable.h5", b"damaged")
    assert (cli(*arguments, "--force").code, sorted(names[3:])) == (0, ["a.h5", "b.h5"])


# --- what is missing ------------------------------------------------------------------------


def test_a_missing_extra_is_one_line(cli, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "fsspec", None)
    result = cli("inspect", "s3://bucket/m.h5")
    assert (result.code, result.err) == (
        2,
        "error: s3://bucket/m.h5: s3:// needs packages that are not installed: "
        'pip install "rnnconvert[stores]"\n',
    )


def test_a_missing_bucket(cli, s3, content, tmp_path):
    result = cli("inspect", "s3://nowhere-at-all/m.h5")
    assert result.code == 3
    assert result.err.startswith("error: s3://nowhere-at-all/m.h5: no such object")
    assert cli("inspect", "s3://nowhere-at-all/models/").code == 3
    (tmp_path / "m.h5").write_bytes(content)
    result = cli("cudnn-to-keras", "m.h5", "-o", "s3://nowhere-at-all/p.h5", *FAST)
    assert result.code == 5
    assert result.err.startswith("error: s3://nowhere-at-all/p.h5: no such object or bucket")


def test_a_store_that_can_not_be_reached_is_one_line(cli, s3, monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setattr("s3fs.S3FileSystem.retries", 1)
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    _forget_connections()
    result = cli("inspect", "s3://bucket/m.h5")
    assert result.code == 3
    assert result.err.startswith("error: s3://bucket/m.h5: the store can't be used: ")
    assert result.err.count("\n") == 1


def test_no_credentials_are_one_line(cli, s3, monkeypatch, tmp_path):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    _forget_connections()
    result = cli("inspect", "s3://bucket/m.h5")
    assert result.code == 3
    assert "the store can't be used: Unable to locate credentials" in result.err
    assert result.err.count("\n") == 1


def _forget_connections() -> None:
    import s3fs

    s3fs.S3FileSystem.clear_instance_cache()

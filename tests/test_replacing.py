"""Replacing a directory, or files that belong together: the old or the new, whole, always."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from helpers import snapshot

from rnnconvert import publish
from rnnconvert.errors import OutputError
from rnnconvert.exchange import exchange

OLD = {"saved_model.pb": b"old graph", "variables/variables.index": b"old index"}
NEW = {"saved_model.pb": b"new graph", "variables/variables.index": b"new", "assets/a.txt": b"a"}
OLD_FILES = {"m.index": b"old index", "m.data-00000-of-00001": b"old data"}
NEW_FILES = {"m.index": b"new index", "m.data-00000-of-00001": b"new data"}
CALLS = ("replace", "rename", "fsync")


def make(directory: Path, files: dict[str, bytes]) -> Path:
    for name, content in files.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return directory


def replace_directory(folder: Path) -> None:
    with publish.temporary_directory(folder) as work:
        publish.publish_directory(make(work / "saved", NEW), folder / "saved")


def replace_files(folder: Path) -> None:
    """As a checkpoint is: the index last, by which the data are found."""
    names = sorted(NEW_FILES)
    with publish.temporary_file(folder, ".a") as one, publish.temporary_file(folder, ".b") as other:
        for name, path in zip(names, (one, other), strict=True):
            path.write_bytes(NEW_FILES[name])
        files = zip((one, other), (folder / name for name in names), strict=True)
        publish.publish_together(list(files))


WAYS = {
    "directory": (replace_directory, "saved", OLD, NEW),
    "files": (replace_files, "", OLD_FILES, NEW_FILES),
}


@pytest.fixture(params=["exchanged", "stepped aside"])
def swap(request, monkeypatch):
    if request.param == "stepped aside":  # as on systems that can't exchange
        monkeypatch.setattr(publish, "exchange", lambda *_: False)


def _call(
    error: BaseException,
    fail_at: int,
    done: list[str],
    name: str,
    original: Callable[..., Any],
    *arguments: Any,
    after: bool,
) -> Any:
    done.append(name)
    if len(done) != fail_at:
        return original(*arguments)
    if after:
        original(*arguments)
    raise error


def faults(error: BaseException, *, after: bool) -> Iterator[list[str]]:
    """The N-th call that changes the file system fails, until a run gets by without."""
    for fail_at in range(1, 60):
        done: list[str] = []
        with pytest.MonkeyPatch.context() as monkeypatch:
            for name in CALLS:
                original = getattr(os, name)

                fails = partial(_call, error, fail_at, done, name, original, after=after)
                monkeypatch.setattr(os, name, fails)
            yield done
        if len(done) < fail_at:
            return
    pytest.fail("still failing")


@pytest.mark.usefixtures("swap")
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("there", [True, False], ids=["over an old one", "new"])
@pytest.mark.parametrize(
    ("error", "after"),
    list(itertools.product([OSError(errno.EIO, "broken"), KeyboardInterrupt()], [False, True])),
    ids=repr,
)
@pytest.mark.sampled(2)
def test_whatever_fails_it_is_the_old_or_the_new(tmp_path, way, there, error, after):
    work, place, old, new = WAYS[way]
    for number, _ in enumerate(faults(error, after=after)):
        folder = tmp_path / str(number)
        folder.mkdir()
        target = folder / place
        if there:
            make(target, old)
        before = snapshot(folder)
        with contextlib.suppress(OutputError, KeyboardInterrupt):
            work(folder)
        found = snapshot(folder)
        complete = {str(Path(place) / name): content for name, content in new.items()}
        assert found in (before, complete)
    assert number > 2
    assert found == complete  # the run without a fault


KILLED = """
import os, signal, sys
from pathlib import Path
import test_replacing as tests
if sys.argv[4] == "aside":
    tests.publish.exchange = lambda *_: False
count = 0
def killing(original, after):
    def call(*arguments):
        global count
        count += 1
        if count == int(sys.argv[3]):
            if after:
                original(*arguments)
            os.kill(os.getpid(), signal.SIGKILL)
        return original(*arguments)
    return call
for name in tests.CALLS:
    setattr(os, name, killing(getattr(os, name), sys.argv[5] == "after"))
tests.WAYS[sys.argv[1]][0](Path(sys.argv[2]))
"""


@pytest.mark.skipif(os.name != "posix", reason="signals of POSIX")
@pytest.mark.parametrize(
    ("way", "how", "when"),
    [
        ("directory", "exchange", "after"),
        pytest.param("directory", "exchange", "before", marks=pytest.mark.corpus),
        pytest.param("directory", "aside", "after", marks=pytest.mark.corpus),
        ("files", "aside", "after"),
        pytest.param("files", "aside", "before", marks=pytest.mark.corpus),
    ],
)
@pytest.mark.sampled(2)
def test_a_kill_at_any_moment_loses_nothing(tmp_path, way, how, when):
    """What was there is there, or the new; else both, the old under a name with the prefix."""
    _, place, old, new = WAYS[way]
    codes = []
    for number in range(1, 40):
        folder = tmp_path / str(number)
        make(folder / place, old)
        arguments = [way, str(folder), str(number), how, when]
        done = subprocess.run(
            [sys.executable, "-c", KILLED, *arguments],
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path]),
            },
            check=False,
        )
        codes.append(done.returncode)
        names = {name: (folder / place / name) for name in {*old, *new}}
        found = {name: path.read_bytes() for name, path in names.items() if path.exists()}
        kept = set(snapshot(folder).values())
        assert found == new or kept >= set(old.values())
        index = "m.index"
        if index in found and way == "files":  # never new data under an old index
            assert found in (old, new)
        if done.returncode == 0:
            assert found == new
            break
    assert codes[-1] == 0
    assert set(codes[:-1]) == {-signal.SIGKILL}
    assert len(codes) > 4


def test_directories_change_places(tmp_path):
    one, other = make(tmp_path / "one", {"a": b"1"}), make(tmp_path / "other", {"b": b"2"})
    if not exchange(one, other):
        pytest.skip("this file system, or operating system, can't exchange directories")
    assert snapshot(tmp_path) == {"one/b": b"2", "other/a": b"1"}
    with pytest.raises(FileNotFoundError):
        exchange(one, tmp_path / "nothing")


@pytest.mark.skipif(os.name != "posix", reason="permissions of POSIX")
def test_new_files_get_the_usual_permissions(tmp_path):
    before = os.umask(0o027)
    try:
        with publish.temporary_file(tmp_path, ".x") as temporary:
            publish.publish(temporary, tmp_path / "new")
        replace_directory(tmp_path)
    finally:
        os.umask(before)
    assert (tmp_path / "new").stat().st_mode & 0o777 == 0o640
    assert (tmp_path / "saved").stat().st_mode & 0o777 == 0o750


def test_ctrl_c_waits_until_the_files_have_changed_places():
    heard = []

    def work() -> None:
        with publish.uninterrupted():
            signal.raise_signal(signal.SIGINT)
            heard.append("went on")

    with pytest.raises(KeyboardInterrupt):
        work()
    assert heard == ["went on"]

"""A disk that is full at any size of the output: exit code 5, one line, nothing left."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers import make_model_h5, snapshot
from jobs import JOBS, model, prepare

from rnnconvert.errors import OutputError

resource = pytest.importorskip("resource", reason="limits of POSIX")
FIXTURES = Path(__file__).parents[1] / "fixtures"


@contextlib.contextmanager
def largest_file(size: int) -> Iterator[None]:
    """No file can become larger: a write fails as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


GROWING = (
    "h5", "to keras", "to weights", "in place", "gzip", "inverse", ".weights.h5",
    "checkpoint", "checkpoint to h5", "checkpoint to npz", "checkpoint of version 1",
)  # fmt: skip
"""The jobs whose files are small enough for the sizes below."""


@pytest.mark.parametrize("name", GROWING)
@pytest.mark.sampled(2)
def test_every_size_at_which_a_file_can_not_grow(tmp_path, monkeypatch, name):
    job, folder = JOBS[name], tmp_path / "work"
    monkeypatch.setattr(tempfile, "tempdir", str(folder / "scratch"))
    source, output = prepare(folder, job, old=False)
    before = snapshot(folder)
    told: list[str] = []
    for size in (0, 1, 96, 512, 800, 2048, 2100, 4096, 6000, 8192, 9000, 12000, 16384, 20000):
        try:
            with largest_file(size):
                job.run(source, output, force=False, verify="weights")
        except OutputError as error:
            told.append(str(error))
        else:
            break
        assert snapshot(folder) == before
    assert len(told) > 2
    assert all("can't be written: the file would be larger" in text for text in told), told


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 40 kB, where the tests may make one."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=40k", "tmpfs", str(folder)]
    if shutil.which("mount") is None or subprocess.run(command, capture_output=True).returncode:
        pytest.skip("no file system can be mounted here")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_a_full_disk(cli, tmp_path, small_disk, monkeypatch):
    model(tmp_path)
    shutil.copy(FIXTURES / "keras_zip/tf215/td_model/model.keras", tmp_path / "k.keras")
    (small_disk / "other").write_bytes(bytes(32 * 2**10))
    result = cli("cudnn-to-keras", "m.h5", "-o", small_disk / "out.h5", "--verify", "weights")
    told = f"error: {small_disk}/out.h5: can't be written: no space left on the device\n"
    assert (result.code, result.err) == (5, told)
    monkeypatch.setattr(tempfile, "tempdir", str(small_disk))
    result = cli("cudnn-to-keras", "k.keras", "--verify", "weights")
    told = f"error: {small_disk}: can't be written: no space left on the device\n"
    assert (result.code, result.err) == (5, told)
    assert [path.name for path in small_disk.iterdir()] == ["other"]
    (small_disk / "other").unlink()
    assert cli("cudnn-to-keras", "m.h5", "-o", small_disk / "out.h5", "--verify", "none").code == 0


def test_no_directory_for_temporary_files(tmp_path):
    """Found by the system's own rules, so in a process of its own."""
    make_model_h5(tmp_path / "m.h5")
    code = (
        "import tempfile, rnnconvert.cli.main as m\n"
        "tempfile._candidate_tempdir_list = lambda: ['/nowhere']\n"
        "m.main()"
    )
    arguments = ["cudnn-to-keras", "m.h5", "--dry-run", "--verify", "none"]
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 5
    assert done.stderr.startswith("error: m.h5: no directory for temporary files: ")

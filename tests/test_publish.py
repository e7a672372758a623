"""The output appears whole or not at all, whatever fails and whenever."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import signal
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from helpers import make_model_h5, snapshot

import rnnconvert
from rnnconvert.errors import OutputError, UsageError
from rnnconvert.keras_models.files import h5_patch

INTERRUPTED = "interrupted; no unfinished output is left"
OLD = b"an older file of the user"


# --- the N-th operation fails ---------------------------------------------------------------


@dataclass
class Faults:
    """Makes the N-th of the watched calls fail, before or after it did its work."""

    fail_at: int
    error: BaseException
    after: bool
    calls: list[str] = field(default_factory=list)

    def watch(self, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str) -> None:
        original = getattr(owner, name)

        def call(*arguments: Any, **keywords: Any) -> Any:
            self.calls.append(name)
            if len(self.calls) != self.fail_at:
                return original(*arguments, **keywords)
            # A file that mkstemp has made but not named yet is out of anyone's reach.
            if self.after and name != "mkstemp":
                original(*arguments, **keywords)
            raise self.error

        monkeypatch.setattr(owner, name, call)

    @property
    def fired(self) -> bool:
        return len(self.calls) >= self.fail_at

    @property
    def replaced(self) -> bool:
        """Whether the rename was done when the fault struck."""
        before = self.calls[: self.fail_at - 1]
        return "replace" in before or (self.calls[-1] == "replace" and self.after)


def runs_with_faults(
    error: BaseException, *, after: bool = False, limit: int = 60
) -> Iterator[Faults]:
    """Fail at the 1st, 2nd, ... watched call, until a run gets by without."""
    for fail_at in range(1, limit):
        faults = Faults(fail_at, error, after)
        with pytest.MonkeyPatch.context() as monkeypatch:
            faults.watch(monkeypatch, tempfile, "mkstemp")
            faults.watch(monkeypatch, h5_patch, "copy_around")
            faults.watch(monkeypatch, h5_patch, "apply_edit")
            faults.watch(monkeypatch, os, "fsync")
            faults.watch(monkeypatch, os, "replace")
            yield faults
        if not faults.fired:
            assert fail_at > len(set(faults.calls)), "the watched calls were not all made"
            return
    pytest.fail(f"still failing at call {limit}")


FULL = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
BROKEN = OSError(errno.EIO, os.strerror(errno.EIO))
REASONS = {errno.ENOSPC: "no space left", errno.EIO: os.strerror(errno.EIO).lower()}

FAULTS = {
    "disk full": (FULL, False),
    "disk full after the call": (FULL, True),
    "Ctrl-C": (KeyboardInterrupt(), False),
    "Ctrl-C after the call": (KeyboardInterrupt(), True),
}
OTHER_FAULTS = {"disk broken": (BROKEN, False)}
SCENARIOS = {
    "new output": ["-o", "out.h5"],
    "old output": ["-o", "old.h5", "--force"],
    "in place": ["--in-place"],
    "weights of a model": ["--to", "weights", "-o", "out.h5"],
    "dry run": ["--dry-run"],
}


def prepare(directory: Path) -> dict[str, bytes]:
    for path in directory.iterdir():
        path.unlink()
    make_model_h5(directory / "m.h5", cells=["lstm"], names=["cu_lstm"], units=[6])
    (directory / "old.h5").write_bytes(OLD)
    return snapshot(directory)


@pytest.mark.parametrize(
    ("scenario", "fault"),
    [*itertools.product(SCENARIOS, FAULTS), ("new output", "disk broken")],
)
@pytest.mark.sampled(8)
def test_whatever_fails_the_output_is_old_or_complete(cli, tmp_path, monkeypatch, scenario, fault):
    error, after = (FAULTS | OTHER_FAULTS)[fault]
    directory, scratch = tmp_path / "work", tmp_path / "scratch"
    directory.mkdir()
    scratch.mkdir()
    monkeypatch.chdir(directory)
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    arguments = ["cudnn-to-keras", "m.h5", "--verify", "weights", *SCENARIOS[scenario]]
    before = prepare(directory)
    assert cli(*arguments).code == 0
    complete = snapshot(directory)
    for faults in runs_with_faults(error, after=after):
        prepare(directory)
        result = cli(*arguments)
        expected = complete if not faults.fired or faults.replaced else before
        assert snapshot(directory) == expected, faults.calls
        assert not snapshot(scratch), faults.calls
        if not faults.fired:
            assert result.code == 0
        elif isinstance(error, KeyboardInterrupt):
            assert (result.code, result.err.strip()) == (130, INTERRUPTED)
        elif not (faults.replaced and faults.calls[-1] == "fsync"):  # a directory's: no matter
            assert result.code == 5, result.err
            assert len(result.err.splitlines()) == 1
            assert REASONS[error.errno] in result.err.lower()


def test_the_api_raises_output_errors(tmp_path):
    model = make_model_h5(tmp_path / "m.h5")
    output = tmp_path / "out.h5"
    for faults in runs_with_faults(FULL):
        output.unlink(missing_ok=True)
        with contextlib.suppress(OutputError):
            rnnconvert.convert(model, output, verify="layers")
            assert not faults.fired or faults.replaced
        assert output.exists() == (not faults.fired or faults.replaced)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m.h5", "out.h5"]


@pytest.mark.parametrize("whole", [True, False])
def test_the_copy_goes_by_other_ways_where_the_fast_one_is_closed(tmp_path, monkeypatch, whole):
    model = make_model_h5(tmp_path / "m.h5", whole=whole)
    rnnconvert.convert(model, tmp_path / "fast.h5", verify="layers")

    def closed(*_: object) -> None:
        raise OSError(errno.EXDEV, "another file system")

    monkeypatch.setattr(os, "copy_file_range", closed, raising=False)
    rnnconvert.convert(model, tmp_path / "slow.h5", verify="layers")
    assert (tmp_path / "slow.h5").read_bytes() == (tmp_path / "fast.h5").read_bytes()


LIMITED = """
import resource, sys
from rnnconvert.cli.main import main
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]), int(sys.argv[1])))
sys.argv[1:] = sys.argv[2:]
main()
"""


@pytest.mark.parametrize("share", [0.3, 0.75, 0.995])
@pytest.mark.sampled(2)
def test_a_write_that_really_fails(tmp_path, share):
    """The system refuses to let the file grow: HDF5 tells so only when it closes the file."""
    pytest.importorskip("resource")
    model = make_model_h5(tmp_path / "m.h5")
    whole = tmp_path / "whole.h5"
    rnnconvert.convert(model, whole, verify="layers")
    limit = int(whole.stat().st_size * share)
    before = snapshot(tmp_path)
    arguments = ["cudnn-to-keras", str(model), "-o", str(tmp_path / "out.h5")]
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, str(limit), *arguments],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert snapshot(tmp_path) == before
    last = done.stderr.splitlines()[-1]
    assert (done.returncode, len(done.stderr.splitlines())) == (5, 1), last


# --- killed ---------------------------------------------------------------------------------

STALLED = """
import signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it
from rnnconvert.cli.main import main
from rnnconvert.keras_models.files import h5_patch
edits = []
def stall(*arguments, original=h5_patch.apply_edit):
    original(*arguments)
    edits.append(1)
    if len(edits) == 1:  # a bias: the main thread writes these, others write matrices
        print("now", flush=True)
        time.sleep(60)
h5_patch.apply_edit = stall
main()
"""


def stalled(*arguments: object) -> subprocess.Popen[str]:
    """A conversion that waits in the middle of its writing."""
    words = [str(word) for word in arguments]
    child = subprocess.Popen(
        [sys.executable, "-c", STALLED, *words],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert child.stdout is not None
    assert child.stdout.readline() == "now\n"
    return child


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="no SIGKILL on this system")
@pytest.mark.parametrize("options", [[], ["--in-place"]], ids=["beside", "in place"])
def test_a_kill_leaves_the_input_and_at_most_one_temporary_file(tmp_path, options):
    model = make_model_h5(tmp_path / "m.h5")
    content = model.read_bytes()
    with stalled("cudnn-to-keras", model, *options) as child:
        child.send_signal(signal.SIGKILL)
    names = [path.name for path in tmp_path.iterdir()]
    assert model.read_bytes() == content
    left = [name for name in names if name != "m.h5"]
    assert len(left) <= 1
    assert all(name.startswith(".rnnconvert-") for name in left)
    assert rnnconvert.convert(model, verify="layers").verdict == "equivalent"


@pytest.mark.skipif(os.name == "nt", reason="signals of POSIX")
def test_ctrl_c_cleans_up(tmp_path):
    model = make_model_h5(tmp_path / "m.h5")
    before = snapshot(tmp_path)
    with stalled("cudnn-to-keras", model) as child:
        child.send_signal(signal.SIGINT)
        _, messages = child.communicate()
    assert child.returncode == 130
    assert messages.strip() == INTERRUPTED
    assert snapshot(tmp_path) == before


# --- where the output may go ----------------------------------------------------------------


def test_an_existing_output_is_kept_or_replaced_whole(tmp_path):
    model = make_model_h5(tmp_path / "m.h5")
    output = tmp_path / "out.h5"
    output.write_bytes(OLD)
    with pytest.raises(OutputError, match="the output exists; use --force to overwrite it"):
        rnnconvert.convert(model, output, verify="layers")
    assert output.read_bytes() == OLD
    rnnconvert.convert(model, output, force=True, verify="layers")
    assert output.read_bytes().startswith(b"\x89HDF")


def as_itself(model: Path) -> Path:
    return model


def as_hard_link(model: Path) -> Path:
    link = model.with_name("hard.h5")
    os.link(model, link)
    return link


def as_symlink(model: Path) -> Path:
    link = model.with_name("soft.h5")
    link.symlink_to(model.name)
    return link


def by_detour(model: Path) -> Path:
    return model.parent / "." / ".." / model.parent.name / model.name


@pytest.mark.parametrize("force", [False, True])
@pytest.mark.parametrize("alias", [as_itself, as_hard_link, as_symlink, by_detour])
def test_the_input_is_no_output(tmp_path, alias, force):
    model = make_model_h5(tmp_path / "m.h5")
    other = alias(model)
    before = snapshot(tmp_path)
    with pytest.raises(UsageError, match="output and input are the same file; use --in-place"):
        rnnconvert.convert(model, other, force=force, verify="layers")
    assert snapshot(tmp_path) == before


def test_in_place_is_an_atomic_replacement(tmp_path):
    model = make_model_h5(tmp_path / "m.h5")
    rnnconvert.convert(model, tmp_path / "other.h5", verify="layers")
    model.chmod(0o640)
    hard = as_hard_link(model)
    content = hard.read_bytes()
    rnnconvert.convert(model, in_place=True, verify="layers")
    assert model.read_bytes() == (tmp_path / "other.h5").read_bytes()
    assert stat.S_IMODE(model.stat().st_mode) == 0o640
    assert hard.read_bytes() == content  # another name of the old file, which was not touched


def test_in_place_and_an_output_exclude_each_other(tmp_path):
    model = make_model_h5(tmp_path / "m.h5")
    with pytest.raises(UsageError, match="--in-place and an output exclude each other"):
        rnnconvert.convert(model, tmp_path / "out.h5", in_place=True, verify="layers")


@pytest.mark.parametrize("target", ["old.h5", "nowhere.h5"])
def test_a_symlink_as_output(tmp_path, target):
    """It counts as an existing file; with --force the link is replaced, never what it names."""
    model = make_model_h5(tmp_path / "m.h5")
    (tmp_path / "old.h5").write_bytes(OLD)
    link = tmp_path / "link.h5"
    link.symlink_to(target)
    with pytest.raises(OutputError, match="the output exists"):
        rnnconvert.convert(model, link, verify="layers")
    assert link.is_symlink()
    rnnconvert.convert(model, link, force=True, verify="layers")
    assert not link.is_symlink()
    assert link.read_bytes().startswith(b"\x89HDF")
    assert (tmp_path / "old.h5").read_bytes() == OLD
    assert not (tmp_path / "nowhere.h5").exists()


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes with names on this system")
def test_what_is_no_regular_file_is_never_replaced(tmp_path):
    model = make_model_h5(tmp_path / "m.h5")
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for force in (False, True):
        with pytest.raises(OutputError):
            rnnconvert.convert(model, pipe, force=force, verify="layers")
        assert stat.S_ISFIFO(pipe.stat().st_mode)


def test_a_directory_as_output_takes_the_default_name(tmp_path):
    model = make_model_h5(tmp_path / "m.h5")
    (tmp_path / "there").mkdir()
    rnnconvert.convert(model, tmp_path / "there", verify="layers")
    assert (tmp_path / "there" / "m.portable.h5").exists()


def test_the_directory_must_exist(tmp_path):
    model = make_model_h5(tmp_path / "m.h5")
    before = snapshot(tmp_path)
    with pytest.raises(OutputError, match="does not exist"):
        rnnconvert.convert(model, tmp_path / "missing" / "out.h5", verify="layers")
    assert snapshot(tmp_path) == before


def test_the_directory_must_be_writable(tmp_path, monkeypatch):
    model = make_model_h5(tmp_path / "m.h5")
    monkeypatch.setattr(os, "access", lambda path, mode, **_: mode != os.W_OK)
    monkeypatch.setattr(h5_patch, "apply_edit", pytest.fail)
    with pytest.raises(OutputError, match="is not writable"):
        rnnconvert.convert(model, verify="layers")


@pytest.mark.skipif(os.name == "nt" or os.geteuid() == 0, reason="root may write everywhere")
def test_a_read_only_directory(tmp_path):
    model = make_model_h5(tmp_path / "m.h5")
    tmp_path.chmod(0o555)
    try:
        with pytest.raises(OutputError, match="is not writable"):
            rnnconvert.convert(model, verify="layers")
    finally:
        tmp_path.chmod(0o755)


@pytest.mark.skipif(os.name == "nt", reason="permissions of POSIX")
@pytest.mark.parametrize("mask", [0o022, 0o077, 0o027, 0o000], ids=oct)
def test_permissions_follow_the_umask(tmp_path, mask):
    model = make_model_h5(tmp_path / "m.h5")
    old = os.umask(mask)
    try:
        rnnconvert.convert(model, tmp_path / "out.h5", verify="layers")
        assert os.umask(mask) == mask
    finally:
        os.umask(old)
    assert stat.S_IMODE((tmp_path / "out.h5").stat().st_mode) == 0o666 & ~mask


@pytest.mark.skipif(os.name == "nt", reason="permissions of POSIX")
def test_a_replaced_output_keeps_its_permissions(tmp_path):
    model = make_model_h5(tmp_path / "m.h5")
    output = tmp_path / "out.h5"
    output.write_bytes(OLD)
    output.chmod(0o600)
    rnnconvert.convert(model, output, force=True, verify="layers")
    assert stat.S_IMODE(output.stat().st_mode) == 0o600


def test_an_input_that_changes_meanwhile_is_noticed(tmp_path, monkeypatch):
    model = make_model_h5(tmp_path / "m.h5")
    original = h5_patch.apply_edit

    def disturbed(*arguments: Any) -> None:
        original(*arguments)
        os.utime(model, ns=(1, 1))

    monkeypatch.setattr(h5_patch, "apply_edit", disturbed)
    with pytest.raises(rnnconvert.UnreadableInputError, match="the input was changed"):
        rnnconvert.convert(model, verify="layers")
    assert [path.name for path in tmp_path.iterdir()] == ["m.h5"]


# --- the report beside it -------------------------------------------------------------------


@pytest.mark.parametrize("alias", [as_itself, as_hard_link, as_symlink])
@pytest.mark.parametrize("command", ["cudnn-to-keras", "inspect"])
def test_the_report_never_replaces_the_input(cli, tmp_path, command, alias):
    model = make_model_h5(tmp_path / "m.h5")
    content = model.read_bytes()
    result = cli(command, model, "--report", alias(model))
    assert model.read_bytes() == content
    assert (result.code, len(result.err.splitlines())) == (2, 1)


def test_the_report_never_replaces_the_output(cli, tmp_path):
    make_model_h5(tmp_path / "m.h5")
    result = cli("cudnn-to-keras", "m.h5", "-o", "out.h5", "--report", "out.h5")
    assert (result.code, len(result.err.splitlines())) == (2, 1)
    assert not (tmp_path / "out.h5").exists()


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes with names on this system")
def test_the_report_never_replaces_a_pipe_or_device(cli, tmp_path):
    """`--report /dev/stderr` or a pipe is written to or refused, but stays what it is."""
    make_model_h5(tmp_path / "m.h5")
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        cli("inspect", "m.h5", "--report", pipe)
    finally:
        os.close(reader)
    assert stat.S_ISFIFO(pipe.stat().st_mode)


def test_a_report_that_cannot_be_written(cli, tmp_path):
    make_model_h5(tmp_path / "m.h5")
    result = cli("inspect", "m.h5", "--report", "missing/report.json")
    assert result.code == 5
    assert len(result.err.splitlines()) == 1

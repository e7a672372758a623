"""A short run of the fuzzer with a fixed seed; long runs by `python tests/fuzz/fuzz.py`."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("resource", reason="needs fork")
import fuzz
import fuzz_bases
import fuzz_server

FILES = tuple(kind for kind in fuzz_bases.BASES if kind not in fuzz_bases.GRAPHS)


def run(*arguments: str) -> re.Match[str]:
    """The command, in a process of its own: this one may have TensorFlow's threads.

    Returns:
        Its line: the number of mutants, and of the exit codes 0, 1, 3 and 4.
    """
    words = [sys.executable, fuzz.__file__, *arguments]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    codes = "".join(rf"(?:,? ?{code}: (\d+))?" for code in (0, 1, 3, 4))
    told = re.match(rf"(\d+) mutants, \d+ runs, exit codes {codes}; slowest", done.stdout)
    assert told, done.stdout
    return told


@pytest.mark.corpus
@pytest.mark.parametrize("kinds", [FILES, fuzz_bases.GRAPHS], ids=["files", "graphs"])
def test_no_damaged_file_does_harm(kinds: tuple[str, ...]) -> None:
    """60 seconds in all; every run ends in 0, 3 or 4 (`verify`: or 1), soon, in little memory."""
    told = run("--seconds", "30", "--seed", "1", "--kinds", ",".join(kinds))
    assert int(told[1]) >= (50 if kinds is FILES else 10)
    assert told[2]
    assert told[4]


@pytest.mark.parametrize(
    "kinds",
    [FILES, pytest.param(fuzz_bases.GRAPHS, marks=pytest.mark.corpus)],
    ids=["files", "graphs"],
)
def test_sound_files_are_converted(kinds: tuple[str, ...]) -> None:
    """Or the fuzzer would only ever try what is refused at once."""
    told = run("--sound", "--mutants", "4", "--kinds", ",".join(kinds))
    assert int(told[1]) == 4 * len(kinds)
    checks = 4 if kinds is FILES else 0  # --check finds work
    assert (int(told[2]) >= 8 * len(kinds), told[4], told[5]) == (True, None, None)
    assert int(told[3] or 0) >= checks


def test_the_same_seed_gives_the_same_mutant(tmp_path: Path) -> None:
    made = []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        made.append(fuzz.make("h5", 5, 3, tmp_path / name, None).read_bytes())
    assert made[0] == made[1]


def test_wrong_weights_are_noticed(tmp_path: Path) -> None:
    """The recomputation shares no code with rnnconvert, and can tell right from wrong."""
    path = fuzz.make("h5", 1, 0, tmp_path, ())
    output = tmp_path / "out.h5"
    done = fuzz_server.run_alone(
        ["cudnn-to-keras", str(path), "-o", str(output), "--verify", "layers"], tmp_path / "log"
    )
    assert done.code == 0
    assert fuzz_bases.wrong_weights("h5", path, output) is None
    with fuzz_bases.h5py.File(output, "r+") as file:
        file["model_weights/cu_gru/cu_gru/kernel:0"][2, 3] += 1
    assert "cu_gru/kernel:0" in str(fuzz_bases.wrong_weights("h5", path, output))


@pytest.mark.parametrize(
    ("code", "said", "fault"),
    [(1, "", "exit code 1"), (None, "", "killed"), (3, "Traceback (most", "a traceback")],
)
def test_what_counts_as_a_fault(code: int | None, said: str, fault: str) -> None:
    run = fuzz_server.Run((), code, 0.1, 0, said)
    assert fault in str(run.fault(fuzz.READ))
    assert fuzz_server.Run((), 3, 0.1, 0, "").fault(fuzz.READ) is None

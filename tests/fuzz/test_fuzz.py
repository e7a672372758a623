"""A short run of the fuzzer with a fixed seed; long runs by `python tests/fuzz/fuzz.py`."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
pytest.importorskip("resource", reason="needs fork")
import fuzz
import fuzz_bases
import fuzz_server


@pytest.mark.corpus
def test_no_damaged_file_does_harm() -> None:
    """60 seconds; every run ends in 0, 3 or 4 (`verify`: or 1), soon, and within its memory.

    By the command, in a process of its own: this one may have TensorFlow's threads.
    """
    words = [sys.executable, fuzz.__file__, "--seconds", "60", "--seed", "1"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    told = re.match(r"(\d+) mutants, \d+ runs, exit codes 0: \d+, .*3: \d+", done.stdout)
    assert told, done.stdout
    assert int(told.group(1)) >= 50


def test_sound_files_are_converted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Or the fuzzer would only ever try what is refused at once."""
    monkeypatch.setattr(fuzz_server, "run", fuzz_server.run_alone)
    for kind in fuzz_bases.BASES:
        folder = tmp_path / kind
        folder.mkdir()
        path = fuzz.make(kind, 1, 0, folder, ())
        for done, fault in fuzz.examine(kind, path, folder):
            assert (done.code, fault) == (0, None), (kind, done)


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
    assert fuzz_bases.wrong_weights(path, output) is None
    with fuzz_bases.h5py.File(output, "r+") as file:
        file["model_weights/cu_gru/cu_gru/kernel:0"][2, 3] += 1
    assert "cu_gru/kernel:0" in str(fuzz_bases.wrong_weights(path, output))


@pytest.mark.parametrize(
    ("code", "said", "fault"),
    [(1, "", "exit code 1"), (None, "", "killed"), (3, "Traceback (most", "a traceback")],
)
def test_what_counts_as_a_fault(code: int | None, said: str, fault: str) -> None:
    run = fuzz_server.Run((), code, 0.1, 0, said)
    assert fault in str(run.fault(fuzz.READ))
    assert fuzz_server.Run((), 3, 0.1, 0, "").fault(fuzz.READ) is None

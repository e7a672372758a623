"""Help that explains each option by itself, under headings; and the program as a module."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

HEADINGS = {
    "cudnn-to-keras": [
        "Folders", "What is written", "What the output is like", "Verification",
        "TensorFlow 1 checkpoints and buffers: what the file does not tell",
        "Continuous integration", "Report and terminal", "Options",
    ],
    "keras-to-cudnn": [
        "Folders", "What is written", "Verification",
        "TensorFlow 1 checkpoints and buffers: what the file does not tell",
        "Continuous integration", "Report and terminal", "Options",
    ],
    "inspect": [
        "Folders", "Reading and planning",
        "TensorFlow 1 checkpoints and buffers: what the file does not tell", "Report and terminal",
        "Options",
    ],
    "verify": [
        "Verification", "TensorFlow 1 checkpoints and buffers: what the file does not tell",
        "Continuous integration", "Report and terminal", "Options",
    ],
}  # fmt: skip


@pytest.mark.parametrize("command", HEADINGS)
def test_help_has_headings(cli, command):
    headings = re.findall(r"^(\w.*):$", cli(command, "--help").out, re.MULTILINE)
    assert headings == HEADINGS[command]


@pytest.mark.parametrize("command", HEADINGS)
def test_no_option_is_explained_by_another(cli, command):
    text = cli(command, "--help").out
    assert not re.search(r"(?<!\w)the same\.", text)
    assert "PATH...\n" not in text.split("\n\n", 2)[2]  # arguments stand in the usage line only


def test_python_m_rnnconvert_is_the_program():
    done = subprocess.run(
        [sys.executable, "-m", "rnnconvert", "--help"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "rnnconvert cudnn-to-keras model.h5" in done.stdout

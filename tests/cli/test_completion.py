"""Completion in a shell, asked of the shell where it is installed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def program(tmp_path: Path) -> dict[str, str]:
    """An environment with `rnnconvert` on the PATH."""
    script = tmp_path / "bin/rnnconvert"
    script.parent.mkdir()
    script.write_text(
        f"#!{sys.executable}\nimport sys\nsys.path.insert(0, {str(ROOT)!r})\n"
        "from rnnconvert.__main__ import start\nstart()\n"
    )
    script.chmod(0o755)
    (tmp_path / "work").mkdir()
    return {**os.environ, "PATH": f"{script.parent}:{os.environ['PATH']}", "HOME": str(tmp_path)}


def ask(shell: list[str], script: str, environment: dict[str, str], folder: Path) -> set[str]:
    if shutil.which(shell[0]) is None:
        pytest.skip(f"{shell[0]} is not installed")
    done = subprocess.run(
        [*shell, script], env=environment, cwd=folder / "work", capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return {line.split("\t")[0].strip() for line in done.stdout.splitlines()}


QUESTIONS = [
    (["in"], {"inspect"}),
    (["cudnn-to-keras", "--tar"], {"--target"}),
    (["cudnn-to-keras", "--target", ""], {"keras2", "keras3"}),
    (["opaque", ""], {"pack", "size", "unpack"}),
]


@pytest.mark.parametrize(("words", "expected"), QUESTIONS)
def test_bash(program, tmp_path, words, expected):
    line = ["rnnconvert", *words]
    script = (
        'eval "$(_RNNCONVERT_COMPLETE=bash_source rnnconvert)"\n'
        f"COMP_WORDS=({' '.join(repr(word) for word in line)}); COMP_CWORD={len(line) - 1}\n"
        '_rnnconvert_completion rnnconvert\nprintf "%s\\n" "${COMPREPLY[@]}"\n'
    )
    assert ask(["bash", "--norc", "-c"], script, program, tmp_path) == expected


@pytest.mark.parametrize(("words", "expected"), QUESTIONS)
def test_fish(program, tmp_path, words, expected):
    script = (
        "_RNNCONVERT_COMPLETE=fish_source rnnconvert | source\n"
        f"complete -C'rnnconvert {' '.join(words)}'\n"
    )
    assert ask(["fish", "-N", "-c"], script, program, tmp_path) == expected


@pytest.mark.parametrize(("words", "expected"), QUESTIONS)
def test_zsh(program, tmp_path, words, expected):
    """compadd and _describe need a line editor: they are replaced by ones that print."""
    line = ["rnnconvert", *words]
    script = (
        "compdef() { :; }\n"
        "_describe() { local -a shown; shown=(${(P)3}); print -l -- ${shown%%:*}; }\n"
        "compadd() { print -l -- ${(P)@[-1]}; }\n"
        'eval "$(_RNNCONVERT_COMPLETE=zsh_source rnnconvert)"\n'
        f"words=({' '.join(repr(word) for word in line)}); CURRENT={len(line)}\n"
        "_rnnconvert_completion\n"
    )
    assert ask(["zsh", "-f", "-c"], script, program, tmp_path) == expected

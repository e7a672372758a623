"""The README's worked example is what the program prints, and what it names exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import rnnconvert
from rnnconvert.cli.main import cli as commands

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def lines(text):
    return [line.rstrip() for line in text.strip("\n").split("\n")]


def test_the_worked_example_is_true(cli, monkeypatch, tmp_path):
    block = re.search(r"```\n\$ rnnconvert (cudnn-to-keras [^\n]*)\n(.*?)```", README, re.DOTALL)
    assert block is not None
    command, expected = block.groups()
    source, output = command.split()[1], command.split()[3]
    (tmp_path / source).parent.mkdir(parents=True)
    (tmp_path / source).write_bytes((ROOT / source).read_bytes())
    result = cli("cudnn-to-keras", source, "-o", output)
    assert result.code == 0
    assert lines(same_everywhere(result.out)) == lines(same_everywhere(expected))


def same_everywhere(text):
    """Without what another machine or another Keras may print."""
    text = re.sub(r"keras [\d.]+", "keras X", text)
    text = re.sub(r"(model \(cpu\): max difference) \S+", r"\1 X", text)
    return re.sub(r"- model \(gpu\): skipped, .*", "- model (gpu): skipped", text)


@pytest.mark.parametrize("name", ["cudnn-to-keras", "inspect"])
def test_every_option_in_the_readme_exists(name):
    options = {word for p in commands.commands[name].params for word in p.opts}
    assert options
    table = README.split("## Options that matter")[1].split("Exit codes")[0]
    named = set(re.findall(r"(?<![\w-])--?[a-z][a-z-]*", table))
    if name == "cudnn-to-keras":
        assert named <= options


def test_what_the_readme_imports_exists():
    for name in re.findall(r"`rnnconvert\.([A-Za-z_.]+)", README):
        module = rnnconvert
        for part in name.split("."):
            module = getattr(module, part, None) or __import__(
                f"{module.__name__}.{part}", fromlist=["_"]
            )
        assert module is not None


def test_every_path_in_the_readme_exists():
    for path in re.findall(r"`((?:docs|benchmarks|rnnconvert)/[\w./]+)`", README):
        assert (ROOT / path).exists(), path

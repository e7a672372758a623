"""The README's worked example is what the program prints, and what it names exists."""

from __future__ import annotations

import importlib
import importlib.util
import re
from pathlib import Path

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


def test_every_option_in_the_readme_exists():
    options = {word for p in commands.commands["cudnn-to-keras"].params for word in p.opts}
    table = README.split("## Options that matter")[1].split("Exit codes")[0]
    named = set(re.findall(r"(?<![\w-])--?[a-z][a-z-]*", table))
    assert len(named) > 15
    assert named - options == set()


def exists(dotted):
    """Whether `rnnconvert.DOTTED` is a module, or an attribute of one."""
    *parents, last = dotted.split(".")
    module = importlib.import_module(".".join(["rnnconvert", *parents]))
    return hasattr(module, last) or importlib.util.find_spec(f"{module.__name__}.{last}")


def test_what_the_readme_imports_exists():
    names = re.findall(r"`rnnconvert\.([A-Za-z_.]+)", README)
    assert len(names) > 5
    assert [name for name in names if not exists(name)] == []
    assert not exists("keras.load_models")


def test_every_path_in_the_readme_exists():
    paths = re.findall(r"[`(]((?:docs|benchmarks|rnnconvert|fixtures)/[\w./]+)[`)]", README)
    assert len(paths) > 3
    assert [path for path in paths if not (ROOT / path).exists()] == []


def test_ci_runs_the_test_command_that_stands_here():
    """`.ci/run` takes the line out of the README; there must be one, and what it looks for."""
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    pattern = re.search(r"grep -E '(.*)' README.md", script)
    assert pattern is not None
    assert len(re.findall(pattern.group(1), README, re.MULTILINE)) == 1

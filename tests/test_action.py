"""The GitHub action, its steps run as the runner runs them; the hook; the pipeline's snippets."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml
from helpers import make_model_h5

ROOT = Path(__file__).parents[1]
ACTION = yaml.safe_load((ROOT / "action.yml").read_text(encoding="utf-8"))
STEPS = ACTION["runs"]["steps"]
pytestmark = pytest.mark.skipif(os.name == "nt", reason="the steps are bash scripts")


@dataclass(frozen=True)
class Ran:
    code: int
    output: str
    summary: str
    outputs: str

    @property
    def commands(self) -> list[str]:
        """What the runner takes for a command: lines like this, but where they are stopped."""
        found, token = [], None
        for line in self.output.splitlines():
            if token is not None:
                token = None if line.strip() == f"::{token}::" else token
            elif line.startswith("::stop-commands::"):
                token = line.removeprefix("::stop-commands::")
            elif line.lstrip().startswith("::"):
                found.append(line)
        assert token is None, "commands stay stopped"
        return found


def expression(text: str, inputs: dict[str, str]) -> str:
    """The value of a step's `env`; no other expression than an input is expected there."""
    match = re.fullmatch(r"\$\{\{ inputs\.([a-z-]+) \}\}", text)
    assert match is not None, text
    return inputs[match.group(1)]


def run_step(step: dict, runner: Path, workspace: Path, **given: str) -> Ran:
    inputs = {name: each.get("default", "") for name, each in ACTION["inputs"].items()} | given
    script = runner / "step.sh"
    script.write_text(step["run"], encoding="utf-8")
    files = {name: runner / name for name in ("GITHUB_OUTPUT", "GITHUB_STEP_SUMMARY")}
    for file in files.values():
        file.write_text("")
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("PYTHON")},
        **{name: expression(text, inputs) for name, text in step["env"].items()},
        **{name: str(file) for name, file in files.items()},
        "RUNNER_TEMP": str(runner),
        "GITHUB_ACTION_PATH": str(ROOT),
        "GITHUB_WORKSPACE": str(workspace),
    }
    assert step["shell"] == "bash"
    done = subprocess.run(
        ["bash", "--noprofile", "--norc", "-e", "-o", "pipefail", str(script)],
        cwd=workspace, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    output = done.stdout + done.stderr
    return Ran(done.returncode, output, files["GITHUB_STEP_SUMMARY"].read_text(),
               files["GITHUB_OUTPUT"].read_text())  # fmt: skip


@pytest.fixture
def places(tmp_path: Path) -> tuple[Path, Path]:
    """The runner's folder, with this Python in place of the installed one; and a workspace."""
    runner, workspace = tmp_path / "runner", tmp_path / "workspace"
    bin_folder = runner / "rnnconvert-venv/bin"
    bin_folder.mkdir(parents=True)
    workspace.mkdir()
    python = bin_folder / "python"
    python.write_text(
        f'#!/bin/bash\n[ "$1" = -I ] && shift || exit 99\n'
        f'cd / && cd "$OLDPWD" && PYTHONPATH="{ROOT}" exec "{sys.executable}" "$@"\n'
    )
    python.chmod(0o755)
    return runner, workspace


CHECK = next(step for step in STEPS if step.get("id") == "check")


def test_models_that_need_conversion(places):
    runner, workspace = places
    (workspace / "models/deep").mkdir(parents=True)
    make_model_h5(workspace / "old.h5")
    make_model_h5(workspace / "models/deep/one with blanks.hdf5")
    (workspace / "notes.txt").write_text("no model")
    ran = run_step(CHECK, runner, workspace)
    assert ran.code == 1, ran.output
    assert ran.outputs == "exit-code=1\n"
    assert "### rnnconvert: 2 needs conversion" in ran.summary
    assert [re.match(r"::error file=([^,]*),", line).group(1) for line in ran.commands] == [
        "old.h5", "models/deep/one with blanks.hdf5",
    ]  # fmt: skip


HOSTILE = [
    "::error::said by a name.h5",
    "a\n::warning::said by a name.h5",
    "--in-place.h5",
    "--output=x.h5",
    "$(touch made).h5",
    "`touch made`.h5",
    "; touch made;.h5",
    "'\".h5",
]


def test_names_of_files_are_names_and_nothing_else(places):
    runner, workspace = places
    for name in HOSTILE:
        make_model_h5(workspace / name)
    before = sorted(os.listdir(workspace))
    ran = run_step(CHECK, runner, workspace)
    assert ran.code == 1, ran.output
    assert f"### rnnconvert: {len(HOSTILE)} needs conversion" in ran.summary
    assert len(ran.commands) == len(HOSTILE)
    assert all(line.startswith("::error file=") for line in ran.commands)
    assert sorted(os.listdir(workspace)) == before


@pytest.mark.parametrize(
    "text", ["$(touch made)", "`touch made`", "x; touch made", "'\"", "keras4"]
)
@pytest.mark.sampled(3)
def test_what_the_caller_gives_is_never_run(places, text):
    runner, workspace = places
    make_model_h5(workspace / "m.h5")
    assert run_step(CHECK, runner, workspace, target=text).code == 2
    ran = run_step(CHECK, runner, workspace, paths=text)
    assert (ran.code, ran.outputs) == (3, "exit-code=3\n")
    assert ran.commands == [f"::error file={text},title=rnnconvert::no such file"]
    assert os.listdir(workspace) == ["m.h5"]


def test_a_pattern_that_matches_nothing(places):
    runner, workspace = places
    ran = run_step(CHECK, runner, workspace, paths="models/*.h5\n\n")
    assert (ran.code, ran.outputs) == (0, "exit-code=0\n")
    assert "nothing was checked" in ran.summary
    assert ran.commands == [
        "::warning title=rnnconvert::no file matches the paths, nothing was checked"
    ]


def test_an_unreadable_file_is_exit_code_3(places):
    runner, workspace = places
    (workspace / "torn.h5").write_bytes(b"\x89HDF\r\n\x1a\n")
    ran = run_step(CHECK, runner, workspace)
    assert (ran.code, ran.outputs) == (3, "exit-code=3\n")
    assert ran.commands[0].startswith("::error file=torn.h5,")


def test_no_input_is_spliced_into_a_script():
    assert STEPS
    for step in STEPS:
        assert "${{" not in step["run"]
        assert "uses" not in step


@pytest.mark.corpus
def test_all_steps_with_a_real_installation(tmp_path):
    """Downloads what rnnconvert needs, into a virtual environment of its own."""
    runner, workspace = tmp_path / "runner", tmp_path / "workspace"
    runner.mkdir()
    workspace.mkdir()
    make_model_h5(workspace / "m.h5")
    (workspace / "pip.py").write_text("raise SystemExit('a module of the repository was run')\n")
    shutil.copy(workspace / "pip.py", workspace / "rnnconvert.py")
    codes = [run_step(step, runner, workspace, python=sys.executable).code for step in STEPS]
    assert codes == [0, 1]


# --- workflows, hook --------------------------------------------------------------------------


def uses(node: object) -> list[str]:
    if isinstance(node, dict):
        own = [node["uses"]] if isinstance(node.get("uses"), str) else []
        return own + [found for value in node.values() for found in uses(value)]
    return [found for each in node for found in uses(each)] if isinstance(node, list) else []


def test_other_actions_are_pinned_by_their_commit():
    sources = [*ROOT.glob(".github/workflows/*.yml"), ROOT / "action.yml"]
    found = [name for path in sources for name in uses(yaml.safe_load(path.read_text()))]
    blocks = re.findall(r"```yaml\n(.*?)```", (ROOT / "docs/ci.md").read_text(), re.DOTALL)
    documented = [name for block in blocks for name in uses(yaml.safe_load(block))]
    assert any(name.startswith("actions/checkout@") for name in found)
    assert any(name.startswith("actions/checkout@") for name in documented)
    for name in (*found, *documented):
        assert name == "./" or re.search(r"@([0-9a-f]{40}|COMMIT)$", name), name


def test_the_hook_is_a_command_that_exists(cli, tmp_path):
    (hook,) = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text(encoding="utf-8"))
    assert hook["id"] == "rnnconvert-check"
    assert hook["require_serial"]
    names = ["m.h5", "m.hdf5", "a/m.keras", "m.h5.txt", "h5"]
    assert [bool(re.search(hook["files"], name)) for name in names] == [True] * 3 + [False] * 2
    program, *words = hook["entry"].split()
    assert program == "rnnconvert"
    make_model_h5(tmp_path / "--output=x.h5")
    result = cli(*words, *hook["args"], "--output=x.h5")
    assert result.code == 1
    assert os.listdir(tmp_path) == ["--output=x.h5"]

"""Every command in docs/ is run, and ends as the page says: "# exit 1", or else with 0.

A block that can't be run has a comment before it, `<!-- not run: REASON -->`. What runs are the
blocks without a language, line by line, and those of Python. A page's blocks run one after another
in one folder that holds what the pages speak of.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from helpers import Result

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
FIXTURES = ROOT / "fixtures"
PAGES = sorted(DOCS.glob("*.md"))
pytestmark = [pytest.mark.corpus, pytest.mark.slow]

_BLOCK = re.compile(r"(<!-- not run: [^>]+ -->\n+)?^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    language: str
    text: str
    is_run: bool

    @property
    def commands(self) -> list[tuple[str, int]]:
        """Its commands and the exit codes that the page promises."""
        shown = self.text.startswith("$ ")  # then what it prints stands below
        found = []
        for line in self.text.splitlines():
            if shown and not line.startswith("$ "):
                continue
            command, _, comment = line.removeprefix("$ ").partition("  #")
            code = re.match(r" exit (\d+)", comment)
            if command.strip():
                found.append((command.strip(), int(code.group(1)) if code else 0))
        return found


def blocks(page: Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    return [Block(language, body, not mark) for mark, language, body in _BLOCK.findall(text)]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The files that the pages speak of."""
    monkeypatch.chdir(tmp_path)
    shutil.copy(FIXTURES / "keras/k224/bi/model.h5", "model.h5")
    shutil.copy(FIXTURES / "keras/k224/bi/weights.h5", "weights.h5")
    graph = FIXTURES / "savedmodels/tf115/contrib_gru_bi2/model"
    for name in ("saved_model", "model"):
        shutil.copytree(graph, name)
    shutil.copytree(FIXTURES / "checkpoints/tf115/cudnn_lstm", "runs")
    for file in list(Path("runs").iterdir()):
        file.rename(file.with_name(file.name.replace("model.ckpt", "model.ckpt-100")))
    Path("models").mkdir()
    for name in ("bi", "seq_gru"):
        shutil.copy(FIXTURES / f"keras/k224/{name}/model.h5", f"models/{name}.h5")
    shutil.copy("model.h5", "models/a.h5")
    shutil.copy("model.h5", "a.h5")
    shutil.copy("models/seq_gru.h5", "stream.h5")
    shutil.copy("models/seq_gru.h5", "b.h5")
    Path("c.h5").write_bytes(Path("model.h5").read_bytes()[:4000])
    return tmp_path


def in_a_shell(command: str) -> Result:
    """As typed into a shell, with the rnnconvert of this repository."""
    python = f"{shlex.quote(sys.executable)} -m rnnconvert"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path]),
                   "NO_COLOR": "1"}  # fmt: skip
    script = f'rnnconvert() {{ {python} "$@"; }}\nexport -f rnnconvert\n{command}'
    done = subprocess.run(
        ["bash", "-c", script], env=environment, capture_output=True, text=True, check=False
    )
    return Result(done.returncode, done.stdout, done.stderr)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_of_a_page(page, folder, cli):
    def run(command: str) -> Result:
        """In this process, which has imported TensorFlow, where it needs no shell."""
        words = shlex.split(command)
        if words[0] == "rnnconvert" and not set(command) & set("|&;<>$`*?(){}"):
            return cli(*words[1:])
        return in_a_shell(command)

    for block in blocks(page):
        if not block.is_run or block.language not in ("", "python"):
            continue
        if block.language == "python":
            (folder / "block.py").write_text(block.text, encoding="utf-8")
            done = in_a_shell(f"{shlex.quote(sys.executable)} block.py")
            assert done.code == 0, f"{block.text}\n{done.err}"
            continue
        for command, code in block.commands:
            done = run(command)
            assert done.code == code, f"{command}\n{done.out}\n{done.err}"


def test_what_is_not_run_is_little_and_has_a_reason():
    found = [block for page in PAGES for block in blocks(page)]
    ran = [block for block in found if block.is_run and block.language in ("", "python")]
    assert len(ran) > 15
    reasons = [text for page in PAGES
               for text in re.findall(r"<!-- not run: (.*?) -->", page.read_text())]  # fmt: skip
    assert len(reasons) == sum(not block.is_run for block in found)
    assert all(len(reason.split()) > 2 for reason in reasons)


def test_the_notebook_runs():
    """Its cells one after another; it is started in docs/, and writes elsewhere."""
    notebook = json.loads((DOCS / "notebook.ipynb").read_text(encoding="utf-8"))
    cells = ["".join(c["source"]) for c in notebook["cells"] if c["cell_type"] == "code"]
    assert len(cells) > 4
    before = sorted(os.listdir(DOCS))
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(cells)], cwd=DOCS, capture_output=True, text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)}, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "equivalent" in done.stdout
    assert sorted(os.listdir(DOCS)) == before

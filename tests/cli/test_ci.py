"""`--summary` and `--annotations`: what they say, and that no name breaks out of its place."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from helpers import make_model_h5
from markdown_it import MarkdownIt

from rnnconvert.cli.ci import Outcome, markdown, workflow_commands
from rnnconvert.errors import NotConvertibleError, UnreadableInputError
from rnnconvert.report import Assumption, FileInfo, LevelResult, Report

CHECK = ("cudnn-to-keras", "--check", "--summary", "s.md", "--annotations", "a.txt")

HOSTILE = [
    "a`b``c.h5",
    "`.h5",
    " blanks .h5",
    "a|b.h5",
    "a\\|b.h5",
    "![x](https:example.com/x.png).h5",
    "<img src=x>.h5",
    "two\nlines.h5",
    "two\r\n\r\n# lines.h5",
    "\x1b[31m.h5",
    "www.example.com @somebody.h5",
    "100%,:;.h5",
    "::error file=x::y.h5",
    "\udcff.h5",
]


def shown(text: str) -> str:
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text).replace("|", "\\x7c")


def report(path: str, **fields) -> Report:
    return Report("cudnn-to-keras", FileInfo(path, 28216, "keras-h5-model"), **fields)


def texts(tokens) -> list[tuple[str, str]]:
    """Kind and content of every inline token, and every block token's kind."""
    found = []
    for token in tokens:
        found.append((token.type, token.content if token.type != "inline" else ""))
        found += texts(token.children or [])
    return found


def parsed(source: str) -> list[tuple[str, str]]:
    return texts(MarkdownIt("commonmark").enable("table").parse(source))


# --- through the command line -----------------------------------------------------------------


def test_a_check_of_three_files(cli, tmp_path):
    make_model_h5(tmp_path / "old.h5")
    (tmp_path / "torn.h5").write_bytes(b"\x89HDF\r\n\x1a\n" + bytes(9))
    result = cli(*CHECK, "old.h5", "torn.h5", "missing.h5")
    assert result.code == 3
    summary = (tmp_path / "s.md").read_text(encoding="utf-8")
    assert "### rnnconvert: 1 needs conversion, 2 can't be read\n" in summary
    assert "| `old.h5` | Keras HDF5, whole model, " in summary
    assert "Keras `2.2.4` | **needs conversion** |" in summary
    assert "| `missing.h5` |  | **can't be read** |" in summary
    assert "- `missing.h5`\n    - error: `no such file`" in summary
    told = (tmp_path / "a.txt").read_text(encoding="utf-8").splitlines()
    assert told[0] == (
        "::error file=old.h5,title=rnnconvert::needs conversion; run rnnconvert cudnn-to-keras on "
        "it, and use what that writes"
    )
    assert told[1].startswith("::error file=torn.h5,title=rnnconvert::HDF5 can't open the file")
    assert told[2] == "::error file=missing.h5,title=rnnconvert::no such file"
    assert len(told) == 3


def test_a_conversion_and_a_comparison_are_appended(cli, tmp_path):
    make_model_h5(tmp_path / "m.h5")
    (tmp_path / "s.md").write_text("# before\n")
    options = ("--verify", "layers", "--summary", "s.md", "-q")
    assert cli("cudnn-to-keras", "m.h5", *options).code == 0
    assert cli("verify", "m.h5", "m.portable.h5", *options).code == 0
    summary = (tmp_path / "s.md").read_text(encoding="utf-8")
    assert summary.startswith("# before\n\n### rnnconvert: 1 equivalent\n")
    assert summary.count("### rnnconvert: 1 equivalent") == 2
    assert "    - written `m.portable.h5`" in summary
    assert "    - `ok layers: max difference " in summary


@pytest.mark.parametrize("option", ["--summary", "--annotations"])
def test_no_model_is_appended_to(cli, tmp_path, option):
    make_model_h5(tmp_path / "m.h5")
    make_model_h5(tmp_path / "other.h5")
    before = {name: (tmp_path / name).read_bytes() for name in ("m.h5", "other.h5")}
    for path, code in (("m.h5", 2), ("m.portable.h5", 2), ("other.h5", 5), ("no/s", 5), (".", 2)):
        result = cli("cudnn-to-keras", "m.h5", option, path)
        assert (result.code, result.out, result.err.count("\n")) == (code, "", 1), path
    assert cli("verify", "m.h5", "other.h5", option, "other.h5").code == 2
    assert cli("cudnn-to-keras", "m.h5", option, "-").code == 2
    assert sorted(os.listdir(tmp_path)) == ["m.h5", "other.h5"]
    assert {name: (tmp_path / name).read_bytes() for name in before} == before


# --- names that want to be something else -----------------------------------------------------


@pytest.mark.parametrize("name", HOSTILE, ids=ascii)
def test_a_name_stays_a_code_span(name):
    bad = report(
        name,
        warnings=(f"{name} warns",),
        assumptions=(Assumption(name, 1.0, f"why {name}"),),
    )
    good = report(
        name, layers_level=LevelResult("passed", detail=name), verdict="equivalent",
        output=FileInfo(name, 1, "keras-h5-model"),
    )  # fmt: skip
    source = markdown(
        [
            Outcome(Path(name), bad, NotConvertibleError(f"in {name}")),
            Outcome(Path(name), good, None),
        ]
    )
    found = parsed(source)
    spans = {text.strip() for kind, text in found if kind == "code_inline"}
    expected = {name, f"{name} warns", f"in {name}", f"{name} is 1.0 (why {name})"}
    assert {shown(text).strip() for text in expected} <= spans
    kinds = {kind for kind, _ in found}
    assert not kinds & {"link_open", "image", "html_inline", "html_block", "fence", "hr"}
    assert [kind for kind, _ in found].count("heading_open") == 1
    assert [kind for kind, _ in found].count("tr_open") == 3
    assert [kind for kind, _ in found].count("td_open") == 6
    outside = "".join(text for kind, text in found if kind == "text")
    assert name.strip() not in outside


@pytest.mark.parametrize("name", HOSTILE, ids=ascii)
def test_an_annotation_stays_one_command(name):
    text = workflow_commands(
        [Outcome(Path(name), report(name, warnings=(name,)), UnreadableInputError(f"in {name}"))]
    )
    lines = text.split("\n")
    assert lines.pop() == ""
    assert len(lines) == 2
    for line, level, message in zip(lines, ("error", "warning"), (f"in {name}", name), strict=True):
        assert line.isprintable()
        match = re.fullmatch(r"::(\w+) file=([^:,]*),title=rnnconvert::(.*)", line)
        assert match is not None
        assert match.group(1) == level
        assert unescaped(match.group(2)) == visible(name)
        assert unescaped(match.group(3)) == visible(message)


def visible(text: str) -> str:
    """With the line ends that GitHub can carry, and all else that is unprintable made visible."""
    return "".join(c if c.isprintable() or c in "\r\n" else repr(c)[1:-1] for c in text)


def unescaped(text: str) -> str:
    """As GitHub's runner reads it."""
    for escape, character in (("%2C", ","), ("%3A", ":"), ("%0A", "\n"), ("%0D", "\r")):
        text = text.replace(escape, character)
    return text.replace("%25", "%")


def test_a_summary_has_a_size_that_github_takes():
    error = NotConvertibleError("x" * 2000)
    outcomes = [Outcome(Path(f"good{i}.h5"), report("g", verdict="equivalent"), None)
                for i in range(10)]  # fmt: skip
    outcomes += [Outcome(Path(f"bad{i}.h5"), None, error) for i in range(1000)]
    source = markdown(outcomes)
    assert 800_000 < len(source.encode()) < 2**20
    left = re.search(r"- (\d+) more inputs", source)
    assert left is not None
    shown_rows = source.count("| `bad")
    assert shown_rows + int(left.group(1)) == 1010
    assert "good" not in source  # what failed comes first

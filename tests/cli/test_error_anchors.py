"""Every error of the command line ends in an anchor, and docs/errors.md explains each."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from helpers import LSTM_BIAS, make_model_h5, replace_dataset

from rnnconvert import errors
from rnnconvert.cli.main import main

ERRORS = (Path(__file__).parents[2] / "docs/errors.md").read_text(encoding="utf-8")
CLASSES = [each for each in vars(errors).values()
           if isinstance(each, type) and issubclass(each, errors.ConversionError)]  # fmt: skip


@pytest.fixture
def printed(monkeypatch, capsys, tmp_path):
    """What a command line prints to stderr, to the last character, and its exit code."""
    monkeypatch.chdir(tmp_path)

    def run(*words: str) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["rnnconvert", *words])
        with pytest.raises(SystemExit) as stop:
            main()
        return stop.value.code, capsys.readouterr().err

    return run


def test_there_is_a_section_for_every_error():
    assert len(CLASSES) == 7
    for each in CLASSES:
        title = each.anchor.replace("-", " ").capitalize()
        assert f"\n## {title}\n\n*Exit code {each.exit_code}.*" in ERRORS
        assert f"](#{each.anchor}) | {each.exit_code} |" in ERRORS
        assert each.explained() == f"(see docs/errors.md#{each.anchor})"


def test_errors_of_each_kind_end_in_it(printed, tmp_path):
    make_model_h5(tmp_path / "m.h5")
    make_model_h5(tmp_path / "bad.h5")
    make_model_h5(tmp_path / "other.h5", units=(7, 4))
    replace_dataset(tmp_path / "bad.h5", LSTM_BIAS, [1.0] * 47)
    (tmp_path / "m.portable.h5").touch()
    for words, code, anchor in (
        (("verify", "m.h5", "other.h5", "--verify", "weights"), 1, "different"),
        (("cudnn-to-keras", "m.h5", "-o", "m.h5"), 2, "usage"),
        (("inspect", "missing.h5"), 3, "unreadable"),
        (("cudnn-to-keras", "bad.h5"), 4, "not-convertible"),
        (("cudnn-to-keras", "m.h5"), 5, "output"),
    ):
        found, text = printed(*words)
        assert found == code, text
        lines = text.splitlines()
        assert lines[-1].startswith("error: ")
        assert lines[-1].endswith(f" (see docs/errors.md#{anchor})")


def test_several_problems_end_in_it_once(printed, tmp_path):
    make_model_h5(tmp_path / "m.h5", names=("a", "b"), cells=("lstm", "lstm"))
    for name in "ab":
        replace_dataset(tmp_path / "m.h5", f"model_weights/{name}/{name}/bias:0", [1.0] * 47)
    code, text = printed("cudnn-to-keras", "m.h5")
    assert code == 4
    lines = text.splitlines()
    assert len(lines) == 4
    assert lines[0] == "error: m.h5: 2 problems"
    assert lines[-1] == "  (see docs/errors.md#not-convertible)"


@pytest.mark.parametrize(
    "words", [["no-command"], ["inspect"], ["inspect", "--nope"], ["inspect", "--target", "x", "m"]]
)
def test_errors_of_the_command_line_itself(printed, words):
    code, text = printed(*words)
    assert code == 2
    assert re.fullmatch(r"Error: .* \(see docs/errors\.md#usage\)", text.splitlines()[-1])


def test_a_setting_ends_in_it(printed, tmp_path):
    (tmp_path / "pyproject.toml").write_text("[tool.rnnconvert]\nx = 1\n")
    code, text = printed("inspect", "m.h5")
    assert (code, text.count("\n")) == (2, 1)
    assert text.endswith(" [tool.rnnconvert] x: no such option (see docs/errors.md#usage)\n")


def test_the_api_keeps_its_messages(tmp_path):
    import rnnconvert

    with pytest.raises(rnnconvert.ConversionError) as caught:
        rnnconvert.inspect(tmp_path / "missing.h5")
    assert str(caught.value).endswith("missing.h5: no such file")

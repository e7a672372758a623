"""Options from pyproject.toml and from variables: a flag goes before both, a variable first."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import click
import pytest
from helpers import make_model_h5

from rnnconvert.cli import main as program
from rnnconvert.cli.config import NOT_IN_A_FILE, every_option, long_name, variable

COMMAND = ("cudnn-to-keras", "m.h5")


@pytest.fixture
def taken(cli, monkeypatch):
    """What a command line gives to the command, which is not run."""
    arguments: dict[str, Any] = {}

    def run(*words: str) -> dict[str, Any]:
        arguments.clear()
        result = cli(*words)
        assert (result.code, result.err) == (0, "")
        return arguments

    monkeypatch.setattr(program, "run_command", lambda _, given: arguments.update(given))
    return run


def write(folder: Path, text: str) -> Path:
    path = folder / "pyproject.toml"
    path.write_text(f"[tool.rnnconvert]\n{text}\n", encoding="utf-8")
    return path


# One option of each type: its key, its name in the code, and three values: of the file, of the
# variable, of the flag.
TYPES = {
    "choice": ("to", "to", ('"h5"', "keras", "npz"), ("h5", "keras", "npz")),
    "int range": ("batch", "batch", ("4", "5", "6"), (4, 5, 6)),
    "float range": ("rtol", "rtol", ("1e-4", "1e-5", "1e-6"), (1e-4, 1e-5, 1e-6)),
    "float": ("forget-bias", "forget_bias", ("0.5", "0.25", "2"), (0.5, 0.25, 2.0)),
    "text": ("scope", "scope", ('"a"', "b", "c"), ("a", "b", "c")),
    "renamed": ("layers", "num_layers", ("1", "2", "3"), (1, 2, 3)),
}  # fmt: skip


@pytest.mark.parametrize("kind", TYPES)
def test_flag_over_variable_over_file(taken, tmp_path, monkeypatch, kind):
    key, name, (in_file, in_variable, in_flag), values = TYPES[kind]
    write(tmp_path, f"{key} = {in_file}")
    assert taken(*COMMAND)[name] == values[0]
    monkeypatch.setenv(f"RNNCONVERT_{key.upper().replace('-', '_')}", in_variable)
    assert taken(*COMMAND)[name] == values[1]
    assert taken(*COMMAND, f"--{key}", in_flag)[name] == values[2]
    (tmp_path / "pyproject.toml").unlink()
    assert taken(*COMMAND)[name] == values[1]


def test_a_switch(taken, tmp_path, monkeypatch):
    assert taken(*COMMAND)["strict"] is False
    write(tmp_path, "strict = true")
    assert taken(*COMMAND)["strict"] is True
    monkeypatch.setenv("RNNCONVERT_STRICT", "0")
    assert taken(*COMMAND)["strict"] is False
    assert taken(*COMMAND, "--strict")["strict"] is True


def test_several_values_and_paths(taken, monkeypatch):
    monkeypatch.setenv("RNNCONVERT_CUSTOM_OBJECTS", "a:b c:d")
    monkeypatch.setenv("RNNCONVERT_OUTPUT", "out.h5")
    assert taken(*COMMAND)["custom_objects"] == ("a:b", "c:d")
    assert taken(*COMMAND)["output_path"] == "out.h5"
    found = taken(*COMMAND, "--custom-objects", "e:f", "-o", "other.h5")
    assert (found["custom_objects"], found["output_path"]) == (("e:f",), "other.h5")


def test_a_setting_is_for_every_command_that_has_the_option(taken, tmp_path):
    write(tmp_path, 'verify = "layers"\ntarget = "keras2"\nseed = 3')
    assert taken(*COMMAND)["verify"] == "layers"
    assert taken("verify", "a.h5", "b.h5")["seed"] == 3
    assert taken("inspect", "m.h5")["target"] == "keras2"
    assert "seed" not in taken("inspect", "m.h5")


def test_what_it_does_to_a_conversion(cli, tmp_path):
    make_model_h5(tmp_path / "m.h5")
    write(tmp_path, 'verify = "weights"')
    result = cli("cudnn-to-keras", "m.h5")
    assert result.code == 0
    assert "not asked for (--verify weights)" in result.out


# --- where the file is ------------------------------------------------------------------------


def test_the_nearest_file_with_the_table_counts(taken, tmp_path, monkeypatch):
    write(tmp_path, "batch = 4")
    deep = tmp_path / "a/b"
    deep.mkdir(parents=True)
    (deep / "pyproject.toml").write_text("[project]\nname = 'x'\n")
    monkeypatch.chdir(deep)
    assert taken(*COMMAND)["batch"] == 4
    write(tmp_path / "a", "batch = 5")
    assert taken(*COMMAND)["batch"] == 5


@pytest.mark.parametrize("text", ["not = = toml", "[tool]\nother = 1", "\xff", ""])
def test_a_file_without_a_word_of_us_is_not_read(taken, tmp_path, text):
    (tmp_path / "pyproject.toml").write_text(text, encoding="latin-1")
    assert taken(*COMMAND)["batch"] is None


def test_a_directory_of_that_name_and_a_lost_working_directory(taken, tmp_path, monkeypatch):
    (tmp_path / "pyproject.toml").mkdir()
    assert taken(*COMMAND)["batch"] is None
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    os.rmdir(tmp_path / "gone")
    assert taken(*COMMAND)["batch"] is None


# --- what is refused --------------------------------------------------------------------------

WRONG = {
    "verfy = 'layers'": "verfy: no such option; did you mean verify?",
    "max_bytes = 1": "max_bytes: no such option; did you mean max-bytes?",
    "xyzzy = 1": "xyzzy: no such option",
    "help = true": "help: no such option",
    "target = 'keras4'": "target = 'keras4': 'keras4' is not one of 'keras3', 'keras2'.",
    "target = 3": "target = 3: expected a string",
    "batch = 0": "batch = 0: 0 is not in the range x>=1.",
    "batch = '3'": "batch = '3': expected a whole number",
    "batch = 3.5": "batch = 3.5: expected a whole number",
    "batch = true": "batch = True: expected a whole number",
    "rtol = '1e-3'": "rtol = '1e-3': expected a number",
    "strict = 'yes'": "strict = 'yes': expected true or false",
    "strict = 1": "strict = 1: expected true or false",
    "[tool.rnnconvert.verify]\nrtol = 1": "verify = {'rtol': 1}: expected a string",
}


@pytest.mark.parametrize("text", WRONG)
def test_a_wrong_setting_is_one_line(cli, tmp_path, text):
    path = write(tmp_path, text)
    make_model_h5(tmp_path / "m.h5")
    result = cli(*COMMAND)
    assert (result.code, result.out) == (2, "")
    assert result.err == f"error: {path}: [tool.rnnconvert] {WRONG[text]}\n"
    assert cli("--help").code == 0


def test_a_broken_file_is_one_line(cli, tmp_path):
    for text in (
        "[tool.rnnconvert\n",
        "[tool]\nrnnconvert = 1\n",
        "a=" + "[" * 5000 + "#rnnconvert",
    ):
        (tmp_path / "pyproject.toml").write_text(text)
        result = cli("inspect", "m.h5")
        assert (result.code, result.out, result.err.count("\n")) == (2, "", 1)
        assert result.err.startswith(f"error: {tmp_path}/pyproject.toml: ")


@pytest.mark.parametrize("key", sorted(NOT_IN_A_FILE & {long_name(o) for _, o in
                                                         every_option(program.cli)}))  # fmt: skip
def test_a_file_beside_a_model_gives_no_permissions(cli, tmp_path, key):
    make_model_h5(tmp_path / "m.h5")
    path = write(tmp_path, f"{key} = true")
    before = (tmp_path / "m.h5").read_bytes()
    result = cli(*COMMAND)
    assert result.code == 2
    told = f"[tool.rnnconvert] {key}: is not taken from a file; give --{key} or {named(key)}"
    assert result.err == f"error: {path}: {told}\n"
    assert sorted(os.listdir(tmp_path)) == ["m.h5", "pyproject.toml"]
    assert (tmp_path / "m.h5").read_bytes() == before


def named(key: str) -> str:
    return f"RNNCONVERT_{key.upper().replace('-', '_')}"


def test_every_option_that_takes_a_file_or_code_is_refused_in_a_file():
    """A new option of such a type has to be thought about."""
    harmless = {"include", "exclude"}  # which files of a folder are looked at
    for _, option in every_option(program.cli):
        if isinstance(option.type, click.Path) or option.multiple:
            assert long_name(option) in NOT_IN_A_FILE | harmless, option.name


def test_every_option_has_its_variable():
    options = list(every_option(program.cli))
    assert len(options) > 80
    for names, option in options:
        assert option.envvar == variable(option), names
        assert re.fullmatch(r"RNNCONVERT_[A-Z0-9_]+", option.envvar)


def test_a_variable_that_no_option_takes(cli, monkeypatch):
    monkeypatch.setenv("RNNCONVERT_TARGT", "keras2")
    result = cli(*COMMAND)
    assert result.code == 2
    assert "the variable RNNCONVERT_TARGT: no such option; did you mean RNNCONVERT_TARGET?" in (
        result.err
    )

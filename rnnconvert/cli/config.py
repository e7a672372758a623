"""Options from `[tool.rnnconvert]` of pyproject.toml, and from RNNCONVERT_* variables.

A flag goes before a variable, a variable before the file. The file may belong to whoever made the
model beside it, so it says how to convert, prove and show, and never what is run, written or
overwritten: see `NOT_IN_A_FILE`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import click

from rnnconvert.errors import UsageError

FILE = "pyproject.toml"
TABLE = "[tool.rnnconvert]"
_PREFIX = "RNNCONVERT_"
NOT_IN_A_FILE = frozenset(
    {
        "allow-code", "custom-objects", "output", "force", "in-place", "report", "html", "summary",
        "annotations", "scheduler", "resume",
    }
)  # fmt: skip
"""Options that run code, write or overwrite a file, or reach another machine."""


def every_option(
    group: click.Group, path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], click.Option]]:
    """Each option of each command, with the names that lead to the command."""
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from every_option(command, (*path, name))
        for parameter in command.params:
            if isinstance(parameter, click.Option) and parameter.name != "help":
                yield (*path, name), parameter


def long_name(option: click.Option) -> str:
    """E.g. "max-bytes"."""
    return next(word for word in option.opts if word.startswith("--"))[2:]


def variable(option: click.Option) -> str:
    """E.g. "RNNCONVERT_MAX_BYTES"."""
    return f"{_PREFIX}{long_name(option).upper().replace('-', '_')}"


def read_variables(group: click.Group) -> None:
    """Let every option of every command take its value from its variable."""
    for _, option in every_option(group):
        option.envvar = variable(option)


def check_variables(group: click.Group) -> None:
    """A variable that no option takes would be without effect, and nobody would know.

    Raises:
        UsageError: there is one.
    """
    known = {variable(option) for _, option in every_option(group)}
    for name in sorted(os.environ):
        if name.startswith(_PREFIX) and name not in known:
            raise UsageError(f"the variable {name}: no such option{_guess(name, known)}")


def _guess(name: str, known: Iterable[str]) -> str:
    from difflib import get_close_matches

    near = get_close_matches(name, sorted(known), 1)
    return f"; did you mean {near[0]}?" if near else ""


def from_settings() -> frozenset[str]:
    """Names of the running command's options that no flag gave, but a file or a variable."""
    context = click.get_current_context()
    sources = (click.core.ParameterSource.DEFAULT_MAP, click.core.ParameterSource.ENVIRONMENT)
    names = [parameter.name for parameter in context.command.params if parameter.name]
    return frozenset(name for name in names if context.get_parameter_source(name) in sources)


def default_map(group: click.Group) -> dict[str, Any]:
    """What the file says, as click's `default_map`: for each command the options that it has.

    Args:
        group: of all commands.

    Raises:
        UsageError: the file can't be read, or names what is no option, or gives it a wrong value.
    """
    try:
        path, table = _find(Path.cwd())
    except FileNotFoundError:  # the working directory is gone
        return {}
    defaults: dict[str, Any] = {}
    options = list(every_option(group))
    for key, value in table.items():
        taking = [(names, option) for names, option in options if long_name(option) == key]
        _check_key(path, key, {long_name(option) for _, option in options})
        _fill(defaults, path, key, value, taking)
    return defaults


def _fill(
    defaults: dict[str, Any],
    path: Path,
    key: str,
    value: object,
    taking: list[tuple[tuple[str, ...], click.Option]],
) -> None:
    """Give a value to each command whose option takes it: `to` has other choices in `export`.

    Raises:
        UsageError: no command takes it.
    """
    wrong = []
    for names, option in taking:
        try:
            found = _value(path, key, value, option)
        except UsageError as error:
            wrong.append(error)
            continue
        inner = defaults
        for name in names:
            inner = inner.setdefault(name, {})
        inner[str(option.name)] = found
    if len(wrong) == len(taking):
        raise wrong[0]


def _find(start: Path) -> tuple[Path, Mapping[str, Any]]:
    """The nearest file that has the table, from `start` upward; and the table."""
    for directory in (start, *start.parents):
        path = directory / FILE
        try:
            content = path.read_bytes() if path.is_file() else b""
        except OSError as error:
            raise UsageError(f"can't be read: {error.strerror}", path=str(path)) from error
        if b"rnnconvert" in content:  # no other file of that name has to be right, or is parsed
            table = _table(path, content)
            if table is not None:
                return path, table
    return start / FILE, {}


def _table(path: Path, content: bytes) -> Mapping[str, Any] | None:
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib

    try:
        tool = tomllib.loads(content.decode("utf-8")).get("tool", {})
    except (ValueError, RecursionError) as error:
        raise UsageError(f"no valid TOML: {error}", path=str(path)) from error
    table = tool.get("rnnconvert") if isinstance(tool, dict) else None
    if table is not None and not isinstance(table, dict):
        raise UsageError(f"{TABLE}: expected a table", path=str(path))
    return table


def _check_key(path: Path, key: str, known: set[str]) -> None:
    if key in NOT_IN_A_FILE:
        name = key.upper().replace("-", "_")
        raise UsageError(
            f"{TABLE} {key}: is not taken from a file; give --{key} or RNNCONVERT_{name}",
            path=str(path),
        )
    if key not in known:
        guess = _guess(key, known - NOT_IN_A_FILE)
        raise UsageError(f"{TABLE} {key}: no such option{guess}", path=str(path))


def _value(path: Path, key: str, value: object, option: click.Option) -> object:
    """The value, of the type that the option has."""
    parts = value if option.multiple and isinstance(value, list) else [value]
    kind, expected = _type_of(option)
    if option.multiple and not isinstance(value, list):
        expected, fits = f"a list of {expected}s", False
    else:
        fits = all(type(part) in kind for part in parts)
    if not fits:
        raise UsageError(f"{TABLE} {key} = {value!r}: expected {expected}", path=str(path))
    try:
        for part in parts:
            option.type.convert(part, option, None)
    except click.BadParameter as error:
        raise UsageError(f"{TABLE} {key} = {value!r}: {error.message}", path=str(path)) from error
    return value


def _type_of(option: click.Option) -> tuple[tuple[type, ...], str]:
    """The types of TOML that an option takes, and what to call them."""
    if option.is_flag:
        return (bool,), "true or false"
    if isinstance(option.type, click.types.FloatParamType):
        return (float, int), "a number"
    if isinstance(option.type, click.types.IntParamType):
        return (int,), "a whole number"
    return (str,), "a string"

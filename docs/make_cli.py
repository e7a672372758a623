"""Writes docs/cli.md from the commands themselves: `python docs/make_cli.py`.

A test fails where the page is not what this makes.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from pathlib import Path

import click

from rnnconvert.cli.config import NOT_IN_A_FILE, long_name, variable
from rnnconvert.cli.main import cli

PAGE = Path(__file__).parent / "cli.md"
HEAD = """# The command line

<!-- Written by docs/make_cli.py from the commands themselves: change those, and run it. -->

`rnnconvert --version` shows the versions of rnnconvert and of what it stands on, and
`rnnconvert COMMAND --help` what is below. The exit codes are explained in [errors](errors.md). Each
option can also be given by its variable; those with a * not by a file, see [settings](settings.md).
"""


def commands(group: click.Group, path: str) -> Iterator[tuple[str, click.Command]]:
    """Every command that does something, with its whole name."""
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from commands(command, f"{path} {name}")
        else:
            yield f"{path} {name}", command


def arguments(command: click.Command) -> list[str]:
    """What stands behind the options, as the help shows it."""
    return [
        parameter.metavar or str(parameter.name).upper()
        for parameter in command.params
        if isinstance(parameter, click.Argument)
    ]


def taken(option: click.Option) -> str:
    """What an option takes: " FILE", " a|b", or nothing for a switch."""
    if option.is_flag:
        return ""
    if option.metavar:
        return f" {option.metavar}"
    if isinstance(option.type, click.Choice):
        return f" {'|'.join(option.type.choices)}"
    if isinstance(option.type, click.types.IntParamType):
        return " N"
    return " NUMBER" if isinstance(option.type, click.types.FloatParamType) else " TEXT"


def row(option: click.Option) -> str:
    names = ", ".join(f"`{name}`" for name in option.opts[:-1])
    last = f"`{option.opts[-1]}{taken(option)}`".replace("|", "\\|")
    told = (option.help or "").replace("|", "\\|")
    if option.show_default and option.default is not None:
        told += f" Default: `{option.default}`."
    star = "*" if long_name(option) in NOT_IN_A_FILE else ""
    flags = ", ".join(filter(None, (names, last)))
    return f"| {flags} | {told.strip()} | `{variable(option)}`{star} |"


def section(name: str, command: click.Command) -> list[str]:
    usage = " ".join([name, "[OPTIONS]", *arguments(command)])
    lines = [f"## {name.removeprefix('rnnconvert ')}", "", "```text", usage, "```", ""]
    lines += [inspect.cleandoc(command.help or ""), ""]
    headings: dict[str, list[str]] = {}
    for option in command.params:
        if isinstance(option, click.Option):
            headings.setdefault(getattr(option, "heading", "Options"), []).append(row(option))
    for heading, rows in headings.items():
        lines += [f"**{heading}**", "", "| option | meaning | variable |", "| --- | --- | --- |"]
        lines += [*rows, ""]
    return lines


def make() -> str:
    """The whole page."""
    lines = [HEAD]
    for name, command in commands(cli, "rnnconvert"):
        lines += section(name, command)
    return "\n".join(lines)


if __name__ == "__main__":
    PAGE.write_text(make(), encoding="utf-8")

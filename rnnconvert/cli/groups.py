"""Headings in the help of a command that has many options."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

Command = Callable[..., Any]
_OTHERS = "Options"


def option_group(
    title: str, *options: Callable[[Command], Command]
) -> Callable[[Command], Command]:
    """A decorator that gives a command options under one heading, first option first.

    The heading is shown by a `GroupedCommand`.
    """

    def decorate(command: Command) -> Command:
        for option in reversed(options):
            command = option(command)
            command.__click_params__[-1].heading = title  # type: ignore[attr-defined]
        return command

    return decorate


class GroupedCommand(click.Command):
    """A command whose help lists its options under the headings of `option_group`."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        headings: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            row = parameter.get_help_record(ctx)
            if row is not None and isinstance(parameter, click.Option):
                headings.setdefault(getattr(parameter, "heading", _OTHERS), []).append(row)
        headings[_OTHERS] = headings.pop(_OTHERS, [])  # last: --help
        for title, rows in headings.items():
            with formatter.section(title):
                formatter.write_dl(rows)

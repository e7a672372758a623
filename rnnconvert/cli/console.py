"""Printing to a terminal of any width, or to a pipe: no name is cut or broken where it fits.

In a terminal lines break between words. Into a file or pipe every line is printed in one piece.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

_ENDLESS = 100_000
"""Width where output goes to a file or a pipe: nothing is wrapped there."""
_HANGING = 4
"""Blanks before the second and further lines of a sentence."""


@dataclass(frozen=True)
class Column:
    """A column of a table, and what its values are in the paragraph that replaces a row.

    Attributes:
        title: above the column, and before the value in a paragraph.
        right: numbers are aligned on the right.
        joined: in a paragraph the value follows the one before it, without its title.
        spare: left out where that lets the table fit; a paragraph has it always.
    """

    title: str = ""
    right: bool = False
    joined: bool = False
    spare: bool = False


class _Console(Console):
    """A console that leaves a closed pipe to the caller instead of exiting with 1."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


def make_console(no_color: bool, stream: Any) -> Console:
    """The console of a stream, as NO_COLOR, FORCE_COLOR and TERM want it."""
    plain = no_color or bool(os.environ.get("NO_COLOR")) or os.environ.get("TERM") == "dumb"
    force = bool(os.environ.get("FORCE_COLOR")) and not plain
    terminal = stream.isatty()
    return _Console(
        file=stream,
        no_color=plain,
        force_terminal=True if force else None,
        color_system=None if plain or not (terminal or force) else "auto",
        width=None if terminal else _ENDLESS,
        highlight=False,
        emoji=False,
    )


def say(console: Console, markup: str, *, hanging: int = _HANGING) -> None:
    """Print a sentence; further lines are indented. A word that is longer than a line stays whole.

    Args:
        markup: what comes from a file in it was made `printable`.
        hanging: blanks before further lines, besides those before the first.
    """
    text = Text.from_markup(markup, emoji=False)
    indent = len(text.plain) - len(text.plain.lstrip(" "))
    room = max(console.width - indent - hanging, 1)
    body = text[indent:]
    for number, line in enumerate(body.divide(_breaks(body.plain, room))):
        line.rstrip()
        before = " " * (indent + (hanging if number else 0))
        console.print(Text(before) + line, soft_wrap=True)


def _breaks(sentence: str, room: int) -> list[int]:
    """Where further lines begin, so that each has the words that fit, and one at least."""
    found, used = [], 0
    for word in re.finditer(r"\S+\s*", sentence):
        width = cell_len(word[0])
        if used and used + cell_len(word[0].rstrip()) > room:
            found.append(word.start())
            used = 0
        used += width
    return found


def show_table(
    console: Console, columns: Sequence[Column], rows: Sequence[Sequence[str]], *, indent: int = 2
) -> None:
    """Print rows as a table; as a paragraph each where the table is wider than the terminal.

    Args:
        rows: one string for each column, made `printable`; first the name.
        indent: 0 or 2 blanks before each row.
    """
    kept = [number for number, column in enumerate(columns) if not column.spare]
    for numbers in (range(len(columns)), kept):
        lines = _lines([columns[n] for n in numbers], [[row[n] for n in numbers] for row in rows])
        if indent + max(line.cell_len for line in lines) <= console.width:
            for line in lines:
                console.print(Text(" " * indent) + line, soft_wrap=True)
            return
    for row in rows:
        _paragraph(console, columns, row, indent)


def _lines(columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> list[Text]:
    """The titles and the rows, each column as wide as its widest value, two blanks between them.

    So `inspect` needs no rich.table, which took a tenth of its own start.
    """
    cells = [[Text(column.title, style="dim") for column in columns]]
    cells += [[Text.from_markup(value, emoji=False) for value in row] for row in rows]
    widths = [max(cell.cell_len for cell in column) for column in zip(*cells, strict=True)]
    lines = []
    for row in cells:
        line = Text()
        for column, cell, width in zip(columns, row, widths, strict=True):
            blanks = " " * (width - cell.cell_len)
            line.append("  " if line else "")
            line.append_text(Text(blanks) + cell if column.right else cell + Text(blanks))
        line.rstrip()
        lines.append(line)
    return lines


def _paragraph(
    console: Console, columns: Sequence[Column], row: Sequence[str], indent: int
) -> None:
    """The name on a line of its own, and under it what the table says in its columns."""
    items: list[str] = []
    for column, value in zip(columns[1:], row[1:], strict=True):
        if not value:
            continue
        if column.joined and items:
            items[-1] += f" {value}"
        else:
            items.append(f"{column.title} {value}".strip())
    console.print(f"{' ' * indent}{row[0]}", soft_wrap=True)
    if items:
        say(console, f"{' ' * (indent + 2)}{', '.join(items)}", hanging=0)

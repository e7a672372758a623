"""Several inputs: one line for each, and how many of each outcome there are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console

from rnnconvert.cli.console import Column, say, show_table
from rnnconvert.cli.tables import printable
from rnnconvert.errors import ConversionError

_OF_CODES = {
    1: "different",
    2: "refused",
    3: "can't be read",
    4: "can't be converted",
    5: "not written",
}
_COLORS = {
    "converted": "green",
    "would be converted": "green",
    "convertible": "green",
    "done before": "green",
    "nothing to convert": "default",
    "needs conversion": "yellow",
    "interrupted": "yellow",
}
"""Of what is no failure."""
_COLUMNS = (
    Column("input"),
    Column("layers", right=True),
    Column("outcome"),
    Column(""),
    Column("written", joined=False),
)


@dataclass(frozen=True)
class Line:
    """What became of one input.

    Attributes:
        outcome: in words, the same for inputs that count together.
        layers: recurrent layers, stacks or ops that were found.
        proof: how deep it was proved, or a condition.
        written: the output's path.
    """

    path: str
    outcome: str
    layers: int | None = None
    proof: str = ""
    written: str = ""


def outcome_of(error: ConversionError) -> str:
    """An error in two words, by its exit code."""
    return _OF_CODES[error.exit_code]


def show_batch(console: Console, lines: Sequence[Line], others: Sequence[str] = ()) -> None:
    """Print a table with a line for each input, and the counts.

    Args:
        others: sentences on what was no input.
    """
    rows = [
        [
            printable(line.path),
            "" if line.layers is None else str(line.layers),
            f"[{_COLORS.get(line.outcome, 'red')}]{line.outcome}[/]",
            printable(line.proof),
            printable(line.written),
        ]
        for line in lines
    ]
    used = [n for n in range(len(_COLUMNS)) if n == 0 or any(row[n] for row in rows)]
    show_table(
        console, [_COLUMNS[n] for n in used], [[row[n] for n in used] for row in rows], indent=0
    )
    counts = Counter(line.outcome for line in lines)
    told = ", ".join(f"{count} {outcome}" for outcome, count in counts.items())
    say(console, f"{len(lines)} input{'s' if len(lines) != 1 else ''}: {told}")
    for other in others:
        say(console, printable(other))

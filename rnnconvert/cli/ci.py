"""What a CI job shows of a run: a summary in Markdown, and GitHub's annotations.

Names and messages may come from anybody's files. In Markdown they stand in code spans, where
nothing becomes a link, an image or markup; in annotations they have GitHub's escapes, so that none
of them can end its line or its field.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from rnnconvert.errors import ConversionError, UsageError

if TYPE_CHECKING:
    from rnnconvert.report import FileInfo, Report

NEEDS_CONVERSION = "needs conversion"
NOTHING = "nothing to convert"
_FAILED = {
    1: "differs",
    2: "can't be done as asked",
    3: "can't be read",
    4: "can't be converted",
    5: "can't be written",
}
"""What an exit code says of one input."""
_MOST = 900_000
"""Bytes of a summary: GitHub takes 1 MiB from one step, and nothing of a longer one."""


@dataclass(frozen=True)
class Outcome:
    """What became of one input.

    Attributes:
        path: of the input, as it was given.
        report: as far as there is one.
        error: that ended the work on it.
        check: only asked whether it needs conversion.
    """

    path: object
    report: Report | None
    error: ConversionError | None
    check: bool = False

    @property
    def status(self) -> str:
        """In a few words that hold no text of the input."""
        if type(self.error) is ConversionError:  # none of the kinds of failure: interrupted
            return "not done"
        if self.error is not None:
            return _FAILED[self.error.exit_code]
        assert self.report is not None
        if self.report.verdict == "nothing-to-convert":
            return NOTHING
        return NEEDS_CONVERSION if self.check else self.report.verdict

    @property
    def is_good(self) -> bool:
        return self.error is None and self.status != NEEDS_CONVERSION


@dataclass
class CiFiles:
    """The files of `--summary` and `--annotations`, and what will be told in them.

    Raises:
        UsageError: one of them is "-".
    """

    summary: str | None
    annotations: str | None
    outcomes: list[Outcome] = field(default_factory=list)

    def __post_init__(self) -> None:
        for name, path in (("--summary", self.summary), ("--annotations", self.annotations)):
            if path == "-":
                raise UsageError(f"{name} -: expected a file")

    @property
    def paths(self) -> list[Path]:
        return [Path(path) for path in (self.summary, self.annotations) if path is not None]

    def add(self, path: object, ended: Report | ConversionError, *, check: bool = False) -> None:
        """What became of an input: its report, or the error that came instead."""
        if isinstance(ended, ConversionError):
            self.outcomes.append(Outcome(path, ended.report, ended, check))
        else:
            self.outcomes.append(Outcome(path, ended, None, check))

    def require_writable(self, models: Sequence[Path]) -> None:
        """Refuse to append to a model, or to what is no text, before any work is done."""
        from rnnconvert.outputs import check_appendable

        for path in self.paths:
            check_appendable(path, models)

    def write(self) -> None:
        from rnnconvert.publish import append_text

        if self.summary is not None:
            append_text(Path(self.summary), markdown(self.outcomes))
        if self.annotations is not None:
            append_text(Path(self.annotations), workflow_commands(self.outcomes))


# --- Markdown ---------------------------------------------------------------------------------


def markdown(outcomes: Sequence[Outcome]) -> str:
    """The summary: how many of what, a row for each input, then what there is to say of them."""
    counts = Counter(outcome.status for outcome in outcomes)
    told = ", ".join(f"{number} {status}" for status, number in counts.items())
    head = ["", f"### rnnconvert: {told or 'no inputs'}", ""]
    rows = ["| input | what it is | result |", "| --- | --- | --- |"]
    bad_first = sorted(outcomes, key=lambda outcome: outcome.is_good)
    rows, details = _fitting(rows, [(_row(each), _details(each)) for each in bad_first])
    return "\n".join([*head, *rows, "", *details, ""])


def _fitting(
    rows: list[str], parts: Sequence[tuple[str, list[str]]]
) -> tuple[list[str], list[str]]:
    """Rows and details up to the size that GitHub takes, and how many inputs were left out."""
    details: list[str] = []
    size = 0
    for number, (row, lines) in enumerate(parts):
        size += sum(len(line.encode()) + 1 for line in (row, *lines))
        if size > _MOST:
            details.append(f"- {len(parts) - number} more inputs: they would not fit in here")
            break
        rows.append(row)
        details += lines
    return rows, details


def _row(outcome: Outcome) -> str:
    report = outcome.report
    what = _kind(report.input) if report is not None else ""
    mark = outcome.status if outcome.is_good else f"**{outcome.status}**"
    return f"| {_code(outcome.path)} | {what} | {mark} |"


def _kind(info: FileInfo) -> str:
    """E.g. "Keras HDF5, whole model, Keras `2.2.4`, 28,216 bytes"."""
    from dataclasses import replace

    from rnnconvert.cli.tables import file_line

    told = file_line(replace(info, keras_version=None))
    return f"{told}, Keras {_code(info.keras_version)}" if info.keras_version else told


def _details(outcome: Outcome) -> list[str]:
    """List items: why it failed, else what was proved; warnings and assumptions."""
    said = []
    report, error = outcome.report, outcome.error
    if error is not None:
        said += [f"error: {_code(problem)}" for problem in error.problems]
    if report is not None:
        said += [f"warning: {_code(warning)}" for warning in report.warnings]
        said += [f"assumed: {_code(f'{each} ({each.why})')}" for each in report.assumptions]
        if error is None:
            said += _proof(outcome, report)
    return [f"- {_code(outcome.path)}", *(f"    - {line}" for line in said)] if said else []


def _proof(outcome: Outcome, report: Report) -> list[str]:
    from rich.text import Text

    from rnnconvert.cli.tables import level_line

    if outcome.status == NOTHING:
        return []
    if outcome.check:
        return [f"{len(report.layers)} layers, {len(report.config_changes)} changes of the config"]
    levels = [Text.from_markup(level_line(name, level)).plain for name, level in report.levels]
    written = [f"written {_code(report.output.path)}"] if report.output else []
    depth = [f"proved: {_code(report.depth)}"] if report.is_equivalent else []
    return [*(_code(level) for level in levels), *written, *depth]


def _code(text: object) -> str:
    """A code span that shows a text in one line, whatever is in it, also in a table."""
    shown = _one_line(text).replace("|", "\\x7c")
    longest = max((len(run) for run in _runs_of_backticks(shown)), default=0)
    fence = "`" * (longest + 1)
    pad = " " if not shown.strip() or shown[0] in "` " or shown[-1] in "` " else ""
    return f"{fence}{pad}{shown}{pad}{fence}"


def _runs_of_backticks(text: str) -> list[str]:
    return "".join(c if c == "`" else " " for c in text).split()


def _one_line(text: object) -> str:
    """Without control characters, as the terminal shows it."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in str(text))


# --- annotations ------------------------------------------------------------------------------


def workflow_commands(outcomes: Sequence[Outcome]) -> str:
    """GitHub's workflow commands, one a line: what failed or needs work, and the warnings."""
    lines = []
    for outcome in outcomes:
        if outcome.error is not None:
            lines += [_command("error", outcome.path, p) for p in outcome.error.problems]
        elif outcome.status == NEEDS_CONVERSION:
            assert outcome.report is not None
            text = f"run rnnconvert {outcome.report.command} on it, and use what that writes"
            lines.append(_command("error", outcome.path, f"{NEEDS_CONVERSION}; {text}"))
        if outcome.report is not None:
            told = [
                *outcome.report.warnings,
                *(f"assumed: {a}" for a in outcome.report.assumptions),
            ]
            lines += [_command("warning", outcome.path, text) for text in told]
    return "".join(f"{line}\n" for line in lines)


def _command(level: str, path: object, message: str) -> str:
    return f"::{level} file={_field(path)},title=rnnconvert::{_data(message)}"


def _data(text: object) -> str:
    """A message with GitHub's escapes; other control characters become visible."""
    escaped = str(text).replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
    return _one_line(escaped)


def _field(text: object) -> str:
    """A field before the message: what ends a field is escaped as well."""
    return _data(text).replace(":", "%3A").replace(",", "%2C")

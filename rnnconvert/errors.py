"""One error class per exit code of the contract."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rnnconvert.report import Report


class ConversionError(Exception):
    """Base of all errors that rnnconvert raises on purpose; `exit_code` is the command's."""

    exit_code = 4

    def __init__(
        self, message: str, *, path: str | None = None, problems: tuple[str, ...] = ()
    ) -> None:
        super().__init__(message)
        self.message = message
        self.problems = problems or (message,)
        self.path = path
        self.report: Report | None = None
        """The report as far as it got, for callers that write it even on failure."""

    def with_report(self, report: Report) -> ConversionError:
        """The error itself, with a report as far as it got."""
        self.report = report
        return self

    def __str__(self) -> str:
        return f"{self.path}: {self.message}" if self.path else self.message


@contextmanager
def errors_of(path: Path) -> Iterator[None]:
    """Errors that are raised inside are about this path, unless they name another."""
    try:
        yield
    except ConversionError as error:
        error.path = error.path or str(path)
        raise


class DifferenceError(ConversionError):
    """Verification found a difference; nothing was written."""

    exit_code = 1


class UsageError(ConversionError):
    """The command or the options make no sense together."""

    exit_code = 2


class UnreadableInputError(ConversionError):
    """The input is missing, truncated, not a model, or refused as unsafe."""

    exit_code = 3


class NotConvertibleError(ConversionError):
    """The input holds something that can't be converted exactly."""

    exit_code = 4


class OutputError(ConversionError):
    """The output exists or can't be written."""

    exit_code = 5

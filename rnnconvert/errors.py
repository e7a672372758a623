"""One error class per exit code of the contract."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rnnconvert.report import Report

FULL_DISK = {
    errno.ENOSPC: "no space left on the device",
    errno.EDQUOT: "no space left on the device",
    errno.EFBIG: "the file would be larger than the system allows",
}
"""Numbers of system errors that only a write can have, and what they mean."""
STUMBLES = (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError)
"""What code raises that takes other people's JSON for well-formed."""


class ConversionError(Exception):
    """Base of all errors that rnnconvert raises on purpose.

    Attributes:
        exit_code: of the command.
        anchor: of the section in docs/errors.md that explains it.
    """

    exit_code = 4
    anchor = "not-convertible"

    def __init__(
        self, message: str, *, path: str | None = None, problems: tuple[str, ...] = ()
    ) -> None:
        super().__init__(message)
        self.message = message
        self.problems = problems or (message,)
        self.path = path
        self.report: Report | None = None
        """The report as far as it got, for callers that write it even on failure."""

    @classmethod
    def explained(cls) -> str:
        """How the error ends on the command line."""
        return f"(see docs/errors.md#{cls.anchor})"

    def with_report(self, report: Report) -> ConversionError:
        """The error itself, with a report as far as it got."""
        self.report = report
        return self

    def __str__(self) -> str:
        return f"{self.path}: {self.message}" if self.path else self.message


@contextmanager
def errors_of(path: object) -> Iterator[None]:
    """Errors that are raised inside are about this path or URL, unless they name another."""
    try:
        yield
    except ConversionError as error:
        error.path = error.path or str(path)
        raise


@contextmanager
def last_resort() -> Iterator[None]:
    """What nobody foresaw, as an error of ours: only such leave the commands and the API.

    Raises:
        OutOfMemoryError: there is not enough memory.
        OutputError: a disk is full.
        UnreadableInputError: all else; a damaged input is by far the likeliest reason.
    """
    try:
        yield
    except (ConversionError, BrokenPipeError):  # the latter: nobody reads what is printed
        raise
    except MemoryError as error:
        raise OutOfMemoryError("there is not enough memory for this model") from error
    except RecursionError as error:
        raise UnreadableInputError("the input is nested too deeply") from error
    except OSError as error:
        raise _of_system(error) from error
    except Exception as error:
        lines = str(error).splitlines() or [""]
        raise UnreadableInputError(
            f"the input is damaged, or this is a bug of rnnconvert ({type(error).__name__}: "
            f"{lines[0][:200]}); --debug shows where"
        ) from error


def _of_system(error: OSError) -> ConversionError:
    """An error of the file system that was not expected where it came from."""
    path = str(error.filename) if error.filename else None
    reason = error.strerror or str(error)
    if error.errno in FULL_DISK:
        return OutputError(f"can't be written: {FULL_DISK[error.errno]}", path=path)
    return UnreadableInputError(f"can't be read: {reason}", path=path)


class DifferenceError(ConversionError):
    """Verification found a difference; nothing was written."""

    exit_code = 1
    anchor = "different"


class UsageError(ConversionError):
    """The command or the options make no sense together."""

    exit_code = 2
    anchor = "usage"


class UnreadableInputError(ConversionError):
    """The input is missing, truncated, not a model, or refused as unsafe."""

    exit_code = 3
    anchor = "unreadable"


class OutOfMemoryError(UnreadableInputError):
    """There is not enough memory to work on the input."""

    anchor = "memory"


class NotConvertibleError(ConversionError):
    """The input holds something that can't be converted exactly."""

    exit_code = 4
    anchor = "not-convertible"


class OutputError(ConversionError):
    """The output exists or can't be written."""

    exit_code = 5
    anchor = "output"

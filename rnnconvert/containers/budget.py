"""How much memory and time one input may ask for: by its own size, or by `--max-bytes`.

A small file can stand for very much: compressed text, arrays of zeros, a tensor listed a thousand
times. What it would take is counted before it is taken.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from rnnconvert.errors import UnreadableInputError

_ASKED: ContextVar[int | None] = ContextVar("max_bytes", default=None)
_LEAST_JSON = 64 * 2**20
_JSON_RATIO = 16
"""Parsed JSON of Keras takes some four times its text, and densely written numbers twelve times."""
_LEAST_ARRAYS = 2**30
_LEAST_MEMBER = 256 * 2**20
_ARRAYS_RATIO = 100
"""Real weights hardly shrink by gzip; only optimizer state and fresh biases are zeros."""
_BRACKET, _COMMA = 64, 32
"""Bytes that an empty dict or list takes in memory, and a further value in one."""


@contextmanager
def max_bytes(asked: int | None) -> Iterator[None]:
    """Inside, an input may take up to so many bytes; None for what its own size allows."""
    token = _ASKED.set(asked)
    try:
        yield
    finally:
        _ASKED.reset(token)


def charge_json(text: str, what: str, stored: int | None = None) -> None:
    """Refuse JSON that would take too much memory when it is parsed.

    Args:
        text: the JSON.
        what: its name, for the message.
        stored: bytes that it takes in the file; by default its own.

    Raises:
        UnreadableInputError: it would take more than it may.
    """
    brackets = text.count("{") + text.count("[")
    needed = len(text) + _BRACKET * brackets + _COMMA * text.count(",")
    size = len(text) if stored is None else stored
    _require(needed, max(_LEAST_JSON, _JSON_RATIO * size), what)


def charge_text(needed: int, size: int, what: str) -> None:
    """Refuse a text of so many bytes that is compressed in a file of so many."""
    _require(needed, max(_LEAST_JSON, _JSON_RATIO * size), what)


def charge_member(needed: int, size: int, what: str) -> None:
    """Refuse a member of an archive, unpacked to so many bytes of disk, by the archive's size."""
    _require(needed, max(_LEAST_MEMBER, _ARRAYS_RATIO * size), what)


def charge_arrays(needed: int, size: int, what: str) -> None:
    """Refuse arrays that would take too much memory together.

    Args:
        needed: bytes of all of them, unpacked.
        size: of the file.
        what: they are, for the message.

    Raises:
        UnreadableInputError: they would take more than they may.
    """
    _require(needed, max(_LEAST_ARRAYS, _ARRAYS_RATIO * size), what)


def _require(needed: int, by_size: int, what: str) -> None:
    most = _ASKED.get() or by_size
    if needed > most:
        raise UnreadableInputError(
            f"refused as unsafe: {what} would take {needed:,} bytes, more than {most:,}; "
            f"--max-bytes {needed} allows it"
        )

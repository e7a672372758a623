"""How far the work is, told to whoever listens: a progress bar of the command line, or nobody.

Only the thread that `listen`s is heard. Telling costs next to nothing where nobody does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TypeVar

BYTES = "bytes"
T = TypeVar("T")


@dataclass(frozen=True)
class Step:
    """A part of the work, as far as it is done.

    Attributes:
        what: is done, e.g. "proving layers".
        done, total: so many of so many; `total` is None where that is not known.
        unit: of both: BYTES, or a plural such as "layers".
    """

    what: str
    done: int = 0
    total: int | None = None
    unit: str = ""


Listener = Callable[[Step], None]
_LISTENER: ContextVar[Listener | None] = ContextVar("listener", default=None)


@contextmanager
def listen(listener: Listener) -> Iterator[None]:
    """Call `listener` with every step of the work that is done meanwhile."""
    token = _LISTENER.set(listener)
    try:
        yield
    finally:
        _LISTENER.reset(token)


def tell(what: str, done: int = 0, total: int | None = None, unit: str = "") -> None:
    """Say how far a part of the work is; see `Step`."""
    listener = _LISTENER.get()
    if listener is not None:
        listener(Step(what, done, total, unit))


def counted_off(items: Sequence[T], what: str, unit: str) -> Iterator[T]:
    """The items, one after another, telling how many of them are done."""
    tell(what, 0, len(items), unit)
    for number, item in enumerate(items, 1):
        yield item
        tell(what, number, len(items), unit)

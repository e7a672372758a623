"""A library that does not come to an end is ended, and the process with it, where that may be.

No handler of Python's runs while a library written in C is busy, and a thread can't stop it: the
process has to die. It may where another one waits for it, and tells what happened
(`cli/supervise.py`, `cli/workers.py`); in a process of a user's own nothing is ever ended.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager

SIGNAL = getattr(signal, "SIGPROF", None)
"""What ends the process; None where there are no such timers, as on Windows."""

_may_end = False


def allow() -> None:
    """From here on this process may be ended: another one waits for it."""
    global _may_end
    _may_end = SIGNAL is not None


def is_allowed() -> bool:
    return _may_end


@contextmanager
def deadline(seconds: float) -> Iterator[None]:
    """Inside, so many seconds of the processor's time may be used up; more end the process.

    Waiting does not count: a slow disk is no endless loop.
    """
    if not _may_end:
        yield
        return
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)

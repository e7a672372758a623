"""The program in a process of its own, and one that waits for it and tells how it ended.

A library written in C can crash on a damaged file, or never come to an end: that ends the process.
The one that waits makes a line and an exit code of it, and hears Ctrl-C at any time. The fork comes
before anything large is imported, so that it costs little.
"""

from __future__ import annotations

import atexit
import gc
import mmap
import os
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NoReturn

from rnnconvert.containers import deadline
from rnnconvert.errors import UnreadableInputError

INTERRUPTED = 130
_PATIENCE = 15.0
"""Seconds for the program to clean up when it is told to stop; then it is killed."""
_LONGEST = 4096
_DIE_WITH_PARENT = 1
"""PR_SET_PDEATHSIG of Linux."""

_note: mmap.mmap | None = None
"""Shared by both processes: what is being worked on."""


def supervised(program: Callable[[], None]) -> None:
    """Call `program` in a child process, and exit as it does; here where there is no fork."""
    global _note
    if not hasattr(os, "fork"):
        program()
        return
    _note = mmap.mmap(-1, _LONGEST)
    heard: list[int] = []
    child = 0

    def stop(number: int, _frame: Any) -> None:
        heard.append(number)
        if child:
            _end(child)

    numbers = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]
    numbers = [each for each in numbers if signal.getsignal(each) != signal.SIG_IGN]
    for number in numbers:
        signal.signal(number, stop)
    this = os.getpid()
    child = os.fork()
    if not child:
        _be_the_child(program, this)
    if heard:  # before there was one to tell
        _end(child)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    leave(status if status >= 0 else _told(-status, interrupted=bool(heard)))


def open_closed_streams() -> None:
    """Put the null device where there is no standard stream: a service, or `>&-` in a shell.

    Otherwise the next file that is opened takes its number, and what a library prints goes into it.
    """
    if sys.stdin and sys.stdout and sys.stderr:
        return
    while (number := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(number, True)
    os.close(number)
    sys.stdin = sys.stdin or os.fdopen(0, closefd=False)
    sys.stdout = sys.stdout or os.fdopen(1, "w", closefd=False)
    sys.stderr = sys.stderr or os.fdopen(2, "w", closefd=False)


def working_on(path: object) -> None:
    """Note what is being worked on, for the line that tells of a crash."""
    if _note is not None:
        name = os.fsencode(str(path))[: _LONGEST - 1]
        _note[: len(name) + 1] = name + b"\0"


def how_it_died(number: int) -> str:
    """A sentence on a process that a signal ended, and what to do."""
    if number == deadline.SIGNAL:
        return (
            "the HDF5 library does not come to an end with it; it is damaged, copy or download it "
            "again"
        )
    name = signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"
    if number == signal.SIGKILL:
        return (
            f"the process that worked on it was killed ({name}), as systems do when memory runs "
            "out; nothing of it was written"
        )
    return (
        f"a library crashed on it ({name}); it is damaged, copy or download it again; nothing of "
        "it was written"
    )


def collect_rarely() -> None:
    """Let Python look for cycles after far more new objects than the 700 it has by default.

    All that is imported stays: to look through it again and again takes a tenth of a start.
    """
    gc.set_threshold(200_000, 2, 2)


def stop_on_sigterm() -> None:
    """SIGTERM ends this process as Ctrl-C does: what is half done is removed on the way out."""

    def stop(_number: int, _frame: Any) -> None:
        raise KeyboardInterrupt

    with suppress(ValueError):  # not in the main thread
        signal.signal(signal.SIGTERM, stop)


def _end(child: int) -> None:
    """Tell the program to stop; kill it if it does not."""

    def kill(*_: Any) -> None:
        with suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)

    signal.signal(signal.SIGALRM, kill)
    signal.setitimer(signal.ITIMER_REAL, _PATIENCE)
    with suppress(ProcessLookupError):
        os.kill(child, signal.SIGTERM)


def _told(number: int, *, interrupted: bool) -> int:
    """Tell that a signal ended the program; returns the exit code."""
    if interrupted:
        print("interrupted; nothing was written", file=sys.stderr)
        return INTERRUPTED
    assert _note is not None
    path = os.fsdecode(_note[:].partition(b"\0")[0])
    line = str(UnreadableInputError(how_it_died(number), path=path or None))
    print("error:", "".join(c if c.isprintable() else repr(c)[1:-1] for c in line), file=sys.stderr)
    return UnreadableInputError.exit_code


def _be_the_child(program: Callable[[], None], parent: int) -> NoReturn:
    """Run the program; Ctrl-C, which a terminal sends to both, is heard by the parent alone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    die_with(parent, signal.SIGKILL)
    deadline.allow()
    try:
        program()
    except SystemExit as error:
        if not isinstance(error.code, int | None):
            raise
        leave(error.code or 0)
    leave(0)


def leave(code: int) -> NoReturn:
    """End this process as Python's own forked processes end: all is closed, nothing is taken apart.

    To free each module and object before the system does takes as long as a tenth of a start.
    """
    threading._shutdown()  # type: ignore[attr-defined] # waits for threads
    atexit._run_exitfuncs()
    try:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
    except (OSError, ValueError):  # Python itself tells of it, on its own way out
        sys.exit(code)
    os._exit(code)


def die_with(parent: int, number: int) -> None:
    """This process gets a signal when the one that waits for it is killed, on Linux."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, number)
        if os.getppid() != parent:
            os.kill(os.getpid(), number)

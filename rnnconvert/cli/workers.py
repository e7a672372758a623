"""Work on several inputs side by side, each in a process of its own that may die alone."""

from __future__ import annotations

import os
import signal
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from rnnconvert.cli.supervise import collect_rarely, die_with, how_it_died, stop_on_sigterm
from rnnconvert.containers import deadline
from rnnconvert.verification.frameworks import forget_models
from rnnconvert.verification.memory import resident_memory

_PATIENCE = 10.0
"""Seconds for a worker that was told to stop; what is left of it then is killed."""
_TIDY = 2**28
"""Bytes that a worker may grow by until it lets go of what Keras keeps."""
GROWTH = 2**30
"""Bytes that a worker may grow by since its first item until another one takes its place.

A model leaves 0.1 to 0.5 MB in Keras and TensorFlow, so that a worker does some thousand; to start
another one takes 2 to 3 seconds of a processor's time, a few milliseconds for each of them.
"""
_ASK_EVERY = 2.0
"""Seconds between two questions whether the work is still wanted."""
_IDLE = 60.0
"""Seconds without an item, after which a process that is kept ends."""


@dataclass(frozen=True)
class Died:
    """What became of an item whose process ended: killed, out of memory, or crashed.

    Attributes:
        exit_code: of the process; negative is the number of a signal.
    """

    exit_code: int | None

    def __str__(self) -> str:
        if self.exit_code is None or self.exit_code >= 0:
            return f"the process that worked on it died (exit code {self.exit_code})"
        return how_it_died(-self.exit_code)


@dataclass
class _Worker:
    process: Any
    connection: Any
    index: int = -1
    """Of the item that it works on."""


def in_workers(
    work: Callable[[Any], Any],
    items: Sequence[Any],
    jobs: int,
    growth: int = GROWTH,
) -> Iterator[tuple[int, Any]]:
    """Call `work` for each item, in up to `jobs` processes, each of which takes item after item.

    They end when the iteration does, however it does, and with this process; what they left half
    done they remove.

    Args:
        growth: bytes of memory that a process may grow by until another one takes its place.

    Yields:
        The index of an item and what `work` returned, or `Died`, in the order in which they end.
    """
    from multiprocessing.connection import wait

    waiting = deque(enumerate(items))
    workers: list[_Worker] = []
    try:
        while waiting or workers:
            while waiting and len(workers) < jobs:
                workers.append(_start(work, growth))
                _give(workers[-1], waiting)
            for connection in wait([worker.connection for worker in workers]):
                worker = next(each for each in workers if each.connection is connection)
                index, (result, is_last) = worker.index, _receive(worker)
                if is_last or not waiting:
                    workers.remove(worker)
                    worker.connection.close()  # by which a living one sees that it is done
                else:
                    _give(worker, waiting)
                yield index, result
    finally:
        _stop(workers)


class KeptWorker:
    """A process that works on one item after another, when it is asked, and ends when it is idle.

    It is started with the first item, and again when it has died. It ends with this process.

    Args:
        work: called for each item.
    """

    def __init__(self, work: Callable[[Any], Any]) -> None:
        self._work = work
        self._worker: _Worker | None = None

    def call(self, item: Any, is_wanted: Callable[[], bool]) -> Any:
        """What `work` returns, or `Died`.

        Args:
            item: given to `work`.
            is_wanted: asked again and again; the process is stopped when it says no.
        """
        is_new = self._worker is None
        worker = self._worker = self._worker or _start(self._work, GROWTH, _IDLE)
        with suppress(BrokenPipeError):
            worker.connection.send(item)
        while not worker.connection.poll(_ASK_EVERY):
            if not is_wanted():
                _stop([worker])
        result, is_last = _receive(worker)
        if is_last:
            worker.connection.close()
            self._worker = None
        if isinstance(result, Died) and result.exit_code == 0 and not is_new and is_wanted():
            return self.call(item, is_wanted)  # it had just ended, being idle
        return result

    def stop(self) -> None:
        """End the process, if there is one."""
        if self._worker is not None:
            _stop([self._worker])
            self._worker = None


def _give(worker: _Worker, waiting: deque[tuple[int, Any]]) -> None:
    worker.index, item = waiting.popleft()
    with suppress(BrokenPipeError):  # it has died; that is noticed when it is asked for a result
        worker.connection.send(item)


def _receive(worker: _Worker) -> tuple[Any, bool]:
    """What became of its item, and whether it shall have no other."""
    try:
        result: tuple[Any, bool] = worker.connection.recv()
    except (EOFError, ConnectionError):
        worker.process.join()
        return Died(worker.process.exitcode), True
    return result


def _start(work: Callable[[Any], Any], growth: int, idle: float | None = None) -> _Worker:
    import multiprocessing
    from multiprocessing.util import register_after_fork

    context: Any = multiprocessing.get_context("fork" if _has_one_thread() else "spawn")
    ours, theirs = context.Pipe()
    register_after_fork(ours, type(ours).close)  # else no worker would see that it was closed
    arguments = (theirs, work, growth, os.getpid(), idle)
    process = context.Process(target=_serve, args=arguments, daemon=True)
    with _deaf():  # Ctrl-C reaches all processes of a terminal; these are stopped by this one
        process.start()
    theirs.close()
    return _Worker(process, ours)


def _has_one_thread() -> bool:
    """Whether this process can be forked, which takes 10 ms where to spawn one takes 300.

    A fork has one thread, and waits for ever for the locks that others held, such as TensorFlow's.
    Python counts its own threads only, Linux all of them.
    """
    return sys.platform == "linux" and len(os.listdir("/proc/self/task")) == 1


@contextmanager
def _deaf() -> Iterator[None]:
    """Ctrl-C is not heard, nor by processes that are started meanwhile."""
    try:
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    except ValueError:  # not in the main thread
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _stop(workers: list[_Worker]) -> None:
    for worker in workers:
        worker.process.terminate()
    for worker in workers:
        worker.process.join(_PATIENCE)
        if worker.process.is_alive():
            worker.process.kill()
            worker.process.join()


def _serve(
    connection: Any, work: Callable[[Any], Any], growth: int, parent: int, idle: float | None
) -> None:
    """What a worker does: take items until there are no more, or none comes for a while."""
    stop_on_sigterm()
    die_with(parent, signal.SIGTERM)
    deadline.allow()
    collect_rarely()
    first: int | None = None
    tidied = 0
    with suppress(KeyboardInterrupt, EOFError, ConnectionError):
        while connection.poll(idle):
            result = work(connection.recv())
            used = resident_memory()
            if used > tidied + _TIDY:
                forget_models()
                used = tidied = resident_memory()
            first = used if first is None else first
            connection.send((result, used > first + growth))

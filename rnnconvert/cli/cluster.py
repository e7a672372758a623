"""Work on several inputs by the workers of a Dask cluster that is there already.

Each input is one task. A task works in a process of its own, as with `--jobs`, so that a library
that crashes on a damaged file costs that file, and not a worker of the cluster. The scheduler keeps
what has become of each input: when a worker is killed its tasks go to others, and what was done is
told from there.
"""

from __future__ import annotations

import logging
import os
import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import rnnconvert
from rnnconvert.cli.workers import KeptWorker
from rnnconvert.errors import UnreadableInputError, UsageError

_PACKAGE = "rnnconvert"
_BEGUN = "begun"
_PATIENCE = 10
"""Seconds to wait for the scheduler."""


def on_cluster(
    work: Callable[..., Any], items: Sequence[Any], scheduler: str
) -> Iterator[tuple[int, Any]]:
    """Call `work` for each item, on a cluster.

    Args:
        work: importable on the workers; called with `again=True` where an earlier attempt was made.
        items: with paths as this process sees them: the workers must see the same files.
        scheduler: its address.

    Yields:
        The index of an item and what `work` returned, or `Died`, in the order in which they end.

    Raises:
        UsageError: the scheduler can't be reached, or a worker can't do it.
    """
    with _connected(scheduler) as client:
        from distributed import as_completed

        _require_workers(client, scheduler)
        run = f"rnnconvert-{uuid.uuid4().hex}"
        client.set_metadata([run], {})
        futures = [
            client.submit(_task, work, item, run, index, os.getcwd(), key=f"{run}-{index}")
            for index, item in enumerate(items)
        ]
        numbers = {future.key: index for index, future in enumerate(futures)}
        try:
            for future in as_completed(futures, loop=client.loop):
                index = numbers[future.key]
                yield index, _result(future)
        finally:
            with suppress(OSError):  # it is lost
                client.set_metadata([run], None)  # what still runs is stopped by that
                client.cancel(futures)


def _result(future: Any) -> Any:
    """What became of an item; an error where the cluster gave up."""
    try:
        return future.result()
    except Exception as error:
        if future.cancelled():
            return UnreadableInputError(
                "not done: the connection to the scheduler was lost; with --report and --resume "
                "the next run goes on"
            )
        told = (str(error).splitlines() or [""])[0]
        return UnreadableInputError(f"the cluster gave it up: {type(error).__name__}: {told}")


@contextmanager
def _connected(scheduler: str) -> Iterator[Any]:
    try:
        import distributed
    except ImportError as error:
        raise UsageError(
            'a Dask cluster needs packages that are not installed: pip install "rnnconvert[dask]"'
        ) from error
    for handler in logging.getLogger("distributed").handlers:
        handler.setLevel(logging.CRITICAL)  # its parts have levels of their own
    try:
        client = distributed.Client(scheduler, timeout=_PATIENCE, set_as_default=False)
    except Exception as error:
        told = (str(error).splitlines() or [""])[0]
        raise UsageError(f"--scheduler {scheduler}: can't be reached ({told})") from error
    try:
        yield client
    finally:
        client.close()


def _require_workers(client: Any, scheduler: str) -> None:
    """Each worker must have this version.

    Raises:
        UsageError: one has not, or there is none.
    """
    ours = rnnconvert.__version__
    found = client.run(version, _PACKAGE, on_error="return")
    if not found:
        raise UsageError(f"--scheduler {scheduler}: the cluster has no worker")
    for worker, theirs in sorted(found.items()):
        if isinstance(theirs, Exception):
            install = f"pip install rnnconvert=={ours}"
            raise UsageError(f"the worker {worker} has no rnnconvert: {install}")
        if theirs != ours:
            raise UsageError(f"the worker {worker} has rnnconvert {theirs}, and here is {ours}: "
                             "install the same version")  # fmt: skip


# --- on a worker ------------------------------------------------------------------------------


def _task(work: Callable[..., Any], item: Any, run: str, index: int, directory: str) -> Any:
    """Work on one item, unless an earlier attempt has done it, or nobody waits for it any more."""
    from distributed import get_client
    from distributed.protocol import deserialize_bytes, serialize_bytes

    client = get_client()
    place = [run, str(index)]

    def is_wanted() -> bool:
        return client.get_metadata([run], None) is not None

    done = client.get_metadata(place, None)
    if isinstance(done, bytes):
        return deserialize_bytes(done)
    client.set_metadata(place, _BEGUN)
    asked = (partial(work, again=done == _BEGUN), directory, item)
    outcome = _process_of_thread().call(asked, is_wanted)
    if is_wanted():
        client.set_metadata(place, serialize_bytes(outcome))
    return outcome


_threads = threading.local()
"""Of each thread of a Dask worker, which has one task at a time, the process that it keeps."""


def _process_of_thread() -> KeptWorker:
    if not hasattr(_threads, "process"):
        _allow_processes()
        _threads.process = KeptWorker(_in_directory)
    return _threads.process


def _allow_processes() -> None:
    """Let a worker have child processes, which Python denies to daemons, as Dask's workers are.

    A daemon could leave children behind; these end with it (see `workers`).
    """
    import multiprocessing

    multiprocessing.current_process()._config["daemon"] = False  # type: ignore[attr-defined]


def _in_directory(asked: tuple[Callable[[Any], Any], str, Any]) -> Any:
    """Call some work on an item where relative paths mean what they mean for who gave them."""
    work, directory, item = asked
    if any(isinstance(part, Path) for part in item):
        try:
            os.chdir(directory)
        except OSError as error:
            told = f"the cluster's workers do not see {directory}: {error.strerror}"
            return UnreadableInputError(told, path=str(item[0]))
    return work(item)

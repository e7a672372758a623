"""All that the HDF5 library has to make sense of in a file, met once, before anything else is done.

Objects, attributes and the places of chunks, not the data: where the library crashes or does not
come to an end, it does so here, when nothing has been written yet, and under a deadline.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import h5py

from rnnconvert.containers import deadline

_SECONDS, _BYTES_A_SECOND = 5.0, 16 * 2**20
"""Of the processor's time that a walk may take: at least, and a second more for so many bytes."""

_seen: set[tuple[int, int, int, int]] = set()
"""Files that this process has met, as they were then."""


def time_for(path: Path) -> float | None:
    """Seconds that the walk over a file may take; None where it need not be done (again).

    It need not where the process may not be ended: nothing is gained then.
    """
    if not deadline.is_allowed():
        return None
    found = path.stat()
    identity = found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns
    if identity in _seen:
        return None
    _seen.add(identity)
    return _SECONDS + found.st_size / _BYTES_A_SECOND


def walk_file(file: h5py.File, attribute: Callable[[Any, str], Any]) -> None:
    """Meet every object of an opened file.

    What is found damaged is no error here: it is one, with its own message, where it is needed.

    Args:
        attribute: reads one, if it claims no more memory than it may.
    """
    names: list[bytes] = [b"."]
    h5py.h5o.visit(file.id, names.append)
    for name in names:
        with suppress(Exception):
            _meet(h5py.h5o.open(file.id, name), attribute)


def _meet(opened: Any, attribute: Callable[[Any, str], Any]) -> None:
    owner: Any
    if isinstance(opened, h5py.h5g.GroupID):
        owner = h5py.Group(opened)
    elif isinstance(opened, h5py.h5d.DatasetID):
        owner = h5py.Dataset(opened)
        opened.get_storage_size()
        if opened.get_create_plist().get_layout() == h5py.h5d.CHUNKED:
            opened.chunk_iter(lambda _: None)
    else:
        owner = h5py.Datatype(opened)
    for name in owner.attrs:
        with suppress(Exception):
            attribute(owner, name)

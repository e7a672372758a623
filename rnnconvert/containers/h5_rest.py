"""What a conversion leaves alone in an HDF5 file: compared byte for byte, and stored apart.

Datasets of a hostile or damaged file may share bytes, so that writing one changes another.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from functools import partial
from typing import Any

import h5py
import numpy as np

from rnnconvert.containers import safe_h5
from rnnconvert.containers.h5_stream import path_of
from rnnconvert.errors import UnreadableInputError

_BLOCK = 2**22
"""Bytes that are compared at a time."""
Ignored = Callable[[str, str], bool]
"""Whether an attribute, of the object at a path, by its name, may have changed."""


def require_apart(datasets: Iterable[h5py.Dataset]) -> None:
    """Make sure that no two datasets share bytes of the file.

    Raises:
        UnreadableInputError: two do, though they are not one under two names.
    """
    places: dict[int, tuple[str, list[tuple[int, int]]]] = {}
    for dataset in datasets:
        places[h5py.h5o.get_info(dataset.id).addr] = dataset.name, list(_extents(dataset))
    taken = sorted((*extent, name) for name, extents in places.values() for extent in extents)
    end, before = 0, ""
    for start, stop, name in taken:
        if start < end:
            raise UnreadableInputError(
                f"refused as unsafe: the data of {before} and of {name} lie in the same place"
            )
        end, before = stop, name


def _extents(dataset: h5py.Dataset) -> Iterator[tuple[int, int]]:
    """Where the bytes of a dataset begin and end in the file."""
    if dataset.chunks is None:
        start = dataset.id.get_offset()
        if start is not None:
            yield start, start + dataset.id.get_storage_size()
        return
    chunks: list[Any] = []
    dataset.id.chunk_iter(chunks.append)
    for chunk in chunks:
        yield chunk.byte_offset, chunk.byte_offset + chunk.size


def difference(
    source: h5py.File,
    written: h5py.File,
    changed: set[str],
    left_out: str,
    ignored: Ignored,
    compared: Collection[str] = (),
) -> str | None:
    """A sentence on the first thing that should be as it was and is not; None if all is.

    Args:
        source, written: the input, and the copy that was changed.
        changed: paths of datasets that are another by intent.
        left_out: a group that may be missing in the copy; "" for none.
        ignored: attributes that are others by intent.
        compared: paths of datasets whose bytes are known to be the same.
    """
    for path, here in _objects(source):
        if left_out and (path == left_out or path.startswith(f"{left_out}/")):
            continue
        if not _is_there(written, path):
            return f"{path} is missing"
        there = written[path] if path else written
        name = _other_attribute(here, there, partial(ignored, path))
        if name is not None:
            return f"the attribute {name} of {path or '/'} is another"
        is_data = isinstance(here, h5py.Dataset)
        if is_data and path not in changed:
            same = _same_type if path in compared else _same_bytes
            if not same(here, there):
                return f"{path} is another"
    return None


def _objects(file: h5py.File) -> list[tuple[str, Any]]:
    """Every object that a file holds itself, by one path each; "" is the root."""
    found: list[tuple[str, Any]] = [("", file)]

    def visit(path: str | bytes, item: Any) -> None:
        if isinstance(path, bytes):
            raise UnreadableInputError(f"refused as unsafe: the name {path!r} in the file")
        found.append((path, item))

    file.visititems(visit)
    return found


def _is_there(file: h5py.File, path: str) -> bool:
    return not path or path in file


def _other_attribute(here: Any, there: Any, ignored: Callable[[str], bool]) -> str | None:
    for name in here.attrs:
        if ignored(name):
            continue
        if name not in there.attrs:
            return str(name)
        try:
            values = [np.asarray(safe_h5.attribute(each, name)) for each in (here, there)]
        except TypeError:  # of a type that h5py has no form of; nothing here writes such
            continue
        if values[0].dtype != values[1].dtype or not _equal(*values):
            return str(name)
    return None


def _equal(one: np.ndarray[Any, Any], other: np.ndarray[Any, Any]) -> bool:
    if one.shape != other.shape:
        return False
    if one.dtype.hasobject:
        return [str(each) for each in one.flat] == [str(each) for each in other.flat]
    return one.tobytes() == other.tobytes()


def _same_type(here: h5py.Dataset, there: h5py.Dataset) -> bool:
    is_data = isinstance(there, h5py.Dataset)
    return is_data and here.shape == there.shape and here.dtype == there.dtype


def _same_bytes(here: h5py.Dataset, there: h5py.Dataset) -> bool:
    """Whether two datasets hold the same bytes, as they are stored."""
    if not _same_type(here, there):
        return False
    if here.dtype.hasobject:  # texts, which are stored elsewhere
        return True
    if here.chunks is not None:
        return _same_chunks(here, there)
    starts = [dataset.id.get_offset() for dataset in (here, there)]
    size = here.id.get_storage_size()
    if None in starts or size != there.id.get_storage_size():
        return here.shape is None or bool(_equal(np.asarray(here[()]), np.asarray(there[()])))
    paths = [path_of(dataset.file) for dataset in (here, there)]
    with paths[0].open("rb") as one, paths[1].open("rb") as other:
        one.seek(starts[0])
        other.seek(starts[1])
        for done in range(0, size, _BLOCK):
            count = min(_BLOCK, size - done)
            if one.read(count) != other.read(count):
                return False
    return True


def _same_chunks(here: h5py.Dataset, there: h5py.Dataset) -> bool:
    if here.chunks != there.chunks or here.id.get_num_chunks() != there.id.get_num_chunks():
        return False
    chunks: list[Any] = []
    here.id.chunk_iter(chunks.append)
    return all(
        here.id.read_direct_chunk(chunk.chunk_offset)
        == there.id.read_direct_chunk(chunk.chunk_offset)
        for chunk in chunks
    )

"""Reading version 2 checkpoints ("tensor bundles"): an `.index` and its data files."""

from __future__ import annotations

import functools
import math
import struct
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from rnnconvert.containers.checkpoint.bundle import (
    HEADER_KEY,
    Entry,
    Header,
    data_path,
    lengths_crc,
    parse_entry,
    parse_header,
)
from rnnconvert.containers.checkpoint.crc32c import crc32c, masked
from rnnconvert.containers.checkpoint.dtypes import STRING, numpy_dtype
from rnnconvert.containers.checkpoint.files import (
    COPY_AGAIN,
    MAX_LFS_POINTER,
    Malformed,
    is_there,
    open_file,
    reading,
    require_no_lfs_pointer,
)
from rnnconvert.containers.checkpoint.slices import SLICE_KEYS, Slice, slice_key
from rnnconvert.containers.checkpoint.table import open_table
from rnnconvert.containers.checkpoint.variables import (
    Checkpoint,
    CheckpointPath,
    RawPlace,
    Source,
    Stored,
    StoredPart,
    VariableInfo,
    assemble,
    require_tiled,
    slice_shape,
)
from rnnconvert.containers.checkpoint.wire import decode_text, read_varint
from rnnconvert.errors import UnreadableInputError

_CHUNK = 2**20
"""Bytes read at once; what a copy needs beside the index."""
_UNCHECKED = "variant"
"""The type whose checksum covers other bytes than the file's, and that is only ever copied."""


@dataclass(frozen=True)
class _Place:
    """The bytes of one entry: a whole tensor, or the slice `extents` of a partitioned one."""

    name: str
    extents: Slice | None
    entry: Entry
    path: Path

    @property
    def what(self) -> str:
        return f"{self.path.name}: {self.name!r}"


@dataclass(frozen=True)
class _BundleStore:
    """The values of a bundle: for every variable, the places they lie in."""

    places: Mapping[str, tuple[_Place, ...]]
    big_endian: bool

    def read(self, info: VariableInfo) -> np.ndarray:
        places = self.places[info.name]
        numpy_dtype(info.dtype)  # fails before anything is allocated
        for place in places:
            _require_there(place)
        if not info.slices:
            return _read_place(places[0], self.big_endian)
        with reading(places[0].path.name):
            parts = (_read_place(place, self.big_endian) for place in places)
            return assemble(info, zip(info.slices, parts, strict=True))

    def require(self, info: VariableInfo) -> None:
        for place in self.places[info.name]:
            _require_there(place)

    def place(self, info: VariableInfo) -> RawPlace | None:
        places = self.places[info.name]
        if info.slices or self.big_endian or info.dtype in (STRING, _UNCHECKED):
            return None
        _require_there(places[0])
        chunks = functools.partial(_checked_chunks, places[0])
        entry = places[0].entry
        return RawPlace(places[0].path, entry.offset, numpy_dtype(info.dtype), chunks)

    def source(self, info: VariableInfo) -> Source:
        """The stored bytes; strings are decoded, since their checksum covers decoded lengths."""
        if info.dtype == STRING or self.big_endian:
            return functools.partial(self.read, info)
        parts = (
            StoredPart(
                place.entry.shape,
                place.extents,
                place.path,
                place.entry.offset,
                place.entry.size,
                place.entry.checksum,
                functools.partial(_checked_chunks, place),
            )
            for place in self.places[info.name]
        )
        return Stored(info.dtype, info.shape, tuple(parts))


def open_bundle(path: CheckpointPath) -> Checkpoint:
    """Read the index of a version 2 checkpoint; data files need not be there.

    Raises:
        UnreadableInputError: the index is missing, cut short, damaged or contradicts itself.
    """
    index = path.tables[0]
    items = open_table(index).items()
    with reading(index.name):
        key, value = next(items, (None, b""))
        if key != HEADER_KEY:
            raise Malformed("its header is missing")
        header = parse_header(value)
    entries = {}
    for key, value in items:
        with reading(f"{index.name}: entry {key!r}"):
            entries[key] = parse_entry(value, header)
    with reading(index.name):
        _require_apart(entries.values())
        places = dict(_places(path.prefix, header, entries))
        if sum(map(len, places.values())) != sum(not e.slices for e in entries.values()):
            raise Malformed("it has slices that no variable names")
        variables = {name: _info(entries[name.encode()], found) for name, found in places.items()}
        for info in variables.values():
            if info.slices:
                require_tiled(info)
    shards = {file for info in variables.values() for file in info.files}
    store = _BundleStore(places, header.big_endian)
    return Checkpoint(path, variables, (index, *sorted(shards)), store)


def _places(
    prefix: Path, header: Header, entries: Mapping[bytes, Entry]
) -> Iterator[tuple[str, tuple[_Place, ...]]]:
    """Every variable with its places, in the order of the index."""
    path_of = functools.cache(lambda shard: data_path(prefix, shard, header.shards))
    for key, entry in entries.items():
        if key.startswith(SLICE_KEYS):
            continue
        name = decode_text(key)
        parts: list[tuple[Slice | None, Entry]] = [(None, entry)]
        if entry.slices:
            parts = [(extents, _slice(entries, name, entry, extents)) for extents in entry.slices]
        yield (
            name,
            tuple(_Place(name, extents, part, path_of(part.shard)) for extents, part in parts),
        )


def _slice(entries: Mapping[bytes, Entry], name: str, whole: Entry, extents: Slice) -> Entry:
    """The entry of one slice of a partitioned variable."""
    shape = slice_shape(extents, whole.shape)
    part = entries.get(slice_key(name, extents))
    if part is None or part.slices:
        raise Malformed(f"the slice {list(extents)} of {name!r} is missing")
    if (part.dtype, part.shape) != (whole.dtype, shape):
        raise Malformed(
            f"the slice {list(extents)} of {name!r}: expected {whole.dtype} of shape "
            f"{list(shape)}, found {part.dtype} of shape {list(part.shape)}"
        )
    return part


def _info(entry: Entry, places: tuple[_Place, ...]) -> VariableInfo:
    files = tuple(sorted({place.path for place in places}))
    return VariableInfo(places[0].name, entry.dtype, entry.shape, entry.slices, files)


def _require_apart(entries: Iterable[Entry]) -> None:
    """No two entries may share bytes: a small file could stand for any amount of data."""
    end = (0, 0)
    for start, size in sorted(((e.shard, e.offset), e.size) for e in entries if not e.slices):
        if size and start < end:
            raise Malformed(f"two tensors share byte {start[1]} of data file {start[0]}")
        end = max(end, (start[0], start[1] + size))


def _require_there(place: _Place) -> None:
    """Raise unless the data file is there and long enough."""
    if not is_there(place.path):
        raise UnreadableInputError(
            f"{place.path.name} is missing; it holds {place.name!r}, put it beside the .index file"
        )
    with reading(place.path.name):
        size = place.path.stat().st_size
    if size < MAX_LFS_POINTER:
        require_no_lfs_pointer(place.path)
    end = place.entry.offset + place.entry.size
    if end > size:
        raise UnreadableInputError(
            f"{place.what} should end at byte {end}, the file has {size}; it is cut short, "
            f"{COPY_AGAIN}"
        )


def _read_place(place: _Place, big_endian: bool) -> np.ndarray:
    """The values of one entry, which is known to lie in its file."""
    if place.entry.dtype == STRING:
        return _read_strings(place, ">" if big_endian else "<")
    values = np.empty(place.entry.shape, numpy_dtype(place.entry.dtype))
    target = values.reshape(-1).view(np.uint8)
    at = 0
    for chunk in _checked_chunks(place):
        target[at : at + len(chunk)] = chunk
        at += len(chunk)
    return values.byteswap(inplace=True) if big_endian else values


def _checked_chunks(place: _Place) -> Iterator[memoryview]:
    """The bytes of an entry, each chunk valid until the next; the checksum is checked at the end.

    Raises:
        UnreadableInputError: missing, cut short or damaged.
    """
    _require_there(place)
    entry, crc = place.entry, 0
    buffer = memoryview(bytearray(min(entry.size, _CHUNK)))
    with open_file(place.path) as (file, _):
        file.seek(entry.offset)
        for start in range(0, entry.size, _CHUNK):
            chunk = buffer[: entry.size - start]
            if file.readinto(chunk) != len(chunk):
                raise Malformed("it became shorter while it was read")
            crc = crc32c(chunk, crc)
            yield chunk
    if entry.dtype != _UNCHECKED:
        with reading(place.what):
            _require_checksum(entry.checksum, masked(crc))


def _require_checksum(stored: int, found: int) -> None:
    if stored != found:
        raise Malformed(f"wrong checksum: expected {stored:08x}, found {found:08x}")


def _read_strings(place: _Place, order: str) -> np.ndarray:
    """A tensor of strings: lengths as varints, their checksum, then the strings one by one.

    Args:
        place: of the entry.
        order: "<" or ">", of the numbers in the file.
    """
    entry = place.entry
    count = math.prod(entry.shape)
    with open_file(place.path) as (file, _):
        file.seek(entry.offset)
        data = memoryview(file.read(entry.size))
    with reading(place.what):
        if not data and not count:
            return np.empty(entry.shape, object)
        lengths, at = _read_lengths(data, count)
        crc = lengths_crc(lengths, order)
        stored = data[at : at + 4]
        if len(stored) != 4 or sum(lengths) != len(data) - at - 4:
            raise Malformed(f"its strings take {sum(lengths)} bytes, found {len(data) - at - 4}")
        _require_checksum(struct.unpack(order + "I", stored)[0], masked(crc))
        _require_checksum(entry.checksum, masked(crc32c(data[at:], crc)))
        strings = np.empty(count, object)
        at += 4
        for place_of, length in enumerate(lengths):
            strings[place_of] = bytes(data[at : at + length])
            at += length
    return strings.reshape(entry.shape)


def _read_lengths(data: memoryview, count: int) -> tuple[list[int], int]:
    lengths, at = [], 0
    for _ in range(count):
        length, at = read_varint(data, at)
        lengths.append(length)
    return lengths, at

"""TensorFlow's tables: files of sorted keys with values, in the format of LevelDB.

A file is a row of blocks and a footer; the last block is the index, which gives for each other
block a key not below its last one, and the block's place. (Format: doc/table_format.md of LevelDB,
tensorflow/core/lib/io/format.cc.) All numbers in a file are checked before they are used: against
the file's size, and blocks against their checksum.
"""

from __future__ import annotations

import bisect
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from rnnconvert.containers.checkpoint.crc32c import crc32c, masked
from rnnconvert.containers.checkpoint.files import (
    COPY_AGAIN,
    Malformed,
    open_file,
    reading,
    require_no_lfs_pointer,
)
from rnnconvert.containers.checkpoint.wire import encode_varint, read_varint
from rnnconvert.errors import UnreadableInputError

MAGIC = struct.pack("<Q", 0xDB4775248B80FB57)
_FOOTER = 48
_TRAILER = 5
"""Bytes behind each block: its kind of compression, its checksum."""
_BLOCK_BYTES = 2**18
_RESTART_INTERVAL = 16
"""Every 16th key is written in full. Both as TensorFlow writes its tables."""
_MOST_KEPT = 2**22
"""Bytes of a block that is kept in memory."""
_MOST_KEY_BYTES = 64
"""A block's keys, written in full, may take so many times the block's bytes.

TensorFlow's own take less than _RESTART_INTERVAL times; without a bound, a small file could hold
keys of terabytes, since a key may repeat the one before it at no cost.
"""

Item = tuple[bytes, memoryview]


@dataclass(frozen=True)
class _Handle:
    """Where a block lies; its keys are at most `last_key`."""

    last_key: bytes
    offset: int
    size: int


@dataclass
class Table:
    """The index of a table; blocks are read when they are asked for.

    The last one is kept, as long as it is small: neighbours are asked for one after the other.
    """

    path: Path
    _handles: tuple[_Handle, ...]
    _kept: tuple[int, dict[bytes, memoryview]] = (-1, {})

    def get(self, key: bytes) -> memoryview:
        """The value of a key.

        Raises:
            UnreadableInputError: there is no such key, or its block is damaged.
        """
        place = bisect.bisect_left(self._handles, key, key=lambda handle: handle.last_key)
        kept, entries = self._kept
        if place != kept:
            entries = dict(self._block(place)) if place < len(self._handles) else {}
            small = entries and self._handles[place].size <= _MOST_KEPT
            self._kept = (place, entries) if small else (-1, {})
        if key not in entries:
            raise UnreadableInputError(
                f"{self.path.name}: the entry {key!r} is missing; the file is damaged, {COPY_AGAIN}"
            )
        return entries[key]

    def items(self) -> Iterator[Item]:
        """All keys and values, in order; each block is read when its turn comes."""
        for place in range(len(self._handles)):
            yield from self._block(place)

    def _block(self, place: int) -> list[Item]:
        """The entries of one block, known not to be empty and to fit between its neighbours."""
        handle = self._handles[place]
        with open_file(self.path) as (file, _):
            items = _read_block(file, self.path, handle.offset, handle.size)
        with reading(self.path.name):
            before = self._handles[place - 1].last_key if place else None
            if not items or (before is not None and items[0][0] <= before):
                raise Malformed("a block of entries is empty or out of order")
            if items[-1][0] > handle.last_key:
                raise Malformed("a block of entries reaches beyond its place in the index")
        return items


def open_table(path: Path) -> Table:
    """Read the footer and the index of a table.

    Raises:
        UnreadableInputError: missing, cut short, damaged, or no table at all.
    """
    with open_file(path) as (file, size):
        file.seek(max(0, size - _FOOTER))
        footer = file.read(_FOOTER)
        if len(footer) < _FOOTER or not footer.endswith(MAGIC):
            require_no_lfs_pointer(path)
            raise UnreadableInputError(
                f"{path.name} has no TensorFlow table's end in its last {_FOOTER} bytes: it is cut "
                f"short or another kind of file ({size} bytes); {COPY_AGAIN}"
            )
        with reading(path.name):
            _, at = _read_place(footer, 0)  # of the "meta index", which TensorFlow leaves empty
            (offset, length), _ = _read_place(footer, at)
            _require_inside(offset, length, size - _FOOTER)
        index = _read_block(file, path, offset, length)
        with reading(path.name):
            return Table(path, tuple(_read_handles(index, offset)))


def _read_handles(index: list[Item], end: int) -> Iterator[_Handle]:
    """The handles in an index block; all lie before `end`, in order and apart."""
    free = 0
    for key, value in index:
        (offset, size), at = _read_place(value, 0)
        _require_inside(offset, size, end)
        if offset < free or at != len(value):
            raise Malformed("the table's index is out of order")
        free = offset + size + _TRAILER
        yield _Handle(key, offset, size)


def _read_place(buffer: bytes | memoryview, at: int) -> tuple[tuple[int, int], int]:
    offset, at = read_varint(buffer, at)
    size, at = read_varint(buffer, at)
    return (offset, size), at


def _require_inside(offset: int, size: int, end: int) -> None:
    if offset + size + _TRAILER > end:
        raise Malformed(f"a block should end at byte {offset + size + _TRAILER}, found {end}")


def _read_block(file: BinaryIO, path: Path, offset: int, size: int) -> list[Item]:
    with reading(f"{path.name}: block at byte {offset}"):
        file.seek(offset)
        block = memoryview(file.read(size + _TRAILER))
        if len(block) != size + _TRAILER:
            raise Malformed("cut short")
        stored, found = struct.unpack("<I", block[-4:])[0], masked(crc32c(block[:-4]))
        if stored != found:
            raise Malformed(f"wrong checksum: expected {stored:08x}, found {found:08x}")
        if block[size]:
            raise UnreadableInputError(
                f"{path.name}: its blocks are compressed (kind {block[size]}), which no released "
                "TensorFlow does to a checkpoint; save it again with TensorFlow"
            )
        return list(_parse_block(block[:size]))


def _parse_block(block: memoryview) -> Iterator[Item]:
    """The entries of a block: keys share a beginning with the one before; restarts end the block.

    Raises:
        Malformed: anything out of bounds, or keys that do not ascend.
    """
    if len(block) < 4:
        raise Malformed("too short")
    end = len(block) - 4 - 4 * struct.unpack("<I", block[-4:])[0]
    if end < 0:
        raise Malformed("the list of restarts is longer than the block")
    at, total, key = 0, 0, None
    while at < end:
        shared, at = read_varint(block, at)
        fresh, at = read_varint(block, at)
        length, at = read_varint(block, at)
        if shared > len(key or b"") or fresh + length > end - at:
            raise Malformed("an entry is out of bounds")
        following = (key or b"")[:shared] + bytes(block[at : at + fresh])
        total += len(following)
        if total > _MOST_KEY_BYTES * len(block):
            raise Malformed("its keys are far longer than the block itself")
        if key is not None and following <= key:
            raise Malformed(f"the key {following!r} is not above the one before, {key!r}")
        key = following
        yield key, block[at + fresh : at + fresh + length]
        at += fresh + length


def write_table(file: BinaryIO, items: Iterable[tuple[bytes, bytes]]) -> None:
    """Write a table.

    Args:
        file: at its beginning.
        items: keys in strictly ascending order, with their values.
    """
    handles: list[tuple[bytes, bytes]] = []
    pending: list[tuple[bytes, bytes]] = []
    size = 0
    for key, value in items:
        pending.append((key, value))
        size += len(key) + len(value)
        if size >= _BLOCK_BYTES:
            handles.append((key, _write_block(file, pending, _RESTART_INTERVAL)))
            pending, size = [], 0
    if pending:
        handles.append((pending[-1][0], _write_block(file, pending, _RESTART_INTERVAL)))
    footer = _write_block(file, [], 1) + _write_block(file, handles, 1)
    file.write(footer.ljust(_FOOTER - len(MAGIC), b"\0") + MAGIC)


def _write_block(file: BinaryIO, items: list[tuple[bytes, bytes]], interval: int) -> bytes:
    """Write one block without compression and return its place."""
    block, restarts, before = bytearray(), [0], b""
    for number, (key, value) in enumerate(items):
        shared = 0
        if number % interval:
            while shared < min(len(key), len(before)) and key[shared] == before[shared]:
                shared += 1
        elif number:
            restarts.append(len(block))
        block += encode_varint(shared) + encode_varint(len(key) - shared)
        block += encode_varint(len(value)) + key[shared:] + value
        before = key
    block += struct.pack(f"<{len(restarts) + 1}I", *restarts, len(restarts))
    block += b"\0"  # no compression
    place = encode_varint(file.tell()) + encode_varint(len(block) - 1)
    file.write(block + struct.pack("<I", masked(crc32c(block))))
    return place

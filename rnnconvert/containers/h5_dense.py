"""Attributes that HDF5 keeps apart from their object's header, read without the HDF5 library.

An object with many or large attributes may keep them in a "fractal heap", and the list of their
places in a tree. (HDF5 File Format Specification 3.0, III.A.2 "version 2 B-trees" and III.G
"fractal heap".) What can't be followed here yields `Unknown`.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass

Read = Callable[[int, int], bytes]
"""Bytes of the file from an address on, so many."""
_MOST_NODES = 100_000
_MANAGED, _HUGE = 0, 1
_FEWEST = 10
"""Bytes of a tree's node that are no records: signature, version, type and checksum."""


class Unknown(Exception):
    """It can't be told what attributes there are: damage, or a form that no Keras writes."""


@dataclass(frozen=True)
class NumberSizes:
    """How the numbers of a file are read.

    Attributes:
        address, length: how many bytes each has.
    """

    read: Read
    address: int
    length: int

    def fields(self, at: int, signature: bytes, widths: list[int]) -> list[int]:
        """Numbers of such widths, one after another, behind a signature at an address."""
        data = self.read(at, 4 + sum(widths))
        if data[:4] != signature or len(data) < 4 + sum(widths):
            raise Unknown
        found, place = [], 4
        for width in widths:
            found.append(int.from_bytes(data[place : place + width], "little"))
            place += width
        return found


@dataclass(frozen=True)
class _Heap:
    """A fractal heap, as its header has it."""

    huge_tree: int
    huge_count: int
    width: int
    start: int
    most: int
    bits: int
    root: int
    rows: int
    largest: int

    @classmethod
    def at(cls, file: NumberSizes, address: int) -> _Heap:
        size, place = file.length, file.address
        widths = [
            1, 2, 2, 1, 4, size, place, size, place, *[size] * 8, 2, size, size, 2, 2, place, 2,
        ]  # fmt: skip
        found = file.fields(address, b"FRHP", widths)
        if found[2]:  # filters, which no attributes have
            raise Unknown
        return cls(
            huge_tree=found[6], huge_count=found[14], width=found[17], start=found[18],
            most=found[19], bits=found[20], root=found[22], rows=found[23], largest=found[4],
        )  # fmt: skip

    def read(self, file: NumberSizes, identifier: bytes) -> bytes:
        """The object that an identifier stands for."""
        offset_size = (self.bits + 7) // 8
        length_size = min((self.most.bit_length() + 6) // 8, _bytes_for(self.largest))
        offset = int.from_bytes(identifier[1 : 1 + offset_size], "little")
        at = 1 + offset_size
        length = int.from_bytes(identifier[at : at + length_size], "little")
        return file.read(self._address(file, offset), length)

    def _address(self, file: NumberSizes, offset: int) -> int:
        if not self.rows:  # one block
            return self.root + offset
        block, start, row = self.start, 0, 0
        while offset >= start + self.width * block:
            start += self.width * block
            row += 1
            block = self.start << max(0, row - 1)
        if row >= self.rows or block > self.most:
            raise Unknown
        number = row * self.width + (offset - start) // block
        ahead = 1 + file.address + (self.bits + 7) // 8
        place = self.root + 4 + ahead + number * file.address
        address = int.from_bytes(file.read(place, file.address), "little")
        return address + (offset - start) % block


def dense_attributes(read: Read, info: bytes, lengths: tuple[int, int]) -> Iterator[bytes]:
    """The attribute messages that an object keeps apart; none where it keeps none.

    Args:
        read: from the file.
        info: the object's attribute info message.
        lengths: how many bytes the file gives to an address and to a length.

    Raises:
        Unknown: they can't be followed.
    """
    file = NumberSizes(read, *lengths)
    at = 2 + (2 if info[1:2] and info[1] & 1 else 0)
    heap_at = int.from_bytes(info[at : at + file.address], "little")
    tree_at = int.from_bytes(info[at + file.address : at + 2 * file.address], "little")
    if heap_at in (0, 256**file.address - 1):
        return
    try:
        heap = _Heap.at(file, heap_at)
        for record in _records(file, tree_at):
            if record[0] >> 4 & 3 == _MANAGED:
                yield heap.read(file, record[:8])
        if heap.huge_count:
            for record in _records(file, heap.huge_tree):
                address = int.from_bytes(record[: file.address], "little")
                length = record[file.address : file.address + file.length]
                yield read(address, int.from_bytes(length, "little"))
    except (struct.error, IndexError, OverflowError) as error:
        raise Unknown from error


def _bytes_for(number: int) -> int:
    """How many bytes a number up to this one is written in."""
    return (max(1, number).bit_length() - 1) // 8 + 1


def _records(file: NumberSizes, address: int) -> Iterator[bytes]:
    """The records of a tree, in no order."""
    widths = [1, 1, 4, 2, 2, 1, 1, file.address, 2]
    _, _, node, record, depth, _, _, root, count = file.fields(address, b"BTHD", widths)
    if not record or node < _FEWEST + record:
        raise Unknown
    counts = _bytes_for((node - _FEWEST) // record)
    pointers = [0]  # bytes of a pointer to a node of each depth, but for its address
    total = (node - _FEWEST) // record
    for level in range(depth):
        pointers.append(file.address + counts + (_bytes_for(total) if level else 0))
        most = (node - _FEWEST - pointers[-1]) // (record + pointers[-1])
        total = (most + 1) * total + most
    left = [(root, count, depth)] if count else []
    for _ in range(_MOST_NODES):
        if not left:
            return
        at, count, depth = left.pop()
        data = file.read(at, node)
        if data[:4] != (b"BTIN" if depth else b"BTLF") or count * record > len(data) - 6:
            raise Unknown
        for index in range(count):
            yield data[6 + index * record : 6 + (index + 1) * record]
        for index in range(count + 1 if depth else 0):
            place = 6 + count * record + index * pointers[depth]
            child = int.from_bytes(data[place : place + file.address], "little")
            place += file.address
            left.append((child, int.from_bytes(data[place : place + counts], "little"), depth - 1))
    raise Unknown

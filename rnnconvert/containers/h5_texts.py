"""How long the texts in an object's attributes claim to be, read without the HDF5 library.

The library asks for the memory of a text of variable length before it looks whether the file holds
as much: a damaged length of four bytes costs 4 GB and seconds. So the lengths are added up first.
(HDF5 File Format Specification 3.0, IV.A.1 "object headers" and IV.A.2.m "attribute message".)
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from rnnconvert.containers.h5_dense import Read, Unknown, dense_attributes

_ATTRIBUTE, _CONTINUATION, _APART = 0x0C, 0x10, 0x15
_TEXT = 9
"""Class of a datatype of variable length."""
_MOST_MESSAGES = 100_000
UNTOLD = 2**63
"""What is claimed where it can't be told: more than any file has."""


def claimed_by(path: Path, base: int, address: int, lengths: tuple[int, int]) -> int:
    """As `claimed_length`, of a file.

    Args:
        base: where the HDF5 part of the file begins; addresses count from there.
    """
    with path.open("rb") as file:

        def read(at: int, count: int) -> bytes:
            if base + at >= size:
                return b""
            file.seek(base + at)
            return file.read(min(count, size))

        size = file.seek(0, 2)
        return claimed_length(read, address, lengths)


def claimed_length(read: Read, address: int, lengths: tuple[int, int]) -> int:
    """Bytes that all texts of variable length in the attributes of an object claim to have.

    `UNTOLD` where attributes are kept apart and can't be followed; what is no object header counts
    nothing, for HDF5 will say so.

    Args:
        read: from the file.
        address: of the object's header.
        lengths: how many bytes the file gives to an address and to a length.
    """
    claimed = 0
    try:
        for kind, body in _messages(read, address, lengths):
            if kind == _ATTRIBUTE:
                claimed += _claimed(body, lengths[0])
            elif kind == _APART:
                apart = dense_attributes(read, body, lengths)
                claimed += sum(_claimed(each, lengths[0]) for each in apart)
    except Unknown:
        return UNTOLD
    return claimed


def _messages(read: Read, address: int, lengths: tuple[int, int]) -> Iterator[tuple[int, bytes]]:
    """The type and body of each message of an object header, in all its blocks."""
    start = read(address, 32)
    if len(start) < 32:
        return
    if start[:4] == b"OHDR":
        flags = start[5]
        at = 6 + (16 if flags & 0x20 else 0) + (4 if flags & 0x10 else 0)
        width = 1 << (flags & 3)
        size = _number(start[at : at + width])
        blocks, extra = [(address + at + width, size)], 2 if flags & 4 else 0
        header, trailer = 4 + extra, 4
    else:
        blocks, header, trailer = [(address + 16, _number(start[8:12]))], 8, 0
    is_new = header != 8
    for count, (at, size) in enumerate(blocks):  # which grows meanwhile
        if count > _MOST_MESSAGES:
            return
        block = read(at, size)
        if is_new and count:  # "OCHK" in front, a checksum behind
            block = block[4 : len(block) - trailer]
        for kind, body in _split(block, header, is_new=is_new):
            if kind == _CONTINUATION:
                width = lengths[0]
                blocks.append((_number(body[:width]), _number(body[width : width + lengths[1]])))
            yield kind, body


def _split(block: bytes, header: int, *, is_new: bool) -> Iterator[tuple[int, bytes]]:
    at = 0
    while at + header <= len(block):
        kind = block[at] if is_new else _number(block[at : at + 2])
        size = _number(block[at + 1 : at + 3] if is_new else block[at + 2 : at + 4])
        yield kind, block[at + header : at + header + size]
        at += header + size


def _claimed(body: bytes, address_size: int) -> int:
    """Bytes that an attribute's elements claim, where they are of variable length."""
    if len(body) < 9:
        return 0
    version = body[0]
    sizes = [_number(body[at : at + 2]) for at in (2, 4, 6)]  # of name, datatype, dataspace
    at = 9 if version == 3 else 8
    if version == 1:
        sizes = [(size + 7) // 8 * 8 for size in sizes]
    datatype = body[at + sizes[0] : at + sizes[0] + sizes[1]]
    if not datatype or datatype[0] & 0x0F != _TEXT:
        return 0
    data = body[at + sum(sizes) :]
    element = 8 + address_size  # length, address of the heap, index in it
    return sum(_number(data[at : at + 4]) for at in range(0, len(data) - element + 1, element))


def _number(stored: bytes) -> int:
    return int.from_bytes(stored, "little")

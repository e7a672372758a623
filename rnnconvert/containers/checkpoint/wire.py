"""Protocol buffers' wire format: varints, and the fields of a message.

The few messages of a checkpoint are flat enough to be read field by field; nothing here recurses.
(Format: https://protobuf.dev/programming-guides/encoding.)
"""

from __future__ import annotations

import struct

import numpy as np
from numpy.typing import NDArray

from rnnconvert.containers.checkpoint.files import Malformed

Buffer = bytes | memoryview
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_LONGEST = 10
"""Bytes of the longest varint: 64 bits, seven in each byte."""


def read_varint(buffer: Buffer, at: int) -> tuple[int, int]:
    """The unsigned 64-bit number that begins at byte `at`, and where the next thing begins.

    Raises:
        Malformed: the buffer ends within the number, or the number has more than 64 bits.
    """
    if at < len(buffer) and buffer[at] < 0x80:  # most numbers are small
        return buffer[at], at + 1
    value = 0
    for count, byte in enumerate(buffer[at : at + _LONGEST]):
        value |= (byte & 0x7F) << 7 * count
        if byte < 0x80:
            if value >> 64:
                break
            return value, at + count + 1
    if at + _LONGEST > len(buffer):
        raise Malformed("a number is cut short")
    raise Malformed("a number has more than 64 bits")


def encode_varint(value: int) -> bytes:
    """An integer as a varint; a negative one in two's complement of 64 bits."""
    value &= 2**64 - 1
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def decode_varints(buffer: Buffer, count: int) -> NDArray[np.int64]:
    """`count` packed varints as signed 64-bit integers, shape (count,).

    Raises:
        Malformed: more, fewer or overlong ones.
    """
    data = np.frombuffer(buffer, np.uint8)
    ends = np.flatnonzero(data < 0x80) + 1
    if len(ends) != count or (count and ends[-1] != len(data)) or (data.size and not count):
        raise Malformed(f"expected {count} numbers, found {len(ends)}")
    starts = np.concatenate([np.zeros(1, ends.dtype), ends])[:-1]
    lengths = ends - starts
    values = np.zeros(count, np.uint64)
    for place in range(int(lengths.max(initial=0))):
        longer = np.flatnonzero(lengths > place)
        digits = (data[starts[longer] + place] & 0x7F).astype(np.uint64)
        if place >= _LONGEST or (place == _LONGEST - 1 and digits.max() > 1):
            raise Malformed("a number has more than 64 bits")
        values[longer] |= digits << np.uint64(7 * place)
    return values.view(np.int64)


class Message:
    """The fields of one message by their numbers, each with all its values in order."""

    def __init__(self, buffer: Buffer) -> None:
        """Split `buffer`; what a field means is for the caller to know.

        Raises:
            Malformed: a field is cut short or of an unknown wire type.
        """
        self._fields: dict[int, list[int | memoryview]] = {}
        view = memoryview(buffer)
        at = 0
        while at < len(view):
            key, at = read_varint(view, at)
            value, at = _read_value(view, at, key & 7)
            self._fields.setdefault(key >> 3, []).append(value)

    def has(self, number: int) -> bool:
        return number in self._fields

    def unsigned(self, number: int) -> int:
        """A number of at most 64 bits; 0 where the field is absent, as in proto3."""
        values = self._fields.get(number, [0])
        value = values[-1]
        if not isinstance(value, int):
            raise Malformed(f"field {number} is not a number")
        return value

    def signed(self, number: int) -> int:
        """The same, in two's complement of 64 bits."""
        value = self.unsigned(number)
        return value - 2**64 if value >> 63 else value

    def parts(self, number: int) -> list[memoryview]:
        """The values of a repeated field of messages or strings."""
        found = []
        for value in self._fields.get(number, []):
            if isinstance(value, int):
                raise Malformed(f"field {number} is a number, not bytes")
            found.append(value)
        return found

    def part(self, number: int) -> memoryview:
        """The value of a field of bytes that stands at most once; empty where it is absent."""
        parts = self.parts(number)
        if len(parts) > 1:
            raise Malformed(f"field {number} stands {len(parts)} times")
        return parts[0] if parts else memoryview(b"")

    def text(self, number: int) -> str:
        """A string of at most one value.

        Raises:
            Malformed: not valid UTF-8.
        """
        return decode_text(self.part(number))


def decode_text(value: Buffer) -> str:
    try:
        return str(value, "utf-8")
    except UnicodeDecodeError as error:
        raise Malformed(f"the name {bytes(value)!r} is not UTF-8") from error


def _read_value(view: memoryview, at: int, wire_type: int) -> tuple[int | memoryview, int]:
    """A field's value, and where the next field begins."""
    if wire_type == _VARINT:
        return read_varint(view, at)
    if wire_type == _BYTES:
        count, at = read_varint(view, at)
    elif wire_type in (_FIXED32, _FIXED64):
        count = 4 if wire_type == _FIXED32 else 8
    else:
        raise Malformed(f"wire type {wire_type} is unknown")
    if count > len(view) - at:
        raise Malformed(f"a field of {count} bytes is cut short")
    value = view[at : at + count]
    if wire_type == _BYTES:
        return value, at + count
    return int.from_bytes(value, "little"), at + count


def encode_number(number: int, value: int) -> bytes:
    """A field holding a varint; nothing for 0, which proto3 leaves out."""
    return encode_varint(number << 3 | _VARINT) + encode_varint(value) if value else b""


def encode_part(number: int, value: bytes) -> bytes:
    """A field holding bytes or a message."""
    return encode_varint(number << 3 | _BYTES) + encode_varint(len(value)) + value


def encode_fixed32(number: int, value: int) -> bytes:
    """A field holding four bytes."""
    return encode_varint(number << 3 | _FIXED32) + struct.pack("<I", value)

"""Slices of partitioned variables: their message, their bounds, and the key they are stored under.

A slice is one (start, length) per dimension; the length WHOLE stands for all of the dimension.
Formats: tensorflow/core/framework/tensor_slice.proto; the key is an "ordered code"
(tensorflow/core/lib/strings/ordered_code.cc), which sorts as its content does.
"""

from __future__ import annotations

from rnnconvert.containers.checkpoint.files import Malformed
from rnnconvert.containers.checkpoint.wire import Buffer, Message, encode_part, encode_varint

Slice = tuple[tuple[int, int], ...]
Shape = tuple[int, ...]
WHOLE = -1
SLICE_KEYS = b"\0"
"""How the key of every slice begins; no variable's name does."""
_START, _LENGTH = 1, 2


def parse_slice(buffer: Buffer) -> Slice:
    """A TensorSliceProto; `resolve` checks what it says."""
    extents = [Message(part) for part in Message(buffer).parts(1)]
    return tuple(
        (extent.signed(_START), extent.signed(_LENGTH) if extent.has(_LENGTH) else WHOLE)
        for extent in extents
    )


def encode_slice(extents: Slice) -> bytes:
    """The TensorSliceProto of a slice."""
    return b"".join(encode_part(1, _encode_extent(start, length)) for start, length in extents)


def _encode_extent(start: int, length: int) -> bytes:
    if length == WHOLE:
        return b""
    begin = b"\x08" + encode_varint(start) if start else b""
    return begin + b"\x10" + encode_varint(length)  # a length of 0 is written out too


def resolve(extents: Slice, shape: Shape) -> tuple[slice, ...]:
    """The slice as an index into an array of `shape`.

    Raises:
        Malformed: another number of dimensions, or out of the shape's bounds.
    """
    if len(extents) != len(shape):
        raise Malformed(f"a slice has {len(extents)} dimensions, its variable {len(shape)}")
    bounds = []
    for (start, length), size in zip(extents, shape, strict=True):
        stop = size if length == WHOLE else start + length
        if not 0 <= start <= stop <= size:
            raise Malformed(f"a slice {list(extents)} lies outside of the shape {list(shape)}")
        bounds.append(slice(start, stop))
    return tuple(bounds)


def slice_key(name: str, extents: Slice) -> bytes:
    """The key of a slice: the number 0, the name, the number of dimensions, each start, length."""
    escaped = b"".join(_ESCAPES.get(byte, bytes([byte])) for byte in name.encode())
    count = bytes([1, len(extents)]) if extents else b"\0"
    numbers = b"".join(_ordered(start) + _ordered(length) for start, length in extents)
    return SLICE_KEYS + escaped + b"\0\1" + count + numbers


_ESCAPES = {0x00: b"\0\xff", 0xFF: b"\xff\0"}


def _ordered(number: int) -> bytes:
    """A signed integer as an ordered code.

    n bytes hold the number's lowest 7n - 1 bits and its sign, in big-endian order; the highest n
    bits are flipped, so that they tell the length.
    """
    bits = (~number if number < 0 else number).bit_length()
    count = bits // 7 + 1
    header = (2**count - 1) << 7 * count
    return ((number & 2 ** (8 * count) - 1) ^ header).to_bytes(count, "big")

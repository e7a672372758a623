"""The two messages in the index of a version 2 checkpoint ("tensor bundle"), and their names.

(Format: tensorflow/core/protobuf/tensor_bundle.proto.) Everything that can be checked without the
data files is checked here.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from rnnconvert.containers.checkpoint.crc32c import crc32c
from rnnconvert.containers.checkpoint.dtypes import STRING, dtype_name, itemsize, type_number
from rnnconvert.containers.checkpoint.files import Malformed
from rnnconvert.containers.checkpoint.slices import Shape, Slice, encode_slice, parse_slice
from rnnconvert.containers.checkpoint.variables import parse_shape
from rnnconvert.containers.checkpoint.wire import (
    Buffer,
    Message,
    encode_fixed32,
    encode_number,
    encode_part,
)

HEADER_KEY = b""
_VERSION = 1
"""Of the format: the only one there has been."""
_MAX_SHARDS = 99_999
"""As many as the names of the data files have digits for."""


@dataclass(frozen=True)
class Header:
    """How many data files there are, and whether their numbers are big-endian."""

    shards: int = 1
    big_endian: bool = False


@dataclass(frozen=True)
class Entry:
    """One tensor, one slice, or (with `slices`) a partitioned variable, which has no data itself.

    Args:
        dtype: TensorFlow's name of the type.
        shape: of the tensor, the slice, or the whole variable.
        shard, offset, size: which data file, and which of its bytes.
        checksum: masked CRC-32C of the content.
        slices: the slices that a partitioned variable is stored in.
    """

    dtype: str
    shape: Shape
    shard: int = 0
    offset: int = 0
    size: int = 0
    checksum: int = 0
    slices: tuple[Slice, ...] = ()


def index_path(prefix: Path) -> Path:
    """The index of a checkpoint."""
    return prefix.with_name(f"{prefix.name}.index")


def data_path(prefix: Path, shard: int = 0, shards: int = 1) -> Path:
    """One data file of a checkpoint."""
    return prefix.with_name(f"{prefix.name}.data-{shard:05d}-of-{shards:05d}")


def parse_header(buffer: Buffer) -> Header:
    """The first entry of an index.

    Raises:
        Malformed: impossible numbers, or a later version of the format.
    """
    message = Message(buffer)
    shards, endianness = message.signed(1), message.unsigned(2)
    if not 1 <= shards <= _MAX_SHARDS:
        raise Malformed(f"{shards} data files; expected 1 to {_MAX_SHARDS}")
    if endianness > 1:
        raise Malformed(f"byte order {endianness} is unknown")
    least = Message(message.part(3)).unsigned(2)
    if least > _VERSION:
        raise Malformed(f"it needs a reader of version {least}, this one has version {_VERSION}")
    return Header(shards, bool(endianness))


def encode_header() -> bytes:
    """The header of a checkpoint with one data file, little-endian."""
    return encode_number(1, 1) + encode_part(3, encode_number(1, _VERSION))


def parse_entry(buffer: Buffer, header: Header) -> Entry:
    """Any other entry of an index.

    Raises:
        Malformed: impossible numbers, or a size that does not fit type and shape.
    """
    message = Message(buffer)
    entry = Entry(
        dtype=dtype_name(message.unsigned(1)),
        shape=parse_shape(Message(message.part(2))),
        shard=message.signed(3),
        offset=message.signed(4),
        size=message.signed(5),
        checksum=message.unsigned(6),
        slices=tuple(parse_slice(part) for part in message.parts(7)),
    )
    if not entry.slices:
        _require_plausible(entry, header)
    return entry


def _require_plausible(entry: Entry, header: Header) -> None:
    if not 0 <= entry.shard < header.shards:
        raise Malformed(f"data file {entry.shard} of {header.shards}")
    if entry.offset < 0 or entry.size < 0:
        raise Malformed(f"{entry.size} bytes at byte {entry.offset}")
    count, width = math.prod(entry.shape), itemsize(entry.dtype)
    least = count * (width or 1)
    if entry.size < least if entry.dtype == STRING else (width and entry.size != least):
        raise Malformed(
            f"{entry.dtype} of shape {list(entry.shape)} takes {least} bytes, found {entry.size}"
        )


def encode_entry(entry: Entry) -> bytes:
    """An entry's message, byte for byte as TensorFlow writes it."""
    shape = b"".join(encode_part(2, encode_number(1, size)) for size in entry.shape)
    return (
        encode_number(1, type_number(entry.dtype))
        + encode_part(2, shape)
        + encode_number(3, entry.shard)
        + encode_number(4, entry.offset)
        + encode_number(5, entry.size)
        + (b"" if entry.slices else encode_fixed32(6, entry.checksum))
        + b"".join(encode_part(7, encode_slice(extents)) for extents in entry.slices)
    )


def lengths_crc(lengths: Iterable[int], order: str = "<") -> int:
    """The CRC of the lengths of a tensor's strings: of 32-bit numbers, 64-bit where they need it.

    Args:
        lengths: in bytes.
        order: "<" or ">", that of the data file.
    """
    return crc32c(b"".join(struct.pack(order + ("I" if n < 2**32 else "Q"), n) for n in lengths))

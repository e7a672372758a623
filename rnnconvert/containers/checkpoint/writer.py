"""Writing version 2 checkpoints: an index and one data file, little-endian.

The data file is written tensor by tensor as the sources are read, so that no more than one tensor
(of a stored one: one chunk) is in memory; the index follows.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import BinaryIO

import numpy as np

from rnnconvert.containers.checkpoint.bundle import (
    HEADER_KEY,
    Entry,
    encode_entry,
    encode_header,
    lengths_crc,
)
from rnnconvert.containers.checkpoint.crc32c import crc32c, masked
from rnnconvert.containers.checkpoint.dtypes import STRING, array_type
from rnnconvert.containers.checkpoint.slices import SLICE_KEYS, slice_key
from rnnconvert.containers.checkpoint.table import write_table
from rnnconvert.containers.checkpoint.variables import Source, Stored
from rnnconvert.containers.checkpoint.wire import encode_varint
from rnnconvert.containers.raw_file import Filled, RawFile
from rnnconvert.errors import NotConvertibleError

_LARGE = 2**20
"""Bytes of a tensor that is on its way to the disk as soon as it is written."""


def write_checkpoint(index: Path, data: Path, tensors: Mapping[str, Source]) -> None:
    """Write a checkpoint that TensorFlow restores by name.

    Args:
        index: the file to write the index to; `index_path(prefix)` once it is published.
        data: the file to write the values to; `data_path(prefix)` once it is published.
        tensors: by name, in any order; arrays, functions that give one, `Checkpoint.source`, or
            what is to be filled in.

    Raises:
        NotConvertibleError: a name or a type that a checkpoint can't have.
        OSError: one of the files can't be written. Whatever a source raises comes through too.
    """
    entries = {HEADER_KEY: encode_header()}
    with data.open("w+b") as file:
        for name in sorted(tensors, key=str.encode):
            if not name or name.encode().startswith(SLICE_KEYS):
                raise NotConvertibleError(f"a variable can't have the name {name!r}")
            for key, entry in _write(file, name, tensors[name]):
                entries[key] = encode_entry(entry)
                if entry.size >= _LARGE:
                    file.flush()
                    RawFile(file, writes=True).write_back(entry.offset, entry.size)
    with index.open("wb") as file:
        write_table(file, sorted(entries.items()))


def _write(file: BinaryIO, name: str, source: Source) -> Iterator[tuple[bytes, Entry]]:
    """Write one variable and give its entry, and those of its slices."""
    if isinstance(source, Stored):
        yield from _write_stored(file, name, source)
        return
    if isinstance(source, Filled):
        yield name.encode(), _write_filled(file, source)
        return
    array = np.asarray(source() if callable(source) else source)
    try:
        dtype = array_type(array)
        write = _write_strings if dtype == STRING else _write_numbers
        offset = file.tell()
        checksum = write(file, array)
    except NotConvertibleError as error:
        raise NotConvertibleError(f"{name!r}: {error.message}") from error
    size = file.tell() - offset
    yield name.encode(), Entry(dtype, array.shape, 0, offset, size, masked(checksum))


def _write_stored(file: BinaryIO, name: str, stored: Stored) -> Iterator[tuple[bytes, Entry]]:
    """Copy a variable, or the slices of a partitioned one, byte for byte."""
    slices = tuple(part.extents for part in stored.parts if part.extents is not None)
    if slices:
        yield name.encode(), Entry(stored.dtype, stored.shape, slices=slices)
    for part in stored.parts:
        key = name.encode() if part.extents is None else slice_key(name, part.extents)
        yield key, Entry(stored.dtype, part.shape, 0, file.tell(), part.size, part.checksum)
        for chunk in part.chunks():
            file.write(chunk)


def _write_filled(file: BinaryIO, filled: Filled) -> Entry:
    """Let a tensor be written, then read it back for its CRC."""
    offset = file.tell()
    file.flush()
    raw = RawFile(file, writes=True)
    raw.truncate(offset + filled.size)
    filled.fill(raw, offset)
    crc = 0
    for piece in raw.pieces(offset, filled.size):
        crc = crc32c(piece, crc)
    file.seek(offset + filled.size)
    return Entry(filled.dtype, filled.shape, 0, offset, filled.size, masked(crc))


def _write_numbers(file: BinaryIO, array: np.ndarray) -> int:
    """Write an array's values in C order, little-endian; return their CRC."""
    little = np.asarray(array, array.dtype.newbyteorder("<"), order="C")
    data = little.reshape(-1).view(np.uint8)
    file.write(data.data)
    return crc32c(data)


def _write_strings(file: BinaryIO, array: np.ndarray) -> int:
    """Write strings as lengths, the lengths' checksum, then the bytes; return the CRC of all.

    (Format: WriteStringTensor in tensorflow/core/util/tensor_bundle/tensor_bundle.cc.)
    """
    strings = array.reshape(-1).tolist()
    for text in strings:
        if not isinstance(text, bytes):
            raise NotConvertibleError(f"strings must be bytes, found {type(text).__name__}")
    lengths = [len(text) for text in strings]
    crc = lengths_crc(lengths)
    content = struct.pack("<I", masked(crc)) + b"".join(strings)
    file.write(b"".join(map(encode_varint, lengths)) + content)
    return crc32c(content, crc)

"""Writing version 2 checkpoints: an index and one data file, little-endian.

Arrays are written one after another, so that no more than one is in memory; stored tensors and
those that are filled in get their places first, and are then written piece by piece. The index
follows.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
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
from rnnconvert.containers.checkpoint.variables import Source, Stored, StoredPart
from rnnconvert.containers.checkpoint.wire import encode_varint
from rnnconvert.containers.raw_file import Filled, RawFile, copy_range, open_raw
from rnnconvert.containers.tiles import side_by_side
from rnnconvert.errors import NotConvertibleError

_COPIED = 16 * 2**20
"""Bytes that are copied at once."""
_PIECE = 2**20
"""Bytes of the memory that they go through where the system does not copy by itself."""


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
        later = _Later(RawFile(file, writes=True))
        for name in sorted(tensors, key=str.encode):
            if not name or name.encode().startswith(SLICE_KEYS):
                raise NotConvertibleError(f"a variable can't have the name {name!r}")
            for key, entry in _write(file, name, tensors[name], later):
                entries[key] = encode_entry(entry)
        file.flush()
        file.truncate()
        for key, entry in later.write():
            entries[key] = encode_entry(entry)
    with index.open("wb") as file:
        write_table(file, sorted(entries.items()))


@dataclass
class _Later:
    """Large tensors that have their place in the data file, and are written when all have.

    What is copied as it is, is copied while matrices move in tiles.

    Attributes:
        file: the data file.
        filled: those that are filled in, with their keys and places.
        stored: those that are copied.
    """

    file: RawFile
    filled: list[tuple[bytes, int, Filled]] = field(default_factory=list)
    stored: list[tuple[int, StoredPart]] = field(default_factory=list)

    def write(self) -> list[tuple[bytes, Entry]]:
        """Write all of them; returns the entries of those whose checksum was not known before."""
        filled = [partial(self._fill, *each) for each in self.filled]
        stored = [partial(self._copy, *each) for each in self.stored]
        lines = [filled, stored] if filled and stored else [[*filled, *stored]]
        return [each for each in side_by_side(*lines)[0] if each is not None]

    def _fill(self, key: bytes, offset: int, tensor: Filled) -> tuple[bytes, Entry]:
        """Let a tensor be written, then read it back for its CRC."""
        tensor.fill(self.file, offset)
        crc = 0
        for piece in self.file.pieces(offset, tensor.size):
            crc = crc32c(piece, crc)
        self.file.write_back(offset, tensor.size)
        return key, Entry(tensor.dtype, tensor.shape, 0, offset, tensor.size, masked(crc))

    def _copy(self, place: int, part: StoredPart) -> None:
        """Check a stored tensor, then let the system copy it."""
        for _ in part.chunks():
            pass
        buffer = np.empty(_PIECE, np.uint8)
        with open_raw(part.path) as source:
            for done in range(0, part.size, _COPIED):
                count = min(_COPIED, part.size - done)
                copy_range(source, self.file, part.offset + done, place + done, count, buffer)
                self.file.write_back(place + done, count)


def _write(
    file: BinaryIO, name: str, source: Source, later: _Later
) -> Iterator[tuple[bytes, Entry]]:
    """Write one variable, or leave a place for it, and give its entry and those of its slices."""
    if isinstance(source, Stored):
        yield from _place_stored(file, name, source, later)
        return
    if isinstance(source, Filled):
        later.filled.append((name.encode(), file.tell(), source))
        file.seek(source.size, os.SEEK_CUR)
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


def _place_stored(
    file: BinaryIO, name: str, stored: Stored, later: _Later
) -> Iterator[tuple[bytes, Entry]]:
    """Leave a place for a variable, or for the slices of a partitioned one."""
    slices = tuple(part.extents for part in stored.parts if part.extents is not None)
    if slices:
        yield name.encode(), Entry(stored.dtype, stored.shape, slices=slices)
    for part in stored.parts:
        key = name.encode() if part.extents is None else slice_key(name, part.extents)
        offset = file.tell()
        yield key, Entry(stored.dtype, part.shape, 0, offset, part.size, part.checksum)
        later.stored.append((offset, part))
        file.seek(part.size, os.SEEK_CUR)


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

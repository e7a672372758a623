"""What a checkpoint holds, whatever its version."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from rnnconvert.containers.checkpoint.dtypes import numpy_dtype
from rnnconvert.containers.checkpoint.files import Malformed, is_there
from rnnconvert.containers.checkpoint.slices import Shape, Slice, resolve
from rnnconvert.containers.checkpoint.wire import Message
from rnnconvert.containers.raw_file import Filled, StoredArray
from rnnconvert.errors import UnreadableInputError

MAX_DIMENSIONS = 32
"""More than any TensorFlow operation takes, and as many as every numpy has."""
_MAX_ELEMENTS = 2**59
"""So that no array's bytes exceed 63 bits, whatever its type."""


@dataclass(frozen=True)
class CheckpointPath:
    """Where a checkpoint lies.

    Args:
        prefix: what TensorFlow calls it, e.g. `runs/model.ckpt-100`; often no file has that name.
        version: 1 (tensor slices, TensorFlow's default until 0.12) or 2 (tensor bundle).
        tables: version 2: the `.index` alone; version 1: all its files, missing ones included.
    """

    prefix: Path
    version: int
    tables: tuple[Path, ...]


@dataclass(frozen=True)
class VariableInfo:
    """One tensor of a checkpoint, as its index tells.

    Args:
        name: in full, e.g. `rnn/kernel` or `layer/kernel/.ATTRIBUTES/VARIABLE_VALUE`.
        dtype: TensorFlow's name of the type, which is numpy's too but for `string` (read as an
            object array of bytes), `bfloat16`, and types that can't be read.
        shape: of the whole variable.
        slices: of a partitioned variable, the parts it is stored in; otherwise empty.
        files: the files that hold its values.
    """

    name: str
    dtype: str
    shape: Shape
    slices: tuple[Slice, ...]
    files: tuple[Path, ...]

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)


@dataclass(frozen=True)
class StoredPart:
    """A tensor, or one slice of it, as it lies in a data file, to be copied and not decoded.

    Args:
        shape: of this part.
        extents: which slice it is; None for a whole tensor.
        path: of the file.
        offset: of its first byte in the file.
        size: number of bytes.
        checksum: of the bytes, in the form in which it is stored.
        chunks: the bytes, in order; checks them against the checksum when they have all been read.
    """

    shape: Shape
    extents: Slice | None
    path: Path
    offset: int
    size: int
    checksum: int
    chunks: Callable[[], Iterator[memoryview]]


@dataclass(frozen=True)
class Stored:
    """A variable of a checkpoint in the very bytes it is stored in.

    Args:
        dtype: TensorFlow's name of the type; any type can be copied.
        shape: of the whole variable.
        parts: one part without extents, or the slices of a partitioned variable.
    """

    dtype: str
    shape: Shape
    parts: tuple[StoredPart, ...]


Source = np.ndarray | Callable[[], np.ndarray] | Stored | Filled
"""Where the writer gets a tensor from: an array, a function that gives it, a stored variable, or a
function that writes it.
"""


@dataclass(frozen=True)
class RawPlace:
    """Where a tensor lies in a data file, in one piece and little-endian.

    Args:
        path: of the file.
        offset: of the first byte.
        dtype: of its numbers.
        chunks: the bytes, in order; checks them against the checksum when they have all been read.
    """

    path: Path
    offset: int
    dtype: np.dtype[np.generic]
    chunks: Callable[[], Iterator[memoryview]]


class Store(Protocol):
    """How the values of one version of checkpoint are read; the errors are `Checkpoint`'s."""

    def read(self, info: VariableInfo) -> np.ndarray: ...

    def source(self, info: VariableInfo) -> Source: ...

    def place(self, info: VariableInfo) -> RawPlace | None: ...

    def require(self, info: VariableInfo) -> None: ...


@dataclass(frozen=True)
class Checkpoint:
    """An opened checkpoint. No file stays open between two calls, so there is nothing to close.

    Args:
        path: where it lies, and its version.
        variables: all tensors by name, in the order of their names' bytes.
        files: all files it consists of, missing ones included.
    """

    path: CheckpointPath
    variables: Mapping[str, VariableInfo]
    files: tuple[Path, ...]
    _store: Store

    @property
    def version(self) -> int:
        return self.path.version

    @property
    def missing_shards(self) -> tuple[Path, ...]:
        """Files that hold values and are not there; what lies elsewhere can still be read."""
        return tuple(path for path in self.files if not is_there(path))

    @property
    def nbytes(self) -> int:
        """The size of the files that are there, `.meta` and the like not counted."""
        return sum(path.stat().st_size for path in self.files if is_there(path))

    def read(self, name: str) -> np.ndarray:
        """The values of a variable, checked against their checksums, slices put together.

        Raises:
            KeyError: the checkpoint has no such variable.
            UnreadableInputError: a file is missing, cut short or damaged.
            UsageError: the type needs the package ml_dtypes, which is not installed.
            NotConvertibleError: the type has no counterpart in numpy.
        """
        return self._store.read(self.variables[name])

    def source(self, name: str) -> Source:
        """A variable for `write_checkpoint`, which reads it when its turn comes.

        Slices of a version 2 checkpoint stay slices; other partitioned variables become whole.
        """
        return self._store.source(self.variables[name])

    def place(self, name: str) -> RawPlace | None:
        """Where a variable's bytes lie; None unless they lie in one piece, as numpy has them."""
        return self._store.place(self.variables[name])

    def rows(self, name: str) -> StoredArray:
        """A variable that is to be read by slices of its first axis; its checksum is not checked.

        Raises:
            UnreadableInputError: it does not lie in one piece.
        """
        place, info = self.place(name), self.variables[name]
        if place is None:
            raise UnreadableInputError(f"{name}: expected a tensor in one piece")
        return StoredArray(place.path.resolve(), place.offset, info.shape, place.dtype)

    def require_values(self) -> None:
        """Raise UnreadableInputError unless all data files are there, and long enough."""
        missing = [path.name for path in self.missing_shards]
        if missing:
            index = self.path.tables[0].name
            raise UnreadableInputError(
                f"a data file is missing: {', '.join(missing[:4])}; put it beside {index}, or copy "
                "all files of the checkpoint together"
            )
        for info in self.variables.values():
            self._store.require(info)


def parse_shape(message: Message) -> Shape:
    """A TensorShapeProto.

    Raises:
        Malformed: of unknown rank, with a negative dimension, or too large to be true.
    """
    if message.unsigned(3):
        raise Malformed("its shape is unknown")
    shape = tuple(Message(dimension).signed(1) for dimension in message.parts(2))
    if len(shape) > MAX_DIMENSIONS:
        raise Malformed(f"{len(shape)} dimensions; {MAX_DIMENSIONS} are the most")
    if any(size < 0 for size in shape):
        raise Malformed(f"the shape {list(shape)} has a negative dimension")
    if math.prod(size for size in shape if size) > _MAX_ELEMENTS:
        raise Malformed(f"the shape {list(shape)} is too large")
    return shape


def slice_shape(extents: Slice, shape: Shape) -> Shape:
    """The shape of a slice of a variable of `shape`; raises Malformed where it is out of bounds."""
    return tuple(bounds.stop - bounds.start for bounds in resolve(extents, shape))


def require_tiled(info: VariableInfo) -> None:
    """Raise Malformed unless the slices of a variable hold as many elements as it has."""
    found = sum(math.prod(slice_shape(extents, info.shape)) for extents in info.slices)
    if found != info.size:
        raise Malformed(f"{info.name!r} has {info.size} elements, its slices hold {found}")


def assemble(info: VariableInfo, parts: Iterable[tuple[Slice, np.ndarray]]) -> np.ndarray:
    """A partitioned variable from all its parts.

    Args:
        info: of a variable that is known to be tiled and to lie in its files.
        parts: each slice with its values.

    Raises:
        Malformed: two parts overlap.
    """
    values = np.empty(info.shape, numpy_dtype(info.dtype))
    filled = np.zeros(info.shape, bool)
    for extents, part in parts:
        bounds = resolve(extents, info.shape)
        if filled[bounds].any():
            raise Malformed(f"two slices of {info.name!r} overlap")
        filled[bounds] = True
        values[bounds] = part
    return values

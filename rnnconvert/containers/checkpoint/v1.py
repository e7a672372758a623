"""Reading version 1 checkpoints ("tensor slices"): tables whose first entry lists their variables.

Values are lists of numbers in protocol buffers, floats as they are, integers as varints. (Formats:
tensorflow/core/util/saved_tensor_slice.proto, tensorflow/core/framework/tensor.proto.)
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from rnnconvert.containers.checkpoint.dtypes import STRING, dtype_name, numpy_dtype
from rnnconvert.containers.checkpoint.files import Malformed, is_there, reading
from rnnconvert.containers.checkpoint.slices import Slice, parse_slice, resolve, slice_key
from rnnconvert.containers.checkpoint.table import Table, open_table
from rnnconvert.containers.checkpoint.variables import (
    Checkpoint,
    CheckpointPath,
    RawPlace,
    Source,
    VariableInfo,
    assemble,
    parse_shape,
    require_tiled,
    slice_shape,
)
from rnnconvert.containers.checkpoint.wire import Message, decode_varints
from rnnconvert.errors import NotConvertibleError, UnreadableInputError

TABLE_OF_CONTENTS = b""
"""The first key of every table."""
_PLAIN = {"float32": 5, "float64": 6, "complex64": 9, "complex128": 12}
"""Types whose values stand there as in memory, little-endian, and their field of a TensorProto."""
_VARINTS = {
    "int32": 7, "int16": 7, "int8": 7, "uint8": 7, "uint16": 7,
    "int64": 10, "bool": 11, "float16": 13,
}  # fmt: skip
"""Types whose values are varints, those of float16 being its bits."""
_STRINGS = 8


@dataclass(frozen=True)
class _Part:
    """One slice of a variable, and the table that holds it."""

    extents: Slice
    table: Table


@dataclass(frozen=True)
class _SliceStore:
    """The values of a version 1 checkpoint: for every variable, its parts."""

    parts: Mapping[str, Sequence[_Part]]

    def read(self, info: VariableInfo) -> np.ndarray:
        parts = self.parts[info.name]
        numpy_dtype(info.dtype)  # fails before anything is read
        missing = [path.name for path in info.files if not is_there(path)]
        if missing:
            raise UnreadableInputError(
                f"{', '.join(missing)}: missing; parts of {info.name!r} lie there, put it beside "
                f"{parts[0].table.path.name}"
            )
        if not info.slices:
            return _read_part(info, parts[0])
        with reading(info.files[0].name):
            # Every element takes a byte at least: bounds what `assemble` allocates.
            if info.size > sum(path.stat().st_size for path in info.files):
                raise Malformed(f"{info.name!r} has more elements than its files have bytes")
            values = (_read_part(info, part) for part in parts)
            return assemble(info, zip(info.slices, values, strict=True))

    def require(self, info: VariableInfo) -> None:
        """Nothing: the table that lists the values holds them, too, and was read."""

    def place(self, info: VariableInfo) -> RawPlace | None:
        """None: its values are messages, not bytes."""

    def source(self, info: VariableInfo) -> Source:
        return functools.partial(self.read, info)


def open_slices(path: CheckpointPath) -> Checkpoint:
    """Read the tables of contents of a version 1 checkpoint; some of its files may be missing.

    Raises:
        UnreadableInputError: a file is cut short or damaged, or the files contradict each other.
    """
    found: dict[str, VariableInfo] = {}
    parts: dict[str, list[_Part]] = {}
    for file in path.tables:
        if not is_there(file):
            continue
        table = open_table(file)
        with reading(file.name):
            for info in _contents(table):
                known = found.get(info.name, info)
                if (known.dtype, known.shape) != (info.dtype, info.shape):
                    raise Malformed(f"{info.name!r} has another type or shape than in other files")
                here = (_Part(extents, table) for extents in info.slices)
                parts.setdefault(info.name, []).extend(here)
                found[info.name] = info
    absent = tuple(file for file in path.tables if not is_there(file))
    with reading(path.tables[0].name):
        names = sorted(found, key=str.encode)
        variables = {name: _info(found[name], parts[name], absent) for name in names}
    return Checkpoint(path, variables, path.tables, _SliceStore(parts))


def _contents(table: Table) -> Iterator[VariableInfo]:
    """The variables that a table lists, with the slices that it holds of each."""
    key, value = next(table.items(), (None, b""))
    if key != TABLE_OF_CONTENTS:
        raise Malformed("its table of contents is missing")
    for part in Message(Message(value).part(1)).parts(1):
        message = Message(part)
        yield VariableInfo(
            name=message.text(1),
            dtype=dtype_name(message.unsigned(3)),
            shape=parse_shape(Message(message.part(2))),
            slices=tuple(parse_slice(extents) for extents in message.parts(4)),
            files=(table.path,),
        )


def _info(found: VariableInfo, parts: Sequence[_Part], absent: tuple[Path, ...]) -> VariableInfo:
    """A variable with the slices of all files, checked to be complete unless files are absent."""
    files = tuple(dict.fromkeys(part.table.path for part in parts))
    slices = tuple(part.extents for part in parts)
    info = VariableInfo(found.name, found.dtype, found.shape, slices, files)
    held = sum(math.prod(slice_shape(extents, info.shape)) for extents in slices)
    if held < info.size and absent:
        return replace(info, files=files + absent)
    require_tiled(info)
    whole = tuple(slice(0, size) for size in info.shape)
    if len(slices) == 1 and resolve(slices[0], info.shape) == whole:
        return replace(info, slices=())
    return info


def _read_part(info: VariableInfo, part: _Part) -> np.ndarray:
    """The values of one slice."""
    key = slice_key(info.name, part.extents)
    value = part.table.get(key)
    with reading(f"{part.table.path.name}: {info.name!r}"):
        saved = Message(Message(value).part(2))
        if saved.text(1) != info.name or parse_slice(saved.part(2)) != part.extents:
            raise Malformed("the entry holds another variable or slice than its key says")
        shape = slice_shape(part.extents, info.shape)
        return _values(Message(saved.part(3)), info.dtype, math.prod(shape)).reshape(shape)


def _values(tensor: Message, dtype: str, count: int) -> np.ndarray:
    """The values of a TensorProto, shape (count,), in memory of their own.

    Raises:
        Malformed: more, fewer, or none that fit the type.
        NotConvertibleError: a type that version 1 does not know, or that is read nowhere.
    """
    if dtype == STRING:
        strings = tensor.parts(_STRINGS)
        _require_count(count, len(strings))
        values = np.empty(count, object)
        for place, text in enumerate(strings):
            values[place] = bytes(text)
        return values
    if dtype in _PLAIN:
        little = np.dtype(dtype).newbyteorder("<")
        data = tensor.part(_PLAIN[dtype])
        _require_count(count * little.itemsize, len(data))
        return np.frombuffer(data, little).astype(dtype)
    if dtype not in _VARINTS:
        raise NotConvertibleError(f"version 1 checkpoints don't hold {dtype}")
    numbers = decode_varints(tensor.part(_VARINTS[dtype]), count)
    stored = np.dtype(np.uint16 if dtype == "float16" else dtype)
    values = numbers.astype(stored)
    if not np.array_equal(values.astype(np.int64), numbers):
        raise Malformed(f"some of its numbers are out of range for {stored}")
    return values.view(dtype)


def _require_count(expected: int, found: int) -> None:
    if expected != found:
        raise Malformed(f"expected {expected} bytes or strings, found {found}")

"""The one place that opens numpy's files, .npy and .npz.

Such a file comes from anywhere. Every size that it claims is checked before memory is asked for,
and Python objects in it are never loaded: only plain arrays of floating-point numbers are.
"""

from __future__ import annotations

import warnings
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from math import prod
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy

from rnnconvert.containers.budget import charge_arrays
from rnnconvert.containers.raw_file import Filled, RawFile
from rnnconvert.containers.safe_zip import ArchiveFile, SafeZip, new_zip, reading_zip
from rnnconvert.errors import DifferenceError, UnreadableInputError, errors_of

UNNAMED = ""
"""The name under which `open_arrays` has the one array of a .npy file."""

Array = np.ndarray[Any, np.dtype[Any]]
_DTYPES = ("float16", "float32", "float64", "bfloat16", "void16")
"""void16 is what numpy makes of bfloat16 in a file."""
_NPY = b"\x93NUMPY"
_ZIP = (b"PK\x03\x04", b"PK\x05\x06")
_CHUNK = 2**20
"""Bytes that are read or compared at once."""


# --- reading --------------------------------------------------------------------------------


def require_file(path: Path) -> None:
    """Raise UnreadableInputError unless `path` is a regular file, whatever it holds."""
    with _reading(path):
        if not path.exists():
            raise UnreadableInputError("no such file")
        if not path.is_file():
            raise UnreadableInputError("not a regular file; expected a .npy or .npz file")


def read_flat_array(path: Path, hint: str = "") -> Array:
    """The array of one axis in a .npy file, or in a .npz file that holds no other.

    Args:
        path: of the file.
        hint: what to do with a file of several arrays, for the message.

    Raises:
        UnreadableInputError: not such a file, damaged, with several arrays, or one of another rank.
    """
    with open_arrays(path) as arrays:
        if len(arrays) != 1:
            raise UnreadableInputError(
                f"expected one flat array, found {len(arrays)}{hint and '; '}{hint}", path=str(path)
            )
        (array,) = arrays.values()
    if array.ndim != 1:
        raise UnreadableInputError(
            f"expected a flat array of shape (elements,), found shape {array.shape}", path=str(path)
        )
    return array


@contextmanager
def open_arrays(path: Path) -> Iterator[Mapping[str, Array]]:
    """The arrays of a .npz file by name, or the one of a .npy file under `UNNAMED`.

    An array is read, and its own header checked, whenever it is asked for, so that one array at a
    time is in memory. The names, the number and the total size are checked here.

    Raises:
        UnreadableInputError: not such a file, or damaged; also when an array is asked for.
    """
    with _reading(path):
        size = path.stat().st_size
        file = path.open("rb")
    with file:
        with _reading(path):
            start = file.read(len(_NPY))
            if not size or not (start == _NPY or start.startswith(_ZIP)):
                reason = "neither a .npy nor a .npz file" if size else "an empty file"
                raise UnreadableInputError(reason)
            arrays = _Single(path, file, size) if start == _NPY else _Archive(path, file, size)
        yield arrays


@contextmanager
def open_rows(path: Path) -> Iterator[Callable[[str], RowsOfMember]]:
    """Gives each array of a .npz file of our own by its name, to be read by slices of its rows.

    Raises:
        UnreadableInputError: not such a file, or damaged; also when rows are asked for.
    """
    with open_arrays(path) as arrays:
        if not isinstance(arrays, _Archive):
            raise UnreadableInputError("one array, not a .npz file", path=str(path))
        yield arrays.rows


class _Single(Mapping[str, Array]):
    """The one array of a .npy file."""

    def __init__(self, path: Path, file: IO[bytes], size: int) -> None:
        self._path, self._file, self._size = path, file, size

    def __getitem__(self, name: str) -> Array:
        if name != UNNAMED:
            raise KeyError(name)
        with _reading(self._path):
            self._file.seek(0)
            return _read_array(self._file, self._size, "the array")

    def __iter__(self) -> Iterator[str]:
        return iter([UNNAMED])

    def __len__(self) -> int:
        return 1


class _Archive(Mapping[str, Array]):
    """The arrays of a .npz file.

    Raises:
        UnreadableInputError: a member is no array, twice there, encrypted, compressed in an unknown
            way, or claims more bytes than it can have.
    """

    def __init__(self, path: Path, file: IO[bytes], size: int) -> None:
        self._path = path
        self._zip = SafeZip(file, size)
        self._members: dict[str, str] = {}
        for member in self._zip.members:
            name = member.removesuffix(".npy")
            if name == member:
                raise UnreadableInputError(f"{member}: no array")
            self._members[name] = member
        needed = sum(member.file_size for member in self._zip.members.values())
        charge_arrays(needed, size, "its arrays")

    def __getitem__(self, name: str) -> Array:
        member = self._members[name]
        with _reading(self._path), self._zip.open(member) as stream:
            return _read_array(stream, self._zip.members[member].file_size, name)

    def rows(self, name: str) -> RowsOfMember:
        return RowsOfMember(self._zip, self._members[name])

    def __contains__(self, name: object) -> bool:
        return name in self._members  # Mapping's own would read the array

    def __iter__(self) -> Iterator[str]:
        return iter(self._members)

    def __len__(self) -> int:
        return len(self._members)


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Whatever goes wrong while reading, as one clear error with the file's name."""
    with errors_of(path), reading_zip():
        yield


def _read_array(stream: IO[bytes], size: int, name: str) -> Array:
    """One array in .npy format from a stream of `size` bytes."""
    shape, fortran_order, dtype = _read_header(stream, name)
    if dtype.name not in _DTYPES or dtype.names or dtype.subdtype:
        raise UnreadableInputError(f"{name}: expected floating-point numbers, found {dtype}")
    claimed, left = prod(shape) * dtype.itemsize, size - stream.tell()
    if claimed != left or any(length < 0 for length in shape):
        raise UnreadableInputError(
            f"{name}: the header says shape {shape} of {dtype}, {claimed:,} bytes, but {left:,} "
            "bytes follow; the file is truncated or damaged"
        )
    flat = np.empty(prod(shape), dtype)
    _fill(stream, flat, name)
    return flat.reshape(shape, order="F" if fortran_order else "C")


def _fill(stream: IO[bytes], values: Array, name: str) -> None:
    """Read a contiguous array's bytes."""
    memory, done = values.reshape(-1).view(np.uint8).data, 0
    while done < len(memory):
        read = stream.readinto(memory[done : done + _CHUNK])  # type: ignore[attr-defined]
        if not read:
            raise UnreadableInputError(f"{name}: the file is truncated")
        done += read


def _read_header(
    stream: IO[bytes], name: str
) -> tuple[tuple[int, ...], bool, np.dtype[np.generic]]:
    version = npy.read_magic(stream)
    headers = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
    if version not in headers:
        raise UnreadableInputError(f"{name}: format {version} is not one for plain arrays")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # numpy warns of headers that Python 2 wrote
        return headers[version](stream)


class RowsOfMember:
    """An array of an archive, which is read by slices of its first axis.

    They are best read from the first row to the last: what lies before a slice is read past.
    """

    def __init__(self, archive: SafeZip, member: str) -> None:
        self._zip, self._member, self._at = archive, member, 0
        self._stream = self._open()

    def _open(self) -> IO[bytes]:
        stream = self._zip.open(self._member)
        self.shape, fortran_order, self.dtype = _read_header(stream, self._member)
        if fortran_order:
            raise UnreadableInputError(f"{self._member}: columns follow each other, not rows")
        return stream

    def __getitem__(self, rows: slice) -> Array:
        start, stop, _ = rows.indices(self.shape[0])
        values = np.empty((max(0, stop - start), *self.shape[1:]), self.dtype)
        if start != self._at:
            self._stream.close()
            self._stream = self._open()
            width = prod(self.shape[1:]) * self.dtype.itemsize
            self._stream.seek(self._stream.tell() + start * width)
        self._at = stop
        _fill(self._stream, values, self._member)
        return values


# --- writing --------------------------------------------------------------------------------


def write_array(path: Path, array: Array) -> None:
    """Write one array as a .npy file, under this very name.

    Raises:
        OSError: it can't be written.
        ValueError: the array holds Python objects.
    """
    with path.open("wb") as file:
        np.save(file, array, allow_pickle=False)


def write_arrays(path: Path, arrays: Mapping[str, Array | Filled]) -> None:
    """Write arrays as an uncompressed .npz file, under this very name.

    One array at a time is asked for. The same arrays give the same bytes: no clock is read. Not
    `np.savez`, which takes the names for its keywords, where "file" has another meaning.

    Args:
        path: where to write.
        arrays: by name; slashes are allowed, e.g. "scope/layer_0/forward/kernel".

    Raises:
        OSError: it can't be written.
        ValueError: an array holds Python objects, or a name would be read back as another one.
    """
    with new_zip(path) as (archive, file):
        for name, array in arrays.items():
            member = zipfile.ZipInfo(f"{name}.npy")
            if member.filename != f"{name}.npy":
                raise ValueError(f"{name!r} can't be the name of an array in a .npz file")
            with archive.open(member, "w", force_zip64=True) as stream:
                if isinstance(array, Filled):
                    _write_filled(stream, array, file)
                else:
                    npy.write_array(stream, np.asanyarray(array), allow_pickle=False)


def _write_filled(stream: IO[bytes], filled: Filled, file: ArchiveFile) -> None:
    """Fill an array in at its place in the archive, then read it back for the archive's checksum.

    Args:
        stream: the member that is being written.
        file: the archive's.
    """
    dtype = np.dtype(filled.dtype)
    header = {
        "descr": npy.dtype_to_descr(dtype), "fortran_order": False, "shape": filled.shape
    }  # fmt: skip
    npy.write_array_header_1_0(stream, header)
    file.flush()
    start, raw = file.tell(), RawFile(file, writes=True)
    raw.truncate(start + filled.size)
    filled.fill(raw, start)
    file.is_there = True
    for piece in raw.pieces(start, filled.size):
        stream.write(piece)
    file.is_there = False


def require_same_bits(expected: Array, found: Array) -> None:
    """Raise DifferenceError unless a flat array was read back as it was written."""
    pieces = [slice(at, at + _CHUNK) for at in range(0, expected.nbytes, _CHUNK)]
    first, second = expected.view(np.uint8), found.view(np.uint8)
    same = expected.dtype == found.dtype and len(first) == len(second)
    if not same or not all(np.array_equal(first[piece], second[piece]) for piece in pieces):
        raise DifferenceError("what was written reads back differently; nothing was published")

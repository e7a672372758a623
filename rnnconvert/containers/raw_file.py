"""The bytes of a file at any place, read and written past every library."""

from __future__ import annotations

import math
import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rnnconvert.errors import UnreadableInputError

Array = np.ndarray[Any, Any]
_PIECE = 2**20
"""Bytes that are read at once, where the order matters."""
Span = tuple[int, int, int]
"""Where bytes lie: offset in the file, start in the memory, length."""
_PARTS = 1024
"""Parts of the memory that a system call takes at most (IOV_MAX of Linux and macOS)."""
_WRITE_NOW = 2
"""SYNC_FILE_RANGE_WRITE of Linux: begin to write these pages, and wait for nothing."""


class RawFile:
    """The bytes of a file at any place, for several threads at once."""

    def __init__(self, file: Any, *, writes: bool) -> None:
        """Take an opened, unbuffered binary file; it is closed by whoever opened it."""
        self.writes = writes
        self._file = file
        self._lock = threading.Lock()
        self._flusher: threading.Thread | None = None
        self._asked: tuple[int, int] | None = None
        """From where to where `write_back` is still to begin."""

    def fileno(self) -> int:
        number: int = self._file.fileno()
        return number

    def truncate(self, size: int) -> None:
        self._file.truncate(size)

    def array(self, offset: int, shape: tuple[int, ...], dtype: Any) -> Array:
        """An array that lies in one piece from `offset` on; raises as `read`."""
        values = np.empty(shape, dtype)
        self.read(raw_bytes_of(values), offset)
        return values

    def read(self, view: memoryview, offset: int) -> None:
        """Fill `view` with the bytes from `offset` on.

        Raises:
            UnreadableInputError: the file ends before, or can't be read.
            OSError: it is a file of our own, and can't be read.
        """
        with self._read_errors():
            while view:
                got = self._read(view, offset)
                if not got:
                    raise UnreadableInputError("the file ends in the middle of a tensor")
                view, offset = view[got:], offset + got

    def write(self, view: memoryview, offset: int) -> None:
        """Write `view` at `offset`; raises OSError."""
        while view:
            put = self._write(view, offset)
            view, offset = view[put:], offset + put

    def read_spans(self, view: memoryview, spans: Iterable[Span]) -> None:
        """Fill parts of `view`, with as little as can be around each call; raises as `read`."""
        call, number = getattr(os, "preadv", None), self.fileno()
        with self._read_errors():
            for offset, length, parts in _together(view, spans):
                if call is None or call(number, parts, offset) != length:  # not all at once
                    for part in parts:
                        self.read(part, offset)
                        offset += len(part)

    def write_spans(self, view: memoryview, spans: Iterable[Span]) -> None:
        """Write parts of `view`, as `read_spans` reads them; raises OSError."""
        call, number = getattr(os, "pwritev", None), self.fileno()
        for offset, length, parts in _together(view, spans):
            if call is None or call(number, parts, offset) != length:
                for part in parts:
                    self.write(part, offset)
                    offset += len(part)

    @contextmanager
    def _read_errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if self.writes:
                raise
            raise UnreadableInputError(f"can't be read: {error.strerror}") from error

    def _read(self, view: memoryview, offset: int) -> int:
        if hasattr(os, "preadv"):
            return os.preadv(self.fileno(), [view], offset)
        with self._lock:
            self._file.seek(offset)
            return self._file.readinto(view) or 0

    def _write(self, view: memoryview, offset: int) -> int:
        if hasattr(os, "pwrite"):
            return os.pwrite(self.fileno(), view, offset)
        with self._lock:
            self._file.seek(offset)
            return self._file.write(view) or 0

    def pieces(self, offset: int, size: int) -> Iterator[memoryview]:
        """Bytes in order; each piece is valid until the next. Raises as `read`."""
        buffer = memoryview(bytearray(min(size, _PIECE)))
        for start in range(0, size, _PIECE):
            piece = buffer[: size - start]
            self.read(piece, offset + start)
            yield piece

    def write_back(self, offset: int, size: int) -> None:
        """Let the system begin to put these bytes on the disk, where it can be told to.

        A busy disk makes that call wait, so a thread waits for it, one at a time: what is asked for
        meanwhile is asked for with the next.
        """
        begin = _sync_file_range()
        if begin is None:
            return
        with self._lock:
            first, end = self._asked or (offset, offset + size)
            self._asked = (min(first, offset), max(end, offset + size))
            if self._flusher is not None and self._flusher.is_alive():
                return
            first, end = self._asked
            self._asked = None
            number = os.dup(self.fileno())  # for the file may be closed before the call returns
            self._flusher = threading.Thread(
                target=_flush, args=(begin, number, first, end - first)
            )
            self._flusher.start()


@contextmanager
def open_raw(path: Path, *, writes: bool = False) -> Iterator[RawFile]:
    """An existing file, to be read, or to be read and written.

    Raises:
        UnreadableInputError: it can't be opened to be read.
        OSError: it can't be opened to be written.
    """
    try:
        file = path.open("r+b" if writes else "rb", buffering=0)
    except OSError as error:
        if writes:
            raise
        raise UnreadableInputError(f"can't be read: {error.strerror}") from error
    with file:
        yield RawFile(file, writes=writes)


@contextmanager
def scratch_file(folder: Path, size: int) -> Iterator[RawFile]:
    """A file of zeros in `folder` that has no name, where the system has such; raises OSError."""
    import tempfile

    with tempfile.TemporaryFile(dir=folder, prefix=".rnnconvert-", buffering=0) as file:
        scratch = RawFile(file, writes=True)
        scratch.truncate(size)
        yield scratch


def _together(
    view: memoryview, spans: Iterable[Span]
) -> Iterator[tuple[int, int, list[memoryview]]]:
    """Offset, length and parts of `view` of spans that follow each other in the file."""
    parts: list[memoryview] = []
    first = end = -1
    for offset, start, length in spans:
        if offset != end or len(parts) == _PARTS:
            if parts:
                yield first, end - first, parts
            parts, first = [], offset
        parts.append(view[start : start + length])
        end = offset + length
    if parts:
        yield first, end - first, parts


def raw_bytes_of(values: Array) -> memoryview:
    """The bytes of a contiguous array, to be read or written."""
    return values.reshape(-1).view(np.uint8).data


def _flush(begin: Callable[..., int], number: int, offset: int, size: int) -> None:
    try:
        begin(number, offset, size, _WRITE_NOW)
    finally:
        os.close(number)


_CALLS: list[Any] = []
"""The system's call, or None, once it was looked for."""


def _sync_file_range() -> Any:
    if not _CALLS:
        call = None
        if sys.platform == "linux":
            import ctypes

            call = getattr(ctypes.CDLL(None), "sync_file_range", None)
            if call is not None:
                call.argtypes = [ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint]
        _CALLS.append(call)
    return _CALLS[0]


def copy_range(
    source: RawFile, target: RawFile, start: int, place: int, size: int, buffer: Array
) -> None:
    """Copy bytes, by the file system itself where it can, else through `buffer`.

    Raises:
        UnreadableInputError: the source ends before.
        OSError: the target can't be written.
    """
    with suppress(OSError, AttributeError):  # another file system, or another operating system
        while size:
            done = os.copy_file_range(source.fileno(), target.fileno(), size, start, place)
            if not done:
                break
            start, place, size = start + done, place + done, size - done
    while size:
        view = buffer[: min(size, len(buffer))].data
        source.read(view, start)
        target.write(view, place)
        start, place, size = start + len(view), place + len(view), size - len(view)


@dataclass(frozen=True)
class StoredArray:
    """An array in one piece of a file, which is read by slices of its first axis.

    Attributes:
        path: of the file.
        offset: of its first byte.
        shape: of the array.
        dtype: of its numbers.
    """

    path: Path
    offset: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    def __getitem__(self, rows: slice) -> Array:
        start, stop, _ = rows.indices(self.shape[0])
        width = math.prod(self.shape[1:]) * self.dtype.itemsize
        with open_raw(self.path) as file:
            return file.array(
                self.offset + start * width, (max(0, stop - start), *self.shape[1:]), self.dtype
            )


@dataclass(frozen=True)
class Filled:
    """A tensor that is written into a file by a function, and is never in memory.

    Attributes:
        dtype: numpy's name of it.
        shape: of the tensor.
        fill: writes its bytes, in C order and little-endian, from an offset of a file on.
    """

    dtype: str
    shape: tuple[int, ...]
    fill: Callable[[RawFile, int], None]

    @property
    def size(self) -> int:
        """In bytes."""
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize

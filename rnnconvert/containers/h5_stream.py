"""The bytes of an HDF5 file on their way to and from the HDF5 library, watched.

The library loops for ever, or reads outside its memory, where a damaged global heap (it holds texts
of variable length) contradicts itself; so each heap is checked as it is read. And it crashes where
a write fails; so it is not told: the first failure is kept, and `safe_h5.open_h5` raises it.
"""

from __future__ import annotations

import io
import itertools
import os
import weakref
from pathlib import Path
from typing import Any

import h5py

from rnnconvert.errors import UnreadableInputError

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

SIGNATURE = b"\x89HDF\r\n\x1a\n"
_HEAP = b"GCOL\x01\0\0\0"
"""How a global heap collection begins: signature, version, three reserved bytes."""
_LENGTHS_AT = {0: 14, 1: 14, 2: 10, 3: 10}
"""Version of a superblock, and where in it stands how many bytes a length has."""
_DAMAGED = "the global heap at byte {} contradicts itself; the file is damaged"


_numbers = itertools.count()
_streams: weakref.WeakValueDictionary[str, PythonFile] = weakref.WeakValueDictionary()
"""By the name that h5py has of each."""


class PythonFile:
    """A file that h5py reads and writes through its driver for Python files.

    Attributes:
        path: of the file.
        checked: addresses of objects whose texts were found to be no longer than the file.
        writes: whether the file may be changed.
        failure: the first error of a read or a write, to be raised once HDF5 is out of the way.
    """

    def __init__(self, path: Path, mode: str) -> None:
        """Open `path`; "r" to read, "r+" to change it, "w" to write it anew.

        Raises:
            OSError: it can't be opened, or (BlockingIOError) another program is writing to it.
        """
        self.failure: BaseException | None = None
        self.path = path
        self.checked: set[int] = set()
        self._name = f"stream {next(_numbers)}"
        _streams[self._name] = self
        self.writes = mode != "r"
        self._file = io.FileIO(path, {"r": "r", "r+": "r+", "w": "w+"}[mode])
        try:
            if not self.writes:
                _lock_shared(self._file.fileno())
            self._length_size = _length_size(self._file)
        except BaseException:
            self._file.close()
            raise

    def __repr__(self) -> str:
        """What h5py takes for the file's name, which it can only keep in ASCII."""
        return self._name

    def close(self) -> None:
        self._file.close()

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        return self._file.seek(offset, whence)

    def tell(self) -> int:
        return self._file.tell()

    def flush(self) -> None:
        """Nothing is held back here; `publish` flushes the finished file to disk."""

    def read(self, size: int) -> bytes:
        """As h5py wants a file to have; it calls `readinto`."""
        content = bytearray(size)
        self.readinto(memoryview(content))
        return bytes(content)

    def readinto(self, buffer: Any) -> int:
        """Fill the whole buffer; behind the file's end lie zeros, as the HDF5 library has it."""
        view = memoryview(buffer).cast("B")
        try:
            start = self._file.tell()
            got = 0
            while got < len(view) and (count := self._file.readinto(view[got:])):
                got += count
            if got < len(view):
                view[got:] = bytes(len(view) - got)
            if view[: len(_HEAP)] == _HEAP:
                self._check_heap(view, start)
        except BaseException as error:
            self._keep(error)
            raise
        return len(view)

    def _check_heap(self, view: memoryview, start: int) -> None:
        """Check a heap as a whole, as soon as HDF5 reads its beginning; the rest it reads later."""
        size = int.from_bytes(view[8 : 8 + self._length_size], "little")
        if size <= os.fstat(self._file.fileno()).st_size - start:  # else HDF5 will not read it
            self._file.seek(start)
            heap = b"".join(iter(lambda: self._file.read(size - self._file.tell() + start), b""))
            check_heap(heap, start, self._length_size)

    def write(self, data: Any) -> int:
        """Write, or keep the reason why not, once and for all: HDF5 is not told."""
        view = memoryview(data).cast("B")
        try:
            if self.failure is None:
                self._put(view)
        except BaseException as error:
            self._keep(error)
        return len(view)

    def _put(self, view: memoryview) -> None:
        while view:
            view = view[self._file.write(view) or 0 :]

    def truncate(self, size: int) -> int:
        if self.writes and self.failure is None:
            try:
                self._file.truncate(size)
            except OSError as error:
                self._keep(error)
        return size

    def _keep(self, error: BaseException) -> None:
        if self.failure is None:
            self.failure = error


def stream_of(file: h5py.File) -> PythonFile | None:
    """The stream that an opened file is read through; None where h5py opened it by its path."""
    return _streams.get(file.filename)


def path_of(file: h5py.File) -> Path:
    """Where an opened file lies."""
    stream = stream_of(file)
    return stream.path if stream is not None else Path(file.filename)


def _lock_shared(handle: int) -> None:
    """The lock that HDF5 itself takes to read, so that a program that writes keeps it away.

    Raises:
        BlockingIOError: there is one.
    """
    if fcntl is None or os.environ.get("HDF5_USE_FILE_LOCKING", "").upper() in ("FALSE", "0"):
        return
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        if isinstance(error, BlockingIOError):
            raise  # other errors: not every file system has locks


def _length_size(file: io.FileIO) -> int:
    """How many bytes a length has in this file; 8 where it does not say, as in a new one."""
    size = os.fstat(file.fileno()).st_size
    at = 0
    while at < size:
        file.seek(at)
        start = file.read(16)
        if start.startswith(SIGNATURE) and len(start) == 16:
            return start[_LENGTHS_AT.get(start[8], 14)]
        at = at * 2 or 512
    return 8


def check_heap(heap: bytes, start: int, length_size: int) -> None:
    """Walk over the objects of a global heap as HDF5 will: each must end behind its beginning.

    Args:
        heap: all of it.
        start: where it lies in the file.
        length_size: bytes of a length.

    Raises:
        UnreadableInputError: one does not, or lies beyond the heap's end.
    """
    at = header = (8 + length_size + 7) // 8 * 8  # of the heap, and of each object
    while at + header <= len(heap):
        number = int.from_bytes(heap[at : at + 2], "little")
        size = int.from_bytes(heap[at + 8 : at + 8 + length_size], "little")
        need = header + (size + 7) // 8 * 8 if number else size
        if not header <= need <= len(heap) - at:
            raise UnreadableInputError(_DAMAGED.format(start))
        at += need

"""Large matrices on their way from one file to another, through small buffers that are used again.

A matrix moves in tiles: a piece of the source is read, transposed, and written to its place; then
what was written is read back and compared. Memory is a few tiles, whatever the size of a matrix.
What is written is on its way to the disk at once.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, repeat
from typing import Any, TypeVar

import numpy as np

from rnnconvert.containers.raw_file import RawFile, Span, copy_range

Array = np.ndarray[Any, Any]
T = TypeVar("T")

WHOLE = 4 * 2**20
"""Bytes up to which a tensor is read as a whole."""
TILE = 16 * 2**20
"""Bytes of a tile."""
_RUN = 4096
"""Bytes of a tile's row in the source, where the matrix is that wide. Its rows in the target are
then long, at best 16 kB: system calls that write cost more than those that read."""
_PART = 2**20
"""Bytes of a tile that are read and transposed at once: they stay in the processor's cache."""
_COPIED = 16 * 2**20
"""Bytes that are copied at once."""
_MOMENT = 0.2
"""Seconds between two looks at how far another thread is."""
_STRIP = 256
"""Bytes of a strip that is transposed at once: some lines of the processor's cache."""
_CROWDED = 1024
"""Bytes: rows of a multiple of it would take the same few places of the processor's cache, one
after the other, so they get `_GAP` bytes more in the memory. With it a matrix is transposed two to
three times as fast."""
_GAP = 64


# --- what moves -----------------------------------------------------------------------------


@dataclass(frozen=True)
class MatrixBlock:
    """A part of a matrix in a file: `rows` rows of `columns` numbers, which follow each other.

    Attributes:
        offset: of the first number in the file, in bytes.
        rows, columns: of the block.
        stride: from one row to the next, in numbers.
    """

    offset: int
    rows: int
    columns: int
    stride: int


@dataclass(frozen=True)
class Move:
    """One gate's block, from its place in the source to its place in the target.

    The numbers of `source`, row by row, are a matrix of `shape`; those of `target` are the same
    matrix transposed, or as it is. The block's own rows and columns need not be those of the
    matrix.
    """

    source: MatrixBlock
    target: MatrixBlock
    shape: tuple[int, int]
    itemsize: int
    is_transposed: bool = True


@dataclass(frozen=True)
class Tile:
    """Rows and columns of a move's matrix: `rows` from `row` on, `columns` from `column` on."""

    move: Move
    row: int
    column: int
    rows: int
    columns: int

    def parts(self) -> Iterator[Tile]:
        """Some rows each, which follow each other."""
        high = max(1, _PART // (self.columns * self.move.itemsize))
        for row in range(self.row, self.row + self.rows, high):
            count = min(high, self.row + self.rows - row)
            yield Tile(self.move, row, self.column, count, self.columns)

    def source_spans(self, pitch: int) -> Iterable[Span]:
        """Where its rows lie in the source, and in a memory, `pitch` bytes apart."""
        width = self.move.shape[1]
        return _spans(self.move.source, self.move.itemsize, width,
                      (self.row, self.rows), (self.column, self.columns), pitch)  # fmt: skip

    def target_spans(self, pitch: int) -> Iterable[Span]:
        """The same in the target, of its columns where it is transposed."""
        height, width = self.move.shape
        rows, columns = (self.row, self.rows), (self.column, self.columns)
        if self.move.is_transposed:
            rows, columns, width = columns, rows, height
        return _spans(self.move.target, self.move.itemsize, width, rows, columns, pitch)

    def target_range(self) -> tuple[int, int]:
        """The first byte in the target, and what comes after the last one."""
        spans = [(offset, offset + length) for offset, _, length in self.target_spans(1)]
        return min(spans)[0], max(spans)[1]


def _spans(
    block: MatrixBlock, size: int, width: int, rows: tuple[int, int], columns: tuple[int, int],
    pitch: int,
) -> Iterable[Span]:  # fmt: skip
    """Where a part of a matrix lies, in bytes.

    Args:
        block: whose numbers are the matrix, row by row.
        size: bytes of a number.
        width: of the matrix.
        rows, columns: the first of the part, and how many.
        pitch: bytes from one row to the next in the memory.
    """
    (row, count), (column, length) = rows, columns
    if width == block.columns:  # a row of the matrix is one of the block
        start, step = block.offset + (row * block.stride + column) * size, block.stride * size
        places = range(start, start + count * step, step)
        return zip(places, range(0, count * pitch, pitch), repeat(length * size))
    return chain.from_iterable(
        _runs(block, size, (row + index) * width + column, length, index * pitch)
        for index in range(count)
    )


def _runs(block: MatrixBlock, size: int, first: int, count: int, at: int) -> Iterator[Span]:
    """The spans of `count` numbers of a block from its number `first` on."""
    if block.columns == block.stride:
        yield block.offset + first * size, at, count * size
        return
    while count:
        row, column = divmod(first, block.columns)
        length = min(count, block.columns - column)
        yield block.offset + (row * block.stride + column) * size, at, length * size
        first, count, at = first + length, count - length, at + length * size


def bands(moves: Sequence[Move]) -> Iterator[list[Tile]]:
    """The tiles of a tensor's gates; those of some rows of the target together, one after another.

    Args:
        moves: of the gates, all of one shape, all transposed or none.
    """
    rows, columns = moves[0].shape
    most = TILE // moves[0].itemsize
    if not moves[0].is_transposed:
        high, wide = max(1, most // columns), min(columns, most)
        for row in range(0, rows, high):
            yield [
                Tile(move, row, column, min(high, rows - row), min(wide, columns - column))
                for move in moves
                for column in range(0, columns, wide)
            ]
        return
    wide = columns if rows * columns <= most else min(columns, max(1, _RUN // moves[0].itemsize))
    high = min(rows, most // wide)
    wide = min(columns, most // high, max(1, _PART // moves[0].itemsize))
    for column in range(0, columns, wide):
        yield [
            Tile(move, row, column, min(high, rows - row), min(wide, columns - column))
            for move in moves
            for row in range(0, rows, high)
        ]


# --- moving and comparing -------------------------------------------------------------------


@dataclass
class MovedTensor:
    """What was seen of a tensor while it moved.

    Attributes:
        difference: a sentence, where what was written is not what it should be.
        largest: absolute value in the source; NaN and infinity count. None where not looked for.
    """

    difference: str | None = None
    largest: float | None = None

    def add(self, other: MovedTensor) -> None:
        self.difference = self.difference or other.difference
        if other.largest is not None:
            self.largest = float(np.max([self.largest or 0.0, other.largest]))  # NaN comes through


def transpose(source: Array, target: Array) -> None:
    """`target[...] = source.T`, in strips: several times as fast as at once."""
    step = max(1, _STRIP // source.dtype.itemsize)
    turned = source.T
    for start in range(0, turned.shape[1], step):
        target[:, start : start + step] = turned[:, start : start + step]


@dataclass(frozen=True)
class _Rows:
    """A matrix in a memory that is used again.

    Attributes:
        array: the matrix.
        memory: its bytes, and those between its rows.
        pitch: bytes from one row to the next.
    """

    array: Array
    memory: memoryview
    pitch: int

    def __getitem__(self, rows: slice) -> _Rows:
        return _Rows(self.array[rows], self.memory[rows.start * self.pitch :], self.pitch)


@dataclass
class _Buffers(threading.local):
    """Memory of a thread, made once: for what is read, what is written, and what is read back."""

    memory: list[Array] = field(
        default_factory=lambda: [
            np.empty(size + size // (_CROWDED // _GAP), np.uint8) for size in (TILE, TILE, _PART)
        ]
    )

    def matrix(self, index: int, shape: tuple[int, int], itemsize: int) -> _Rows:
        rows, columns = shape
        pitch = columns * itemsize
        pitch += 0 if pitch % _CROWDED else _GAP
        memory = self.memory[index][: rows * pitch]
        dtype = np.dtype(f"u{itemsize}")
        array: Array = np.ndarray(shape, dtype, memory, strides=(pitch, itemsize))
        return _Rows(array, memory.data, pitch)


def _work(
    band: list[Tile], source: RawFile, target: RawFile, buffers: _Buffers, write: bool, check: bool
) -> MovedTensor:
    """Write the tiles of a band, or compare them with what is there; or one after the other."""
    found = MovedTensor()
    for tile in band:
        shape, size = (tile.rows, tile.columns), tile.move.itemsize
        here = buffers.matrix(0, shape, size)
        if not tile.move.is_transposed:
            there = buffers.matrix(1, shape, size)
            found.add(_work_straight(tile, source, target, here, there, write, check))
            continue
        there = buffers.matrix(1, shape[::-1], size)
        parts = [(part, slice(part.row - tile.row, part.row - tile.row + part.rows))
                 for part in tile.parts()]  # fmt: skip
        for part, rows in parts:
            source.read_spans(here[rows].memory, part.source_spans(here.pitch))
            if write:
                transpose(here.array[rows], there.array[:, rows])
        if write:
            target.write_spans(there.memory, tile.target_spans(there.pitch))
        if check:
            target.read_spans(there.memory, tile.target_spans(there.pitch))
            for part, rows in parts:
                back = buffers.matrix(2, (part.rows, part.columns), size).array
                transpose(there.array[:, rows], back)
                largest = largest_of_bits(here.array[rows].view(f"f{size}"))
                found.add(MovedTensor(_difference(part, here.array[rows], back), largest))
    if write:
        written = [tile.target_range() for tile in band]
        first, end = min(first for first, _ in written), max(end for _, end in written)
        target.write_back(first, end - first)
    return found


def _work_straight(
    tile: Tile, source: RawFile, target: RawFile, here: _Rows, there: _Rows, write: bool,
    check: bool,
) -> MovedTensor:  # fmt: skip
    """As `_work`, for a tile that is not transposed."""
    source.read_spans(here.memory, tile.source_spans(here.pitch))
    if write:
        target.write_spans(here.memory, tile.target_spans(here.pitch))
    if not check:
        return MovedTensor()
    target.read_spans(there.memory, tile.target_spans(there.pitch))
    largest = largest_of_bits(here.array.view(f"f{tile.move.itemsize}"))
    return MovedTensor(_difference(tile, here.array, there.array), largest)


def _difference(tile: Tile, here: Array, back: Array) -> str | None:
    different = here != back
    if not different.any():
        return None
    row, column = (int(index) for index in np.argwhere(different)[0])
    return (
        f"{int(different.sum())} values differ, the first at {row + tile.row}, "
        f"{column + tile.column} of a gate"
    )


def largest_of_bits(values: Array) -> float:
    """The largest absolute value; NaN and infinity come through."""
    with np.errstate(invalid="ignore"):
        return float(np.abs([values.min(), values.max()]).max()) if values.size else 0.0


# --- pieces of work -------------------------------------------------------------------------


class TileStream:
    """Moves tensors from a source to a target, through buffers of its own for each thread.

    Args:
        check: read back and compare what was written.
    """

    def __init__(self, source: RawFile, target: RawFile, *, check: bool) -> None:
        self.source, self.target, self.check = source, target, check
        self._buffers = _Buffers()

    def relay(self, moves: Sequence[Move]) -> Iterator[Callable[[], MovedTensor]]:
        """Pieces of work that write a tensor, to be done in any order."""
        for band in bands(moves):
            yield lambda band=band: _work(  # type: ignore[misc]
                band, self.source, self.target, self._buffers, True, self.check
            )

    def compare(self, moves: Sequence[Move]) -> Iterator[Callable[[], MovedTensor]]:
        """The same, for a tensor that is there already."""
        for band in bands(moves):
            yield lambda band=band: _work(  # type: ignore[misc]
                band, self.source, self.target, self._buffers, False, True
            )

    def copy(self, start: int, place: int, size: int) -> Iterator[Callable[[], MovedTensor]]:
        """Pieces of work that copy bytes from `start` in the source to `place` in the target."""
        for done in range(0, size, _COPIED):
            count = min(_COPIED, size - done)
            yield lambda a=start + done, b=place + done, n=count: self._copy(a, b, n)  # type: ignore[misc]

    def _copy(self, start: int, place: int, size: int) -> MovedTensor:
        one, other = (buffer[:_PART] for buffer in self._buffers.memory[:2])
        copy_range(self.source, self.target, start, place, size, one)
        self.target.write_back(place, size)
        if not self.check:
            return MovedTensor()
        for done in range(0, size, _PART):
            count = min(_PART, size - done)
            self.source.read(one[:count].data, start + done)
            self.target.read(other[:count].data, place + done)
            if not np.array_equal(one[:count], other[:count]):
                return MovedTensor("the copy has other bytes")
        return MovedTensor()


def side_by_side(
    *lines: Iterable[Callable[[], T]], when_done: Callable[[int], None] | None = None
) -> list[list[T]]:
    """The results of some functions, each line of which is called one after another.

    The first line is worked on by this thread, the others by one each. Two threads that make many
    small system calls wait for each other, for Python's lock: such work is to be in one line.

    Args:
        when_done: called with the number of results that are there, by this thread.
    """
    results: list[list[T]] = [[] for _ in lines]
    stop = threading.Event()

    def work(number: int) -> None:
        try:
            for function in lines[number]:
                if stop.is_set():
                    return
                results[number].append(function())
                if when_done is not None and not number:
                    when_done(sum(map(len, results)))
        except BaseException:
            stop.set()
            raise

    if len(lines) == 1:
        work(0)
        return results
    from concurrent.futures import ThreadPoolExecutor, wait

    with ThreadPoolExecutor(len(lines) - 1) as pool:
        others = [pool.submit(work, number) for number in range(1, len(lines))]
        try:
            work(0)
            while wait(others, _MOMENT).not_done:
                if when_done is not None:
                    when_done(sum(map(len, results)))
        finally:
            stop.set()
        for each in others:
            each.result()
    return results

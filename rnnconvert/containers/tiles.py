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

from rnnconvert.containers.raw_file import RawFile, Span, copy_range, raw_bytes_of

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
_STRIP = 64
"""Bytes of a strip that is transposed at once: a line of the processor's cache."""


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

    def source_spans(self) -> Iterable[Span]:
        width = self.move.shape[1]
        return _spans(self.move.source, self.move.itemsize, width,
                      (self.row, self.rows), (self.column, self.columns))  # fmt: skip

    def target_spans(self) -> Iterable[Span]:
        height, width = self.move.shape
        rows, columns = (self.row, self.rows), (self.column, self.columns)
        if self.move.is_transposed:
            rows, columns, width = columns, rows, height
        return _spans(self.move.target, self.move.itemsize, width, rows, columns)


def _spans(
    block: MatrixBlock, size: int, width: int, rows: tuple[int, int], columns: tuple[int, int]
) -> Iterable[Span]:
    """Where a part of a matrix lies, in bytes.

    Args:
        block: whose numbers are the matrix, row by row.
        size: bytes of a number.
        width: of the matrix.
        rows, columns: the first of the part, and how many.
    """
    (row, count), (column, length) = rows, columns
    in_one_piece = length == width and block.columns == block.stride
    if width == block.columns and not in_one_piece:  # a row of the matrix is one of the block
        start, step = block.offset + (row * block.stride + column) * size, block.stride * size
        places = range(start, start + count * step, step)
        return zip(places, range(0, count * length * size, length * size), repeat(length * size))
    if length == width:
        count, length = 1, count * length
    return chain.from_iterable(
        _runs(block, size, (row + index) * width + column, length, index * length * size)
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
    wide = min(columns, max(1, _RUN // moves[0].itemsize))
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
    """`target[...] = source.T`, in strips of a cache line each: twice as fast as at once."""
    step = max(1, _STRIP // source.dtype.itemsize)
    turned = source.T
    for start in range(0, turned.shape[1], step):
        target[:, start : start + step] = turned[:, start : start + step]


@dataclass
class _Buffers(threading.local):
    """Memory of a thread, made once."""

    memory: list[Array] = field(
        default_factory=lambda: [np.empty(size, np.uint8) for size in (TILE, TILE, _PART)]
    )

    def matrix(self, index: int, shape: tuple[int, int], itemsize: int) -> Array:
        part = self.memory[index][: shape[0] * shape[1] * itemsize]
        return part.view(f"u{itemsize}").reshape(shape)


def _work(
    band: list[Tile], source: RawFile, target: RawFile, buffers: _Buffers, write: bool, check: bool
) -> MovedTensor:
    """Write the tiles of a band, or compare them with what is there; or one after the other."""
    found = MovedTensor()
    for tile in band:
        shape, size = (tile.rows, tile.columns), tile.move.itemsize
        here = buffers.matrix(0, shape, size)
        there = buffers.matrix(1, shape[::-1], size)
        if not tile.move.is_transposed:
            found.add(_work_straight(tile, source, target, here, there, write, check))
            continue
        parts = [(part, slice(part.row - tile.row, part.row - tile.row + part.rows))
                 for part in tile.parts()]  # fmt: skip
        for part, rows in parts:
            source.read_spans(raw_bytes_of(here[rows]), part.source_spans())
            if write:
                transpose(here[rows], there[:, rows])
        if write:
            target.write_spans(raw_bytes_of(there), tile.target_spans())
        if check:
            target.read_spans(raw_bytes_of(there), tile.target_spans())
            for part, rows in parts:
                back = buffers.matrix(2, (part.rows, part.columns), size)
                transpose(there[:, rows], back)
                largest = largest_of_bits(here[rows].view(f"f{size}"))
                found.add(MovedTensor(_difference(part, here[rows], back), largest))
    if write:
        spans = [next(iter(tile.target_spans()))[0] for tile in band]
        last = max(offset + length for offset, _, length in band[-1].target_spans())
        target.write_back(min(spans), last - min(spans))
    return found


def _work_straight(
    tile: Tile, source: RawFile, target: RawFile, here: Array, there: Array, write: bool,
    check: bool,
) -> MovedTensor:  # fmt: skip
    """As `_work`, for a tile that is not transposed."""
    source.read_spans(raw_bytes_of(here), tile.source_spans())
    if write:
        target.write_spans(raw_bytes_of(here), tile.target_spans())
    if not check:
        return MovedTensor()
    back = there.reshape(here.shape)
    target.read_spans(raw_bytes_of(back), tile.target_spans())
    largest = largest_of_bits(here.view(f"f{tile.move.itemsize}"))
    return MovedTensor(_difference(tile, here, back), largest)


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

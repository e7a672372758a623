"""Large matrices on their way from one file to another, through small buffers that are used again.

A matrix moves in tiles: a piece of the source is read, transposed, and written to its place; then
what was written is read back and compared. Memory is a few tiles for each of two threads, whatever
the size of a matrix. What is written is on its way to the disk at once.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np

from rnnconvert.containers.raw_file import RawFile, Span, copy_range, raw_bytes_of

Array = np.ndarray[Any, Any]
T = TypeVar("T")

TILE = 4 * 2**20
"""Bytes of a tile. A tensor up to this size is read as a whole."""
THREADS = 2
_RUN = 4096
"""Bytes of a tile's row at least, where the matrix is that wide: a page."""
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
    matrix transposed. The block's own rows and columns need not be those of the matrix.
    """

    source: MatrixBlock
    target: MatrixBlock
    shape: tuple[int, int]
    itemsize: int


@dataclass(frozen=True)
class Tile:
    """Rows and columns of a move's matrix: `rows` from `row` on, `columns` from `column` on."""

    move: Move
    row: int
    column: int
    rows: int
    columns: int

    def source_spans(self) -> Iterator[Span]:
        width = self.move.shape[1]
        return _spans(self.move.source, self.move.itemsize, width,
                      (self.row, self.rows), (self.column, self.columns))  # fmt: skip

    def target_spans(self) -> Iterator[Span]:
        width = self.move.shape[0]
        return _spans(self.move.target, self.move.itemsize, width,
                      (self.column, self.columns), (self.row, self.rows))  # fmt: skip


def _spans(
    block: MatrixBlock, size: int, width: int, rows: tuple[int, int], columns: tuple[int, int]
) -> Iterator[Span]:
    """Where a part of a matrix lies, in bytes.

    Args:
        block: whose numbers are the matrix, row by row.
        size: bytes of a number.
        width: of the matrix.
        rows, columns: the first of the part, and how many.
    """
    (row, count), (column, length) = rows, columns
    if length == width:
        count, length = 1, count * length
    for index in range(count):
        first = (row + index) * width + column
        yield from _runs(block, size, first, length, index * length * size)


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
        moves: of the gates, all of one shape.
    """
    rows, columns = moves[0].shape
    most = TILE // moves[0].itemsize
    wide = min(columns, max(1, _RUN // moves[0].itemsize))
    high = min(rows, most // wide)
    wide = min(columns, most // high)
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

    memory: list[Array] = field(default_factory=lambda: [np.empty(TILE, np.uint8) for _ in "abc"])

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
        source.read_spans(raw_bytes_of(here), tile.source_spans())
        if write:
            transpose(here, there)
            target.write_spans(raw_bytes_of(there), tile.target_spans())
        if check:
            target.read_spans(raw_bytes_of(there), tile.target_spans())
            back = buffers.matrix(2, shape, size)
            transpose(there, back)
            found.add(
                MovedTensor(_difference(tile, here, back), largest_of_bits(here.view(f"f{size}")))
            )
    if write:
        spans = [next(tile.target_spans())[0] for tile in band]
        last = max(offset + length for offset, _, length in band[-1].target_spans())
        target.write_back(min(spans), last - min(spans))
    return found


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


# --- many at once ---------------------------------------------------------------------------


class TileStream:
    """Two threads that move tensors from a source to a target, each with buffers of its own.

    Args:
        check: read back and compare what was written.
    """

    def __init__(self, source: RawFile, target: RawFile, *, check: bool) -> None:
        self.source, self.target, self.check = source, target, check
        self._buffers = _Buffers()

    def relay(self, moves: Sequence[Move]) -> Iterator[Callable[[], MovedTensor]]:
        """Pieces of work that write a tensor, to be done in any order, by any thread."""
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
        for done in range(0, size, 4 * TILE):
            count = min(4 * TILE, size - done)
            yield lambda a=start + done, b=place + done, n=count: self._copy(a, b, n)  # type: ignore[misc]

    def _copy(self, start: int, place: int, size: int) -> MovedTensor:
        copy_range(self.source, self.target, start, place, size, self._buffers.memory[0])
        self.target.write_back(place, size)
        if not self.check:
            return MovedTensor()
        one, other = self._buffers.memory[:2]
        for done in range(0, size, TILE):
            count = min(TILE, size - done)
            self.source.read(one[:count].data, start + done)
            self.target.read(other[:count].data, place + done)
            if not np.array_equal(one[:count], other[:count]):
                return MovedTensor("the copy has other bytes")
        return MovedTensor()


def side_by_side(
    work: Iterable[Callable[[], T]],
    when_done: Callable[[int], None] | None = None,
    *,
    small: bool = False,
) -> list[T]:
    """The results of some functions, called in a few threads.

    Args:
        when_done: called with the number of results that are there, after each.
        small: they are done sooner than threads begin, so this thread calls them.
    """
    from concurrent.futures import ThreadPoolExecutor

    results = []
    with nullcontext() if small else ThreadPoolExecutor(THREADS) as pool:
        each = map if pool is None else pool.map
        for result in each(lambda function: function(), work):
            results.append(result)
            if when_done is not None:
                when_done(len(results))
    return results

"""The stream of tiles: every number in its place, once, through buffers of one size."""

from __future__ import annotations

import os
import threading
import tracemalloc
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from helpers import make_model_h5

import rnnconvert
from rnnconvert.containers import raw_file, tiles
from rnnconvert.containers.raw_file import RawFile, copy_range, open_raw, scratch_file
from rnnconvert.containers.tiles import MatrixBlock, Move, TileStream, side_by_side
from rnnconvert.errors import DifferenceError, UnreadableInputError
from rnnconvert.keras_models.files import h5_patch

FIRST, SECOND = 24, 40
"""Bytes in front of the matrix in the source and in the target."""
SHAPES = [(5, 3, 4), (3, 5, 3), (7, 1, 2), (1, 6, 4), (16, 16, 3), (13, 29, 4), (64, 10, 1)]
"""Units, inputs, gates."""


@pytest.fixture
def small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiles, "TILE", 96)
    monkeypatch.setattr(tiles, "_RUN", 16)
    monkeypatch.setattr(tiles, "_PART", 40)
    monkeypatch.setattr(tiles, "_CROWDED", 16)  # most rows have bytes between them
    monkeypatch.setattr(tiles, "_GAP", 8)
    monkeypatch.setattr(raw_file, "_PARTS", 3)
    monkeypatch.setattr(h5_patch, "WHOLE", 96)
    monkeypatch.setattr(h5_patch, "_LARGE", 32)


@pytest.fixture
def files(tmp_path: Path) -> Iterator[Any]:
    """Makes a source with some bytes and an empty target, and opens both."""
    opened = []

    def make(content: bytes, size: int) -> tuple[RawFile, RawFile]:
        (tmp_path / "a").write_bytes(content)
        (tmp_path / "b").write_bytes(bytes(size))
        for name, writes in (("a", False), ("b", True)):
            opened.append(open_raw(tmp_path / name, writes=writes))
        return opened[-2].__enter__(), opened[-1].__enter__()

    yield make
    for context in opened:
        context.__exit__(None, None, None)


def done(work: Iterable[Any]) -> list[tiles.MovedTensor]:
    return [piece() for piece in work]


def moves(units: int, inputs: int, gates: int, size: int, *, flat: bool) -> list[Move]:
    """Gates of a kernel (inputs, gates*units), which change their order, too."""
    return [
        Move(
            MatrixBlock(FIRST + gate * units * size, inputs, units, gates * units),
            MatrixBlock(SECOND + (gates - 1 - gate) * units * size, inputs, units, gates * units),
            (units, inputs) if flat else (inputs, units),
            size,
        )
        for gate in range(gates)
    ]


def expected(kernel: Any, units: int, gates: int, *, flat: bool) -> Any:
    """By numpy alone, gate by gate."""
    inputs = len(kernel)
    blocks = []
    for gate in reversed(range(gates)):
        block = np.array(kernel[:, gate * units : (gate + 1) * units])
        if flat:
            blocks.append(block.ravel().reshape(units, inputs).T)
        else:
            blocks.append(block.T.ravel().reshape(inputs, units))
    return np.concatenate(blocks, axis=1)


@pytest.mark.parametrize("flat", [True, False])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize(("units", "inputs", "gates"), SHAPES)
def test_every_number_gets_to_its_place(small_tiles, files, units, inputs, gates, dtype, flat):
    generator = np.random.default_rng(units)
    kernel = generator.normal(size=(inputs, gates * units)).astype(dtype)
    source, target = files(bytes(FIRST) + kernel.tobytes(), SECOND + kernel.nbytes)
    work = moves(units, inputs, gates, kernel.itemsize, flat=flat)
    found = done(TileStream(source, target, check=True).relay(work))
    assert [each.difference for each in found] == [None] * len(found)
    assert max(each.largest for each in found) == np.abs(kernel).max()
    written = target.array(SECOND, kernel.shape, dtype)
    assert written.tobytes() == expected(kernel, units, gates, flat=flat).tobytes()
    assert target.array(0, (SECOND,), "u1").tobytes() == bytes(SECOND)


@pytest.mark.parametrize(("units", "inputs", "gates"), SHAPES)
def test_a_matrix_that_keeps_its_form(small_tiles, files, units, inputs, gates):
    """Gates change their order alone."""
    kernel = np.random.default_rng(units).normal(size=(inputs, gates * units)).astype("float32")
    source, target = files(bytes(FIRST) + kernel.tobytes(), SECOND + kernel.nbytes)
    work = [
        replace(each, shape=(inputs, units), is_transposed=False)
        for each in moves(units, inputs, gates, 4, flat=True)
    ]
    stream = TileStream(source, target, check=True)
    found = done(stream.relay(work))
    assert [each.difference for each in found] == [None] * len(found)
    assert max(each.largest for each in found) == np.abs(kernel).max()
    blocks = [kernel[:, gate * units : (gate + 1) * units] for gate in reversed(range(gates))]
    written = target.array(SECOND, kernel.shape, "float32")
    assert written.tobytes() == np.concatenate(blocks, axis=1).tobytes()
    target.write(memoryview(target.array(SECOND, (1,), "u1") ^ 1), SECOND)
    told = [each.difference for each in done(stream.compare(work)) if each.difference]
    assert told == ["1 values differ, the first at 0, 0 of a gate"]


@pytest.mark.parametrize("keeps_form", [False, True])
def test_each_byte_is_read_and_written_once(small_tiles, files, monkeypatch, keeps_form):
    units, inputs, gates = 13, 29, 4
    kernel = np.random.default_rng(0).normal(size=(inputs, gates * units)).astype("float32")
    source, target = files(bytes(FIRST) + kernel.tobytes(), SECOND + kernel.nbytes)
    counts = {"read": 0, "write": 0, "back": 0}
    read, write = os.preadv, os.pwritev

    def counted_read(number: int, views: list[memoryview], offset: int) -> int:
        counts["back" if number == target.fileno() else "read"] += sum(map(len, views))
        return read(number, views, offset)

    def counted_write(number: int, views: list[memoryview], offset: int) -> int:
        counts["write"] += sum(map(len, views))
        return write(number, views, offset)

    monkeypatch.setattr(os, "preadv", counted_read)
    monkeypatch.setattr(os, "pwritev", counted_write)
    work = moves(units, inputs, gates, 4, flat=True)
    if keeps_form:
        work = [replace(each, shape=(inputs, units), is_transposed=False) for each in work]
    done(TileStream(source, target, check=True).relay(work))
    assert counts == dict.fromkeys(counts, kernel.nbytes)


def test_a_wrong_number_is_a_difference(small_tiles, files):
    units, inputs, gates = 13, 29, 4
    kernel = np.random.default_rng(0).normal(size=(inputs, gates * units)).astype("float32")
    source, target = files(bytes(FIRST) + kernel.tobytes(), SECOND + kernel.nbytes)
    work = moves(units, inputs, gates, 4, flat=True)
    done(TileStream(source, target, check=False).relay(work))
    compare = TileStream(source, target, check=True).compare
    assert not any(each.difference for each in done(compare(work)))
    for place in np.random.default_rng(1).integers(0, kernel.nbytes, 20):
        right = target.array(SECOND + int(place), (1,), "u1")
        target.write(memoryview(right ^ 1), SECOND + int(place))
        told = [each.difference for each in done(compare(work)) if each.difference]
        assert len(told) == 1
        assert told[0].startswith("1 values differ, the first at ")
        target.write(memoryview(right), SECOND + int(place))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_seen(small_tiles, files, value):
    kernel = np.ones((29, 52), np.float32)
    kernel[17, 31] = value
    source, target = files(bytes(FIRST) + kernel.tobytes(), SECOND + kernel.nbytes)
    total = tiles.MovedTensor()
    for each in done(TileStream(source, target, check=True).relay(moves(13, 29, 4, 4, flat=True))):
        total.add(each)
    assert not np.isfinite(total.largest)


def test_memory_is_that_of_the_tiles(tmp_path, monkeypatch):
    """A matrix of 4 MB, of which nothing is on the disk, through tiles of 16 kB."""
    monkeypatch.setattr(tiles, "TILE", 2**14)
    monkeypatch.setattr(tiles, "_PART", 2**12)
    monkeypatch.setattr(tiles, "_RUN", 256)
    work = [
        Move(
            MatrixBlock(g * 2048, 512, 512, 2048),
            MatrixBlock(g * 2048, 512, 512, 2048),
            (512, 512),
            4,
        )
        for g in range(4)
    ]
    with scratch_file(tmp_path, 2**22) as source, scratch_file(tmp_path, 2**22) as target:
        stream = TileStream(source, target, check=True)
        done(stream.relay(work[:1]))  # what Python keeps for the next time
        tracemalloc.start()
        done(stream.relay(work))
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < 2**20  # of two threads' tiles, and the list of the pieces


@pytest.mark.parametrize("by_system", [True, False])
def test_copying_with_and_without_the_file_system(files, monkeypatch, by_system):
    if not by_system:
        monkeypatch.delattr(os, "copy_file_range", raising=False)
    content = np.random.default_rng(0).bytes(10_000)
    source, target = files(content, 10_000)
    copy_range(source, target, 100, 200, 5_000, np.empty(700, np.uint8))
    assert target.array(0, (10_000,), "u1").tobytes() == bytes(200) + content[100:5100] + bytes(
        4800
    )
    with pytest.raises(UnreadableInputError, match="ends in the middle"):
        copy_range(source, target, 9_000, 0, 2_000, np.empty(700, np.uint8))


def test_without_reading_and_writing_at_a_place(small_tiles, files, monkeypatch):
    for name in ("preadv", "pwrite", "pwritev"):
        monkeypatch.delattr(os, name, raising=False)
    kernel = np.random.default_rng(0).normal(size=(29, 52)).astype("float32")
    source, target = files(bytes(FIRST) + kernel.tobytes(), SECOND + kernel.nbytes)
    done(TileStream(source, target, check=True).relay(moves(13, 29, 4, 4, flat=True)))
    written = target.array(SECOND, kernel.shape, "float32")
    assert written.tobytes() == expected(kernel, 13, 4, flat=True).tobytes()


# --- lines of work ----------------------------------------------------------------------------


def test_each_line_in_order_and_the_first_in_this_thread():
    told: list[int] = []
    lines = [[lambda n=n: (n, threading.current_thread()) for n in range(first, first + 3)]
             for first in (0, 10)]  # fmt: skip
    found = side_by_side(*lines, when_done=told.append)
    assert [[number for number, _ in line] for line in found] == [[0, 1, 2], [10, 11, 12]]
    assert set(dict(found[0]).values()) == {threading.current_thread()}
    assert threading.current_thread() not in dict(found[1]).values()
    assert told == sorted(told)
    assert side_by_side(lines[0]) == [found[0]]


def test_what_both_lines_wait_for_is_told(monkeypatch):
    monkeypatch.setattr(tiles, "_MOMENT", 0.01)
    heard = threading.Event()
    found = side_by_side([], [lambda: heard.wait(60)], when_done=lambda count: heard.set())
    assert found == [[], [True]]


@pytest.mark.parametrize("failing", [0, 1])
def test_an_error_of_one_line_ends_the_other(failing):
    begun = threading.Event()

    def fails() -> None:
        begun.wait(60)
        raise OSError("the disk is full")

    def endless() -> Iterator[Any]:
        while True:
            yield begun.set

    lines = [endless(), endless()]
    lines[failing] = iter([fails])
    with pytest.raises(OSError, match="the disk is full"):
        side_by_side(*lines)


# --- whole files ----------------------------------------------------------------------------

STORAGES: dict[str, dict[str, Any]] = {
    "contiguous": {},
    "gzip": {"compression": "gzip"},
    "chunks": {"chunks": True},
}


def contents(path: Path) -> dict[str, bytes]:
    found = {}

    def visit(name: str, item: Any) -> None:
        if isinstance(item, h5py.Dataset):
            found[name] = item[()].tobytes()

    with h5py.File(path) as file:
        file.visititems(visit)
    return found


@pytest.mark.parametrize("storage", STORAGES)
def test_a_file_comes_out_the_same_by_tiles_and_as_a_whole(tmp_path, request, storage):
    model = make_model_h5(tmp_path / "m.h5", **STORAGES[storage])
    rnnconvert.convert(model, tmp_path / "whole.h5", verify="layers")
    request.getfixturevalue("small_tiles")
    report = rnnconvert.convert(model, tmp_path / "tiles.h5", verify="layers")
    assert report.verdict == "equivalent"
    assert contents(tmp_path / "tiles.h5") == contents(tmp_path / "whole.h5")


@pytest.mark.parametrize("storage", STORAGES)
def test_a_wrong_tile_is_found_and_nothing_written(tmp_path, small_tiles, monkeypatch, storage):
    model = make_model_h5(tmp_path / "m.h5", **STORAGES[storage])
    right = tiles.transpose

    def wrong(source: Any, target: Any) -> None:
        right(source, target)
        if source.shape[0] > 2:
            target[0, 1] ^= 1

    monkeypatch.setattr(tiles, "transpose", wrong)
    with pytest.raises(DifferenceError, match="values differ, the first at"):
        rnnconvert.convert(model, tmp_path / "out.h5", verify="weights")
    assert [path.name for path in tmp_path.iterdir()] == ["m.h5"]


def test_a_wrong_copy_of_what_stays_is_found(tmp_path, small_tiles, monkeypatch):
    model = make_model_h5(tmp_path / "m.h5")
    with h5py.File(model, "r+") as file:
        weights = file["model_weights"]
        group = weights.create_group("dense")
        group.create_dataset("dense/kernel:0", data=np.arange(300, dtype="float32"))
        group.attrs["weight_names"] = [b"dense/kernel:0"]
        weights.attrs["layer_names"] = [b"cu_lstm", b"cu_gru", b"dense"]
    copy = tiles.copy_range

    def wrong(source: RawFile, target: RawFile, start: int, place: int, *rest: Any) -> None:
        copy(source, target, start, place, *rest)
        target.write(memoryview(bytes([1, 2, 3])), place)

    monkeypatch.setattr(tiles, "copy_range", wrong)
    with pytest.raises(DifferenceError, match=r"to stay as it is: .*dense.* is another"):
        rnnconvert.convert(model, tmp_path / "out.h5", verify="weights")


# --- on the way to the disk -------------------------------------------------------------------


def test_a_busy_disk_is_waited_for_by_another_thread(tmp_path, monkeypatch):
    """One call at a time; what is asked for meanwhile comes with the next."""
    asked: list[tuple[int, int]] = []
    waits = threading.Event()

    def begin(number: int, offset: int, size: int, flags: int) -> int:
        os.fstat(number)  # it is open, though the file may be closed
        asked.append((offset, size))
        waits.wait(60)
        return 0

    monkeypatch.setattr(raw_file, "_CALLS", [begin])
    path = tmp_path / "a"
    path.write_bytes(bytes(100))
    with open_raw(path, writes=True) as file:
        file.write_back(50, 10)
        file.write_back(20, 5)
        file.write_back(80, 5)
        waits.set()
        assert file._flusher is not None
        file._flusher.join(60)
        file.write_back(30, 1)
    file._flusher.join(60)
    assert asked == [(50, 10), (20, 65)]

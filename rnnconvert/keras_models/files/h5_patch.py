"""A converted Keras HDF5 file: a copy of its source, patched by a plan.

Three steps. What is small or unknown is copied as it is (`copy_around`); HDF5 changes attributes,
biases, and whatever lies in chunks; then the large tensors go past HDF5 into their places, tile by
tile, and are checked there (`apply` does both). A tensor that was checked so is not read again.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from rnnconvert.containers import safe_h5
from rnnconvert.containers.raw_file import RawFile, copy_range, open_raw, raw_bytes_of, scratch_file
from rnnconvert.containers.tiles import WHOLE, Move, MovedTensor, TileStream, side_by_side
from rnnconvert.keras_models.edits import apply_edit, moves_of
from rnnconvert.keras_models.files.attributes import write_names, write_text_attribute
from rnnconvert.keras_models.files.h5 import OPTIMIZER, KerasH5, offset_of
from rnnconvert.keras_models.plan import Plan, Relay, TensorChange
from rnnconvert.progress import BYTES, tell

_LARGE = 2**20
"""Bytes from which a tensor that stays as it is goes past HDF5, too."""


@dataclass(frozen=True)
class _Streamed:
    """A tensor whose bytes lie in one piece, in the source and in the copy.

    Attributes:
        path: of the dataset in both.
        start: of its bytes in the source.
        size: in bytes.
        change: a matrix that is relayed; None for a tensor that stays as it is.
    """

    path: str
    start: int
    size: int
    change: TensorChange | None


@dataclass(frozen=True)
class Checked:
    """A tensor that was read back when it was written: from where in the copy, what was found."""

    offset: int
    found: MovedTensor


def _streamed(plan: Plan, source: KerasH5) -> list[_Streamed]:
    """Relayed matrices, and large tensors that stay, as far as they lie in one piece."""
    changes = {c.source.path: c for c in (*plan.tensor_changes, *plan.optimizer.changes)}
    tensors = [tensor for group in source.groups.values() for tensor in group]
    if plan.optimizer.state != "dropped":
        tensors += source.optimizer_tensors
    found: dict[int, _Streamed] = {}
    for tensor in sorted(tensors, key=lambda each: each.path not in changes):
        change = changes.get(tensor.path)
        if change is not None and not _is_relayed(change):
            continue
        start = source.offset(tensor.path)
        size = tensor.size * np.dtype(tensor.dtype).itemsize
        if start is not None and (change is not None or size >= _LARGE):
            found.setdefault(start, _Streamed(tensor.path, start, size, change))
    return [found[start] for start in sorted(found)]


def _is_relayed(change: TensorChange) -> bool:
    return isinstance(change.edit, Relay) and change.edit.kind != "bias"


def copy_around(plan: Plan, source: KerasH5, target: Path) -> None:
    """Copy the file, but leave out what `apply` writes as a whole: until then that is a hole."""
    size = source.path.stat().st_size
    buffer = np.empty(2**20, np.uint8)
    with open_raw(source.path) as reader, open_raw(target, writes=True) as writer:
        writer.truncate(size)
        at = 0
        for hole in _streamed(plan, source):
            copy_range(reader, writer, at, at, hole.start - at, buffer)
            at = hole.start + hole.size
            tell("copying", at, size, BYTES)
        copy_range(reader, writer, at, at, size - at, buffer)
        tell("copying", size, size, BYTES)


def apply(plan: Plan, source: KerasH5, copy: Path, *, check: bool = False) -> dict[str, Checked]:
    """Patch `copy`, made by `copy_around` or byte for byte, by `plan`.

    Args:
        check: read back and compare what is written past HDF5.

    Returns:
        Of each tensor that was checked, by its path, what was found.
    """
    streamed = _streamed(plan, source)
    done = {each.path for each in streamed if each.change is not None}
    with safe_h5.open_h5(copy, "r+") as file:
        for change in (*plan.tensor_changes, *plan.optimizer.changes):
            if change.source.path not in done:
                _apply_change(change, source, file, copy.parent)
        _apply_attributes(plan, file)
        offsets = {each.path: _offset(file, each.path) for each in streamed}
    with open_raw(source.path) as reader, open_raw(copy, writes=True) as writer:
        stream = TileStream(reader, writer, check=check)
        changed, same = (
            [
                (each.path, piece)
                for each in streamed
                if (each.change is None) is stays
                for piece in _pieces(stream, each, source, offsets[each.path])
            ]
            for stays in (False, True)
        )
        work = [*changed, *same]
        # The system copies by itself, while this thread reads and writes what changes.
        lines = [changed, same] if sum(each.size for each in streamed) > WHOLE else [work]
        results = side_by_side(
            *([piece for _, piece in line] for line in lines),
            when_done=lambda count: tell("writing", count, len(work), "pieces"),
        )
    if not check:
        return {}
    checked = {
        each.path: Checked(offsets[each.path], MovedTensor())
        for each in streamed
        if each.change is None or each.size > WHOLE
    }
    for (path, _), found in zip(work, chain(*results), strict=True):
        if path in checked:
            checked[path].found.add(found)
    return checked


def _offset(file: h5py.File, path: str) -> int:
    offset: int = safe_h5.get_dataset(file, path).id.get_offset()
    return offset


def _pieces(
    stream: TileStream, each: _Streamed, source: KerasH5, place: int
) -> Iterator[Callable[[], MovedTensor]]:
    if each.change is None:
        return stream.copy(each.start, place, each.size)
    if each.size <= WHOLE:
        return iter([partial(_rewrite, stream, each, source.dataset(each.path).dtype, place)])
    return stream.relay(_moves(each.change, each.start, place))


def _moves(change: TensorChange, start: int, place: int) -> list[Move]:
    assert isinstance(change.edit, Relay)
    itemsize = np.dtype(change.source.dtype).itemsize
    return moves_of(change.edit, change.source.shape, itemsize, start, place)


def _rewrite(stream: TileStream, each: _Streamed, dtype: np.dtype[Any], place: int) -> MovedTensor:
    """A small matrix, as a whole; it is compared when the copy is opened again."""
    change = each.change
    assert change is not None
    stored = stream.source.array(each.start, change.source.shape, dtype)
    made = np.empty_like(stored)
    apply_edit(change.edit, stored, made)
    stream.target.write(raw_bytes_of(made), place)
    return MovedTensor()


# --- through HDF5 ---------------------------------------------------------------------------


def _in_order(order: tuple[str, ...], names: list[str]) -> list[str]:
    """Names in this order; those that are not in it, first."""
    return [*(name for name in names if name not in order), *(n for n in order if n in names)]


def _apply_attributes(plan: Plan, file: h5py.File) -> None:
    """The configs, the optimizer's list of variables, and marks of our own."""
    if plan.layer_order is not None:
        weights = safe_h5.get_group(file, "model_weights")
        names = safe_h5.strings(weights, "layer_names") or []
        write_names(weights, "layer_names", _in_order(plan.layer_order, names))
    if plan.model_config is not None:
        write_text_attribute(file, "model_config", json.dumps(plan.model_config))
    if plan.drop_training:
        del file.attrs["training_config"]
    elif plan.training_config is not None:
        write_text_attribute(file, "training_config", json.dumps(plan.training_config))
    if plan.optimizer.state == "dropped" and OPTIMIZER in file:
        del file[OPTIMIZER]
    if plan.optimizer.new_counter is not None:
        file[OPTIMIZER][plan.optimizer.new_counter] = np.int64(0)
    if plan.optimizer.order:
        write_names(file[OPTIMIZER], "weight_names", plan.optimizer.order)
    for name, value in plan.attributes:
        file.attrs[name] = value


def _apply_change(change: TensorChange, source: KerasH5, file: h5py.File, scratch: Path) -> None:
    stored = source.dataset(change.source.path)
    target = safe_h5.get_dataset(file, change.source.path)
    if change.source.shape != change.target.shape:
        target = _reshape(file, change, target)
    if not (_is_relayed(change) and stored.nbytes > WHOLE):
        apply_edit(change.edit, stored, target)
        return
    with unpacked(stored, scratch) as here, scratch_file(scratch, stored.nbytes) as made:
        for move in TileStream(here, made, check=False).relay(_moves(change, 0, 0)):
            move()
        for rows, columns in _pieces_of_chunks(target):
            shape = rows.stop - rows.start, columns.stop - columns.start
            values = np.empty(shape, target.dtype)
            for offset, row in _rows_of(target, rows, columns, values):
                made.read(raw_bytes_of(row), offset)
            target[rows, columns] = values


def compare_large(change: TensorChange, source: KerasH5, written: KerasH5) -> MovedTensor | None:
    """Compare a large relayed matrix with its source, tile by tile; None if it is none."""
    one, other = source.dataset(change.source.path), written.dataset(change.target.path)
    if not (_is_relayed(change) and one.nbytes > WHOLE):
        return None
    found = MovedTensor()
    folder = written.path.parent
    with (
        _in_one_piece(source, one, folder) as (here, start),
        _in_one_piece(written, other, folder) as (there, place),
    ):
        stream = TileStream(here, there, check=True)
        for compare in stream.compare(_moves(change, start, place)):
            found.add(compare())
    return found


@contextmanager
def _in_one_piece(
    file: KerasH5, dataset: h5py.Dataset, folder: Path
) -> Iterator[tuple[RawFile, int]]:
    """A file that holds a dataset in one piece, and where in it."""
    offset = offset_of(dataset)
    if offset is not None:
        with open_raw(file.path) as raw:
            yield raw, offset
    else:
        with unpacked(dataset, folder) as raw:
            yield raw, 0


@contextmanager
def unpacked(dataset: h5py.Dataset, folder: Path) -> Iterator[RawFile]:
    """A file without a name that holds a dataset's numbers in one piece."""
    with scratch_file(folder, dataset.nbytes) as file:
        for rows, columns in _pieces_of_chunks(dataset):
            values = np.ascontiguousarray(dataset[rows, columns])
            for offset, row in _rows_of(dataset, rows, columns, values):
                file.write(raw_bytes_of(row), offset)
        yield file


def _pieces_of_chunks(dataset: h5py.Dataset) -> Iterator[tuple[slice, slice]]:
    """Rows and columns that are whole chunks, some of them at a time, so that each is read once."""
    high, wide = dataset.chunks or (1, dataset.shape[1])
    size = dataset.dtype.itemsize
    wide = min(dataset.shape[1], wide * max(1, WHOLE // (high * wide * size)))
    high *= max(1, WHOLE // (high * wide * size))
    for row in range(0, dataset.shape[0], high):
        for column in range(0, dataset.shape[1], wide):
            yield (
                slice(row, min(row + high, dataset.shape[0])),
                slice(column, min(column + wide, dataset.shape[1])),
            )


def _rows_of(
    dataset: h5py.Dataset, rows: slice, columns: slice, values: Any
) -> Iterator[tuple[int, Any]]:
    """Where each row of a piece lies in the unpacked file; whole rows come together."""
    size, width = dataset.dtype.itemsize, dataset.shape[1]
    if columns.stop - columns.start == width:
        yield rows.start * width * size, values
        return
    for row in range(rows.start, rows.stop):
        yield (row * width + columns.start) * size, values[row - rows.start]


def _reshape(file: h5py.File, change: TensorChange, old: h5py.Dataset) -> h5py.Dataset:
    """A dataset of the new shape in the old one's place, with its attributes and filters."""
    attributes = {name: safe_h5.attribute(old, name) for name in old.attrs}
    filters = {
        "chunks": True if old.chunks else None,
        "compression": old.compression,
        "compression_opts": old.compression_opts,
        "shuffle": old.shuffle or None,
        "fletcher32": old.fletcher32 or None,
    }
    dtype = old.dtype
    del file[change.source.path]
    new = file.create_dataset(change.target.path, change.target.shape, dtype, **filters)
    for name, value in attributes.items():
        new.attrs[name] = value
    return new


def found_in(
    plan: Plan, checked: Mapping[str, Checked], source: KerasH5, written: KerasH5
) -> dict[str, MovedTensor]:
    """What was found of tensors that are not to be read as a whole, by their paths in the source.

    Those that were checked when they were written, where they still lie there, and large matrices.
    """
    found = {path: checked[path].found for path in untouched(checked, written)}
    for change in (*plan.tensor_changes, *plan.optimizer.changes):
        path = change.source.path
        large = compare_large(change, source, written) if path not in found else None
        if large is not None:
            found[path] = large
    return found


def untouched(checked: Mapping[str, Checked], written: KerasH5) -> set[str]:
    """Paths of tensors that lie where they were checked, and so need no second look."""
    return {path for path, each in checked.items() if written.offset(path) == each.offset}

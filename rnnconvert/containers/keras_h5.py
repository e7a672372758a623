"""Keras HDF5 files: whole models (`model.save("m.h5")`) and weights only (`save_weights`).

Layout of the file: one group per top-level layer with its variables as datasets, in the order of
the group's attribute `weight_names`; the groups in the order of `layer_names`. In a whole model
they lie under `model_weights`, the configs are root attributes, and `optimizer_weights` holds the
optimizer's variables. Keras itself reads all of this by position.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any, BinaryIO

import h5py
import numpy as np

from rnnconvert.containers import safe_h5
from rnnconvert.containers.attributes import write_names, write_text
from rnnconvert.containers.budget import charge_arrays
from rnnconvert.containers.h5_rest import difference, require_apart
from rnnconvert.edits import LARGEST_WHOLE, apply_edit, is_read_whole, side_by_side
from rnnconvert.errors import NotConvertibleError, UnreadableInputError
from rnnconvert.keras_config.form import require_form
from rnnconvert.plan import Plan, Relay, Tensor, TensorChange
from rnnconvert.report import FileInfo, sha256

MODEL = "keras-h5-model"
WEIGHTS = "keras-h5-weights"
OPTIMIZER = "optimizer_weights"
"""Group of the optimizer's variables."""
_LEAST_BYTES = 64
"""What a group or a tensor takes of a file at least: its header alone is longer."""
HARD_SIGMOID_MARK = "rnnconvert_hard_sigmoid"
"""Root attribute: whose hard_sigmoid the weights are made for, where it is not the writer's."""


@dataclass(frozen=True)
class KerasH5:
    """An opened Keras HDF5 file.

    Attributes:
        path: of the file.
        file: the open h5py file.
        prefix: of the groups of weights: "model_weights/" or "".
    """

    path: Path
    file: h5py.File = field(repr=False)

    @cached_property
    def container(self) -> str:
        """MODEL or WEIGHTS.

        Raises:
            UnreadableInputError: an HDF5 file that is no Keras model.
        """
        if safe_h5.has(self.file, "model_weights") or "model_config" in self.file.attrs:
            return MODEL
        if safe_h5.strings(self.file, "layer_names") is not None:
            return WEIGHTS
        keras3 = ("layers", "_layer_checkpoint_dependencies")
        if any(safe_h5.has(self.file, name) for name in keras3):
            raise NotConvertibleError(
                "a Keras 3 style .weights.h5 file; rnnconvert reads Keras 2 style HDF5 files "
                "(model.save('m.h5'), save_weights('w.h5'))"
            )
        raise UnreadableInputError(
            "an HDF5 file, but no Keras model: expected the attribute model_config or layer_names, "
            f"found the groups {', '.join(safe_h5.names(self.file)[:5]) or 'none'}"
        )

    @property
    def prefix(self) -> str:
        return "model_weights/" if self.container == MODEL else ""

    @cached_property
    def weights(self) -> h5py.Group:
        if self.container == MODEL:
            return safe_h5.get_group(self.file, "model_weights")
        return self.file

    @cached_property
    def model_config(self) -> dict[str, Any] | None:
        config = safe_h5.json_attribute(self.file, "model_config")
        if config is not None:
            require_form(config)
        return config

    @cached_property
    def training_config(self) -> dict[str, Any] | None:
        return safe_h5.json_attribute(self.file, "training_config")

    @cached_property
    def keras_version(self) -> str | None:
        return safe_h5.text(self.weights, "keras_version") or safe_h5.text(
            self.file, "keras_version"
        )

    @cached_property
    def backend(self) -> str | None:
        return safe_h5.text(self.weights, "backend") or safe_h5.text(self.file, "backend")

    @cached_property
    def hard_sigmoid_mark(self) -> str | None:
        return safe_h5.text(self.file, HARD_SIGMOID_MARK)

    @cached_property
    def groups(self) -> dict[str, list[Tensor]]:
        """Top-level layer name to its tensors, both in the file's order."""
        names = safe_h5.strings(self.weights, "layer_names")
        if names is None:
            raise UnreadableInputError("no layer_names in the file; it is no complete Keras file")
        stored = self._stored(names)
        require_apart(
            dataset for found in (*stored.values(), self._of_optimizer) for _, dataset in found
        )
        return {
            name: [_tensor(f"{self.prefix}{name}", *each) for each in found]
            for name, found in stored.items()
        }

    def _stored(self, names: list[str]) -> dict[str, list[tuple[str, h5py.Dataset]]]:
        """The datasets that each group lists, as long as they are no more than the file can hold.

        Raises:
            UnreadableInputError: they are.
        """
        size = self.path.stat().st_size
        listed = needed = 0
        stored = {}
        for name in names:
            stored[name] = _datasets(safe_h5.get_group(self.weights, name))
            listed += 1 + len(stored[name])
            needed += sum(dataset.nbytes for _, dataset in stored[name])
            if listed * _LEAST_BYTES > size:
                raise UnreadableInputError("refused as unsafe: it lists more tensors than it holds")
        charge_arrays(needed, size, "its tensors")
        return stored

    @cached_property
    def optimizer_tensors(self) -> list[Tensor]:
        """The optimizer's variables, in the file's order."""
        return [_tensor(OPTIMIZER, *each) for each in self._of_optimizer]

    @cached_property
    def _of_optimizer(self) -> list[tuple[str, h5py.Dataset]]:
        if not safe_h5.has(self.file, OPTIMIZER):
            return []
        return _datasets(safe_h5.get_group(self.file, OPTIMIZER))

    def read(self, path: str) -> np.ndarray[Any, Any]:
        return np.asarray(safe_h5.get_dataset(self.file, path)[()])

    def dataset(self, path: str) -> h5py.Dataset:
        return safe_h5.get_dataset(self.file, path)

    def offset(self, path: str) -> int | None:
        """Where a tensor's bytes lie in the file; None unless they lie there in one piece.

        Only small enough tensors, too: larger ones are read gate by gate.
        """
        dataset = self.dataset(path)
        if dataset.nbytes > LARGEST_WHOLE or dataset.id.get_storage_size() != dataset.nbytes:
            return None
        offset: int | None = dataset.id.get_offset()
        return offset

    def loader(self, path: str) -> Callable[[], Any]:
        """A function that reads a tensor, for any thread where that is faster than HDF5 itself.

        It returns the array, or the stored dataset where the tensor is too large to be read whole.
        """
        dataset, offset = self.dataset(path), self.offset(path)
        if offset is None:
            return lambda: dataset[...] if is_read_whole(dataset) else dataset
        return partial(_read_raw, self.path, offset, dataset.dtype, dataset.shape)


def _datasets(group: h5py.Group) -> list[tuple[str, h5py.Dataset]]:
    """The variables of a layer or of an optimizer, by their names in its group."""
    names = safe_h5.strings(group, "weight_names") or []
    return [(name, safe_h5.get_dataset(group, name)) for name in names]


def _tensor(prefix: str, name: str, dataset: h5py.Dataset) -> Tensor:
    return Tensor(f"{prefix}/{name}", name.removesuffix(":0"), dataset.shape, dataset.dtype.name)


def _read_raw(
    path: Path, offset: int, dtype: np.dtype[Any], shape: tuple[int, ...]
) -> np.ndarray[Any, Any]:
    """Read an array from its place in a file, without Python's lock."""
    array = np.empty(shape, dtype)
    view = memoryview(array.data).cast("B")
    with path.open("rb") as file:
        file.seek(offset)
        if file.readinto(view) != array.nbytes:
            raise UnreadableInputError("the file ends in the middle of a tensor")
    return array


def describe(file: KerasH5, *, with_hash: bool) -> FileInfo:
    return FileInfo(
        path=str(file.path),
        bytes=file.path.stat().st_size,
        container=file.container,
        sha256=sha256(file.path) if with_hash else None,
        keras_version=file.keras_version,
        backend=file.backend,
    )


@contextmanager
def open_keras_h5(path: str | Path) -> Iterator[KerasH5]:
    with safe_h5.open_h5(path) as file:
        yield KerasH5(Path(path), file)


def apply(plan: Plan, source: KerasH5, copy: Path) -> None:
    """Patch `copy`, a byte-for-byte copy of `source`, by `plan`.

    Matrices that lie in the file in one piece are written to the same place, some side by side,
    before HDF5 opens the file; everything else goes through HDF5.
    """
    changes = (*plan.tensor_changes, *plan.optimizer.changes)
    in_place = {change.source.path: _offset(change, source) for change in changes}
    side_by_side(
        [
            partial(_rewrite, change, source.loader(change.source.path), offset, copy)
            for change in changes
            if (offset := in_place[change.source.path]) is not None
        ]
    )
    with safe_h5.open_h5(copy, "r+") as file:
        for change in changes:
            if in_place[change.source.path] is None:
                _apply_change(change, source, file)
        _apply_attributes(plan, file)


def _offset(change: TensorChange, source: KerasH5) -> int | None:
    """Place of a matrix that is written anew as a whole; None for everything else."""
    if isinstance(change.edit, Relay) and change.edit.kind != "bias":
        return source.offset(change.source.path)
    return None


def _rewrite(change: TensorChange, load: Callable[[], Any], offset: int, copy: Path) -> None:
    stored = load()
    made = np.empty_like(stored)
    apply_edit(change.edit, stored, made)
    with copy.open("r+b") as file:
        file.seek(offset)
        file.write(made.data)


def _apply_attributes(plan: Plan, file: h5py.File) -> None:
    """The configs, the optimizer's list of variables, and marks of our own."""
    if plan.model_config is not None:
        write_text(file, "model_config", json.dumps(plan.model_config))
    if plan.drop_training:
        del file.attrs["training_config"]
    elif plan.training_config is not None:
        write_text(file, "training_config", json.dumps(plan.training_config))
    if plan.optimizer.state == "dropped" and OPTIMIZER in file:
        del file[OPTIMIZER]
    if plan.optimizer.new_counter is not None:
        file[OPTIMIZER][plan.optimizer.new_counter] = np.int64(0)
    if plan.optimizer.order:
        write_names(file[OPTIMIZER], "weight_names", plan.optimizer.order)
    for name, value in plan.attributes:
        file.attrs[name] = value


def _apply_change(change: TensorChange, source: KerasH5, file: h5py.File) -> None:
    stored = source.dataset(change.source.path)
    target = safe_h5.get_dataset(file, change.source.path)
    if change.source.shape != change.target.shape:
        target = _reshape(file, change, target)
    apply_edit(change.edit, stored, target)


def _reshape(file: h5py.File, change: TensorChange, old: h5py.Dataset) -> h5py.Dataset:
    """A dataset of the new shape in the old one's place, with its attributes and filters."""
    attributes = dict(old.attrs)
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


def other_rest(plan: Plan, source: KerasH5, written: KerasH5) -> str | None:
    """A sentence on what a patched copy has otherwise than its source, the plan's changes apart.

    None where every other dataset and attribute is the source's, byte for byte.
    """
    changes = (*plan.tensor_changes, *plan.optimizer.changes)
    at_root = {name for name, _ in plan.attributes}
    if plan.model_config is not None:
        at_root.add("model_config")
    if plan.training_config is not None or plan.drop_training:
        at_root.add("training_config")

    def ignored(path: str, name: str) -> bool:
        if path == OPTIMIZER and plan.optimizer.order:
            return name.rstrip("0123456789") == "weight_names"
        return not path and name in at_root

    dropped = OPTIMIZER if plan.optimizer.state == "dropped" else ""
    changed = {change.source.path for change in changes}
    return difference(source.file, written.file, changed, dropped, ignored)


def extract_weights(model: Path, target: Path) -> None:
    """Write the weights of a whole-model file as a weights-only file (`--to weights`)."""
    with safe_h5.open_h5(model) as source, safe_h5.open_h5(target, "w") as file:
        weights = safe_h5.get_group(source, "model_weights")
        for name in safe_h5.names(weights):
            weights.copy(safe_h5.get_member(weights, name), file, name)
        for key, value in weights.attrs.items():
            file.attrs[key] = value
        for key in ("keras_version", "backend", HARD_SIGMOID_MARK):
            if key in source.attrs and key not in file.attrs:
                file.attrs[key] = source.attrs[key]


def copy_around(plan: Plan, source: KerasH5, target: Path) -> None:
    """Copy the file at file-system speed, but leave out what the plan overwrites anyway.

    The data of every relayed matrix is written anew by `apply`, all of it; until then it is a hole.
    """
    holes = []
    for change in (*plan.tensor_changes, *plan.optimizer.changes):
        offset = _offset(change, source)
        if offset is not None:
            holes.append((offset, offset + source.dataset(change.source.path).nbytes))
    size = source.path.stat().st_size
    with source.path.open("rb") as reader, target.open("r+b") as writer:
        writer.truncate(size)
        start = 0
        for hole_start, hole_end in [*sorted(holes), (size, size)]:
            _copy_range(reader, writer, start, hole_start)
            start = max(start, hole_end)


def _copy_range(reader: BinaryIO, writer: BinaryIO, start: int, stop: int) -> None:
    """Copy the bytes from `start` to `stop`, inside the kernel where it can."""
    with contextlib.suppress(OSError, AttributeError):
        while start < stop:
            copied = os.copy_file_range(
                reader.fileno(), writer.fileno(), stop - start, start, start
            )
            if not copied:
                break
            start += copied
    reader.seek(start)  # another file system, or another operating system
    writer.seek(start)
    while start < stop:
        piece = reader.read(min(stop - start, 2**20))
        if not piece:
            raise UnreadableInputError("the input became shorter while it was copied")
        start += writer.write(piece)

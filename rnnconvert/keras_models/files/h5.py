"""Keras HDF5 files: whole models (`model.save("m.h5")`) and weights only (`save_weights`).

Layout of the file: one group per top-level layer with its variables as datasets, in the order of
the group's attribute `weight_names`; the groups in the order of `layer_names`. In a whole model
they lie under `model_weights`, the configs are root attributes, and `optimizer_weights` holds the
optimizer's variables. Keras itself reads all of this by position.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from rnnconvert.containers import safe_h5
from rnnconvert.containers.budget import charge_arrays
from rnnconvert.containers.h5_rest import difference, require_apart
from rnnconvert.errors import NotConvertibleError, UnreadableInputError
from rnnconvert.hashes import sha256
from rnnconvert.keras_models.config.form import require_form
from rnnconvert.keras_models.plan import Plan, Tensor
from rnnconvert.report import FileInfo

MODEL = "keras-h5-model"
WEIGHTS = "keras-h5-weights"
OPTIMIZER = "optimizer_weights"
"""Group of the optimizer's variables."""
_AT_ONCE = 2**26
"""Bytes that are copied between two words on how far the copy is."""
_LEAST_BYTES = 64
"""What a group or a tensor takes of a file at least: its header alone is longer."""
_LARGEST_READ = 2**22
"""Bytes of a tensor that is read at once, where it can be read in parts."""
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
    _found: dict[str, h5py.Dataset] = field(default_factory=dict, repr=False, compare=False)
    """Those that were found and checked, by their paths."""

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
        return safe_h5.text_attribute(self.weights, "keras_version") or safe_h5.text_attribute(
            self.file, "keras_version"
        )

    @cached_property
    def backend(self) -> str | None:
        return safe_h5.text_attribute(self.weights, "backend") or safe_h5.text_attribute(
            self.file, "backend"
        )

    @cached_property
    def hard_sigmoid_mark(self) -> str | None:
        return safe_h5.text_attribute(self.file, HARD_SIGMOID_MARK)

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
            name: self._tensors(f"{self.prefix}{name}", found) for name, found in stored.items()
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
        return self._tensors(OPTIMIZER, self._of_optimizer)

    @cached_property
    def _of_optimizer(self) -> list[tuple[str, h5py.Dataset]]:
        if not safe_h5.has(self.file, OPTIMIZER):
            return []
        return _datasets(safe_h5.get_group(self.file, OPTIMIZER))

    def _tensors(self, prefix: str, found: list[tuple[str, h5py.Dataset]]) -> list[Tensor]:
        self._found.update({f"{prefix}/{name}": dataset for name, dataset in found})
        return [
            Tensor(f"{prefix}/{name}", name.removesuffix(":0"), dataset.shape, dataset.dtype.name)
            for name, dataset in found
        ]

    def read(self, path: str) -> np.ndarray[Any, Any]:
        return np.asarray(self.dataset(path)[()])

    def rows(self, path: str) -> Any:
        """A tensor as an array; a large one as it is stored, to be read by slices."""
        dataset = self.dataset(path)
        return dataset if dataset.nbytes > _LARGEST_READ else dataset[()]

    def dataset(self, path: str) -> h5py.Dataset:
        found = self._found.get(path)
        if found is None:
            found = self._found[path] = safe_h5.get_dataset(self.file, path)
        return found

    def offset(self, path: str) -> int | None:
        """Where a tensor's bytes lie in the file; None unless they lie there in one piece."""
        return offset_of(self.dataset(path))


def offset_of(dataset: h5py.Dataset) -> int | None:
    """Where the bytes of a dataset lie in its file; None unless they lie there in one piece."""
    if dataset.chunks or dataset.id.get_storage_size() != dataset.nbytes:
        return None
    offset: int | None = dataset.id.get_offset()
    return offset


def _datasets(group: h5py.Group) -> list[tuple[str, h5py.Dataset]]:
    """The variables of a layer or of an optimizer, by their names in its group."""
    names = safe_h5.strings(group, "weight_names") or []
    return [(name, safe_h5.get_dataset(group, name)) for name in names]


def describe_h5(file: KerasH5, *, with_hash: bool) -> FileInfo:
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


def other_rest(
    plan: Plan, source: KerasH5, written: KerasH5, compared: Collection[str] = ()
) -> str | None:
    """A sentence on what a patched copy has otherwise than its source, the plan's changes apart.

    Args:
        compared: datasets whose bytes are known to be the same.

    Returns:
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
        if path == "model_weights" and plan.layer_order is not None:
            return name.rstrip("0123456789") == "layer_names"
        return not path and name in at_root

    if plan.layer_order is not None and set(source.groups) != set(written.groups):
        return "layer_names names other layers"
    dropped = OPTIMIZER if plan.optimizer.state == "dropped" else ""
    changed = {change.source.path for change in changes}
    return difference(source.file, written.file, changed, dropped, ignored, compared)


def extract_weights(model: Path, target: Path) -> None:
    """Write the weights of a whole-model file as a weights-only file (`--to weights`)."""
    with safe_h5.open_h5(model) as source, safe_h5.open_h5(target, "w") as file:
        weights = safe_h5.get_group(source, "model_weights")
        for name in safe_h5.names(weights):
            weights.copy(safe_h5.get_member(weights, name), file, name)
        for key in weights.attrs:
            file.attrs[key] = safe_h5.attribute(weights, key)
        for key in ("keras_version", "backend", HARD_SIGMOID_MARK):
            if key in source.attrs and key not in file.attrs:
                file.attrs[key] = safe_h5.attribute(source, key)

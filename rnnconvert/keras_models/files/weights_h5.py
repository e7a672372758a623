"""Keras 3's `.weights.h5` files (also Keras 2.12's and later): read, and written once converted.

Such a file names no layers and holds no config, only variables by their owners; see `keras_store`.
Shapes tell recurrent layers, and CuDNN's from plain ones. The way is: `rebuild_weights` makes a
weights-only HDF5 file of Keras 2's form, the conversion converts that, and `write_keras_weights`
puts the converted arrays back in place in a copy of the original. The copy loads into the portable
model, whose layers keep their variables one level deeper (in their `cell`), under another name.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import h5py

from rnnconvert.containers import safe_h5
from rnnconvert.errors import NotConvertibleError, UnreadableInputError
from rnnconvert.keras_models.files.attributes import write_names
from rnnconvert.keras_models.files.rebuilt import Rebuilt
from rnnconvert.keras_models.files.store import (
    KINDS,
    OPTIMIZER,
    OPTIMIZER_LEFT,
    Store,
    StoredVariable,
    copy_dataset,
    numbered,
    read_store,
    stem_and_number,
    write_group,
)
from rnnconvert.kinds import LAYERS, VARS

_OLDEST = "2.12.0"
"""The first Keras that wrote such files. They do not say which one did; none is older."""
_OWN = "top_level_model_weights"
"""Group of variables of the model itself, as Keras 3 calls it in its HDF5 files."""
_CUDNN_GATES = (3, 4)
_GATES = (1, *_CUDNN_GATES)
_GATES_BY_NAME = {"lstm": 4, "gru": 3}
_CUDNN_NAME = re.compile(r"cu_dnn(lstm|gru)((?:_\d+)?)")


@dataclass(frozen=True)
class _Owner:
    """An owner of variables, as the rebuilt file has it.

    Attributes:
        path: in the store, e.g. "layers/bidirectional/forward_layer".
        group: of the rebuilt file, e.g. "layers/bidirectional".
        kind: "cudnn", "cell", or "" for what is no recurrent layer.
        variables: in order, under their names in that group.
    """

    path: str
    group: str
    kind: str
    variables: tuple[StoredVariable, ...]


def rebuild_weights(path: Path, target: Path) -> Rebuilt:
    """Write a `.weights.h5` file as a weights-only HDF5 file of Keras 2's form.

    Its layers are called as the file calls them, e.g. "layers/cu_dnnlstm_1". Optimizer state is
    left out.

    Args:
        path: the `.weights.h5` file.
        target: the HDF5 file; replaced where it exists.

    Raises:
        UnreadableInputError: the input is damaged or refused as unsafe.
        NotConvertibleError: variables whose order is not known.
    """
    with safe_h5.open_h5(path) as source, safe_h5.open_h5(target, "w") as file:
        file.attrs["keras_version"] = _OLDEST
        store = read_store(source)
        groups: dict[str, list[StoredVariable]] = {}
        for owner in _owners(source, store):
            groups.setdefault(owner.group, []).extend(owner.variables)
        write_names(file, "layer_names", list(groups))
        for name, variables in groups.items():
            write_group(source, file.create_group(name), variables)
    return Rebuilt(_OLDEST, (OPTIMIZER_LEFT,) if store.get(OPTIMIZER) else ())


def require_places(original: Path) -> None:
    """Make sure that `write_keras_weights` will know where every converted layer goes.

    Raises:
        UnreadableInputError: the file is damaged.
        NotConvertibleError: as `write_keras_weights`.
    """
    with safe_h5.open_h5(original) as source:
        store = read_store(source)
        for owner in _owners(source, store):
            _portable_path(owner, store)


def write_keras_weights(original: Path, converted: Path, target: Path) -> None:
    """Write a copy of a `.weights.h5` file with its recurrent layers converted.

    Args:
        original: the `.weights.h5` file.
        converted: what the conversion made of `rebuild_weights(original, ...)`.
        target: the `.weights.h5` file for the portable model; replaced where it exists.

    Raises:
        UnreadableInputError: a file is damaged, or the two do not belong together.
        NotConvertibleError: a model with both CuDNN and plain layers in one list: their order, by
            which Keras will count them, is not in the file.
    """
    with (
        safe_h5.open_h5(original) as source,
        safe_h5.open_h5(converted) as portable,
        safe_h5.open_h5(target, "w") as file,
    ):
        store = read_store(source)
        for owner in _owners(source, store):
            path = _portable_path(owner, store)
            group = file.create_group(f"{path}/{VARS}" if path else VARS)
            for index, variable in enumerate(owner.variables):
                stored = safe_h5.get_dataset(source, variable.dataset)
                if owner.kind:
                    name = f"{owner.group}/{variable.name}"
                    stored, was = safe_h5.get_dataset(portable, name), stored
                    if stored.dtype != was.dtype or stored.size > was.size:
                        raise UnreadableInputError(f"{name}: not made from {original.name}")
                copy_dataset(stored, group, str(index))


def _owners(source: h5py.File, store: Store) -> Iterator[_Owner]:
    for path in sorted(store, key=_in_order):
        if path.split("/")[0] == OPTIMIZER or not store[path]:
            continue
        group, rest = _split_top(path)
        datasets = numbered(store, path)
        shapes = [safe_h5.get_dataset(source, dataset).shape for dataset in datasets]
        kind = _kind(path, shapes)
        names = KINDS if kind else tuple(f"{VARS}/{index}" for index in range(len(datasets)))
        variables = [
            StoredVariable(dataset, f"{rest}/{name}" if rest else name)
            for dataset, name in zip(datasets, names, strict=False)
        ]
        yield _Owner(path, group, kind, tuple(variables))


def _split_top(path: str) -> tuple[str, str]:
    """The group that an owner goes to, one for each top-level layer, and what is left of its path.

    A model that is neither Sequential nor functional has its layers as attributes, not in a list.
    """
    parts = path.split("/")
    top = 2 if parts[0] == LAYERS else 1
    return "/".join(parts[:top]) or _OWN, "/".join(parts[top:])


def _in_order(path: str) -> list[tuple[str, int]]:
    """Sort key by which lstm_10 follows lstm_9, and cu_dnnlstm has the place of lstm."""
    return [stem_and_number(_CUDNN_NAME.sub(r"\1\2", part)) for part in path.split("/")]


def _kind(path: str, shapes: list[tuple[int, ...]]) -> str:
    """What the shapes say: "cudnn", "cell", or "".

    Raises:
        UnreadableInputError: a CuDNN layer by its name, but not by its shapes.
    """
    *above, last = path.split("/")
    named = _CUDNN_NAME.fullmatch(last)
    gates = _gates(shapes)
    has_both_biases = gates in _CUDNN_GATES and shapes[2:] == [(2 * shapes[1][1],)]
    if named and not (has_both_biases and gates == _GATES_BY_NAME[named[1]]):
        raise UnreadableInputError(
            f"{path}/{VARS}: by its name a CuDNN layer; expected kernel (inputs, n*units), "
            "recurrent_kernel (units, n*units) and bias (2*n*units,) with n = 4 for an LSTM and 3 "
            f"for a GRU, found {', '.join(map(str, shapes))}"
        )
    if has_both_biases:
        return "cudnn"
    is_cell = last == "cell" or above[-1:] == ["cells"]
    return "cell" if is_cell and gates in _GATES else ""


def _gates(shapes: list[tuple[int, ...]]) -> int:
    """Number of gates of a kernel and a recurrent kernel that fit each other; 0 for others."""
    if len(shapes) not in (2, 3) or len(shapes[0]) != 2 or len(shapes[1]) != 2:
        return 0
    units, columns = shapes[1]
    fits = units and columns % units == 0 and shapes[0][1] == columns
    return columns // units if fits else 0


def _portable_path(owner: _Owner, store: Store) -> str:
    """Where the portable model's LSTM or GRU keeps the variables of a CuDNN layer: in its cell."""
    if owner.kind != "cudnn":
        return owner.path
    above, _, last = owner.path.rpartition("/")
    named = _CUDNN_NAME.fullmatch(last)
    if named is None:  # in a wrapper, which names it by its own attribute
        return f"{owner.path}/cell"
    plain = re.compile(rf"{re.escape(above)}/{named[1]}(_\d+)?(/.*)?", re.DOTALL)
    if any(plain.fullmatch(path) for path in store):
        raise NotConvertibleError(
            f"{above} has layers of both {last} and {named[1]}; in the portable model they are "
            "counted together, in an order that a weights-only file does not say; convert the "
            "whole model (.h5, .keras) instead"
        )
    return f"{above}/{named[1]}{named[2]}/cell"

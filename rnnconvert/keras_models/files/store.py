"""Where Keras' newer HDF5 files keep which variable: `model.weights.h5` of a `.keras` file.

Such a file knows no names of layers. The variables of an object are the datasets `vars/0`,
`vars/1`, ... in the group of its owner. An owner's path is made of Python attributes
("forward_layer", "cell") and, in a list of layers, of the snake-cased class name with a counter:
the second LSTM of a model is `layers/lstm_1`. Keras 2.12 and 2.13 write
`_layer_checkpoint_dependencies` where later versions write `layers`, and on Windows Keras 2 joins
the parts of a path by a backslash. Read off `saving/saving_lib.py` of Keras 2.13, 2.15 and 3.15,
and off files of those.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice

import h5py

from rnnconvert.containers import safe_h5
from rnnconvert.errors import NotConvertibleError, UnreadableInputError
from rnnconvert.keras_models.config.builtin import KERAS_LAYERS
from rnnconvert.keras_models.config.recurrent import CUDNN_CLASSES, RECURRENT_CLASSES
from rnnconvert.keras_models.config.tree import (
    MODEL_CLASSES,
    Config,
    Node,
    children,
    layer_name,
    root,
    show_path,
    unfolded,
)
from rnnconvert.keras_models.files.attributes import write_names
from rnnconvert.kinds import LAYERS, OLD_LAYERS, VARS

KINDS = ("kernel", "recurrent_kernel", "bias")
"""Of a recurrent cell's or CuDNN layer's variables, in the order of `vars`."""

OPTIMIZER = "optimizer"
OPTIMIZER_LEFT = "the optimizer's state in this kind of file is not carried over; it is left out"
_SEEDS = ("seed_generator", "_random_generator")
"""Owners of random seeds, which are no weights."""
_NEVER_TRAINED = {"BatchNormalization": 2, "Normalization": 3, "SpectralNormalization": 1}
"""How many of a layer's own variables, the last ones, the optimizer leaves alone."""
_ATTENTION_PARTS = ("query_dense", "key_dense", "value_dense", "output_dense")
"""Layers inside a MultiHeadAttention, in the order of its weights."""
_MOST_LAYERS = 100_000

Store = dict[str, dict[str, str]]
"""Path of an owner, as Keras 2.15 and 3 write it, to the paths of its datasets by their name."""


@dataclass(frozen=True)
class StoredVariable:
    """One variable of a model.

    Attributes:
        dataset: its path in the store's file.
        name: a name as Keras 2 gives it, e.g. "bi/forward_lstm/kernel:0".
        trains: whether neither the variable nor a layer around it is frozen.
    """

    dataset: str
    name: str
    trains: bool = True


def read_store(file: h5py.File) -> Store:
    """All owners of variables in a file, also those that have none.

    Raises:
        UnreadableInputError: it holds something else than Keras writes.
    """
    groups, datasets = _list(file)
    owners = {path: _owner(path) for path in groups}
    owners |= {path: _owner(path.rpartition("/")[0]) for path in datasets}
    names = _renumbered(set(owners.values()))
    store: Store = {}
    for path, parts in owners.items():
        variables = store.setdefault(_canonical(parts, names), {})
        name = path.rpartition("/")[2]
        if path in datasets and variables.setdefault(name, path) != path:
            raise UnreadableInputError(f"{path}: a second variable of this name")
    return store


def _list(file: h5py.File) -> tuple[list[str], list[str]]:
    """Paths of all groups called "vars", and of all datasets, each refused if it is unsafe."""
    groups: list[str] = []
    datasets: list[str] = []

    def visit(path: str | bytes, item: object) -> None:
        if isinstance(path, bytes):
            raise UnreadableInputError(f"refused as unsafe: the name {path!r} in the file")
        _require_no_links(item)
        if isinstance(item, h5py.Dataset):
            datasets.append(path)
        elif _split(path)[-1] == VARS:
            groups.append(path)
        if len(datasets) + len(groups) > safe_h5.MAX_LAYERS:
            raise UnreadableInputError("refused as unsafe: over a million variables")

    _require_no_links(file)
    file.visititems(visit)
    for path in datasets:
        safe_h5.get_dataset(file, path)
    return groups, datasets


def _require_no_links(item: object) -> None:
    """Refuse a group with links out of their place, which a visit passes over in silence."""
    if isinstance(item, h5py.Group):
        links = [name for name in item if not safe_h5.has(item, name)]
        if links:
            raise UnreadableInputError(
                f"refused as unsafe: {item.name.rstrip('/')}/{links[0]} is a link out of its place"
            )


def _split(path: str) -> tuple[str, ...]:
    return tuple(path.replace("\\", "/").split("/"))


def _owner(path: str) -> tuple[str, ...]:
    """The parts of an owner's path, as stored, from the path of its group "vars"."""
    *parts, last = _split(path)
    if last != VARS:
        raise UnreadableInputError(f"{path}: expected variables in groups called vars only")
    return tuple(parts)


def _renumbered(owners: set[tuple[str, ...]]) -> dict[tuple[str, ...], str]:
    """New names of the layers in Keras 2.12's and 2.13's lists, by their path as stored.

    Those versions list a layer that has weights twice, and count it twice: the second Dense is
    dense_2. Later versions count each layer once.
    """
    members: dict[tuple[tuple[str, ...], str], set[tuple[int, tuple[str, ...]]]] = {}
    for owner in owners:
        for at in range(1, len(owner)):
            if owner[at - 1] == OLD_LAYERS:
                stem, number = stem_and_number(owner[at])
                members.setdefault((owner[:at], stem), set()).add((number, owner[: at + 1]))
    return {
        path: f"{stem}_{index}" if index else stem
        for (_, stem), found in members.items()
        for index, (_, path) in enumerate(sorted(found))
    }


def stem_and_number(name: str) -> tuple[str, int]:
    """Stem and number of a counted name: "dense_2" is the third "dense", number 2."""
    match = re.fullmatch(r"(.*)_([0-9]{1,9})", name)
    return (match[1], int(match[2])) if match else (name, 0)


def _canonical(parts: tuple[str, ...], names: dict[tuple[str, ...], str]) -> str:
    """An owner's path as Keras 2.15 and 3 write it."""
    written = [names.get(parts[: at + 1], part) for at, part in enumerate(parts)]
    return "/".join(LAYERS if part == OLD_LAYERS else part for part in written)


def numbered(store: Store, owner: str) -> list[str]:
    """Datasets of an owner's variables, in order; [] where it has none.

    Raises:
        NotConvertibleError: a layer that names its variables itself.
        UnreadableInputError: one is missing.
    """
    found = store.get(owner, {})
    if any(not re.fullmatch("[0-9]{1,9}", name) for name in found):
        raise NotConvertibleError(
            f"{owner}/vars: expected variables called 0, 1, ..., found {', '.join(sorted(found))}; "
            "their order in the model is not known"
        )
    ordered = sorted(found, key=int)
    if [int(name) for name in ordered] != list(range(len(ordered))):
        raise UnreadableInputError(f"{owner}/vars: has {', '.join(ordered)}, so some are missing")
    return [found[name] for name in ordered]


# --- a model's variables ----------------------------------------------------------------------


def model_variables(config: Config, store: Store) -> dict[str, list[StoredVariable]]:
    """Variables of each top-level layer, in the order in which Keras 2's HDF5 files hold them.

    That is the order of `layer.weights`: first those that train, then the others.

    Args:
        config: the model config; a Sequential or functional model.
        store: of its weights.

    Raises:
        NotConvertibleError: a layer with parts whose order is not known.
        UnreadableInputError: config and store are of different models.
    """
    require_few(root(config))
    walk = _Walk(store)
    found: dict[str, list[StoredVariable]] = {}
    for top, owner in _contained(children(root(config)), LAYERS):
        name = layer_name(top.entry)
        if name in found:
            raise UnreadableInputError(f"the config has two layers called {name!r}")
        variables = list(walk.layer(top, owner, name))
        found[name] = sorted(variables, key=lambda variable: not variable.trains)
    walk.require_all_claimed()
    return found


def require_few(model: Node) -> None:
    """Refuse a model whose few layers stand for far too many.

    Raises:
        UnreadableInputError: it does.
    """
    if unfolded(model) > _MOST_LAYERS:
        raise UnreadableInputError(
            f"refused as unsafe: Bidirectional layers nested so deeply that they stand for over "
            f"{_MOST_LAYERS:,} layers"
        )


def _contained(nodes: list[Node], owner: str) -> Iterator[tuple[Node, str]]:
    """The members of a list of layers and their owners: class names in snake case, counted."""
    used: dict[str, int] = {}
    for node in nodes:
        if str(node.entry.get("module")).startswith(("keras.src.ops", "keras.ops")):
            continue  # an operation of Keras 3, which is no layer
        name = snake_case(node.class_name)
        count = used[name] = used.get(name, -1) + 1
        yield node, f"{owner}/{name}_{count}" if count else f"{owner}/{name}"


def snake_case(class_name: str) -> str:
    """A class name as Keras writes it in a path: CuDNNLSTM is cu_dnnlstm."""
    name = re.sub(r"\W+", "", class_name)
    name = re.sub("(.)([A-Z][a-z]+)", r"\1_\2", name)
    return re.sub("([a-z])([A-Z])", r"\1_\2", name).lower()


class _Walk:
    """Goes through config and store side by side, and keeps count of what it met in the store."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._claimed: set[str] = set()

    def layer(self, node: Node, owner: str, name: str) -> Iterator[StoredVariable]:
        """Variables of a layer: its own, then those of the layers in it."""
        for variable in self._layer(node, owner, name):
            frozen = node.config.get("trainable") is False
            yield replace(variable, trains=False) if frozen else variable

    def _layer(self, node: Node, owner: str, name: str) -> Iterator[StoredVariable]:
        class_name = node.class_name
        is_cell = class_name.endswith("Cell") or class_name in CUDNN_CLASSES
        if class_name in RECURRENT_CLASSES:
            yield from self._recurrent(node, owner if is_cell else f"{owner}/cell", name)
            return
        yield from self._own(node, owner, name)
        if class_name == "Bidirectional":
            yield from self._directions(node, owner, name)
        elif class_name == "MultiHeadAttention":
            yield from self._attention(owner, name)
        elif class_name in MODEL_CLASSES:
            yield from self._list(_of_role(node, "member"), f"{owner}/{LAYERS}", name)
        elif class_name == "StackedRNNCells":
            yield from self._list(_of_role(node, "wrapped"), f"{owner}/cells", name)
        else:
            # SpectralNormalization lists the kernel of the layer in it as its own first variable.
            twice = 1 if class_name == "SpectralNormalization" else 0
            for child in _of_role(node, "wrapped"):
                path = f"{owner}/{child.key}"
                yield from islice(self.layer(child, path, _join(name, child)), twice, None)

    def _list(self, nodes: list[Node], owner: str, name: str) -> Iterator[StoredVariable]:
        names: set[str] = set()
        for index, (child, child_owner) in enumerate(_contained(nodes, owner)):
            path = _join(name, child)
            if path in names:  # cells may share a name; then their order tells them apart
                path += f"/{index}"
            names.add(path)
            yield from self.layer(child, child_owner, path)

    def _directions(self, node: Node, owner: str, name: str) -> Iterator[StoredVariable]:
        below = {child.key: child for child in children(node)}
        forward = below.get("layer")
        if forward is None:
            return
        for direction, child in (
            ("forward", forward),
            ("backward", below.get("backward_layer", forward)),
        ):
            inner = layer_name(child.entry)
            prefix = "" if inner.startswith(f"{direction}_") else f"{direction}_"
            yield from self.layer(child, f"{owner}/{direction}_layer", f"{name}/{prefix}{inner}")

    def _recurrent(self, node: Node, owner: str, name: str) -> Iterator[StoredVariable]:
        datasets = self._claim(owner)
        most = len(KINDS)
        if not most - 1 <= len(datasets) <= most:
            raise UnreadableInputError(
                f"{show_path(node.path)}: the config has this {node.class_name}, whose kernel, "
                f"recurrent_kernel and bias are expected in {owner}/vars of the weights; found "
                f"{len(datasets)} variables there"
            )
        for dataset, kind in zip(datasets, KINDS, strict=False):
            yield StoredVariable(dataset, f"{name}/{kind}:0")

    def _own(self, node: Node, owner: str, name: str) -> Iterator[StoredVariable]:
        datasets = self._claim(owner)
        class_name = node.class_name
        foreign = class_name not in (*KERAS_LAYERS, *MODEL_CLASSES)
        if datasets and foreign and len(node.path) > 1:
            raise NotConvertibleError(
                f"{show_path(node.path)}: which variables of the custom class {class_name} train, "
                "and with that their order in the nested model, is not known; save the model "
                "as .h5 and convert that"
            )
        trained = len(datasets) - _NEVER_TRAINED.get(class_name, 0)
        for index, dataset in enumerate(datasets):
            yield StoredVariable(dataset, f"{name}/variable_{index}:0", index < trained)

    def _attention(self, owner: str, name: str) -> Iterator[StoredVariable]:
        for part in _ATTENTION_PARTS:
            for prefix in ("", "_"):  # Keras 3, Keras 2
                for index, dataset in enumerate(self._claim(f"{owner}/{prefix}{part}")):
                    yield StoredVariable(dataset, f"{name}/{part}/variable_{index}:0")

    def _claim(self, owner: str) -> list[str]:
        self._claimed.add(owner)
        return numbered(self._store, owner)

    def require_all_claimed(self) -> None:
        """Raise NotConvertibleError where a layer has weights that the walk did not come to."""
        for owner, variables in self._store.items():
            left = owner not in self._claimed and owner.startswith(f"{LAYERS}/")
            if variables and left and owner.split("/")[-1] not in _SEEDS:
                raise NotConvertibleError(
                    f"{owner}/vars of the weights: not a part of the layers in the config that "
                    "rnnconvert knows (a custom class?), so its place in the model is not known; "
                    "save the model as .h5 and convert that"
                )


def _of_role(node: Node, role: str) -> list[Node]:
    return [child for child in children(node) if child.role == role]


def _join(name: str, node: Node) -> str:
    return f"{name}/{layer_name(node.entry)}"


# --- writing ----------------------------------------------------------------------------------


def write_group(source: h5py.File, group: h5py.Group, variables: list[StoredVariable]) -> None:
    """Copy variables into a layer's group as Keras 2 has it, with its `weight_names`."""
    for variable in variables:
        copy_dataset(safe_h5.get_dataset(source, variable.dataset), group, variable.name)
    write_names(group, "weight_names", [variable.name for variable in variables])


def copy_dataset(stored: h5py.Dataset, group: h5py.Group, name: str) -> None:
    """Copy a dataset of another file as it is, compressed or not."""
    group.copy(stored, group, name)

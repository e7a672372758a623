"""Keras HDF5 files of Keras 1, rebuilt as files of Keras 2: other keys, and an array for each gate.

Keras 1 stored a matrix, a recurrent matrix and a bias for each gate, LSTM_W_i, LSTM_U_i, LSTM_b_i,
LSTM_W_c, ..., where Keras 2 has one kernel, one recurrent kernel and one bias with the gates side
by side: i, f, c, o of an LSTM, z, r, h of a GRU.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rnnconvert.containers import safe_h5
from rnnconvert.errors import NotConvertibleError
from rnnconvert.keras_models.config.keras1 import port_keras1
from rnnconvert.keras_models.config.tree import Config, layer_name, root, walk
from rnnconvert.keras_models.files.attributes import write_names, write_text_attribute
from rnnconvert.keras_models.files.h5 import MODEL, KerasH5, open_keras_h5
from rnnconvert.keras_models.files.rebuilt import Rebuilt
from rnnconvert.keras_models.plan import Tensor
from rnnconvert.kinds import KERAS_1_NAME

Array = np.ndarray[Any, Any]

FORM = "2.2.4"
"""Whose form the rebuilt file has; Keras 2.2's defaults are those of Keras 1."""

_OTHER = re.compile(r"(.*)_(gamma|beta|running_mean|running_std|alphas?|depthwise_kernel|"
                    r"pointwise_kernel)(?:_\d+)?")  # fmt: skip
_KINDS = {"W": "kernel", "U": "recurrent_kernel", "b": "bias"}
_KEPT = {"running_mean": "moving_mean", "running_std": "moving_variance", "alphas": "alpha"}
"""Keras 1's running_std is a variance: only its name is wrong."""
GATES = {"LSTM": "ifco", "ConvLSTM2D": "ifco", "GRU": "zrh"}
"""Keras 2's order of the gates."""
_CONVOLUTIONS = ("Conv1D", "Conv2D", "Conv3D", "Conv2DTranspose", "SeparableConv2D")
_KERNELS = ("W", "depthwise_kernel", "pointwise_kernel")


def rebuild_keras1(source: Path, target: Path) -> Rebuilt:
    """Write the model or the weights of a Keras 1 file as Keras 2.2 would have.

    Raises:
        NotConvertibleError: it holds what Keras 2 and 3 have no counterpart of.
    """
    with open_keras_h5(source) as file:
        theano = not any(t.path.endswith(":0") for group in file.groups.values() for t in group)
        config, classes, warnings = _config(file, theano=theano)
        layers = {
            name: list(_rebuilt(name, tensors, file, classes, theano=theano))
            for name, tensors in file.groups.items()
        }
        if file.optimizer_tensors:
            warnings.append("the optimizer's state of Keras 1 is left out; training starts anew")
        _write(target, file, config, layers)
        return Rebuilt(file.keras_version, tuple(warnings))


def _config(file: KerasH5, *, theano: bool) -> tuple[Config | None, dict[str, Config], list[str]]:
    """The new config, the layers in it by name, and warnings."""
    if file.container != MODEL or file.model_config is None:
        return None, {}, []
    config, changes = port_keras1(file.model_config, theano=theano)
    if changes.problems:
        raise NotConvertibleError("\n".join(changes.problems))
    classes = {layer_name(node.entry): node.entry for node in walk(root(config))}
    return config, classes, list(changes.warnings)


@dataclass(frozen=True)
class Keras1Tensor:
    """An array of Keras 1 by its name: layer, "W", "U", "b" or another word, gate or ""."""

    tensor: Tensor
    layer: str
    word: str
    gate: str


def _rebuilt(
    group: str, tensors: list[Tensor], file: KerasH5, classes: dict[str, Config], *, theano: bool
) -> Iterator[tuple[str, Array]]:
    """The arrays of one top-level layer under Keras 2's names, in Keras 2's order."""
    stored = [parse_keras1_name(group, tensor) for tensor in tensors]
    done: set[tuple[str, str]] = set()
    for one in stored:
        if one.gate and (one.layer, one.word) in done:
            continue
        name = _variable(group, one, classes)
        if not one.gate:
            array = file.read(one.tensor.path)
            yield name, _kernel(one, array, classes, theano=theano)
            continue
        mine = {each.gate: each for each in stored
                if (each.layer, each.word) == (one.layer, one.word)}  # fmt: skip
        done.add((one.layer, one.word))
        yield name, _joined(one, mine, file, classes, theano=theano)


def parse_keras1_name(group: str, tensor: Tensor) -> Keras1Tensor:
    """What an array of Keras 1 is, by its name.

    Raises:
        NotConvertibleError: the name is of no form of Keras 1.
    """
    name = tensor.name.rpartition("/")[2]
    match = KERAS_1_NAME.fullmatch(name)
    if match:
        layer, word, gate = match.groups()
        return Keras1Tensor(tensor, layer, word, gate or "")
    match = _OTHER.fullmatch(name)
    if match is None:
        raise NotConvertibleError(
            f"model/{group}: the array {tensor.name} of Keras 1 is none that rnnconvert knows"
        )
    return Keras1Tensor(tensor, match.group(1), match.group(2), "")


def _variable(group: str, one: Keras1Tensor, classes: dict[str, Config]) -> str:
    """The variable's name in Keras 2."""
    embedding = _class(one.layer, classes) == "Embedding"
    kind = "embeddings" if embedding else _KINDS.get(one.word, _KEPT.get(one.word, one.word))
    scope = one.layer if one.layer == group else f"{group}/{one.layer}"
    return f"{scope}/{kind}:0"


def _class(layer: str, classes: dict[str, Config]) -> str:
    """Class of the layer that an array is named after; a direction's prefix is not its own."""
    entry = classes.get(layer) or classes.get(re.sub("^(forward|backward)_", "", layer))
    return str(entry["class_name"]) if entry else ""


def _joined(
    one: Keras1Tensor, mine: dict[str, Keras1Tensor], file: KerasH5, classes: dict[str, Config], *,
    theano: bool,
) -> Array:  # fmt: skip
    """The arrays of all gates side by side."""
    order = next((gates for gates in GATES.values() if set(gates) == set(mine)), None)
    if order is None:
        raise NotConvertibleError(
            f"model/{one.layer}: expected arrays for the gates i, f, c, o or z, r, h, found "
            f"{', '.join(sorted(mine))}"
        )
    if _class(one.layer, classes) == "ConvLSTM2D" and one.word != "b":
        channels = classes[one.layer]["config"].get("data_format")
        if theano or channels == "channels_first":
            raise NotConvertibleError(
                f"model/{one.layer}: a ConvLSTM2D of Keras 1 on Theano or with channels first"
            )
    return np.concatenate([file.read(mine[gate].tensor.path) for gate in order], axis=-1)


def _kernel(one: Keras1Tensor, array: Array, classes: dict[str, Config], *, theano: bool) -> Array:
    """A convolution's kernel as (places..., inputs, filters), correlated and not convolved."""
    name = _class(one.layer, classes)
    if not classes and one.word in _KERNELS and array.ndim > 2:
        raise NotConvertibleError(
            f"model/{one.layer}: a convolution's kernel in a file of weights alone, which does not "
            "say the order of its axes; the file of the whole model does"
        )
    if name not in _CONVOLUTIONS or one.word not in _KERNELS:
        return array
    config = classes[one.layer]["config"]
    if name == "Conv1D":
        length = config["kernel_size"]
        length = length[0] if isinstance(length, list) else length
        if array.shape[:2] != (length, 1) or array.shape[3] != config["filters"]:
            array = np.transpose(array, (2, 3, 1, 0))  # before Keras 1.2
        array = array[:, 0]
    elif config.get("data_format") == "channels_first":
        spatial = tuple(range(2, array.ndim))
        order = (*spatial, 0, 1) if name == "Conv2DTranspose" else (*spatial, 1, 0)
        array = np.transpose(array, order)
    elif name == "Conv2DTranspose":
        array = np.transpose(array, (0, 1, 3, 2))
    if theano:  # which turned a kernel round before it multiplied
        array = np.flip(array, tuple(range(array.ndim - 2)))
    return np.ascontiguousarray(array)


def _write(
    target: Path, file: KerasH5, config: Config | None, layers: dict[str, list[tuple[str, Array]]]
) -> None:
    with safe_h5.open_h5(target, "w") as written:
        weights = written
        if config is not None:
            weights = written.create_group("model_weights")
            write_text_attribute(written, "model_config", json.dumps(config))
            if file.training_config is not None:
                write_text_attribute(written, "training_config", json.dumps(file.training_config))
        for owner in {id(written): written, id(weights): weights}.values():
            write_text_attribute(owner, "keras_version", FORM)
            write_text_attribute(owner, "backend", "tensorflow")
        write_names(weights, "layer_names", list(layers))
        for name, arrays in layers.items():
            group = weights.create_group(name)
            write_names(group, "weight_names", [path for path, _ in arrays])
            for path, array in arrays:
                group.create_dataset(path, data=array)

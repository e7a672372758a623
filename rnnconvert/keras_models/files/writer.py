"""Writing RNN weights as a new Keras model: a whole-model HDF5 file, made with h5py alone.

The file holds a Sequential of plain layers, as Keras 2.15 writes it but without the keys that
Keras 3 refuses: both load it by `load_model("x.h5")`, and `rnnconvert` finds nothing to convert.
Inputs are batch-major, (batch, time, input_size).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import h5py
import numpy as np

from rnnconvert.containers import safe_h5
from rnnconvert.containers.raw_file import Filled, open_raw
from rnnconvert.errors import NotConvertibleError
from rnnconvert.keras_models.files.attributes import write_names, write_text_attribute
from rnnconvert.layouts import RnnWeights, find, pack
from rnnconvert.layouts.weights import Array

KERAS_VERSION = "2.15.0"
"""Whose form the file has. From 2.3 on, and below 3: the defaults and names of those versions."""

_CLASSES: dict[str, tuple[str, dict[str, Any]]] = {
    "lstm": ("LSTM", {"activation": "tanh", "recurrent_activation": "sigmoid"}),
    "gru": (
        "GRU",
        {"activation": "tanh", "recurrent_activation": "sigmoid", "reset_after": True},
    ),
    "gru_reset_before": (
        "GRU",
        {"activation": "tanh", "recurrent_activation": "sigmoid", "reset_after": False},
    ),
    "rnn_tanh": ("SimpleRNN", {"activation": "tanh"}),
    "rnn_relu": ("SimpleRNN", {"activation": "relu"}),
}
"""Cell: Keras' class, and what makes it this very function."""

_VARIABLE_NAMES = {"LSTM": "lstm", "GRU": "gru", "SimpleRNN": "simple_rnn"}
_DTYPES = ("float16", "float32", "float64")
_LONGEST_NAME = 100
"""Of a layer; its weights' path holds it twice, and readers limit paths."""


class UnreadWeights(Protocol):
    """Weights of one direction of one layer that are not in memory but for their biases."""

    @property
    def cell(self) -> str: ...

    @property
    def units(self) -> int: ...

    @property
    def input_dim(self) -> int: ...

    @property
    def dtype(self) -> np.dtype[Any]: ...

    @property
    def bias(self) -> Array: ...

    def keras_tensors(self) -> Mapping[str, Array | Filled]:
        """Kernel, recurrent kernel and bias, in the order in which Keras saves them."""
        ...


@dataclass(frozen=True)
class LayerWeights:
    """One layer of a stack; `backward` is None in a stack of one direction.

    Raises:
        ValueError: the two directions are not of one cell, shape and dtype.
    """

    forward: RnnWeights | UnreadWeights
    backward: RnnWeights | UnreadWeights | None = None

    def __post_init__(self) -> None:
        facts = {name: _facts(weights) for name, weights in self.directions.items()}
        if len(set(facts.values())) != 1:
            raise ValueError(
                f"the directions of a layer differ: forward is {facts['forward']}, "
                f"backward {facts['backward']}"
            )

    @property
    def directions(self) -> dict[str, RnnWeights | UnreadWeights]:
        """Weights by direction, forward first."""
        found = {"forward": self.forward, "backward": self.backward}
        return {name: weights for name, weights in found.items() if weights is not None}

    @property
    def output_size(self) -> int:
        return self.forward.units * len(self.directions)


class WrittenDirection(NamedTuple):
    """Where one direction of one layer lies in the file.

    Attributes:
        layer: index, from 0.
        direction: "forward" or "backward".
        paths: "kernel", "recurrent_kernel" and, where there is one, "bias" to a dataset's path.
    """

    layer: int
    direction: str
    paths: dict[str, str]


def write_stack(
    path: Path, stack_name: str, layers: Sequence[LayerWeights], activation: str | None = None
) -> tuple[WrittenDirection, ...]:
    """Write a stack as a Keras whole-model HDF5 file. The same input makes the same bytes.

    Args:
        path: of the file; replaced where it exists. Keras wants a name that ends in .h5.
        stack_name: scope of the stack; its last part names the layers, e.g. "enc/cudnn_lstm" the
            layers cudnn_lstm_0, cudnn_lstm_1, ...
        layers: from the bottom up; all return sequences.
        activation: Keras' name of another one than the cell's own.

    Returns:
        Where each tensor lies, layer by layer, forward before backward.

    Raises:
        NotConvertibleError: the weights are bfloat16, which HDF5 files of Keras can't hold.
        ValueError: no layers, or layers that don't fit on one another.
    """
    _require_stack(layers)
    name = _keras_name(stack_name.rstrip("/").rpartition("/")[2])
    names = [f"{name}_{index}" for index in range(len(layers))]
    config = _model_config(_keras_name(stack_name), names, layers, activation)
    written: list[WrittenDirection] = []
    tensors = _Tensors()
    with safe_h5.open_h5(path, "w") as file:
        write_text_attribute(file, "backend", "tensorflow")
        write_text_attribute(file, "keras_version", KERAS_VERSION)
        write_text_attribute(file, "model_config", json.dumps(config))
        weights = file.create_group("model_weights")
        write_text_attribute(weights, "backend", "tensorflow")
        write_text_attribute(weights, "keras_version", KERAS_VERSION)
        write_names(weights, "layer_names", names)
        for index, (layer_name, layer) in enumerate(zip(names, layers, strict=True)):
            group = weights.create_group(layer_name)
            written += _write_layer(group, index, layer_name, layer, tensors)
    tensors.fill(path)
    return tuple(written)


def write_stack_weights(path: Path, layers: Sequence[LayerWeights]) -> tuple[WrittenDirection, ...]:
    """Write a stack's weights as Keras 3's `.weights.h5`, for a Sequential of its layers alone.

    Args:
        path: of the file; replaced where it exists. Keras wants a name that ends in .weights.h5.
        layers: from the bottom up.

    Returns:
        Where each tensor lies, layer by layer, forward before backward.

    Raises:
        NotConvertibleError, ValueError: as `write_stack`.
    """
    _require_stack(layers)
    written: list[WrittenDirection] = []
    tensors = _Tensors()
    with safe_h5.open_h5(path, "w") as file:
        for index, layer in enumerate(layers):
            own = _VARIABLE_NAMES[_CLASSES[layer.forward.cell][0]]
            name = own if layer.backward is None else "bidirectional"
            group = f"layers/{name}" + (f"_{index}" if index else "")
            # Keras up to 3.2 asks for the variables of every object, those without any too.
            empty = ["", group] if layer.backward is None else [
                "", group, f"{group}/layer", f"{group}/layer/cell"
            ]  # fmt: skip
            for place in empty:
                file.require_group(f"{place}/vars")
            for direction, weights in layer.directions.items():
                inner = group if layer.backward is None else f"{group}/{direction}_layer"
                paths = {}
                for number, (kind, array) in enumerate(_keras_tensors(weights).items()):
                    paths[kind] = f"{inner}/cell/vars/{number}"
                    tensors.create(file, paths[kind], array)
                file.require_group(f"{inner}/vars")
                written.append(WrittenDirection(index, direction, paths))
    tensors.fill(path)
    return tuple(written)


def layer_arrays(stack_name: str, layers: Sequence[LayerWeights]) -> dict[str, Array | Filled]:
    """The stack's tensors in Keras' layout, for an .npz file.

    Names are SCOPE/layer_0/forward/kernel, .../recurrent_kernel and .../bias; SCOPE is
    `stack_name` as it is.
    """
    scope = stack_name.strip("/")
    return {
        "/".join([*([scope] if scope else []), f"layer_{index}", direction, kind]): array
        for index, layer in enumerate(layers)
        for direction, weights in layer.directions.items()
        for kind, array in _keras_tensors(weights).items()
    }


# --- datasets -------------------------------------------------------------------------------


@dataclass
class _Tensors:
    """Datasets that are made, and those of them whose numbers are to be filled in past HDF5.

    Attributes:
        waiting: the offset of each in the file, and what fills it.
    """

    waiting: list[tuple[int, Filled]] = field(default_factory=list)

    def create(self, group: h5py.Group, name: str, tensor: Array | Filled) -> None:
        """Make a dataset. Without times: the file's bytes shall depend on the weights only."""
        if not isinstance(tensor, Filled):
            group.create_dataset(name, data=tensor, track_times=False)
            return
        dataset = group.create_dataset(name, tensor.shape, tensor.dtype, track_times=False)
        dataset[0, 0] = 0  # HDF5 gives a dataset its place with the first number that is written
        offset = dataset.id.get_offset()
        assert offset is not None
        self.waiting.append((offset, tensor))

    def fill(self, path: Path) -> None:
        """Write the numbers, once HDF5 has closed the file."""
        if self.waiting:
            with open_raw(path, writes=True) as file:
                for offset, tensor in self.waiting:
                    tensor.fill(file, offset)


def _write_layer(
    group: h5py.Group, index: int, name: str, layer: LayerWeights, tensors: _Tensors
) -> tuple[WrittenDirection, ...]:
    """Write a layer's tensors under the names that Keras 2 gives its variables."""
    inner = _VARIABLE_NAMES[_CLASSES[layer.forward.cell][0]]
    names: list[str] = []
    written: list[WrittenDirection] = []
    for direction, weights in layer.directions.items():
        parts = [name, f"{inner}_cell"]
        if layer.backward is not None:
            parts.insert(1, f"{direction}_{inner}")
        paths: dict[str, str] = {}
        for kind, array in _keras_tensors(weights).items():
            variable = "/".join([*parts, f"{kind}:0"])
            tensors.create(group, variable, array)
            names.append(variable)
            paths[kind] = f"model_weights/{name}/{variable}"
        written.append(WrittenDirection(index, direction, paths))
    write_names(group, "weight_names", names)
    return tuple(written)


def _keras_tensors(weights: RnnWeights | UnreadWeights) -> Mapping[str, Array | Filled]:
    """Kernel, recurrent kernel and bias, in the order in which Keras saves them."""
    if isinstance(weights, RnnWeights):
        return pack(find("keras", weights.cell), weights)
    return weights.keras_tensors()


# --- config ---------------------------------------------------------------------------------


def _model_config(
    model_name: str, names: Sequence[str], layers: Sequence[LayerWeights], activation: str | None
) -> dict[str, Any]:
    first = layers[0].forward
    entry = {
        "class_name": "InputLayer",
        "config": {
            "batch_input_shape": [None, None, first.input_dim],
            "dtype": first.dtype.name,
            "sparse": False,
            "name": f"{names[0]}_input",
        },
    }
    members = [
        _layer_config(name, layer, activation) for name, layer in zip(names, layers, strict=True)
    ]
    return {
        "class_name": "Sequential",
        "config": {"name": model_name, "layers": [entry, *members]},
    }


def _layer_config(name: str, layer: LayerWeights, activation: str | None) -> dict[str, Any]:
    """The layer dict; a Bidirectional builds its backward layer from the forward one's config."""
    weights = layer.forward
    class_name, meaning = _CLASSES[weights.cell]
    bidirectional = layer.backward is not None
    config = {
        "name": _VARIABLE_NAMES[class_name] if bidirectional else name,
        "trainable": True,
        "dtype": weights.dtype.name,
        "return_sequences": True,
        "return_state": False,
        "go_backwards": False,
        "stateful": False,
        "unroll": False,
        "units": weights.units,
        "use_bias": weights.bias is not None,
        **meaning,
        **({"activation": activation} if activation else {}),
    }
    if weights.dtype.name == "float16":
        # Keras on torch can't compute the default (orthogonal) in float16, and new weights need it.
        config["recurrent_initializer"] = "glorot_uniform"
    plain = {"class_name": class_name, "config": config}
    if not bidirectional:
        return plain
    # Keras 3 looks a wrapped layer up by its module; Keras 2 reads on past it.
    wrapped = {"module": "keras.layers", **plain, "registered_name": None}
    return {
        "class_name": "Bidirectional",
        "config": {
            "name": name,
            "trainable": True,
            "dtype": weights.dtype.name,
            "layer": wrapped,
            "merge_mode": "concat",
        },
    }


def _keras_name(scope: str) -> str:
    """A name that Keras 2 and 3 take: letters, digits and underscores, no underscore in front."""
    name = re.sub(r"[^A-Za-z0-9_]", "_", scope).strip("_")
    return name[:_LONGEST_NAME] or "rnn"


# --- checks ---------------------------------------------------------------------------------


def _facts(weights: RnnWeights | UnreadWeights) -> tuple[str, int, int, bool, str]:
    """Cell, input size, units, whether there is a bias, dtype."""
    has_bias = weights.bias is not None
    return weights.cell, weights.input_dim, weights.units, has_bias, weights.dtype.name


def _require_stack(layers: Sequence[LayerWeights]) -> None:
    if not layers:
        raise ValueError("a stack needs at least one layer")
    dtypes = sorted({layer.forward.dtype.name for layer in layers})
    if len(dtypes) != 1:
        raise ValueError(f"expected layers of one dtype, found {', '.join(dtypes)}")
    if dtypes[0] not in _DTYPES:
        raise NotConvertibleError(
            f"weights of {dtypes[0]} have no place in a Keras HDF5 file; expected one of "
            f"{', '.join(_DTYPES)}; widen them to float32, which is exact"
        )
    for index in range(1, len(layers)):
        below, inputs = layers[index - 1].output_size, layers[index].forward.input_dim
        if inputs != below:
            raise ValueError(
                f"layer {index} has {inputs} inputs, but layer {index - 1} has {below} outputs"
            )

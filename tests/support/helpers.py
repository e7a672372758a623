"""What several tests share: small models built by hand, and ways to look at files."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np

GATES = {"lstm": 4, "gru": 3}
CUDNN = {"lstm": "CuDNNLSTM", "gru": "CuDNNGRU"}

LSTM_KERNEL = "model_weights/cu_lstm/cu_lstm/kernel:0"
LSTM_BIAS = "model_weights/cu_lstm/cu_lstm/bias:0"
GRU_BIAS = "model_weights/cu_gru/cu_gru/bias:0"


@dataclass(frozen=True)
class Result:
    """What a run of the command line left behind."""

    code: int
    out: str
    err: str


def make_model_h5(
    path: Path,
    *,
    cells: Sequence[str] = ("lstm", "gru"),
    names: Sequence[str] = ("cu_lstm", "cu_gru"),
    units: Sequence[int] = (6, 4),
    input_dim: int = 5,
    dtype: str = "float32",
    suffix: str = ":0",
    whole: bool = True,
    keras_version: str = "2.2.4",
    extra_layers: Sequence[dict[str, Any]] = (),
    **storage: Any,
) -> Path:
    """Write a Sequential of CuDNN layers as Keras 2.2 lays it out, with random weights.

    Args:
        path: of the file.
        cells, names, units: one item per layer; no layer has as many units as inputs.
        suffix: of the variables' names; "" is how Keras wrote them on Theano.
        whole: a whole model, or weights only.
        extra_layers: layer dicts put behind the others; they have no weights.
        **storage: of every dataset, as for h5py's `create_dataset`.
    """
    generator = np.random.default_rng(7)
    layers = []
    with h5py.File(path, "w") as file:
        weights = file.create_group("model_weights") if whole else file
        weights.attrs["keras_version"] = keras_version.encode()
        weights.attrs["backend"] = b"tensorflow"
        weights.attrs["layer_names"] = [name.encode() for name in names]
        width = input_dim
        for cell, name, size in zip(cells, names, units, strict=True):
            columns = GATES[cell] * size
            shapes = {
                "kernel": (width, columns),
                "recurrent_kernel": (size, columns),
                "bias": (2 * columns,),
            }
            group = weights.create_group(name)
            variables = [f"{name}/{kind}{suffix}" for kind in shapes]
            for variable, shape in zip(variables, shapes.values(), strict=True):
                values = generator.normal(0.0, 0.4, shape).astype(dtype)
                group.create_dataset(variable, data=values, **storage)
            group.attrs["weight_names"] = [variable.encode() for variable in variables]
            config = {"name": name, "trainable": True, "units": size, "return_sequences": True}
            if not layers:
                config["batch_input_shape"] = [None, None, input_dim]
            layers.append({"class_name": CUDNN[cell], "config": config})
            width = size
        if whole:
            config = {"name": "sequential_1", "layers": [*layers, *extra_layers]}
            model = {"class_name": "Sequential", "config": config}
            file.attrs["model_config"] = json.dumps(model)
            file.attrs["keras_version"] = keras_version.encode()
            file.attrs["backend"] = b"tensorflow"
    return path


def read_config(path: Path) -> dict[str, Any]:
    with h5py.File(path) as file:
        return json.loads(file.attrs["model_config"])


def write_config(path: Path, config: Any) -> None:
    with h5py.File(path, "r+") as file:
        file.attrs["model_config"] = json.dumps(config)


def replace_dataset(path: Path, name: str, values: Any, **storage: Any) -> None:
    """Another dataset under an existing name."""
    with h5py.File(path, "r+") as file:
        del file[name]
        file.create_dataset(name, data=values, **storage)


def snapshot(directory: Path) -> dict[str, bytes]:
    """Every file below a directory, and its bytes."""
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    }

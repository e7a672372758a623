"""Write the model files that the benchmarks convert: Keras 2 style whole-model .h5 files.

usage: python make_model.py KIND OUT.h5      KIND: m50 m500 m2000, or a number of units, e.g. 16384
       python make_model.py small:100 FOLDER          as many small models, no two alike

m500 is a CuDNNLSTM(2048) twice, a CuDNNGRU(1024) and an Embedding; m2000 an Embedding of 1.2 GB and
a CuDNNLSTM(4096) twice. A number makes one CuDNNLSTM of so many units behind a small Embedding.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np

GATES = {"CuDNNLSTM": 4, "CuDNNGRU": 3}
MODELS = {
    "m50": (3_000, 256, [("CuDNNLSTM", 1024), ("CuDNNLSTM", 512)]),
    "m500": (75_000, 1024, [("CuDNNLSTM", 2048), ("CuDNNLSTM", 2048), ("CuDNNGRU", 1024)]),
    "m2000": (290_000, 1024, [("CuDNNLSTM", 4096), ("CuDNNLSTM", 4096)]),
}
"""Rows and columns of the Embedding, and the recurrent layers."""

Layer = tuple[str, dict[str, Any], dict[str, tuple[int, ...]]]
"""Class, config, and the shapes of the weights."""


def layers_of(rows: int, width: int, recurrent: list[tuple[str, int]]) -> Iterator[Layer]:
    config: dict[str, Any] = {"input_dim": rows, "output_dim": width, "dtype": "float32"}
    config["batch_input_shape"] = [None, None]
    yield "Embedding", config, {"embeddings": (rows, width)}
    yield from recurrent_layers(width, recurrent)


def recurrent_layers(width: int, recurrent: list[tuple[str, int]]) -> Iterator[Layer]:
    for class_name, units in recurrent:
        gates = GATES[class_name]
        shapes = {
            "kernel": (width, gates * units),
            "recurrent_kernel": (units, gates * units),
            "bias": (2 * gates * units,),
        }
        yield class_name, {"units": units, "return_sequences": True}, shapes
        width = units


def small_layers(number: int) -> Iterator[Layer]:
    """An LSTM or two, a GRU and a Dense layer, of sizes by `number`."""
    width, units = 5 + number % 3, 16 + number % 7
    names = [("CuDNNLSTM", units), ("CuDNNGRU", units + 3), ("CuDNNLSTM", units + 1)]
    (first, config, shapes), *rest = recurrent_layers(width, names[: 2 + number % 2])
    yield first, {**config, "batch_input_shape": [None, None, width]}, shapes
    yield from rest
    inputs = names[1 + number % 2][1]
    config = {"units": 4, "activation": "linear", "use_bias": True}
    yield "Dense", config, {"kernel": (inputs, 4), "bias": (4,)}


def write(path: Path, layers: list[Layer], seed: int = 0) -> None:
    generator = np.random.default_rng(seed)
    names = [f"{kind.lower()}_{place}" for place, (kind, _, _) in enumerate(layers)]
    configs = [
        {"class_name": kind, "config": {"name": name, "trainable": True, **config}}
        for name, (kind, config, _) in zip(names, layers, strict=True)
    ]
    model = {"class_name": "Sequential", "config": {"name": "model", "layers": configs}}
    with h5py.File(path, "w") as file:
        weights = file.create_group("model_weights")
        for place in (file, weights):
            place.attrs["keras_version"] = "2.2.4"
            place.attrs["backend"] = "tensorflow"
        file.attrs["model_config"] = json.dumps(model)
        weights.attrs["layer_names"] = [name.encode() for name in names]
        for name, (_, _, shapes) in zip(names, layers, strict=True):
            group = weights.create_group(name)
            group.attrs["weight_names"] = [f"{name}/{kind}:0".encode() for kind in shapes]
            for kind, shape in shapes.items():
                dataset = group.create_dataset(f"{name}/{kind}:0", shape, "float32")
                rows = max(1, 2**22 // int(np.prod(shape[1:])))
                for start in range(0, shape[0], rows):
                    part = (min(rows, shape[0] - start), *shape[1:])
                    values = generator.standard_normal(part, np.float32) * np.float32(0.05)
                    dataset[start : start + rows] = values


def main(kind: str, path: Path) -> None:
    if kind.startswith("small:"):
        path.mkdir(exist_ok=True)
        for number in range(int(kind.partition(":")[2])):
            write(path / f"model{number:03}.h5", list(small_layers(number)), number)
    elif kind.isdigit():
        write(path, list(layers_of(1_000, 512, [("CuDNNLSTM", int(kind))])))
    else:
        write(path, list(layers_of(*MODELS[kind])))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))

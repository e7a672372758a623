"""Write a Keras 2 style whole-model .h5 of a given size: an Embedding and big CuDNNLSTM layers.

usage: python make_model.py SIZE_MB OUT.h5
"""

from __future__ import annotations

import json
import sys

import h5py
import numpy as np

UNITS = 1024


def lstm_config(name: str) -> dict[str, object]:
    return {
        "class_name": "CuDNNLSTM",
        "config": {"name": name, "trainable": True, "units": UNITS, "return_sequences": True},
    }


def write(megabytes: int, path: str) -> None:
    """Half a tenth of the size goes into the Embedding, the rest into CuDNNLSTM(1024) layers."""
    layer_bytes = 4 * (UNITS * 4 * UNITS * 2 + 8 * UNITS)
    layers = max(1, int(megabytes * 1e6 * 0.95) // layer_bytes)
    rows = max(1, int(megabytes * 1e6 - layers * layer_bytes) // (4 * UNITS))
    generator = np.random.default_rng(0)
    names = ["embedding_1", *(f"cu_dnnlstm_{i}" for i in range(1, layers + 1))]
    embedding = {
        "class_name": "Embedding",
        "config": {
            "name": names[0],
            "batch_input_shape": [None, None],
            "input_dim": rows,
            "output_dim": UNITS,
            "dtype": "float32",
        },
    }
    config = {
        "class_name": "Sequential",
        "config": {"name": "big", "layers": [embedding, *(lstm_config(n) for n in names[1:])]},
    }
    with h5py.File(path, "w") as file:
        file.attrs["keras_version"] = "2.2.4"
        file.attrs["backend"] = "tensorflow"
        file.attrs["model_config"] = json.dumps(config)
        weights = file.create_group("model_weights")
        weights.attrs["layer_names"] = [name.encode() for name in names]
        weights.attrs["keras_version"] = "2.2.4"
        weights.attrs["backend"] = "tensorflow"
        shapes = {
            "kernel": (UNITS, 4 * UNITS),
            "recurrent_kernel": (UNITS, 4 * UNITS),
            "bias": (8 * UNITS,),
        }
        for name in names:
            group = weights.create_group(name)
            own = {"embeddings": (rows, UNITS)} if name == names[0] else shapes
            group.attrs["weight_names"] = [f"{name}/{kind}:0".encode() for kind in own]
            for kind, shape in own.items():
                values = generator.standard_normal(shape, np.float32) * 0.05
                group.create_dataset(f"{name}/{kind}:0", data=values)


if __name__ == "__main__":
    write(int(sys.argv[1]), sys.argv[2])

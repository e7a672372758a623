"""Write a TensorFlow checkpoint of about 1 GB with 4 layers of LSTM(2048), and an embedding.

usage: python make_checkpoint.py PREFIX [buffer|both|cells]

What it holds of the LSTM: cuDNN's buffer alone (the default), as TensorFlow 1 saves it with the
tensors of cells beside it ("both"), or cells alone, of BasicLSTMCell.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from rnnconvert.containers.checkpoint import data_path, index_path, write_checkpoint
from rnnconvert.layouts.opaque import unpack_buffer
from rnnconvert.layouts.opaque_shape import OpaqueShape
from rnnconvert.layouts.tf1_cells import CUDNN_LSTM, pack_tf1

SHAPE = OpaqueShape("lstm", 4, 2048, 512)
CELLS = {"both": "cudnn_compatible_lstm_cell", "cells": "basic_lstm_cell"}


def main(prefix: Path, kind: str) -> None:
    generator = np.random.default_rng(0)
    buffer = generator.standard_normal(SHAPE.size, np.float32) * np.float32(0.02)
    tensors = {
        "embedding": generator.standard_normal((240_000, 512), np.float32),
        "global_step": np.array(7, np.int64),
    }
    if kind != "cells":
        tensors["cudnn_lstm/opaque_kernel"] = buffer
    for layer in unpack_buffer(SHAPE, buffer) if kind in CELLS else ():
        scope = f"cudnn_lstm/rnn/multi_rnn_cell/cell_{layer.layer}/{CELLS[kind]}"
        for name, tensor in pack_tf1(CUDNN_LSTM, layer.weights()).items():
            tensors[f"{scope}/{name}"] = tensor
    write_checkpoint(index_path(prefix), data_path(prefix), tensors)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else "buffer")

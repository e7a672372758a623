"""Write a TensorFlow checkpoint of 0.5 to 1 GB with one cuDNN buffer: 4 layers of LSTM(2048).

usage: python make_checkpoint.py PREFIX
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from rnnconvert.containers.checkpoint import data_path, index_path, write_checkpoint
from rnnconvert.layouts.opaque_shape import OpaqueShape

SHAPE = OpaqueShape("lstm", 4, 2048, 512)


def main(prefix: Path) -> None:
    generator = np.random.default_rng(0)
    tensors = {
        "cudnn_lstm/opaque_kernel": generator.standard_normal(SHAPE.size, np.float32),
        "embedding": generator.standard_normal((240_000, 512), np.float32),
        "global_step": np.array(7, np.int64),
    }
    write_checkpoint(index_path(prefix), data_path(prefix), tensors)


if __name__ == "__main__":
    main(Path(sys.argv[1]))

"""Cells, canonical weights, and every layout as data. Pure numpy, no files, no Keras.

>>> import numpy as np
>>> from rnnconvert import layouts
>>> cudnn = {"kernel": np.ones((3, 16)), "recurrent_kernel": np.ones((4, 16)),
...          "bias": np.ones(32)}
>>> {k: v.shape for k, v in layouts.convert(cudnn, "keras-cudnn", "keras", "lstm").items()}
{'kernel': (3, 16), 'recurrent_kernel': (4, 16), 'bias': (16,)}
"""

from rnnconvert.layouts.cells import CELLS, Cell, parameter_count, require_same_function
from rnnconvert.layouts.interpret import (
    contiguous,
    convert,
    copy_block,
    gate_slices,
    pack,
    pack_bias,
    relay_bias,
    relay_block,
    unpack,
    unpack_bias,
)
from rnnconvert.layouts.table import LAYOUTS, NAMES, BiasForm, Layout, MatrixForm, find
from rnnconvert.layouts.weights import RnnWeights, merge_bias, split_bias

__all__ = [
    "CELLS",
    "LAYOUTS",
    "NAMES",
    "BiasForm",
    "Cell",
    "Layout",
    "MatrixForm",
    "RnnWeights",
    "contiguous",
    "convert",
    "copy_block",
    "find",
    "gate_slices",
    "merge_bias",
    "pack",
    "pack_bias",
    "parameter_count",
    "relay_bias",
    "relay_block",
    "require_same_function",
    "split_bias",
    "unpack",
    "unpack_bias",
]

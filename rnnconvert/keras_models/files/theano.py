"""Keras 2's HDF5 files from Theano, whose convolutions turned their kernels round.

Keras 2 turns them when it loads such a file on another backend; Keras 3 does not know Theano.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np

from rnnconvert.containers import safe_h5
from rnnconvert.errors import NotConvertibleError
from rnnconvert.keras_models.config.builtin import KERAS_LAYERS
from rnnconvert.keras_models.config.changes import Changes
from rnnconvert.keras_models.config.theano import refuse_theano_padding
from rnnconvert.keras_models.config.tree import (
    MODEL_CLASSES,
    children,
    layer_name,
    root,
    show_path,
    walk,
)
from rnnconvert.keras_models.files.attributes import write_text_attribute
from rnnconvert.keras_models.files.h5 import MODEL, OPTIMIZER, KerasH5, open_keras_h5
from rnnconvert.keras_models.files.rebuilt import Rebuilt

_KERNELS = ("kernel", "recurrent_kernel")
"""Of convolutions, where they have more than two axes. Separable and depthwise ones, whose kernels
have other names, turned them round twice."""
_WITHOUT_KERNELS = {*KERAS_LAYERS, *MODEL_CLASSES, "ThresholdedReLU"}
"""Layers that have none of Theano's but those, if any."""


def rebuild_theano(source: Path, target: Path) -> Rebuilt:
    """Write a Keras 2 file of Theano as Keras on TensorFlow would have.

    Raises:
        NotConvertibleError: it pads as TensorFlow can't, or holds kernels and no config.
    """
    with open_keras_h5(source) as file:
        turned = _kernels(file)
        version = file.keras_version
        drops = bool(turned and file.optimizer_tensors)
    shutil.copyfile(source, target)
    with safe_h5.open_h5(target, "r+") as copy:
        for path in turned:
            dataset = safe_h5.get_dataset(copy, path)
            dataset[...] = np.flip(dataset[()], tuple(range(dataset.ndim - 2)))
        if drops:
            del copy[OPTIMIZER]
        owners = [copy]
        if safe_h5.has(copy, "model_weights"):
            owners.append(safe_h5.get_group(copy, "model_weights"))
        for owner in owners:
            write_text_attribute(owner, "backend", "tensorflow")
    left = "the optimizer's state is left out: it is of kernels that Theano turned round"
    return Rebuilt(version, (left,) if drops else ())


def _kernels(file: KerasH5) -> list[str]:
    """The datasets to turn round."""
    tensors = [tensor for group in file.groups.values() for tensor in group]
    large = [tensor for tensor in tensors if len(tensor.shape) > 2]
    if file.container != MODEL or file.model_config is None:
        if large:
            raise NotConvertibleError(
                f"{large[0].path}: a convolution of Theano in a file of weights alone, which does "
                "not say how it pads; the file of the whole model does"
            )
        return []
    changes, turned = Changes(), []
    for node in children(root(file.model_config)):
        path = show_path(node.path)
        inside = list(walk(node))
        for each in inside:
            refuse_theano_padding(each, changes)
        mine = [tensor for tensor in file.groups.get(layer_name(node.entry), [])
                if tensor in large and tensor.name.split("/")[-1] in _KERNELS]  # fmt: skip
        others = sorted({each.class_name for each in inside} - _WITHOUT_KERNELS)
        if mine and others:
            changes.problem(f"{path}: {', '.join(others)} on Theano, whose kernel may be turned")
        turned += [tensor.path for tensor in mine]
    if changes.problems:
        raise NotConvertibleError("\n".join(changes.problems))
    return turned

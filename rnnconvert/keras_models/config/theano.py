"""What Theano computes otherwise than TensorFlow, under the same name in a config."""

from __future__ import annotations

from typing import Any

from rnnconvert.keras_models.config.changes import Changes
from rnnconvert.keras_models.config.tree import Node, show_path

_POOLED_ALIKE = (1, 3)
"""Theano pads n - 2 on each side of an odd window of n, and n - 1 of an even one."""


def refuse_theano_padding(node: Node, changes: Changes) -> None:
    """Make a problem of padding "same" where Theano padded other sides than Keras 3.

    Theano pads a convolution by half its kernel on both sides. TensorFlow pads as much as it needs,
    and the odd one behind: that is the same for an odd kernel in steps of 1 alone.

    Args:
        node: in the keys of Keras 2.
        changes: collects the problem.
    """
    config, path = node.config, show_path(node.path)
    recurrent = node.class_name.startswith("ConvLSTM")  # its state is always padded
    sizes = _sizes(config.get("pool_size", config.get("kernel_size", 1)))
    steps = _sizes(config.get("strides", 1))
    steps = steps if len(steps) == len(sizes) else steps * len(sizes)
    if config.get("padding") != "same":
        steps = [1] * len(sizes)
        if not recurrent:
            return
    pooled = "pool_size" in config
    if all(
        size == 1 or (step == 1 and (size in _POOLED_ALIKE if pooled else size % 2 == 1))
        for size, step in zip(sizes, steps, strict=True)
    ):
        return
    what = "pooling over other sizes than 3" if pooled else "an even kernel"
    changes.problem(
        f"{path}: padding (border_mode) same with {what}, or in steps of more than 1, which Theano "
        "pads on other sides than Keras 3"
    )


def _sizes(value: Any) -> list[int]:
    return [int(size) for size in value] if isinstance(value, list | tuple) else [int(value)]

"""LSTM and GRU layers of a config as CuDNN layers of Keras 2, or why they can't be."""

from __future__ import annotations

import copy
from collections.abc import Iterator

from rnnconvert.errors import NotConvertibleError
from rnnconvert.keras_models.config.changes import Changes
from rnnconvert.keras_models.config.keras2_form import restore_model, restore_training
from rnnconvert.keras_models.config.masks import masked_layers
from rnnconvert.keras_models.config.port import Ported
from rnnconvert.keras_models.config.recurrent import (
    PORTABLE_CLASSES,
    activation_name,
    default_recurrent_activation,
)
from rnnconvert.keras_models.config.tree import Config, Node, parse_version, root, show_path, walk
from rnnconvert.layouts import require_same_function

CUDNN_OF = {portable: cudnn for cudnn, portable in PORTABLE_CLASSES.items()}
"""Plain class to the CuDNN class of the same function."""

_KEPT = frozenset(
    """
    name trainable dtype input_dtype batch_input_shape units return_sequences return_state
    go_backwards stateful kernel_initializer recurrent_initializer bias_initializer
    kernel_regularizer recurrent_regularizer bias_regularizer activity_regularizer
    kernel_constraint recurrent_constraint bias_constraint
    """.split()
)
"""What the constructors of Keras 2.2.4's and TensorFlow 2.15's CuDNN layers take."""

_KEPT_OF = {"LSTM": _KEPT | {"unit_forget_bias"}, "GRU": _KEPT}


def port_to_cudnn(model: Config, training: Config | None, keras_version: str | None) -> Ported:
    """Rewrite a model's config so that its LSTM and GRU layers are CuDNN layers.

    Args:
        model: the file's `model_config`; not changed.
        training: its `training_config`, or None.
        keras_version: of the writer, e.g. "2.2.4-tf"; the result is for that Keras.

    Returns:
        The config, as it was where there is no such layer. Every reason against is a problem.
    """
    changes = Changes()
    plain = [node for node in walk(root(model)) if node.class_name in CUDNN_OF]
    _warn_of_cells(model, changes)
    if not plain:
        return Ported(model, training, warnings=tuple(changes.warnings))
    version = parse_version(keras_version)
    if version is not None and version[0] >= 3:
        changes.problem(
            f"a model of Keras {keras_version}: CuDNN layers ended with Keras 2, which does not "
            "read a config of Keras 3; save the model with Keras 2 (tf_keras)"
        )
        return Ported(model, training, problems=tuple(changes.problems))
    model = copy.deepcopy(model)
    restore_model(model, keras_version, changes)
    masks = masked_layers(model)
    for node in walk(root(model)):
        if node.class_name in CUDNN_OF:
            for reason in _reasons_against(node, version, masks):
                changes.problem(f"{show_path(node.path)}: {reason}")
            _convert(node, changes)
    training = restore_training(training, keras_version, changes)
    return Ported(
        model, training, tuple(changes.changes), tuple(changes.warnings), tuple(changes.problems)
    )


def _convert(node: Node, changes: Changes) -> None:
    path, name = show_path(node.path), node.class_name
    changes.put(path, node.entry, "class_name", CUDNN_OF[name])
    for key in [key for key in node.config if key not in _KEPT_OF[name]]:
        changes.drop(path, node.config, key)


def _reasons_against(
    node: Node, version: tuple[int, ...] | None, masks: dict[str, str]
) -> Iterator[str]:
    """Why no CuDNN layer computes what this layer does."""
    config, cudnn = node.config, CUDNN_OF[node.class_name]
    activation = activation_name(config.get("activation", "tanh"))
    if activation != "tanh":
        yield f"activation {activation}, and {cudnn} has tanh only"
    default = default_recurrent_activation(node.class_name, version)
    recurrent = activation_name(config.get("recurrent_activation", default))
    if recurrent != "sigmoid":
        yield (
            f"recurrent_activation {recurrent}, and {cudnn} has sigmoid only, another function"
            + (" (hard_sigmoid is the default before Keras 2.3)" if recurrent == default else "")
        )
    if config.get("use_bias", True) is not True:
        yield f"use_bias=False, and {cudnn} always has biases; train with use_bias=True"
    if config.get("dropout"):
        yield (
            f"dropout={config['dropout']} inside the layer, which {cudnn} does not have: it would "
            "train otherwise; use a Dropout layer before it"
        )
    if config.get("recurrent_dropout"):
        yield f"recurrent_dropout={config['recurrent_dropout']}, which {cudnn} does not have"
    if config.get("unroll"):
        yield f"unroll=True, which {cudnn} does not have; it computes the same without"
    if config.get("time_major"):
        yield f"time_major=True, which not every {cudnn} has; make the layer batch-major"
    if node.class_name == "GRU" and config.get("reset_after") is not True:
        try:
            require_same_function("gru_reset_before", "gru")
        except NotConvertibleError as error:
            yield error.message
    if show_path(node.path) in masks:
        source = masks[show_path(node.path)]
        yield f"it gets a mask (from {source}), and {cudnn} refuses masks"


def _warn_of_cells(model: Config, changes: Changes) -> None:
    for node in walk(root(model)):
        if node.class_name == "RNN":
            changes.warn(
                f"{show_path(node.path)}: an RNN layer around cells stays as it is, cuDNN has no "
                "form of it"
            )

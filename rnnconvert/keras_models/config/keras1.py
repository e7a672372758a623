"""Configs of Keras 1 in the words of Keras 2: the same layers under other names and keys."""

from __future__ import annotations

import copy
from typing import Any

from rnnconvert.keras_models.config.builtin import KERAS_LAYERS
from rnnconvert.keras_models.config.changes import Changes
from rnnconvert.keras_models.config.keras1_spatial import port_spatial_layers
from rnnconvert.keras_models.config.tree import Config, Node, root, show_path, walk

_CLASSES = {
    "AtrousConvolution1D": "Conv1D", "AtrousConvolution2D": "Conv2D", "Convolution1D": "Conv1D",
    "Convolution2D": "Conv2D", "Convolution3D": "Conv3D", "Deconvolution2D": "Conv2DTranspose",
    "SeparableConvolution2D": "SeparableConv2D", "TimeDistributedDense": "Dense",
}  # fmt: skip

_KEYS = {
    "init": "kernel_initializer", "inner_init": "recurrent_initializer",
    "W_regularizer": "kernel_regularizer", "U_regularizer": "recurrent_regularizer",
    "b_regularizer": "bias_regularizer", "W_constraint": "kernel_constraint",
    "U_constraint": "recurrent_constraint", "b_constraint": "bias_constraint",
    "bias": "use_bias", "inner_activation": "recurrent_activation",
    "dropout_W": "dropout", "dropout_U": "recurrent_dropout", "nb_filter": "filters",
    "filter_length": "kernel_size", "subsample_length": "strides", "subsample": "strides",
    "border_mode": "padding", "dim_ordering": "data_format", "atrous_rate": "dilation_rate",
    "pool_length": "pool_size", "stride": "strides", "length": "size", "p": "rate",
    "sigma": "stddev", "beta_init": "beta_initializer", "gamma_init": "gamma_initializer",
}  # fmt: skip
"""Key of Keras 1 to key of Keras 2; those of single classes are in `_rename_keys`."""

_GONE = ("consume_less", "input_dim", "input_length")
"""Keys that say nothing any more: how it is computed, and what the input's shape says as well."""

_INITIALIZERS = {
    "zero": "zeros", "one": "ones", "uniform": "random_uniform", "normal": "random_normal",
    "identity": "identity", "orthogonal": "orthogonal", "lecun_uniform": "lecun_uniform",
    "glorot_uniform": "glorot_uniform", "glorot_normal": "glorot_normal",
    "he_uniform": "he_uniform", "he_normal": "he_normal",
}  # fmt: skip
_MERGES = {"sum": "Add", "mul": "Multiply", "ave": "Average", "max": "Maximum"}
_REFUSED = ("Highway", "MaxoutDense", "SReLU", "ParametricSoftplus", "LocallyConnected1D",
            "LocallyConnected2D")  # fmt: skip
_RECURRENT = ("LSTM", "GRU", "SimpleRNN", "ConvLSTM2D")


def port_keras1(model: Config, *, theano: bool = False) -> tuple[Config, Changes]:
    """A model config of Keras 1 as Keras 2.2 would have written it.

    Args:
        model: the file's `model_config`; not changed.
        theano: whether Theano computed it, which pads in other places than TensorFlow.

    Returns:
        The new config, and what was done, with the problems of what has no counterpart.
    """
    model, changes = copy.deepcopy(model), Changes()
    for node in walk(root(model)):
        if "config" in node.entry and node.role != "model":
            _port_layer(node, changes)
        if isinstance(node.entry.get("config"), list):
            _refuse_merged_start(node, changes)
    port_spatial_layers(model, changes, theano=theano)
    return model, changes


def _port_layer(node: Node, changes: Changes) -> None:
    path, name, config = show_path(node.path), node.class_name, node.config
    if name in _REFUSED:
        changes.problem(f"{path}: {name} of Keras 1 has no counterpart in Keras 2 or 3")
        return
    if name == "Merge":
        _port_merge(path, node, changes)
        return
    if name not in KERAS_LAYERS and name not in _CLASSES and name != "ThresholdedReLU":
        return
    if name == "BatchNormalization" and config.pop("mode", 0) != 0:
        changes.problem(f"{path}: BatchNormalization(mode=1 or 2), which ended with Keras 1")
    if name in _CLASSES:
        changes.put(path, node.entry, "class_name", _CLASSES[name])
    for key, value in list(config.items()):
        new = _new_key(name, key)
        if new != key:
            del config[key]
            if new is not None:
                config[new] = value
    _port_values(path, node.class_name, config, changes)


def _new_key(name: str, key: str) -> str | None:
    """The key's name in Keras 2; None for a key that is gone."""
    if name == "Embedding":
        names = {"init": "embeddings_initializer", "W_regularizer": "embeddings_regularizer",
                 "W_constraint": "embeddings_constraint", "dropout": None}  # fmt: skip
        return names.get(key, key)
    if key in _GONE or (key in ("nb_row", "nb_col", "kernel_dim1", "kernel_dim2", "kernel_dim3")):
        return None if key in _GONE else key
    if key == "output_dim":
        return "units"
    if key == "forget_bias_init":
        return "unit_forget_bias"
    if name == "PReLU" and key == "init":
        return "alpha_initializer"
    return _KEYS.get(key, key)


def _port_values(path: str, name: str, config: Config, changes: Changes) -> None:
    sizes = [config.pop(key) for key in ("nb_row", "nb_col") if key in config]
    sizes += [config.pop(f"kernel_dim{i}") for i in (1, 2, 3) if f"kernel_dim{i}" in config]
    if sizes:
        config["kernel_size"] = sizes
    if "data_format" in config:
        formats = {"tf": "channels_last", "th": "channels_first"}
        config["data_format"] = formats.get(config["data_format"], config["data_format"])
    if "unit_forget_bias" in config:
        config["unit_forget_bias"] = config["unit_forget_bias"] == "one"
    for key, value in list(config.items()):
        if key.endswith("_initializer") and isinstance(value, str):
            config[key] = _INITIALIZERS.get(value, "glorot_uniform")
        elif key.endswith("_regularizer"):
            config[key] = _regularizer(path, key, value, changes)
        elif key.endswith("_constraint"):
            config[key] = _constraint(path, key, value, changes)
    if name in _RECURRENT:
        config.setdefault("use_bias", True)
        if name != "SimpleRNN":
            config.setdefault("recurrent_activation", "hard_sigmoid")
    if name == "GRU":
        config["reset_after"] = False


def _regularizer(path: str, key: str, value: Any, changes: Changes) -> Config | None:
    if not isinstance(value, dict):
        return None
    if not {"l1", "l2"} & set(value):
        changes.warn(f"{path}: {key} {value.get('name')} left out; it matters to training only")
        return None
    factors = {name: float(value.get(name) or 0.0) for name in ("l1", "l2")}
    return {"class_name": "L1L2", "config": factors}


def _constraint(path: str, key: str, value: Any, changes: Changes) -> Config | None:
    if not isinstance(value, dict):
        return None
    name = str(value.get("name"))
    known = {"maxnorm": "MaxNorm", "nonneg": "NonNeg", "unitnorm": "UnitNorm"}
    config = {"max_value": value["m"]} if "m" in value else {}
    if "axis" in value:
        config["axis"] = value["axis"]
    if name.lower() not in known:
        changes.warn(f"{path}: {key} {name} left out; it matters to training only")
        return None
    return {"class_name": known[name.lower()], "config": config}


def _port_merge(path: str, node: Node, changes: Changes) -> None:
    """`merge([a, b], mode=...)`: a layer for each mode."""
    config = node.config
    mode = config.get("mode")
    new: Config = {"name": config.get("name"), "trainable": config.get("trainable", True)}
    if "layers" in config:
        changes.problem(f"{path}: a Merge of models in a Sequential, which ended with Keras 1")
    elif mode in _MERGES:
        node.entry["class_name"], node.entry["config"] = _MERGES[mode], new
    elif mode == "concat":
        new["axis"] = config.get("concat_axis", -1)
        node.entry["class_name"], node.entry["config"] = "Concatenate", new
    elif mode == "dot" and _are_axes(config.get("dot_axes")):
        new |= {"axes": config["dot_axes"], "normalize": False}
        node.entry["class_name"], node.entry["config"] = "Dot", new
    else:
        changes.problem(f"{path}: Merge(mode={mode!r}) of Keras 1 has no counterpart in Keras 3")


def _are_axes(value: Any) -> bool:
    if isinstance(value, list):
        return len(value) == 2 and all(isinstance(axis, int) for axis in value)
    return isinstance(value, int)


def _refuse_merged_start(node: Node, changes: Changes) -> None:
    """A Sequential of Keras 1 that starts with a Merge of other models."""
    first = (node.entry["config"] or [{}])[0]
    if isinstance(first, dict) and first.get("class_name") == "Merge":
        place = show_path(node.path)
        changes.problem(f"{place}: a Merge of models in a Sequential, which ended with Keras 1")

"""Repairs of single layers, so that Keras 3 and Keras 2 both read their config.

Each repair is small, keeps the layer's meaning, and does nothing to a config that is fine. The
obstacles were found by loading files of Keras 2.1 to 2.15 in Keras 3.
"""

from __future__ import annotations

from typing import Any

from rnnconvert.keras_models.config import lambdas
from rnnconvert.keras_models.config.builtin import GONE_IN_KERAS_3, KERAS_LAYERS, UNKNOWN_IN_KERAS_3
from rnnconvert.keras_models.config.changes import Changes
from rnnconvert.keras_models.config.objects import repair_objects
from rnnconvert.keras_models.config.recurrent import (
    CUDNN_CLASSES,
    GRU_CLASSES,
    PORTABLE_CLASSES,
    RECURRENT_CLASSES,
    activation_name,
    default_recurrent_activation,
)
from rnnconvert.keras_models.config.tensorflow_calls import CALL_CLASSES
from rnnconvert.keras_models.config.tree import Config, Node, is_operation, show_path

_WITHOUT_IMPLEMENTATION = frozenset(
    "GRU SimpleRNN SimpleRNNCell ConvLSTM1D ConvLSTM2D ConvLSTM3D ConvLSTM2DCell".split()
)
"""Keras 2.0 wrote the key for all; Keras 3 refuses it on these, up to 3.3 on a GRU, too."""
_TIME_MAJOR_CLASSES = (*RECURRENT_CLASSES, "RNN", "Bidirectional")

_HARD_SIGMOID_KERAS2 = {
    "module": "rnnconvert.keras",
    "class_name": "function",
    "config": "hard_sigmoid_keras2",
    "registered_name": "hard_sigmoid_keras2",
}


def repair_layer(
    node: Node,
    version: tuple[int, ...] | None,
    target: str,
    changes: Changes,
    *,
    original: bool = False,
) -> None:
    """Apply every repair that concerns this one layer dict.

    Args:
        node: the layer; its dict is changed in place.
        version: of the Keras that wrote the file, None if unknown.
        target: "keras3" or "keras2", where one form can't serve both.
        changes: collects what was done.
        original: leave CuDNN layers what they are.
    """
    if isinstance(node.entry.get("config"), list):
        return  # a list-style Sequential: `structure` turns it into a dict
    if is_operation(node.entry):
        return
    path = show_path(node.path)
    config = node.config
    if not original:
        _convert_cudnn(path, node, changes)
    _make_recurrent_explicit(path, node, version, changes)
    _repair_batch_normalization(path, node, changes)
    _drop_unknown_keys(path, node, target, changes)
    repair_objects(path, config, target, changes)
    _repair_dtype(path, config, changes)
    _envelope(path, node, changes)
    _name_foreign_layers(path, node, changes)


def _convert_cudnn(path: str, node: Node, changes: Changes) -> None:
    """CuDNNLSTM to LSTM, CuDNNGRU to GRU(reset_after=True): cuDNN's function, spelled out."""
    if node.class_name not in CUDNN_CLASSES:
        return
    config = node.config
    gru = CUDNN_CLASSES[node.class_name] == "gru"
    changes.put(path, node.entry, "class_name", PORTABLE_CLASSES[node.class_name])
    changes.put(path, config, "activation", "tanh")
    changes.put(path, config, "recurrent_activation", "sigmoid")
    changes.put(path, config, "use_bias", True)
    changes.put(path, config, "dropout", 0.0)
    changes.put(path, config, "recurrent_dropout", 0.0)
    if gru:
        changes.put(path, config, "reset_after", True)


def _make_recurrent_explicit(
    path: str, node: Node, version: tuple[int, ...] | None, changes: Changes
) -> None:
    """Write out the defaults that Keras 3 changed, as they were when the file was written."""
    if node.class_name not in RECURRENT_CLASSES or node.class_name in CUDNN_CLASSES:
        return
    config = node.config
    default = default_recurrent_activation(node.class_name, version)
    if "use_bias" not in config:
        changes.put(path, config, "use_bias", True)
    if default is not None and "recurrent_activation" not in config:
        changes.put(path, config, "recurrent_activation", default)
    if "activation" not in config:
        changes.put(path, config, "activation", "tanh")
    if node.class_name in GRU_CLASSES and "reset_after" not in config:
        changes.put(path, config, "reset_after", False)


def _drop_unknown_keys(path: str, node: Node, target: str, changes: Changes) -> None:
    """Drop keys that Keras 3 refuses and that no longer mean anything."""
    config = node.config
    if node.class_name in _TIME_MAJOR_CLASSES and config.get("time_major") is not True:
        changes.drop(path, config, "time_major")
    for key in UNKNOWN_IN_KERAS_3.get(node.class_name, ()) if target == "keras3" else ():
        changes.drop(path, config, key)
    if node.class_name in _WITHOUT_IMPLEMENTATION and target == "keras3":
        changes.drop(path, config, "implementation")
    if node.class_name != "InputLayer":
        for key in ("batch_input_shape", "input_dtype", "ragged"):
            changes.drop(path, config, key)


def _repair_dtype(path: str, config: Config, changes: Changes) -> None:
    """A dtype of null, or an old policy object, as Keras 3 wants it."""
    if config.get("dtype", "") is None:
        changes.drop(path, config, "dtype")
    dtype: Any = config.get("dtype")
    if isinstance(dtype, dict) and dtype.get("class_name") in ("Policy", "PolicyV1"):
        changes.put(path, config, "dtype", dtype["config"]["name"])


def _repair_batch_normalization(path: str, node: Node, changes: Changes) -> None:
    if node.class_name.removeprefix("Sync") not in ("BatchNormalization", "BatchNormalizationV1"):
        return
    config = node.config
    if node.class_name != "BatchNormalization":
        changes.put(path, node.entry, "class_name", "BatchNormalization")
    axis = config.get("axis")
    if isinstance(axis, list) and len(axis) == 1:
        changes.put(path, config, "axis", axis[0])
    if config.get("renorm"):
        changes.problem(f"{path}: BatchNormalization(renorm=True) has no form in Keras 3")


def _envelope(path: str, node: Node, changes: Changes) -> None:
    """The keys beside class_name and config.

    Keras 3 looks wrapped layers up by `module`, and reads members of a model in the old form,
    without it, most forgivingly; so does Keras 2.
    """
    entry = node.entry
    if node.class_name not in KERAS_LAYERS:
        return  # a custom class keeps its module and registered name
    if node.role == "member":
        for key in ("module", "registered_name", "build_config"):
            changes.drop(path, entry, key)
    elif node.role == "wrapped":
        changes.drop(path, entry, "build_config")
        if node.class_name in ("Functional", "Model"):
            changes.put(path, entry, "class_name", "Model")
        models = ("Model", "Sequential")
        changes.put(path, entry, "module", "keras" if node.class_name in models else "keras.layers")
        if entry.get("registered_name", "") is not None:
            changes.put(path, entry, "registered_name", None)
        if node.class_name in CUDNN_CLASSES:  # kept: resolved by name, in custom_objects
            changes.put(path, entry, "module", "rnnconvert.keras")
            changes.put(path, entry, "registered_name", node.class_name)


def name_keras2_hard_sigmoid(node: Node, changes: Changes) -> None:
    """Call Keras 2's hard_sigmoid by the name that `rnnconvert.keras` gives it."""
    for key in ("activation", "recurrent_activation"):
        if activation_name(node.config.get(key)) == "hard_sigmoid":
            changes.put(show_path(node.path), node.config, key, dict(_HARD_SIGMOID_KERAS2))


def _name_foreign_layers(path: str, node: Node, changes: Changes) -> None:
    name = node.class_name
    if node.role == "model" or (name in KERAS_LAYERS and name != "Lambda"):
        return
    if name in CALL_CLASSES or str(node.entry.get("module")).startswith("keras."):
        return  # a TensorFlow call, which Keras 2 knows
    if name in GONE_IN_KERAS_3:
        changes.warn(f"{path}: Keras 3 has no {name}; kept as it is")
    elif name == "Lambda":
        changes.warn(lambdas.warning(path, node.config))
    else:
        changes.warn(
            f"{path}: custom class {name} kept as it is; Keras needs custom_objects to load it"
        )

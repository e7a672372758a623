"""Loading a whole Keras 2 model with its CuDNN layers in Keras 3, on any device."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from os import PathLike
from pathlib import Path
from typing import Any

import keras
from keras.src.saving.serialization_lib import SafeModeScope  # Keras has no public name for it

from rnnconvert.containers.sniff import require_hdf5
from rnnconvert.errors import NotConvertibleError, UnreadableInputError, errors_of, last_resort
from rnnconvert.keras.layers import custom_objects as own_objects
from rnnconvert.keras_models.config import port
from rnnconvert.keras_models.config.tree import MODEL_CLASSES, Config
from rnnconvert.keras_models.config.trust import CLASS, first_refusal, is_own
from rnnconvert.keras_models.files.h5 import MODEL, KerasH5, open_keras_h5
from rnnconvert.keras_models.plan import Tensor

_CELL = re.compile(r".*_cells?(_\d+)?")


def load_model(
    path: str | PathLike[str],
    *,
    custom_objects: Mapping[str, Any] | None = None,
    safe_mode: bool = True,
    keep_tensorflow_calls: bool = False,
) -> Any:
    """Load a whole-model .h5 of Keras 2 as it is: CuDNN layers with their own weights.

    The file is only read. Plain layers compute Keras 2's function too, its hard_sigmoid included.

    Args:
        path: an HDF5 file with a model_config; its name doesn't matter.
        custom_objects: name to class or function, for the user's own layers.
        safe_mode: refuse what runs code of the file (Lambda layers), or of modules that it names,
            and what reads other files; False allows it.
        keep_tensorflow_calls: what the file calls of TensorFlow is run by TensorFlow itself, which
            must be Keras' backend; else by the operations of Keras 3 that compute the same.

    Returns:
        An uncompiled `keras.Model`.

    Raises:
        UnreadableInputError: missing, damaged, or refused as unsafe.
        NotConvertibleError: no whole model; or it holds code, a class that is not in
            `custom_objects`, or something that Keras 3 has no form for.
    """
    with errors_of(Path(path)), last_resort():
        require_hdf5(Path(path))
        with open_keras_h5(Path(path)) as file:
            objects = {**own_objects(), **(custom_objects or {})}
            if file.backend == "theano":
                raise NotConvertibleError(
                    "Keras on Theano wrote it, whose convolutions turn their kernels round: "
                    "rnnconvert convert it first"
                )
            if file.model_config is not None:
                _refuse_code(file.model_config, custom_objects or {}, safe_mode)
            config = original_config(file, keep_tensorflow_calls=keep_tensorflow_calls)
            _refuse_code(config, objects, safe_mode)
            model = _build(config, objects, safe_mode)
            _load_weights(model, file)
    return model


def original_config(file: KerasH5, *, keep_tensorflow_calls: bool = False) -> Config:
    """The model_config of a file, repaired for Keras 3 and `custom_objects()`.

    Raises:
        NotConvertibleError: there is none, or Keras 3 has no form for it.
    """
    if file.container != MODEL or file.model_config is None:
        raise NotConvertibleError("only weights, no model_config: there is no model to load")
    flavour = file.hard_sigmoid_mark or "keras2"
    ported = port(
        file.model_config, None, file.keras_version, original=True, hard_sigmoid=flavour,
        keep_tensorflow_calls=keep_tensorflow_calls,
    )  # fmt: skip
    if ported.problems:
        raise NotConvertibleError("\n".join(ported.problems))
    return ported.model


def _refuse_code(config: Config, objects: Mapping[str, Any], safe_mode: bool) -> None:
    """Raise unless Keras, the caller or a registration knows every class that a config names."""
    registered = keras.saving.get_custom_objects()
    known = {*objects, *(name for name in registered if not is_own(name))}
    refusal = first_refusal([config], known, allow_code=not safe_mode)
    if refusal is None:
        return
    remedy = "pass it in custom_objects" if refusal.kind == CLASS else "safe_mode=False allows it"
    raise NotConvertibleError(f"{refusal.text}; {remedy}")


def _build(config: Config, objects: Mapping[str, Any], safe_mode: bool) -> Any:
    name = config["class_name"]
    known = {**dict.fromkeys(MODEL_CLASSES, keras.Model), "Sequential": keras.Sequential}
    builder = known.get(name) or keras.saving.get_registered_object(name, objects)
    try:
        with SafeModeScope(safe_mode), _known_everywhere(objects):
            return builder.from_config(config["config"], custom_objects=dict(objects))
    except Exception as error:
        last = str(error).strip().splitlines()[-1:] or [type(error).__name__]
        raise NotConvertibleError(f"Keras can't build the model: {last[0]}") from error


@contextmanager
def _known_everywhere(objects: Mapping[str, Any]) -> Iterator[None]:
    """Register objects for a while: Keras hands custom_objects on to no model in TimeDistributed,
    and its scope of custom objects ends there, too.
    """
    registered = keras.saving.get_custom_objects()
    before = dict(registered)
    registered.update(objects)
    try:
        yield
    finally:
        registered.clear()
        registered.update(before)


# --- weights --------------------------------------------------------------------------------


def _load_weights(model: Any, file: KerasH5) -> None:
    """Each top-level layer's weights from the group of its name.

    Raises:
        UnreadableInputError: the groups don't fit the model.
    """
    layers = {layer.name: layer for layer in model.layers}
    groups = {name: tensors for name, tensors in file.groups.items() if tensors}
    expected = {name for name, layer in layers.items() if layer.weights}
    if expected != set(groups):
        raise UnreadableInputError(
            "the layers with weights are not those of the config: "
            + ", ".join(sorted(expected ^ set(groups)))
        )
    for name, tensors in groups.items():
        for tensor, variable in _pair(name, tensors, layers[name]):
            if tuple(variable.shape) != tensor.shape:
                raise UnreadableInputError(
                    f"{tensor.path} has the shape {tensor.shape}, the config says "
                    f"{tuple(variable.shape)}"
                )
            variable.assign(file.read(tensor.path))
        if hasattr(layers[name], "finalize_state"):
            layers[name].finalize_state()


def _pair(name: str, tensors: list[Tensor], layer: Any) -> list[tuple[Tensor, Any]]:
    """Which tensor goes into which variable: by name where the names decide, else by position."""
    variables = layer.trainable_weights + layer.non_trainable_weights
    if len(variables) != len(tensors):
        raise UnreadableInputError(
            f"layer {name} has {len(variables)} weights, the file {len(tensors)}"
        )
    by_name = {_key(variable.path): variable for variable in variables}
    keys = [_key(tensor.name) for tensor in tensors]
    if len(by_name) == len(variables) and set(keys) == set(by_name):
        variables = [by_name[key] for key in keys]
    return list(zip(tensors, variables, strict=True))


def _key(path: str) -> tuple[str, ...]:
    """Layer and variable, e.g. ("forward_lstm", "kernel"): versions differ in the rest."""
    parts = [part for part in path.split("/") if not _CELL.fullmatch(part)]
    return tuple(parts[-2:])

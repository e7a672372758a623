"""Writing Keras' own `.keras` file, by way of Keras itself."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from rnnconvert.errors import DifferenceError, NotConvertibleError, UsageError
from rnnconvert.keras_models.config.builtin import KERAS_LAYERS
from rnnconvert.keras_models.config.tree import Config, root, walk
from rnnconvert.keras_models.files.h5 import open_keras_h5
from rnnconvert.keras_models.files.zip_file import settle
from rnnconvert.keras_models.plan import Plan
from rnnconvert.keras_models.verify.initial_values import without_initial_values
from rnnconvert.keras_models.verify.keras_engine import last_line
from rnnconvert.keras_models.verify.trusted import require_trusted
from rnnconvert.options import Permissions
from rnnconvert.verification.frameworks import CannotRun, import_keras

_NEEDS_KERAS = "Keras writes a .keras file, and must load the model for that"


def save_as_keras(model: Path, target: Path, plan: Plan, permissions: Permissions) -> None:
    """Load a portable .h5 in Keras 3 and save it as `.keras`, optimizer state included.

    Args:
        model: the patched and verified .h5.
        target: the `.keras` file to write.
        plan: of the conversion; its optimizer part names the state's variables in Keras' order.
        permissions: which code of the file may run.

    Raises:
        UsageError: Keras 3 is not installed.
        NotConvertibleError: Keras can't load the model, or must not (custom or Lambda layers).
    """
    try:
        keras = import_keras()
    except CannotRun as error:
        raise UsageError(f"--to keras: {error}") from error
    with open_keras_h5(model) as file:
        state = [file.read(tensor.path) for tensor in file.optimizer_tensors]
        trained = file.training_config is not None
        portable = _portable_config(file.model_config or {}, file.training_config)
    try:
        require_trusted(model, permissions, compiled=trained)
    except CannotRun as error:
        raise NotConvertibleError(
            f"{_NEEDS_KERAS}: {error}; --to h5 needs no Keras and keeps the layer as it is"
        ) from error

    def load(path: Path, **named: Any) -> Any:
        custom_objects, safe = dict(permissions.custom_objects), not permissions.allow_code
        return without_initial_values(
            partial(
                keras.models.load_model,
                path,
                custom_objects=custom_objects,
                safe_mode=safe,
                **named,
            )
        )

    stateless = plan.optimizer.state != "converted"
    try:
        loaded = load(model, compile=trained)
    except Exception as error:
        last = last_line(error)
        raise NotConvertibleError(
            f"Keras can't load the converted model, so no .keras file can be made ({last}); "
            "write an .h5 file instead"
        ) from error
    if not stateless and loaded.optimizer is not None:
        _restore(keras, loaded, state)
    loaded.save(target)
    settle(target, portable)
    _require_same_weights(loaded, _read_back(load, target))


def _read_back(load: Callable[[Path], Any], path: Path) -> Any:
    """The model that was written, loaded.

    Raises:
        NotConvertibleError: Keras does not read it: a Lambda with default arguments, up to 3.15.
        OSError: of the disk.
    """
    try:
        return load(path)
    except OSError:
        raise
    except Exception:  # a file that the disk did not give is no file to Keras: it is asked again
        pass
    try:
        return load(path)
    except OSError:
        raise
    except Exception as error:
        raise NotConvertibleError(
            f"Keras can't read the .keras file that it writes of this model ({last_line(error)}); "
            "write an .h5 file instead"
        ) from error


def _portable_config(model: Config, training: Config | None) -> Config | None:
    """What a `.keras` file says of a model, in the form that every Keras 3 reads; None if unknown.

    Keras itself writes keys that its older versions refuse. The form of the .h5 is read by all of
    them here, too, but only of Keras' own layers it is known.
    """
    for node in walk(root(model)):
        own = node.class_name in KERAS_LAYERS and node.class_name != "Lambda"
        if not own and not str(node.entry.get("module")).startswith("keras."):
            return None
    sequential = model.get("class_name") == "Sequential"
    config = {
        "module": "keras" if sequential else "keras.src.models.functional",
        "class_name": "Sequential" if sequential else "Functional",
        "config": model["config"],
        "registered_name": "Sequential" if sequential else "Functional",
    }
    if training is not None:
        keys = ("loss", "metrics", "weighted_metrics", "loss_weights")
        compiled = {key: training[key] for key in keys if key in training}
        optimizer = {"module": "keras.optimizers", "registered_name": None}
        compiled["optimizer"] = {**training["optimizer_config"], **optimizer}
        config["compile_config"] = compiled
    return config


def _require_same_weights(saved: Any, loaded: Any) -> None:
    """The `.keras` file, read back, must hold the very bits that were saved."""
    for mine, its in zip(saved.weights, loaded.weights, strict=True):
        if np.asarray(mine).tobytes() != np.asarray(its).tobytes():
            raise DifferenceError(f"Keras read back other values of {mine.path} than it saved")


def _restore(keras: Any, model: Any, state: list[Any]) -> None:
    """Give the model's optimizer the state of the file.

    Keras builds the optimizer of a loaded .h5 without variables, so it is made anew. Keras keeps
    the learning rate second among the optimizer's variables; the file does not hold it.
    """
    if all(np.shape(value) == () for value in state):
        return  # only counters: it was compiled, and never trained
    optimizer = type(model.optimizer).from_config(model.optimizer.get_config())
    compiled = model.get_compile_config()
    optimizer.build(model.trainable_variables)
    variables = [v for v in optimizer.variables if v.path.split("/")[-1] != "learning_rate"]
    if [v.shape for v in variables] != [value.shape for value in state]:
        raise NotConvertibleError(
            "the optimizer state does not fit Keras' optimizer; use --optimizer drop"
        )
    for variable, value in zip(variables, state, strict=True):
        variable.assign(value)
    model.compile(
        optimizer=optimizer,
        loss=compiled.get("loss"),
        metrics=compiled.get("metrics"),
        weighted_metrics=compiled.get("weighted_metrics"),
        loss_weights=compiled.get("loss_weights"),
    )

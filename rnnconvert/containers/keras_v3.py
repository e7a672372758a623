"""Writing Keras' own `.keras` file, by way of Keras itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from rnnconvert.containers.keras_h5 import open_keras_h5
from rnnconvert.errors import DifferenceError, NotConvertibleError, UsageError
from rnnconvert.frameworks import CannotRun, import_keras
from rnnconvert.keras_config.tree import Config
from rnnconvert.keras_config.trust import code_in_config
from rnnconvert.plan import Plan
from rnnconvert.verification.permissions import Permissions


def save_as_keras(
    model: Path, target: Path, plan: Plan, permissions: Permissions | None = None
) -> None:
    """Load a portable .h5 in Keras 3 and save it as `.keras`, optimizer state included.

    Args:
        model: the patched and verified .h5.
        target: the `.keras` file to write.
        plan: of the conversion; its optimizer part names the state's variables in Keras' order.
        permissions: which code of the model may run while Keras loads it.

    Raises:
        UsageError: Keras 3 is not installed.
        NotConvertibleError: Keras can't load the model (custom or Lambda layers).
    """
    permissions = permissions or Permissions()
    try:
        keras = import_keras()
    except CannotRun as error:
        raise UsageError(f"--to keras: {error}") from error
    with open_keras_h5(model) as file:
        state = [file.read(tensor.path) for tensor in file.optimizer_tensors]
        trained = file.training_config is not None
        _require_consent(file.model_config or {}, permissions)
    given: dict[str, Any] = {"custom_objects": dict(permissions.custom_objects)}
    if permissions.allow_code:
        given["safe_mode"] = False
    stateless = plan.optimizer.state != "converted"
    try:
        loaded = keras.models.load_model(model, compile=trained, **given)
    except Exception as error:
        raise NotConvertibleError(
            "Keras can't load the converted model, so no .keras file can be made "
            f"({_last_line(error)}); "
            "write an .h5 file instead"
        ) from error
    if not stateless and loaded.optimizer is not None:
        _restore(keras, loaded, state)
    loaded.save(target)
    try:
        read_back = keras.models.load_model(target, **given)
    except Exception as error:  # a Lambda with default arguments, up to Keras 3.15
        raise NotConvertibleError(
            f"Keras can't read the .keras file that it writes of this model ({_last_line(error)}); "
            "write an .h5 file instead"
        ) from error
    _require_same_weights(loaded, read_back)


def _last_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[-1]


def _require_consent(config: Config, permissions: Permissions) -> None:
    """Raise where Keras would have to run what a Lambda layer calls."""
    lambdas = [
        text for text in code_in_config(config, permissions.custom_objects) if "Lambda" in text
    ]
    missing = [text for text in lambdas if "not in the file" in text]
    refused = missing if permissions.allow_code else lambdas
    if not refused:
        return
    consent = "--custom-objects module:name names it" if refused[0] in missing else "--allow-code"
    raise NotConvertibleError(
        f"{refused[0]}. A .keras file is written by Keras, which would have to run it ({consent}); "
        "--to h5 needs no Keras and keeps the layer as it is"
    )


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

"""Export to Keras: one time step with its states as inputs and outputs, as a `.keras` file."""

from __future__ import annotations

import inspect
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rnnconvert.exports.options import ExportOptions
from rnnconvert.exports.sources import Source
from rnnconvert.exports.written import Array, Run, Written
from rnnconvert.keras_models.config.accepted import (
    known_versions,
    versions_with,
)
from rnnconvert.keras_models.config.objects import INITIALIZER_ALIASES
from rnnconvert.keras_models.config.tree import Config, is_operation
from rnnconvert.keras_models.files.zip_file import settle, zip_config_of

_KINDS = ("layers", "initializers", "regularizers", "constraints")


def write(source: Source, path: Path, options: ExportOptions) -> Written:
    """Save the model of one step; `options` have nothing for it.

    Keras writes names and keys that its older versions refuse; they get the form that all read.
    """
    import keras

    source.model.save(path)
    settle(path, for_every_keras_3(zip_config_of(path)))
    layers = Counter(type(layer).__name__ for layer in source.model.layers)
    recurrent = {name: layers.pop(name, 0) for name in ("LSTM", "GRU", "SimpleRNN", "RNN")}
    return Written(
        "keras",
        runtime(),
        (path.name,),
        {**recurrent, "others": sum(layers.values())},
        {"keras": keras.__version__},
        native=sum(recurrent.values()),
        inputs=tuple(tensor.name for tensor in source.model.inputs),
        outputs=tuple(source.model.output_names),
    )


def for_every_keras_3(value: Any) -> Any:
    """A config of Keras 3 in the form that its older versions read, too.

    Without keys that not every version takes, where they are None or the default, which is what a
    version without the key does; and initializers by the name that all know.
    """
    if isinstance(value, list):
        return [for_every_keras_3(item) for item in value]
    if not isinstance(value, dict):
        return value
    found = {key: for_every_keras_3(item) for key, item in value.items()}
    name, config = found.get("class_name"), found.get("config")
    if isinstance(name, str) and isinstance(config, dict):
        found["class_name"] = INITIALIZER_ALIASES.get(name, name)
        found["config"] = _common_keys(found, name, config)
    return found


def _common_keys(entry: Config, name: str, config: Config) -> Config:
    """The config of a class, without what only newer versions take and need not be said.

    Of an operation that may be anything; its name stands beside the config, too.
    """
    defaults = _defaults(name, str(entry.get("module")))
    operation = is_operation(entry)
    return {
        key: item
        for key, item in config.items()
        if not (operation and key == "name")
        and not (
            (item is None or (key in defaults and item == defaults[key]))
            and (operation or _is_new(name, key))
        )
    }


def _is_new(name: str, key: str) -> bool:
    """Whether some versions of Keras 3 take this key of a class, and others do not."""
    found = [versions_with(kind, name, key) for kind in _KINDS]
    return any(versions and versions != known_versions() for versions in found)


def _defaults(name: str, module: str) -> dict[str, Any]:
    """What a class of Keras takes for arguments that are not given."""
    made = getattr(sys.modules.get(module), name, None)
    parameters = inspect.signature(made).parameters if isinstance(made, type) else {}
    return {key: each.default for key, each in parameters.items()}


def runtime() -> str:
    """Keras itself, which loads the file again."""
    import keras

    return f"keras {keras.__version__} ({keras.backend.backend()})"


def runner(path: Path, written: Written) -> Run:
    """The written file, loaded as anybody loads it."""
    import keras

    model = keras.models.load_model(path)

    def run(arrays: Sequence[Array]) -> list[Array]:
        given = list(arrays) if len(arrays) > 1 else arrays[0]
        outputs = keras.tree.flatten(model(given, training=False))
        return [np.asarray(keras.ops.convert_to_numpy(output)) for output in outputs]

    return run

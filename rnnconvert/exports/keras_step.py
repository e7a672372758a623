"""Export to Keras: one time step with its states as inputs and outputs, as a `.keras` file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rnnconvert.exports.options import ExportOptions
from rnnconvert.exports.sources import Source
from rnnconvert.exports.written import Array, Run, Written
from rnnconvert.keras_models.config.accepted import known_versions, versions_with
from rnnconvert.keras_models.files.zip_file import settle, zip_config_of

_KINDS = ("layers", "initializers", "regularizers", "constraints")


def write(source: Source, path: Path, options: ExportOptions) -> Written:
    """Save the model of one step; `options` have nothing for it.

    Keras names keys that its older versions refuse; those that say nothing are left out.
    """
    import keras

    source.model.save(path)
    settle(path, without_empty_new_keys(zip_config_of(path)))
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


def without_empty_new_keys(value: Any) -> Any:
    """A config of Keras 3 without keys that are None and that not every Keras 3 takes."""
    if isinstance(value, list):
        return [without_empty_new_keys(item) for item in value]
    if not isinstance(value, dict):
        return value
    found = {key: without_empty_new_keys(item) for key, item in value.items()}
    name, config = found.get("class_name"), found.get("config")
    if isinstance(name, str) and isinstance(config, dict):
        found["config"] = {
            key: item for key, item in config.items() if item is not None or not _is_new(name, key)
        }
    return found


def _is_new(name: str, key: str) -> bool:
    """Whether some versions of Keras 3 take this key of a class, and others do not."""
    found = [versions_with(kind, name, key) for kind in _KINDS]
    return any(versions and versions != known_versions() for versions in found)


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

"""Before Keras reads a file: everything that it would read there is looked at by our own readers.

Keras opens a file by its name, not by its content; so a file that is two things at once is refused,
or what was looked at would not be what Keras loads.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

from rnnconvert.containers import safe_h5
from rnnconvert.containers.safe_zip import ends_as_zip
from rnnconvert.containers.sniff import is_hdf5
from rnnconvert.errors import UnreadableInputError
from rnnconvert.keras_models.config.changes import Changes
from rnnconvert.keras_models.config.operations import name_operations
from rnnconvert.keras_models.config.tree import Config
from rnnconvert.keras_models.config.trust import first_refusal, is_own
from rnnconvert.keras_models.files import zip_file
from rnnconvert.keras_models.files.h5 import open_keras_h5
from rnnconvert.options import Permissions
from rnnconvert.verification.frameworks import CannotRun, NothingToRun

_MORE_WEIGHTS = "top_level_model_weights"
"""Weights that belong to no layer; Keras reads them beside the layers' groups."""


def require_trusted(path: Path, permissions: Permissions, *, compiled: bool = False) -> None:
    """Raise unless Keras may load a file: no code in it, no other file named by it.

    Args:
        path: a whole model, in HDF5 or in a `.keras` zip.
        permissions: which code of the file may run.
        compiled: whether Keras will read how the model was compiled, too.

    Raises:
        CannotRun: it holds code or custom classes that were not allowed, or only weights.
        UnreadableInputError: it is damaged, or refused as unsafe.
    """
    read = _hdf5_configs if is_hdf5(path) else _zip_configs
    if read is _hdf5_configs and ends_as_zip(path):
        raise UnreadableInputError("refused as unsafe: it is an HDF5 file and a zip file at once")
    model, training = read(path)
    configs = (model, training if compiled else None)
    refusal = first_refusal(configs, known_names(permissions), allow_code=permissions.allow_code)
    if refusal is not None:
        raise CannotRun(str(refusal))


def known_names(permissions: Permissions) -> set[str]:
    """Names that lead to the user's own classes: given, or registered with Keras on import."""
    import keras

    registered = keras.saving.get_custom_objects()
    return {*permissions.custom_objects, *(name for name in registered if not is_own(name))}


def _hdf5_configs(path: Path) -> tuple[Config, Config | None]:
    with open_keras_h5(path) as file:
        if file.model_config is None:
            raise NothingToRun("a weights-only file holds no architecture")
        # Listing them refuses what lies in other files.
        found: list[Any] = [file.groups, file.optimizer_tensors]
        if _MORE_WEIGHTS in file.weights:
            group = safe_h5.get_group(file.weights, _MORE_WEIGHTS)
            names = safe_h5.strings(group, "weight_names") or []
            found += [safe_h5.get_dataset(group, name) for name in names]
        # An operation of Keras 3's is no class of the user's because its module is not named.
        model = copy.deepcopy(file.model_config)
        name_operations(model, Changes())
        return model, file.training_config


def _zip_configs(path: Path) -> tuple[Config, Config | None]:
    config = zip_file.checked_config(path)
    return {key: value for key, value in config.items() if key != "compile_config"}, config.get(
        "compile_config"
    )

"""Keras' `.keras` files, read, and how one becomes a Keras HDF5 file.

A `.keras` file is a zip of config.json, metadata.json, model.weights.h5 and, for layers that keep
such, assets/. It is rebuilt as the whole-model HDF5 file that Keras 2 would have written of the
same model, layers and weights as they are, which everything else in the package then reads. The
zip comes from anywhere: no name in it is ever used as a path, and every size that it claims is
checked before memory or disk is asked for.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import h5py

from rnnconvert.containers import safe_h5, safe_zip
from rnnconvert.containers.budget import charge_arrays, charge_member, charge_text
from rnnconvert.containers.safe_zip import SafeZip, reading_zip
from rnnconvert.errors import (
    STUMBLES,
    NotConvertibleError,
    UnreadableInputError,
    errors_of,
)
from rnnconvert.keras_models.config.recurrent import names_cudnn_layers
from rnnconvert.keras_models.config.training import translate
from rnnconvert.keras_models.config.training_optimizer import Untranslatable
from rnnconvert.keras_models.config.tree import MODEL_CLASSES, Config, parse_version
from rnnconvert.keras_models.files.attributes import write_names, write_text_attribute
from rnnconvert.keras_models.files.rebuilt import Rebuilt
from rnnconvert.keras_models.files.store import (
    OPTIMIZER,
    OPTIMIZER_LEFT,
    Store,
    model_variables,
    read_store,
    write_group,
)

_CONFIG = "config.json"
_METADATA = "metadata.json"
_WEIGHTS = "model.weights.h5"
_ASSETS = "assets/"
_OTHER_WEIGHTS = ("model.weights.npz", "model.weights.json")
_CHUNK = 2**20
_OPTIMIZERS = {
    name.lower(): name
    for name in ("SGD", "RMSprop", "Adam", "Adagrad", "Adadelta", "Adamax", "Nadam")
}
"""Classes by the short names that `compile` takes, and Keras 2 keeps."""


def zip_config_of(path: Path) -> Config:
    """The model config of a `.keras` file: class_name, config, and more beside them.

    Raises:
        UnreadableInputError: no such file, damaged, or refused as unsafe.
    """
    with _opened(path) as archive:
        return archive.read_json(_CONFIG)


def checked_config(path: Path) -> Config:
    """As `config_of`, of a file that is checked as a whole: Keras, which trusts it, may read it.

    Raises:
        UnreadableInputError: no such file, damaged, or refused as unsafe.
        NotConvertibleError: its weights are in a form that is not read here.
    """
    with _opened(path) as archive, _weights_of(archive, None) as weights:
        archive.store(weights)
        return archive.read_json(_CONFIG)


def loads_as_it_is(path: Path) -> str | None:
    """The version of Keras 3 that wrote a `.keras` file without CuDNN layers; None for others.

    Such a file needs no conversion, whatever layers it has, and no repair: Keras 3 loads it.

    Raises:
        UnreadableInputError: no such file, damaged, or refused as unsafe.
    """
    with _opened(path) as archive:
        config = archive.read_json(_CONFIG)
        version = _version(archive)
    return None if _major(version) < 3 or names_cudnn_layers(config) else version


def rebuild_zip(path: Path, target: Path) -> Rebuilt:
    """Write the model of a `.keras` file as a whole-model HDF5 file, its layers as they are.

    Optimizer state is left out. A second file, of the weights' size, lies beside `target`
    meanwhile.

    Args:
        path: the `.keras` file.
        target: the HDF5 file; replaced where it exists.

    Raises:
        UnreadableInputError: the input is damaged, no such file, or refused as unsafe.
        NotConvertibleError: no Sequential or functional model, or one with state or layers that
            have no known place in an HDF5 file.
    """
    with _opened(path) as archive:
        config = archive.read_json(_CONFIG)
        version = _version(archive)
        model = _model_config(config)
        warnings = [*archive.asset_warnings(version)]
        training, notes = _training_config(config.get("compile_config"), version)
        with _weights_of(archive, target.parent) as source, safe_h5.open_h5(target, "w") as file:
            store = archive.store(source)
            _set_texts(file, version, model_config=model, training_config=training)
            _write_weights(source, file.create_group("model_weights"), model, store, version)
    if store.get(OPTIMIZER):
        warnings.append(OPTIMIZER_LEFT)
    return Rebuilt(version, (*warnings, *notes))


# --- the zip ----------------------------------------------------------------------------------


def settle(path: Path, config: Config | None) -> None:
    """Take the date out of a `.keras` file that Keras made, so that the same gives the same bytes.

    Args:
        config: another config.json; None for the one that is there.
    """
    rewrite: dict[str, Callable[[bytes], bytes]] = {_METADATA: _without_date}
    if config is not None:
        rewrite[_CONFIG] = lambda _: json.dumps(config).encode()
    safe_zip.rewrite_members(path, rewrite)


def _without_date(metadata: bytes) -> bytes:
    """Keras notes when it saved, and never reads it."""
    kept = {key: value for key, value in json.loads(metadata).items() if key != "date_saved"}
    return json.dumps(kept).encode()


class _Archive:
    """The members of a `.keras` file, checked.

    Raises:
        UnreadableInputError: no model in it, or a member that is encrypted, there twice,
            compressed in an unknown way, or of a false or absurd size.
    """

    def __init__(self, file: SafeZip, size: int) -> None:
        self.size = size
        self._zip = file
        self._members = file.members
        for member in self._members.values():
            charge_member(member.file_size, size, repr(member.filename))
        if _CONFIG in self._members and any(name in self._members for name in _OTHER_WEIGHTS):
            raise NotConvertibleError(
                "a .keras file with its weights in .npz or in several files; expected "
                f"{_WEIGHTS}: load it in Keras and save it again"
            )
        for name in (_CONFIG, _METADATA, _WEIGHTS):
            if name not in self._members:
                raise UnreadableInputError(f"a zip file, but no Keras model: it has no {name}")

    def read_json(self, name: str) -> dict[str, Any]:
        charge_text(self._members[name].file_size, self.size, name)
        with reading_zip():
            text = b"".join(self._pieces(name)).decode("utf-8")
        return safe_h5.parse_json(text, name, self.size)

    def store(self, weights: h5py.File) -> Store:
        """The unpacked weights' variables, of a size that the file can stand for."""
        store = read_store(weights)
        paths = (path for owner in store.values() for path in owner.values())
        needed = sum(safe_h5.get_dataset(weights, path).nbytes for path in paths)
        charge_arrays(needed, self.size, "the weights")
        return store

    def unpack_weights(self, target: Path) -> None:
        """Copy the weights out, under a name of our own."""
        with target.open("xb") as writer:
            for piece in self._pieces(_WEIGHTS):
                writer.write(piece)

    def _pieces(self, name: str) -> Iterator[bytes]:
        """The bytes of a member; zipfile stops at its length and checks its checksum."""
        with self._zip.open(name) as reader:
            while True:
                with reading_zip():
                    piece = reader.read(_CHUNK)
                if not piece:
                    return
                yield piece

    def asset_warnings(self, version: str) -> list[str]:
        """Say that the HDF5 file lacks the assets (vocabularies of lookup layers).

        Raises:
            NotConvertibleError: a file of Keras 2, which would have to be converted.
        """
        found = [m.filename for m in self._members.values() if m.filename.startswith(_ASSETS)]
        found = [name for name in found if self._members[name].file_size]
        if not found:
            return []
        text = f"{found[0]!r}: an HDF5 file has no place for a layer's own files"
        if _major(version) < 3:
            raise NotConvertibleError(f"{text}; load the model in Keras and save it as .h5")
        return [f"{text}; it is left out"]


@contextmanager
def _weights_of(archive: _Archive, folder: Path | None) -> Iterator[h5py.File]:
    """The weights of a `.keras` file, unpacked into a scratch folder there and opened."""
    with tempfile.TemporaryDirectory(prefix=".rnnconvert-", dir=folder) as scratch:
        weights = Path(scratch) / "weights.h5"
        archive.unpack_weights(weights)
        with safe_h5.open_h5(weights) as file:
            yield file


@contextmanager
def _opened(path: Path) -> Iterator[_Archive]:
    """The members of a `.keras` file; errors get the file's name."""
    with errors_of(path):
        if not path.is_file():
            raise UnreadableInputError("no such file, or not a regular one; expected a .keras file")
        size = path.stat().st_size
        with SafeZip(path, size) as file:
            yield _Archive(file, size)


def _version(archive: _Archive) -> str:
    version = archive.read_json(_METADATA).get("keras_version")
    if not isinstance(version, str) or parse_version(version) is None:
        raise UnreadableInputError(f"{_METADATA} names no keras_version: found {version!r:.50}")
    return version


def _major(version: str) -> int:
    return (parse_version(version) or (0,))[0]


# --- the HDF5 file ----------------------------------------------------------------------------


def _model_config(config: Config) -> Config:
    """The model config as an HDF5 file has it: what builds and compiles the model left out."""
    class_name = config.get("class_name")
    if class_name not in MODEL_CLASSES or not isinstance(config.get("config"), dict):
        raise NotConvertibleError(
            f"a model of the class {class_name!r}; only Sequential and functional models say what "
            "they are made of"
        )
    return {"class_name": class_name, "config": config["config"]}


def _training_config(compiled: Any, version: str) -> tuple[Config | None, list[str]]:
    """The HDF5 form of a `compile_config`, and a warning where there is none.

    Keras 3 writes short names into it ("mse") that it does not read from an HDF5 file; what Keras 2
    wrote is left to the conversion.
    """
    if not compiled:
        return None, []
    try:
        training = {key: value for key, value in compiled.items() if key != "optimizer"}
        training["optimizer_config"] = _optimizer_config(compiled["optimizer"])
        if _major(version) < 3:
            return training, []
        translated, left = translate(training)  # the form of a .keras file, whole
        return translated, [f"left out of the training config: {text}" for text in left]
    except (Untranslatable, AttributeError, KeyError, TypeError) as error:
        return None, [
            f"how the model was compiled is left out ({error}); call model.compile(...) to train"
        ]


def _optimizer_config(optimizer: Any) -> Config:
    if isinstance(optimizer, str):
        return {"class_name": _OPTIMIZERS[optimizer.lower()], "config": {}}
    class_name = optimizer.get("registered_name") or optimizer["class_name"]
    return {"class_name": class_name, "config": optimizer["config"]}


def _set_texts(file: h5py.File, version: str, **configs: Config | None) -> None:
    """Attributes of the file's root. Those of Keras 2 are of TensorFlow: it ran on nothing else."""
    _set_writer(file, version)
    for name, config in configs.items():
        if config is not None:
            write_text_attribute(file, name, json.dumps(config))


def _set_writer(group: h5py.Group, version: str) -> None:
    write_text_attribute(group, "keras_version", version)
    if _major(version) < 3:
        write_text_attribute(group, "backend", "tensorflow")


def _write_weights(
    source: h5py.File, weights: h5py.Group, config: Config, store: Store, version: str
) -> None:
    try:
        variables = model_variables(config, store)
    except STUMBLES as error:
        raise UnreadableInputError(
            f"the model's config is not of the form that Keras writes ({error!r})"
        ) from error
    _set_writer(weights, version)
    write_names(weights, "layer_names", list(variables))
    for name, members in variables.items():
        write_group(source, weights.create_group(name), members)

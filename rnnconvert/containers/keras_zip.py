"""Keras' `.keras` files, read: the only door to them, and how one becomes a Keras HDF5 file.

A `.keras` file is a zip of config.json, metadata.json, model.weights.h5 and, for layers that keep
such, assets/. It is rebuilt as the whole-model HDF5 file that Keras 2 would have written of the
same model, layers and weights as they are, which everything else in the package then reads. The
zip comes from anywhere: no name in it is ever used as a path, and every size that it claims is
checked before memory or disk is asked for.
"""

from __future__ import annotations

import json
import shutil
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import h5py

from rnnconvert.containers import safe_h5
from rnnconvert.containers.attributes import write_names, write_text
from rnnconvert.containers.budget import charge_arrays, charge_member, charge_text
from rnnconvert.containers.keras_store import (
    OPTIMIZER,
    OPTIMIZER_LEFT,
    Store,
    model_variables,
    read_store,
    write_group,
)
from rnnconvert.containers.rebuilt import Rebuilt
from rnnconvert.errors import (
    STUMBLES,
    ConversionError,
    NotConvertibleError,
    UnreadableInputError,
    errors_of,
)
from rnnconvert.keras_config.recurrent import names_cudnn_layers
from rnnconvert.keras_config.training import translate
from rnnconvert.keras_config.training_optimizer import Untranslatable
from rnnconvert.keras_config.tree import MODEL_CLASSES, Config, parse_version

_CONFIG = "config.json"
_METADATA = "metadata.json"
_WEIGHTS = "model.weights.h5"
_ASSETS = "assets/"
_OTHER_WEIGHTS = ("model.weights.npz", "model.weights.json")
_RATIO = {zipfile.ZIP_STORED: 1, zipfile.ZIP_DEFLATED: 1032}
"""How many bytes one byte of a zip member can stand for at most."""
_MAX_MEMBERS = 100_000
_ENCRYPTED = 1
"""Bit of a zip member's flags."""
_CHUNK = 2**20
_OPTIMIZERS = {
    name.lower(): name
    for name in ("SGD", "RMSprop", "Adam", "Adagrad", "Adadelta", "Adamax", "Nadam")
}
"""Classes by the short names that `compile` takes, and Keras 2 keeps."""


def config_of(path: Path) -> Config:
    """The model config of a `.keras` file: class_name, config, and more beside them.

    Raises:
        UnreadableInputError: no such file, damaged, or refused as unsafe.
    """
    with _opened(path) as archive:
        return archive.read_json(_CONFIG)


def ends_as_zip(path: Path) -> bool:
    """Whether Python, and so Keras, opens a file as a zip archive, whatever it begins with."""
    return zipfile.is_zipfile(path)


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


def rebuild_h5(path: Path, target: Path) -> Rebuilt:
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


def replace_config(path: Path, config: Config) -> None:
    """Write another config.json into a `.keras` file that Keras made, all else as it is."""
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=".rnnconvert-") as scratch:
        with zipfile.ZipFile(path) as old, zipfile.ZipFile(scratch, "w") as new:
            for member in old.infolist():
                if member.filename == _CONFIG:
                    new.writestr(member, json.dumps(config))
                    continue
                with old.open(member) as source, new.open(member, "w") as copy:
                    shutil.copyfileobj(source, copy)
        scratch.flush()
        shutil.copyfile(scratch.name, path)


class _Archive:
    """The members of a `.keras` file, checked.

    Raises:
        UnreadableInputError: no model in it, or a member that is encrypted, there twice,
            compressed in an unknown way, or of a false or absurd size.
    """

    def __init__(self, file: zipfile.ZipFile, size: int) -> None:
        self.size = size
        self._zip = file
        self._members: dict[str, zipfile.ZipInfo] = {}
        members = file.infolist()
        stored = sum(member.compress_size for member in members)
        if stored > size or len(members) > _MAX_MEMBERS:
            raise UnreadableInputError("its members are larger than itself, or far too many")
        for member in members:
            _require_honest(member)
            charge_member(member.file_size, size, repr(member.filename))
            if member.filename in self._members:
                raise UnreadableInputError(f"refused as unsafe: {member.filename!r} is there twice")
            self._members[member.filename] = member
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
        with _reading():
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
        with _reading():
            reader = self._zip.open(self._members[name])
        with reader:
            while True:
                with _reading():
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


def _require_honest(member: zipfile.ZipInfo) -> None:
    name, claimed, stored = member.filename, member.file_size, member.compress_size
    if member.flag_bits & _ENCRYPTED:
        raise UnreadableInputError(f"refused: {name!r} is encrypted")
    if member.compress_type not in _RATIO:
        raise UnreadableInputError(f"{name!r} is compressed in a way that Keras does not use")
    if claimed > _RATIO[member.compress_type] * stored:
        raise UnreadableInputError(
            f"{name!r} claims {claimed:,} bytes, which {stored:,} stored bytes can't hold; "
            "the file is damaged"
        )


@contextmanager
def _opened(path: Path) -> Iterator[_Archive]:
    """The members of a `.keras` file; errors get the file's name."""
    with errors_of(path):
        if not path.is_file():
            raise UnreadableInputError("no such file, or not a regular one; expected a .keras file")
        with _reading():
            file = zipfile.ZipFile(path)
        with file:
            yield _Archive(file, path.stat().st_size)


@contextmanager
def _reading() -> Iterator[None]:
    """Whatever goes wrong while reading the zip, as one clear error."""
    try:
        yield
    except ConversionError:
        raise
    except OSError as error:
        raise UnreadableInputError(f"can't be read: {error.strerror or error}") from error
    except Exception as error:  # the parsers of zip and deflate raise many classes
        reason = (str(error).splitlines() or [""])[0][:200] or type(error).__name__
        raise UnreadableInputError(f"the file is damaged or no .keras file: {reason}") from error


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
            write_text(file, name, json.dumps(config))


def _set_writer(group: h5py.Group, version: str) -> None:
    write_text(group, "keras_version", version)
    if _major(version) < 3:
        write_text(group, "backend", "tensorflow")


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

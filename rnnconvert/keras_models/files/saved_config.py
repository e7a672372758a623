"""The Keras configuration that a SavedModel carries beside its graph, read without TensorFlow.

| written by | place |
| --- | --- |
| TF 1.11 - 2.0, `save_keras_model`, `export_saved_model` | `assets/saved_model.json` |
| TF 1.15 - 2.4, `model.save(save_format="tf")` | the object graph in `saved_model.pb` |
| TF 2.5 - 2.15, tf_keras | `keras_metadata.pb` |
| `model.export`, `tf.saved_model.save`, plain TF 1 graphs | nowhere |

(Formats: saved_model.proto, meta_graph.proto, saved_object_graph.proto of TensorFlow;
saved_metadata.proto of Keras 2.)
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rnnconvert.containers.checkpoint.files import (
    Malformed,
    is_there,
    open_file,
    reading,
    require_no_lfs_pointer,
)
from rnnconvert.containers.checkpoint.wire import Message
from rnnconvert.containers.safe_h5 import parse_json
from rnnconvert.errors import NotConvertibleError, UnreadableInputError
from rnnconvert.keras_models.config.tree import Config, members

IN_METADATA = "keras_metadata.pb"
IN_OBJECT_GRAPH = "the object graph of saved_model.pb"
IN_ASSETS = "assets/saved_model.json"
_GRAPH_FILE = "saved_model.pb"
_KERAS = "_tf_keras_"
_TUPLES = ("__tuple__", "TensorShape")
"""Classes under which Keras' encoder writes lists in a SavedModel; in HDF5 they are plain lists."""


@dataclass(frozen=True)
class SavedConfig:
    """The Keras configuration of a SavedModel.

    Attributes:
        model: as Keras 2 writes it into an HDF5 file: {"class_name": ..., "config": ...}.
        place: where it was found: IN_METADATA, IN_OBJECT_GRAPH or IN_ASSETS.
        keras_version, backend: of the writer; None where it does not say.
        tensorflow_version: of the writer; None where it does not say.
        compiled: whether a training config lies beside it.
        trains: the model's variables by name, and whether they train; empty where the SavedModel
            does not tell (TensorFlow 1), and without names that stand for both.
    """

    model: Config
    place: str
    keras_version: str | None
    backend: str | None
    tensorflow_version: str | None
    compiled: bool
    trains: dict[str, bool] = field(repr=False)


@dataclass(frozen=True)
class _GraphFacts:
    """What `saved_model.pb` tells besides its graph.

    Attributes:
        tensorflow_version: of the writer; None where it does not say.
        is_keras: whether the objects were Keras' own.
        root_metadata: the root object's metadata, JSON; "" where it has none.
        trains: as of SavedConfig.
    """

    tensorflow_version: str | None
    is_keras: bool
    root_metadata: str
    trains: dict[str, bool]


def has_keras_config(saved_model: Path) -> bool:
    """Whether a SavedModel directory carries a Keras configuration. Parses none.

    Raises:
        UnreadableInputError: no SavedModel, or `saved_model.pb` is damaged.
    """
    require_saved_model(saved_model)
    if is_there(saved_model / IN_METADATA) or is_there(saved_model / IN_ASSETS):
        return True
    return bool(_read_graph_facts(saved_model).root_metadata)


def saved_config_of(saved_model: Path) -> SavedConfig:
    """The Keras configuration of a SavedModel directory.

    Raises:
        UnreadableInputError: no SavedModel, or a file of it is damaged.
        NotConvertibleError: it has no configuration from which the model can be built.
    """
    require_saved_model(saved_model)
    facts = _read_graph_facts(saved_model)
    metadata, place = _root_metadata(saved_model, facts)
    model = metadata.get("model_config")
    if not isinstance(model, dict):
        model = {key: metadata[key] for key in ("class_name", "config") if key in metadata}
    if not isinstance(model.get("class_name"), str):
        raise UnreadableInputError(f"{place}: expected the config of a Keras model, found none")
    try:
        model = _as_in_h5(model)
    except RecursionError as error:
        raise UnreadableInputError(f"refused as unsafe: {place} is nested too deeply") from error
    if not members(model):
        raise NotConvertibleError(
            f"{place} holds no layers of the {model['class_name']}: it is no Sequential or "
            "functional model but code of its own, which a SavedModel does not keep; "
            "--to savedmodel lowers its graph instead"
        )
    return SavedConfig(
        {"class_name": model["class_name"], "config": model["config"]},
        place,
        _text_or_none(metadata.get("keras_version")),
        _text_or_none(metadata.get("backend")),
        facts.tensorflow_version,
        metadata.get("training_config") is not None,
        facts.trains,
    )


def require_saved_model(saved_model: Path) -> None:
    """Raise an UnreadableInputError unless a path is a SavedModel directory."""
    if not saved_model.is_dir():
        raise UnreadableInputError("not a directory; expected that of a SavedModel")
    if is_there(saved_model / _GRAPH_FILE):
        return
    if is_there(saved_model / "saved_model.pbtxt"):
        raise UnreadableInputError(
            "saved_model.pbtxt, a SavedModel as text, is not read; save the model again with "
            "as_text=False"
        )
    inner = sorted(path.parent.name for path in saved_model.glob(f"*/{_GRAPH_FILE}"))
    hint = f"; there is one in its folder {inner[-1]}" if inner else ""
    raise UnreadableInputError(f"no {_GRAPH_FILE} in it, so it is no SavedModel{hint}")


def _read_graph_facts(saved_model: Path) -> _GraphFacts:
    """Read what `saved_model.pb` tells about objects; its graph and functions stay unread.

    Raises:
        UnreadableInputError: the file is missing or damaged.
    """
    buffer = _read(saved_model / _GRAPH_FILE)
    with reading(_GRAPH_FILE):
        graphs = [Message(part) for part in Message(buffer).parts(2)]
        if not graphs:
            raise Malformed("it holds no graph")
        versions = [Message(graph.part(1)).text(5) for graph in graphs]
        version = next((version for version in versions if version), None)
        for graph in graphs:
            if graph.has(7):
                objects = [Message(part) for part in Message(graph.part(7)).parts(1)]
                return _object_facts(objects, version)
    return _GraphFacts(version, False, "", {})


def _object_facts(objects: list[Message], version: str | None) -> _GraphFacts:
    is_keras = False
    root_metadata = ""
    trainable: dict[str, set[bool]] = {}
    for index, node in enumerate(objects):
        if node.has(4):
            user_object = Message(node.part(4))
            if user_object.text(1).startswith(_KERAS):
                is_keras = True
                root_metadata = root_metadata if index else user_object.text(3)
        elif node.has(7):
            variable = Message(node.part(7))
            trainable.setdefault(variable.text(6), set()).add(bool(variable.unsigned(3)))
    clear = {name: True in flags for name, flags in trainable.items() if len(flags) == 1}
    return _GraphFacts(version, is_keras, root_metadata, clear)


def _root_metadata(saved_model: Path, facts: _GraphFacts) -> tuple[dict[str, Any], str]:
    """The metadata of the root, and where they were found."""
    if is_there(saved_model / IN_METADATA):
        text, place = _from_metadata_file(saved_model / IN_METADATA), IN_METADATA
    elif facts.root_metadata:
        text, place = facts.root_metadata, IN_OBJECT_GRAPH
    elif is_there(saved_model / IN_ASSETS):
        text, place = str(_read(saved_model / IN_ASSETS), "utf-8", "replace"), IN_ASSETS
    else:
        raise NotConvertibleError(_why_no_config(facts))
    return parse_json(text, place), place


def _why_no_config(facts: _GraphFacts) -> str:
    writer = f"TensorFlow {facts.tensorflow_version}" if facts.tensorflow_version else "TensorFlow"
    why = (
        "tf.saved_model.save was called on a Keras model, which leaves it out"
        if facts.is_keras
        else "model.export, tf.saved_model.save and plain TensorFlow 1 write none"
    )
    return (
        f"a SavedModel of {writer} with a graph but no Keras configuration ({why}), so no Keras "
        "model can be made of it; --to savedmodel lowers it instead"
    )


def _from_metadata_file(path: Path) -> str:
    """The metadata of the root object in a `keras_metadata.pb`."""
    buffer = _read(path)
    with reading(path.name):
        for part in Message(buffer).parts(1):
            node = Message(part)
            if node.unsigned(2) == 0:
                return node.text(5)
        raise Malformed("it does not describe the model, the root object")


def _read(path: Path) -> bytes:
    with open_file(path) as (file, _):
        buffer = file.read()
    require_no_lfs_pointer(path)
    return buffer


def _as_in_h5(value: Any) -> Any:
    """A config as Keras 2 writes it into HDF5: lists for tuples, no numbers for shared objects."""
    if isinstance(value, list):
        return [_as_in_h5(item) for item in value]
    if not isinstance(value, dict):
        return value
    if value.get("class_name") in _TUPLES and isinstance(value.get("items"), list):
        return _as_in_h5(value["items"])
    is_object = "class_name" in value and "config" in value
    return {
        key: _as_in_h5(item)
        for key, item in value.items()
        if not (is_object and key == "shared_object_id")
    }


def _text_or_none(value: object) -> str | None:
    return value if isinstance(value, str) else None

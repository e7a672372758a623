"""What of a config Keras must not be given, because loading it would run code or open files.

Keras' own `safe_mode` is no sandbox: before 3.11.3 it was ignored for .h5 files (CVE-2025-9905),
before 3.9 a config could name any function of any module (CVE-2025-1550, CVE-2025-8747,
CVE-2025-9906), before 3.12 a vocabulary could be any file (CVE-2025-12058). So every object that a
config names, wherever it stands, is looked up in the tables of `harmless`; nothing is imported.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from rnnconvert.keras_models.config.harmless import CLASSES, FUNCTIONS, OPERATIONS, VALUES
from rnnconvert.keras_models.config.lambdas import called_names, holds_code, is_vouched_for
from rnnconvert.keras_models.config.tensorflow_calls import CALL_CLASSES, function_name
from rnnconvert.keras_models.config.tensorflow_calls.kept import is_known
from rnnconvert.keras_models.config.tensorflow_calls.node_defs import is_known_op
from rnnconvert.keras_models.config.tree import Config, root, show_path, walk

_LAMBDAS = ("Lambda", "__lambda__")
_CODE_LAYERS = frozenset(("Lambda", "TFSMLayer", "JaxLayer", "FlaxLayer", "TorchModuleWrapper"))
"""Layers of Keras' own that run what the file holds or names."""
_ANYWHERE = frozenset().union(*CLASSES.values(), *OPERATIONS.values())
_OPTIMIZERS = {name.lower() for name in CLASSES["keras.optimizers"]}
_MARKS = ("module", "registered_name", "spec_name")
"""Keys of a dict that Keras takes for the name of an object."""
_OLD_PREFIX = "Custom>"
"""Of the optimizers in files of Keras 2.11 to 2.15."""

CODE, CLASS, FILE = "code", "class", "file"


@dataclass(frozen=True)
class Refusal:
    """One place of a config that Keras is not given.

    Attributes:
        text: what stands where, as the start of a sentence.
        kind: CODE in the file or named by it; CLASS, a layer of the user's own; FILE, a path.
    """

    text: str
    kind: str

    @property
    def remedy(self) -> str:
        """What lets it run."""
        if self.kind == CLASS:
            return "--custom-objects module:name names an importable class"
        return "--allow-code runs it" if self.kind == CODE else "--allow-code reads it"

    def __str__(self) -> str:
        verb = "read" if self.kind == FILE else "run"
        return f"{self.text}, which is not {verb} ({self.remedy})"


def refusals(config: Config, known: Iterable[str] = ()) -> list[Refusal]:
    """Everything in a config that would run foreign code or open a file when Keras loads it.

    Args:
        config: a model_config, or a training_config.
        known: names of custom classes and functions that the caller vouches for.

    Returns:
        One for each place, code before custom classes; [] where Keras may load the config.
    """
    vouched = frozenset(known)
    nodes = [node for node in walk(root(config)) if "class_name" in node.entry]
    layers = {id(node.entry): show_path(node.path) for node in nodes}
    found = dict.fromkeys(_refused(config, vouched, layers))
    return sorted(found, key=lambda refusal: (CODE, FILE, CLASS).index(refusal.kind))


def first_refusal(
    configs: Iterable[Config | None], known: Iterable[str], *, allow_code: bool
) -> Refusal | None:
    """What forbids to load these configs; with `allow_code` only custom classes, unknown to Keras.

    Args:
        configs: what Keras would read of one file; None for what the file does not have.
        known: names of custom classes and functions that the caller vouches for.
    """
    found = [refusal for config in configs if config for refusal in refusals(config, known)]
    return next((one for one in found if one.kind == CLASS or not allow_code), None)


def is_own(name: str) -> bool:
    """Whether a class is rnnconvert's, which only a config that it made itself may name."""
    return name.startswith("rnnconvert>")


def _refused(config: Config, vouched: frozenset[str], layers: dict[int, str]) -> Iterator[Refusal]:
    """Every dict and list of the config, in its order; the nearest layer around is the place."""
    left: list[tuple[Any, str]] = [(config, "the config")]
    while left:
        value, place = left.pop()
        if isinstance(value, list | tuple):
            left += [(item, place) for item in reversed(value)]
        elif isinstance(value, dict):
            is_layer = id(value) in layers
            place = layers.get(id(value), place)
            refusal = _of_object(value, vouched, place, is_layer) or _of_paths(value, place)
            if refusal is not None:
                yield refusal
                if value.get("class_name") == "Lambda" and refusal.kind == CLASS:
                    continue  # the functions that it calls are what was refused
            left += [(item, place) for item in reversed(list(value.values()))]


def _of_object(
    entry: dict[str, Any], vouched: frozenset[str], place: str, is_layer: bool
) -> Refusal | None:
    """Why the object that a dict stands for is not made; None where it is harmless, or none."""
    name, module = entry.get("class_name"), entry.get("module")
    if name is None and not any(isinstance(entry.get(mark), str) for mark in _MARKS):
        return None
    if _is_vouched(entry, vouched) or _is_harmless(entry):
        return None
    if is_layer and name == "Lambda" and (missing := _missing_functions(entry, vouched)):
        return Refusal(
            f"{place} is a Lambda layer that calls {', '.join(missing)}, which is not in the file",
            CLASS,
        )
    if name in _LAMBDAS:
        here = "is a Lambda layer" if is_layer and name == "Lambda" else "holds a lambda function"
        return Refusal(f"{place} {here}, whose code is in the file", CODE)
    if name in CALL_CLASSES:
        called = _shown(function_name(entry))
        return Refusal(f"{place} calls TensorFlow's {called}, which is not among those known", CODE)
    if name == "function":
        return Refusal(f"{place} names the function {_shown(entry.get('config'))!r}", CODE)
    full = ".".join(_shown(part) for part in (module, name) if part is not None)
    if is_layer and name not in _CODE_LAYERS:
        return Refusal(f"{place} is of the custom class {full}", CLASS)
    return Refusal(f"{place} names {full or _shown(entry.get('registered_name'))}", CODE)


def _missing_functions(entry: dict[str, Any], vouched: frozenset[str]) -> list[str]:
    """Functions that a Lambda layer without code calls, and that nobody vouches for."""
    config = entry.get("config")
    if not isinstance(config, dict) or holds_code(config):
        return []
    return [name for name in called_names(config) if name not in vouched]


def _is_vouched(entry: dict[str, Any], vouched: frozenset[str]) -> bool:
    """Keras asks for the registered name first; files of Keras 2 have the class name only."""
    config = entry.get("config")
    if entry.get("class_name") == "Lambda" and isinstance(config, dict):
        return is_vouched_for(config, vouched)
    name = entry.get("config") if entry.get("class_name") == "function" else entry.get("class_name")
    asked = entry.get("registered_name") or name
    if not isinstance(asked, str) or asked not in vouched:
        return False
    return name in vouched or name not in _CODE_LAYERS


def _is_harmless(entry: dict[str, Any]) -> bool:
    name, module = entry.get("class_name"), entry.get("module")
    if name == "function":
        return _is_function(entry)
    if name in CALL_CLASSES:
        return _is_known_call(entry)
    if not isinstance(name, str):
        return name is None and module in (*CLASSES, *OPERATIONS)
    if module is None:
        plain = name.removeprefix(_OLD_PREFIX)
        return name in VALUES or plain in _ANYWHERE or plain.lower() in _OPTIMIZERS
    if not isinstance(module, str):
        return False
    return name in CLASSES.get(module, ()) or name in OPERATIONS.get(module, ())


def _is_known_call(entry: dict[str, Any]) -> bool:
    """A call of TensorFlow that has a translation. Others could read, write and run anything."""
    called = function_name(entry)
    if entry["class_name"] == "TensorFlowOpLayer":
        return is_known_op(called)
    return entry["class_name"] in ("TFOpLambda", "SlicingOpLambda") and is_known(called)


def _is_function(entry: dict[str, Any]) -> bool:
    """A function of Keras by its own name: under another registered name it could be any."""
    name, module = entry.get("config"), entry.get("module")
    same = entry.get("registered_name") in (None, name)
    known = FUNCTIONS.get(module or "builtins", ()) if isinstance(module, str | None) else ()
    return isinstance(name, str) and name in known and same


def _of_paths(entry: dict[str, Any], place: str) -> Refusal | None:
    """A path in a config: a vocabulary's, or one in a layer's name, which names its own files."""
    vocabulary = entry.get("vocabulary")
    if isinstance(vocabulary, str):
        return Refusal(f"{place} names the file {_shown(vocabulary)}", FILE)
    name = entry.get("name")
    if isinstance(name, str) and ("\\" in name or ".." in name.split("/")):
        return Refusal(f"{place} has a path for a name, {_shown(name)}", FILE)
    return None


def _shown(value: object) -> str:
    """A name out of a file, of a length to be printed."""
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= 80 else f"{text[:80]}..."

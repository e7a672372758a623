"""Lambda layers: the forms in which Keras 2 writes what they call, and those that Keras 3 reads.

Keras 2 keeps a lambda as a list of its bytecode (base64), defaults and closure, and a function by
its name alone. Keras 3 reads the first as an object of the class "__lambda__", if the user consents
(`safe_mode=False`), and the second as one of the class "function", which it looks up in
`custom_objects`. Nothing is decoded or run here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from rnnconvert.keras_models.config.changes import Changes
from rnnconvert.keras_models.config.tree import Config, Node, show_path

CALLABLES = ("function", "output_shape", "mask")
_KEYS_OF_KERAS_2 = (
    "function_type", "module", "output_shape_type", "output_shape_module", "mask_type",
    "mask_module",
)  # fmt: skip


def rewrite_for_keras3(node: Node, changes: Changes) -> None:
    """Put what a Lambda layer calls into the form that Keras 3 reads."""
    if node.class_name != "Lambda":
        return
    path, config = show_path(node.path), node.config
    for key in CALLABLES:
        value = config.get(key)
        if _is_code(value) and isinstance(value, list):
            changes.put(path, config, key, _lambda(*value))
        elif _is_name(config, key):
            changes.put(path, config, key, _function(value))
    for key in _KEYS_OF_KERAS_2:
        changes.drop(path, config, key)


def _lambda(code: str, defaults: Any, closure: Any) -> Config:
    # Keras 3 makes defaults a tuple, as Python wants them, only where it unpacks the old list.
    whole = [code, defaults, closure] if defaults else code
    inner = {"code": whole, "defaults": defaults, "closure": closure}
    return {"class_name": "__lambda__", "config": inner}


def _function(name: Any) -> Config:
    # "builtins": the module that the file names is never imported, whatever the Keras version.
    return {
        "class_name": "function", "config": name, "module": "builtins", "registered_name": name,
    }  # fmt: skip


def holds_code(config: Config) -> bool:
    """Whether bytecode is in the config of a Lambda layer."""
    return any(_is_code(config.get(key)) for key in CALLABLES)


def called_names(config: Config) -> Iterator[str]:
    """Functions that a Lambda layer calls and that are not in the file."""
    for key in CALLABLES:
        value = config.get(key)
        if isinstance(value, dict) and value.get("class_name") == "function":
            yield str(value.get("config"))
        elif _is_name(config, key):
            yield str(value)


def is_vouched_for(config: Config, known: Iterable[str]) -> bool:
    """Whether a Lambda layer calls nothing but functions that the caller gives."""
    names = set(called_names(config))
    return bool(names) and not holds_code(config) and names <= set(known)


def describe_lambda(config: Config) -> str:
    """What a Lambda layer calls, to stand behind "a Lambda layer"."""
    if holds_code(config) or not any(called_names(config)):
        return ", whose code is in the file"
    return f" that calls {', '.join(called_names(config))}, which is not in the file"


def warning(path: str, config: Config) -> str:
    """What a user must know of a Lambda layer that is kept."""
    if holds_code(config) or not any(called_names(config)):
        return (
            f"{path}: Lambda layer kept, its code never run; Keras loads it only with "
            "safe_mode=False, and only in the version of Python that wrote it: it is bytecode"
        )
    given = ", ".join(f"{name!r}: ..." for name in called_names(config))
    return (
        f"{path}: Lambda layer kept{describe_lambda(config)}; Keras loads it with "
        f"custom_objects={{{given}}}"
    )


def _is_code(value: Any) -> bool:
    if isinstance(value, dict):
        return value.get("class_name") == "__lambda__"
    return isinstance(value, list) and len(value) == 3 and isinstance(value[0], str)


def _is_name(config: Config, key: str) -> bool:
    return isinstance(config.get(key), str) and config.get(f"{key}_type") != "raw"

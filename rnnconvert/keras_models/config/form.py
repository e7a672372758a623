"""Whether a model config has the form that Keras writes, checked once, as it is read.

Everything else in the package relies on it: a layer dict that is none would be passed over in
silence, and the conversion of its weights be half done.
"""

from __future__ import annotations

from typing import Any

from rnnconvert.errors import UnreadableInputError
from rnnconvert.keras_models.config.tree import MODEL_CLASSES, WRAPPED_KEYS, Config


def require_form(model_config: Config) -> None:
    """Raise UnreadableInputError where the config of a model, or of a layer in it, has none.

    A layer is `{"class_name": text, "config": {...}}`; Keras before 2.2.3 has a bare list of layers
    as the config of a Sequential.
    """
    _require_layer(model_config, "model_config")


def _require_layer(entry: Any, where: str) -> None:
    if not isinstance(entry, dict):
        raise _malformed(where, "a layer", entry)
    class_name, config = entry.get("class_name"), entry.get("config")
    if not isinstance(class_name, str):
        raise _malformed(f"{where}.class_name", "text", class_name)
    if isinstance(config, list) and class_name in MODEL_CLASSES:
        config = {"layers": config}
    if not isinstance(config, dict):
        raise _malformed(f"{where}.config", "an object", config)
    where = f"{where}/{config.get('name', class_name)!s:.80}"
    if class_name in MODEL_CLASSES or "layers" in config:
        _require_members(class_name, config, where)
    for key in WRAPPED_KEYS:
        if _is_like_a_layer(config.get(key)):
            _require_layer(config[key], f"{where}.{key}")
    if isinstance(config.get("cells"), list):
        for cell in config["cells"]:
            _require_layer(cell, f"{where}.cells")


def _require_members(class_name: str, config: Config, where: str) -> None:
    layers = config.get("layers")
    if class_name not in MODEL_CLASSES and not (
        isinstance(layers, list) and all(map(_is_like_a_layer, layers))
    ):
        return  # a key of somebody's own layer that happens to be called so
    if not isinstance(layers, list):
        raise _malformed(f"{where}.layers", "a list", layers)
    for layer in layers:
        _require_layer(layer, where)
        if not isinstance(layer.get("inbound_nodes", []), list):
            raise _malformed(f"{where}: inbound_nodes", "a list", layer["inbound_nodes"])
    for key in ("input_layers", "output_layers"):
        if not isinstance(config.get(key, []), list | dict):
            raise _malformed(f"{where}.{key}", "a list", config[key])


def _is_like_a_layer(value: Any) -> bool:
    return isinstance(value, dict) and "class_name" in value


def _malformed(where: str, expected: str, found: Any) -> UnreadableInputError:
    return UnreadableInputError(
        f"{where}: expected {expected}, found {found!r:.40}; the file is damaged"
    )

"""What stands for what while TensorFlow calls are translated: tensors, shapes, unknown numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rnnconvert.keras_models.config.tree import Config


class Refused(Exception):
    """A call without a counterpart in Keras 3; the text says what is in the way."""


@dataclass(frozen=True)
class CallTensor:
    """A tensor of the model: a layer's output by layer name, call and place."""

    layer: str
    node: int
    index: int


@dataclass(frozen=True)
class Shape:
    """What `tf.shape` gives: a number of values that is not known before the model runs."""


@dataclass(frozen=True)
class Size:
    """One number of such a shape, or anything computed from it."""


@dataclass(frozen=True)
class Array:
    """A constant of more than one number."""

    value: Any
    dtype: str


def holds(value: Any, kinds: type | tuple[type, ...]) -> bool:
    """Whether one of these is in a nested value."""
    if isinstance(value, list | tuple):
        return any(holds(item, kinds) for item in value)
    if isinstance(value, dict):
        return any(holds(item, kinds) for item in value.values())
    if isinstance(value, slice):
        return holds([value.start, value.stop, value.step], kinds)
    return isinstance(value, kinds)


def require_numbers(what: str, value: Any) -> Any:
    """The value, which must be known now.

    Raises:
        Refused: it is computed while the model runs.
    """
    if holds(value, (CallTensor, Shape, Size)):
        raise Refused(f"its {what} is computed while the model runs")
    return value


def whole_number(what: str, value: Any) -> int:
    """An integer that is known now.

    Raises:
        Refused: it is none.
    """
    require_numbers(what, value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise Refused(f"its {what} is {value!r}, not a whole number")
    return value


def encode(value: Any) -> Any:
    """A call's argument in Keras 3's JSON."""
    if isinstance(value, CallTensor):
        return keras_tensor([value.layer, value.node, value.index])
    if isinstance(value, Array):
        config: Config = {"value": value.value, "dtype": value.dtype}
        return {"class_name": "__numpy__", "config": config}
    if isinstance(value, slice):
        config = {"start": value.start, "stop": value.stop, "step": value.step}
        return {"class_name": "__slice__", "config": config}
    if isinstance(value, list | tuple):
        return [encode(item) for item in value]
    return value


def keras_tensor(reference: list[Any]) -> Config:
    """Keras 3's form of a reference. Shape and dtype are replaced by the real ones on loading."""
    return {
        "class_name": "__keras_tensor__",
        "config": {"shape": [None], "dtype": "float32", "keras_history": reference[:3]},
    }

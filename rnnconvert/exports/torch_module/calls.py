"""One call of one Keras layer, and what the writers of all layers need."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rnnconvert.exports.torch_module import activations
from rnnconvert.exports.torch_module.emitter import Array, Emitter, Value


@dataclass(frozen=True)
class LayerCall:
    """One call of one layer.

    Attributes:
        emitter: takes the lines.
        layer: Keras' layer.
        inputs: its tensors, flat.
        kwargs: its keyword arguments.
        shapes: of its outputs.
    """

    emitter: Emitter
    layer: Any
    inputs: Sequence[Value]
    kwargs: dict[str, Any]
    shapes: Sequence[tuple[int | None, ...]]

    @property
    def x(self) -> str:
        return self.inputs[0].name

    @property
    def rank(self) -> int:
        return self.inputs[0].rank

    def mask(self, place: int = 0) -> str | None:
        """The mask of an input: the one that the call gives, else the one that came with it."""
        given = self.kwargs.get("mask")
        if isinstance(given, list | tuple):
            given = given[place] if place < len(given) else None
        return given.name if isinstance(given, Value) else self.inputs[place].mask

    def module(self, kind: str, source: str, **tensors: Array | None) -> str:
        """The layer's attribute; tensors that are None are left out."""
        given = {name: array for name, array in tensors.items() if array is not None}
        return self.emitter.module(id(self.layer), kind, source, given, self.layer.name)

    def axis(self, axis: int) -> int:
        """An axis of the first input, counted from the front."""
        return axis % self.rank

    def refuse(self, why: str) -> str:
        """Note that there is no torch form; gives a variable to go on with."""
        name = type(self.layer).__name__
        self.emitter.problem(f"{self.layer.name!a} ({name}{': ' if why else ''}{why})")
        return self.x


def or_masks(call: LayerCall) -> str | None:
    """The mask behind a layer that hands masks on: of several inputs, where any of them counts."""
    masks = [value.mask for value in call.inputs]
    if any(mask is None for mask in masks):
        return None
    different = list(dict.fromkeys(str(mask) for mask in masks))
    return different[0] if len(different) == 1 else call.emitter.set(" | ".join(different), "m")


def weight(variable: Any) -> Array | None:
    """The values of a Keras variable; None where the layer has none."""
    return None if variable is None else np.asarray(variable.numpy())


def activated(call: LayerCall, name: str, activation: Any) -> str:
    if activations.name_of(activation) == "linear":
        return name
    found = activations.expression(activation, name)
    if found is None:
        return call.refuse(f"activation {activations.described(activation)}")
    return call.emitter.set(found)

"""Seeded random inputs for a whole model, sensible for what reads them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from rnnconvert.errors import NotConvertibleError
from rnnconvert.options import Inputs

TIMESTEPS = 7
BATCH = 3
_CLASSES = 8
"""Integers run from 0 to here where nothing says how far they may go."""

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class ModelInput:
    """One input of a model.

    Attributes:
        name: of the input layer.
        shape: with the batch; None where the model leaves it open.
        dtype: as Keras names it.
        vocabulary: number of values an Embedding knows, where one reads this input.
        padding: the value that a Masking layer or a masking Embedding takes for padding.
    """

    name: str
    shape: tuple[int | None, ...]
    dtype: str
    vocabulary: int | None = None
    padding: float | None = None


def slots_of(model: Any) -> list[ModelInput]:
    """The inputs of a Keras model, and what the layers that read them expect.

    Raises:
        NotConvertibleError: an input of strings, for which no sensible values are known.
    """
    found = []
    for tensor in model.inputs:
        readers = list(_readers(model, tensor))
        sizes = [reader.input_dim for reader in readers if _is(reader, "Embedding")]
        found.append(
            ModelInput(
                tensor.name,
                tuple(tensor.shape),
                str(tensor.dtype),
                min(sizes, default=None),
                next((p for p in map(_padding, readers) if p is not None), None),
            )
        )
        if "string" in found[-1].dtype:
            raise NotConvertibleError(f"input {tensor.name} takes strings; no values are known")
    return found


def _is(layer: Any, *names: str) -> bool:
    return type(layer).__name__ in names


def _padding(layer: Any) -> float | None:
    if _is(layer, "Masking"):
        return float(layer.mask_value)
    if _is(layer, "Embedding") and layer.mask_zero:
        return 0.0
    return None


_TRANSPARENT = (
    "Reshape", "Flatten", "Permute", "RepeatVector", "Dropout", "SpatialDropout1D", "Concatenate",
    "Masking", "Identity", "Cropping1D", "ZeroPadding1D",
)  # fmt: skip
"""Layers that hand their input's values on."""


def _readers(model: Any, tensor: Any) -> Iterator[Any]:
    """The layers that see the values of `tensor`: through wrappers, nested models and reshaping."""
    for operation, tensors, outputs in _calls(model):
        places = [place for place, given in enumerate(tensors) if given is tensor]
        for place in places:
            inner = operation
            while _is(inner, "TimeDistributed"):
                inner = inner.layer
            if getattr(inner, "inputs", None):
                yield from _readers(inner, inner.inputs[min(place, len(inner.inputs) - 1)])
            else:
                yield inner
                if _is(inner, *_TRANSPARENT):
                    for output in outputs:
                        yield from _readers(model, output)


def _calls(model: Any) -> Iterator[tuple[Any, list[Any], list[Any]]]:
    """(operation, input tensors, output tensors) of each call in a functional model."""
    functional = getattr(model, "_functional", None) or model
    for nodes in getattr(functional, "_nodes_by_depth", {}).values():
        for node in nodes:
            if not node.is_input:
                yield node.operation, list(node.input_tensors), list(node.output_tensors)


def make(slots: list[ModelInput], inputs: Inputs, length: int, batches: int) -> list[list[Array]]:
    """Random values for each input, `batches` times.

    Floats are normal, integers run over an Embedding's vocabulary, and where a layer masks
    padding, the sequences are padded on the right to different lengths.

    Args:
        slots: the model's inputs.
        inputs: seed and batch.
        length: of dimensions that the model leaves open.
        batches: how many; more than one shows what a stateful model carries over.
    """
    generator = np.random.default_rng(inputs.seed)
    sizes = {slot.shape[0] for slot in slots if slot.shape and slot.shape[0] is not None}
    batch = max(sizes, default=None) or inputs.batch or BATCH
    return [[_values(slot, batch, length, generator) for slot in slots] for _ in range(batches)]


def _values(slot: ModelInput, batch: int, length: int, generator: np.random.Generator) -> Array:
    shape = (batch, *(length if size is None else size for size in slot.shape[1:]))
    if slot.vocabulary is not None or "int" in slot.dtype:
        values = generator.integers(0, slot.vocabulary or _CLASSES, shape).astype(_plain(slot))
    elif slot.dtype == "bool":
        values = generator.integers(0, 2, shape).astype(bool)
    else:
        values = generator.standard_normal(shape).astype(_plain(slot))
    if slot.padding is not None and len(shape) > 1:
        _pad(values, slot.padding, generator)
    return values


def _plain(slot: ModelInput) -> str:
    return "float32" if slot.dtype == "bfloat16" else slot.dtype


def _pad(values: Array, padding: float, generator: np.random.Generator) -> None:
    """Pad each sequence on the right; the first keeps its length, and none is empty."""
    if padding == 0 and values.dtype.kind == "i":
        values[values == 0] = 1  # no holes in the middle, at least where the vocabulary allows
    for row, stop in enumerate(generator.integers(1, values.shape[1] + 1, len(values))):
        if row:
            values[row, stop:] = padding

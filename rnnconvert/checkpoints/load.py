"""The weights of a stack from its checkpoint, in the canonical form."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import numpy as np

from rnnconvert import layouts
from rnnconvert.checkpoints.stack import CellPlace, Stack, StackSlot
from rnnconvert.containers.checkpoint import Checkpoint
from rnnconvert.errors import NotConvertibleError
from rnnconvert.layouts import RnnWeights, opaque, tf1_cells
from rnnconvert.layouts.opaque import PseudoLayer
from rnnconvert.layouts.tf1_cells import Tf1Cell
from rnnconvert.layouts.weights import Array
from rnnconvert.verification.rounding import EPS

TF1 = "tf1:"
"""What the layout of a cell begins with."""
_SMALLEST = {"float16": 2.0**-24, "float32": 2.0**-149, "float64": 5e-324, "bfloat16": 2.0**-133}
_SEPARATE = {"bias_cudnn_0": 0, "bias_cudnn_1": 1, "bias_cudnn 0": 0, "bias_cudnn 1": 1}
"""TF 1.3's two biases of a cell's first kernel."""


def load_weights(stack: Stack, checkpoint: Checkpoint) -> tuple[RnnWeights, ...]:
    """The weights of each direction of each layer, layer by layer, forward before backward.

    They come from the buffer where there is one, since it keeps both biases; the tensors of cells
    beside it are compared with it.

    Raises:
        NotConvertibleError: buffer and tensors disagree, or tensors contradict each other.
        UnreadableInputError: a file is missing or damaged.
    """
    if stack.opaque is None:
        return tuple(_from_place(stack, place, checkpoint) for place in stack.places)
    weights = tuple(layer.weights() for layer in _cut(stack, stack.opaque, checkpoint))
    for place, own in zip(stack.places, weights, strict=bool(stack.places)):
        for name, expected, is_sum in _stored(place, own):
            _require_equal(stack.opaque, name, expected, checkpoint.read(name), is_sum=is_sum)
        if stack.places:
            _from_place(stack, place, checkpoint)  # TF 1.3's biases must add up
    return weights


def load_slot(stack: Stack, slot: StackSlot, checkpoint: Checkpoint) -> tuple[PseudoLayer, ...]:
    """A slot of the buffer, cut as the buffer is; order as `load_weights`.

    Raises:
        NotConvertibleError: it has another size or type than a buffer.
        UnreadableInputError: a file is missing or damaged.
    """
    return _cut(stack, slot.variable, checkpoint)


def _cut(stack: Stack, variable: str, checkpoint: Checkpoint) -> tuple[PseudoLayer, ...]:
    try:
        return opaque.unpack_buffer(stack.shape, checkpoint.read(variable))
    except ValueError as error:
        raise NotConvertibleError(f"{variable}: {error}") from error


def _from_place(stack: Stack, place: CellPlace, checkpoint: Checkpoint) -> RnnWeights:
    tensors = {inner: checkpoint.read(name) for inner, name in place.tensors.items()}
    try:
        if place.layout.startswith(TF1):
            return tf1_cells.unpack_tf1(cell_layout(stack.cell, place), tensors, stack.forget_bias)
        return layouts.unpack(layouts.find(place.layout, stack.cell), tensors)
    except ValueError as error:
        raise NotConvertibleError(f"{place.scope}: {error}") from error


def unpack_biases(
    stack: Stack, place: CellPlace, tensors: Mapping[str, Array], forget_bias: float | None
) -> Array:
    """The biases of a place, (2, gates, units), by their names inside it; a merged one as halves.

    Args:
        forget_bias: what a cell of TensorFlow 1 adds; None is its class' default.

    Raises:
        ValueError: biases contradict each other, or one is missing.
    """
    if place.layout.startswith(TF1):
        layout, named = cell_layout(stack.cell, place), tf1_cells.modern_names(tensors)
        return tf1_cells.unpack_tf1_biases(layout, named, forget_bias)
    return layouts.unpack_bias(layouts.find(place.layout, stack.cell), tensors)


def cell_layout(cell: str, place: CellPlace) -> Tf1Cell:
    """The layout of a place whose tensors are those of a cell of TensorFlow 1."""
    activation = "relu" if cell == "rnn_relu" else "tanh"
    return tf1_cells.find_tf1(place.layout.removeprefix(TF1), place.tensors, activation)


# --- the buffer against the tensors of cells ------------------------------------------------


def _stored(place: CellPlace, weights: RnnWeights) -> Iterator[tuple[str, Array, bool]]:
    """What each variable of a place must hold, and whether it is a rounded sum of two biases."""
    assert weights.bias is not None  # a buffer always has both
    if place.layout.startswith(TF1):
        tensors = tf1_cells.pack_tf1(cell_layout(weights.cell, place), weights, 0.0)
    else:
        tensors = layouts.pack(layouts.find(place.layout, weights.cell), weights)
    biases = _stored_biases(place, weights.cell, weights.bias)
    for inner, name in place.tensors.items():
        yield (name, *biases[inner]) if inner in biases else (name, tensors[inner], False)


def _stored_biases(place: CellPlace, cell: str, bias: Array) -> dict[str, tuple[Array, bool]]:
    """As `_stored`, of the biases, by their names inside the cell."""
    if not place.layout.startswith(TF1):
        packed = layouts.pack_bias(layouts.find(place.layout, cell), bias)
        return {name: (array, False) for name, array in packed.items()}
    layout, gates = cell_layout(cell, place), layouts.CELLS[cell].gates
    order = [gates.index(gate) for gate in layout.blocks[0].gates]
    merged = {block.bias for block in layout.blocks if block.rows == "xh"}
    packed = tf1_cells.pack_tf1_biases(layout, bias, 0.0)
    separate = {name: bias[half][order].reshape(-1) for name, half in _SEPARATE.items()}
    return {name: (array, name in merged) for name, array in {**packed, **separate}.items()}


def require_equal_biases(
    buffer: str, place: CellPlace, cell: str, bias: Array, read: Callable[[str], Array]
) -> None:
    """Compare the biases of a place beside a buffer with the buffer's, (2, gates, units).

    Args:
        read: gives a variable.

    Raises:
        NotConvertibleError: they disagree.
    """
    biases = _stored_biases(place, cell, bias)
    for inner, name in place.tensors.items():
        if inner in biases:
            expected, is_sum = biases[inner]
            _require_equal(buffer, name, expected, read(name), is_sum=is_sum)


def _require_equal(buffer: str, name: str, cut: Array, found: Array, *, is_sum: bool) -> None:
    """Bit for bit, or to one unit in the last place for the sum of two biases."""
    if cut.shape != found.shape or cut.dtype != found.dtype:
        raise NotConvertibleError(
            f"{name} is {found.dtype} {found.shape}, the buffer {buffer} makes {cut.dtype} "
            f"{cut.shape}"
        )
    bits = f"u{cut.dtype.itemsize}"
    differs = np.ascontiguousarray(cut).view(bits) != np.ascontiguousarray(found).view(bits)
    one, other = cut.astype(np.float64), found.astype(np.float64)
    with np.errstate(invalid="ignore"):  # infinities
        gap = np.nan_to_num(np.abs(one - other), nan=np.inf)
    if is_sum:
        kind = cut.dtype.name
        scale = np.maximum(np.abs(one), np.abs(other))
        close = gap <= np.maximum(EPS[kind] * scale, _SMALLEST[kind])
        differs &= ~(close & np.isfinite(scale)) & ~(np.isnan(one) & np.isnan(other))
    if not differs.any():
        return
    worst = np.unravel_index(int(np.argmax(np.where(differs, gap, -1.0))), gap.shape)
    raise NotConvertibleError(
        f"the opaque buffer {buffer} and the canonical tensors disagree: {name}"
        f"{[int(index) for index in worst]} is {other[worst]:.9g}, the buffer says "
        f"{one[worst]:.9g}; which one is right can't be told; save the checkpoint again from the "
        "model, or remove one of the two"
    )

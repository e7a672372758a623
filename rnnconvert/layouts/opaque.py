"""cuDNN's flat parameter buffer (`opaque_kernel`, `params`): its size, its regions, both ways.

The buffer holds the matrices of all pseudo-layers, then the biases of all pseudo-layers. A
pseudo-layer is one direction of one layer, in the order layer 0 forward, layer 0 backward, layer 1
forward, ... With G gates, `units` and `out` = num_proj or units, each has, row-major:

    W  (G, units, in)     in = input_size for layer 0, else directions * out
    R  (G, units, out)
    P  (out, units)       with a projection only
    b  (2, G, units)      input biases, then recurrent biases

Gates are cuDNN's: lstm i f c o, gru r z n, rnn h, the order of `Cell.gates`. There is no padding,
and the offsets in elements are the same for every dtype. With skip_input layer 0 has no W (every
gate receives x itself), but keeps both biases.

Source: NVIDIA's library itself, asked by `cudnnGetRNNWeightSpaceSize` and `cudnnGetRNNWeightParams`
(`tests/layouts/test_opaque_cudnn.py` asks it again). The names of the hyperparameters are those of
TensorFlow's `CudnnRNN` operators.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import prod

import numpy as np

from rnnconvert.errors import NotConvertibleError, UsageError
from rnnconvert.layouts.cells import CELLS
from rnnconvert.layouts.weights import FLOAT_DTYPES, Array, RnnWeights

CUDNN_CELLS = ("lstm", "gru", "rnn_tanh", "rnn_relu")
DIRECTIONS = {"unidirectional": ("forward",), "bidirectional": ("forward", "backward")}
INPUT_MODES = ("linear_input", "skip_input", "auto_select")
DTYPES = (*FLOAT_DTYPES, "void16")
"""void16 is what numpy makes of bfloat16 in a file; elements are only moved here."""

_KINDS = {
    "kernel": ("input_kernel",),
    "recurrent": ("recurrent_kernel",),
    "projection": ("projection",),
    "bias": ("input_bias", "recurrent_bias"),
}
"""The kinds of regions in each field of a `PseudoLayer`."""


@dataclass(frozen=True)
class OpaqueShape:
    """The hyperparameters that fix the layout of a parameter buffer.

    Attributes:
        cell: one of `CUDNN_CELLS` (cuDNN's mode).
        num_layers, num_units, input_size: each at least 1.
        direction: "unidirectional" or "bidirectional".
        input_mode: "linear_input", "skip_input" (input_size must be num_units), or "auto_select",
            which is skip_input where input_size is num_units, else linear_input.
        num_proj: size of an LSTM's projected output, at most num_units; 0 is no projection, and so
            is num_units (TensorFlow asks cuDNN for a projection to fewer units only).

    Raises:
        UsageError: an unknown value, or values that contradict each other.
    """

    cell: str
    num_layers: int
    num_units: int
    input_size: int
    direction: str = "unidirectional"
    input_mode: str = "linear_input"
    num_proj: int = 0

    def __post_init__(self) -> None:
        known = {"cell": CUDNN_CELLS, "direction": DIRECTIONS, "input_mode": INPUT_MODES}
        for name, values in known.items():
            if (value := getattr(self, name)) not in values:
                raise UsageError(f"{name}: expected {', '.join(values)}, found {value!r}")
        least = {"num_layers": 1, "num_units": 1, "input_size": 1, "num_proj": 0}
        for name, low in least.items():
            value = getattr(self, name)
            if not isinstance(value, int) or value < low:
                raise UsageError(f"{name}: expected a whole number from {low} on, found {value}")
        if self.input_mode == "skip_input" and self.input_size != self.num_units:
            raise UsageError(
                f"skip_input needs as many inputs as units, found input_size={self.input_size} "
                f"and num_units={self.num_units}; use linear_input"
            )
        if self.num_proj and self.cell != "lstm":
            raise UsageError(f"cuDNN has projections for lstm only, not for {self.cell}")
        if self.num_proj > self.num_units:
            raise UsageError(
                f"num_proj: expected at most num_units={self.num_units}, found {self.num_proj}"
            )

    def __str__(self) -> str:
        return ", ".join(f"{name}={value}" for name, value in vars(self).items())

    @property
    def gates(self) -> tuple[str, ...]:
        return CELLS[self.cell].gates

    @property
    def directions(self) -> tuple[str, ...]:
        return DIRECTIONS[self.direction]

    @property
    def skips_input(self) -> bool:
        """Whether layer 0 has no input matrices."""
        return self.input_mode != "linear_input" and self.input_size == self.num_units

    @property
    def projection(self) -> int:
        """Size of the projected output; 0 where there are no projection matrices."""
        return self.num_proj if self.num_proj < self.num_units else 0

    @property
    def output_size(self) -> int:
        """Size of h, and of the output of one direction."""
        return self.projection or self.num_units

    @property
    def resolved(self) -> OpaqueShape:
        """The same layout without "auto_select" and without a num_proj that does nothing."""
        mode = "skip_input" if self.skips_input else "linear_input"
        return replace(self, input_mode=mode, num_proj=self.projection)

    @property
    def size(self) -> int:
        """Number of elements of the buffer (`CudnnRNNParamsSize`).

        The sum over the pseudo-layers of G*units*(in + out + 2), and units*out with a projection.
        """
        directions, layers, out = len(self.directions), self.num_layers, self.output_size
        inputs = 0 if self.skips_input else self.input_size
        inputs += (layers - 1) * directions * out
        per_unit = len(self.gates) * (inputs + layers * (out + 2)) + layers * self.projection
        return directions * self.num_units * per_unit

    @property
    def regions(self) -> tuple[Region, ...]:
        """Every matrix and bias of every gate, in the order of the buffer."""
        found: list[Region] = []
        for layer, direction, field, shape in _fields(self):
            gates = (None,) if field == "projection" else self.gates
            one = shape[-1:] if field == "bias" else shape[-2:]
            for kind, gate in product(_KINDS[field], gates):
                offset = found[-1].end if found else 0
                found.append(Region(self.cell, layer, direction, kind, gate, offset, one))
        return tuple(found)


@dataclass(frozen=True)
class Region:
    """One matrix or bias of one gate: the elements from `offset` to `end`, row-major.

    Attributes:
        kind: "input_kernel" (units, in), "recurrent_kernel" (units, out), "projection" (out,
            units), "input_bias" or "recurrent_bias" (units,).
        gate: None for the projection.
    """

    cell: str
    layer: int
    direction: str
    kind: str
    gate: str | None
    offset: int
    shape: tuple[int, ...]

    @property
    def end(self) -> int:
        return self.offset + prod(self.shape)

    @property
    def name(self) -> str:
        """Of the array in a file of canonical arrays, e.g. gru/layer_0/forward/input_kernel/r."""
        return _name(self.cell, self.layer, self.direction, self.kind, self.gate)


def _name(cell: str, layer: int, direction: str, kind: str, gate: str | None) -> str:
    return "/".join([cell, f"layer_{layer}", direction, kind, *([gate] if gate else [])])


@dataclass(frozen=True, eq=False)
class PseudoLayer:
    """The weights of one direction of one layer, as cuDNN has them.

    Attributes:
        direction: "forward" or "backward".
        kernel: (gates, units, in); None where skip_input leaves it out.
        recurrent: (gates, units, out).
        bias: (2, gates, units), input bias then recurrent bias.
        projection: (out, units), or None.

    Raises:
        ValueError: an array has another number of axes, gates or units.
    """

    cell: str
    layer: int
    direction: str
    kernel: Array | None
    recurrent: Array
    bias: Array
    projection: Array | None = None

    def __post_init__(self) -> None:
        gates, units = len(CELLS[self.cell].gates), self.bias.shape[-1:]
        expected: dict[str, tuple[int | str, ...]] = {
            "bias": (2, gates, *units),
            "kernel": (gates, *units, "in"),
            "recurrent": (gates, *units, "out"),
            "projection": ("out", *units),
        }
        for field, axes in expected.items():
            array = getattr(self, field)
            if array is not None and not _matches(array.shape, axes):
                raise ValueError(
                    f"{field} of layer {self.layer} {self.direction} of a {self.cell}: "
                    f"expected shape {axes}, found {array.shape}"
                )

    @classmethod
    def of(cls, weights: RnnWeights, layer: int, direction: str) -> PseudoLayer:
        """Raises ValueError for weights without biases, which no buffer holds."""
        if weights.bias is None:
            raise ValueError(f"layer {layer} {direction}: no biases, which a buffer always has")
        return cls(weights.cell, layer, direction, weights.kernel, weights.recurrent, weights.bias)

    def arrays(self) -> dict[str, Array]:
        """One array per gate and kind under its name (`Region.name`); views where possible."""
        found = {}
        for field, kinds in _KINDS.items():
            if (array := getattr(self, field)) is None:
                continue
            gates = (None,) if field == "projection" else CELLS[self.cell].gates
            one = array.shape[-1:] if field == "bias" else array.shape[-2:]
            rows = array.reshape(-1, *one)
            for (kind, gate), row in zip(product(kinds, gates), rows, strict=True):
                found[_name(self.cell, self.layer, self.direction, kind, gate)] = row
        return found

    def weights(self) -> RnnWeights:
        """The canonical weights; an identity kernel per gate stands for a skipped input.

        Raises:
            NotConvertibleError: the layer has a projection.
        """
        if self.projection is not None:
            out, units = self.projection.shape
            raise NotConvertibleError(
                f"layer {self.layer} {self.direction} projects the output of an LSTM from {units} "
                f"to {out} units (num_proj={out}); an LSTM without a projection can't do that"
            )
        kernel, shape = self.kernel, self.recurrent.shape
        if kernel is None:
            kernel = np.broadcast_to(np.eye(shape[1], dtype=self.recurrent.dtype), shape)
        return RnnWeights(self.cell, kernel, self.recurrent, self.bias)


def unpack(shape: OpaqueShape, buffer: Array) -> tuple[PseudoLayer, ...]:
    """The pseudo-layers of a buffer, in its order. All arrays are views of `buffer`.

    Raises:
        ValueError: the buffer has another size (the message names hyperparameters that would fit),
            is not 1-D, or has another dtype than `DTYPES`.
    """
    if buffer.ndim != 1:
        raise ValueError(f"expected a flat buffer of shape (elements,), found {buffer.shape}")
    if len(buffer) != shape.size:
        raise ValueError(_misfit(shape, len(buffer)))
    _one_dtype([buffer])
    held: dict[tuple[int, str], dict[str, Array]] = {}
    offset = 0
    for layer, direction, field, size in _fields(shape):
        end = offset + prod(size)
        held.setdefault((layer, direction), {})[field] = buffer[offset:end].reshape(size)
        offset = end
    return tuple(
        PseudoLayer(
            shape.cell, *place, own.get("kernel"), own["recurrent"], own["bias"],
            own.get("projection"),
        )
        for place, own in held.items()
    )  # fmt: skip


def pack(shape: OpaqueShape, layers: Sequence[PseudoLayer]) -> Array:
    """The buffer of these pseudo-layers, given in any order: the inverse of `unpack`.

    Raises:
        ValueError: a layer is missing or too many, or an array has another shape or dtype.
    """
    return fill(shape, named(layers))


def fitting(size: int, near: OpaqueShape) -> tuple[OpaqueShape, ...]:
    """Hyperparameters whose buffer has `size` elements, those with the fewest changes first.

    Tries every cell, direction and input mode, 1 to 4 layers and as many as `near` has, with its
    projection and without, always with its number of units; input_size is solved for.
    """
    near = near.resolved
    counts, projections = {near.num_layers, 1, 2, 3, 4}, {near.num_proj, 0}
    found = []
    for cell, layers, direction, projection in product(
        CUDNN_CELLS, sorted(counts), DIRECTIONS, sorted(projections)
    ):
        if projection and cell != "lstm":
            continue
        least = OpaqueShape(cell, layers, near.num_units, 1, direction, num_proj=projection)
        per_input = len(least.directions) * len(least.gates) * least.num_units
        further_inputs, rest = divmod(size - least.size, per_input)
        if further_inputs >= 0 and not rest:
            found.append(replace(least, input_size=1 + further_inputs))
        skipping = replace(least, input_size=near.num_units, input_mode="skip_input")
        if skipping.size == size:
            found.append(skipping)
    return tuple(sorted(found, key=lambda shape: len(changes(near, shape))))


def _fields(shape: OpaqueShape) -> Iterator[tuple[int, str, str, tuple[int, ...]]]:
    """Layer, direction, field of `PseudoLayer` and its shape, in the order of the buffer."""
    gates, units, out = len(shape.gates), shape.num_units, shape.output_size
    places = list(product(range(shape.num_layers), shape.directions))
    for layer, direction in places:
        width = len(shape.directions) * out if layer else shape.input_size
        if layer or not shape.skips_input:
            yield layer, direction, "kernel", (gates, units, width)
        yield layer, direction, "recurrent", (gates, units, out)
        if shape.projection:
            yield layer, direction, "projection", (out, units)
    for layer, direction in places:
        yield layer, direction, "bias", (2, gates, units)


def named(layers: Sequence[PseudoLayer]) -> dict[str, Array]:
    """The arrays of all layers under their names; ValueError where a layer is given twice."""
    if len({(layer.layer, layer.direction) for layer in layers}) != len(layers):
        raise ValueError("a pseudo-layer is given twice")
    return {name: array for layer in layers for name, array in layer.arrays().items()}


def fill(shape: OpaqueShape, arrays: Mapping[str, Array]) -> Array:
    """The buffer with these arrays in their regions; ValueError as `require_regions`."""
    buffer = np.empty(shape.size, require_regions(shape, arrays))
    for region in shape.regions:
        buffer[region.offset : region.end].reshape(region.shape)[...] = arrays[region.name]
    return buffer


# --- checks and messages --------------------------------------------------------------------


def require_regions(shape: OpaqueShape, arrays: Mapping[str, Array]) -> np.dtype[np.generic]:
    """The dtype of all arrays; ValueError where they are not those of the regions of `shape`."""
    expected = {region.name: region.shape for region in shape.regions}
    missing = [name for name in expected if name not in arrays]
    further = [name for name in arrays if name not in expected]
    if missing or further:
        raise ValueError(
            f"{len(missing)} of {len(expected)} arrays are missing ({listed(missing) or '-'}), "
            f"{len(further)} have no place ({listed(further) or '-'})"
        )
    for name, size in expected.items():
        if arrays[name].shape != size:
            raise ValueError(f"{name}: expected shape {size}, found {arrays[name].shape}")
    return _one_dtype(arrays.values())


def _one_dtype(arrays: Iterable[Array]) -> np.dtype[np.generic]:
    """The dtype of all arrays, byte order included: nothing may be converted on the way."""
    dtypes = {array.dtype for array in arrays}
    if len(dtypes) != 1 or not {dtype.name for dtype in dtypes} <= set(DTYPES):
        raise ValueError(
            f"expected one dtype of {', '.join(FLOAT_DTYPES)}, "
            f"found {listed(sorted(map(str, dtypes)))}"
        )
    return dtypes.pop()


def _matches(shape: tuple[int, ...], axes: tuple[int | str, ...]) -> bool:
    """Whether a shape has these axes; a named one may have any length."""
    return len(shape) == len(axes) and all(
        isinstance(axis, str) or axis == length for axis, length in zip(axes, shape, strict=True)
    )


def changes(near: OpaqueShape, other: OpaqueShape) -> list[str]:
    """The hyperparameters of `other` that differ from those of `near`."""
    return [f"{name}={value}" for name, value in vars(other).items() if value != vars(near)[name]]


def _misfit(shape: OpaqueShape, size: int) -> str:
    """Why `size` elements are wrong for `shape`, and which hyperparameters would be right."""
    message = f"the buffer has {size} elements; expected {shape.size} for {shape}; "
    others = [changes(shape.resolved, other) for other in fitting(size, shape)]
    nearest = [", ".join(words) for words in others if len(words) == len(others[0])]
    if not nearest:
        return message + "no other cell, direction, input size or number of layers fits either"
    return message + f"{size} would fit {listed(nearest, ' or ')}"


def listed(items: Sequence[str], joint: str = ", ") -> str:
    """The first few items in words."""
    return joint.join(items[:3]) + (f"{joint}..." if len(items) > 3 else "")

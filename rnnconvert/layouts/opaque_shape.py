"""The hyperparameters of cuDNN's flat parameter buffer, and the regions that follow from them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from math import prod

from rnnconvert.errors import UsageError
from rnnconvert.layouts.cells import CELLS
from rnnconvert.layouts.weights import FLOAT_DTYPES

CUDNN_CELLS = ("lstm", "gru", "rnn_tanh", "rnn_relu")
DIRECTIONS = {"unidirectional": ("forward",), "bidirectional": ("forward", "backward")}
INPUT_MODES = ("linear_input", "skip_input", "auto_select")
DTYPES = (*FLOAT_DTYPES, "void16")
"""void16 is what numpy makes of bfloat16 in a file; elements are only moved here."""

KINDS = {
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

    Example:
        >>> OpaqueShape("lstm", num_layers=2, num_units=4, input_size=3).size
        304
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
        for layer, direction, field, shape in fields_of(self):
            gates = (None,) if field == "projection" else self.gates
            one = shape[-1:] if field == "bias" else shape[-2:]
            for kind, gate in product(KINDS[field], gates):
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

    Example:
        >>> OpaqueShape("gru", 1, 4, 3).regions[1].name
        'gru/layer_0/forward/input_kernel/z'
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
        return region_name(self.cell, self.layer, self.direction, self.kind, self.gate)


def region_name(cell: str, layer: int, direction: str, kind: str, gate: str | None) -> str:
    return "/".join([cell, f"layer_{layer}", direction, kind, *([gate] if gate else [])])


def fields_of(shape: OpaqueShape) -> Iterator[tuple[int, str, str, tuple[int, ...]]]:
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

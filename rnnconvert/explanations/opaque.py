"""The topic `opaque`: cuDNN's flat parameter buffer, drawn from its regions."""

from __future__ import annotations

from itertools import groupby

from rnnconvert.explanations.facts import INPUTS, UNITS, table
from rnnconvert.layouts.opaque_shape import CUDNN_CELLS, OpaqueShape, Region

EXAMPLE = OpaqueShape("lstm", 2, UNITS, INPUTS, "bidirectional")
_WORDS = {
    "input_kernel": "W",
    "recurrent_kernel": "R",
    "projection": "P",
    "input_bias": "bW",
    "recurrent_bias": "bR",
}
_SHORT = {"forward": "fw", "backward": "bw"}


def explain_opaque() -> str:
    orders = "; ".join(
        f"{cell} {' '.join(OpaqueShape(cell, 1, UNITS, INPUTS).gates)}" for cell in CUDNN_CELLS
    )
    skipping = OpaqueShape("lstm", 1, UNITS, UNITS, input_mode="skip_input")
    projected = OpaqueShape("lstm", 1, UNITS, INPUTS, num_proj=4)
    return f"""\
cuDNN's flat parameter buffer ("opaque_kernel", "params")

First the matrices of all pseudo-layers, then the biases of all pseudo-layers. A pseudo-layer is one
direction of one layer: layer 0 forward, layer 0 backward, layer 1 forward, ... Here a buffer of
{EXAMPLE.num_layers} {EXAMPLE.direction} {EXAMPLE.cell} layers of {UNITS} units on {INPUTS} inputs:

{_picture(EXAMPLE)}

{table(("elements", "pseudo-layer", "what", "gates", "each gate", ""), _rows(EXAMPLE))}

All matrices lie row by row (C order). There is no padding, and the offsets in elements are the same
in float16, float32 and float64. Both biases are always there. Gates:
{orders}.

Size, with G gates and in inputs (those of the first layer, then U per direction):

  the sum over the pseudo-layers of G * U * (in + U + 2)
{_sum(EXAMPLE)}

With input_mode="skip_input" (or "auto_select" and as many inputs as units) the first layer has no
W, but keeps bW: {_size(skipping)}. With num_proj=P an LSTM's R
is (U, P), a matrix (P, U) follows R, and the next layer has P inputs per direction:
{_size(projected)} with P={projected.num_proj}.

  rnnconvert opaque size --cell {EXAMPLE.cell} --layers {EXAMPLE.num_layers} --units {UNITS} \
--input-size {INPUTS} --direction {EXAMPLE.direction}
  rnnconvert opaque unpack params.npy -o canonical.npz --cell ...     and back: opaque pack
"""


def _rows(shape: OpaqueShape) -> list[tuple[str, ...]]:
    """One row for the regions of one kind of a pseudo-layer."""
    rows: list[tuple[str, ...]] = []
    for (layer, direction, kind), group in groupby(shape.regions, _kind):
        regions = list(group)
        rows.append(
            (
                f"{regions[0].offset:>4} - {regions[-1].end - 1:>4}",
                f"layer {layer} {direction}",
                _WORDS[kind],
                " ".join(region.gate or "-" for region in regions),
                str(regions[0].shape),
                kind.replace("_", " "),
            )
        )
    return rows


def _kind(region: Region) -> tuple[int, str, str]:
    return region.layer, region.direction, region.kind


def _picture(shape: OpaqueShape) -> str:
    """One box for the neighbouring regions of a pseudo-layer."""
    places, contents = [], []
    for (layer, direction), group in groupby(shape.regions, lambda r: (r.layer, r.direction)):
        places.append(f"{layer} {_SHORT[direction]}")
        contents.append(" ".join(dict.fromkeys(_WORDS[region.kind] for region in group)))
    width = max(map(len, contents)) + 2
    edge = "+" + "+".join("-" * width for _ in places) + "+"
    lines = [
        " " + " ".join(place.center(width) for place in places),
        edge,
        "|" + "|".join(content.center(width) for content in contents) + "|",
        edge,
    ]
    return "\n".join(f"  {line}".rstrip() for line in lines)


def _sum(shape: OpaqueShape) -> str:
    gates, units, directions = len(shape.gates), shape.num_units, len(shape.directions)
    terms = []
    for layer in range(shape.num_layers):
        width = next(r.shape[1] for r in shape.regions if r.layer == layer)
        terms.append(f"{directions} * {gates}*{units}*({width}+{shape.output_size}+2)")
    return f"  = {' + '.join(terms)} = {shape.size}"


def _size(shape: OpaqueShape) -> str:
    return f"{shape.num_units} units on {shape.input_size} inputs have {shape.size} elements"

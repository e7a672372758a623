"""Where the matrix of each gate lies in the tensors of a checkpoint, whose numbers are not read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from rnnconvert.checkpoints.load import TF1, cell_layout
from rnnconvert.checkpoints.stack import CellPlace
from rnnconvert.containers.tiles import MatrixBlock
from rnnconvert.layouts import find, gate_slices, tf1_cells
from rnnconvert.layouts.opaque_shape import OpaqueShape
from rnnconvert.layouts.table import MatrixForm

Shape = tuple[int, ...]
Key = tuple[str, str]
"""Kind, "kernel" or "recurrent", and gate."""


@dataclass(frozen=True)
class StoredMatrix:
    """Where the matrix (units, width) of a gate lies.

    Attributes:
        tensor: that it is a part of.
        block: its numbers, from the tensor's first byte on.
        width: inputs, or units.
        is_transposed: the block holds it transposed, (width, units); else its numbers, row by row,
            are the matrix' own, whatever rows and columns the block has.
    """

    tensor: str
    block: MatrixBlock
    width: int
    is_transposed: bool


def matrices_in(
    cell: str, place: CellPlace, shapes: Mapping[str, Shape], itemsize: int
) -> dict[Key, StoredMatrix]:
    """The matrices of a place.

    Args:
        shapes: of its tensors, by their names inside it.
        itemsize: bytes of a number.

    Raises:
        ValueError: the shapes contradict each other.
    """
    of = _of_cell if place.layout.startswith(TF1) else _of_layer
    return dict(of(cell, place, shapes, itemsize))


def _of_cell(
    cell: str, place: CellPlace, shapes: Mapping[str, Shape], itemsize: int
) -> Iterator[tuple[Key, StoredMatrix]]:
    """A cell of TensorFlow 1."""
    layout = cell_layout(cell, place)
    names = tf1_cells.modern_names({inner: inner for inner in shapes})
    inputs, units = tf1_cells.require_tf1_shapes(layout, tf1_cells.modern_names(shapes))
    for part in tf1_cells.kernel_parts(layout, inputs, units):
        tensor = names[part.tensor]
        stride, width = shapes[tensor][1], part.rows.stop - part.rows.start
        offset = (part.rows.start * stride + part.columns.start) * itemsize
        block = MatrixBlock(offset, width, units, stride)
        yield (part.kind, part.gate), StoredMatrix(tensor, block, width, is_transposed=True)


def _of_layer(
    cell: str, place: CellPlace, shapes: Mapping[str, Shape], itemsize: int
) -> Iterator[tuple[Key, StoredMatrix]]:
    """A layer of Keras, or cuDNN's matrices one by one."""
    layout = find(place.layout, cell)
    for kind, name in zip(("kernel", "recurrent"), layout.tensors, strict=False):
        for gate in layout.gates:
            tensor = name.format(gate=gate)
            rows, columns = shapes[tensor]
            if layout.matrix is MatrixForm.SEPARATE:
                block, width = MatrixBlock(0, rows, columns, columns), columns
            else:
                units, width = columns // len(layout.gates), rows
                offset = gate_slices(layout, units)[gate].start * itemsize
                block = MatrixBlock(offset, rows, units, columns)
            is_transposed = layout.matrix is MatrixForm.COLUMNS
            yield (kind, gate), StoredMatrix(tensor, block, width, is_transposed)


def matrices_in_buffer(
    shape: OpaqueShape, tensor: str, itemsize: int
) -> dict[tuple[int, str], dict[Key, StoredMatrix]]:
    """The matrices of a cuDNN buffer, by layer and direction.

    Args:
        tensor: name of the buffer.
        itemsize: bytes of a number.
    """
    kinds = {"input_kernel": "kernel", "recurrent_kernel": "recurrent"}
    found: dict[tuple[int, str], dict[Key, StoredMatrix]] = {}
    for region in shape.regions:
        if region.kind not in kinds or region.gate is None:
            continue
        units, width = region.shape
        block = MatrixBlock(region.offset * itemsize, units, width, width)
        own = found.setdefault((region.layer, region.direction), {})
        own[kinds[region.kind], region.gate] = StoredMatrix(
            tensor, block, width, is_transposed=False
        )
    return found

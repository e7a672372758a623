"""Reading and writing weights by the layout table: `unpack`, `pack`, `convert`.

Everything but a merged bias is a bijection, bit for bit. The piecewise functions (`gate_slices`,
`relay_block`) let a container convert a large tensor one gate at a time.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from rnnconvert.layouts.cells import CELLS, require_same_function
from rnnconvert.layouts.table import BiasForm, Layout, MatrixForm, find
from rnnconvert.layouts.weights import Array, RnnWeights, merge_bias, split_bias

_STRIP = 64
"""Bytes of a row that are written at once: a line of the cache."""


def unpack(layout: Layout, tensors: Mapping[str, Array]) -> RnnWeights:
    """Tensors as `layout` stores them, to the canonical form.

    Args:
        layout: a row of the table (`find`).
        tensors: name to array, names and shapes as the layout says.

    Raises:
        ValueError: a tensor is missing or has another shape than the others imply.

    Example:
        >>> tensors = {"kernel": np.ones((2, 9)), "recurrent_kernel": np.ones((3, 9))}
        >>> unpack(find("keras", "gru"), tensors).kernel.shape
        (3, 3, 2)
    """
    kernel_name, recurrent_name, _ = layout.tensors
    return RnnWeights(
        layout.cell,
        _unpack_matrix(layout, kernel_name, tensors),
        _unpack_matrix(layout, recurrent_name, tensors),
        _unpack_bias(layout, tensors),
    )


def pack(layout: Layout, weights: RnnWeights) -> dict[str, Array]:
    """The canonical form, to tensors as `layout` stores them.

    Raises:
        NotConvertibleError: the layout's cell is another function than the weights'.

    Example:
        >>> weights = RnnWeights("gru", np.ones((3, 3, 2)), np.ones((3, 3, 3)), np.zeros((2, 3, 3)))
        >>> {name: array.shape for name, array in pack(find("keras", "gru"), weights).items()}
        {'kernel': (2, 9), 'recurrent_kernel': (3, 9), 'bias': (2, 9)}
    """
    require_same_function(weights.cell, layout.cell)
    kernel_name, recurrent_name, _ = layout.tensors
    tensors = {
        **_pack_matrix(layout, kernel_name, weights.kernel),
        **_pack_matrix(layout, recurrent_name, weights.recurrent),
    }
    bias = weights.bias
    if bias is None and layout.needs_bias:
        bias = np.zeros((2, len(layout.gates), weights.units), weights.dtype)
    if bias is not None:
        tensors.update(_pack_bias(layout, bias))
    return tensors


def convert(tensors: Mapping[str, Array], source: str, target: str, cell: str) -> dict[str, Array]:
    """Tensors of `cell` from the layout named `source` to the one named `target`.

    Example:
        >>> kernel = np.arange(8.0).reshape(2, 4)  # 2 inputs, 1 unit; gates i f c o
        >>> stored = {"kernel": kernel, "recurrent_kernel": np.zeros((1, 4))}
        >>> convert(stored, "keras", "onnx", "lstm")["W"]  # gates i o f c
        array([[[0., 4.],
                [3., 7.],
                [1., 5.],
                [2., 6.]]])
    """
    return pack(find(target, cell), unpack(find(source, cell), tensors))


# --- one tensor or one gate at a time -------------------------------------------------------


def gate_slices(layout: Layout, units: int) -> dict[str, slice]:
    """Where each gate lies along the stacked axis (columns of a Keras kernel, rows of torch's).

    Example:
        >>> gate_slices(find("keras", "gru"), units=5)
        {'z': slice(0, 5, None), 'r': slice(5, 10, None), 'n': slice(10, 15, None)}
    """
    return {gate: slice(i * units, (i + 1) * units) for i, gate in enumerate(layout.gates)}


def relay_block(source: MatrixForm, target: MatrixForm, block: Array) -> Array:
    """One gate's stored block, from one matrix form to another. May be a view of `block`.

    Example:
        >>> block = np.arange(6).reshape(2, 3)  # 2 inputs, 3 units
        >>> relay_block(MatrixForm.CUDNN_COLUMNS, MatrixForm.COLUMNS, block)
        array([[0, 2, 4],
               [1, 3, 5]])
    """
    return _store(target, _load(source, block))


def contiguous(block: Array) -> Array:
    """A block in C order: itself if it is that, else a copy.

    Example:
        >>> contiguous(np.zeros((2, 3)).T).flags.c_contiguous
        True
    """
    if block.flags.c_contiguous or block.ndim != 2:
        return np.ascontiguousarray(block)
    out = np.empty(block.shape, block.dtype)
    copy_block(block, out)
    return out


def copy_block(block: Array, out: Array) -> None:
    """`out[...] = block`; a transposed matrix goes in strips, several times as fast.

    Example:
        >>> out = np.empty((3, 2))
        >>> copy_block(np.arange(6.0).reshape(2, 3).T, out)
        >>> out[0]
        array([0., 3.])
    """
    if block.strides[0] >= block.strides[1]:
        out[...] = block
        return
    step = max(1, _STRIP // block.dtype.itemsize)
    for start in range(0, block.shape[1], step):
        out[:, start : start + step] = block[:, start : start + step]


def relay_bias(source: Layout, target: Layout, bias: Array) -> Array:
    """A bias held in one tensor, from one layout to another of the same cell.

    Example:
        >>> relay_bias(find("keras-cudnn", "lstm"), find("keras", "lstm"), np.arange(8.0))
        array([ 4.,  6.,  8., 10.])
    """
    require_same_function(source.cell, target.cell)
    name = source.tensors[2]
    packed = _pack_bias(target, _unpack_bias(source, {name: bias}, required=True))
    return packed[target.tensors[2]]


def pack_bias(layout: Layout, bias: Array) -> dict[str, Array]:
    """The bias tensors of a layout, of a canonical bias (2, gates, units).

    Example:
        >>> pack_bias(find("keras", "lstm"), np.ones((2, 4, 3)))["bias"].shape
        (12,)
    """
    return _pack_bias(layout, bias)


def unpack_bias(layout: Layout, tensors: Mapping[str, Array]) -> Array:
    """The inverse of `pack_bias`; a merged bias comes back as halves.

    Raises:
        ValueError: a tensor is missing or has another shape.

    Example:
        >>> unpack_bias(find("keras", "lstm"), {"bias": np.ones(12)}).shape
        (2, 4, 3)
    """
    bias = _unpack_bias(layout, tensors, required=True)
    assert bias is not None
    return bias


def _load(form: MatrixForm, block: Array) -> Array:
    """A stored block to the gate's matrix (units, n)."""
    if form is MatrixForm.COLUMNS:
        return block.T
    if form is MatrixForm.CUDNN_COLUMNS:
        return block.reshape(block.shape[1], block.shape[0])
    return block


def _store(form: MatrixForm, matrix: Array) -> Array:
    """A gate's matrix (units, n) to the stored block: the inverse of `_load`."""
    if form is MatrixForm.COLUMNS:
        return matrix.T
    if form is MatrixForm.CUDNN_COLUMNS:
        return contiguous(matrix).reshape(matrix.shape[1], matrix.shape[0])
    return matrix


def _order(layout: Layout) -> list[int]:
    """For each gate in the cell's order, its place in stored order."""
    return [layout.gates.index(gate) for gate in CELLS[layout.cell].gates]


def _unpack_matrix(layout: Layout, name: str, tensors: Mapping[str, Array]) -> Array:
    count = len(layout.gates)
    if layout.matrix is MatrixForm.SEPARATE:
        stored = [_take(tensors, name.format(gate=gate)) for gate in layout.gates]
    else:
        array = _strip(layout, name, _take(tensors, name))
        axis = 0 if layout.matrix is MatrixForm.ROWS else 1
        if array.ndim != 2 or array.shape[axis] % count:
            raise ValueError(
                f"{name}: expected a matrix with {count} gates along axis {axis}, "
                f"found {array.shape}"
            )
        stored = list(np.split(array, count, axis))
    return _stack(name, [_load(layout.matrix, stored[place]) for place in _order(layout)])


def _pack_matrix(layout: Layout, name: str, canonical: Array) -> dict[str, Array]:
    cell_gates = CELLS[layout.cell].gates
    blocks = [_store(layout.matrix, canonical[cell_gates.index(gate)]) for gate in layout.gates]
    if layout.matrix is MatrixForm.SEPARATE:
        return {
            name.format(gate=gate): np.ascontiguousarray(block)
            for gate, block in zip(layout.gates, blocks, strict=True)
        }
    axis = 0 if layout.matrix is MatrixForm.ROWS else 1
    return {name: _wrap(layout, np.concatenate(blocks, axis))}


def _unpack_bias(
    layout: Layout, tensors: Mapping[str, Array], *, required: bool = False
) -> Array | None:
    """Bias tensors to (2, gates, units) in the cell's gate order; None where there are none."""
    name = layout.tensors[2]
    parts = name.split("|")
    present = any(part.format(gate=gate) in tensors for part in parts for gate in layout.gates)
    if not (present or required or layout.needs_bias):
        return None
    count = len(layout.gates)
    if layout.bias is BiasForm.SEPARATE:
        rows = [
            _stack(name, [_take(tensors, part.format(gate=gate)) for gate in layout.gates])
            for part in parts
        ]
        stored = _stack(name, rows)
    elif layout.bias is BiasForm.TWO_TENSORS:
        stored = _stack(name, [_take(tensors, part) for part in parts])
    else:
        array = _strip(layout, name, _take(tensors, name))
        rank = 2 if layout.bias is BiasForm.TWO_ROWS else 1
        if array.ndim != rank or (rank == 2 and len(array) != 2):
            raise ValueError(f"{name}: expected {layout.bias.value}, found {array.shape}")
        stored = split_bias(array) if layout.bias is BiasForm.MERGED else array
    if stored.size % (2 * count):
        raise ValueError(f"{name}: expected 2 x {count} gates, found {stored.shape}")
    return stored.reshape(2, count, -1)[:, _order(layout)]


def _pack_bias(layout: Layout, bias: Array | None) -> dict[str, Array]:
    assert bias is not None
    name = layout.tensors[2]
    cell_gates = CELLS[layout.cell].gates
    stored = bias[:, [cell_gates.index(gate) for gate in layout.gates]]
    if layout.bias is BiasForm.SEPARATE:
        return {
            part.format(gate=gate): stored[half, place].copy()
            for half, part in enumerate(name.split("|"))
            for place, gate in enumerate(layout.gates)
        }
    rows = stored.reshape(2, -1)
    if layout.bias is BiasForm.TWO_TENSORS:
        return {part: rows[half].copy() for half, part in enumerate(name.split("|"))}
    if layout.bias is BiasForm.TWO_ROWS:
        return {name: _wrap(layout, rows)}
    if layout.bias is BiasForm.CONCATENATED:
        return {name: _wrap(layout, rows.reshape(-1))}
    return {name: _wrap(layout, merge_bias(rows))}


def _stack(name: str, arrays: list[Array]) -> Array:
    """np.stack of arrays that must be alike: it would widen dtypes without a word."""
    kinds = {f"{array.dtype.name} {array.shape}" for array in arrays}
    if len(kinds) != 1:
        raise ValueError(
            f"{name}: expected equal dtypes and shapes, found {', '.join(sorted(kinds))}"
        )
    return np.stack(arrays)


def _take(tensors: Mapping[str, Array], name: str) -> Array:
    if name not in tensors:
        raise ValueError(f"tensor {name} is missing; found {', '.join(sorted(tensors))}")
    return np.asarray(tensors[name])


def _strip(layout: Layout, name: str, array: Array) -> Array:
    """Remove the leading axes (ONNX: one direction at a time)."""
    for _ in range(layout.leading):
        if array.shape[:1] != (1,):
            raise ValueError(f"{name}: expected one direction, shape (1, ...), found {array.shape}")
        array = array[0]
    return array


def _wrap(layout: Layout, array: Array) -> Array:
    return np.ascontiguousarray(array.reshape((1,) * layout.leading + array.shape))

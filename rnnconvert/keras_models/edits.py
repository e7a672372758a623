"""Doing an edit, and checking that it was done: from one stored array to another, gate by gate.

`source` and `target` are anything that reads and writes by slices: h5py datasets, numpy arrays.
A matrix is in memory as a whole, and so is what is made of it; large ones go as `moves_of` says,
through a stream of tiles.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from rnnconvert.containers.tiles import MatrixBlock, Move
from rnnconvert.keras_models.plan import Edit, Relay, Scale
from rnnconvert.layouts import contiguous, copy_block, gate_slices, relay_bias, relay_block
from rnnconvert.layouts.table import MatrixForm
from rnnconvert.layouts.weights import Array

_BAND = 2**18
"""Numbers that are rescaled at once."""


def moves_of(
    edit: Relay, shape: tuple[int, ...], itemsize: int, start: int, place: int
) -> list[Move]:
    """What a relayed matrix is for a stream of tiles: one move for each gate.

    Args:
        shape: of the stored matrix, the gates side by side.
        itemsize: bytes of a number.
        start, place: offsets of the matrix in the source's and the target's file.
    """
    rows, stride = shape
    units = edit.units
    is_flat = edit.source.matrix is MatrixForm.CUDNN_COLUMNS
    return [
        Move(
            MatrixBlock(start + here.start * itemsize, rows, units, stride),
            MatrixBlock(place + there.start * itemsize, rows, units, stride),
            (units, rows) if is_flat else (rows, units),
            itemsize,
        )
        for here, there in _gate_pairs(edit)
    ]


def apply_edit(edit: Edit, source: Any, target: Any) -> None:
    """Write into `target` what `edit` makes of `source`."""
    if isinstance(edit, Scale):
        for rows in row_bands(source):
            made = source[rows]
            for start, stop in edit.columns:
                made[..., start:stop] = _scaled(made[..., start:stop], edit.factor)
            target[rows] = made
    elif edit.kind == "bias":
        target[...] = _relayed_bias(edit, source[...])
    elif isinstance(target, np.ndarray):
        _relay(edit, source[...], target)
    else:
        made = np.empty(target.shape, target.dtype)
        _relay(edit, source[...], made)
        target[...] = made


def row_bands(stored: Any) -> Iterator[slice]:
    """Some rows at a time, so that a large tensor needs little memory; whole rows of chunks."""
    rows = max(1, _BAND // max(1, int(np.prod(stored.shape[1:]))))
    chunks = getattr(stored, "chunks", None)
    if chunks:
        rows = chunks[0] * max(1, rows // chunks[0])
    for start in range(0, stored.shape[0], rows):
        yield slice(start, min(start + rows, stored.shape[0]))


def check_edit(edit: Edit, source: Any, target: Any) -> str | None:
    """None where `target` is what `edit` makes of `source`, else a sentence on the difference.

    A relayed matrix must give the source's bits back when relayed in reverse; a merged bias or a
    scaled gate must lie within half a unit in the last place of the exact value; the two parts of
    a split bias must be halves and their sum the source's bits.
    """
    if isinstance(edit, Scale):
        return next(filter(None, _check_scaled_bands(edit, source, target)), None)
    if edit.kind == "bias":
        if edit.merges and not edit.is_slot:
            halves = source[...].reshape(2, -1)
            exact = halves[0].astype(np.longdouble) + halves[1].astype(np.longdouble)
            return _check_half_ulp(exact, target[...])
        if edit.splits:
            return _check_halves(source[...], target[...])
        return _check_bits(_relayed_bias(edit, source[...]), target[...])
    for here, there in _gate_pairs(edit):
        block = relay_block(edit.target.matrix, edit.source.matrix, target[:, there])
        difference = _check_bits(source[:, here], contiguous(block))
        if difference:
            return difference
    return None


def _relay(edit: Relay, source: Array, target: Array) -> None:
    for here, there in _gate_pairs(edit):
        block = relay_block(edit.source.matrix, edit.target.matrix, source[:, here])
        copy_block(block, target[:, there])


def _gate_pairs(edit: Relay) -> Iterator[tuple[slice, slice]]:
    """Where each gate lies in the source and in the target."""
    here = gate_slices(edit.source, edit.units)
    there = gate_slices(edit.target, edit.units)
    for gate in edit.source.gates:
        yield here[gate], there[gate]


def _relayed_bias(edit: Relay, bias: Array) -> Array:
    if edit.is_slot and edit.merges:
        return bias.reshape(2, -1)[0]
    return relay_bias(edit.source, edit.target, bias)


def _scaled(block: Array, factor: float) -> Array:
    return (block.astype(np.float64) * factor).astype(block.dtype)


def _check_scaled_bands(edit: Scale, source: Any, target: Any) -> Iterator[str | None]:
    for rows in row_bands(source):
        exact = source[rows].astype(np.longdouble)
        for start, stop in edit.columns:
            exact[..., start:stop] *= np.longdouble(edit.factor)
        difference = _check_half_ulp(exact, target[rows])
        yield f"{difference} from row {rows.start} on" if difference and rows.start else difference


def _check_bits(expected: Array, found: Array) -> str | None:
    if expected.shape != found.shape or expected.dtype != found.dtype:
        return f"{found.dtype} {found.shape} instead of {expected.dtype} {expected.shape}"
    bits = np.dtype(f"u{expected.dtype.itemsize}")
    different = expected.view(bits) != np.ascontiguousarray(found).view(bits)
    if not different.any():
        return None
    place = tuple(int(i) for i in np.argwhere(different)[0])
    return f"{int(different.sum())} values differ, the first at {place}"


def _check_halves(bias: Array, found: Array) -> str | None:
    """The sum to the last bit; the halves apart by no more than the parity of a subnormal."""
    if found.shape != (2 * bias.size,) or found.dtype != bias.dtype:
        return f"{found.dtype} {found.shape} instead of two halves of {bias.dtype} {bias.shape}"
    first, second = found.reshape(2, -1)
    with np.errstate(invalid="ignore"):
        total = first + second
        uneven = ~(np.abs(first - second) <= np.finfo(bias.dtype).smallest_subnormal)
    if (uneven & np.isfinite(bias)).any():
        return f"{int((uneven & np.isfinite(bias)).sum())} values are not split into halves"
    both_zero = (total == 0) & (bias == 0)  # -0.0 may become 0.0
    return _check_bits(bias, np.where(both_zero, bias, total))


def _check_half_ulp(exact: Any, found: Array) -> str | None:
    with np.errstate(invalid="ignore"):  # inf - inf; what is not finite is not compared
        distance = np.abs(found.astype(np.longdouble) - exact)
    # A hair over a half: `exact` of a float64 is itself rounded (to 64 bits of mantissa).
    allowed = np.spacing(np.abs(found)).astype(np.longdouble) * np.longdouble(0.5005)
    wrong = ~(distance <= allowed) & np.isfinite(exact)
    if not wrong.any():
        return None
    place = tuple(int(i) for i in np.argwhere(wrong)[0])
    return f"{int(wrong.sum())} values are off by over half an ulp, the first at {place}"


__all__ = [
    "apply_edit",
    "check_edit",
    "contiguous",
    "moves_of",
    "row_bands",
]

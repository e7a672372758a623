"""Doing an edit, and checking that it was done: from one stored array to another, gate by gate.

`source` and `target` are anything that reads and writes by slices: h5py datasets, numpy arrays.
At most one tensor and what is made of it is in memory at a time; of a large one, one gate.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import numpy as np

from rnnconvert.layouts import contiguous, copy_block, gate_slices, relay_bias, relay_block
from rnnconvert.layouts.weights import Array
from rnnconvert.plan import Edit, Relay, Scale

T = TypeVar("T")

LARGEST_WHOLE = 20 * 2**20
"""Tensors of up to so many bytes are read at once; larger ones gate by gate."""
_LARGEST_CHUNKED = 2**30
"""The same of those in chunks: each gate of a chunk would have the whole chunk unpacked again."""
_WORKERS = 2
"""Threads at work on tensors of their own; numpy copies without Python's lock."""


def is_read_whole(dataset: Any) -> bool:
    """Whether a stored tensor is read at once, and not gate by gate."""
    most: int = _LARGEST_CHUNKED if dataset.chunks else LARGEST_WHOLE
    return bool(dataset.nbytes <= most)


def apply_edit(edit: Edit, source: Any, target: Any) -> None:
    """Write into `target` what `edit` makes of `source`."""
    if isinstance(source, np.ndarray) or not is_read_whole(source):
        _apply(edit, source, target)
        return
    made = np.empty(target.shape, target.dtype)
    if isinstance(edit, Scale):
        made[...] = source[...]
    _apply(edit, source[...], made)
    target[...] = made


def check_edit(edit: Edit, source: Any, target: Any) -> str | None:
    """None where `target` is what `edit` makes of `source`, else a sentence on the difference.

    A relayed matrix must give the source's bits back when relayed in reverse; a merged bias or a
    scaled gate must lie within half a unit in the last place of the exact value; the two parts of
    a split bias must be halves and their sum the source's bits.
    """
    if isinstance(edit, Scale):
        return _check_scaled(edit, source[...], target[...])
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


def side_by_side(work: Sequence[Callable[[], T]]) -> list[T]:
    """The results of some functions, called in a few threads."""
    with ThreadPoolExecutor(_WORKERS) as pool:
        return list(pool.map(lambda function: function(), work))


def _apply(edit: Edit, source: Any, target: Any) -> None:
    if isinstance(edit, Scale):
        for start, stop in edit.columns:
            target[..., start:stop] = _scaled(source[..., start:stop], edit.factor)
    elif edit.kind == "bias":
        target[...] = _relayed_bias(edit, source[...])
    else:
        for here, there in _gate_pairs(edit):
            block = relay_block(edit.source.matrix, edit.target.matrix, source[:, here])
            _assign(target, there, block)


def _assign(target: Any, columns: slice, block: Array) -> None:
    """`target[:, columns] = block`; a transposed block goes in strips, three times as fast."""
    if not isinstance(target, np.ndarray):
        target[:, columns] = contiguous(block)
    else:
        copy_block(block, target[:, columns])


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


def merged_slots_agree(slot: Array) -> bool:
    """Whether the slots of input and recurrent bias are the same, as their gradients are."""
    halves = slot.reshape(2, -1)
    return bool(np.array_equal(halves[0], halves[1]))


def _scaled(block: Array, factor: float) -> Array:
    return (block.astype(np.float64) * factor).astype(block.dtype)


def _check_scaled(edit: Scale, source: Array, target: Array) -> str | None:
    exact = source.astype(np.longdouble)
    for start, stop in edit.columns:
        exact[..., start:stop] *= np.longdouble(edit.factor)
    return _check_half_ulp(exact, target)


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
    "LARGEST_WHOLE",
    "apply_edit",
    "check_edit",
    "contiguous",
    "is_read_whole",
    "merged_slots_agree",
    "side_by_side",
]

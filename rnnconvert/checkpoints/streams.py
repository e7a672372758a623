"""A cuDNN buffer of a checkpoint, of which never more than some tiles are in memory.

Each matrix of the buffer moves straight from the source's data file to its place in the target, and
is compared there. Only the biases are read as arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from rnnconvert.checkpoints.load import cell_layout
from rnnconvert.checkpoints.rewrite import Packable, pack_place, target_places
from rnnconvert.checkpoints.stack import CellPlace, Stack
from rnnconvert.checkpoints.verify import (
    adds_up_biases,
    bias_problem,
    check_stack_layers,
    run_buffer,
    run_places,
    weights_detail,
)
from rnnconvert.containers.checkpoint import Checkpoint, RawPlace
from rnnconvert.containers.raw_file import Filled, RawFile, StoredArray, open_raw
from rnnconvert.containers.safe_npz import open_rows, require_whole, write_arrays
from rnnconvert.containers.tiles import MatrixBlock, Move, MovedTensor, TileStream
from rnnconvert.layouts import CELLS, RnnWeights, find, pack_bias, tf1_cells, unpack_bias
from rnnconvert.layouts.opaque_shape import Region
from rnnconvert.layouts.weights import Array
from rnnconvert.options import Options
from rnnconvert.progress import tell
from rnnconvert.report import LevelResult
from rnnconvert.verification.compare import largest_of

_KERNEL, _RECURRENT = 1, 101
"""What a gate's entry in the probe is at least: of the kernel, and of the recurrent kernel."""


@dataclass(frozen=True)
class StreamedWeights:
    """One direction of one layer in a buffer or a slot of it, not read yet.

    Attributes:
        stack: it belongs to.
        variable: what it is a part of.
        buffer: where that lies.
        regions: of the matrices and biases, by their kind and gate.
        own_bias: instead of the bias in the buffer.
        found: what was seen of the matrices when they were written.
    """

    stack: Stack
    variable: str
    buffer: RawPlace
    regions: Mapping[tuple[str, str | None], Region]
    found: list[MovedTensor] = field(default_factory=list)
    own_bias: Array | None = None

    @property
    def gates(self) -> tuple[str, ...]:
        return CELLS[self.stack.cell].gates

    @property
    def bias(self) -> Array:
        """(2, gates, units), input bias then recurrent bias."""
        if self.own_bias is not None:
            return self.own_bias
        with open_raw(self.buffer.path) as file:
            rows = [
                file.array(self._offset(kind, gate), (self.stack.num_units,), self.buffer.dtype)
                for kind in ("input_bias", "recurrent_bias")
                for gate in self.gates
            ]
        return np.stack(rows).reshape(2, len(self.gates), -1)

    @property
    def stored(self) -> StoredArray:
        """The whole buffer, to be read by slices."""
        size = self.stack.shape.size
        return StoredArray(self.buffer.path, self.buffer.offset, (size,), self.buffer.dtype)

    def with_bias(self, bias: Array) -> StreamedWeights:
        """The same matrices with another bias."""
        return replace(self, own_bias=bias)

    def _offset(self, kind: str, gate: str | None) -> int:
        return self.buffer.offset + self.regions[kind, gate].offset * self.buffer.dtype.itemsize

    def pack(self, place: CellPlace) -> dict[str, Array | Filled]:
        """The tensors of a place, by their names inside it, as `rewrite.pack_place` gives them."""
        probe = pack_place(place, self._probe())
        biases = pack_biases(place, self.stack.cell, self.bias)
        return {
            name: biases[name] if name in biases else self._kernel(entries)
            for name, entries in probe.items()
        }

    def _probe(self) -> RnnWeights:
        """Weights of one unit; each entry tells which it is, and so shows where it belongs."""
        count = len(self.gates)
        numbers = np.arange(count, dtype=np.float64).reshape(count, 1, 1)
        bias = np.zeros((2, count, 1))
        return RnnWeights(self.stack.cell, numbers + _KERNEL, numbers + _RECURRENT, bias)

    def _kernel(self, entries: Array) -> Filled:
        """A kernel to be filled: for each row of the probe, the matrices of some gates."""
        units = self.stack.num_units
        rows = [self._matrices(row) for row in entries]
        shape = (sum(matrices[0].shape[1] for matrices in rows), len(entries[0]) * units)

        def fill(target: RawFile, place: int) -> None:
            with open_raw(self.buffer.path) as source:
                stream = TileStream(source, target, check=True)
                for moves in self._moves(rows, place, shape[1]):
                    self.found.extend(move() for move in stream.relay(moves))

        return Filled(self.stack.dtype, shape, fill)

    def _matrices(self, row: Array) -> list[Region]:
        found = []
        for number in row:
            kind, first = ("input_kernel", _KERNEL) if number < _RECURRENT else (
                "recurrent_kernel", _RECURRENT
            )  # fmt: skip
            found.append(self.regions[kind, self.gates[int(number) - first]])
        return found

    def _moves(
        self, rows: Sequence[Sequence[Region]], place: int, stride: int
    ) -> Iterator[list[Move]]:
        size = self.buffer.dtype.itemsize
        for matrices in rows:
            moves = []
            for column, region in enumerate(matrices):
                units, width = region.shape
                start = self._offset(region.kind, region.gate)
                source = MatrixBlock(start, units, width, width)
                target = MatrixBlock(place + column * units * size, width, units, stride)
                moves.append(Move(source, target, (units, width), size))
            yield moves
            place += width * stride * size


def streams_of(
    stacks: Sequence[Stack], checkpoint: Checkpoint, options: Options
) -> list[tuple[StreamedWeights, ...]]:
    """The layers of each stack, where all can be converted so; else none.

    Raises:
        UnreadableInputError: a buffer does not fit its checksum.
    """
    if options.to not in ("npz", "checkpoint") or options.is_inverse:
        return []
    found = [
        streamed(stack, stack.opaque, checkpoint) if stack.opaque is not None else None
        for stack in stacks
    ]
    known = [weights for weights in found if weights is not None]
    return known if len(known) == len(found) else []


def streamed(
    stack: Stack, variable: str, checkpoint: Checkpoint
) -> tuple[StreamedWeights, ...] | None:
    """The layers of a stack that is a buffer alone, in one piece; None of another.

    Args:
        variable: the buffer, or a slot of it.

    Raises:
        UnreadableInputError: the buffer does not fit its checksum.
    """
    if stack.places or stack.is_skipping or stack.dtype == "bfloat16":  # not a type of numpy
        return None
    buffer, info = checkpoint.place(variable), checkpoint.variables[variable]
    if buffer is None or info.size != stack.shape.size or info.dtype != stack.dtype:
        return None
    for _ in buffer.chunks():  # which checks them
        pass
    regions: dict[tuple[int, str], dict[tuple[str, str | None], Region]] = {}
    for region in stack.shape.regions:
        own = regions.setdefault((region.layer, region.direction), {})
        own[region.kind, region.gate] = region
    return tuple(StreamedWeights(stack, variable, buffer, own) for own in regions.values())


def pack_biases(place: CellPlace, cell: str, bias: Array) -> dict[str, Array]:
    """The bias tensors of a place, by their names inside it."""
    if place.layout == "keras":
        return pack_bias(find("keras", cell), bias)
    return tf1_cells.pack_tf1_biases(cell_layout(cell, place), bias)


def _unpack_biases(place: CellPlace, cell: str, tensors: Mapping[str, Array]) -> Array:
    if place.layout == "keras":
        return unpack_bias(find("keras", cell), tensors)
    return tf1_cells.unpack_tf1_biases(cell_layout(cell, place), tensors)


def _written_bias(stack: Stack, place: CellPlace, read: Callable[[str], Array]) -> Array:
    """(2, gates, units); a merged bias as halves."""
    named = {kind: read(name) for kind, name in place.tensors.items() if "bias" in kind}
    return _unpack_biases(place, stack.cell, named)


@dataclass(frozen=True)
class StreamedLevels:
    """The levels of a stack that was streamed; `layers` is None where it was not asked for."""

    weights: LevelResult
    layers: LevelResult | None


def check_streamed(
    stack: Stack,
    weights: Sequence[StreamedWeights],
    places: Sequence[CellPlace],
    read: Callable[[str], Array],
) -> LevelResult:
    """The level `weights` of a stack that was streamed.

    Args:
        places: where its tensors are now.
        read: gives a bias that was written, by its name.
    """
    for number, (own, place) in enumerate(zip(weights, places, strict=True)):
        differences = [found.difference for found in own.found if found.difference]
        problem = differences[0] if differences else bias_problem(
            stack.cell, own.bias, _written_bias(stack, place, read)
        )  # fmt: skip
        if problem:
            return LevelResult("failed", detail=f"{stack.scope} layer {number}: {problem}")
    detail = weights_detail(stack.scope, stack.cell, len(weights))
    return LevelResult("passed", detail=f"{detail}, matrices of the buffer give its bits")


def check_slots(slots: Sequence[Packable]) -> list[LevelResult]:
    """What was wrong with slots when they were written; empty where nothing was."""
    return [
        LevelResult("failed", detail=f"{own.variable}: {found.difference}")
        for own in slots
        for found in own.found
        if found.difference
    ]


def check_streams(
    stacks: Sequence[Stack],
    streams: Sequence[Sequence[StreamedWeights]],
    names: str,
    read: Callable[[str], Array],
    rows: Callable[[str], Any],
    options: Options,
) -> list[StreamedLevels]:
    """The levels of each stack.

    Args:
        stacks, streams: what was written.
        names: "tf1" or "keras", see `--names`.
        read: gives a bias that was written, by its name.
        rows: gives any tensor, to be read by slices of its first axis.
        options: which levels are asked for, and with which inputs.
    """
    found = []
    for stack, weights in zip(stacks, streams, strict=True):
        places, layers = target_places(stack, names), None
        checked = check_streamed(stack, weights, places, read)
        if options.verify in ("layers", "model") and checked.status == "passed":
            tell(f"proving the layers of {stack.scope}")
            biases = [_written_bias(stack, place, read) for place in places]
            source = run_buffer(stack, weights[0].stored)
            layers = check_stack_layers(
                stack, source, partial(run_places, stack, places, rows), options.inputs,
                rounded=max(map(largest_of, biases)) if adds_up_biases(stack, names) else None,
            )  # fmt: skip
        found.append(StreamedLevels(checked, layers))
    return found


def write_streamed_npz(
    file: Path,
    stacks: Sequence[Stack],
    streams: Sequence[Sequence[StreamedWeights]],
    options: Options,
) -> list[StreamedLevels]:
    """Write the stacks' tensors in Keras' layout; returns the levels that are asked for.

    Raises:
        OSError: it can't be written.
        DifferenceError: it reads back differently.
    """
    arrays: dict[str, Array | Filled] = {}
    for stack, weights in zip(stacks, streams, strict=True):
        for place, own in zip(target_places(stack, "keras"), weights, strict=True):
            arrays |= {place.tensors[kind]: array for kind, array in own.pack(place).items()}
    write_arrays(file, arrays)
    if options.verify == "none":
        return []
    require_whole(file)
    with open_rows(file) as rows:
        return check_streams(stacks, streams, "keras", lambda name: rows(name)[:], rows, options)

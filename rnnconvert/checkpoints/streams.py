"""The weights of a checkpoint, of which never more than some tiles are in memory.

Each matrix moves straight from the source's data file to its place in the target, and is compared
there. Only the biases are read as arrays.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from rnnconvert.checkpoints.load import cell_layout, require_equal_biases, unpack_biases
from rnnconvert.checkpoints.rewrite import pack_place
from rnnconvert.checkpoints.stack import CellPlace, Stack
from rnnconvert.checkpoints.stored_matrices import (
    Key,
    StoredMatrix,
    matrices_in,
    matrices_in_buffer,
)
from rnnconvert.containers.checkpoint import Checkpoint, RawPlace
from rnnconvert.containers.raw_file import Filled, RawFile, open_raw
from rnnconvert.containers.tiles import MatrixBlock, Move, MovedTensor, TileStream
from rnnconvert.errors import NotConvertibleError
from rnnconvert.layouts import CELLS, RnnWeights, find, pack_bias, tf1_cells
from rnnconvert.layouts.weights import Array
from rnnconvert.options import Options

_KERNEL, _RECURRENT = 1, 101
"""What a gate's entry in the probe is at least: of the kernel, and of the recurrent kernel."""
_HALVES = {"input_bias": 0, "recurrent_bias": 1}
"""By the kind of a region of a buffer."""


@dataclass(frozen=True)
class StreamedWeights:
    """One direction of one layer in a checkpoint, or of a slot of a buffer, not read but for its
    biases.

    Attributes:
        stack: it belongs to.
        variable: what it is a part of, for messages.
        matrices: where they lie in their tensors.
        tensors: where these lie.
        bias: (2, gates, units), input bias then recurrent bias.
        written: where the matrices went, in the tensors that were written.
        found: what was seen of them there.
    """

    stack: Stack
    variable: str
    matrices: Mapping[Key, StoredMatrix]
    tensors: Mapping[str, RawPlace]
    bias: Array
    written: dict[Key, StoredMatrix] = field(default_factory=dict)
    found: list[MovedTensor] = field(default_factory=list)

    @property
    def cell(self) -> str:
        return self.stack.cell

    @property
    def units(self) -> int:
        return self.stack.num_units

    @property
    def input_dim(self) -> int:
        return self.matrices["kernel", self.gates[0]].width

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.bias.dtype

    @property
    def gates(self) -> tuple[str, ...]:
        return CELLS[self.stack.cell].gates

    @property
    def places(self) -> dict[Key, tuple[MatrixBlock, Path]]:
        """Where the matrices lie in the data files."""
        found = {}
        for key, matrix in self.matrices.items():
            raw = self.tensors[matrix.tensor]
            block = replace(matrix.block, offset=raw.offset + matrix.block.offset)
            found[key] = (block, raw.path)
        return found

    def with_bias(self, bias: Array) -> StreamedWeights:
        """The same matrices with another bias."""
        return replace(self, bias=bias)

    def keras_tensors(self) -> dict[str, Array | Filled]:
        """Kernel, recurrent kernel and bias of a layer of Keras."""
        return self.pack(CellPlace(0, "forward", "", "keras", {}))

    def pack(self, place: CellPlace) -> dict[str, Array | Filled]:
        """The tensors of a place, by their names inside it, as `rewrite.pack_place` gives them."""
        probe = pack_place(place, self._probe())
        biases = pack_biases(place, self.stack.cell, self.bias)
        return {
            name: biases[name] if name in biases else self._kernel(name, entries)
            for name, entries in probe.items()
        }

    def _probe(self) -> RnnWeights:
        """Weights of one unit; each entry tells which it is, and so shows where it belongs."""
        count = len(self.gates)
        numbers = np.arange(count, dtype=np.float64).reshape(count, 1, 1)
        bias = np.zeros((2, count, 1))
        return RnnWeights(self.stack.cell, numbers + _KERNEL, numbers + _RECURRENT, bias)

    def _kernel(self, name: str, entries: Array) -> Filled:
        """A kernel to be filled: for each row of the probe, the matrices of some gates."""
        rows = [[self._key(number) for number in row] for row in entries]
        shape = (
            sum(self.matrices[keys[0]].width for keys in rows), len(entries[0]) * self.units
        )  # fmt: skip

        def fill(target: RawFile, start: int) -> None:
            for path, moves in self._moves(name, rows, start, shape[1]):
                self.found.extend(_relay(path, target, moves))

        return Filled(self.stack.dtype, shape, fill)

    def _key(self, number: float) -> Key:
        """What an entry of the probe stands for."""
        kind, first = ("kernel", _KERNEL) if number < _RECURRENT else ("recurrent", _RECURRENT)
        return kind, self.gates[int(number) - first]

    def _moves(
        self, name: str, rows: Sequence[Sequence[Key]], start: int, stride: int
    ) -> Iterator[tuple[Path, list[Move]]]:
        """What moves from each file into a tensor, gates of the same rows together."""
        size, units, offset = self.dtype.itemsize, self.units, 0
        places = self.places
        for keys in rows:
            width = self.matrices[keys[0]].width
            moves: dict[Path, list[Move]] = {}
            for column, key in enumerate(keys):
                (here, path), straight = places[key], self.matrices[key].is_transposed
                there = MatrixBlock(offset + column * units * size, width, units, stride)
                self.written[key] = StoredMatrix(name, there, width, is_transposed=True)
                there = replace(there, offset=start + there.offset)
                shape = (width, units) if straight else (units, width)
                move = Move(here, there, shape, size, not straight)
                moves.setdefault(path, []).append(move)
            yield from moves.items()
            offset += width * stride * size


def _relay(path: Path, target: RawFile, moves: Sequence[Move]) -> list[MovedTensor]:
    """Write and compare; the buffers of the tiles are free again when it returns."""
    with open_raw(path) as source:
        return [move() for move in TileStream(source, target, check=True).relay(moves)]


# --- where the matrices lie -----------------------------------------------------------------


def streams_of(
    stacks: Sequence[Stack], checkpoint: Checkpoint, options: Options
) -> list[tuple[StreamedWeights, ...]]:
    """The layers of each stack, where all can be converted so; else none.

    Raises:
        NotConvertibleError: tensors contradict each other.
        UnreadableInputError: a tensor does not fit its checksum.
    """
    if options.is_inverse:
        return []
    found = [
        _streamed_places(stack, checkpoint)
        if stack.opaque is None
        else _streamed_buffer(stack, stack.opaque, checkpoint)
        for stack in stacks
    ]
    known = [weights for weights in found if weights is not None]
    return known if len(known) == len(found) else []


def streamed(
    stack: Stack, variable: str, checkpoint: Checkpoint
) -> tuple[StreamedWeights, ...] | None:
    """The layers of a buffer in one piece; None of another.

    Args:
        variable: the buffer, or a slot of it.

    Raises:
        UnreadableInputError: the buffer does not fit its checksum.
    """
    if stack.is_skipping or stack.dtype == "bfloat16":  # not a type of numpy
        return None
    buffer, info = checkpoint.place(variable), checkpoint.variables[variable]
    if buffer is None or info.size != stack.shape.size or info.dtype != stack.dtype:
        return None
    _check(buffer)
    units, gates = stack.num_units, CELLS[stack.cell].gates
    biases: dict[tuple[int, str], Array] = {}
    with open_raw(buffer.path) as file:
        for region in stack.shape.regions:
            if region.kind in _HALVES and region.gate is not None:
                own = biases.setdefault(
                    (region.layer, region.direction), np.empty((2, len(gates), units), buffer.dtype)
                )
                offset = buffer.offset + region.offset * buffer.dtype.itemsize
                row = file.array(offset, (units,), buffer.dtype)
                own[_HALVES[region.kind], gates.index(region.gate)] = row
    matrices = matrices_in_buffer(stack.shape, variable, buffer.dtype.itemsize)
    return tuple(
        StreamedWeights(stack, variable, own, {variable: buffer}, biases[where])
        for where, own in matrices.items()
    )


def _streamed_buffer(
    stack: Stack, buffer: str, checkpoint: Checkpoint
) -> tuple[StreamedWeights, ...] | None:
    """The layers of a stack that has a buffer; None where the tensors of cells beside it are not
    the same, which `load.load_weights` tells of."""
    found = streamed(stack, buffer, checkpoint)
    if found is None or not stack.places:
        return found
    for place, own in zip(stack.places, found, strict=True):
        beside = _streamed_place(stack, place, checkpoint)
        try:
            require_equal_biases(buffer, place, stack.cell, own.bias, checkpoint.read)
        except NotConvertibleError:
            return None
        if beside is None or not _are_equal(own, beside):
            return None
    return found


def _are_equal(one: StreamedWeights, other: StreamedWeights) -> bool:
    """Whether the matrices of a buffer are those of the tensors beside it."""
    if one.dtype != other.dtype:
        return False
    others = other.places
    for key, (here, path) in one.places.items():
        (there, beside), width = others[key], one.matrices[key].width
        if other.matrices[key].width != width:
            return False
        is_transposed = other.matrices[key].is_transposed  # the buffer's are not
        move = Move(here, there, (one.units, width), one.dtype.itemsize, is_transposed)
        if _differs(path, beside, move):
            return False
    return True


def _differs(path: Path, beside: Path, move: Move) -> bool:
    with open_raw(path) as source, open_raw(beside) as target:
        stream = TileStream(source, target, check=True)
        return any(compare().difference for compare in stream.compare([move]))


def _streamed_places(stack: Stack, checkpoint: Checkpoint) -> tuple[StreamedWeights, ...] | None:
    """The layers of a stack of tensors that lie in one piece each; None of another; raises as
    `_streamed_place`."""
    found = [_streamed_place(stack, place, checkpoint) for place in stack.places]
    known = [each for each in found if each is not None]
    return tuple(known) if len(known) == len(found) else None


def _streamed_place(
    stack: Stack, place: CellPlace, checkpoint: Checkpoint
) -> StreamedWeights | None:
    """A place whose tensors lie in one piece each; None of another.

    Raises:
        NotConvertibleError: tensors contradict each other.
        UnreadableInputError: a tensor does not fit its checksum.
    """
    infos = {inner: checkpoint.variables[name] for inner, name in place.tensors.items()}
    raws = {inner: checkpoint.place(name) for inner, name in place.tensors.items()}
    kernels = {
        inner: raw
        for inner, raw in raws.items()
        # A GRU of Keras has two rows of biases.
        if raw is not None and len(infos[inner].shape) == 2 and inner != "bias"
    }
    if None in raws.values() or len(kernels) == len(infos):
        return None  # slices, other bytes, or no biases
    if stack.dtype == "bfloat16" or {info.dtype for info in infos.values()} != {stack.dtype}:
        return None
    for raw in kernels.values():
        _check(raw)
    shapes = {inner: info.shape for inner, info in infos.items()}
    biases = {i: checkpoint.read(name) for i, name in place.tensors.items() if i not in kernels}
    try:
        matrices = matrices_in(stack.cell, place, shapes, np.dtype(stack.dtype).itemsize)
        bias = unpack_biases(stack, place, biases, stack.forget_bias)
    except ValueError as error:
        raise NotConvertibleError(f"{place.scope}: {error}") from error
    return StreamedWeights(stack, place.scope, matrices, kernels, bias)


def _check(raw: RawPlace) -> None:
    """Raise UnreadableInputError unless the bytes fit their checksum."""
    for _ in raw.chunks():
        pass


# --- biases ---------------------------------------------------------------------------------


def pack_biases(place: CellPlace, cell: str, bias: Array) -> dict[str, Array]:
    """The bias tensors of a place, by their names inside it."""
    if place.layout == "keras":
        return pack_bias(find("keras", cell), bias)
    return tf1_cells.pack_tf1_biases(cell_layout(cell, place), bias)

"""What the stacks of a checkpoint are written to, each read back at once as its own weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from rnnconvert import layouts
from rnnconvert.checkpoints.find import find_stacks
from rnnconvert.checkpoints.load import load_weights
from rnnconvert.checkpoints.rewrite import target_places, unpack_place
from rnnconvert.checkpoints.stack import CellPlace, Stack
from rnnconvert.checkpoints.streamed_levels import WrittenPlaces
from rnnconvert.checkpoints.streams import StreamedWeights
from rnnconvert.containers import safe_h5
from rnnconvert.containers.checkpoint import Checkpoint
from rnnconvert.containers.raw_file import Filled
from rnnconvert.containers.safe_npz import open_arrays, open_rows, write_arrays
from rnnconvert.errors import DifferenceError
from rnnconvert.keras_models.files import writer as keras_writer
from rnnconvert.keras_models.files.h5 import open_keras_h5
from rnnconvert.keras_models.plan import Plan
from rnnconvert.keras_models.save_keras import save_as_keras
from rnnconvert.layouts import RnnWeights
from rnnconvert.options import Permissions, StackOptions
from rnnconvert.verification.inputs import Array


def write_npz(
    file: Path, stacks: Sequence[Stack], weights: Sequence[Sequence[RnnWeights]]
) -> list[list[RnnWeights]]:
    """All stacks as arrays in Keras' layout; returns each one's weights as read back."""
    arrays: dict[str, Array | Filled] = {}
    for stack, own in zip(stacks, weights, strict=True):
        arrays.update(keras_writer.layer_arrays(stack.scope, _layers(stack, own)))
    write_arrays(file, arrays)
    with open_arrays(file) as stored:
        return [read_stack(stack, "keras", lambda name: stored[name]) for stack in stacks]


def read_stack(stack: Stack, names: str, read: Callable[[str], Array]) -> list[RnnWeights]:
    """The weights of a stack that was written with portable names.

    Args:
        names: "tf1" or "keras", see `--names`.
        read: gives the array of a name.
    """
    return [
        unpack_place(place, stack, {k: read(name) for k, name in place.tensors.items()})
        for place in target_places(stack, names)
    ]


def find_again(stacks: Sequence[Stack], written: Checkpoint) -> list[list[RnnWeights]]:
    """The stacks of a written checkpoint with buffers, found like any; each buffer is compared with
    the canonical tensors beside it when it is loaded.

    Raises:
        DifferenceError: one of them is not found.
    """
    found = {s.scope: s for s in find_stacks(written.variables, StackOptions()).stacks}
    lost = [stack.scope for stack in stacks if stack.scope not in found]
    if lost:
        raise DifferenceError(f"{lost[0]} is not found in what was written, a bug of rnnconvert")
    return [list(load_weights(found[stack.scope], written)) for stack in stacks]


def write_weights(stack: Stack, weights: Sequence[RnnWeights], file: Path) -> list[RnnWeights]:
    """One stack as a weights-only HDF5 file; returns its weights as read back."""
    places = keras_writer.write_stack_weights(file, _layers(stack, weights))
    keras = layouts.find("keras", stack.cell)
    with safe_h5.open_h5(file) as opened:
        return [
            layouts.unpack(
                keras,
                {k: safe_h5.get_dataset(opened, p)[()] for k, p in place.paths.items()},
            )
            for place in places
        ]


def write_model(
    stack: Stack, weights: Sequence[RnnWeights], file: Path, to: str
) -> list[RnnWeights]:
    """One stack as a Keras model; returns its weights as read back.

    Args:
        to: "h5" or "keras".
    """
    h5 = file if to == "h5" else file.with_suffix(".h5")
    try:
        places = keras_writer.write_stack(h5, stack.scope, _layers(stack, weights), stack.function)
        keras = layouts.find("keras", stack.cell)
        with open_keras_h5(h5) as opened:
            written = [
                layouts.unpack(keras, {k: opened.read(p) for k, p in place.paths.items()})
                for place in places
            ]
        if to == "keras":
            save_as_keras(h5, file, Plan(), Permissions())
    finally:
        if to == "keras":
            h5.unlink(missing_ok=True)
    return written


# --- weights that are not in memory ---------------------------------------------------------


@contextmanager
def streamed_npz(
    file: Path, stacks: Sequence[Stack], streams: Sequence[Sequence[StreamedWeights]]
) -> Iterator[list[WrittenPlaces]]:
    """Write all stacks as arrays in Keras' layout; gives where each one is, while it is open.

    Raises:
        OSError: it can't be written.
    """
    places = [target_places(stack, "keras") for stack in stacks]
    write_arrays(
        file,
        {
            place.tensors[kind]: array
            for own, weights in zip(places, streams, strict=True)
            for place, each in zip(own, weights, strict=True)
            for kind, array in each.keras_tensors().items()
        },
    )
    with open_rows(file) as rows:
        yield [WrittenPlaces(own, rows, lambda name: rows(name)[:]) for own in places]


@contextmanager
def streamed_model(
    stack: Stack, weights: Sequence[StreamedWeights], file: Path, to: str
) -> Iterator[WrittenPlaces]:
    """Write one stack as a Keras model or its weights; gives where it is, while it is open.

    Args:
        to: "h5", "keras" or "weights".
    """
    h5 = file.with_suffix(".h5") if to == "keras" else file
    layers = _layers(stack, weights)
    try:
        if to == "weights":
            written = keras_writer.write_stack_weights(h5, layers)
        else:
            written = keras_writer.write_stack(h5, stack.scope, layers, stack.function)
        if to == "keras":
            save_as_keras(h5, file, Plan(), Permissions())
        places = [CellPlace(*each[:2], stack.scope, "keras", each.paths) for each in written]
        with safe_h5.open_h5(h5) as opened:
            rows = partial(safe_h5.get_dataset, opened)
            yield WrittenPlaces(places, rows, lambda name: rows(name)[:])
    finally:
        if to == "keras":
            h5.unlink(missing_ok=True)


def _layers(
    stack: Stack, weights: Sequence[RnnWeights | StreamedWeights]
) -> list[keras_writer.LayerWeights]:
    count = len(stack.directions)
    return [
        keras_writer.LayerWeights(*weights[first : first + count])
        for first in range(0, len(weights), count)
    ]

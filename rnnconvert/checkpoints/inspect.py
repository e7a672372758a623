"""What is inside a TensorFlow checkpoint: its RNN stacks, by its index alone."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rnnconvert import layouts
from rnnconvert.checkpoints.find import find_stacks
from rnnconvert.checkpoints.stack import FoundStacks, Stack
from rnnconvert.containers.checkpoint import Checkpoint, open_checkpoint
from rnnconvert.containers.object_graph import GRAPH_KEY
from rnnconvert.options import Options
from rnnconvert.report import Assumption, FileInfo, LayerRecord, TensorRecord, head

THE_WAY = (
    "in the code that made the model, load it by model.load_weights(PREFIX) with the Keras that "
    "wrote it, and save it by model.save_weights('model.weights.h5')"
)
"""How an object-based checkpoint becomes a file that this program and Keras 3 read."""
_PLAIN = "/recurrent_kernel"
_LISTED = 4


@dataclass(frozen=True)
class StackLayer:
    """One direction of one layer, for the report; `to` is the layout it is converted to."""

    stack: Stack
    layer: int
    direction: str
    to: str

    @property
    def source_layout(self) -> str:
        if self.stack.opaque is not None:
            return "cudnn-opaque"
        return self.stack.places[0].layout

    def to_dict(self) -> dict[str, Any]:
        stack, width = self.stack, self.stack.input_dim(self.layer)
        cell = layouts.CELLS[stack.cell]
        is_after = self.source_layout == "keras" and stack.cell == "gru"
        two = 2 if stack.is_cudnn or is_after else 1
        count = layouts.parameter_count

        before = count(cell, width, stack.num_units, two)
        return LayerRecord(
            path=f"{stack.scope}/layer_{self.layer}/{self.direction}",
            class_name="",
            cell=stack.cell,
            source_layout=self.source_layout,
            target_layout=self.to,
            units=stack.num_units,
            input_dim=width,
            direction=self.direction,
            parameters=(
                before,
                count(cell, width, stack.num_units, 2 if stack.cell == "gru" else 1),
                before,
            ),
            tensors=tuple(
                TensorRecord(name, "", self._operation, exact) for name, exact in self._tensors()
            ),
        ).to_dict()

    @property
    def _operation(self) -> str:
        if self.source_layout == "cudnn-opaque":
            return "cut from the buffer, transposed, gates reordered"
        return "transposed, gates reordered"

    def _tensors(self) -> list[tuple[str, bool]]:
        if self.stack.opaque is not None:
            return [(self.stack.opaque, not layouts.CELLS[self.stack.cell].merges_biases)]
        place = next(
            p for p in self.stack.places if (p.layer, p.direction) == (self.layer, self.direction)
        )
        return [(name, "bias" not in inner) for inner, name in place.tensors.items()]


@dataclass(frozen=True)
class CheckpointInspection:
    """What `inspect` found in a checkpoint.

    Attributes:
        input: the checkpoint.
        variables: of the checkpoint, name to shape.
        found: its RNN stacks, warnings and problems.
        layers: one entry for each direction of each layer.
        missing: files that hold values and are not there.
    """

    input: FileInfo
    variables: dict[str, tuple[int, ...]]
    found: FoundStacks
    layers: tuple[StackLayer, ...]
    missing: tuple[str, ...] = ()

    @property
    def warnings(self) -> tuple[str, ...]:
        if not self.missing:
            return self.found.warnings
        text = (
            f"{', '.join(self.missing)} missing: the values are in there, and nothing can be "
            "converted without them; put what is missing beside the .index file"
        )
        return (*self.found.warnings, text)

    @property
    def origin(self) -> str | None:
        """What wrote it, where its form tells."""
        return origin(self.variables)

    @property
    def conclusion(self) -> str | None:
        """What follows, and nothing that can't be done; None where problems say it."""
        if self.found.problems:
            return None
        if self.verdict == "convertible":
            return "convertible, once its values are there" if self.missing else "convertible"
        plain = sorted(
            name.removesuffix(_PLAIN) for name in self.variables if name.endswith(_PLAIN)
        )
        if not self.found.stacks and plain:
            return (
                f"no recurrent layer to convert; {', '.join(plain[:_LISTED])} have the variables "
                "of plain layers of Keras, which every Keras stores alike"
            )
        if not self.found.stacks:
            text = "no recurrent layer that rnnconvert knows"
            return f"{text}; {THE_WAY}" if self.origin else text
        return "nothing of cuDNN in it; --to keras makes Keras models of its recurrent layers"

    @property
    def assumptions(self) -> tuple[Assumption, ...]:
        return assumptions_of(self.found)

    @property
    def verdict(self) -> str:
        if self.found.problems:
            return "not-convertible"
        cudnn = any(stack.is_cudnn for stack in self.found.stacks)
        return "convertible" if cudnn else "nothing-to-convert"

    def to_dict(self) -> dict[str, Any]:
        return {
            **head("inspect", self.input),
            "variables": {name: list(shape) for name, shape in self.variables.items()},
            "layers": [layer.to_dict() for layer in self.layers],
            "assumptions": [each.to_dict() for each in self.assumptions],
            "warnings": list(self.warnings),
            "problems": list(self.found.problems),
            "verdict": self.verdict,
        }


def inspect_checkpoint(path: Path, options: Options) -> CheckpointInspection:
    """The stacks of a checkpoint; nothing but its index is read, unless hashes are asked for.

    Raises:
        ConversionError: it can't be read.
    """
    checkpoint, found = open_stacks(path, options)
    shapes = {name: tuple(info.shape) for name, info in checkpoint.variables.items()}
    info = describe_checkpoint(path, checkpoint, options.hashes)
    missing = tuple(path.name for path in checkpoint.missing_shards)
    return CheckpointInspection(info, shapes, found, stack_layers(found, "keras"), missing)


def origin(variables: Iterable[str]) -> str | None:
    """What wrote a checkpoint with variables of these names, where that can be told."""
    names = set(variables)
    if GRAPH_KEY not in names:
        return None
    if any(name.startswith("save_counter/") for name in names):
        return "an object-based checkpoint, by tf.train.Checkpoint"
    return "an object-based checkpoint, as tf.keras' save_weights writes it"


def open_stacks(path: Path, options: Options) -> tuple[Checkpoint, FoundStacks]:
    """A checkpoint and the RNN stacks in it.

    Raises:
        ConversionError: it can't be read, or an option fits none of its stacks.
    """
    checkpoint = open_checkpoint(path)
    return checkpoint, find_stacks(
        checkpoint.variables, options.stack, prefix=checkpoint.path.prefix
    )


def stack_layers(found: FoundStacks, layout: str) -> tuple[StackLayer, ...]:
    return tuple(
        StackLayer(stack, layer, direction, layout)
        for stack in found.stacks
        for layer in range(stack.num_layers)
        for direction in stack.directions
    )


def assumptions_of(found: FoundStacks) -> tuple[Assumption, ...]:
    """What is assumed of all stacks, each thing once, with the scopes that it is assumed of."""
    scopes: dict[tuple[str, Any, str], list[str]] = {}
    for stack in found.stacks:
        for each in stack.assumptions:
            why = each.why.removeprefix(f"{stack.scope}: ")
            scopes.setdefault((each.what, each.value, why), []).append(stack.scope)
    return tuple(
        Assumption(what, value, f"{', '.join(own)}: {why}")
        for (what, value, why), own in scopes.items()
    )


def describe_checkpoint(path: Path, checkpoint: Checkpoint, with_hash: bool) -> FileInfo:
    """Where shards are missing there is no SHA-256."""
    kind = f"tf-checkpoint-v{checkpoint.version}"
    with_hash = with_hash and not checkpoint.missing_shards
    files = [file for file in checkpoint.files if file.exists()]
    info = FileInfo.of(path, kind, with_hash=with_hash, files=files)
    return replace(info, bytes=checkpoint.nbytes)

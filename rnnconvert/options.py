"""The options of the commands, as the command line and the API take them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Literal, TypedDict

from rnnconvert.errors import UsageError
from rnnconvert.tf1.stack import StackOptions
from rnnconvert.verification.custom_objects import import_objects
from rnnconvert.verification.inputs import Inputs
from rnnconvert.verification.permissions import Permissions

LEVELS = ("none", "weights", "layers", "model")
CONTAINERS = ("h5", "keras", "weights", "savedmodel", "graph", "checkpoint", "npz")
SUFFIX = ".portable"
SUFFIXES = {"cudnn-to-keras": SUFFIX, "keras-to-cudnn": ".cudnn"}
"""Each converting command, and what it puts into the name of its output."""
_INPUTS = tuple(field.name for field in fields(Inputs))
_STACK = tuple(field.name for field in fields(StackOptions))
NAMES = ("tf1", "keras")
DEVICES = ("auto", "cpu", "gpu")


@dataclass(frozen=True)
class Options:
    """Options of a conversion, as the command line names them.

    Attributes:
        command: a key of SUFFIXES.
        to: one of CONTAINERS; None follows the output's name, else the input.
        verify: how deep: one of LEVELS.
        target: "keras3" or "keras2", where one file can't serve both.
        optimizer: "convert" or "drop".
        force: overwrite an existing output.
        in_place: replace the input, atomically.
        dry_run: do everything, verification included, and write nothing.
        check: only plan; the report says whether the input needs conversion.
        hashes: put SHA-256 of input and output into the report.
        inputs: of the levels `layers` and `model`.
        device: where the level `model` runs: one of DEVICES.
        strict: an assumption, or a level that could not run, is an error.
        permissions: which code of the model file may run for that.
        stack: what a checkpoint does not tell of its RNN stacks.
        names: of the variables in a converted checkpoint: "tf1" or "keras".
        ignore_dropout, unroll: of the lowering of graphs, see `lowering.Options`.
        max_bytes: what parts of an input may take unpacked; None for what its size allows.
    """

    command: str = "cudnn-to-keras"
    to: str | None = None
    verify: str = "model"
    target: str = "keras3"
    optimizer: str = "convert"
    force: bool = False
    in_place: bool = False
    dry_run: bool = False
    check: bool = False
    hashes: bool = True
    inputs: Inputs = field(default_factory=Inputs)
    device: str = "auto"
    strict: bool = False
    permissions: Permissions = field(default_factory=Permissions)
    stack: StackOptions = field(default_factory=StackOptions)
    names: str = "tf1"
    ignore_dropout: bool = False
    unroll: int | None = None
    max_bytes: int | None = None

    def __post_init__(self) -> None:
        choices = (
            ("command", self.command, tuple(SUFFIXES)),
            ("to", self.to, (None, *CONTAINERS)),
            ("verify", self.verify, LEVELS),
            ("target", self.target, ("keras3", "keras2")),
            ("optimizer", self.optimizer, ("convert", "drop")),
            ("device", self.device, DEVICES),
            ("names", self.names, NAMES),
        )
        for name, value, known in choices:
            if value not in known:
                listed = ", ".join(str(choice) for choice in known if choice)
                raise UsageError(f"{name}={value!r}: expected one of {listed}")

    @classmethod
    def of(cls, **named: Any) -> Options:
        """Options from one flat list of keywords, as the command line and the API take them.

        Besides the attributes: those of `Inputs` (seed, batch, timesteps, rtol, atol), `allow_code`
        and `custom_objects`, a mapping or a list of "module:name".

        Raises:
            UsageError: an unknown keyword, or a value that is not allowed.
        """
        inputs = {name: named.pop(name) for name in _INPUTS if name in named}
        objects = named.pop("custom_objects", None) or {}
        if not isinstance(objects, Mapping):
            objects = import_objects(objects)
        stack = {name: named.pop(name) for name in _STACK if name in named}
        permissions = Permissions(bool(named.pop("allow_code", False)), objects)
        unknown = sorted(set(named) - {f.name for f in fields(cls)})
        if unknown:
            raise UsageError(f"unknown option {', '.join(unknown)}")
        return cls(
            inputs=Inputs(**inputs), permissions=permissions, stack=StackOptions(**stack), **named
        )

    @property
    def suffix(self) -> str:
        """What goes into the name of an output that was given none."""
        return SUFFIXES[self.command]

    @property
    def is_inverse(self) -> bool:
        return self.command == "keras-to-cudnn"

    @property
    def extension(self) -> str | None:
        """Extension of the output where it is not the input's."""
        return ".keras" if self.to == "keras" else None


class StackKeywords(TypedDict, total=False):
    """What a TensorFlow 1 checkpoint or a bare buffer does not tell, see `StackOptions`."""

    scope: str | None
    cell: Literal["lstm", "gru", "rnn_tanh", "rnn_relu"] | None
    num_layers: int | None
    num_units: int | None
    input_size: int | None
    direction: Literal["unidirectional", "bidirectional"] | None
    forget_bias: float | None
    activation: Literal["tanh", "relu"] | None


class InspectKeywords(StackKeywords, total=False):
    """The keywords of `rnnconvert.inspect`, named as on the command line."""

    max_bytes: int | None
    target: Literal["keras3", "keras2"]
    hashes: bool


class VerifyKeywords(StackKeywords, total=False):
    """The keywords of `rnnconvert.verify`, named as on the command line."""

    max_bytes: int | None
    verify: Literal["none", "weights", "layers", "model"]
    device: Literal["auto", "cpu", "gpu"]
    strict: bool
    hashes: bool
    seed: int
    batch: int | None
    timesteps: int | None
    rtol: float | None
    atol: float | None
    allow_code: bool
    custom_objects: Mapping[str, Any] | Sequence[str] | None


class ConvertKeywords(VerifyKeywords, total=False):
    """The keywords of `rnnconvert.convert`, named as on the command line."""

    command: Literal["cudnn-to-keras", "keras-to-cudnn"]
    to: Literal["h5", "keras", "weights", "savedmodel", "graph", "checkpoint", "npz"] | None
    target: Literal["keras3", "keras2"]
    optimizer: Literal["convert", "drop"]
    force: bool
    in_place: bool
    dry_run: bool
    check: bool
    names: Literal["tf1", "keras"]
    ignore_dropout: bool
    unroll: int | None

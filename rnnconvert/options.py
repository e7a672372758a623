"""The options of the commands, as the command line and the API take them."""

from __future__ import annotations

import importlib
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Literal, TypedDict

from rnnconvert.errors import UsageError

LEVELS = ("none", "weights", "layers", "model")
CONTAINERS = ("h5", "keras", "weights", "savedmodel", "graph", "checkpoint", "npz")
SUFFIX = ".portable"
SUFFIXES = {"cudnn-to-keras": SUFFIX, "keras-to-cudnn": ".cudnn"}
"""Each converting command, and what it puts into the name of its output."""
NAMES = ("tf1", "keras")
DEVICES = ("auto", "cpu", "gpu")
LONGER = (7, 32, 128, 512)
"""Lengths that are tried for unknown dimensions, where convolutions and pooling need more."""


@dataclass(frozen=True)
class Inputs:
    """How the random inputs of the levels `layers` and `model` are made, and the tolerances.

    Attributes:
        seed: of numpy's default generator.
        batch: batch size; a model with a fixed one keeps its own. Default 3.
        timesteps: length of dimensions that the model leaves open. Default 7.
        rtol, atol: the tolerance is atol + rtol * largest output; None derives it.
    """

    seed: int = 0
    batch: int | None = None
    timesteps: int | None = None
    rtol: float | None = None
    atol: float | None = None

    def __post_init__(self) -> None:
        for name in ("rtol", "atol"):
            value = getattr(self, name)
            if value is not None and not 0 <= value < math.inf:
                raise UsageError(f"{name}={value}: expected a number from 0")
        for name, least in (("seed", 0), ("batch", 1), ("timesteps", 1)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise UsageError(f"{name}={value}: expected {least} or more")

    @property
    def asked_tolerance(self) -> bool:
        return self.atol is not None or self.rtol is not None

    def tolerance(self, scale: float) -> float:
        """The tolerance that was asked for, of outputs as large as `scale`."""
        return (self.atol or 0.0) + (self.rtol or 0.0) * scale

    @property
    def lengths(self) -> tuple[int, ...]:
        """Lengths to try for open dimensions, in order."""
        return LONGER if self.timesteps is None else (self.timesteps,)


@dataclass(frozen=True)
class StackOptions:
    """What a checkpoint can't tell, and the caller may.

    Attributes:
        scope: only stacks in this scope (or its name itself).
        cell, num_layers, num_units, input_size, direction: of a raw buffer.
        forget_bias: of LSTM cells; None is TensorFlow's default for the class.
        activation: of cells that have a choice, as Keras calls it; None is "tanh" and an
            assumption.
    """

    scope: str | None = None
    cell: str | None = None
    num_layers: int | None = None
    num_units: int | None = None
    input_size: int | None = None
    direction: str | None = None
    forget_bias: float | None = None
    activation: str | None = None


@dataclass(frozen=True)
class Permissions:
    """What of a model file may run.

    Attributes:
        allow_code: Lambda layers, whose code is in the file.
        custom_objects: name to class or function, for custom layers.
    """

    allow_code: bool = False
    custom_objects: Mapping[str, Any] = field(default_factory=dict)


_INPUTS = tuple(field.name for field in fields(Inputs))
_STACK = tuple(field.name for field in fields(StackOptions))


_DECISIVE = (
    "to", "verify", "target", "optimizer", "device", "strict", "names", "ignore_dropout", "unroll",
)  # fmt: skip


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
        ignore_dropout, unroll: of the lowering of graphs, see `LoweringOptions`.
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

    def to_dict(self) -> dict[str, Any]:
        """What decides the result of a conversion, for a report."""
        chosen = {name: getattr(self, name) for name in _DECISIVE}
        return {
            **chosen,
            **vars(self.inputs),
            **vars(self.stack),
            "allow_code": self.permissions.allow_code,
            "custom_objects": sorted(self.permissions.custom_objects),
        }

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


def import_objects(specs: Iterable[str]) -> dict[str, Any]:
    """Import classes and functions.

    Args:
        specs: "module:name", where the name is a class, a function, or a dict of such by name.

    Returns:
        Keras' `custom_objects`: name to class or function.

    Raises:
        UsageError: not of that form, or there is no such thing.
    """
    found: dict[str, Any] = {}
    for spec in specs:
        module_name, _, attribute = spec.partition(":")
        if not module_name or not attribute:
            raise UsageError(f"--custom-objects {spec!r}: expected module:name")
        try:
            value: Any = importlib.import_module(module_name)
        except Exception as error:  # whatever the user's module raises, or a name that is none
            told = f"{type(error).__name__}: {error}"
            raise UsageError(f"--custom-objects {spec}: can't be imported ({told})") from error
        for part in attribute.split("."):
            if not hasattr(value, part):
                raise UsageError(f"--custom-objects {spec}: {module_name} has no {attribute}")
            value = getattr(value, part)
        if isinstance(value, Mapping):
            found.update(value)
        elif callable(value):
            found[getattr(value, "__name__", attribute)] = value
        else:
            raise UsageError(f"--custom-objects {spec}: expected a class, a function or a dict")
    return found

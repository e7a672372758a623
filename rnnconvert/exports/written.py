"""What a target's writer tells of what it wrote."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rnnconvert.report import Assumption

Array = np.ndarray[Any, Any]
Run = Callable[[Sequence[Array]], list[Array]]
"""The written model: the inputs' arrays, in the order of the source's inputs (its states last), to
the outputs' arrays in the order of its outputs (its states last)."""


@dataclass(frozen=True)
class Written:
    """A model as a target's writer wrote it.

    Attributes:
        target: a key of `targets.TARGETS`.
        runtime: what `Run` runs it in, with its version.
        files: names in the directory of the output, the main one first.
        operators: type to count; of recurrent ones and loops also those that are not there (0).
        versions: of the format, e.g. {"opset": 18, "ir_version": 8}.
        native: recurrent layers that became an operator or module of the target's own.
        loops: recurrent layers that did not, with the reason.
        inputs, outputs: their names in the written model, in the order of `Run`.
        timesteps: the only number of time steps that it takes; None for any.
        batch: the only batch size; None for any.
        tolerance: of the largest output, where the target is coarser than the model's dtype (int8
            weights); None derives it from the dtype.
        notes: sentences for the user.
        assumptions: what changes numbers and is not in the input.
    """

    target: str
    runtime: str
    files: tuple[str, ...]
    operators: dict[str, int] = field(default_factory=dict)
    versions: dict[str, Any] = field(default_factory=dict)
    native: int = 0
    loops: tuple[str, ...] = ()
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    timesteps: int | None = None
    batch: int | None = None
    tolerance: float | None = None
    notes: tuple[str, ...] = ()
    assumptions: tuple[Assumption, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """For the report."""
        return {
            "target": self.target,
            "runtime": self.runtime,
            "files": list(self.files),
            "versions": dict(self.versions),
            "operators": dict(self.operators),
            "recurrent_layers": {"native": self.native, "loops": list(self.loops)},
            "inputs": list(self.inputs),
            "outputs": list(self.outputs),
            "timesteps": self.timesteps,
            "batch": self.batch,
            "notes": list(self.notes),
        }

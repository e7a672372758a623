"""The report: what was read, done, proved and written. Its JSON form is `schema` 1."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rnnconvert.plan import OptimizerPlan

SCHEMA = 1


@dataclass(frozen=True)
class LevelResult:
    """Outcome of one level of verification; `reason` says why it was skipped.

    `worst` is the place of the worst element; `first_difference`, where a model failed, the first
    layer in the order of execution whose output differs.
    """

    status: str
    detail: str | None = None
    reason: str | None = None
    device: str | None = None
    engine: str | None = None
    max_abs: float | None = None
    max_rel: float | None = None
    tolerance: float | None = None
    worst: str | None = None
    seed: int | None = None
    first_difference: str | None = None

    def to_dict(self) -> dict[str, Any]:
        return {key: value for key, value in vars(self).items() if value is not None}

    def failure(self, name: str) -> str:
        """The sentence of the error that follows from a failed level."""
        if self.max_abs is None:
            return f"verification failed at level {name}: {self.detail}"
        first = f"; the first layer that differs is {self.first_difference}"
        return (
            f"verification failed at level {name}: {self.worst} differs by {self.max_abs:.3g}, "
            f"tolerance {self.tolerance:.3g}{first if self.first_difference else ''}"
        )


@dataclass(frozen=True)
class FileInfo:
    """A file as found or as written. `sha256` is None where nobody asked for it."""

    path: str
    bytes: int
    container: str
    sha256: str | None = None
    keras_version: str | None = None
    backend: str | None = None

    def to_dict(self) -> dict[str, Any]:
        return dict(vars(self))


@dataclass(frozen=True)
class Report:
    """All that a run of rnnconvert has to say of one input."""

    command: str
    input: FileInfo
    output: FileInfo | None = None
    layers: tuple[Any, ...] = ()
    config_changes: tuple[Any, ...] = ()
    optimizer: OptimizerPlan = field(default_factory=OptimizerPlan)
    weights_level: LevelResult = field(default_factory=lambda: LevelResult("skipped"))
    layers_level: LevelResult = field(default_factory=lambda: LevelResult("skipped"))
    model_level: tuple[LevelResult, ...] = ()
    target_points: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
    verdict: str = "unverified"

    @property
    def levels(self) -> list[tuple[str, LevelResult]]:
        return [
            ("weights", self.weights_level),
            ("layers", self.layers_level),
            *(("model", level) for level in self.model_level),
        ]

    def to_dict(self) -> dict[str, Any]:
        return {
            "schema": SCHEMA,
            "tool": tool_versions(),
            "command": self.command,
            "input": self.input.to_dict(),
            "output": self.output.to_dict() if self.output else None,
            "layers": [layer.to_dict() for layer in self.layers],
            "config_changes": [change.to_dict() for change in self.config_changes],
            "optimizer": {"state": self.optimizer.state, "notes": list(self.optimizer.notes)},
            "target_points": list(self.target_points),
            "verification": {
                "weights": self.weights_level.to_dict(),
                "layers": self.layers_level.to_dict(),
                "model": [level.to_dict() for level in self.model_level],
            },
            "warnings": list(self.warnings),
            "problems": list(self.problems),
            "verdict": self.verdict,
        }

    def to_json(self) -> str:
        return json.dumps(self.to_dict(), indent=2, default=str)


def tool_versions() -> dict[str, str | None]:
    """Versions of rnnconvert and of what it stands on; None for what is not installed.

    Read from the packages' metadata: nothing is imported for it but numpy and h5py.
    """
    import h5py

    versions: dict[str, str | None] = {}
    for name in ("rnnconvert", "numpy", "h5py"):
        versions[name] = _version(name)
    versions["hdf5"] = h5py.version.hdf5_version
    for name in ("tensorflow", "keras"):
        versions[name] = _version(name)
    return versions


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def sha256(path: Path) -> str:
    """SHA-256 of a file, read in pieces."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(2**20):
            digest.update(piece)
    return digest.hexdigest()

"""The report: what was read, done, proved and written. Its JSON form is `schema` 1."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rnnconvert.errors import DifferenceError, NotConvertibleError
from rnnconvert.hashes import sha256, tree_sha256
from rnnconvert.versions import tool_versions

SCHEMA = 1
EQUIVALENT = "equivalent"
NOTHING_WRITTEN = "; nothing was written"
"""How the message of a failed verification ends."""


@dataclass(frozen=True)
class Assumption:
    """What the input does not tell, and changes the numbers.

    Attributes:
        what: as the options name it, e.g. "forget_bias".
        value: that was taken; None for none at all.
        why: a sentence: which part of the model needs it, why this value, what it may be instead.
    """

    what: str
    value: Any
    why: str

    def __str__(self) -> str:
        """E.g. "forget_bias is 1.0"."""
        return f"{self.what} is {'none' if self.value is None else self.value}"

    def to_dict(self) -> dict[str, Any]:
        return dict(vars(self))


@dataclass(frozen=True)
class Part:
    """How far two models differ in one layer or output.

    Attributes:
        name: of the layer or output.
        max_abs, tolerance: the largest difference there, and what is allowed.
        by_step: the largest difference at each time step; of some steps together where there are
            many; empty where it has no time steps.
    """

    name: str
    max_abs: float
    tolerance: float
    by_step: tuple[float, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """JSON has no infinity, which therefore is a text."""
        return {
            "name": self.name,
            "max_abs": _number(self.max_abs),
            "tolerance": _number(self.tolerance),
            "by_step": [_number(value) for value in self.by_step],
        }


def _number(value: float) -> float | str:
    return value if math.isfinite(value) else str(value)


@dataclass(frozen=True)
class LevelResult:
    """Outcome of one level of verification; `reason` says why it was skipped.

    `worst` is the place of the worst element; `first_difference`, where a model failed, the first
    layer in the order of execution whose output differs. `excused` is a skipped level that leaves
    no doubt: it was not asked for, or the model has nothing that it could run. `parts` are the
    layers or outputs that were compared, in the order of the model. A graph has a result for each
    signature or op: `name` is whose, and `inputs` are the shapes of what was fed. `assumptions` are
    what a level that passed can't tell.
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
    excused: bool = False
    parts: tuple[Part, ...] = ()
    name: str = ""
    inputs: Mapping[str, tuple[int, ...]] | None = None
    assumptions: tuple[Assumption, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        found = {key: value for key, value in vars(self).items() if value is not None}
        if not self.excused:
            del found["excused"]
        del found["parts"]
        del found["name"]  # stands in `detail`
        del found["assumptions"]  # stand in the report's own
        if self.parts:
            found["parts"] = [part.to_dict() for part in self.parts]
        return found

    @classmethod
    def skipped(cls, reason: str, device: str | None = None) -> LevelResult:
        return cls("skipped", reason=reason, device=device)

    @classmethod
    def nothing_to_run(cls, reason: str, device: str | None = None) -> LevelResult:
        """Skipped because there is nothing of its kind to run, here or on any machine."""
        return cls("skipped", reason=reason, device=device, excused=True)

    @classmethod
    def not_asked(cls, verify: str) -> LevelResult:
        """For the levels below the one that `--verify` names."""
        return cls.nothing_to_run(f"not asked for (--verify {verify})")

    @classmethod
    def of_all(cls, results: Sequence[LevelResult]) -> LevelResult:
        """One result for several parts: failed or skipped if one of them is.

        Its numbers are those of the part that is nearest to its tolerance, or beyond it.
        """

        def badness(result: LevelResult) -> tuple[int, float]:
            used = (result.max_abs or 0.0) / result.tolerance if result.tolerance else 0.0
            return ("passed", "skipped", "failed").index(result.status), used

        worst = max(results, key=badness)
        details = "; ".join(result.detail for result in results if result.detail)
        parts = tuple(part for result in results for part in result.parts)
        return replace(worst, detail=details or None, parts=parts)

    def failure(self, name: str) -> str:
        """The sentence of the error that follows from a failed level."""
        if name == "model" and self.device:
            name = f"model, {self.device}"
        if self.max_abs is None:
            told = ": ".join(text for text in (self.detail, self.reason) if text)
            return f"verification failed at level {name}: {told}"
        first = f"; the first layer that differs is {self.first_difference}"
        return (
            f"verification failed at level {name}: {self.worst} differs by {self.max_abs:.3g}, "
            f"tolerance {self.tolerance:.3g}{first if self.first_difference else ''}"
        )


@dataclass(frozen=True)
class FileInfo:
    """A file as found or as written. `sha256` is None where nobody asked for it.

    In an object store `path` is a URL, and `stored` says of each object what changes whenever it is
    written, by its URL.
    """

    path: str
    bytes: int
    container: str
    sha256: str | None = None
    keras_version: str | None = None
    backend: str | None = None
    stored: Mapping[str, str] | None = None

    @classmethod
    def of(
        cls, path: Path, container: str, *, with_hash: bool, files: Sequence[Path] = ()
    ) -> FileInfo:
        """Of a file; of a model in several `files`; or of a directory with all that is in it.

        The SHA-256 of several files is that of their contents one after another; of a directory,
        that of the lines "NAME SHA-256" of its files in the order of their names.
        """
        if not files and path.is_dir():
            files = sorted(file for file in path.rglob("*") if file.is_file())
            digest = tree_sha256(path, files) if with_hash else None
        else:
            files = files or (path,)
            digest = sha256(*files) if with_hash else None
        return cls(str(path), sum(file.stat().st_size for file in files), container, digest)

    def to_dict(self) -> dict[str, Any]:
        found = dict(vars(self))
        if self.stored is None:
            del found["stored"]
        return found


@dataclass(frozen=True)
class TensorRecord:
    """What became of one stored tensor."""

    source: str
    target: str
    operation: str = "none"
    lossless: bool = True

    def to_dict(self) -> dict[str, Any]:
        return dict(vars(self))


@dataclass(frozen=True)
class LayerRecord:
    """One recurrent layer, direction of a stack, or op, as a report has it, of every kind of model.

    Attributes:
        path: where it is in the model.
        source_layout, target_layout: the JSON's "from" and "to".
        parameters: number of weights before, after, and by the formula of the first layout.
        more: what only some kinds have: an op of a graph may compute several "layers" at once.
    """

    path: str
    class_name: str
    cell: str | None
    source_layout: str
    target_layout: str
    units: int | None
    input_dim: int | None
    direction: str | None
    flags: Sequence[str] = ()
    parameters: tuple[int | None, int | None, int | None] = (None, None, None)
    tensors: tuple[TensorRecord, ...] = ()
    more: Mapping[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        return {
            "path": self.path,
            "class_name": self.class_name,
            "cell": self.cell,
            "from": self.source_layout,
            "to": self.target_layout,
            "units": self.units,
            "input_dim": self.input_dim,
            **self.more,
            "direction": self.direction,
            "flags": list(self.flags),
            "params": dict(zip(("from", "to", "formula"), self.parameters, strict=True)),
            "tensors": [tensor.to_dict() for tensor in self.tensors],
        }


@dataclass(frozen=True)
class OptimizerRecord:
    """What became of the optimizer's state: `state` is "converted", "dropped" or "absent"."""

    state: str = "absent"
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Report:
    """All that a run of rnnconvert has to say of one input.

    With `assumptions`, those of the levels among them, the verdict "equivalent" becomes
    "equivalent, if forget_bias is 1.0".
    """

    command: str
    input: FileInfo
    output: FileInfo | None = None
    layers: tuple[Any, ...] = ()
    config_changes: tuple[Any, ...] = ()
    optimizer: OptimizerRecord = field(default_factory=OptimizerRecord)
    weights_level: LevelResult = field(default_factory=lambda: LevelResult("skipped"))
    layers_level: LevelResult = field(default_factory=lambda: LevelResult("skipped"))
    model_level: tuple[LevelResult, ...] = ()
    target_points: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
    verdict: str = "unverified"
    assumptions: tuple[Assumption, ...] = ()
    exported: tuple[Any, ...] = ()

    def __post_init__(self) -> None:
        of_levels = (each for level in self.model_level for each in level.assumptions)
        unique = tuple(dict.fromkeys((*self.assumptions, *of_levels)))
        object.__setattr__(self, "assumptions", unique)
        if self.is_equivalent:
            conditions = " and ".join(dict.fromkeys(str(each) for each in self.assumptions))
            verdict = f"{EQUIVALENT}, if {conditions}" if conditions else EQUIVALENT
            object.__setattr__(self, "verdict", verdict)

    @property
    def is_equivalent(self) -> bool:
        """Whether the verdict is "equivalent", with a condition or without."""
        return self.verdict.partition(",")[0] == EQUIVALENT

    @property
    def levels(self) -> list[tuple[str, LevelResult]]:
        return [
            ("weights", self.weights_level),
            ("layers", self.layers_level),
            *(("model", level) for level in self.model_level),
        ]

    @property
    def proved(self) -> str:
        """The deepest level that passed: "model", "layers", "weights" or "none".

        The level `model` passed where all its parts did; a GPU that is not there is no part.
        """
        on_cpu = [level for level in self.model_level if not _is_missing_gpu(level)]
        if on_cpu and all(level.status == "passed" for level in on_cpu):
            return "model"
        if self.layers_level.status == "passed":
            return "layers"
        return "weights" if self.weights_level.status == "passed" else "none"

    @property
    def depth(self) -> str:
        """How deep the proof went, e.g. "whole model"; and what kept it from going there."""
        if self.proved == "model":
            return "whole model"
        above = [("weights", self.weights_level), ("layers", self.layers_level)]
        passed = ", ".join(name for name, level in above if level.status == "passed")
        return f"{passed or 'nothing'}; the whole model was not run: {self._why_not_run()}"

    def _why_not_run(self) -> str:
        reasons = [
            ": ".join(text for text in (level.detail, level.reason) if text)
            for level in self.model_level
            if level.status == "skipped" and not _is_missing_gpu(level)
        ]
        return "; ".join(dict.fromkeys(reasons)) or "not asked for"

    def doubts(self, *, gpu: bool = False) -> list[str]:
        """Sentences on what `--strict` does not let pass: assumptions, levels that could not run.

        A level that was not asked for, or that has nothing to run in this kind of input, is none;
        nor is a level above `model` where that passed.

        Args:
            gpu: a GPU was asked for, so that it counts like the CPU.
        """
        found = [f"{each}: {each.why}" for each in self.assumptions]
        for name, level in self.levels:
            covered = name != "model" and self.proved == "model"
            if level.status != "skipped" or level.excused or covered:
                continue
            if gpu or not _is_missing_gpu(level):
                found.append(f"level {name} could not run: {level.reason}")
        return list(dict.fromkeys(found))

    def raise_if_in_doubt(self, ending: str = "", *, gpu: bool = False) -> None:
        """Raise for any doubt (`--strict`).

        Raises:
            NotConvertibleError: it carries the report.
        """
        doubts = self.doubts(gpu=gpu)
        if doubts:
            text = f"--strict: {'; '.join(doubts)}{ending}"
            raise NotConvertibleError(text).with_report(self)

    def raise_if_different(self, ending: str = "") -> None:
        """Raise for the first level that failed.

        Args:
            ending: what the message says at its end.

        Raises:
            DifferenceError: it carries the report, with the verdict "different".
        """
        for name, level in self.levels:
            if level.status == "failed":
                raise DifferenceError(level.failure(name) + ending).with_report(
                    replace(self, verdict="different")
                )

    def to_dict(self) -> dict[str, Any]:
        return {
            **head(self.command, self.input),
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
            "assumptions": [each.to_dict() for each in self.assumptions],
            "warnings": list(self.warnings),
            "problems": list(self.problems),
            "verdict": self.verdict,
            "proved": self.proved,
            **({"exported": [each.to_dict() for each in self.exported]} if self.exported else {}),
        }

    def to_json(self) -> str:
        import json

        return json.dumps(self.to_dict(), indent=2, default=str)


def counted(number: int, one: str, several: str) -> str:
    """The number with its noun: "1 merged bias", "2 merged biases"."""
    return f"{number} {one if number == 1 else several}"


def _is_missing_gpu(level: LevelResult) -> bool:
    return level.device == "gpu" and level.status == "skipped"


def head(command: str, info: FileInfo) -> dict[str, Any]:
    """How every JSON document of rnnconvert begins."""
    return {
        "schema": SCHEMA,
        "tool": tool_versions(),
        "command": command,
        "input": info.to_dict(),
    }

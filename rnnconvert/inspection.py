"""What is inside a file, and what a conversion would do. Nothing is written."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rnnconvert import graph_pipeline
from rnnconvert.containers.keras_h5 import describe, open_keras_h5
from rnnconvert.containers.sniff import require_hdf5
from rnnconvert.errors import ConversionError
from rnnconvert.keras_config.tree import children, layer_name, root
from rnnconvert.plan import Plan
from rnnconvert.planning import make_plan
from rnnconvert.report import FileInfo, tool_versions


@dataclass(frozen=True)
class LayerSummary:
    """A top-level layer: its class ("" in a weights-only file) and number of weights."""

    name: str
    class_name: str
    parameters: int

    def to_dict(self) -> dict[str, Any]:
        return dict(vars(self))


@dataclass(frozen=True)
class Inspection:
    """What `inspect` found.

    Attributes:
        input: the file.
        model: all top-level layers with their number of weights.
        plan: what a conversion would do; its `sites` are the recurrent layers.
    """

    input: FileInfo
    model: tuple[LayerSummary, ...]
    plan: Plan

    @property
    def verdict(self) -> str:
        if self.plan.problems:
            return "not-convertible"
        return "nothing-to-convert" if self.plan.is_empty else "convertible"

    def to_dict(self) -> dict[str, Any]:
        """The report's "input" and "layers", and what a conversion would change."""
        plan = self.plan
        return {
            "schema": 1,
            "tool": tool_versions(),
            "command": "inspect",
            "input": self.input.to_dict(),
            "model": [layer.to_dict() for layer in self.model],
            "layers": [site.to_dict() for site in plan.sites],
            "config_changes": [change.to_dict() for change in plan.config_changes],
            "optimizer": {"state": plan.optimizer.state, "notes": list(plan.optimizer.notes)},
            "target_points": list(plan.target_points),
            "warnings": list(plan.warnings),
            "problems": list(plan.problems),
            "verdict": self.verdict,
        }


def run(path: Path, *, target: str = "keras3", hashes: bool = True) -> Inspection:
    """Inspect one file.

    Raises:
        ConversionError: the file can't be read, or is no Keras model.
    """
    try:
        if graph_pipeline.kind_of(path) == graph_pipeline.KERAS:
            info = graph_pipeline.describe(path, graph_pipeline.KERAS, hashes)
            with graph_pipeline.rebuilt_h5(path, graph_pipeline.KERAS) as (file, _):
                return replace(run(file, target=target, hashes=False), input=info)
        require_hdf5(path)
        with open_keras_h5(path) as file:
            plan = make_plan(file, target=target)
            classes = {
                layer_name(node.entry): node.class_name
                for node in children(root(file.model_config or {}))
            }
            model = tuple(
                LayerSummary(name, classes.get(name, ""), sum(t.size for t in tensors))
                for name, tensors in file.groups.items()
            )
            return Inspection(describe(file, with_hash=hashes), model, plan)
    except ConversionError as error:
        error.path = error.path or str(path)
        raise

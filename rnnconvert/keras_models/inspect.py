"""What is inside a Keras file: its layers, and what a conversion would do with them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rnnconvert.errors import NotConvertibleError
from rnnconvert.keras_models.config.tree import children, layer_name, root
from rnnconvert.keras_models.files.h5 import KerasH5
from rnnconvert.keras_models.opening import open_keras
from rnnconvert.keras_models.plan import Plan, SiteChange
from rnnconvert.keras_models.planning import make_plan
from rnnconvert.kinds import Kind
from rnnconvert.report import FileInfo, head


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
    def layers(self) -> tuple[SiteChange, ...]:
        """The recurrent layers."""
        return self.plan.sites

    @property
    def warnings(self) -> tuple[str, ...]:
        return self.plan.warnings

    @property
    def verdict(self) -> str:
        if self.plan.problems:
            return "not-convertible"
        return "nothing-to-convert" if self.plan.is_empty else "convertible"

    def to_dict(self) -> dict[str, Any]:
        """The report's "input" and "layers", and what a conversion would change."""
        plan = self.plan
        return {
            **head("inspect", self.input),
            "model": [layer.to_dict() for layer in self.model],
            "layers": [site.to_dict() for site in plan.sites],
            "config_changes": [change.to_dict() for change in plan.config_changes],
            "optimizer": {"state": plan.optimizer.state, "notes": list(plan.optimizer.notes)},
            "target_points": list(plan.target_points),
            "warnings": list(self.warnings),
            "problems": list(plan.problems),
            "verdict": self.verdict,
        }


def inspect_keras(
    path: Path, kind: Kind, *, target: str = "keras3", hashes: bool = True
) -> Inspection:
    """Inspect a Keras file: HDF5, or another container that can be rebuilt as such.

    Raises:
        ConversionError: the file can't be read, or is no Keras model.
    """
    try:
        with open_keras(path, kind, with_hash=hashes) as (info, file):
            found = _inspect(file, info, target)
    except NotConvertibleError as error:
        return _not_rebuilt(path, kind, hashes, error)
    return _without_places(found, path) if kind is Kind.KERAS_WEIGHTS else found


def _not_rebuilt(path: Path, kind: Kind, hashes: bool, error: NotConvertibleError) -> Inspection:
    """A `.keras` file of layers that are not known needs nothing, if Keras 3 wrote it."""
    from rnnconvert.keras_models.files import zip_file

    version = zip_file.loads_as_it_is(path) if kind is Kind.KERAS else None
    if version is None:
        raise error
    info = FileInfo.of(path, kind.value, with_hash=hashes)
    plan = Plan(warnings=(f"its layers can't be listed: {error}",))
    return Inspection(replace(info, keras_version=version), (), plan)


def _without_places(found: Inspection, path: Path) -> Inspection:
    """With the problem that the layers of a `.weights.h5` file can't be told apart, if so."""
    from rnnconvert.keras_models.files.weights_h5 import require_places

    try:
        require_places(path)
    except NotConvertibleError as error:
        problems = (*found.plan.problems, *error.problems)
        return replace(found, plan=replace(found.plan, problems=problems))
    return found


def _inspect(file: KerasH5, info: FileInfo, target: str) -> Inspection:
    classes = {
        layer_name(node.entry): node.class_name for node in children(root(file.model_config or {}))
    }
    model = tuple(
        LayerSummary(name, classes.get(name, ""), sum(t.size for t in tensors))
        for name, tensors in file.groups.items()
    )
    return Inspection(info, model, make_plan(file, target=target))

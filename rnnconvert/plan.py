"""What was found and what will be done: frozen facts, complete before the first byte is written."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rnnconvert.keras_config import ConfigChange
from rnnconvert.layouts import CELLS, Layout, find, parameter_count


@dataclass(frozen=True)
class Tensor:
    """A stored tensor: where it is, and what it looks like.

    Attributes:
        path: of the dataset in its container.
        name: the variable's name as Keras wrote it, without ":0".
        shape, dtype: as stored.
    """

    path: str
    name: str
    shape: tuple[int, ...]
    dtype: str

    @property
    def size(self) -> int:
        count = 1
        for length in self.shape:
            count *= length
        return count


@dataclass(frozen=True)
class Site:
    """One direction of one recurrent layer, as found in a container.

    Attributes:
        path: e.g. "model/bidirectional_1/forward_cu_dnnlstm_1".
        cell: a key of `layouts.CELLS`; "conv_lstm" for the convolutional layers, which have no
            cuDNN form and are only ever rescaled.
        layout: "keras-cudnn" or "keras".
        class_name: the Keras class; "" in a weights-only file.
        units, input_dim: sizes of the layer.
        direction: "forward" or "backward".
        flags: e.g. ("return_sequences", "stateful").
        activation, recurrent_activation: names, None where the file does not say.
        tensors: kind ("kernel", "recurrent_kernel", "bias") to tensor.
    """

    path: str
    cell: str
    layout: str
    class_name: str
    units: int
    input_dim: int
    direction: str
    flags: tuple[str, ...]
    activation: str | None
    recurrent_activation: str | None
    tensors: dict[str, Tensor]

    @property
    def is_cudnn(self) -> bool:
        return self.layout == "keras-cudnn"

    @property
    def parameters(self) -> int:
        return sum(tensor.size for tensor in self.tensors.values())

    def parameters_as(self, layout: str) -> int:
        """Number of weights by formula, in "keras" or "keras-cudnn" layout."""
        if self.cell == "conv_lstm":
            return self.parameters
        biases = 0 if "bias" not in self.tensors else 1
        if biases and (layout == "keras-cudnn" or self.cell == "gru"):
            biases = 2
        return parameter_count(CELLS[self.cell], self.input_dim, self.units, biases)

    def stored_as(self, layout: str) -> Layout:
        return find(layout, self.cell)


@dataclass(frozen=True)
class Relay:
    """Edit: one tensor from one layout to another."""

    kind: str
    source: Layout
    target: Layout
    units: int
    is_slot: bool = False
    """A slot of an optimizer: a merged bias takes its half's slot, it is not a sum."""

    @property
    def lossless(self) -> bool:
        return self.kind != "bias" or not self.merges

    @property
    def merges(self) -> bool:
        return self.kind == "bias" and self.target.bias.name == "MERGED"

    @property
    def splits(self) -> bool:
        return self.kind == "bias" and self.source.bias.name == "MERGED"

    def __str__(self) -> str:
        if self.kind != "bias":
            return "per-gate reshape+transpose"
        if self.is_slot and self.merges:
            return "slot of either bias (both equal)"
        if self.merges:
            return "input bias + recurrent bias"
        if self.splits:
            return "two halves"
        two_rows = self.target.bias.name == "TWO_ROWS"
        return "reshape (2, gates*units)" if two_rows else "reshape (2*gates*units,)"


@dataclass(frozen=True)
class Scale:
    """Edit: some columns (along the last axis) of a tensor times a factor."""

    columns: tuple[tuple[int, int], ...]
    factor: float

    @property
    def lossless(self) -> bool:
        return False

    def __str__(self) -> str:
        return f"sigmoid gates times {self.factor:.6g}"


Edit = Relay | Scale


@dataclass(frozen=True)
class TensorChange:
    """One tensor that changes: what it was, what it becomes, by which edit."""

    source: Tensor
    target: Tensor
    edit: Edit

    def to_dict(self) -> dict[str, Any]:
        return {
            "source": self.source.path,
            "target": self.target.path,
            "operation": str(self.edit),
            "lossless": self.edit.lossless,
        }


@dataclass(frozen=True)
class SiteChange:
    """One recurrent layer, and what happens to its weights; no changes: it is left as it is."""

    site: Site
    target_layout: str
    changes: tuple[TensorChange, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        site = self.site
        return {
            "path": site.path,
            "class_name": site.class_name,
            "cell": site.cell,
            "from": site.layout,
            "to": self.target_layout,
            "units": site.units,
            "input_dim": site.input_dim,
            "direction": site.direction,
            "flags": list(site.flags),
            "params": {
                "from": site.parameters,
                "to": site.parameters_as(self.target_layout),
                "formula": site.parameters_as(site.layout),
            },
            "tensors": [change.to_dict() for change in self.changes],
        }


@dataclass(frozen=True)
class OptimizerPlan:
    """What happens to the optimizer state: `state` is "converted", "dropped" or "absent".

    Attributes:
        order: dataset names for the new `weight_names`, in order (converted only).
        new_counter: name of a step counter to be made, where the file has none.
        changes: slots that change with their weights.
        notes: sentences for the report.
    """

    state: str = "absent"
    order: tuple[str, ...] = ()
    new_counter: str | None = None
    changes: tuple[TensorChange, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Plan:
    """Everything that will be done to a copy of the input.

    Attributes:
        sites: every recurrent layer, changed or not.
        model_config, training_config: to be written; None leaves the attribute as it is (model)
            or removes it (training, if `drop_training`).
        config_changes: for the report.
        optimizer: see OptimizerPlan.
        attributes: root attributes to set.
        problems: sentences; any of them means that nothing may be written.
    """

    sites: tuple[SiteChange, ...] = ()
    model_config: dict[str, Any] | None = None
    training_config: dict[str, Any] | None = None
    drop_training: bool = False
    config_changes: tuple[ConfigChange, ...] = ()
    optimizer: OptimizerPlan = OptimizerPlan()
    attributes: tuple[tuple[str, str], ...] = ()
    warnings: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
    target_points: tuple[str, ...] = ()

    @property
    def tensor_changes(self) -> tuple[TensorChange, ...]:
        return tuple(change for site in self.sites for change in site.changes)

    @property
    def is_empty(self) -> bool:
        """True where the file is fine as it is."""
        optimizer = self.optimizer
        dropped = optimizer.state == "dropped"
        return not (self.tensor_changes or self.config_changes or optimizer.changes or dropped)

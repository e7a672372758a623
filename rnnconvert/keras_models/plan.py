"""What was found and what will be done: frozen facts, complete before the first byte is written."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rnnconvert.keras_models.config import ConfigChange
from rnnconvert.layouts import CELLS, Layout, find, parameter_count
from rnnconvert.report import LayerRecord, TensorRecord


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
            cuDNN form and are only ever rescaled; "linear" for a Dense or a convolution, likewise.
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
        if self.cell in ("conv_lstm", "linear"):
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

    def record(self) -> TensorRecord:
        return TensorRecord(self.source.path, self.target.path, str(self.edit), self.edit.lossless)


@dataclass(frozen=True)
class SiteChange:
    """One recurrent layer, and what happens to its weights; no changes: it is left as it is."""

    site: Site
    target_layout: str
    changes: tuple[TensorChange, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        site = self.site
        return LayerRecord(
            path=site.path,
            class_name=site.class_name,
            cell=site.cell,
            source_layout=site.layout,
            target_layout=self.target_layout,
            units=site.units,
            input_dim=site.input_dim,
            direction=site.direction,
            flags=site.flags,
            parameters=(
                site.parameters,
                site.parameters_as(self.target_layout),
                site.parameters_as(site.layout),
            ),
            tensors=tuple(change.record() for change in self.changes),
        ).to_dict()


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
        rescaled: layers of other kinds whose weights are scaled for Keras 3's hard_sigmoid.
        model_config, training_config: to be written; None leaves the attribute as it is (model)
            or removes it (training, if `drop_training`).
        layer_order: the top-level layers in the order in which Keras 3 reads their weights, where
            that is not the file's.
        config_changes: for the report.
        optimizer: see OptimizerPlan.
        attributes: root attributes to set.
        problems: sentences; any of them means that nothing may be written.
    """

    sites: tuple[SiteChange, ...] = ()
    rescaled: tuple[SiteChange, ...] = ()
    model_config: dict[str, Any] | None = None
    training_config: dict[str, Any] | None = None
    drop_training: bool = False
    layer_order: tuple[str, ...] | None = None
    config_changes: tuple[ConfigChange, ...] = ()
    optimizer: OptimizerPlan = OptimizerPlan()
    attributes: tuple[tuple[str, str], ...] = ()
    warnings: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
    target_points: tuple[str, ...] = ()

    @property
    def tensor_changes(self) -> tuple[TensorChange, ...]:
        return tuple(change for site in (*self.sites, *self.rescaled) for change in site.changes)

    @property
    def is_empty(self) -> bool:
        """True where the file is fine as it is."""
        optimizer = self.optimizer
        dropped = optimizer.state == "dropped"
        return not (self.tensor_changes or self.config_changes or optimizer.changes or dropped)

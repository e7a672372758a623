"""From an opened Keras HDF5 file to the plan of its conversion. Nothing is written here."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from rnnconvert.containers.safe_h5 import is_of_h5py
from rnnconvert.errors import STUMBLES, UnreadableInputError
from rnnconvert.keras_models.config import port, recurrent_layers
from rnnconvert.keras_models.config.layer_order import changed_order
from rnnconvert.keras_models.config.port import Ported
from rnnconvert.keras_models.config.recurrent import (
    EXPLICIT_RECURRENT_ACTIVATION,
    default_recurrent_activation,
)
from rnnconvert.keras_models.config.training import is_new_generation, optimizer_class
from rnnconvert.keras_models.config.tree import layer_name, parse_version, root, walk
from rnnconvert.keras_models.files.h5 import HARD_SIGMOID_MARK, MODEL, KerasH5
from rnnconvert.keras_models.linear_sites import find_linear
from rnnconvert.keras_models.optimizer import (
    OptimizerState,
    Unresolved,
    in_order,
    merged_slots_agree,
    resolve_slots,
    slot_power,
)
from rnnconvert.keras_models.plan import (
    Edit,
    OptimizerPlan,
    Plan,
    Relay,
    Scale,
    Site,
    SiteChange,
    Tensor,
    TensorChange,
)
from rnnconvert.keras_models.sites import FoundSites, find_by_config, find_by_shapes
from rnnconvert.layouts import CELLS, BiasForm, find, gate_slices

HARD_SIGMOID_RATIO = 1.2
"""Keras 2's hard_sigmoid is clip(0.2x+0.5), Keras 3's clip(x/6+0.5): old(x) = new(1.2x)."""

KERAS3_H5_OPTIMIZER = (
    "Keras 3 restores no optimizer state from an .h5 file, not even from its own (fit then fails "
    "with 'Unknown variable'): use --to keras to carry the state over, or --target keras2 to keep "
    "it in the .h5 for Keras 2"
)


def make_plan(
    file: KerasH5, *, target: str = "keras3", optimizer: str = "convert", to: str = "h5"
) -> Plan:
    """Plan the conversion of an opened file.

    Args:
        file: the input.
        target: "keras3" or "keras2", where one file can't serve both.
        optimizer: "convert" or "drop".
        to: the output's container; it decides whether optimizer state can be kept.
    """
    if file.container != MODEL:
        return _plan_weights_only(file)
    config = file.model_config
    if config is None:
        return Plan(problems=("the file has weights but no model_config attribute",))
    with config_errors():
        return _plan_model(file, config, target, optimizer, to)


@contextmanager
def config_errors() -> Iterator[None]:
    """A config is other people's JSON: what our code stumbles over is the input's fault."""
    try:
        yield
    except STUMBLES as error:
        if is_of_h5py(error):
            raise  # the file is damaged, not the config
        raise UnreadableInputError(
            f"the model's config is not of the form that Keras writes ({error!r})"
        ) from error


def _plan_model(
    file: KerasH5, config: dict[str, Any], target: str, optimizer: str, to: str
) -> Plan:
    flavour = _hard_sigmoid_flavour(file)
    ported = port(config, file.training_config, file.keras_version, target, hard_sigmoid=flavour)
    found = find_by_config(file.groups, recurrent_layers(config))
    sites = tuple(
        _plan_site(with_default_activation(site, file.keras_version), flavour, target)
        for site in found.sites
    )
    scales = (flavour, target) == ("keras2", "keras3")
    linear = find_linear(file.groups, config) if scales else FoundSites()
    rescaled = tuple(_scaled_site(site) for site in linear.sites)
    problems = [*ported.problems, *found.problems, *linear.problems]
    order: list[str] | None = None
    misplaced: list[str] = []
    if not problems:
        order, misplaced = changed_order(config, ported.model)
    problems += misplaced
    scaled = any(isinstance(c.edit, Scale) for site in (*sites, *rescaled) for c in site.changes)
    points = list(ported.target_points)
    points += _hard_sigmoid_points((*sites, *rescaled), flavour, target)
    plan = Plan(
        sites=sites,
        rescaled=rescaled,
        model_config=ported.model if ported.model != config else None,
        training_config=ported.training,
        drop_training=file.training_config is not None and ported.training is None,
        layer_order=None if order is None else tuple(order),
        config_changes=ported.changes,
        attributes=((HARD_SIGMOID_MARK, target),) if scaled else (),
        warnings=(*ported.warnings, *found.warnings),
        problems=tuple(problems),
        target_points=tuple(points),
    )
    if problems or (plan.is_empty and optimizer == "convert" and to == "h5"):
        return replace(plan, optimizer=untouched_optimizer(file))
    return replace(plan, optimizer=_plan_optimizer(file, plan, ported, target, optimizer, to))


def _plan_weights_only(file: KerasH5) -> Plan:
    found = find_by_shapes(file.groups)
    sites = tuple(_plan_site(site, "", "") for site in found.sites)
    warnings = list(found.warnings)
    warnings += _arguments_to_give([s.site for s in sites], parse_version(file.keras_version))
    return Plan(sites=sites, warnings=tuple(warnings), problems=tuple(found.problems))


def _arguments_to_give(sites: list[Site], version: tuple[int, ...] | None) -> list[str]:
    """What the code that builds layers for a weights-only file must say: it is not in the file."""
    found = []
    plain = [site for site in sites if not site.is_cudnn and site.cell != "rnn_tanh"]
    before = [site.path for site in plain if site.cell == "gru_reset_before"]
    if before:
        found.append(
            f"{', '.join(before)}: the code that loads these weights must give GRU(..., "
            "reset_after=False), which is not Keras 3's default"
        )
    if plain and (version is None or version < EXPLICIT_RECURRENT_ACTIVATION):
        found.append(
            f"{', '.join(site.path for site in plain)}: where the code of Keras < 2.3 gave no "
            "recurrent_activation, or hard_sigmoid, it must now give recurrent_activation="
            "lambda x: keras.ops.clip(0.2 * x + 0.5, 0.0, 1.0); the hard_sigmoid of Keras 3 is "
            "another function"
        )
    return found


def _plan_site(site: Site, flavour: str, target: str) -> SiteChange:
    """What happens to one recurrent layer: relayed, rescaled, or left as it is."""
    if site.is_cudnn:
        return relay_site(site, "keras")
    if site.recurrent_activation == "hard_sigmoid" and (flavour, target) == ("keras2", "keras3"):
        return _scaled_site(site)
    return SiteChange(site, site.layout)


def _scaled_site(site: Site) -> SiteChange:
    """A layer with what goes into its hard_sigmoid scaled for Keras 3's function."""
    changes = []
    for tensor in site.tensors.values():
        whole = ((0, tensor.shape[-1]),)
        columns = whole if site.cell == "linear" else _sigmoid_columns(site)
        changes.append(TensorChange(tensor, tensor, Scale(columns, HARD_SIGMOID_RATIO)))
    return SiteChange(site, site.layout, tuple(changes))


def relay_site(site: Site, layout: str) -> SiteChange:
    """A layer with all its tensors relayed to another layout, "keras" or "keras-cudnn"."""
    changes = tuple(
        TensorChange(tensor, _relayed(site, kind, tensor, layout), _relay(site, kind, layout))
        for kind, tensor in site.tensors.items()
    )
    return SiteChange(site, layout, changes)


def _relay(site: Site, kind: str, layout: str, *, is_slot: bool = False) -> Relay:
    return Relay(kind, site.stored_as(site.layout), find(layout, site.cell), site.units, is_slot)


def _relayed(site: Site, kind: str, tensor: Tensor, layout: str) -> Tensor:
    """The tensor as it will be: only a bias changes its shape."""
    if kind != "bias":
        return tensor
    columns = len(CELLS[site.cell].gates) * site.units
    shapes = {
        BiasForm.MERGED: (columns,),
        BiasForm.TWO_ROWS: (2, columns),
        BiasForm.CONCATENATED: (2 * columns,),
    }
    return replace(tensor, shape=shapes[find(layout, site.cell).bias])


def _sigmoid_columns(site: Site) -> tuple[tuple[int, int], ...]:
    cell = "lstm" if site.cell == "conv_lstm" else site.cell
    slices = gate_slices(find("keras", cell), site.units)
    return tuple((slices[g].start, slices[g].stop) for g in CELLS[cell].sigmoid_gates)


# --- hard_sigmoid ---------------------------------------------------------------------------


def _hard_sigmoid_flavour(file: KerasH5) -> str:
    """Whose hard_sigmoid the file's weights were trained or made for."""
    if file.hard_sigmoid_mark:
        return file.hard_sigmoid_mark
    version = parse_version(file.keras_version)
    return "keras3" if version is not None and version[0] >= 3 else "keras2"


def with_default_activation(site: Site, keras_version: str | None) -> Site:
    """A config that does not name the recurrent activation means its Keras' default."""
    if site.recurrent_activation is not None:
        return site
    default = default_recurrent_activation(site.class_name, parse_version(keras_version))
    return replace(site, recurrent_activation=default)


def _hard_sigmoid_points(sites: tuple[SiteChange, ...], flavour: str, target: str) -> list[str]:
    paths = [
        s.site.path
        for s in sites
        if s.site.recurrent_activation == "hard_sigmoid" or s.site.cell == "linear"
    ]
    if not paths or flavour != "keras2":
        return []
    if target == "keras3":
        return [
            f"{path}: hard_sigmoid of Keras 2 kept, what goes into it scaled by 1.2 for Keras 3's "
            "function"
            for path in paths
        ]
    return [
        f"{path}: hard_sigmoid left as Keras 2 computes it; Keras 3's is another function"
        for path in paths
    ]


# --- optimizer ------------------------------------------------------------------------------


def untouched_optimizer(file: KerasH5) -> OptimizerPlan:
    """Nothing is written, so nothing happens to the state."""
    if not file.optimizer_tensors:
        return OptimizerPlan()
    return OptimizerPlan("converted", notes=("left as it is",))


def _plan_optimizer(
    file: KerasH5, plan: Plan, ported: Ported, target: str, optimizer: str, to: str
) -> OptimizerPlan:
    if to == "weights" or not file.optimizer_tensors:
        return OptimizerPlan()
    if optimizer == "drop":
        return OptimizerPlan("dropped", notes=("as asked for (--optimizer drop)",))
    if file.training_config is None or ported.training is None:
        return OptimizerPlan("dropped", notes=("there is no training config to go with it",))
    if target == "keras3" and to == "h5":
        return OptimizerPlan("dropped", notes=(KERAS3_H5_OPTIMIZER,))
    name = optimizer_class(file.training_config)
    trainable = trainable_tensors(file)
    try:
        state = resolve_slots(file.optimizer_tensors, trainable, name)
        sites = (*plan.sites, *plan.rescaled)
        changes = [c for site in sites for c in _slot_changes(file, site, state, name)]
    except Unresolved as error:
        return OptimizerPlan("dropped", notes=(f"its variables could not be told apart: {error}",))
    except _SlotsDisagree as error:
        return OptimizerPlan("dropped", notes=(str(error),))
    notes = []
    if any(isinstance(c.edit, Relay) and c.edit.merges for c in changes):
        notes.append(
            "a merged bias keeps the slot of its halves, which agree; it moves by half the step "
            "that the two halves moved by together"
        )
    if any(isinstance(c.edit, Scale) for c in changes):
        notes.append("slots of rescaled gates are rescaled; training is resumable, not identical")
    interleaved = to == "keras" or is_new_generation(file.training_config)
    tensors = in_order(state, trainable, interleaved=interleaved)
    order = [tensor.path.removeprefix("optimizer_weights/") for tensor in tensors]
    counter = None
    if state.iteration is None:
        counter = "iterations:0"
        order.insert(0, counter)
        notes.append("Keras kept no step counter for this optimizer then; it starts at 0")
    return OptimizerPlan("converted", tuple(order), counter, tuple(changes), tuple(notes))


class _SlotsDisagree(Exception):
    """The slots of a merged bias' two halves differ, so no slot of the sum is right."""


def _slot_changes(
    file: KerasH5, change: SiteChange, state: OptimizerState, optimizer: str
) -> list[TensorChange]:
    site = change.site
    found = []
    for kind, weight in site.tensors.items():
        edit = next((c.edit for c in change.changes if c.source.path == weight.path), None)
        for slot in state.of(weight) if edit is not None else []:
            assert edit is not None
            slot_edit = _slot_edit(change, kind, edit, slot.kind, optimizer)
            target = slot.tensor
            if isinstance(slot_edit, Relay):
                target = _relayed(site, kind, slot.tensor, change.target_layout)
                if slot_edit.merges and not merged_slots_agree(file.read(slot.tensor.path)):
                    raise _SlotsDisagree(
                        f"the two halves of {slot.tensor.path} disagree, so their merged bias "
                        "has no exact slot"
                    )
            if slot_edit is not None:
                found.append(TensorChange(slot.tensor, target, slot_edit))
    return found


def _slot_edit(change: SiteChange, kind: str, edit: Edit, slot: str, optimizer: str) -> Edit | None:
    """The edit of a slot that follows from its weight's."""
    if isinstance(edit, Relay):
        return _relay(change.site, kind, change.target_layout, is_slot=True)
    power = slot_power(slot, optimizer)
    return Scale(edit.columns, edit.factor**-power) if power else None


def trainable_tensors(file: KerasH5) -> list[Tensor]:
    """The model's trainable weights in the model's order."""
    frozen = set()
    for node in walk(root(file.model_config or {})):
        if node.config.get("trainable") is False and node.role != "model":
            frozen |= {layer_name(below.entry) for below in walk(node)}
    found = []
    for group, tensors in file.groups.items():
        for tensor in tensors:
            parts = {group, *tensor.name.split("/")[:-1]}
            statistics = tensor.name.split("/")[-1] in ("moving_mean", "moving_variance")
            if not statistics and not parts & frozen:
                found.append(tensor)
    return found


def hard_sigmoid_flavours(source: KerasH5, written: KerasH5) -> tuple[str, str]:
    """Whose hard_sigmoid the weights of source and written file are made for."""
    return _hard_sigmoid_flavour(source), _hard_sigmoid_flavour(written)

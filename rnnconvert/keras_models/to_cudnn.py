"""From an opened Keras HDF5 file to the plan of the inverse: LSTM and GRU to CuDNN layers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from rnnconvert.errors import NotConvertibleError
from rnnconvert.keras_models.config import port_to_cudnn, recurrent_layers
from rnnconvert.keras_models.config.inverse import CUDNN_OF
from rnnconvert.keras_models.files.h5 import MODEL, KerasH5
from rnnconvert.keras_models.plan import OptimizerPlan, Plan, Site, SiteChange
from rnnconvert.keras_models.planning import (
    config_errors,
    relay_site,
    untouched_optimizer,
    with_default_activation,
)
from rnnconvert.keras_models.sites import find_by_config, find_by_shapes
from rnnconvert.layouts import require_same_function

OPTIMIZER_DROPPED = (
    "a CuDNN layer trains on from a fresh optimizer: the state was made for its plain layer"
)
WEIGHTS_ONLY = (
    "a weights-only file does not say what its LSTM and GRU layers compute: as CuDNN layers they "
    "compute tanh and sigmoid, without masks and dropout; convert the whole model to be sure"
)


def make_inverse_plan(file: KerasH5, *, optimizer: str = "convert") -> Plan:
    """Plan the conversion of an opened file to CuDNN layers.

    Args:
        file: the input.
        optimizer: "convert" or "drop"; the state is dropped in any case, the note says why.
    """
    if file.container != MODEL:
        return _plan_weights_only(file)
    config = file.model_config
    if config is None:
        return Plan(problems=("the file has weights but no model_config attribute",))
    with config_errors():
        return _plan_model(file, config, optimizer)


def _plan_model(file: KerasH5, config: dict[str, Any], optimizer: str) -> Plan:
    ported = port_to_cudnn(config, file.training_config, file.keras_version)
    found = find_by_config(file.groups, recurrent_layers(config))
    sites = tuple(
        _plan_site(with_default_activation(site, file.keras_version), site.class_name in CUDNN_OF)
        for site in found.sites
    )
    problems = [*ported.problems, *found.problems]
    if not problems:  # the config is fine, and the weights?
        problems += [
            f"{site.path}: {reason}"
            for site in found.sites
            if site.class_name in CUDNN_OF and (reason := _reason_against(site))
        ]
    if ported.changes and file.hard_sigmoid_mark == "keras3":
        problems += _rescaled(sites)
    plan = Plan(
        sites=sites,
        model_config=ported.model if ported.model != config else None,
        training_config=ported.training if ported.training != file.training_config else None,
        config_changes=ported.changes,
        warnings=(*ported.warnings, *found.warnings),
        problems=tuple(problems),
    )
    if problems or plan.is_empty or not file.optimizer_tensors:
        return replace(plan, optimizer=untouched_optimizer(file))
    note = "as asked for (--optimizer drop)" if optimizer == "drop" else OPTIMIZER_DROPPED
    return replace(plan, optimizer=OptimizerPlan("dropped", notes=(note,)))


def _rescaled(sites: tuple[SiteChange, ...]) -> list[str]:
    """Layers beside the LSTM and GRU layers that were made for Keras 3's hard_sigmoid."""
    return [
        f"{change.site.path}: rescaled for Keras 3's hard_sigmoid (--target keras3), which is "
        "another function in the Keras of the CuDNN layers; start from a file of --target keras2"
        for change in sites
        if change.site.recurrent_activation == "hard_sigmoid"
        and change.site.class_name not in CUDNN_OF
    ]


def _plan_site(site: Site, wanted: bool) -> SiteChange:
    """What happens to one layer. One that has no CuDNN form is a problem of the config already."""
    if wanted and site.cell in ("lstm", "gru") and "bias" in site.tensors:
        return relay_site(site, "keras-cudnn")
    return SiteChange(site, site.layout)


def _plan_weights_only(file: KerasH5) -> Plan:
    found = find_by_shapes(file.groups)
    problems = list(found.problems)
    problems += [
        f"{site.path}: {reason}" for site in found.sites if (reason := _reason_against(site))
    ]
    sites = tuple(_plan_site(site, not site.is_cudnn) for site in found.sites)
    plan = Plan(sites=sites, warnings=tuple(found.warnings), problems=tuple(problems))
    if plan.tensor_changes:
        plan = replace(plan, warnings=(*plan.warnings, WEIGHTS_ONLY))
    return plan


def _reason_against(site: Site) -> str | None:
    """Why the weights of one layer can't be those of a CuDNN layer."""
    if site.cell == "gru_reset_before":
        try:
            require_same_function(site.cell, "gru")
        except NotConvertibleError as error:
            return error.message
    if site.cell in ("lstm", "gru") and "bias" not in site.tensors:
        return "no bias, and a CuDNN layer always has biases"
    return None

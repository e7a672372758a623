"""A whole config, ported: the entry point of this package."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field

from rnnconvert.keras_models.config.changes import Changes, ConfigChange
from rnnconvert.keras_models.config.channels_first import port_channels_first
from rnnconvert.keras_models.config.first_versions import name_first_versions
from rnnconvert.keras_models.config.hard_sigmoid import port_hard_sigmoid
from rnnconvert.keras_models.config.lambdas import rewrite_for_keras3
from rnnconvert.keras_models.config.layer_forms import port_forms
from rnnconvert.keras_models.config.merge_masks import port_merge_masks
from rnnconvert.keras_models.config.nesting import repair_models_in_sequential
from rnnconvert.keras_models.config.operations import name_operations
from rnnconvert.keras_models.config.recurrent import RECURRENT_CLASSES
from rnnconvert.keras_models.config.repairs import name_keras2_hard_sigmoid, repair_layer
from rnnconvert.keras_models.config.structure import repair_functional, repair_sequential
from rnnconvert.keras_models.config.tensorflow_calls import keep_calls, translate_calls
from rnnconvert.keras_models.config.training import output_names, translate
from rnnconvert.keras_models.config.training_optimizer import Untranslatable
from rnnconvert.keras_models.config.tree import Config, parse_version, root, show_path, walk

TARGETS = ("keras3", "keras2")


@dataclass(frozen=True)
class Ported:
    """The rewritten config, and what was done.

    Attributes:
        model: the model config.
        training: the training config; None where there was none or it can't be kept.
        changes: every change, in order.
        warnings, problems: sentences; any problem means that nothing may be written.
        target_points: what one file can't serve both Keras 2 and 3 in, and which way was taken.
    """

    model: Config
    training: Config | None
    changes: tuple[ConfigChange, ...] = ()
    warnings: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
    target_points: tuple[str, ...] = field(default=())


def port(
    model: Config,
    training: Config | None,
    keras_version: str | None,
    target: str = "keras3",
    *,
    original: bool = False,
    hard_sigmoid: str = "keras2",
    keep_tensorflow_calls: bool = False,
) -> Ported:
    """Rewrite a model's config so that Keras 3 and Keras 2 load it, CuDNN layers converted.

    Args:
        model: the file's `model_config`; not changed.
        training: its `training_config`, or None.
        keras_version: of the writer, e.g. "2.2.4-tf".
        target: "keras3" or "keras2", where one form can't serve both.
        original: keep what the model is: CuDNN layers stay, and Keras 2's hard_sigmoid gets a name
            of its own. Only `rnnconvert.keras` loads such a config.
        hard_sigmoid: whose hard_sigmoid the weights are made for, "keras2" or "keras3".
        keep_tensorflow_calls: TensorFlow calls become layers that ask TensorFlow itself, and not
            operations of Keras 3; read only with `original`.
    """
    if target not in TARGETS:
        raise ValueError(f"unknown target {target!r}; known: {', '.join(TARGETS)}")
    version = parse_version(keras_version)
    changes = Changes()
    model = copy.deepcopy(model)
    if version is None or version[0] < 3:
        if target == "keras3":
            replace_calls = keep_calls if original and keep_tensorflow_calls else translate_calls
            for node in walk(root(model)):
                port_merge_masks(node, changes)
            for node in walk(root(model)):
                replace_calls(node, changes)
            for node in walk(root(model)):
                port_forms(node, keras_version, changes)
        _repair(model, version, target, original, changes)
        if hard_sigmoid == "keras2" and target == "keras3":
            write = name_keras2_hard_sigmoid if original else port_hard_sigmoid
            for node in list(walk(root(model))):
                write(node, changes)
    else:
        name_operations(model, changes)
    training = _port_training(training, target, keras_version, model, changes)
    return Ported(
        model,
        training,
        tuple(changes.changes),
        tuple(changes.warnings),
        tuple(changes.problems),
        tuple(changes.target_points),
    )


def _repair(
    model: Config, version: tuple[int, ...] | None, target: str, original: bool, changes: Changes
) -> None:
    for node in walk(root(model)):
        repair_sequential(node, changes)
    if target == "keras3":  # the innermost first: it may become functional, and its parent with it
        for node in reversed(list(walk(root(model)))):
            repair_models_in_sequential(node, changes)
        for node in list(walk(root(model))):
            port_channels_first(node, changes)
    for node in walk(root(model)):
        repair_layer(node, version, target, changes, original=original)
    for node in walk(root(model)):
        repair_functional(node, target, changes)
    if target == "keras3":
        for node in walk(root(model)):
            rewrite_for_keras3(node, changes)
    _refuse_other_time_major(model, target, changes)
    if target == "keras3":
        name_first_versions(model, changes)


def _refuse_other_time_major(model: Config, target: str, changes: Changes) -> None:
    for node in walk(root(model)):
        if node.class_name in RECURRENT_CLASSES and node.config.get("time_major") is True:
            if target == "keras3":
                changes.problem(
                    f"{show_path(node.path)}: time_major=True outside a functional model has no "
                    "form in Keras 3; use --target keras2"
                )
            else:
                changes.point(f"{show_path(node.path)}: time_major=True, which only Keras 2 reads")


def _port_training(
    training: Config | None,
    target: str,
    keras_version: str | None,
    model: Config,
    changes: Changes,
) -> Config | None:
    if training is None:
        return None
    try:
        translated, left = translate(
            training, target, keras_version=keras_version, outputs=output_names(model)
        )
    except (Untranslatable, AttributeError, KeyError, TypeError) as error:
        changes.warn(
            f"training config left out, so that load_model(path) works: {error}; "
            "call model.compile(...) to train"
        )
        changes.changes.append(ConfigChange("training_config", "*", "present", "left out"))
        return None
    for text in left:
        changes.warn(f"left out of the training config: {text}")
    if translated != training:
        for key in sorted({*training, *translated}):
            before, after = training.get(key), translated.get(key)
            if before != after:
                changes.changes.append(ConfigChange("training_config", key, before, after))
    return translated

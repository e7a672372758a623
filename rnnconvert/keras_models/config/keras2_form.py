"""Undoing the forms that only Keras 3 reads, so that an old Keras reads a config again.

`structure`, `repairs` and `training` make these forms; a file that rnnconvert wrote holds them. A
config that Keras 2 itself wrote is left as it is.
"""

from __future__ import annotations

import copy
from typing import Any

from rnnconvert.keras_models.config.changes import Changes, ConfigChange
from rnnconvert.keras_models.config.structure import (
    STATEFUL_CALLS,
    Reference,
    calls,
    each_reference,
    is_functional,
    member_names,
)
from rnnconvert.keras_models.config.tree import (
    Config,
    Node,
    is_operation,
    layer_name,
    members,
    parse_version,
    root,
    show_path,
    walk,
)

_FIRST_OF_TENSORFLOW = (2, 4, 0)
"""Keras 2.4 was TensorFlow's own; before it there were two, told apart by the version's "-tf"."""


def restore_model(model: Config, keras_version: str | None, changes: Changes) -> None:
    """Bring a model config, in place, to the form that the Keras that first wrote it reads."""
    for node in walk(root(model)):
        _refuse_operation(node, changes)
        if "input_layers" in node.config and "output_layers" in node.config:
            _positional_states(node, changes)
            _list_single_output(node, changes)
            _renumber_nested_models(node, changes)
        if is_multi_backend(keras_version, below=(2, 3, 0)):
            _old_distributions(node, changes)


def restore_training(
    training: Config | None, keras_version: str | None, changes: Changes
) -> Config | None:
    """A training config with the keys that old Keras versions insist on; None stays None."""
    optimizer = (training or {}).get("optimizer_config")
    if training is None or not isinstance(optimizer, dict):
        return training
    restored = copy.deepcopy(training)
    version = parse_version(keras_version)
    if version is not None and version < _FIRST_OF_TENSORFLOW:
        restored.setdefault("sample_weight_mode", None)
    if is_multi_backend(keras_version, below=_FIRST_OF_TENSORFLOW):
        name = "lr" if is_multi_backend(keras_version, below=(2, 3, 0)) else "learning_rate"
        _old_learning_rate(restored["optimizer_config"]["config"], name)
    for key in sorted({*training, *restored}):
        before, after = training.get(key), restored.get(key)
        if before != after:
            changes.changes.append(ConfigChange("training_config", key, before, after))
    return restored


def is_multi_backend(keras_version: str | None, *, below: tuple[int, ...]) -> bool:
    """Whether it was written by the Keras that is no part of TensorFlow, older than `below`."""
    version = parse_version(keras_version)
    return version is not None and version < below and "-tf" not in str(keras_version)


def _refuse_operation(node: Node, changes: Changes) -> None:
    name = node.class_name
    if is_operation(node.entry):
        changes.problem(
            f"{show_path(node.path)}: {name}, an operation of Keras 3, which the old Keras of the "
            "CuDNN layers does not have"
        )


def _positional_states(node: Node, changes: Changes) -> None:
    """A call with `initial_state=[h, c]` becomes `[[x], [h], [c]]`."""
    for entry in members(node.entry):
        nodes = entry.get("inbound_nodes")
        if entry.get("class_name") not in STATEFUL_CALLS or not isinstance(nodes, list):
            continue
        for index, call in enumerate(nodes):
            if not isinstance(call, dict):
                continue
            keywords = {key: _references(value) for key, value in call["kwargs"].items()}
            states = keywords.pop("initial_state", [])
            nodes[index] = [
                [*_references(call["args"][0]), keywords],
                *([*state, {}] for state in states),
            ]
            path = show_path((*node.path, layer_name(entry)))
            changes.changes.append(
                ConfigChange(path, "inbound_nodes", "initial_state=", "positional initial state")
            )


def _references(value: Any) -> Any:
    """Keras 3's tensors as [layer name, node index, tensor index]."""
    if isinstance(value, dict) and value.get("class_name") == "__keras_tensor__":
        return list(value["config"]["keras_history"])
    if isinstance(value, list):
        return [_references(item) for item in value]
    return value


def _list_single_output(node: Node, changes: Changes) -> None:
    """The output of a model inside TimeDistributed, as a list of one."""
    outputs = node.config["output_layers"]
    if node.role == "wrapped" and outputs and isinstance(outputs[0], str):
        changes.put(show_path(node.path), node.config, "output_layers", [outputs])


def _renumber_nested_models(node: Node, changes: Changes) -> None:
    """The first call of a nested model as its node 1: Keras 2 counts the model's own as node 0.

    But not of a Sequential that knew no input when it was nested: it has no own node.
    """
    names = member_names(node.config)
    for entry in members(node.entry):
        sequential = entry.get("class_name") == "Sequential"
        if sequential and not _knows_its_input(entry):
            continue
        if not sequential and not is_functional(entry):
            continue
        name = str(entry.get("name") or layer_name(entry))
        found: list[Reference] = []
        for connection in (*calls(node.config), node.config["output_layers"]):
            each_reference(connection, names, found.append)
        found = [reference for reference in found if reference[0] == name]
        if not found or min(reference[1] for reference in found):
            continue
        for reference in found:
            reference[1] += 1
        path = show_path((*node.path, name))
        changes.changes.append(ConfigChange(path, "node index", 0, 1))


def _knows_its_input(entry: Config) -> bool:
    layers = members(entry)
    return bool(layers) and (
        layers[0].get("class_name") == "InputLayer" or "batch_input_shape" in layers[0]["config"]
    )


def _old_distributions(node: Node, changes: Changes) -> None:
    """Keras < 2.3 calls the truncated normal distribution "normal"."""
    for key, value in node.config.items():
        inner = value.get("config") if isinstance(value, dict) else None
        if not key.endswith("_initializer") or not isinstance(inner, dict):
            continue
        if inner.get("distribution") == "truncated_normal":
            changes.put(f"{show_path(node.path)}.{key}", inner, "distribution", "normal")


def _old_learning_rate(config: Config, name: str) -> None:
    """A schedule that stands for Keras' `decay` as that again, and the rate by its old name."""
    if "lr" in config:
        return
    rate = config.pop("learning_rate", None)
    schedule = rate.get("config") if isinstance(rate, dict) else None
    if isinstance(schedule, dict):
        config["decay"] = schedule.get("decay_rate")
        rate = schedule.get("initial_learning_rate")
    if rate is not None:
        config[name] = rate

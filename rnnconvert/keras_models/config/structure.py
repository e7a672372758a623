"""Repairs of models as a whole: how their layers are listed and connected."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rnnconvert.keras_models.config.changes import ABSENT, Changes, ConfigChange
from rnnconvert.keras_models.config.recurrent import RECURRENT_CLASSES
from rnnconvert.keras_models.config.tree import Config, Node, layer_name, members, show_path

STATEFUL_CALLS = (*RECURRENT_CLASSES, "RNN", "Bidirectional")
Reference = list[Any]  # [layer name, node index, tensor index]


def repair_sequential(node: Node, changes: Changes) -> None:
    """A Sequential as a dict with a name, and with an InputLayer where an input shape is known."""
    if node.class_name != "Sequential":
        return
    path = show_path(node.path)
    config = node.entry.get("config")
    if isinstance(config, list):
        name = node.entry.get("name") or "sequential"
        node.entry["config"] = {"name": name, "layers": config}
        changes.changes.append(ConfigChange(path, "config", "list", "dict with name and layers"))
    elif "name" not in node.config:
        changes.put(path, node.config, "name", node.entry.get("name") or "sequential")
    layers = node.config["layers"]
    if not layers or layers[0].get("class_name") == "InputLayer":
        return
    first = layers[0]
    shape, dtype = _input_of(first)
    if shape is None:
        return
    new = {
        "class_name": "InputLayer",
        "config": {
            "batch_input_shape": shape,
            "dtype": dtype,
            "sparse": False,
            "name": f"{layer_name(first)}_input",
        },
    }
    layers.insert(0, new)
    changes.changes.append(
        ConfigChange(path, "layers[0]", layer_name(first), f"InputLayer {shape}")
    )


def repair_functional(node: Node, target: str, changes: Changes) -> None:
    """Connections of a functional model that Keras 3 reads otherwise than Keras 2.

    Three things have no form that both read: initial states given as further inputs, the node
    index of a nested model (1 in Keras 2, 0 in Keras 3), and `time_major`. There `target`
    decides.
    """
    config = node.config
    if "input_layers" not in config or "output_layers" not in config:
        return
    if target == "keras2":
        _note_keras2_points(node, changes)
        return
    _renumber_nested_models(node, changes)
    _unlist_single_output(node, changes)
    _transpose_time_major(node, changes)
    _name_initial_states(node, changes)


def _input_of(entry: Config) -> tuple[list[Any] | None, str]:
    """Batch shape and dtype of a first layer that carries its own input shape."""
    config = entry.get("config")
    if not isinstance(config, dict):
        return None, "float32"
    shape = config.get("batch_input_shape")
    dtype = config.get("dtype")
    if shape is None and isinstance(config.get("layer"), dict):
        return _input_of(config["layer"])
    return shape, dtype if isinstance(dtype, str) and "_" not in dtype else "float32"


# --- references between layers --------------------------------------------------------------


def is_reference(value: Any, names: set[str]) -> bool:
    """Whether a config value is [layer name, node index, tensor index, ...]."""
    return (
        isinstance(value, list)
        and len(value) in (3, 4)
        and isinstance(value[0], str)
        and value[0] in names
        and isinstance(value[1], int)
        and isinstance(value[2], int)
    )


def each_reference(value: Any, names: set[str], visit: Callable[[Reference], None]) -> None:
    """Call `visit` with every reference inside a nested config value."""
    if is_reference(value, names):
        visit(value)
        for extra in value[3:]:
            each_reference(extra, names, visit)
    elif isinstance(value, dict):
        for item in value.values():
            each_reference(item, names, visit)
    elif isinstance(value, list):
        for item in value:
            each_reference(item, names, visit)


def calls(config: Config) -> list[Any]:
    return [layer.get("inbound_nodes", []) for layer in config["layers"]]


def _connections(config: Config) -> list[Any]:
    return [*calls(config), config["input_layers"], config["output_layers"]]


def is_functional(entry: Config) -> bool:
    config = entry.get("config")
    return isinstance(config, dict) and "output_layers" in config


def _unlist_single_output(node: Node, changes: Changes) -> None:
    """The output of a model inside TimeDistributed as itself, not as a list of one.

    Since Keras 3.4 a list is the structure of the output, which TimeDistributed can't handle. Up to
    3.3 a list is the only form, and TimeDistributed of a Sequential is not implemented.
    """
    outputs = node.config["output_layers"]
    if node.role != "wrapped" or len(outputs) not in (1, 3):
        return
    path = show_path(node.path)
    if isinstance(outputs[0], list):
        changes.put(path, node.config, "output_layers", outputs[0])
    changes.point(f"{path}: a functional model in a wrapper, which only Keras 3.4 and later read")


def member_names(config: Config) -> set[str]:
    return {str(layer.get("name") or layer_name(layer)) for layer in config["layers"]}


def _renumber_nested_models(node: Node, changes: Changes) -> None:
    """Keras 2 counts a nested model's own node as call 0, Keras 3 does not.

    Of a nested functional model Keras 3.3 and later do count it in `output_layers`, and only there.
    They read the index 0 as the last call, so 0 is right everywhere where there is one call; where
    there are more, the output goes through a layer that leaves it as it is.
    """
    config = node.config
    names = member_names(config)
    for entry in members(node.entry):
        sequential = entry.get("class_name") == "Sequential"
        if not sequential and not is_functional(entry):
            continue
        name = str(entry.get("name") or layer_name(entry))
        found: list[Reference] = []
        for connection in (*calls(config), config["output_layers"]):
            each_reference(connection, names, found.append)
        found = [reference for reference in found if reference[0] == name]
        base = min((reference[1] for reference in found), default=0)
        if base == 0:
            continue
        for reference in found:
            reference[1] -= base
        path = show_path((*node.path, name))
        changes.changes.append(ConfigChange(path, "node index", base, 0))
        changes.point(
            f"{path}: node index of a nested model, as only Keras 3 reads it (Keras 2 would load "
            "it forever)"
        )
        if not sequential and len(entry["inbound_nodes"]) > 1:
            _detach_outputs(node, name, changes)


def _detach_outputs(node: Node, name: str, changes: Changes) -> None:
    """The outputs of a nested model that are the model's own, each through a linear layer."""
    config = node.config
    outputs: list[Reference] = []
    each_reference(config["output_layers"], member_names(config), outputs.append)
    for reference in outputs:
        if reference[0] != name:
            continue
        added = "_".join(str(part) for part in (*reference[:3], "output"))
        if added not in member_names(config):
            config["layers"].append(
                {
                    "class_name": "Activation",
                    "config": {"name": added, "trainable": True, "activation": "linear"},
                    "name": added,
                    "inbound_nodes": [[[*reference[:3], {}]]],
                }
            )
            path = show_path((*node.path, added))
            changes.changes.append(ConfigChange(path, "class_name", ABSENT, "Activation"))
        reference[:3] = [added, 0, 0]


def _name_initial_states(node: Node, changes: Changes) -> None:
    """`[[x], [h], [c]]` becomes a call with `initial_state=[h, c]`: Keras 3's form of a node."""
    config = node.config
    names = member_names(config)
    for entry in members(node.entry):
        nodes = entry.get("inbound_nodes")
        if entry.get("class_name") not in STATEFUL_CALLS or not isinstance(nodes, list):
            continue
        path = show_path((*node.path, layer_name(entry)))
        for index, call in enumerate(nodes):
            if not isinstance(call, list) or not call:
                continue
            keywords = _without_constants(call[0], path, changes)
            states = [_keras_tensor(reference) for reference in call[1:]]
            if entry["config"].get("num_constants"):
                changes.problem(f"{path}: RNN constants have no form in Keras 3")
                continue
            if not states and not any(_holds_reference(v, names) for v in keywords.values()):
                continue
            keywords = {key: _to_tensors(value, names) for key, value in keywords.items()}
            if states:
                keywords["initial_state"] = states
            nodes[index] = {"args": [_keras_tensor(call[0])], "kwargs": keywords}
            changes.changes.append(
                ConfigChange(path, "inbound_nodes", "positional initial state", "initial_state=")
            )
            changes.point(f"{path}: initial states passed by name, which only Keras 3 reads")


def _without_constants(reference: Reference, path: str, changes: Changes) -> Config:
    """The keywords of a call; `constants`, which no layer of Keras 3 knows, left out where None."""
    keywords = dict(reference[3]) if len(reference) > 3 else {}
    if "constants" in keywords and keywords["constants"] is None:
        changes.drop(path, keywords, "constants")
        reference[3] = keywords
    return keywords


def _holds_reference(value: Any, names: set[str]) -> bool:
    found: list[Reference] = []
    each_reference(value, names, found.append)
    return bool(found)


def _to_tensors(value: Any, names: set[str]) -> Any:
    if is_reference(value, names):
        return _keras_tensor(value)
    if isinstance(value, list):
        return [_to_tensors(item, names) for item in value]
    return value


def _keras_tensor(reference: Reference) -> Config:
    """Keras 3's form of a reference. Shape and dtype are replaced by the real ones on loading."""
    return {
        "class_name": "__keras_tensor__",
        "config": {"shape": [None], "dtype": "float32", "keras_history": reference[:3]},
    }


def _transpose_time_major(node: Node, changes: Changes) -> None:
    """`time_major=True`, which Keras 3 dropped, as transpositions around a batch-major layer."""
    config = node.config
    layers = config["layers"]
    for entry in list(layers):
        inner = entry.get("config")
        if not isinstance(inner, dict) or inner.get("time_major") is not True:
            continue
        if entry["class_name"] not in RECURRENT_CLASSES:
            continue
        name = layer_name(entry)
        path = show_path((*node.path, name))
        added = []
        for index, call in enumerate(entry["inbound_nodes"]):
            before = f"{name}_to_batch_major_{index}"
            added.append(_transpose(before, call[0][:3]))
            call[0][:3] = [before, 0, 0]
            if inner.get("return_sequences"):
                after = f"{name}_to_time_major_{index}"
                redirect(config, [name, index, 0], [after, 0, 0])
                added.append(_transpose(after, [name, index, 0]))
        layers += added
        changes.drop(path, inner, "time_major")
        changes.point(f"{path}: time_major=True as transpositions, which only Keras 3 reads")


def redirect(config: Config, old: Reference, new: Reference) -> None:
    """Let everything that reads one tensor of a functional model read another instead."""

    def visit(reference: Reference) -> None:
        if reference[:3] == old:
            reference[:3] = new

    for connection in _connections(config):
        each_reference(connection, member_names(config), visit)


def _transpose(name: str, reference: Reference) -> Config:
    return {
        "module": "keras.src.ops.numpy",
        "class_name": "Transpose",
        "config": {"axes": [1, 0, 2]},
        "registered_name": "Transpose",
        "name": name,
        # A list: of a dict Keras 3.0 to 3.4 want that all it refers to is built already.
        "inbound_nodes": [[[*reference, {}]]],
    }


def _note_keras2_points(node: Node, changes: Changes) -> None:
    for entry in members(node.entry):
        path = show_path((*node.path, layer_name(entry)))
        nodes = entry.get("inbound_nodes") or []
        if entry.get("class_name") in STATEFUL_CALLS and any(
            isinstance(call, list) and len(call) > 1 for call in nodes
        ):
            changes.point(f"{path}: positional initial states left, which only Keras 2 reads")
        if entry.get("class_name") == "Sequential" or is_functional(entry):
            changes.point(f"{path}: node index of a nested model left as only Keras 2 reads it")

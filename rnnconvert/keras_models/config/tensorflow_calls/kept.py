"""TensorFlow calls kept as calls, for a layer that asks TensorFlow itself: for the proof."""

from __future__ import annotations

import json
from typing import Any

from rnnconvert.keras_models.config.changes import Changes
from rnnconvert.keras_models.config.tensorflow_calls.functions import FUNCTIONS
from rnnconvert.keras_models.config.tensorflow_calls.node_defs import as_function
from rnnconvert.keras_models.config.tensorflow_calls.reading import (
    CALL_CLASSES,
    SavedCall,
    dtype_of,
    function_name,
    read_calls,
)
from rnnconvert.keras_models.config.tensorflow_calls.rewiring import (
    FunctionalModel,
    join_entries,
    legal_name,
    redirected,
)
from rnnconvert.keras_models.config.tensorflow_calls.values import CallTensor, Refused, encode
from rnnconvert.keras_models.config.tree import Config, Node, show_path

CLASS = "TensorFlowCall"


def keep_calls(node: Node, changes: Changes) -> None:
    """Make every TensorFlow call of a functional model a `TensorFlowCall` layer, in place.

    Only calls of functions that have a translation are kept: nothing else is ever run.
    """
    model = FunctionalModel.of(node)
    if model is None:
        return
    for entry in model.called:
        for call in read_calls(entry, model.names):
            try:
                model.entries.append(_layer(call))
            except Refused as refused:
                changes.problem(
                    f"{show_path((*model.path, call.layer))}: {function_name(entry)} is not run: "
                    f"{refused}"
                )
            for index in model.used(call):
                model.values[call.layer, call.node, index] = CallTensor(legal_name(call), 0, index)
    for layer in model.entries:
        layer["inbound_nodes"] = redirected(layer["inbound_nodes"], layer["name"], model, changes)
    join_entries(model, changes)


def _layer(call: SavedCall) -> Config:
    """The layer's entry: its config holds the call, and its inputs are the tensors in it."""
    config = call.entry["config"]
    description: Config = {"function": function_name(call.entry)}
    if call.entry["class_name"] == "TensorFlowOpLayer":
        as_function(config, call.positional[0])  # raises where it is not known
        description |= {"node_def": config["node_def"], "constants": config.get("constants") or {}}
    elif call.entry["class_name"] not in CALL_CLASSES[1:3] or not is_known(description["function"]):
        raise Refused("not among the functions that rnnconvert knows")
    tensors: list[CallTensor] = []
    description |= {
        "positional": _numbered(call.positional, tensors),
        "keywords": _numbered(call.keywords, tensors),
    }
    name = legal_name(call)
    return {
        "class_name": CLASS,
        "config": {"name": name, "dtype": dtype_of(call.entry), "call": json.dumps(description)},
        "name": name,
        "inbound_nodes": [{"args": [encode(tensors)], "kwargs": {}}],
    }


def is_known(function: str) -> bool:
    """Whether a function of TensorFlow has a translation."""
    return plain_name(function) in FUNCTIONS


def plain_name(function: str) -> str:
    return function.removeprefix("compat.v1.").removeprefix("compat.v2.")


def _numbered(value: Any, tensors: list[CallTensor]) -> Any:
    """The arguments with a number in place of each tensor."""
    if isinstance(value, CallTensor):
        tensors.append(value)
        return {"tensor": len(tensors) - 1}
    if isinstance(value, list):
        return [_numbered(item, tensors) for item in value]
    if isinstance(value, dict):
        return {key: _numbered(item, tensors) for key, item in value.items()}
    return value

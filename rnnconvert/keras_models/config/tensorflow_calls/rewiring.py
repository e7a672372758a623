"""Putting operations of Keras 3 in the place of TensorFlow calls in a functional model."""

from __future__ import annotations

import inspect
from dataclasses import dataclass, field
from typing import Any

from rnnconvert.keras_models.config.changes import Changes, ConfigChange
from rnnconvert.keras_models.config.tensorflow_calls.functions import FUNCTIONS
from rnnconvert.keras_models.config.tensorflow_calls.node_defs import as_function
from rnnconvert.keras_models.config.tensorflow_calls.reading import (
    CALL_CLASSES,
    SavedCall,
    dtype_of,
    entry_name,
    function_name,
    read_calls,
    references,
)
from rnnconvert.keras_models.config.tensorflow_calls.values import CallTensor, Refused, holds
from rnnconvert.keras_models.config.tensorflow_calls.writer import Writer
from rnnconvert.keras_models.config.tree import Config, Node, show_path

_IGNORED = ("name",)


@dataclass
class FunctionalModel:
    """One functional model while its calls are replaced.

    Attributes:
        names: of its layers, old and new.
        called: the layers that are calls.
        values: what stands for an output (layer, node, index) of a call.
        entries: the operations written so far.
    """

    config: Config
    path: tuple[str, ...]
    names: set[str]
    called: list[Config]
    values: dict[tuple[str, int, int], Any] = field(default_factory=dict)
    entries: list[Config] = field(default_factory=list)

    @classmethod
    def of(cls, node: Node) -> FunctionalModel | None:
        """The model of a node; None where it has no TensorFlow calls."""
        config = node.config
        if "output_layers" not in config or not isinstance(config.get("layers"), list):
            return None
        names = {entry_name(entry) for entry in config["layers"]}
        called = [entry for entry in config["layers"] if entry.get("class_name") in CALL_CLASSES]
        return cls(config, node.path, names, called) if called else None

    def used(self, call: SavedCall) -> list[int]:
        """Which outputs of a call the model uses."""
        nodes = [layer.get("inbound_nodes", []) for layer in self.config["layers"]]
        found = references([*nodes, self.config["output_layers"]], self.names)
        mine = {index for layer, node, index in found if (layer, node) == (call.layer, call.node)}
        return sorted(mine)


def translate_calls(node: Node, changes: Changes) -> None:
    """Replace every TensorFlow call of a functional model, in place; others are left alone.

    A call that has no counterpart in Keras 3 is a problem, and the others are still translated.
    """
    model = FunctionalModel.of(node)
    if model is None:
        return
    waiting = [call for entry in model.called for call in read_calls(entry, model.names)]
    while waiting:
        inside = {(call.layer, call.node) for call in waiting}
        ready = [call for call in waiting if not inside & call.needs()] or waiting
        for call in ready:
            _replace(call, model, changes)
        waiting = [call for call in waiting if call not in ready]
    join_entries(model, changes)


def _replace(call: SavedCall, model: FunctionalModel, changes: Changes) -> None:
    """Translate one call; what its outputs are now goes into `model.values`."""
    path = show_path((*model.path, call.layer))
    function = function_name(call.entry)
    writer = Writer(legal_name(call), model.names, dtype_of(call.entry), set(model.used(call)))
    try:
        result = _translate(call, writer, model)
    except Refused as refused:
        problem = f"{path}: {function} has no counterpart in Keras 3 that rnnconvert knows"
        changes.problem(problem if str(refused) == function else f"{problem}: {refused}")
        return
    if isinstance(result, CallTensor):
        result = _named(call, result, writer, model)
    several = isinstance(result, list) and holds(result, CallTensor)
    outputs = dict(enumerate(result)) if several else result
    for index, value in (outputs if isinstance(outputs, dict) else {0: outputs}).items():
        model.values[call.layer, call.node, index] = value
    model.entries += writer.entries
    if writer.needs:
        version, why = writer.needs
        changes.point(f"{path}: needs Keras {version} or later, for {why}")
    made = [entry["class_name"] for entry in writer.entries]
    changes.changes.append(
        ConfigChange(path, "class_name", function, ", ".join(made) or "left out")
    )


def _translate(call: SavedCall, writer: Writer, model: FunctionalModel) -> Any:
    """The call's outputs: a tensor, a list or dict of them, or what is known of a shape."""
    positional = _resolve(call.positional, model)
    keywords = {
        key: _resolve(value, model) for key, value in call.keywords.items() if key not in _IGNORED
    }
    name = function_name(call.entry)
    if call.entry["class_name"] == "TensorFlowOpLayer":
        name, positional, keywords = as_function(call.entry["config"], positional[0])
    elif call.entry["class_name"] not in ("TFOpLambda", "SlicingOpLambda"):
        raise Refused(name)
    if name == "compat.v1.where":
        name = "select"
    translation = FUNCTIONS.get(name.removeprefix("compat.v1.").removeprefix("compat.v2."))
    if translation is None:
        raise Refused(name)
    try:
        bound = inspect.signature(translation).bind(writer, *positional, **keywords)
    except TypeError:
        bound = _without_none(translation, writer, positional, keywords)
    try:
        return translation(*bound.args, **bound.kwargs)
    except (TypeError, ValueError, IndexError, AttributeError) as error:
        raise Refused(f"its arguments are not those of {name} ({error})") from error


def _without_none(
    translation: Any, writer: Writer, positional: list[Any], keywords: dict[str, Any]
) -> inspect.BoundArguments:
    """The arguments again, without those that are None: not given."""
    given = {key: value for key, value in keywords.items() if value is not None}
    try:
        return inspect.signature(translation).bind(writer, *positional, **given)
    except TypeError as error:
        raise Refused(f"its arguments are not known here ({error})") from error


def _resolve(value: Any, model: FunctionalModel) -> Any:
    """An argument with what now stands for the outputs of other calls."""
    if isinstance(value, CallTensor):
        return model.values.get((value.layer, value.node, value.index), value)
    if isinstance(value, list):
        return [_resolve(item, model) for item in value]
    if isinstance(value, dict):
        return {key: _resolve(item, model) for key, item in value.items()}
    return value


def _named(
    call: SavedCall, result: CallTensor, writer: Writer, model: FunctionalModel
) -> CallTensor:
    """The result under the layer's name, so that the model's outputs keep theirs."""
    if not any(entry["name"] == result.layer for entry in writer.entries):
        return result  # an input, handed through
    is_output = (call.layer, call.node, 0) in references(model.config["output_layers"], model.names)
    return writer.rename_last(result, legal_name(call), is_output=is_output)


def legal_name(call: SavedCall) -> str:
    """The name of a call's layer, without what Keras 3 allows in no name."""
    name = call.layer.replace("/", ".")
    return f"{name}_{call.node}" if call.node else name


# --- the model around the calls -------------------------------------------------------------


def join_entries(model: FunctionalModel, changes: Changes) -> None:
    """The model with `entries` in the calls' places, every layer behind what it needs."""
    config = model.config
    gone = {entry_name(entry) for entry in model.called}
    rest = [entry for entry in config["layers"] if entry_name(entry) not in gone]
    for entry in rest:
        nodes = entry["inbound_nodes"]
        entry["inbound_nodes"] = redirected(nodes, entry_name(entry), model, changes)
    config["output_layers"] = redirected(config["output_layers"], "", model, changes)
    config["layers"] = behind_their_inputs([*rest, *model.entries])


def redirected(value: Any, where: str, model: FunctionalModel, changes: Changes) -> Any:
    """A config value that refers to what stands for the calls; `where` is for messages."""
    if isinstance(value, dict):
        return {key: redirected(item, where, model, changes) for key, item in value.items()}
    if not isinstance(value, list):
        return value
    if len(value) in (3, 4) and isinstance(value[0], str) and value[0] in model.names:
        stands = model.values.get((value[0], value[1], value[2]))
        extra = [redirected(item, where, model, changes) for item in value[3:]]
        if stands is None:
            return [*value[:3], *extra]
        if not isinstance(stands, CallTensor):
            place = show_path((*model.path, where)) if where else "an output of the model"
            changes.problem(
                f"{place}: takes the shape that {value[0]} computes, which has no counterpart in "
                "Keras 3 that rnnconvert knows"
            )
            return value
        return [stands.layer, stands.node, stands.index, *extra]
    return [redirected(item, where, model, changes) for item in value]


def behind_their_inputs(entries: list[Config]) -> list[Config]:
    """Every entry behind those that it needs: Keras before 3.7 reads operations once, in order."""
    names = {entry_name(entry) for entry in entries}
    waiting, ordered = list(entries), []
    done: set[str] = set()
    while waiting:
        ready = [entry for entry in waiting if _needs(entry, names) <= done] or waiting[:1]
        ordered += ready
        done |= {entry_name(entry) for entry in ready}
        waiting = [entry for entry in waiting if entry_name(entry) not in done]
    return ordered


def _needs(entry: Config, names: set[str]) -> set[str]:
    nodes = entry.get("inbound_nodes") or []
    return {layer for layer, _, _ in references(nodes, names)} - {entry_name(entry)}

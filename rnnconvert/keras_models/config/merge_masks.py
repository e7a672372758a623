"""Merge layers that get masks: Keras 3 merges the masks in another way than Keras 2.

In Keras 2 a step counts where every input with a mask says so. Keras 3 takes it where any says so
(since 3.4), loses the masks where one input has none, and lets some layers skip what is masked. So
a merge gets its inputs without masks, as Keras 2 merged them, and where a recurrent layer comes
after it, the mask of Keras 2 is made anew: from the words or values that the masks came from.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rnnconvert.keras_models.config.changes import Changes, ConfigChange
from rnnconvert.keras_models.config.masks import PASS_ON
from rnnconvert.keras_models.config.recurrent import CONV_CLASSES, RECURRENT_CLASSES
from rnnconvert.keras_models.config.structure import each_reference
from rnnconvert.keras_models.config.tensorflow_calls.reading import (
    CALL_CLASSES,
    dtype_of,
    entry_name,
)
from rnnconvert.keras_models.config.tensorflow_calls.rewiring import behind_their_inputs
from rnnconvert.keras_models.config.tensorflow_calls.values import CallTensor
from rnnconvert.keras_models.config.tensorflow_calls.writer import Writer
from rnnconvert.keras_models.config.tree import (
    Config,
    Node,
    children,
    is_operation,
    members,
    show_path,
)

_MERGES = ("Add", "Subtract", "Multiply", "Average", "Maximum", "Minimum", "Concatenate")
_SAME_IN_BOTH = ("Add", "Subtract", "Average")
"""Those whose numbers are the same in every Keras, and whose mask is where all inputs have one."""

_RECURRENT = (*(name for name in RECURRENT_CLASSES if name not in CONV_CLASSES), "RNN")
_MASK_USERS = (*_RECURRENT, "Bidirectional", "GlobalAveragePooling1D", "GlobalAvgPool1D")
"""Layers that skip masked steps: what stands there does not matter to them."""

_STEP_BY_STEP = PASS_ON - {"AdditiveAttention", "Attention", "MultiHeadAttention", "Softmax",
                           "Bidirectional", "TimeDistributed", "InputLayer", "Merge"}  # fmt: skip
"""Layers that pass a mask on and keep each step to itself."""

_MARK = -8192.0
"""Stands at masked steps until Masking finds it there; every floating dtype has this number."""

Source = tuple[str, CallTensor, float]  # "ids" or "values", of this tensor, other than this number
Mask = frozenset[Source]
"""A step counts where all sources say so; an empty one stands for no mask."""


class _Unknown(Exception):
    """A mask whose making can't be followed through the config; the text says where."""


@dataclass(frozen=True)
class _Merge:
    """One call of a merge layer that gets masks: those of its inputs, and who sees its output."""

    entry: Config
    node: int
    masks: tuple[Mask, ...]
    attach: bool


def port_merge_masks(node: Node, changes: Changes) -> None:
    """Give the merge layers of a functional model the masks that Keras 2 gave them.

    A merge whose masks or readers can't be told from the config is a problem.

    Args:
        node: changed in place; anything but a functional model is left alone.
        changes: collects what was done.
    """
    if "output_layers" not in node.config or not isinstance(node.config.get("layers"), list):
        return
    graph = _Graph(node)
    found: list[_Merge] = []
    for entry in members(node.entry):
        path = show_path((*node.path, entry_name(entry)))
        for place in range(len(graph.calls(entry)) if _is_merge(entry) else 0):
            try:
                merge = graph.merge(entry, place)
            except _Unknown as unknown:
                changes.problem(
                    f"{path}: {entry['class_name']} of inputs with masks, which Keras 3 merges in "
                    f"another way, and {unknown}"
                )
                continue
            if merge is not None:
                found.append(merge)
                what = "merged as Keras 2 does" if merge.attach else "left out, nothing uses them"
                changes.changes.append(ConfigChange(path, "masks", "of the inputs", what))
                changes.point(f"{path}: its masks as operations, which only Keras 3 reads")
    for merge in found:
        _rewrite(merge, graph)
    if found:
        node.config["layers"] = behind_their_inputs(node.config["layers"])


def _is_merge(entry: Config) -> bool:
    return entry.get("class_name") in _MERGES and not is_operation(entry)


class _Graph:
    """A functional model of Keras 2: who is called on what, and where masks come from."""

    def __init__(self, node: Node) -> None:
        self.config = node.config
        self.entries = {entry_name(entry): entry for entry in members(node.entry)}
        self.nodes = {entry_name(child.entry): child for child in children(node)}
        self.names = set(self.entries)
        self._indices: dict[str, int] = {}

    def calls(self, entry: Config) -> list[Any]:
        nodes = entry.get("inbound_nodes")
        return nodes if isinstance(nodes, list) else []

    def inputs(self, entry: Config, place: int) -> list[CallTensor]:
        """The tensors of one call, in order."""
        found: list[Any] = []
        calls = self.calls(entry)
        if place < len(calls):
            each_reference(calls[place], self.names, found.append)
        return [CallTensor(*reference[:3]) for reference in found]

    def merge(self, entry: Config, place: int) -> _Merge | None:
        """What there is to do for one call of a merge layer; None where Keras 3 does the same."""
        masks = tuple(self.mask(tensor, ()) for tensor in self.inputs(entry, place))
        if not any(masks):
            return None
        plain = entry["class_name"] in _SAME_IN_BOTH
        if plain and len(set(masks)) == 1:
            return None
        uses = self._uses(CallTensor(entry_name(entry), place, 0), set())
        if plain and uses == {"values"}:
            return None
        if uses == {"mask", "values"}:
            raise _Unknown("both layers that skip masked steps and others read its output")
        joins = entry["class_name"] == "Concatenate"
        if joins and "mask" in uses and entry["config"].get("axis", -1) not in (-1, 2):
            raise _Unknown("it joins other things than features")
        return _Merge(entry, place, masks, "mask" in uses)

    def mask(self, tensor: CallTensor, behind: tuple[CallTensor, ...]) -> Mask:
        """What says which steps of a tensor count.

        Raises:
            _Unknown: layers make or change it that are not known here.
        """
        entry = self.entries.get(tensor.layer)
        if entry is None or tensor in behind:
            raise _Unknown(f"{tensor.layer} can't be followed")
        node = self.nodes[tensor.layer]
        class_name, config = node.class_name, node.config
        place = tensor.node - self._first_call(tensor.layer)
        inputs = self.inputs(entry, place)
        if class_name == "InputLayer" or is_operation(entry) or class_name in CALL_CLASSES:
            return frozenset()
        if class_name == "Embedding":
            return frozenset({("ids", inputs[0], 0)} if config.get("mask_zero") else ())
        if class_name == "Masking":
            return frozenset({("values", inputs[0], float(config.get("mask_value", 0.0)))})
        incoming = [self.mask(one, (*behind, tensor)) for one in inputs]
        if class_name in _RECURRENT or class_name == "Bidirectional":
            layer = config.get("layer", {}).get("config", {}) if "layer" in config else config
            passes = layer.get("return_sequences") and tensor.index == 0
            return incoming[0] if passes else frozenset()
        if class_name in _MERGES:
            return frozenset().union(*incoming)
        if "layers" in config or class_name not in PASS_ON:
            return self._of_other(node, incoming)
        if class_name == "TimeDistributed" and _makes_masks(node):
            raise _Unknown(f"{tensor.layer} makes one for each step")
        return incoming[0] if incoming else frozenset()

    def _of_other(self, node: Node, incoming: list[Mask]) -> Mask:
        """The mask behind a nested model, or a layer that takes it away."""
        if "layers" not in node.config:
            return frozenset()
        if any(incoming) or _makes_masks(node):
            raise _Unknown(f"the model {node.path[-1]} before it gets or makes one")
        return frozenset()

    def _first_call(self, name: str) -> int:
        """Keras 2 counts the own node of a nested model as its call 0."""
        if name not in self._indices:
            found: list[Any] = []
            for entry in (*self.entries.values(), self.config):
                key = "output_layers" if entry is self.config else "inbound_nodes"
                each_reference(entry.get(key), self.names, found.append)
            of_it = [reference[1] for reference in found if reference[0] == name]
            nested = "layers" in self.nodes[name].config
            self._indices[name] = min(of_it) if nested and of_it else 0
        return self._indices[name]

    def _uses(self, tensor: CallTensor, seen: set[CallTensor]) -> set[str]:
        """Who reads a tensor: "mask" for layers that skip masked steps, "values" for others."""
        if tensor in seen:
            return set()
        seen.add(tensor)
        outputs: list[Any] = []
        each_reference(self.config["output_layers"], self.names, outputs.append)
        found = {"values"} if any(CallTensor(*one[:3]) == tensor for one in outputs) else set()
        for name, entry in self.entries.items():
            for place in range(len(self.calls(entry))):
                inputs = self.inputs(entry, place)
                if tensor in inputs:
                    found |= self._use(name, place, inputs.index(tensor), seen)
        return found

    def _use(self, name: str, place: int, argument: int, seen: set[CallTensor]) -> set[str]:
        node = self.nodes[name]
        class_name = node.class_name
        if is_operation(node.entry) or class_name in CALL_CLASSES:
            return {"values"}
        if class_name in _MASK_USERS:
            inner = node.config.get("layer", {}).get("class_name")
            if argument or (class_name == "Bidirectional" and inner not in _RECURRENT):
                raise _Unknown(f"{name} takes it as a state")
            return {"mask"}
        step_by_step = class_name in _STEP_BY_STEP and node.config.get("axis", -1) in (-1, 2, [2])
        inner = node.config.get("layer", {}).get("class_name")
        if step_by_step or (class_name == "TimeDistributed" and inner in _STEP_BY_STEP):
            return self._uses(CallTensor(name, place, 0), seen)
        if class_name in PASS_ON or "layers" in node.config or class_name in CONV_CLASSES:
            raise _Unknown(f"{name} ({class_name}) reads its output")
        return {"values"}


def _makes_masks(node: Node) -> bool:
    """Whether there is a layer at or below that makes a mask."""
    makes = node.class_name == "Masking" or bool(node.config.get("mask_zero"))
    return makes or any(_makes_masks(child) for child in children(node))


# --- writing --------------------------------------------------------------------------------


def _rewrite(merge: _Merge, graph: _Graph) -> None:
    """The merge on inputs without masks; behind it, where one is used, the mask of Keras 2."""
    name = entry_name(merge.entry)
    writer = Writer(f"{name}_{merge.node}", graph.names, dtype_of(merge.entry), set())
    references: list[Any] = []
    each_reference(graph.calls(merge.entry)[merge.node], graph.names, references.append)
    for reference, mask in zip(references, merge.masks, strict=True):
        if mask:
            bare = writer.op("Copy", CallTensor(*reference[:3]))
            reference[:3] = [bare.layer, bare.node, bare.index]
    readers = _readers(graph, [name, merge.node, 0]) if merge.attach else []
    if merge.attach:
        counts = _counts(writer, frozenset().union(*merge.masks))
        marked = writer.op("Where", counts, CallTensor(name, merge.node, 0), _MARK)
        masking = _masking(f"{name}_{merge.node}.masking", marked, merge.entry)
        for reader in readers:
            reader[:3] = [masking["name"], 0, 0]
        graph.config["layers"].append(masking)
    graph.config["layers"] += writer.entries


def _readers(graph: _Graph, reference: list[Any]) -> list[list[Any]]:
    found: list[Any] = []
    for entry in graph.config["layers"]:
        each_reference(entry.get("inbound_nodes"), graph.names, found.append)
    return [one for one in found if one[:3] == reference]


def _counts(writer: Writer, mask: Mask) -> CallTensor:
    """True where a step counts, with an axis for the features."""
    parts = []
    for kind, tensor, number in sorted(mask, key=str):
        part = writer.op("NotEqual", tensor, number)
        parts.append(writer.op("Any", part, axis=-1, keepdims=False) if kind == "values" else part)
    counts = parts[0]
    for part in parts[1:]:
        counts = writer.op("LogicalAnd", counts, part)
    return writer.op("ExpandDims", counts, axis=-1)


def _masking(name: str, tensor: CallTensor, entry: Config) -> Config:
    dtype = {"dtype": entry["config"]["dtype"]} if entry["config"].get("dtype") else {}
    return {
        "class_name": "Masking",
        "config": {"name": name, "trainable": True, **dtype, "mask_value": _MARK},
        "name": name,
        "inbound_nodes": [[[tensor.layer, tensor.node, tensor.index, {}]]],
    }

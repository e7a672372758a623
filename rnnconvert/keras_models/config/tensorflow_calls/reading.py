"""Reading the calls of TensorFlow functions that Keras 2 saved as layers of a functional model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rnnconvert.keras_models.config.structure import is_reference
from rnnconvert.keras_models.config.tensorflow_calls.values import CallTensor
from rnnconvert.keras_models.config.tree import Config, layer_name

CALL_CLASSES = (
    "TensorFlowOpLayer",  # TensorFlow 1.14 to 2.3: one op of a graph
    "TFOpLambda",  # from 2.4 on: a function
    "SlicingOpLambda",
    "ClassMethod",
    "InstanceMethod",
    "InstanceProperty",
)
_CONSTANT = "_CONSTANT_VALUE"


@dataclass(frozen=True)
class SavedCall:
    """One call of a TensorFlow function.

    Attributes:
        entry: the layer dict.
        layer, node: its name, and which of its calls this is.
        positional, keywords: its arguments; tensors stand in them as `Tensor`.
    """

    entry: Config
    layer: str
    node: int
    positional: list[Any]
    keywords: dict[str, Any]

    def needs(self) -> set[tuple[str, int]]:
        """Layer and call of every tensor among its arguments."""
        return {(t.layer, t.node) for t in _tensors([self.positional, self.keywords])}


def entry_name(entry: Config) -> str:
    """The name by which others refer to a layer: a TensorFlowOpLayer's config has another."""
    return str(entry.get("name") or layer_name(entry))


def function_name(entry: Config) -> str:
    """What is called, for example "math.multiply"; for a TensorFlowOpLayer the op's name."""
    config = entry.get("config") or {}
    if entry.get("class_name") == "TensorFlowOpLayer":
        node = config.get("node_def")
        return str(node.get("op")) if isinstance(node, dict) else "TensorFlowOpLayer"
    for key in ("function", "symbol", "attr_name", "method_name"):
        if isinstance(config.get(key), str):
            return str(config[key])
    parts = [config.get("cls_ref"), config.get("cls_symbol"), config.get("attr_name")]
    return ".".join(str(part) for part in parts if part) or str(entry.get("class_name"))


def dtype_of(entry: Config) -> str:
    """The dtype in which a call's constants of floating numbers are."""
    config = entry.get("config") or {}
    attributes = (config.get("node_def") or {}).get("attr") if "node_def" in config else {}
    declared = (attributes or {}).get("T", {}).get("type")
    dtype = {"DT_HALF": "float16", "DT_DOUBLE": "float64", "DT_FLOAT": "float32"}.get(declared)
    if dtype is None:
        dtype = config.get("dtype")
        if isinstance(dtype, dict):
            dtype = dtype.get("config", {}).get("name")
    dtype = str(dtype or "float32").removeprefix("mixed_")
    return dtype if dtype in ("float16", "bfloat16", "float32", "float64") else "float32"


def read_calls(entry: Config, names: set[str]) -> list[SavedCall]:
    """All calls of one layer.

    Args:
        entry: a layer dict whose class is one of CALL_CLASSES.
        names: of all layers of the model.
    """
    found = []
    for index, node in enumerate(entry.get("inbound_nodes") or []):
        if entry["class_name"] == "TensorFlowOpLayer":
            positional: list[Any] = [[_argument(reference, names) for reference in node]]
            keywords: dict[str, Any] = {}
        else:
            positional = [_argument(node, names)]
            keywords = _keywords(node)
        keywords = {key: _value(value, names) for key, value in keywords.items()}
        found.append(SavedCall(entry, entry_name(entry), index, positional, keywords))
    return found


def references(value: Any, names: set[str]) -> list[tuple[str, int, int]]:
    """All references inside a config value, of Keras 2's form and of Keras 3's."""
    if isinstance(value, dict):
        if value.get("class_name") == "__keras_tensor__":
            layer, node, index = value["config"]["keras_history"]
            return [(layer, node, index)]
        return [found for item in value.values() for found in references(item, names)]
    if not isinstance(value, list):
        return []
    if is_reference(value, names):
        return [(value[0], value[1], value[2]), *references(value[3:], names)]
    return [found for item in value for found in references(item, names)]


def _argument(node: Any, names: set[str]) -> Any:
    """The first argument of a call: [layer, node, index, keywords], or a list of such."""
    if not isinstance(node, list):
        return node
    if len(node) > 2 and node[0] == _CONSTANT and node[1] == -1:
        return node[2]
    if is_reference(node, names):
        return CallTensor(*node[:3])
    return [_argument(item, names) for item in node]


def _keywords(node: Any) -> dict[str, Any]:
    """The other arguments, which stand behind each tensor of the first."""
    if not isinstance(node, list) or not node:
        return {}
    if isinstance(node[0], str) and len(node) > 3 and isinstance(node[3], dict):
        return node[3]
    return _keywords(node[0])


def _value(value: Any, names: set[str]) -> Any:
    if is_reference(value, names):
        return CallTensor(*value[:3])
    if isinstance(value, list):
        if len(value) > 2 and value[0] == _CONSTANT and value[1] == -1:
            return value[2]
        return [_value(item, names) for item in value]
    if isinstance(value, dict):
        return {key: _value(item, names) for key, item in value.items()}
    return value


def _tensors(value: Any) -> list[CallTensor]:
    if isinstance(value, CallTensor):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    return [found for item in value for found in _tensors(item)] if isinstance(value, list) else []

"""The one place where graphs import TensorFlow, and what they need of its internals.

Importing this module takes seconds and half a gigabyte; import it where TensorFlow is to be used.
"""

from __future__ import annotations

import os
from typing import Any

from rnnconvert.errors import UsageError

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # its hints about processors help nobody here

try:
    import tensorflow as tf
    from tensorflow.core.framework import (
        attr_value_pb2,
        graph_pb2,
        node_def_pb2,
    )
    from tensorflow.core.protobuf import (
        control_flow_pb2,
        meta_graph_pb2,
        saved_model_pb2,
    )
    from tensorflow.python.framework import (
        op_def_registry,
    )
except ImportError as error:
    raise UsageError(
        "TensorFlow graphs need TensorFlow: pip install 'rnnconvert[tensorflow]'"
    ) from error

GraphDef = graph_pb2.GraphDef
AssetFileDef = meta_graph_pb2.AssetFileDef
MetaGraphDef = meta_graph_pb2.MetaGraphDef
NodeDef = node_def_pb2.NodeDef
SavedModel = saved_model_pb2.SavedModel
WhileContextDef = control_flow_pb2.WhileContextDef
CondContextDef = control_flow_pb2.CondContextDef
_AttrValue = attr_value_pb2.AttrValue

__all__ = [
    "AssetFileDef",
    "CondContextDef",
    "GraphDef",
    "MetaGraphDef",
    "NodeDef",
    "SavedModel",
    "WhileContextDef",
    "data_inputs",
    "declared_inputs",
    "input_types",
    "node_attribute",
    "op_def",
    "output_lengths",
    "strip_defaults",
    "tf",
]


def op_def(op: str) -> Any | None:
    """TensorFlow's OpDef of an op type, or None for an op that it does not know."""
    return op_def_registry.get(op)


def node_attribute(node: Any, name: str) -> Any:
    """Value of a node's attribute as its proto field holds it; the op's default where it is absent.

    None where there is no such attribute, or where it is not of the kind that the op declares.
    """
    definition = op_def(node.op)
    declared = next((a for a in definition.attr if a.name == name), None) if definition else None
    if name in node.attr:
        value = node.attr[name]
    elif declared is not None:
        value = declared.default_value
    else:
        return None
    field = value.WhichOneof("value")
    if field is None or (declared is not None and field != _field_of(declared.type)):
        return None
    content = getattr(value, field)
    return content.decode("utf-8", "replace") if isinstance(content, bytes) else content


def _field_of(kind: str) -> str:
    """The proto field that holds an attribute of the kind that an OpDef names."""
    short = {"string": "s", "int": "i", "float": "f", "bool": "b"}
    return "list" if kind.startswith("list(") else short.get(kind, kind)


def data_inputs(node: Any) -> list[str]:
    """The node's inputs without the control inputs."""
    return [reference for reference in node.input if not reference.startswith("^")]


def input_types(node: Any) -> list[int]:
    """DataType of each data input of a node whose op is known."""
    types: list[int] = []
    given = len(data_inputs(node))
    definition = op_def(node.op)
    for arg in definition.input_arg if definition else ():
        if arg.type_list_attr:
            listed = node_attribute(node, arg.type_list_attr)
            types += listed.type if listed is not None else ()
            continue
        kind = node_attribute(node, arg.type_attr) if arg.type_attr else arg.type
        types += [kind] * min(_length(arg, node), given - len(types))  # a file may state any number
    return types[:given]


def declared_inputs(node: Any) -> int:
    """How many data inputs a node of a known op must have."""
    definition = op_def(node.op)
    return sum(_length(arg, node) for arg in definition.input_arg) if definition else 0


def output_lengths(node: Any, definition: Any) -> list[tuple[str, int]]:
    """Each output argument of a node's op, and how many tensors it is."""
    return [(arg.name, _length(arg, node)) for arg in definition.output_arg]


def _length(arg: Any, node: Any) -> int:
    if arg.type_list_attr:
        types = node_attribute(node, arg.type_list_attr)
        return len(types.type) if types is not None else 0
    return int(node_attribute(node, arg.number_attr) or 0) if arg.number_attr else 1


def strip_defaults(node: Any) -> None:
    """Drop attributes that have their default value: an older TensorFlow may not know them."""
    definition = op_def(node.op)
    for declared in definition.attr if definition else ():
        present = declared.name in node.attr and declared.HasField("default_value")
        if present and node.attr[declared.name] == declared.default_value:
            del node.attr[declared.name]

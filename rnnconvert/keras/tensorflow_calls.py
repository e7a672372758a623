"""A layer that asks TensorFlow itself what a TensorFlow call of an old model computes.

It is the other side of the proof of `keras_models.config.tensorflow_calls`: nothing of those
translations is used here, only the list of the functions that may be run.
"""

from __future__ import annotations

import json
from typing import Any

import keras

from rnnconvert.keras_models.config.tensorflow_calls.kept import is_known, plain_name
from rnnconvert.keras_models.config.tensorflow_calls.node_defs import is_known_op


@keras.saving.register_keras_serializable(package="rnnconvert")
class TensorFlowCall(keras.layers.Layer):
    """One call of a function of TensorFlow, or one op of a graph.

    Args:
        call: JSON of `function`, `positional` and `keywords`, where {"tensor": i} is the i-th
            input; of an op `node_def` and `constants`, too.

    Raises:
        ValueError: the function is not among those that rnnconvert knows, or Keras does not run on
            TensorFlow.
    """

    def __init__(self, call: str, **kwargs: Any) -> None:
        super().__init__(autocast=False, **kwargs)
        if keras.backend.backend() != "tensorflow":
            raise ValueError("only Keras on TensorFlow runs a model's TensorFlow calls")
        self._call = json.loads(call)
        self._json = call
        is_node = "node_def" in self._call
        named = self._call["node_def"] or {} if is_node else self._call
        called = str(named.get("op" if is_node else "function"))
        if not (is_known_op if is_node else is_known)(called):
            raise ValueError(f"{called} is nothing that rnnconvert knows")

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "call": self._json}

    def call(self, tensors: Any) -> Any:
        """The function's result on a list of tensors."""
        wide = self.compute_dtype == "float64"
        if "node_def" in self._call:
            return _run_node(self._call, tensors, wide=wide)
        positional = _filled(self._call["positional"], tensors)
        keywords = _filled(self._call["keywords"], tensors)
        if wide and keywords.get("dtype") == "float32":
            keywords["dtype"] = "float64"
        return _function(self._call["function"])(*positional, **keywords)


def _function(name: str) -> Any:
    """The function of TensorFlow under the name in a Keras 2 file."""
    import tensorflow as tf

    if plain_name(name) == "__operators__.getitem":
        return lambda tensor, slice_spec: tensor[_key(slice_spec)]
    found: Any = tf.math if name.startswith("__operators__.") else tf
    for part in name.removeprefix("__operators__.").split("."):
        found = getattr(found, {"eq": "equal", "ne": "not_equal"}.get(part, part))
    return found


def _filled(value: Any, tensors: list[Any]) -> Any:
    if isinstance(value, dict) and set(value) == {"tensor"}:
        return tensors[value["tensor"]]
    if isinstance(value, dict):
        return {key: _filled(item, tensors) for key, item in value.items()}
    if isinstance(value, list):
        return [_filled(item, tensors) for item in value]
    return value


def _key(spec: Any) -> Any:
    """What stands between the brackets of a slice."""
    if isinstance(spec, list):
        return tuple(_key(part) for part in spec)
    if isinstance(spec, dict):
        if spec.get("class_name") == "__ellipsis__":
            return Ellipsis
        return slice(spec["start"], spec["stop"], spec["step"])
    return spec


# --- ops ------------------------------------------------------------------------------------


def _run_node(call: dict[str, Any], tensors: list[Any], *, wide: bool) -> Any:
    """Run one op, as it stands in the file, inside a graph of its own."""
    import tensorflow as tf

    node = json.loads(json.dumps(call["node_def"]))
    if wide:
        for value in node.get("attr", {}).values():
            if value.get("type") == "DT_FLOAT":
                value["type"] = "DT_DOUBLE"
    count = len(tensors) + len(call["constants"])
    node |= {"name": "op", "input": [f"input_{place}" for place in range(count)]}
    node.setdefault("attr", {})

    @tf.function(autograph=False)
    def run(*arrays: Any) -> Any:
        given = iter(arrays)
        inputs = {
            f"input_{place}": _constant(call["constants"][str(place)], node, place)
            if str(place) in call["constants"]
            else next(given)
            for place in range(count)
        }
        graph, definition = _graph_of(node)
        names = [f"op:{place}" for place in range(_output_count(definition, node))]
        return tf.import_graph_def(graph, input_map=inputs, return_elements=names)

    found = list(run(*tensors))
    return found[0] if len(found) == 1 else found


def _graph_of(node: dict[str, Any]) -> tuple[Any, Any]:
    from google.protobuf import json_format
    from tensorflow.core.framework import graph_pb2
    from tensorflow.python.framework import op_def_registry

    graph = graph_pb2.GraphDef()
    json_format.ParseDict(node, graph.node.add())
    return graph, op_def_registry.get(node["op"])


def _output_count(definition: Any, node: dict[str, Any]) -> int:
    """How many outputs an op has: some have as many as an attribute says."""
    count = 0
    for output in definition.output_arg:
        attribute = node["attr"].get(output.number_attr or output.type_list_attr, {})
        if output.number_attr:
            count += int(attribute["i"])
        elif output.type_list_attr:
            count += len(attribute["list"]["type"])
        else:
            count += 1
    return count


def _constant(value: Any, node: dict[str, Any], place: int) -> Any:
    """A constant among an op's inputs, in the dtype that the op wants there."""
    import tensorflow as tf

    _, definition = _graph_of(node)
    position = 0
    for argument in definition.input_arg:
        position += int(node["attr"].get(argument.number_attr, {}).get("i", 1))
        if place < position:
            declared = node["attr"].get(argument.type_attr, {}).get("type")
            defaults = {each.name: each.default_value.type for each in definition.attr}
            number = _number_of(declared) if declared else defaults.get(argument.type_attr)
            return tf.constant(value, tf.as_dtype(argument.type or number))
    return tf.constant(value)


def _number_of(name: str) -> int:
    from tensorflow.core.framework import types_pb2

    return int(types_pb2.DataType.Value(name))

"""A graph whose cuDNN ops are computed by `reference.py`: to be run beside the lowered one.

Each op becomes a PyFunc of the same name, which calls Python in this process. Such a graph can be
run here, and nowhere else.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from rnnconvert.graphs import ops
from rnnconvert.graphs.framework import data_inputs, node_attribute, tf
from rnnconvert.graphs.verify import reference

Compute = Callable[..., Sequence[Any]]
Record = Callable[[str, str, Any], None]
"""Is told the function ("" for the main graph), the node and the parameters of an op that runs."""


class ReferenceGraphs:
    """Makes reference graphs; they can be run as long as this object lives."""

    def __init__(self) -> None:
        self._graphs: list[Any] = []

    def replace_ops(
        self, graph_def: Any, record: Record | None = None, kinds: frozenset[str] = ops.ALL
    ) -> int:
        """Replace every cuDNN op of a GraphDef and its functions, in place; how many there were.

        Args:
            graph_def: is changed.
            record: is called whenever a forward op runs.
            kinds: ops to replace.
        """
        count = 0
        bodies = [("", graph_def.node, None)]
        bodies += [(f.signature.name, f.node_def, f.ret) for f in graph_def.library.function]
        for function, nodes, results in bodies:
            found = [node for node in nodes if node.op in kinds]
            count += len(found)
            renamed: dict[str, str] = {}
            for node in found:
                outputs = _outputs(node)
                renamed.update(
                    (f"{node.name}:{name}", f"{node.name}:output:{number}")
                    for number, name in enumerate(outputs)
                )
                self._become_function(node, len(outputs), _compute(node, function, record))
            if results is not None and found:
                _rename(nodes, results, renamed)
        return count

    def _become_function(self, node: Any, outputs: int, compute: Compute) -> None:
        types = _output_types(node, outputs)
        graph = tf.Graph()
        with graph.as_default():
            inputs = [tf.compat.v1.placeholder(kind) for kind in _input_types(node)]
            tf.numpy_function(compute, inputs, types)
        made = next(op.node_def for op in graph.get_operations() if op.type == "PyFunc")
        self._graphs.append(graph)  # holds the Python function that the node names
        node.op, node.device = "PyFunc", ""
        for name in list(node.attr):
            del node.attr[name]
        for name in made.attr:
            node.attr[name].CopyFrom(made.attr[name])


def _outputs(node: Any) -> list[str]:
    """Names of all outputs as functions write them: name:position."""
    names = ops.op_output_names(node.op)
    if names is not None:
        return [f"{name}:0" for name in names]
    return [
        f"{name}:{position}"
        for name, count in zip(("weights", "biases"), _canonical_counts(node), strict=True)
        for position in range(count)
    ]


def _canonical_counts(node: Any) -> tuple[int, int]:
    if node.op.endswith("V2"):
        return node_attribute(node, "num_params_weights"), node_attribute(node, "num_params_biases")
    return node_attribute(node, "num_params"), node_attribute(node, "num_params")


def _input_types(node: Any) -> list[Any]:
    own = tf.as_dtype(node_attribute(node, "T"))
    count = len(data_inputs(node))
    if node.op in ops.FORWARD | ops.BACKWARD:
        types = [own] * count
        if node.op.endswith("V3"):
            types[4] = tf.int32
        if node.op in ("CudnnRNNBackpropV2", "CudnnRNNBackpropV3"):
            types[-1] = tf.int8
        return types
    return [tf.int32] * 3 + [own] * (count - 3)


def _output_types(node: Any, count: int) -> list[Any]:
    own = tf.as_dtype(node_attribute(node, "T"))
    if node.op in ops.PARAMS_SIZE:
        return [tf.as_dtype(node_attribute(node, "S"))]
    return [own] * 4 + [tf.int8] if count == 5 and node.op in ops.FORWARD else [own] * count


def _rename(nodes: Any, results: Any, renamed: dict[str, str]) -> None:
    for node in nodes:
        for number, name in enumerate(node.input):
            node.input[number] = renamed.get(name, name)
    for key, name in list(results.items()):
        results[key] = renamed.get(name, name)


def settings_of(node: Any) -> reference.Settings:
    """What the reference needs to know of a node."""
    time_major = node_attribute(node, "time_major")
    return reference.Settings(
        str(node_attribute(node, "rnn_mode")),
        str(node_attribute(node, "direction")),
        str(node_attribute(node, "input_mode")),
        int(node_attribute(node, "num_proj") or 0),
        True if time_major is None else bool(time_major),
    )


def _compute(node: Any, function: str, record: Record | None) -> Compute:
    """The Python function that computes a node, which stands in the library function so named."""
    settings, op, name = settings_of(node), node.op, node.name
    own = tf.as_dtype(node_attribute(node, "T")).as_numpy_dtype
    if op in ops.FORWARD:

        def forward(x: Any, h: Any, c: Any, params: Any, lengths: Any = None) -> list[Any]:
            if record is not None:
                record(function, name, params)
            results = reference.forward(settings, x, h, c, params, lengths)
            reserved = [np.zeros((), own)] + [np.zeros((), np.int8)] * (op != "CudnnRNN")
            return [*(result.astype(own) for result in results), *reserved]

        return forward
    if op in ops.TO_CANONICAL:
        counts = _canonical_counts(node)
        return lambda layers, units, width, params: reference.to_canonical(
            settings, params, int(layers), int(width), int(units), counts
        )
    if op in ops.FROM_CANONICAL:
        return lambda layers, units, width, *parts: [
            np.concatenate([np.ravel(part) for part in parts])
        ]
    if op in ops.PARAMS_SIZE:
        size_type = tf.as_dtype(node_attribute(node, "S")).as_numpy_dtype
        return lambda layers, units, width: [
            np.array(
                [reference.buffer_size(settings, int(layers), int(width), int(units))], size_type
            )
        ]

    def backward(*inputs: Any) -> list[Any]:
        raise NotImplementedError(f"{name}: gradients have no reference")

    return backward

"""Running a model in memory or on disk, by signature, on a device of TensorFlow's."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError

from rnnconvert.graphs.framework import node_attribute, tf
from rnnconvert.graphs.verify.compare import first_line
from rnnconvert.graphs.verify.signature_inputs import Choices, InputSpec, make_inputs

CPU = "/CPU:0"
FAILURES = (
    tf.errors.OpError, ValueError, LookupError, TypeError, OSError, AttributeError,
    AssertionError, RuntimeError, ArithmeticError, DecodeError,
)  # fmt: skip
"""What TensorFlow raises for a graph that it can't load or run; for damaged ones, many things."""

_SKIPPED_SIGNATURES = ("__saved_model_init_op", "__saved_model_train_op")
_NO_RESULTS = frozenset(
    "NoOp Assert Const Placeholder PlaceholderWithDefault SaveV2 Save RestoreV2 Restore "
    "ShardedFilename MergeV2Checkpoints Assign AssignVariableOp VarHandleOp VariableV2 "
    "IsVariableInitialized VarIsInitializedOp Print PrintV2".split()
)


@dataclass(frozen=True)
class Signature:
    """What a model takes and gives under one name.

    Attributes:
        inputs: by the signature's names.
        outputs: tensors by the signature's names.
        problem: why it can't be run, if so.
    """

    inputs: Mapping[str, InputSpec]
    outputs: Mapping[str, str]
    problem: str | None = None


@dataclass(frozen=True)
class GraphRunner:
    """A model that is ready to run: name of a signature and inputs to outputs."""

    signatures: Mapping[str, Signature]
    run: Callable[[str, Mapping[str, Any]], dict[str, Any]]


@contextmanager
def saved_model_runner(directory: Path, meta_graph: Any, device: str) -> Iterator[GraphRunner]:
    """A SavedModel from disk: through tf.saved_model.load, or TensorFlow 1's loader.

    Args:
        directory: of the SavedModel.
        meta_graph: one of it (or of its original), for the tags and signatures.
        device: TensorFlow's name of it, e.g. "/CPU:0".
    """
    signatures = {
        name: _signature(definition)
        for name, definition in meta_graph.signature_def.items()
        if name not in _SKIPPED_SIGNATURES
    }
    tags = list(meta_graph.meta_info_def.tags)
    if meta_graph.object_graph_def.nodes:
        with tf.device(device):
            model = tf.saved_model.load(str(directory), tags=tags)
        functions = model.signatures
        yield GraphRunner(signatures, lambda name, given: _call(functions[name], given, device))
    else:
        with new_session(tf.Graph(), device) as session:
            with tf.device(device):
                tf.compat.v1.saved_model.load(session, tags, str(directory))
            yield _session_runner(session, signatures)


@contextmanager
def frozen_runner(graph_def: Any, device: str) -> Iterator[GraphRunner]:
    """A frozen graph: from its placeholders to all that nothing else in it consumes."""
    graph = tf.Graph()
    with graph.as_default(), tf.device(device):
        tf.graph_util.import_graph_def(graph_def, name="")
    inputs = {
        node.name: InputSpec(f"{node.name}:0", *_placeholder(node))
        for node in graph_def.node
        if node.op == "Placeholder"
    }
    consumed = {
        reference.lstrip("^").split(":")[0] for node in graph_def.node for reference in node.input
    }
    outputs = {
        f"{node.name}:{index}": f"{node.name}:{index}"
        for node in graph_def.node
        if node.name not in consumed and node.op not in _NO_RESULTS
        for index in range(len(graph.get_operation_by_name(node.name).outputs))
    }
    problem = None if outputs else "the graph has no results"
    with new_session(graph, device) as session:
        yield _session_runner(session, {"graph": Signature(inputs, outputs, problem)})


def new_session(graph: Any, device: str, *, optimize: bool = True) -> Any:
    """A TensorFlow 1 session.

    Args:
        graph: to run.
        device: "/CPU:0" for a session that sees no GPU; with any other it sees all there are. What
            a node names goes before, where its op has a kernel there.
        optimize: rewrite the graph before running it, as usual. TensorFlow then makes control
            dependencies of data, so that feeding a tensor inside the graph no longer cuts it off
            from what it is computed from.
    """
    config = tf.compat.v1.ConfigProto(allow_soft_placement=True)
    if device == CPU:
        config.device_count["GPU"] = 0
    config.gpu_options.allow_growth = True  # not the whole memory of the GPU
    config.graph_options.rewrite_options.disable_meta_optimizer = not optimize
    return tf.compat.v1.Session(graph=graph, config=config)


def _session_runner(session: Any, signatures: Mapping[str, Signature]) -> GraphRunner:
    def run(name: str, given: Mapping[str, Any]) -> dict[str, Any]:
        signature = signatures[name]
        feeds = {signature.inputs[key].tensor: value for key, value in given.items()}
        found: dict[str, Any] = session.run(dict(signature.outputs), feeds)
        return found

    return GraphRunner(signatures, run)


def _call(function: Any, given: Mapping[str, Any], device: str) -> dict[str, Any]:
    types = function.structured_input_signature[1]
    with tf.device(CPU):  # words have no other place
        inputs = {name: tf.constant(value, types[name].dtype) for name, value in given.items()}
    with tf.device(device):
        results = function(**inputs)
    return {name: value.numpy() for name, value in results.items()}


def first_that_runs(
    runners: Sequence[GraphRunner], name: str, choices: Choices
) -> tuple[dict[str, Any], dict[str, Any] | None, str]:
    """The first inputs that models of one signature take, with the outputs of the first model.

    Returns:
        Inputs, outputs and ""; or nothing, None, and what was said of the first inputs.
    """
    first_error = ""
    for inputs in make_inputs(runners[0].signatures[name].inputs, choices):
        try:
            outputs = [runner.run(name, inputs) for runner in runners]
            return inputs, outputs[0], ""
        except FAILURES as error:
            first_error = first_error or first_line(error)
    return {}, None, first_error


def _signature(definition: Any) -> Signature:
    infos = [*definition.inputs.values(), *definition.outputs.values()]
    if any(info.WhichOneof("encoding") != "name" for info in infos):
        return Signature({}, {}, "sparse or composite tensors")
    inputs = {
        name: InputSpec(info.name, _dtype(info.dtype), _sizes(info.tensor_shape))
        for name, info in definition.inputs.items()
    }
    if definition.method_name in _EXAMPLE_METHODS and any(
        spec.dtype == "string" for spec in inputs.values()
    ):
        return Signature({}, {}, "it takes serialized tf.Examples")
    return Signature(inputs, {name: info.name for name, info in definition.outputs.items()})


_EXAMPLE_METHODS = ("tensorflow/serving/classify", "tensorflow/serving/regress")


def _placeholder(node: Any) -> tuple[str, tuple[int | None, ...] | None]:
    shape = node_attribute(node, "shape")
    return _dtype(node_attribute(node, "dtype")), None if shape is None else _sizes(shape)


def _dtype(kind: Any) -> str:
    dtype = tf.as_dtype(kind)
    return "string" if dtype == tf.string else np.dtype(dtype.as_numpy_dtype).name


def _sizes(shape: Any) -> tuple[int | None, ...] | None:
    if shape.unknown_rank:
        return None
    return tuple(dim.size if dim.size >= 0 else None for dim in shape.dim)

"""TensorFlow graphs as ONNX: their cuDNN ops as ONNX's own operators, the rest by tf2onnx.

Where the sizes or parameters of a cuDNN op can't be told from the frozen graph, the graph is
lowered first, and the op becomes a loop.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from rnnconvert.errors import ConversionError, NotConvertibleError
from rnnconvert.exports.graph_proof import signature_of
from rnnconvert.exports.onnx.emit import (
    all_nodes,
    node_counts,
    operator,
    quietly,
    replace_outputs,
    require_known,
)
from rnnconvert.exports.onnx.operators import LOOPS, Activation, Recurrent
from rnnconvert.exports.options import ExportOptions
from rnnconvert.exports.sources import Source
from rnnconvert.exports.written import Written
from rnnconvert.graphs import lowering
from rnnconvert.graphs.convert import lower
from rnnconvert.graphs.inspect import require_tensorflow
from rnnconvert.graphs.ops import FORWARD
from rnnconvert.kinds import Kind
from rnnconvert.layouts.opaque import OpaqueShape, unpack_buffer
from rnnconvert.publish import scratch_directory, temporary_directory

_ACTIVATIONS = {
    "lstm": ("Sigmoid", "Tanh", "Tanh"),
    "gru": ("Sigmoid", "Tanh"),
    "rnn_tanh": ("Tanh",),
    "rnn_relu": ("Relu",),
}

_COMPUTED = "PyFunc"
"""What stands for cuDNN ops other than the forward ones, see `restorable_saved_model`."""


class _CannotSay(Exception):
    """A cuDNN op has no operator of ONNX's; the text is the reason."""


@dataclass
class _Ops:
    """cuDNN ops while they are converted.

    Attributes:
        known: what is known of them from the graph's files.
        native: names of those that became operators.
        left: name and reason of those that did not.
    """

    known: Sequence[lowering.CudnnOp]
    native: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)

    def handler(self, context: Any, node: Any, name: str, args: Any) -> None:
        try:
            _put(context, node, self._op(node.name))
            self.native.append(node.name)
        except (_CannotSay, ConversionError, ValueError) as error:
            self.left.append(f"{node.name}: {error}")

    def _op(self, name: str) -> lowering.CudnnOp | None:
        """What is known of a node, which functions that were inlined gave a longer name."""
        fitting = [op for op in self.known if name == op.name or name.endswith(f"/{op.name}")]
        return fitting[0] if len({(op.units, op.num_layers) for op in fitting}) == 1 else None


@dataclass(frozen=True)
class Frozen:
    """A graph with its variables as constants, as tf2onnx takes it.

    Attributes:
        graph_def: the graph.
        inputs, outputs: names in the model to tensors.
        tables: initialized lookup tables, as tf2onnx has them.
    """

    graph_def: Any
    inputs: Mapping[str, str]
    outputs: Mapping[str, str]
    tables: Any = None


def write_graph(source: Source, path: Path, opset: int, options: ExportOptions) -> Written:
    """Write one signature of a SavedModel, or a frozen graph, as ONNX.

    Raises:
        UsageError: TensorFlow is missing.
        NotConvertibleError: an op has no ONNX form, or may do harm when the graph is loaded.
    """
    from rnnconvert.exports import onnx as target

    require_tensorflow()
    reason = lowering.why_not_run(source.original)
    if reason and not options.general.permissions.allow_code:
        raise NotConvertibleError(f"its graph has to be loaded for an export: {reason}")
    planned = lowering.plan_model(source.original)
    ops = _Ops([*planned.lowered, *planned.left])
    made, inputs, outputs = _convert(source.original, source.kind, opset, ops)
    loops: list[str] = []
    if ops.left or any(node.op_type == _COMPUTED for node in all_nodes(made.graph)):
        loops, ops.native = ops.left or ["its parameters are computed by cuDNN ops"], []
        with _lowered(source, options) as place:
            made, inputs, outputs = _convert(place, source.kind, opset, _Ops([]))
    require_known(made)
    target.finish(made, inputs, outputs)
    target.save(made, path)
    found = node_counts(made)
    rest = sum(found[name] for name in LOOPS if name != "If")
    if not loops and rest:
        loops = [f"the graph: {rest} loops of its own"]
    return Written(
        "onnx",
        target.runtime(),
        (path.name,),
        found,
        target.versions(made),
        native=len(ops.native),
        loops=tuple(loops),
        inputs=tuple(inputs),
        outputs=tuple(outputs),
        notes=_other_signatures(source),
    )


def _other_signatures(source: Source) -> tuple[str, ...]:
    """A note on the signatures that are left out."""
    if source.kind is not Kind.SAVED_MODEL:
        return ()
    chosen, others = signature_of(source.original)
    return (f"the signature {chosen} is exported; others: {', '.join(others)}",) if others else ()


@contextmanager
def _lowered(source: Source, options: ExportOptions) -> Iterator[Path]:
    with temporary_directory(scratch_directory()) as work:
        place = work / source.original.name
        lower(source.original, place, source.kind, replace(options.general, dry_run=False))
        yield place


def _convert(place: Path, kind: Kind, opset: int, ops: _Ops) -> tuple[Any, list[str], list[str]]:
    """The ONNX model of a graph, and the names of its inputs and outputs.

    Raises:
        NotConvertibleError: tf2onnx can't convert it.
    """
    from tf2onnx import convert

    handlers: dict[str, tuple[Callable[..., None], list[Any]]] = {
        op: (ops.handler, []) for op in FORWARD
    }
    try:
        with quietly():
            frozen = _frozen(place, kind)
            made, _ = convert._convert_common(
                frozen.graph_def,
                name="rnnconvert",
                continue_on_error=True,
                opset=opset,
                custom_op_handlers=handlers,
                input_names=list(frozen.inputs.values()),
                output_names=list(frozen.outputs.values()),
                tensors_to_rename={
                    **{tensor: name for name, tensor in frozen.inputs.items()},
                    **{tensor: name for name, tensor in frozen.outputs.items()},
                },
                initialized_tables=frozen.tables,
            )
    except ConversionError:
        raise
    except Exception as error:  # tf2onnx and TensorFlow raise all kinds of things
        lines = str(error).strip().splitlines() or [type(error).__name__]
        raise NotConvertibleError(f"tf2onnx can't convert the graph: {lines[0]}") from error
    # What nothing reads is no input of the ONNX model.
    there = {value.name for value in made.graph.input}
    return made, [name for name in frozen.inputs if name in there], list(frozen.outputs)


# --- freezing -------------------------------------------------------------------------------


def _frozen(place: Path, kind: Kind) -> Frozen:
    if kind is Kind.GRAPH:
        return _frozen_graph(lowering.read_graph_def(place))
    return _frozen_saved_model(place)


def _frozen_graph(graph_def: Any) -> Frozen:
    import tensorflow as tf
    from tf2onnx import tf_loader

    from rnnconvert.graphs.verify.runners import CPU, frozen_runner

    with frozen_runner(graph_def, CPU) as runner:
        signature = runner.signatures["graph"]
    if signature.problem:
        raise NotConvertibleError(signature.problem)
    inputs = {name: spec.tensor for name, spec in signature.inputs.items()}
    floats = {node.name for node in graph_def.node if node.op in FORWARD}
    outputs = {
        name.replace(":", "_"): tensor
        for name, tensor in signature.outputs.items()
        if tensor.split(":")[0] not in floats or int(tensor.split(":")[1]) < 3
    }
    with tf.Graph().as_default():
        tf.graph_util.import_graph_def(graph_def, name="")
        optimized = tf_loader.tf_optimize(list(inputs.values()), list(outputs.values()), graph_def)
    return Frozen(optimized, inputs, outputs)


def _frozen_saved_model(place: Path) -> Frozen:
    from tf2onnx import tf_loader

    from rnnconvert.graphs.verify.originals import restorable_saved_model

    saved_model = lowering.read_saved_model(place)
    name, _ = signature_of(place)
    tags = list(_served(saved_model).meta_info_def.tags)
    with restorable_saved_model(place, saved_model) as folder:
        graph_def, inputs, outputs, tables, renamed = tf_loader.from_saved_model(
            str(folder), None, None, tags, [name], return_initialized_tables=True,
            return_tensors_to_rename=True,
        )  # fmt: skip
    return Frozen(
        graph_def,
        {renamed.get(tensor, tensor.split(":")[0]): tensor for tensor in inputs},
        {renamed.get(tensor, tensor.split(":")[0]): tensor for tensor in outputs},
        tables,
    )


def _served(saved_model: Any) -> Any:
    graphs = list(saved_model.meta_graphs)
    return next((graph for graph in graphs if "serve" in graph.meta_info_def.tags), graphs[0])


# --- cuDNN ops ------------------------------------------------------------------------------


def _put(context: Any, node: Any, known: lowering.CudnnOp | None) -> None:
    """Replace a cuDNN op by one operator for each of its layers."""
    layers = _layers(context, node, known)
    count = len(layers[0].directions)
    sequences, states = node.input[0], [[], []]  # type: ignore[var-annotated]
    lengths = node.input[4] if len(node.input) > 4 else ""
    parts = 2 if layers[0].operator == "LSTM" else 1
    for number, layer in enumerate(layers):
        initial = [
            _slice(context, node.input[1 + part], number * count, (number + 1) * count)
            for part in range(parts)
        ]
        sequences, *last = operator(context, layer, sequences, lengths, initial)
        for part, tensor in enumerate(last):
            states[part].append(tensor)
    joined = [
        each[0] if len(each) == 1
        else context.make_node("Concat", each, attr={"axis": 0}).output[0]
        for each in states[:parts]
    ]  # fmt: skip
    replace_outputs(context, node, [sequences, *joined])


def _layers(context: Any, node: Any, known: lowering.CudnnOp | None) -> list[Recurrent]:
    """The operators of a cuDNN op, from the bottom up.

    Raises:
        _CannotSay: its parameters or sizes can't be told, or ONNX has no such operator.
    """
    if not node.inputs[3].is_const():
        raise _CannotSay("its parameters are computed while the model runs")
    if node.get_attr_value("time_major", True) in (0, False):
        raise _CannotSay("it is batch-major")
    training = node.get_attr_value("is_training", True)
    if training and node.get_attr_value("dropout", 0.0):
        raise _CannotSay("it has dropout, and is for training")
    buffer = np.asarray(node.inputs[3].get_tensor_value(as_list=False)).reshape(-1)
    if buffer.dtype == np.float64:
        raise NotConvertibleError(
            f"{node.name} computes in float64, and onnxruntime's LSTM, GRU and RNN do not"
        )
    shape = _shape(context, node, known)
    if shape.size != buffer.size:
        raise _CannotSay(f"its parameters are {buffer.size}, of {shape} they would be {shape.size}")
    cells = [layer.weights() for layer in unpack_buffer(shape, buffer)]
    count = len(shape.directions)
    own = tuple(Activation(name) for name in _ACTIVATIONS[shape.cell])
    has_lengths = len(node.input) > 4
    return [
        Recurrent(tuple(cells[at : at + count]), (own,) * count, False, True, has_lengths,
                  f"{node.name}_{at // count}")
        for at in range(0, len(cells), count)
    ]  # fmt: skip


def _shape(context: Any, node: Any, known: lowering.CudnnOp | None) -> OpaqueShape:
    direction = _text(node, "direction", "unidirectional")
    count = 2 if direction == "bidirectional" else 1
    state, given = context.get_shape(node.input[1]), context.get_shape(node.input[0])
    units = _size(state, -1) or (known.units if known else None)
    layers = (_size(state, 0) or 0) // count or (known.num_layers if known else None)
    inputs = _size(given, -1) or (known.input_size if known else None)
    if not units or not layers or not inputs:
        raise _CannotSay("its sizes can't be told from the graph")
    return OpaqueShape(
        _text(node, "rnn_mode", "lstm"), layers, units, inputs, direction,
        _text(node, "input_mode", "linear_input"), int(node.get_attr_value("num_proj", 0) or 0),
    )  # fmt: skip


def _size(shape: Any, axis: int) -> int | None:
    return shape[axis] if shape and shape[axis] > 0 else None


def _text(node: Any, name: str, default: str) -> str:
    value = node.get_attr_value(name, default)
    return value.decode() if isinstance(value, bytes) else str(value)


def _slice(context: Any, tensor: str, start: int, stop: int) -> str:
    """Some rows of a tensor."""
    from tf2onnx import utils

    ends = [
        context.make_const(utils.make_name("row"), np.array([value], np.int64)).output[0]
        for value in (start, stop, 0)
    ]
    return str(context.make_node("Slice", [tensor, *ends]).output[0])

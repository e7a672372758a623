"""A Keras model, walked through call by call: each becomes lines of the written `forward`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rnnconvert.exports.torch_module.calls import LayerCall, or_masks
from rnnconvert.exports.torch_module.emitter import Emitter, Value
from rnnconvert.exports.torch_module.layers import emit_layer
from rnnconvert.exports.torch_module.operations import emit_operation
from rnnconvert.exports.torch_module.recurrent import emit_bidirectional, emit_rnn


def emit_model(emitter: Emitter, model: Any, inputs: Sequence[Value]) -> list[Value]:
    """All calls of a Sequential or functional model, those of nested models too.

    Args:
        emitter: takes the lines, and what has no torch form.
        model: a Keras 3 model.
        inputs: the variables of its inputs.

    Returns:
        The variables of its outputs.
    """
    functional = getattr(model, "_functional", None) or model
    if not hasattr(functional, "_nodes_by_depth"):
        emitter.problem(f"{model.name!a} ({type(model).__name__}: neither Sequential nor "
                        "functional)")  # fmt: skip
        return list(inputs)
    values = {id(tensor): value for tensor, value in zip(functional.inputs, inputs, strict=True)}
    for depth in sorted(functional._nodes_by_depth, reverse=True):
        for node in functional._nodes_by_depth[depth]:
            if node.is_input:
                continue
            args, kwargs = node.arguments.fill_in(values)
            shapes = [tuple(tensor.shape) for tensor in node.output_tensors]
            outputs = emit_call(emitter, node.operation, args, kwargs, shapes)
            for tensor, value in zip(node.output_tensors, outputs, strict=False):
                values[id(tensor)] = value
    return [values.get(id(tensor), inputs[0]) for tensor in functional.outputs]


def emit_call(
    emitter: Emitter, layer: Any, args: Any, kwargs: Any, shapes: Sequence[tuple[int | None, ...]]
) -> list[Value]:
    """One call of one layer.

    Args:
        emitter: takes the lines.
        layer: or an operation of `keras.ops`.
        args, kwargs: its arguments, `Value`s in the places of tensors.
        shapes: of its outputs.
    """
    import keras

    if isinstance(layer, keras.Model):
        return emit_model(emitter, layer, keras.tree.flatten(args))
    if not isinstance(layer, keras.layers.Layer):
        return _operation(emitter, layer, args, kwargs, shapes)
    inputs = keras.tree.flatten(args)
    if not inputs or not all(isinstance(value, Value) for value in inputs):
        inputs = [value for value in inputs if isinstance(value, Value)]
        if not inputs:
            emitter.problem(f"{layer.name!a} ({type(layer).__name__}: called without tensors)")
            return [Value("x", shape) for shape in shapes]
    call = LayerCall(emitter, layer, inputs, dict(kwargs), list(shapes))
    if type(layer) is keras.layers.TimeDistributed:
        return _time_distributed(call)
    if isinstance(layer, keras.layers.RNN | keras.layers.Bidirectional):
        return _recurrent(call, keras.tree.flatten(args))
    return emit_layer(call)


def _operation(
    emitter: Emitter,
    operation: Any,
    args: Any,
    kwargs: Any,
    shapes: Sequence[tuple[int | None, ...]],
) -> list[Value]:
    """An operation of `keras.ops`. Masks are lost behind it, as in Keras."""
    name = emit_operation(emitter, operation, args, kwargs, len(shapes[0]))
    if name is None or len(shapes) > 1:
        kind = type(operation).__name__
        emitter.problem(f"{operation.name!a} ({kind}, an operation of keras.ops)")
        name = "x"
    return [Value(name, shape) for shape in shapes]


def _recurrent(call: LayerCall, args: list[Any]) -> list[Value]:
    import keras

    layer, emitter = call.layer, call.emitter
    x = call.inputs[0]
    initial = call.kwargs.get("initial_state")
    states = [value for value in keras.tree.flatten(initial) if isinstance(value, Value)]
    states += [value for value in args[1:] if isinstance(value, Value)]
    given = call.kwargs.get("mask")
    mask = given.name if isinstance(given, Value) else None if states else x.mask  # as Keras does
    if type(layer) is keras.layers.Bidirectional:
        names = emit_bidirectional(emitter, layer, x, states, mask)
    else:
        names = emit_rnn(emitter, layer, x, states, mask)
    behind = mask or x.mask
    sequences = 2 if getattr(layer, "merge_mode", "") is None else 1
    return [
        Value(name, shape, behind if layer.return_sequences and place < sequences else None)
        for place, (name, shape) in enumerate(zip(names, call.shapes, strict=False))
    ]


def _time_distributed(call: LayerCall) -> list[Value]:
    """The inner layer on all steps at once, as further rows of the batch."""
    import keras

    emitter, layer, [x] = call.emitter, call.layer.layer, call.inputs[:1]
    if x.mask and isinstance(layer, keras.Model | keras.layers.RNN | keras.layers.Bidirectional):
        emitter.problem(
            f"{call.layer.name!a} (TimeDistributed of a {type(layer).__name__} on a masked input)"
        )
    rows = Value(emitter.set(f"{x.name}.flatten(0, 1)"), (None, *x.shape[2:]))
    shapes: list[tuple[int | None, ...]] = [(None, *shape[2:]) for shape in call.shapes]
    [found, *_] = emit_call(emitter, layer, (rows,), {}, shapes)
    name = emitter.set(f"{found.name}.unflatten(0, {x.name}.shape[:2])")
    return [Value(name, call.shapes[0], or_masks(call))]

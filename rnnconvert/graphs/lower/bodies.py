"""The body of each cuDNN op: a traced TensorFlow function that computes what the op computes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from rnnconvert.graphs import ops
from rnnconvert.graphs.framework import tf
from rnnconvert.graphs.lower import layout
from rnnconvert.graphs.lower.forward import run_forward, split_params
from rnnconvert.graphs.lower.layout import RnnShape

Body = Callable[..., Sequence[Any]]


@dataclass(frozen=True)
class Recipe:
    """All that the body of an op depends on.

    Attributes:
        op: the op's type.
        shape: of the RNN.
        dtype: its `T`, e.g. "float32".
        input_types: DataType of each of its inputs.
        time_major, is_training: its attributes, True where it has none.
        size_type: dtype of a ParamsSize op's result.
        unroll: as in Options.
    """

    op: str
    shape: RnnShape
    dtype: str
    input_types: tuple[int, ...]
    time_major: bool = True
    is_training: bool = True
    size_type: str = "int32"
    unroll: int | None = None


def trace(recipe: Recipe) -> Any:
    """The graph of an op's body, with one input per input of the op, and one output per output."""
    body = _body(recipe)
    signature = _signature(recipe)
    function = tf.function(lambda *args: tuple(body(*args)), autograph=False)
    return function.get_concrete_function(*signature).graph


def _body(recipe: Recipe) -> Body:
    if recipe.op in ops.FORWARD:
        return _forward(recipe)
    if recipe.op in ops.BACKWARD:
        return _backward(recipe)
    if recipe.op in ops.TO_CANONICAL:
        return lambda layers, units, inputs, params: _to_canonical(recipe.shape, params)
    if recipe.op in ops.FROM_CANONICAL:
        size = [recipe.shape.size()]
        return lambda layers, units, inputs, *parts: [
            tf.ensure_shape(tf.concat([tf.reshape(part, [-1]) for part in parts], 0), size)
        ]
    return lambda layers, units, inputs: [tf.constant([recipe.shape.size()], recipe.size_type)]


def _signature(recipe: Recipe) -> list[Any]:
    """Types of the inputs, and of those that a body looks into, what is known of the shapes."""
    shape = recipe.shape
    known: list[list[int | None] | None] = []
    if recipe.op in ops.FORWARD | ops.BACKWARD:
        states = [shape.pairs, None] if recipe.time_major else [None, shape.pairs]
        cell = [*states, shape.units] if shape.mode == "lstm" else None
        # input, input_h, input_c, params; V3's lengths are a vector as well
        known = [[None, None, shape.input_size], [*states, shape.output_size], cell, [None]]
        known += [[None]] if recipe.op.endswith("V3") else []
    elif recipe.op in ops.TO_CANONICAL:
        known = [None, None, None, [shape.size()]]
    known += [None] * (len(recipe.input_types) - len(known))
    return [
        tf.TensorSpec(sizes, tf.as_dtype(kind))
        for sizes, kind in zip(known, recipe.input_types, strict=True)
    ]


def _forward(recipe: Recipe) -> Body:
    def body(x: Any, h: Any, c: Any, params: Any, lengths: Any | None = None) -> list[Any]:
        results = list(_run(recipe, x, h, c, params, lengths))
        # cuDNN's notes for its own backward pass, which the lowered one does not need: a vector in
        # training, else a scalar that was never filled.
        results.append(tf.zeros([0] if recipe.is_training else [], x.dtype))
        if recipe.op != "CudnnRNN":
            has_two = recipe.op == "CudnnRNNV2" and recipe.is_training
            results.append(tf.zeros([2] if has_two else [], tf.int8))
        return results

    return body


def _backward(recipe: Recipe) -> Body:
    """Gradients of a forward pass that is computed anew."""
    has_lengths = recipe.op == "CudnnRNNBackpropV3"

    def body(x: Any, h: Any, c: Any, params: Any, *rest: Any) -> list[Any]:
        lengths = rest[0] if has_lengths else None
        gradients = rest[int(has_lengths) + 3 : int(has_lengths) + 6]
        with tf.GradientTape() as tape:
            tape.watch([x, h, c, params])
            results = _run(recipe, x, h, c, params, lengths)
        used = 3 if recipe.shape.mode == "lstm" else 2
        found = tape.gradient(
            results[:used], [x, h, c, params], output_gradients=gradients[:used],
            unconnected_gradients=tf.UnconnectedGradients.ZERO,
        )  # fmt: skip
        return list(found)

    return body


def _run(recipe: Recipe, x: Any, h: Any, c: Any, params: Any, lengths: Any | None) -> Any:
    return run_forward(
        recipe.shape, x, h, c, params, lengths,
        time_major=recipe.time_major, unroll=recipe.unroll,
    )  # fmt: skip


def _to_canonical(shape: RnnShape, params: Any) -> list[Any]:
    """The buffer's matrices, one by one, then its biases."""
    weights = split_params(shape, params, None)
    matrices, biases = [], []
    for each in weights:
        for kernel in (each.kernel, each.recurrent):
            matrices += tf.split(kernel, shape.gates)
        matrices += [each.projection] if each.projection is not None else []
        for bias in (each.input_bias, each.recurrent_bias):
            biases += tf.split(bias, shape.gates)
    return matrices + biases


def canonical_counts(shape: RnnShape) -> tuple[int, int]:
    """Number of matrices and of biases in the canonical form."""
    regions = shape.regions()
    stacked = sum(region.kind in _STACKED for region in regions)
    projections = sum(region.kind == layout.PROJECTION for region in regions)
    return stacked * shape.gates + projections, 2 * shape.pairs * shape.gates


_STACKED = (layout.INPUT_KERNEL, layout.RECURRENT_KERNEL)

"""TensorFlow's functions that move, cut and join values without computing with them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rnnconvert.keras_models.config.tensorflow_calls.values import (
    CallTensor,
    Refused,
    Shape,
    Size,
    holds,
    require_numbers,
    whole_number,
)
from rnnconvert.keras_models.config.tensorflow_calls.writer import Writer


def _shape(w: Writer, input: Any, out_type: Any = None) -> Shape:
    return Shape()


def _reshape(w: Writer, tensor: Any, shape: Any) -> Any:
    """At most one size may be unknown: it then follows from the others."""
    if not isinstance(shape, list) or holds(shape, CallTensor):
        raise Refused("its new shape is computed while the model runs")
    unknown = [size for size in shape if isinstance(size, Size) or size in (-1, None)]
    if len(unknown) > 1:
        raise Refused("more than one size of its new shape is known only while the model runs")
    sizes = [-1 if isinstance(size, Size) or size is None else size for size in shape]
    if any(isinstance(size, list) for size in sizes):
        raise Refused(f"its new shape is {shape!r}")
    return w.op("Reshape", tensor, newshape=sizes)


def _transpose(w: Writer, a: Any, perm: Any = None, conjugate: Any = False) -> Any:
    return w.op("Transpose", a, axes=require_numbers("perm", perm))


def _matrix_transpose(w: Writer, a: Any, conjugate: Any = False) -> Any:
    return w.op("Swapaxes", a, axis1=-2, axis2=-1)


def _expand_dims(w: Writer, input: Any, axis: Any = None, dim: Any = None) -> Any:
    axis = dim if axis is None else axis
    if isinstance(axis, list) and len(axis) == 1:
        axis = axis[0]
    return w.op("ExpandDims", input, axis=whole_number("axis", axis))


def _squeeze(w: Writer, input: Any, axis: Any = None, squeeze_dims: Any = None) -> Any:
    axis = require_numbers("axis", squeeze_dims if axis is None else axis)
    axes = axis if isinstance(axis, list) else [axis]
    if not axes or axes == [None]:
        return w.op("Squeeze", input, axis=None)
    if len({number < 0 for number in axes}) > 1:
        raise Refused(f"axis={axis!r} counts from both ends")
    result = input
    for number in sorted(axes, reverse=axes[0] >= 0):  # one by one, the outermost last
        result = w.op("Squeeze", result, axis=number)
    return result


def _concat(w: Writer, values: Any, axis: Any) -> Any:
    values = values if isinstance(values, list) else [values]
    if holds(values, (Size, Shape)):
        return _joined_shape(values)
    parts = [w.operand(value) for value in values]
    return w.op("Concatenate", parts, axis=whole_number("axis", axis))


def _joined_shape(values: list[Any]) -> list[Any]:
    if holds(values, (CallTensor, Shape)) or not all(isinstance(value, list) for value in values):
        raise Refused("it computes with a shape that is known only while the model runs")
    return [size for value in values for size in value]


def _stack(w: Writer, values: Any, axis: Any = 0) -> Any:
    values = values if isinstance(values, list) else [values]
    if not holds(values, CallTensor):
        return values  # a shape, put together
    if holds(values, (Size, Shape)):
        raise Refused("it computes with a shape that is known only while the model runs")
    return w.op("Stack", [w.operand(value) for value in values], axis=whole_number("axis", axis))


def _split(w: Writer, value: Any, num_or_size_splits: Any, axis: Any = 0, num: Any = None) -> Any:
    axis = whole_number("axis", axis)
    sizes = require_numbers("num_or_size_splits", num_or_size_splits)
    places = sizes
    if isinstance(sizes, list):
        if -1 in sizes[:-1]:
            raise Refused(f"num_or_size_splits={sizes!r}")
        places = [sum(sizes[: place + 1]) for place in range(len(sizes) - 1)]
    count = len(sizes) if isinstance(sizes, list) else whole_number("num_or_size_splits", sizes)
    first = w.op("Split", value, indices_or_sections=places, axis=axis)
    return [CallTensor(first.layer, 0, place) for place in range(count)]


def _unstack(w: Writer, value: Any, num: Any = None, axis: Any = 0) -> Any:
    """Those of its outputs that the model uses, by place."""
    axis = whole_number("axis", axis)
    return {place: _at(w, value, axis, place) for place in sorted(w.used)}


def _at(w: Writer, value: Any, axis: int, place: int) -> Any:
    if axis < 0:
        return w.op("Take", value, place, axis=axis)
    return w.op("GetItem", value, [*[slice(None)] * axis, place])


def _getitem(w: Writer, tensor: Any, slice_spec: Any, var: Any = None) -> Any:
    key = slice_spec if isinstance(slice_spec, list) else [slice_spec]
    key = [_subkey(part) for part in key]
    if isinstance(tensor, Shape):
        return _part_of_shape(key)
    if isinstance(tensor, list):
        return tensor[key[0]]
    if holds(key, (CallTensor, Shape, Size)):
        raise Refused("a place of its slice is computed while the model runs")
    if Ellipsis in key:
        place = key.index(Ellipsis)
        tensor = _cut_from_the_end(w, tensor, key[place + 1 :])
        key = key[:place]
    return _cut(w, tensor, key)


def _slice(w: Writer, input_: Any, begin: Any, size: Any) -> Any:
    begin = require_numbers("begin", begin)
    size = require_numbers("size", size)
    ends = [None if n == -1 else start + n for start, n in zip(begin, size, strict=True)]
    return _cut(w, input_, [slice(*place) for place in zip(begin, ends, strict=True)])


def _cut(w: Writer, tensor: Any, key: list[Any]) -> Any:
    """A slice; steps backwards, which torch doesn't know, as a flip where they take all."""
    for place, part in enumerate(key):
        if _is_backwards(part):
            axis = sum(before is not None for before in key[:place])
            tensor = w.op("Flip", tensor, axis=axis)
            key = [*key[:place], slice(None), *key[place + 1 :]]
    while key and key[-1] == slice(None):
        key = key[:-1]
    return w.op("GetItem", tensor, key) if key else tensor


def _cut_from_the_end(w: Writer, tensor: Any, key: list[Any]) -> Any:
    """What stands behind an ellipsis: axes counted from the last, as their number isn't known.

    A .h5 file of Keras 3 can't hold an ellipsis.
    """
    axis = -1
    for part in reversed(key):
        if isinstance(part, int):
            tensor = w.op("Take", tensor, part, axis=axis)
            continue  # the next one is now the last
        if part is None:
            tensor = w.op("ExpandDims", tensor, axis=axis)
        elif _is_backwards(part):
            tensor = w.op("Flip", tensor, axis=axis)
        elif part != slice(None):
            swapped = w.op("Swapaxes", tensor, axis1=0, axis2=axis)
            cut = w.op("GetItem", swapped, [part])
            tensor = w.op("Swapaxes", cut, axis1=0, axis2=axis)
        axis -= 1
    return tensor


def _is_backwards(part: Any) -> bool:
    """Whether a slice takes all, from the last to the first."""
    if not isinstance(part, slice) or (part.step or 1) > 0:
        return False
    if part != slice(None, None, -1):
        raise Refused(f"a slice backwards, {part}")
    return True


def _subkey(part: Any) -> Any:
    """A part of a slice in Keras 2's JSON."""
    if isinstance(part, dict) and part.get("class_name") == "__ellipsis__":
        return Ellipsis
    if isinstance(part, dict) and set(part) == {"start", "stop", "step"}:
        return slice(part["start"], part["stop"], part["step"])
    if part is None or part is Ellipsis or isinstance(part, slice | CallTensor | Size | Shape):
        return part
    if isinstance(part, int) and not isinstance(part, bool):
        return part
    raise Refused(f"a slice by {part!r}")


def _part_of_shape(key: list[Any]) -> Any:
    """Sizes out of a shape: each is unknown, and how many there are must be known."""
    if len(key) == 1 and isinstance(key[0], int):
        return Size()
    part = key[0]
    if len(key) == 1 and isinstance(part, slice) and part.step in (None, 1):
        start, stop = part.start or 0, part.stop
        if isinstance(stop, int) and isinstance(start, int) and 0 <= start <= stop:
            return [Size()] * (stop - start)
    raise Refused("it takes a part of a shape whose length is not known")


def _pad(
    w: Writer, tensor: Any, paddings: Any, mode: Any = "CONSTANT", constant_values: Any = 0
) -> Any:
    paddings = require_numbers("paddings", paddings)
    mode = str(mode).lower()
    if mode not in ("constant", "reflect", "symmetric"):
        raise Refused(f"mode={mode!r}")
    filling = [constant_values] if mode == "constant" and constant_values else []
    return w.op("Pad", tensor, *filling, pad_width=paddings, mode=mode)


def _tile(w: Writer, input: Any, multiples: Any) -> Any:
    return w.op("Tile", input, repeats=require_numbers("multiples", multiples))


def _repeat(w: Writer, input: Any, repeats: Any, axis: Any = None) -> Any:
    repeats = whole_number("repeats", repeats)
    return w.op("Repeat", input, repeats=repeats, axis=require_numbers("axis", axis))


def _reverse(w: Writer, tensor: Any, axis: Any) -> Any:
    axes = require_numbers("axis", axis)
    for number in axes if isinstance(axes, list) else [axes]:
        tensor = w.op("Flip", tensor, axis=number)
    return tensor


def _roll(w: Writer, input: Any, shift: Any, axis: Any) -> Any:
    return w.op("Roll", input, shift=whole_number("shift", shift), axis=whole_number("axis", axis))


def _gather(
    w: Writer, params: Any, indices: Any, validate_indices: Any = None, axis: Any = None,
    batch_dims: Any = 0,
) -> Any:  # fmt: skip
    axis = batch_dims if axis is None else axis
    if batch_dims:
        raise Refused(f"batch_dims={batch_dims}")
    if isinstance(params, list) or holds(params, (Shape, Size)):
        raise Refused("it looks up in a constant")
    return w.op("Take", params, w.operand(indices), axis=whole_number("axis", axis))


def _like(operation: str) -> Callable[..., Any]:
    def translate(w: Writer, input: Any, dtype: Any = None, optimize: Any = True) -> Any:
        if dtype is not None:
            raise Refused(f"dtype={dtype!r}")
        return w.op(operation, input)

    return translate


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "__operators__.getitem": _getitem,
    "concat": _concat,
    "expand_dims": _expand_dims,
    "gather": _gather,
    "ones_like": _like("OnesLike"),
    "pad": _pad,
    "repeat": _repeat,
    "reshape": _reshape,
    "reverse": _reverse,
    "roll": _roll,
    "shape": _shape,
    "slice": _slice,
    "split": _split,
    "squeeze": _squeeze,
    "stack": _stack,
    "tile": _tile,
    "transpose": _transpose,
    "linalg.matrix_transpose": _matrix_transpose,
    "unstack": _unstack,
    "zeros_like": _like("ZerosLike"),
}

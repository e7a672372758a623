"""Operations of `keras.ops` that stand in a functional graph: those that masks are made of, and a
few that people write: slices, sums, arithmetic."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from rnnconvert.exports.torch_module.emitter import Emitter, Value, number, tuple_of

_INFIX = {
    "Add": "+", "Subtract": "-", "Multiply": "*", "Divide": "/", "TrueDivide": "/",
    "NotEqual": "!=", "Equal": "==", "Greater": ">", "GreaterEqual": ">=", "Less": "<",
    "LessEqual": "<=", "LogicalOr": "|", "LogicalAnd": "&", "Matmul": "@", "Power": "**",
}  # fmt: skip
_UNARY = {
    "LogicalNot": "~{x}", "Negative": "-{x}", "Absolute": "{x}.abs()", "Square": "{x} ** 2",
    "Sqrt": "{x}.sqrt()", "Exp": "{x}.exp()", "Log": "{x}.log()", "Tanh": "{x}.tanh()",
    "Sigmoid": "{x}.sigmoid()", "Relu": "{x}.relu()",
}  # fmt: skip
_REDUCTIONS = {"Any": "any", "All": "all", "Sum": "sum", "Mean": "mean", "Max": "amax",
               "Min": "amin"}  # fmt: skip


def emit_operation(
    emitter: Emitter, operation: Any, args: Sequence[Any], kwargs: dict[str, Any], rank: int
) -> str | None:
    """The variable of an operation's only output; None where torch has no form here.

    Args:
        emitter: takes the line.
        operation: an object of a class of `keras.ops`, not a layer.
        args, kwargs: of the call, `Value`s in the places of tensors.
        rank: of the output.
    """
    if not type(operation).__module__.startswith("keras.src.ops."):
        return None
    name = type(operation).__name__
    given = [*args, *kwargs.values()]
    source: str | None
    if name in _INFIX and len(given) == 2:
        sides = [_operand(each) for each in given]
        source = None if None in sides else f" {_INFIX[name]} ".join(str(side) for side in sides)
    elif name in _UNARY and len(given) == 1:
        source = _UNARY[name].format(x=given[0].name)
    elif name in _REDUCTIONS and len(given) == 1:
        source = _reduction(_REDUCTIONS[name], given[0], operation)
    else:
        write = _OTHERS.get(name)
        source = None if write is None else write(operation, given)
    return None if source is None else emitter.set(source)


def _operand(value: Any) -> str | None:
    if isinstance(value, Value):
        return value.name
    return number(value) if isinstance(value, bool | int | float) else None


def _reduction(function: str, x: Value, operation: Any) -> str | None:
    axis = operation.axis
    axes = [axis] if isinstance(axis, int) else list(axis or range(x.rank))
    if 0 in [each % x.rank for each in axes]:
        return None
    keep = ", keepdim=True" if operation.keepdims else ""
    return f"{x.name}.{function}({tuple_of(axes)}{keep})"


def _like(fill: str) -> Callable[[Any, list[Any]], str | None]:
    def write(operation: Any, given: list[Any]) -> str | None:
        dtype = _dtype(getattr(operation, "dtype", None))
        return f"torch.{fill}_like({given[0].name}{dtype})"

    return write


def _dtype(dtype: Any) -> str:
    known = ("bool", "int32", "int64", "float16", "float32", "float64")
    return f", dtype=torch.{dtype}" if dtype in known else ""


def _cast(operation: Any, given: list[Any]) -> str | None:
    dtype = _dtype(operation.dtype)
    return f"{given[0].name}.to({dtype.partition('=')[2]})" if dtype else None


def _converted(operation: Any, given: list[Any]) -> str | None:
    return given[0].name if getattr(operation, "dtype", None) is None else _cast(operation, given)


def _expand(operation: Any, given: list[Any]) -> str | None:
    axis = operation.axis
    return f"{given[0].name}.unsqueeze({number(axis)})" if isinstance(axis, int) else None


def _squeeze(operation: Any, given: list[Any]) -> str | None:
    axis = operation.axis
    return f"{given[0].name}.squeeze({number(axis)})" if isinstance(axis, int) else None


def _transpose(operation: Any, given: list[Any]) -> str | None:
    axes = operation.axes or range(given[0].rank)[::-1]
    return f"{given[0].name}.permute({tuple_of(list(axes))})"


def _reshape(operation: Any, given: list[Any]) -> str | None:
    shape = list(operation.newshape)
    if not shape or shape[0] not in (-1, None):
        return None
    rest = [-1 if size is None else size for size in shape[1:]]
    if -1 in rest:
        return None
    return f"{given[0].name}.reshape({tuple_of([-1, *rest])})"


def _joined(function: str) -> Callable[[Any, list[Any]], str | None]:
    def write(operation: Any, given: list[Any]) -> str | None:
        values = given[0] if isinstance(given[0], list | tuple) else given
        if not all(isinstance(value, Value) for value in values):
            return None
        names = ", ".join(value.name for value in values)
        return f"torch.{function}([{names}], {number(operation.axis)})"

    return write


def _where(operation: Any, given: list[Any]) -> str | None:
    sides = [_operand(each) for each in given]
    return None if None in sides else f"torch.where({', '.join(str(side) for side in sides)})"


def _get_item(operation: Any, given: list[Any]) -> str | None:
    x, key = given
    keys = list(key) if isinstance(key, tuple | list) else [key]
    parts = [_index(each) for each in keys]
    return None if None in parts else f"{x.name}[{', '.join(str(part) for part in parts)}]"


def _index(key: Any) -> str | None:
    if key is None or key is Ellipsis:
        return "None" if key is None else "..."
    if isinstance(key, slice):
        ends = (key.start, key.stop, key.step)
        if not all(end is None or isinstance(end, int) for end in ends) or (key.step or 1) < 1:
            return None
        texts = ["" if end is None else number(end) for end in ends]
        return ":".join(texts if texts[2] else texts[:2])
    return number(key) if isinstance(key, int) else None


_OTHERS: dict[str, Callable[[Any, list[Any]], str | None]] = {
    "ConvertToTensor": _converted,
    "OnesLike": _like("ones"),
    "ZerosLike": _like("zeros"),
    "Cast": _cast,
    "ExpandDims": _expand,
    "Squeeze": _squeeze,
    "Transpose": _transpose,
    "Reshape": _reshape,
    "Concatenate": _joined("cat"),
    "Stack": _joined("stack"),
    "Where": _where,
    "GetItem": _get_item,
}

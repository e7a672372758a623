"""TensorFlow's functions in terms of Keras 3's operations: one table, and what needs more words.

Every translation has the arguments of the TensorFlow function, under TensorFlow's names and with
its defaults; an argument that is not among them is refused. Operations of Keras 3 follow numpy, and
so do these functions, with the exceptions that are written out here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rnnconvert.keras_models.config.tensorflow_calls.slices import FUNCTIONS as _OF_SLICES
from rnnconvert.keras_models.config.tensorflow_calls.values import (
    CallTensor,
    Refused,
    Size,
    holds,
    require_numbers,
    whole_number,
)
from rnnconvert.keras_models.config.tensorflow_calls.writer import Writer

Translation = Callable[..., Any]

_TWO = """
    Add=math.add,add,__operators__.add,math.add_v2  Subtract=math.subtract,subtract,sub
    Multiply=math.multiply,multiply  Divide=math.divide,math.truediv,divide,truediv,realdiv
    FloorDivide=math.floordiv,floor_div  DivideNoNan=math.divide_no_nan,div_no_nan
    Mod=math.floormod,math.mod,mod  Power=math.pow,pow  Maximum=math.maximum,maximum
    Minimum=math.minimum,minimum
    Greater=math.greater,greater  GreaterEqual=math.greater_equal,greater_equal
    Less=math.less,less  LessEqual=math.less_equal,less_equal
    Equal=math.equal,equal,__operators__.eq  NotEqual=math.not_equal,not_equal,__operators__.ne
    LogicalAnd=math.logical_and,logical_and  LogicalOr=math.logical_or,logical_or
    LogicalXor=math.logical_xor
"""
_ONE = """
    Absolute=math.abs,abs  Negative=math.negative,negative,neg  Sign=math.sign,sign
    Square=math.square,square  Sqrt=math.sqrt,sqrt  Rsqrt=math.rsqrt,rsqrt
    Reciprocal=math.reciprocal,reciprocal
    Exp=math.exp,exp  Expm1=math.expm1  Log=math.log,log  Log1p=math.log1p,log1p
    Sin=math.sin,sin  Cos=math.cos,cos  Tan=math.tan,tan  Arcsin=math.asin,asin
    Arccos=math.acos,acos  Arctan=math.atan,atan  Sinh=math.sinh,sinh  Cosh=math.cosh,cosh
    Arcsinh=math.asinh,asinh  Arccosh=math.acosh,acosh  Arctanh=math.atanh,atanh
    Tanh=math.tanh,nn.tanh,tanh  Sigmoid=math.sigmoid,nn.sigmoid,sigmoid
    LogSigmoid=math.log_sigmoid,nn.log_sigmoid  Erf=math.erf
    Ceil=math.ceil,ceil  Floor=math.floor,floor  LogicalNot=math.logical_not,logical_not
    Isnan=math.is_nan  Isinf=math.is_inf  Isfinite=math.is_finite
    Relu=nn.relu  Relu6=nn.relu6  Selu=nn.selu  Softplus=nn.softplus,math.softplus
    Softsign=nn.softsign,math.softsign
"""
_REDUCTIONS = """
    Sum=math.reduce_sum,reduce_sum  Mean=math.reduce_mean,reduce_mean
    Max=math.reduce_max,reduce_max  Min=math.reduce_min,reduce_min
    Prod=math.reduce_prod,reduce_prod  Std=math.reduce_std  Var=math.reduce_variance
    All=math.reduce_all,reduce_all  Any=math.reduce_any,reduce_any
    Logsumexp=math.reduce_logsumexp,reduce_logsumexp
"""


def _pairs(table: str) -> list[tuple[str, list[str]]]:
    return [
        (operation, names.split(","))
        for operation, names in (item.split("=") for item in table.split())
    ]


def _two(operation: str) -> Translation:
    def translate(w: Writer, x: Any, y: Any) -> Any:
        if holds([x, y], Size):
            return _size_of(x, y)
        return w.op(operation, w.operand(x), w.operand(y))

    return translate


def _size_of(*parts: Any) -> Size:
    if holds(list(parts), CallTensor):
        raise Refused("it computes with a shape that is known only while the model runs")
    return Size()


def _one(operation: str) -> Translation:
    return lambda w, x: w.op(operation, x)


def _reduction(operation: str) -> Translation:
    def translate(
        w: Writer, input_tensor: Any, axis: Any = None, keepdims: Any = None,
        keep_dims: Any = None, reduction_indices: Any = None,
    ) -> Any:  # fmt: skip
        axis = require_numbers("axis", reduction_indices if axis is None else axis)
        if axis == []:
            return input_tensor  # no axis to reduce, where numpy would reduce all
        keep = bool(keep_dims if keepdims is None else keepdims)
        return w.op(operation, w.operand(input_tensor), axis=axis, keepdims=keep)

    return translate


# --- activations ----------------------------------------------------------------------------


def _softmax(w: Writer, logits: Any, axis: Any = None, dim: Any = None) -> Any:
    return w.op("Softmax", logits, axis=_last_by_default(axis, dim))


def _log_softmax(w: Writer, logits: Any, axis: Any = None, dim: Any = None) -> Any:
    return w.op("LogSoftmax", logits, axis=_last_by_default(axis, dim))


def _last_by_default(axis: Any, dim: Any) -> int:
    chosen = dim if axis is None else axis
    return -1 if chosen is None else whole_number("axis", chosen)


def _elu(w: Writer, features: Any) -> Any:
    return w.op("Elu", features, alpha=1.0)


def _leaky_relu(w: Writer, features: Any, alpha: Any = 0.2) -> Any:
    return w.op("LeakyRelu", features, negative_slope=require_numbers("alpha", alpha))


def _gelu(w: Writer, features: Any, approximate: Any = False) -> Any:
    return w.op("Gelu", features, approximate=bool(approximate))


def _silu(w: Writer, features: Any, beta: Any = 1.0) -> Any:
    if beta != 1.0:
        return w.op("Multiply", features, w.op("Sigmoid", w.op("Multiply", features, beta)))
    return w.op("Silu", features)


def _l2_normalize(
    w: Writer, x: Any, axis: Any = None, epsilon: Any = 1e-12, dim: Any = None
) -> Any:
    axis = require_numbers("axis", dim if axis is None else axis)
    squares = w.op("Sum", w.op("Square", x), axis=axis, keepdims=True)
    return w.op("Multiply", x, w.op("Rsqrt", w.op("Maximum", squares, epsilon)))


# --- arithmetic -----------------------------------------------------------------------------


def _atan2(w: Writer, y: Any, x: Any) -> Any:
    return w.op("Arctan2", w.operand(y), w.operand(x))


def _squared_difference(w: Writer, x: Any, y: Any) -> Any:
    return w.op("Square", w.op("Subtract", w.operand(x), w.operand(y)))


def _add_n(w: Writer, inputs: Any) -> Any:
    total, *others = inputs if isinstance(inputs, list) else [inputs]
    for other in others:
        total = w.op("Add", w.operand(total), w.operand(other))
    return total


def _clip_by_value(w: Writer, t: Any, clip_value_min: Any, clip_value_max: Any) -> Any:
    low, high = w.operand(clip_value_min), w.operand(clip_value_max)
    return w.op("Maximum", w.op("Minimum", t, high), low)


def _cast(w: Writer, x: Any, dtype: Any) -> Any:
    if isinstance(dtype, dict):
        dtype = dtype.get("config", {}).get("name", dtype)
    if not isinstance(dtype, str):
        raise Refused(f"its dtype is {dtype!r}")
    if holds(x, Size):
        return _size_of(x)
    return w.op("Cast", x, dtype=dtype)


def _round(w: Writer, x: Any) -> Any:
    return w.op("Round", x, decimals=0)


def _running(operation: str) -> Translation:
    def translate(
        w: Writer, x: Any, axis: Any = 0, exclusive: Any = False, reverse: Any = False
    ) -> Any:
        if exclusive:
            raise Refused("exclusive=True")
        axis = whole_number("axis", axis)
        if reverse:
            return w.op("Flip", w.op(operation, w.op("Flip", x, axis=axis), axis=axis), axis=axis)
        return w.op(operation, x, axis=axis)

    return translate


def _norm(
    w: Writer, tensor: Any, ord: Any = "euclidean", axis: Any = None, keepdims: Any = None
) -> Any:
    axis, keep = require_numbers("axis", axis), bool(keepdims)
    if ord == 1:
        return w.op("Sum", w.op("Absolute", tensor), axis=axis, keepdims=keep)
    if ord not in ("euclidean", 2) or (ord == 2 and isinstance(axis, list)):
        raise Refused(f"ord={ord!r}")
    return w.op("Sqrt", w.op("Sum", w.op("Square", tensor), axis=axis, keepdims=keep))


# --- products -------------------------------------------------------------------------------


def _matmul(
    w: Writer, a: Any, b: Any, transpose_a: Any = False, transpose_b: Any = False,
    adjoint_a: Any = False, adjoint_b: Any = False, a_is_sparse: Any = False,
    b_is_sparse: Any = False,
) -> Any:  # fmt: skip
    a, b = w.operand(a), w.operand(b)
    if transpose_a or adjoint_a:
        a = w.op("Swapaxes", a, axis1=-2, axis2=-1)
    if transpose_b or adjoint_b:
        b = w.op("Swapaxes", b, axis1=-2, axis2=-1)
    return w.op("Matmul", a, b)


def _tensordot(w: Writer, a: Any, b: Any, axes: Any) -> Any:
    axes = require_numbers("axes", axes)
    return w.op("Tensordot", w.operand(a), w.operand(b), axes=axes)


def _einsum(w: Writer, equation: Any, *inputs: Any) -> Any:
    if not isinstance(equation, str):
        raise Refused("its equation is not in the file")
    if len(inputs) == 1 and isinstance(inputs[0], list):
        inputs = tuple(inputs[0])
    return w.op("Einsum", *(w.operand(value) for value in inputs), subscripts=equation)


# --- choosing -------------------------------------------------------------------------------


def _where(w: Writer, condition: Any, x: Any = None, y: Any = None) -> Any:
    if x is None or y is None:
        raise Refused("without x and y its output has another length for every input")
    return w.op("Where", w.operand(condition), w.operand(x), w.operand(y))


def _select(w: Writer, condition: Any, x: Any = None, y: Any = None) -> Any:
    """TensorFlow 1's where, whose condition is of the values' shape, or says which rows to take.

    With all axes the other way round the rows come last, where a condition for them belongs.
    """
    if not all(isinstance(value, CallTensor) for value in (condition, x, y)):
        return _where(w, condition, x, y)
    turned = [w.op("Transpose", value, axes=None) for value in (condition, x, y)]
    return w.op("Transpose", w.op("Where", *turned), axes=None)


def _arg(operation: str) -> Translation:
    def translate(
        w: Writer, input: Any, axis: Any = None, output_type: Any = None, dimension: Any = None
    ) -> Any:
        axis = dimension if axis is None else axis
        return w.op(operation, input, axis=0 if axis is None else whole_number("axis", axis))

    return translate


def _top_k(w: Writer, input: Any, k: Any = 1, sorted: Any = True) -> Any:
    values = w.op("TopK", input, k=whole_number("k", k), sorted=bool(sorted))
    return [values, CallTensor(values.layer, 0, 1)]


def _one_hot(
    w: Writer, indices: Any, depth: Any, on_value: Any = None, off_value: Any = None,
    axis: Any = None, dtype: Any = None,
) -> Any:  # fmt: skip
    if on_value not in (None, 1) or off_value not in (None, 0):
        raise Refused(f"on_value={on_value!r}, off_value={off_value!r}")
    axis = -1 if axis is None else whole_number("axis", axis)
    dtype = dtype or "float32"
    return w.op("OneHot", indices, num_classes=whole_number("depth", depth), axis=axis, dtype=dtype)


# --- without effect while a model predicts --------------------------------------------------


def _same(w: Writer, input: Any, shape: Any = None) -> Any:
    return input  # of `identity_n` a list, one output for each


def _stop_gradient(w: Writer, input: Any) -> Any:
    return w.op("StopGradient", input)


def _moments(
    w: Writer, x: Any, axes: Any, shift: Any = None, keepdims: Any = None, keep_dims: Any = None
) -> Any:
    axes = require_numbers("axes", axes)
    keep = bool(keep_dims if keepdims is None else keepdims)
    return [w.op(name, x, axis=axes, keepdims=keep) for name in ("Mean", "Var")]


FUNCTIONS: dict[str, Translation] = {
    **{name: _two(operation) for operation, names in _pairs(_TWO) for name in names},
    **{name: _one(operation) for operation, names in _pairs(_ONE) for name in names},
    **{name: _reduction(operation) for operation, names in _pairs(_REDUCTIONS) for name in names},
    **_OF_SLICES,
    "add_n": _add_n,
    "atan2": _atan2,
    "cast": _cast,
    "clip_by_value": _clip_by_value,
    "einsum": _einsum,
    "ensure_shape": _same,
    "identity": _same,
    "identity_n": _same,
    "linalg.einsum": _einsum,
    "linalg.l2_normalize": _l2_normalize,
    "linalg.matmul": _matmul,
    "linalg.norm": _norm,
    "math.accumulate_n": _add_n,
    "math.add_n": _add_n,
    "math.atan2": _atan2,
    "math.argmax": _arg("Argmax"),
    "math.argmin": _arg("Argmin"),
    "argmax": _arg("Argmax"),
    "argmin": _arg("Argmin"),
    "math.cumprod": _running("Cumprod"),
    "math.cumsum": _running("Cumsum"),
    "cumsum": _running("Cumsum"),
    "math.l2_normalize": _l2_normalize,
    "math.round": _round,
    "math.squared_difference": _squared_difference,
    "math.top_k": _top_k,
    "matmul": _matmul,
    "nn.elu": _elu,
    "nn.gelu": _gelu,
    "nn.l2_normalize": _l2_normalize,
    "nn.leaky_relu": _leaky_relu,
    "nn.log_softmax": _log_softmax,
    "math.log_softmax": _log_softmax,
    "nn.moments": _moments,
    "nn.silu": _silu,
    "nn.swish": _silu,
    "nn.softmax": _softmax,
    "math.softmax": _softmax,
    "norm": _norm,
    "one_hot": _one_hot,
    "round": _round,
    "stop_gradient": _stop_gradient,
    "tensordot": _tensordot,
    "select": _select,
    "where": _where,
    "where_v2": _where,
}
"""TensorFlow's name of a function, without tf., compat.v1. and compat.v2., to its translation."""

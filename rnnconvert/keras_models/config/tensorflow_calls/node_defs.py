"""TensorFlow's ops, as a `TensorFlowOpLayer` of TensorFlow 1.14 to 2.3 holds them, as functions."""

from __future__ import annotations

import base64
from typing import Any

from rnnconvert.keras_models.config.tensorflow_calls.values import Refused
from rnnconvert.keras_models.config.tree import Config

_DTYPES = {
    "DT_FLOAT": "float32", "DT_DOUBLE": "float64", "DT_HALF": "float16",
    "DT_BFLOAT16": "bfloat16", "DT_INT8": "int8", "DT_INT16": "int16", "DT_INT32": "int32",
    "DT_INT64": "int64", "DT_UINT8": "uint8", "DT_BOOL": "bool",
}  # fmt: skip

_OPS = """
    Add:math.add:x,y  AddV2:math.add:x,y  Sub:math.subtract:x,y  Mul:math.multiply:x,y
    RealDiv:math.divide:x,y  Div:math.divide:x,y  FloorDiv:math.floordiv:x,y
    DivNoNan:math.divide_no_nan:x,y  FloorMod:math.floormod:x,y  Pow:math.pow:x,y
    Maximum:math.maximum:x,y  Minimum:math.minimum:x,y  Atan2:math.atan2:y,x
    SquaredDifference:math.squared_difference:x,y
    Greater:math.greater:x,y  GreaterEqual:math.greater_equal:x,y  Less:math.less:x,y
    LessEqual:math.less_equal:x,y  Equal:math.equal:x,y  NotEqual:math.not_equal:x,y
    LogicalAnd:math.logical_and:x,y  LogicalOr:math.logical_or:x,y  LogicalNot:math.logical_not:x
    Abs:math.abs:x  Neg:math.negative:x  Sign:math.sign:x  Square:math.square:x  Sqrt:math.sqrt:x
    Rsqrt:math.rsqrt:x  Reciprocal:math.reciprocal:x  Inv:math.reciprocal:x  Exp:math.exp:x
    Expm1:math.expm1:x  Log:math.log:x  Log1p:math.log1p:x  Sin:math.sin:x  Cos:math.cos:x
    Tan:math.tan:x  Asin:math.asin:x  Acos:math.acos:x  Atan:math.atan:x  Sinh:math.sinh:x
    Cosh:math.cosh:x  Asinh:math.asinh:x  Acosh:math.acosh:x  Atanh:math.atanh:x
    Tanh:math.tanh:x  Sigmoid:math.sigmoid:x  Erf:math.erf:x  Ceil:math.ceil:x
    Floor:math.floor:x  Round:math.round:x  Rint:math.round:x  IsNan:math.is_nan:x
    IsInf:math.is_inf:x  IsFinite:math.is_finite:x
    Relu:nn.relu:x  Relu6:nn.relu6:x  Selu:nn.selu:x  Elu:nn.elu:x  Softplus:nn.softplus:x
    Softsign:nn.softsign:x  LeakyRelu:nn.leaky_relu:x:alpha=alpha
    Softmax:nn.softmax:logits  LogSoftmax:nn.log_softmax:logits
    Sum:math.reduce_sum:x,axis:keep_dims=keepdims  Mean:math.reduce_mean:x,axis:keep_dims=keepdims
    Max:math.reduce_max:x,axis:keep_dims=keepdims  Min:math.reduce_min:x,axis:keep_dims=keepdims
    Prod:math.reduce_prod:x,axis:keep_dims=keepdims
    All:math.reduce_all:x,axis:keep_dims=keepdims  Any:math.reduce_any:x,axis:keep_dims=keepdims
    ArgMax:math.argmax:x,axis  ArgMin:math.argmin:x,axis
    Cumsum:math.cumsum:x,axis:exclusive=exclusive,reverse=reverse
    Cumprod:math.cumprod:x,axis:exclusive=exclusive,reverse=reverse
    MatMul:linalg.matmul:a,b:transpose_a=transpose_a,transpose_b=transpose_b
    BatchMatMul:linalg.matmul:a,b:adj_x=transpose_a,adj_y=transpose_b
    BatchMatMulV2:linalg.matmul:a,b:adj_x=transpose_a,adj_y=transpose_b
    Select:select:condition,x,y  SelectV2:where:condition,x,y
    Cast:cast:x:DstT=dtype  Shape:shape:input  Reshape:reshape:tensor,shape
    Transpose:transpose:a,perm  ExpandDims:expand_dims:input,axis
    Squeeze:squeeze:input:squeeze_dims=axis  Tile:tile:input,multiples
    Pad:pad:tensor,paddings  PadV2:pad:tensor,paddings,constant_values
    MirrorPad:pad:tensor,paddings:mode=mode  ReverseV2:reverse:tensor,axis
    Split:split:axis,value:num_split=num_or_size_splits
    SplitV:split:value,num_or_size_splits,axis  Unpack:unstack:value:axis=axis,num=num
    OneHot:one_hot:indices,depth,on_value,off_value:axis=axis,T=dtype
    GatherV2:gather:params,indices,axis:batch_dims=batch_dims  Slice:slice:input_,begin,size
    TopKV2:math.top_k:input,k:sorted=sorted
    ClipByValue:clip_by_value:t,clip_value_min,clip_value_max
    BiasAdd:math.add:x,y  ZerosLike:zeros_like:input  OnesLike:ones_like:input
    Identity:identity:input  StopGradient:stop_gradient:input  Snapshot:identity:input
"""
"""Op, function, names of its inputs in order, and which attribute is which argument."""

_IRREGULAR = ("ConcatV2", "Concat", "Pack", "AddN", "IdentityN", "StridedSlice", "Einsum")


def _read(table: str) -> dict[str, tuple[str, list[str], dict[str, str]]]:
    known = {}
    for line in table.split():
        op, function, inputs, *rest = line.split(":")
        attributes = dict(pair.split("=") for pair in rest[0].split(",")) if rest else {}
        known[op] = (function, inputs.split(","), attributes)
    return known


_KNOWN = _read(_OPS)


def is_known_op(op: object) -> bool:
    """Whether an op has a translation; nothing else of TensorFlow is ever run."""
    return op in _KNOWN or op in _IRREGULAR


def node_of(config: Config) -> Config:
    """The node_def of a TensorFlowOpLayer's config.

    Raises:
        Refused: it is not in the form of JSON.
    """
    node = config.get("node_def")
    if not isinstance(node, dict) or not isinstance(node.get("op"), str):
        raise Refused("its node_def is not in a form that rnnconvert reads")
    return node


def as_function(config: Config, tensors: list[Any]) -> tuple[str, list[Any], dict[str, Any]]:
    """What an op computes, as a function of TensorFlow with its arguments.

    Args:
        config: of the layer: `node_def`, and the `constants` among its inputs by place.
        tensors: what the layer is called with: its other inputs, in order.

    Returns:
        The function's name, positional and keyword arguments.

    Raises:
        Refused: there is no translation of this op.
    """
    node = node_of(config)
    op, attributes = node["op"], node.get("attr") or {}
    inputs = _inputs(config.get("constants") or {}, tensors)
    if op in ("ConcatV2", "Concat"):
        *values, axis = inputs if op == "ConcatV2" else [*inputs[1:], inputs[0]]
        return "concat", [values, axis], {}
    if op == "Pack":
        return "stack", [inputs, _attribute(attributes.get("axis", {"i": 0}))], {}
    if op in ("AddN", "IdentityN"):
        return {"AddN": "add_n", "IdentityN": "identity_n"}[op], [inputs], {}
    if op == "Einsum":
        return "einsum", [_text(attributes.get("equation", {})), *inputs], {}
    if op == "StridedSlice":
        return "__operators__.getitem", [inputs[0], _slices(inputs[1:], attributes)], {}
    if op not in _KNOWN:
        raise Refused(op)
    function, names, by_attribute = _KNOWN[op]
    keywords = dict(zip(names, inputs, strict=False))
    for name, argument in by_attribute.items():
        if name in attributes:
            read = _text if name == "mode" else _attribute
            keywords[argument] = read(attributes[name])
    return function, [keywords.pop(_first(function, names))], keywords


def _first(function: str, names: list[str]) -> str:
    """The argument that the function takes first; only `Split` has it second."""
    return "value" if function == "split" else names[0]


def _inputs(constants: Config, tensors: list[Any]) -> list[Any]:
    given = {int(place): value for place, value in constants.items()}
    rest = iter(tensors)
    count = len(given) + len(tensors)
    return [given[place] if place in given else next(rest) for place in range(count)]


def _attribute(value: Config) -> Any:
    """An attribute of the protobuf's JSON: numbers may be strings there, and zeros left out."""
    if "type" in value:
        return _DTYPES.get(value["type"], value["type"])
    if "b" in value:
        return bool(value["b"])
    if "f" in value:
        return float(value["f"])
    if "list" in value:
        return [int(number) for number in value["list"].get("i", [])]
    return int(value.get("i", 0))


def _text(value: Config) -> str:
    return base64.b64decode(value.get("s", "")).decode("utf-8", "replace")


def _slices(places: list[Any], attributes: Config) -> list[Any]:
    """The key of a StridedSlice: begin, end, strides, and five masks with a bit for each part."""
    begin, end, strides = places
    if not all(isinstance(part, list) for part in places):
        raise Refused("a place of its slice is computed while the model runs")
    masks = {
        kind: _attribute(attributes.get(f"{kind}_mask", {}))
        for kind in ("ellipsis", "new_axis", "shrink_axis", "begin", "end")
    }
    key: list[Any] = []
    for place, (start, stop, step) in enumerate(zip(begin, end, strides, strict=True)):
        has = {kind: bool(mask >> place & 1) for kind, mask in masks.items()}
        if has["ellipsis"]:
            key.append(Ellipsis)
        elif has["new_axis"]:
            key.append(None)
        elif has["shrink_axis"]:
            key.append(start)
        else:
            start = None if has["begin"] else start
            key.append(slice(start, None if has["end"] else stop, step))
    return key

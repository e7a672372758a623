"""Convolution, pooling and normalization."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from rnnconvert.exports.torch_module.calls import LayerCall, activated, weight
from rnnconvert.exports.torch_module.emitter import Array, Value, arguments, number, tuple_of

# --- convolution and pooling ----------------------------------------------------------------


def _to_front(call: LayerCall) -> tuple[str, bool]:
    """The input with its channels in front, and whether they were behind."""
    if call.layer.data_format == "channels_first":
        return call.x, False
    return call.emitter.set(f"{call.x}.movedim(-1, 1)"), True


def _to_back(call: LayerCall, name: str, moved: bool) -> str:
    return call.emitter.set(f"{name}.movedim(1, -1)") if moved else name


def _padded(call: LayerCall, x: str) -> str:
    """The input of a convolution with its padding."""
    layer = call.layer
    if layer.padding == "same":
        sizes = arguments(layer.kernel_size, layer.strides, layer.dilation_rate)
        return call.emitter.set(f"pad_same({x}, {sizes})")
    if layer.padding == "causal":
        before = layer.dilation_rate[0] * (layer.kernel_size[0] - 1)
        return call.emitter.set(f"F.pad({x}, ({before}, 0))")
    return x


def write_convolution(call: LayerCall) -> str:
    layer = call.layer
    kernel, bias = weight(layer.kernel), weight(layer.bias if layer.use_bias else None)
    assert kernel is not None
    groups = layer.groups
    source = _conv_source(layer, kernel.shape[-2] * groups, kernel.shape[-1], groups, bias)
    turned = np.moveaxis(kernel, (-1, -2), (0, 1))
    module = call.module("conv", source, weight=turned, bias=bias)
    return _convolved(call, module)


def write_depthwise(call: LayerCall) -> str:
    layer = call.layer
    kernel, bias = weight(layer.kernel), weight(layer.bias if layer.use_bias else None)
    assert kernel is not None
    turned = _depthwise_kernel(kernel)
    source = _conv_source(layer, kernel.shape[-2], len(turned), kernel.shape[-2], bias)
    module = call.module("conv", source, weight=turned, bias=bias)
    return _convolved(call, module)


def write_separable(call: LayerCall) -> str:
    layer, emitter = call.layer, call.emitter
    depthwise, pointwise = weight(layer.depthwise_kernel), weight(layer.pointwise_kernel)
    assert depthwise is not None
    assert pointwise is not None
    bias = weight(layer.bias if layer.use_bias else None)
    channels = depthwise.shape[-2]
    first = _depthwise_kernel(depthwise)
    one = emitter.module(
        (id(layer), 0), "conv", _conv_source(layer, channels, len(first), channels, None),
        {"weight": first}, layer.name,
    )  # fmt: skip
    turned = np.moveaxis(pointwise, (-1, -2), (0, 1))
    sizes = arguments(turned.shape[1], turned.shape[0], 1, bias=False if bias is None else None)
    tensors = {"weight": turned} | ({} if bias is None else {"bias": bias})
    source = f"nn.Conv{pointwise.ndim - 2}d({sizes})"
    other = emitter.module((id(layer), 1), "conv", source, tensors, layer.name)
    x, moved = _to_front(call)
    y = emitter.set(f"{other}({one}({_padded(call, x)}))")
    return activated(call, _to_back(call, y, moved), layer.activation)


def _depthwise_kernel(kernel: Array) -> Array:
    """(..., channels, multiplier) to (channels * multiplier, 1, ...)."""
    turned = np.moveaxis(kernel, (-2, -1), (0, 1))
    return turned.reshape(-1, 1, *turned.shape[2:])


def _conv_source(layer: Any, inputs: int, outputs: int, groups: int, bias: Array | None) -> str:
    dimensions = len(layer.kernel_size)
    named = {
        "stride": tuple(layer.strides) if set(layer.strides) != {1} else None,
        "dilation": tuple(layer.dilation_rate) if set(layer.dilation_rate) != {1} else None,
        "groups": groups if groups != 1 else None,
        "bias": False if bias is None else None,
    }
    sizes = arguments(inputs, outputs, tuple(layer.kernel_size), **named)
    return f"nn.Conv{dimensions}d({sizes})"


def _convolved(call: LayerCall, module: str) -> str:
    x, moved = _to_front(call)
    y = call.emitter.set(f"{module}({_padded(call, x)})")
    return activated(call, _to_back(call, y, moved), call.layer.activation)


def write_pool(function: str) -> Callable[[LayerCall], str]:
    def write(call: LayerCall) -> str:
        layer = call.layer
        x, moved = _to_front(call)
        sizes = arguments(tuple(layer.pool_size), tuple(layer.strides), layer.padding == "same")
        return _to_back(call, call.emitter.set(f"{function}({x}, {sizes})"), moved)

    return write


def write_global_pool(function: str) -> Callable[[LayerCall], list[Value]]:
    def write(call: LayerCall) -> list[Value]:
        layer, value = call.layer, call.inputs[0]
        is_last = layer.data_format != "channels_first"
        axes = tuple(range(1, value.rank - 1) if is_last else range(2, value.rank))
        keep = ", keepdim=True" if layer.keepdims else ""
        if function == "mean" and value.rank == 3 and call.mask():
            if keep or not is_last:
                call.refuse("a mask with keepdims or channels_first")
            name = call.emitter.set(f"masked_mean({value.name}, {call.mask()})")
        else:
            name = call.emitter.set(f"{value.name}.{function}({tuple_of(axes)}{keep})")
        return [Value(name, call.shapes[0])]

    return write


# --- normalization --------------------------------------------------------------------------


def write_batch_normalization(call: LayerCall) -> str:
    layer = call.layer
    axis = layer.axis if isinstance(layer.axis, int) else layer.axis[0]
    mean, variance = weight(layer.moving_mean), weight(layer.moving_variance)
    assert mean is not None
    gamma = weight(layer.gamma if layer.scale else None)
    beta = weight(layer.beta if layer.center else None)
    named = {"eps": layer.epsilon, "momentum": 1 - layer.momentum}
    source = f"nn.BatchNorm1d({arguments(len(mean), **named)})"
    module = call.module(
        "norm",
        source,
        weight=np.ones_like(mean) if gamma is None else gamma,
        bias=np.zeros_like(mean) if beta is None else beta,
        running_mean=mean,
        running_var=variance,
        num_batches_tracked=np.array(0, np.int64),
    )
    axis = call.axis(axis)
    if call.rank == 2:
        return call.emitter.set(f"{module}({call.x})")
    moved = axis != call.rank - 1
    x = call.emitter.set(f"{call.x}.movedim({axis}, -1)") if moved else call.x
    y = call.emitter.set(f"{module}({x}.flatten(0, -2)).view(*{x}.shape)")
    return call.emitter.set(f"{y}.movedim(-1, {axis})") if moved else y


def write_layer_normalization(call: LayerCall) -> str:
    layer = call.layer
    axes = [layer.axis] if isinstance(layer.axis, int) else list(layer.axis)
    axes = sorted(call.axis(axis) for axis in axes)
    if axes != list(range(call.rank - len(axes), call.rank)):
        return call.refuse("over other axes than the last ones")
    if getattr(layer, "rms_scaling", False):
        return call.refuse("rms_scaling")
    gamma = weight(layer.gamma if layer.scale else None)
    beta = weight(layer.beta if layer.center else None)
    shape = tuple(call.inputs[0].shape[axis] for axis in axes)
    if None in shape:
        return call.refuse("over an axis of unknown size")
    is_affine = gamma is not None or beta is not None
    source = f"nn.LayerNorm({arguments(shape, eps=layer.epsilon)}{'' if is_affine else _PLAIN})"
    if is_affine:
        gamma = np.ones(shape, beta.dtype) if gamma is None and beta is not None else gamma
        beta = np.zeros(shape, gamma.dtype) if beta is None and gamma is not None else beta
    module = call.module("norm", source, weight=gamma, bias=beta)
    return call.emitter.set(f"{module}({call.x})")


_PLAIN = ", elementwise_affine=False"


def write_unit_normalization(call: LayerCall) -> str:
    if not isinstance(call.layer.axis, int):
        return call.refuse("several axes")
    return call.emitter.set(f"F.normalize({call.x}, dim={number(call.layer.axis)})")


def write_rescaling(call: LayerCall) -> str:
    layer = call.layer
    if np.ndim(layer.scale) or np.ndim(layer.offset):
        return call.refuse("a scale for each channel")
    return call.emitter.set(f"{call.x} * {number(layer.scale)} + {number(layer.offset)}")

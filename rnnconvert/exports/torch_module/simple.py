"""Dense and Embedding, activations, and layers that only change shapes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rnnconvert.exports.torch_module.calls import LayerCall, activated, weight
from rnnconvert.exports.torch_module.emitter import Value, arguments, number, tuple_of

# --- dense, embedding -----------------------------------------------------------------------


def write_dense(call: LayerCall) -> str:
    layer = call.layer
    kernel, bias = weight(layer.kernel), weight(layer.bias if layer.use_bias else None)
    assert kernel is not None
    source = f"nn.Linear({arguments(*kernel.shape, bias=None if bias is not None else False)})"
    module = call.module("linear", source, weight=kernel.T, bias=bias)
    return activated(call, call.emitter.set(f"{module}({call.x})"), layer.activation)


def write_embedding(call: LayerCall) -> list[Value]:
    values = weight(call.layer.embeddings)
    assert values is not None
    source = f"nn.Embedding({arguments(*values.shape)})"
    module = call.module("embedding", source, weight=values)
    name = call.emitter.set(f"{module}({call.x}.long())")
    mask = call.emitter.set(f"{call.x} != 0", "m") if call.layer.mask_zero else None
    return [Value(name, call.shapes[0], mask)]


def write_masking(call: LayerCall) -> list[Value]:
    mask = call.emitter.set(f"({call.x} != {number(call.layer.mask_value)}).any(-1)", "m")
    name = call.emitter.set(f"{call.x}.masked_fill(~{mask}[..., None], 0)")
    return [Value(name, call.shapes[0], mask)]


# --- activations ----------------------------------------------------------------------------


def write_activation(call: LayerCall) -> str:
    return activated(call, call.x, call.layer.activation)


def write_relu(call: LayerCall) -> str:
    layer, x = call.layer, call.x
    slope, threshold = float(layer.negative_slope or 0), float(layer.threshold or 0)
    if threshold:
        low = f"{number(slope)} * ({x} - {number(threshold)})"
        x = call.emitter.set(f"torch.where({x} >= {number(threshold)}, {x}, {low})")
    else:
        x = call.emitter.set(f"F.leaky_relu({x}, {number(slope)})")
    if layer.max_value is not None:
        x = call.emitter.set(f"{x}.clamp(max={number(layer.max_value)})")
    return x


def write_leaky_relu(call: LayerCall) -> str:
    return call.emitter.set(f"F.leaky_relu({call.x}, {number(call.layer.negative_slope)})")


def write_elu(call: LayerCall) -> str:
    return call.emitter.set(f"F.elu({call.x}, {number(call.layer.alpha)})")


def write_prelu(call: LayerCall) -> str:
    alpha = weight(call.layer.alpha)
    assert alpha is not None
    module = call.module("prelu", f"Factor({tuple_of(alpha.shape)})", weight=alpha)
    return call.emitter.set(f"torch.where({call.x} > 0, {call.x}, {module}({call.x}))")


def write_softmax(call: LayerCall) -> str:
    if call.inputs[0].mask or call.kwargs.get("mask") is not None:
        return call.refuse("a mask")
    axis = call.layer.axis
    if not isinstance(axis, int):
        return call.refuse("several axes")
    return call.emitter.set(f"torch.softmax({call.x}, {number(axis)})")


def write_same(call: LayerCall) -> str:
    return call.x


def write_dropout(call: LayerCall) -> str:
    module = call.module("dropout", f"nn.Dropout({number(call.layer.rate)})")
    return call.emitter.set(f"{module}({call.x})")


# --- shapes ---------------------------------------------------------------------------------


def write_flatten(call: LayerCall) -> str:
    x = call.x
    if call.layer.data_format == "channels_first" and call.rank > 2:
        x = call.emitter.set(f"{x}.movedim(1, -1)")
    return call.emitter.set(f"{x}.flatten(1)" if call.rank > 1 else f"{x}[:, None]")


def write_reshape(call: LayerCall) -> str:
    target = tuple_of(call.layer.target_shape)
    return call.emitter.set(f"{call.x}.reshape(len({call.x}), *{target})")


def write_permute(call: LayerCall) -> str:
    return call.emitter.set(f"{call.x}.permute({arguments(0, *call.layer.dims)})")


def write_repeat(call: LayerCall) -> str:
    return call.emitter.set(f"{call.x}[:, None].expand(-1, {number(call.layer.n)}, -1)")


def write_zero_padding(call: LayerCall) -> str:
    if getattr(call.layer, "data_format", None) == "channels_first":
        return call.refuse("channels_first")
    sides = _pairs(call.layer.padding)
    return call.emitter.set(f"F.pad({call.x}, {tuple_of([0, 0, *_reversed_pairs(sides)])})")


def write_cropping(call: LayerCall) -> str:
    if getattr(call.layer, "data_format", None) == "channels_first":
        return call.refuse("channels_first")
    sides = [(-before, -after) for before, after in _pairs(call.layer.cropping)]
    return call.emitter.set(f"F.pad({call.x}, {tuple_of([0, 0, *_reversed_pairs(sides)])})")


def _pairs(sides: Any) -> list[tuple[int, int]]:
    """(before, after) of each axis: layers for one axis have the pair itself."""
    return [(sides[0], sides[1])] if isinstance(sides[0], int) else [(a, b) for a, b in sides]


def _reversed_pairs(sides: Sequence[tuple[int, int]]) -> list[int]:
    return [side for pair in reversed(sides) for side in pair]


def write_up_sampling(call: LayerCall) -> str:
    layer = call.layer
    if getattr(layer, "interpolation", "nearest") != "nearest":
        return call.refuse(f"interpolation {layer.interpolation!a}")
    if getattr(layer, "data_format", None) == "channels_first":
        return call.refuse("channels_first")
    sizes = layer.size if isinstance(layer.size, tuple | list) else [layer.size]
    x = call.x
    for axis, size in enumerate(sizes, start=1):
        x = call.emitter.set(f"{x}.repeat_interleave({number(size)}, {axis})")
    return x

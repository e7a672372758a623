"""Layers of several inputs: merging, and attention."""

from __future__ import annotations

from collections.abc import Callable

from rnnconvert.exports.torch_module.calls import LayerCall, weight
from rnnconvert.exports.torch_module.emitter import Value, arguments, tuple_of

# --- merging --------------------------------------------------------------------------------


def write_joined(sign: str) -> Callable[[LayerCall], str]:
    def write(call: LayerCall) -> str:
        if len({value.rank for value in call.inputs}) > 1:
            return call.refuse("inputs of several ranks")
        return call.emitter.set(f" {sign} ".join(value.name for value in call.inputs))

    return write


def write_average(call: LayerCall) -> str:
    if len({value.rank for value in call.inputs}) > 1:
        return call.refuse("inputs of several ranks")
    names = " + ".join(value.name for value in call.inputs)
    return call.emitter.set(f"({names}) / {len(call.inputs)}")


def write_folded(function: str) -> Callable[[LayerCall], str]:
    def write(call: LayerCall) -> str:
        if len({value.rank for value in call.inputs}) > 1:
            return call.refuse("inputs of several ranks")
        found = call.inputs[0].name
        for value in call.inputs[1:]:
            found = call.emitter.set(f"{function}({found}, {value.name})")
        return found

    return write


def write_concatenate(call: LayerCall) -> list[Value]:
    axis = call.axis(call.layer.axis)
    names = ", ".join(value.name for value in call.inputs)
    name = call.emitter.set(f"torch.cat([{names}], {axis})")
    return [Value(name, call.shapes[0], _concatenated_mask(call, axis))]


def _concatenated_mask(call: LayerCall, axis: int) -> str | None:
    """As Keras has it: inputs without a mask count everywhere."""
    masks = [value.mask for value in call.inputs]
    if all(mask is None for mask in masks):
        return None
    if call.rank != 3:
        call.refuse("masked inputs that are no sequences")
        return None
    all_of = [
        value.mask or call.emitter.set(
            f"torch.ones({value.name}.shape[:2], dtype=torch.bool, device={value.name}.device)",
            "m",
        )
        for value in call.inputs
    ]  # fmt: skip
    source = f"torch.cat([{', '.join(all_of)}], 1)" if axis == 1 else " | ".join(all_of)
    return call.emitter.set(source, "m")


def write_dot(call: LayerCall) -> list[Value]:
    axes = call.layer.axes
    given = (axes, axes) if isinstance(axes, int) else tuple(axes)
    found = [axis % value.rank for axis, value in zip(given, call.inputs, strict=True)]
    names = ", ".join(value.name for value in call.inputs)
    more = arguments(tuple(found), bool(call.layer.normalize))
    return [Value(call.emitter.set(f"merge_dot({names}, {more})"), call.shapes[0])]


# --- attention ------------------------------------------------------------------------------


_MODES = {"dot": "dot", "concat": "concat", "additive": "additive"}


def write_attention(call: LayerCall) -> list[Value]:
    layer = call.layer
    if any(call.kwargs.get(name) for name in ("return_attention_scores", "use_causal_mask")):
        call.refuse("with a causal mask, or giving its scores")
    tensors = {"scale": weight(layer.scale)}
    mode = "additive" if type(layer).__name__ == "AdditiveAttention" else layer.score_mode
    if mode == "concat":
        tensors["concat_score_weight"] = weight(layer.concat_score_weight)
    given = {name: array for name, array in tensors.items() if array is not None}
    shapes = ", ".join(f"{name}={tuple_of(array.shape) if array.shape else '()'}"
                       for name, array in given.items())  # fmt: skip
    source = f'Attention("{_MODES[mode]}"{", " if shapes else ""}{shapes})'
    module = call.module("attention", source, **given)
    query, value, *rest = call.inputs
    key = rest[0] if rest else value
    masks = "".join(
        f", {which}_mask={call.mask(place)}"
        for place, which in enumerate(("query", "value"))
        if call.mask(place)
    )
    name = call.emitter.set(f"{module}({query.name}, {value.name}, {key.name}{masks})")
    return [Value(name, call.shapes[0], call.mask())]

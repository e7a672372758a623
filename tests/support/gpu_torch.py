"""torch's LSTM, GRU and RNN with given weights, and what cuDNN makes of their parameter buffer.

torch keeps four tensors for each pseudo-layer (five with a projection): weight_ih (gates*units,
in), weight_hh (gates*units, out), bias_ih and bias_hh (gates*units,), weight_hr (out, units). Its
gates are cuDNN's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from equations import Array, State, canonical_forward

from rnnconvert.layouts import RnnWeights
from rnnconvert.layouts.opaque import PseudoLayer
from rnnconvert.layouts.opaque_shape import OpaqueShape

MODES = {"rnn_relu": 0, "rnn_tanh": 1, "lstm": 2, "gru": 3}
"""cuDNN's numbers, which torch takes over."""
Stack = list[PseudoLayer]


def random_stack(shape: OpaqueShape, dtype: str, seed: int = 0) -> Stack:
    """Random weights for every pseudo-layer, no bias zero, no two halves alike."""
    rng = np.random.default_rng(seed)
    gates, units, out = len(shape.gates), shape.num_units, shape.output_size
    directions = len(shape.directions)

    def normal(*axes: int) -> Array:
        return rng.normal(0.0, 0.4, axes).astype(dtype)

    return [
        PseudoLayer(
            shape.cell, layer, direction,
            kernel=normal(gates, units, directions * out if layer else shape.input_size),
            recurrent=normal(gates, units, out),
            bias=normal(2, gates, units),
            projection=normal(out, units) if shape.projection else None,
        )
        for layer in range(shape.num_layers)
        for direction in shape.directions
    ]  # fmt: skip


def random_inputs(shape: OpaqueShape, batch: int, time: int, dtype: str) -> tuple[Array, State]:
    """An input (batch, time, inputs), and states (pseudo-layers, batch, units), h and c."""
    rng = np.random.default_rng(1)
    places = shape.num_layers * len(shape.directions)
    sizes = [(batch, time, shape.input_size), (places, batch, shape.output_size),
             (places, batch, shape.num_units)]  # fmt: skip
    x, h, c = (rng.normal(size=size).astype(dtype) for size in sizes)
    return x, (h, c)


def expected_output(shape: OpaqueShape, stack: Stack, x: Array, state: State) -> Array:
    """The last layer's output (batch, time, directions * units) by the equations, in float64."""
    directions = len(shape.directions)
    x = x.astype(np.float64)
    for first in range(0, len(stack), directions):
        outputs = []
        for number in range(first, first + directions):
            layer = stack[number]
            assert layer.kernel is not None
            arrays = (layer.kernel, layer.recurrent, layer.bias)
            weights = RnnWeights(layer.cell, *(array.astype(np.float64) for array in arrays))
            turn = slice(None, None, -1 if number > first else 1)
            start = (state[0][number].astype(np.float64), state[1][number].astype(np.float64))
            outputs.append(canonical_forward(weights, x[:, turn], start)[:, turn])
        x = np.concatenate(outputs, axis=2)
    return x


def module_of(shape: OpaqueShape, stack: Sequence[PseudoLayer], device: str) -> Any:
    """A torch module with these weights."""
    import torch

    options: dict[str, Any] = {
        "num_layers": shape.num_layers,
        "bidirectional": shape.direction == "bidirectional",
    }
    if shape.cell.startswith("rnn_"):
        options["nonlinearity"] = shape.cell.removeprefix("rnn_")
    if shape.projection:
        options["proj_size"] = shape.projection
    kind = {"lstm": torch.nn.LSTM, "gru": torch.nn.GRU}.get(shape.cell, torch.nn.RNN)
    values = {}
    for layer in stack:
        suffix = f"_l{layer.layer}" + {"forward": "", "backward": "_reverse"}[layer.direction]
        assert layer.kernel is not None
        values[f"weight_ih{suffix}"] = layer.kernel.reshape(-1, layer.kernel.shape[2])
        values[f"weight_hh{suffix}"] = layer.recurrent.reshape(-1, layer.recurrent.shape[2])
        values[f"bias_ih{suffix}"], values[f"bias_hh{suffix}"] = layer.bias.reshape(2, -1)
        if layer.projection is not None:
            values[f"weight_hr{suffix}"] = layer.projection
    tensors = {name: torch.tensor(array) for name, array in values.items()}
    dtype = tensors["weight_hh_l0"].dtype
    module = kind(shape.input_size, shape.num_units, batch_first=True, dtype=dtype, **options)
    module.load_state_dict(tensors)
    return module.to(device)


def run_module(module: Any, cell: str, x: Array, state: State, device: str) -> Array:
    """The last layer's output (batch, time, directions * units)."""
    import torch

    h, c = (torch.tensor(part, device=device) for part in state)
    with torch.no_grad():
        output, _ = module(torch.tensor(x, device=device), (h, c) if cell == "lstm" else h)
    return output.cpu().numpy()


def buffer_of(module: Any, shape: OpaqueShape, device: str) -> Array:
    """The flat buffer of a module's weights: cuDNN's own on a GPU.

    On a CPU, where torch has no such function, the tensors are put together as cuDNN's guide says:
    the matrices of all pseudo-layers, then their biases.
    """
    import torch

    if device == "cuda":
        with torch.no_grad():
            return torch._cudnn_rnn_flatten_weight(*flatten_arguments(module, shape)).cpu().numpy()
    matrices, biases = [], []
    for own in module.all_weights:
        matrices += [*own[:2], *own[4:]]
        biases += own[2:4]
    return torch.cat([part.detach().flatten() for part in matrices + biases]).numpy()


def flatten_arguments(module: Any, shape: OpaqueShape) -> tuple[Any, ...]:
    """Arguments of torch._cudnn_rnn_flatten_weight, which makes copies and never changes them."""
    weights = [part.detach().clone() for own in module.all_weights for part in own]
    return (
        weights, len(module.all_weights[0]), shape.input_size, MODES[shape.cell], shape.num_units,
        shape.projection, shape.num_layers, True, shape.direction == "bidirectional",
    )  # fmt: skip


def cudnn_arguments(
    module: Any, shape: OpaqueShape, buffer: Array, x: Array, state: State, device: str
) -> tuple[Any, ...]:
    """Arguments of torch._cudnn_rnn for inference on a flat buffer.

    It also wants the single weights, for their shapes. They are NaN: what comes out can only come
    from the buffer.
    """
    import torch

    nothing = [torch.full_like(part, torch.nan) for own in module.all_weights for part in own]
    x_given = torch.tensor(x, device=device).transpose(0, 1).contiguous()
    h, c = (torch.tensor(part, device=device) for part in state)
    return (
        x_given, nothing, len(module.all_weights[0]), torch.tensor(buffer, device=device), h,
        c if shape.cell == "lstm" else None, MODES[shape.cell], shape.num_units, shape.projection,
        shape.num_layers, False, 0.0, False, shape.direction == "bidirectional", [], None,
    )  # fmt: skip

"""Keras 1's recurrent layers, gate by gate, on its own arrays. float64.

Written from the equations of Keras 1's `step`; it shares no code with the reading of its files.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from rnnconvert.errors import DifferenceError
from rnnconvert.keras_models.files.h5 import KerasH5
from rnnconvert.keras_models.files.keras1 import parse_keras1_name
from rnnconvert.references import keras as keras_reference
from rnnconvert.references.keras import ACTIVATIONS, Float

_CELLS = {"c": "lstm", "h": "gru_reset_before"}
"""The gate that only this cell has, to the cell."""
_STEPS, _BATCH = 5, 3


def check_joined(source: KerasH5, rebuilt: KerasH5, seed: int) -> str:
    """Every recurrent layer's separate arrays against the joined ones, by either one's equations.

    Args:
        source: the file of Keras 1.
        rebuilt: what was made of it.
        seed: of the random input.

    Returns:
        A sentence for the report; "" where no arrays were joined.

    Raises:
        DifferenceError: a layer computes something else.
    """
    generator = np.random.default_rng(seed)
    paths = {tensor.name: tensor.path for group in rebuilt.groups.values() for tensor in group}
    layers = _separate(source)
    for (group, layer), arrays in layers.items():
        scope = layer if layer == group else f"{group}/{layer}"
        kinds = {"kernel", "recurrent_kernel", "bias"}
        joined = {kind: rebuilt.read(paths[f"{scope}/{kind}"]) for kind in kinds}
        cell = next(cell for gate, cell in _CELLS.items() if f"W_{gate}" in arrays)
        x = generator.standard_normal((_BATCH, _STEPS, joined["kernel"].shape[0]))
        expected = check_keras1(arrays, x)
        zero = np.zeros((_BATCH, expected.shape[2]))
        found, _, _ = keras_reference.run_keras_layer(
            cell, joined, x, zero, zero, recurrent_activation="hard_sigmoid/keras2"
        )
        if not np.abs(expected - found).max() <= 1e-10:
            raise DifferenceError(f"{layer}: its arrays, put together, compute something else")
    if not layers:
        return ""
    return f"{len(layers)} layers' arrays of Keras 1 joined, and compute the same"


def _separate(source: KerasH5) -> dict[tuple[str, str], dict[str, Any]]:
    """Arrays by layer, of the layers with an array for each gate; convolutions are left out."""
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for group, tensors in source.groups.items():
        for tensor in tensors:
            one = parse_keras1_name(group, tensor)
            if one.gate and len(tensor.shape) < 3:
                name = f"{one.word}_{one.gate}"
                found.setdefault((group, one.layer), {})[name] = source.read(tensor.path)
    return {layer: arrays for layer, arrays in found.items() if "W_" in "".join(arrays)}


def check_keras1(
    arrays: Mapping[str, Any], x: Float, *, activation: str = "tanh", inner: str = "hard_sigmoid"
) -> Float:
    """All outputs of one direction of one layer, from zero states.

    Args:
        arrays: "W_i", "U_i", "b_i", "W_f", ... of an LSTM; "W_z", ... of a GRU; "W", "U", "b".
        x: input, (batch, time, input_dim).
        activation, inner: Keras 1's names.

    Returns:
        (batch, time, units).
    """
    weights = {name: np.asarray(array, np.float64) for name, array in arrays.items()}
    act = ACTIVATIONS[activation]
    gate = ACTIVATIONS["hard_sigmoid/keras2" if inner == "hard_sigmoid" else inner]

    def share(which: str, xt: Float, h: Float) -> Float:
        total: Float = xt @ weights[f"W{which}"] + weights[f"b{which}"] + h @ weights[f"U{which}"]
        return total

    units = next(array.shape[0] for name, array in weights.items() if name.startswith("b"))
    h = np.zeros((x.shape[0], units))
    c = np.zeros_like(h)
    step = _steps(share, weights, act, gate)
    outputs = []
    for t in range(x.shape[1]):
        h, c = step(x[:, t], h, c)
        outputs.append(h)
    return np.stack(outputs, axis=1)


def _steps(
    share: Callable[[str, Float, Float], Float],
    weights: Mapping[str, Float],
    act: Callable[[Float], Float],
    gate: Callable[[Float], Float],
) -> Callable[[Float, Float, Float], tuple[Float, Float]]:
    def lstm(xt: Float, h: Float, c: Float) -> tuple[Float, Float]:
        forget, write = gate(share("_f", xt, h)), gate(share("_i", xt, h))
        c = forget * c + write * act(share("_c", xt, h))
        return gate(share("_o", xt, h)) * act(c), c

    def gru(xt: Float, h: Float, c: Float) -> tuple[Float, Float]:
        keep, reset = gate(share("_z", xt, h)), gate(share("_r", xt, h))
        new = act(xt @ weights["W_h"] + weights["b_h"] + (reset * h) @ weights["U_h"])
        return keep * h + (1.0 - keep) * new, c

    def simple(xt: Float, h: Float, c: Float) -> tuple[Float, Float]:
        return act(share("", xt, h)), c

    return lstm if "W_i" in weights else gru if "W_z" in weights else simple

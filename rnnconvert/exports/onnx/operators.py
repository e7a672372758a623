"""What ONNX's LSTM, GRU and RNN operators can say of a Keras cell."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from rnnconvert import layouts
from rnnconvert.errors import NotConvertibleError
from rnnconvert.layouts import RnnWeights

Array = np.ndarray[Any, Any]
OPERATORS = ("LSTM", "GRU", "RNN")
LOOPS = ("Loop", "If", "Scan")
OF_CELL = {
    "lstm": "LSTM", "gru": "GRU", "gru_reset_before": "GRU", "rnn_tanh": "RNN", "rnn_relu": "RNN",
}  # fmt: skip
NO_KERNEL = ("float64", "bfloat16")
"""Dtypes that onnxruntime's LSTM, GRU and RNN don't compute in on the CPU."""


@dataclass(frozen=True)
class Activation:
    """A function as ONNX's recurrent operators name it; None: it takes no such number."""

    name: str
    alpha: float | None = None
    beta: float | None = None


@dataclass(frozen=True, eq=False)
class Recurrent:
    """One recurrent operator.

    Attributes:
        directions: the weights of one direction, or of forward and backward.
        activations: of each direction, in ONNX's order: gates, candidate and (LSTM) output.
        reverse: one direction, from the last step to the first.
        has_states: whether the initial states are given; they are zeros otherwise.
        has_lengths: whether the sequences have lengths of their own.
        name: of the layer.
    """

    directions: tuple[RnnWeights, ...]
    activations: tuple[tuple[Activation, ...], ...]
    reverse: bool
    has_states: bool
    has_lengths: bool
    name: str

    @property
    def operator(self) -> str:
        return OF_CELL[self.directions[0].cell]

    @property
    def attributes(self) -> dict[str, Any]:
        """Of the operator's node."""
        functions = [function for own in self.activations for function in own]
        one = "reverse" if self.reverse else "forward"
        found: dict[str, Any] = {
            "hidden_size": self.directions[0].units,
            "direction": "bidirectional" if len(self.directions) == 2 else one,
            "activations": [function.name for function in functions],
        }
        alphas = [function.alpha for function in functions if function.alpha is not None]
        betas = [function.beta for function in functions if function.beta is not None]
        if alphas:
            found["activation_alpha"] = alphas
        if betas:
            found["activation_beta"] = betas
        if self.operator == "GRU":
            found["linear_before_reset"] = int(self.directions[0].cell == "gru")
        return found

    @property
    def tensors(self) -> dict[str, Array]:
        """W, R and, where the layer has biases, B; the directions side by side in front."""
        layout = layouts.find("onnx", self.directions[0].cell)
        packed = [layouts.pack(layout, weights) for weights in self.directions]
        return {
            name: np.concatenate([own[name] for own in packed])
            for name in ("W", "R", "B")
            if name in packed[0]
        }


def activation_of(function: Any) -> Activation | None:
    """A Keras activation as ONNX says it; None where it can't."""
    import keras

    known = {
        "linear": Activation("Affine", 1.0, 0.0),
        "tanh": Activation("Tanh"),
        "sigmoid": Activation("Sigmoid"),
        "relu": Activation("Relu"),
        "hard_sigmoid": Activation("HardSigmoid", 1.0 / 6.0, 0.5),  # Keras 3's; Keras 2's was 0.2
        "elu": Activation("Elu", 1.0),
        "leaky_relu": Activation("LeakyRelu", 0.2),
        "softplus": Activation("Softplus"),
        "softsign": Activation("Softsign"),
    }
    return next(
        (found for name, found in known.items() if function is getattr(keras.activations, name)),
        None,
    )


@dataclass(frozen=True, eq=False)
class OnnxCell:
    """A Keras cell that ONNX has an operator for."""

    weights: RnnWeights
    activations: tuple[Activation, ...]


def cell_of(cell: Any) -> OnnxCell | str:
    """What ONNX says for a Keras cell; or why it can't, as a sentence's end.

    Raises:
        NotConvertibleError: onnxruntime can't run it, neither as an operator nor as a loop.
    """
    import keras

    layers = keras.layers
    kinds = {layers.LSTMCell: "lstm", layers.GRUCell: "gru", layers.SimpleRNNCell: "rnn_tanh"}
    kind = kinds.get(type(cell))
    if kind is None:
        return f"{type(cell).__name__} is no cell of ONNX's"
    if str(cell.compute_dtype) in NO_KERNEL:
        # As a loop it would not stay one: tf2onnx finds the LSTM in it.
        raise NotConvertibleError(
            f"{cell.path} computes in {cell.compute_dtype}, and onnxruntime's LSTM, GRU and RNN "
            "do not; a float32 model can be exported"
        )
    if kind == "gru" and not cell.reset_after:
        kind = "gru_reset_before"
    names = ["activation"] if kind == "rnn_tanh" else ["recurrent_activation", "activation"]
    if kind == "lstm":
        names.append("activation")
    functions = [activation_of(getattr(cell, name)) for name in names]
    for name, function in zip(names, functions, strict=True):
        if function is None:
            told = getattr(getattr(cell, name), "__name__", "a function")
            return f"ONNX has no {name} {told}"
    return OnnxCell(_weights(cell, kind), tuple(f for f in functions if f is not None))


def _weights(cell: Any, kind: str) -> RnnWeights:
    dtype = str(cell.compute_dtype)
    names = ("kernel", "recurrent_kernel", *(["bias"] if cell.use_bias else []))
    stored = {name: np.asarray(getattr(cell, name)).astype(dtype) for name in names}
    return layouts.unpack(layouts.find("keras", kind), stored)

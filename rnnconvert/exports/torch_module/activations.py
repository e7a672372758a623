"""Keras' activation functions as torch expressions: one table."""

from __future__ import annotations

from typing import Any

_FUNCTIONS = {
    "linear": "{x}",
    "relu": "torch.relu({x})",
    "relu6": "F.relu6({x})",
    "tanh": "torch.tanh({x})",
    "sigmoid": "torch.sigmoid({x})",
    "hard_sigmoid": "F.hardsigmoid({x})",
    "hard_tanh": "F.hardtanh({x})",
    "hard_silu": "F.hardswish({x})",
    "softmax": "torch.softmax({x}, -1)",
    "log_softmax": "torch.log_softmax({x}, -1)",
    "log_sigmoid": "F.logsigmoid({x})",
    "softplus": "F.softplus({x})",
    "softsign": "F.softsign({x})",
    "elu": "F.elu({x})",
    "selu": "F.selu({x})",
    "silu": "F.silu({x})",
    "gelu": "F.gelu({x})",
    "mish": "F.mish({x})",
    "exponential": "torch.exp({x})",
    "leaky_relu": "F.leaky_relu({x}, 0.2)",
}
"""Keras 3's name to the expression; `{x}` is a variable."""
_CALLABLES = {
    "linear": "nn.Identity()",
    "relu": "torch.relu",
    "tanh": "torch.tanh",
    "sigmoid": "torch.sigmoid",
    "hard_sigmoid": "F.hardsigmoid",
    "softplus": "F.softplus",
    "softsign": "F.softsign",
    "elu": "F.elu",
    "selu": "F.selu",
    "silu": "F.silu",
    "gelu": "F.gelu",
    "relu6": "F.relu6",
    "exponential": "torch.exp",
    "leaky_relu": "nn.LeakyReLU(0.2)",
    "hard_tanh": "F.hardtanh",
    "mish": "F.mish",
}
"""The same as functions, for the scripted cells."""


def name_of(activation: Any) -> str | None:
    """Keras' name of a function of its own; None for any other."""
    import keras

    if activation is None:
        return "linear"
    for name in _FUNCTIONS:
        if getattr(keras.activations, name, None) is activation:
            return name
    return None


def expression(activation: Any, x: str) -> str | None:
    """The function applied to a variable; None where torch has none."""
    name = name_of(activation)
    return None if name is None else _FUNCTIONS[name].format(x=x)


def function(activation: Any) -> str | None:
    """The function itself; None where torch has none."""
    return _CALLABLES.get(name_of(activation) or "")


def described(activation: Any) -> str:
    """For messages."""
    return ascii(getattr(activation, "__name__", type(activation).__name__))

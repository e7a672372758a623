"""Writing Keras 3's operations as entries of a functional model's config."""

from __future__ import annotations

import re
from typing import Any

from rnnconvert.keras_models.config.tensorflow_calls.values import Array, CallTensor, encode
from rnnconvert.keras_models.config.tree import Config

_NAMED = {
    "numpy": """
        Absolute Add Arccos Arccosh Arcsin Arcsinh Arctan Arctan2 Arctanh Ceil Copy Cos Cosh Divide
        DivideNoNan Equal Exp Expm1 Floor FloorDivide GetItem Greater GreaterEqual Isfinite Isinf
        Isnan Less LessEqual Log Log1p LogicalAnd LogicalNot LogicalOr LogicalXor Matmul Maximum
        Minimum Mod Multiply Negative NotEqual OnesLike Power Reciprocal Sign Sin Sinh Sqrt Square
        Subtract Tan Tanh Where ZerosLike
    """,
    "math": "Erf Rsqrt",
    "nn": "LogSigmoid Relu Relu6 Selu Sigmoid Silu Softplus Softsign",
}
"""Operations whose constructor takes a name in every Keras 3, by module."""

_NAMELESS = {
    "numpy": """
        All Any Argmax Argmin Clip Concatenate Cumprod Cumsum Einsum ExpandDims Flip Max Mean Min
        Pad Prod Repeat Reshape Roll Round Split Squeeze Stack Std Sum Swapaxes Take Tensordot Tile
        Transpose Var
    """,
    "math": "Logsumexp TopK",
    "nn": "Elu Gelu LeakyRelu LogSoftmax OneHot Softmax",
    "core": "Cast StopGradient",
}
"""Those whose constructor takes one only since Keras 3.11."""

_MODULES = {
    name: f"keras.src.ops.{module}"
    for table in (_NAMED, _NAMELESS)
    for module, names in table.items()
    for name in names.split()
}
_TAKES_NAME = frozenset(name for names in _NAMED.values() for name in names.split())

OPERATIONS = frozenset((module, name) for name, module in _MODULES.items())
"""(module, class) of every operation that a translation may write."""

NAMES_SINCE = "3.11"


def automatic_name(class_name: str) -> re.Pattern[str]:
    """The names that Keras makes up for an operation of this class."""
    snake = re.sub(r"([a-z])([A-Z])", r"\1_\2", class_name).lower()
    return re.compile(rf"{snake}(_\d+)?")


class Writer:
    """Collects the operations that one call becomes.

    Attributes:
        entries: what was written, in the order of execution.
        dtype: of constants in an array of floating numbers.
        used: which outputs of the call the model uses.
        needs: the oldest Keras 3 that reads all of it, where that is not 3.0.
    """

    def __init__(self, name: str, taken: set[str], dtype: str, used: set[int]) -> None:
        self.entries: list[Config] = []
        self.dtype = dtype
        self.used = used
        self.needs: tuple[str, str] | None = None
        self._name = name
        self._taken = taken

    def op(self, class_name: str, *arguments: Any, **settings: Any) -> CallTensor:
        """Write one operation.

        Args:
            class_name: one of the tables above.
            arguments: of the call, in the order of the operation's `call`.
            settings: of the constructor.

        Returns:
            Its first output.
        """
        name = f"{self._name}.{class_name.lower()}"
        while name in self._taken:
            name += "_"
        self._taken.add(name)
        config = dict(settings)
        if class_name in _TAKES_NAME:
            config["name"] = name
        elif any(automatic_name(class_name).fullmatch(taken) for taken in self._taken):
            config["name"] = name  # the name that Keras would make up could be another layer's
            self.needs = (NAMES_SINCE, f"an operation {class_name} beside a layer of that name")
        self.entries.append(
            {
                "module": _MODULES[class_name],
                "class_name": class_name,
                "config": config,
                "registered_name": class_name,
                "name": name,
                "inbound_nodes": [
                    {"args": [encode(argument) for argument in arguments], "kwargs": {}}
                ],
            }
        )
        return CallTensor(name, 0, 0)

    def operand(self, value: Any) -> Any:
        """A tensor, a number, or a constant array, as an operation takes it."""
        if not isinstance(value, list):
            return value
        kinds = {type(number) for number in _flat(value)}
        dtype = "bool" if kinds == {bool} else "int32" if kinds == {int} else self.dtype
        return Array(value, dtype)

    def rename_last(self, tensor: CallTensor, name: str, *, is_output: bool) -> CallTensor:
        """Give the operation that made a tensor the layer's own name, where it can have one.

        Keras names a model's outputs after their operations; an operation that can't be named is
        followed by one that can.
        """
        entry = next(entry for entry in self.entries if entry["name"] == tensor.layer)
        if "name" not in entry["config"]:
            if not is_output:
                return tensor
            return self.rename_last(self.op("Copy", tensor), name, is_output=True)
        entry["name"] = entry["config"]["name"] = name
        return CallTensor(name, 0, tensor.index)


def _flat(value: Any) -> list[Any]:
    if isinstance(value, list | tuple):
        return [number for item in value for number in _flat(item)]
    return [value]

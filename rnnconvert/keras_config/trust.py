"""Where loading a config would run code that is not Keras' own. Looked up here, never imported.

Keras' own `safe_mode` is no sandbox: before 3.11.3 it was ignored for .h5 files (CVE-2025-9905),
before 3.9 a config could name any function of any module (CVE-2025-1550, CVE-2025-8747).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from rnnconvert.keras_config.builtin import KERAS_LAYERS
from rnnconvert.keras_config.tensorflow_calls import CALL_CLASSES, OPERATIONS
from rnnconvert.keras_config.tree import Config, root, show_path, walk

_LAMBDAS = ("Lambda", "__lambda__")
_MODULES = frozenset(
    """
    keras keras.layers keras.models keras.initializers keras.activations keras.regularizers
    keras.constraints keras.losses keras.metrics keras.optimizers keras.optimizers.schedules
    keras.dtype_policies keras.engine.functional keras.engine.sequential
    keras.src.engine.functional keras.src.engine.sequential keras.src.models.functional
    keras.src.models.sequential builtins
    """.split()
)
# Keras 3 writes an operation of a functional model under its private module. These four hold
# arithmetic only; what takes a function (`ops.core`) stays out.
_OPERATION_MODULES = frozenset(
    f"keras.src.ops.{part}" for part in ("linalg", "math", "nn", "numpy")
)
_FUNCTIONS = frozenset(
    """
    celu elu exponential gelu glu hard_shrink hard_sigmoid hard_silu hard_swish hard_tanh
    leaky_relu linear log_sigmoid log_softmax mish relu relu6 selu sigmoid silu softmax softplus
    soft_shrink softsign sparse_plus sparsemax squareplus swish tanh tanh_shrink threshold
    """.split()
)


def code_in_config(config: Config, known: Iterable[str] = ()) -> list[str]:
    """What of a model config would run foreign code when Keras loads it.

    Args:
        config: a model_config.
        known: names of custom classes and functions that the caller vouches for.

    Returns:
        A sentence for each place; Lambda layers first. Empty where there is none.
    """
    vouched = set(known)
    lambdas, classes = [], []
    for node in walk(root(config)):
        if node.role == "model" and node.class_name in ("Sequential", "Functional", "Model"):
            continue
        place = show_path(node.path)
        if node.class_name in _LAMBDAS:
            lambdas.append(f"{place} is a Lambda layer, whose code is in the file")
        elif node.class_name not in KERAS_LAYERS | vouched | set(
            CALL_CLASSES
        ) and not _is_operation(node.entry):
            classes.append(f"{place} is of the custom class {node.class_name}")
    hidden = [text for text in _hidden(config, vouched) if text not in (*lambdas, *classes)]
    return [*lambdas, *classes, *hidden]


def _is_operation(entry: dict[str, Any]) -> bool:
    name = entry.get("class_name")
    return (
        (
            entry.get("module") in _OPERATION_MODULES
            or (entry.get("module"), entry.get("class_name")) in OPERATIONS
        )
        and isinstance(name, str)
        and name.isidentifier()
        and name[0].isupper()
    )


def _hidden(value: Any, vouched: set[str]) -> Iterator[str]:
    """Objects below the level of layers: functions and initializers that a config names."""
    if isinstance(value, list | tuple):
        for item in value:
            yield from _hidden(item, vouched)
    elif isinstance(value, dict):
        name = value.get("class_name")
        module = value.get("module")
        if name == "__lambda__":
            yield "the config holds a lambda function"
        if name == "function" and value.get("config") not in _FUNCTIONS | vouched:
            yield f"the config names the function {value.get('config')!r}"
        elif (
            isinstance(module, str)
            and name not in vouched
            and module not in _MODULES
            and not _is_operation(value)
        ):
            yield f"the config names {module}.{name}"
        for item in value.values():
            yield from _hidden(item, vouched)

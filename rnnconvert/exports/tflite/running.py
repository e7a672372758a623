"""A `.tflite` file, run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from rnnconvert.exports.tflite.flatfile import operators_of
from rnnconvert.exports.written import Array, Run
from rnnconvert.verification.frameworks import CannotRun, native_stderr_closed

_NO_FLEX = "it needs TensorFlow's own operators, and no interpreter here has the Flex delegate"


def run_tflite(path: Path, inputs: Sequence[str], outputs: Sequence[str]) -> Run:
    """The file's only signature as a function of arrays.

    It is called twice: a state that the first call leaves behind would make a second one differ.
    It raises CannotRun where the file needs operators of TensorFlow that no interpreter here has.

    Args:
        inputs, outputs: names in the signature, in the order of the arrays.
    """

    @cache
    def opened() -> Any:
        with native_stderr_closed():
            return _interpreter(path).get_signature_runner()

    def run(arrays: Sequence[Array]) -> list[Array]:
        try:
            signature = opened()
            details = signature.get_input_details()
            given = {
                name: np.asarray(array, details[name]["dtype"])
                for name, array in zip(inputs, arrays, strict=True)
                if name in details  # an input that no output depends on is not in the file
            }
            with native_stderr_closed():
                found, again = signature(**given), signature(**given)
        except RuntimeError as error:
            raise CannotRun(_NO_FLEX) if "Flex delegate" in str(error) else error from error
        for name in outputs:
            if not np.array_equal(found[name], again[name], equal_nan=True):
                raise RuntimeError(f"a second call gives another {name}: a state is left behind")
        return [np.asarray(found[name]) for name in outputs]

    return run


def runtime_of(operators: Mapping[str, int]) -> str:
    """The interpreter that runs a file with these operators, e.g. "ai-edge-litert 2.3.0"."""
    if any(name.startswith("Flex") for name in operators):
        import tensorflow as tf

        return f"tf.lite {tf.__version__}"
    return f"ai-edge-litert {metadata.version('ai-edge-litert')}"


def _interpreter(path: Path) -> Any:
    """`ai-edge-litert`'s; TensorFlow's where operators of TensorFlow are needed."""
    if any(name.startswith("Flex") for name in operators_of(path.read_bytes())):
        import tensorflow as tf

        return tf.lite.Interpreter(model_path=str(path))
    from ai_edge_litert.interpreter import Interpreter

    return Interpreter(model_path=str(path))

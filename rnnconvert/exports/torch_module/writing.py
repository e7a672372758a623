"""A Keras model to a state_dict in a `.safetensors` file, and `model.py` that builds the module."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from rnnconvert.errors import NotConvertibleError
from rnnconvert.exports.options import ExportOptions
from rnnconvert.exports.sources import Source
from rnnconvert.exports.torch_module.emitter import Array, Emitter, Value
from rnnconvert.exports.torch_module.source import source_of
from rnnconvert.exports.torch_module.walk import emit_model
from rnnconvert.exports.written import Written

_TAKEN = {"torch", "safetensors", "numpy", *sys.stdlib_module_names}
"""A module of such a name beside a program would be imported in the place of the real one."""
DTYPES = ("float16", "bfloat16", "float32", "float64")


def write_torch(source: Source, path: Path, options: ExportOptions) -> Written:
    """Write the tensors to `path` and the module beside it.

    Raises:
        NotConvertibleError: layers have no torch form; all of them are named.
    """
    import torch

    model = source.model
    emitter = Emitter()
    inputs = [
        Value(f"x{place}" if len(model.inputs) > 1 else "x", tuple(tensor.shape))
        for place, tensor in enumerate(model.inputs)
    ]
    emitter.reserve([value.name for value in inputs])
    outputs = emit_model(emitter, model, inputs)
    if emitter.problems:
        raise NotConvertibleError(
            f"no torch form: {'; '.join(emitter.problems)}",
            problems=tuple(f"{problem} has no torch form" for problem in emitter.problems),
        )
    dtype = _dtype(emitter.tensors)
    weights, program = path.name, program_of(path)
    dtypes = [str(tensor.dtype) for tensor in model.inputs]
    text = source_of(
        emitter, inputs, outputs, dtypes, weights, program.stem, dtype, len(source.states)
    )
    _save(emitter.tensors, {m.name: m.layer for m in emitter.modules}, path)
    program.write_text(text, encoding="utf-8")
    return Written(
        target="torch",
        runtime=f"torch {torch.__version__}",
        files=(path.name, program.name),
        operators=_count(emitter),
        native=sum(m.is_recurrent and m.source.startswith("nn.") for m in emitter.modules),
        loops=tuple(emitter.loops),
        inputs=tuple(value.name for value in inputs),
        outputs=tuple(f"y{place}" for place in range(len(outputs))),
        batch=model.inputs[0].shape[0],
        notes=_notes(emitter, model),
    )


def program_of(path: Path) -> Path:
    """The module beside a file of tensors: model.safetensors has model.py."""
    stem = f"{path.stem}_model" if path.stem in _TAKEN else path.stem
    return path.with_name(f"{stem}.py")


def _dtype(tensors: Mapping[str, Array]) -> str:
    found = {array.dtype.name for array in tensors.values() if array.dtype.kind != "i"}
    if len(found) > 1 or not found <= set(DTYPES):
        raise NotConvertibleError(
            f"the weights are {', '.join(sorted(found))}; a module is written in one of "
            f"{', '.join(DTYPES)}"
        )
    return next(iter(found), "float32")


def _save(tensors: Mapping[str, Array], names: Mapping[str, str], path: Path) -> None:
    """All tensors; the Keras layers' names as one entry of metadata, as several have no order."""
    from safetensors.numpy import save_file

    contiguous = {name: np.ascontiguousarray(array) for name, array in tensors.items()}
    save_file(contiguous, path, {"keras_layers": json.dumps(names, sort_keys=True)})


def _count(emitter: Emitter) -> dict[str, int]:
    """Kind of module to count; the recurrent ones also where there are none."""
    count = {"nn.LSTM": 0, "nn.GRU": 0, "nn.RNN": 0}
    for module in emitter.modules:
        kind = module.source.partition("(")[0]
        count[kind] = count.get(kind, 0) + 1
    return count


def _notes(emitter: Emitter, model: Any) -> tuple[str, ...]:
    notes = [
        f"{text}: a scripted cell in the module, slower than torch's own" for text in emitter.loops
    ]
    layers = [layer for layer in model._flatten_layers() if layer.weights]
    mixed = sorted({str(layer.compute_dtype) for layer in layers
                    if layer.compute_dtype != layer.variable_dtype})  # fmt: skip
    if mixed:
        notes.append(
            f"layers compute in {', '.join(mixed)} in Keras; the module computes in the dtype of "
            "its weights"
        )
    return tuple(notes)

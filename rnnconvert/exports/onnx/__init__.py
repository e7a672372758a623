"""Export to ONNX by tf2onnx, with ONNX's own recurrent operators; onnxruntime proves it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rnnconvert.errors import NotConvertibleError, UsageError
from rnnconvert.exports.onnx.emit import DEFAULT_OPSET, convert_function, node_counts
from rnnconvert.exports.onnx.markers import marked
from rnnconvert.exports.options import ExportOptions
from rnnconvert.exports.sources import Source
from rnnconvert.exports.written import Array, Run, Written

_LARGEST = 2**31 - 2**20
"""Bytes that one protobuf may have."""


def write(source: Source, path: Path, options: ExportOptions) -> Written:
    """Write a model as ONNX.

    Args:
        source: a Keras model or a graph.
        path: of the file.

    Raises:
        NotConvertibleError: a part of the model has no ONNX form.
    """
    opset = options.opset or DEFAULT_OPSET
    if source.is_graph:
        from rnnconvert.exports.onnx.graphs import write_graph

        return write_graph(source, path, opset, options)
    return _write_keras(source, path, opset)


def _write_keras(source: Source, path: Path, opset: int) -> Written:
    import keras
    import tensorflow as tf

    if keras.backend.backend() != "tensorflow":
        raise UsageError("export to ONNX needs Keras on TensorFlow: KERAS_BACKEND=tensorflow")
    model = source.model
    inputs = _names([tensor.name for tensor in model.inputs], "input")
    functional = getattr(model, "_functional", None) or model  # of a Sequential
    named = [f"out_{name}" if name in inputs else name for name in functional.output_names]
    outputs = _names(named, "output")
    signature = [
        tf.TensorSpec(tensor.shape, tensor.dtype, name=name)
        for tensor, name in zip(model.inputs, inputs, strict=True)
    ]

    def run(*tensors: Any) -> dict[str, Any]:
        results = model(list(tensors) if len(tensors) > 1 else tensors[0], training=False)
        return dict(zip(outputs, keras.tree.flatten(results), strict=True))

    with marked(model) as found:
        function = tf.function(run, input_signature=signature, autograph=False)
        made = convert_function(function, signature, opset, found.recurrent)
    finish(made, inputs, outputs)
    save(made, path)
    return Written(
        "onnx",
        runtime(),
        (path.name,),
        node_counts(made),
        versions(made),
        native=len(found.native),
        loops=tuple(found.left),
        inputs=tuple(inputs),
        outputs=tuple(outputs),
    )


def _names(given: Sequence[str], default: str) -> list[str]:
    """Names that tf.function and ONNX take, each once."""
    found: list[str] = []
    for place, name in enumerate(given):
        clean = "".join(c if c.isalnum() and c.isascii() else "_" for c in name).strip("_")
        clean = clean or f"{default}_{place}"
        clean = f"{default}_{clean}" if clean[0].isdigit() else clean
        again = sum(other == clean or other.startswith(f"{clean}_again") for other in found)
        found.append(f"{clean}_again{again}" if again else clean)
    return found


def finish(model: Any, inputs: Sequence[str], outputs: Sequence[str]) -> None:
    """Inputs and outputs in the source's order; open sizes by name, where it is known."""
    _reorder(model.graph.input, inputs)
    _reorder(model.graph.output, outputs)
    for value in (*model.graph.input, *model.graph.output):
        for axis, size in enumerate(value.type.tensor_type.shape.dim):
            if not size.HasField("dim_value"):
                size.Clear()
                if axis == 0:
                    size.dim_param = "batch"
    model.producer_name = "rnnconvert"
    model.graph.name = "rnnconvert"


def _reorder(values: Any, names: Sequence[str]) -> None:
    by_name = {value.name: value for value in values}
    missing = [name for name in names if name not in by_name]
    if missing:
        raise NotConvertibleError(
            f"{missing[0]} is no input or output of what tf2onnx made of the model: it is not used"
        )
    ordered = [by_name[name] for name in names]
    copies = [type(value).FromString(value.SerializeToString()) for value in ordered]
    del values[:]
    values.extend(copies)


def save(model: Any, path: Path) -> None:
    """Check the model and write it.

    Raises:
        NotConvertibleError: it is larger than one file of ONNX can be, or no valid model.
    """
    import onnx

    if model.ByteSize() > _LARGEST:
        raise NotConvertibleError("the model is larger than 2 GB, which one ONNX file can't hold")
    try:
        onnx.checker.check_model(model, full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
        lines = str(error).strip().splitlines()
        raise NotConvertibleError(
            f"what tf2onnx makes of this model is no valid ONNX: {lines[0][:300]}"
        ) from error
    path.write_bytes(model.SerializeToString())


def versions(model: Any) -> dict[str, Any]:
    opset = next(each.version for each in model.opset_import if each.domain in ("", "ai.onnx"))
    return {"opset": opset, "ir_version": model.ir_version}


def runtime() -> str:
    import onnxruntime

    return f"onnxruntime {onnxruntime.__version__}"


def runner(path: Path, written: Written) -> Run:
    """The written model in onnxruntime, on the CPU."""
    import onnxruntime

    chosen = onnxruntime.SessionOptions()
    chosen.log_severity_level = 3
    session = onnxruntime.InferenceSession(str(path), chosen, providers=["CPUExecutionProvider"])
    dtypes: dict[str, Any] = {value.name: _NUMPY[value.type] for value in session.get_inputs()}

    def run(arrays: Sequence[Array]) -> list[Array]:
        given: dict[str, Array] = {
            name: np.asarray(array, dtypes[name])
            for name, array in zip(written.inputs, arrays, strict=True)
        }
        return [np.asarray(each) for each in session.run(list(written.outputs), given)]

    return run


_NUMPY = {
    "tensor(float)": np.float32, "tensor(float16)": np.float16, "tensor(double)": np.float64,
    "tensor(int32)": np.int32, "tensor(int64)": np.int64, "tensor(bool)": np.bool_,
    "tensor(uint8)": np.uint8, "tensor(int8)": np.int8, "tensor(int16)": np.int16,
    "tensor(uint16)": np.uint16, "tensor(uint32)": np.uint32, "tensor(uint64)": np.uint64,
    "tensor(string)": np.object_,
}  # fmt: skip

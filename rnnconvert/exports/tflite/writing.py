"""A Keras model to a `.tflite` file of builtin operators."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rnnconvert.errors import ConversionError, NotConvertibleError, UsageError
from rnnconvert.exports.options import ExportOptions
from rnnconvert.exports.sources import Source
from rnnconvert.exports.tflite.conversion import converted_saved_model
from rnnconvert.exports.tflite.flatfile import (
    LSTM,
    int8_values,
    operators_of,
    start_with_zeros,
)
from rnnconvert.exports.tflite.recurrent import Forms, can_fuse, layers_with_steps, replaced_calls
from rnnconvert.exports.tflite.running import runtime_of
from rnnconvert.exports.written import Written
from rnnconvert.keras_models.verify.keras_engine import last_line
from rnnconvert.publish import scratch_directory, temporary_directory
from rnnconvert.verification.frameworks import native_stderr_closed

QUANTIZED_TOLERANCE = 0.1
"""Of the largest output: int8 weights are coarse, and how much depends on the model."""


def write_tflite(source: Source, path: Path, options: ExportOptions) -> Written:
    """Write a model, and tell of its operators.

    Raises:
        UsageError: the number of time steps is needed and not given, or contradicts the model.
        NotConvertibleError: TFLite has no operator for something, or it is not float32.
    """
    model = source.model
    _require_float32(model)
    batch = _batch(model, options)
    specs = _specs(source, options, batch)
    forms = Forms(batch)
    inputs = _unique([_name(spec.name, "input") for spec in specs])
    outputs = _unique([_name(_producer(tensor), "output") for tensor in model.outputs])
    content = start_with_zeros(_convert(model, specs, inputs, outputs, forms, options))
    path.write_bytes(content)
    counts = operators_of(content)
    layers = layers_with_steps(model)
    quantized = [_quantized_note(content)] if options.quantize == "dynamic" else []
    return Written(
        target="tflite",
        runtime=runtime_of(counts),
        files=(path.name,),
        operators={LSTM: 0, "WHILE": 0, **counts},
        native=counts.get(LSTM, 0),
        loops=tuple(sorted(set(forms.loops))),
        inputs=tuple(inputs),
        outputs=tuple(outputs),
        timesteps=_fixed_length(model, specs) if layers else None,
        batch=batch,
        tolerance=QUANTIZED_TOLERANCE if int8_values(content) else None,
        notes=(*_notes(model, counts, batch), *quantized),
    )


# --- sizes ----------------------------------------------------------------------------------


def _require_float32(model: Any) -> None:
    for layer in model._flatten_layers():
        if layer.weights and str(layer.compute_dtype) != "float32":
            raise NotConvertibleError(
                f"the layer {layer.name} computes in {layer.compute_dtype}; TFLite models are "
                "written in float32 only"
            )


def _batch(model: Any, options: ExportOptions) -> int | None:
    """The fixed batch size: the model's own, or the one that was asked for."""
    own = {tensor.shape[0] for tensor in model.inputs} - {None}
    asked = options.general.inputs.batch
    if own and asked is not None and own != {asked}:
        raise UsageError(f"--batch {asked}: the model's batch size is fixed, {min(own)}")
    return next(iter(own), asked)


def _specs(source: Source, options: ExportOptions, batch: int | None) -> list[Any]:
    """Of each input; open sizes are what `--timesteps` says, or stay open if nothing is unrolled.

    Raises:
        UsageError: they are needed, and not given; or another size is given than the model's.
    """
    import tensorflow as tf

    model = source.model
    asked = 1 if source.is_step else options.general.inputs.timesteps
    layers = layers_with_steps(model)
    shapes = [tuple(tensor.shape) for tensor in model.inputs]
    is_open = any(None in shape[1:] for shape in shapes)
    if is_open and asked is None and layers and not _all_fused(model, layers, batch):
        fused = "" if batch else _or_fused(layers)
        raise UsageError(
            "the model leaves the number of time steps open, and its recurrent layers are "
            f"unrolled for TFLite: give it by --timesteps{fused}"
        )
    lengths = {shape[1] for shape in shapes if len(shape) > 1}
    if not is_open and layers and asked is not None and asked not in lengths:
        raise UsageError(
            f"--timesteps {asked}: the model's own number of steps is fixed, "
            f"{', '.join(str(length) for length in sorted(lengths))}"
        )
    return [
        tf.TensorSpec(
            (batch, *(asked if size is None else size for size in shape[1:])),
            tensor.dtype,
            name=tensor.name,
        )
        for tensor, shape in zip(model.inputs, shapes, strict=True)
    ]


def _all_fused(model: Any, layers: Sequence[Any], batch: int | None) -> bool:
    """Masks are found out later: a layer with one is named then."""
    return batch is not None and all(can_fuse(layer) for layer in layers)


def _or_fused(layers: Sequence[Any]) -> str:
    if all(can_fuse(layer) for layer in layers):
        return f"; or give --batch 1, for TFLite's operator {LSTM}, which takes any number"
    return ""


def _fixed_length(model: Any, specs: Sequence[Any]) -> int | None:
    """The number of steps, where it is fixed: of an input that was open, else of a sequence."""
    given = [tensor.shape for tensor in model.inputs]
    was_open = [spec.shape[1] for spec, own in zip(specs, given, strict=True) if None in own[1:]]
    longest = max((len(spec.shape) for spec in specs), default=0)
    sizes = [spec.shape[1] for spec in specs if len(spec.shape) == longest > 1]
    return next(iter([*was_open, *sizes]), None)


# --- names ----------------------------------------------------------------------------------


def _name(name: str, other: str) -> str:
    """A name that a signature takes: letters, digits and underscores."""
    plain = re.sub(r"\W", "_", name.split("/")[-1].split(":")[0], flags=re.ASCII)
    return plain if re.match(r"[A-Za-z]", plain) else f"{other}_{plain}".rstrip("_")


def _producer(tensor: Any) -> str:
    name: str = tensor._keras_history.operation.name
    return name


def _unique(names: Sequence[str]) -> list[str]:
    found: list[str] = []
    for name in names:
        number, free = 1, name
        while free in found:
            number += 1
            free = f"{name}_{number}"
        found.append(free)
    return found


# --- conversion -----------------------------------------------------------------------------


def _convert(
    model: Any,
    specs: Sequence[Any],
    inputs: Sequence[str],
    outputs: Sequence[str],
    forms: Forms,
    options: ExportOptions,
) -> bytes:
    import tensorflow as tf

    signature = [
        tf.TensorSpec(spec.shape, spec.dtype, name=name)
        for spec, name in zip(specs, inputs, strict=True)
    ]
    function = tf.function(_with_constants(model, outputs), autograph=False)
    with replaced_calls(model, forms):
        try:
            concrete = function.get_concrete_function(*signature)
        except ConversionError:
            raise
        except Exception as error:  # Keras and TensorFlow raise all kinds of things
            shapes = ", ".join(str(tuple(spec.shape)) for spec in specs)
            raise NotConvertibleError(
                f"the model does not run on inputs of {shapes}: {last_line(error)}"
            ) from error
    with temporary_directory(scratch_directory()) as work:
        module = tf.Module()
        module.function = function
        with native_stderr_closed():
            tf.saved_model.save(module, str(work), signatures=concrete)
        return converted_saved_model(work, options)


def _with_constants(model: Any, outputs: Sequence[str]) -> Any:
    """The model as a function whose weights are constants.

    With variables the converter writes `READ_VARIABLE`, and what it wrote gives NaN.
    """
    import keras
    import tensorflow as tf

    values = [(variable, variable.numpy()) for variable in model.variables]
    functional = getattr(model, "_functional", None) or model
    structure = functional._inputs_struct

    def run(*arrays: Any) -> dict[str, Any]:
        mapping = [(variable, tf.constant(value)) for variable, value in values]
        with keras.StatelessScope(state_mapping=mapping):
            results = keras.tree.flatten(
                functional.call(keras.tree.pack_sequence_as(structure, arrays), training=False)
            )
        return {name: tf.identity(value) for name, value in zip(outputs, results, strict=True)}

    return run


def _notes(model: Any, counts: dict[str, int], batch: int | None) -> tuple[str, ...]:
    notes = []
    flex = sorted(name for name in counts if name.startswith("Flex"))
    if flex:
        notes.append(f"needs TensorFlow's own operators, the Flex delegate: {', '.join(flex)}")
    if batch is None and any(can_fuse(layer) for layer in layers_with_steps(model)):
        notes.append(
            f"--batch 1 writes LSTM layers as TFLite's operator {LSTM}, for that batch size "
            "only: about twice as fast where it was measured"
        )
    if counts.get(LSTM):
        notes.append(f"{LSTM}: its states are set to zero at the beginning of each call")
    return tuple(notes)


def _quantized_note(content: bytes) -> str:
    """What `--quantize dynamic` did: the converter leaves small weights alone."""
    size = int8_values(content)
    if not size:
        return "no weight is large enough to be quantized (1024 values): all stay float32"
    return (
        f"{size:,} weights are int8 (dynamic range): the difference that is shown is due to that, "
        f"and allowed up to {QUANTIZED_TOLERANCE:g} of the largest output unless --rtol or --atol "
        "say otherwise"
    )

"""rnnconvert: Keras models with cuDNN recurrent layers, made portable, and proved equal.

    >>> import rnnconvert
    >>> report = rnnconvert.convert("model.h5", "out.h5")      # doctest: +SKIP
    >>> report.verdict                                          # doctest: +SKIP
    'equivalent'

Importing this imports numpy and h5py, never TensorFlow, Keras or torch.
"""

from __future__ import annotations

import os

# HDF5 reads this when it is loaded, so it stands before any import of h5py: no filter plugin, which
# is code, is ever loaded from disk because a file asks for it, or the environment.
os.environ["HDF5_PLUGIN_PRELOAD"] = "::"

from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rnnconvert.errors import (
    ConversionError,
    DifferenceError,
    NotConvertibleError,
    OutputError,
    UnreadableInputError,
    UsageError,
)

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from rnnconvert.checkpoints.inspect import CheckpointInspection
    from rnnconvert.exports.options import ExportKeywords
    from rnnconvert.graphs.inspect import GraphInspection
    from rnnconvert.keras_models.inspect import Inspection
    from rnnconvert.options import ConvertKeywords, InspectKeywords, VerifyKeywords
    from rnnconvert.report import Report

__all__ = [
    "ConversionError",
    "DifferenceError",
    "NotConvertibleError",
    "OutputError",
    "UnreadableInputError",
    "UsageError",
    "__version__",
    "convert",
    "export",
    "inspect",
    "layouts",
    "verify",
]


def convert(
    source: str | PathLike[str],
    output: str | PathLike[str] | None = None,
    **options: Unpack[ConvertKeywords],
) -> Report:
    """Convert a model with CuDNN layers or ops to one that loads anywhere.

    Args:
        source: a model of any kind that the command line takes, its path or its URL in an object
            store ("s3://bucket/model.h5"); it is never changed, unless with `in_place=True`.
        output: where to write, a path or a URL; default `model.h5` to `model.portable.h5` beside
            the input.
        **options: named as on the command line: command ("cudnn-to-keras" or "keras-to-cudnn"),
            to, verify, target, optimizer, force, in_place, dry_run, check, hashes, device, strict,
            seed, batch, timesteps, rtol, atol, allow_code, custom_objects (a mapping, or a list of
            "module:name"), max_bytes, names, ignore_dropout, unroll; and of checkpoints' RNN
            stacks cell, num_layers, num_units, input_size, direction, scope, forget_bias,
            activation.

    Returns:
        The `Report`; `report.to_dict()` is its JSON form.

    Raises:
        ConversionError: one subclass for each exit code. Its `report` tells how far it got.
    """
    from rnnconvert.commands.convert import convert_path
    from rnnconvert.options import Options
    from rnnconvert.stores.urls import place_of

    place, target = place_of(source), None if output is None else place_of(output)
    chosen = Options.of(**options)
    if isinstance(place, Path) and (target is None or isinstance(target, Path)):
        return convert_path(place, target, chosen)
    from rnnconvert.stores.work import convert_placed

    return convert_placed(place, target, chosen)


def verify(
    original: str | PathLike[str],
    converted: str | PathLike[str],
    *,
    earlier_report: str | PathLike[str] | None = None,
    **options: Unpack[VerifyKeywords],
) -> Report:
    """Compare two models numerically; either may hold CuDNN layers or ops.

    Args:
        original, converted: two Keras files; two graphs of one kind; or a checkpoint and another
            one, or the Keras file of its RNN stack.
        earlier_report: JSON report of an earlier run; its hashes must be those of the two files.
        **options: verify, device, strict, hashes, seed, batch, timesteps, rtol, atol, allow_code,
            custom_objects, max_bytes, and those of checkpoints' RNN stacks, as of `convert`.

    Returns:
        The `Report`, with the verdict "equivalent".

    Raises:
        DifferenceError: they differ; its `report` says where.
        ConversionError: they can't be read or compared.
    """
    from rnnconvert.commands.verify import verify_paths
    from rnnconvert.options import Options
    from rnnconvert.stores.work import on_models

    earlier = Path(earlier_report) if earlier_report is not None else None
    chosen = Options.of(**options)
    return on_models(
        lambda one, other: verify_paths(one, other, chosen, earlier), [original, converted]
    )


def inspect(
    path: str | PathLike[str], **options: Unpack[InspectKeywords]
) -> Inspection | CheckpointInspection | GraphInspection:
    """What is inside a model and what `convert` would do. Writes nothing.

    Args:
        path: of any kind that `convert` takes.
        **options: target, hashes, max_bytes, and what a checkpoint does not tell of its RNN stacks
            (cell, num_layers, num_units, input_size, direction, scope, forget_bias, activation).

    Returns:
        An `Inspection`, `CheckpointInspection` or `GraphInspection`, frozen dataclasses;
        `.to_dict()` is their JSON form.

    Raises:
        ConversionError: the model can't be read or is none.
    """
    from rnnconvert.commands.inspect import inspect_path
    from rnnconvert.options import Options
    from rnnconvert.stores.work import on_models

    chosen = Options.of(**options)
    return on_models(lambda place: inspect_path(place, chosen), [path])


def export(
    source: str | PathLike[str],
    output: str | PathLike[str],
    **options: Unpack[ExportKeywords],
) -> Report:
    """Write a model for another runtime, and prove it there.

        >>> rnnconvert.export("model.h5", "model.onnx").verdict        # doctest: +SKIP
        'equivalent'

    Args:
        source: a model of any kind that `convert` takes; CuDNN layers are converted on the way.
        output: the file to write (.onnx, .tflite, .safetensors; .keras with `stateful_step`), or a
            directory for several RNN stacks.
        **options: named as on the command line: to, opset, quantize, stateful_step,
            allow_select_ops, force, dry_run, verify, strict, seed, batch, timesteps, rtol, atol,
            allow_code, custom_objects, max_bytes, hashes, and those of checkpoints' RNN stacks, as
            of `convert`.

    Returns:
        The `Report`; its `exported` tells operators, versions, inputs and outputs.

    Raises:
        DifferenceError: the runtime gives other numbers; nothing is written.
        UsageError: an extra is not installed; the message has the command.
        ConversionError: one subclass for each exit code.
    """
    from rnnconvert.exports import export_model
    from rnnconvert.exports.options import ExportOptions
    from rnnconvert.stores.work import on_models, to_place

    chosen = ExportOptions.of(**options)
    return on_models(
        lambda local: to_place(
            lambda place: export_model(local, place, chosen), output, chosen.general
        ),
        [source],
    )


def __getattr__(name: str) -> Any:
    """What takes a while to load, and few need."""
    if name == "__version__":
        import importlib.metadata

        return importlib.metadata.version("rnnconvert")
    if name in ("keras", "layouts"):
        import importlib

        return importlib.import_module(f"rnnconvert.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

"""Keras models in other containers than HDF5: rebuilt as such a file, which is then converted."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Any

from rnnconvert.errors import ConversionError, DifferenceError
from rnnconvert.keras_models import convert as keras_h5
from rnnconvert.keras_models.files import weights_h5, zip_file
from rnnconvert.keras_models.files.h5 import open_keras_h5
from rnnconvert.keras_models.opening import rebuilt_h5
from rnnconvert.keras_models.verify.loads import show_that_it_loads
from rnnconvert.kinds import Kind
from rnnconvert.options import Options
from rnnconvert.outputs import check_output, refuse_overlap
from rnnconvert.publish import publish, scratch_directory, temporary_file, write_errors
from rnnconvert.report import FileInfo, Report

_WEIGHTS = ".weights.h5"
_LIKE = {Kind.SAVED_MODEL: "", Kind.KERAS_1: "", Kind.THEANO: "", Kind.KERAS: "keras",
         Kind.KERAS_WEIGHTS: "weights"}  # fmt: skip
"""The container in which a model without anything to convert is as good as the input."""


def convert_rebuilt(source: Path, output: Path | None, kind: Kind, options: Options) -> Report:
    """Convert the Keras model of a SavedModel, `.keras` or `.weights.h5` file.

    Raises:
        ConversionError: a subclass for each exit code; see `errors`.
    """
    output = rebuilt_output(source, output, kind, options)
    refuse_overlap([source], output)
    info = FileInfo.of(source, kind.value, with_hash=options.hashes)
    if kind is Kind.KERAS and options.to == "keras":
        version = zip_file.loads_as_it_is(source)
        if version:
            info = replace(info, keras_version=version)
            report = Report(options.command, info, verdict="nothing-to-convert")
            return show_that_it_loads(report, source, options)
    with rebuilt_h5(source, kind) as (file, warnings):
        try:
            if kind is Kind.KERAS_WEIGHTS:
                report = _run_weights(source, file, output, options)
            else:
                joined = _check_keras1(source, file, options) if kind is Kind.KERAS_1 else ""
                report = keras_h5.convert_keras_h5(file, output, options, like=_LIKE[kind])
                if joined:
                    report = _with_detail(report, joined)
        except ConversionError as error:
            if error.path == str(file):
                error.path = str(source)
            if error.report is not None:
                error.report = replace(error.report, input=info)
            raise
    if kind in (Kind.SAVED_MODEL, Kind.KERAS):  # which say it inside
        found = report.input
        info = replace(info, keras_version=found.keras_version, backend=found.backend)
    if report.verdict == "nothing-to-convert":
        # The warnings are of what a rebuilt model lacks, and none is written.
        return show_that_it_loads(replace(report, input=info), source, options)
    return replace(report, input=info, warnings=(*warnings, *report.warnings))


def _check_keras1(source: Path, rebuilt: Path, options: Options) -> str:
    """Check the arrays that were joined; a sentence on it."""
    if options.verify == "none":
        return ""
    from rnnconvert.keras_models.verify.keras1_reference import check_joined

    with open_keras_h5(source) as old, open_keras_h5(rebuilt) as new:
        return check_joined(old, new, options.inputs.seed)


def _with_detail(report: Report, sentence: str) -> Report:
    """The report with a sentence more at the level `weights`."""
    level = report.weights_level
    detail = f"{sentence}; {level.detail}" if level.detail else sentence
    return replace(report, weights_level=replace(level, detail=detail))


def rebuilt_output(source: Path, output: Path | None, kind: Kind, options: Options) -> Path:
    extension = ".keras" if options.to == "keras" else ".h5"
    stem = source.stem if source.suffix in (".keras", ".h5", ".hdf5") else source.name
    if kind is Kind.KERAS_WEIGHTS:
        extension = _WEIGHTS
        stem = source.name.removesuffix(extension)
    name = f"{stem}{options.suffix}{extension}"
    if output is None:
        return source.with_name(name)
    return output / name if output.is_dir() else output


def _run_weights(source: Path, rebuilt: Path, output: Path, options: Options) -> Report:
    """Convert the rebuilt file into another one, whose arrays go into a copy of the source."""
    check_output(source, output, force=options.force or options.dry_run, in_place=False)
    weights_h5.require_places(source)
    everywhere = scratch_directory()
    with temporary_file(everywhere, ".h5") as converted:
        whole = replace(options, force=True, dry_run=False)
        report = keras_h5.convert_keras_h5(rebuilt, converted, whole, like="weights")
        if report.output is None:  # nothing to convert, or --check
            return report
        folder = everywhere if options.dry_run else output.parent
        with temporary_file(folder, _WEIGHTS) as final:
            with write_errors(output):
                weights_h5.write_keras_weights(source, converted, final)
            _require_arrays(final, converted)
            if options.dry_run:
                return replace(report, output=None)
            info = FileInfo.of(final, Kind.KERAS_WEIGHTS.value, with_hash=options.hashes)
            publish(final, output)
    if not output.name.endswith(_WEIGHTS):
        warning = f"Keras 3 loads this file only under a name that ends in {_WEIGHTS}"
        report = replace(report, warnings=(*report.warnings, warning))
    return replace(report, output=replace(info, path=str(output)))


def _require_arrays(written: Path, converted: Path) -> None:
    """What was written, read again like any input, holds the converted arrays bit for bit."""
    with rebuilt_h5(written, Kind.KERAS_WEIGHTS) as (again, _):
        found, expected = (_digests(file) for file in (again, converted))
    if found != expected:
        raise DifferenceError("the written file holds other arrays, a bug of rnnconvert")


def _digests(path: Path) -> list[tuple[Any, ...]]:
    with open_keras_h5(path) as file:
        arrays = (file.read(tensor.path) for group in file.groups.values() for tensor in group)
        return sorted(
            (array.shape, array.dtype.name, hashlib.sha256(array.tobytes()).hexdigest())
            for array in arrays
        )

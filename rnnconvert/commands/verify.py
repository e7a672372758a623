"""Two models compared, whoever made them: `rnnconvert verify A B`."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from pathlib import Path

from rnnconvert.containers.budget import max_bytes
from rnnconvert.errors import (
    DifferenceError,
    NotConvertibleError,
    UnreadableInputError,
    UsageError,
    errors_of,
    last_resort,
)
from rnnconvert.kinds import GRAPHS, KERAS, Kind, kind_of
from rnnconvert.options import Options
from rnnconvert.report import FileInfo, Report
from rnnconvert.verification.devices import require_gpu


def verify_paths(
    original: Path, converted: Path, options: Options, earlier: Path | None = None
) -> Report:
    """Compare two models.

    Args:
        original, converted: two Keras files, whole models or weights only, in any container that
            holds a Keras model; two graphs of one kind; or a checkpoint and another one, or the
            Keras file of its RNN stack.
        options: of it `verify`, `device`, `inputs`, `permissions`, `stack` and `hashes` are read.
        earlier: a report of an earlier conversion or comparison, whose hashes must be those of the
            two models.

    Raises:
        DifferenceError: they differ, or are not the files of the earlier report.
        NotConvertibleError: they can't be compared; nothing about them could be.
        UnreadableInputError: a file can't be read.
    """
    with max_bytes(options.max_bytes), last_resort():
        return _run(original, converted, options, earlier)


def _run(original: Path, converted: Path, options: Options, earlier: Path | None) -> Report:
    if options.verify == "none":
        raise UsageError("verify with --verify none would compare nothing")
    if options.device == "gpu" and options.verify == "model":
        require_gpu()
    with errors_of(original):
        first = kind_of(original)
    with errors_of(converted):
        second = kind_of(converted)
    options = replace(options, hashes=options.hashes or earlier is not None)
    check = partial(_require_same_files, earlier)
    # What is imported here brings code that only such models need.
    if first in GRAPHS and first is second:
        from rnnconvert.graphs import compare as graphs

        report = graphs.compare_graphs(original, converted, first, options, check)
    elif Kind.CHECKPOINT in (first, second) and {first, second} <= {Kind.CHECKPOINT, *KERAS}:
        from rnnconvert.checkpoints import compare as stacks

        report = stacks.compare_checkpoints((original, first), (converted, second), options, check)
    elif {first, second} <= {Kind.SAVED_MODEL, *KERAS}:
        from rnnconvert.keras_models import compare as keras

        report = keras.compare_keras((original, first), (converted, second), options, check)
    else:
        raise NotConvertibleError(f"can't be compared: {first.title} and {second.title}")
    return _conclude(report, options)


def _conclude(report: Report, options: Options) -> Report:
    report.raise_if_different()
    if options.strict:
        report.raise_if_in_doubt(gpu=options.device == "gpu")
    if all(level.status == "skipped" for _, level in report.levels):
        reasons = dict.fromkeys(str(level.reason) for _, level in report.levels)
        error = NotConvertibleError(f"can't be compared: {'; '.join(reasons)}")
        raise error.with_report(replace(report, verdict="unverified"))
    return report


def _require_same_files(earlier: Path | None, first: FileInfo, second: FileInfo) -> None:
    """The hashes that an earlier report recorded, against those of the files now."""
    if earlier is None:
        return
    try:
        report = json.loads(earlier.read_text(encoding="utf-8"))
        recorded = [report["input"]["sha256"], (report["output"] or {}).get("sha256")]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UnreadableInputError(
            f"not the report of one conversion or comparison ({error!r})", path=str(earlier)
        ) from error
    for hash_then, info in zip(recorded, (first, second), strict=True):
        if not hash_then:
            raise UsageError(f"the report holds no hash to check {info.path} by", path=str(earlier))
        if hash_then != info.sha256:
            raise DifferenceError(
                f"not the file of {earlier}: SHA-256 was {hash_then}, is {info.sha256}",
                path=info.path,
            )

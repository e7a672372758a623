"""Export to TFLite: builtin operators only, unless more is allowed; run in LiteRT."""

from __future__ import annotations

from pathlib import Path

from rnnconvert.exports.options import ExportOptions
from rnnconvert.exports.sources import Source
from rnnconvert.exports.tflite.graphs import write_tflite_graph
from rnnconvert.exports.tflite.running import run_tflite
from rnnconvert.exports.tflite.writing import write_tflite
from rnnconvert.exports.written import Run, Written


def write(source: Source, path: Path, options: ExportOptions) -> Written:
    """Write a model to `path`; see `writing` and `graphs`."""
    if source.is_graph:
        return write_tflite_graph(source, path, options)
    return write_tflite(source, path, options)


def runner(path: Path, written: Written) -> Run:
    """What was written, as a function; see `running.run_tflite`."""
    return run_tflite(path, written.inputs, written.outputs)

"""Export to torch: a state_dict by torch's names, and the module that it is for."""

from __future__ import annotations

from pathlib import Path

from rnnconvert.exports.options import ExportOptions
from rnnconvert.exports.sources import Source
from rnnconvert.exports.torch_module.running import run_torch
from rnnconvert.exports.torch_module.writing import write_torch
from rnnconvert.exports.written import Run, Written


def write(source: Source, path: Path, options: ExportOptions) -> Written:
    """Write a model to `path` and a Python module beside it; see `writing.write_torch`."""
    return write_torch(source, path, options)


def runner(path: Path, written: Written) -> Run:
    """What was written, as a function; see `running.run_torch`."""
    return run_torch(path)

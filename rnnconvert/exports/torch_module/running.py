"""A written module, loaded and run by torch."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

import numpy as np

from rnnconvert.exports.torch_module.writing import program_of
from rnnconvert.exports.written import Array, Run


def run_torch(path: Path) -> Run:
    """The module beside a file of tensors, with these, as a function of arrays.

    It is source that was written a moment ago, from numbers and identifiers of rnnconvert only.
    """
    import torch

    model = _imported(program_of(path)).load(path)
    dtype = next((parameter.dtype for parameter in model.parameters()), torch.float32)

    def run(arrays: Sequence[Array]) -> list[Array]:
        given = [torch.from_numpy(np.ascontiguousarray(array)) for array in arrays]
        given = [each.to(dtype) if each.is_floating_point() else each for each in given]
        with torch.no_grad():
            found = model(*given)
        outputs = found if isinstance(found, tuple) else (found,)
        return [output.numpy() for output in outputs]

    return run


def _imported(program: Path) -> ModuleType:
    """A Python file as a module; no cache file and no entry in sys.modules stay behind."""
    spec = importlib.util.spec_from_file_location("rnnconvert_written_module", program)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    before = sys.dont_write_bytecode
    sys.dont_write_bytecode = True
    try:
        spec.loader.exec_module(module)
    finally:
        sys.dont_write_bytecode = before
    return module

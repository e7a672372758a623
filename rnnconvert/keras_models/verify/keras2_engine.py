"""Models that were written for Keras 2, loaded and run in tf_keras, the Keras 2 that lives on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from rnnconvert.keras_models.verify.compiled import Differs
from rnnconvert.keras_models.verify.keras_engine import Outputs, last_line
from rnnconvert.keras_models.verify.trusted import require_trusted
from rnnconvert.options import Permissions
from rnnconvert.verification.compare import compare_arrays, largest_of
from rnnconvert.verification.frameworks import CannotRun, import_tensorflow
from rnnconvert.verification.inputs import Array

_TOLERANCE = 1e-4
"""Of the largest output. The same file ran in Keras 3 to within roundings; here another library's
functions, its hard_sigmoid among them, must not be taken for those."""


def check(
    path: Path, batches: list[list[Array]], expected: list[Outputs], permissions: Permissions
) -> str:
    """Load a file by `tf_keras.models.load_model(path)`, and run it.

    Args:
        path: a portable .h5 file.
        batches: inputs, one list of arrays for each call.
        expected: the original's outputs.
        permissions: which code of the file may run.

    Returns:
        What was found, for the report.

    Raises:
        CannotRun: tf_keras is not installed, or the file holds code that was not allowed.
        Differs: it does not load the file, or gives something else.
    """
    library = _import_tf_keras()
    version = f"tf_keras {library.__version__}"
    require_trusted(path, permissions, compiled=True)
    try:
        model = library.models.load_model(path, custom_objects=dict(permissions.custom_objects))
        found = [_run(model, arrays) for arrays in batches]
    except Exception as error:
        raise Differs(f"{version} does not load and run it: {last_line(error)}") from error
    worst = 0.0
    for one, other in zip(expected, found, strict=True):
        for name, wanted, given in zip(one.outputs, one.outputs.values(), other, strict=True):
            if wanted.shape != given.shape:
                raise Differs(f"{version} gives {name} in the shape {given.shape}")
            gap = compare_arrays(wanted, given)
            if gap.max_abs > _TOLERANCE * largest_of(wanted):
                raise Differs(f"{version} gives {gap.at(name)} off by {gap.max_abs:.3g}")
            worst = max(worst, gap.max_abs)
    return f"{version} loads it and is off by {worst:.2g}"


def _import_tf_keras() -> Any:
    import_tensorflow()
    try:
        import tf_keras  # type: ignore[import-untyped]
    except ImportError as error:
        raise CannotRun(
            "--target keras2 is proved in Keras 2, and tf_keras is not installed "
            "(pip install tf_keras)"
        ) from error
    return tf_keras


def _run(model: Any, arrays: list[Array]) -> list[Array]:
    outputs = model(arrays if len(arrays) > 1 else arrays[0], training=False)
    listed = outputs if isinstance(outputs, list | tuple) else [outputs]
    return [np.asarray(output) for output in listed]

"""Models that were written for Keras 2, loaded and run in tf_keras, the Keras 2 that lives on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from rnnconvert.errors import ConversionError
from rnnconvert.keras_models.config.channels_first import has_channels_first
from rnnconvert.keras_models.config.layer_forms import SOFTMAX_WITH_MASKS
from rnnconvert.keras_models.config.recurrent import CUDNN_CLASSES
from rnnconvert.keras_models.config.shared_forms import shared_forms
from rnnconvert.keras_models.config.tree import parse_version, root, walk
from rnnconvert.keras_models.files import h5_patch
from rnnconvert.keras_models.files.h5 import open_keras_h5
from rnnconvert.keras_models.planning import make_plan
from rnnconvert.keras_models.verify.compiled import Differs
from rnnconvert.keras_models.verify.keras_engine import Outputs, last_line
from rnnconvert.keras_models.verify.trusted import require_trusted
from rnnconvert.options import Permissions
from rnnconvert.publish import scratch_directory, temporary_file
from rnnconvert.report import Assumption
from rnnconvert.verification.compare import compare_arrays, largest_of
from rnnconvert.verification.frameworks import CannotRun, import_tensorflow
from rnnconvert.verification.inputs import Array
from rnnconvert.verification.rounding import EPS

_TOLERANCE = 1e-4
"""Of the largest output. The same file ran in Keras 3 to within roundings; here another library's
functions, its hard_sigmoid among them, must not be taken for those."""
_ROUNDINGS = 20
"""Of the coarsest dtype that a layer computes in, where they are more than that."""


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
    library = _import_tf_keras("--target keras2 is proved in Keras 2")
    require_trusted(path, permissions, compiled=True)
    try:
        model, found = _load_and_run(library, path, batches, permissions, compiled=True)
    except Exception as error:
        version = f"tf_keras {library.__version__}"
        raise Differs(f"{version} does not load and run it: {last_line(error)}") from error
    worst = _worst(library, model, expected, found)
    return f"tf_keras {library.__version__} loads it and is off by {worst:.2g}"


def confirm(
    original: Path, batches: list[list[Array]], expected: list[Outputs], permissions: Permissions
) -> str | Assumption:
    """Run an original of Keras 2 by Keras 2's own classes, where our translation is on both sides.

    Args:
        original: a whole model in HDF5.
        batches: inputs, one list of arrays for each call.
        expected: what it gave in Keras 3, translated.
        permissions: which code of the file may run.

    Returns:
        What was found, for the report, "" where nothing is to be confirmed; or what is assumed
        since tf_keras could not run the file here.

    Raises:
        Differs: tf_keras gives something else.
    """
    with open_keras_h5(original) as file:
        model_config, version = file.model_config or {}, parse_version(file.keras_version)
        alike = shared_forms(model_config, file.keras_version)
    if not alike:
        return ""
    classes = {node.class_name for node in walk(root(model_config))}
    if "Softmax" in classes and version is not None and version < SOFTMAX_WITH_MASKS:
        return _assumed(alike, "tf_keras computes a Softmax of Keras before 2.5 otherwise")
    if has_channels_first(model_config):
        return _assumed(alike, "not every CPU has convolutions with the channels first")
    try:
        library = _import_tf_keras("tf_keras would confirm it")
        with _without_cudnn(original) as path:
            require_trusted(path, permissions)
            model, found = _load_and_run(library, path, batches, permissions, compiled=False)
    except (CannotRun, ConversionError) as error:
        return _assumed(alike, str(error))
    except Exception as error:
        return _assumed(alike, f"tf_keras does not run the original: {last_line(error)}")
    worst = _worst(library, model, expected, found)
    named = ", ".join(alike)
    return f"tf_keras {library.__version__} runs {named} as it is and is off by {worst:.2g}"


def _assumed(alike: tuple[str, ...], why: str) -> Assumption:
    """What follows from a form that no other library confirmed."""
    return Assumption(
        f"the form of {', '.join(alike)}",
        "as in Keras 2",
        f"it is written alike into both models, and was not confirmed: {why}",
    )


@contextmanager
def _without_cudnn(original: Path) -> Iterator[Path]:
    """The file as it is; or, since its CuDNN layers run on a GPU only, with portable ones."""
    with open_keras_h5(original) as file:
        classes = {node.class_name for node in walk(root(file.model_config or {}))}
        if not classes & set(CUDNN_CLASSES):
            yield original
            return
        with temporary_file(scratch_directory(), ".h5") as target:
            plan = make_plan(file, target="keras2", optimizer="drop")
            h5_patch.copy_around(plan, file, target)
            h5_patch.apply(plan, file, target)
            yield target


def _load_and_run(
    library: Any, path: Path, batches: list[list[Array]], permissions: Permissions, *,
    compiled: bool,
) -> tuple[Any, list[list[Array]]]:  # fmt: skip
    objects = dict(permissions.custom_objects)
    model = library.models.load_model(path, custom_objects=objects, compile=compiled)
    return model, [_run(model, arrays) for arrays in batches]


def _worst(
    library: Any, model: Any, expected: list[Outputs], found: list[list[Array]]
) -> float:  # fmt: skip
    """The largest difference between what was expected and what Keras 2 gave.

    Raises:
        Differs: it is beyond the tolerance, or of another shape.
    """
    version = f"tf_keras {library.__version__}"
    worst = 0.0
    dtypes = {str(layer.compute_dtype) for layer in model._flatten_layers()}
    tolerance = max(_TOLERANCE, *(_ROUNDINGS * EPS.get(dtype, 0.0) for dtype in dtypes))
    for one, other in zip(expected, found, strict=True):
        for name, wanted, given in zip(one.outputs, one.outputs.values(), other, strict=True):
            if wanted.shape != given.shape:
                raise Differs(f"{version} gives {name} in the shape {given.shape}")
            gap = compare_arrays(wanted, given)
            if gap.max_abs > tolerance * largest_of(wanted):
                raise Differs(f"{version} gives {gap.at(name)} off by {gap.max_abs:.3g}")
            worst = max(worst, gap.max_abs)
    return worst


def _import_tf_keras(why: str) -> Any:
    import_tensorflow()
    try:
        import tf_keras  # type: ignore[import-untyped]
    except ImportError as error:
        raise CannotRun(f"{why}, and tf_keras is not installed (pip install tf_keras)") from error
    return tf_keras


def _run(model: Any, arrays: list[Array]) -> list[Array]:
    outputs = model(arrays if len(arrays) > 1 else arrays[0], training=False)
    listed = outputs if isinstance(outputs, list | tuple) else [outputs]
    return [np.asarray(output) for output in listed]

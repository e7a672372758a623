"""Whole models, loaded and run in Keras 3 on whichever backend Keras uses."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rnnconvert.containers.sniff import is_hdf5
from rnnconvert.errors import ConversionError, NotConvertibleError
from rnnconvert.keras_models.config.tensorflow_calls import called_functions
from rnnconvert.keras_models.files.h5 import open_keras_h5
from rnnconvert.keras_models.planning import make_plan
from rnnconvert.keras_models.verify.initial_values import without_initial_values
from rnnconvert.keras_models.verify.trusted import require_trusted
from rnnconvert.options import Permissions
from rnnconvert.verification.devices import tf32_off
from rnnconvert.verification.frameworks import CannotRun

Array = np.ndarray[Any, Any]
LONG = 50
"""Time steps from which tracing a model costs less than running it step by step."""


class CannotLoad(CannotRun):
    """Keras was let near the file and does not load it."""


def engine_name() -> str:
    """E.g. "keras 3.15.1 (tensorflow)"."""
    import keras

    return f"keras {keras.__version__} ({keras.backend.backend()})"


def device_name(device: str) -> str:
    """ "cpu" or "gpu" as Keras names it. With "cpu:0" its torch backend can't build an LSTM."""
    import keras

    is_torch_cpu = keras.backend.backend() == "torch" and device == "cpu"
    return device if is_torch_cpu else f"{device}:0"


def run_file(path: Path, x: Array, device: str) -> Array:
    """The output of a portable model of one input and one output; without TF32 on a GPU.

    Args:
        path: a file that Keras 3 loads by itself.
        device: "cpu" or "gpu".
    """
    import keras

    with keras.device(device_name(device)), ExitStack() as stack:
        if device == "gpu":
            stack.enter_context(tf32_off(keras.backend.backend()))
        model = _load_in_keras(path, {}, safe=True, compiled=False)
        result: Array = keras.ops.convert_to_numpy(model(x, training=False))
    return result


def load(path: Path, permissions: Permissions) -> Any:
    """Load a model file, old or new, uncompiled.

    What Keras 3 loads by itself is loaded by Keras; a file that needs conversion, CuDNN layers
    included, by `rnnconvert.keras`.

    Raises:
        CannotRun: it holds code or custom classes that were not allowed, or only weights.
        CannotLoad: Keras does not load it.
        UnreadableInputError: it is damaged, or refused as unsafe.
    """
    objects = dict(permissions.custom_objects)
    safe = not permissions.allow_code
    _require_trusted(path, permissions, compiled=False)
    try:
        if is_hdf5(path) and _needs_conversion(path):
            from rnnconvert.keras import load_model

            return without_initial_values(
                lambda: load_model(
                    path, custom_objects=objects, safe_mode=safe, keep_tensorflow_calls=True
                )
            )
        return _load_in_keras(path, objects, safe, compiled=False)
    except CannotRun:
        raise
    except ConversionError as error:
        raise CannotLoad(error.message) from error
    except Exception as error:  # Keras raises all kinds of things
        raise CannotLoad(f"Keras can't load it: {last_line(error)}") from error


def load_written(path: Path, permissions: Permissions) -> Any:
    """Load a file by the user's own line, `keras.models.load_model(path)`, compiled.

    Raises:
        CannotRun: it holds code or custom classes that were not allowed.
        CannotLoad: Keras refuses it.
    """
    safe = not permissions.allow_code
    _require_trusted(path, permissions, compiled=True)
    objects = dict(permissions.custom_objects)
    try:
        return _load_in_keras(path, objects, safe, compiled=True)
    except Exception as error:
        said = last_line(error)
        try:
            _load_in_keras(path, objects, safe, compiled=False)
        except Exception as other:
            raise CannotLoad(f"keras.models.load_model(path) raises: {last_line(other)}") from error
        raise CannotLoad(
            f"keras.models.load_model(path) raises, it loads with compile=False only: {said}"
        ) from error


def load_as(path: Path, permissions: Permissions, user_loads_in: str) -> Any:
    """Load the second model of a comparison.

    Args:
        user_loads_in: "keras3": as the user will, see `load_written`; "keras2", for which it was
            written, or "any": as `load`.
    """
    loader = load_written if user_loads_in == "keras3" else load
    return loader(path, permissions)


def _load_in_keras(path: Path, objects: dict[str, Any], safe: bool, compiled: bool) -> Any:
    import keras

    with quiet():
        return without_initial_values(
            lambda: keras.models.load_model(
                path, custom_objects=objects, compile=compiled, safe_mode=safe
            )
        )


@contextmanager
def quiet() -> Iterator[None]:
    """Keras tells of files without a training config, without the optimizer's state, and of one
    array for a model whose inputs are a list of one.
    """
    logger = logging.getLogger("absl")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(before)


def last_line(error: Exception) -> str:
    """What Keras says at the end of an error, where the cause is."""
    return (str(error).strip().splitlines() or [type(error).__name__])[-1]


def _require_trusted(path: Path, permissions: Permissions, *, compiled: bool) -> None:
    try:
        require_trusted(path, permissions, compiled=compiled)
    except NotConvertibleError as error:
        raise CannotRun(error.message) from error


def _needs_conversion(path: Path) -> bool:
    """Whether Keras 3 does not load a file as it is.

    Raises:
        CannotRun: it calls TensorFlow, and Keras does not run on TensorFlow here.
    """
    with open_keras_h5(path) as file:
        if make_plan(file).is_empty:
            return False
        _require_tensorflow(called_functions(file.model_config or {}))
        return True


def _require_tensorflow(functions: Sequence[str]) -> None:
    """What a model calls of TensorFlow is proved by TensorFlow, or not at all."""
    import keras

    if functions and keras.backend.backend() != "tensorflow":
        raise CannotRun(
            f"it calls TensorFlow ({', '.join(functions)}), and Keras runs on "
            f"{keras.backend.backend()} here; KERAS_BACKEND=tensorflow lets TensorFlow prove it"
        )


# --- running --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Outputs:
    """What a model gave: its own outputs and those of its layers, in the order of execution.

    Attributes:
        outputs: name to array.
        layers: name to array; a layer that is called more than once has an index behind its name.
    """

    outputs: dict[str, Array]
    layers: dict[str, Array]


class ModelRunner:
    """A loaded model with every layer's output within reach."""

    def __init__(self, model: Any) -> None:
        import keras

        self.model = model
        self._names, tensors = _layer_outputs(model)
        self._all = keras.Model(model.inputs, [model.outputs, tensors]) if tensors else None

    @property
    def is_stateful(self) -> bool:
        layers = self.model._flatten_layers()
        return any(getattr(layer, "stateful", False) is True for layer in layers)

    def run(self, arrays: list[Array]) -> Outputs:
        """One batch; states of stateful layers stay where they are afterwards."""
        if self._all is None:  # a subclassed model
            outputs, layers = self.model(arrays, training=False), []
        elif self._is_worth_tracing(arrays):
            outputs, layers = self._all.predict_on_batch(arrays)
        else:
            outputs, layers = self._all(arrays, training=False)
        outputs = outputs if isinstance(outputs, list | tuple) else [outputs]
        names = [_output_name(self.model, place) for place in range(len(outputs))]
        return Outputs(
            {f"{name}": _numpy(value) for name, value in zip(names, outputs, strict=True)},
            {name: _numpy(value) for name, value in zip(self._names, layers, strict=True)},
        )

    def _is_worth_tracing(self, arrays: list[Array]) -> bool:
        """Step by step is quicker for short sequences, a compiled graph for long ones.

        Elsewhere than on TensorFlow, and for the states of a stateful model, step by step it is.
        """
        import keras

        longest = max((array.shape[1] for array in arrays if array.ndim > 1), default=0)
        is_tensorflow = keras.backend.backend() == "tensorflow"
        return longest > LONG and is_tensorflow and not self.is_stateful


def _layer_outputs(model: Any) -> tuple[list[str], list[Any]]:
    """Names and tensors of every call of every layer, in the order of execution."""
    functional = getattr(model, "_functional", None) or model
    by_depth = getattr(functional, "_nodes_by_depth", {})
    names: list[str] = []
    tensors: list[Any] = []
    for depth in sorted(by_depth, reverse=True):
        for node in by_depth[depth]:
            if node.is_input:
                continue
            for place, tensor in enumerate(node.output_tensors):
                name = node.operation.name + (f":{place}" if place else "")
                again = sum(other.split("#")[0] == name for other in names)
                names.append(f"{name}#{again + 1}" if again else name)
                tensors.append(tensor)
    return names, tensors


def _output_name(model: Any, place: int) -> str:
    names = list(getattr(model, "output_names", None) or [])
    name = names[place] if place < len(names) else ""
    return f"output {place} ({name})" if name else f"output {place}"


def _numpy(value: Any) -> Array:
    import keras

    return np.asarray(keras.ops.convert_to_numpy(keras.ops.cast(value, _readable(value))))


def _readable(value: Any) -> str:
    import keras

    dtype = str(keras.backend.standardize_dtype(value.dtype))
    return "float32" if dtype == "bfloat16" else dtype


# --- float64 --------------------------------------------------------------------------------


def as_float64(model: Any, permissions: Permissions, *, wobble: float = 0.0, seed: int = 0) -> Any:
    """A twin of a model that computes in float64.

    Args:
        model: a functional or Sequential model.
        permissions: as it was loaded with.
        wobble: every weight is multiplied by 1 + wobble * r, r uniform between -1 and 1.
        seed: of r.

    Raises:
        CannotRun: the model can't be built again from its config.
    """
    from keras.src.saving.serialization_lib import SafeModeScope

    from rnnconvert.keras import custom_objects

    objects = {**custom_objects(), **permissions.custom_objects}

    def build() -> Any:
        generator = np.random.default_rng(seed)
        config = _in_float64(model.get_config())
        with SafeModeScope(not permissions.allow_code):
            twin = type(model).from_config(config, custom_objects=objects)
        weights = [np.asarray(weight) for weight in model.get_weights()]
        twin.set_weights([_wobbled(weight, wobble, generator) for weight in weights])
        return twin

    try:
        return without_initial_values(build)
    except Exception as error:
        last = (str(error).strip().splitlines() or [type(error).__name__])[-1]
        raise CannotRun(f"no float64 twin can be built: {last}") from error


def _wobbled(weight: Array, wobble: float, generator: np.random.Generator) -> Array:
    if weight.dtype.kind != "f" and weight.dtype.name != "bfloat16":
        return weight
    wide = weight.astype(np.float64)
    return wide * (1.0 + wobble * generator.uniform(-1.0, 1.0, wide.shape)) if wobble else wide


def _in_float64(value: Any) -> Any:
    """A config with every floating dtype, given by name or as a policy, made float64."""
    if isinstance(value, list | tuple):
        return type(value)(_in_float64(item) for item in value)
    if not isinstance(value, dict):
        return value
    return {
        key: "float64" if key == "dtype" and _is_float(item) else _in_float64(item)
        for key, item in value.items()
    }


def _is_float(dtype: Any) -> bool:
    if isinstance(dtype, dict):
        dtype = dtype.get("config", {}).get("name", "")
    return isinstance(dtype, str) and "float" in dtype

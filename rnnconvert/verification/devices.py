"""Is there a GPU, and what can run cuDNN on it? The cheapest test comes first."""

from __future__ import annotations

import ctypes
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from rnnconvert.errors import UsageError
from rnnconvert.verification.frameworks import CannotRun, import_keras

DRIVERS = ("nvcuda.dll",) if sys.platform == "win32" else ("libcuda.so.1", "libcuda.so")


@dataclass(frozen=True)
class Gpu:
    """What was found.

    Attributes:
        engine: "keras" where Keras' own backend (TensorFlow or torch) sees the GPU, so that whole
            models run on it; "torch" where only torch does, which runs layer by layer; None where
            nothing does.
        looked_for: sentences on what was tried, for the report.
    """

    engine: str | None
    looked_for: str


def find_gpu() -> Gpu:
    """Look for a GPU with cuDNN. Without a CUDA driver nothing heavy is imported."""
    if not _has_driver():
        return Gpu(None, _no_driver())
    tried = []
    try:
        backend = import_keras().backend.backend()
    except CannotRun as error:
        tried.append(str(error))
    else:
        sees = {"tensorflow": _tensorflow_sees, "torch": _torch_sees}.get(backend)
        if sees is not None and sees():
            return Gpu("keras", f"keras on {backend} with a GPU")
        tried.append(f"keras on {backend} has no GPU that runs cuDNN")
    try:
        if _torch_sees():
            return Gpu("torch", "torch with CUDA; " + "; ".join(tried))
        tried.append("torch sees no CUDA device, or has no cuDNN")
    except ModuleNotFoundError:
        tried.append("torch is not installed")
    except (ImportError, OSError) as error:  # a CUDA library of its is missing, say
        tried.append(f"torch can't be imported: {str(error).splitlines()[0]}")
    return Gpu(None, "no usable CUDA device: " + "; ".join(tried))


def no_tensorflow_gpu() -> str | None:
    """Why TensorFlow has no GPU to run a graph on; None where it has one."""
    if not _has_driver():
        return _no_driver()
    return None if _tensorflow_sees() else "TensorFlow sees no GPU that runs cuDNN"


def require_gpu() -> None:
    """For `--device gpu`, which is never skipped silently.

    Raises:
        UsageError: there is none; the message says what was looked for.
    """
    gpu = find_gpu()
    if gpu.engine is None:
        raise UsageError(f"--device gpu: {gpu.looked_for}")


def _no_driver() -> str:
    return f"no CUDA device: no CUDA driver ({DRIVERS[0]}) is installed"


def _has_driver() -> bool:
    for name in DRIVERS:
        try:
            ctypes.CDLL(name)
        except OSError:
            continue
        return True
    return False


def _tensorflow_sees() -> bool:
    import tensorflow as tf

    return bool(tf.config.list_physical_devices("GPU"))


def _torch_sees() -> bool:
    import torch

    with warnings.catch_warnings():  # that the driver is too old, or whether there is one at all
        warnings.simplefilter("ignore")
        return bool(torch.cuda.is_available() and torch.backends.cudnn.is_available())


@contextmanager
def tf32_off(engine: str) -> Iterator[None]:
    """TF32 rounds float32 factors to 10 bits, which no comparison of float32 could bear.

    Args:
        engine: "tensorflow" or "torch"; others have no such switch here.
    """
    if engine == "tensorflow":
        import tensorflow as tf

        before = tf.config.experimental.tensor_float_32_execution_enabled()
        tf.config.experimental.enable_tensor_float_32_execution(False)
        try:
            yield
        finally:
            tf.config.experimental.enable_tensor_float_32_execution(before)
    elif engine == "torch":
        import torch

        switches: tuple[Any, ...] = (torch.backends.cuda.matmul, torch.backends.cudnn)
        were = [switch.allow_tf32 for switch in switches]
        for switch in switches:
            switch.allow_tf32 = False
        try:
            yield
        finally:
            for switch, was in zip(switches, were, strict=True):
                switch.allow_tf32 = was
    else:
        yield

"""Importing Keras: late, quietly, and with one clear reason where it can't be done."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

OLDEST_KERAS = (3, 4)


class CannotRun(Exception):
    """A model can't be run here; the text is the reason, for the report."""


class NothingToRun(CannotRun):
    """There is nothing of its kind in the file that could be run, here or on any machine."""


def import_keras() -> Any:
    """Keras 3, ready to run.

    Raises:
        CannotRun: it or its backend is missing, or too old.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    install = 'pip install "rnnconvert[tensorflow]"'
    try:
        with native_stderr_closed():
            import keras
    except ImportError as error:
        name = getattr(error, "name", None) or "keras"
        raise CannotRun(f"Keras 3 can't be imported, {name} is missing ({install})") from error
    found = keras.__version__
    version = tuple(int(part) for part in found.split(".")[:2] if part.isdigit())
    if version < OLDEST_KERAS:
        raise CannotRun(f"Keras 3.4 or later is needed, found {found} ({install})")
    return keras


def import_tensorflow() -> Any:
    """TensorFlow 2, for graphs.

    Raises:
        CannotRun: it is missing.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    try:
        with native_stderr_closed():
            import tensorflow as tf
    except ImportError as error:
        install = 'pip install "rnnconvert[tensorflow]"'
        raise CannotRun(f"TensorFlow can't be imported ({install})") from error
    return tf


def number_names_anew() -> None:
    """Let Keras begin again with the numbers in the names that it makes up, such as `transpose_3`.

    Reports show some of them: they must not depend on the models that were run before.
    """
    if "keras" in sys.modules:
        from keras.src.utils import naming  # Keras has no public name for it

        naming.reset_uids()


def forget_models() -> None:
    """Free what Keras and its backend keep of the models that were run, if any were.

    That they make their kernels anew takes 50 ms for the next model: so not after each.
    """
    keras = sys.modules.get("keras")
    if keras is not None:
        keras.utils.clear_session()


@contextmanager
def native_stderr_closed() -> Iterator[None]:
    """TensorFlow's C++ tells of missing GPUs at any log level. Python's errors still come."""
    try:
        saved = os.dup(2)
    except OSError:  # there is no such stream
        yield
        return
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        sys.stderr.flush()
        os.dup2(nowhere, 2)
        yield
    finally:
        os.dup2(saved, 2)
        os.close(saved)
        os.close(nowhere)

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

"""TensorFlow's data types: their numbers in a file, their names, and numpy's counterparts."""

from __future__ import annotations

from typing import Any

import numpy as np

from rnnconvert.containers.checkpoint.files import Malformed
from rnnconvert.errors import NotConvertibleError, UsageError

STRING = "string"
NAMES = {
    1: "float32",
    2: "float64",
    3: "int32",
    4: "uint8",
    5: "int16",
    6: "int8",
    7: STRING,
    8: "complex64",
    9: "int64",
    10: "bool",
    11: "qint8",
    12: "quint8",
    13: "qint32",
    14: "bfloat16",
    15: "qint16",
    16: "quint16",
    17: "uint16",
    18: "complex128",
    19: "float16",
    20: "resource",
    21: "variant",
    22: "uint32",
    23: "uint64",
    24: "float8_e5m2",
    25: "float8_e4m3fn",
    26: "float8_e4m3fnuz",
    27: "float8_e4m3b11fnuz",
    28: "float8_e5m2fnuz",
    29: "int4",
    30: "uint4",
    31: "int2",
    32: "uint2",
    33: "float4_e2m1fn",
}
"""The DataType enum of tensorflow/core/framework/types.proto."""
_NUMBERS = {name: number for number, name in NAMES.items()}
_NUMPY = {
    "float16", "float32", "float64", "complex64", "complex128", "bool",
    "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
}  # fmt: skip
_ML_DTYPES = {
    "bfloat16": 2, "float8_e5m2": 1, "float8_e4m3fn": 1, "float8_e4m3fnuz": 1,
    "float8_e4m3b11fnuz": 1, "float8_e5m2fnuz": 1,
}  # fmt: skip
"""Types that the package ml_dtypes adds to numpy, and their bytes."""


def dtype_name(number: int) -> str:
    """The name of a type's number.

    Raises:
        Malformed: TensorFlow has no such type.
    """
    if number not in NAMES:
        raise Malformed(f"data type {number} is unknown")
    return NAMES[number]


def type_number(name: str) -> int:
    """The number of a type that `dtype_name` or `array_type` named."""
    return _NUMBERS[name]


def array_type(array: np.ndarray) -> str:
    """TensorFlow's name of an array's type; arrays of objects and of bytes are strings.

    Raises:
        NotConvertibleError: TensorFlow has no such type.
    """
    if array.dtype.kind in "OS":
        return STRING
    if itemsize(array.dtype.name) is None:
        raise NotConvertibleError(f"TensorFlow has no type for numpy's {array.dtype}")
    return array.dtype.name


def itemsize(name: str) -> int | None:
    """Bytes of one element in a data file, or None where that is not fixed or not known."""
    if name in _NUMPY:
        return np.dtype(name).itemsize
    return _ML_DTYPES.get(name)


def numpy_dtype(name: str) -> np.dtype[Any]:
    """The numpy dtype of a type; `object` for strings, which become `bytes`.

    Raises:
        UsageError: it takes the package ml_dtypes, which is not installed.
        NotConvertibleError: there is none.
    """
    if name == STRING:
        return np.dtype(object)
    if name in _NUMPY:
        return np.dtype(name)
    if name not in _ML_DTYPES:
        raise NotConvertibleError(f"TensorFlow's type {name} has no counterpart in numpy")
    try:
        import ml_dtypes
    except ImportError as error:
        raise UsageError(f"reading {name} needs the package ml_dtypes: install it") from error
    return np.dtype(getattr(ml_dtypes, name))

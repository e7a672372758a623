"""Asks NVIDIA's library where everything lies in the parameter buffer; needs no GPU.

usage: python cudnn_library.py < questions.json > answers.json

The questions about layouts are answered by host code. They want a handle, and a handle wants a
driver, but they don't look into it: a block of zeros serves. Whether that holds for a further
version of the library is NVIDIA's secret, so the tests run this file as a process of its own.

A question is a dict with the fields of `OpaqueShape` and `dtype`. An answer is a dict: `size` in
elements, and `matrices` and `biases` as lists of [pseudo-layer, linLayerID, offset in elements,
shape], those that are absent left out; or `refused`, the name of a function and its status.
"""

from __future__ import annotations

import ctypes
import importlib.util
import json
import sys
from collections.abc import Iterator
from ctypes import byref, c_int, c_size_t, c_uint, c_void_p
from pathlib import Path
from typing import Any

MODES = {"rnn_relu": 0, "rnn_tanh": 1, "lstm": 2, "gru": 3}
GATES = {"rnn_relu": 1, "rnn_tanh": 1, "lstm": 4, "gru": 3}
DTYPES = {"float32": (0, 4), "float64": (1, 8), "float16": (2, 2)}
"""cuDNN's number of a dtype, and its bytes."""
DOUBLE_BIAS = 2
BASE = 1 << 40
"""Where the buffer is said to begin; it is never touched."""


class Refused(Exception):
    """A function of the library returned a status."""


def folder(package: str) -> Path | None:
    """Where a wheel of NVIDIA's keeps its shared libraries; None where it is not installed."""
    try:
        spec = importlib.util.find_spec(f"nvidia.{package}")
    except ModuleNotFoundError:
        return None
    places = (
        [Path(place) / "lib" for place in spec.submodule_search_locations or ()] if spec else []
    )
    return next((place for place in places if place.is_dir()), None)


class Library:
    """The functions that answer, and the descriptors that they fill."""

    def __init__(self) -> None:
        self._libraries = list(self._load())
        for name, types in {
            "cudnnSetDropoutDescriptor": [c_void_p, c_void_p, ctypes.c_float, c_void_p, c_size_t,
                                          ctypes.c_ulonglong],
            "cudnnSetRNNDescriptor_v8": [c_void_p] + [c_int] * 12 + [c_void_p, c_uint],
            "cudnnGetRNNWeightSpaceSize": [c_void_p] * 3,
            "cudnnGetRNNWeightParams": [c_void_p, c_void_p, c_int, c_size_t, c_void_p, c_int]
            + [c_void_p] * 4,
            "cudnnGetTensorNdDescriptor": [c_void_p, c_int] + [c_void_p] * 4,
        }.items():  # fmt: skip
            self._function(name).argtypes = types
        self._zeros = ctypes.create_string_buffer(1 << 20)
        self._handle = c_void_p(ctypes.addressof(self._zeros))
        self._dropout = self._new("cudnnCreateDropoutDescriptor")
        self._rnn = self._new("cudnnCreateRNNDescriptor")
        self._matrix = self._new("cudnnCreateTensorDescriptor")
        self._bias = self._new("cudnnCreateTensorDescriptor")
        self._call("cudnnSetDropoutDescriptor", self._dropout, self._handle, 0.0, None, 0, 0)

    @staticmethod
    def _load() -> Iterator[ctypes.CDLL]:
        for package, names in {
            "cublas": ("libcublasLt", "libcublas"),
            "cuda_nvrtc": ("libnvrtc",),
            "cudnn": ("libcudnn_ops", "libcudnn_graph", "libcudnn_adv", "libcudnn"),
        }.items():
            place = folder(package)
            for name in names if place else ():
                for path in sorted(place.glob(f"{name}*.so.*")):
                    try:
                        library = ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
                    except OSError:  # what needs a driver is not what answers
                        continue
                    if package == "cudnn":
                        yield library

    def _function(self, name: str) -> Any:
        for library in self._libraries:
            if hasattr(library, name):
                return getattr(library, name)
        raise SystemExit(f"the library has no function {name}")

    def _call(self, name: str, *arguments: Any) -> None:
        status = self._function(name)(*arguments)
        if status:
            raise Refused(f"{name}: {status}")

    def _new(self, name: str) -> c_void_p:
        pointer = c_void_p()
        self._call(name, byref(pointer))
        return pointer

    @property
    def version(self) -> int:
        function = self._function("cudnnGetVersion")
        function.restype = c_size_t
        return int(function())

    def ask(self, question: dict[str, Any]) -> dict[str, Any]:
        try:
            return self._ask(question)
        except Refused as refusal:
            return {"refused": str(refusal)}

    def _ask(self, question: dict[str, Any]) -> dict[str, Any]:
        dtype, width = DTYPES[question["dtype"]]
        both = question["direction"] == "bidirectional"
        units, projected = question["num_units"], question["num_proj"]
        self._call(
            "cudnnSetRNNDescriptor_v8", self._rnn, 0, MODES[question["cell"]], DOUBLE_BIAS,
            int(both), int(question["input_mode"] == "skip_input"), dtype, dtype, 0,
            question["input_size"], units, projected or units, question["num_layers"],
            self._dropout, 0,
        )  # fmt: skip
        size = c_size_t()
        self._call("cudnnGetRNNWeightSpaceSize", self._handle, self._rnn, byref(size))
        found: dict[str, Any] = {"size": size.value // width, "matrices": [], "biases": []}
        gates = GATES[question["cell"]]
        numbers = range(2 * gates + (0 < projected < units))
        for layer in range(question["num_layers"] * (1 + both)):
            for number in numbers:
                matrix, bias = c_void_p(), c_void_p()
                self._call(
                    "cudnnGetRNNWeightParams", self._handle, self._rnn, layer, size, BASE, number,
                    self._matrix, byref(matrix), self._bias, byref(bias),
                )  # fmt: skip
                for kind, pointer, descriptor in (
                    ("matrices", matrix, self._matrix), ("biases", bias, self._bias),
                ):  # fmt: skip
                    if pointer.value:
                        offset, rest = divmod(pointer.value - BASE, width)
                        assert not rest
                        found[kind].append([layer, number, offset, self._shape(descriptor)])
        return found

    def _shape(self, descriptor: c_void_p) -> list[int]:
        """Of a tensor descriptor, which must be dense and row-major; (1, rows, columns)."""
        dtype, rank, lengths, strides = c_int(), c_int(), (c_int * 8)(), (c_int * 8)()
        self._call(
            "cudnnGetTensorNdDescriptor",
            descriptor, 3, byref(dtype), byref(rank), lengths, strides,
        )  # fmt: skip
        one, rows, columns = lengths[: rank.value]
        assert (one, list(strides[:3])) == (1, [rows * columns, columns, 1])
        return [rows, columns]


if __name__ == "__main__":
    library = Library()
    answers = [library.ask(question) for question in json.load(sys.stdin)]
    json.dump({"version": library.version, "answers": answers}, sys.stdout)

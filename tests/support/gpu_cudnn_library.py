"""Asks the cuDNN that torch uses on the GPU where everything lies in the parameter buffer.

usage: python gpu_cudnn_library.py < questions.json > answers.json

Questions and answers are those of tests/support/cudnn_library.py, which asks without a GPU. Here
the handle is real, and the library is the one that torch has loaded.
"""

from __future__ import annotations

import ctypes
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cudnn_library import Library

NO_LIBRARY = 77
"""Exit code where torch has no cuDNN that can be asked: linked into torch itself, or no Linux."""


class LoadedLibrary(Library):
    """The cuDNN of this process, with a real handle."""

    @staticmethod
    def _load() -> Iterator[ctypes.CDLL]:
        for path in loaded():
            yield ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)

    @property
    def _handle(self) -> Any:
        if self._real is None:
            self._real = self._new("cudnnCreate")
        return self._real

    @_handle.setter
    def _handle(self, zeros: Any) -> None:
        """Where the parent class takes a block of zeros, make a handle at the first use."""
        self._real = None


def loaded() -> list[str]:
    """Paths of cuDNN's shared libraries in this process."""
    try:
        lines = Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
    paths = {line.split(maxsplit=5)[5] for line in lines if "/" in line}
    return sorted(path for path in paths if "libcudnn" in Path(path).name)


def run_something() -> None:
    """cuDNN loads its libraries when they are first needed."""
    import torch

    torch.nn.LSTM(3, 2, device="cuda")(torch.zeros(2, 2, 3, device="cuda"))


if __name__ == "__main__":
    run_something()
    if not loaded():
        print("no shared library of cuDNN is loaded by torch", file=sys.stderr)
        sys.exit(NO_LIBRARY)
    library = LoadedLibrary()
    answers = [library.ask(question) for question in json.load(sys.stdin)]
    json.dump({"version": library.version, "answers": answers}, sys.stdout)

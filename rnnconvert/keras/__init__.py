"""Keras 3 layers that run Keras 2's CuDNN layers anywhere, and a loader for the files they are in.

    >>> import rnnconvert.keras
    >>> model = rnnconvert.keras.load_model("old.h5")            # doctest: +SKIP

Importing this does not import Keras; the first use of a name does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rnnconvert.containers import safe_h5 as _guarded  # noqa: F401, before Keras loads HDF5

if TYPE_CHECKING:
    from rnnconvert.keras.layers import CuDNNGRU, CuDNNLSTM, custom_objects, hard_sigmoid_keras2
    from rnnconvert.keras.loading import load_model

__all__ = ["CuDNNGRU", "CuDNNLSTM", "custom_objects", "hard_sigmoid_keras2", "load_model"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name == "load_model":
        from rnnconvert.keras import loading

        return loading.load_model
    from rnnconvert.keras import layers

    return getattr(layers, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

"""Loading a Keras model without computing the initial values that its file then overwrites."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import numpy as np

FILL = -64.0
"""What a weight holds until its value from the file comes: exact in every floating dtype."""

Loaded = TypeVar("Loaded")
_ONE_AT_A_TIME = threading.RLock()


def without_initial_values(load: Callable[[], Loaded]) -> Loaded:
    """What `load` returns, without the time that Keras' initializers take.

    Most of the time of loading a large model goes into values that are overwritten at once, above
    all into the QR factorizations of orthogonal ones. Here every floating weight that a layer adds
    starts as `FILL` instead. It is sound because a weight that `load` has overwritten does not
    remember what it started as. Where a tensor is missing Keras raises; but a custom layer may load
    only some of its weights, and two models with the same `FILL` in them would look equal where
    random values did not. So if a weight still holds `FILL` afterwards, `load` is called once more,
    with Keras' own initial values. Neither is an initializer touched that a layer calls for
    something else than a weight: that is in no file.

    Other threads' layers are not affected; loads of several threads wait for each other.

    Args:
        load: builds a model and gives it its weights; called twice at most.
    """
    with _filled_weights() as weights:
        loaded = load()
    return load() if any(_is_filled(weight) for weight in weights) else loaded


@contextmanager
def _filled_weights() -> Iterator[list[Any]]:
    """Inside, `Layer.add_weight` fills weights with `FILL`; yields those it made in this thread."""
    import keras

    layer = keras.layers.Layer
    thread = threading.get_ident()
    made: list[Any] = []
    with _ONE_AT_A_TIME:  # or the last to leave might restore the other's method
        original = layer.add_weight

        def add_weight(self: Any, *args: Any, **named: Any) -> Any:
            initializer = named.get("initializer")
            if not callable(initializer) or threading.get_ident() != thread:
                return original(self, *args, **named)
            weight = original(self, *args, **{**named, "initializer": _filling(initializer)})
            made.append(weight)
            return weight

        layer.add_weight = add_weight
        try:
            yield made
        finally:
            layer.add_weight = original


def _filling(initializer: Callable[..., Any]) -> Callable[..., Any]:
    from keras import ops

    def fill(shape: Any, dtype: Any = None) -> Any:
        if "float" in str(dtype):
            return ops.full(shape, FILL, dtype=dtype)
        return initializer(shape, dtype=dtype)

    return fill


def _is_filled(weight: Any) -> bool:
    from keras import ops

    values = np.asarray(ops.convert_to_numpy(weight))
    return bool(values.size and (values == FILL).all())

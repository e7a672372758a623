"""Small Keras 3 models for the tests of exports, with random weights and unequal biases."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np


def with_random_weights(model: Any, seed: int = 3) -> Any:
    generator = np.random.default_rng(seed)
    for weight in model.weights:
        if len(weight.shape):
            values = generator.normal(0.0, 0.4, weight.shape)
            weight.assign(np.abs(values) if "variance" in weight.path else values)
    return model


def saved(model: Any, path: Path, seed: int = 3) -> Path:
    with_random_weights(model, seed).save(path)
    return path


def sequential(*layers: Any, shape: tuple[int | None, ...] = (None, 5), **options: Any) -> Any:
    import keras

    return keras.Sequential([keras.Input(shape, **options), *layers])


def run_onnx(path: Path, inputs: list[np.ndarray]) -> list[np.ndarray]:
    """The outputs of an ONNX file, its inputs given in its own order."""
    import onnxruntime

    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    dtypes = {"tensor(float)": "float32", "tensor(int32)": "int32", "tensor(float16)": "float16"}
    given = {
        value.name: array.astype(dtypes.get(value.type, array.dtype))
        for value, array in zip(session.get_inputs(), inputs, strict=True)
    }
    return session.run(None, given)


def operators(path: Path) -> dict[str, int]:
    """Types of all nodes in the main graph, counted."""
    import onnx

    found: dict[str, int] = {}
    for node in onnx.load(str(path)).graph.node:
        found[node.op_type] = found.get(node.op_type, 0) + 1
    return found


def predict(model: Any, inputs: list[np.ndarray]) -> list[np.ndarray]:
    """All outputs of a Keras model, called eagerly."""
    import keras

    outputs = model(inputs if len(inputs) > 1 else inputs[0], training=False)
    return [np.asarray(output) for output in keras.tree.flatten(outputs)]


def streams() -> Iterator[tuple[str, Any]]:
    """Models that can be run step by step, by name."""
    import keras

    layers = keras.layers
    yield "lstm", sequential(layers.LSTM(7, return_sequences=True), layers.Dense(3))
    yield (
        "gru_last",
        sequential(layers.GRU(7, return_sequences=True), layers.Dropout(0.2),
                   layers.GRU(4, reset_after=False), layers.Dense(3)),
    )  # fmt: skip
    yield (
        "embedding",
        sequential(layers.Embedding(11, 6, mask_zero=True), layers.LSTM(7, return_sequences=True),
                   layers.SimpleRNN(4), shape=(None,), dtype="int32"),
    )  # fmt: skip
    x = keras.Input((None, 5))
    y = layers.LSTM(6, return_sequences=True)(x)
    h, _, c = layers.LSTM(4, return_state=True)(layers.Concatenate()([x, y]))
    yield "functional", keras.Model(x, [layers.Dense(2)(h), y, c])
    inner = sequential(layers.GRU(6, return_sequences=True))
    yield "nested", sequential(layers.Dense(5), inner, layers.LSTM(3))
    x = keras.Input((None, 5))
    y = layers.Rescaling(0.5, offset=0.1)(layers.LayerNormalization()(layers.Masking()(x)))
    y = layers.TimeDistributed(layers.Dense(4, activation="relu"))(y)
    z = layers.LSTM(4, return_sequences=True, use_cudnn=False)(y)
    y = layers.Concatenate()([y, layers.Activation("elu")(z)])
    y = layers.SimpleRNN(3, kernel_regularizer="l2")(layers.BatchNormalization()(y))
    yield "many_layers", keras.Model(x, layers.LeakyReLU(0.1)(y * 2.0))
    yield (
        "stateful",
        keras.Sequential([keras.Input(batch_shape=(3, None, 5)),
                          layers.LSTM(7, return_sequences=True, stateful=True),
                          layers.GRU(3, stateful=True)]),
    )  # fmt: skip

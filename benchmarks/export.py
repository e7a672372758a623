"""Latency and size of exported ONNX models, beside other exporters' of the same model, and Keras.

    python benchmarks/export.py [--rounds 40] [--only gru]

Every round runs each contender twice, in a random order, and takes the time of the second run;
the medians of the processor's time are printed, in milliseconds: what else the machine does counts
little in it, while it would lengthen the long runs of the clock, and so flatter the short ones.
onnxruntime uses one thread, for every file alike; Keras' threads are added up.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
import onnx
import onnxruntime
import tensorflow as tf
import tf2onnx
from keras import layers

import rnnconvert

STEPS, WIDTH, UNITS = 100, 64, 128


def models() -> dict[str, Any]:
    def sequential(*parts: Any, shape: Any = (None, WIDTH), **options: Any) -> Any:
        return keras.Sequential([keras.Input(shape, **options), *parts])

    x = keras.Input((None, WIDTH))
    return {
        "gru": sequential(layers.GRU(UNITS)),
        "lstm": sequential(layers.LSTM(UNITS)),
        "lstm_sequences": sequential(layers.LSTM(UNITS, return_sequences=True), layers.Dense(8)),
        "lstm_states": keras.Model(x, layers.LSTM(UNITS, return_state=True)(x)),
        "bidirectional_gru": sequential(layers.Bidirectional(layers.GRU(UNITS))),
        "embedding_mask_lstm": sequential(
            layers.Embedding(500, WIDTH, mask_zero=True), layers.LSTM(UNITS), shape=(None,),
            dtype="int32",
        ),
        "lstm_two": sequential(layers.LSTM(UNITS, return_sequences=True), layers.LSTM(UNITS)),
    }  # fmt: skip


def inputs_of(model: Any) -> np.ndarray:
    generator = np.random.default_rng(0)
    if model.inputs[0].dtype.startswith("int"):
        tokens = generator.integers(1, 500, (1, STEPS)).astype("int32")
        tokens[:, 3 * STEPS // 4 :] = 0
        return tokens
    return generator.standard_normal((1, STEPS, WIDTH)).astype("float32")


def exported(model: Any, folder: Path) -> dict[str, Path]:
    """The files of this program, of tf2onnx and of Keras; one that fails is left out, and told."""
    source = folder / "model.keras"
    model.save(source)
    rnnconvert.export(source, folder / "ours.onnx")
    files = {"ours": folder / "ours.onnx"}
    specs = [tf.TensorSpec(t.shape, t.dtype, name=f"x{i}") for i, t in enumerate(model.inputs)]
    function = tf.function(lambda x: model(x, training=False), input_signature=specs)
    ways: dict[str, Callable[[Path], Any]] = {
        "tf2onnx": lambda path: tf2onnx.convert.from_function(
            function, input_signature=specs, opset=17, output_path=str(path)
        ),
        "keras": lambda path: model.export(path, format="onnx", verbose=False),
    }
    for name, way in ways.items():
        path = folder / f"{name}.onnx"
        try:
            way(path)
            files[name] = path
        except Exception as error:
            print(f"  {name}: {type(error).__name__}: {str(error).splitlines()[0][:80]}")
    return files


def session_of(path: Path) -> Callable[[np.ndarray], Any]:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name
    return lambda x: session.run(None, {name: x})


def shown(path: Path) -> str:
    """Recurrent operators and loops of a file."""
    types = [node.op_type for node in onnx.load(str(path)).graph.node]
    counts = [(kind, types.count(kind)) for kind in ("LSTM", "GRU", "RNN", "Loop")]
    return ", ".join(f"{count} {kind}" for kind, count in counts if count)


def measure(name: str, model: Any, rounds: int) -> None:
    x = inputs_of(model)
    with tempfile.TemporaryDirectory() as folder:
        files = exported(model, Path(folder))
        runs: dict[str, Callable[[np.ndarray], Any]] = {
            key: session_of(path) for key, path in files.items()
        }
        runs["predict_on_batch"] = model.predict_on_batch
        times: dict[str, list[float]] = {key: [] for key in runs}
        for run in runs.values():
            run(x)
        order = np.random.default_rng(0)
        for _ in range(rounds):
            for key in order.permutation(list(runs)):
                run = runs[key]
                run(x)  # what ran before has other data in the caches
                start = time.process_time()
                run(x)
                times[key].append(1e3 * (time.process_time() - start))
        medians = {key: statistics.median(values) for key, values in times.items()}
        weights = sum(weight.nbytes for weight in model.get_weights())
        size = files["ours"].stat().st_size / weights
        told = "; ".join(
            f"{key} {value:.2f} ms ({value / medians['ours']:.1f}x"
            + (f", {shown(files[key])})" if key in files else ")")
            for key, value in medians.items()
        )
        print(f"{name}: {told}; file {size:.3f} of the weights", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--only", default="")
    chosen = parser.parse_args()
    print(f"onnxruntime {onnxruntime.__version__}, tf2onnx {tf2onnx.__version__}, "
          f"keras {keras.__version__}; "
          f"batch 1, {STEPS} steps, {WIDTH} inputs, {UNITS} units")  # fmt: skip
    for name, model in models().items():
        if chosen.only in name:
            measure(name, model, chosen.rounds)


if __name__ == "__main__":
    main()

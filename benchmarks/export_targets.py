"""Size and latency of one model in each target of `export`, beside Keras, on the CPU.

    python benchmarks/export_targets.py [--steps 100] [--runs 60]

One sequence at a time, random weights. Times are the processor's, of all threads, which other work
on the machine disturbs least; each is the median of the runs, which take turns. onnxruntime
and torch use one thread, LiteRT as many as it does by default.
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
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")

import keras
import numpy as np

import rnnconvert
from rnnconvert.exports.torch_module.running import run_torch

FEATURES = 64
SHAPES = {
    "LSTM(128)": lambda x: keras.layers.LSTM(128)(x),
    "GRU(128)": lambda x: keras.layers.GRU(128)(x),
    "Bidirectional(LSTM(64))": lambda x: keras.layers.Bidirectional(keras.layers.LSTM(64))(x),
    "Masking, LSTM(128)": lambda x: keras.layers.LSTM(128)(keras.layers.Masking(9.0)(x)),
}
EXPORTS: dict[str, tuple[str, dict[str, Any]]] = {
    "ONNX": (".onnx", {}),
    "TFLite": (".tflite", {}),
    "TFLite, `--batch 1`": (".tflite", {"batch": 1}),
    "TFLite, `--quantize dynamic`": (".tflite", {"quantize": "dynamic"}),
    "torch": (".safetensors", {}),
}
RECURRENT = ("LSTM", "GRU", "Loop", "UNIDIRECTIONAL_SEQUENCE_LSTM", "WHILE", "nn.LSTM", "nn.GRU")


def model_of(shape: str, steps: int) -> Any:
    x = keras.Input((steps, FEATURES))
    model = keras.Model(x, keras.layers.Dense(8)(SHAPES[shape](x)))
    generator = np.random.default_rng(0)
    for variable in model.variables:
        variable.assign(generator.normal(0, 0.1, variable.shape))
    return model


def onnx_call(path: Path, x: Any) -> Callable[[], Any]:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name
    return lambda: session.run(None, {name: x})


def tflite_call(path: Path, x: Any) -> Callable[[], Any]:
    from ai_edge_litert.interpreter import Interpreter

    interpreter = Interpreter(model_path=str(path))
    run = interpreter.get_signature_runner()
    [name] = run.get_input_details()
    return lambda: run(**{name: x})


def torch_call(path: Path, x: Any) -> Callable[[], Any]:
    import torch

    torch.set_num_threads(1)
    run = run_torch(path)
    return lambda: run([x])


CALLS = {".onnx": onnx_call, ".tflite": tflite_call, ".safetensors": torch_call}


def milliseconds(calls: dict[str, Callable[[], Any]], runs: int) -> dict[str, float]:
    """Median of each call; the calls take turns."""
    taken: dict[str, list[float]] = {name: [] for name in calls}
    for number in range(runs + 3):
        for name, call in calls.items():
            start = time.process_time()
            call()
            if number >= 3:
                taken[name].append(1e3 * (time.process_time() - start))
    return {name: statistics.median(values) for name, values in taken.items()}


def measure(shape: str, steps: int, runs: int, folder: Path) -> None:
    model = model_of(shape, steps)
    x = np.random.default_rng(1).normal(size=(1, steps, FEATURES)).astype(np.float32)
    saved = folder / "model.keras"
    model.save(saved)
    calls = {"Keras": lambda: model.predict_on_batch(x)}
    told: dict[str, tuple[int, str, float]] = {}
    for number, (name, (extension, options)) in enumerate(EXPORTS.items()):
        path = folder / f"{number}{extension}"
        report = rnnconvert.export(saved, path, force=True, **options)
        operators = report.to_dict()["exported"][0]["operators"]
        native = {key: count for key, count in operators.items() if count and key in RECURRENT}
        what = ", ".join(f"{count} {key}" for key, count in native.items()) or "unrolled"
        largest = report.model_level[0].max_abs
        told[name] = (path.stat().st_size, what, float("nan") if largest is None else largest)
        calls[name] = CALLS[extension](path, x)
    medians = milliseconds(calls, runs)
    weights = 4 * model.count_params()
    print(f"| {shape} | Keras `predict_on_batch` | | {weights:,} | {medians['Keras']:.2f} ms | |")
    for name, (size, what, largest) in told.items():
        print(f"| | {name} | {what} | {size:,} | {medians[name]:.2f} ms | {largest:.1e} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--runs", type=int, default=60)
    asked = parser.parse_args()
    print(f"Input (1, {asked.steps}, {FEATURES}); bytes of Keras are those of its weights.\n")
    print("| model | written | recurrent operators | bytes | processor time | largest difference |")
    print("| --- | --- | --- | --- | --- | --- |")
    for shape in SHAPES:
        with tempfile.TemporaryDirectory() as folder:
            measure(shape, asked.steps, asked.runs, Path(folder))


if __name__ == "__main__":
    main()

"""Run time of lowered cuDNN ops beside Keras' own layers and torch; time and memory of lowering.

usage: python benchmarks/lowering.py [ROUNDS]        (default 40)

All on the CPU, TensorFlow with its own threads, torch with one and with as many as there are cores.
The runs of a round follow one another, so that whatever else the machine does hits all alike; the
ratios are medians over the rounds of what was measured in the same round. The model that is lowered
has four LSTM layers of 1,024 units and an embedding, 200 MB in all; lowering runs in a process of
its own.
"""

from __future__ import annotations

import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("KERAS_BACKEND", "tensorflow")

SIZES = ((100, 32, 64, 128), (100, 8, 256, 512), (50, 1, 32, 64))  # time, batch, inputs, units
LIMIT = 1.15

MAKE = """
import sys, tensorflow as tf
class Model(tf.Module):
    def __init__(self):
        super().__init__()
        self.embedding = tf.Variable(tf.random.normal([{words}, 256]))
        sizes = [4 * 1024 * (w + 1024 + 2) for w in (256, 1024, 1024, 1024)]
        self.params = [tf.Variable(0.02 * tf.random.normal([size])) for size in sizes]
    @tf.function(input_signature=[tf.TensorSpec([None, None], tf.int32)])
    def __call__(self, ids):
        x = tf.gather(self.embedding, ids)
        for params in self.params:
            h = tf.zeros([1, tf.shape(x)[1], 1024])
            x = tf.raw_ops.CudnnRNN(
                input=x, input_h=h, input_c=h, params=params, is_training=False).output
        return x
tf.saved_model.save(Model(), sys.argv[1])
"""
LOWER = """
import resource, sys, time, pathlib
start = time.perf_counter()
from rnnconvert.graphs import lowering
lowering.lower_saved_model_dir
imported = time.perf_counter()
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
lowering.lower_saved_model_dir(pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]))
end = time.perf_counter()
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(imported - start, end - imported, before // 1024, peak // 1024)
"""


def lowered(cell: str, sizes: tuple[int, int, int, int], x: object) -> Callable[[], object]:
    """The op alone, with its parameters in a variable, as a loaded SavedModel runs it."""
    import numpy as np
    import tensorflow as tf

    from rnnconvert.graphs import lowering

    _, _, inputs, units = sizes
    gates = {"lstm": 4, "gru": 3}[cell]
    values = np.random.default_rng(0).standard_normal(gates * units * (inputs + units + 2))

    class Model(tf.Module):
        def __init__(self) -> None:
            super().__init__()
            self.params = tf.Variable((values / units**0.5).astype("float32"))

        @tf.function(input_signature=[tf.TensorSpec([None, None, inputs])])
        def __call__(self, x):  # type: ignore[no-untyped-def]
            h = tf.zeros([1, tf.shape(x)[1], units])
            return tf.raw_ops.CudnnRNN(
                input=x, input_h=h, input_c=h, params=self.params,
                rnn_mode=cell, is_training=False,
            ).output  # fmt: skip

    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder) / "model", Path(folder) / "lowered"
        tf.saved_model.save(Model(), str(source))
        target.mkdir()
        lowering.lower_saved_model_dir(source, target)
        model = tf.saved_model.load(str(target))
    return lambda: model(x).numpy()


def by_keras(cell: str, sizes: tuple[int, int, int, int], x: object) -> Callable[[], object]:
    import keras
    import tensorflow as tf

    layer = {"lstm": keras.layers.LSTM, "gru": keras.layers.GRU}[cell](
        sizes[3], return_sequences=True, use_cudnn=False
    )
    given = tf.transpose(x, [1, 0, 2])
    layer.build(given.shape)
    run = tf.function(layer, input_signature=[tf.TensorSpec([None, None, sizes[2]])])
    return lambda: run(given).numpy()


def by_torch(
    cell: str, sizes: tuple[int, int, int, int], x: object, threads: int
) -> Callable[[], object]:
    import numpy as np
    import torch

    module = {"lstm": torch.nn.LSTM, "gru": torch.nn.GRU}[cell](sizes[2], sizes[3])
    given = torch.from_numpy(np.asarray(x))

    def run() -> object:
        torch.set_num_threads(threads)
        with torch.no_grad():
            return module(given)[0].numpy()

    return run


def compare(cell: str, sizes: tuple[int, int, int, int], rounds: int) -> None:
    import numpy as np
    import tensorflow as tf

    time_steps, batch, inputs, _ = sizes
    values = np.random.default_rng(1).standard_normal((time_steps, batch, inputs))
    x = tf.constant(values.astype("float32"))
    runs = {
        "lowered": lowered(cell, sizes, x),
        "keras": by_keras(cell, sizes, x),
        "torch 1": by_torch(cell, sizes, x, 1),
        "torch all": by_torch(cell, sizes, x, os.cpu_count() or 1),
    }
    taken: dict[str, list[float]] = {name: [] for name in runs}
    for run in runs.values():
        for _ in range(3):
            run()
    for _ in range(rounds):
        for name, run in runs.items():
            start = time.perf_counter()
            run()
            taken[name].append(1e3 * (time.perf_counter() - start))
    middle = {name: statistics.median(times) for name, times in taken.items()}
    ratio = statistics.median(
        ours / theirs for ours, theirs in zip(taken["lowered"], taken["keras"], strict=True)
    )
    verdict = "" if ratio <= LIMIT else " (over)"
    print(
        f"| {cell} {sizes} | {middle['lowered']:.2f} | {middle['keras']:.2f} | {ratio:.2f}{verdict}"
        f" | {middle['torch 1']:.2f} | {middle['torch all']:.2f} |",
        flush=True,
    )


def lower_large() -> None:
    """Time and peak memory of lowering a SavedModel of 200 MB, beside a copy of it."""
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder) / "model", Path(folder) / "lowered"
        make = MAKE.format(words=(200_000_000 // 4 - 30_466_048) // 256)
        subprocess.run([sys.executable, "-c", make, str(source)], check=True, stderr=-3)
        size = sum(path.stat().st_size for path in source.rglob("*") if path.is_file())
        start = time.perf_counter()
        subprocess.run(["cp", "-r", str(source), str(Path(folder) / "copy")], check=True)
        copied = time.perf_counter() - start
        target.mkdir()
        done = subprocess.run(
            [sys.executable, "-c", LOWER, str(source), str(target)],
            check=True, capture_output=True, text=True,
        )  # fmt: skip
    imported, lowering, before, peak = (float(word) for word in done.stdout.split())
    print(
        f"| {size / 1e6:.0f} MB, 4 LSTM layers | import {imported:.1f} s, {before:.0f} MB | "
        f"{lowering:.1f} s, {peak:.0f} MB peak | cp -r {copied:.1f} s |"
    )


def main(arguments: list[str]) -> None:
    rounds = int(arguments[0]) if arguments else 40
    # First, while this process is small: what it holds would count as its children's peak.
    print("| SavedModel | TensorFlow | lowering | copy |\n| --- | --- | --- | --- |")
    lower_large()
    print("\n| cell (time, batch, inputs, units) | lowered ms | Keras ms | ratio "
          "| torch, 1 thread | torch, all |\n| --- | --- | --- | --- | --- | --- |")  # fmt: skip
    for cell in ("lstm", "gru"):
        for sizes in SIZES:
            compare(cell, sizes, rounds)


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    main(sys.argv[1:])

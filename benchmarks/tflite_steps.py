"""What a TFLite export costs as the number of time steps grows: unrolled, and as a loop of blocks.

    python benchmarks/tflite_steps.py [--steps 100 1000] [--unrolled 100 400]

GRU(128) on 10 features, all outputs. Each conversion is in a process of its own: seconds of the
processor, the most memory beyond that of a model of ten steps, bytes of the file; and the median
of 20 runs of one sequence in LiteRT, of the processor's time too.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")

FEATURES, UNITS = 10, 128


def measure(steps: int, unrolled: int) -> None:
    """One conversion; what it took is printed as JSON."""
    import keras
    import numpy as np
    from ai_edge_litert.interpreter import Interpreter

    import rnnconvert
    from rnnconvert.exports.tflite import recurrent

    recurrent.UNROLLED = unrolled
    x = keras.Input((steps, FEATURES))
    with tempfile.TemporaryDirectory() as folder:
        saved, path = Path(folder, "model.keras"), Path(folder, "model.tflite")
        keras.Model(x, keras.layers.GRU(UNITS, return_sequences=True)(x)).save(saved)
        start = time.process_time()
        rnnconvert.export(saved, path, verify="none")
        taken = time.process_time() - start
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        run = Interpreter(model_path=str(path)).get_signature_runner()
        [name] = run.get_input_details()
        given = {name: np.random.default_rng(0).normal(size=(1, steps, FEATURES)).astype("float32")}
        runs = []
        for _ in range(22):
            start = time.process_time()
            run(**given)
            runs.append(1e3 * (time.process_time() - start))
        size = path.stat().st_size
    latency = statistics.median(runs[2:])
    print(json.dumps({"seconds": taken, "memory": memory, "bytes": size, "latency": latency}))


def measured(steps: int, unrolled: int) -> dict[str, Any]:
    command = [sys.executable, __file__, "--one", str(steps), str(unrolled)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, nargs="+", default=[200, 400, 1000, 4000, 10_000])
    parser.add_argument("--unrolled", type=int, nargs="+", default=[100, 200, 400])
    parser.add_argument("--one", type=int, nargs=2, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.one:
        measure(*asked.one)
        return
    least = measured(10, 10)["memory"]
    print("| steps | written | conversion | memory more | bytes | one run |")
    print("| --- | --- | --- | --- | --- | --- |")
    for form, lengths in (("unrolled", asked.unrolled), ("loop", asked.steps)):
        for steps in lengths:
            found = measured(steps, steps if form == "unrolled" else 0)
            more = max(0.0, (found["memory"] - least) / 1024)
            print(f"| {steps:,} | {form} | {found['seconds']:.1f} s | {more:.0f} MiB | "
                  f"{found['bytes']:,} | {found['latency']:.2f} ms |", flush=True)  # fmt: skip


if __name__ == "__main__":
    main()

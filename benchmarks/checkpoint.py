"""Reading every tensor of a checkpoint, and copying it: this package beside TensorFlow, in one run.

usage: python benchmarks/checkpoint.py [SIZE_MB]        (default 500)

The checkpoint is TensorFlow's own: a few large kernels and many small biases. Each row is a process
of its own, imports included; the best of three runs. `cp` is the floor for a copy.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
MAKE = """
import sys, numpy as np, tensorflow as tf
generator = np.random.default_rng(0)
rows = int(sys.argv[2]) * 1_000_000 // (8 * 4 * 4096)
values = {f"cell_{n}/kernel": generator.standard_normal((rows, 4096), np.float32) for n in range(8)}
values |= {f"cell_{n}/bias": generator.standard_normal(256 + n, np.float32) for n in range(200)}
names = sorted(values)
tf.raw_ops.SaveV2(prefix=sys.argv[1], tensor_names=names, shape_and_slices=[""] * len(names),
                  tensors=[tf.constant(values[name]) for name in names])
"""
OURS = """
import sys
from pathlib import Path
from rnnconvert.containers.checkpoint import *
checkpoint = open_checkpoint(Path(sys.argv[1]))
"""
OURS_READ = """
for name in checkpoint.variables: checkpoint.read(name)
"""
OURS_COPY = """
out = Path(sys.argv[2])
sources = {name: checkpoint.source(name) for name in checkpoint.variables}
write_checkpoint(index_path(out), data_path(out), sources)
"""
THEIRS = """
import sys, tensorflow as tf
reader = tf.train.load_checkpoint(sys.argv[1])
names = sorted(reader.get_variable_to_shape_map())
"""
THEIRS_READ = """
for name in names: reader.get_tensor(name)
"""
THEIRS_COPY = """
tf.raw_ops.SaveV2(prefix=sys.argv[2], tensor_names=names, shape_and_slices=[""] * len(names),
                  tensors=[tf.constant(reader.get_tensor(name)) for name in names])
"""
IMPORT = "import rnnconvert.containers.checkpoint", "import tensorflow"


def measure(command: list[str], folder: Path, runs: int = 3) -> tuple[float, int]:
    """Best wall time in seconds, and peak resident memory in MB, of a command."""
    best, peak = float("inf"), 0
    environment = os.environ | {"PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "3"}
    for _ in range(runs):
        for path in folder.glob("copy*"):
            path.unlink()
        os.sync()
        start = time.perf_counter()
        process = subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL)
        _, status, usage = os.wait4(process.pid, 0)
        best = min(best, time.perf_counter() - start)
        if status:
            raise SystemExit(f"{command[:2]} failed")
        peak = max(peak, usage.ru_maxrss)
    return best, peak // 1024


def main(arguments: list[str]) -> None:
    megabytes = arguments[0] if arguments else "500"
    with tempfile.TemporaryDirectory(dir=os.environ.get("TMPDIR")) as name:
        folder = Path(name)
        source, copy = str(folder / "model"), str(folder / "copy")
        subprocess.run([sys.executable, "-c", MAKE, source, megabytes], check=True)
        python = [sys.executable, "-c"]
        data = "data-00000-of-00001"
        rows = {
            "import, rnnconvert": [*python, IMPORT[0]],
            "import, TensorFlow": [*python, IMPORT[1]],
            "read, rnnconvert": [*python, OURS + OURS_READ, source],
            "read, TensorFlow": [*python, THEIRS + THEIRS_READ, source],
            "copy, cp": ["cp", f"{source}.{data}", f"{copy}.{data}"],
            "copy, rnnconvert": [*python, OURS + OURS_COPY, source, copy],
            "copy, TensorFlow": [*python, THEIRS + THEIRS_COPY, source, copy],
        }
        print(
            f"checkpoint of {megabytes} MB, 208 tensors, the largest {int(megabytes) / 8:.0f} MB\n"
        )
        print("| | time | peak memory |\n| --- | --- | --- |")
        for what, command in rows.items():
            seconds, peak = measure(command, folder)
            print(f"| {what} | {seconds:.2f} s | {peak} MB |", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])

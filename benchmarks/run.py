"""Time and peak memory of a conversion, beside `cp` and beside the peer's way, in one run.

usage: python benchmarks/run.py [SIZE_MB ...]        (default 50 500 2000; --no-peer leaves it out)

The peer's way is what a user of tf_keras would do: load_model with custom_objects, then save. Each
command is a process of its own; the best of three runs is printed (of one run for the peer).
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

PEER = """
import sys, tf_keras
layers = tf_keras.layers
model = tf_keras.models.load_model(
    sys.argv[1], custom_objects={"CuDNNLSTM": layers.LSTM, "CuDNNGRU": layers.GRU}, compile=False)
model.save(sys.argv[2])
"""
MAKE = Path(__file__).with_name("make_model.py")
SMALL = Path(__file__).parents[1] / "fixtures" / "keras" / "k224" / "bi" / "model.h5"


def measure(command: list[str], runs: int = 3, output: Path | None = None) -> tuple[float, int]:
    """Best wall time in seconds, and peak resident memory in MB, over some runs of a command."""
    times, peak = [], 0
    for _ in range(runs):
        if output is not None:
            output.unlink(missing_ok=True)
        os.sync()
        start = time.perf_counter()
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        _, status, usage = os.wait4(process.pid, 0)
        times.append(time.perf_counter() - start)
        if status:
            raise SystemExit(f"{' '.join(command)} failed")
        peak = max(peak, usage.ru_maxrss)
    return min(times), peak // 1024


def machine() -> str:
    model = next(
        (line.split(":")[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines()
         if line.startswith("model name")), "unknown processor",
    )  # fmt: skip
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2**30
    return f"{os.cpu_count()} cores of {model}, {memory} GiB"


def main(arguments: list[str]) -> None:
    peer = "--no-peer" not in arguments
    sizes = [int(size) for size in arguments if size.isdigit()] or [50, 500, 2000]
    program = str(Path(sys.executable).with_name("rnnconvert"))
    print(f"{machine()}, Python {sys.version.split()[0]}\n")
    print("| command | time | peak memory |\n| --- | --- | --- |")
    for words in (["--help"], ["inspect", str(SMALL)]):
        seconds, megabytes = measure([program, *words], runs=5)
        print(f"| rnnconvert {words[0]} | {seconds:.2f} s | {megabytes} MB |")
    print("\n| model | cp | rnnconvert --verify weights | times cp | tf_keras load and save |")
    print("| --- | --- | --- | --- | --- |")
    for size in sizes:
        with tempfile.TemporaryDirectory(dir=os.environ.get("TMPDIR")) as folder:
            source, target = Path(folder) / "m.h5", Path(folder) / "out.h5"
            # In a process of its own: what this one held would count as its children's peak.
            subprocess.run([sys.executable, str(MAKE), str(size), str(source)], check=True)
            cp = measure(["cp", str(source), str(target)], output=target)
            command = [program, "cudnn-to-keras", str(source), "-o", str(target)]
            ours = measure([*command, "--verify", "weights", "-q"], output=target)
            theirs = "not run"
            if peer:
                command = [sys.executable, "-c", PEER, str(source), str(target)]
                seconds, megabytes = measure(command, runs=1, output=target)
                theirs = f"{seconds:.1f} s, {megabytes:,} MB"
            print(
                f"| {size} MB | {cp[0]:.2f} s | {ours[0]:.2f} s, {ours[1]} MB | "
                f"{ours[0] / cp[0]:.1f} | {theirs} |",
                flush=True,
            )


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    main(sys.argv[1:])

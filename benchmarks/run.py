"""Time and peak memory of the commands, beside `cp` followed by fsync, in one run.

usage: python benchmarks/run.py [--rounds N] [PART ...]     (default 5 rounds, all parts but peer)

Parts: start (inspect beside its imports), m50 m500 m2000 and numbers of units such as 4096 (a model
each, see make_model.py), buffer, both and cells (checkpoints of 1 GB, see make_checkpoint.py), many
(100 small models), peer (tf_keras' way, m500).

The commands of a part take turns, round by round; each is a process of its own. What is printed, as
one table, is the median of its times, and of its ratios to the first command of the same round;
processor time is the least of all rounds. Files go to $TMPDIR; a part needs three times the size of
its model there, 13 GB for 16384.
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import median

ROOT = Path(__file__).parents[1]
PYTHON = sys.executable
PROGRAM = [PYTHON, "-m", "rnnconvert"]
MAKE_MODEL = Path(__file__).with_name("make_model.py")
MAKE_CHECKPOINT = Path(__file__).with_name("make_checkpoint.py")
PEER = """
import sys, tf_keras
layers = tf_keras.layers
model = tf_keras.models.load_model(
    sys.argv[1], custom_objects={"CuDNNLSTM": layers.LSTM, "CuDNNGRU": layers.GRU}, compile=False)
model.save(sys.argv[2])
"""
COPY = """
import os, sys
if os.spawnvp(os.P_WAIT, "cp", ["cp", *sys.argv[1:]]):
    raise SystemExit("cp failed")
target = sys.argv[-1]
found = [os.path.join(folder, name) for folder, _, names in os.walk(target) for name in names]
for path in found or [target]:
    os.fsync(os.open(path, os.O_RDONLY))
"""
SMALL_MODELS = 100
CHECKPOINTS = ("buffer", "both", "cells")
UNSUPERVISED = """
import os, sys
sys.argv[0] = "rnnconvert"
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
from rnnconvert.__main__ import program
program()
"""
"""The command line in the process that was started, which may crash with it."""


@dataclass
class Measured:
    """What the rounds of a command gave: seconds, processor seconds, and MB at most."""

    seconds: list[float] = field(default_factory=list)
    processor: list[float] = field(default_factory=list)
    peak: int = 0


def environment() -> dict[str, str]:
    """Modules are compiled once, as they are for users."""
    own = {**os.environ, "PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "3"}
    own.pop("PYTHONDONTWRITEBYTECODE", None)
    return own


def run_once(command: list[str], measured: Measured) -> None:
    start = time.perf_counter()
    process = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=environment()
    )
    assert process.stderr is not None
    told = process.stderr.read()
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"{' '.join(command)} failed: {told.decode()[-500:]}")
    measured.seconds.append(time.perf_counter() - start)
    measured.processor.append(usage.ru_utime + usage.ru_stime)
    measured.peak = max(measured.peak, usage.ru_maxrss // 1024)


def take_turns(
    commands: dict[str, list[str]], rounds: int, clean: Callable[[], None]
) -> dict[str, Measured]:
    results = {name: Measured() for name in commands}
    for _ in range(rounds):
        for name, command in commands.items():
            clean()
            os.sync()
            run_once(command, results[name])
    clean()
    return results


def show(part: str, results: dict[str, Measured]) -> None:
    """The rows of a part, which `main` has printed the head of."""
    first = next(iter(results.values()))
    for name, measured in results.items():
        ratio = median(a / b for a, b in zip(measured.seconds, first.seconds, strict=True))
        print(
            f"| {part} | {name} | {median(measured.seconds):.2f} s | {ratio:.2f} | "
            f"{min(measured.processor):.2f} s | {measured.peak} MB |",
            flush=True,
        )


# --- parts ----------------------------------------------------------------------------------


def start(folder: Path, rounds: int) -> None:
    make("small:1", folder / "small")
    model = str(folder / "small" / "model000.h5")
    run_once([*PROGRAM, "inspect", model], Measured())  # compiles the modules
    commands = {
        "import numpy, h5py, click": [PYTHON, "-c", "import numpy, h5py, click"],
        "inspect": [*PROGRAM, "inspect", model],
        "inspect, in one process": [PYTHON, "-c", UNSUPERVISED, "inspect", model],
        "--help": [*PROGRAM, "--help"],
    }
    show("start", take_turns(commands, 4 * rounds, lambda: None))


def model(kind: str, folder: Path, rounds: int) -> None:
    source, target = folder / "model.h5", folder / "out.h5"
    make(kind, source)
    commands = {"cp and fsync": [PYTHON, "-c", COPY, str(source), str(target)]}
    for level in ("none", "weights", "layers"):
        commands[f"--verify {level}"] = [
            *PROGRAM, "cudnn-to-keras", str(source), "-o", str(target), "-q", "--verify", level,
        ]  # fmt: skip
    name = f"{kind}, {source.stat().st_size / 1e6:.0f} MB"
    show(name, take_turns(commands, rounds, lambda: target.unlink(missing_ok=True)))


def peer(folder: Path, rounds: int) -> None:
    source, target = folder / "model.h5", folder / "out.h5"
    make("m500", source)
    ours = [*PROGRAM, "cudnn-to-keras", str(source), "-o", str(target), "-q", "--verify", "weights"]
    commands = {
        "--verify weights": ours,
        "tf_keras load and save": [PYTHON, "-c", PEER, str(source), str(target)],
    }
    results = take_turns(commands, min(rounds, 2), lambda: target.unlink(missing_ok=True))
    show("peer, m500", results)


def checkpoint(kind: str, folder: Path, rounds: int) -> None:
    source, target = folder / "source", folder / "target"
    source.mkdir()
    subprocess.run([PYTHON, str(MAKE_CHECKPOINT), str(source / "model"), kind], check=True,
                   env=environment())  # fmt: skip

    def clean() -> None:
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir()

    convert = [*PROGRAM, "cudnn-to-keras", str(source / "model"), "-q", "--verify", "weights"]
    if kind == "buffer":  # which does not tell its shape
        convert += ["--cell", "lstm", "--layers", "4", "--units", "2048", "--input-size", "512",
                    "--direction", "unidirectional"]  # fmt: skip
    names = ["--names", "keras"] if kind == "cells" else []  # else there is nothing to convert
    commands = {
        "cp and fsync": [PYTHON, "-c", COPY, "-r", str(source), str(target)],
        "--to npz": [*convert, "--to", "npz", "-o", str(target / "out.npz")],
        "--to h5": [*convert, "--to", "h5", "-o", str(target / "out.h5")],
        "--to checkpoint": [*convert, *names, "--to", "checkpoint", "-o", str(target / "out")],
    }
    size = sum(path.stat().st_size for path in source.iterdir())
    results = take_turns(commands, rounds, clean)
    show(f"checkpoint, {kind}, {size / 1e6:.0f} MB", results)


def many(folder: Path, rounds: int) -> None:
    source, target = folder / "small", folder / "out"
    make(f"small:{SMALL_MODELS}", source)
    paths = [str(path) for path in sorted(source.iterdir())]

    def clean() -> None:
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir()

    command = [*PROGRAM, "cudnn-to-keras", "-o", str(target), "-q", "--device", "cpu"]
    commands = {
        "--jobs 2": [*command, "--jobs", "2", *paths],
        "--jobs 1": [*command, *paths],
        "the first alone": [*command, paths[0]],
    }
    results = take_turns(commands, max(1, rounds // 2), clean)
    show(f"many, {SMALL_MODELS} models, level model", results)
    _, several, one = results.values()
    pairs = zip(several.seconds, one.seconds, strict=True)
    each = median((all_of_them - first) / (len(paths) - 1) for all_of_them, first in pairs)
    processor = (min(several.processor) - min(one.processor)) / (len(paths) - 1)
    print(f"| many | --jobs 1, each after the first | {each:.2f} s | | {processor:.2f} s | |")


def make(kind: str, path: Path) -> None:
    """In a process of its own: what this one held would count as its children's peak."""
    subprocess.run([PYTHON, str(MAKE_MODEL), kind, str(path)], check=True, env=environment())


def machine() -> str:
    name = next(
        (line.split(":")[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines()
         if line.startswith("model name")), "unknown processor",
    )  # fmt: skip
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2**30
    return f"{os.cpu_count()} cores of {name}, {memory} GiB, load {os.getloadavg()[0]:.1f}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("parts", nargs="*")
    given = parser.parse_args()
    parts = given.parts or ["start", "m50", "m500", "m2000", "4096", "16384", *CHECKPOINTS, "many"]
    checkpoints = {kind: partial(checkpoint, kind) for kind in CHECKPOINTS}
    others = {"start": start, **checkpoints, "many": many, "peer": peer}
    print(f"{machine()}, Python {sys.version.split()[0]}, {given.rounds} rounds\n")
    print("| part | command | time | ratio | processor time | peak memory |")
    print("| --- | --- | --- | --- | --- | --- |", flush=True)
    for part in parts:
        with tempfile.TemporaryDirectory(dir=os.environ.get("TMPDIR")) as name:
            if part in others:
                others[part](Path(name), given.rounds)
            else:
                model(part, Path(name), given.rounds)
    print(f"\n{machine()}")


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    main()

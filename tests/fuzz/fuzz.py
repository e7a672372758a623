"""Damage files, run rnnconvert on them, and keep what goes wrong.

    python tests/fuzz/fuzz.py --seconds 60 --seed 1 [--kinds h5,keras] [--mutants N] [--keep FOLDER]

Every mutant is a number: of a seed, the same numbers give the same files. A finding is made as
small as its mutations allow, and written to FOLDER/KIND-SEED-NUMBER/.
"""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import tempfile
import time
import warnings
from collections import Counter
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parents[2]), str(Path(__file__).parent)]
import fuzz_server
from fuzz_bases import BASES, GRAPHS, wrong_weights
from fuzz_server import Tell

Command = tuple[list[str], tuple[int, ...]]
_MOST_MUTATIONS = 4
READ = (0, 3, 4)
COMPARE = (0, 1, 3, 4)


@dataclass(frozen=True)
class Finding:
    """A mutant on which something went wrong."""

    kind: str
    number: int
    fault: str
    arguments: tuple[str, ...]
    steps: tuple[int, ...]


@dataclass
class Tally:
    """What a run of the fuzzer did."""

    runs: int = 0
    mutants: int = 0
    codes: Counter[str] = field(default_factory=Counter)
    slowest: float = 0.0
    largest: int = 0
    findings: list[Finding] = field(default_factory=list)

    def count(self, run: dict[str, Any]) -> None:
        self.runs += 1
        self.codes[str(run["code"])] += 1
        self.slowest = max(self.slowest, run["seconds"])
        self.largest = max(self.largest, run["memory"])

    def __str__(self) -> str:
        codes = ", ".join(f"{code}: {count}" for code, count in sorted(self.codes.items()))
        return (
            f"{self.mutants} mutants, {self.runs} runs, exit codes {codes}; slowest "
            f"{self.slowest:.1f} s, largest {self.largest / 2**20:.0f} MB; "
            f"{len(self.findings)} findings"
        )


def make(kind: str, seed: int, number: int, folder: Path, steps: tuple[int, ...] | None) -> Path:
    """Write a mutant; `steps` says which of its mutations are done, None for all."""
    base = BASES[kind]
    if base.is_folder:
        folder = folder / "model"
        folder.mkdir()
    paths = base.make(folder)
    count = random.Random(f"{kind} {seed} {number}").randint(1, _MOST_MUTATIONS)
    for step in range(count):
        if steps is not None and step not in steps:
            continue
        rng = random.Random(f"{kind} {seed} {number} {step}")
        path = paths[rng.choice(base.damaged)]
        try:
            rng.choice(base.mutators)(path, rng)
        except Exception:  # an earlier mutation left nothing that this one could read
            continue
    return paths[0]


def commands(kind: str, number: int, path: Path, folder: Path) -> list[Command]:
    """What is run on a mutant: the same for each, and one of the others in turn."""
    base = BASES[kind]
    model = path.parent if base.is_folder else path
    name = str(model).removesuffix(".index")

    def output(stem: str, extension: str = base.extension) -> list[str]:
        return ["-o", str(folder / f"{stem}{extension}")]

    if kind in GRAPHS:
        level = "model" if number % 10 == 0 else "layers"
        return [
            (["inspect", name], READ),
            (["cudnn-to-keras", name, *output("out"), "--verify", level], READ),
        ]
    first = [
        (["inspect", name], READ),
        (["cudnn-to-keras", name, *output("out"), "--verify", "layers"], READ),
    ]
    checkpoints = kind.startswith("checkpoint")
    others: list[Command] = [(["cudnn-to-keras", name, "--check", "--verify", "weights"], COMPARE)]
    if checkpoints:
        others.append((["cudnn-to-keras", name, *output("b", ".npz"), "--to", "npz"], READ))
        others.append((["cudnn-to-keras", name, *output("c", ".h5"), "--verify", "weights"], READ))
    else:
        to = ["--to", "weights", "--verify", "weights"]
        others.append((["cudnn-to-keras", name, *output("b", ".h5"), *to], READ))
    if kind.startswith("h5"):
        others.append((["keras-to-cudnn", name, *output("d", ".h5"), "--verify", "layers"], READ))
    if kind != "keras":  # which is compared by running it only
        others.append((["verify", name, name, "--verify", "layers"], COMPARE))
    return [*first, others[number % len(others)]]


def _work(
    kind: str, seed: int, number: int, steps: tuple[int, ...] | None, folder: Path, tell: Tell
) -> None:
    """Make a mutant and run the commands on it; in a fork."""
    path = make(kind, seed, number, folder, steps)
    least = fuzz_server.most_memory() if kind in GRAPHS else 0
    for arguments, allowed in commands(kind, number, path, folder):
        tell({"begun": arguments})
        done = fuzz_server.call(arguments, folder / "log", least)
        fault = done.fault(allowed)
        if fault is None and done.code == 0 and arguments[2:3] == ["-o"]:
            fault = _wrong_output(kind, path, Path(arguments[3]))
        tell({"run": asdict(done), "fault": fault})


def _wrong_output(kind: str, path: Path, output: Path) -> str | None:
    base = BASES[kind]
    place = Path(f"{output}.index") if base.extension == "" and not base.is_folder else output
    if output.stem != "out" or not place.exists():
        return None
    try:
        return wrong_weights(kind, path.parent if base.is_folder else path, output)
    except Exception as error:
        return f"the recomputation fails: {error!r}"


def check(
    kind: str, seed: int, number: int, steps: tuple[int, ...] | None, tally: Tally | None = None
) -> Finding | None:
    """Make a mutant and run every command on it."""
    with tempfile.TemporaryDirectory(prefix="rnnconvert-fuzz-") as name:
        work = partial(_work, kind, seed, number, steps, Path(name))
        told, killed = fuzz_server.forked(work)
    arguments: tuple[str, ...] = ()
    for message in told:
        arguments = tuple(message.get("begun", arguments))
        if "run" not in message:
            continue
        if tally is not None:
            tally.count(message["run"])
        if message["fault"]:
            return Finding(kind, number, message["fault"], arguments, steps or ())
    if killed and arguments:  # else the mutation itself crashed a library
        return Finding(kind, number, f"killed by signal {killed}", arguments, steps or ())
    return None


def minimised(finding: Finding, seed: int) -> Finding:
    """The finding with as few of its mutations as still go wrong."""
    steps = tuple(range(_MOST_MUTATIONS))
    for step in steps:
        fewer = tuple(left for left in steps if left != step)
        found = check(finding.kind, seed, finding.number, fewer)
        if found is not None:
            finding, steps = found, fewer
    return Finding(finding.kind, finding.number, finding.fault, finding.arguments, steps)


def fuzz(
    kinds: list[str], seed: int, seconds: float, most: int | None = None, *, sound: bool = False
) -> Tally:
    """Mutants of each kind in turn, until the time is up or there were so many of each.

    Args:
        sound: they are not damaged at all: what is done with them is shown to work.
    """
    fuzz_server.import_everything(graphs=any(kind in GRAPHS for kind in kinds))
    warnings.simplefilter("ignore")  # zipfile's, of members that are there twice on purpose
    tally, until = Tally(), time.monotonic() + seconds
    number = 0
    while time.monotonic() < until and (most is None or number < most):
        for kind in kinds:
            finding = check(kind, seed, number, () if sound else None, tally)
            tally.mutants += 1
            if finding is not None:
                tally.findings.append(finding if sound else minimised(finding, seed))
                print(tally.findings[-1], file=sys.stderr, flush=True)
        number += 1
        if number % 100 == 0:
            print(tally, file=sys.stderr, flush=True)
    return tally


def keep(finding: Finding, seed: int, folder: Path) -> Path:
    """Write the files of a finding, and how it was found."""
    place = folder / f"{finding.kind}-{seed}-{finding.number}"
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    make(finding.kind, seed, finding.number, place, finding.steps)
    for other in ("source.h5", "weights.h5", "data.npz", "checkpoint"):
        (place / other).unlink(missing_ok=True)
    return place


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kinds", default=",".join(BASES))
    parser.add_argument("--mutants", type=int, help="of each kind, at most")
    parser.add_argument("--keep", type=Path)
    parser.add_argument("--sound", action="store_true", help="do not damage them")
    given = parser.parse_args()
    kinds = given.kinds.split(",")
    tally = fuzz(kinds, given.seed, given.seconds, given.mutants, sound=given.sound)
    print(tally)
    for finding in tally.findings:
        print(f"{finding.kind} {finding.number} {finding.steps}: {finding.fault}")
        print("   ", " ".join(finding.arguments))
        if given.keep:
            print("   ", keep(finding, given.seed, given.keep))
    sys.exit(1 if tally.findings else 0)


if __name__ == "__main__":
    main()

"""Damage files, run rnnconvert on them, and keep what goes wrong.

    python tests/fuzz/fuzz.py --seconds 60 --seed 1 [--kinds h5,keras] [--keep FOLDER]

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
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[2]), str(Path(__file__).parent)]
import fuzz_server
from fuzz_bases import BASES, wrong_weights

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


def examine(kind: str, path: Path, folder: Path) -> Iterator[tuple[fuzz_server.Run, str | None]]:
    """Every command on one mutant, and what is wrong with how it ended."""
    output = folder / f"out{BASES[kind].extension}"
    log = folder / "log"
    name = str(path).removesuffix(".index")
    work = [
        (["inspect", name], READ),
        (["cudnn-to-keras", name, "-o", str(output), "--verify", "layers"], READ),
    ]
    if kind != "keras":  # which is compared by running it only
        work.append((["verify", name, name, "--verify", "layers"], COMPARE))
    for arguments, allowed in work:
        done = fuzz_server.run(arguments, log)
        fault = done.fault(allowed)
        if fault is None and done.code == 0 and arguments[0] == "cudnn-to-keras":
            fault = _wrong_output(kind, path, output)
        yield done, fault


def _wrong_output(kind: str, path: Path, output: Path) -> str | None:
    if not kind.startswith("h5") or not output.exists():
        return None
    try:
        return wrong_weights(path, output)
    except Exception as error:
        return f"the recomputation fails: {error!r}"


def check(
    kind: str, seed: int, number: int, steps: tuple[int, ...] | None, tally: Tally | None = None
) -> Finding | None:
    """Make a mutant and run every command on it."""
    with tempfile.TemporaryDirectory(prefix="rnnconvert-fuzz-") as name:
        folder = Path(name)
        path = make(kind, seed, number, folder, steps)
        for done, fault in examine(kind, path, folder):
            if tally is not None:
                tally.runs += 1
                tally.codes[str(done.code)] += 1
                tally.slowest = max(tally.slowest, done.seconds)
                tally.largest = max(tally.largest, done.memory)
            if fault:
                return Finding(kind, number, fault, done.arguments, steps or ())
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


def fuzz(kinds: list[str], seed: int, seconds: float, most: int | None = None) -> Tally:
    """Mutants of each kind in turn, until the time is up or there were so many."""
    fuzz_server.import_everything()
    warnings.simplefilter("ignore")  # zipfile's, of members that are there twice on purpose
    tally, until = Tally(), time.monotonic() + seconds
    number = 0
    while time.monotonic() < until and (most is None or tally.mutants < most):
        for kind in kinds:
            finding = check(kind, seed, number, None, tally)
            tally.mutants += 1
            if finding is not None:
                tally.findings.append(minimised(finding, seed))
        number += 1
    return tally


def keep(finding: Finding, seed: int, folder: Path) -> Path:
    """Write the files of a finding, and how it was found."""
    place = folder / f"{finding.kind}-{seed}-{finding.number}"
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    make(finding.kind, seed, finding.number, place, finding.steps)
    for other in ("source.h5", "weights.h5"):
        (place / other).unlink(missing_ok=True)
    return place


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kinds", default=",".join(BASES))
    parser.add_argument("--keep", type=Path)
    given = parser.parse_args()
    tally = fuzz(given.kinds.split(","), given.seed, given.seconds)
    print(tally)
    for finding in tally.findings:
        print(f"{finding.kind} {finding.number} {finding.steps}: {finding.fault}")
        print("   ", " ".join(finding.arguments))
        if given.keep:
            print("   ", keep(finding, given.seed, given.keep))
    sys.exit(1 if tally.findings else 0)


if __name__ == "__main__":
    main()

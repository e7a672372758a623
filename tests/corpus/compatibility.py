"""Which Keras loads what rnnconvert writes, and gives the original's numbers: the measured table.

    python tests/corpus/compatibility.py measure OUT --wheels DIR [--versions 3.0.5 ...]
                                                 [--backend torch] [--only TEXT ...] [--once]
    python tests/corpus/compatibility.py keras2 OUT --stack LABEL=PYTHON:LIBRARY ...
    python tests/corpus/compatibility.py table OUT > table.md

`measure` installs each Keras 3 under DIR/VERSION (`pip install --no-deps --target`; what is there
already stays), converts every fixture once into OUT, and loads all files in one process per
version (tests/corpus/load_in_keras.py). `keras2` does the same with `--target keras2` in the
interpreters given, e.g. `--stack tf2.10=/opt/tf210/bin/python:tensorflow.keras`; each gets the
files of its own writer and of older ones. Results lie in OUT as one JSON file per version; `table`
prints them, docs/compatibility.md holds what it printed.

It stands with the tests, not with the benchmarks: the same code runs in CI (test_versions.py).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import zipfile
from collections import defaultdict
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "support")]

import h5py
from models import OWN, Model

import rnnconvert

LOADER = Path(__file__).with_name("load_in_keras.py")
VERSIONS = (
    "3.0.5", "3.1.1", "3.2.1", "3.3.3", "3.4.1", "3.5.0", "3.6.0", "3.7.0", "3.8.0", "3.9.2",
    "3.10.0", "3.11.3", "3.12.0", "3.13.2", "3.14.1", "3.15.1",
)  # fmt: skip
"""The last release of each minor version."""
EXTRA = {"3.0": ("dm-tree", "absl-py", "wrapt", "attrs")}
"""What a version imports beyond what the newest one needs."""
ALL_WRITERS = ("k224", "tf115", "k231", "tf210", "tf215")
WRITERS = {
    "2.2.4": ("k224",),
    "tf1.15": ("k224", "tf115"),
    "2.3.1": ("k224", "k231"),
    "tf2.3": ("k224", "tf115", "k231"),
    "tf2.10": ("k224", "tf115", "k231", "tf210"),
}
"""Whose files a Keras 2 must read: its own and older ones. Later ones must read them all."""


@dataclass(frozen=True)
class Job:
    """One file for load_in_keras.py, with what it must give."""

    name: str
    path: str
    data: str
    train: bool
    tolerance: float
    x: str = "x"
    y: str = "y"
    again: str = "again"


@dataclass(frozen=True)
class Outcome:
    """What one Keras made of one file: status "right", "wrong" or "refused"."""

    name: str
    status: str
    detail: str


def install(version: str, wheels: Path) -> list[Path]:
    """Folders to put on PYTHONPATH for a version of Keras 3, filled by pip where they are missing.

    Raises:
        RuntimeError: pip can't install it; the text is pip's last line.
    """
    wanted = [(wheels / version, (f"keras=={version}",))]
    extra = EXTRA.get(version.rpartition(".")[0])
    if extra:
        wanted.append((wheels / f"with-{version}", extra))
    for folder, packages in wanted:
        if folder.exists():
            continue
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target"]
        done = subprocess.run([*pip, str(folder), *packages], capture_output=True, text=True)
        if done.returncode:
            last = (done.stderr.strip().splitlines() or ["no message"])[-1]
            raise RuntimeError(f"pip can't install {' '.join(packages)}: {last}")
    return [folder for folder, _ in wanted]


def convert_all(
    models: list[Model], out: Path, *, target: str = "keras3", to: str = "h5"
) -> list[Job]:
    """Convert models once, for all versions; a file with nothing to convert is its own output."""
    out.mkdir(parents=True, exist_ok=True)
    jobs = []
    for model in models:
        path = out / f"{model.name}.{to}"
        report = rnnconvert.convert(
            model.path, path, target=target, to=to, verify="weights", force=True
        )
        path = path if report.verdict != "nothing-to-convert" else model.path
        data = model.path.with_name("data.npz")
        jobs.append(Job(model.name, str(path), str(data), _is_compiled(path), model.tolerance))
    return jobs


def _is_compiled(path: Path) -> bool:
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            return bool(json.loads(archive.read("config.json")).get("compile_config"))
    with h5py.File(path) as file:
        return "training_config" in file.attrs


def load_all(
    jobs: list[Job], results: Path, *, python: str, library: str, environment: dict[str, str]
) -> list[Outcome]:
    """Load all files in one process of another Keras.

    Args:
        results: file to write, a JSON line for each job.
        python: interpreter.
        library: what it imports, e.g. "keras".
        environment: on top of this process' own.

    Raises:
        RuntimeError: the process ended before the last file.
    """
    todo = results.with_suffix(".jobs")
    todo.write_text(json.dumps([asdict(job) for job in jobs]))
    quiet = {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1"}
    done = subprocess.run(
        [python, str(LOADER), library, str(todo), str(results)],
        env={**os.environ, **quiet, **environment},
        capture_output=True,
        text=True,
    )
    found = read_results(results) if results.exists() else []
    if done.returncode or len(found) != len(jobs):
        raise RuntimeError(f"{python} {library}: {done.stderr.strip()[-2000:]}")
    return found


def load_in_keras3(
    version: str, jobs: list[Job], out: Path, wheels: Path, backend: str = "torch"
) -> list[Outcome]:
    """Load all files in one version of Keras 3."""
    folders = [str(folder) for folder in install(version, wheels)]
    return load_all(
        jobs,
        out / f"keras {version} {backend}.jsonl",
        python=sys.executable,
        library="keras",
        environment={"PYTHONPATH": os.pathsep.join(folders), "KERAS_BACKEND": backend},
    )


def read_results(path: Path) -> list[Outcome]:
    return [Outcome(**json.loads(line)) for line in path.read_text().splitlines()]


# --- the table ------------------------------------------------------------------------------


def table(columns: dict[str, list[Outcome]]) -> str:
    """Markdown: one row for each case that is not right everywhere, one for all others.

    A case is a model, written by several libraries. Reasons are numbered below the table.
    """
    cells: dict[str, dict[str, list[Outcome]]] = defaultdict(lambda: defaultdict(list))
    for column, outcomes in columns.items():
        for outcome in outcomes:
            cells[outcome.name.partition("-")[2]][column].append(outcome)
    reasons: dict[str, int] = {}
    lines = ["| case | " + " | ".join(columns) + " |", "| --- " * (len(columns) + 1) + "|"]
    right = []
    for case, row in sorted(cells.items()):
        if all(o.status == "right" for found in row.values() for o in found):
            right.append((case, row))
            continue
        texts = (_cell(row[column], reasons) for column in columns)
        lines.append(f"| `{case}` | " + " | ".join(texts) + " |")
    counts = (sum(len(row[column]) for _, row in right) for column in columns)
    lines.append(
        f"| {len(right)} other cases | " + " | ".join(f"right, {n} files" for n in counts) + " |"
    )
    lines += ["", "Other cases: " + ", ".join(f"`{case}`" for case, _ in right) + ".", ""]
    lines += [f"{number}. `{reason}`" for reason, number in reasons.items()]
    return "\n".join(lines)


def _cell(outcomes: list[Outcome], reasons: dict[str, int]) -> str:
    """What to say of one case in one version: the worst of its files, and the reason's number."""
    if not outcomes:
        return ""
    texts = []
    for outcome in outcomes:
        if outcome.status == "right":
            text = "right"
        elif outcome.status == "wrong":
            text = f"WRONG {outcome.detail}"
        else:
            reason = outcome.detail.replace("|", "/").replace("\n", " ")[:160]
            text = f"refused [{reasons.setdefault(reason, len(reasons) + 1)}]"
        texts.append(text)
    # The same for several writers is said once.
    return ", ".join(dict.fromkeys(texts))


# --- the command ----------------------------------------------------------------------------


def chosen(only: list[str] | None = None) -> list[Model]:
    """The fixtures to measure: all but those with a Lambda, whose code Keras must be let run."""
    models = [model for model in OWN if not model.has_lambda]
    return [model for model in models if not only or any(text in model.name for text in only)]


def newest_of_each(jobs: list[Job], writers: tuple[str, ...] = ALL_WRITERS) -> list[Job]:
    """Of each case the file of the last of its writers."""
    found = {}
    for writer in writers:
        mine = (job for job in jobs if job.name.partition("-")[0] == writer)
        found.update({job.name.partition("-")[2]: job for job in mine})
    return list(found.values())


def _measure(options: argparse.Namespace) -> None:
    jobs = convert_all(chosen(options.only), options.out / "files", to=options.to)
    if options.once:
        jobs = newest_of_each(jobs)
    for version in options.versions:
        found = load_in_keras3(version, jobs, options.out, options.wheels, options.backend)
        _say(f"keras {version} {options.backend}", found)


def _measure_keras2(options: argparse.Namespace) -> None:
    files = options.out / "files"
    jobs = convert_all(chosen(options.only), files, target="keras2")
    for stack in options.stack:
        label, _, rest = stack.partition("=")
        python, _, library = rest.rpartition(":")
        writers = WRITERS.get(label, ALL_WRITERS)
        mine = [job for job in jobs if job.name.partition("-")[0] in writers]
        if options.once:
            mine = newest_of_each(mine, writers)
        results = options.out / f"{label}.jsonl"
        _say(label, load_all(mine, results, python=python, library=library, environment={}))


def _say(label: str, found: list[Outcome]) -> None:
    counts = [f"{sum(o.status == s for o in found)} {s}" for s in ("right", "wrong", "refused")]
    print(f"{label}: {', '.join(counts)}", flush=True)


def _print_table(options: argparse.Namespace) -> None:
    def order(path: Path) -> list[tuple[int, str]]:
        numbers = path.stem.replace(" ", ".").split(".")
        return [(int(part), "") if part.isdigit() else (0, part) for part in numbers]

    paths = sorted(options.out.glob("*.jsonl"), key=order)
    print(table({path.stem: read_results(path) for path in paths}))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(required=True)
    for name, run in (("measure", _measure), ("keras2", _measure_keras2), ("table", _print_table)):
        command = commands.add_parser(name)
        command.set_defaults(run=run)
        command.add_argument("out", type=Path)
        if name == "table":
            continue
        command.add_argument("--only", nargs="*", help="parts of the names of fixtures")
        command.add_argument("--once", action="store_true", help="each case once, newest writer")
        if name == "keras2":
            command.add_argument("--stack", action="append", required=True)
            continue
        command.add_argument("--wheels", type=Path, required=True)
        command.add_argument("--versions", nargs="*", default=VERSIONS)
        command.add_argument("--backend", default="torch")
        command.add_argument("--to", choices=("h5", "keras"), default="h5")
    options = parser.parse_args()
    options.run(options)


if __name__ == "__main__":
    main()

"""The figures of the GPU tests: a line of JSON for each, and a table of them.

usage: TEST_GPU_FIGURES=figures.jsonl python -m pytest -m gpu tests/gpu
       python tests/support/gpu_figures.py figures.jsonl
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

FILE = "TEST_GPU_FIGURES"
"""The environment variable that names the file; without it nothing is written."""


@cache
def machine(device: str) -> dict[str, Any]:
    """What the figures of a device ("cpu" or "cuda") were measured with."""
    import torch

    found: dict[str, Any] = {"device": device, "torch": torch.__version__}
    if device == "cuda":
        found |= {
            "name": torch.cuda.get_device_name(),
            "driver": driver(),
            "cudnn": torch.backends.cudnn.version(),
        }
    return found


def driver() -> str:
    """The driver's version as nvidia-smi tells it; "unknown" where that is not installed."""
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    return (done.stdout.split() or ["unknown"])[0]


def record(test: str, device: str, dtype: str, max_abs: float, tolerance: float | None) -> None:
    """Add one figure to the file: the worst difference of a test, and what was allowed."""
    if FILE in os.environ:
        figure = {"test": test, "dtype": dtype, "max_abs": max_abs, "tolerance": tolerance}
        with Path(os.environ[FILE]).open("a", encoding="utf-8") as file:
            file.write(json.dumps({**figure, **machine(device)}) + "\n")


def table(figures: Iterable[dict[str, Any]]) -> str:
    """Markdown: for each test and dtype the number of cases, and the worst of them.

    The worst is the one that comes closest to its tolerance.
    """
    groups: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
    machines = {}
    for figure in figures:
        groups.setdefault((figure["test"], figure["device"], figure["dtype"]), []).append(figure)
        keys = ("name", "driver", "torch", "cudnn")
        machines[figure["device"]] = ", ".join(
            f"{key} {figure[key]}" for key in keys if key in figure
        )
    lines = [f"{device}: {words}" for device, words in machines.items()]
    lines += ["", "| test | device | dtype | cases | worst difference | its tolerance |"]
    lines += ["| --- | --- | --- | --- | --- | --- |"]
    for (test, device, dtype), cases in groups.items():
        worst = max(cases, key=_part_of_tolerance)
        allowed = worst["tolerance"]
        shown = "none" if allowed is None else f"{allowed:.1e}"
        lines.append(
            f"| {test} | {device} | {dtype} | {len(cases)} | {worst['max_abs']:.1e} | {shown} |"
        )
    return "\n".join(lines)


def _part_of_tolerance(figure: dict[str, Any]) -> float:
    return float(figure["max_abs"]) / (figure["tolerance"] or 1.0)


if __name__ == "__main__":
    with Path(sys.argv[1]).open(encoding="utf-8") as lines:
        print(table(json.loads(line) for line in lines))

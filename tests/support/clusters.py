"""A Dask cluster of processes of its own, as a user starts one on this machine."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@contextmanager
def dask_cluster(directory: Path, workers: int = 2) -> Iterator[str]:
    """A scheduler and some workers of one thread each, with their nannies; yields its address."""
    distributed = pytest.importorskip("distributed", reason="needs rnnconvert[dask]")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
    contact = directory / "scheduler.json"
    with ExitStack() as stack:

        def start(role: str, *arguments: str) -> None:
            words = [sys.executable, "-m", "distributed.cli.dask_" + role, *arguments]
            log = stack.enter_context((directory / f"{role}.log").open("ab"))
            process = subprocess.Popen(
                words, cwd=directory, env=environment, stdout=log, stderr=log
            )
            stack.callback(process.wait, 60)
            stack.callback(process.terminate)

        start("scheduler", "--host", "127.0.0.1", "--port", "0", "--no-dashboard",
              "--scheduler-file", str(contact))  # fmt: skip
        for number in range(workers):
            start("worker", "--scheduler-file", str(contact), "--nthreads", "1", "--no-dashboard",
                  "--name", f"worker-{number}")  # fmt: skip
        with distributed.Client(scheduler_file=str(contact), timeout=60,
                                set_as_default=False) as client:  # fmt: skip
            client.wait_for_workers(workers, timeout=60)
            address = client.scheduler.address
        yield address

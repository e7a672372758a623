"""One process that has imported everything, and a fork of it for each run: some 20 ms apiece."""

from __future__ import annotations

import importlib
import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

DEADLINE = 10.0
MOST_MEMORY = 512 * 2**20
_KILLED_AFTER = 60.0
"""Seconds by the clock: of a busy machine, on which the seconds of work take many times as long."""
_MODULES = (
    "cli.main", "cli.commands", "cli.output", "cli.run", "conversion.keras_h5",
    "conversion.rebuilt", "conversion.checkpoints", "inspection.keras", "inspection.checkpoints",
    "comparison.keras", "comparison.stacks", "containers.keras_zip", "containers.keras_weights",
)  # fmt: skip


@dataclass(frozen=True)
class Run:
    """How a command ended.

    Attributes:
        arguments: of the command line.
        code: exit code; None where it was killed.
        seconds: of the processor's time that it took.
        memory: bytes, its most.
        said: stdout and stderr.
    """

    arguments: tuple[str, ...]
    code: int | None
    seconds: float
    memory: int
    said: str

    def fault(self, allowed: Sequence[int]) -> str | None:
        """What it did that no file may make it do; None where all is well."""
        if self.code is None:
            return f"killed, after {self.seconds:.1f} s of work"
        if self.code not in allowed:
            return f"exit code {self.code}: {(self.said.strip().splitlines() or [''])[-1][:200]}"
        if "Traceback (most" in self.said or "--debug shows where" in self.said:
            return f"a traceback: {self.said.strip().splitlines()[-1][:200]}"
        if self.seconds > DEADLINE:
            return f"{self.seconds:.1f} s"
        if self.memory > MOST_MEMORY:
            return f"{self.memory:,} bytes of memory"
        return None


def import_everything() -> None:
    """What the commands import when they need it, so that no fork has to do it again."""
    for name in _MODULES:
        importlib.import_module(f"rnnconvert.{name}")
    assert "tensorflow" not in sys.modules  # every fork would copy its tables of pages


def run(arguments: Sequence[str], log: Path) -> Run:
    """Run a command of rnnconvert in a fork of this process, which must have no threads."""
    from rnnconvert.cli.main import main

    child = os.fork()
    if child == 0:
        _be_the_child(main, arguments, log)
    return _outcome(child, arguments, log)


def run_alone(arguments: Sequence[str], log: Path) -> Run:
    """The same in a fork of a fresh interpreter, whatever threads and memory this process has."""
    words = [sys.executable, __file__, str(log), *arguments]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    return Run(**json.loads(done.stdout))


def _outcome(child: int, arguments: Sequence[str], log: Path) -> Run:
    status, usage = _wait(child, time.monotonic() + _KILLED_AFTER)
    code = os.waitstatus_to_exitcode(status)
    said = log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""
    seconds = usage.ru_utime + usage.ru_stime
    memory = usage.ru_maxrss * 1024
    return Run(tuple(arguments), code if code >= 0 else None, seconds, memory, said)


def _be_the_child(main: object, arguments: Sequence[str], log: Path) -> None:
    code = 70
    try:
        opened = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(opened, 1)
        os.dup2(opened, 2)
        sys.argv = ["rnnconvert", *arguments]
        main()  # type: ignore[operator]
        code = 0
    except SystemExit as stop:
        code = int(stop.code or 0)
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _wait(child: int, until: float) -> tuple[int, resource.struct_rusage]:
    """Exit status of a child and what it used up; it is killed when its time is up."""
    pause = 0.001
    while True:
        done, status, usage = os.wait4(child, os.WNOHANG)
        if done:
            return status, usage
        if time.monotonic() > until:
            os.kill(child, signal.SIGKILL)
        time.sleep(pause)
        pause = min(pause * 1.5, 0.05)


if __name__ == "__main__":
    print(json.dumps(asdict(run(sys.argv[2:], Path(sys.argv[1])))))

"""Fixtures of all tests."""

from __future__ import annotations

import gc
import re
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from helpers import Result

from rnnconvert.cli.main import main
from rnnconvert.cli.supervise import collect_rarely

with suppress(ImportError):  # torch's builds for GPUs bring it and load it late: after TensorFlow's
    import triton  # noqa: F401  # library of the same symbols that ends the process by SIGSEGV

ANCHORS = {1: "different", 2: "usage", 3: "unreadable|memory", 4: "not-convertible", 5: "output"}
"""What explains an error, by its exit code."""


def without_anchors(err: str, code: int) -> str:
    """Messages without the anchor that each error must end in; tests name the rest."""
    any_anchor = "|".join(ANCHORS.values())
    errors = re.findall(r"^(?:\x1b\[\d+m)?[Ee]rror:", err, re.MULTILINE)
    pattern = re.compile(rf"(?: |\n  )\(see docs/errors\.md#({any_anchor})\)$", re.MULTILINE)
    anchors = pattern.findall(err)
    assert len(anchors) == len(errors), err
    if len(errors) == 1 and code in ANCHORS:
        assert re.fullmatch(ANCHORS[code], anchors[0]), err
    return pattern.sub("", err)


@pytest.fixture(scope="session")
def fixtures_dir() -> Path:
    return Path(__file__).parents[1] / "fixtures"


@pytest.fixture
def cli(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> Callable[..., Result]:
    """Run the command line in this process, in the test's own directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.delenv("FORCE_COLOR", raising=False)

    def run(*arguments: object) -> Result:
        monkeypatch.setattr(sys, "argv", ["rnnconvert", *(str(word) for word in arguments)])
        capsys.readouterr()
        code: object = 0
        try:
            main()
        except SystemExit as stop:
            code = stop.code or 0
        assert isinstance(code, int)
        out, err = capsys.readouterr()
        return Result(code, out, without_anchors(err, code))

    return run


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Of a test marked `sampled(n)` each n-th variant is a default test; all are in the sweeps."""
    seen: Counter[str] = Counter()
    for item in items:
        mark = item.get_closest_marker("sampled")
        if mark is None or item.get_closest_marker("corpus") is not None:
            continue
        name = item.nodeid.partition("[")[0]
        if seen[name] % mark.args[0]:
            item.add_marker(pytest.mark.corpus)
        seen[name] += 1


def pytest_collection_finish() -> None:
    """Frameworks are loaded now: Python's collector need not look through them ever again."""
    gc.freeze()
    collect_rarely()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """`-n 2` deals out whole files: tests of one file share frameworks and converted models."""
    if config.option.dist != "load":
        return None
    from xdist.scheduler import LoadFileScheduling

    return LoadFileScheduling(config, log)

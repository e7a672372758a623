"""Fixtures of all tests."""

from __future__ import annotations

import gc
import os
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any
from zlib import crc32

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
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Which variants of a test are default tests, and which are in the sweeps.

    Of `sampled(n)` each n-th variant is a default test, and the others are in the sweeps. Of
    `thinned(n)` one in n of the sweeps' variants is tested, chosen by its name, and all of them
    with TEST_EVERYTHING=1 in the environment.
    """
    seen: Counter[str] = Counter()
    thinned: dict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        name = item.nodeid.partition("[")[0]
        mark = item.get_closest_marker("sampled")
        if mark is not None and item.get_closest_marker("corpus") is None:
            if seen[name] % mark.args[0]:
                item.add_marker(pytest.mark.corpus)
            seen[name] += 1
        if item.get_closest_marker("thinned") and item.get_closest_marker("corpus"):
            thinned[name].append(item)
    left_out: set[pytest.Item] = set()
    for own in thinned.values() if not os.environ.get("TEST_EVERYTHING") else ():
        own.sort(key=lambda item: crc32(item.nodeid.encode()))
        mark = own[0].get_closest_marker("thinned")
        assert mark is not None
        left_out.update(own[-(-len(own) // mark.args[0]) :])
    if left_out:
        items[:] = [item for item in items if item not in left_out]
        config.hook.pytest_deselected(items=list(left_out))


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

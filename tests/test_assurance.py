"""Each promise of docs/assurance.md names tests, and each test that it names exists."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "docs" / "assurance.md").read_text(encoding="utf-8")
NAMED = sorted(set(re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", TEXT)))


def functions_of(path: Path) -> set[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize(("path", "test"), NAMED, ids=lambda part: str(part).rpartition("/")[2])
def test_the_test_exists(path: str, test: str) -> None:
    assert test in functions_of(ROOT / path)


def test_each_promise_names_a_test() -> None:
    rows = [line for line in TEXT.splitlines() if line.startswith("| ")]
    promises = [row for row in rows if not row.startswith(("| promise", "| ---"))]
    assert len(promises) >= 25
    assert all("`tests/" in row for row in promises)


def test_a_test_that_is_gone_is_noticed() -> None:
    assert "test_that_is_gone" not in functions_of(ROOT / "tests" / "test_assurance.py")
    assert "test_the_test_exists" in functions_of(ROOT / "tests" / "test_assurance.py")

"""The public functions are typed to the last keyword, for callers that check types strictly."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from rnnconvert.errors import UsageError
from rnnconvert.exports.options import ExportKeywords, ExportOptions
from rnnconvert.options import ConvertKeywords, Options

ROOT = Path(__file__).parents[1]
RIGHT = """
import rnnconvert
from rnnconvert.report import Report

report: Report = rnnconvert.convert("a.h5", "b.h5", verify="layers", batch=4, target="keras2")
words: str = report.verdict
other: Report = rnnconvert.verify("a.h5", "b.h5", rtol=1e-3, custom_objects=["module:name"])
found = rnnconvert.inspect("a.h5", forget_bias=1.0)
document: dict[str, object] = found.to_dict()
third: Report = rnnconvert.export("a.h5", "b.onnx", opset=17, stateful_step=True, batch=2)
"""
WRONG = {
    "an unknown keyword": 'rnnconvert.convert("a.h5", colour="red")',
    "another value": 'rnnconvert.convert("a.h5", verify="everything")',
    "another type": 'rnnconvert.verify("a.h5", "b.h5", batch="4")',
    "of an export": 'rnnconvert.export("a.h5", "b.onnx", quantize="int4")',
    "of another function": 'rnnconvert.inspect("a.h5", in_place=True)',
}


def mypy(folder: Path, code: str) -> str:
    pytest.importorskip("mypy", reason="mypy is not installed")
    (folder / "caller.py").write_text(code, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent",
         "--ignore-missing-imports", f"--cache-dir={ROOT / '.mypy_cache'}", "caller.py"],
        cwd=folder, capture_output=True, text=True, check=False,
    )  # fmt: skip
    return done.stdout


@pytest.mark.corpus  # it takes mypy longer than the other tests of this file together
def test_a_strictly_typed_caller_and_its_faults(tmp_path):
    lines = "\n".join(WRONG.values())
    out = mypy(tmp_path, f"{RIGHT}\n{lines}\n")
    first = len(RIGHT.splitlines()) + 2
    wrong = {int(line.split(":")[1]) for line in out.splitlines() if ": error:" in line}
    assert wrong == set(range(first, first + len(WRONG))), out


def test_the_keywords_are_those_that_are_taken():
    for name in ConvertKeywords.__annotations__:
        Options.of(**{name: None if name == "custom_objects" else _some(name)})
    with pytest.raises(UsageError, match="unknown option colour"):
        Options.of(colour="red")
    own = {"to", "opset", "quantize", "stateful_step", "allow_select_ops"}
    assert own < set(ExportKeywords.__annotations__)
    for name in set(ExportKeywords.__annotations__) - own - {"custom_objects"}:
        ExportOptions.of(**{name: _some(name)})


def _some(name: str) -> object:
    """A value that an option has by default, or takes."""
    plain = Options()
    for holder in (plain, plain.inputs, plain.stack):
        if hasattr(holder, name):
            return getattr(holder, name)
    assert name == "allow_code"
    return True

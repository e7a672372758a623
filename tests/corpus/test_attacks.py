"""Every file that once did harm is read again: a documented exit code, soon, in little memory."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("resource", reason="needs fork")
import fuzz_server

ATTACKS = sorted(
    path for path in (Path(__file__).parent / "attacks").iterdir() if path.name != "README.md"
)
ACCEPTED = ("zeros.h5",)
"""Good files that only took too long."""
DESCRIBED = (*ACCEPTED, "no_inputs.h5")
"""`inspect` describes them, whatever can be converted."""


def _model(path: Path) -> Path:
    """The file that a command is given, of a folder that the fuzzer wrote."""
    if path.is_file():
        return path
    indexes = sorted(path.glob("*.index"))
    return indexes[0].with_suffix("") if indexes else sorted(path.iterdir())[0]


@pytest.mark.parametrize("path", ATTACKS, ids=lambda path: path.name)
@pytest.mark.sampled(3)
def test_it_does_no_harm_any_more(path: Path, tmp_path: Path) -> None:
    model, output = str(_model(path)), str(tmp_path / "out.h5")
    for arguments in (
        ["inspect", model],
        ["cudnn-to-keras", model, "-o", output, "--verify", "layers"],
    ):
        done = fuzz_server.run_alone(arguments, tmp_path / "log")
        good = DESCRIBED if arguments[0] == "inspect" else ACCEPTED
        wanted = (0,) if path.name in good else (3, 4)
        assert done.fault(wanted) is None, done


def test_each_is_in_the_table() -> None:
    text = (Path(__file__).parent / "attacks" / "README.md").read_text(encoding="utf-8")
    assert all(f"`{path.name}`" in text for path in ATTACKS)

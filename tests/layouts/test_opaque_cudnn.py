"""The flat parameter buffer against NVIDIA's library itself, which answers without a GPU.

Skipped where the wheel `nvidia-cudnn-cu12` is not installed (it is big: 2.3 GB with cuBLAS).
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
from dataclasses import asdict, replace
from typing import Any

import cudnn_library
import pytest
from opaque_shapes import expected_answer, random_shape

from rnnconvert.layouts.opaque_shape import OpaqueShape

QUESTIONS = 400

pytestmark = [
    pytest.mark.cudnn,
    pytest.mark.skipif(
        cudnn_library.folder("cudnn") is None,
        reason="NVIDIA's library is not installed (pip install nvidia-cudnn-cu12)",
    ),
]


def ask(questions: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The library's answers, from a process of its own: it may crash."""
    done = subprocess.run(
        [sys.executable, cudnn_library.__file__],
        input=json.dumps(questions), capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr or f"the library crashed ({done.returncode})"
    found = json.loads(done.stdout)
    assert found["version"] > 8000
    return found["answers"]


def test_the_library_puts_everything_where_we_do():
    rng = random.Random(0)
    shapes = [random_shape(rng) for _ in range(QUESTIONS)]
    dtypes = [rng.choice(list(cudnn_library.DTYPES)) for _ in shapes]
    answers = ask(
        [{**asdict(shape), "dtype": dtype} for shape, dtype in zip(shapes, dtypes, strict=True)]
    )
    for shape, dtype, answer in zip(shapes, dtypes, answers, strict=True):
        assert answer == expected_answer(shape), f"{shape}, {dtype}"


def test_this_comparison_can_fail():
    shape = OpaqueShape("gru", 2, 4, 5, "bidirectional")
    (answer,) = ask([{**asdict(shape), "dtype": "float32"}])
    assert answer == expected_answer(shape)
    for wrong in (
        replace(shape, input_size=6),
        replace(shape, num_layers=1),
        replace(shape, direction="unidirectional", num_layers=4),
        replace(shape, cell="lstm"),
    ):
        assert answer != expected_answer(wrong)


@pytest.mark.parametrize(
    "impossible",
    [
        {"cell": "gru", "num_proj": 2},
        {"cell": "lstm", "num_proj": 9},
        {"cell": "lstm", "num_layers": 0},
        {"cell": "lstm", "num_units": 0},
    ],
    ids=str,
)
def test_the_library_refuses_what_we_refuse(impossible):
    """But for skip_input with input_size != num_units: its layout it tells, with no use for it."""
    shape = OpaqueShape("lstm", 1, 4, 5)
    (answer,) = ask([{**asdict(shape), "dtype": "float32", **impossible}])
    assert "refused" in answer

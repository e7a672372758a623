"""What the graph beside a checkpoint says of its cells: forget bias, activation, refusals."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from models import ROOT, SHARED

from rnnconvert.checkpoints.find import find_stacks
from rnnconvert.checkpoints.graph_cells import ACTIVATIONS, LINEAR
from rnnconvert.checkpoints.stack import FoundStacks
from rnnconvert.cli.stacks import ACTIVATIONS as OFFERED
from rnnconvert.containers.checkpoint import open_checkpoint
from rnnconvert.errors import UnreadableInputError, UsageError
from rnnconvert.options import StackOptions
from rnnconvert.references import keras as keras_reference
from rnnconvert.references import tf1 as tf1_reference

GRAPHS = ROOT / "fixtures" / "checkpoint_graphs"
CASES = sorted(path.parent for path in GRAPHS.glob("*/*/data.npz"))
REAL = SHARED / "real-models" / "plain_lstm_forget_bias_0.8_tf1"


def meta_of(case: Path) -> dict:
    with np.load(case / "data.npz") as data:
        return json.loads(str(data["meta"]))


def find(folder: Path, **options: object) -> FoundStacks:
    checkpoint = open_checkpoint(folder)
    return find_stacks(
        checkpoint.variables,
        StackOptions(**options),  # type: ignore[arg-type]
        prefix=checkpoint.path.prefix,
    )


def copy_of(case: str, target: Path, *, with_graph: bool = True) -> Path:
    shutil.copytree(GRAPHS / case, target)
    if not with_graph:
        (target / "model.ckpt.meta").unlink()
    return target


def test_all_fixtures_are_here():
    assert len(CASES) == 33


@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(case.parts[-2:]))
def test_forget_bias_and_activation_are_read(case):
    meta, found = meta_of(case), find(case)
    if "refused" in meta:
        (problem,) = found.problems
        assert meta["refused"] in problem
        assert not found.stacks
        return
    assert not found.problems
    assert [stack.assumptions for stack in found.stacks] == [()] * len(found.stacks)
    assert {stack.function for stack in found.stacks} == {meta["activation"]}
    if meta["forget_bias"] is not None:
        assert [stack.forget_bias for stack in found.stacks] == meta["forget_bias"]


@pytest.mark.skipif(
    not REAL.exists(), reason="the folder of real models is not beside the checkout"
)
def test_the_real_model_that_adds_0_8():
    (stack,) = find(REAL).stacks
    assert (stack.forget_bias, stack.function, stack.assumptions) == (0.8, "tanh", ())


def test_without_the_graph_it_is_assumed(tmp_path):
    (stack,) = find(copy_of("tf115/basic_lstm_08", tmp_path / "c", with_graph=False)).stacks
    assert [str(each) for each in stack.assumptions] == ["forget_bias is 1.0"]
    assert "activation is taken to be tanh" in stack.assumptions[0].why
    assert stack.told is None
    found = find(tmp_path / "c", forget_bias=0.8)
    assert "activation is taken to be tanh" in found.warnings[0]
    assert not find(tmp_path / "c", forget_bias=0.8, activation="tanh").warnings
    (stack,) = find(copy_of("tf115/lstm_relu", tmp_path / "r", with_graph=False)).stacks
    assert [str(each) for each in stack.assumptions] == [
        "forget_bias is 1.0", "activation is tanh", "cell_clip is none",
    ]  # fmt: skip
    (stack,) = find(copy_of("tf115/gru_relu", tmp_path / "g", with_graph=False)).stacks
    assert [str(each) for each in stack.assumptions] == ["activation is tanh"]
    (stack,) = find(tmp_path / "g", activation="relu").stacks
    assert (stack.function, stack.assumptions) == ("relu", ())


@pytest.mark.parametrize(
    ("case", "options"),
    [
        ("tf115/basic_lstm_08", {"forget_bias": 1.0}),
        ("tf115/basic_lstm_08", {"forget_bias": 0.6}),
        ("tf115/lstm_relu", {"activation": "tanh"}),
        ("tf115/rnn_relu", {"activation": "tanh"}),
        ("tf115/gru_relu", {"activation": "tanh"}),
        ("tf115/block_cell", {"activation": "relu"}),
        ("tf15/compatible_lstm", {"forget_bias": 1.0}),
        ("tf115/lstm_multi_unequal", {"forget_bias": 0.8}),
    ],
)
def test_an_option_that_contradicts_the_graph_is_an_error(case, options):
    with pytest.raises(UsageError, match="but the graph beside the checkpoint"):
        find(GRAPHS / case, **options)


def test_an_option_that_agrees_with_the_graph_is_fine():
    (stack,) = find(GRAPHS / "tf115/lstm_half", forget_bias=0.8, activation="tanh").stacks
    assert stack.forget_bias == 0.8
    scope = "rnn/multi_rnn_cell/cell_0"
    (stack,) = find(GRAPHS / "tf115/lstm_multi_unequal", forget_bias=0.8, scope=scope).stacks
    assert stack.forget_bias == 0.8


def test_a_computed_forget_bias_may_be_given():
    (stack,) = find(GRAPHS / "tf115/computed_forget_bias", forget_bias=0.8).stacks
    assert (stack.forget_bias, stack.assumptions) == (0.8, ())


@pytest.mark.parametrize("damage", ["truncated", "random", "pointer", "empty"])
def test_a_damaged_graph_is_not_passed_over(tmp_path, damage):
    folder = copy_of("tf115/basic_lstm_08", tmp_path / "c")
    path = folder / "model.ckpt.meta"
    content = path.read_bytes()
    path.write_bytes({
        "empty": b"",
        "truncated": content[: len(content) // 2],
        "random": bytes(np.random.default_rng(3).integers(0, 256, 4000, np.uint8)),
        "pointer": b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n",
    }[damage])  # fmt: skip
    with pytest.raises(UnreadableInputError):
        find(folder)


def test_a_graph_of_another_model_tells_nothing(tmp_path):
    folder = copy_of("tf115/basic_lstm_08", tmp_path / "c")
    shutil.copy(GRAPHS / "tf115/block_fused/model.ckpt.meta", folder)
    (stack,) = find(folder).stacks
    assert [each.what for each in stack.assumptions] == ["forget_bias"]


def test_every_activation_that_is_read_can_be_run_and_given():
    names = {*ACTIVATIONS.values(), LINEAR}
    assert names == set(OFFERED) == set(tf1_reference.ACTIVATIONS)
    z = np.linspace(-4, 4, 101)
    for name in names:
        one, other = tf1_reference.ACTIVATIONS[name](z), keras_reference.ACTIVATIONS[name](z)
        assert np.allclose(one, other, rtol=1e-12, atol=1e-15)


def test_the_graph_of_a_saved_model_tells_of_its_variables(tmp_path):
    """`variables/variables` of a SavedModel as a checkpoint; its graph is one of saved_model.pb."""
    from rnnconvert.containers.checkpoint.wire import encode_number, encode_part

    source = GRAPHS / "tf115" / "basic_lstm_08"
    (tmp_path / "variables").mkdir()
    for ending in ("index", "data-00000-of-00001"):
        shutil.copy(source / f"model.ckpt.{ending}", tmp_path / "variables" / f"variables.{ending}")
    graph = (source / "model.ckpt.meta").read_bytes()
    (tmp_path / "saved_model.pb").write_bytes(encode_number(1, 1) + encode_part(2, graph))
    (stack,) = find(tmp_path / "variables" / "variables").stacks
    assert (stack.forget_bias, stack.assumptions) == (0.8, ())
    (tmp_path / "saved_model.pb").unlink()
    (stack,) = find(tmp_path / "variables" / "variables").stacks
    assert stack.assumptions

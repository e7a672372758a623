"""Checkpoints whose graph says what they don't: converted, run in Keras, beside TF1's outputs."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from models import SHARED

import rnnconvert
from rnnconvert import DifferenceError, NotConvertibleError

GRAPHS = Path(__file__).parents[2] / "fixtures" / "checkpoint_graphs"
CASES = [
    path.parent
    for path in sorted(GRAPHS.glob("*/*/data.npz"))
    if not path.parent.name.startswith(("refused", "computed"))
]
REAL = SHARED / "real-models" / "plain_lstm_forget_bias_0.8_tf1"


def data_of(case: Path) -> tuple[np.ndarray, np.ndarray]:
    with np.load(case / "data.npz") as data:
        return data["x"], data["y"]


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(case.parts[-2:]))
@pytest.mark.sampled(5)
def test_keras_predicts_what_tensorflow_1_did(case, tmp_path):
    keras = pytest.importorskip("keras", reason="Keras 3 is not installed")
    x, y = data_of(case)
    single = len(rnnconvert.inspect(case).found.stacks) == 1
    output = tmp_path / ("out.h5" if single else "out")
    report = rnnconvert.convert(case, output, to="h5", verify="layers")
    assert (report.verdict, report.assumptions) == ("equivalent", ())
    for path in [output] if single else sorted(output.iterdir()):
        x = keras.ops.convert_to_numpy(keras.models.load_model(path)(x))
    assert np.abs(x - y).max() <= (5e-3 if "half" in case.name else 2e-6)


@pytest.mark.slow
def test_the_model_level_runs_another_activation(tmp_path):
    pytest.importorskip("keras", reason="Keras 3 is not installed")
    report = rnnconvert.convert(GRAPHS / "tf115" / "lstm_relu", tmp_path / "out.keras")
    assert [level.status for _, level in report.levels][:3] == ["passed"] * 3
    assert report.proved == "model"


@pytest.mark.parametrize("bias", [0.6, 1.0, 0.81])
def test_a_forget_bias_that_is_off_is_different(tmp_path, bias):
    """A Keras file made with another forget bias than the graph's."""
    bare = tmp_path / "bare"
    shutil.copytree(GRAPHS / "tf115" / "basic_lstm_08", bare)
    (bare / "model.ckpt.meta").unlink()
    made = rnnconvert.convert(
        bare, tmp_path / "wrong.h5", verify="layers", forget_bias=bias, activation="tanh"
    )
    assert made.verdict == "equivalent"  # as far as that checkpoint tells
    for verify in ("weights", "layers"):
        with pytest.raises(DifferenceError) as error:
            rnnconvert.verify(
                GRAPHS / "tf115" / "basic_lstm_08", tmp_path / "wrong.h5", verify=verify
            )
        assert error.value.report.verdict == "different"


def test_another_activation_is_different(tmp_path):
    bare = tmp_path / "bare"
    shutil.copytree(GRAPHS / "tf115" / "lstm_relu", bare)
    (bare / "model.ckpt.meta").unlink()
    rnnconvert.convert(bare, tmp_path / "wrong.h5", verify="layers", forget_bias=0.8,
                       activation="tanh")  # fmt: skip
    with pytest.raises(NotConvertibleError, match="relu"):
        rnnconvert.verify(GRAPHS / "tf115" / "lstm_relu", tmp_path / "wrong.h5", verify="layers")
    rnnconvert.convert(GRAPHS / "tf115" / "lstm_relu", tmp_path / "right.h5", verify="layers")
    report = rnnconvert.verify(GRAPHS / "tf115" / "lstm_relu", tmp_path / "right.h5",
                               verify="layers")  # fmt: skip
    assert report.verdict == "equivalent"


def test_the_verdict_says_what_is_assumed(cli, tmp_path):
    shutil.copytree(GRAPHS / "tf115" / "basic_lstm_08", tmp_path / "c")
    told = cli("cudnn-to-keras", "c", "-o", "told.h5", "--verify", "layers", "--strict")
    assert told.code == 0, told.err
    assert ", equivalent (" in told.out
    (tmp_path / "c" / "model.ckpt.meta").unlink()
    assumed = cli("cudnn-to-keras", "c", "-o", "assumed.h5", "--verify", "layers")
    assert assumed.code == 0
    assert "equivalent, if forget_bias is 1.0 (" in assumed.out
    assert cli("cudnn-to-keras", "c", "-o", "no.h5", "--verify", "layers", "--strict").code == 4
    assert not (tmp_path / "no.h5").exists()
    given = cli("cudnn-to-keras", "c", "-o", "given.h5", "--verify", "layers", "--strict",
                "--forget-bias", 0.8, "--activation", "tanh")  # fmt: skip
    assert given.code == 0
    assert (tmp_path / "given.h5").read_bytes() == (tmp_path / "told.h5").read_bytes()


def test_exit_codes_of_contradictions_and_refusals(cli):
    case = GRAPHS / "tf115" / "basic_lstm_08"
    result = cli("cudnn-to-keras", case, "-o", "out.h5", "--forget-bias", "1.0")
    assert result.code == 2
    assert "says 0.8" in result.err
    result = cli("cudnn-to-keras", GRAPHS / "tf115" / "refused_clip", "-o", "out.h5")
    assert result.code == 4
    assert "clips its state at 0.25" in result.err
    result = cli("keras-to-cudnn", GRAPHS / "tf115" / "lstm_relu", "-o", "out.ckpt")
    assert result.code == 4
    assert "its activation is relu" in result.err
    result = cli("inspect", case)
    assert result.code == 0
    assert "forget_bias 0.8, activation tanh" in result.out


@pytest.mark.skipif(
    not REAL.exists(), reason="the folder of real models is not beside the checkout"
)
def test_the_real_model_has_its_forget_bias_in_the_bias(tmp_path):
    from rnnconvert.containers.checkpoint import open_checkpoint
    from rnnconvert.containers.safe_npz import open_arrays

    report = rnnconvert.convert(REAL, tmp_path / "out.npz", verify="layers")
    assert report.verdict == "equivalent"
    with open_arrays(tmp_path / "out.npz") as arrays:
        bias = arrays["rnn/layer_0/forward/bias"]
    stored = open_checkpoint(REAL).read("rnn/basic_lstm_cell/biases")
    i, f, c, o = np.split(bias, 4)  # Keras' order; TF1's is i, c, f, o
    old_i, old_c, old_f, old_o = np.split(stored, 4)
    assert np.array_equal(f, old_f + np.float32(0.8))
    assert all(np.array_equal(*pair) for pair in ((i, old_i), (c, old_c), (o, old_o)))


def test_a_checkpoint_with_a_buffer_and_a_cell_that_adds_0_8(tmp_path):
    """The buffer is converted; the cell stays, and is compared with its own forget bias."""
    from rnnconvert.containers.checkpoint import (
        data_path,
        index_path,
        open_checkpoint,
        write_checkpoint,
    )

    cell = GRAPHS / "tf115" / "basic_lstm_08"
    tensors = {}
    for folder in (cell, GRAPHS.parent / "checkpoints" / "tf115" / "cudnn_lstm"):
        stored = open_checkpoint(folder)
        tensors |= {name: stored.source(name) for name in stored.variables}
    prefix = tmp_path / "model.ckpt"
    write_checkpoint(index_path(prefix), data_path(prefix), tensors)
    shutil.copy(cell / "model.ckpt.meta", tmp_path)
    report = rnnconvert.convert(prefix, tmp_path / "out.ckpt", verify="layers")
    assert report.verdict == "equivalent"
    written = open_checkpoint(tmp_path / "out.ckpt")
    bias = "rnn/basic_lstm_cell/bias"
    assert written.read(bias).tobytes() == open_checkpoint(cell).read(bias).tobytes()

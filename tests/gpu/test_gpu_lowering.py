"""The original graph on TensorFlow's GPU, by its own cuDNN, against the lowered one on the CPU.

On "gpu" nothing of ours computes the original's side; on "cpu" the same tests run with the
reference, so that they are known to work before they meet a GPU.
"""

from __future__ import annotations

from pathlib import Path

import pytest

tf = pytest.importorskip("tensorflow")

import numpy as np
from models import ROOT

from rnnconvert.graphs import lowering
from rnnconvert.graphs.lower import cells, forward
from rnnconvert.report import LevelResult

pytestmark = pytest.mark.slow

FIXTURES = ROOT / "fixtures" / "savedmodels"
MODELS = sorted(
    path.relative_to(FIXTURES).as_posix()
    for pattern in ("*/contrib_*", "*/keras_*", "*/ops_*", "*/frozen_*")
    for path in FIXTURES.glob(pattern)
)
UNITS, INPUTS = 6, 5

each_device = pytest.mark.parametrize(
    "original_on", ["reference", pytest.param("gpu", marks=pytest.mark.gpu)], indirect=True
)
RUNS = [
    *(("reference", name) for name in ("tf15/contrib_lstm", "tf215/keras_export")),
    *(pytest.param("gpu", name, marks=pytest.mark.gpu) for name in MODELS),
]


@pytest.fixture
def original_on(request) -> str:
    """As `verify_saved_model` takes it; skipped where TensorFlow sees no GPU."""
    if request.param == "gpu" and not tf.config.list_physical_devices("GPU"):
        pytest.skip(f"TensorFlow {tf.__version__} sees no GPU")
    return request.param


@pytest.mark.parametrize(("original_on", "name"), RUNS, indirect=["original_on"])
@pytest.mark.sampled(3)
def test_a_genuine_model(original_on, within, tmp_path, name):
    results = verified(FIXTURES / name, tmp_path, original_on)
    assert results
    for result in results:
        assert result.status == "passed", result
        assert result.device == ("gpu" if "gpu" in original_on.lower() else "cpu")
        within(torchs_name(original_on), "float32", result.max_abs, result.tolerance)


@each_device
@pytest.mark.parametrize("bidirectional", [False, True], ids=["one way", "both ways"])
@pytest.mark.parametrize("mode", ["lstm", "gru", "rnn_tanh", "rnn_relu"])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.sampled(16)
def test_an_op_with_lengths(original_on, within, tmp_path, dtype, mode, bidirectional):
    graph = tmp_path / "frozen.pb"
    graph.write_bytes(one_op(mode, dtype, bidirectional).SerializeToString())
    (result,) = verified(tmp_path, tmp_path / "out", original_on)
    assert result.status == "passed", result
    within(torchs_name(original_on), dtype, result.max_abs, result.tolerance)


MUTANTS = {
    "LSTM gates in another order": ("lstm", cells, "_gates_icfo", lambda gates: gates),
    "GRU without a bias": ("gru", tf.nn, "bias_add", lambda x, bias: x),
    "outputs after a sequence's end": (
        "gru", forward.Sequences, "masked", lambda self, x: x,
    ),
}  # fmt: skip


@each_device
@pytest.mark.parametrize("name", MUTANTS)
@pytest.mark.sampled(2)
def test_a_wrong_lowering_is_caught(original_on, monkeypatch, tmp_path, name):
    mode, *patch = MUTANTS[name]
    (tmp_path / "frozen.pb").write_bytes(one_op(mode, "float32", True).SerializeToString())
    monkeypatch.setattr(*patch)
    (result,) = verified(tmp_path, tmp_path / "out", original_on)
    assert result.status == "failed"
    assert result.max_abs > 100 * result.tolerance


def verified(folder: Path, target: Path, original_on: str) -> list[LevelResult]:
    """Lower the model/ or frozen.pb of a folder, and verify it."""
    target.mkdir(exist_ok=True)
    source = folder / "model"
    if source.is_dir():
        lowered = target / "lowered"
        lowered.mkdir()
        lowering.lower_saved_model_dir(source, lowered)
        return lowering.verify_saved_model(source, lowered, original_on=original_on)
    source, lowered = folder / "frozen.pb", target / "lowered.pb"
    lowering.lower_frozen_graph(source, lowered)
    return lowering.verify_frozen_graph(source, lowered, original_on=original_on)


def one_op(mode: str, dtype: str, bidirectional: bool):  # type: ignore[no-untyped-def]
    """A graph with CudnnRNNV3, two layers, on random parameters."""
    directions = 2 if bidirectional else 1
    rows = UNITS * {"lstm": 4, "gru": 3}.get(mode, 1)
    widths = [INPUTS] * directions + [UNITS * directions] * directions
    count = sum(rows * (width + UNITS + 2) for width in widths)
    params = 0.5 * np.random.default_rng(8).standard_normal(count)
    placeholder = tf.compat.v1.placeholder
    with tf.Graph().as_default() as graph:
        states = [2 * directions, None, UNITS]
        result = tf.raw_ops.CudnnRNNV3(
            input=placeholder(dtype, [None, None, INPUTS], name="x"),
            input_h=placeholder(dtype, states, name="h"),
            input_c=placeholder(dtype, states, name="c"),
            params=tf.constant(params.astype(dtype)),
            sequence_lengths=placeholder(tf.int32, [None], name="lengths"),
            rnn_mode=mode,
            direction="bidirectional" if bidirectional else "unidirectional",
            is_training=False,
        )
        tf.identity(result.output, name="y")
        tf.identity(result.output_h, name="hn")
        if mode == "lstm":
            tf.identity(result.output_c, name="cn")
    return graph.as_graph_def()


def torchs_name(original_on: str) -> str:
    return "cuda" if original_on == "gpu" else "cpu"

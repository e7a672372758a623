"""Forward and backward ops of all versions against torch, on TensorFlow's CPU kernels."""

from __future__ import annotations

import pytest

pytest.importorskip("tensorflow")

import ml_dtypes
import numpy as np
import tensorflow as tf
from lowering_graphs import (
    cudnn_nodes,
    feeds_of,
    fetches_of,
    op_types,
    run_graph,
    training_graph,
    worst,
)
from lowering_torch import STEPS, Oracle

from rnnconvert.graphs import lowering

pytestmark = pytest.mark.slow

# mode, layers, bidirectional, op version, what else: spread so that each meets each other somewhere
CASES = [
    ("lstm", 1, False, 1, {}),
    ("lstm", 2, True, 2, {}),
    ("lstm", 3, False, 3, {"lengths": True}),
    ("lstm", 1, True, 3, {"lengths": True, "batch_major": True}),
    ("lstm", 2, False, 3, {"double": True, "lengths": True}),
    ("lstm", 1, True, 3, {"proj": 3, "lengths": True}),
    ("lstm", 2, False, 3, {"proj": 3, "batch_major": True}),
    ("lstm", 2, True, 1, {"skip": True}),
    ("gru", 1, True, 1, {}),
    ("gru", 3, False, 2, {}),
    ("gru", 1, True, 3, {"lengths": True, "double": True}),
    ("gru", 2, True, 3, {"lengths": True, "batch_major": True}),
    ("gru", 1, False, 1, {"skip": True, "double": True}),
    ("rnn_tanh", 1, False, 3, {"lengths": True}),
    ("rnn_tanh", 2, True, 1, {"double": True}),
    ("rnn_relu", 3, False, 2, {}),
    ("rnn_relu", 1, True, 3, {"lengths": True, "batch_major": True}),
    ("rnn_relu", 1, False, 1, {"skip": True}),
]


def _name(value: object) -> str:
    return "-".join(value) if isinstance(value, dict) else str(value)


@pytest.mark.parametrize(
    ("mode", "layers", "both", "version", "more"),
    [
        pytest.param(*case, marks=pytest.mark.corpus if number % 3 else ())
        for number, case in enumerate(CASES)
    ],
    ids=_name,
)
@pytest.mark.sampled(4)
@pytest.mark.thinned(2)
def test_outputs_and_gradients_are_torchs(mode, layers, both, version, more):
    more = dict(more)
    time_major = not more.pop("batch_major", False)
    oracle = Oracle(mode, layers, both, **more)
    graph_def = training_graph(oracle, version, time_major=time_major)
    assert len(cudnn_nodes(graph_def)) == 2  # forward and backward
    result = lowering.lower_graph_def(graph_def)
    assert not cudnn_nodes(graph_def)
    assert len(result.lowered) == 2
    assert result.left == ()
    found = run_graph(graph_def, fetches_of(oracle), feeds_of(oracle))
    assert worst(found, oracle) < (1e-13 if oracle.double else 5e-6)


def test_the_fused_lstm_is_used_where_it_fits_and_never_its_second_version():
    single, double = Oracle("lstm"), Oracle("lstm", double=True)
    graphs = [training_graph(oracle, 1) for oracle in (single, double)]
    for graph_def in graphs:
        lowering.lower_graph_def(graph_def)
    assert "BlockLSTM" in op_types(graphs[0])
    assert not {"BlockLSTM"} & op_types(graphs[1])
    assert not {"BlockLSTMV2"} & (op_types(graphs[0]) | op_types(graphs[1]))


@pytest.mark.parametrize(
    ("dtype", "limit"), [(tf.float16, 2e-3), (tf.bfloat16, 2e-2)], ids=["half", "bfloat16"]
)
@pytest.mark.parametrize("mode", ["lstm", "gru"])
@pytest.mark.sampled(2)
def test_low_precision_is_computed_in_float32(mode, dtype, limit):
    oracle = Oracle(mode)
    graph_def = training_graph(oracle, 1, dtype=dtype)
    lowering.lower_graph_def(graph_def)
    kind = {tf.float16: np.float16, tf.bfloat16: ml_dtypes.bfloat16}[dtype]
    found = run_graph(graph_def, ["y", "hn"], feeds_of(oracle, kind))
    assert {value.dtype for value in found.values()} == {np.dtype(kind)}
    assert worst(found, oracle) < limit


@pytest.mark.parametrize(
    ("mode", "more", "version"),
    [
        ("lstm", {"bidirectional": True, "lengths": True}, 3),
        ("lstm", {"proj": 3}, 3),
        ("gru", {"layers": 2, "double": True}, 1),
        ("rnn_relu", {"skip": True}, 2),
    ],
    ids=["lstm", "lstm-proj", "gru-double", "relu-skip"],
)
@pytest.mark.corpus
def test_unrolled_it_computes_the_same_without_loops(mode, more, version):
    oracle = Oracle(mode, **more)
    graph_def = training_graph(oracle, version)
    lowering.lower_graph_def(graph_def, options=lowering.LoweringOptions(unroll=STEPS))
    assert not {op for op in op_types(graph_def) if "While" in op or "TensorList" in op}
    assert not {"BlockLSTM", "ReverseSequence"} & op_types(graph_def)
    found = run_graph(graph_def, fetches_of(oracle), feeds_of(oracle))
    assert worst(found, oracle) < (1e-13 if oracle.double else 5e-6)


def test_unrolled_it_refuses_another_number_of_steps():
    oracle = Oracle("gru")
    graph_def = training_graph(oracle, 1)
    lowering.lower_graph_def(graph_def, options=lowering.LoweringOptions(unroll=STEPS - 1))
    with pytest.raises(tf.errors.InvalidArgumentError):
        run_graph(graph_def, ["y"], feeds_of(oracle))


def test_a_buffer_of_another_length_is_refused_at_run_time():
    oracle = Oracle("gru")
    graph_def = training_graph(oracle, 1)
    lowering.lower_graph_def(graph_def)
    feeds = feeds_of(oracle)
    feeds["params"] = np.append(feeds["params"], np.float32(0.0))
    with pytest.raises(tf.errors.InvalidArgumentError):
        run_graph(graph_def, ["y"], feeds)


def test_what_lies_behind_a_sequences_end_does_not_matter():
    oracle = Oracle("lstm", bidirectional=True, lengths=True)
    graph_def = training_graph(oracle, 3)
    lowering.lower_graph_def(graph_def)
    feeds = feeds_of(oracle)
    for sample, length in enumerate(oracle.values["lengths"]):
        feeds["x"][length:, sample] = np.nan
    names = [name for name in fetches_of(oracle) if name != "gx"]
    assert worst(run_graph(graph_def, names, feeds), oracle) < 5e-6


def test_states_of_batch_major_ops_are_read_in_their_memorys_order():
    """[batch, pairs, units] as [pairs, batch, units]: by a reshape, as TensorFlow's kernel does."""
    oracle = Oracle("gru", 2)
    with tf.Graph().as_default() as graph:
        x = tf.compat.v1.placeholder(tf.float32, [None, None, 5], name="x")
        h = tf.compat.v1.placeholder(tf.float32, [None, 2, 4], name="h")
        params = tf.compat.v1.placeholder(tf.float32, [None], name="params")
        result = tf.raw_ops.CudnnRNNV3(
            input=x, input_h=h, input_c=0.0, params=params, sequence_lengths=[7, 7, 7],
            rnn_mode="gru", time_major=False, is_training=False,
        )  # fmt: skip
        tf.identity(result.output, name="y")
        tf.identity(result.output_h, name="hn")
    graph_def = graph.as_graph_def()
    done = lowering.lower_graph_def(graph_def)
    assert "reads their memory as" in done.warnings[0]
    feeds = feeds_of(oracle)
    memory = feeds["h"].ravel()
    found = run_graph(
        graph_def,
        ["y", "hn"],
        {
            "x": feeds["x"].swapaxes(0, 1),
            "h": memory.reshape(3, 2, 4),
            "params": feeds["params"],
        },
    )
    np.testing.assert_allclose(found["y"].swapaxes(0, 1), oracle.values["y"], atol=1e-6)
    np.testing.assert_allclose(found["hn"].ravel(), oracle.values["hn"].ravel(), atol=1e-6)


def test_a_single_layer_in_batch_major_order_gets_no_warning():
    oracle = Oracle("gru")
    result = lowering.lower_graph_def(training_graph(oracle, 3, time_major=False))
    assert result.warnings == ()

"""Graphs with cuDNN ops, built by TensorFlow itself, and ways to run lowered ones."""

from __future__ import annotations

import os
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import tensorflow as tf
from lowering_torch import UNITS, Oracle

tf.get_logger().setLevel("ERROR")
tf1 = tf.compat.v1

OUTPUTS = ("y", "hn", "cn")


def forward_op(oracle: Oracle, version: int, x, h, c, params, lengths=None, **attributes):  # type: ignore[no-untyped-def]
    """A CudnnRNN, CudnnRNNV2 or CudnnRNNV3 node."""
    given = {"input": x, "input_h": h, "input_c": c, "params": params}
    attributes = {**oracle.attributes, "is_training": True, **attributes}
    if version == 3:
        return tf.raw_ops.CudnnRNNV3(
            **given, sequence_lengths=lengths, num_proj=oracle.proj, **attributes
        )
    make = tf.raw_ops.CudnnRNNV2 if version == 2 else tf.raw_ops.CudnnRNN
    return make(**given, **attributes)


def placeholders(oracle: Oracle, dtype: tf.DType):  # type: ignore[no-untyped-def]
    """x, h, c, params and lengths, with free time and batch, named so."""
    pairs = oracle.layers * oracle.directions
    return (
        tf1.placeholder(dtype, [None, None, oracle.inputs], name="x"),
        tf1.placeholder(dtype, [pairs, None, oracle.proj or UNITS], name="h"),
        tf1.placeholder(dtype, [pairs, None, UNITS], name="c"),
        tf1.placeholder(dtype, [None], name="params"),
        tf1.placeholder(tf.int32, [None], name="lengths"),
    )


def training_graph(
    oracle: Oracle, version: int, *, time_major: bool = True, dtype: tf.DType | None = None
) -> tf1.GraphDef:
    """An op with a loss and its gradients. Fetches: y, hn, cn, gx, gh, gp, gc, all time-major."""
    dtype = dtype or (tf.float64 if oracle.double else tf.float32)
    with tf.Graph().as_default() as graph:
        x, h, c, params, lengths = leaves = placeholders(oracle, dtype)
        attributes = {} if version < 3 else {"time_major": time_major}
        if not time_major:  # the states' memory is read as if it were time-major
            x = tf.transpose(x, [1, 0, 2])
            h, c = (_memory_as(state, [-1, *_swapped(state)]) for state in (h, c))
        result = forward_op(oracle, version, x, h, c, params, lengths, **attributes)
        y, hn, cn = result.output, result.output_h, result.output_c
        if not time_major:
            y, hn = (
                tf.transpose(y, [1, 0, 2]),
                _memory_as(hn, [leaves[1].shape[0], -1, hn.shape[2]]),
            )
            cn = _memory_as(cn, [leaves[2].shape[0], -1, UNITS]) if oracle.mode == "lstm" else cn
        weights = [tf1.placeholder(dtype, name=name) for name in ("wy", "wh", "wc")]
        loss = tf.reduce_sum(y * weights[0]) + tf.reduce_sum(hn * weights[1])
        by = {"gx": leaves[0], "gh": leaves[1], "gp": params}
        if oracle.mode == "lstm":
            loss += tf.reduce_sum(cn * weights[2])
            by["gc"] = leaves[2]
        for name, gradient in zip(by, tf1.gradients(loss, list(by.values())), strict=True):
            tf.identity(gradient, name=name)
        for name, output in (("y", y), ("hn", hn), ("cn", cn)):
            tf.identity(output, name=name)
    return graph.as_graph_def()


def _swapped(state: tf.Tensor) -> list[int]:
    return [state.shape[0], state.shape[2]]


def _memory_as(state: tf.Tensor, shape: list[int]) -> tf.Tensor:
    return tf.reshape(state, shape)


def frozen(oracle: Oracle, path: Path, version: int = 3, **attributes) -> Path:
    """A graph file with the op on constant parameters; outputs y, hn, cn."""
    with tf.Graph().as_default() as graph:
        x, h, c, _, lengths = placeholders(oracle, tf.float64 if oracle.double else tf.float32)
        params = tf.constant(oracle.values["params"])
        result = forward_op(oracle, version, x, h, c, params, lengths, **attributes)
        for name, output in zip(("y", "hn", "cn"), result[:3], strict=True):
            tf.identity(output, name=name)
    path.write_bytes(graph.as_graph_def().SerializeToString())
    return path


def checkpointed(oracle: Oracle, folder: Path, version: int) -> Path:
    """A MetaGraph and a checkpoint of the buffer; returns the .meta file."""
    with tf.Graph().as_default() as graph, tf1.Session(graph=graph) as session:
        x, h, c, _, _ = placeholders(oracle, tf.float32)
        params = tf1.get_variable("buffer", initializer=oracle.values["params"])
        result = forward_op(oracle, 1, x, h, c, params)
        tf.identity(result.output, name="y")
        saver = tf1.train.Saver(write_version=version)
        session.graph.get_operation_by_name("buffer/Assign")
        config = tf1.ConfigProto()
        config.graph_options.place_pruned_graph = True
        with tf1.Session(graph=graph, config=config) as pruned:
            pruned.run("buffer/Assign")
            saver.save(pruned, str(folder / "model.ckpt"))
    return folder / "model.ckpt.meta"


def run_graph(graph_def, fetches, feeds):  # type: ignore[no-untyped-def]
    """Values of some tensors, by TensorFlow on the CPU; feeds that the graph lacks are left out."""
    with tf.Graph().as_default() as graph:
        tf.graph_util.import_graph_def(graph_def, name="")
    known = {node.name for node in graph_def.node}
    given = {f"{name}:0": value for name, value in feeds.items() if name in known}
    with tf1.Session(graph=graph) as session:
        return dict(zip(fetches, session.run([f"{n}:0" for n in fetches], given), strict=True))


def fetches_of(oracle: Oracle) -> list[str]:
    """Names of what `training_graph` has to compare with the oracle's values."""
    names = ["y", "hn", "gx", "gh", "gp"]
    return [*names, "cn", "gc"] if oracle.mode == "lstm" else names


def feeds_of(oracle: Oracle, dtype: str | None = None) -> dict[str, np.ndarray]:
    kind = dtype or ("float64" if oracle.double else "float32")
    names = ("x", "h", "c", "params", "wy", "wh", "wc")
    return {
        **{name: oracle.values[name].astype(kind) for name in names},
        "lengths": oracle.values["lengths"],
    }


def worst(found: dict[str, np.ndarray], oracle: Oracle) -> float:
    """Largest difference from the oracle, whose names the found values have."""
    for name, value in found.items():
        assert value.shape == oracle.values[name].shape, name
    return max(
        float(np.abs(value.astype(np.float64) - oracle.values[name]).max())
        for name, value in found.items()
    )


def cudnn_nodes(graph_def) -> list[str]:  # type: ignore[no-untyped-def]
    """Names of all cuDNN nodes, those in functions included."""
    bodies = [graph_def.node, *(function.node_def for function in graph_def.library.function)]
    return [node.name for nodes in bodies for node in nodes if node.op.startswith("Cudnn")]


def op_types(graph_def) -> set[str]:  # type: ignore[no-untyped-def]
    bodies = [graph_def.node, *(function.node_def for function in graph_def.library.function)]
    return {node.op for nodes in bodies for node in nodes}

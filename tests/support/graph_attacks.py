"""Graphs with a cuDNN op that do harm when they are run, and their harmless twins.

Each is built by TensorFlow, with an op or two hung on what is run. `harm` makes those ops inside
the graph that is being built and returns one of them; None makes the twin.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import tensorflow as tf
from lowering_graphs import forward_op, tf1
from lowering_torch import UNITS, Oracle
from tensorflow.core.protobuf import saved_model_pb2

Harm = Callable[[], Any]


def theft(secret: Path, loot: Path) -> Harm:
    """A file that is copied to another place, by a stateless and a stateful op."""

    def steal() -> Any:
        return tf.raw_ops.WriteFile(
            filename=str(loot), contents=tf.raw_ops.ReadFile(filename=str(secret))
        )

    return steal


def _output(oracle: Oracle, params: Any) -> Any:
    x = tf1.placeholder(tf.float32, [None, None, 5], name="x")
    h = tf.zeros([1, tf.shape(x)[1], UNITS])
    return x, forward_op(oracle, 2, x, h, h, params, is_training=False).output


def _after(operation: Any, tensor: Any, name: str) -> Any:
    with tf.control_dependencies([operation] if operation is not None else []):
        return tf.identity(tensor, name=name)


def frozen(folder: Path, harm: Harm | None) -> Path:
    """On an output, by a control input."""
    oracle = Oracle("gru")
    with tf.Graph().as_default() as graph:
        _, y = _output(oracle, tf.constant(oracle.values["params"], name="buffer"))
        _after(harm() if harm else None, y, "y")
    path = folder / "model.pb"
    path.write_bytes(graph.as_graph_def().SerializeToString())
    return path


def _saved_by_1(folder: Path, harm: Harm | None, legacy: bool) -> Path:
    oracle, path = Oracle("gru"), folder / "model"
    with tf.Graph().as_default() as graph, tf1.Session(graph=graph) as session:
        x, y = _output(oracle, tf.constant(oracle.values["params"], name="buffer"))
        builder = tf1.saved_model.Builder(str(path))
        signature = tf1.saved_model.predict_signature_def({"x": x}, {"y": y})
        start = harm() if harm else tf.no_op()
        builder.add_meta_graph_and_variables(
            session, ["serve"], {"serving_default": signature},
            main_op=None if legacy else start, clear_devices=True,
        )  # fmt: skip
        builder.save()
    if legacy:
        proto = saved_model_pb2.SavedModel()
        proto.ParseFromString((path / "saved_model.pb").read_bytes())
        (meta_graph,) = proto.meta_graphs
        meta_graph.signature_def.pop("__saved_model_init_op", None)
        meta_graph.collection_def["legacy_init_op"].node_list.value.append(start.name)
        (path / "saved_model.pb").write_bytes(proto.SerializeToString())
    return path


def saved_model_of_1(folder: Path, harm: Harm | None) -> Path:
    """As what initialises the model."""
    return _saved_by_1(folder, harm, legacy=False)


def legacy_saved_model(folder: Path, harm: Harm | None) -> Path:
    """The same, in the collection of the oldest SavedModels."""
    return _saved_by_1(folder, harm, legacy=True)


class _Model(tf.Module):
    def __init__(self, oracle: Oracle, harm: Harm | None) -> None:
        super().__init__()
        self.oracle, self.harm = oracle, harm
        self.buffer = tf.Variable(oracle.values["params"])

    @tf.function(input_signature=[tf.TensorSpec([None, None, 5], name="x")])
    def __call__(self, x):  # type: ignore[no-untyped-def]
        return {"y": self.inner(x)}

    @tf.function
    def inner(self, x):  # type: ignore[no-untyped-def]
        h = tf.zeros([1, tf.shape(x)[1], UNITS])
        y = forward_op(self.oracle, 2, x, h, h, self.buffer, is_training=False).output
        return _after(self.harm() if self.harm else None, y, "y")


def saved_model_of_2(folder: Path, harm: Harm | None) -> Path:
    """In a function that a function calls."""
    module = _Model(Oracle("gru"), harm)
    tf.saved_model.save(module, str(folder / "model"), signatures=module.__call__)
    return folder / "model"


def meta_graph(folder: Path, harm: Harm | None) -> Path:
    """On what restores the checkpoint."""
    oracle, prefix = Oracle("gru"), folder / "model.ckpt"
    with tf.Graph().as_default() as graph:
        params = tf1.get_variable("buffer", initializer=oracle.values["params"])
        _, y = _output(oracle, params)
        tf.identity(y, name="y")
        saver = tf1.train.Saver()
        op = harm() if harm else None
        config = tf1.ConfigProto()
        config.graph_options.place_pruned_graph = True
        with tf1.Session(graph=graph, config=config) as session:
            session.run("buffer/Assign")
            saver.save(session, str(prefix))
    path = prefix.with_name(prefix.name + ".meta")
    if op is not None:
        proto = tf1.MetaGraphDef.FromString(path.read_bytes())
        (restore,) = [n for n in proto.graph_def.node if n.name == "save/restore_all"]
        restore.input.append(f"^{op.name}")
        path.write_bytes(proto.SerializeToString())
    return path


MAKERS = {
    "frozen": frozen,
    "tf1": saved_model_of_1,
    "legacy": legacy_saved_model,
    "tf2": saved_model_of_2,
    "meta": meta_graph,
}

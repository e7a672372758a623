"""Where a cuDNN op stands in a graph: loops, conditions, devices, unknown neighbours, sizes."""

from __future__ import annotations

import pytest

pytest.importorskip("tensorflow")

import numpy as np
import tensorflow as tf
from lowering_graphs import (
    cudnn_nodes,
    feeds_of,
    forward_op,
    op_types,
    placeholders,
    run_graph,
    tf1,
    worst,
)
from lowering_torch import INPUTS, STEPS, UNITS, Oracle

from rnnconvert.errors import NotConvertibleError, UsageError
from rnnconvert.graphs import lowering
from rnnconvert.graphs.ops import LoweringOptions
from rnnconvert.graphs.verify import reference

pytestmark = pytest.mark.slow


def graph_of(oracle: Oracle, version: int = 1, **attributes) -> tf1.GraphDef:
    """x, h, c, params to y and hn."""
    with tf.Graph().as_default() as graph:
        x, h, c, params, lengths = placeholders(oracle, tf.float32)
        result = forward_op(oracle, version, x, h, c, params, lengths, **attributes)
        tf.identity(result.output, name="y")
        tf.identity(result.output_h, name="hn")
    return graph.as_graph_def()


def node(graph_def, name: str):
    return next(each for each in graph_def.node if each.name == name)


def check(graph_def, oracle: Oracle, **feeds: np.ndarray) -> None:
    found = run_graph(graph_def, ["y", "hn"], {**feeds_of(oracle), **feeds})
    assert worst(found, oracle) < 5e-6


def chained(oracle: Oracle, times: int) -> np.ndarray:
    """The last h of a GRU run several times over, each from the last."""
    h = oracle.values["h"]
    for _ in range(times):
        _, h, _ = reference.forward(
            reference.Settings("gru", "unidirectional"),
            oracle.values["x"], h, h, oracle.values["params"],
        )  # fmt: skip
    return h


# ---- loops and conditions of TensorFlow 1


@pytest.fixture
def _old_control_flow():
    tf1.disable_control_flow_v2()
    yield
    tf1.enable_control_flow_v2()


def _old_loop(oracle: Oracle, *, gradients: bool):
    """A while loop of Enter, Switch and Merge around the op, with its export."""
    with tf.Graph().as_default():
        x, h, _, _, _ = placeholders(oracle, tf.float32)
        count = tf1.placeholder(tf.int32, [], name="count")
        params = tf1.get_variable("buffer", initializer=oracle.values["params"], use_resource=True)

        def body(step, state):  # type: ignore[no-untyped-def]
            with tf.control_dependencies([tf1.assert_less(step, 10)]):
                result = forward_op(oracle, 1, x, state, state, params)
            with tf1.get_default_graph().colocate_with(result.output.op):
                return step + 1, tf.identity(result.output_h, name="beside")

        _, last = tf1.while_loop(lambda step, _: step < count, body, [0, h])
        tf.identity(last, name="hn")
        loss = tf.reduce_sum(last, name="loss")
        if gradients:
            tf.identity(tf1.gradients(loss, params)[0], name="gp")
        tf1.global_variables_initializer()
        return tf1.train.export_meta_graph()


def _run_meta(meta_graph, fetches, feeds):
    with tf.Graph().as_default() as graph, tf1.Session(graph=graph) as session:
        tf1.train.import_meta_graph(meta_graph)
        session.run("init")
        return session.run([f"{name}:0" for name in fetches], feeds)


@pytest.mark.usefixtures("_old_control_flow")
def test_in_an_old_loop_with_its_gradient():
    oracle = Oracle("gru")
    meta_graph = _old_loop(oracle, gradients=True)
    assert len(cudnn_nodes(meta_graph.graph_def)) == 2
    lowering.lower_meta_graph(meta_graph)
    assert not cudnn_nodes(meta_graph.graph_def)
    beside = node(meta_graph.graph_def, "while/beside")
    assert list(beside.attr["_class"].list.s) == [b"loc:@while/CudnnRNN"]
    feeds = {"x:0": oracle.values["x"], "h:0": oracle.values["h"], "count:0": 3}
    hn, gp = _run_meta(meta_graph, ["hn", "gp"], feeds)
    np.testing.assert_allclose(hn, chained(oracle, 3), atol=1e-6)
    direction = np.random.default_rng(0).standard_normal(gp.shape)
    sums = []
    for step in (1e-4, -1e-4):
        moved = Oracle("gru")
        moved.values["params"] = moved.values["params"] + step * direction
        sums.append(chained(moved, 3).sum())
    assert (gp * direction).sum() == pytest.approx((sums[0] - sums[1]) / 2e-4, rel=1e-4)


@pytest.mark.usefixtures("_old_control_flow")
def test_an_old_loops_assertion_still_stops_it():
    oracle = Oracle("gru")
    meta_graph = _old_loop(oracle, gradients=False)
    lowering.lower_meta_graph(meta_graph)
    feeds = {"x:0": oracle.values["x"], "h:0": oracle.values["h"], "count:0": 12}
    with pytest.raises(tf.errors.InvalidArgumentError):
        _run_meta(meta_graph, ["hn"], feeds)


@pytest.mark.usefixtures("_old_control_flow")
@pytest.mark.corpus
def test_gradients_can_be_built_after_loading_an_old_loop():
    """TensorFlow finds out by the collections that the new nodes are inside the loop."""
    oracle = Oracle("lstm")
    meta_graph = _old_loop(oracle, gradients=False)
    before = _old_loop(oracle, gradients=True)
    lowering.lower_meta_graph(meta_graph)
    lowering.lower_meta_graph(before)
    feeds = {"x:0": oracle.values["x"], "h:0": oracle.values["h"], "count:0": 2}
    (expected,) = _run_meta(before, ["gp"], feeds)
    with tf.Graph().as_default() as graph, tf1.Session(graph=graph) as session:
        tf1.train.import_meta_graph(meta_graph)
        loss = graph.get_tensor_by_name("loss:0")
        (gradient,) = tf1.gradients(loss, tf1.global_variables())
        session.run("init")
        found = session.run(gradient, feeds)
    np.testing.assert_allclose(found, expected, atol=1e-6)


@pytest.mark.usefixtures("_old_control_flow")
@pytest.mark.parametrize("mode", ["lstm", "gru"])
def test_in_an_old_condition(mode):
    oracle = Oracle(mode)
    with tf.Graph().as_default() as graph:
        x, h, c, params, _ = placeholders(oracle, tf.float32)
        choose = tf1.placeholder(tf.bool, [], name="choose")
        y, hn = tf1.cond(
            choose,
            lambda: forward_op(oracle, 2, x, h, c, params)[:2],
            lambda: (x[:, :, :UNITS], h),
        )
        tf.identity(y, name="y")
        tf.identity(hn, name="hn")
    graph_def = graph.as_graph_def()
    lowering.lower_graph_def(graph_def)
    check(graph_def, oracle, choose=np.True_)
    other = run_graph(graph_def, ["hn"], {**feeds_of(oracle), "choose": np.False_})
    np.testing.assert_array_equal(other["hn"], oracle.values["h"])


# ---- neighbours


def test_nodes_that_tensorflow_does_not_know_are_kept():
    oracle = Oracle("gru")
    graph_def = graph_of(oracle)
    before = graph_def.node.add(name="mine", op="MyCompanysOp", input=["x"])
    before.attr["T"].type = tf.float32.as_datatype_enum
    after = graph_def.node.add(name="after", op="MyOtherOp", input=["y", "mine:1", "^hn"])
    kept = [before.SerializeToString(), after.SerializeToString()]
    lowering.lower_graph_def(graph_def)
    assert [node(graph_def, name).SerializeToString() for name in ("mine", "after")] == kept
    for name in ("mine", "after"):
        graph_def.node.remove(node(graph_def, name))
    check(graph_def, oracle)


def test_the_input_may_come_from_an_op_that_tensorflow_does_not_know():
    oracle = Oracle("gru")
    graph_def = graph_of(oracle)
    graph_def.node.add(name="mine", op="MyCompanysOp", input=["x"])
    node(graph_def, "CudnnRNN").input[0] = "mine:2"
    (op,) = lowering.lower_graph_def(graph_def).lowered
    assert op.input_size is None
    assert (op.units, op.num_layers) == (UNITS, 1)
    node(graph_def, "CudnnRNN/lowered/input_0").input[0] = "x"
    graph_def.node.remove(node(graph_def, "mine"))
    check(graph_def, oracle)


def test_every_other_node_stays_as_it_is():
    oracle = Oracle("lstm", 2, True)
    graph_def = graph_of(oracle)
    others = {n.name: n.SerializeToString() for n in graph_def.node if n.op != "CudnnRNN"}
    lowering.lower_graph_def(graph_def)
    after = {n.name: n.SerializeToString() for n in graph_def.node}
    assert {name: after[name] for name in others} == others
    new = set(after) - set(others) - {"CudnnRNN"}
    assert all(name.startswith("CudnnRNN/lowered/") for name in new)
    assert graph_def.versions.producer == graph_of(oracle).versions.producer


def test_new_names_do_not_collide():
    oracle = Oracle("gru")
    graph_def = graph_of(oracle)
    taken = graph_def.node.add(name="CudnnRNN/lowered/input_0", op="NoOp")
    function = graph_def.library.function.add()
    function.signature.name = "CudnnRNN_lowered_while_body"
    lowering.lower_graph_def(graph_def)
    assert taken.op == "NoOp"
    names = [each.name for each in graph_def.node]
    assert len(names) == len(set(names))
    functions = [each.signature.name for each in graph_def.library.function]
    assert len(functions) == len(set(functions))
    check(graph_def, oracle)


def test_it_waits_for_what_the_op_waited_for():
    oracle = Oracle("gru")
    with tf.Graph().as_default() as graph:
        x, h, c, params, _ = placeholders(oracle, tf.float32)
        must = tf1.assert_equal(tf1.placeholder(tf.int32, [], name="must"), 1)
        with tf.control_dependencies([must]):
            result = forward_op(oracle, 1, x, h, c, params)
        tf.identity(result.output, name="y")
        tf.identity(result.output_h, name="hn")
    graph_def = graph.as_graph_def()
    lowering.lower_graph_def(graph_def)
    check(graph_def, oracle, must=np.int32(1))
    with pytest.raises(tf.errors.InvalidArgumentError):
        check(graph_def, oracle, must=np.int32(2))


def test_gpu_devices_are_dropped_from_the_whole_graph_or_kept():
    oracle = Oracle("gru")
    with tf.Graph().as_default() as graph:
        x, h, c, params, _ = placeholders(oracle, tf.float32)
        with tf.device("/job:worker/task:2/device:GPU:1"):
            result = forward_op(oracle, 1, x * 1.0, h, c, params)
        tf.identity(result.output, name="y")
        tf.identity(result.output_h, name="hn")
    graph_def, kept = graph.as_graph_def(), graph.as_graph_def()
    lowering.lower_graph_def(graph_def)
    assert node(graph_def, "mul").device == "/job:worker/task:2"
    lowering.lower_graph_def(kept, options=LoweringOptions(keep_devices=True))
    assert node(kept, "mul").device == "/job:worker/task:2/device:GPU:1"
    assert node(kept, "CudnnRNN").device == ""


def test_attributes_at_their_defaults_are_left_out_for_older_tensorflows():
    graph_def = graph_of(Oracle("gru"))
    lowering.lower_graph_def(graph_def)
    for matmul in (n for n in graph_def.node if n.op == "MatMul"):
        assert set(matmul.attr) <= {"T", "transpose_b"}
    for body in graph_def.library.function:
        for matmul in (n for n in body.node_def if n.op == "MatMul"):
            assert set(matmul.attr) == {"T"}


def test_parameters_may_be_computed():
    oracle = Oracle("gru")
    with tf.Graph().as_default() as graph:
        x, h, c, params, _ = placeholders(oracle, tf.float32)
        half = tf1.get_variable("half", [60], use_resource=True)
        computed = tf.concat([params[:60] + 0.0 * half, params[60:]], 0)
        result = forward_op(oracle, 1, x, h, c, computed)
        tf.identity(result.output, name="y")
        tf.identity(result.output_h, name="hn")
        graph_def = graph.as_graph_def()
    (op,) = lowering.lower_graph_def(graph_def).lowered
    assert (op.params_kind, op.params) == ("computed", ("half",))
    with tf.Graph().as_default() as again, tf1.Session(graph=again) as session:
        tf.graph_util.import_graph_def(graph_def, name="")
        session.run("half/Assign")
        feeds = {f"{name}:0": oracle.values[name] for name in ("x", "h", "params")}
        y = session.run("y:0", {**feeds, "c:0": oracle.values["h"]})
    np.testing.assert_allclose(y, oracle.values["y"], atol=1e-6)


# ---- sizes


@pytest.mark.parametrize("version", [1, 3])
def test_an_unknown_input_size_is_taken_when_it_runs(version):
    oracle = Oracle("lstm", 2, True)
    oracle.inputs = None
    graph_def = graph_of(oracle, version)
    (op,) = lowering.lower_graph_def(graph_def).lowered
    assert op.input_size is None
    check(graph_def, oracle)


def test_an_unknown_input_size_follows_from_the_length_of_the_parameters():
    oracle = Oracle("lstm", 2, True)
    with tf.Graph().as_default() as graph:
        x = tf1.placeholder(tf.float32, name="x")
        h, c = (tf1.placeholder(tf.float32, [4, None, UNITS], name=n) for n in "hc")
        params = tf.constant(oracle.values["params"], name="buffer")
        result = forward_op(oracle, 1, x, h, c, params)
        tf.identity(result.output, name="y")
        tf.identity(result.output_h, name="hn")
    graph_def = graph.as_graph_def()
    (op,) = lowering.find_ops(graph_def)
    assert op.input_size == INPUTS
    assert (op.params_kind, op.params) == ("constant", ("buffer",))
    lowering.lower_graph_def(graph_def)
    check(graph_def, oracle)


def test_an_unknown_number_of_layers_follows_from_the_length_of_the_parameters():
    oracle = Oracle("gru", 3, True)
    with tf.Graph().as_default() as graph:
        x = tf1.placeholder(tf.float32, [None, None, INPUTS], name="x")
        h = tf1.placeholder(tf.float32, [None, None, UNITS], name="h")
        params = tf.constant(oracle.values["params"])
        result = forward_op(oracle, 1, x, h, 0.0, params)
        tf.identity(result.output, name="y")
        tf.identity(result.output_h, name="hn")
    graph_def = graph.as_graph_def()
    assert lowering.lower_graph_def(graph_def).lowered[0].num_layers == 3
    check(graph_def, oracle)


@pytest.mark.parametrize(("inputs", "skips"), [(UNITS, True), (INPUTS, False)])
def test_auto_select_skips_where_input_and_units_agree(inputs, skips):
    oracle = Oracle("gru", skip=skips, inputs=inputs)
    graph_def = graph_of(oracle)
    node(graph_def, "CudnnRNN").attr["input_mode"].s = b"auto_select"
    lowering.lower_graph_def(graph_def)
    check(graph_def, oracle)


def _without_sizes() -> tf1.GraphDef:
    oracle = Oracle("gru", 2)
    with tf.Graph().as_default() as graph:
        x, h, params = (tf1.placeholder(tf.float32, name=name) for name in ("x", "h", "params"))
        result = forward_op(oracle, 1, x, h, 0.0, params)
        tf.identity(result.output, name="y")
        tf.identity(result.output_h, name="hn")
    return graph.as_graph_def()


def test_sizes_that_nothing_tells_are_asked_for():
    graph_def = _without_sizes()
    before = graph_def.SerializeToString(deterministic=True)
    with pytest.raises(NotConvertibleError) as caught:
        lowering.lower_graph_def(graph_def)
    assert str(caught.value) == (
        "CudnnRNN: num_layers and num_units can't be told from the graph; "
        "give --layers and --units (in Python num_layers and num_units)"
    )
    assert graph_def.SerializeToString(deterministic=True) == before
    (op,) = lowering.find_ops(graph_def)
    assert op.units is None
    assert "num_units" in op.problem


def test_sizes_that_are_given():
    graph_def = _without_sizes()
    lowering.lower_graph_def(graph_def, options=LoweringOptions(num_layers=2, num_units=UNITS))
    check(graph_def, Oracle("gru", 2))


def test_a_given_size_does_not_overrule_the_graph():
    graph_def = graph_of(Oracle("gru"))
    result = lowering.lower_graph_def(
        graph_def, options=LoweringOptions(input_size=99, num_units=77)
    )
    assert (result.lowered[0].input_size, result.lowered[0].units) == (INPUTS, UNITS)


def test_parameters_of_a_wrong_length_are_refused():
    oracle = Oracle("gru")
    with tf.Graph().as_default() as graph:
        x, h, c, _, _ = placeholders(oracle, tf.float32)
        forward_op(oracle, 1, x, h, c, tf.zeros([131]))
    with pytest.raises(NotConvertibleError, match=r"131 numbers, but 1 layers of 4 units on 5"):
        lowering.lower_graph_def(graph.as_graph_def())


def test_options_must_make_sense():
    with pytest.raises(UsageError, match="unroll=0"):
        LoweringOptions(unroll=0)


# ---- dropout


def test_active_dropout_is_refused_with_every_op_that_has_it():
    oracle = Oracle("gru", 2)
    graph_def = graph_of(oracle, dropout=0.25)
    with pytest.raises(NotConvertibleError, match=r"active dropout 0\.25 between layers"):
        lowering.lower_graph_def(graph_def)
    result = lowering.lower_graph_def(graph_def, options=LoweringOptions(ignore_dropout=True))
    assert result.warnings == ("CudnnRNN: lowered without its dropout of 0.25",)
    check(graph_def, oracle)


@pytest.mark.parametrize(
    ("layers", "attributes"),
    [(1, {"dropout": 0.5}), (2, {"dropout": 0.5, "is_training": False}), (2, {"dropout": 0.0})],
    ids=["one layer", "inference", "none"],
)
def test_dropout_that_does_nothing_is_no_hindrance(layers, attributes):
    oracle = Oracle("gru", layers)
    graph_def = graph_of(oracle, **attributes)
    assert lowering.lower_graph_def(graph_def).warnings == ()
    check(graph_def, oracle)


def test_all_problems_are_told_at_once():
    graph_def = _without_sizes()
    second = graph_def.node.add()
    second.CopyFrom(node(graph_def, "CudnnRNN"))
    second.name = "another"
    with pytest.raises(NotConvertibleError, match="and 1 more") as caught:
        lowering.lower_graph_def(graph_def)
    assert [problem.split(":")[0] for problem in caught.value.problems] == ["CudnnRNN", "another"]


# ---- canonical parameters


@pytest.mark.parametrize(
    ("mode", "both", "proj"),
    [("lstm", True, 0), ("lstm", False, 3), ("gru", True, 0), ("rnn_relu", False, 0)],
)
@pytest.mark.sampled(2)
def test_canonical_parameters_there_and_back(mode, both, proj):
    oracle = Oracle(mode, 2, both, proj)
    gates = {"lstm": 4, "gru": 3}.get(mode, 1)
    pairs = 2 * oracle.directions
    sizes = {"num_layers": 2, "num_units": UNITS, "input_size": INPUTS}
    attributes = {**oracle.attributes, "num_proj": proj}
    matrices, biases = pairs * (2 * gates + bool(proj)), pairs * 2 * gates
    with tf.Graph().as_default() as graph:
        params = tf1.placeholder(tf.float32, name="params")
        parts = tf.raw_ops.CudnnRNNParamsToCanonicalV2(
            **sizes, params=params, num_params_weights=matrices, num_params_biases=biases,
            **attributes,
        )  # fmt: skip
        for number, part in enumerate([*parts.weights, *parts.biases]):
            tf.identity(part, name=f"part{number}")
        back = tf.raw_ops.CudnnRNNCanonicalToParamsV2(
            **sizes, weights=parts.weights, biases=parts.biases, **attributes
        )
        tf.identity(back, name="back")
        size = tf.raw_ops.CudnnRNNParamsSize(**sizes, T=tf.float32, S=tf.int64, **attributes)
        tf.identity(size, name="size")
    graph_def = graph.as_graph_def()
    assert len(lowering.lower_graph_def(graph_def).lowered) == 3
    names = [f"part{number}" for number in range(matrices + biases)]
    found = run_graph(graph_def, [*names, "back", "size"], feeds_of(oracle))
    flat = oracle.values["params"]
    np.testing.assert_array_equal(found["back"], flat)
    np.testing.assert_array_equal(found["size"], [flat.size])
    assert found["size"].dtype == np.int64
    parts = [found[name] for name in names]
    # In the buffer's order; each matrix is (units, inputs) of one gate, as torch stacks them.
    np.testing.assert_array_equal(np.concatenate([part.ravel() for part in parts]), flat)
    assert parts[0].shape == (UNITS, INPUTS)
    assert parts[gates].shape == (UNITS, proj or UNITS)
    assert {part.shape for part in parts[matrices:]} == {(UNITS,)}


def test_canonical_ops_with_another_number_of_matrices_are_refused():
    with tf.Graph().as_default() as graph:
        tf.raw_ops.CudnnRNNParamsToCanonical(
            num_layers=1, num_units=4, input_size=5, params=tf.zeros([10]), num_params=6,
            rnn_mode="lstm",
        )  # fmt: skip
    with pytest.raises(NotConvertibleError, match="6 matrices and 6 biases in its attributes"):
        lowering.lower_graph_def(graph.as_graph_def())


# ---- TFLite


def test_unrolled_and_frozen_it_needs_only_tflites_builtin_ops():
    oracle = Oracle("gru", 1, True)

    @tf.function(input_signature=[tf.TensorSpec([STEPS, 2, INPUTS])])
    def model(x):  # type: ignore[no-untyped-def]
        h = tf.zeros([2, 2, UNITS])
        params = tf.constant(oracle.values["params"])
        return forward_op(oracle, 1, x, h, tf.constant(0.0), params, is_training=False).output

    graph_def = model.get_concrete_function().graph.as_graph_def()
    lowering.lower_graph_def(graph_def, options=LoweringOptions(unroll=STEPS))
    result = next(n.name for n in graph_def.node if n.op == "Identity" and "lowered" not in n.name)
    function = tf1.wrap_function(
        lambda x: tf.graph_util.import_graph_def(
            graph_def, input_map={"x:0": x}, return_elements=[f"{result}:0"]
        ),
        [tf.TensorSpec([STEPS, 2, INPUTS])],
    )
    converter = tf.lite.TFLiteConverter.from_concrete_functions([function])
    converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS]
    interpreter = tf.lite.Interpreter(model_content=converter.convert())
    interpreter.allocate_tensors()
    x = oracle.values["x"][:, :2]
    interpreter.set_tensor(interpreter.get_input_details()[0]["index"], x)
    interpreter.invoke()
    found = interpreter.get_tensor(interpreter.get_output_details()[0]["index"])
    settings = reference.Settings("gru", "bidirectional")
    zeros = np.zeros((2, 2, UNITS))
    wanted, _, _ = reference.forward(settings, x, zeros, zeros, oracle.values["params"])
    np.testing.assert_allclose(found, wanted, atol=1e-5)
    assert "While" not in op_types(graph_def)

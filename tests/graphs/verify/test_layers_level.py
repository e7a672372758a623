"""The level `layers` of lowered graphs: real parameters, one op at a time; mistakes are caught."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

pytest.importorskip("tensorflow")

import numpy as np
import tensorflow as tf
from lowering_graphs import checkpointed, forward_op, frozen, placeholders, tf1
from lowering_mutants import MUTANTS
from lowering_torch import UNITS, Oracle
from models import ROOT, SHARED

from rnnconvert.errors import UnreadableInputError
from rnnconvert.graphs import lowering
from rnnconvert.graphs.find.scopes import Library
from rnnconvert.graphs.find.search import search
from rnnconvert.graphs.find.shapes import Shapes
from rnnconvert.graphs.lower import forward
from rnnconvert.graphs.lower.meta import captured_constants, captured_variables
from rnnconvert.graphs.ops import FORWARD
from rnnconvert.graphs.verify import layers_level, originals
from rnnconvert.graphs.verify.parameters import Parameters, Unavailable
from rnnconvert.graphs.verify.variables import Variables
from rnnconvert.report import LevelResult

pytestmark = pytest.mark.slow

FIXTURES = ROOT / "fixtures" / "savedmodels"
LOWERED = {
    "tf15/contrib_lstm": 1,
    "tf112/contrib_tanh2": 1,
    "tf112/contrib_table": 1,
    "tf112/keras_contrib": 3,
    "tf115/contrib_gru_bi2": 1,
    "tf115/contrib_gru_v2": 1,
    "tf115/contrib_lstm_adam": 1,
    "tf115/contrib_relu_bi": 1,
    "tf115/frozen_contrib_gru2": 1,
    "tf115/frozen_keras": 3,
    "tf115/keras_experimental": 3,
    "tf115/keras_save": 29,
    "tf215/keras_export": 3,
    "tf215/ops_loop": 1,
    "tf215/ops_v3": 1,
    "tf215/plain_lstm_gru": 0,
    "tf23/ops_v1": 1,
}
"""Genuine models, and how many of their forward ops are lowered."""
KERAS = [name for name in LOWERED if "keras" in name]
GENUINE = SHARED / "fixtures" / "contrib_savedmodels" / "tf1.8.0"
CONTRIB = sorted(path for path in GENUINE.glob("*_bi_p0") if path.is_dir()) + sorted(
    GENUINE.glob("*.meta")
)


def model_of(name: str) -> Path:
    folder = FIXTURES / name
    return folder / "model" if (folder / "model").is_dir() else folder / "frozen.pb"


def checked(path: Path, **more) -> LevelResult:
    """The result of a model with one op."""
    (result,) = lowering.verify_layers(path, **more)
    return result


def parameters_in_files(path: Path) -> list[np.ndarray]:
    """Of each forward op that is lowered, in the order of the graph."""
    objects, prefix = None, None
    if path.is_dir():
        meta_graph = lowering.read_saved_model(path).meta_graphs[0]
        graph_def, objects = meta_graph.graph_def, meta_graph.object_graph_def
        prefix = path / "variables" / "variables"
    else:
        graph_def = lowering.read_graph_def(path)
    library = Library(graph_def, objects.concrete_functions if objects else ())
    shapes = Shapes(library, captured_variables(objects) if objects else None)
    parameters = Parameters(
        library, shapes, Variables(prefix, objects), captured_constants(objects) if objects else {}
    )
    return [
        parameters.value(found.scope, found.node.input[3])
        for found in search(library, shapes, lowering.LoweringOptions())
        if found.op.op in FORWARD and found.op.needs_lowering
    ]


# ---- genuine models


@pytest.mark.parametrize("name", [name for name in LOWERED if name != "tf115/keras_save"])
@pytest.mark.sampled(6)
def test_every_op_of_a_genuine_model_passes(name):
    results = lowering.verify_layers(model_of(name))
    assert [result.status for result in results] == ["passed"] * LOWERED[name], results
    for result in results:
        assert 0.0 < result.max_abs < 1e-6 < result.tolerance
        assert result.inputs["input"][:2] == (7, 3)
        assert (result.seed, result.reason) == (0, None)
        assert result.worst.startswith("output")


@pytest.mark.skipif(not CONTRIB, reason=f"no genuine models: {GENUINE} is not here")
@pytest.mark.parametrize("path", CONTRIB, ids=lambda path: path.name)
@pytest.mark.sampled(8)
def test_contrib_layers_pass(path):
    results = lowering.verify_layers(path)
    assert [result.status for result in results] == ["passed", "passed"], results
    assert max(result.max_abs for result in results) < 1e-6


@pytest.mark.parametrize("name", [name for name in LOWERED if "contrib_" in name or "ops" in name])
@pytest.mark.sampled(3)
def test_a_buffer_is_read_bit_for_bit(name):
    if name in KERAS:
        pytest.skip("its buffers are computed")
    with np.load(FIXTURES / name / "data.npz") as data:
        variable = json.loads(str(data["meta"]))["variable"]
        wanted = data[f"variables/{variable}"]
    (found,) = parameters_in_files(model_of(name))
    np.testing.assert_array_equal(found, wanted)
    assert found.dtype == wanted.dtype


@pytest.mark.parametrize("name", KERAS)
@pytest.mark.sampled(3)
def test_a_computed_buffer_is_made_of_kerass_weights(name):
    """As Keras' CuDNN layers joined them: gate by gate, GRU's r ahead of z."""
    with np.load(FIXTURES / name / "data.npz") as data:
        weights = [data[key] for key in sorted(data.files) if key.startswith("weights/")]
    wanted = [
        _joined(weights[0:3], 4, range(4)),
        _joined(weights[3:6], 4, range(4)),
        _joined(weights[6:9], 3, (1, 0, 2)),
    ]
    found = parameters_in_files(model_of(name))
    assert {array.tobytes() for array in found} == {array.tobytes() for array in wanted}


def _joined(weights: list[np.ndarray], gates: int, order) -> np.ndarray:  # type: ignore[no-untyped-def]
    kernel, recurrent, bias = weights
    parts = []
    for matrix in (kernel, recurrent):
        columns = np.split(matrix, gates, axis=1)
        parts += [np.ravel(columns[gate]) for gate in order]
    for half in np.split(bias, 2):
        vectors = np.split(half, gates)
        parts += [vectors[gate] for gate in order]
    return np.concatenate(parts)


@pytest.mark.corpus
def test_equal_ops_are_run_once(monkeypatch):
    """Keras saved its layers in many traces."""
    runs = []
    run = layers_level._outputs
    monkeypatch.setattr(layers_level, "_outputs", lambda *args: runs.append(1) or run(*args))
    results = lowering.verify_layers(model_of("tf115/keras_save"))
    assert {result.status for result in results} == {"passed"}
    assert len({result.name for result in results}) == LOWERED["tf115/keras_save"]
    assert 3 <= len(runs) <= 8


# ---- wrong lowerings


def _backwards(*args):  # type: ignore[no-untyped-def]
    *rest, direction, unroll = args
    return _one_direction(*rest, not direction, unroll)


_one_direction = forward._one_direction
ALL_MUTANTS = {
    **MUTANTS,
    "LSTM from the end to the start": ("lstm", (forward, "_one_direction", _backwards)),
    "GRU from the end to the start": ("gru", (forward, "_one_direction", _backwards)),
}


@pytest.mark.parametrize("name", ALL_MUTANTS)
@pytest.mark.sampled(12)
def test_a_wrong_lowering_is_caught(name, tmp_path, monkeypatch):
    mode, patch = ALL_MUTANTS[name]
    source = frozen(Oracle(mode, 2, True), tmp_path / "model.pb")
    monkeypatch.setattr(*patch)
    result = checked(source)
    assert result.status == "failed", result
    assert result.max_abs > 1000 * result.tolerance


@pytest.mark.parametrize("mode", ["lstm", "gru"])
def test_one_wrong_number_in_the_lowered_ops_buffer_is_caught(mode, tmp_path, monkeypatch):
    source = frozen(Oracle(mode, lengths=True), tmp_path / "model.pb")
    run = layers_level._outputs
    for place in range(0, 132, 33):

        def wrong(graph_def, inputs, place=place):  # type: ignore[no-untyped-def]
            params = inputs["params"].copy()
            params[place] += 0.01
            return run(graph_def, {**inputs, "params": params})

        monkeypatch.setattr(layers_level, "_outputs", wrong)
        result = checked(source)
        assert result.status == "failed", place


# ---- wrong buffers


def _one_number_off(monkeypatch, place: int = 0) -> None:
    """Of every variable that is read from the files; TensorFlow restores them as they are."""
    read = Variables.read

    def wrong(self, key):  # type: ignore[no-untyped-def]
        values = read(self, key).copy()
        values.flat[place] += 0.125
        return values

    monkeypatch.setattr(Variables, "read", wrong)


@pytest.mark.parametrize("name", ["tf215/ops_v3", "tf23/ops_v1", "tf215/ops_loop"])
def test_a_buffer_that_is_not_what_the_op_receives_fails(name, monkeypatch):
    _one_number_off(monkeypatch)
    result = checked(model_of(name))
    assert result.status == "failed"
    assert "receives other parameters than the files hold: 1 of" in result.reason


@pytest.mark.parametrize(
    "name", ["tf15/contrib_lstm", "tf115/contrib_gru_bi2", "tf215/keras_export"]
)
@pytest.mark.sampled(2)
def test_so_do_restored_and_computed_ones(name, monkeypatch):
    """Their bits may differ by rounding, so what is made of them is compared."""
    _one_number_off(monkeypatch)
    for result in lowering.verify_layers(model_of(name)):
        assert result.status == "failed"
        assert "receives other parameters than the files hold: output" in result.reason


@pytest.mark.parametrize("version", [1, 2])
def test_a_meta_graphs_checkpoint_of_another_model_fails(version, tmp_path, monkeypatch):
    source = checkpointed(Oracle("gru", 2), tmp_path, version)
    assert checked(source).status == "passed"
    _one_number_off(monkeypatch, place=-1)
    assert "1 of" in checked(source).reason


def test_a_saved_models_variables_of_another_model_fail(tmp_path, monkeypatch):
    for seed in (0, 1):
        saved(Buffer(Oracle("lstm", seed=seed)), tmp_path / f"{seed}")
    assert checked(tmp_path / "0").status == "passed"
    other = tmp_path / "1" / "variables" / "variables"
    monkeypatch.setattr(layers_level, "_VARIABLES", str(other))
    result = checked(tmp_path / "0")
    assert result.status == "failed"
    assert "receives other parameters" in result.reason


# ---- where the parameters are


class Buffer(tf.Module):
    """A GRU or LSTM on one of two variables of one name and shape."""

    def __init__(self, oracle: Oracle) -> None:
        super().__init__()
        self.oracle = oracle
        self.unused = tf.Variable(oracle.values["params"][::-1].copy())
        self.used = tf.Variable(oracle.values["params"])

    @tf.function(input_signature=[tf.TensorSpec([None, None, 5], name="x")])
    def __call__(self, x):  # type: ignore[no-untyped-def]
        return {"y": self.inner(x)}

    def inner(self, x):  # type: ignore[no-untyped-def]
        h = tf.zeros([1, tf.shape(x)[1], UNITS])
        return forward_op(self.oracle, 2, x, h, h, self.used, is_training=False).output


class Chosen(Buffer):
    """Which of the two variables it is, the input decides."""

    def inner(self, x):  # type: ignore[no-untyped-def]
        params = tf.cond(tf.shape(x)[0] > 100, lambda: self.unused, lambda: self.used)
        h = tf.zeros([1, tf.shape(x)[1], UNITS])
        return forward_op(self.oracle, 2, x, h, h, params, is_training=False).output


class Moving(Buffer):
    """Parameters that change from turn to turn of a loop."""

    def inner(self, x):  # type: ignore[no-untyped-def]
        h, params = tf.zeros([1, tf.shape(x)[1], UNITS]), self.used.read_value()
        for _ in tf.range(3):
            h = forward_op(self.oracle, 2, x, h, h, params, is_training=False).output_h
            params = 0.5 * params
        return h


def saved(module: Buffer, path: Path) -> Path:
    tf.saved_model.save(module, str(path), signatures=module.__call__)
    return path


def test_two_variables_of_one_name_are_told_apart(tmp_path):
    oracle = Oracle("gru")
    path = saved(Buffer(oracle), tmp_path / "model")
    (found,) = parameters_in_files(path)
    np.testing.assert_array_equal(found, oracle.values["params"])
    assert checked(path).status == "passed"


@pytest.mark.parametrize("kind", [Chosen, Moving])
def test_parameters_that_the_run_decides_are_those_that_the_op_received(
    kind, tmp_path, monkeypatch
):
    path = saved(kind(Oracle("gru")), tmp_path / "model")
    with pytest.raises(Unavailable, match="more than one place"):
        parameters_in_files(path)
    assert checked(path).status == "passed"
    monkeypatch.setattr(layers_level, "received_in_saved_model", lambda *_: [{}])
    result = checked(path)
    assert result.status == "skipped"
    assert "its parameters can't be had: they come from more than one place" in result.reason


def test_all_parameters_that_an_op_received_are_tried(tmp_path, monkeypatch):
    path = saved(Moving(Oracle("gru")), tmp_path / "model")
    seen = []
    run = layers_level._outputs
    monkeypatch.setattr(
        layers_level, "_outputs", lambda g, inputs: seen.append(inputs["params"]) or run(g, inputs)
    )
    assert checked(path).status == "passed"
    np.testing.assert_array_equal(seen[1], 0.5 * seen[0])
    np.testing.assert_array_equal(seen[2], 0.25 * seen[0])


def test_parameters_that_a_loop_hands_on_unchanged_are_the_variable(tmp_path):
    (found,) = parameters_in_files(model_of("tf215/ops_loop"))
    assert found.ndim == 1


def test_parameters_that_are_an_input(tmp_path, monkeypatch):
    with tf.Graph().as_default() as graph:
        x, h, c, _, _ = placeholders(Oracle("gru"), tf.float32)
        params = tf1.placeholder(tf.float32, [132], name="params")
        forward_op(Oracle("gru"), 1, x, h, c, params)
    source = tmp_path / "model.pb"
    source.write_bytes(graph.as_graph_def().SerializeToString())
    assert checked(source).status == "passed"  # with those of the run on random inputs
    monkeypatch.setattr(layers_level, "received_in_frozen", lambda *_: {})
    assert "depend on the input params" in checked(source).reason


def test_a_meta_graph_without_a_checkpoint_is_skipped(tmp_path):
    source = checkpointed(Oracle("gru"), tmp_path, 2)
    for path in lowering.checkpoint_files(source.with_suffix("")):
        path.unlink()
    result = checked(source)
    assert result.status == "skipped"
    assert "the checkpoint has no variable buffer" in result.reason


def test_random_parameters_are_not_had(tmp_path):
    with tf.Graph().as_default() as graph:
        x, h, c, _, _ = placeholders(Oracle("gru"), tf.float32)
        forward_op(Oracle("gru"), 1, x, h, c, tf.random.normal([132]))
        graph_def = graph.as_graph_def()
    library = Library(graph_def)
    with pytest.raises(Unavailable, match="RandomStandardNormal"):
        Parameters(library, Shapes(library), Variables(None)).value(
            library.main, "random_normal/RandomStandardNormal"
        )


def test_unknown_sizes_are_skipped_with_the_reason(tmp_path):
    oracle = Oracle("gru")
    with tf.Graph().as_default() as graph:
        x, _, _, params, _ = placeholders(oracle, tf.float32)
        h = tf1.placeholder(tf.float32, [None, None, None], name="h")
        forward_op(oracle, 1, x, h, h, params)
    source = tmp_path / "model.pb"
    source.write_bytes(graph.as_graph_def().SerializeToString())
    result = checked(source)
    assert result.status == "skipped"
    assert "num_layers and num_units can't be told" in result.reason


# ---- the op alone


@pytest.mark.parametrize("time_major", [True, False])
@pytest.mark.parametrize(
    ("mode", "more"),
    [
        ("lstm", {"layers": 2, "bidirectional": True, "proj": 3}),
        ("gru", {"skip": True, "layers": 2}),
        ("lstm", {"bidirectional": True, "double": True}),
    ],
    ids=["projection", "skip", "float64"],
)
@pytest.mark.sampled(3)
def test_other_forms_of_the_op(mode, more, time_major, tmp_path):
    oracle = Oracle(mode, **more)
    result = checked(frozen(oracle, tmp_path / "model.pb", time_major=time_major))
    assert result.status == "passed", result
    pairs = oracle.layers * oracle.directions
    states = (pairs, 3) if time_major else (3, pairs)
    assert result.inputs["input_h"] == (*states, oracle.proj or UNITS)
    assert result.inputs["sequence_lengths"] == (3,)


def test_half_precision_has_its_own_tolerance(tmp_path):
    oracle = Oracle("gru")
    with tf.Graph().as_default() as graph:
        x, h, c, _, _ = placeholders(oracle, tf.float16)
        forward_op(oracle, 1, x, h, c, tf.constant(oracle.values["params"].astype("float16")))
    source = tmp_path / "model.pb"
    source.write_bytes(graph.as_graph_def().SerializeToString())
    result = checked(source)
    assert result.status == "passed"
    assert 1e-5 < result.max_abs < result.tolerance == 1e-2


def test_an_input_size_that_the_graph_does_not_tell():
    """The lowered op learns it in the running graph, and so does the op alone."""
    name = "tf112/contrib_table"
    (op,) = (
        op
        for op in lowering.find_ops_in_meta_graph(
            lowering.read_saved_model(model_of(name)).meta_graphs[0]
        )
        if op.op == "CudnnRNN"
    )
    assert op.input_size is None
    assert checked(model_of(name)).inputs["input"] == (7, 3, 5)


def test_choices(tmp_path):
    source = frozen(Oracle("gru"), tmp_path / "model.pb")
    one = checked(source, choices=lowering.Choices(seed=5, batch=2, timesteps=9))
    assert one.inputs["input"] == (9, 2, 5)
    assert one.seed == 5
    assert one.max_abs != checked(source).max_abs


def test_unrolled(tmp_path):
    source = frozen(Oracle("lstm", 1, True), tmp_path / "model.pb")
    result = checked(source, options=lowering.LoweringOptions(unroll=6))
    assert result.status == "passed"
    assert result.inputs["input"] == (6, 3, 5)


def test_active_dropout_is_never_passed_unless_it_is_to_be_ignored(tmp_path):
    source = frozen(Oracle("gru", 2), tmp_path / "model.pb", dropout=0.5)
    result = checked(source)
    assert result.status == "skipped"
    assert "not lowered: " in result.reason
    assert "dropout" in result.reason
    assert checked(source, options=lowering.LoweringOptions(ignore_dropout=True)).status == "passed"


def test_an_op_that_is_still_there_fails(tmp_path):
    source, target = frozen(Oracle("gru"), tmp_path / "model.pb"), tmp_path / "lowered.pb"
    lowering.lower_frozen_graph(source, target)
    assert checked(source, lowered=target).status == "passed"
    result = checked(source, lowered=source)
    assert result.status == "failed"
    assert "CudnnRNNV3 is still there" in result.reason


@pytest.mark.corpus
def test_ops_in_functions_that_are_still_there_fail(tmp_path):
    source, target = model_of("tf23/ops_v1"), tmp_path / "lowered"
    target.mkdir()
    lowering.lower_saved_model_dir(source, target)
    assert checked(source, lowered=target).status == "passed"
    shutil.copyfile(source / "saved_model.pb", target / "saved_model.pb")
    result = checked(source, lowered=target)
    assert result.status == "failed"
    assert result.name == "CudnnRNN in function __inference_inner_25"


def test_nothing_runs_where_nothing_is_lowered(monkeypatch):
    monkeypatch.setattr(originals, "reference_saved_model", None)
    assert lowering.verify_layers(model_of("tf215/plain_lstm_gru")) == []


# ---- damaged files


@pytest.mark.parametrize("name", ["saved_model.pb", "variables/variables.index"])
def test_damaged_files_are_an_error_of_ours(name, tmp_path):
    model = shutil.copytree(model_of("tf215/ops_v3"), tmp_path / "model")
    content = (model / name).read_bytes()
    (model / name).write_bytes(content[: len(content) // 2])
    with pytest.raises(UnreadableInputError):
        lowering.verify_layers(model)


def test_a_changed_byte_of_the_variables_is_never_passed(tmp_path):
    model = shutil.copytree(model_of("tf215/ops_v3"), tmp_path / "model")
    (data,) = (model / "variables").glob("*.data*")
    content = bytearray(data.read_bytes())
    content[100] ^= 1
    data.write_bytes(content)
    result = checked(model)
    assert result.status == "skipped"
    assert "checksum" in result.reason


def test_the_lowered_file_of_another_kind_of_model(tmp_path):
    source = frozen(Oracle("gru"), tmp_path / "model.pb")
    with pytest.raises(UnreadableInputError):
        lowering.verify_layers(source, lowered=model_of("tf215/ops_v3") / "saved_model.pb")

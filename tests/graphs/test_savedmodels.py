"""SavedModels, frozen graphs and `.keras` files, converted: what the user gets, run."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from helpers import snapshot
from models import SHARED, swept

import rnnconvert
from rnnconvert import DifferenceError, NotConvertibleError, OutputError, UsageError

pytestmark = pytest.mark.slow
tf = pytest.importorskip("tensorflow", reason="TensorFlow is not installed")

FIXTURES = Path(__file__).parents[2] / "fixtures" / "savedmodels"
CASES = sorted(path.parent for path in FIXTURES.glob("*/*/data.npz"))
NEWEST_CASES = {case.name: case for case in CASES}.values()
LOWERED = [case for case in CASES if not case.name.startswith("plain")]
KERAS = [
    case
    for case in CASES
    if case.name.startswith(("keras_contrib", "keras_experimental", "keras_save", "plain_"))
    and case.name != "plain_export"
]


def name_of(path: Path) -> str:
    return "-".join(path.parts[-2:])


def source_of(case: Path) -> Path:
    return case / "frozen.pb" if (case / "frozen.pb").exists() else case / "model"


def data_of(case: Path) -> tuple[dict, dict, dict]:
    """Inputs and expected outputs by name, and the meta data."""
    with np.load(case / "data.npz") as data:
        inputs = {key[3:]: data[key] for key in data.files if key.startswith("in/")}
        outputs = {key[4:]: data[key] for key in data.files if key.startswith("out/")}
        return inputs, outputs, json.loads(str(data["meta"]))


def run_saved_model(path: Path, meta: dict, inputs: dict) -> dict:
    """A signature, by TF1's loader: what it takes there runs in TF2's as well."""
    compat = tf.compat.v1
    config = compat.ConfigProto(allow_soft_placement=True)
    with compat.Session(graph=tf.Graph(), config=config) as session:
        graph = compat.saved_model.load(session, meta["tags"], str(path))
        signature = graph.signature_def[meta["signature"]]
        feeds = {signature.inputs[name].name: value for name, value in inputs.items()}
        return session.run({k: v.name for k, v in signature.outputs.items()}, feeds)


def run_frozen(path: Path, meta: dict, inputs: dict) -> dict:
    graph_def = tf.compat.v1.GraphDef.FromString(path.read_bytes())
    with tf.Graph().as_default() as graph:
        tf.import_graph_def(graph_def, name="")
        with tf.compat.v1.Session(graph=graph) as session:
            feeds = {meta["inputs"][name]: value for name, value in inputs.items()}
            return session.run(meta["outputs"], feeds)


@pytest.mark.parametrize("case", swept(LOWERED, NEWEST_CASES), ids=name_of)
@pytest.mark.sampled(36)
@pytest.mark.thinned(2)
def test_a_lowered_model_gives_what_cudnn_gives(case, tmp_path):
    source = source_of(case)
    before = snapshot(case)
    output = tmp_path / ("out.pb" if source.suffix == ".pb" else "out")
    report = rnnconvert.convert(source, output)
    assert report.verdict == "equivalent"
    assert report.weights_level.status == "passed"
    assert (report.layers_level.status, report.layers_level.reason) == ("passed", None)
    models = [level for level in report.model_level if level.device == "cpu"]
    assert models
    assert all(level.status == "passed" for level in models)
    assert snapshot(case) == before
    inputs, expected, meta = data_of(case)
    run = run_frozen if source.suffix == ".pb" else run_saved_model
    found = run(output, meta, inputs)
    for name, wanted in expected.items():
        assert np.abs(found[name] - wanted).max() <= 1e-5, name
    assert rnnconvert.convert(output, tmp_path / "again").verdict == "nothing-to-convert"


@pytest.mark.parametrize(
    "case", [c for c in CASES if c.name in ("plain_lstm", "plain_lstm_gru", "plain_export")],
    ids=name_of,
)  # fmt: skip
@pytest.mark.sampled(2)
def test_plain_keras_layers_need_no_lowering(case, tmp_path):
    """Their GPU variants hold cuDNN ops, but the model runs anywhere."""
    report = rnnconvert.convert(source_of(case), tmp_path / "out")
    assert report.verdict == "nothing-to-convert"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("case", swept(KERAS, NEWEST_CASES), ids=name_of)
@pytest.mark.parametrize("to", ["h5", "keras"])
@pytest.mark.sampled(6)
def test_a_keras_savedmodel_becomes_a_keras_file(case, tmp_path, to):
    keras = pytest.importorskip("keras", reason="Keras 3 is not installed")
    output = tmp_path / f"out.{to}"
    report = rnnconvert.convert(source_of(case), output, verify="layers")
    assert report.verdict == "equivalent"
    assert report.input.container == "savedmodel"
    inputs, expected, _ = data_of(case)
    model = keras.models.load_model(output)
    found = keras.ops.convert_to_numpy(model(next(iter(inputs.values()))))
    assert np.abs(found - next(iter(expected.values()))).max() <= 1e-5


@pytest.mark.skipif(not SHARED.exists(), reason="no folder of further data beside the checkout")
@pytest.mark.corpus
def test_a_real_plain_lstm(cli, tmp_path):
    source = SHARED / "real-models" / "netsec_plain_lstm_savedmodel"
    found = next(source.rglob("saved_model.pb")).parent
    result = cli("cudnn-to-keras", found, "-o", tmp_path / "out")
    assert result.code == 0
    assert "nothing to convert" in result.out
    assert cli("cudnn-to-keras", found, "-o", "out.h5", "--verify", "layers").code == 0


KERAS_FILES = sorted((SHARED / "fixtures" / "keras" / "tf215").glob("*/model.keras"))


@pytest.mark.skipif(not KERAS_FILES, reason="no folder of further fixtures beside the checkout")
@pytest.mark.parametrize("path", KERAS_FILES, ids=lambda path: path.parent.name)
@pytest.mark.sampled(4)
def test_a_keras_file_of_keras_2_becomes_one_of_keras_3(path, tmp_path):
    keras = pytest.importorskip("keras", reason="Keras 3 is not installed")
    report = rnnconvert.convert(path, tmp_path / "out.keras", verify="layers")
    assert report.verdict == "equivalent"
    assert report.input.container == "keras"
    keras.models.load_model(tmp_path / "out.keras")
    again = rnnconvert.convert(tmp_path / "out.keras", tmp_path / "again.keras")
    assert again.verdict == "nothing-to-convert"


# --- the command ----------------------------------------------------------------------------


def test_a_keras_3_file_with_layers_of_ones_own_needs_nothing(cli, tmp_path):
    """What its layers are made of is not known, but Keras 3 wrote it and loads it."""
    keras = pytest.importorskip("keras", reason="Keras 3 is not installed")

    class Mine(keras.Model):
        def __init__(self, **config):
            super().__init__(**config)
            self.lstm = keras.layers.LSTM(4)

        def call(self, x):
            return self.lstm(x)

    model = Mine()
    model(np.zeros((2, 6, 3)))
    model.save(tmp_path / "mine.keras")
    assert cli("cudnn-to-keras", "--check", "mine.keras").code == 0
    shown = cli("inspect", "mine.keras")
    assert (shown.code, "can't be listed" in shown.err) == (0, True)
    assert "weights" not in shown.out
    assert "nothing to convert" in shown.out
    refused = cli("cudnn-to-keras", "mine.keras", "-o", "out.h5")
    assert (refused.code, "only Sequential and functional" in refused.err) == (4, True)


def test_inspect_shows_signatures_and_ops(cli):
    result = cli("inspect", FIXTURES / "tf115" / "contrib_gru_bi2" / "model")
    assert result.code == 0
    assert "signatures: serving_default" in result.out
    assert "CudnnRNN" in result.out
    assert "cudnn_gru/opaque_kernel" in result.out
    assert "convertible" in result.out
    result = cli("inspect", FIXTURES / "tf215" / "plain_lstm_gru" / "model", "--json")
    assert json.loads(result.out)["verdict"] == "nothing-to-convert"


def test_options_and_refusals(cli, tmp_path):
    source = FIXTURES / "tf112" / "contrib_tanh2" / "model"
    assert cli("cudnn-to-keras", source, "-o", "out", "--check").code == 1
    assert list(tmp_path.iterdir()) == []
    dry = cli("cudnn-to-keras", source, "-o", "out", "-n", "--verify", "weights")
    assert dry.code == 0
    assert list(tmp_path.iterdir()) == []
    assert cli("cudnn-to-keras", source, "-o", "out", "--verify", "weights").code == 0
    result = cli("cudnn-to-keras", source, "-o", "out", "--verify", "weights")
    assert (result.code, "the output exists" in result.err) == (5, True)
    assert cli("cudnn-to-keras", source, "-o", "out", "--verify", "weights", "-f").code == 0
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    result = cli("cudnn-to-keras", source, "--to", "npz")
    assert (result.code, "becomes one of" in result.err) == (2, True)
    result = cli("cudnn-to-keras", source, "-o", "x.h5")
    assert (result.code, "no Keras configuration" in result.err) == (4, True)
    assert cli("keras-to-cudnn", source).code == 4


@pytest.mark.corpus
def test_verification_of_an_unrolled_graph_finds_the_axis_of_time(tmp_path):
    """Its input is (time, batch, 5) with all sizes free but the features'."""
    source = FIXTURES / "tf115" / "contrib_gru_bi2" / "model"
    report = rnnconvert.convert(source, tmp_path / "out", unroll=6)
    assert [level.status for _, level in report.levels] == ["passed", "passed", "passed", "skipped"]


def test_tolerances_that_are_asked_for(tmp_path):
    source = FIXTURES / "tf112" / "contrib_tanh2" / "model"
    report = rnnconvert.convert(source, tmp_path / "out", dry_run=True, atol=1e-3)
    assert {level.tolerance for level in (report.layers_level, report.model_level[0])} == {1e-3}
    with pytest.raises(DifferenceError, match="tolerance 1e-12"):
        rnnconvert.convert(source, tmp_path / "out", atol=1e-12)
    assert list(tmp_path.iterdir()) == []


def test_a_gpu_that_is_not_there(tmp_path, monkeypatch):
    """A GPU that only torch sees runs no graph either."""
    from rnnconvert.commands import convert as conversion
    from rnnconvert.commands import verify as comparison
    from rnnconvert.graphs import convert as graphs

    source = FIXTURES / "tf112" / "contrib_tanh2" / "model"
    monkeypatch.setattr(conversion, "require_gpu", lambda: None)
    monkeypatch.setattr(graphs, "no_tensorflow_gpu", lambda: "TensorFlow sees no GPU")
    with pytest.raises(UsageError, match="--device gpu: TensorFlow sees no GPU"):
        rnnconvert.convert(source, tmp_path / "out", device="gpu")
    monkeypatch.setattr(comparison, "require_gpu", lambda: None)
    with pytest.raises(UsageError, match="--device gpu: TensorFlow sees no GPU"):
        rnnconvert.verify(source, source, device="gpu")
    report = rnnconvert.convert(source, tmp_path / "out", device="cpu")
    assert [level.device for level in report.model_level] == ["cpu"]


@pytest.mark.parametrize("damage", ["garbage", "no variables", "cut short"])
def test_damaged_models(cli, tmp_path, damage):
    model = tmp_path / "model"
    shutil.copytree(FIXTURES / "tf15" / "contrib_lstm" / "model", model)
    graph = model / "saved_model.pb"
    if damage == "garbage":
        graph.write_bytes(b"\x07garbage" * 100)
    elif damage == "cut short":
        graph.write_bytes(graph.read_bytes()[: graph.stat().st_size // 2])
    else:
        shutil.rmtree(model / "variables")
    before = snapshot(tmp_path)
    result = cli("cudnn-to-keras", model)
    assert result.code == 3
    assert len(result.err.splitlines()) == 1
    assert snapshot(tmp_path) == before


def test_a_checkpoint_that_only_has_the_same_name(tmp_path):
    """Files beside a frozen graph are not its own, so what they lack is no matter."""
    source = tmp_path / "frozen.pb"
    shutil.copy(FIXTURES / "tf115" / "frozen_contrib_gru2" / "frozen.pb", source)
    (tmp_path / "frozen.data-00000-of-00002").write_bytes(b"half of a checkpoint")
    assert rnnconvert.inspect(source).verdict == "convertible"


def test_a_pb_that_is_no_graph(cli, tmp_path):
    (tmp_path / "x.pb").write_bytes(b"this is no graph at all")
    result = cli("cudnn-to-keras", "x.pb")
    assert result.code == 3
    assert len(result.err.splitlines()) == 1


def test_a_directory_that_holds_something_else_is_kept(tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("mine")
    with pytest.raises(OutputError, match="holds no SavedModel"):
        rnnconvert.convert(
            FIXTURES / "tf112" / "contrib_tanh2" / "model", tmp_path / "mine", force=True
        )
    assert (tmp_path / "mine" / "thesis.txt").read_text() == "mine"


def test_the_current_directory_as_a_model(cli, tmp_path, monkeypatch):
    source = shutil.copytree(FIXTURES / "tf112" / "contrib_tanh2" / "model", tmp_path / "model")
    monkeypatch.chdir(source)
    inside = cli("cudnn-to-keras", ".", "-o", "out")
    assert (inside.code, "inside the input" in inside.err) == (2, True)
    assert cli("cudnn-to-keras", ".", "--verify", "weights").code == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model", "model.portable"]


def test_input_and_output_must_differ():
    source = FIXTURES / "tf112" / "contrib_tanh2" / "model"
    with pytest.raises(UsageError, match="same"):
        rnnconvert.convert(source, source, force=True)
    with pytest.raises(NotConvertibleError, match="this is a SavedModel"):
        rnnconvert.convert(source, Path("x"), command="keras-to-cudnn", to="savedmodel")


# --- verification must be able to fail ------------------------------------------------------


def test_a_wrong_lowering_is_caught_and_nothing_is_left(tmp_path, monkeypatch):
    """A weight of the lowered frozen graph changed on its way."""
    from rnnconvert.graphs import lowering

    lower = lowering.lower_frozen_graph

    def spoiled(source, target, *, options=None):
        result = lower(source, target, options=options)
        graph_def = tf.compat.v1.GraphDef.FromString(target.read_bytes())
        node = max((n for n in graph_def.node if n.op == "Const"), key=lambda n: n.ByteSize())
        values = tf.make_ndarray(node.attr["value"].tensor).copy()
        values.flat[: values.size // 2] *= -1
        node.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(values))
        target.write_bytes(graph_def.SerializeToString())
        return result

    monkeypatch.setattr(lowering, "lower_frozen_graph", spoiled)
    with pytest.raises(DifferenceError, match="nothing was written"):
        rnnconvert.convert(
            FIXTURES / "tf115" / "frozen_contrib_gru2" / "frozen.pb", tmp_path / "out.pb"
        )
    assert list(tmp_path.iterdir()) == []


def test_a_keras_model_without_functions_can_only_be_rebuilt(cli, tmp_path):
    """As `save_traces=False` leaves it: configuration and variables."""
    from rnnconvert.graphs import lowering

    source = shutil.copytree(
        next(iter(sorted(FIXTURES.glob("*/keras_save/model")))), tmp_path / "m"
    )
    proto = lowering.read_saved_model(source)
    for graph in proto.meta_graphs:
        for name in list(graph.signature_def):
            if not name.startswith("__"):
                del graph.signature_def[name]
        graph.object_graph_def.concrete_functions.clear()
        kept = [f for f in graph.graph_def.library.function if "traced" in f.signature.name]
        del graph.graph_def.library.function[:]
        graph.graph_def.library.function.extend(kept)
    (source / "saved_model.pb").write_bytes(proto.SerializeToString())
    shown = cli("inspect", source)
    assert "saved without its functions" in shown.out
    refused = cli("cudnn-to-keras", source, "-o", "out")
    assert (refused.code, "--to keras rebuilds it" in refused.err) == (4, True)
    assert cli("cudnn-to-keras", source, "-o", "out.h5", "--verify", "layers").code == 0

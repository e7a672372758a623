"""What tf.keras writes by `save_weights`: found, named, converted; and checkpoints without RNNs."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from models import SHARED
from spoiling import spoil_weights

import rnnconvert
from rnnconvert.containers.checkpoint import data_path, index_path, write_checkpoint
from rnnconvert.containers.safe_npz import open_arrays
from rnnconvert.references import keras as keras_reference

FIXTURES = Path(__file__).parents[2] / "fixtures" / "keras_checkpoints"
CASES = sorted(path.parent for path in FIXTURES.glob("*/*/data.npz"))
REAL = SHARED / "real-models"
needs_real = pytest.mark.skipif(
    not REAL.exists(), reason="the folder of real models is not beside the checkout"
)
OBJECT = "/.ATTRIBUTES/VARIABLE_VALUE"


def name_of(case: Path) -> str:
    return "-".join(case.parts[-2:])


def expected_of(case: Path) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    with np.load(case / "data.npz") as data:
        return data["x"], {key[2:]: data[key] for key in data.files if key.startswith("y/")}


def test_all_fixtures_are_here():
    assert len(CASES) == 9


@pytest.mark.parametrize("case", CASES, ids=name_of)
def test_the_layers_that_were_saved_are_found(case):
    found = rnnconvert.inspect(case / "weights")
    _, expected = expected_of(case)
    assert {stack.scope.split("/")[-1] for stack in found.found.stacks} == set(expected)
    assert "save_weights" in found.origin
    cells = {stack.scope: stack.cell for stack in found.found.stacks}
    if case.name == "subclassed":
        assert cells == {
            "gru": "gru", "before": "gru_reset_before", "lstm": "lstm", "simple": "rnn_tanh"
        }  # fmt: skip
    if case.name == "cudnn":
        assert found.verdict == "convertible"
        assert not found.assumptions
    else:
        assert {each.what for each in found.assumptions} == {"activation", "recurrent_activation"}


@pytest.mark.parametrize("case", CASES, ids=name_of)
def test_arrays_give_the_outputs_of_the_keras_that_wrote_them(case, tmp_path):
    """The references' equations on what was written, against the old Keras' own outputs."""
    report = rnnconvert.convert(case / "weights", tmp_path / "out.npz", verify="layers")
    assert report.is_equivalent
    x, expected = expected_of(case)
    cells = {stack.scope: stack.cell for stack in rnnconvert.inspect(case / "weights").found.stacks}
    with open_arrays(tmp_path / "out.npz") as arrays:
        for scope, cell in cells.items():
            prefix = f"{scope}/layer_0/forward"
            tensors = {k: arrays[f"{prefix}/{k}"] for k in ("kernel", "recurrent_kernel", "bias")}
            zeros = np.zeros((len(x), tensors["recurrent_kernel"].shape[0]))
            found = keras_reference.run_keras_layer(cell, tensors, x.astype("f8"), zeros, zeros)[0]
            assert np.abs(found - expected[scope.split("/")[-1]]).max() < 2e-6


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=name_of)
@pytest.mark.sampled(3)
def test_keras_3_predicts_what_the_keras_that_wrote_it_did(case, tmp_path):
    keras = pytest.importorskip("keras", reason="Keras 3 is not installed")
    rnnconvert.convert(case / "weights", tmp_path / "out", to="h5", verify="layers")
    x, expected = expected_of(case)
    for path in (tmp_path / "out").iterdir():
        name = path.stem.split(".")[-1]
        y = keras.ops.convert_to_numpy(keras.models.load_model(path)(x))
        assert np.abs(y - expected.pop(name)).max() < 2e-6
    assert not expected


@pytest.mark.slow
def test_keras_3_loads_the_weights_alone(tmp_path):
    """Into a Sequential of the layers, of one and of two directions."""
    keras = pytest.importorskip("keras", reason="Keras 3 is not installed")
    case = FIXTURES / "tf215" / "subclassed"
    rnnconvert.convert(case / "weights", tmp_path / "out", to="weights", verify="layers")
    x, expected = expected_of(case)
    layers = {
        "gru": keras.layers.GRU(5, return_sequences=True),
        "before": keras.layers.GRU(5, return_sequences=True, reset_after=False),
        "lstm": keras.layers.LSTM(3, return_sequences=True),
        "simple": keras.layers.SimpleRNN(5, return_sequences=True),
    }
    for name, layer in layers.items():
        model = keras.Sequential([keras.Input((None, x.shape[2])), layer])
        model.load_weights(tmp_path / "out" / f"{name}.weights.h5")
        y = keras.ops.convert_to_numpy(model(x))
        assert np.abs(y - expected[name]).max() < 2e-6
    two = Path(__file__).parents[2] / "fixtures" / "checkpoints" / "tf115" / "cudnn_gru_bi2"
    rnnconvert.convert(two, tmp_path / "two.weights.h5", verify="layers")
    gru = keras.layers.GRU(3, return_sequences=True)
    again = keras.layers.GRU(3, return_sequences=True)
    model = keras.Sequential(
        [keras.Input((None, 5)), *map(keras.layers.Bidirectional, (gru, again))]
    )
    model.load_weights(tmp_path / "two.weights.h5")
    with np.load(two / "data.npz") as data:
        y = keras.ops.convert_to_numpy(model(data["x"]))
        assert np.abs(y - data["y"]).max() < 1e-5


def test_a_gru_with_one_bias_is_never_said_to_reset_after(tmp_path):
    """Its two forms differ in the bias only."""
    case = FIXTURES / "tf215" / "subclassed" / "weights"
    rnnconvert.convert(case, tmp_path / "out", to="h5", verify="layers")
    resets = {
        path.stem: [site.site.cell for site in rnnconvert.inspect(path).plan.sites]
        for path in (tmp_path / "out").glob("*.h5")
        if path.stem in ("gru", "before")
    }
    assert resets == {"gru": ["gru"], "before": ["gru_reset_before"]}


def made_up(tmp_path: Path, **variables: tuple[int, ...]) -> Path:
    """An object-based checkpoint with variables of these shapes; dots in names are slashes."""
    prefix = tmp_path / "weights"
    generator = np.random.default_rng(5)
    tensors = {
        f"{name.replace('__', '/')}{OBJECT}": generator.standard_normal(shape).astype("f4")
        for name, shape in variables.items()
    }
    graph = np.array(b"\x0a\x00", object)  # an object graph of one object
    write_checkpoint(
        index_path(prefix), data_path(prefix), {"_CHECKPOINTABLE_OBJECT_GRAPH": graph, **tensors}
    )
    return prefix


@pytest.mark.parametrize(
    ("variables", "reason"),
    [
        ({"bias": None}, "whether it resets before or after the matmul can't be told"),
        ({"bias": (30,), "peephole": (5,)}, None),
        ({"peephole": (5,)}, "has further variables (peephole)"),
        ({"bias": (14,)}, "the shapes of no LSTM, GRU or SimpleRNN"),
        ({"bias": (2, 30)}, "the shapes of no LSTM, GRU or SimpleRNN"),
        ({"kernel": (3, 3, 4, 15)}, "as in a ConvLSTM"),
    ],
)
def test_what_is_no_layer_of_keras_is_refused_by_name(cli, tmp_path, variables, reason):
    shapes = {"kernel": (4, 15), "recurrent_kernel": (5, 15), "bias": (15,), **variables}
    prefix = made_up(tmp_path, **{f"g__cell__{k}": v for k, v in shapes.items() if v})
    result = cli("cudnn-to-keras", prefix, "-o", "out.npz", "--verify", "layers")
    if reason is None:  # a CuDNN layer, whatever else its scope holds
        assert result.code == 0
        return
    assert result.code == 4
    assert reason in " ".join(result.err.split())
    assert not (tmp_path / "out.npz").exists()


def test_the_names_of_objects_are_kept(cli, tmp_path):
    prefix = FIXTURES / "tf215" / "cudnn" / "weights"
    result = cli("cudnn-to-keras", prefix, "-o", "out.ckpt", "--names", "keras")
    assert result.code == 4
    assert "leave that option out" in " ".join(result.err.split())
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.parametrize("producer", ["tf115", "tf23", "tf215"])
def test_keras_2_restores_plain_layers_from_what_was_written(tmp_path, producer):
    """By `load_weights` of the checkpoint, along its objects; tf_keras complains of any rest."""
    tf = pytest.importorskip("tensorflow")
    keras = pytest.importorskip("tf_keras")
    case = FIXTURES / producer / "cudnn"
    report = rnnconvert.convert(case / "weights", tmp_path / "out", to="checkpoint",
                                verify="layers")  # fmt: skip
    assert report.verdict == "equivalent"
    model = keras.Model()
    model.gru = keras.layers.GRU(5, return_sequences=True)
    model.lstm = keras.layers.LSTM(3, return_sequences=True)
    x, expected = expected_of(case)
    for name in expected:
        getattr(model, name).build((None, *x.shape[1:]))
    tf.train.Checkpoint(model).read(str(tmp_path / "out")).assert_existing_objects_matched()
    for name, y in expected.items():
        assert np.abs(getattr(model, name)(x).numpy() - y).max() < 2e-6
    again = rnnconvert.inspect(tmp_path / "out")
    assert again.verdict == "nothing-to-convert"


# --- messages -------------------------------------------------------------------------------


def test_a_checkpoint_without_recurrent_layers_says_so_once(cli, tmp_path):
    prefix = tmp_path / "model.ckpt"
    write_checkpoint(index_path(prefix), data_path(prefix), {"dense/kernel": np.ones((2, 3), "f4")})
    result = cli("inspect", prefix)
    assert result.code == 0
    assert result.out.count("no recurrent layer") == 1
    assert "--to" not in result.out
    assert "RNN stacks" not in result.out


def test_plain_layers_of_keras_that_a_saver_saved_are_named(cli, tmp_path):
    prefix = tmp_path / "model.ckpt"
    shapes = {"kernel": (4, 12), "recurrent_kernel": (3, 12), "bias": (12,)}
    tensors = {f"lstm_1/{name}": np.ones(shape, "f4") for name, shape in shapes.items()}
    write_checkpoint(index_path(prefix), data_path(prefix), tensors)
    result = cli("inspect", prefix)
    assert "no recurrent layer to convert; lstm_1 have the variables of plain layers" in " ".join(
        result.out.split()
    )


def test_an_object_based_one_without_recurrent_layers_says_the_way(cli, tmp_path):
    result = cli("inspect", made_up(tmp_path, dense__kernel=(2, 3)))
    assert result.out.count("no recurrent layer") == 1
    assert "save_weights writes it" in result.out
    assert "model.load_weights" in result.out
    result = cli("cudnn-to-keras", tmp_path / "weights")
    assert result.code == 4
    assert "model.load_weights" in result.err


def test_an_index_without_its_values_is_named(cli, tmp_path):
    shutil.copy(FIXTURES / "tf215" / "subclassed" / "weights.index", tmp_path / "w.index")
    result = cli("inspect", tmp_path / "w.index")
    assert result.code == 0
    assert "w.data-00000-of-00001 missing" in " ".join(result.err.split())
    result = cli("cudnn-to-keras", tmp_path / "w.index", "-o", "out.npz")
    assert result.code == 3
    assert "w.data-00000-of-00001 is missing" in " ".join(result.err.split())


def test_what_arrays_do_not_hold_is_said(tmp_path):
    report = rnnconvert.convert(FIXTURES / "tf215" / "subclassed" / "weights", tmp_path / "a.npz",
                                verify="weights", activation="elu")  # fmt: skip
    assert report.warnings == (
        "before: give its layer activation='elu' and reset_after=False",
        "gru: give its layer activation='elu'",
        "lstm: give its layer activation='elu'",
        "simple: give its layer activation='elu'",
    )
    report = rnnconvert.convert(FIXTURES / "tf215" / "sequential" / "weights", tmp_path / "b",
                                to="h5", verify="weights")  # fmt: skip
    (warning,) = report.warnings
    assert warning.startswith("layer_with_weights-0/backward_layer: give its layer its input in")


@needs_real
def test_the_real_save_weights(cli):
    folder = REAL / "rongopy_tf2_save_weights"
    result = cli("cudnn-to-keras", folder, "-o", "out.npz", "--verify", "layers")
    assert result.code == 0
    assert "equivalent, if activation is tanh and recurrent_activation is sigmoid" in result.out
    assert "save_weights writes it" in cli("inspect", folder).out


@needs_real
def test_cudnn_in_the_graph_alone_is_pointed_to(cli):
    folder = REAL / "helmo_cudnn_compatible_with_meta"
    for command in ("inspect", "cudnn-to-keras"):
        result = cli(command, folder)
        assert result.code == 0
        assert "convert best.meta" in " ".join(result.err.split())


@needs_real
def test_the_real_index_without_values(cli):
    result = cli("inspect", REAL / "calamari_index_only")
    assert "0.ckpt.data-00000-of-00001 missing" in " ".join(result.err.split())
    assert "convertible, once its values are there" in result.out


# --- wrong conversions that must be caught --------------------------------------------------


def test_verify_catches_other_weights_and_another_gru(cli, tmp_path):
    prefix = FIXTURES / "tf215" / "subclassed" / "weights"
    rnnconvert.convert(prefix, tmp_path / "out", to="h5", verify="weights")
    options = ("--verify", "layers", "--scope")
    right = cli("verify", prefix, "out/gru.h5", *options, "gru")
    assert right.code == 0
    assert "equivalent, if activation is tanh and recurrent_activation is sigmoid" in right.out
    assert "whole model was not run" in " ".join(right.out.split())
    assert cli("verify", prefix, "out/before.h5", *options, "before").code == 0
    for scope, other in (("gru", "before"), ("before", "gru"), ("lstm", "gru")):
        assert cli("verify", prefix, f"out/{other}.h5", *options, scope).code == 4
    other = FIXTURES / "tf23" / "subclassed" / "weights"
    values = made_up_like(other, tmp_path / "moved", change="gru/cell/bias")
    result = cli("verify", values, "out/gru.h5", *options, "gru")
    assert result.code == 1


def made_up_like(source: Path, target: Path, change: str) -> Path:
    """A copy of a checkpoint in which one variable has two of its values exchanged."""
    from rnnconvert.containers.checkpoint import open_checkpoint

    checkpoint = open_checkpoint(source)
    tensors = {name: checkpoint.read(name) for name in checkpoint.variables}
    (name,) = (name for name in tensors if name.startswith(change))
    tensors[name] = tensors[name][..., ::-1]
    write_checkpoint(index_path(target), data_path(target), tensors)
    return target


@pytest.mark.parametrize("gate", ["kernel", "recurrent", "bias"])
@pytest.mark.parametrize("case", ["cudnn", "subclassed"])
@pytest.mark.parametrize("way", ["streamed", "in memory"])
def test_a_wrong_conversion_leaves_nothing(tmp_path, monkeypatch, case, gate, way):
    def spoiled(values):
        return values[:, ::-1] if gate == "bias" else values[::-1]

    spoil_weights(monkeypatch, gate, spoiled, is_streamed=way == "streamed")
    for verify in ("weights", "layers"):
        with pytest.raises(rnnconvert.DifferenceError, match="nothing was written"):
            rnnconvert.convert(FIXTURES / "tf215" / case / "weights", tmp_path / "out.npz",
                               verify=verify)  # fmt: skip
    assert list(tmp_path.iterdir()) == []

"""`rnnconvert verify A B` and `rnnconvert.verify`: any two files."""

from __future__ import annotations

import json

import h5py
import numpy as np
import pytest
from helpers import make_model_h5
from models import FIXTURES

import rnnconvert
from rnnconvert import DifferenceError, NotConvertibleError, UnreadableInputError, UsageError
from rnnconvert.verification import devices

pytest.importorskip("keras.ops", reason="Keras 3 is not installed")
pytestmark = pytest.mark.slow
K224 = FIXTURES / "k224"


def statuses(report):
    return [level.status for name, level in report.levels if level.device != "gpu"]


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    folder = tmp_path_factory.mktemp("comparison")
    source = K224 / "bi" / "model.h5"
    report = rnnconvert.convert(source, folder / "bi.h5", verify="weights")
    (folder / "report.json").write_text(report.to_json())
    return source, folder / "bi.h5", folder / "report.json"


def test_cudnn_against_portable_both_ways_round(pair):
    source, converted, _ = pair
    for one, other in ((source, converted), (converted, source)):
        report = rnnconvert.verify(one, other)
        assert statuses(report) == ["passed", "passed", "passed"]
        assert report.verdict == "equivalent"
        assert report.command == "verify"
        assert report.to_dict()["output"]["path"] == str(other)
        assert 0 < report.layers_level.max_abs < report.layers_level.tolerance


@pytest.mark.parametrize(
    "case", ["seq_lstm", "seq_gru", "plain_lstm", "plain_gru_before", "siamese"]
)
@pytest.mark.sampled(3)
def test_a_file_against_its_conversion(tmp_path, case):
    """Plain layers with hard_sigmoid included, whose gates are rescaled."""
    source = K224 / case / "model.h5"
    rnnconvert.convert(source, tmp_path / "out.h5", verify="none")
    assert statuses(rnnconvert.verify(source, tmp_path / "out.h5")) == ["passed"] * 3


def test_portable_against_portable(pair):
    assert statuses(rnnconvert.verify(pair[1], pair[1])) == ["passed"] * 3


def test_a_keras_file_against_the_h5(tmp_path):
    source = K224 / "seq_gru" / "model.h5"
    rnnconvert.convert(source, tmp_path / "out.keras", verify="none")
    report = rnnconvert.verify(source, tmp_path / "out.keras")
    assert statuses(report) == ["skipped", "skipped", "passed"]
    assert report.to_dict()["output"]["container"] == "keras"


@pytest.mark.parametrize("case", ["seq_lstm", "seq_gru"])
def test_weights_that_tf_keras_converted_by_itself(tmp_path, case, monkeypatch):
    """tf_keras loads CuDNN weights into plain layers with a conversion of its own."""
    monkeypatch.setenv("TF_USE_LEGACY_KERAS", "1")
    tf_keras = pytest.importorskip("tf_keras", reason="tf_keras is the oracle here")
    weights = K224 / case / "weights.h5"
    with h5py.File(weights) as file:
        names = [name.decode() for name in file.attrs["layer_names"]]
        groups = [file[name] for name in names]
        shapes = [[group[w].shape for w in group.attrs["weight_names"]] for group in groups]
    layer = {"seq_lstm": tf_keras.layers.LSTM, "seq_gru": tf_keras.layers.GRU}[case]
    twin = tf_keras.Sequential([tf_keras.Input((6, shapes[0][0][0]))])
    sizes = [(name, shape) for name, shape in zip(names, shapes, strict=True) if shape]
    for name, shape in sizes[:-1]:
        last = name == sizes[-2][0]
        twin.add(layer(shape[1][0], return_sequences=not last, name=name))
    twin.add(tf_keras.layers.Dense(sizes[-1][1][0][1], name=sizes[-1][0]))
    twin.load_weights(weights)
    twin.save_weights(tmp_path / "twin.h5")
    report = rnnconvert.verify(weights, tmp_path / "twin.h5")
    assert statuses(report)[:2] == ["passed", "passed"]
    assert "weights-only" in report.model_level[0].reason


def test_whole_model_against_weights_only(pair):
    report = rnnconvert.verify(K224 / "seq_gru" / "model.h5", K224 / "seq_gru" / "weights.h5")
    assert statuses(report)[:2] == ["passed", "passed"]


@pytest.mark.parametrize("verify", ["weights", "layers", "model"])
@pytest.mark.sampled(2)
def test_one_bit_in_a_dense_layer(pair, tmp_path, verify):
    source, converted, _ = pair
    wrong = tmp_path / "wrong.h5"
    wrong.write_bytes(converted.read_bytes())
    with h5py.File(wrong, "r+") as file:
        values = file["model_weights/dense_1/dense_1/kernel:0"]
        bits = values[()].view("u4")
        bits[0, 0] ^= 1
        values[...] = bits.view("f4")
    with pytest.raises(DifferenceError, match=r"level weights: .*dense_1/kernel:0") as caught:
        rnnconvert.verify(source, wrong, verify=verify)
    assert caught.value.report.verdict == "different"
    report = rnnconvert.verify(source, wrong, atol=1e-5)
    assert statuses(report) == ["skipped", "passed", "passed"]


def test_other_layers_differ(tmp_path):
    one = make_model_h5(tmp_path / "one.h5")
    other = make_model_h5(tmp_path / "other.h5")
    with h5py.File(other, "r+") as file:
        file["model_weights/cu_gru/cu_gru/kernel:0"][0, 0] += 0.5
    with pytest.raises(DifferenceError) as caught:
        rnnconvert.verify(one, other)
    assert statuses(caught.value.report) == ["failed", "failed", "failed"]
    assert "cu_gru" in caught.value.report.layers_level.worst
    assert caught.value.report.model_level[0].first_difference == "cu_gru"


# --- what can't be compared -----------------------------------------------------------------


def test_layers_of_another_size(tmp_path):
    one = make_model_h5(tmp_path / "one.h5")
    other = make_model_h5(tmp_path / "other.h5", units=(6, 7))
    with pytest.raises(NotConvertibleError, match=r"cu_gru has 4 units on 6 inputs, .* has 7 on 6"):
        rnnconvert.verify(one, other)


def test_cells_that_no_weights_make_equal():
    one, other = (
        FIXTURES / "k224" / case / "model.h5" for case in ("plain_gru_after", "plain_gru")
    )
    with pytest.raises(NotConvertibleError, match="different functions"):
        rnnconvert.verify(one, other)


def test_nothing_to_compare_by(tmp_path):
    """A weights file of two layers and one of three, and no architecture."""
    one = make_model_h5(tmp_path / "one.h5", whole=False)
    other = make_model_h5(tmp_path / "two.h5", whole=False, cells=["lstm"], names=["a"], units=[6])
    with pytest.raises(NotConvertibleError, match="can't be compared: 6 tensors in one file, 3"):
        rnnconvert.verify(one, other)


def test_verify_none_compares_nothing(pair):
    with pytest.raises(UsageError, match="would compare nothing"):
        rnnconvert.verify(pair[0], pair[1], verify="none")


# --- the report of an earlier run -----------------------------------------------------------


def test_the_files_of_an_earlier_report(pair):
    source, converted, report = pair
    found = rnnconvert.verify(source, converted, earlier_report=report, verify="weights")
    assert found.verdict == "equivalent"
    with pytest.raises(DifferenceError, match=r"not the file of .*: SHA-256 was"):
        rnnconvert.verify(converted, source, earlier_report=report, verify="weights")


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("no json", UnreadableInputError),
        ("[]", UnreadableInputError),
        ("{}", UnreadableInputError),
        ('{"input": {"sha256": "00"}, "output": "x"}', UnreadableInputError),
        ('{"input": {"sha256": null}, "output": null}', UsageError),
    ],
)
def test_a_report_that_proves_nothing(pair, tmp_path, text, error):
    (tmp_path / "r.json").write_text(text)
    with pytest.raises(error):
        rnnconvert.verify(pair[0], pair[1], earlier_report=tmp_path / "r.json", verify="weights")


# --- the command ----------------------------------------------------------------------------


def test_the_command(cli, pair, tmp_path):
    source, converted, report = pair
    result = cli("verify", source, converted)
    assert result.code == 0
    assert "ok model (cpu): max difference" in result.out
    assert result.out.splitlines()[-1].strip() == "equivalent (whole model)"
    before = report.read_bytes()
    result = cli("verify", source, converted, "--report", report, "--verify", "layers")
    assert result.code == 0
    assert f"the files are those of {report}" in " ".join(result.out.split())
    assert report.read_bytes() == before


def test_the_command_writes_a_report_that_is_not_there(cli, pair, tmp_path):
    result = cli("verify", *pair[:2], "--report", "new.json", "--verify", "layers")
    assert result.code == 0
    report = json.loads((tmp_path / "new.json").read_text())
    assert report["command"] == "verify"
    assert report["verdict"] == "equivalent"
    assert len(report["output"]["sha256"]) == 64
    assert cli("verify", *pair[:2], "--report", "new.json", "--verify", "layers").code == 0


def test_the_command_on_files_that_differ(cli, pair, tmp_path):
    other = K224 / "seq_gru" / "model.h5"
    result = cli("verify", pair[1], other, "--json")
    assert result.code == 1
    report = json.loads(result.out)
    assert report["verdict"] == "different"
    model = report["verification"]["model"][0]
    assert model["status"] == "failed"
    assert model["max_abs"] > model["tolerance"]
    assert np.isfinite(model["max_rel"])


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["m.h5"], 2, "Missing argument 'CONVERTED'"),
        (["m.h5", "missing.h5"], 3, "missing.h5: no such file"),
        (["m.h5", "text.h5"], 3, "a text file, not an HDF5 model"),
        (["m.h5", "m.h5", "--device", "gpu"], 2, "--device gpu: no CUDA device"),
        (["m.h5", "m.h5", "--custom-objects", "nothing"], 2, "expected module:name"),
        (["m.h5", "m.h5", "--report", "m.h5"], 2, "would replace a model"),
    ],
)
def test_the_command_refuses(cli, tmp_path, monkeypatch, arguments, code, text):
    monkeypatch.setattr(devices, "DRIVERS", ("no-such-driver.so",))
    make_model_h5(tmp_path / "m.h5")
    (tmp_path / "text.h5").write_text("hello\n")
    result = cli("verify", *arguments)
    assert result.code == code
    assert text in " ".join(result.err.split())

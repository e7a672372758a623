"""`keras-to-cudnn`: round trips bit for bit, Keras 2's own reading of the result, refusals, CLI."""

from __future__ import annotations

import json

import h5py
import numpy as np
import pytest
from helpers import GRU_BIAS, LSTM_BIAS, make_model_h5, read_config, snapshot, write_config
from models import NEWEST, OWN, WEIGHTS_ONLY, predict, swept, worst_difference

import rnnconvert
from rnnconvert.errors import DifferenceError, NotConvertibleError, UsageError
from rnnconvert.keras_models import edits
from rnnconvert.keras_models.files import h5 as keras_h5
from rnnconvert.keras_models.files import h5_patch
from rnnconvert.keras_models.plan import Relay
from rnnconvert.layouts import find, split_bias

CUDNN = [model for model in OWN if not model.path.parent.name.startswith("plain_")]
PLAIN = [
    model
    for model in OWN
    if model.name.split("-")[1] in (
        "plain_bi", "plain_compiled", "plain_encdec", "plain_gru_after", "plain_lstm",
        "plain_nested", "plain_shared", "plain_stateful", "plain_td",
    )
    and model.name.split("-")[0] in ("k231", "tf210", "tf215")
]  # fmt: skip
LOADED = [
    model
    for model in OWN
    if model.name in (
        "k231-plain_compiled", "tf210-plain_encdec", "tf215-plain_bi", "tf215-plain_gru_after",
        "k224-bi", "k224-encdec", "tf115-nested", "tf215-td_model",
    )
]  # fmt: skip
QUICK = {"verify": "weights", "hashes": False}


def tensors(path):
    found = {}

    def visit(name, item):
        if isinstance(item, h5py.Dataset):
            found[name] = item[()]

    with h5py.File(path) as file:
        file.get("model_weights", file).visititems(visit)
    return found


def same_bits(one, other):
    return (
        one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes()
    )


def to_cudnn(source, output, **options):
    return rnnconvert.convert(source, output, command="keras-to-cudnn", **{**QUICK, **options})


def plain_file(path, **keywords):
    """A file of plain layers, made by hand and not by Keras."""
    source = make_model_h5(path.with_name("source.h5"), **keywords)
    rnnconvert.convert(source, path, **QUICK)
    source.unlink()
    return path


# --- round trips ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "target"),
    [
        *(
            pytest.param(model, "keras3", marks=() if model in NEWEST else pytest.mark.corpus)
            for model in CUDNN
        ),
        *((model, "keras2") for model in CUDNN[::4]),
    ],
    ids=lambda part: getattr(part, "name", part),
)
@pytest.mark.sampled(16)
@pytest.mark.thinned(2)
def test_cudnn_to_keras_and_back(model, target, tmp_path):
    """Only an LSTM's bias differs: its sum is halved, and the halves are exact."""
    portable, back, again = (tmp_path / name for name in ("p.h5", "back.h5", "again.h5"))
    first = rnnconvert.convert(model.path, portable, target=target, **QUICK)
    to_cudnn(portable, back)
    rnnconvert.convert(back, again, target=target, **QUICK)
    originals, merged, halves, repeated = map(tensors, (model.path, portable, back, again))
    assert originals.keys() == halves.keys()
    sums = {
        change.target.path.removeprefix("model_weights/")
        for change in first.layers
        for change in change.changes
        if change.edit.merges
    }
    assert merged.keys() == repeated.keys()
    for name, values in halves.items():
        assert same_bits(merged[name], repeated[name])
        if name not in sums:
            assert same_bits(values, originals[name])
            continue
        one, other = values.reshape(2, -1)
        assert same_bits(one + other, merged[name])
        assert same_bits(one, other)
        assert same_bits(one * one.dtype.type(2), merged[name])


@pytest.mark.parametrize("model", swept(PLAIN, NEWEST), ids=lambda model: model.name)
@pytest.mark.sampled(2)
def test_keras_to_cudnn_and_back(model, tmp_path):
    to_cudnn(model.path, tmp_path / "cudnn.h5")
    rnnconvert.convert(tmp_path / "cudnn.h5", tmp_path / "back.h5", **QUICK)
    before, after = tensors(model.path), tensors(tmp_path / "back.h5")
    assert before.keys() == after.keys()
    assert all(same_bits(before[name], after[name]) for name in before)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["k224-encdec", "k224-nested", "tf215-plain_bi", "tf215-half"])
@pytest.mark.sampled(2)
def test_all_levels_pass(name, tmp_path):
    model = next(model for model in OWN if model.name == name)
    rnnconvert.convert(model.path, tmp_path / "p.h5", **QUICK)
    source = tmp_path / "p.h5" if (tmp_path / "p.h5").exists() else model.path
    report = to_cudnn(source, tmp_path / "c.h5", verify="model", device="cpu")
    assert [level.status for _, level in report.levels] == ["passed"] * 3
    assert report.layers_level.max_abs < 1e-12  # no rounding: all edits are exact
    assert rnnconvert.verify(source, tmp_path / "c.h5", verify="layers").verdict == "equivalent"


# --- what Keras 2 makes of it ---------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("model", LOADED, ids=lambda model: model.name)
@pytest.mark.corpus
def test_keras_2_loads_it_and_its_own_conversion_computes_the_same(model, tmp_path):
    """The classes and bits as they are; and tf_keras, which turns CuDNN weights into plain ones
    while loading, predicts what the original predicted."""
    tf_keras = pytest.importorskip("tf_keras", reason="tf_keras is not installed")
    source, output = tmp_path / "p.h5", tmp_path / "c.h5"
    rnnconvert.convert(model.path, source, **QUICK)
    to_cudnn(source if source.exists() else model.path, output)
    tf_keras.backend.clear_session()
    loaded = tf_keras.models.load_model(output)
    with h5py.File(output) as file:
        for layer in loaded.layers:
            group = file["model_weights"][layer.name]
            parts = sorted(name for name in group.attrs if name.startswith("weight_names"))
            names = [name for part in parts for name in group.attrs[part]]
            weights = layer.trainable_weights + layer.non_trainable_weights
            assert len(names) == len(weights)
            for name, weight in zip(names, weights, strict=True):
                assert same_bits(group[name][()], weight.numpy())
    assert "CuDNN" in "".join(_classes(loaded))
    layers = tf_keras.layers
    tf_keras.backend.clear_session()
    plain = tf_keras.models.load_model(
        output, custom_objects={"CuDNNLSTM": layers.LSTM, "CuDNNGRU": layers.GRU}, compile=False
    )
    found = predict(plain, model.inputs())
    assert worst_difference(found, model.outputs()) <= model.tolerance


def _classes(layer):
    own = [type(layer).__name__]
    below = [getattr(layer, name, None) for name in ("layer", "forward_layer", "backward_layer")]
    for inner in (*below, *getattr(layer, "layers", [])):
        if inner is not None:
            own += _classes(inner)
    return own


# --- halves ---------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_any_bias_is_split_and_passes(dtype):
    info = np.finfo(dtype)
    tiny = info.smallest_subnormal
    bias = np.array([0.0, -0.0, 1.0, -3.7, info.max, -info.max, tiny, -3 * tiny], dtype)
    edit = Relay("bias", find("keras", "lstm"), find("keras-cudnn", "lstm"), 2)
    made = np.empty(16, dtype)
    edits.apply_edit(edit, bias, made)
    assert (made[:8] + made[8:] == bias).all()
    assert edits.check_edit(edit, bias, made) is None
    assert same_bits(made, split_bias(bias).reshape(-1))


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda first, second: (first + 1, second), "not split into halves"),
        (lambda first, second: (first + second, 0 * second), "not split into halves"),
        (lambda first, second: (np.nextafter(first, 9), np.nextafter(second, 9)), "values differ"),
        (lambda first, second: (first[::-1], second[::-1]), "values differ"),
        (lambda first, second: (first[1:], second[1:]), "instead of two halves"),
    ],
)
def test_what_are_no_halves_is_caught(spoil, message):
    bias = np.random.default_rng(3).normal(size=24).astype(np.float32)
    edit = Relay("bias", find("keras", "lstm"), find("keras-cudnn", "lstm"), 6)
    wrong = np.concatenate(spoil(*split_bias(bias)))
    assert message in edits.check_edit(edit, bias, wrong)


@pytest.mark.parametrize("kind", ["kernel", "recurrent_kernel", "bias"])
def test_a_wrong_conversion_is_not_written(tmp_path, monkeypatch, kind):
    source = plain_file(tmp_path / "m.h5")
    original = h5_patch.apply_edit

    def wrong(edit, stored, target):
        original(edit, stored, target)
        if edit.kind == kind:
            target[..., 0] = target[..., 1]

    monkeypatch.setattr(h5_patch, "apply_edit", wrong)
    before = snapshot(tmp_path)
    with pytest.raises(DifferenceError):
        to_cudnn(source, tmp_path / "c.h5")
    assert snapshot(tmp_path) == before


# --- weights-only files ---------------------------------------------------------------------


@pytest.mark.parametrize("path", WEIGHTS_ONLY, ids=lambda path: "-".join(path.parts[-4:-1]))
@pytest.mark.sampled(6)
def test_weights_only(path, tmp_path):
    rnnconvert.convert(path, tmp_path / "p.h5", **QUICK)
    source = tmp_path / "p.h5" if (tmp_path / "p.h5").exists() else path
    names = tensors(source)
    if any("gru" in name and "bias" in name and v.ndim == 1 for name, v in names.items()):
        with pytest.raises(NotConvertibleError, match="different functions"):
            to_cudnn(source, tmp_path / "c.h5")
        return
    report = to_cudnn(source, tmp_path / "c.h5")
    if report.verdict == "nothing-to-convert":
        assert not report.warnings
        return
    assert "does not say" in report.warnings[-1]
    rnnconvert.convert(tmp_path / "c.h5", tmp_path / "back.h5", **QUICK)
    back = tensors(tmp_path / "back.h5")
    assert all(same_bits(values, back[name]) for name, values in names.items())


def test_weights_without_biases_are_refused(tmp_path):
    source = plain_file(tmp_path / "w.h5", whole=False)
    with h5py.File(source, "r+") as file:
        del file["cu_lstm/cu_lstm/bias:0"]
        names = file["cu_lstm"].attrs["weight_names"]
        file["cu_lstm"].attrs["weight_names"] = names[:2]
    with pytest.raises(NotConvertibleError, match="cu_lstm: no bias"):
        to_cudnn(source, tmp_path / "c.h5")


def test_weights_of_a_whole_model(tmp_path):
    source = plain_file(tmp_path / "m.h5")
    to_cudnn(source, tmp_path / "c.h5")
    report = to_cudnn(source, None, to="weights")
    assert report.output.path == str(tmp_path / "m.weights.cudnn.h5")
    whole, extracted = tensors(tmp_path / "c.h5"), tensors(tmp_path / "m.weights.cudnn.h5")
    assert whole.keys() == extracted.keys()
    assert all(same_bits(whole[name], extracted[name]) for name in whole)


# --- refusals -------------------------------------------------------------------------------


def test_a_keras_file_is_refused(tmp_path):
    source = plain_file(tmp_path / "m.h5")
    for options in ({"output": tmp_path / "c.keras"}, {"output": None, "to": "keras"}):
        with pytest.raises(UsageError, match="Keras 3's"):
            to_cudnn(source, **options)


def test_a_layer_beside_that_was_rescaled_for_keras_3_is_refused(tmp_path):
    """A ConvLSTM whose weights were made for Keras 3's hard_sigmoid is wrong in Keras 2."""
    source = plain_file(tmp_path / "m.h5")
    shapes = {"kernel": (3, 3, 1, 8), "recurrent_kernel": (3, 3, 2, 8), "bias": (8,)}
    config = read_config(source)
    convolutional = {"name": "conv", "filters": 2, "recurrent_activation": "hard_sigmoid"}
    config["config"]["layers"].append({"class_name": "ConvLSTM2D", "config": convolutional})
    write_config(source, config)
    with h5py.File(source, "r+") as file:
        weights = file["model_weights"]
        group = weights.create_group("conv")
        for kind, shape in shapes.items():
            group.create_dataset(f"conv/{kind}:0", data=np.ones(shape, np.float32))
        group.attrs["weight_names"] = [f"conv/{kind}:0".encode() for kind in shapes]
        weights.attrs["layer_names"] = [b"cu_lstm", b"cu_gru", b"conv"]
    to_cudnn(source, tmp_path / "c.h5")
    with h5py.File(source, "r+") as file:
        file.attrs[keras_h5.HARD_SIGMOID_MARK] = "keras3"
    with pytest.raises(NotConvertibleError, match="model/conv: rescaled for Keras 3"):
        to_cudnn(source, tmp_path / "d.h5")


def test_all_problems_are_listed_with_code_4(cli, tmp_path):
    config = read_config(plain_file(tmp_path / "m.h5"))
    first, second = config["config"]["layers"][-2:]
    first["config"]["activation"] = "relu"
    second["config"].update(recurrent_dropout=0.5, unroll=True)
    write_config(tmp_path / "m.h5", config)
    before = snapshot(tmp_path)
    result = cli("keras-to-cudnn", "m.h5", "--json")
    assert result.code == 4
    report = json.loads(result.out)
    assert (report["verdict"], report["command"]) == ("not-convertible", "keras-to-cudnn")
    assert [problem.split(",")[0] for problem in report["problems"]] == [
        "model/cu_lstm: activation relu",
        "model/cu_gru: recurrent_dropout=0.5",
        "model/cu_gru: unroll=True",
    ]
    assert result.err.splitlines()[0] == "error: m.h5: 3 problems"
    assert snapshot(tmp_path) == before


def test_a_bias_that_the_weights_lack(tmp_path):
    config = read_config(plain_file(tmp_path / "m.h5"))
    del config["config"]["layers"][-1]["config"]["use_bias"]
    write_config(tmp_path / "m.h5", config)
    with h5py.File(tmp_path / "m.h5", "r+") as file:
        group = file["model_weights/cu_gru"]
        group.attrs["weight_names"] = group.attrs["weight_names"][:2]
        del file[GRU_BIAS]
    with pytest.raises(NotConvertibleError, match="cu_gru: no bias"):
        to_cudnn(tmp_path / "m.h5", tmp_path / "c.h5")


# --- the command ----------------------------------------------------------------------------


def test_the_command(cli, tmp_path):
    source = plain_file(tmp_path / "m.h5")
    content = source.read_bytes()
    result = cli("keras-to-cudnn", "m.h5", "--verify", "layers")
    assert (result.code, result.err) == (0, "")
    assert source.read_bytes() == content
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m.cudnn.h5", "m.h5"]
    assert "CuDNNLSTM" in result.out
    assert "config: " in result.out
    assert " changes (-v lists them)" in result.out
    assert "ok weights: round trip bit-exact on 6 tensors" in result.out
    again = cli("keras-to-cudnn", "m.h5")
    assert again.code == 5


def test_the_report(cli, tmp_path):
    plain_file(tmp_path / "m.h5")
    report = json.loads(cli("keras-to-cudnn", "m.h5", "--verify", "layers", "--json").out)
    assert (report["command"], report["verdict"]) == ("keras-to-cudnn", "equivalent")
    lstm, gru = report["layers"]
    assert (lstm["class_name"], lstm["from"], lstm["to"]) == ("LSTM", "keras", "keras-cudnn")
    assert (lstm["params"]["from"], lstm["params"]["to"]) == (288, 312)
    assert (gru["params"]["from"], gru["params"]["to"]) == (144, 144)
    operations = [tensor["operation"] for layer in (lstm, gru) for tensor in layer["tensors"]]
    permuted = "per-gate reshape+transpose"
    assert operations == [
        permuted, permuted, "two halves", permuted, permuted, "reshape (2*gates*units,)",
    ]  # fmt: skip
    assert all(tensor["lossless"] for layer in (lstm, gru) for tensor in layer["tensors"])
    assert {
        "path": "model/cu_lstm", "key": "class_name", "from": "LSTM", "to": "CuDNNLSTM"
    } in report["config_changes"]  # fmt: skip
    with h5py.File(tmp_path / "m.cudnn.h5") as file:
        assert file[LSTM_BIAS].shape == (48,)
        assert file[GRU_BIAS].shape == (24,)


def test_check_dry_run_and_nothing_to_do(cli, tmp_path):
    plain_file(tmp_path / "m.h5")
    make_model_h5(tmp_path / "c.h5")
    before = snapshot(tmp_path)
    assert cli("keras-to-cudnn", "m.h5", "--check").code == 1
    assert cli("keras-to-cudnn", "c.h5", "--check").code == 0
    dry = cli("keras-to-cudnn", "m.h5", "-n", "--verify", "weights")
    assert dry.code == 0
    assert dry.out.splitlines()[-1] == (
        "  would be written (dry run, nothing was written), equivalent (weights; the whole model "
        "was not run: not asked for (--verify weights))"
    )
    done = cli("keras-to-cudnn", "c.h5", "-o", "out.h5")
    assert done.code == 0
    assert "nothing to convert: no LSTM or GRU layer" in done.out
    assert snapshot(tmp_path) == before


def test_several_inputs_and_in_place(cli, tmp_path):
    for name in ("a.h5", "b.h5"):
        plain_file(tmp_path / name)
    result = cli("keras-to-cudnn", "a.h5", "b.h5", "missing.h5", "-j", "2", "--verify", "weights")
    assert result.code == 3
    assert (tmp_path / "a.cudnn.h5").exists()
    expected = tensors(tmp_path / "b.cudnn.h5")
    assert cli("keras-to-cudnn", "b.h5", "--in-place", "--verify", "weights").code == 0
    found = tensors(tmp_path / "b.h5")
    assert all(same_bits(values, found[name]) for name, values in expected.items())
    code = cli("keras-to-cudnn", "a.h5", "missing.h5", "--json", "-n", "--verify", "none")
    assert [report["command"] for report in json.loads(code.out)] == ["keras-to-cudnn"] * 2


def test_the_target_is_no_option_of_the_inverse(cli):
    assert cli("keras-to-cudnn", "m.h5", "--target", "keras3").code == 2
    assert cli("keras-to-cudnn", "m.h5", "--to", "keras").code == 2


def test_optimizer_state_is_dropped_with_a_note(cli, tmp_path):
    model = next(model for model in OWN if model.name == "tf215-plain_compiled")
    for option, note in (("convert", "fresh optimizer"), ("drop", "as asked for")):
        report = to_cudnn(model.path, tmp_path / f"{option}.h5", optimizer=option)
        assert report.optimizer.state == "dropped"
        assert note in report.optimizer.notes[0]
        with h5py.File(tmp_path / f"{option}.h5") as file, h5py.File(model.path) as original:
            assert "optimizer_weights" not in file
            assert file.attrs["training_config"] == original.attrs["training_config"]

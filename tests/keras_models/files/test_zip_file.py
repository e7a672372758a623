"""`.keras` and `.weights.h5` files of the real libraries: rebuilt, converted, loaded by Keras 3."""

from __future__ import annotations

import json
import struct
import zipfile
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from models import FIXTURES, ROOT, SHARED, Model, predict, worst_difference

import rnnconvert
from rnnconvert.containers import budget, safe_h5
from rnnconvert.errors import NotConvertibleError, UnreadableInputError
from rnnconvert.keras_models.files.store import model_variables, read_store, snake_case
from rnnconvert.keras_models.files.weights_h5 import (
    rebuild_weights,
    write_keras_weights,
)
from rnnconvert.keras_models.files.zip_file import rebuild_zip, zip_config_of
from rnnconvert.kinds import is_keras_weights

OWN = sorted((ROOT / "fixtures" / "keras_zip").glob("*/*/model.keras"))
FURTHER = sorted((SHARED / "fixtures" / "keras").glob("*/*/model.keras"))
KERAS2 = [path for path in OWN if "k3" not in path.parts]
LSTM = next(path for path in OWN if path.parts[-3:-1] == ("tf212", "seq_lstm"))


def model_of(path: Path) -> Model:
    return Model(f"{path.parts[-3]}-{path.parts[-2]}", path)


def by_layer(path: Path) -> dict[str, list[np.ndarray]]:
    """Arrays of a whole-model HDF5 file: of each layer that has any, in order."""
    found = {}
    with h5py.File(path) as file:
        weights = file["model_weights"]
        for layer in weights.attrs["layer_names"]:
            arrays = [weights[layer][name][()] for name in weights[layer].attrs["weight_names"]]
            if arrays:
                found[layer.decode() if isinstance(layer, bytes) else layer] = arrays
    return found


def same(first: dict[str, list[np.ndarray]], second: dict[str, list[np.ndarray]]) -> bool:
    return list(first) == list(second) and all(
        len(first[name]) == len(second[name])
        and all(np.array_equal(a, b) for a, b in zip(first[name], second[name], strict=True))
        for name in first
    )


@pytest.fixture(scope="module")
def keras():
    return pytest.importorskip("keras", reason="Keras 3 is not installed")


# --- .keras, genuine --------------------------------------------------------------------------


@pytest.mark.parametrize("path", OWN + FURTHER, ids=lambda path: "-".join(path.parts[-3:-1]))
@pytest.mark.sampled(6)
def test_a_rebuilt_model_converts_and_loads_in_keras3(path, tmp_path, keras):
    model = model_of(path)
    rebuilt = rebuild_zip(path, tmp_path / "rebuilt.h5")
    report = rnnconvert.convert(tmp_path / "rebuilt.h5", tmp_path / "out.h5", verify="layers")
    is_keras3 = rebuilt.keras_version.startswith("3.")
    assert report.verdict == ("nothing-to-convert" if is_keras3 else "equivalent")
    written = tmp_path / ("rebuilt.h5" if is_keras3 else "out.h5")
    loaded = keras.models.load_model(written)
    found = predict(loaded, model.inputs())
    assert worst_difference(found, model.outputs()) <= model.tolerance


@pytest.mark.parametrize("path", KERAS2, ids=lambda path: "-".join(path.parts[-3:-1]))
def test_the_weights_are_those_of_the_models_h5_file(path, tmp_path):
    """The same case, saved by the library as .h5: which also shows the order."""
    original = FIXTURES / "tf215" / path.parent.name / "model.h5"
    rebuild_zip(path, tmp_path / "rebuilt.h5")
    mine, its = by_layer(tmp_path / "rebuilt.h5"), by_layer(original)
    assert same(dict(enumerate(mine.values())), dict(enumerate(its.values())))


def test_compiled_models_keep_how_but_not_the_optimizers_state(tmp_path):
    path = next(path for path in OWN if path.parent.name == "opt_adam")
    rebuilt = rebuild_zip(path, tmp_path / "rebuilt.h5")
    assert rebuilt.warnings == (
        "the optimizer's state in this kind of file is not carried over; it is left out",
    )
    with h5py.File(tmp_path / "rebuilt.h5") as file:
        training = json.loads(file.attrs["training_config"])
        assert "optimizer_weights" not in file
    assert training["loss"] == "mse"
    assert training["optimizer_config"]["class_name"].endswith("Adam")


def test_no_other_file_is_left(tmp_path):
    rebuild_zip(LSTM, tmp_path / "rebuilt.h5")
    assert [path.name for path in tmp_path.iterdir()] == ["rebuilt.h5"]


def build_variety(keras: Any) -> Any:
    """One of each layer with variables inside variables, and some that never train."""
    layers = keras.layers
    inner_input = keras.Input((6, 4))
    x = layers.BatchNormalization()(inner_input)
    x = layers.Dense(5)(x)
    x = layers.BatchNormalization(scale=False)(x)
    x = layers.SpectralNormalization(layers.Dense(6))(x)
    frozen = layers.Dense(7)
    x = frozen(x)
    frozen.trainable = False
    backward = layers.RNN(layers.LSTMCell(3), go_backwards=True)
    x = layers.Bidirectional(layers.RNN(layers.GRUCell(3)), backward_layer=backward)(x)
    inner = keras.Model(inner_input, x)
    source = keras.Input((6, 5))
    x = layers.Bidirectional(layers.LSTM(4, return_sequences=True, dropout=0.1))(source)
    cells = [layers.GRUCell(3), layers.LSTMCell(4), layers.GRUCell(4)]
    x = layers.RNN(layers.StackedRNNCells(cells), return_sequences=True)(x)
    x = layers.MultiHeadAttention(2, 3)(x, x)
    x = inner(x + 1.0)
    x = layers.RepeatVector(2)(layers.Dropout(0.5, seed=1)(x))
    x = layers.ConvLSTM2D(2, 1)(layers.Reshape((2, 6, 1, 1))(x))
    model = keras.Model(source, x)
    generator = np.random.default_rng(5)
    model.set_weights([generator.normal(0.5, 0.2, w.shape) for w in model.get_weights()])
    return model


@pytest.mark.corpus
def test_a_keras3_file_is_rebuilt_as_keras3_writes_it(tmp_path, keras):
    model = build_variety(keras)
    model.compile("adam", "mse", metrics=["mae"])
    model.save(tmp_path / "model.keras")
    model.save(tmp_path / "its.h5")
    rebuild_zip(tmp_path / "model.keras", tmp_path / "mine.h5")
    assert same(by_layer(tmp_path / "mine.h5"), by_layer(tmp_path / "its.h5"))
    report = rnnconvert.convert(tmp_path / "mine.h5", verify="layers")
    assert report.verdict == "nothing-to-convert"
    assert len(report.layers) == 8
    x = np.random.default_rng(1).normal(size=(2, 6, 5)).astype("float32")
    loaded = keras.models.load_model(tmp_path / "mine.h5")
    assert np.array_equal(loaded.predict(x, verbose=0), model.predict(x, verbose=0))


@pytest.mark.parametrize(
    ("class_name", "expected"),
    [
        ("CuDNNLSTM", "cu_dnnlstm"),
        ("LSTM", "lstm"),
        ("LSTMCell", "lstm_cell"),
        ("StackedRNNCells", "stacked_rnn_cells"),
        ("Conv2DTranspose", "conv2d_transpose"),
        ("PReLU", "p_re_lu"),
    ],
)
def test_snake_case(class_name, expected):
    assert snake_case(class_name) == expected


def test_paths_of_windows_are_read(tmp_path):
    """Keras 2 on Windows: one group whose name holds the whole path, with backslashes."""
    mine, windows = zip_parts(LSTM), tmp_path / "windows.h5"
    (tmp_path / "plain.h5").write_bytes(mine["model.weights.h5"])
    with h5py.File(tmp_path / "plain.h5") as source, h5py.File(windows, "w") as target:
        for variables in read_store(source).values():
            for path in variables.values():
                owner, _, rest = path.partition("/vars/")
                target[f"{owner.replace('/', chr(92))}/vars/{rest}"] = source[path][()]
        assert all("\\" in name for name in target)
    mine["model.weights.h5"] = windows.read_bytes()
    rebuild_zip(write_zip(tmp_path / "w.keras", mine), tmp_path / "w.h5")
    rebuild_zip(LSTM, tmp_path / "l.h5")
    assert same(by_layer(tmp_path / "w.h5"), by_layer(tmp_path / "l.h5"))


# --- .weights.h5, genuine ---------------------------------------------------------------------

WEIGHTS = [path for path in OWN + FURTHER if path.with_name("new.weights.h5").exists()]


@pytest.mark.parametrize("path", WEIGHTS, ids=lambda path: "-".join(path.parts[-3:-1]))
@pytest.mark.sampled(6)
def test_converted_weights_load_into_the_portable_model(path, tmp_path, keras):
    model = model_of(path)
    rebuild_zip(path, tmp_path / "whole.h5")
    rnnconvert.convert(tmp_path / "whole.h5", tmp_path / "portable.h5", verify="none")
    loaded = keras.models.load_model(tmp_path / "portable.h5")
    loaded.set_weights([np.zeros_like(weight) for weight in loaded.get_weights()])

    weights = path.with_name("new.weights.h5")
    rebuilt = rebuild_weights(weights, tmp_path / "w.h5")
    assert rebuilt.warnings == ()
    report = rnnconvert.convert(tmp_path / "w.h5", tmp_path / "c.h5", verify="layers")
    assert report.verdict == "equivalent"
    write_keras_weights(weights, tmp_path / "c.h5", tmp_path / "out.weights.h5")
    loaded.load_weights(tmp_path / "out.weights.h5")
    assert worst_difference(predict(loaded, model.inputs()), model.outputs()) <= model.tolerance


def test_plain_weights_of_keras3_need_nothing_and_come_back_as_they_are(tmp_path, keras):
    model = build_variety(keras)
    original = tmp_path / "m.weights.h5"
    model.save_weights(original)
    rebuild_weights(original, tmp_path / "w.h5")
    report = rnnconvert.convert(tmp_path / "w.h5", tmp_path / "c.h5", verify="layers")
    assert report.verdict == "nothing-to-convert"
    assert report.warnings == ()
    assert len(report.layers) == 7  # all but the ConvLSTM2D
    write_keras_weights(original, tmp_path / "w.h5", tmp_path / "again.weights.h5")
    before = model.get_weights()
    model.set_weights([np.zeros_like(weight) for weight in before])
    model.load_weights(tmp_path / "again.weights.h5")
    assert all(np.array_equal(a, b) for a, b in zip(before, model.get_weights(), strict=True))


def write_weights(path: Path, shapes: dict[str, list[tuple[int, ...]]]) -> Path:
    generator = np.random.default_rng(3)
    with h5py.File(path, "w") as file:
        file.create_group("vars")
        for owner, variables in shapes.items():
            for index, shape in enumerate(variables):
                values = generator.normal(size=shape).astype("float32")
                file[f"{owner}/vars/{index}"] = values
    return path


CUDNN_LSTM = [(5, 12), (3, 12), (24,)]
PLAIN_LSTM = [(3, 16), (4, 16), (16,)]


def test_layers_that_are_counted_together_are_refused(tmp_path):
    """The order of a CuDNNLSTM and an LSTM is not in the file, and both become an LSTM."""
    shapes = {"layers/cu_dnnlstm": CUDNN_LSTM, "layers/lstm/cell": PLAIN_LSTM}
    path = write_weights(tmp_path / "m.weights.h5", shapes)
    rebuild_weights(path, tmp_path / "w.h5")
    rnnconvert.convert(tmp_path / "w.h5", tmp_path / "c.h5", verify="layers")
    with pytest.raises(NotConvertibleError, match="counted together"):
        write_keras_weights(path, tmp_path / "c.h5", tmp_path / "o.weights.h5")


def test_gru_and_lstm_are_counted_apart(tmp_path):
    shapes = {
        "layers/cu_dnnlstm_10": CUDNN_LSTM,
        "layers/gru/cell": [(3, 9), (3, 9), (2, 9)],
        "layers/dense/vars_of_mine": [(3, 9), (3, 9), (9,)],
        "optimizer": [()],
    }
    path = write_weights(tmp_path / "m.weights.h5", shapes)
    assert rebuild_weights(path, tmp_path / "w.h5").warnings
    rnnconvert.convert(tmp_path / "w.h5", tmp_path / "c.h5", verify="layers")
    write_keras_weights(path, tmp_path / "c.h5", tmp_path / "o.weights.h5")
    with h5py.File(tmp_path / "o.weights.h5") as file, h5py.File(path) as original:
        assert file["layers/lstm_10/cell/vars/2"].shape == (12,)
        assert "optimizer" not in file
        bias = original["layers/cu_dnnlstm_10/vars/2"][()]
        expected = bias[:12] + bias[12:]
        assert np.array_equal(file["layers/lstm_10/cell/vars/2"][()], expected)
        for name in ("layers/gru/cell/vars/2", "layers/dense/vars_of_mine/vars/0"):
            assert np.array_equal(file[name][()], original[name][()])


@pytest.mark.parametrize("shapes", [PLAIN_LSTM, CUDNN_LSTM[:2], [(5, 9), (3, 9), (18,)]])
def test_a_cudnn_layer_by_name_only_is_refused(tmp_path, shapes):
    path = write_weights(tmp_path / "m.weights.h5", {"layers/cu_dnnlstm": shapes})
    with pytest.raises(UnreadableInputError, match="by its name a CuDNN layer"):
        rebuild_weights(path, tmp_path / "w.h5")


def test_other_files_of_a_pair_are_refused(tmp_path):
    first = write_weights(tmp_path / "a.weights.h5", {"layers/cu_dnnlstm": CUDNN_LSTM})
    write_weights(tmp_path / "b.weights.h5", {"layers/cu_dnngru": [(5, 9), (3, 9), (18,)]})
    rebuild_weights(tmp_path / "b.weights.h5", tmp_path / "b.h5")
    with pytest.raises(UnreadableInputError):
        write_keras_weights(first, tmp_path / "b.h5", tmp_path / "o.weights.h5")


def test_the_new_form_is_told_from_the_old(tmp_path):
    new = [path.with_name("new.weights.h5") for path in WEIGHTS]
    old = sorted(FIXTURES.glob("tf215/*/weights.h5"))
    assert new
    assert old
    for path in new + old:
        with safe_h5.open_h5(path) as file:
            assert is_keras_weights(file) == (path in new), path


# --- models that have no such form ------------------------------------------------------------


def zip_parts(path: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(path) as file:
        return {name: file.read(name) for name in file.namelist()}


def write_zip(path: Path, parts: dict[str, bytes], compression: int = zipfile.ZIP_STORED) -> Path:
    with zipfile.ZipFile(path, "w", compression) as file:
        for name, content in parts.items():
            file.writestr(name, content)
    return path


def changed(tmp_path: Path, change: Any, path: Path = LSTM) -> Path:
    """A copy of a file whose config was changed by a function."""
    parts = zip_parts(path)
    config = json.loads(parts["config.json"])
    change(config)
    parts["config.json"] = json.dumps(config).encode()
    return write_zip(tmp_path / "changed.keras", parts)


def test_deflated_members_are_accepted(tmp_path):
    path = write_zip(tmp_path / "m.keras", zip_parts(LSTM), zipfile.ZIP_DEFLATED)
    rebuild_zip(path, tmp_path / "m.h5")
    rebuild_zip(LSTM, tmp_path / "l.h5")
    assert same(by_layer(tmp_path / "m.h5"), by_layer(tmp_path / "l.h5"))
    assert zip_config_of(path) == zip_config_of(LSTM)


def test_code_in_the_config_is_carried_along_and_never_run(tmp_path):
    code = {"class_name": "__lambda__", "config": {"code": "never/run", "defaults": None}}
    entry = {"class_name": "Lambda", "config": {"name": "lam", "function": code}}
    foreign = {"module": "os", "class_name": "system", "config": {"command": "touch here"}}

    def add(config):
        config["config"]["layers"] += [entry, {**foreign, "name": "foreign"}]

    path = changed(tmp_path, add)
    rebuild_zip(path, tmp_path / "m.h5")
    with h5py.File(tmp_path / "m.h5") as file:
        layers = json.loads(file.attrs["model_config"])["config"]["layers"]
    assert layers == zip_config_of(path)["config"]["layers"]
    assert layers[-2] == entry


def test_subclassed_models_are_refused(tmp_path):
    path = changed(tmp_path, lambda config: config.update(class_name="MyModel"))
    with pytest.raises(NotConvertibleError, match="'MyModel'"):
        rebuild_zip(path, tmp_path / "m.h5")


def test_weights_that_the_config_does_not_know_are_refused(tmp_path):
    path = changed(tmp_path, lambda config: config["config"]["layers"].pop())
    with pytest.raises(NotConvertibleError, match=r"layers/dense/vars .*not a part"):
        rebuild_zip(path, tmp_path / "m.h5")


def test_layers_without_their_weights_are_refused(tmp_path):
    def add(config):
        layers = config["config"]["layers"]
        more = json.loads(json.dumps(layers[1]))
        more["config"]["name"] = "third"
        layers.append(more)

    with pytest.raises(UnreadableInputError, match=r"model/third: .*found 0 variables"):
        rebuild_zip(changed(tmp_path, add), tmp_path / "m.h5")


def test_two_layers_of_one_name_are_refused(tmp_path):
    def rename(config):
        config["config"]["layers"][2]["config"]["name"] = config["config"]["layers"][1]["config"][
            "name"
        ]

    with pytest.raises(UnreadableInputError, match="two layers called"):
        rebuild_zip(changed(tmp_path, rename), tmp_path / "m.h5")


def test_custom_classes_at_the_top_only():
    """In a nested model what trains comes first, and of a custom class nobody knows what does."""
    layer = {"class_name": "Mine", "config": {"name": "mine"}}
    inner = {"class_name": "Sequential", "config": {"name": "inner", "layers": [layer]}}
    model = {"class_name": "Sequential", "config": {"name": "m", "layers": [layer]}}
    found = model_variables(model, {"layers/mine": {"0": "a", "1": "b"}})
    assert [variable.dataset for variable in found["mine"]] == ["a", "b"]
    model["config"]["layers"] = [inner]
    with pytest.raises(NotConvertibleError, match=r"model/inner/mine: .*custom class Mine"):
        model_variables(model, {"layers/sequential/layers/mine": {"0": "a"}})


@pytest.mark.parametrize(
    ("variables", "error"),
    [({"kernel": "a"}, NotConvertibleError), ({"0": "a", "2": "b"}, UnreadableInputError)],
)
def test_variables_without_an_order_are_refused(variables, error):
    layer = {"class_name": "Dense", "config": {"name": "d"}}
    model = {"class_name": "Sequential", "config": {"name": "m", "layers": [layer]}}
    with pytest.raises(error, match="layers/dense/vars"):
        model_variables(model, {"layers/dense": variables})


@pytest.mark.parametrize("version", ["2.15.0", "3.9.2"])
def test_vocabularies_have_no_place_in_an_h5_file(tmp_path, version):
    parts = zip_parts(LSTM)
    parts["metadata.json"] = json.dumps({"keras_version": version}).encode()
    parts["assets/layers/string_lookup/vocabulary.txt"] = b"a\nb\n"
    path = write_zip(tmp_path / "m.keras", parts)
    if version.startswith("2"):
        with pytest.raises(NotConvertibleError, match="an HDF5 file has no place"):
            rebuild_zip(path, tmp_path / "m.h5")
    else:
        assert "left out" in rebuild_zip(path, tmp_path / "m.h5").warnings[0]


# --- bad zips ---------------------------------------------------------------------------------


def refused(path: Path, tmp_path: Path) -> str:
    with pytest.raises(UnreadableInputError) as caught:
        rebuild_zip(path, tmp_path / "never.h5")
    assert caught.value.path == str(path)
    assert "\n" not in str(caught.value)
    return caught.value.message


@pytest.mark.parametrize("name", ["config.json", "metadata.json", "model.weights.h5"])
def test_missing_members_are_refused(tmp_path, name):
    parts = zip_parts(LSTM)
    del parts[name]
    assert name in refused(write_zip(tmp_path / "m.keras", parts), tmp_path)


def test_other_weights_are_refused(tmp_path):
    parts = zip_parts(LSTM)
    parts["model.weights.npz"] = parts.pop("model.weights.h5")
    with pytest.raises(NotConvertibleError, match=r"save it again"):
        rebuild_zip(write_zip(tmp_path / "m.keras", parts), tmp_path / "m.h5")


def test_members_that_are_there_twice_are_refused(tmp_path):
    path = write_zip(tmp_path / "m.keras", zip_parts(LSTM))
    with (
        zipfile.ZipFile(path, "a") as file,
        pytest.warns(UserWarning, match="Duplicate name"),
    ):
        file.writestr("config.json", b"{}")
    assert refused(path, tmp_path) == "refused as unsafe: 'config.json' is there twice"


def patch_directory(path: Path, member: str, offset: int, value: bytes) -> None:
    """Overwrite a field of a member's entry in the zip's central directory."""
    raw = bytearray(path.read_bytes())
    at = raw.rindex(member.encode()) - 46
    assert raw[at : at + 4] == b"PK\x01\x02"
    raw[at + offset : at + offset + len(value)] = value
    path.write_bytes(raw)


@pytest.mark.parametrize(
    ("offset", "value", "reason"),
    [
        (8, b"\x01\x00", "is encrypted"),
        (10, b"\x0c\x00", "compressed in a way"),
        (24, struct.pack("<I", 2**31), "can't hold"),
        (20, struct.pack("<I", 2**31), "larger than itself"),
        (42, struct.pack("<I", 2**30), "damaged"),
        (16, b"\x00\x00\x00\x00", "damaged"),
    ],
    ids=["encrypted", "bzip2", "size", "compressed size", "place", "checksum"],
)
@pytest.mark.parametrize("member", ["config.json", "model.weights.h5"])
def test_false_fields_are_refused(tmp_path, member, offset, value, reason):
    path = write_zip(tmp_path / "m.keras", zip_parts(LSTM))
    patch_directory(path, member, offset, value)
    assert reason in refused(path, tmp_path)


def test_bombs_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(budget, "_LEAST_MEMBER", 10_000)
    parts = zip_parts(LSTM)
    parts["model.weights.h5"] = bytes(10**7)
    path = write_zip(tmp_path / "m.keras", parts, zipfile.ZIP_DEFLATED)
    assert "'model.weights.h5' would take 10,000,000 bytes" in refused(path, tmp_path)
    parts["model.weights.h5"] = zip_parts(LSTM)["model.weights.h5"]
    rebuild_zip(write_zip(tmp_path / "m.keras", parts, zipfile.ZIP_DEFLATED), tmp_path / "m.h5")


def test_over_long_configs_are_refused(tmp_path):
    config = zip_parts(LSTM)["config.json"]
    assert zip_config_of(LSTM) == json.loads(config)
    with budget.max_bytes(len(config) - 1):
        assert "--max-bytes" in refused(LSTM, tmp_path)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("config.json", b"[]"),
        ("config.json", b"{"),
        ("config.json", b"\xff\xfe"),
        ("config.json", b'{"class_name": "Sequential", "config": {"layers": [1]}'),
        ("config.json", b'{"a": ' + b"[" * 1000 + b"]" * 1000 + b"}"),
        ("metadata.json", b"{}"),
        ("metadata.json", b'{"keras_version": 3}'),
        ("model.weights.h5", b""),
        ("model.weights.h5", b"garbage"),
    ],
)
def test_bad_members_are_refused(tmp_path, name, content):
    assert refused(write_zip(tmp_path / "m.keras", zip_parts(LSTM) | {name: content}), tmp_path)


def test_names_in_the_zip_are_never_paths(tmp_path):
    (tmp_path / "here").mkdir()
    parts = zip_parts(LSTM) | {"../outside": b"x", "/absolute": b"x", "model.weights.h5/x": b"x"}
    rebuild_zip(write_zip(tmp_path / "m.keras", parts), tmp_path / "here" / "m.h5")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["here", "m.keras"]
    assert [path.name for path in (tmp_path / "here").iterdir()] == ["m.h5"]


@pytest.mark.parametrize("place", ["_layer_checkpoint_dependencies/dense/vars/1", "more"])
@pytest.mark.parametrize("link", [h5py.ExternalLink("/etc/passwd", "/x"), h5py.SoftLink("/vars")])
def test_links_in_the_weights_are_refused(tmp_path, place, link):
    parts = zip_parts(LSTM)
    weights = tmp_path / "weights.h5"
    weights.write_bytes(parts["model.weights.h5"])
    with h5py.File(weights, "r+") as file:
        if place in file:
            del file[place]
        file[place] = link
    parts["model.weights.h5"] = weights.read_bytes()
    path = write_zip(tmp_path / "m.keras", parts)
    assert refused(path, tmp_path) == f"refused as unsafe: /{place} is a link out of its place"


@pytest.mark.parametrize("share", [0.0, 0.2, 0.5, 0.9, 0.999])
def test_truncated_files_are_refused(tmp_path, share):
    raw = LSTM.read_bytes()
    path = tmp_path / "m.keras"
    path.write_bytes(raw[: int(len(raw) * share)])
    assert refused(path, tmp_path)


def test_what_is_no_file_is_refused(tmp_path):
    for path in (tmp_path / "missing.keras", tmp_path):
        assert "no such file" in refused(path, tmp_path)


def test_damage_anywhere_ends_in_one_line(tmp_path):
    """Bytes of the archive, or of the weights in it, overwritten at random."""
    generator = np.random.default_rng(11)
    raw, parts, path = LSTM.read_bytes(), zip_parts(LSTM), tmp_path / "m.keras"
    messages: list[str] = []
    for trial in range(150):
        inside = trial % 2 == 0
        damaged = bytearray(parts["model.weights.h5"] if inside else raw)
        for place in generator.integers(0, len(damaged), 5):
            damaged[place] = generator.integers(0, 256)
        if inside:
            write_zip(path, parts | {"model.weights.h5": bytes(damaged)})
        else:
            path.write_bytes(damaged)
        try:
            rebuild_zip(path, tmp_path / "m.h5")
        except (UnreadableInputError, NotConvertibleError) as error:
            messages.append(str(error))
    assert len(messages) > 75
    assert not any("\n" in message for message in messages)

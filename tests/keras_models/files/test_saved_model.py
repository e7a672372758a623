"""Keras models out of SavedModels: genuine files of many versions, and tf_keras' own HDF5 files."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import h5py
import numpy as np
import pytest
from models import SHARED, predict, worst_difference

import rnnconvert
from rnnconvert.errors import ConversionError, NotConvertibleError, UnreadableInputError
from rnnconvert.keras_models.files.saved_config import IN_ASSETS, IN_METADATA, IN_OBJECT_GRAPH
from rnnconvert.keras_models.files.saved_model import (
    has_keras_config,
    rebuild_saved_model,
    saved_config_of,
)

OWN = Path(__file__).parents[3] / "fixtures" / "savedmodels"
KERAS_CASES = {
    "tf112/keras_contrib": IN_ASSETS,
    "tf115/keras_experimental": IN_ASSETS,
    "tf115/keras_save": IN_OBJECT_GRAPH,
    "tf23/plain_lstm": IN_OBJECT_GRAPH,
    "tf215/plain_lstm_gru": IN_METADATA,
    "tf215/plain_untraced": IN_METADATA,
}
NO_CONFIG_CASES = ("tf15/contrib_lstm", "tf215/plain_export", "tf215/keras_export", "tf215/ops_v3")
FURTHER = sorted((SHARED / "fixtures" / "keras").glob("*/*/savedmodel_tf2_notraces"))
NETSEC = SHARED / "real-models" / "netsec_plain_lstm_savedmodel"
needs_shared = pytest.mark.skipif(not FURTHER, reason="the folder ../shared/fixtures is not here")


def arrays(path: Path, prefix: str) -> list[np.ndarray]:
    with np.load(path) as data:
        return [data[name] for name in sorted(data.files) if name.startswith(prefix)]


def in_keras3(saved_model: Path, folder: Path, inputs: list[np.ndarray]) -> list[np.ndarray]:
    """Outputs of the rebuilt and converted model in Keras 3."""
    keras = pytest.importorskip("keras")
    rebuilt, converted = folder / "rebuilt.h5", folder / "converted.h5"
    rebuild_saved_model(saved_model, rebuilt)
    report = rnnconvert.convert(rebuilt, converted, verify="layers")
    assert report.verdict == "equivalent"
    return predict(keras.models.load_model(converted), inputs)


# --- genuine files --------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("case", KERAS_CASES)
@pytest.mark.sampled(3)
def test_outputs_are_those_of_the_savedmodel(case: str, tmp_path: Path) -> None:
    data = OWN / case / "data.npz"
    found = in_keras3(OWN / case / "model", tmp_path, arrays(data, "in/"))
    assert worst_difference(found, arrays(data, "out/")) < 1e-5


@pytest.mark.slow
@needs_shared
@pytest.mark.parametrize(
    "folder",
    [path for path in FURTHER if path.parent.name in ("encdec", "nested2", "half")],
    ids=lambda path: path.parent.name,
)
def test_outputs_of_further_savedmodels(folder: Path, tmp_path: Path) -> None:
    found = in_keras3(folder, tmp_path, arrays(folder.parent / "x.npz", "arr_"))
    expected = arrays(folder.parent / "expected.npz", "y")
    assert worst_difference(found, expected) < (5e-3 if "half" in str(folder) else 1e-5)


@needs_shared
@pytest.mark.parametrize("folder", FURTHER, ids=lambda path: path.parent.name)
@pytest.mark.sampled(2)
def test_cudnn_layers_stay_as_they_are(folder: Path, tmp_path: Path) -> None:
    """The same layers and weights, by name, place and value, as in the writer's own HDF5 file."""
    rebuild_saved_model(folder, tmp_path / "m.h5")
    assert contents(tmp_path / "m.h5") == contents(folder.parent / "full.h5")


@pytest.mark.skipif(not NETSEC.exists(), reason="the folder ../shared/real-models is not here")
def test_a_model_that_others_trained(tmp_path: Path) -> None:
    rebuilt = rebuild_saved_model(NETSEC, tmp_path / "m.h5")
    assert "29 variables of optimizer and metrics" in rebuilt.warnings[0]
    with h5py.File(tmp_path / "m.h5") as file:
        layers = file["model_weights"].values()
        assert sum(len(layer.attrs["weight_names"]) for layer in layers) == 10
    assert saved_config_of(NETSEC).tensorflow_version == "2.8.0"
    report = rnnconvert.convert(tmp_path / "m.h5", tmp_path / "out.h5", verify="layers")
    assert (report.verdict, report.layers[0].site.class_name) == ("equivalent", "LSTM")


@pytest.mark.parametrize(("case", "place"), KERAS_CASES.items())
def test_where_the_config_is(case: str, place: str) -> None:
    config = saved_config_of(OWN / case / "model")
    assert has_keras_config(OWN / case / "model")
    assert config.place == place
    assert config.backend == "tensorflow"
    tf, keras = {
        "tf112": ("1.12.3", "2.1.6-tf"),
        "tf115": ("1.15.5", "2.2.4-tf"),
        "tf23": ("2.3.4", "2.4.0"),
        "tf215": ("2.15.1", "2.15.0"),
    }[case.partition("/")[0]]
    assert (config.tensorflow_version, config.keras_version) == (tf, keras)


def test_names_of_weights_are_tensorflows(tmp_path: Path) -> None:
    rebuild_saved_model(OWN / "tf115" / "keras_save" / "model", tmp_path / "m.h5")
    names, _ = contents(tmp_path / "m.h5")
    assert list(names) == ["x", "both", "gru", "head"]
    assert [name for name, _ in names["both"]] == [
        f"both/{direction}_cu_dnnlstm/{kind}:0"
        for direction in ("forward", "backward")
        for kind in ("kernel", "recurrent_kernel", "bias")
    ]


def test_what_is_left_out_is_told(tmp_path: Path) -> None:
    rebuilt = rebuild_saved_model(OWN / "tf215" / "plain_untraced" / "model", tmp_path / "m.h5")
    assert rebuilt.warnings == (
        "the training config and 26 variables of optimizer and metrics are left out; "
        "call model.compile(...) to train",
    )
    assert not rebuild_saved_model(
        OWN / "tf115" / "keras_save" / "model", tmp_path / "m.h5"
    ).warnings


def test_the_same_input_gives_the_same_bytes(tmp_path: Path) -> None:
    for name in ("a.h5", "b.h5"):
        rebuild_saved_model(OWN / "tf215" / "plain_lstm_gru" / "model", tmp_path / name)
    assert (tmp_path / "a.h5").read_bytes() == (tmp_path / "b.h5").read_bytes()


# --- against the HDF5 file that tf_keras writes of the same model ------------------------------

Builder = Callable[[ModuleType], Any]


def nested(keras: ModuleType) -> Any:
    """Frozen and live layers, BatchNormalization's four weights, a model in a model in a model."""
    layers = keras.layers
    inside = keras.Input((9, 5))
    hidden = layers.Bidirectional(layers.LSTM(4, return_sequences=True))(inside)
    hidden = layers.BatchNormalization()(hidden)
    deep = keras.Sequential(
        [layers.GRU(6, return_sequences=True, input_shape=(9, 8)), layers.Dense(3)]
    )
    frozen = layers.LSTM(4, trainable=False)
    inner = keras.Model(inside, layers.Dense(5)(frozen(deep(hidden))))
    outside = keras.Input((9, 5))
    return keras.Model(outside, layers.Dense(2)(inner(outside)))


def siamese(keras: ModuleType) -> Any:
    layers = keras.layers
    left, right = keras.Input((9, 5)), keras.Input((9, 5))
    shared = layers.Bidirectional(layers.GRU(6), merge_mode="sum")
    model = keras.Sequential([layers.LSTM(3, input_shape=(9, 5)), layers.Dense(4)])
    both = layers.concatenate([shared(left), shared(right), model(left), model(right)])
    return keras.Model([left, right], layers.Dense(2)(both))


def time_distributed(keras: ModuleType) -> Any:
    layers = keras.layers
    inner = keras.Sequential([layers.LSTM(6, input_shape=(9, 5)), layers.Dense(3)])
    outside = keras.Input((4, 9, 5))
    hidden = layers.TimeDistributed(inner)(outside)
    return keras.Model(outside, layers.GRU(2)(layers.TimeDistributed(layers.Dense(7))(hidden)))


def stateful(keras: ModuleType) -> Any:
    layers = keras.layers
    first = layers.LSTM(6, stateful=True, return_sequences=True, batch_input_shape=(3, 9, 5))
    return keras.Sequential([first, layers.GRU(4, stateful=True)])


def cells(keras: ModuleType) -> Any:
    layers = keras.layers
    outside = keras.Input((9, 5))
    stack = [layers.LSTMCell(6), layers.GRUCell(4)]
    hidden = layers.RNN(stack, return_sequences=True)(outside)
    hidden = layers.Bidirectional(layers.RNN(layers.LSTMCell(3), return_sequences=True))(hidden)
    return keras.Model(outside, layers.RNN(layers.SimpleRNNCell(4))(hidden))


def others(keras: ModuleType) -> Any:
    layers = keras.layers
    outside = keras.Input((9,), dtype="int32")
    hidden = layers.SeparableConv1D(7, 3)(layers.Embedding(11, 5)(outside))
    hidden = layers.MultiHeadAttention(2, 3)(hidden, hidden)
    hidden = layers.LayerNormalization()(layers.SimpleRNN(4, return_sequences=True)(hidden))
    return keras.Model(outside, layers.PReLU()(layers.LSTM(3, go_backwards=True)(hidden)))


def scaled(keras: ModuleType) -> Any:
    """A custom layer that makes a weight that does not train before one that does."""

    class Scale(keras.layers.Layer):
        def build(self, shape: Any) -> None:
            self.count = self.add_weight("count", (1,), trainable=False)
            self.scale = self.add_weight("scale", (int(shape[-1]),))

        def call(self, value: Any) -> Any:
            return value * self.scale + self.count

    return keras.Sequential([keras.layers.LSTM(6, input_shape=(9, 5)), Scale()])


def inner_layers(keras: ModuleType) -> Any:
    """A custom layer with layers in it, made in another order than they are called."""

    class Gated(keras.layers.Layer):
        def build(self, shape: Any) -> None:
            self.late, self.early = keras.layers.Dense(3), keras.layers.Dense(6)

        def call(self, value: Any) -> Any:
            return self.late(self.early(value))

    return keras.Sequential([keras.Input((4,)), Gated(), keras.layers.Dense(5), Gated()])


PLAIN = (nested, siamese, time_distributed, stateful, cells, others)


def build(builder: Builder) -> Any:
    """A tf_keras model, no weight of it zero."""
    keras = pytest.importorskip("tf_keras")
    keras.backend.clear_session()
    model = builder(keras)
    generator = np.random.default_rng(5)
    weights = [generator.normal(0.0, 0.4, value.shape) for value in model.get_weights()]
    model.set_weights(
        [
            np.abs(value) + 0.1 if "variance" in weight.name else value
            for value, weight in zip(weights, model.weights, strict=True)
        ]
    )
    return model


def save(model: Any, folder: Path, *, traces: bool = False) -> Path:
    """Save it both ways; the SavedModel's folder."""
    model.save(folder / "keras.h5")
    model.save(folder / "saved", save_format="tf", save_traces=traces)
    return folder / "saved"


def contents(path: Path) -> tuple[dict[str, list[Any]], Any]:
    """Layers and their weights in the file's order, and the config without import paths."""

    def text(value: str | bytes) -> str:
        return value.decode() if isinstance(value, bytes) else value

    with h5py.File(path) as file:
        layers = {}
        for name in map(text, file["model_weights"].attrs["layer_names"]):
            group = file["model_weights"][name]
            names = [text(weight) for weight in group.attrs["weight_names"]]
            layers[name] = [(weight, group[weight][()].tolist()) for weight in names]
        return layers, without_paths(json.loads(file.attrs["model_config"]))


def without_paths(value: Any) -> Any:
    """A config without the keys that Keras 2.13 and later add for an HDF5 file only."""
    if isinstance(value, list):
        return [without_paths(item) for item in value]
    if isinstance(value, dict):
        added = ("module", "registered_name", "build_config")
        return {key: without_paths(item) for key, item in value.items() if key not in added}
    return value


@pytest.mark.slow
@pytest.mark.parametrize("builder", [*PLAIN, scaled])
@pytest.mark.corpus
def test_equals_the_h5_file_of_tf_keras(builder: Builder, tmp_path: Path) -> None:
    saved = save(build(builder), tmp_path)
    rebuild_saved_model(saved, tmp_path / "rebuilt.h5")
    found, expected = contents(tmp_path / "rebuilt.h5"), contents(tmp_path / "keras.h5")
    assert list(found[0]) == list(expected[0])
    assert found == expected


@pytest.mark.slow
@pytest.mark.parametrize("builder", [time_distributed, stateful])
@pytest.mark.sampled(2)
def test_outputs_are_those_of_tf_keras(builder: Builder, tmp_path: Path) -> None:
    model = build(builder)
    generator = np.random.default_rng(6)
    inputs = [generator.normal(size=(3, *tensor.shape[1:])) for tensor in model.inputs]
    inputs = [array.astype("float32") for array in inputs]
    found = in_keras3(save(model, tmp_path), tmp_path, inputs)
    assert worst_difference(found, predict(model, inputs)) < 1e-5


@pytest.mark.slow
def test_lists_of_weights_tell_the_order_in_a_custom_layer(tmp_path: Path) -> None:
    model = build(inner_layers)
    saved = save(model, tmp_path, traces=True)
    rebuild_saved_model(saved, tmp_path / "rebuilt.h5")
    assert contents(tmp_path / "rebuilt.h5")[0] == contents(tmp_path / "keras.h5")[0]


@pytest.mark.slow
def test_an_order_that_is_not_known_is_refused(tmp_path: Path) -> None:
    saved = save(build(inner_layers), tmp_path)
    with pytest.raises(NotConvertibleError, match=r"^model/gated: a .*Gated with weights in obj"):
        rebuild_saved_model(saved, tmp_path / "rebuilt.h5")


# --- no configuration -------------------------------------------------------------------------


@pytest.mark.parametrize("case", NO_CONFIG_CASES)
def test_without_a_config_the_reason_is_given(case: str, tmp_path: Path) -> None:
    assert not has_keras_config(OWN / case / "model")
    with pytest.raises(NotConvertibleError) as caught:
        rebuild_saved_model(OWN / case / "model", tmp_path / "m.h5")
    assert "no Keras configuration (model.export, tf.saved_model.save" in caught.value.message
    assert "--to savedmodel lowers it instead" in caught.value.message
    assert not (tmp_path / "m.h5").exists()


@pytest.mark.slow
def test_tf_saved_model_save_of_a_keras_model(tmp_path: Path) -> None:
    tf = pytest.importorskip("tensorflow")
    model = build(lambda keras: keras.Sequential([keras.layers.Dense(2, input_shape=(3,))]))
    tf.saved_model.save(model, str(tmp_path / "saved"))
    assert not has_keras_config(tmp_path / "saved")
    with pytest.raises(NotConvertibleError, match="was called on a Keras model, which leaves it"):
        saved_config_of(tmp_path / "saved")


@pytest.mark.slow
def test_a_subclassed_model_has_no_layers_in_its_config(tmp_path: Path) -> None:
    keras = pytest.importorskip("tf_keras")

    class Own(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.dense = keras.layers.Dense(2)

        def call(self, value: Any) -> Any:
            return self.dense(value)

    model = Own()
    model(np.ones((2, 3), "float32"))
    model.save(tmp_path / "saved", save_format="tf", save_traces=False)
    with pytest.raises(NotConvertibleError, match=r"holds no layers of the .*Own: it is no Sequen"):
        saved_config_of(tmp_path / "saved")


# --- damaged files ----------------------------------------------------------------------------


@pytest.fixture
def copied(tmp_path: Path) -> Callable[[str], Path]:
    def copy(case: str) -> Path:
        return Path(shutil.copytree(OWN / case / "model", tmp_path / case.replace("/", "-")))

    return copy


def refusal(saved_model: Path, kind: type[ConversionError] = UnreadableInputError) -> str:
    with pytest.raises(kind) as caught:
        rebuild_saved_model(saved_model, saved_model.parent / "m.h5")
    assert "\n" not in caught.value.message
    return caught.value.message


def test_not_a_savedmodel(tmp_path: Path) -> None:
    assert refusal(tmp_path / "missing").startswith("not a directory")
    (tmp_path / "a" / "1559000000").mkdir(parents=True)
    assert refusal(tmp_path / "a") == "no saved_model.pb in it, so it is no SavedModel"
    (tmp_path / "a" / "1559000000" / "saved_model.pb").touch()
    assert refusal(tmp_path / "a").endswith("; there is one in its folder 1559000000")
    (tmp_path / "a" / "saved_model.pbtxt").touch()
    assert "as_text=False" in refusal(tmp_path / "a")


def test_missing_variables_and_shards(copied: Callable[[str], Path]) -> None:
    model = copied("tf115/keras_experimental")
    (model / "variables" / "variables.data-00000-of-00002").unlink()
    (model / "variables" / "variables.data-00001-of-00002").unlink()
    assert "variables.data-0000" in refusal(model)
    (model / "variables" / "variables.index").unlink()
    assert refusal(model).startswith("variables/variables.index is missing")


@pytest.mark.parametrize("name", ["saved_model.pb", "keras_metadata.pb"])
def test_truncated_and_empty_files(name: str, copied: Callable[[str], Path]) -> None:
    model = copied("tf215/plain_untraced")
    whole = (model / name).read_bytes()
    for size in (0, 1, len(whole) // 3, len(whole) - 1):
        (model / name).write_bytes(whole[:size])
        assert name in refusal(model)
    (model / name).write_bytes(b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n")
    assert "git lfs pull" in refusal(model)


def test_damaged_config(copied: Callable[[str], Path]) -> None:
    model = copied("tf112/keras_contrib")
    path = model / "assets" / "saved_model.json"
    text = path.read_text()
    for damaged in (text[:-9], "", "[]", "{}", '{"class_name": 7, "config": {}}', "\xff\xfe"):
        path.write_bytes(damaged.encode("latin-1"))
        assert refusal(model).startswith("assets/saved_model.json")
    deep = '{"class_name": "Model", "config": ' + "[" * 390 + "]" * 390 + "}"
    path.write_text(deep)
    assert "assets/saved_model.json" in refusal(model, ConversionError)


def test_config_and_graph_that_disagree(copied: Callable[[str], Path]) -> None:
    model = copied("tf112/keras_contrib")
    path = model / "assets" / "saved_model.json"
    config = json.loads(path.read_text())
    layers = config["config"]["layers"]
    more = config["config"] | {"layers": [*layers, layers[-1]]}
    path.write_text(json.dumps(config | {"config": more}))
    assert refusal(model, NotConvertibleError) == (
        "model: the config has 5 layers, the object graph of the variables 4; "
        "--to savedmodel lowers the graph instead"
    )
    layers[1], layers[2] = layers[2], layers[1]
    path.write_text(json.dumps(config))
    assert refusal(model, NotConvertibleError).startswith(
        "model/gru: a CuDNNGRU with weights in objects of its own (both/forward_cu_dnnlstm/kernel"
    )


def test_random_damage_never_ends_in_a_traceback(copied: Callable[[str], Path]) -> None:
    model = copied("tf215/plain_untraced")
    generator = np.random.default_rng(8)
    names = ("saved_model.pb", "keras_metadata.pb", "variables/variables.index")
    refused = 0
    for name in names:
        whole = (model / name).read_bytes()
        for _ in range(20):
            damaged = bytearray(whole)
            for at in generator.integers(0, len(whole), 4):
                damaged[at] = generator.integers(0, 256)
            (model / name).write_bytes(damaged)
            try:
                rebuild_saved_model(model, model.parent / "m.h5")
            except ConversionError:
                refused += 1
        (model / name).write_bytes(whole)
    assert refused > 20

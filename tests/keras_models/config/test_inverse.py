"""Configs of plain layers as CuDNN layers: every reason against, masks, and Keras 2's own form."""

from __future__ import annotations

import copy
import inspect
import json

import h5py
import pytest
from models import OWN

from rnnconvert.keras_models.config import port, port_to_cudnn
from rnnconvert.keras_models.config.inverse import _KEPT_OF, CUDNN_OF
from rnnconvert.keras_models.config.masks import masked_layers

PLAIN = {
    "LSTM": {"recurrent_activation": "sigmoid", "implementation": 1, "unit_forget_bias": True},
    "GRU": {"recurrent_activation": "sigmoid", "implementation": 2, "reset_after": True},
}
OFF = {"activation": "tanh", "use_bias": True, "dropout": 0.0, "recurrent_dropout": 0.0,
       "unroll": False, "time_major": False}  # fmt: skip
CASES = [model for model in OWN if not model.path.parent.name.startswith("plain_")]


def plain(class_name="LSTM", name="rnn", **config):
    own = {"name": name, "units": 3, "stateful": True, **OFF, **PLAIN[class_name], **config}
    return {"class_name": class_name, "config": own}


def layer(class_name, name, **config):
    return {"class_name": class_name, "config": {"name": name, **config}}


def sequential(*layers, name="seq"):
    return {"class_name": "Sequential", "config": {"name": name, "layers": list(layers)}}


def functional(*connected, outputs, name="model"):
    """A functional model of (layer, list of calls), each call a list of references."""
    layers = []
    for entry, nodes in connected:
        calls = [[[*ref, {}] if len(ref) == 3 else list(ref) for ref in call] for call in nodes]
        layers.append({**entry, "name": entry["config"]["name"], "inbound_nodes": calls})
    config = {"name": name, "layers": layers, "input_layers": [["x", 0, 0]],
              "output_layers": outputs}  # fmt: skip
    return {"class_name": "Model", "config": config}


def converted(model, version="2.3.1", training=None):
    before = copy.deepcopy(model)
    result = port_to_cudnn(model, training, version)
    assert model == before  # the argument is not touched
    return result


def first_layer(result):
    return result.model["config"]["layers"][0]


# --- what becomes of a layer ----------------------------------------------------------------


@pytest.mark.parametrize("class_name", ["LSTM", "GRU"])
def test_a_plain_layer(class_name):
    result = converted(sequential(plain(class_name)))
    assert not result.problems
    entry = first_layer(result)
    assert entry["class_name"] == f"CuDNN{class_name}"
    kept = {"name": "rnn", "units": 3, "stateful": True}
    assert entry["config"] == kept | ({"unit_forget_bias": True} if class_name == "LSTM" else {})
    assert {change.key for change in result.changes} >= {"class_name", "activation", "unroll"}


@pytest.mark.parametrize("class_name", ["LSTM", "GRU"])
def test_what_is_kept_is_what_the_constructor_takes(class_name):
    """tf_keras' own layer is asked; `name` and the like go to its base class."""
    pytest.importorskip("tf_keras", reason="tf_keras is not installed")
    from tf_keras.src.layers.rnn import cudnn_gru, cudnn_lstm

    module = cudnn_lstm if class_name == "LSTM" else cudnn_gru
    takes = inspect.signature(getattr(module, CUDNN_OF[class_name])).parameters
    general = {"name", "trainable", "dtype", "input_dtype", "batch_input_shape"}
    assert _KEPT_OF[class_name] - general == set(takes) - {"kwargs"}


def test_wrapped_and_nested_layers():
    inner = sequential(plain("GRU", "deep"), name="inner")
    model = sequential(
        layer("Bidirectional", "both", layer=plain("LSTM"), backward_layer=plain("LSTM", "back")),
        layer("TimeDistributed", "each", layer=inner),
        layer("SimpleRNN", "simple", units=2),
    )
    result = converted(model)
    text = json.dumps(result.model)
    assert not result.problems
    assert (text.count('"CuDNNLSTM"'), text.count('"CuDNNGRU"')) == (2, 1)
    assert result.model["config"]["layers"][2] == model["config"]["layers"][2]


def test_a_model_without_such_layers_is_left_alone():
    model = sequential(layer("SimpleRNN", "s", units=2), layer("CuDNNGRU", "c", units=2))
    for version in ("2.2.4", "3.5.0", None):
        result = converted(model, version)
        assert (result.model, result.changes, result.problems) == (model, (), ())


def test_cells_are_named_in_a_warning():
    cell = layer("LSTMCell", "cell", units=2)
    result = converted(sequential(layer("RNN", "around", cell=cell), plain()))
    assert [warning.split(":")[0] for warning in result.warnings] == ["model/around"]
    assert first_layer(result)["config"]["cell"]["class_name"] == "LSTMCell"


# --- reasons against ------------------------------------------------------------------------


@pytest.mark.parametrize("class_name", ["LSTM", "GRU"])
@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({"activation": "relu"}, "activation relu"),
        ({"activation": None}, "activation None"),
        ({"activation": {"class_name": "function", "config": "elu"}}, "activation elu"),
        ({"recurrent_activation": "hard_sigmoid"}, "recurrent_activation hard_sigmoid"),
        ({"recurrent_activation": "relu"}, "recurrent_activation relu"),
        ({"use_bias": False}, "use_bias=False"),
        ({"dropout": 0.25}, "dropout=0.25"),
        ({"recurrent_dropout": 0.1}, "recurrent_dropout=0.1"),
        ({"unroll": True}, "unroll=True"),
        ({"time_major": True}, "time_major=True"),
    ],
    ids=str,
)
def test_a_reason_against(class_name, config, reason):
    result = converted(sequential(plain(class_name, **config)))
    assert len(result.problems) == 1
    assert result.problems[0].startswith(f"model/rnn: {reason}")
    wrapped = layer("Bidirectional", "both", layer=plain(class_name, **config))
    assert converted(sequential(wrapped)).problems[0].startswith(f"model/both/rnn: {reason}")


@pytest.mark.parametrize("value", [False, None, "absent"])
def test_the_other_gru(value):
    entry = plain("GRU", reset_after=value)
    if value == "absent":
        del entry["config"]["reset_after"]
    assert "different functions" in converted(sequential(entry)).problems[0]


@pytest.mark.parametrize(("version", "count"), [("2.2.4", 1), ("2.2.4-tf", 1), ("2.3.0", 0)])
def test_a_missing_recurrent_activation_is_the_writers_default(version, count):
    entry = plain("LSTM")
    del entry["config"]["recurrent_activation"]
    problems = converted(sequential(entry), version).problems
    assert len(problems) == count
    assert all("the default before Keras 2.3" in problem for problem in problems)


def test_all_reasons_are_collected():
    model = sequential(
        plain("LSTM", "a", activation="relu", unroll=True), plain("GRU", "b", use_bias=False)
    )
    problems = converted(model).problems
    assert [problem.split(":")[0] for problem in problems] == ["model/a", "model/a", "model/b"]


def test_a_config_of_keras_3():
    problems = converted(sequential(plain()), "3.5.0").problems
    assert len(problems) == 1
    assert "Keras 3.5.0" in problems[0]


# --- masks ----------------------------------------------------------------------------------

EMBEDDING = layer("Embedding", "embed", mask_zero=True)
MASKING = layer("Masking", "masking", mask_value=0.0)
SEQUENCES = {"return_sequences": True}


@pytest.mark.parametrize(
    ("between", "masked"),
    [
        ([], True),
        ([layer("Dropout", "d"), layer("Dense", "e"), layer("BatchNormalization", "f")], True),
        ([layer("TimeDistributed", "d", layer=layer("Dense", "e"))], True),
        ([layer("TheirOwn", "d")], True),
        ([layer("SimpleRNN", "d", **SEQUENCES)], True),
        ([layer("Bidirectional", "d", layer=layer("SimpleRNN", "e", **SEQUENCES))], True),
        ([layer("SimpleRNN", "d"), layer("RepeatVector", "e", n=3)], False),
        ([layer("Conv1D", "d")], False),
        ([layer("Lambda", "d")], False),
        ([layer("MaxPooling1D", "d")], False),
    ],
    ids=lambda part: "-".join(e["class_name"] for e in part) if isinstance(part, list) else None,
)
@pytest.mark.parametrize("maker", [EMBEDDING, MASKING], ids=["Embedding", "Masking"])
def test_masks_of_a_sequential(maker, between, masked):
    result = converted(sequential(maker, *between, plain()))
    assert bool(result.problems) == masked
    if masked:
        name = maker["config"]["name"]
        assert result.problems[0].startswith(f"model/rnn: it gets a mask (from model/{name})")


def test_an_embedding_without_a_mask_makes_none():
    assert not converted(sequential(layer("Embedding", "e", mask_zero=False), plain())).problems


def test_masks_go_into_nested_models_and_wrappers():
    model = sequential(MASKING, sequential(layer("Bidirectional", "b", layer=plain()), name="n"))
    assert converted(model).problems[0].startswith("model/n/b/rnn: it gets a mask")
    model = sequential(sequential(EMBEDDING, name="n"), plain())
    assert converted(model).problems[0].startswith("model/rnn: it gets a mask (from model/n/embed")


def test_masks_follow_the_graph_and_not_the_list():
    """Two branches from one input, and the masked layer listed before what masks it."""
    model = functional(
        (layer("InputLayer", "x"), []),
        (plain("LSTM", "masked", return_state=True), [[["masking", 0, 0]]]),
        (plain("GRU", "free"), [[["x", 0, 0]]]),
        (MASKING, [[["x", 0, 0]]]),
        (plain("LSTM", "started", return_sequences=True),
         [[["x", 0, 0], ["masked", 0, 1], ["masked", 0, 2]]]),
        (layer("Add", "add"), [[["free", 0, 0], ["started", 0, 0]]]),
        outputs=[["add", 0, 0]],
    )  # fmt: skip
    assert masked_layers(model) == {"model/masked": "model/masking"}


def test_the_argument_mask_of_a_call():
    model = functional(
        (layer("InputLayer", "x"), []),
        (plain(), [[["x", 0, 0, {"mask": ["x", 0, 0]}]]]),
        outputs=[["rnn", 0, 0]],
    )
    assert "the argument mask of its call" in converted(model).problems[0]
    model["config"]["layers"][1]["inbound_nodes"] = [[["x", 0, 0, {"mask": None}]]]
    assert not converted(model).problems


def test_fixtures_with_masks_and_without():
    for model in OWN:
        with h5py.File(model.path) as file:
            config = json.loads(file.attrs["model_config"])
        assert bool(masked_layers(config)) == (model.path.parent.name == "plain_masked"), model


# --- the form that Keras 2 reads ------------------------------------------------------------


def connections(value):
    """Every call and every output of a config, in order."""
    if isinstance(value, dict):
        own = [value[key] for key in ("inbound_nodes", "output_layers") if key in value]
        return own + [found for item in value.values() for found in connections(item)]
    if isinstance(value, list):
        return [found for item in value for found in connections(item)]
    return []


@pytest.mark.parametrize("model", CASES, ids=lambda model: model.name)
def test_connections_are_again_what_keras_2_wrote(model):
    with h5py.File(model.path) as file:
        original = json.loads(file.attrs["model_config"])
        version = file["model_weights"].attrs["keras_version"]
    version = version.decode() if isinstance(version, bytes) else version
    portable = port(original, None, version).model
    result = port_to_cudnn(portable, None, version)
    assert not result.problems
    assert connections(result.model) == connections(original)
    again = port_to_cudnn(result.model, None, version)
    assert (again.model, again.changes) == (result.model, ())


def test_an_operation_of_keras_3_is_refused():
    path = next(model.path for model in OWN if model.name == "tf215-plain_timemajor")
    with h5py.File(path) as file:
        original = json.loads(file.attrs["model_config"])
    problems = port_to_cudnn(port(original, None, "2.15.0").model, None, "2.15.0").problems
    assert any("an operation of Keras 3" in problem for problem in problems)


@pytest.mark.parametrize(
    ("version", "expected"),
    [("2.2.4", {"lr": 0.5, "decay": 0.25}), ("2.3.1", {"learning_rate": 0.5, "decay": 0.25})],
)
def test_a_training_config_of_old_keras(version, expected):
    rate = {"lr": 0.5, "decay": 0.25}
    training = {"loss": "mse", "metrics": [], "sample_weight_mode": None, "loss_weights": None,
                "optimizer_config": {"class_name": "SGD", "config": rate}}  # fmt: skip
    portable = port(sequential(plain()), training, version)
    assert "sample_weight_mode" not in portable.training
    result = converted(portable.model, version, portable.training)
    assert result.training["sample_weight_mode"] is None
    assert result.training["optimizer_config"]["config"] == expected
    untouched = converted(sequential(plain()), version, training)
    assert untouched.training == training | {
        "optimizer_config": {"class_name": "SGD", "config": rate}
    }


def test_names_of_distributions_of_old_keras():
    def distribution(result):
        return first_layer(result)["config"]["kernel_initializer"]["config"]["distribution"]

    initializer = {"class_name": "VarianceScaling", "config": {"distribution": "normal"}}
    model = sequential(plain(kernel_initializer=initializer))
    portable = port(model, None, "2.2.4").model
    assert distribution(converted(portable, "2.2.4")) == "normal"
    assert distribution(converted(portable, "2.2.4-tf")) == "truncated_normal"
    assert distribution(converted(portable, "2.15.0")) == "truncated_normal"

"""Config rewriting: each obstacle by itself, and that a second pass changes nothing."""

from __future__ import annotations

import copy
import json

import h5py
import pytest
from models import FURTHER, OWN

from rnnconvert.keras_models.config import port, recurrent_layers
from rnnconvert.keras_models.config.training import translate
from rnnconvert.keras_models.config.training_optimizer import Untranslatable


def lstm(**config):
    return {"class_name": "LSTM", "config": {"name": "lstm_1", "units": 3, **config}}


def sequential(*layers, **config):
    return {"class_name": "Sequential", "config": {"name": "seq", "layers": list(layers), **config}}


def ported(model, version="2.2.4", target="keras3"):
    before = copy.deepcopy(model)
    result = port(model, None, version, target)
    assert model == before  # the argument is not touched
    return result


def layers_of(result):
    return result.model["config"]["layers"]


def read_configs(path):
    with h5py.File(path) as file:
        training = file.attrs.get("training_config")
        weights = file.get("model_weights", file)
        version = weights.attrs.get("keras_version", b"")
        version = version.decode() if isinstance(version, bytes) else version
        model = json.loads(file.attrs["model_config"])
        return model, json.loads(training) if training else None, version


@pytest.mark.parametrize("target", ["keras3", "keras2"])
@pytest.mark.parametrize("model", OWN + FURTHER, ids=lambda model: model.name)
@pytest.mark.sampled(5)
def test_a_second_pass_changes_nothing(model, target):
    config, training, version = read_configs(model.path)
    once = port(config, training, version, target)
    twice = port(once.model, once.training, version, target)
    assert twice.model == once.model
    assert twice.training == once.training
    assert not twice.changes
    assert json.loads(json.dumps(once.model)) == once.model


@pytest.mark.parametrize("model", OWN, ids=lambda model: model.name)
@pytest.mark.sampled(2)
def test_no_cudnn_class_is_left(model):
    config, training, version = read_configs(model.path)
    before = recurrent_layers(config)
    result = port(config, training, version)
    assert "CuDNN" not in json.dumps(result.model)
    after = recurrent_layers(result.model)
    assert [layer.path for layer in after] == [layer.path for layer in before]
    for old, new in zip(before, after, strict=True):
        assert (old.units, old.direction) == (new.units, new.direction)
        if old.is_cudnn:
            assert (new.activation, new.recurrent_activation, new.use_bias) == (
                "tanh", "sigmoid", True,
            )  # fmt: skip
            assert new.reset_after is (True if new.class_name == "GRU" else None)


@pytest.mark.parametrize(
    ("version", "activation"),
    [("2.2.4", "hard_sigmoid"), ("2.3.0", "sigmoid"), (None, "hard_sigmoid")],
)
def test_a_missing_recurrent_activation_is_the_writers_default(version, activation):
    config = layers_of(ported(sequential(lstm()), version))[0]["config"]
    assert config["recurrent_activation"] == activation


def test_a_missing_reset_after_is_false():
    gru = {"class_name": "GRU", "config": {"name": "gru_1", "units": 3}}
    assert layers_of(ported(sequential(gru)))[0]["config"]["reset_after"] is False


@pytest.mark.parametrize("key", ["time_major", "batch_input_shape", "input_dtype", "ragged"])
def test_keys_that_keras3_refuses_are_dropped(key):
    model = sequential(lstm(), lstm(**{key: False}))
    assert key not in layers_of(ported(model))[1]["config"]


def test_an_input_layer_is_added_where_the_first_layer_has_the_shape():
    first, second = layers_of(ported(sequential(lstm(batch_input_shape=[None, 5, 2]))))
    assert first["class_name"] == "InputLayer"
    assert first["config"]["batch_input_shape"] == [None, 5, 2]
    assert "batch_input_shape" not in second["config"]


def test_an_input_layer_is_added_through_a_wrapper():
    inner = lstm(batch_input_shape=[2, 5, 2])
    outer = {"class_name": "Bidirectional", "config": {"name": "bi", "layer": inner}}
    first, second = layers_of(ported(sequential(outer)))
    assert first["config"]["batch_input_shape"] == [2, 5, 2]
    assert second["config"]["layer"]["module"] == "keras.layers"


def test_a_list_as_config_becomes_a_dict():
    result = ported({"class_name": "Sequential", "config": [lstm()]}, "2.1.2")
    assert result.model["config"]["name"] == "sequential"
    assert len(layers_of(result)) == 1


def test_initializers_lose_their_dtype_and_the_old_normal():
    initializer = {
        "class_name": "VarianceScaling",
        "config": {"scale": 1.0, "distribution": "normal", "dtype": "float32"},
    }
    config = layers_of(ported(sequential(lstm(kernel_initializer=initializer))))[0]["config"]
    assert config["kernel_initializer"]["config"] == {
        "scale": 1.0,
        "distribution": "truncated_normal",
    }


def test_time_major_outside_a_functional_model_is_refused():
    result = ported(sequential(lstm(time_major=True)))
    assert "time_major=True outside a functional model" in result.problems[0]
    assert not ported(sequential(lstm(time_major=True)), target="keras2").problems


def test_configs_of_keras3_are_left_alone():
    model = sequential(lstm(batch_input_shape=[None, 5, 2], time_major=False))
    assert not ported(model, "3.4.0").changes


def test_custom_classes_keep_everything():
    custom = {
        "class_name": "Mine",
        "module": "my.module",
        "registered_name": "my>Mine",
        "config": {"name": "m", "x": 1},
    }
    result = ported(sequential(lstm(), custom))
    assert layers_of(result)[1] == custom
    assert result.warnings == (
        "model/m: custom class Mine kept as it is; Keras needs custom_objects to load it",
    )


# --- training configs -----------------------------------------------------------------------


def training(optimizer="Adam", loss="mse", metrics=(), **config):
    return {
        "loss": loss,
        "metrics": list(metrics),
        "optimizer_config": {"class_name": optimizer, "config": config},
    }


def test_losses_metrics_and_optimizers_get_their_keras3_names():
    result, _ = translate(training("Custom>Adam", "mse", ["mae", "acc"], lr=0.5, decay=0.0))
    assert result["loss"] == "mean_squared_error"
    assert result["metrics"] == ["mean_absolute_error", "acc"]
    assert result["optimizer_config"] == {"class_name": "Adam", "config": {"learning_rate": 0.5}}


def test_a_decay_becomes_the_schedule_that_it_was():
    result, _ = translate(training("SGD", lr=0.5, decay=0.1))
    rate = result["optimizer_config"]["config"]["learning_rate"]
    assert rate["class_name"] == "InverseTimeDecay"
    assert rate["config"]["decay_rate"] == 0.1
    assert rate["config"]["decay_steps"] == 1


def test_a_wrapped_metric_is_written_as_its_function():
    wrapped = {"class_name": "MeanMetricWrapper", "config": {"fn": "categorical_accuracy"}}
    assert translate(training(metrics=[[wrapped]]))[0]["metrics"] == [["categorical_accuracy"]]


@pytest.mark.parametrize(
    ("config", "text"),
    [
        (training(loss="my_loss"), "loss 'my_loss' is no loss of Keras 3"),
        (training("Mine"), "optimizer 'Mine' is no optimizer of Keras 3"),
    ],
)
def test_what_has_no_name_is_not_guessed(config, text):
    with pytest.raises(Untranslatable, match=text):
        translate(config)
    result = port(sequential(lstm()), config, "2.2.4")
    assert result.training is None
    assert text in result.warnings[0]


def test_a_metric_without_a_name_is_left_out_by_itself():
    result = port(sequential(lstm()), training(metrics=["qscore", "mae"]), "2.2.4")
    assert result.training["metrics"] == ["mean_absolute_error"]
    assert "metric 'qscore'" in result.warnings[0]

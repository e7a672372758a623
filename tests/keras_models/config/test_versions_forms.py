"""Forms of a config that one minor version of Keras 3 or another does not read; one test each."""

from __future__ import annotations

import copy

import pytest

from rnnconvert.keras_models.config import port


def ported(model, version="2.2.4", target="keras3"):
    before = copy.deepcopy(model)
    result = port(model, None, version, target)
    assert model == before  # the argument is not touched
    return result


def layer(class_name, name, *calls, **config):
    """A member of a functional model, called on the first output of each layer named."""
    nodes = [[[call, 0, 0, {}]] for call in calls]
    return {
        "class_name": class_name,
        "config": {"name": name, **config},
        "name": name,
        "inbound_nodes": nodes,
    }


def source(name, size=5):
    return layer("InputLayer", name, batch_input_shape=[None, 6, size], dtype="float32")


def model(name, *layers, inputs=("x",), outputs=None):
    outputs = outputs or [[layers[-1]["name"], 0, 0]]
    config = {
        "name": name,
        "layers": list(layers),
        "input_layers": [[given, 0, 0] for given in inputs],
        "output_layers": outputs,
    }
    return {"class_name": "Model", "config": config}


def nested(inner, name, *calls):
    nodes = [[[call, 0, 0, {}]] for call in calls]
    return {**inner, "name": name, "inbound_nodes": nodes}


def one_layer(class_name, **config):
    entry = {"class_name": class_name, "config": {"name": "one", **config}}
    return {"class_name": "Sequential", "config": {"name": "seq", "layers": [entry]}}


def config_of(result, place=0):
    return result.model["config"]["layers"][place]["config"]


ORTHOGONAL = {"class_name": "Orthogonal", "config": {"gain": 0.5, "seed": 1}}


@pytest.mark.parametrize("target", ["keras3", "keras2"])
def test_orthogonal_goes_by_the_name_that_all_know(target):
    """Keras 3.0 to 3.3 call the class OrthogonalInitializer."""
    result = ported(one_layer("LSTM", units=3, recurrent_initializer=ORTHOGONAL), target=target)
    assert config_of(result)["recurrent_initializer"] == {
        "class_name": "orthogonal",
        "config": {"gain": 0.5, "seed": 1},
    }


def test_float16_layers_start_from_what_torch_computes():
    given = one_layer("LSTM", units=3, dtype="float16", recurrent_initializer=ORTHOGONAL)
    result = ported(given)
    assert config_of(result)["recurrent_initializer"] == "glorot_uniform"
    assert "torch can't compute in float16" in result.warnings[0]
    kept = config_of(ported(given, target="keras2"))["recurrent_initializer"]
    assert kept["class_name"] == "orthogonal"


def test_the_old_normal_distribution_stays_for_keras2():
    initializer = {"class_name": "VarianceScaling", "config": {"distribution": "normal"}}
    given = one_layer("LSTM", units=3, kernel_initializer=initializer)
    for target, name in (("keras3", "truncated_normal"), ("keras2", "normal")):
        config = config_of(ported(given, target=target))
        assert config["kernel_initializer"]["config"]["distribution"] == name


def test_only_an_lstm_says_how_it_is_implemented():
    """Keras 3.0 to 3.3 refuse the key on a GRU, all do on a SimpleRNN, none on an LSTM."""
    for class_name, target, kept in (
        ("GRU", "keras3", False),
        ("GRU", "keras2", True),
        ("SimpleRNN", "keras3", False),
        ("SimpleRNN", "keras2", True),
        ("LSTM", "keras3", True),
    ):
        config = config_of(ported(one_layer(class_name, units=3, implementation=1), target=target))
        assert ("implementation" in config) is kept


def test_a_constraint_that_keras3_lacks_is_left_out_and_named():
    radial = {"class_name": "RadialConstraint", "config": {}}
    given = one_layer("Conv2D", filters=2, kernel_size=[3, 3], kernel_constraint=radial)
    result = ported(given)
    assert config_of(result)["kernel_constraint"] is None
    assert result.warnings == (
        "model/one: kernel_constraint RadialConstraint left out, Keras 3 has none; "
        "it matters to training",
    )
    assert config_of(ported(given, target="keras2"))["kernel_constraint"] == radial


def test_tensorflows_own_softmax():
    assert config_of(ported(one_layer("Dense", activation="softmax_v2")))["activation"] == "softmax"
    custom = {"class_name": "Mine", "config": {}}
    assert config_of(ported(one_layer("Dense", activation=custom)))["activation"] == custom


def test_a_transposition_has_no_name_in_its_config_and_a_list_as_its_call():
    """Keras 3.0 to 3.10 refuse a name there; 3.0 to 3.4 a dict that refers to a later layer."""
    given = model(
        "m", source("x"), layer("LSTM", "rnn", "x", time_major=True, return_sequences=True, units=3)
    )
    result = ported(given, "2.10.0")
    added = {entry["name"]: entry for entry in result.model["config"]["layers"][2:]}
    before, after = added["rnn_to_batch_major_0"], added["rnn_to_time_major_0"]
    assert before["config"] == after["config"] == {"axes": [1, 0, 2]}
    assert before["inbound_nodes"] == [[["x", 0, 0, {}]]]
    assert after["inbound_nodes"] == [[["rnn", 0, 0, {}]]]


# --- nested models --------------------------------------------------------------------------


def test_the_output_of_a_nested_model_called_once():
    """Keras 3.0 to 3.2 count the call as 0, later ones as 1, and read 0 as the last."""
    inner = model("inner", source("x"), layer("LSTM", "rnn", "x", units=3))
    given = model("m", source("x"), nested(inner, "inner", "x"), outputs=[["inner", 1, 0]])
    result = ported(given)
    assert result.model["config"]["output_layers"] == [["inner", 0, 0]]
    assert len(result.model["config"]["layers"]) == 2
    assert ported(given, target="keras2").model["config"]["output_layers"] == [["inner", 1, 0]]


def test_the_outputs_of_a_nested_model_called_twice():
    inner = model("inner", source("x"), layer("LSTM", "rnn", "x", units=3))
    given = model(
        "m",
        source("x"),
        source("y"),
        nested(inner, "inner", "x", "y"),
        inputs=("x", "y"),
        outputs=[["inner", 1, 0], ["inner", 2, 0]],
    )
    config = ported(given).model["config"]
    assert config["output_layers"] == [["inner_0_0_output", 0, 0], ["inner_1_0_output", 0, 0]]
    first, second = config["layers"][3:]
    assert (first["class_name"], first["config"]["activation"]) == ("Activation", "linear")
    assert first["inbound_nodes"] == [[["inner", 0, 0, {}]]]
    assert second["inbound_nodes"] == [[["inner", 1, 0, {}]]]


def test_a_functional_model_in_a_sequential():
    """No Keras 3 builds it: the model returns a list of one, which the next layer refuses."""
    inner = model("inner", source("x"), layer("LSTM", "rnn", "x", units=3))
    dense = {"class_name": "Dense", "config": {"name": "head", "units": 2}}
    given = {"class_name": "Sequential", "config": {"name": "seq", "layers": [inner, dense]}}
    result = ported(given)
    config = result.model["config"]
    assert result.model["class_name"] == "Model"
    assert [(e["name"], e["inbound_nodes"]) for e in config["layers"]] == [
        ("inner_input", []),
        ("inner", [[["inner_input", 0, 0, {}]]]),
        ("head", [[["inner", 0, 0, {}]]]),
    ]
    assert config["layers"][0]["config"]["batch_input_shape"] == [None, 6, 5]
    assert (config["input_layers"], config["output_layers"]) == (
        [["inner_input", 0, 0]],
        [["head", 0, 0]],
    )
    assert "Sequential with a functional model in it" in result.target_points[0]
    kept = ported(given, target="keras2")
    assert kept.model["class_name"] == "Sequential"


# --- what the first versions can't read -----------------------------------------------------


def halves(frozen, cell="LSTM"):
    config = {"units": 3, "kernel_initializer": "zeros"}
    return model(
        "inner",
        source("x"),
        *(layer(cell, name, "x", trainable=name not in frozen, **config) for name in "ab"),
        outputs=[["a", 0, 0], ["b", 0, 0]],
    )


def outer(inner):
    return model("m", source("x"), nested(inner, "inner", "x"), outputs=[["inner", 1, 0]])


def test_a_partly_frozen_part_is_kept_from_keras_3_0_and_3_1():
    """They read its weights in another order, without a word; `use_cudnn` makes them refuse."""
    result = ported(outer(halves("a")))
    first, second = result.model["config"]["layers"][1]["config"]["layers"][1:]
    assert first["config"]["use_cudnn"] == "auto"
    assert "use_cudnn" not in second["config"]
    assert any("3.0 and 3.1 refuse the file" in text for text in result.target_points)
    kept = ported(outer(halves("a")), target="keras2")
    assert "use_cudnn" not in str(kept.model)
    assert not any("3.2" in text for text in kept.target_points)


@pytest.mark.parametrize("frozen", ["", "ab"])
def test_a_part_that_is_frozen_as_a_whole_or_not_at_all_is_not(frozen):
    result = ported(outer(halves(frozen)))
    assert "use_cudnn" not in str(result.model)
    assert not any("3.2" in text for text in result.target_points)


def test_where_nothing_keeps_them_out_the_report_says_so():
    result = ported(outer(halves("a", "SimpleRNN")))
    assert any("do not use 3.0 and 3.1" in text for text in result.target_points)


def test_a_frozen_layer_of_its_own_is_no_matter():
    given = model(
        "m",
        source("x"),
        layer("LSTM", "a", "x", units=3, trainable=False, kernel_initializer="zeros"),
        layer("Dense", "b", "a", units=3, kernel_initializer="zeros"),
    )
    assert ported(given).target_points == ()


def test_other_points_name_the_first_version():
    identity = {"class_name": "Identity", "config": {"gain": 1.0}}
    simple = one_layer("SimpleRNN", units=3, recurrent_initializer=identity)
    (point,) = ported(simple).target_points
    assert "recurrent_initializer Identity, which only Keras 3.2 and later read" in point
    inner = {"class_name": "LSTM", "config": {"name": "l", "units": 3, "return_state": True}}
    (point,) = ported(one_layer("Bidirectional", layer=inner)).target_points
    assert "return_state, which only Keras 3.2 and later read" in point
    wrapped = model("inner", source("x"), layer("LSTM", "rnn", "x", units=3))
    (point,) = ported(one_layer("TimeDistributed", layer=wrapped)).target_points
    assert "which only Keras 3.4 and later read" in point

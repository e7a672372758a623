"""Random nests of models and layers: what must hold of every one of them, whatever its shape."""

from __future__ import annotations

import copy
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import rnnconvert
from rnnconvert.keras_models.config import port
from rnnconvert.keras_models.config.recurrent import names_cudnn_layers

Config = dict[str, Any]
GATES = {"CuDNNLSTM": 4, "CuDNNGRU": 3, "LSTM": 4, "GRU": 3, "SimpleRNN": 1}
MERGED = {"concat": 2, "sum": 1, "mul": 1, "ave": 1}
INPUTS = 5

# --- configs ----------------------------------------------------------------------------------


@st.composite
def recurrent(draw: st.DrawFn) -> Config:
    name = draw(st.sampled_from(sorted(GATES)))
    config = {
        "units": draw(st.sampled_from((1, 3, 4, 6))),
        "return_sequences": True,
        "return_state": False,
        "go_backwards": draw(st.booleans()),
        "stateful": False,
        "trainable": True,
    }
    if not name.startswith("CuDNN"):
        config |= {"activation": "tanh", "use_bias": True, "implementation": 1, "dropout": 0.0}
    if name in ("LSTM", "GRU"):
        config["recurrent_activation"] = "sigmoid"
    if name == "GRU":
        config["reset_after"] = draw(st.booleans())
    return {"class_name": name, "config": config}


@st.composite
def bidirectional(draw: st.DrawFn) -> Config:
    inner = draw(recurrent())
    inner["config"]["go_backwards"] = False
    mode = draw(st.sampled_from(sorted(MERGED)))
    return {"class_name": "Bidirectional", "config": {"layer": inner, "merge_mode": mode}}


@st.composite
def plain(draw: st.DrawFn) -> Config:
    dense = {
        "class_name": "Dense",
        "config": {"units": draw(st.integers(1, 5)), "activation": "linear", "use_bias": True},
    }
    choices = (
        {"class_name": "Dropout", "config": {"rate": 0.2}},
        {"class_name": "Activation", "config": {"activation": "relu"}},
        dense,
        {"class_name": "TimeDistributed", "config": {"layer": dense}},
    )
    return copy.deepcopy(draw(st.sampled_from(choices)))


LAYERS = recurrent() | bidirectional() | plain()


def _model(layers: list[Config], functional: bool) -> Config:
    return {"class_name": "Model" if functional else "Sequential", "config": {"layers": layers}}


MODELS = st.recursive(
    st.builds(_model, st.lists(LAYERS, min_size=1, max_size=3), st.booleans()),
    lambda inner: st.builds(
        _model, st.lists(inner | LAYERS, min_size=1, max_size=3), st.booleans()
    ),
    max_leaves=4,
)


def finished(model: Config, dtype: str) -> Config:
    """The drawn model with names, input shapes and nodes, as Keras 2.2.4 writes it."""
    model = copy.deepcopy(model)
    _finish(model, "m", INPUTS, dtype)
    return model


def _finish(entry: Config, name: str, width: int, dtype: str) -> int:
    """Fill in one layer or model; returns how many features it gives."""
    config = entry["config"]
    config["name"] = name
    if "layers" in config:
        return _finish_model(entry, name, width, dtype)
    if entry["class_name"] == "Bidirectional":
        _finish(config["layer"], f"{name}_in", width, dtype)
        return config["layer"]["config"]["units"] * MERGED[config["merge_mode"]]
    if entry["class_name"] == "TimeDistributed":
        return _finish(config["layer"], f"{name}_in", width, dtype)
    config["dtype"] = dtype
    return config.get("units", width)


def _finish_model(entry: Config, name: str, width: int, dtype: str) -> int:
    config = entry["config"]
    layers = config["layers"]
    shape = [None, None, width]
    source = f"{name}_x"
    functional = entry["class_name"] == "Model"
    for index, layer in enumerate(layers):
        width = _finish(layer, f"{name}_{index}", width, dtype)
        if functional:
            before = f"{name}_{index - 1}" if index else source
            layer |= {"name": f"{name}_{index}", "inbound_nodes": [[[before, 0, 0, {}]]]}
    if functional:
        given = {"name": source, "batch_input_shape": shape, "dtype": dtype, "sparse": False}
        x = {"class_name": "InputLayer", "config": given, "name": source, "inbound_nodes": []}
        last = f"{name}_{len(layers) - 1}"
        config |= {
            "layers": [x, *layers],
            "input_layers": [[source, 0, 0]],
            "output_layers": [[last, 0, 0]],
        }
    else:
        layers[0]["config"]["batch_input_shape"] = shape
    return width


# --- files ------------------------------------------------------------------------------------


def tensors(entry: Config, width: int, scope: str) -> tuple[list[tuple[str, tuple[int, ...]]], int]:
    """Names and shapes of a layer's weights in Keras 2's order, and how many features it gives."""
    config, name = entry["config"], entry["class_name"]
    if "layers" in config:
        found = []
        for layer in config["layers"]:
            if layer["class_name"] != "InputLayer":
                more, width = tensors(layer, width, layer["config"]["name"])
                found += more
        return found, width
    if name == "Bidirectional":
        inner = config["layer"]
        sides = [f"{scope}/{side}_{inner['config']['name']}" for side in ("forward", "backward")]
        found = [item for side in sides for item in tensors(inner, width, side)[0]]
        return found, inner["config"]["units"] * MERGED[config["merge_mode"]]
    if name == "TimeDistributed":
        return tensors(config["layer"], width, scope)
    if "units" not in config:
        return [], width
    units = config["units"]
    columns = GATES.get(name, 1) * units
    shapes = [("kernel", (width, columns))]
    if name in GATES:
        shapes.append(("recurrent_kernel", (units, columns)))
    shapes.append(("bias", _bias(name, config, columns)))
    return [(f"{scope}/{kind}:0", shape) for kind, shape in shapes], units


def _bias(name: str, config: Config, columns: int) -> tuple[int, ...]:
    if name.startswith("CuDNN"):
        return (2 * columns,)
    return (2, columns) if config.get("reset_after") else (columns,)


def write(path: Path, model: Config, dtype: str) -> Path:
    generator = np.random.default_rng(11)
    with h5py.File(path, "w") as file:
        file.attrs["model_config"] = json.dumps(model)
        for group in (file, file.create_group("model_weights")):
            group.attrs["keras_version"] = b"2.2.4"
            group.attrs["backend"] = b"tensorflow"
        top = model["config"]["layers"]
        weights = file["model_weights"]
        weights.attrs["layer_names"] = [layer["config"]["name"].encode() for layer in top]
        width = INPUTS
        for layer in top:
            name = layer["config"]["name"]
            group = weights.create_group(name)
            listed: list[tuple[str, tuple[int, ...]]] = []
            if layer["class_name"] != "InputLayer":
                listed, width = tensors(layer, width, name)
            for variable, shape in listed:
                values = generator.normal(0.0, 0.4, shape).astype(dtype)
                group.create_dataset(variable, data=values, track_times=False)
            group.attrs["weight_names"] = [variable.encode() for variable, _ in listed]
    return path


def classes(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        if "class_name" in value:
            yield value["class_name"]
        value = list(value.values())
    if isinstance(value, list):
        for item in value:
            yield from classes(item)


# --- what must hold ---------------------------------------------------------------------------

DROPOUT: Config = {"class_name": "Dropout", "config": {"rate": 0.2}}
THREE_DEEP = _model([_model([_model([DROPOUT], True)], False)], False)
"""A functional model in a Sequential in a Sequential: each of them becomes functional."""
DTYPES = st.sampled_from(("float32", "float64"))


@settings(max_examples=30, deadline=None, derandomize=True)
@example(THREE_DEEP, "float32", "keras3")
@given(MODELS, DTYPES, st.sampled_from(("keras3", "keras2")))
def test_a_ported_config_needs_no_port(model: Config, dtype: str, target: str) -> None:
    config = finished(model, dtype)
    before = copy.deepcopy(config)
    once = port(config, None, "2.2.4", target)
    assert config == before
    assert not once.problems
    assert not names_cudnn_layers(once.model)
    assert not {name for name in classes(once.model) if name.startswith("CuDNN")}
    again = port(once.model, None, "2.2.4", target)
    assert again.model == once.model
    assert again.changes == ()


def _check_file(model: Config, dtype: str, verify: str) -> Any:
    with tempfile.TemporaryDirectory() as folder:
        source = write(Path(folder, "m.h5"), finished(model, dtype), dtype)
        before = source.read_bytes()
        outputs = [Path(folder, name) for name in ("a.h5", "b.h5")]
        reports = [
            rnnconvert.convert(source, output, verify=verify, hashes=False) for output in outputs
        ]
        assert source.read_bytes() == before
        if reports[0].verdict == "nothing-to-convert":
            return None
        assert reports[0].verdict == "equivalent"
        assert outputs[0].read_bytes() == outputs[1].read_bytes()
        again = rnnconvert.convert(outputs[0], Path(folder, "c.h5"), verify=verify, hashes=False)
        assert again.verdict == "nothing-to-convert"
        return reports[0]


@settings(max_examples=15, deadline=None, derandomize=True)
@given(MODELS, DTYPES)
@pytest.mark.corpus
def test_converting_twice_is_converting_once(model: Config, dtype: str) -> None:
    report = _check_file(model, dtype, "layers")
    if report is not None:
        assert report.weights_level.status == "passed"
        assert report.layers_level.status in ("passed", "skipped")


@pytest.mark.corpus
@settings(max_examples=15, deadline=None, derandomize=True)
@given(MODELS, DTYPES)
def test_every_nest_runs_as_before(model: Config, dtype: str) -> None:
    report = _check_file(model, dtype, "model")
    if report is not None:
        assert report.model_level[0].status == "passed", report.model_level[0]

"""Model files that would run code or read foreign files when Keras loads them, made by hand.

Each attack changes the config of one small functional model of Keras 3 (a GRU on sequences). What
it would run leaves a mark: it imports the module `hostile_module`, which writes a file, or it
starts a program that does.
"""

from __future__ import annotations

import base64
import copy
import json
import marshal
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np

Config = dict[str, Any]
MODULE = "hostile_module"
STEPS, INPUTS, UNITS = 6, 5, 4
_SHAPES = ((INPUTS, 3 * UNITS), (UNITS, 3 * UNITS), (2, 3 * UNITS))


def write_module(folder: Path, mark: Path) -> None:
    """A module whose import leaves the mark; `folder` belongs on the search path."""
    text = f"open({str(mark)!r}, 'w').close()\ndef run(*args, **kwargs): return args[0]\n"
    (folder / f"{MODULE}.py").write_text(text)


def keras_object(module: str, class_name: str, **config: Any) -> Config:
    return {"module": module, "class_name": class_name, "config": config, "registered_name": None}


def function(module: str, name: str) -> Config:
    return {"module": module, "class_name": "function", "config": name, "registered_name": name}


def base_config() -> Config:
    tensor = {
        "class_name": "__keras_tensor__",
        "config": {
            "shape": [None, STEPS, INPUTS],
            "dtype": "float32",
            "keras_history": ["x", 0, 0],
        },
    }
    x = keras_object(
        "keras.layers", "InputLayer", name="x", batch_shape=[None, STEPS, INPUTS], dtype="float32"
    )
    gru = keras_object(
        "keras.layers", "GRU", name="gru", units=UNITS, return_sequences=True, reset_after=True
    )
    x |= {"name": "x", "inbound_nodes": []}
    gru |= {"name": "gru", "inbound_nodes": [{"args": [tensor], "kwargs": {}}]}
    return {
        "module": "keras.src.models.functional",
        "class_name": "Functional",
        "config": {
            "name": "functional",
            "trainable": True,
            "layers": [x, gru],
            "input_layers": [["x", 0, 0]],
            "output_layers": [["gru", 0, 0]],
        },
        "registered_name": "Functional",
    }


def _gru(config: Config) -> Config:
    return config["config"]["layers"][1]


def _append(config: Config, entry: Config, args: list[Any]) -> None:
    """One more layer behind the GRU, on no path to the output."""
    name = entry["config"]["name"] if isinstance(entry["config"], dict) else "more"
    entry |= {"name": name, "inbound_nodes": [{"args": args, "kwargs": {}}]}
    config["config"]["layers"].append(entry)


def _sequence() -> Config:
    tensor = copy.deepcopy(_gru(base_config())["inbound_nodes"][0]["args"][0])
    tensor["config"] |= {"shape": [None, STEPS, UNITS], "keras_history": ["gru", 0, 0]}
    return tensor


def _lambda_code(mark: Path) -> str:
    code = compile(f"lambda x: open({str(mark)!r}, 'w') and x", "m", "eval").co_consts[0]
    return base64.b64encode(marshal.dumps(code)).decode()


def _lambda(config: Config, mark: Path) -> None:
    value = {"code": _lambda_code(mark), "defaults": None, "closure": None}
    code = {"class_name": "__lambda__", "config": {"value": value, **value}}
    _append(config, keras_object("keras.layers", "Lambda", name="l", function=code), [_sequence()])


def _old_lambda(config: Config, mark: Path) -> None:
    """As Keras 2 writes it: without a module, the code in a list. Keras < 3.11.3 just ran it."""
    entry = keras_object("", "Lambda", name="l", function=[_lambda_code(mark), None, None])
    del entry["module"], entry["registered_name"]
    entry["config"]["function_type"] = "lambda"
    _append(config, entry, [_sequence()])


def _unsafe_switch(config: Config, mark: Path) -> None:
    _append(config, function("keras.config", "enable_unsafe_deserialization"), [])
    _lambda(config, mark)


def _program(config: Config, mark: Path) -> None:
    """A function as a layer: Keras calls it with what stands in the node."""
    touch = [sys.executable, "-c", f"open({str(mark)!r}, 'w')"]
    _append(config, function("subprocess", "call"), [touch])


def _wrapped(config: Config, mark: Path) -> None:
    bad = keras_object(MODULE, "Thing")
    _gru(config)["config"] = {"name": "gru", "cell": keras_object("keras.layers", "GRUCell", units=UNITS, kernel_initializer=bad)}  # noqa: E501  # fmt: skip
    _gru(config)["class_name"] = "RNN"


def _of_gru(key: str, value: Any) -> Callable[[Config, Path], None]:
    def change(config: Config, mark: Path) -> None:
        _gru(config)["config"][key] = copy.deepcopy(value)

    return change


def _in_node(value: Any) -> Callable[[Config, Path], None]:
    def change(config: Config, mark: Path) -> None:
        _gru(config)["inbound_nodes"][0]["kwargs"] = {"mask": copy.deepcopy(value)}

    return change


def _beside_gru(key: str, value: Any) -> Callable[[Config, Path], None]:
    def change(config: Config, mark: Path) -> None:
        _gru(config)[key] = copy.deepcopy(value)

    return change


def _layer(module: str | None, class_name: str, **named: Any) -> Callable[[Config, Path], None]:
    def change(config: Config, mark: Path) -> None:
        entry = keras_object(module or "", class_name, name="more", **copy.deepcopy(named))
        if module is None:
            del entry["module"], entry["registered_name"]
        _append(config, entry, [_sequence()])

    return change


def _nested_compile(config: Config, mark: Path) -> None:
    """Keras leaves out how the outermost model was compiled, and no other's."""
    inner = keras_object("keras", "Sequential", name="inner", layers=[])
    inner["compile_config"] = {"optimizer": "sgd", "loss": function(MODULE, "run")}
    _append(config, inner, [_sequence()])


def _registered_call(config: Config, mark: Path) -> None:
    """By the name under which rnnconvert registers its own layer with Keras."""
    call = json.dumps({"node_def": {"op": "WriteFile"}})
    entry = keras_object(
        "rnnconvert.keras.tensorflow_calls", "TensorFlowCall", name="more", call=call
    )
    entry["registered_name"] = "rnnconvert>TensorFlowCall"
    _append(config, entry, [_sequence()])


THING = keras_object(MODULE, "Thing")
TFSM = keras_object("keras.layers", "TFSMLayer", filepath="/nowhere", name="t")

ATTACKS: dict[str, tuple[Callable[[Config, Path], None], str]] = {
    "lambda": (_lambda, "model/l is a Lambda layer"),
    "old lambda": (_old_lambda, "model/l is a Lambda layer"),
    "unsafe switch": (_unsafe_switch, "the function 'enable_unsafe_deserialization'"),
    "program": (_program, "names the function 'call'"),
    "initializer": (_of_gru("kernel_initializer", THING), "model/gru names hostile_module.Thing"),
    "initializer function": (
        _of_gru("bias_initializer", function(MODULE, "run")),
        "model/gru names the function 'run'",
    ),
    "regularizer": (_of_gru("kernel_regularizer", THING), "model/gru names hostile_module.Thing"),
    "constraint": (_of_gru("bias_constraint", THING), "model/gru names hostile_module.Thing"),
    "activation": (_of_gru("activation", function(MODULE, "run")), "the function 'run'"),
    "builtin": (_of_gru("activation", function("builtins", "eval")), "the function 'eval'"),
    "renamed": (
        _of_gru("activation", function("keras.activations", "tanh") | {"registered_name": "x"}),
        "the function 'tanh'",
    ),
    "dtype": (_of_gru("dtype", THING), "model/gru names hostile_module.Thing"),
    "cell": (_wrapped, "names hostile_module.Thing"),
    "node": (_in_node(THING), "model/gru names hostile_module.Thing"),
    "node lambda": (
        _in_node({"class_name": "__lambda__", "config": {"value": "eA=="}}),
        "holds a lambda function",
    ),
    "node model": (_in_node(TFSM), "model/gru names keras.layers.TFSMLayer"),
    "type": (
        _in_node({"class_name": "__typespec__", "spec_name": "Thing", "module": MODULE,
                  "config": [], "registered_name": None}),
        "names hostile_module.__typespec__",
    ),
    "build config": (_beside_gru("build_config", {"x": THING}), "names hostile_module.Thing"),
    "nested compile config": (_nested_compile, "names the function 'run'"),
    "saved model": (_layer("keras.layers", "TFSMLayer", filepath="/x"), "keras.layers.TFSMLayer"),
    "old saved model": (_layer(None, "TFSMLayer", filepath="/x"), "model/more names TFSMLayer"),
    "torch module": (_layer("keras.layers", "TorchModuleWrapper"), "TorchModule"),
    "download": (_layer("keras.utils", "get_file"), "custom class keras.utils.get_file"),
    "custom class": (_layer(MODULE, "Thing"), "custom class hostile_module.Thing"),
    "map": (
        _layer("keras.src.ops.core", "Map", f="run"),
        "custom class keras.src.ops.core.Map",
    ),
    "private": (_layer("keras.src.ops.numpy", "np"), "custom class keras.src.ops.numpy.np"),
    "vocabulary": (
        _layer("keras.layers", "StringLookup", vocabulary="/etc/passwd"),
        "model/more names the file /etc/passwd",
    ),
    "text vocabulary": (
        _layer("keras.layers", "TextVectorization", vocabulary="/etc/passwd"),
        "model/more names the file /etc/passwd",
    ),
    "tensorflow call of our own": (
        _layer(None, "TensorFlowCall", call=json.dumps({"node_def": {"op": "WriteFile"}})),
        "model/more is of the custom class TensorFlowCall",
    ),
    "tensorflow call, registered": (
        _registered_call,
        "custom class rnnconvert.keras.tensorflow_calls.TensorFlowCall",
    ),
    "tensorflow function": (
        _layer(None, "TFOpLambda", function="io.write_file"),
        "model/more calls TensorFlow's io.write_file",
    ),
    "tensorflow op": (
        _layer(None, "TensorFlowOpLayer", node_def={"op": "WriteFile"}),
        "model/more calls TensorFlow's WriteFile",
    ),
    "path for a name": (
        _of_gru("name", "..\\..\\x"),
        "model/..\\..\\x has a path for a name",
    ),
}  # fmt: skip
"""Name: the change to a config, and what the refusal says."""


def hostile(name: str, mark: Path) -> Config:
    config = base_config()
    ATTACKS[name][0](config, mark)
    return config


# --- files ------------------------------------------------------------------------------------


def _arrays() -> list[np.ndarray]:
    generator = np.random.default_rng(3)
    return [generator.normal(0.0, 0.4, shape).astype("float32") for shape in _SHAPES]


def write_h5(path: Path, config: Config, training: Config | None = None) -> Path:
    """A whole-model file as Keras 3 writes it."""
    with h5py.File(path, "w") as file:
        file.attrs["keras_version"] = "3.4.1"
        file.attrs["backend"] = "tensorflow"
        file.attrs["model_config"] = json.dumps(config)
        if training is not None:
            file.attrs["training_config"] = json.dumps(training)
        weights = file.create_group("model_weights")
        weights.attrs["layer_names"] = [b"gru"]
        group = weights.create_group("gru")
        names = [f"gru/gru_cell/{kind}" for kind in ("kernel", "recurrent_kernel", "bias")]
        for variable, array in zip(names, _arrays(), strict=True):
            group.create_dataset(variable, data=array)
        group.attrs["weight_names"] = [name.encode() for name in names]
    return path


def write_keras(path: Path, config: Config, version: str = "3.4.1") -> Path:
    """A `.keras` file."""
    weights = path.with_suffix(".weights")
    with h5py.File(weights, "w") as file:
        for index, array in enumerate(_arrays()):
            file.create_dataset(f"layers/gru/cell/vars/{index}", data=array)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("metadata.json", json.dumps({"keras_version": version}))
        archive.writestr("config.json", json.dumps(config))
        archive.write(weights, "model.weights.h5")
    weights.unlink()
    return path

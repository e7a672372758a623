"""Time and peak memory of the level `model`, in parts, beside Keras' predict on the same batch.

usage: python benchmarks/verify_model.py [NAME ...]          (default: small large siamese)

Three models: `small`, 447,824 parameters: CuDNNGRU(200), PReLU, CuDNNGRU(200), PReLU, CuDNNGRU(2)
on (200, 7); `large`, 50 MB of CuDNNLSTM(1024) layers; `siamese`, two inputs of (500, 12) through
the same two Bidirectional(CuDNNGRU(50)) layers. Every figure is from a fresh process, the best of
three.

- level: `check_models` on original and converted model, from before the import of Keras to the end;
- import, load, run: its parts; `run` is both models, with every layer's output;
- predict: the first `model.predict` of the converted model on the same batch, as a user would;
- peak: resident memory of the whole process;
- CPU: processor time of all threads, which other work on the machine disturbs less than wall time.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import make_model

MODELS = ("small", "large", "siamese")
RUNS = 3
SMALL_PARAMETERS = 447_824
Weights = dict[str, dict[str, tuple[int, ...]]]
"""Layer to weight name to shape."""


def main(names: list[str]) -> None:
    from run import machine

    print(f"{machine()}, Python {sys.version.split()[0]}, load average "
          f"{os.getloadavg()[0]:.1f}\n")  # fmt: skip
    titles = ["model", "batch", "import", "load", "run", "rest", "beyond import", "predict",
              "times predict", "in CPU time", "times load_model + predict", "in CPU time",
              "peak", "peak of predict"]  # fmt: skip
    print(f"| {' | '.join(titles)} |\n{'| --- ' * len(titles)}|")
    for name in names:
        with tempfile.TemporaryDirectory(dir=os.environ.get("TMPDIR")) as folder:
            source, target = Path(folder) / "model.h5", Path(folder) / "out.h5"
            child("make", name, source)
            child("convert", source, target)
            runs = [(child("level", source, target), child("predict", target)) for _ in range(RUNS)]
        level = min((run[0] for run in runs), key=lambda result: result["beyond"])
        user = min((run[1] for run in runs), key=lambda result: result["total"])
        print(row(name, level, user), flush=True)
    print(f"\nload average at the end {os.getloadavg()[0]:.1f}")


def row(name: str, level: dict[str, Any], user: dict[str, Any]) -> str:
    cells = [
        name,
        level["batch"],
        *(f"{level[part]:.2f} s" for part in ("import", "load", "run", "rest", "beyond")),
        f"{user['predict']:.2f} s",
        *(
            f"{level[f'beyond{kind}'] / user[f'{part}{kind}']:.1f}"
            for part in ("predict", "total")
            for kind in ("", "_cpu")
        ),
        f"{level['peak']} MB",
        f"{user['peak']} MB",
    ]
    return f"| {' | '.join(cells)} |"


def child(*words: object) -> dict[str, Any]:
    """Run one of `JOBS` in a process of its own; what it tells, and its peak memory in MB."""
    command = [sys.executable, __file__, "--job", *map(str, words)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert process.stdout is not None
    told = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"{' '.join(command)} failed")
    return {**json.loads(told or "{}"), "peak": usage.ru_maxrss // 1024}


# --- the jobs of a process ------------------------------------------------------------------


def convert(source: str, target: str) -> dict[str, Any]:
    import rnnconvert

    rnnconvert.convert(source, target, verify="layers")
    return {}


def level(source: str, target: str) -> dict[str, Any]:
    """The level `model`, with time stamps around its parts."""
    from rnnconvert.keras_models.verify import keras_engine, model_level
    from rnnconvert.options import Inputs

    spent = {"import": (0.0, 0.0), "load": (0.0, 0.0), "run": (0.0, 0.0)}

    def timed(part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def run(*arguments: Any, **named: Any) -> Any:
            start = now()
            try:
                return function(*arguments, **named)
            finally:
                wall, cpu = since(start)
                spent[part] = (spent[part][0] + wall, spent[part][1] + cpu)

        return run

    model_level.import_keras = timed("import", model_level.import_keras)
    model_level.load = timed("load", model_level.load)
    keras_engine.ModelRunner.run = timed("run", keras_engine.ModelRunner.run)
    start = now()
    result = model_level.check_models(
        Path(source), Path(target), Inputs(), keras_engine.Permissions()
    )
    total, total_cpu = since(start)
    assert result.status == "passed", result
    walls = {part: wall for part, (wall, _) in spent.items()}
    return {
        **walls,
        "rest": total - sum(walls.values()),
        "beyond": total - walls["import"],
        "beyond_cpu": total_cpu - spent["import"][1],
        "batch": str(result.detail).rsplit("input ", 1)[1],
    }


def predict(target: str) -> dict[str, Any]:
    """What a user does with the converted model, on the batch that the level runs on."""
    from rnnconvert.options import LONGER, Inputs
    from rnnconvert.verification.frameworks import import_keras
    from rnnconvert.verification.inputs import make, slots_of

    keras = import_keras()
    start = now()
    model = keras.models.load_model(target, compile=False)
    load, load_cpu = since(start)
    (batch,) = make(slots_of(model), Inputs(), LONGER[0], 1)
    start = now()
    model.predict(batch if len(batch) > 1 else batch[0], verbose=0)
    first, first_cpu = since(start)
    return {
        "predict": first,
        "predict_cpu": first_cpu,
        "total": load + first,
        "total_cpu": load_cpu + first_cpu,
    }


def now() -> tuple[float, float]:
    """Wall clock and processor time, in seconds."""
    return time.perf_counter(), time.process_time()


def since(start: tuple[float, float]) -> tuple[float, float]:
    wall, cpu = now()
    return wall - start[0], cpu - start[1]


# --- the models -----------------------------------------------------------------------------


def make(name: str, path: str) -> dict[str, Any]:
    if name == "large":
        make_model.write(50, path)
        return {}
    config, weights = {"small": small, "siamese": siamese}[name]()
    count = write(path, config, weights)
    assert name != "small" or count == SMALL_PARAMETERS, count
    return {}


def small() -> tuple[dict[str, Any], Weights]:
    """A Sequential on (200, 7): GRUs and PReLUs with a parameter for each step and unit."""
    steps, layers, weights, width = 200, [], Weights(), 7
    for number, units in enumerate((200, 200, 2), start=1):
        name = f"cu_dnngru_{number}"
        layers.append(layer("CuDNNGRU", name, units=units, return_sequences=True))
        weights[name] = {f"{name}/{kind}": size for kind, size in gru(width, units).items()}
        width = units
        if number < 3:
            name = f"p_re_lu_{number}"
            layers.append(layer("PReLU", name, shared_axes=None))
            weights[name] = {f"{name}/alpha": (steps, units)}
    layers[0]["config"]["batch_input_shape"] = [None, steps, 7]
    return {"class_name": "Sequential", "config": {"name": "small", "layers": layers}}, weights


def siamese() -> tuple[dict[str, Any], Weights]:
    """Two inputs through the same two Bidirectional GRUs, multiplied, and a Dense on top."""
    steps, width, units = 500, 12, 50
    layers = [
        layer("InputLayer", name, batch_input_shape=[None, steps, width], dtype="float32",
              sparse=False)
        for name in ("left", "right")
    ]  # fmt: skip
    weights, below = Weights(), ["left", "right"]
    for number, sequences in ((1, True), (2, False)):
        name, inner = f"bidirectional_{number}", f"cu_dnngru_{number}"
        wrapped = layer("CuDNNGRU", inner, units=units, return_sequences=sequences)
        nodes = [[[source, 0 if number == 1 else place, 0, {}]]
                 for place, source in enumerate(below)]  # fmt: skip
        both = layer("Bidirectional", name, layer=wrapped, merge_mode="concat")
        layers.append({**both, "name": name, "inbound_nodes": nodes})
        weights[name] = {
            f"{name}/{direction}_{inner}/{kind}": size
            for direction in ("forward", "backward")
            for kind, size in gru(width, units).items()
        }
        width, below = 2 * units, [name, name]
    top = layer("Multiply", "multiply_1")
    top["inbound_nodes"] = [[["bidirectional_2", place, 0, {}] for place in (0, 1)]]
    dense = layer("Dense", "dense_1", units=2, activation="softmax")
    dense["inbound_nodes"] = [[["multiply_1", 0, 0, {}]]]
    weights["dense_1"] = {"dense_1/kernel": (width, 2), "dense_1/bias": (2,)}
    for entry in [*layers, top, dense]:
        entry.setdefault("inbound_nodes", [])
        entry["name"] = entry["config"]["name"]
    config = {
        "name": "siamese",
        "layers": [*layers, top, dense],
        "input_layers": [["left", 0, 0], ["right", 0, 0]],
        "output_layers": [["dense_1", 0, 0]],
    }
    return {"class_name": "Model", "config": config}, weights


def layer(class_name: str, name: str, **config: Any) -> dict[str, Any]:
    return {"class_name": class_name, "config": {"name": name, "trainable": True, **config}}


def gru(inputs: int, units: int) -> dict[str, tuple[int, ...]]:
    return {
        "kernel": (inputs, 3 * units),
        "recurrent_kernel": (units, 3 * units),
        "bias": (6 * units,),
    }


def write(path: str, config: dict[str, Any], weights: Weights) -> int:
    """A whole-model .h5 of Keras 2.2.4 with random weights; returns their number."""
    import h5py
    import numpy as np

    rng, count = np.random.default_rng(0), 0
    with h5py.File(path, "w") as file:
        group = file.create_group("model_weights")
        for node in (file, group):
            node.attrs["keras_version"], node.attrs["backend"] = "2.2.4", "tensorflow"
        file.attrs["model_config"] = json.dumps(config)
        group.attrs["layer_names"] = [name.encode() for name in weights]
        for name, own in weights.items():
            group.create_group(name).attrs["weight_names"] = [f"{n}:0".encode() for n in own]
            for variable, shape in own.items():
                values = 0.1 * rng.standard_normal(shape, np.float32)
                group[name].create_dataset(f"{variable}:0", data=values)
                count += values.size
    return count


JOBS = {"make": make, "convert": convert, "level": level, "predict": predict}

if __name__ == "__main__":
    if sys.argv[1:2] == ["--job"]:
        print(json.dumps(JOBS[sys.argv[2]](*sys.argv[3:])))
    else:
        main(sys.argv[1:] or list(MODELS))

"""Weights of the stacks of a checkpoint, run by torch (and Keras' equations) against the outputs
that TensorFlow or torch gave for each fixture."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from models import ROOT, SHARED

from rnnconvert import layouts
from rnnconvert.checkpoints.find import find_stacks
from rnnconvert.checkpoints.load import load_slot, load_weights
from rnnconvert.checkpoints.stack import Stack
from rnnconvert.containers.checkpoint import (
    Checkpoint,
    data_path,
    index_path,
    open_checkpoint,
    write_checkpoint,
)
from rnnconvert.errors import NotConvertibleError, UnreadableInputError
from rnnconvert.layouts import RnnWeights
from rnnconvert.options import StackOptions
from rnnconvert.references import keras as keras_reference

torch = pytest.importorskip("torch", reason="torch is the oracle")

FIXTURES = ROOT / "fixtures" / "checkpoints"
REFUSED = ("lstm_peephole", "lstm_projection", "layer_norm_lstm", "cudnn_lstm_disagree")
CASES = [
    path.parent for path in sorted(FIXTURES.glob("*/*/data.npz")) if path.parent.name not in REFUSED
]
CUDNN = [case for case in CASES if case.name.startswith("cudnn_")]
PLAIN = [case for case in CASES if not case.name.startswith("cudnn_")]
OPTIONS = {
    "cudnn_gru_raw": StackOptions(
        cell="gru", num_layers=2, num_units=4, input_size=6, direction="unidirectional"
    ),
    "basic_lstm_forget": StackOptions(forget_bias=0.3),
    "basic_rnn_relu": StackOptions(activation="relu"),
    "compatible_lstm_multi": StackOptions(forget_bias=0.0),
}
"""What these checkpoints don't tell; their `meta` does."""


def case_name(case: Path) -> str:
    return f"{case.parent.name}-{case.name}"


def load(path: Path, options: StackOptions | None = None) -> tuple[Checkpoint, tuple[Stack, ...]]:
    checkpoint = open_checkpoint(path)
    prefix = checkpoint.path.prefix
    found = find_stacks(checkpoint.variables, options or StackOptions(), prefix=prefix)
    assert not found.problems
    return checkpoint, found.stacks


def run(stack: Stack, weights: Sequence[RnnWeights], x: np.ndarray) -> np.ndarray:
    """Outputs (batch, time, directions * units) from zero states, in float64."""
    assert len(weights) == stack.num_layers * len(stack.directions)
    sides = len(stack.directions)
    for layer in range(stack.num_layers):
        outputs = []
        for side in range(sides):
            own = weights[layer * sides + side]
            assert own.cell == stack.cell
            step = -1 if side else 1
            outputs.append(_run_one(own, x[:, ::step])[:, ::step])
        x = np.concatenate(outputs, axis=2)
    return x


def _run_one(weights: RnnWeights, x: np.ndarray) -> np.ndarray:
    cell, units = weights.cell, weights.units
    x = np.ascontiguousarray(x, np.float64)
    if cell == "gru_reset_before":
        tensors = layouts.pack(layouts.find("keras", cell), weights)
        return keras_reference.run_keras_layer(cell, tensors, x, np.zeros((len(x), units)))[0]
    kinds = {"lstm": torch.nn.LSTM, "gru": torch.nn.GRU}
    if cell in kinds:
        module = kinds[cell](weights.input_dim, units, batch_first=True)
    else:
        module = torch.nn.RNN(
            weights.input_dim, units, batch_first=True, nonlinearity=cell.removeprefix("rnn_")
        )
    module = module.double()
    tensors = layouts.pack(layouts.find("torch", cell), weights)
    module.load_state_dict(
        {f"{name}_l0": torch.tensor(array.astype(np.float64)) for name, array in tensors.items()}
    )
    with torch.no_grad():
        return module(torch.tensor(x))[0].numpy()


def write(folder: Path, tensors: dict[str, np.ndarray]) -> Path:
    prefix = folder / "model.ckpt"
    write_checkpoint(index_path(prefix), data_path(prefix), tensors)
    return prefix


def stored(case: str) -> dict[str, np.ndarray]:
    with np.load(FIXTURES / case / "data.npz") as data:
        return {
            name.removeprefix("tensors/"): data[name]
            for name in data.files
            if name.startswith("tensors/")
        }


def close(found: np.ndarray, expected: np.ndarray, tolerance: float = 1e-5) -> bool:
    assert found.shape == expected.shape
    assert np.abs(expected).max() > 0.05  # something came out
    return float(np.abs(found - expected).max()) < tolerance


@pytest.mark.parametrize("case", CUDNN, ids=case_name)
@pytest.mark.sampled(2)
def test_cudnn_layers_compute_what_they_did(case):
    checkpoint, stacks = load(case, OPTIONS.get(case.name))
    datas = [dict(np.load(path)) for path in sorted(case.glob("data*.npz"))]
    assert len(datas) == len(stacks)
    for data in datas:
        meta = json.loads(str(data["meta"]))
        (stack,) = [s for s in stacks if s.opaque in (meta["variable"], None)]
        weights = load_weights(stack, checkpoint)
        assert {own.dtype.name for own in weights} == {meta["dtype"]}
        tolerance = 5e-3 if meta["dtype"] == "float16" else 1e-5
        assert close(run(stack, weights, data["x"]), data["y"], tolerance)
        if stack.opaque:
            # Both biases of the buffer survive: it comes back bit for bit.
            parts = [[w.kernel, w.recurrent] for w in weights] + [[w.bias] for w in weights]
            flat = np.concatenate([array.reshape(-1) for part in parts for array in part])
            assert flat.tobytes() == data["params"].tobytes()


@pytest.mark.parametrize("case", PLAIN, ids=case_name)
def test_cells_compute_what_they_did(case):
    checkpoint, stacks = load(case, OPTIONS.get(case.name))
    data = np.load(case / "data.npz")
    x = data["x"]
    for stack in stacks:  # where there are several, each reads the one before
        x = run(stack, load_weights(stack, checkpoint), x)
    assert close(x, data["y"])


@pytest.mark.parametrize("case", CUDNN, ids=case_name)
def test_tensors_of_cells_alone_compute_the_same(case):
    checkpoint, stacks = load(case, OPTIONS.get(case.name))
    data = np.load(case / "data.npz")
    meta = json.loads(str(data["meta"]))
    (stack,) = [s for s in stacks if s.opaque in (meta["variable"], None)]
    if not stack.places:
        pytest.skip("a buffer alone")
    weights = load_weights(replace(stack, opaque=None), checkpoint)
    tolerance = 5e-3 if meta["dtype"] == "float16" else 1e-5
    assert close(run(stack, weights, data["x"]), data["y"], tolerance)


# --- files beside the checkout --------------------------------------------------------------

CONTRIB = sorted((SHARED / "fixtures" / "contrib").glob("canonical_*/saver_v*"))
RAW = sorted((SHARED / "fixtures" / "contrib").glob("opaque_*/saver_v2"))
SAVED = sorted((SHARED / "fixtures" / "contrib_savedmodels" / "tf1.8.0").glob("*_p0/variables"))
KERAS = sorted((SHARED / "fixtures" / "keras").glob("*/*/*/checkpoint"))


@pytest.mark.skipif(not CONTRIB, reason="needs shared/fixtures")
@pytest.mark.parametrize("path", CONTRIB, ids=lambda path: f"{path.parent.name}-{path.name}")
def test_canonical_tensors_of_tensorflow_1_15(path):
    checkpoint, (stack,) = load(path)
    assert stack.opaque is None
    data = np.load(path.parent / "xy.npz")
    y = run(stack, load_weights(stack, checkpoint), data["x"].swapaxes(0, 1))
    assert close(y.swapaxes(0, 1), data["y"])


@pytest.mark.skipif(not RAW, reason="needs shared/fixtures")
@pytest.mark.parametrize("path", RAW, ids=lambda path: path.parent.name)
def test_buffers_alone_of_tensorflow_1_15(path):
    checkpoint, (stack,) = load(path)
    buffer = np.load(path.parent / "raw.npz")["opaque"]
    first = load_weights(stack, checkpoint)[0]
    assert np.array_equal(first.kernel.reshape(-1), buffer[: first.kernel.size])
    assert np.array_equal(
        load_weights(stack, checkpoint)[-1].bias[1, -1], buffer[-stack.num_units :]
    )


@pytest.mark.skipif(not SAVED, reason="needs shared/fixtures")
@pytest.mark.parametrize("path", SAVED, ids=lambda path: path.parent.name)
def test_variables_of_savedmodels(path):
    checkpoint, (stack,) = load(path)
    data = np.load(path.parents[2] / "expected" / f"{path.parent.name}.npz")
    weights = load_weights(stack, checkpoint)
    parts = [[w.kernel, w.recurrent] for w in weights] + [[w.bias] for w in weights]
    flat = np.concatenate([array.reshape(-1) for part in parts for array in part])
    assert np.array_equal(flat, data["flat"])


@pytest.mark.skipif(not KERAS, reason="needs shared/fixtures")
def test_cudnn_layers_of_keras():
    """By torch: a gate's block, as it lies in memory, is the matrix (units, inputs) of cuDNN."""
    generator = np.random.default_rng(3)
    for path in KERAS:
        checkpoint, stacks = load(path.parent)
        for stack in stacks:
            (weights,) = load_weights(stack, checkpoint)
            kernel, recurrent, bias = (
                checkpoint.read(stack.places[0].tensors[name]).astype(np.float64)
                for name in ("kernel", "recurrent_kernel", "bias")
            )
            gates, units = len(layouts.CELLS[weights.cell].gates), stack.num_units
            order = [0, 1, 2, 3] if gates == 4 else [1, 0, 2]  # Keras z r h, torch r z n
            w = [kernel[:, g * units : (g + 1) * units].reshape(units, -1) for g in order]
            r = [recurrent[:, g * units : (g + 1) * units].reshape(units, -1) for g in order]
            b = bias.reshape(2, gates, units)[:, order].reshape(2, -1)
            module = (torch.nn.LSTM if gates == 4 else torch.nn.GRU)(
                stack.input_size, units, batch_first=True
            ).double()
            values = {"weight_ih_l0": np.concatenate(w), "weight_hh_l0": np.concatenate(r),
                      "bias_ih_l0": b[0], "bias_hh_l0": b[1]}  # fmt: skip
            module.load_state_dict({name: torch.tensor(v) for name, v in values.items()})
            x = generator.standard_normal((2, 6, stack.input_size))
            with torch.no_grad():
                expected = module(torch.tensor(x))[0].numpy()
            assert close(run(stack, [weights], x), expected)


# --- buffer and cells -----------------------------------------------------------------------


def test_a_disagreement_names_tensor_and_element():
    case = FIXTURES / "tf115" / "cudnn_lstm_disagree"
    checkpoint, (stack,) = load(case)
    with pytest.raises(NotConvertibleError) as caught:
        load_weights(stack, checkpoint)
    message = caught.value.message
    kernel = checkpoint.read(stack.places[0].tensors["kernel"])
    # Element 7 of the buffer: gate i, unit 7 // 4, input 7 % 4; gate i has the first 5 columns.
    assert f"{stack.places[0].tensors['kernel']}[3, 1] is {kernel[3, 1]:.9g}" in message
    buffer = checkpoint.read(stack.opaque or "")
    assert abs(buffer[7] - kernel[3, 1]) == pytest.approx(0.25)
    assert f"the buffer says {buffer[7]:.9g}" in message
    assert "can't be told" in message


@pytest.mark.parametrize(
    ("case", "tensor"),
    [
        ("tf115/cudnn_gru_bi2", "kernel"),
        ("tf115/cudnn_gru_bi2", "gates/bias"),
        ("tf115/cudnn_gru_bi2", "candidate/hidden_projection/bias"),
        ("tf115/cudnn_tanh2", "bias"),
        ("tf115/cudnn_lstm_half", "bias"),
    ],
)
def test_every_tensor_is_compared(case, tensor, tmp_path):
    tensors = stored(case)
    name = next(n for n in sorted(tensors) if n.endswith(f"/{tensor}"))
    place = tuple(size - 1 for size in tensors[name].shape)
    tensors[name] = tensors[name].copy()
    tensors[name][place] += tensors[name].dtype.type(0.125)
    checkpoint, (stack,) = load(write(tmp_path, tensors))
    with pytest.raises(NotConvertibleError) as caught:
        load_weights(stack, checkpoint)
    assert f"{name}{list(place)} is " in caught.value.message


@pytest.mark.parametrize(
    ("tensor", "steps", "refused"),
    [("bias", 1, False), ("bias", 3, True), ("kernel", 1, True)],
)
def test_a_sum_may_be_rounded_otherwise_a_kernel_not(tensor, steps, refused, tmp_path):
    tensors = stored("tf115/cudnn_lstm")
    name = next(n for n in tensors if n.endswith(f"/{tensor}"))
    value = tensors[name].copy()
    for _ in range(steps):
        value.flat[2] = np.nextafter(value.flat[2], np.float32(9), dtype=np.float32)
    tensors[name] = value
    checkpoint, (stack,) = load(write(tmp_path, tensors))
    if refused:
        with pytest.raises(NotConvertibleError, match="disagree"):
            load_weights(stack, checkpoint)
    else:
        load_weights(stack, checkpoint)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("tensor", ["bias", "kernel", "opaque_kernel"])
def test_what_is_no_number_disagrees_with_numbers(tensor, value, tmp_path):
    tensors = stored("tf115/cudnn_lstm")
    name = next(n for n in tensors if n.endswith(f"/{tensor}"))
    tensors[name] = tensors[name].copy()
    tensors[name].flat[-1] = value
    checkpoint, (stack,) = load(write(tmp_path, tensors))
    with pytest.raises(NotConvertibleError, match="disagree"):
        load_weights(stack, checkpoint)


def test_the_same_nan_and_infinity_on_both_sides_agree(tmp_path):
    tensors = stored("tf115/cudnn_lstm")
    buffer, kernel = tensors["cudnn_lstm/opaque_kernel"].copy(), None
    for name in tensors:
        if name.endswith("/kernel"):
            kernel = tensors[name].copy()
            kernel[3, 1] = buffer[7] = np.nan
            kernel[2, 1] = buffer[6] = np.inf
            tensors[name] = kernel
        if name.endswith("/bias"):
            bias = tensors[name].copy()
            bias[0] = buffer[-40] = np.inf
            tensors[name] = bias
    tensors["cudnn_lstm/opaque_kernel"] = buffer
    checkpoint, (stack,) = load(write(tmp_path, tensors))
    (weights,) = load_weights(stack, checkpoint)
    assert np.isnan(weights.kernel[0, 1, 3])


# --- older TensorFlow -----------------------------------------------------------------------


def torch_lstm(layers: int, inputs: int, units: int, seed: int):
    """A random torch LSTM, an input and its output."""
    generator = torch.Generator().manual_seed(seed)
    module = torch.nn.LSTM(inputs, units, layers, batch_first=True)
    with torch.no_grad():
        for value in module.parameters():
            value.copy_(torch.randn(value.shape, generator=generator) / 2)
        x = torch.randn((2, 6, inputs), generator=generator)
        return module, x.numpy(), module(x)[0].numpy()


def tf13_tensors(module, units: int) -> dict[str, np.ndarray]:
    """What TensorFlow 1.3 saves of it: [x, h] kernels with gates i c f o, and three biases."""
    rows = np.concatenate([np.arange(g * units, (g + 1) * units) for g in (0, 2, 1, 3)])
    state = {name: value.numpy() for name, value in module.state_dict().items()}
    tensors = {}
    for layer in range(module.num_layers):
        scope = f"rnn/multi_rnn_cell/cell_{layer}/cudnn_compatible_lstm_cell"
        both = np.hstack([state[f"weight_ih_l{layer}"], state[f"weight_hh_l{layer}"]])
        tensors[f"{scope}/kernel"] = np.ascontiguousarray(both[rows].T)
        for half, name in enumerate(("bias_ih", "bias_hh")):
            tensors[f"{scope}/bias_cudnn_{half}"] = state[f"{name}_l{layer}"][rows]
        first, second = (tensors[f"{scope}/bias_cudnn_{half}"] for half in (0, 1))
        tensors[f"{scope}/bias"] = first + second
    return tensors


def buffer_of(module) -> np.ndarray:
    """cuDNN's buffer: torch has the LSTM's gates in its order."""
    state = {name: value.numpy() for name, value in module.state_dict().items()}
    layers = range(module.num_layers)
    matrices = [state[f"weight_{kind}_l{n}"].ravel() for n in layers for kind in ("ih", "hh")]
    return np.concatenate(
        matrices + [state[f"bias_{kind}_l{n}"] for n in layers for kind in ("ih", "hh")]
    )


@pytest.mark.parametrize("with_buffer", [False, True])
def test_both_biases_of_tensorflow_1_3(with_buffer, tmp_path):
    module, x, y = torch_lstm(2, 3, 5, seed=1)
    tensors = tf13_tensors(module, 5)
    if with_buffer:
        tensors["params"] = buffer_of(module)
    checkpoint, (stack,) = load(write(tmp_path, tensors))
    assert stack.opaque == ("params" if with_buffer else None)
    weights = load_weights(stack, checkpoint)
    assert close(run(stack, weights, x), y)
    for layer, own in enumerate(weights):
        for half, name in enumerate(("bias_ih", "bias_hh")):
            expected = module.state_dict()[f"{name}_l{layer}"].numpy()
            assert np.array_equal(own.bias[half].ravel(), expected)


@pytest.mark.parametrize("half", [0, 1])
def test_biases_of_tensorflow_1_3_that_disagree(half, tmp_path):
    module, _, _ = torch_lstm(1, 3, 5, seed=2)
    tensors = tf13_tensors(module, 5)
    name = f"rnn/multi_rnn_cell/cell_0/cudnn_compatible_lstm_cell/bias_cudnn_{half}"
    tensors[name] = tensors[name] + np.float32(0.25)
    checkpoint, (stack,) = load(write(tmp_path, tensors))
    with pytest.raises(NotConvertibleError, match="add up"):
        load_weights(stack, checkpoint)
    tensors["params"] = buffer_of(module)
    checkpoint, (stack,) = load(write(tmp_path, tensors))
    with pytest.raises(NotConvertibleError, match=f"bias_cudnn_{half}"):
        load_weights(stack, checkpoint)


@pytest.mark.parametrize("with_buffer", [False, True])
def test_outputs_of_the_op_in_tensorflow_1_2(with_buffer, tmp_path):
    module, x, y = torch_lstm(2, 3, 5, seed=3)
    state = {name: value.numpy() for name, value in module.state_dict().items()}
    pieces = [
        piece
        for kind in ("weight", "bias")
        for layer in (0, 1)
        for part in ("ih", "hh")
        for piece in np.split(state[f"{kind}_{part}_l{layer}"], 4)
    ]
    tensors = {f"CudnnRNNParamsToCanonical:{n}": piece for n, piece in enumerate(pieces)}
    if with_buffer:
        tensors["params"] = buffer_of(module)
    checkpoint, (stack,) = load(write(tmp_path, tensors))
    assert stack.opaque == ("params" if with_buffer else None)
    assert close(run(stack, load_weights(stack, checkpoint), x), y)


def test_outputs_of_the_op_that_disagree(tmp_path):
    module, _, _ = torch_lstm(1, 3, 5, seed=4)
    state = [value.numpy() for value in module.state_dict().values()]
    pieces = [piece for array in state for piece in np.split(array, 4)]
    tensors = {f"CudnnRNNParamsToCanonical:{n}": piece for n, piece in enumerate(pieces)}
    tensors["params"] = buffer_of(module)
    tensors["CudnnRNNParamsToCanonical:13"] = pieces[13] + np.float32(1)
    checkpoint, (stack,) = load(write(tmp_path, tensors))
    with pytest.raises(NotConvertibleError, match=r"CudnnRNNParamsToCanonical:13"):
        load_weights(stack, checkpoint)


# --- slots ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "case", ["tf115/cudnn_lstm_adam_unequal", "tf18/cudnn_gru_bi_adam", "tf18/cudnn_lstm_rmsprop"]
)
def test_slots_are_cut_as_the_buffer(case):
    checkpoint, (stack,) = load(FIXTURES / case)
    assert stack.slots
    tensors = stored(case)
    for slot in stack.slots:
        layers = load_slot(stack, slot, checkpoint)
        assert [(p.layer, p.direction) for p in layers] == [
            (place.layer, place.direction) for place in stack.places
        ]
        parts = [[p.kernel, p.recurrent] for p in layers] + [[p.bias] for p in layers]
        flat = np.concatenate([array.reshape(-1) for part in parts for array in part])
        assert flat.tobytes() == tensors[slot.variable].tobytes()


def test_a_skipped_input_is_an_identity(tmp_path):
    units = 4
    generator = np.random.default_rng(5)
    buffer = generator.standard_normal(units * units + 2 * units).astype("f4")
    checkpoint = open_checkpoint(write(tmp_path, {"p": buffer}))
    stack = Stack("p", "rnn_tanh", 1, units, units, "unidirectional", "float32", "p", (),
                  input_mode="skip_input")  # fmt: skip
    (weights,) = load_weights(stack, checkpoint)
    assert np.array_equal(weights.kernel[0], np.eye(units))
    assert np.array_equal(weights.recurrent.ravel(), buffer[: units * units])


def test_missing_data(tmp_path):
    source = FIXTURES / "tf115" / "cudnn_lstm"
    (tmp_path / "m.index").write_bytes(next(source.glob("*.index")).read_bytes())
    checkpoint, (stack,) = load(tmp_path)
    with pytest.raises(UnreadableInputError, match="missing"):
        load_weights(stack, checkpoint)

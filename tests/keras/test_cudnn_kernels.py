"""What cuDNN is fed, proved without a GPU.

torch runs the same call on its CPU kernels. TensorFlow's op CudnnRNNV3 has no CPU kernel: here it
is written in numpy, from cuDNN's description of the parameter buffer.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from models import OWN, worst_difference

from rnnconvert.keras import cudnn
from rnnconvert.keras_models.verify.torch_engine import run_layer
from rnnconvert.references import cudnn as cudnn_reference
from rnnconvert.verification.devices import tf32_off

BATCH, TIME, INPUTS, UNITS = 3, 6, 5, 4
GATES = {"lstm": 4, "gru": 3}
STATES = {"lstm": 2, "gru": 1}
TOLERANCE = {"float64": 1e-14, "float32": 1e-6, "float16": 5e-3}
KINDS = ("kernel", "recurrent_kernel", "bias")

each_cell = pytest.mark.parametrize("cell", GATES)
each_dtype = pytest.mark.parametrize("dtype", TOLERANCE)


def random_weights(cell: str, seed: int = 1) -> list[np.ndarray]:
    """As Keras 2 stores them; no bias zero, no two alike."""
    rng = np.random.default_rng(seed)
    columns = GATES[cell] * UNITS
    shapes = [(INPUTS, columns), (UNITS, columns), (2 * columns,)]
    return [0.5 * rng.standard_normal(shape) for shape in shapes]


def random_inputs(cell: str, seed: int = 2) -> tuple[np.ndarray, list[np.ndarray]]:
    """A sequence, and initial states."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((BATCH, TIME, INPUTS))
    return x, [rng.standard_normal((BATCH, UNITS)) for _ in range(STATES[cell])]


def in_dtype(dtype: str, *arrays: np.ndarray) -> list[np.ndarray]:
    return [array.astype(dtype) for array in arrays]


def reference(cell: str, weights: list[np.ndarray], x: np.ndarray, states: list[np.ndarray]):
    """Outputs and last states by cuDNN's equations in float64."""
    wide = in_dtype("float64", x, *states)
    tensors = dict(zip(KINDS, weights, strict=True))
    return [
        part for part in cudnn_reference.run_cudnn_layer(cell, tensors, *wide) if part is not None
    ]


def largest_gap(found, expected) -> float:
    found = [np.asarray(part, np.float64) for part in found]
    assert [part.shape for part in found] == [part.shape for part in expected]
    return max(float(np.abs(a - b).max()) for a, b in zip(found, expected, strict=True))


# --- torch ----------------------------------------------------------------------------------


@each_cell
@each_dtype
def test_torch_computes_cudnns_equations(cell, dtype):
    pytest.importorskip("torch", reason="torch is not installed")
    weights = in_dtype(dtype, *random_weights(cell))
    x, states = random_inputs(cell)
    x, *states = in_dtype(dtype, x, *states)
    tensors = dict(zip(KINDS, weights, strict=True))
    h, c = [*states, None][:2]
    found = run_layer(cell, tensors, x, h, c, "cpu")
    assert {part.dtype.name for part in found} == {dtype}
    assert largest_gap(found, reference(cell, weights, x, states)) <= TOLERANCE[dtype]


@each_cell
def test_torch_fed_wrongly_is_noticed(cell, monkeypatch):
    pytest.importorskip("torch", reason="torch is not installed")
    weights, (x, states) = random_weights(cell), random_inputs(cell)
    wrong = {"lstm": (0, 2, 1, 3), "gru": (0, 1, 2)}  # TF1's order, Keras' order
    monkeypatch.setattr(cudnn, "GATES", wrong)
    tensors = dict(zip(KINDS, weights, strict=True))
    found = run_layer(cell, tensors, x, states[0], [*states, None][1], "cpu")
    assert largest_gap(found, reference(cell, weights, x, states)) > 0.1


# --- TensorFlow -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tf():
    keras = pytest.importorskip("keras", reason="Keras 3 is not installed")
    if not hasattr(keras, "ops") or keras.backend.backend() != "tensorflow":
        pytest.skip("Keras 3 does not run on TensorFlow here")
    return pytest.importorskip("tensorflow", reason="TensorFlow is not installed")


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1.0 / (1.0 + np.exp(-x))


def op_in_numpy(cell: str, x, h, c, params) -> tuple[np.ndarray, ...]:
    """CudnnRNNV3 for one layer in one direction; x is (time, batch, inputs), h and c (1, batch, u).

    The buffer holds the input matrices (units, inputs) of all gates, their recurrent matrices
    (units, units), their input biases, their recurrent biases, row-major and without padding; the
    gates of an LSTM are i f g o, of a GRU r z n. A GRU's last c is never written: here it is NaN.
    """
    dtype, (units, inputs), gates = x.dtype, (h.shape[2], x.shape[2]), GATES[cell]
    sizes = [(units, inputs)] * gates + [(units, units)] * gates + [(units,)] * 2 * gates
    parts, at = [], 0
    for size in sizes:
        end = at + int(np.prod(size))
        parts.append(params[at:end].astype(np.float64).reshape(size))
        at = end
    assert (at,) == params.shape
    w, r, bw, br = (parts[start : start + gates] for start in range(0, 4 * gates, gates))
    x, h, c = x.astype(np.float64), h[0].astype(np.float64), np.asarray(c, np.float64)
    c = c[0] if cell == "lstm" else c
    outputs = []
    for x_t in x:
        xs = [x_t @ matrix.T + bias for matrix, bias in zip(w, bw, strict=True)]
        hs = [h @ matrix.T + bias for matrix, bias in zip(r, br, strict=True)]
        if cell == "lstm":
            i, f, o = (sigmoid(xs[gate] + hs[gate]) for gate in (0, 1, 3))
            c = f * c + i * np.tanh(xs[2] + hs[2])
            h = o * np.tanh(c)
        else:
            reset, update = (sigmoid(xs[gate] + hs[gate]) for gate in (0, 1))
            h = (1 - update) * np.tanh(xs[2] + reset * hs[2]) + update * h
        outputs.append(h)
    c = c[np.newaxis] if cell == "lstm" else np.full_like(h, np.nan)[np.newaxis]
    return tuple(part.astype(dtype) for part in (np.stack(outputs), h[np.newaxis], c))


@pytest.fixture
def op(tf, monkeypatch) -> list[dict[str, Any]]:
    """The op in numpy in place of TensorFlow's; the arguments of each call are kept."""
    calls: list[dict[str, Any]] = []

    def run(
        *, input, input_h, input_c, params, sequence_lengths, rnn_mode, is_training, time_major
    ):
        calls.append({"x": input, "h": input_h, "c": input_c, "lengths": sequence_lengths})
        assert time_major
        assert not is_training
        given = (input, input_h, input_c, params)
        assert len({part.dtype for part in given}) == 1

        def compute(*arrays):
            return op_in_numpy(rnn_mode, *arrays)

        output, h, c = tf.numpy_function(compute, given, [input.dtype] * 3)
        units = input_h.shape[2]
        output.set_shape((*input.shape[:2], units))
        for state in (h, c):
            state.set_shape((1, input.shape[1], units))
        return output, h, c, None, None

    monkeypatch.setattr(tf.raw_ops, "CudnnRNNV3", run)
    return calls


@each_cell
@each_dtype
def test_tensorflow_is_fed_rightly(tf, op, cell, dtype):
    weights = in_dtype(dtype, *random_weights(cell))
    x, states = random_inputs(cell)
    x, *states = in_dtype(dtype, x, *states)
    tensors = [tf.constant(part) for part in (*weights, x, *states)]
    output, last = cudnn.run_on_tensorflow(cell, tuple(tensors[:3]), tensors[3], tensors[4:])
    assert {part.dtype.name for part in (output, *last)} == {dtype}
    assert largest_gap([output, *last], reference(cell, weights, x, states)) <= TOLERANCE[dtype]
    (call,) = op
    assert call["lengths"].dtype == tf.int32
    assert call["lengths"].numpy().tolist() == [TIME] * BATCH
    assert call["x"].shape == (TIME, BATCH, INPUTS)
    assert call["h"].shape == (1, BATCH, UNITS)
    assert call["c"].shape == ((1, BATCH, UNITS) if cell == "lstm" else ())


@each_cell
def test_tensorflow_fed_wrongly_is_noticed(tf, op, cell, monkeypatch):
    weights, (x, states) = random_weights(cell), random_inputs(cell)
    expected = reference(cell, weights, x, states)
    tensors = [tf.constant(part) for part in (*weights, x, *states)]
    right = cudnn._parts
    gates = GATES[cell]
    wrong = {
        "recurrent first": lambda p: [*p[gates : 2 * gates], *p[:gates], *p[2 * gates :]],
        "biases exchanged": lambda p: [*p[: 2 * gates], *p[3 * gates :], *p[2 * gates : 3 * gates]],
        "gates reversed": lambda p: [*p[gates - 1 :: -1], *p[gates:]],
        "transposed": lambda p: [tf.transpose(part) for part in p],
    }
    if cell == "lstm":
        del wrong["biases exchanged"]  # only their sum counts
    for name, spoil in wrong.items():
        monkeypatch.setattr(cudnn, "_parts", lambda *given, spoil=spoil: spoil(right(*given)))
        output, last = cudnn.run_on_tensorflow(cell, tuple(tensors[:3]), tensors[3], tensors[4:])
        assert largest_gap([output, *last], expected) > 0.01, name


@each_cell
def test_tensorflows_own_op_takes_the_call(tf, cell):
    """Its kernel needs a GPU, but its checks of shapes and attributes do not."""
    columns = GATES[cell] * UNITS
    shapes = [(INPUTS, columns), (UNITS, columns), (2 * columns,), (None, None, INPUTS)]
    shapes += [(None, UNITS)] * STATES[cell]

    @tf.function(input_signature=[tf.TensorSpec(shape) for shape in shapes])
    def traced(*tensors):
        return cudnn.run_on_tensorflow(cell, tensors[:3], tensors[3], list(tensors[4:]))

    graph = traced.get_concrete_function().graph
    (node,) = [node for node in graph.get_operations() if node.type == "CudnnRNNV3"]
    attributes = {key: node.get_attr(key) for key in ("rnn_mode", "direction", "input_mode")}
    assert attributes == {
        "rnn_mode": cell.encode(),
        "direction": b"unidirectional",
        "input_mode": b"linear_input",
    }
    output, last = graph.structured_outputs
    assert output.shape[-1] == UNITS
    assert [state.shape[-1] for state in last] == [UNITS] * STATES[cell]


# --- the layers -----------------------------------------------------------------------------


def made(cell: str, dtype: str, **flags: Any):
    from rnnconvert.keras import CuDNNGRU, CuDNNLSTM

    layer = {"lstm": CuDNNLSTM, "gru": CuDNNGRU}[cell](UNITS, dtype=dtype, **flags)
    layer.build((BATCH, TIME, INPUTS))
    layer.set_weights(random_weights(cell))
    return layer


def both_ways(run) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """All outputs, on cuDNN and by the portable equations."""
    from keras import ops, tree

    from rnnconvert.keras.layers import on_cudnn

    with on_cudnn():
        ours = run()
    found = [tree.flatten(outputs) for outputs in (ours, run())]
    return tuple([np.asarray(ops.convert_to_numpy(part)) for part in parts] for parts in found)


@each_cell
@pytest.mark.parametrize("dtype", ["float64", "float32", "mixed_float16"])
@pytest.mark.parametrize("go_backwards", [False, True])
@pytest.mark.parametrize("return_sequences", [False, True])
@pytest.mark.sampled(2)
def test_a_layer_on_tensorflow(tf, op, cell, dtype, go_backwards, return_sequences):
    flags = {"go_backwards": go_backwards, "return_sequences": return_sequences}
    layer = made(cell, dtype, return_state=True, **flags)
    x, states = random_inputs(cell)
    states = [tf.constant(state) for state in states]
    found, expected = both_ways(lambda: layer(x, initial_state=states))
    assert len(op) == 1
    tolerance = TOLERANCE[dtype.removeprefix("mixed_")]
    assert [part.dtype for part in found] == [part.dtype for part in expected]
    assert largest_gap(found, expected) <= tolerance


@each_cell
def test_states_of_a_stateful_layer_on_tensorflow(tf, op, cell):
    layer = made(cell, "float64", stateful=True, return_sequences=True)
    x, _ = random_inputs(cell)

    def run():
        layer.reset_state()
        return [layer(x), layer(x)]

    found, expected = both_ways(run)
    assert len(op) == 2
    assert largest_gap(found, expected) <= TOLERANCE["float64"]
    assert np.abs(expected[0] - expected[1]).max() > 0.01


NAMES = "bi encdec go_backwards siamese stateful td_model"
MODELS = {
    model.name: model
    for model in OWN
    if model.name in ("tf215-half", *(f"k224-{name}" for name in NAMES.split()))
}


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_a_model_on_tensorflow(tf, op, name):
    """Wrappers, nesting and states, against the outputs of another library."""
    from rnnconvert.keras import load_model
    from rnnconvert.keras.layers import on_cudnn
    from rnnconvert.keras_models.verify.keras_engine import ModelRunner

    model = MODELS[name]
    runner = ModelRunner(load_model(model.path))
    with on_cudnn():
        found = runner.run(model.inputs()).outputs
    assert op
    assert worst_difference(list(found.values()), model.outputs()) <= model.tolerance


def test_tensorflows_tf32_is_put_back(tf):
    is_on = tf.config.experimental.tensor_float_32_execution_enabled
    before = is_on()
    with tf32_off("tensorflow"):
        assert not is_on()
    assert is_on() == before


ON_TORCH = """
import sys
from pathlib import Path
import keras, numpy as np
assert keras.backend.backend() == "torch"
import test_cudnn_kernels as tests
from rnnconvert.keras import cudnn
from rnnconvert.keras.layers import on_cudnn
from rnnconvert.report import LevelResult
from rnnconvert.options import Inputs
from rnnconvert.options import Permissions
from rnnconvert.keras_models.verify.model_level import _Check

calls, run = [], cudnn.run_on_torch
cudnn.run_on_torch = lambda *given: calls.append(given) or run(*given)
for cell in tests.GATES:
    for dtype in ("float64", "float32"):
        for backwards in (False, True):
            layer = tests.made(
                cell, dtype, return_state=True, return_sequences=True, go_backwards=backwards)
            x, states = tests.random_inputs(cell)
            states = [keras.ops.convert_to_tensor(state, dtype) for state in states]
            x = x.astype(dtype)
            found, expected = tests.both_ways(lambda: layer(x, initial_state=states))
            assert tests.largest_gap(found, expected) <= tests.TOLERANCE[dtype]
assert len(calls) == 8, len(calls)
with on_cudnn():
    check = _Check(Path(sys.argv[2]), Inputs(), Permissions(), "any", LevelResult("passed"))
    result = check.run(Path(sys.argv[1]))
assert result.status == "passed", result
assert len(calls) == 12, len(calls)
"""


@pytest.mark.slow
@pytest.mark.corpus
def test_layers_and_models_on_torch(tmp_path):
    """Keras on torch, in a process of its own."""
    pytest.importorskip("torch", reason="torch is not installed")
    pytest.importorskip("keras.ops", reason="Keras 3 is not installed")
    import rnnconvert

    source = next(model for model in OWN if model.name == "k224-bi").path
    rnnconvert.convert(source, tmp_path / "out.h5", verify="weights")
    places = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    done = subprocess.run(
        [sys.executable, "-c", ON_TORCH, str(source), str(tmp_path / "out.h5")],
        capture_output=True, text=True, check=False,
        env={**os.environ, "KERAS_BACKEND": "torch", "PYTHONPATH": places},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr

"""Stacks written as Keras files: Keras 2 and 3 load them and compute what torch computes.

The weights come out of torch's own modules; torch has no GRU that resets before the matmul, whose
judge is `equations.canonical_forward`.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

import h5py
import numpy as np
import pytest
from equations import canonical_forward

from rnnconvert.errors import NotConvertibleError
from rnnconvert.keras_models.config import recurrent_layers
from rnnconvert.keras_models.files.h5 import open_keras_h5
from rnnconvert.keras_models.files.writer import LayerWeights, layer_arrays, write_stack
from rnnconvert.keras_models.planning import make_plan
from rnnconvert.layouts import RnnWeights

BATCH, TIME, INPUTS, UNITS = 2, 6, 5, 4
GATES = {"lstm": 4, "gru": 3, "gru_reset_before": 3, "rnn_tanh": 1, "rnn_relu": 1}
TOLERANCE = {"float16": 5e-3, "float32": 1e-5, "float64": 1e-10}


@dataclass(frozen=True)
class Case:
    cell: str
    layers: int = 1
    bidirectional: bool = False
    dtype: str = "float32"
    bias: bool = True

    def __str__(self) -> str:
        sides = "bi" if self.bidirectional else "uni"
        return f"{self.cell}-{sides}{self.layers}-{self.dtype}" + ("" if self.bias else "-no_bias")


PLAIN = [Case(cell, layers, bi) for cell in GATES for layers in (1, 2) for bi in (False, True)]
FURTHER = [
    Case("lstm", 2, True, "float64"),
    Case("gru", 1, False, "float64"),
    Case("gru", 2, True, "float16"),
    Case("lstm", 1, True, bias=False),
    Case("gru", 2, False, bias=False),
    Case("rnn_tanh", 1, False, bias=False),
]
each_case = pytest.mark.parametrize("case", PLAIN + FURTHER, ids=str)
LOADED = [
    pytest.param("keras", case, marks=pytest.mark.corpus if place % 3 else ())
    for place, case in enumerate(PLAIN + FURTHER)
] + [
    # tf_keras takes half a second to build a layer: the others are left to the sweeps
    pytest.param("tf_keras", case, marks=() if case in FURTHER[-3:] else pytest.mark.corpus)
    for case in [case for case in PLAIN if case.layers == 2] + FURTHER
]


def make_stack(case: Case, seed: int = 3) -> list[LayerWeights]:
    """Random weights, none zero; layers have other sizes than their inputs."""
    rng = np.random.default_rng(seed)
    sides = 2 if case.bidirectional else 1
    layers, inputs = [], INPUTS
    for index in range(case.layers):
        units = UNITS - index
        own = [make_weights(rng, case, inputs, units) for _ in range(sides)]
        layers.append(LayerWeights(*own))
        inputs = sides * units
    return layers


def make_weights(rng, case: Case, inputs: int, units: int) -> RnnWeights:
    gates = GATES[case.cell]
    shapes = [(gates, units, inputs), (gates, units, units), (2, gates, units)]
    arrays = [rng.normal(0.0, 0.5, shape).astype(case.dtype) for shape in shapes]
    return RnnWeights(case.cell, *arrays[:2], arrays[2] if case.bias else None)


def make_input(case: Case) -> np.ndarray:
    return np.random.default_rng(8).normal(0.0, 1.0, (BATCH, TIME, INPUTS)).astype(case.dtype)


def expected(layers: list[LayerWeights], x: np.ndarray) -> np.ndarray:
    """Outputs of the stack in float64, layer by layer, since torch's stacks have equal layers."""
    sequence = x.astype("float64")
    for layer in layers:
        run = by_equations if layer.forward.cell == "gru_reset_before" else by_torch
        sequence = run(layer, sequence)
    return sequence


def by_torch(layer: LayerWeights, x: np.ndarray) -> np.ndarray:
    torch = pytest.importorskip("torch", reason="torch is the oracle")
    first = layer.forward
    kind, options = {
        "lstm": (torch.nn.LSTM, {}),
        "gru": (torch.nn.GRU, {}),
        "rnn_tanh": (torch.nn.RNN, {"nonlinearity": "tanh"}),
        "rnn_relu": (torch.nn.RNN, {"nonlinearity": "relu"}),
    }[first.cell]
    module = kind(
        first.input_dim, first.units, batch_first=True, bias=first.bias is not None,
        bidirectional=layer.backward is not None, dtype=torch.float64, **options,
    )  # fmt: skip
    with torch.no_grad():
        for direction, weights in layer.directions.items():
            end = "_reverse" if direction == "backward" else ""
            stored = {"weight_ih": weights.kernel, "weight_hh": weights.recurrent}
            if weights.bias is not None:
                stored.update(bias_ih=weights.bias[0], bias_hh=weights.bias[1])
            for name, array in stored.items():
                parameter = getattr(module, f"{name}_l0{end}")
                parameter.copy_(torch.tensor(array.astype("float64")).reshape(parameter.shape))
        return module(torch.tensor(x))[0].numpy()


def by_equations(layer: LayerWeights, x: np.ndarray) -> np.ndarray:
    zeros = np.zeros((len(x), layer.forward.units))
    sides = []
    for direction, weights in layer.directions.items():
        step = -1 if direction == "backward" else 1
        sides.append(canonical_forward(weights, x[:, ::step], (zeros, zeros))[:, ::step])
    return np.concatenate(sides, axis=2)


@pytest.fixture(scope="module")
def keras():
    os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")
    return pytest.importorskip("keras", reason="Keras 3 is not installed")


@pytest.fixture(scope="module")
def tf_keras():
    os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")
    return pytest.importorskip("tf_keras", reason="tf_keras is not installed")


def difference(library, path: Path, x: np.ndarray, wanted: np.ndarray) -> float:
    """Largest difference of a loaded model's outputs; it must keep the dtype of the weights."""
    model = library.models.load_model(path)
    assert model.input_shape == (None, None, INPUTS)
    assert {str(np.asarray(weight).dtype) for weight in model.get_weights()} == {x.dtype.name}
    found = np.asarray(model(x))
    assert found.dtype == x.dtype
    assert found.shape == wanted.shape
    return float(np.abs(found.astype("float64") - wanted).max())


# --- what Keras makes of it -----------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(("version", "case"), LOADED, ids=str)
@pytest.mark.sampled(6)
@pytest.mark.thinned(2)
def test_keras_computes_what_torch_computes(version, case, request, tmp_path):
    library = request.getfixturevalue(version)
    library.backend.clear_session()
    layers, x = make_stack(case), make_input(case)
    path = tmp_path / "stack.h5"
    write_stack(path, "model/enc/cudnn_stack", layers)
    worst = difference(library, path, x, expected(layers, x))
    assert worst <= TOLERANCE[case.dtype]


@pytest.mark.slow
@pytest.mark.parametrize("version", ["keras", "tf_keras"])
@pytest.mark.parametrize("scope", ["a b/c:d é.1/", "_Ünder", "", "7/8", "x" * 400], ids=range(5))
@pytest.mark.sampled(6)
def test_odd_names_load(scope, version, request, tmp_path):
    library = request.getfixturevalue(version)
    library.backend.clear_session()
    case = Case("rnn_tanh", 1, True)
    layers, x = make_stack(case), make_input(case)
    path = tmp_path / "stack.h5"
    write_stack(path, scope, layers)
    assert difference(library, path, x, expected(layers, x)) <= 1e-5


@pytest.mark.slow
def test_keras_own_file_of_the_model_holds_the_same(keras, tmp_path):
    """Loaded, saved by Keras and read again: the same tensors under the same layer names."""
    keras.backend.clear_session()
    ours, theirs = tmp_path / "stack.h5", tmp_path / "again.h5"
    write_stack(ours, "cudnn_gru", make_stack(Case("gru", 2, True)))
    keras.models.load_model(ours).save(theirs)
    with open_keras_h5(ours) as file, open_keras_h5(theirs) as again:
        assert list(file.groups) == list(again.groups)
        for mine, other in zip(file.groups.values(), again.groups.values(), strict=True):
            assert [t.shape for t in mine] == [t.shape for t in other]
            for one, two in zip(mine, other, strict=True):
                assert np.array_equal(file.read(one.path), again.read(two.path))


# --- what the file is -----------------------------------------------------------------------


@each_case
def test_there_is_nothing_to_convert(case, tmp_path):
    layers = make_stack(case)
    path = tmp_path / "stack.h5"
    write_stack(path, "enc/cudnn_stack", layers)
    with open_keras_h5(path) as file:
        for target in ("keras3", "keras2"):
            plan = make_plan(file, target=target)
            assert plan.is_empty
            assert (plan.problems, plan.warnings, plan.target_points) == ((), (), ())
        sites = [site.site for site in plan.sites]
        assert [site.cell for site in sites] == [
            weights.cell for layer in layers for weights in layer.directions.values()
        ] or case.cell == "rnn_relu"  # which planning calls rnn_tanh, by its layout
        described = recurrent_layers(file.model_config)
        wanted = "relu" if case.cell == "rnn_relu" else "tanh"
        assert {layer.activation for layer in described} == {wanted}
        assert {layer.use_bias for layer in described} == {case.bias}
        assert {layer.flags for layer in described} == {("return_sequences",)}


@each_case
def test_the_returned_paths_lead_to_the_tensors(case, tmp_path):
    layers = make_stack(case)
    path = tmp_path / "stack.h5"
    written = write_stack(path, "enc/cudnn_stack", layers)
    sides = ("forward", "backward") if case.bidirectional else ("forward",)
    assert [(w.layer, w.direction) for w in written] == [
        (layer, side) for layer in range(case.layers) for side in sides
    ]
    arrays = layer_arrays("enc/cudnn_stack", layers)
    seen = []
    with h5py.File(path) as file:
        for layer, direction, paths in written:
            assert ("bias" in paths) == case.bias
            for kind, place in paths.items():
                stored = file[place][()]
                array = arrays[f"enc/cudnn_stack/layer_{layer}/{direction}/{kind}"]
                assert stored.dtype == array.dtype == np.dtype(case.dtype)
                assert np.array_equal(stored, array)
                seen.append(place)
        datasets = []
        file.visititems(lambda name, it: datasets.append(name) if hasattr(it, "dtype") else None)
        assert sorted(seen) == sorted(datasets)
    assert len(seen) == len(arrays)


def test_layer_arrays_are_in_keras_layout():
    """Against the definition: columns z, r, h; rows are inputs; both biases kept."""
    layers = make_stack(Case("gru"))
    weights = layers[0].forward
    arrays = layer_arrays("s", layers)
    assert list(arrays) == [
        f"s/layer_0/forward/{kind}" for kind in ("kernel", "recurrent_kernel", "bias")
    ]
    kernel, recurrent, bias = arrays.values()
    for place, gate in enumerate((1, 0, 2)):
        columns = slice(place * UNITS, (place + 1) * UNITS)
        assert np.array_equal(kernel[:, columns], weights.kernel[gate].T)
        assert np.array_equal(recurrent[:, columns], weights.recurrent[gate].T)
        assert np.array_equal(bias[:, columns], weights.bias[:, gate])


def test_layer_names_come_from_the_scope(tmp_path):
    path = tmp_path / "stack.h5"
    write_stack(path, "model/enc/cudnn_lstm", make_stack(Case("lstm", 2)))
    with h5py.File(path) as file:
        assert list(file["model_weights"]) == ["cudnn_lstm_0", "cudnn_lstm_1"]
        names = file["model_weights/cudnn_lstm_1"].attrs["weight_names"]
        assert [name.decode() for name in names] == [
            f"cudnn_lstm_1/lstm_cell/{kind}:0" for kind in ("kernel", "recurrent_kernel", "bias")
        ]


def test_the_same_input_makes_the_same_bytes(tmp_path):
    layers = make_stack(Case("lstm", 2, True))
    paths = [tmp_path / "one.h5", tmp_path / "two.tmp"]
    write_stack(paths[0], "enc", layers)
    time.sleep(1.1)  # HDF5 counts times in seconds
    write_stack(paths[1], "enc", layers)
    assert paths[0].read_bytes() == paths[1].read_bytes()


# --- refusals -------------------------------------------------------------------------------


def test_bfloat16_is_refused_before_anything_is_written(tmp_path):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    rng = np.random.default_rng(0)
    weights = make_weights(rng, Case("lstm", dtype=ml_dtypes.bfloat16), 3, 4)
    with pytest.raises(NotConvertibleError, match="bfloat16 have no place"):
        write_stack(tmp_path / "x.h5", "enc", [LayerWeights(weights)])
    assert not list(tmp_path.iterdir())


def test_layers_that_do_not_fit_are_refused(tmp_path):
    path = tmp_path / "x.h5"
    one, two = make_stack(Case("gru", 2))
    with pytest.raises(ValueError, match="layer 1 has 5 inputs, but layer 0 has 3 outputs"):
        write_stack(path, "enc", [two, one])
    with pytest.raises(ValueError, match="at least one layer"):
        write_stack(path, "enc", [])
    half = make_stack(Case("gru", 2, dtype="float16"))[1]
    with pytest.raises(ValueError, match="one dtype, found float16, float32"):
        write_stack(path, "enc", [one, half])
    with pytest.raises(ValueError, match="directions of a layer differ"):
        LayerWeights(one.forward, two.forward)
    assert not path.exists()

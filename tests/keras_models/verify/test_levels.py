"""Both levels must catch every wrong conversion, and pass the right one."""

from __future__ import annotations

import numpy as np
import pytest
from file_mutants import NAMES, overwrite, read_tensors
from helpers import make_model_h5
from mutants import FUNCTION_MUTANTS, TENSOR_MUTANTS

import rnnconvert
from rnnconvert import layouts
from rnnconvert.keras_models import planning
from rnnconvert.keras_models.files import h5 as keras_h5
from rnnconvert.keras_models.verify import levels
from rnnconvert.keras_models.verify.levels import check_layers, check_weights
from rnnconvert.options import Inputs
from rnnconvert.references import cudnn as cudnn_reference
from rnnconvert.references import keras as keras_reference

CASES = [(mutant, cell) for mutant in TENSOR_MUTANTS for cell in mutant.cells]


@pytest.fixture(scope="module")
def converted(tmp_path_factory):
    """A CuDNN model and its right conversion, d != units in every layer."""
    folder = tmp_path_factory.mktemp("levels")
    source = make_model_h5(folder / "m.h5")
    rnnconvert.convert(source, folder / "right.h5")
    return source, folder / "right.h5"


def check(source, written, inputs=None):
    with keras_h5.open_keras_h5(source) as old, keras_h5.open_keras_h5(written) as new:
        plan = planning.make_plan(old)
        weights, _ = check_weights(plan, old, new)
        sites = [change.site for change in planning.make_plan(new).sites]
        layers = check_layers(plan, old, new, sites, ("keras2", "keras2"), inputs or Inputs())
    return weights, layers


def test_the_right_conversion_passes(converted):
    weights, layers = check(*converted)
    assert (weights.status, layers.status) == ("passed", "passed")
    assert 0 < layers.max_abs < layers.tolerance


@pytest.mark.parametrize(("mutant", "cell"), CASES, ids=lambda part: getattr(part, "name", part))
def test_a_wrong_conversion_is_caught_by_both_levels(converted, tmp_path, mutant, cell):
    source, right = converted
    wrong = tmp_path / "wrong.h5"
    wrong.write_bytes(right.read_bytes())
    tensors = mutant.apply(read_tensors(source, NAMES[cell]), cell)
    overwrite(wrong, NAMES[cell], tensors)
    weights, layers = check(source, wrong)
    assert weights.status == "failed"
    assert layers.status == "failed"
    assert layers.max_abs > 100 * layers.tolerance
    assert NAMES[cell] in layers.worst


@pytest.fixture
def as_large_layers(monkeypatch):
    """Layers take the way of large ones: few time steps, and their tensors some rows at a time."""
    monkeypatch.setattr(levels, "_LARGE", 0)
    monkeypatch.setattr(keras_h5, "_LARGEST_READ", 0)
    for reference in (cudnn_reference, keras_reference):
        monkeypatch.setattr(reference, "_AT_ONCE", 50)


def test_the_right_conversion_of_large_layers_passes(converted, as_large_layers):
    _, layers = check(*converted)
    assert layers.status == "passed"
    assert layers.detail == "2 layers, 2 time steps, batch 3, random states"
    assert 0 < layers.max_abs < layers.tolerance


@pytest.mark.parametrize(("mutant", "cell"), CASES, ids=lambda part: getattr(part, "name", part))
@pytest.mark.sampled(4)
def test_few_steps_catch_every_wrong_conversion(converted, tmp_path, as_large_layers, mutant, cell):
    source, right = converted
    wrong = tmp_path / "wrong.h5"
    wrong.write_bytes(right.read_bytes())
    overwrite(wrong, NAMES[cell], mutant.apply(read_tensors(source, NAMES[cell]), cell))
    layers = check(source, wrong)[1]
    assert layers.status == "failed"
    assert layers.max_abs > 100 * layers.tolerance
    assert NAMES[cell] in layers.worst


@pytest.mark.parametrize("cell", ["lstm", "gru", "gru_reset_before", "rnn_tanh"])
def test_rows_at_a_time_give_what_the_whole_matrix_gives(monkeypatch, cell):
    generator = np.random.default_rng(1)
    gates = {"lstm": 4, "rnn_tanh": 1}.get(cell, 3)
    tensors = {
        "kernel": generator.normal(size=(7, gates * 5)),
        "recurrent_kernel": generator.normal(size=(5, gates * 5)),
        "bias": generator.normal(size=gates * 5),
    }
    x, h, c = (generator.normal(size=shape) for shape in ((2, 6, 7), (2, 5), (2, 5)))
    expected = keras_reference.run_keras_layer(cell, tensors, x, h, c)[0]
    monkeypatch.setattr(keras_reference, "_AT_ONCE", 1)
    assert (
        np.abs(keras_reference.run_keras_layer(cell, tensors, x, h, c)[0] - expected).max() < 1e-12
    )
    if cell not in ("lstm", "gru"):
        return
    tensors["bias"] = generator.normal(size=2 * gates * 5)
    expected = cudnn_reference.run_cudnn_layer(cell, tensors, x, h, c)[0]
    monkeypatch.setattr(cudnn_reference, "_AT_ONCE", 1)
    assert (
        np.abs(cudnn_reference.run_cudnn_layer(cell, tensors, x, h, c)[0] - expected).max() < 1e-12
    )


@pytest.mark.parametrize("index", range(6))
def test_one_changed_bit_is_caught_by_the_weights_level(converted, tmp_path, index):
    source, right = converted
    wrong = tmp_path / "wrong.h5"
    wrong.write_bytes(right.read_bytes())
    name = list(NAMES.values())[index // 3]
    kind = ("kernel", "recurrent_kernel", "bias")[index % 3]
    values = read_tensors(wrong, name)[kind]
    values.view("u4").flat[-1] ^= 2
    overwrite(wrong, name, {kind: values})
    assert check(source, wrong)[0].status == "failed"


def test_function_mutants_name_what_the_reference_can_be_asked_for():
    """Each function mutant is a switch of the equations; the references have none of them on."""
    assert len(TENSOR_MUTANTS) + len(FUNCTION_MUTANTS) >= 20


@pytest.mark.parametrize("cell", ["lstm", "gru"])
@pytest.mark.parametrize("wrong", ["hard_sigmoid/keras2", "hard_sigmoid/keras3"])
def test_another_gate_activation_is_another_function(cell, wrong):
    generator = np.random.default_rng(1)
    gates = 4 if cell == "lstm" else 3
    source = {
        "kernel": generator.normal(size=(3, gates * 4)),
        "recurrent_kernel": generator.normal(size=(4, gates * 4)),
        "bias": generator.normal(size=2 * gates * 4),
    }
    target = layouts.convert(source, "keras-cudnn", "keras", cell)
    x, h, c = (generator.normal(size=shape) for shape in ((2, 6, 3), (2, 4), (2, 4)))
    c = c if cell == "lstm" else None
    expected = cudnn_reference.run_cudnn_layer(cell, source, x, h, c)[0]
    right = keras_reference.run_keras_layer(cell, target, x, h, c)[0]
    other = keras_reference.run_keras_layer(cell, target, x, h, c, recurrent_activation=wrong)[0]
    assert np.abs(right - expected).max() < 1e-12
    assert np.abs(other - expected).max() > 1e-3


def test_references_share_no_code_with_the_converter_or_each_other():
    import ast
    from pathlib import Path

    for module in (cudnn_reference, keras_reference):
        tree = ast.parse(Path(module.__file__).read_text(encoding="utf-8"))
        imported = [
            alias.name if isinstance(node, ast.Import) else node.module
            for node in ast.walk(tree)
            if isinstance(node, ast.Import | ast.ImportFrom)
            for alias in node.names
        ]
        assert not [name for name in imported if name.startswith("rnnconvert")]


@pytest.mark.parametrize("cell", ["lstm", "gru"])
def test_the_cudnn_reference_is_torch(cell):
    torch = pytest.importorskip("torch", reason="torch is the oracle here")
    generator = np.random.default_rng(2)
    gates, units, width = (4 if cell == "lstm" else 3), 4, 3
    source = {
        "kernel": generator.normal(size=(width, gates * units)),
        "recurrent_kernel": generator.normal(size=(units, gates * units)),
        "bias": generator.normal(size=2 * gates * units),
    }
    order = (0, 1, 2, 3) if cell == "lstm" else (1, 0, 2)  # Keras holds z r h, torch r z n

    def matrices(kernel):
        blocks = [kernel[:, g * units : (g + 1) * units] for g in order]
        return torch.tensor(np.concatenate([b.ravel().reshape(units, -1) for b in blocks]))

    module = (torch.nn.LSTM if cell == "lstm" else torch.nn.GRU)(width, units, batch_first=True)
    module = module.double()
    bias = source["bias"].reshape(2, gates, units)[:, list(order)].reshape(2, -1)
    with torch.no_grad():
        module.weight_ih_l0.copy_(matrices(source["kernel"]))
        module.weight_hh_l0.copy_(matrices(source["recurrent_kernel"]))
        module.bias_ih_l0.copy_(torch.tensor(bias[0]))
        module.bias_hh_l0.copy_(torch.tensor(bias[1]))
    x, h, c = (generator.normal(size=shape) for shape in ((2, 6, width), (2, units), (2, units)))
    state = torch.tensor(h[None])
    state = (state, torch.tensor(c[None])) if cell == "lstm" else state
    expected = module(torch.tensor(x), state)[0].detach().numpy()
    found = cudnn_reference.run_cudnn_layer(cell, source, x, h, c if cell == "lstm" else None)[0]
    assert np.abs(found - expected).max() < 1e-12

"""The references for TF1: against torch's stacks, and against what TensorFlow 1 itself computed."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

from rnnconvert.references.tf1 import run_cells, run_opaque

CHECKPOINTS = Path(__file__).parents[2] / "fixtures" / "checkpoints"
ALL = sorted(CHECKPOINTS.glob("*/*/data*.npz"))
CUDNN = [path for path in ALL if path.parent.name.startswith("cudnn_")]
UNSUPPORTED = ("lstm_peephole", "lstm_projection", "layer_norm_lstm")
CELLS = [path for path in ALL if path not in CUDNN and path.parent.name not in UNSUPPORTED]
NO_CELL_TENSORS = ("_raw", "_object", "_disagree")
CANONICAL = [
    path
    for path in CUDNN
    if path.name == "data.npz" and not any(part in path.parent.name for part in NO_CELL_TENSORS)
]
TOLERANCE = 2e-6
"""The old TensorFlow computed in float32."""

_PLACE = re.compile(
    r"(?P<scope>(?:.*/)?(?P<kind>\w+_cell|GRUBlockCellV?2?|lstm_block_wrapper))/(?P<name>.+)"
)
_SLOT = re.compile(r"/(Adam|Adam_1)$")


def fixture_id(path: Path) -> str:
    return "-".join(path.with_suffix("").parts[-3:])


def load(path: Path) -> tuple[dict, dict[str, np.ndarray]]:
    with np.load(path) as data:
        arrays = {name: data[name] for name in data.files if name != "meta"}
        return json.loads(str(data["meta"])), arrays


def cells_of(arrays: dict[str, np.ndarray], scope: str = "") -> tuple[str, list]:
    """Kind of the cells in a checkpoint, and their tensors, by layer and direction."""
    found: dict[str, dict[str, np.ndarray]] = {}
    kinds = set()
    for name, array in arrays.items():
        match = _PLACE.fullmatch(name.removeprefix("tensors/"))
        if not (name.startswith(f"tensors/{scope}") and match) or _SLOT.search(name):
            continue
        kinds.add(match["kind"])
        found.setdefault(match["scope"], {})[match["name"]] = array
    layers: dict[str, dict] = {}
    for place in sorted(found, key=lambda place: (place.startswith("second"), place)):
        side = "backward" if "/bw/" in place else "forward"
        layers.setdefault(place.replace("/bw/", "/fw/"), {})[side] = found[place]
    (kind,) = kinds
    return kind, list(layers.values())


def worst(found, wanted) -> float:
    found, wanted = np.asarray(found), np.asarray(wanted, np.float64)
    assert found.dtype == np.float64
    assert found.shape == wanted.shape
    return float(np.abs(found - wanted).max())


# --- cuDNN's buffer -------------------------------------------------------------------------


def torch_stack(cell: str, layers: int, units: int, inputs: int, direction: str):
    """A torch stack in float64, no parameter zero, and the buffer that cuDNN would have for it."""
    torch = pytest.importorskip("torch", reason="torch is the oracle")
    kind, options = {
        "lstm": (torch.nn.LSTM, {}),
        "gru": (torch.nn.GRU, {}),
        "rnn_tanh": (torch.nn.RNN, {"nonlinearity": "tanh"}),
        "rnn_relu": (torch.nn.RNN, {"nonlinearity": "relu"}),
    }[cell]
    torch.manual_seed(5)
    module = kind(
        inputs, units, layers, batch_first=True, bidirectional=direction == "bidirectional",
        dtype=torch.float64, **options,
    )  # fmt: skip
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter, 0.0, 0.6)
    named = [(name, value.detach().numpy()) for name, value in module.named_parameters()]
    pieces = [value.ravel() for name, value in named if name.startswith("weight")]
    pieces += [value.ravel() for name, value in named if name.startswith("bias")]
    return module, np.concatenate(pieces)


@pytest.mark.parametrize("direction", ["unidirectional", "bidirectional"])
@pytest.mark.parametrize("layers", [1, 3])
@pytest.mark.parametrize("cell", ["lstm", "gru", "rnn_tanh", "rnn_relu"])
def test_the_buffer_as_torch_runs_it(cell, layers, direction):
    torch = pytest.importorskip("torch", reason="torch is the oracle")
    module, buffer = torch_stack(cell, layers, 4, 5, direction)
    x = np.random.default_rng(1).normal(size=(3, 7, 5))
    with torch.no_grad():
        wanted, last = module(torch.tensor(x))
    outputs, h, c = run_opaque(cell, layers, 4, 5, direction, buffer, x)
    assert worst(outputs, wanted) <= 1e-12
    assert (c is not None) == (cell == "lstm")
    if c is not None:
        assert worst(c, last[1]) <= 1e-12
        last = last[0]
    assert worst(h, last) <= 1e-12


@pytest.mark.parametrize("path", CUDNN, ids=fixture_id)
def test_the_buffers_of_the_checkpoints(path):
    meta, data = load(path)
    shape = [meta[key] for key in ("cell", "num_layers", "num_units", "input_size", "direction")]
    outputs, h, c = run_opaque(*shape, data["params"], data["x"])
    assert worst(outputs, data["y"]) <= 1e-12
    assert worst(h, data["hn"]) <= 1e-12
    assert (c is not None) == ("cn" in data)
    if c is not None:
        assert worst(c, data["cn"]) <= 1e-12


@pytest.mark.parametrize("change", [-1, 1])
def test_a_buffer_of_another_size_is_refused(change):
    _, buffer = torch_stack("gru", 2, 4, 5, "unidirectional")
    buffer = np.resize(buffer, buffer.size + change)
    with pytest.raises(ValueError, match="1 elements"):
        run_opaque("gru", 2, 4, 5, "unidirectional", buffer, np.zeros((2, 5, 5)))


# --- cells ----------------------------------------------------------------------------------


@pytest.mark.parametrize("path", CELLS, ids=fixture_id)
def test_the_cells_as_tensorflow_ran_them(path):
    meta, data = load(path)
    kind, tensors = cells_of(data)
    outputs, h, c = run_cells(
        kind, tensors, data["x"],
        forget_bias=meta.get("forget_bias"), activation=meta.get("activation", "tanh"),
    )  # fmt: skip
    assert worst(outputs, data["y"]) <= TOLERANCE
    assert len(h) == len(meta["units"]) * (2 if meta["direction"] == "bidirectional" else 1)
    for index, state in enumerate(h):
        assert worst(state, data[f"h_{index}"]) <= TOLERANCE
    assert (c is not None) == ("c_0" in data)
    for index, state in enumerate(c or ()):
        assert worst(state, data[f"c_{index}"]) <= TOLERANCE


@pytest.mark.parametrize("path", CANONICAL, ids=fixture_id)
def test_canonical_tensors_compute_what_their_buffer_does(path):
    """`y` is torch's, from the buffer; the tensors were joined and merged by TensorFlow."""
    meta, data = load(path)
    kind, tensors = cells_of(data, meta["canonical_scope"] + "/")
    activation = "relu" if meta["cell"] == "rnn_relu" else "tanh"
    outputs, h, c = run_cells(kind, tensors, data["x"], activation=activation)
    tolerance = {"float16": 2e-3, "float64": 1e-12}.get(meta["dtype"], TOLERANCE)
    assert worst(outputs, data["y"]) <= tolerance
    assert worst(np.stack(h), data["hn"]) <= tolerance
    if c is not None:
        assert worst(np.stack(c), data["cn"]) <= tolerance


@pytest.mark.parametrize("kind", ["basic_lstm_cell", "lstm_cell_1", "lstm_fused_cell"])
def test_the_forget_bias_of_the_class(kind):
    rng = np.random.default_rng(2)
    tensors = {"kernel": rng.normal(size=(9, 16)), "bias": rng.normal(size=16)}
    x = rng.normal(size=(2, 6, 5))
    added = np.repeat([0.0, 0.0, 1.0, 0.0], 4)  # i, j, f, o
    layers = [{"forward": tensors}]
    stored = [{"forward": {**tensors, "bias": tensors["bias"] + added}}]
    found, _, _ = run_cells(kind, layers, x)
    assert np.array_equal(found, run_cells(kind, layers, x, forget_bias=1.0)[0])
    wanted, _, _ = run_cells("cudnn_compatible_lstm_cell", stored, x)
    assert worst(found, wanted) <= 1e-12
    assert worst(found, run_cells(kind, layers, x, forget_bias=0.0)[0]) > 1e-3


def test_old_names_and_separate_biases_of_tf_1_3():
    rng = np.random.default_rng(4)
    kernel, bias = rng.normal(size=(8, 12)), rng.normal(size=12)
    x = rng.normal(size=(2, 5, 5))
    wanted, _, _ = run_cells("lstm_cell", [{"forward": {"kernel": kernel, "bias": bias}}], x)
    old = {"weights": kernel, "biases": bias}
    split = {"kernel": kernel, "bias": bias, "bias_cudnn_0": bias / 4, "bias_cudnn_1": bias * 0.75}
    for tensors in (old, split):
        assert np.array_equal(run_cells("lstm_cell", [{"forward": tensors}], x)[0], wanted)


@pytest.mark.parametrize(
    "path", [path for path in ALL if path.parent.name in UNSUPPORTED], ids=fixture_id
)
def test_cells_of_other_equations_are_refused(path):
    _, data = load(path)
    kind, tensors = cells_of(data)
    with pytest.raises(ValueError, match=r"no equations|expected kernel, bias; found"):
        run_cells(kind, tensors, data["x"])

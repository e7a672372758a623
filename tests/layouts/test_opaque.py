"""The flat parameter buffer: against torch, against the equations, and against wrong layouts.

The judge is a reader of the buffer of our own here (`cut`), written from cuDNN's numbering of
matrices and biases, with the equations run over it in numpy (`forward`). torch gets its weights
from `unpack`. Nothing is square but where skip_input asks for it.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from equations import GATES, Array, relu, sigmoid
from hypothesis import given, settings
from hypothesis import strategies as st
from models import SHARED
from opaque_shapes import SHAPES

from rnnconvert.errors import NotConvertibleError, UsageError
from rnnconvert.layouts import opaque, opaque_arrays, opaque_fitting, opaque_shape
from rnnconvert.layouts.opaque import PseudoLayer
from rnnconvert.layouts.opaque_shape import OpaqueShape

BATCH, TIME = 3, 6
THRESHOLD = 1e-3
EXPECTED = sorted((SHARED / "fixtures" / "contrib_savedmodels" / "expected").glob("*.npz"))

pytestmark = pytest.mark.filterwarnings("error")


@pytest.fixture(scope="module")
def torch():
    return pytest.importorskip("torch", reason="torch is the oracle")


SKIPPING = [
    OpaqueShape(cell, 2, 4, 4, "bidirectional", "skip_input") for cell in opaque_shape.CUDNN_CELLS
]


def shape_id(shape: OpaqueShape) -> str:
    words = [shape.cell, str(shape.num_layers), shape.direction, shape.resolved.input_mode]
    return "-".join(words + ([f"proj{shape.num_proj}"] if shape.num_proj else []))


each_shape = pytest.mark.parametrize("shape", SHAPES + SKIPPING, ids=shape_id)


# --- the judge ------------------------------------------------------------------------------


def cut(shape: OpaqueShape, buffer: Array) -> list[dict[str, Array]]:
    """W, R, bW, bR of each gate and P of each pseudo-layer, as cuDNN finds them."""
    gates, directions = GATES[shape.cell], 1 + (shape.direction == "bidirectional")
    units, out = shape.num_units, shape.num_proj or shape.num_units
    skips = shape.input_mode == "skip_input"
    numbers = iter(buffer)

    def take(*axes: int) -> Array:
        count = int(np.prod(axes))
        return np.array(list(itertools.islice(numbers, count)), buffer.dtype).reshape(axes)

    layers = []
    for number in range(shape.num_layers * directions):
        width = shape.input_size if number < directions else directions * out
        layer = {}
        for gate in gates:
            absent = skips and number < directions
            layer[f"W{gate}"] = np.eye(units) if absent else take(units, width)
        for gate in gates:
            layer[f"R{gate}"] = take(units, out)
        layer["P"] = take(out, units) if shape.num_proj else np.eye(units)
        layers.append(layer)
    for layer in layers:
        for kind, gate in itertools.product(("bW", "bR"), gates):
            layer[f"{kind}{gate}"] = take(units)
    assert next(numbers, None) is None
    return layers


def one_direction(cell: str, w: dict[str, Array], x: Array, h: Array, c: Array) -> list[Array]:
    """Outputs (batch, out) of all time steps; x is (time, batch, in)."""

    outputs = []
    for x_t in x:
        xw = {gate: x_t @ w[f"W{gate}"].T + w[f"bW{gate}"] for gate in GATES[cell]}
        hr = {gate: h @ w[f"R{gate}"].T + w[f"bR{gate}"] for gate in GATES[cell]}
        if cell == "lstm":
            i, f, o = (sigmoid(xw[gate] + hr[gate]) for gate in "ifo")
            c = f * c + i * np.tanh(xw["c"] + hr["c"])
            h = (o * np.tanh(c)) @ w["P"].T
        elif cell == "gru":
            r, z = (sigmoid(xw[gate] + hr[gate]) for gate in "rz")
            h = (1 - z) * np.tanh(xw["n"] + r * hr["n"]) + z * h
        else:
            h = (np.tanh if cell == "rnn_tanh" else relu)(xw["h"] + hr["h"])
        outputs.append(h)
    return outputs


def forward(shape: OpaqueShape, layers: list[dict[str, Array]], x: Array, h0, c0) -> Array:
    """The output (time, batch, directions * out) of the last layer."""
    directions = 1 + (shape.direction == "bidirectional")
    for first in range(0, len(layers), directions):
        outputs = []
        for number in range(first, first + directions):
            turn = slice(None, None, -1 if number > first else 1)
            steps = one_direction(shape.cell, layers[number], x[turn], h0[number], c0[number])
            outputs.append(np.stack(steps)[turn])
        x = np.concatenate(outputs, axis=2)
    return x


def torch_module(torch, shape: OpaqueShape):
    options = {"num_layers": shape.num_layers, "bidirectional": shape.direction == "bidirectional"}
    if shape.cell.startswith("rnn_"):
        options["nonlinearity"] = shape.cell.removeprefix("rnn_")
    if shape.num_proj:
        options["proj_size"] = shape.num_proj
    classes = {"lstm": torch.nn.LSTM, "gru": torch.nn.GRU}
    return classes.get(shape.cell, torch.nn.RNN)(shape.input_size, shape.num_units, **options)


def run_torch(
    torch, shape: OpaqueShape, layers: Sequence[PseudoLayer], x: Array, h0: Array, c0: Array
) -> Array:
    """The output of a torch module with these weights."""
    module = torch_module(torch, shape)
    state = {}
    for layer in layers:
        suffix = f"_l{layer.layer}" + {"forward": "", "backward": "_reverse"}[layer.direction]
        if layer.projection is None:
            weights = layer.weights()
            kernel = weights.kernel
        else:
            kernel = layer.kernel
            state[f"weight_hr{suffix}"] = layer.projection
        state[f"weight_ih{suffix}"] = kernel.reshape(-1, kernel.shape[2])
        state[f"weight_hh{suffix}"] = layer.recurrent.reshape(-1, layer.recurrent.shape[2])
        state[f"bias_ih{suffix}"], state[f"bias_hh{suffix}"] = layer.bias.reshape(2, -1)
    module.double().load_state_dict({k: torch.tensor(v.copy()) for k, v in state.items()})
    given = (torch.tensor(h0), torch.tensor(c0)) if shape.cell == "lstm" else torch.tensor(h0)
    with torch.no_grad():
        return module(torch.tensor(x), given)[0].numpy()


def problem(shape: OpaqueShape, seed: int = 0) -> tuple[Array, Array, Array, Array]:
    """A random buffer, an input sequence, and initial states h0 and c0."""
    rng = np.random.default_rng(seed)
    directions = 1 + (shape.direction == "bidirectional")
    states = (shape.num_layers * directions, BATCH)
    return (
        rng.normal(0.0, 0.5, shape.size),
        rng.normal(size=(TIME, BATCH, shape.input_size)),
        rng.normal(size=(*states, shape.num_proj or shape.num_units)),
        rng.normal(size=(*states, shape.num_units)),
    )


# --- the right layout -----------------------------------------------------------------------


@each_shape
def test_torch_with_the_unpacked_weights_computes_the_equations(torch, shape):
    buffer, *inputs = problem(shape)
    found = run_torch(torch, shape, opaque.unpack_buffer(shape, buffer), *inputs)
    expected = forward(shape, cut(shape, buffer), *inputs)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)


@pytest.mark.skipif(not EXPECTED, reason="no files beside the checkout")
@pytest.mark.parametrize("path", EXPECTED, ids=lambda path: path.stem)
def test_what_torch_computed_when_it_wrote_the_files(path):
    with np.load(path) as data:
        meta = json.loads(str(data["meta"]))
        flat, y, *inputs = (data[name] for name in ("flat", "y", "x", "h0", "c0"))
    shape = OpaqueShape(
        meta["mode"], meta["L"], meta["U"], meta["I"],
        direction="bidirectional" if meta["bi"] else "unidirectional",
        input_mode="skip_input" if meta["skip"] else "linear_input", num_proj=meta["proj"],
    )  # fmt: skip
    layers = [as_cut(layer) for layer in opaque.unpack_buffer(shape, flat)]
    tolerance = {"float32": 2e-6, "float64": 1e-12}[flat.dtype.name]
    np.testing.assert_allclose(forward(shape, layers, *inputs), y, rtol=0, atol=tolerance)


def as_cut(layer: PseudoLayer) -> dict[str, Array]:
    """A layer as the equations above take it, in float64."""
    gates, units = GATES[layer.cell], layer.bias.shape[2]
    kernel = [np.eye(units)] * len(gates) if layer.kernel is None else layer.kernel
    found = {"P": np.eye(units) if layer.projection is None else layer.projection}
    for place, gate in enumerate(gates):
        found[f"W{gate}"], found[f"R{gate}"] = kernel[place], layer.recurrent[place]
        found[f"bW{gate}"], found[f"bR{gate}"] = layer.bias[:, place]
    return {name: array.astype("float64") for name, array in found.items()}


@pytest.mark.parametrize("shape", SHAPES, ids=shape_id)
def test_torch_has_as_many_parameters(torch, shape):
    assert shape.size == sum(
        parameter.numel() for parameter in torch_module(torch, shape).parameters()
    )


def test_the_worked_sizes():
    """By hand: 4*6*(5+6+2) + 4*6*(6+6+2), twice the width of layer 1 and all twice if both ways."""
    one_way = OpaqueShape("lstm", 2, 6, 5)
    assert one_way.size == 312 + 336
    assert replace(one_way, direction="bidirectional").size == 2 * (312 + 480)
    assert OpaqueShape("lstm", 1, 4, 4, input_mode="skip_input").size == 4 * 4 * (0 + 4 + 2)
    assert OpaqueShape("lstm", 1, 4, 5, num_proj=3).size == 4 * 4 * (5 + 3 + 2) + 3 * 4
    assert OpaqueShape("gru", 10**12, 1, 1).size == 3 * 4 * 10**12  # a formula, not a loop


def test_region_names_are_spelled_out():
    shape = OpaqueShape("gru", 1, 2, 3, "bidirectional")
    names = [region.name for region in shape.regions]
    assert names[:3] == [f"gru/layer_0/forward/input_kernel/{gate}" for gate in "rzn"]
    assert names[6] == "gru/layer_0/backward/input_kernel/r"
    assert names[-1] == "gru/layer_0/backward/recurrent_bias/n"
    projecting = OpaqueShape("lstm", 1, 3, 5, num_proj=2)
    assert "lstm/layer_0/forward/projection" in [region.name for region in projecting.regions]


# --- wrong layouts --------------------------------------------------------------------------


def wrong_unpack(
    shape: OpaqueShape,
    buffer: Array,
    *,
    gates: str = "",
    order: str = "C",
    recurrent_first: bool = False,
    backward_first: bool = False,
    directions_apart: bool = False,
    interleaved: bool = False,
    biases_first: bool = False,
    biases_with_layer: bool = False,
    biases_by_gate: bool = False,
    swap_halves: bool = False,
    projection_first: bool = False,
    biases_apart: bool = False,
) -> list[PseudoLayer]:
    """The layers as a wrong reader finds them; without an argument, the right ones.

    Args:
        gates: the order in which this reader expects the gates.
        order: "F" reads matrices column by column.
        recurrent_first: R before W.
        backward_first: the backward direction of each layer before the forward one.
        directions_apart: all layers forward, then all layers backward.
        interleaved: W and R of one gate, then of the next.
        biases_first: all biases, then all matrices.
        biases_with_layer: the biases of a layer behind its matrices, as torch has them.
        biases_by_gate: input and recurrent bias of one gate, then of the next.
        swap_halves: recurrent biases before input biases.
        projection_first: the projection before W and R.
        biases_apart: all input biases of all layers, then all recurrent ones.
    """
    own = GATES[shape.cell]
    gates = gates or "".join(own)
    units, out = shape.num_units, shape.output_size
    at = 0

    def take(*axes: int) -> Array:
        nonlocal at
        at += int(np.prod(axes))
        return buffer[at - int(np.prod(axes)) : at].reshape(axes, order=order)

    places = list(itertools.product(range(shape.num_layers), shape.directions))
    if directions_apart:
        places.sort(key=lambda place: place[1] == "backward")
    if backward_first:
        places.sort(key=lambda place: (place[0], place[1] == "forward"))
    found = {place: {"bias": np.empty((2, len(own), units))} for place in places}

    def matrices(place) -> None:
        width = len(shape.directions) * out if place[0] else shape.input_size
        sizes = {"kernel": (units, width), "recurrent": (units, out)}
        if shape.projection and projection_first:
            found[place]["projection"] = take(out, units)
        wanted = [(field, gate) for field in sizes for gate in gates]
        if recurrent_first:
            wanted.sort(key=lambda want: want[0] == "kernel")
        if interleaved:
            wanted.sort(key=lambda want: gates.index(want[1]))
        for field, gate in wanted:
            array = found[place].setdefault(field, np.empty((len(own), *sizes[field])))
            array[own.index(gate)] = take(*sizes[field])
        if shape.projection and not projection_first:
            found[place]["projection"] = take(out, units)

    def biases(place, halves=(0, 1)) -> None:
        wanted = list(itertools.product(halves, gates))
        if swap_halves:
            wanted.sort(key=lambda want: -want[0])
        if biases_by_gate:
            wanted.sort(key=lambda want: gates.index(want[1]))
        for half, gate in wanted:
            found[place]["bias"][half, own.index(gate)] = take(units)

    if biases_first:
        for place in places:
            biases(place)
    for place in places:
        matrices(place)
        if biases_with_layer:
            biases(place)
    if biases_apart:
        for half, place in itertools.product((0, 1), places):
            biases(place, (half,))
    elif not (biases_first or biases_with_layer):
        for place in places:
            biases(place)
    return [
        PseudoLayer(shape.cell, *place, **{"projection": None, **found[place]})
        for place in sorted(places, key=lambda place: (place[0], place[1] == "backward"))
    ]


LSTM = OpaqueShape("lstm", 2, 4, 5, "bidirectional")
GRU = OpaqueShape("gru", 2, 4, 5, "bidirectional")
RNN = OpaqueShape("rnn_tanh", 2, 4, 5, "bidirectional")
PROJECTING = OpaqueShape("lstm", 2, 4, 5, "bidirectional", num_proj=3)
ALL = (LSTM, GRU, RNN, PROJECTING)
MUTANTS = {
    "gates: Keras' z r n": ((GRU,), {"gates": "zrn"}),
    "gates: n first": ((GRU,), {"gates": "nrz"}),
    "gates: TF1's i c f o": ((LSTM, PROJECTING), {"gates": "icfo"}),
    "gates: ONNX' i o f c": ((LSTM, PROJECTING), {"gates": "iofc"}),
    "matrices: column by column": (ALL, {"order": "F"}),
    "matrices: recurrent before input": (ALL, {"recurrent_first": True}),
    "matrices: W and R gate by gate": ((LSTM, GRU, PROJECTING), {"interleaved": True}),
    "matrices: projection before W": ((PROJECTING,), {"projection_first": True}),
    "directions: backward before forward": (ALL, {"backward_first": True}),
    "directions: all forward layers first": (ALL, {"directions_apart": True}),
    "biases: before the matrices": (ALL, {"biases_first": True}),
    "biases: with each layer, as torch": (ALL, {"biases_with_layer": True}),
    "biases: both of a gate side by side": ((LSTM, GRU, PROJECTING), {"biases_by_gate": True}),
    "biases: recurrent before input": ((GRU,), {"swap_halves": True}),
    "biases: all input ones first": (ALL, {"biases_apart": True}),
}
"""Name: shapes that tell it from the right layout, arguments of `wrong_unpack`.

Not in the list, since only the sum of both biases counts: an LSTM or RNN with the halves swapped.
"""
CASES = [
    pytest.param(shape, options, id=f"{name}-{shape_id(shape)}")
    for name, (shapes, options) in MUTANTS.items()
    for shape in shapes
]


@pytest.mark.parametrize(("shape", "options"), CASES)
@pytest.mark.sampled(3)
def test_a_wrong_layout_is_caught(torch, shape, options):
    errors = []
    for seed in (0, 1):
        buffer, *inputs = problem(shape, seed)
        found = run_torch(torch, shape, wrong_unpack(shape, buffer, **options), *inputs)
        errors.append(np.abs(found - forward(shape, cut(shape, buffer), *inputs)).max())
    assert min(errors) > THRESHOLD


@pytest.mark.parametrize("shape", ALL, ids=shape_id)
def test_the_wrong_reader_is_right_without_its_error(shape):
    buffer, *_ = problem(shape)
    for found, expected in zip(
        wrong_unpack(shape, buffer), opaque.unpack_buffer(shape, buffer), strict=True
    ):
        for field in ("kernel", "recurrent", "bias", "projection"):
            np.testing.assert_array_equal(getattr(found, field), getattr(expected, field))


# --- properties -----------------------------------------------------------------------------


def dtype_of(name: str) -> np.dtype:
    if name == "bfloat16":
        return np.dtype(pytest.importorskip("ml_dtypes", reason="bfloat16 needs it").bfloat16)
    return np.dtype({"big-endian": ">f4", "void16": "V2"}.get(name, name))


@st.composite
def shapes(draw) -> OpaqueShape:
    cell = draw(st.sampled_from(opaque_shape.CUDNN_CELLS))
    units = draw(st.integers(1, 6))
    mode = draw(st.sampled_from(opaque_shape.INPUT_MODES))
    return OpaqueShape(
        cell,
        draw(st.integers(1, 4)),
        units,
        units if mode == "skip_input" else draw(st.integers(1, 7)),
        draw(st.sampled_from(list(opaque_shape.DIRECTIONS))),
        mode,
        draw(st.integers(0, units)) if cell == "lstm" else 0,
    )


properties = settings(max_examples=80, deadline=None, database=None)


@properties
@given(shape=shapes())
def test_regions_cover_the_buffer_without_a_gap(shape):
    at = 0
    for region in shape.regions:
        assert region.offset == at
        at = region.end
    assert at == shape.size
    assert len({region.name for region in shape.regions}) == len(shape.regions)


@properties
@given(
    shape=shapes(),
    seed=st.integers(0, 2**32 - 1),
    name=st.sampled_from(["float16", "float32", "float64", "bfloat16", "big-endian", "void16"]),
)
def test_unpacking_is_a_bijection_bit_for_bit(shape, seed, name):
    """Of any bit pattern, NaN included; the arrays lie in the buffer itself."""
    dtype = dtype_of(name)
    buffer = np.frombuffer(np.random.default_rng(seed).bytes(shape.size * dtype.itemsize), dtype)
    layers = opaque.unpack_buffer(shape, buffer)
    assert all(np.shares_memory(layer.recurrent, buffer) for layer in layers)
    assert_same_bits(opaque.pack_buffer(shape, layers), buffer)
    assert_same_bits(opaque.pack_buffer(shape, layers[::-1]), buffer)
    arrays = opaque_arrays.to_arrays(shape, layers)
    for region in shape.regions:
        piece = buffer[region.offset : region.end].reshape(region.shape)
        assert_same_bits(arrays[region.name], piece)
        assert np.shares_memory(arrays[region.name], buffer)
    found, again = opaque_arrays.from_arrays(arrays)
    assert found == shape.resolved
    assert_same_bits(opaque.pack_buffer(found, again), buffer)


def assert_same_bits(found: Array, expected: Array) -> None:
    assert found.dtype == expected.dtype
    assert found.shape == expected.shape
    assert found.tobytes() == expected.tobytes()


@properties
@given(shape=shapes(), data=st.data())
def test_one_wrong_hyperparameter_is_found(shape, data):
    """The true ones are among the proposals, and those with fewer changes come first."""
    true = shape.resolved
    change = data.draw(
        st.sampled_from(
            [
                {"num_layers": data.draw(st.integers(1, 6))},
                {"direction": data.draw(st.sampled_from(list(opaque_shape.DIRECTIONS)))},
                {"input_size": data.draw(st.integers(1, 20)), "input_mode": "linear_input"},
            ]
        )
    )
    near = replace(true, **change)
    found = opaque_fitting.fitting(true.size, near)
    assert {other.size for other in found} == {true.size}
    if true.num_layers <= 4:
        assert true in found
    distances = [
        sum(getattr(other, name) != getattr(near.resolved, name) for name in vars(other))
        for other in found
    ]
    assert distances == sorted(distances)


def test_the_dtype_of_the_weights_is_the_buffers():
    """A skipped input has an identity kernel in the same dtype."""
    for name in ("float16", "float32", "float64", "bfloat16"):
        dtype = dtype_of(name)
        shape = OpaqueShape("gru", 1, 3, 3, input_mode="auto_select")
        (layer,) = opaque.unpack_buffer(shape, np.ones(shape.size, dtype))
        weights = layer.weights()
        assert weights.dtype == dtype
        np.testing.assert_array_equal(weights.kernel.astype("float64"), [np.eye(3)] * 3)


# --- errors ---------------------------------------------------------------------------------


def test_a_projection_has_no_canonical_weights():
    shape = OpaqueShape("lstm", 2, 4, 5, num_proj=3)
    layer = opaque.unpack_buffer(shape, np.ones(shape.size))[1]
    assert layer.projection.shape == (3, 4)
    with pytest.raises(NotConvertibleError) as caught:
        layer.weights()
    assert str(caught.value) == (
        "layer 1 forward projects the output of an LSTM from 4 to 3 units (num_proj=3); an LSTM "
        "without a projection can't do that"
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"cell": "gru_reset_before"},
            "cell: expected lstm, gru, rnn_tanh, rnn_relu, found 'gru_reset_before'",
        ),
        ({"direction": "both"}, "direction: expected unidirectional, bidirectional, found 'both'"),
        (
            {"input_mode": "skip"},
            "input_mode: expected linear_input, skip_input, auto_select, found 'skip'",
        ),
        ({"num_layers": 0}, "num_layers: expected a whole number from 1 on, found 0"),
        ({"num_units": -4}, "num_units: expected a whole number from 1 on, found -4"),
        ({"input_size": 5.0}, "input_size: expected a whole number from 1 on, found 5.0"),
        ({"num_proj": -1}, "num_proj: expected a whole number from 0 on, found -1"),
        ({"num_proj": 5}, "num_proj: expected at most num_units=4, found 5"),
        (
            {"num_proj": 2, "cell": "gru"},
            "cuDNN has projections for lstm only, not for gru",
        ),
        (
            {"input_mode": "skip_input"},
            "skip_input needs as many inputs as units, found input_size=5 and num_units=4; "
            "use linear_input",
        ),
    ],
)
def test_hyperparameters_that_make_no_sense(arguments, message):
    base = {"cell": "lstm", "num_layers": 1, "num_units": 4, "input_size": 5}
    with pytest.raises(UsageError) as caught:
        OpaqueShape(**{**base, **arguments})
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("size", "hint"),
    [
        (1584, "1584 would fit input_size=44 or direction=bidirectional"),
        (
            288,
            "288 would fit num_layers=1, input_size=4 or cell=rnn_tanh, input_size=26 or "
            "cell=rnn_relu, input_size=26",
        ),
        (10**6, "no other cell, direction, input size or number of layers fits either"),
        (312, "312 would fit num_layers=1"),
        (486, "486 would fit cell=gru"),
        (649, "no other cell, direction, input size or number of layers fits either"),
        (0, "no other cell, direction, input size or number of layers fits either"),
    ],
)
def test_a_buffer_of_another_size(size, hint):
    shape = OpaqueShape("lstm", 2, 6, 5)
    with pytest.raises(ValueError, match="the buffer has") as caught:
        opaque.unpack_buffer(shape, np.zeros(size))
    assert str(caught.value) == (
        f"the buffer has {size} elements; expected 648 for cell=lstm, num_layers=2, num_units=6, "
        f"input_size=5, direction=unidirectional, input_mode=linear_input, num_proj=0; {hint}"
    )


def arrays_of(shape: OpaqueShape) -> dict[str, Array]:
    return opaque_arrays.to_arrays(shape, opaque.unpack_buffer(shape, np.arange(float(shape.size))))


@pytest.mark.parametrize(
    ("buffer", "message"),
    [
        (np.zeros((2, 12)), r"expected a flat buffer of shape \(elements,\), found \(2, 12\)"),
        (np.zeros(24, "int32"), "expected one dtype of float16, .*, found int32"),
        (np.zeros(24, "complex64"), "expected one dtype of float16, .*, found complex64"),
    ],
)
def test_a_buffer_of_another_kind(buffer, message):
    shape = OpaqueShape("rnn_relu", 1, 3, 3)
    with pytest.raises(ValueError, match=message):
        opaque.unpack_buffer(shape, buffer)


def test_layers_that_do_not_fit_the_shape():
    layers = opaque.unpack_buffer(GRU, np.zeros(GRU.size))
    skipping = OpaqueShape("gru", 1, 4, 4, "bidirectional", "skip_input")
    without_kernel = opaque.unpack_buffer(skipping, np.zeros(skipping.size))[0]
    half = replace(layers[0], kernel=layers[0].kernel.astype("float32"))
    for wrong, message in (
        (layers[:3], "12 of 48 arrays are missing .gru/layer_1/backward/input_kernel/r, "),
        ([*layers, layers[0]], "a pseudo-layer is given twice"),
        ((*layers[:3], replace(layers[3], layer=2)), "12 have no place .gru/layer_2/backward/"),
        ([without_kernel, *layers[1:]], "3 of 48 arrays are missing .*forward/input_kernel/r"),
        ([half, *layers[1:]], "expected one dtype of .*, found float32, float64"),
        (layers[2:] + layers[:2], None),
    ):
        if message is None:
            opaque.pack_buffer(GRU, wrong)
            continue
        with pytest.raises(ValueError, match=message):
            opaque.pack_buffer(GRU, wrong)
    with pytest.raises(
        ValueError, match=r"input_kernel/r: expected shape \(4, 6\), found \(4, 5\)"
    ):
        opaque.pack_buffer(replace(GRU, input_size=6), layers)


@pytest.mark.parametrize(
    ("field", "shape", "message"),
    [
        ("kernel", (4, 4, 5), r"kernel of layer 0 forward of a gru: expected shape .3, 4, 'in'."),
        ("recurrent", (3, 5, 4), r"recurrent of .* expected shape .3, 4, 'out'., found .3, 5, 4."),
        ("bias", (6, 4), r"bias of .* expected shape .2, 3, 4., found .6, 4."),
        ("bias", (), r"bias of .* expected shape .2, 3., found .."),
        ("projection", (4,), r"projection of .* expected shape .'out', 4., found .4,."),
    ],
)
def test_a_layer_of_impossible_arrays(field, shape, message):
    layer = opaque.unpack_buffer(GRU, np.zeros(GRU.size))[0]
    with pytest.raises(ValueError, match=message):
        replace(layer, **{field: np.zeros(shape)})


def renamed(arrays: dict[str, Array], old: str, new: str) -> dict[str, Array]:
    return {name.replace(old, new): array for name, array in arrays.items()}


def without(arrays: dict[str, Array], part: str) -> dict[str, Array]:
    return {name: array for name, array in arrays.items() if part not in name}


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda a: {}, "with names like lstm/layer_0/forward/input_kernel/i, found none"),
        (lambda a: {**a, "params": np.zeros(3)}, "with names like .*, found params"),
        (lambda a: renamed(a, "gru/layer_1", "lstm/layer_1"), "of one cell .*, found gru, lstm"),
        (lambda a: renamed(a, "layer_1", "layer_99999999999"), "24 of 48 arrays are missing"),
        (lambda a: renamed(a, "layer_1", "layer_" + "9" * 5000), "24 of 48 arrays are missing"),
        (lambda a: renamed(a, "kernel/n", "kernel/q"), "8 have no place"),
        (lambda a: without(a, "forward"), "arrays are missing or have impossible shapes: num_unit"),
        (lambda a: without(a, "layer_1/forward/input_bias/z"), "1 of 48 arrays are missing"),
        (lambda a: without(a, "layer_0/backward/input_kernel"), "3 of 48 arrays are missing"),
        (lambda a: without(a, "input_kernel"), "6 of 42 arrays are missing"),
        (lambda a: {**a, "gru/layer_0/forward/projection": np.zeros((3, 4))}, "for lstm only"),
        (
            lambda a: {**a, "gru/layer_0/forward/input_kernel/r": np.zeros((5, 4))},
            r"input_kernel/z: expected shape .4, 4., found .4, 5.|input_kernel/r: expected shape",
        ),
        (
            lambda a: {**a, "gru/layer_0/forward/input_bias/r": np.zeros((4, 1))},
            r"input_bias/r: expected 1 axes, found shape .4, 1.",
        ),
        (
            lambda a: {**a, "gru/layer_0/forward/input_bias/r": np.zeros(4, "float32")},
            "expected one dtype of .*, found float32, float64",
        ),
    ],
)
def test_arrays_that_are_no_network(spoil, message):
    with pytest.raises(ValueError, match=message):
        opaque_arrays.from_arrays(spoil(arrays_of(GRU)))


def test_arrays_of_another_network_than_asked_for():
    with pytest.raises(UsageError) as caught:
        opaque_arrays.from_arrays(arrays_of(RNN), replace(RNN, cell="rnn_relu", num_layers=3))
    assert str(caught.value) == (
        "the arrays are those of cell=rnn_tanh, num_layers=2, num_units=4, input_size=5, "
        "direction=bidirectional, input_mode=linear_input, num_proj=0; the options say otherwise: "
        "cell=rnn_relu, num_layers=3"
    )
    shape, _ = opaque_arrays.from_arrays(arrays_of(RNN), replace(RNN, input_mode="auto_select"))
    assert shape == RNN

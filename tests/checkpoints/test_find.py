"""Which RNNs a checkpoint holds: every fixture against its meta data, and names made up here."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from models import ROOT, SHARED

from rnnconvert.checkpoints.find import find_stacks
from rnnconvert.checkpoints.stack import FoundStacks, Stack, StackSlot
from rnnconvert.containers.checkpoint import VariableInfo, open_checkpoint, write_checkpoint
from rnnconvert.errors import UnreadableInputError, UsageError
from rnnconvert.options import StackOptions

CASES = sorted(path.parent for path in (ROOT / "fixtures" / "checkpoints").glob("*/*/data.npz"))
CUDNN = [case for case in CASES if case.name.startswith("cudnn_")]
PLAIN = [case for case in CASES if not case.name.startswith("cudnn_")]
REFUSED = {
    "lstm_peephole": "peepholes",
    "lstm_projection": "projection",
    "layer_norm_lstm": "normalises",
}
RAW = StackOptions(cell="gru", num_layers=2, num_units=4, input_size=6, direction="unidirectional")
"""What `cudnn_gru_raw` is."""
CELLS = {"LSTM": "lstm", "CompatibleGRU": "gru", "GRU": "gru_reset_before", "RNN": "rnn_tanh"}
CALAMARI = SHARED / "real-models" / "calamari_index_only" / "0.ckpt.index"


def case_name(case: Path) -> str:
    return f"{case.parent.name}-{case.name}"


def metas(case: Path) -> list[dict]:
    return [json.loads(str(np.load(path)["meta"])) for path in sorted(case.glob("data*.npz"))]


def options_of(case: Path) -> StackOptions:
    return RAW if case.name == "cudnn_gru_raw" else StackOptions()


def find(path: Path, options: StackOptions | None = None) -> FoundStacks:
    checkpoint = open_checkpoint(path)
    return find_stacks(
        checkpoint.variables, options or StackOptions(), prefix=checkpoint.path.prefix
    )


def made_up(
    shapes: Mapping[str, tuple[int, ...]],
    options: StackOptions | None = None,
    dtype: str = "float32",
) -> FoundStacks:
    """What is found among variables of these names and shapes."""
    infos = {name: VariableInfo(name, dtype, shape, (), ()) for name, shape in shapes.items()}
    return find_stacks(infos, options or StackOptions())


def lstm(scope: str, inputs: int, units: int) -> dict[str, tuple[int, ...]]:
    return {f"{scope}/kernel": (inputs + units, 4 * units), f"{scope}/bias": (4 * units,)}


def saved_lstm(prefix: str, inputs: int, units: int, layers: int = 1) -> dict:
    """What a CudnnLSTM saves beside its buffer."""
    found: dict[str, tuple[int, ...]] = {}
    for layer in range(layers):
        scope = f"rnn/multi_rnn_cell/cell_{layer}/cudnn_compatible_lstm_cell"
        found |= lstm(f"{prefix}/{scope}" if prefix else scope, units if layer else inputs, units)
    return found


def lstm_size(inputs: int, units: int, layers: int = 1) -> int:
    return sum(4 * units * ((units if n else inputs) + units + 2) for n in range(layers))


def facts(stack: Stack) -> tuple:
    return (
        stack.cell, stack.num_layers, stack.num_units, stack.input_size, stack.direction,
        stack.dtype,
    )  # fmt: skip


def test_all_fixtures_are_here():
    assert len(CASES) == 81


@pytest.mark.parametrize("case", CUDNN, ids=case_name)
def test_finds_each_cudnn_layer(case):
    found = find(case, options_of(case))
    wanted = {meta["variable"]: meta for meta in metas(case)}
    assert not found.problems
    assert not found.warnings
    assert len(found.stacks) == len(wanted)
    for stack in found.stacks:
        meta = wanted.get(stack.opaque or "", metas(case)[0])
        keys = ("cell", "num_layers", "num_units", "input_size", "direction", "dtype")
        assert facts(stack) == tuple(meta[key] for key in keys)
        if "object" in case.name:
            assert stack.opaque is None
            assert stack.scope == "encoder"
        else:
            assert stack.opaque == meta["variable"]
            assert stack.scope == meta["variable"].removesuffix("/opaque_kernel")
        sides = 2 if meta["direction"] == "bidirectional" else 1
        assert len(stack.places) == ("raw" not in case.name) * meta["num_layers"] * sides
        assert all(
            place.scope.startswith(meta["canonical_scope"])
            for place in stack.places
            if stack.opaque
        )
        assert not stack.assumptions
        assert stack.is_cudnn == (stack.opaque is not None)


@pytest.mark.parametrize("case", PLAIN, ids=case_name)
def test_finds_each_cell(case):
    found = find(case)
    (meta,) = metas(case)
    if case.name in REFUSED:
        assert not found.stacks
        assert [REFUSED[case.name] in problem for problem in found.problems] == [True]
        return
    assert not found.problems
    cell = next(name for ending, name in CELLS.items() if ending in meta["cell"])
    units, inputs = meta["units"], meta["input_size"]
    layers = [unit for stack in found.stacks for unit in [stack.num_units] * stack.num_layers]
    assert layers == units
    for stack in found.stacks:
        cell = "rnn_relu" if meta.get("activation") == "relu" else cell  # its graph says it
        assert (stack.cell, stack.input_size, stack.dtype) == (cell, inputs, "float32")
        assert stack.direction == meta["direction"]
        assert stack.opaque is None
        assert not stack.is_cudnn
        inputs = stack.num_units  # of the next one, if there is one
    names = {name for stack in found.stacks for name in stack.variables}
    stored = {name.removeprefix("tensors/") for name in np.load(case / "data.npz").files}
    assert names <= stored
    assert len(names) == sum("_cell" in n and "Adam" not in n for n in stored)


def test_says_what_it_assumes_of_each_cell():
    assumed = {
        "basic_lstm": ["forget_bias is 1.0"],
        "lstm_partitioned": ["forget_bias is 1.0", "activation is tanh", "cell_clip is none"],
        "lstm_block_fused": ["forget_bias is 1.0", "cell_clip is none"],
        "basic_rnn": ["activation is tanh"],
        "gru_block": [],
        "gru_stack_bi": ["activation is tanh"],
        "compatible_lstm_multi": [],
    }
    for name, words in assumed.items():
        (stack,) = find(ROOT / "fixtures" / "checkpoints" / "tf115" / name).stacks
        assert [str(each) for each in stack.assumptions] == words
        assert all(each.why.startswith(f"{stack.scope}: ") for each in stack.assumptions)


def test_the_name_lstm_cell_may_mean_a_cell_without_forget_bias():
    """TensorFlow 1.5 saves CudnnCompatibleLSTMCell so; the assumption says it."""
    case = ROOT / "fixtures" / "checkpoints" / "tf15" / "compatible_lstm_multi"
    (stack,) = find(case).stacks
    assert stack.forget_bias == 1.0
    assert "CudnnCompatibleLSTMCell" in stack.assumptions[0].why
    (stack,) = find(case, StackOptions(forget_bias=0.0)).stacks
    assert stack.forget_bias == 0.0
    assert [each.what for each in stack.assumptions] == ["activation", "cell_clip"]


def test_forget_bias_is_not_for_cudnn():
    (stack,) = find(CUDNN[0].parents[1] / "tf115/cudnn_lstm", StackOptions(forget_bias=1.0)).stacks
    assert stack.forget_bias == 0.0
    options = StackOptions(forget_bias=1.0)
    (stack,) = find(CUDNN[0].parents[1] / "tf115/compatible_lstm_multi", options).stacks
    assert stack.forget_bias == 0.0


def test_layers_of_different_units_are_taken_apart():
    found = find(ROOT / "fixtures" / "checkpoints" / "tf15" / "lstm_multi")
    assert [stack.scope for stack in found.stacks] == [
        "rnn/multi_rnn_cell/cell_0",
        "rnn/multi_rnn_cell/cell_1",
    ]
    assert len(found.warnings) == 1
    assert all([place.layer for place in stack.places] == [0] for stack in found.stacks)


@pytest.mark.parametrize(
    "case", ["tf115/cudnn_lstm_bi2", "tf115/cudnn_lstm_raw_meta", "tf18/gru_sharded"]
)
def test_an_index_without_data_is_enough(case, tmp_path):
    source = ROOT / "fixtures" / "checkpoints" / case
    for path in source.iterdir():
        if path.suffix in (".index", ".meta"):
            shutil.copy(path, tmp_path)
    assert find(tmp_path).stacks == find(source).stacks


def test_an_object_based_index_without_data_leaves_it_open(tmp_path):
    source = ROOT / "fixtures" / "checkpoints" / "tf115" / "cudnn_lstm2_object"
    shutil.copy(next(source.glob("*.index")), tmp_path)
    found = find(tmp_path)
    assert not found.stacks
    assert not found.problems
    (warning,) = found.warnings
    assert "--scope encoder --cell lstm" in warning
    taken = find(tmp_path, StackOptions(scope="encoder", cell="lstm"))
    assert taken.stacks == find(source).stacks
    assert not taken.warnings


def test_a_dense_layer_that_is_no_lstm_by_its_shapes():
    end = "/.ATTRIBUTES/VARIABLE_VALUE"
    assert made_up({f"dense/kernel{end}": (3, 16), f"dense/bias{end}": (16,)}) == FoundStacks()


@pytest.mark.slow
def test_dense_layers_and_cells_of_object_based_checkpoints(tmp_path):
    """The object graph of TensorFlow itself tells a dense layer from an LSTM of the same shapes."""
    tf = pytest.importorskip("tensorflow")
    variables = {
        "dense/kernel": (9, 16), "dense/bias": (16,),
        "rnn/basic_lstm_cell/kernel": (11, 20), "rnn/basic_lstm_cell/bias": (20,),
    }  # fmt: skip
    objects: dict = {"dense": tf.Module(), "cell": tf.Module()}
    for name, shape in variables.items():
        owner = objects["dense" if name.startswith("dense") else "cell"]
        setattr(owner, name.split("/")[-1], tf.Variable(np.ones(shape, "f4"), name=name))
    tf.train.Checkpoint(**objects).save(str(tmp_path / "c"))
    (stack,) = find(tmp_path).stacks
    assert facts(stack) == ("lstm", 1, 5, 6, "unidirectional", "float32")
    assert stack.forget_bias == 1.0
    assert stack.places[0].scope == "cell"
    assert set(stack.variables) == {
        f"cell/{tensor}/.ATTRIBUTES/VARIABLE_VALUE" for tensor in ("kernel", "bias")
    }


@pytest.mark.skipif(not CALAMARI.exists(), reason="needs shared/real-models")
def test_a_real_model_by_its_index():
    (stack,) = find(CALAMARI).stacks
    assert facts(stack) == ("lstm", 1, 200, 720, "bidirectional", "float32")
    assert stack.opaque == "cnn_lstm/cudnn_lstm/opaque_kernel"
    assert len(stack.places) == 2
    assert stack.shape.size == 1475200
    assert [slot.name for slot in stack.slots] == ["Adam", "Adam_1"]


# --- slots ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("case", "slots"),
    [
        ("tf15/cudnn_lstm_adam", ["Adam", "Adam_1"]),
        ("tf18/cudnn_lstm_rmsprop", ["RMSProp", "RMSProp_1"]),
        ("tf15/cudnn_gru_momentum", ["Momentum"]),
        ("tf112/cudnn_lstm_adagrad", ["Adagrad"]),
        ("tf115/cudnn_gru_adadelta", ["Adadelta", "Adadelta_1"]),
        ("tf112/cudnn_lstm_average", ["ExponentialMovingAverage"]),
        ("tf115/cudnn_lstm", []),
        ("tf112/basic_lstm_adam", []),
    ],
)
def test_slots_of_the_buffer(case, slots):
    (stack,) = find(ROOT / "fixtures" / "checkpoints" / case).stacks
    assert stack.slots == tuple(StackSlot(name, f"{stack.opaque}/{name}") for name in slots)


def test_slots_in_a_scope_of_the_optimizer():
    size = lstm_size(3, 5)
    found = made_up(
        {
            "a/opaque_kernel": (size,),
            "b/a/opaque_kernel": (size,),
            "OptimizeLoss/a/opaque_kernel/Adam": (size,),
            "b/a/opaque_kernel/Adam": (size,),
            "OptimizeLoss/a/rnn/multi_rnn_cell/cell_0/cudnn_compatible_lstm_cell/bias/Adam": (20,),
            **saved_lstm("a", 3, 5),
            **saved_lstm("b/a", 3, 5),
        }
    )
    assert not found.problems
    assert [stack.slots for stack in found.stacks] == [
        (StackSlot("Adam", "OptimizeLoss/a/opaque_kernel/Adam"),),
        (StackSlot("Adam", "b/a/opaque_kernel/Adam"),),
    ]


# --- which buffer belongs to which cells ----------------------------------------------------


def test_one_layer_called_and_one_built_in_the_same_scope():
    size = lstm_size(3, 5)
    found = made_up(
        {
            "model/cudnn_lstm/opaque_kernel": (size,),
            "model/cudnn_lstm_1/opaque_kernel": (size,),
            **saved_lstm("model/cudnn_lstm_1", 3, 5),
            **saved_lstm("model", 3, 5),
        }
    )
    assert not found.problems
    places = {stack.scope: stack.places[0].scope.split("/rnn/")[0] for stack in found.stacks}
    assert places == {"model/cudnn_lstm": "model", "model/cudnn_lstm_1": "model/cudnn_lstm_1"}


def test_layers_of_the_same_size_built_in_two_scopes():
    found = made_up(
        {
            "a/cudnn_lstm/opaque_kernel": (lstm_size(3, 5),),
            "b/cudnn_lstm/opaque_kernel": (lstm_size(3, 5),),
            **saved_lstm("b", 3, 5),
            **saved_lstm("a", 3, 5),
        }
    )
    assert not found.problems
    assert {stack.scope: stack.places[0].scope[0] for stack in found.stacks} == {
        "a/cudnn_lstm": "a",
        "b/cudnn_lstm": "b",
    }


def test_buffers_are_matched_by_size_where_scopes_say_nothing():
    found = made_up(
        {
            "a/opaque_kernel": (lstm_size(3, 5),),
            "b/opaque_kernel": (lstm_size(4, 6, 2),),
            **saved_lstm("x", 4, 6, 2),
            **saved_lstm("y", 3, 5),
        }
    )
    assert {stack.scope: stack.num_units for stack in found.stacks} == {"a": 5, "b": 6}
    assert all(stack.opaque and stack.places for stack in found.stacks)


def test_two_buffers_for_the_same_cells_are_ambiguous():
    size = lstm_size(3, 5)
    found = made_up(
        {
            "model/cudnn_lstm/opaque_kernel": (size,),
            "model/cudnn_lstm_1/opaque_kernel": (size,),
            **saved_lstm("model", 3, 5),
        }
    )
    assert len(found.problems) == 2
    assert "can't be told which buffer" in found.problems[0]


def test_buffer_of_another_size_than_its_cells():
    found = made_up({"enc/opaque_kernel": (lstm_size(3, 5) + 4,), **saved_lstm("enc", 3, 5)})
    (problem,) = found.problems
    assert str(lstm_size(3, 5)) in problem
    assert str(lstm_size(3, 5) + 4) in problem
    assert not found.stacks


def test_a_buffer_that_the_user_named():
    """Up to TensorFlow 1.4 cuDNN's parameters are a variable of any name."""
    shapes = {"my/params": (lstm_size(3, 5),), "dense/bias": (lstm_size(3, 5),)}
    found = made_up({**shapes, **saved_lstm("", 3, 5)})
    assert found.stacks[0].opaque == "my/params"
    assert "my/params" in found.warnings[0]
    (stack,) = made_up({**shapes, "other": (lstm_size(3, 5),), **saved_lstm("", 3, 5)}).stacks
    assert stack.opaque is None


def test_a_buffer_named_by_the_options():
    options = StackOptions("my/params", "lstm", 1, 5, 3, "unidirectional")
    (stack,) = made_up({"my/params": (lstm_size(3, 5),), "x": (7,)}, options).stacks
    assert (stack.opaque, stack.scope) == ("my/params", "my/params")


# --- a buffer alone -------------------------------------------------------------------------

GRU_RAW = ROOT / "fixtures" / "checkpoints" / "tf112" / "cudnn_gru_raw"


def test_a_buffer_alone_needs_options():
    (problem,) = find(GRU_RAW).problems
    for flag in ("--cell", "--layers", "--units", "--input-size", "--direction"):
        assert flag in problem


def test_what_would_fit_is_named():
    (problem,) = find(GRU_RAW, StackOptions(cell="gru", num_layers=2, num_units=4)).problems
    assert "give --input-size, --direction" in problem
    assert "--cell gru --layers 2 --units 4 --input-size 6 --direction unidirectional" in problem


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"num_units": 5}, "264 elements"),
        ({"cell": "lstm"}, "--cell gru"),
        ({"input_size": 7}, "--input-size 6"),
        ({"direction": "bidirectional"}, "264"),
    ],
)
def test_options_that_do_not_fit_the_buffer(change, words):
    found = find(GRU_RAW, StackOptions(**{**vars(RAW), **change}))
    assert not found.stacks
    (problem,) = found.problems
    assert words in problem


def test_impossible_options():
    with pytest.raises(UsageError, match="num_layers"):
        find(GRU_RAW, StackOptions(**{**vars(RAW), "num_layers": 0}))


def test_options_that_contradict_the_cells():
    case = ROOT / "fixtures" / "checkpoints" / "tf115" / "cudnn_lstm"
    (problem,) = find(case, StackOptions(num_units=6)).problems
    assert "--units 6 (found: 5)" in problem


RAW_META = ROOT / "fixtures" / "checkpoints" / "tf15" / "cudnn_lstm_raw_meta"


def test_options_that_contradict_the_graph():
    (problem,) = find(RAW_META, StackOptions(num_layers=3)).problems
    assert "--layers 3 (graph: 2)" in problem


def test_the_graph_names_a_buffer_of_any_name(tmp_path):
    """Where nothing is called opaque_kernel, the ops say which variable is a buffer."""
    meta = (RAW_META / "model.ckpt.meta").read_bytes()
    (tmp_path / "m.meta").write_bytes(meta.replace(b"opaque_kernel", b"parameters123"))
    name = "cudnn_lstm/parameters123"
    infos = {name: VariableInfo(name, "float32", (504,), (), ())}
    (stack,) = find_stacks(infos, StackOptions(), prefix=tmp_path / "m").stacks
    assert facts(stack) == ("lstm", 2, 3, 5, "bidirectional", "float32")
    assert (stack.scope, stack.opaque) == (name, name)


def test_graph_of_another_size(tmp_path):
    shutil.copy(RAW_META / "model.ckpt.meta", tmp_path / "m.meta")
    name = "cudnn_lstm/opaque_kernel"
    infos = {name: VariableInfo(name, "float32", (505,), (), ())}
    (problem,) = find_stacks(infos, StackOptions(), prefix=tmp_path / "m").problems
    assert "505" in problem
    assert "504" in problem


@pytest.mark.slow
def test_graphs_by_tensorflow(tmp_path):
    """Skipped input, sizes from ParamsSize alone, contradictions: graphs written by TensorFlow."""
    tf = pytest.importorskip("tensorflow")
    v1, raw_ops = tf.compat.v1, tf.raw_ops

    def found(units: int, inputs: int, size: int, modes: list[str], layers: int = 1) -> FoundStacks:
        with tf.Graph().as_default() as graph:
            count = raw_ops.CudnnRNNParamsSize(
                num_layers=layers, num_units=units, input_size=inputs, T=tf.float32, S=tf.int32,
                rnn_mode="rnn_relu", input_mode=modes[0],
            )  # fmt: skip
            start = tf.random.uniform(count)
            params = v1.Variable(start, validate_shape=False, name="p", use_resource=False)
            x, h = tf.zeros((3, 2, inputs)), tf.zeros((layers, 2, units))
            for mode in modes:
                raw_ops.CudnnRNN(
                    input=x, input_h=h, input_c=h, params=params, rnn_mode="rnn_relu",
                    input_mode=mode,
                )  # fmt: skip
            v1.train.export_meta_graph(str(tmp_path / "g.meta"), graph=graph)
        infos = {"p": VariableInfo("p", "float32", (size,), (), ())}
        return find_stacks(infos, StackOptions(), prefix=tmp_path / "g")

    (stack,) = found(4, 6, 4 * (6 + 4 + 2) + 4 * (4 + 4 + 2), ["linear_input"], 2).stacks
    assert facts(stack) == ("rnn_relu", 2, 4, 6, "unidirectional", "float32")
    (stack,) = found(4, 4, 4 * (4 + 2), ["skip_input"]).stacks
    assert stack.shape.skips_input
    (problem,) = found(4, 4, 40, ["linear_input", "skip_input"]).problems
    assert "contradict" in problem


@pytest.mark.parametrize("keep", [1, 700, 30_000, 65_900])
def test_a_graph_cut_short(keep, tmp_path):
    content = (RAW_META / "model.ckpt.meta").read_bytes()[:keep]
    (tmp_path / "m.meta").write_bytes(content + b"CudnnRNN")
    infos = {"opaque_kernel": VariableInfo("opaque_kernel", "float32", (504,), (), ())}
    with pytest.raises(UnreadableInputError, match=r"m\.meta"):
        find_stacks(infos, StackOptions(), prefix=tmp_path / "m")


def test_damaged_graphs_end_in_one_error(tmp_path):
    content = (RAW_META / "model.ckpt.meta").read_bytes()
    infos = {
        "cudnn_lstm/opaque_kernel": VariableInfo(
            "cudnn_lstm/opaque_kernel", "float32", (504,), (), ()
        )
    }
    generator = np.random.default_rng(0)
    refused = 0
    for _ in range(30):
        damaged = bytearray(content)
        for place in generator.integers(0, len(content), 40):
            damaged[place] = generator.integers(0, 256)
        (tmp_path / "m.meta").write_bytes(damaged)
        try:
            find_stacks(infos, StackOptions(), prefix=tmp_path / "m")
        except UnreadableInputError:
            refused += 1
    assert refused


# --- scopes ---------------------------------------------------------------------------------

TWO = ROOT / "fixtures" / "checkpoints" / "tf15" / "cudnn_two_kinds"


@pytest.mark.parametrize(
    "scope", ["encoder", "encoder/cudnn_gru", "encoder/cudnn_gru/opaque_kernel"]
)
def test_a_scope_picks_stacks(scope):
    (stack,) = find(TWO, StackOptions(scope=scope)).stacks
    assert stack.scope == "encoder/cudnn_gru"


@pytest.mark.parametrize("scope", ["enc", "encoder/", "cudnn_gru", "nothing"])
def test_a_scope_of_nothing_lists_those_there_are(scope):
    with pytest.raises(UsageError, match="decoder/cudnn_lstm, encoder/cudnn_gru"):
        find(TWO, StackOptions(scope=scope))


def test_a_scope_leaves_problems_elsewhere_alone():
    shapes = {"a/opaque_kernel": (7,), "b/opaque_kernel": (lstm_size(3, 5),)}
    found = made_up({**shapes, **saved_lstm("b", 3, 5)}, StackOptions(scope="b"))
    assert not found.problems
    assert len(found.stacks) == 1


def test_no_rnn():
    assert (
        made_up({"dense/kernel": (3, 4), "dense/bias": (4,), "embedding": (5, 3)}) == FoundStacks()
    )
    assert made_up({}) == FoundStacks()


# --- structures of cells --------------------------------------------------------------------


def test_two_cells_in_one_scope_get_longer_names():
    found = made_up({**lstm("rnn/basic_lstm_cell", 3, 5), **lstm("rnn/lstm_cell", 4, 6)})
    assert [stack.scope for stack in found.stacks] == ["rnn/basic_lstm_cell", "rnn/lstm_cell"]
    assert found.stacks[0].assumptions[0].why.startswith("rnn/basic_lstm_cell: ")


def test_each_direction_with_its_own_layers():
    """bidirectional_dynamic_rnn over two MultiRNNCells: layer 1 reads its own direction only."""
    shapes = {}
    for side in ("fw", "bw"):
        for layer, inputs in ((0, 3), (1, 5)):
            scope = f"e/bidirectional_rnn/{side}/multi_rnn_cell/cell_{layer}/lstm_cell"
            shapes |= lstm(scope, inputs, 5)
    found = made_up(shapes)
    assert {(s.scope, s.num_layers, s.direction) for s in found.stacks} == {
        (f"e/bidirectional_rnn/{side}/multi_rnn_cell", 2, "unidirectional") for side in ("fw", "bw")
    }
    assert "bw/multi_rnn_cell read time backwards" in found.warnings[0]
    assert {place.direction for stack in found.stacks for place in stack.places} == {"forward"}


def test_one_layer_in_each_direction_of_a_named_scope():
    shapes = {}
    for side in ("fw", "bw"):
        shapes |= lstm(f"BiRNN/{side}/multi_rnn_cell/cell_0/basic_lstm_cell", 3, 5)
    (stack,) = made_up(shapes).stacks
    assert facts(stack) == ("lstm", 1, 5, 3, "bidirectional", "float32")
    assert [place.direction for place in stack.places] == ["forward", "backward"]


def test_a_scope_that_is_called_fw():
    (stack,) = made_up(lstm("enc/fw/basic_lstm_cell", 3, 5)).stacks
    assert (stack.scope, stack.direction) == ("enc/fw", "unidirectional")


def test_a_layer_that_reads_more_than_the_layer_below():
    """Attention, for one, is joined to it."""
    shapes = {
        **lstm("d/multi_rnn_cell/cell_0/lstm_cell", 3, 5),
        **lstm("d/multi_rnn_cell/cell_1/lstm_cell", 9, 5),
    }
    found = made_up(shapes)
    assert [(stack.num_layers, stack.input_size) for stack in found.stacks] == [(1, 3), (1, 9)]
    assert len(found.warnings) == 1


def test_ten_layers_are_ordered_by_number():
    shapes = {}
    for layer in range(11):
        inputs = 5 if layer else 3
        shapes |= lstm(f"rnn/multi_rnn_cell/cell_{layer}/lstm_cell", inputs, 5)
    (stack,) = made_up(shapes).stacks
    assert [int(place.scope.split("/")[2][5:]) for place in stack.places] == list(range(11))


@pytest.mark.parametrize(
    ("shapes", "words"),
    [
        (lstm("rnn/multi_rnn_cell/cell_1/lstm_cell", 5, 5), "layer 0 forward"),
        (lstm("bidirectional_rnn/bw/lstm_cell", 3, 5), "layer 0 forward"),
        (
            lstm("rnn/multi_rnn_cell/cell_0/lstm_cell", 3, 5)
            | lstm("rnn/multi_rnn_cell/cell_0/basic_lstm_cell", 3, 5),
            "in one place",
        ),
        (lstm("rnn/lstm_cell", 3, 5) | {"rnn/lstm_cell/bias": (19,)}, r"rnn/lstm_cell/bias"),
        (lstm("rnn/lstm_cell", 3, 5) | {"rnn/lstm_cell/kernel": (5, 20)}, "input size"),
        (lstm("rnn/lstm_cell", 3, 5) | {"rnn/lstm_cell/kernel": (8,)}, "input size"),
        (lstm("rnn/lstm_cell", 3, 5) | {"rnn/lstm_cell/kernel": (8, 0)}, "input size"),
        ({"rnn/lstm_cell/kernel": (8, 20)}, "lstm_cell"),
        (lstm("rnn/lstm_cell", 3, 5) | {"rnn/lstm_cell/weights": (8, 20)}, "lstm_cell"),
        (lstm("rnn/lstm_cell", 3, 5) | {"rnn/lstm_cell/more": (5,)}, "more"),
        (lstm("rnn/nas_cell", 3, 5), "not known"),
        (lstm("rnn/multi_rnn_cell/cell_0/ugrnn_cell", 3, 5), "not known"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_problems_of_cells(shapes, words):
    found = made_up(shapes)
    assert not found.stacks
    (problem,) = found.problems
    assert words in problem


def test_types_of_tensors():
    (problem,) = made_up(lstm("rnn/lstm_cell", 3, 5), dtype="int32").problems
    assert "int32" in problem
    infos = {
        name: VariableInfo(name, dtype, shape, (), ())
        for (name, shape), dtype in zip(
            lstm("rnn/lstm_cell", 3, 5).items(), ("float32", "float16"), strict=True
        )
    }
    (problem,) = find_stacks(infos, StackOptions()).problems
    assert "float16, float32" in problem


def test_names_of_tensorflow_1_1():
    (stack,) = made_up({"rnn/lstm_cell/weights": (8, 20), "rnn/lstm_cell/biases": (20,)}).stacks
    assert stack.places[0].tensors == {
        "kernel": "rnn/lstm_cell/weights",
        "bias": "rnn/lstm_cell/biases",
    }


def test_huge_sizes_in_an_index_cost_nothing():
    (stack,) = made_up(lstm("rnn/lstm_cell", 2**40, 2**15)).stacks
    assert stack.input_size == 2**40


# --- activations ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("scope", "options", "cell", "assumed"),
    [
        ("rnn", {}, "rnn_tanh", 1),
        ("rnn", {"activation": "relu"}, "rnn_relu", 0),
        ("rnn", {"activation": "tanh"}, "rnn_tanh", 0),
        ("rnn", {"cell": "rnn_relu"}, "rnn_relu", 0),
        ("m/cudnn_rnn_relu_2/rnn", {}, "rnn_relu", 0),
        ("m/cudnn_rnn_tanh/rnn", {}, "rnn_tanh", 0),
        ("m/cudnn_rnn_tanh/rnn", {"activation": "relu"}, "rnn_relu", 0),
    ],
)
def test_activation_of_a_basic_rnn_cell(scope, options, cell, assumed):
    shapes = {
        f"{scope}/multi_rnn_cell/cell_0/basic_rnn_cell/kernel": (8, 5),
        f"{scope}/multi_rnn_cell/cell_0/basic_rnn_cell/bias": (5,),
    }
    (stack,) = made_up(shapes, StackOptions(**options)).stacks
    assert stack.cell == cell
    assert len(stack.assumptions) == assumed


# --- Keras ----------------------------------------------------------------------------------


def keras(scope: str, inputs: int, units: int, gates: int, bias: tuple[int, ...], end="") -> dict:
    return {
        f"{scope}/kernel{end}": (inputs, gates * units),
        f"{scope}/recurrent_kernel{end}": (units, gates * units),
        f"{scope}/bias{end}": bias,
    }


def test_cudnn_layers_of_keras_but_not_the_plain_ones():
    end = "/.ATTRIBUTES/VARIABLE_VALUE"
    found = made_up(
        {
            **keras("cu_dnnlstm_1", 3, 5, 4, (40,)),
            **keras("bidirectional_1/backward_cu_dnngru_1", 3, 5, 3, (30,)),
            **keras("layer_with_weights-2/forward_layer", 3, 4, 4, (32,), end),
            **keras("lstm", 3, 5, 4, (20,)),
            **keras("gru/gru_cell", 3, 5, 3, (2, 15)),
            **keras("lstm_1/lstm_cell", 3, 5, 4, (20,)),
            **keras("gru_1", 3, 5, 3, (15,)),
        }
    )
    assert not found.problems
    assert {s.scope: facts(s)[:4] for s in found.stacks} == {
        "cu_dnnlstm_1": ("lstm", 1, 5, 3),
        "bidirectional_1/backward_cu_dnngru_1": ("gru", 1, 5, 3),
        "layer_with_weights-2/forward_layer": ("lstm", 1, 4, 3),
    }
    for stack in found.stacks:
        assert stack.is_cudnn
        (place,) = stack.places
        assert place.layout == "keras-cudnn"
        assert place.scope == stack.scope
        assert list(place.tensors) == ["kernel", "recurrent_kernel", "bias"]


KERAS = sorted((SHARED / "fixtures" / "keras").glob("*/*/*/checkpoint"))


@pytest.mark.skipif(not KERAS, reason="needs shared/fixtures")
def test_keras_checkpoints_of_the_library():
    for path in KERAS:
        found = find(path.parent)
        raw = np.load(path.parents[1] / "raw.npz")
        # Every CuDNN layer is three arrays in a row, of which the second is (units, gates*units).
        shapes = [raw[name].shape for name in sorted(raw.files)]
        wanted = sorted(
            (b[0], a[0]) for a, b, c in zip(shapes, shapes[1:], shapes[2:], strict=False)
            if len(a) == len(b) == 2 and c == (2 * a[1],)
        )  # fmt: skip
        assert wanted
        assert not found.problems
        assert not found.warnings
        assert sorted((stack.num_units, stack.input_size) for stack in found.stacks) == wanted


CONTRIB = sorted((SHARED / "fixtures" / "contrib_savedmodels" / "tf1.8.0").glob("*/variables"))


@pytest.mark.skipif(not CONTRIB, reason="needs shared/fixtures")
@pytest.mark.parametrize("path", CONTRIB, ids=lambda path: path.parent.name)
def test_savedmodels_of_tensorflow_1_8(path):
    cell, layers, sides, *_ = path.parent.name.replace("rnn_", "rnn").split("_")
    (stack,) = find(path).stacks
    assert stack.cell == cell.replace("rnn", "rnn_")
    assert (stack.num_layers, stack.num_units, stack.input_size) == (int(layers[1]), 4, 5)
    assert stack.direction.startswith(sides)
    assert stack.opaque
    assert len(stack.slots) == 2 * path.parent.name.endswith("_train")


# --- older TensorFlow -----------------------------------------------------------------------


def outputs(op: str, matrices: list[tuple[int, int]]) -> dict[str, tuple[int, ...]]:
    biases = [(rows,) for rows, _ in matrices]
    return {f"{op}:{n}": shape for n, shape in enumerate([*matrices, *biases])}


def test_outputs_of_the_op_in_tensorflow_1_2():
    op = "enc/CudnnRNNParamsToCanonical_1"
    shapes = outputs(op, [(5, 3)] * 4 + [(5, 5)] * 4 + [(5, 5)] * 8)
    (stack,) = made_up({**shapes, "params": (lstm_size(3, 5, 2),)}).stacks
    assert facts(stack) == ("lstm", 2, 5, 3, "unidirectional", "float32")
    assert stack.opaque == "params"
    assert stack.places[1].tensors["W_f"] == f"{op}:9"
    assert stack.places[1].tensors["bR_o"] == f"{op}:31"


def test_op_outputs_that_fit_several_layers():
    shapes = outputs("CudnnRNNParamsToCanonical", [(5, 5)] * 12)
    (problem,) = made_up(shapes).problems
    assert "--direction" in problem
    options = StackOptions(cell="gru", direction="bidirectional")
    (stack,) = made_up(shapes, options).stacks
    assert facts(stack)[:5] == ("gru", 1, 5, 5, "bidirectional")


@pytest.mark.parametrize("lost", [0, 3, 15])
def test_op_outputs_that_are_missing(lost):
    shapes = outputs("CudnnRNNParamsToCanonical", [(5, 3)] * 4 + [(5, 5)] * 4)
    del shapes[f"CudnnRNNParamsToCanonical:{lost}"]
    found = made_up(shapes)
    assert not found.stacks
    assert found.problems


def test_tensorflow_1_3_keeps_both_biases():
    scope = "rnn/multi_rnn_cell/cell_0/cudnn_compatible_lstm_cell"
    more = {f"{scope}/bias_cudnn_{half}": (20,) for half in (0, 1)}
    (stack,) = made_up(lstm(scope, 3, 5) | more).stacks
    assert set(stack.places[0].tensors) == {"kernel", "bias", "bias_cudnn_0", "bias_cudnn_1"}


def test_written_and_opened_again(tmp_path):
    """Names go through the files of this project's own writer."""
    arrays = {name: np.ones(shape, "f4") for name, shape in saved_lstm("a", 3, 5).items()}
    write_checkpoint(tmp_path / "c.index", tmp_path / "c.data-00000-of-00001", arrays)
    (stack,) = find(tmp_path / "c").stacks
    assert facts(stack) == ("lstm", 1, 5, 3, "unidirectional", "float32")

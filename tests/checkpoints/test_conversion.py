"""TensorFlow 1 checkpoints, converted: every fixture, every output."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from helpers import snapshot
from models import SHARED
from spoiling import spoil_weights

import rnnconvert
from rnnconvert import DifferenceError, OutputError, UsageError
from rnnconvert.containers.checkpoint import open_checkpoint
from rnnconvert.containers.safe_npz import open_arrays

FIXTURES = Path(__file__).parents[2] / "fixtures" / "checkpoints"
CASES = sorted(path.parent for path in FIXTURES.glob("*/*/data.npz"))
REFUSED = ("peephole", "projection", "layer_norm", "disagree", "cudnn_gru_raw")
GOOD = [case for case in CASES if not any(word in case.name for word in REFUSED)]
SEVERAL = ("basic_rnn_relu", "cudnn_two_kinds", "cudnn_two_stacks", "gru_sharded",
           "gru_sharded_v1", "lstm_multi")  # fmt: skip
"""Those of more than one stack."""
SINGLE = [case for case in GOOD if case.name not in SEVERAL]


def name_of(path: Path) -> str:
    return "-".join(path.parts[-2:])


def data_of(case: Path) -> dict:
    with np.load(case / "data.npz") as data:
        return {key: data[key] for key in data.files}


def outputs_of(data: dict) -> tuple[np.ndarray, np.ndarray]:
    return data["x"], data["y"]


def test_there_are_enough_of_them():
    assert len(GOOD) > 60
    assert len(GOOD) - len(SINGLE) >= 2


# --- Keras models ---------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("case", SINGLE, ids=name_of)
@pytest.mark.sampled(15)
def test_a_keras_model_predicts_what_the_fixture_says(case, tmp_path):
    """Written without Keras; outputs by torch from the buffer, or by TF1 itself for its cells."""
    keras = pytest.importorskip("keras", reason="Keras 3 is not installed")
    data = data_of(case)
    options = {"forget_bias": json.loads(str(data["meta"])).get("forget_bias")}
    report = rnnconvert.convert(case, tmp_path / "out.h5", verify="layers", **options)
    assert report.is_equivalent
    assert report.layers_level.status == "passed"
    model = keras.models.load_model(tmp_path / "out.h5")
    x, y = outputs_of(data)
    found = keras.ops.convert_to_numpy(model(x))
    assert np.abs(found - y).max() <= (5e-3 if "half" in case.name else 1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("to", ["h5", "keras"])
def test_the_model_level_runs_keras_beside_the_source(tmp_path, to):
    pytest.importorskip("keras", reason="Keras 3 is not installed")
    report = rnnconvert.convert(FIXTURES / "tf115" / "cudnn_gru_bi2", tmp_path / f"out.{to}")
    assert [level.status for _, level in report.levels] == ["passed", "passed", "passed", "skipped"]
    assert report.model_level[0].engine.startswith("keras 3")
    assert 0 < report.model_level[0].max_abs < report.model_level[0].tolerance < 1e-4


@pytest.mark.slow
@pytest.mark.parametrize("to", ["h5", "keras"])
def test_no_initial_values_are_computed(tmp_path, monkeypatch, to):
    """The file overwrites them; those of large recurrent kernels take Keras half a minute."""
    keras = pytest.importorskip("keras", reason="Keras 3 is not installed")

    def never(self, shape, dtype=None):
        raise AssertionError("an orthogonal matrix was computed")

    monkeypatch.setattr(keras.initializers.Orthogonal, "__call__", never)
    report = rnnconvert.convert(
        FIXTURES / "tf115" / "cudnn_gru_bi2", tmp_path / f"out.{to}", device="cpu"
    )
    assert report.verdict == "equivalent"
    assert report.model_level[0].status == "passed"


def test_several_stacks_become_a_directory_of_models(tmp_path):
    source = FIXTURES / "tf115" / "cudnn_two_stacks"
    with pytest.raises(UsageError, match=r"2 RNN stacks .* give a directory"):
        rnnconvert.convert(source, tmp_path / "out.h5", verify="layers")
    report = rnnconvert.convert(source, tmp_path / "models", to="h5", verify="layers")
    assert report.is_equivalent
    assert {p.name for p in (tmp_path / "models").iterdir()} == {"cudnn_lstm.h5", "cudnn_lstm_1.h5"}
    rnnconvert.convert(source, tmp_path / "one.h5", scope="cudnn_lstm_1", verify="layers")
    (layer,) = rnnconvert.inspect(tmp_path / "one.h5").model
    assert layer.class_name == "Bidirectional"


# --- arrays and checkpoints -----------------------------------------------------------------


@pytest.mark.parametrize("case", GOOD, ids=name_of)
@pytest.mark.sampled(2)
def test_npz(case, tmp_path):
    report = rnnconvert.convert(case, tmp_path / "out.npz", verify="layers")
    assert report.is_equivalent
    with open_arrays(tmp_path / "out.npz") as arrays:
        names = list(arrays)
        assert len(names) == 3 * len(report.layers)
        assert all("/layer_" in name for name in names)


@pytest.mark.parametrize("names", ["tf1", "keras"])
@pytest.mark.parametrize("case", GOOD, ids=name_of)
@pytest.mark.sampled(5)
def test_checkpoint(case, tmp_path, names):
    before = snapshot(case)
    report = rnnconvert.convert(case, tmp_path / "out.ckpt", names=names, verify="layers")
    assert snapshot(case) == before
    source = open_checkpoint(case)
    if report.verdict == "nothing-to-convert":
        assert names == "tf1"
        assert not any(name.endswith("opaque_kernel") for name in source.variables)
        assert list(tmp_path.iterdir()) == []
        return
    assert report.is_equivalent
    written = open_checkpoint(tmp_path / "out.ckpt")
    assert not any("opaque_kernel" in name for name in written.variables)
    for name in set(source.variables) & set(written.variables):
        old, new = source.read(name), written.read(name)
        assert old.dtype == new.dtype
        if name.endswith("bias"):
            gap = np.abs(old.astype("f8") - new.astype("f8")).max(initial=0)
            assert gap <= 1e-3 if "half" in case.name else gap <= 1e-6
        elif old.dtype == object:
            assert old.tolist() == new.tolist()
        else:
            assert old.tobytes() == new.tobytes()
    if names == "tf1":
        again = rnnconvert.convert(tmp_path / "out.ckpt", tmp_path / "again.ckpt")
        assert again.verdict == "nothing-to-convert"


def test_tensorflow_restores_what_was_written(tmp_path):
    tf = pytest.importorskip("tensorflow", reason="TensorFlow is the oracle here")
    case = FIXTURES / "tf115" / "cudnn_lstm_adam"
    rnnconvert.convert(case, tmp_path / "out.ckpt", verify="weights")
    reader = tf.train.load_checkpoint(str(tmp_path / "out.ckpt"))
    mine = open_checkpoint(tmp_path / "out.ckpt")
    assert set(reader.get_variable_to_shape_map()) == set(mine.variables)
    for name in mine.variables:
        assert np.array_equal(reader.get_tensor(name), mine.read(name))
    kernel = "cudnn_lstm/rnn/multi_rnn_cell/cell_0/cudnn_compatible_lstm_cell/kernel"
    assert {f"{kernel}/Adam", f"{kernel}/Adam_1"} <= set(mine.variables)


def test_slots_are_cut_like_the_buffer(tmp_path):
    """An Adam slot of the buffer is, in the canonical kernel's slot, where its weight is."""
    case = FIXTURES / "tf115" / "cudnn_lstm_adam"
    report = rnnconvert.convert(case, tmp_path / "out.ckpt", verify="weights")
    assert report.optimizer.state == "converted"
    source, written = open_checkpoint(case), open_checkpoint(tmp_path / "out.ckpt")
    buffer = source.read("cudnn_lstm/opaque_kernel")
    cell = "cudnn_lstm/rnn/multi_rnn_cell/cell_0/cudnn_compatible_lstm_cell"
    for slot in ("Adam", "Adam_1"):
        values = source.read(f"cudnn_lstm/opaque_kernel/{slot}")
        pairs = dict(zip(buffer.tolist(), values.tolist(), strict=True))
        kernel = written.read(f"{cell}/kernel").ravel()
        expected = [pairs[weight] for weight in kernel.tolist()]
        assert written.read(f"{cell}/kernel/{slot}").ravel().tolist() == expected
    assert not any("opaque" in name for name in written.variables)


def test_slots_without_an_exact_sum_are_dropped_and_named(tmp_path):
    case = FIXTURES / "tf115" / "cudnn_lstm_adam_unequal"
    report = rnnconvert.convert(case, tmp_path / "out.ckpt", verify="weights")
    assert report.optimizer.state == "dropped"
    assert any("different slots" in note for note in report.optimizer.notes)
    written = open_checkpoint(tmp_path / "out.ckpt")
    assert not any("cudnn" in name and "Adam" in name for name in written.variables)


@pytest.mark.skipif(not SHARED.exists(), reason="no folder of further data beside the checkout")
@pytest.mark.parametrize("case", ["canonical_gru_bi", "canonical_lstm_uni"])
def test_genuine_contrib_layers(case, tmp_path):
    source = next((SHARED / "fixtures" / "contrib" / case).rglob("*.index")).with_suffix("")
    report = rnnconvert.convert(source, tmp_path / "out.npz", verify="layers")
    assert report.is_equivalent


@pytest.mark.skipif(not SHARED.exists(), reason="no folder of further data beside the checkout")
def test_an_index_without_its_data_is_inspected(cli):
    folder = SHARED / "real-models" / "calamari_index_only"
    result = cli("inspect", folder)
    assert result.code == 0
    assert "lstm, 1 x 200 units on 720 inputs, bidirectional" in result.out
    assert "1,475,200 values" in result.out
    assert "slot Adam_1" in result.out
    converted = cli("cudnn-to-keras", folder, "-o", "out.npz")
    assert converted.code == 3
    assert "data-00000-of-00001" in converted.err


# --- Keras' own CuDNN layers in TF1 checkpoints ---------------------------------------------

SAVERS = sorted((SHARED / "fixtures" / "keras").glob("k224/*/saver_v[12]"))


@pytest.mark.skipif(not SAVERS, reason="the folder of further fixtures is not beside the checkout")
@pytest.mark.parametrize("folder", SAVERS, ids=lambda path: "-".join(path.parts[-2:]))
def test_split_weights_under_tensorflow_names(folder, tmp_path):
    source = folder
    if not (folder / "checkpoint").exists():
        source = next(p for p in sorted(folder.iterdir()) if p.suffix != ".meta")
    report = rnnconvert.convert(source, tmp_path / "out.ckpt", verify="layers")
    assert report.is_equivalent
    old, new = open_checkpoint(source), open_checkpoint(tmp_path / "out.ckpt")
    assert set(old.variables) == set(new.variables)
    changed = [n for n in old.variables if old.read(n).tobytes() != new.read(n).tobytes()]
    assert len(changed) >= 2 * len(report.layers)


# --- refusals -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("case", "text"),
    [
        ("tf112/lstm_peephole", "has peepholes"),
        ("tf112/lstm_projection", "has a projection"),
        ("tf115/layer_norm_lstm", "normalises its gates"),
        ("tf115/cudnn_lstm_disagree", "disagree"),
        ("tf112/cudnn_gru_raw", "give --cell, --layers, --units, --input-size, --direction"),
    ],
)
def test_what_can_not_be_converted(cli, tmp_path, case, text):
    result = cli("cudnn-to-keras", FIXTURES / case, "-o", "out.npz")
    assert result.code == 4
    assert text in " ".join(result.err.split())
    assert list(tmp_path.iterdir()) == []


def test_a_raw_buffer_with_its_hyperparameters(cli, tmp_path):
    case = FIXTURES / "tf112" / "cudnn_gru_raw"
    meta = json.loads(str(data_of(case)["meta"]))
    words = ["--cell", meta["cell"], "--layers", meta["num_layers"], "--units", meta["num_units"],
             "--input-size", meta["input_size"], "--direction", meta["direction"]]  # fmt: skip
    result = cli("cudnn-to-keras", case, "-o", "out.npz", *words)
    assert result.code == 0, result.err
    wrong = [*words[:5], int(meta["num_units"]) + 1, *words[6:]]
    result = cli("cudnn-to-keras", case, "-o", "other.npz", *wrong)
    assert result.code == 4
    assert not (tmp_path / "other.npz").exists()


def test_a_checkpoint_without_an_rnn(cli, tmp_path):
    from rnnconvert.containers.checkpoint import data_path, index_path, write_checkpoint

    prefix = tmp_path / "model.ckpt"
    write_checkpoint(index_path(prefix), data_path(prefix), {"dense/kernel": np.ones((2, 3), "f4")})
    before = snapshot(tmp_path)
    result = cli("cudnn-to-keras", prefix)
    assert result.code == 4
    assert "no cuDNN layer and no RNN cell" in result.err
    assert cli("inspect", prefix).code == 0
    assert snapshot(tmp_path) == before


@pytest.mark.parametrize("damage", ["truncated index", "truncated data", "wrong byte", "no data"])
def test_damaged_checkpoints(cli, tmp_path, damage):
    folder = tmp_path / "ckpt"
    shutil.copytree(FIXTURES / "tf115" / "cudnn_lstm", folder)
    index, data = folder / "model.ckpt.index", folder / "model.ckpt.data-00000-of-00001"
    if damage == "truncated index":
        index.write_bytes(index.read_bytes()[:-20])
    elif damage == "truncated data":
        data.write_bytes(data.read_bytes()[:-20])
    elif damage == "wrong byte":
        content = bytearray(data.read_bytes())
        content[100] ^= 1
        data.write_bytes(content)
    else:
        data.unlink()
    before = snapshot(tmp_path)
    result = cli("cudnn-to-keras", folder / "model.ckpt", "-o", "out.npz")
    assert result.code == 3
    assert len(result.err.splitlines()) == 1
    assert snapshot(tmp_path) == before


def test_outputs_are_not_overwritten_unasked(tmp_path):
    case = FIXTURES / "tf115" / "cudnn_lstm"
    rnnconvert.convert(case, tmp_path / "out.ckpt", verify="weights")
    with pytest.raises(OutputError, match="exists"):
        rnnconvert.convert(case, tmp_path / "out.ckpt", verify="weights")
    rnnconvert.convert(case, tmp_path / "out.ckpt", verify="weights", force=True)
    assert {path.name for path in tmp_path.iterdir()} == {
        "out.ckpt.index", "out.ckpt.data-00000-of-00001"
    }  # fmt: skip


def test_the_default_output_and_a_dry_run(cli, tmp_path):
    shutil.copytree(FIXTURES / "tf115" / "cudnn_gru", tmp_path / "ckpt")
    before = snapshot(tmp_path)
    dry = cli("cudnn-to-keras", "ckpt/model.ckpt", "-n", "--verify", "layers")
    assert dry.code == 0
    assert "would be written" in dry.out
    assert snapshot(tmp_path) == before
    assert cli("cudnn-to-keras", "ckpt/model.ckpt", "--check").code == 1
    assert cli("cudnn-to-keras", "ckpt/model.ckpt", "--verify", "layers").code == 0
    assert (tmp_path / "ckpt" / "model.ckpt.portable.index").exists()
    result = cli("cudnn-to-keras", "ckpt/model.ckpt.portable", "--check")
    assert result.code == 0


# --- verification must be able to fail ------------------------------------------------------


@pytest.mark.parametrize("to", ["npz", "checkpoint", "h5", "weights"])
@pytest.mark.parametrize("gate", ["kernel", "recurrent", "bias"])
@pytest.mark.parametrize("way", ["streamed", "in memory"])
def test_a_wrong_conversion_is_caught_and_nothing_is_left(tmp_path, monkeypatch, to, gate, way):
    """Two gates exchanged, in one tensor, on the way from the buffer to what is written."""

    def spoiled(values):
        order = [1, 0, 2, 3]
        return values[:, order] if gate == "bias" else values[order]

    spoil_weights(monkeypatch, gate, spoiled, is_streamed=way == "streamed")
    for verify in ("weights", "layers"):
        with pytest.raises(DifferenceError, match="nothing was written"):
            rnnconvert.convert(
                FIXTURES / "tf115" / "cudnn_lstm_bi2", tmp_path / "out", to=to, verify=verify
            )
    assert list(tmp_path.iterdir()) == []


# --- the way back ---------------------------------------------------------------------------

PORTABLE = [
    case for case in GOOD if "_object" in case.name or not case.name.startswith(("cudnn_", "gru_"))
]
"""Those of cells that cuDNN computes, too: not those of a GRU that resets before the matmul."""


@pytest.mark.parametrize("case", PORTABLE, ids=name_of)
def test_cells_become_a_buffer_that_gives_the_same_outputs(case, tmp_path):
    """The fixture's outputs are TF1's own, or torch's; the buffer is run by the reference."""
    from rnnconvert.references.tf1 import run_opaque

    bias = json.loads(str(data_of(case)["meta"])).get("forget_bias")
    report = rnnconvert.convert(case, tmp_path / "out.ckpt", command="keras-to-cudnn",
                                verify="layers", forget_bias=bias)  # fmt: skip
    assert report.is_equivalent
    assert report.command == "keras-to-cudnn"
    written = open_checkpoint(tmp_path / "out.ckpt")
    stacks = rnnconvert.inspect(tmp_path / "out.ckpt").found.stacks
    assert all(stack.opaque in written.variables for stack in stacks)
    if case in SINGLE:
        (stack,) = stacks
        x, y = outputs_of(data_of(case))
        found = run_opaque(
            stack.cell, stack.num_layers, stack.num_units, stack.input_size, stack.direction,
            written.read(stack.opaque), x,
        )[0]  # fmt: skip
        if "relu" not in case.name:  # whose activation no checkpoint tells
            assert np.abs(found - y).max() <= 1e-5


def test_there_and_back_again_gives_the_same_buffer(tmp_path):
    """GRU: gates halved exactly; LSTM: halves whose sum is the bias."""
    for name in ("cudnn_gru", "cudnn_lstm_bi2"):
        source = FIXTURES / "tf115" / name
        rnnconvert.convert(source, tmp_path / f"{name}.p", verify="layers")
        rnnconvert.convert(tmp_path / f"{name}.p", tmp_path / f"{name}.c", verify="layers",
                           command="keras-to-cudnn")  # fmt: skip
        rnnconvert.convert(tmp_path / f"{name}.c", tmp_path / f"{name}.pp", verify="layers")
        one, other = (open_checkpoint(tmp_path / f"{name}.{end}") for end in ("p", "pp"))
        assert set(one.variables) == set(other.variables)
        for variable in one.variables:
            assert one.read(variable).tobytes() == other.read(variable).tobytes()


def test_the_way_back_refuses_what_cudnn_has_no_mode_for(cli, tmp_path):
    result = cli("keras-to-cudnn", FIXTURES / "tf115" / "gru_block", "-o", "out.ckpt")
    assert result.code == 4
    assert "different functions" in result.err
    assert list(tmp_path.iterdir()) == []
    result = cli("keras-to-cudnn", FIXTURES / "tf115" / "cudnn_gru", "-o", "out.ckpt")
    assert result.code == 0
    assert "nothing to convert" in result.out

"""`.weights.h5` files of Keras 2.12 and later, converted, and loaded into the portable model."""

from __future__ import annotations

import shutil
from pathlib import Path

import h5py
import numpy as np
import pytest
from helpers import snapshot
from models import ROOT, SHARED, Model, predict, worst_difference

import rnnconvert
from rnnconvert import DifferenceError, NotConvertibleError, OutputError, UsageError
from rnnconvert.keras_models.files import weights_h5 as keras_weights

PLACES = (ROOT / "fixtures" / "keras_zip", SHARED / "fixtures" / "keras")
CASES = sorted(path for place in PLACES for path in place.glob("*/*/new.weights.h5"))
LSTM = next(path for path in CASES if path.parts[-3:-1] == ("tf212", "seq_lstm"))


@pytest.fixture
def weights(tmp_path) -> Path:
    return Path(shutil.copy(LSTM, tmp_path / "m.weights.h5"))


@pytest.mark.parametrize("path", CASES, ids=lambda path: "-".join(path.parts[-3:-1]))
@pytest.mark.sampled(6)
def test_the_portable_model_takes_the_converted_weights(path, tmp_path):
    """The model is made from the `.keras` file beside them, and its weights are then cleared."""
    keras = pytest.importorskip("keras", reason="Keras 3 is not installed")
    whole = path.with_name("model.keras")
    rnnconvert.convert(whole, tmp_path / "model.keras", verify="none")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    loaded.set_weights([np.zeros_like(weight) for weight in loaded.get_weights()])

    report = rnnconvert.convert(path, tmp_path / "out.weights.h5")
    assert report.verdict == "equivalent"
    assert [report.weights_level.status, report.layers_level.status] == ["passed", "passed"]
    assert "weights-only" in report.model_level[0].reason
    loaded.load_weights(tmp_path / "out.weights.h5")
    model = Model(path.parts[-2], whole)
    assert worst_difference(predict(loaded, model.inputs()), model.outputs()) <= model.tolerance

    same = rnnconvert.verify(path, tmp_path / "out.weights.h5")
    assert same.verdict == "equivalent"
    again = rnnconvert.convert(tmp_path / "out.weights.h5", tmp_path / "again.weights.h5")
    assert again.verdict == "nothing-to-convert"
    assert not (tmp_path / "again.weights.h5").exists()


def test_the_command(cli, weights, tmp_path):
    shown = cli("inspect", "m.weights.h5")
    assert shown.code == 0
    assert "convertible: 2 CuDNN layers to convert" in shown.out
    assert "Keras 2" not in shown.out, "the file does not say which Keras wrote it"
    assert cli("cudnn-to-keras", "--check", "m.weights.h5").code == 1
    before = snapshot(tmp_path)
    dry = cli("cudnn-to-keras", "-n", "m.weights.h5")
    assert dry.code == 0
    assert "would be written" in dry.out
    assert snapshot(tmp_path) == before
    done = cli("cudnn-to-keras", "m.weights.h5")
    assert done.code == 0
    assert "written m.portable.weights.h5" in done.out
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "m.portable.weights.h5",
        "m.weights.h5",
    ]
    assert cli("cudnn-to-keras", "--check", "m.portable.weights.h5").code == 0
    assert cli("cudnn-to-keras", "m.weights.h5").code == 5
    assert cli("cudnn-to-keras", "-f", "m.weights.h5").code == 0


def test_what_it_does_not_become(weights, tmp_path):
    with pytest.raises(UsageError, match=r"a \.weights\.h5 file .* becomes one of weights"):
        rnnconvert.convert(weights, to="keras")
    with pytest.raises(UsageError, match="in-place"):
        rnnconvert.convert(weights, in_place=True)
    with pytest.raises(NotConvertibleError, match="files and checkpoints"):
        rnnconvert.convert(weights, command="keras-to-cudnn")
    with pytest.raises(UsageError, match="same file"):
        rnnconvert.convert(weights, weights, force=True)
    with pytest.raises(OutputError, match="does not exist"):
        rnnconvert.convert(weights, tmp_path / "none" / "out.weights.h5")
    report = rnnconvert.convert(weights, tmp_path / "out.h5")
    assert any("ends in .weights.h5" in warning for warning in report.warnings)


def test_a_wrong_array_in_the_written_file_is_caught(weights, tmp_path, monkeypatch):
    write = keras_weights.write_keras_weights

    def wrong(original: Path, converted: Path, target: Path) -> None:
        write(original, converted, target)
        with h5py.File(target, "r+") as file:
            file["layers/dense/vars/1"][0] += 1.0

    monkeypatch.setattr(keras_weights, "write_keras_weights", wrong)
    with pytest.raises(DifferenceError, match="a bug of rnnconvert"):
        rnnconvert.convert(weights)
    assert list(tmp_path.iterdir()) == [weights]


def test_verify_tells_two_files_apart(weights, tmp_path):
    rnnconvert.convert(weights, tmp_path / "out.weights.h5")
    with h5py.File(tmp_path / "out.weights.h5", "r+") as file:
        file["layers/lstm/cell/vars/1"][0, 0] += 0.5
    with pytest.raises(DifferenceError, match="layers/cu_dnnlstm/recurrent_kernel"):
        rnnconvert.verify(weights, tmp_path / "out.weights.h5")


def test_layers_of_one_kind_in_two_forms(cli, tmp_path):
    """The order of a CuDNNLSTM and an LSTM is not in the file, and both become an LSTM."""
    shapes = {
        "layers/cu_dnnlstm": [(5, 12), (3, 12), (24,)],
        "layers/lstm/cell": [(3, 16), (4, 16), (16,)],
    }
    generator = np.random.default_rng(0)
    with h5py.File(tmp_path / "m.weights.h5", "w") as file:
        for owner, variables in shapes.items():
            for index, shape in enumerate(variables):
                file[f"{owner}/vars/{index}"] = generator.normal(size=shape).astype("float32")
    before = snapshot(tmp_path)
    for arguments in (["cudnn-to-keras"], ["cudnn-to-keras", "--check"], ["cudnn-to-keras", "-n"]):
        refused = cli(*arguments, "m.weights.h5")
        assert (refused.code, "counted together" in refused.err) == (4, True)
    shown = cli("inspect", "m.weights.h5")
    assert (shown.code, "can't be converted" in shown.out) == (0, True)
    assert snapshot(tmp_path) == before

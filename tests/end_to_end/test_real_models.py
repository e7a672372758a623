"""Models that other people trained: read where they are, never copied into the project."""

from __future__ import annotations

import shutil

import numpy as np
import pytest
from models import REAL, SHARED, predict

import rnnconvert

pytestmark = pytest.mark.skipif(
    not REAL, reason="the folder of real models is not beside the checkout"
)

CUDNN_LAYERS = {
    "bitcoin_bidirectional_cudnnlstm.h5": 6,
    "iamhwr_cudnngru_backwards_pairs.weights.h5": 4,
    "pipr_siamese_bidirectional_cudnngru.h5": 10,
    "polymuse gpu_m s_flat_init": 2,
    "stockprice_cudnnlstm_x4.h5": 4,
    "textgenrnn_reddit_apple_android.hdf5": 2,
    "textgenrnn_weights.hdf5": 2,
}
PLAIN = {
    "medaka_plain_gru_reset_before.hdf5": 4,
    "polymuse_plain_lstm_no_extension": 2,
    "poreplex_rnn_lstmcell.hdf5": 3,
}
WHOLE = [path for path in REAL if "weights" not in path.name and "textgenrnn" not in path.name]


def test_all_of_them_are_here():
    assert {path.name for path in REAL} == {*CUDNN_LAYERS, *PLAIN}


@pytest.mark.parametrize("path", REAL, ids=lambda path: path.name)
def test_converts(path, tmp_path):
    before = path.read_bytes()
    report = rnnconvert.convert(path, tmp_path / "out.h5")
    assert report.verdict == "equivalent"
    assert report.weights_level.status == "passed"
    level = report.model_level[0]
    assert level.status == ("passed" if path in WHOLE else "skipped"), level
    cudnn = [layer for layer in report.layers if layer.site.is_cudnn]
    assert len(cudnn) == CUDNN_LAYERS.get(path.name, 0)
    assert len(report.layers) == {**CUDNN_LAYERS, **PLAIN}[path.name]
    assert path.read_bytes() == before
    again = rnnconvert.convert(tmp_path / "out.h5", tmp_path / "again.h5")
    assert again.verdict == "nothing-to-convert"
    assert not (tmp_path / "again.h5").exists()


@pytest.mark.slow
@pytest.mark.parametrize("path", WHOLE, ids=lambda path: path.name)
def test_keras3_gives_what_keras2_gives(path, tmp_path):
    """The portable file in Keras 3 against the original in tf_keras, which converts on loading."""
    keras = pytest.importorskip("keras")
    tf_keras = pytest.importorskip("tf_keras")
    rnnconvert.convert(path, tmp_path / "out.h5", verify="weights")
    mine = keras.models.load_model(tmp_path / "out.h5")
    layers = tf_keras.layers
    # tf_keras goes by the extension too, and one of these files has a bare list as its config.
    rnnconvert.convert(path, tmp_path / "keras2.h5", target="keras2", verify="weights")
    original = tmp_path / "original.h5"
    shutil.copyfile(path if "medaka" not in path.name else tmp_path / "keras2.h5", original)
    theirs = tf_keras.models.load_model(
        original,
        custom_objects={"CuDNNLSTM": layers.LSTM, "CuDNNGRU": layers.GRU},
        compile=False,
    )
    generator = np.random.default_rng(0)
    inputs = [
        generator.standard_normal(
            [n or 2 for n in tensor.shape[:1]]
            + [
                min(n or 20, 400) if i == 0 and n is None else n or 20
                for i, n in enumerate(tensor.shape[1:])
            ]
        ).astype("float32")
        for tensor in mine.inputs
    ]
    for a, b in zip(predict(mine, inputs), predict(theirs, inputs), strict=True):
        assert np.abs(a - b).max() <= 1e-5


def test_git_lfs_pointer(cli):
    result = cli("cudnn-to-keras", SHARED / "real-models" / "git_lfs_pointer.hdf5")
    assert result.code == 3
    assert "git-lfs pointer" in result.err


def test_the_seed_case_has_its_counts(cli):
    """CuDNNGRU(200), PReLU, CuDNNGRU(200), PReLU, CuDNNGRU(2) on (200, 7): before and after."""
    path = SHARED / "fixtures" / "keras" / "k224" / "seed_gru" / "full.h5"
    if not path.exists():
        pytest.skip("the folder of further fixtures is not beside the checkout")
    wanted = [125400, 40000, 241200, 40000, 1224]
    before = rnnconvert.inspect(path)
    assert [layer.parameters for layer in before.model] == wanted
    assert cli("cudnn-to-keras", path, "-o", "out.h5").code == 0
    after = rnnconvert.inspect("out.h5")
    assert [layer.parameters for layer in after.model] == wanted
    printed = cli("inspect", path).out
    assert all(str(count) in printed for count in wanted)

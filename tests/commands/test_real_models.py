"""Models that other people trained: read where they are, never copied into the project."""

from __future__ import annotations

import shutil

import numpy as np
import pytest
from models import REAL, SHARED, predict, swept

import rnnconvert

pytestmark = pytest.mark.skipif(
    not REAL, reason="the folder of real models is not beside the checkout"
)

CUDNN_LAYERS = {
    "bitcoin_bidirectional_cudnnlstm.h5": 6,
    "iamhwr_cudnngru_backwards_pairs.weights.h5": 4,
    "junyi_cudnnlstm_adam_decay.model": 2,
    "pipr_siamese_bidirectional_cudnngru.h5": 10,
    "polymuse gpu_m s_flat_init": 2,
    "stockprice_cudnnlstm_x4.h5": 4,
    "textgenrnn_reddit_apple_android.hdf5": 2,
    "textgenrnn_weights.hdf5": 2,
}
PLAIN = {
    "keras1_lstm.h5": 2,
    "medaka_plain_gru_reset_before.hdf5": 4,
    "polymuse_plain_lstm_no_extension": 2,
    "poreplex_rnn_lstmcell.hdf5": 3,
    "sandhi_keras37_bilstm_mask.h5": 2,
}
WEIGHTS = {"gru_keras211.weights.h5"}
"""Plain layers' weights alone: there is nothing in the file to convert."""
CONVERTED = [path for path in REAL if path.name not in WEIGHTS]
WHOLE = [path for path in CONVERTED if "weights" not in path.name and "textgenrnn" not in path.name]
QUICK = [path for path in CONVERTED if path.name.startswith(("keras1", "text"))]
LONG = ("medaka_plain_gru_reset_before.hdf5", "pipr_siamese_bidirectional_cudnngru.h5")
"""Those that Keras runs for minutes: once is enough, beside tf_keras."""
READ_BY_TF_KERAS = [
    path for path in WHOLE if path.name not in ("keras1_lstm.h5", "sandhi_keras37_bilstm_mask.h5")
]
FOLDER = SHARED / "real-models"


def test_all_of_them_are_here():
    assert {path.name for path in REAL} == {*CUDNN_LAYERS, *PLAIN, *WEIGHTS}


@pytest.mark.parametrize("path", swept(CONVERTED, QUICK), ids=lambda path: path.name)
def test_converts(path, tmp_path):
    before = path.read_bytes()
    verify = dict.fromkeys(LONG, "layers").get(path.name, "model")
    report = rnnconvert.convert(path, tmp_path / "out.h5", verify=verify)
    assert report.verdict == "equivalent"
    assert report.weights_level.status == "passed"
    level = report.model_level[0]
    assert level.status == ("passed" if path in WHOLE and verify == "model" else "skipped"), level
    cudnn = [layer for layer in report.layers if layer.site.is_cudnn]
    assert len(cudnn) == CUDNN_LAYERS.get(path.name, 0)
    assert len(report.layers) == {**CUDNN_LAYERS, **PLAIN}[path.name]
    assert path.read_bytes() == before
    again = rnnconvert.convert(tmp_path / "out.h5", tmp_path / "again.h5", verify=verify)
    assert again.verdict == "nothing-to-convert"
    assert not (tmp_path / "again.h5").exists()


@pytest.mark.slow
@pytest.mark.corpus
@pytest.mark.parametrize("path", READ_BY_TF_KERAS, ids=lambda path: path.name)
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


@pytest.mark.corpus
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


# --- weights alone, checkpoints and SavedModels ---------------------------------------------


def test_plain_weights_say_what_the_code_must_give(cli):
    result = cli("cudnn-to-keras", FOLDER / "gru_keras211.weights.h5")
    assert result.code == 0
    assert "only weights, for the code that builds the model" in result.out
    assert "reset_after=False" in result.err
    assert "recurrent_activation" in result.err


def test_a_forget_bias_is_read_from_the_graph(cli, tmp_path):
    source = FOLDER / "plain_lstm_forget_bias_0.8_tf1"
    result = cli("cudnn-to-keras", source, "-o", "lstm.h5", "--strict")
    assert result.code == 0
    assert result.out.rstrip().endswith("equivalent (whole model)")
    result = cli("cudnn-to-keras", source, "-o", "other.h5", "--forget-bias", "1")
    assert (result.code, "0.8" in result.err) == (2, True)
    assert not (tmp_path / "other.h5").exists()


def test_a_checkpoint_without_its_data_names_what_is_missing(cli):
    result = cli("cudnn-to-keras", FOLDER / "calamari_index_only")
    assert result.code == 3
    assert "0.ckpt.data-00000-of-00001 is missing" in result.err


def test_cudnn_in_the_graph_beside_a_checkpoint_is_pointed_to(cli):
    result = cli("inspect", FOLDER / "helmo_cudnn_compatible_with_meta")
    assert result.code == 0
    assert "convert best.meta" in result.err


def test_what_save_weights_wrote_is_called_that_and_converted(cli):
    source = FOLDER / "rongopy_tf2_save_weights"
    assert "as tf.keras' save_weights writes it" in cli("inspect", source).out
    result = cli("cudnn-to-keras", source, "--to", "npz", "-o", "gru.npz")
    assert result.code == 0
    assert "equivalent, if activation is tanh and recurrent_activation is sigmoid" in result.out


def test_lambda_layers_of_a_savedmodel_are_named(cli):
    result = cli(
        "cudnn-to-keras", FOLDER / "dtln_lambda_savedmodel", "--to", "keras", "-o", "m.keras"
    )
    assert result.code == 4
    assert "is a Lambda layer that calls" in result.err


@pytest.mark.corpus
def test_a_savedmodel_of_plain_layers_needs_nothing(cli):
    result = cli("cudnn-to-keras", FOLDER / "netsec_plain_lstm_savedmodel")
    assert result.code == 0
    assert "nothing to convert: no cuDNN op" in result.out

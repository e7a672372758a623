"""`rnnconvert explain`: every topic, its facts against real layers, and the layers of files."""

from __future__ import annotations

import json
import re
from itertools import groupby

import numpy as np
import pytest
from helpers import make_model_h5

from rnnconvert.cli import main
from rnnconvert.cli.explain import explain
from rnnconvert.explanations import TOPICS

NAMES = "lstm gru split opaque keras torch onnx tf1 biases counts hard-sigmoid".split()


@pytest.fixture(autouse=True)
def _command(monkeypatch):
    monkeypatch.setitem(main.cli.commands, "explain", explain)


def text(cli, *arguments) -> str:
    result = cli("explain", *arguments)
    assert (result.code, result.err) == (0, "")
    return result.out


# --- topics ---------------------------------------------------------------------------------


def test_the_list_of_topics(cli):
    out = text(cli)
    assert list(TOPICS) == NAMES
    assert re.findall(r"^  ([a-z0-9-]+) ", out, re.MULTILINE) == NAMES


@pytest.mark.parametrize("name", [None, *NAMES])
def test_every_topic_is_plain_text_of_100_columns(cli, name):
    out = text(cli, *([name] if name else []))
    assert out.isascii()
    assert out.endswith("\n")
    assert "{" not in out.replace('{"kernel"', "")
    assert max(map(len, out.splitlines())) <= 100
    assert not any(line != line.rstrip() for line in out.splitlines())


@pytest.mark.parametrize("variables", [{}, {"FORCE_COLOR": "1"}])
def test_there_are_no_colours(cli, monkeypatch, variables):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert text(cli, "GRU", "--no-color") == text(cli, "gru")
    assert "\x1b" not in text(cli, "gru")


@pytest.mark.parametrize(
    ("topic", "facts"),
    [
        ("lstm", ["LSTM              i f c o  kernel (d, 4U)  recurrent_kernel (U, 4U)  bias (4U,)",
                  "CuDNNLSTM         i f c o  kernel (d, 4U)  recurrent_kernel (U, 4U)  bias (8U,)",
                  "onnx              i o f c  W (1, 4U, d)  R (1, 4U, U)  B (1, 8U)",
                  "d |   i   |   f   |   c   |   o   |"]),
        ("gru", ["GRU(reset_after=True)  z r n  kernel (d, 3U)  recurrent_kernel (U, 3U)  bias (2,",
                 "torch                  r z n  weight_ih (3U, d)",
                 "d |   z   |   r   |   n   |", "r * (h Rn') = (1, 1)", "(r * h) Rn' = (2, 0.5)"]),
        ("split", ["CuDNNGRU   z r n    (d, 3U)  (U, 3U)           (6U,)", "4 blocks (5, 6)",
                   "[[1, 2], [3, 4], [5, 6]]", "[[1, 2, 3], [4, 5, 6]]", "[[1, 3, 5], [2, 4, 6]]"]),
        ("keras", ["GRU(reset_after=False)        z r n    (d, 3U)  (U, 3U)           (3U,)"]),
        ("torch", ["nn.LSTM                      i f c o  (4U, d)    (4U, U)    (4U,)    (4U,)"]),
        ("onnx", ["LSTM                        i o f c  (1, 4U, d)  (1, 4U, U)  (1, 8U)"]),
        ("tf1", ["cudnn_compatible_lstm_cell  i c f o  kernel (d+U, 4U) ", "lstm_fused_cell: LSTM, "
                 "forget bias 1", "candidate/input_projection/kernel (d, U)", "w_ru (d+U, 2U)"]),
        ("biases", ["(2, 3U)   GRU(reset_after=True)", "0.75 = 0.375 + 0.375",
                    "B (1, 8U)", "(8U,)     CuDNNLSTM"]),
        ("counts", ["CuDNNLSTM               4*U*(d+U+2)", "GRU(reset_after=False)  3*U*(d+U+1)",
                    "150 / 15 - 4 - 5 = 1", "165 / 15 - 4 - 5 = 2", "40000"]),
        ("hard-sigmoid", ["i 0-5, f 6-11, o 18-23", "r 6-11, z 0-5"]),
    ],
)  # fmt: skip
def test_facts(cli, topic, facts):
    out = text(cli, topic)
    for fact in facts:
        assert fact in out


def test_the_worked_block_of_split(cli):
    """cuDNN reads the CuDNN block's memory as its matrix; Keras multiplies by the other one."""
    numbers = re.findall(r"(\[\[.*\]\])", text(cli, "split"))
    matrix, stored, keras_block = (np.array(json.loads(words)) for words in numbers)
    assert matrix.shape == (3, 2)
    np.testing.assert_array_equal(np.frombuffer(stored.tobytes(), int), matrix.ravel())
    np.testing.assert_array_equal(keras_block, matrix.T)


def test_the_table_of_hard_sigmoid(cli):
    import keras

    rows = re.findall(r"^  (x|Keras.*?)((?: +-?\d\.\d{4})+)$", text(cli, "hard-sigmoid"), re.M)
    x, old, new, scaled = (np.array(words.split(), float) for _, words in rows)
    np.testing.assert_allclose(new, keras.ops.hard_sigmoid(x), atol=1e-4)
    np.testing.assert_allclose(old, np.clip(0.2 * x + 0.5, 0, 1), atol=1e-4)
    np.testing.assert_array_equal(scaled, old)


def test_the_drawn_buffer_is_cudnns(cli):
    """Offsets by the developer guide's rule: all matrices layer by layer, then all biases."""
    out = text(cli, "opaque")
    rows = re.findall(
        r"^ +(\d+) - +(\d+)  layer (\d) (\w+) +(bW|bR|W|R) +([a-z ]+?)  +(\(.*?\))", out, re.M
    )
    expected, at = [], 0
    for kinds in (("W", "R"), ("bW", "bR")):
        for layer, direction, kind in (
            (la, di, ki) for la in (0, 1) for di in ("forward", "backward") for ki in kinds
        ):
            shape = {"W": (6, (5, 12)[layer]), "R": (6, 6)}.get(kind, (6,))
            size = 4 * int(np.prod(shape))
            expected.append((at, at + size - 1, layer, direction, kind, "i f c o", str(shape)))
            at += size
    assert [(int(a), int(b), int(c), *rest) for a, b, c, *rest in rows] == expected
    assert f"2 * 4*6*(5+6+2) + 2 * 4*6*(12+6+2) = {at}" in out
    boxes = [key for key, _ in groupby((row[2], row[3][0], row[4][0] == "b") for row in rows)]
    assert out.count(" W R ") == out.count(" bW bR ") == len(boxes) / 2
    assert "6 units on 6 inputs have 192 elements" in out  # 4*6*(0+6+2): no W
    assert "6 units on 5 inputs have 288 elements with P=4" in out  # 4*6*(5+4+2) + 4*6


@pytest.mark.slow
def test_counts_are_those_of_real_layers(cli):
    import keras
    from tf_keras.src.layers.rnn.cudnn_gru import CuDNNGRU
    from tf_keras.src.layers.rnn.cudnn_lstm import CuDNNLSTM

    makers = {
        "SimpleRNN": keras.layers.SimpleRNN,
        "LSTM": keras.layers.LSTM,
        "GRU(reset_after=True)": lambda units: keras.layers.GRU(units, reset_after=True),
        "GRU(reset_after=False)": lambda units: keras.layers.GRU(units, reset_after=False),
        "CuDNNLSTM": CuDNNLSTM,
        "CuDNNGRU": CuDNNGRU,
    }
    found = re.findall(r"^  (\S+), (\d+) units on (\d+) inputs: +\S+ = (\d+)$",
                       text(cli, "counts"), re.M)  # fmt: skip
    for name, units, inputs, count in found:
        layer = makers[name](int(units))
        layer.build((None, None, int(inputs)))
        assert layer.count_params() == int(count), name
    assert {row[0] for row in found} == set(makers)
    assert [int(row[3]) for row in found][-3:] == [125400, 241200, 1224]
    slopes = keras.layers.PReLU()
    slopes.build((None, 200, 200))
    assert f"a PReLU on (200, 200), one slope for each, has {slopes.count_params()}" in text(
        cli, "counts"
    )


# --- files ----------------------------------------------------------------------------------


def test_a_file(cli, tmp_path):
    make_model_h5(tmp_path / "m.h5")
    out = text(cli, "m.h5")
    lstm, gru = out.split("cu_gru: ")
    assert (
        lstm
        == """\
m.h5

cu_lstm: CuDNNLSTM, forward
  lstm cell, 6 units on 5 inputs
  kernel            (5, 24)       4 blocks (5, 6): i f c o
                                  each the buffer of a gate's matrix (6, 5)
  recurrent_kernel  (6, 24)       4 blocks (6, 6): i f c o
                                  each the buffer of a gate's matrix (6, 6)
  bias              (48,)         i f c o: input biases, then recurrent biases
  weights           4*6*(5+6+2) = 312
  to be converted to LSTM:
    kernel            (5, 24)       per-gate reshape+transpose
    recurrent_kernel  (6, 24)       per-gate reshape+transpose
    bias              (24,)         input bias + recurrent bias
    weights           4*6*(5+6+1) = 288

"""
    )
    assert "3 blocks (6, 4): z r n" in gru
    assert "3*4*(6+4+2) = 144" in gru
    assert gru.endswith("More: 'rnnconvert explain split'\n")


@pytest.mark.parametrize(
    ("model", "facts"),
    [
        ("tf115/plain_gru_after", ["each a gate's matrix (6, 5) transposed", "3*6*(5+6+2) = 234",
                                   "z r n: row 0 input biases, row 1 recurrent biases",
                                   "to be rescaled for Keras 3: sigmoid gates times 1.2"]),
        ("k224/plain_simple_rnn", ["rnn_relu cell, 4 units on 6 inputs", "1*4*(6+4+1) = 44"]),
        ("k224/plain_convlstm", ["ConvLSTM2D, forward", "(3, 3, 2, 8)"]),
        ("tf215/double", ["More: 'rnnconvert explain split'"]),
    ],
)  # fmt: skip
def test_other_files(cli, fixtures_dir, model, facts):
    out = text(cli, fixtures_dir / "keras" / model / "model.h5")
    for fact in facts:
        assert fact in out
    assert max(map(len, out.splitlines()[1:])) <= 100


@pytest.mark.parametrize("model", ["k224/bi", "k224/nested", "tf210/plain_gru_before"])
def test_counts_of_a_file_are_its_weights(cli, fixtures_dir, model):
    import h5py

    path = fixtures_dir / "keras" / model / "model.h5"
    counts = re.findall(r"^  weights .* = (\d+)$", text(cli, path), re.M)
    sizes = []

    def visit(name, item):
        if isinstance(item, h5py.Dataset) and "recurrent_kernel" in name:
            sizes.append(sum(tensor.size for tensor in item.parent.values()))

    with h5py.File(path) as file:
        file["model_weights"].visititems(visit)
    assert sorted(map(int, counts)) == sorted(sizes)


def test_a_weights_only_file(cli, tmp_path):
    make_model_h5(tmp_path / "w", whole=False)
    assert "cu_lstm: CuDNNLSTM, forward" in text(cli, "w")


def test_a_file_without_recurrent_layers(cli, tmp_path):
    make_model_h5(tmp_path / "m.h5", cells=(), names=(), units=())
    assert text(cli, "m.h5") == "m.h5\n\nno recurrent layers\n"


def test_problems_of_a_file_are_warnings(cli, tmp_path):
    from helpers import replace_dataset

    make_model_h5(tmp_path / "m.h5")
    replace_dataset(tmp_path / "m.h5", "model_weights/cu_gru/cu_gru/bias:0", np.zeros(7, "f4"))
    result = cli("explain", "m.h5")
    assert result.code == 0
    assert "cu_lstm: CuDNNLSTM" in result.out
    assert result.err.startswith("warning: ")
    assert "cu_gru" in result.err


def test_names_in_a_file_are_printed_escaped(cli, tmp_path):
    make_model_h5(tmp_path / "m.h5", names=("a\x1b[31mb", "[bold]c"))
    out = text(cli, "m.h5")
    assert "a\\x1b[31mb: CuDNNLSTM" in out
    assert "\n[bold]c: CuDNNGRU" in out


def test_a_topic_goes_before_a_file(cli, tmp_path):
    make_model_h5(tmp_path / "lstm")
    assert text(cli, "lstm").startswith("LSTM: 4 gates")
    assert text(cli, "./lstm").startswith("lstm\n\ncu_lstm: CuDNNLSTM")


# --- errors ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("word", "guess"),
    [
        ("lstn", ", did you mean lstm? topics: lstm, gru, "),
        ("hard_sigmoid", ", did you mean hard-sigmoid? topics: "),
        ("missing.h5", "; topics: "),
        ("x" * 300, "; topics: "),
        ("", "; topics: "),
    ],
)
def test_an_unknown_topic(cli, word, guess):
    result = cli("explain", word)
    assert (result.code, result.out) == (2, "")
    assert result.err.startswith(f"error: {word}: no such topic or file{guess}")
    assert result.err.endswith(f"{', '.join(NAMES[-2:])}\n")


def test_files_that_are_no_model(cli, tmp_path):
    (tmp_path / "notes.txt").write_text("hello")
    (tmp_path / "folder").mkdir()
    for name, reason in (
        ("notes.txt", "a text file, not an HDF5 model"),
        ("folder", "a directory without a model"),
    ):
        result = cli("explain", name)
        assert (result.code, result.out) == (3, "")
        assert reason in result.err


def test_more_than_one_word(cli):
    assert cli("explain", "lstm", "gru").code == 2


def test_debug_shows_the_traceback(cli):
    result = cli("explain", "nothing", "--debug")
    assert result.code == 2
    assert "Traceback" in result.err

"""Export to TFLite: every recurrent layer's numbers in LiteRT, the known traps, and int8."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from written_models import (
    FEATURES,
    MASK_VALUE,
    STEPS,
    TOLERANCE,
    assert_right,
    filled,
    largest_difference,
    of_sequences,
    predicted,
    sequences,
    with_holes,
    written,
)

import rnnconvert
from rnnconvert.errors import DifferenceError, NotConvertibleError, UsageError

pytestmark = pytest.mark.slow
tf = pytest.importorskip("tensorflow", reason="TensorFlow is not installed")
keras = pytest.importorskip("keras", reason="Keras 3 is not installed")
pytest.importorskip("ai_edge_litert", reason="ai-edge-litert is not installed")

from rnnconvert.exports import tflite
from rnnconvert.exports.tflite import blocks, cells, flatfile, recurrent, writing

LONG = 19
"""Steps of a long sequence in the tests of loops: four blocks, and three steps that are left."""
GRAPHS = Path(__file__).parents[2] / "fixtures/savedmodels/tf115"
layers = keras.layers


# --- numbers --------------------------------------------------------------------------------


def all_cells(steps):
    """A model of every cell, with and without biases, forwards, backwards, with states."""
    x = keras.Input((steps, FEATURES), name="the input")
    made = [
        layers.LSTM(4, return_sequences=True),
        layers.LSTM(4, recurrent_activation="hard_sigmoid", use_bias=False, go_backwards=True),
        layers.GRU(3, return_sequences=True, go_backwards=True),
        layers.GRU(4, activation="relu", use_bias=False),
        layers.GRU(4, reset_after=False),
        layers.SimpleRNN(4, activation="relu"),
        layers.SimpleRNN(3, use_bias=False),
        layers.RNN([layers.LSTMCell(4), layers.GRUCell(3)]),
        layers.Bidirectional(layers.GRU(4), merge_mode="mul"),
        layers.TimeDistributed(layers.Dense(2)),
    ]
    outputs = [layer(x) for layer in made]
    _, h, c = layers.LSTM(4, return_state=True)(x)
    outputs.append(layers.LSTM(4, return_sequences=True)(x, initial_state=[h, c]))
    return filled(keras.Model(x, outputs))


@pytest.fixture(params=[STEPS, LONG], ids=["unrolled", "loop"])
def steps(request, monkeypatch):
    monkeypatch.setattr(recurrent, "UNROLLED", LONG - 1)
    return request.param


@pytest.mark.corpus
@pytest.mark.thinned(2)
def test_every_cell(steps, tmp_path):
    model = all_cells(steps)
    done, run = written(tflite, model, tmp_path / "model.tflite")
    for batch, seed in ((3, 0), (1, 1)):
        x = sequences(batch, steps, seed=seed)
        assert_right(run, model, [x])
    assert done.inputs == ("the_input",)
    assert done.operators[flatfile.LSTM] == done.native == 0
    recurrent_calls = 12  # each layer of `all_cells` but the last, two in a Bidirectional
    assert done.operators["WHILE"] == (recurrent_calls if steps == LONG else 0)
    assert {told.split(": ")[1] for told in done.loops} == {
        "unrolled" if steps == STEPS else "a WHILE over blocks of 4 of its 19 steps"
    }
    assert not [name for name in done.operators if name.startswith("Flex")]
    assert (done.timesteps, done.batch) == (steps, None)
    assert done.runtime.startswith("ai-edge-litert ")


@pytest.mark.corpus
@pytest.mark.thinned(2)
def test_masks_of_every_kind(steps, tmp_path):
    """Holes, padding on either side, and sequences that are masked as a whole."""
    x = keras.Input((steps, FEATURES))
    y = layers.Masking(MASK_VALUE)(x)
    outputs = [
        layers.LSTM(4, return_sequences=True)(y),
        layers.GRU(3, go_backwards=True, return_sequences=True)(y),
        layers.Bidirectional(layers.LSTM(4, return_sequences=True))(y),
        layers.Bidirectional(layers.GRU(4, reset_after=False))(y),
        layers.SimpleRNN(3, zero_output_for_mask=True, return_sequences=True)(y),
    ]
    model = filled(keras.Model(x, outputs))
    _, run = written(tflite, model, tmp_path / "model.tflite")
    for seed in (0, 1):
        arrays = [with_holes(sequences(5, steps, seed=seed), seed)]
        assert_right(run, model, arrays)


# --- long sequences -------------------------------------------------------------------------


@pytest.mark.corpus  # test_every_cell has a loop, too
def test_long_sequences_cost_little(tmp_path):
    """Fewer operators than steps, and the weights are in the file once."""
    model = filled(of_sequences(layers.GRU(40, return_sequences=True), steps=2000))
    path = tmp_path / "model.tflite"
    done, run = written(tflite, model, path)
    assert sum(done.operators.values()) < 1000
    assert path.stat().st_size < 4 * model.count_params() + 200_000
    x = sequences(2, 2000)
    assert_right(run, model, [x])


def test_sizes_of_blocks():
    """Every step is in a block or left; both are few."""
    assert (blocks.block_size(1000), blocks.block_size(1009)) == (37, 36)
    for length in range(recurrent.UNROLLED + 1, 5000, 7):
        size = blocks.block_size(length)
        assert length**0.5 - 1 < size < 2 * length**0.5
        assert size + length % size < 2 * length**0.5


@pytest.mark.corpus
def test_int8_weights_in_a_loop(tmp_path):
    model = filled(of_sequences(layers.LSTM(40), steps=300, features=20))
    done, run = written(tflite, model, tmp_path / "model.tflite", quantize="dynamic")
    assert done.operators["WHILE"] == 1
    assert f"{4 * 40 * (40 + 20):,} weights are int8" in done.notes[-1]
    x = sequences(3, 300, features=20)
    expected = predicted(model, [x])
    difference = largest_difference(expected, run([x]))
    assert TOLERANCE < difference < writing.QUANTIZED_TOLERANCE * np.abs(expected[0]).max()


def test_what_can_be_no_loop_is_refused_where_it_is_long(tmp_path):
    x = keras.Input((recurrent.MOST_UNROLLED + 1, 4, 4, 2))
    model = keras.Model(x, layers.ConvLSTM2D(2, 2, name="pictures")(x))
    said = r"pictures \(ConvLSTM2D\) gets 1001 steps, and is unrolled .* at most 1000: .*--to onnx"
    with pytest.raises(NotConvertibleError, match=said):
        written(tflite, model, tmp_path / "model.tflite")
    with pytest.raises(UsageError, match=r"--timesteps 1001: cuDNN .* at most 1000"):
        rnnconvert.export(
            GRAPHS / "contrib_gru_bi2/model", tmp_path / "model.tflite", timesteps=1001
        )
    assert list(tmp_path.iterdir()) == []


# --- TFLite's own LSTM ----------------------------------------------------------------------


def bidirectional_lstm(steps):
    return filled(of_sequences(
        layers.Bidirectional(layers.LSTM(4, return_sequences=True)), layers.LSTM(3), steps=steps
    ))  # fmt: skip


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    """A model of LSTMs for one sequence of any length, written."""
    model = bidirectional_lstm(None)
    path = tmp_path_factory.mktemp("own") / "model.tflite"
    return (model, path, *written(tflite, model, path, batch=1))


@pytest.mark.corpus
def test_own_lstm_operator(own):
    """With a fixed batch size, and for any number of steps; a call leaves nothing behind."""
    model, _, done, run = own
    for steps, seed in ((6, 0), (9, 1), (5, 2)):
        x = sequences(1, steps, seed=seed)
        assert_right(run, model, [x])
    assert (done.operators[flatfile.LSTM], done.operators["FILL"], done.native) == (3, 6, 3)
    assert (done.timesteps, done.batch, done.loops) == (None, 1, ())


@pytest.mark.corpus
def test_lstm_operator_without_other_kernels(own):
    """The states start as zeros in TFLite's reference kernels too."""
    from ai_edge_litert.interpreter import Interpreter, OpResolverType

    model, path, done, _ = own
    plain = OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES
    run = Interpreter(str(path), experimental_op_resolver_type=plain).get_signature_runner()
    for seed in range(3):
        x = sequences(1, seed=seed)
        [found] = run(**{done.inputs[0]: x}).values()
        assert largest_difference(predicted(model, [x]), [found]) < TOLERANCE


def test_a_state_that_is_left_behind_is_noticed(tmp_path, monkeypatch):
    """What the converter alone writes: the second sequence begins where the first one ended."""
    monkeypatch.setattr(writing, "start_with_zeros", lambda content: content)
    _, run = written(tflite, bidirectional_lstm(STEPS), tmp_path / "model.tflite", batch=1)
    with pytest.raises(RuntimeError, match="a state is left behind"):
        run([sequences(1)])


# --- the traps ------------------------------------------------------------------------------


@pytest.mark.corpus
def test_past_the_traps(tmp_path):
    """Where TensorFlow's converter alone fails, or writes what gives NaN, the command does not."""
    model = filled(of_sequences(layers.LSTM(4), layers.Dense(3)))
    with pytest.raises(Exception, match=r"TensorListReserve.*element_shape to be static"):
        tf.lite.TFLiteConverter.from_keras_model(model).convert()
    done, run = written(tflite, model, tmp_path / "model.tflite")
    assert_right(run, model, [sequences(3)])
    model.layers[1].unroll = True
    signature = tf.TensorSpec((None, STEPS, FEATURES), tf.float32, name="x")
    function = tf.function(lambda x: model(x, training=False), input_signature=[signature])
    concrete = function.get_concrete_function()
    converter = tf.lite.TFLiteConverter.from_concrete_functions([concrete], model)
    trap = flatfile.operators_of(converter.convert())  # weights are variables, read as NaN
    assert "READ_VARIABLE" in trap
    assert "READ_VARIABLE" not in done.operators


# --- int8, select ops -----------------------------------------------------------------------


@pytest.mark.corpus
def test_dynamic_range(tmp_path):
    model = filled(of_sequences(layers.LSTM(40), layers.Dense(30), features=20))
    plain, run = written(tflite, model, tmp_path / "plain.tflite")
    small, run8 = written(tflite, model, tmp_path / "small.tflite", quantize="dynamic")
    sizes = [(tmp_path / name).stat().st_size for name in ("small.tflite", "plain.tflite")]
    assert sizes[0] < 0.7 * sizes[1]
    x = sequences(3, features=20)
    expected = predicted(model, [x])
    assert largest_difference(expected, run([x])) < TOLERANCE
    difference = largest_difference(expected, run8([x]))
    assert TOLERANCE < difference < writing.QUANTIZED_TOLERANCE * np.abs(expected[0]).max()
    assert (plain.tolerance, small.tolerance) == (None, writing.QUANTIZED_TOLERANCE)
    assert "weights are int8" in small.notes[-1]


@pytest.mark.corpus
def test_nothing_to_quantize(tmp_path):
    model = filled(of_sequences(layers.LSTM(4)))
    done, _ = written(tflite, model, tmp_path / "model.tflite", quantize="dynamic")
    assert done.tolerance is None
    assert "all stay float32" in done.notes[-1]


@pytest.mark.corpus
def test_select_ops_are_named_and_asked_for(tmp_path):
    """The proof is skipped where no interpreter has TensorFlow's operators, and says so."""
    x = keras.Input((STEPS, FEATURES))
    path, output = tmp_path / "model.keras", tmp_path / "model.tflite"
    filled(keras.Model(x, keras.ops.erf(layers.GRU(4)(x)))).save(path)
    with pytest.raises(NotConvertibleError, match=r"no builtin operator for Erf; --allow-select"):
        rnnconvert.export(path, output)
    assert not output.exists()
    report = rnnconvert.export(path, output, allow_select_ops=True)
    told = report.to_dict()["exported"][0]
    assert told["operators"]["FlexErf"] == 1
    assert "FlexErf" in told["notes"][0]
    [level] = report.model_level
    if level.status == "skipped":
        assert "Flex delegate" in level.reason
    else:
        assert level.status == "passed"


@pytest.mark.corpus
def test_no_operator_at_all(tmp_path):
    x = keras.Input((FEATURES,))
    model = filled(keras.Model(x, keras.ops.erfinv(layers.Dense(4)(x))))
    for options in ({}, {"allow_select_ops": True}):
        with pytest.raises(NotConvertibleError, match="TFLite has no operator for Erfinv"):
            written(tflite, model, tmp_path / "model.tflite", **options)
    assert list(tmp_path.iterdir()) == []


# --- graphs ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["contrib_gru_bi2/model", "frozen_contrib_gru2/frozen.pb"])
@pytest.mark.corpus
def test_graphs(name, tmp_path):
    """Of a TensorFlow 1 library: lowered, unrolled, and right by what that library's twin gave."""
    path, output = GRAPHS / name, tmp_path / "model.tflite"
    with pytest.raises(UsageError, match=r"cuDNN operators of a graph are unrolled.*--timesteps"):
        rnnconvert.export(path, output)
    assert not output.exists()
    report = rnnconvert.export(path, output, timesteps=6)
    assert [level.status for level in report.model_level] == ["passed", "passed"]
    [done] = report.exported
    assert done.timesteps == 6
    assert [told.split("/")[-1] for told in done.loops] == ["CudnnRNN: unrolled"]
    with np.load(path.parent / "data.npz") as data:
        given = [data[f"in/{key}"] for key in done.inputs]
        [found] = [
            value
            for key, value in zip(done.outputs, tflite.runner(output, done)(given), strict=True)
            if "logits" in key
        ]
        [expected] = [data[key] for key in data.files if "logits" in key]
    assert largest_difference([expected], [found]) < 1e-5


# --- bad input, the whole command, mutants --------------------------------------------------


@pytest.mark.corpus
def test_unknown_length(tmp_path):
    """Named, with the options that help: the number of steps, or the batch size for LSTMs."""
    model = filled(of_sequences(layers.LSTM(4), steps=None))
    with pytest.raises(UsageError, match=r"give it by --timesteps; or give --batch 1"):
        written(tflite, model, tmp_path / "model.tflite")
    model = filled(of_sequences(layers.GRU(4), steps=None))
    with pytest.raises(UsageError, match=r"give it by --timesteps$"):
        written(tflite, model, tmp_path / "model.tflite", batch=1)
    assert list(tmp_path.iterdir()) == []
    done, run = written(tflite, model, tmp_path / "model.tflite", timesteps=8)
    assert done.timesteps == 8
    x = sequences(2, 8)
    assert_right(run, model, [x])


def test_masked_sequences_of_unknown_length(tmp_path):
    x = keras.Input((None, FEATURES))
    model = filled(keras.Model(x, layers.LSTM(4, name="masked")(layers.Masking()(x))))
    with pytest.raises(NotConvertibleError, match="masked gets sequences of unknown length"):
        written(tflite, model, tmp_path / "model.tflite", batch=1)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "said"),
    [({"timesteps": 9}, "own number of steps is fixed, 6"), ({"batch": 3}, "batch size is fixed")],
)
def test_sizes_that_contradict_the_model(options, said, tmp_path):
    x = keras.Input(batch_shape=(2, STEPS, FEATURES))
    model = filled(keras.Model(x, layers.LSTM(4)(x)))
    with pytest.raises(UsageError, match=said):
        written(tflite, model, tmp_path / "model.tflite", **options)


@pytest.mark.corpus
def test_the_number_of_steps_beside_another_input(tmp_path):
    """Words of any number, and a fixed input that is no sequence."""
    words, side = keras.Input((None,), dtype="int32"), keras.Input((3,))
    y = layers.SimpleRNN(4)(layers.Embedding(9, 5)(words))
    model = filled(keras.Model([side, words], layers.Concatenate()([y, side])))
    done, run = written(tflite, model, tmp_path / "model.tflite", timesteps=7)
    assert done.timesteps == 7
    generator = np.random.default_rng(0)
    arrays = [generator.normal(size=(2, 3)).astype("float32"), generator.integers(0, 9, (2, 7))]
    assert_right(run, model, arrays)


def test_other_dtypes_are_refused(tmp_path):
    x = keras.Input((STEPS, FEATURES), dtype="float16")
    model = filled(keras.Model(x, layers.LSTM(4, dtype="float16", name="half")(x)))
    with pytest.raises(NotConvertibleError, match="half computes in float16"):
        written(tflite, model, tmp_path / "model.tflite")


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    model = filled(of_sequences(layers.LSTM(4, return_sequences=True), layers.GRU(3)))
    path = tmp_path_factory.mktemp("saved") / "model.keras"
    model.save(path)
    return path


def test_whole_command(saved, tmp_path):
    output = tmp_path / "model.tflite"
    report = rnnconvert.export(saved, output)
    assert report.verdict == "equivalent"
    [level] = report.model_level
    assert (level.status, level.max_abs < TOLERANCE) == ("passed", True)
    assert "3x6x5, 1x6x5" in level.detail
    assert [path.name for path in tmp_path.iterdir()] == ["model.tflite"]
    told = report.to_dict()["exported"][0]
    assert told["timesteps"] == STEPS
    assert told["recurrent_layers"]["native"] == 0


@pytest.mark.corpus
def test_one_step(saved, tmp_path):
    report = rnnconvert.export(saved, tmp_path / "step.tflite", stateful_step=True)
    [level] = report.model_level
    assert (level.status, report.verdict) == ("passed", "equivalent")
    assert report.to_dict()["exported"][0]["timesteps"] == 1


def wrong_lstm(real):
    def cut(cell):
        steps = real(cell)

        def step(inputs, states):
            i, f, rest = inputs[:, :4], inputs[:, 4:8], inputs[:, 8:]
            return steps.step(tf.concat([f, i, rest], 1), states)

        return cells.Steps(steps.project, step)

    return cut


def wrong_gru(real):
    """The reset gate before the product, where the layer has it after."""

    def cut(cell):
        gates, after = 2 * cell.units, tf.convert_to_tensor(cell.bias)[1]
        kernel = tf.convert_to_tensor(cell.recurrent_kernel)

        def step(inputs, states):
            [hidden] = states
            both = tf.sigmoid((inputs + hidden @ kernel + after)[:, :gates])
            z, r = tf.split(both, 2, 1)
            new = tf.tanh(inputs[:, gates:] + after[gates:] + (r * hidden) @ kernel[:, gates:])
            hidden = new + z * (hidden - new)
            return hidden, [hidden]

        return cells.Steps(real(cell).project, step)

    return cut


MUTANTS = {"gate order": ("_lstm", wrong_lstm), "reset_after": ("_gru", wrong_gru)}


@pytest.mark.parametrize("mutant", MUTANTS)
@pytest.mark.sampled(2)
def test_mutants_are_caught(mutant, saved, tmp_path, monkeypatch):
    name, change = MUTANTS[mutant]
    monkeypatch.setattr(cells, name, change(getattr(cells, name)))
    with pytest.raises(DifferenceError) as error:
        rnnconvert.export(saved, tmp_path / "model.tflite")
    assert error.value.exit_code == 1
    assert list(tmp_path.iterdir()) == []

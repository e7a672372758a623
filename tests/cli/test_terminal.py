"""Narrow terminals and pipes lose no name and break none; progress bars; several inputs."""

from __future__ import annotations

import io
import os
import re
import sys
import time

import pytest
from helpers import make_model_h5

from rnnconvert import progress
from rnnconvert.cli.console import Column, make_console, say, show_table

LONG = "encoder_bidirectional_lstm_of_the_second_stage_with_residuals"
MIDDLE = "encoder_bidirectional_lstm_two"
COLUMNS = (
    Column("layer"),
    Column("from"),
    Column("weights", right=True),
    Column("", joined=True),
    Column("after", joined=True),
    Column("formula", spare=True),
)
ROWS = [["a_layer", "CuDNNLSTM", "312", "->", "288", "4*6*(5+6+2->1)"]]

terminals = pytest.mark.skipif(os.name != "posix", reason="needs pseudo-terminals")


def printed(width: int, show, *arguments) -> list[str]:
    console = make_console(True, io.StringIO())
    console.width = width
    show(console, *arguments)
    return console.file.getvalue().rstrip("\n").split("\n")


# --- tables and sentences -------------------------------------------------------------------


def test_a_table_where_there_is_room_for_it():
    lines = printed(80, show_table, COLUMNS, ROWS)
    assert [line.split() for line in lines] == [
        ["layer", "from", "weights", "after", "formula"],
        ["a_layer", "CuDNNLSTM", "312", "->", "288", "4*6*(5+6+2->1)"],
    ]


def test_a_spare_column_goes_before_the_table_does():
    lines = printed(45, show_table, COLUMNS, ROWS)
    assert [line.split() for line in lines] == [
        ["layer", "from", "weights", "after"],
        ["a_layer", "CuDNNLSTM", "312", "->", "288"],
    ]


def test_a_paragraph_for_each_row_where_there_is_no_room():
    assert printed(30, show_table, COLUMNS, ROWS) == [
        "  a_layer",
        "    from CuDNNLSTM, weights",
        "    312 -> 288, formula",
        "    4*6*(5+6+2->1)",
    ]


@pytest.mark.parametrize("width", range(1, 60))
def test_no_width_breaks_a_word_or_loses_one(width):
    rows = [[LONG, *ROWS[0][1:]], ROWS[0]]
    words = set(" ".join(printed(width, show_table, COLUMNS, rows)).replace(",", " ").split())
    assert {LONG, "a_layer", "CuDNNLSTM", "312", "288"} <= words
    said = printed(width, say, f"  a sentence about {LONG} and   what it does")
    assert " ".join(said).split() == ["a", "sentence", "about", LONG, "and", "what", "it", "does"]
    assert all(len(line) <= width or len(line.split()) == 1 for line in said)


def test_wide_characters_count_twice():
    assert printed(14, say, "層層層 層層層 層") == ["層層層", "    層層層 層"]


def test_pipes_get_every_line_in_one_piece(cli, tmp_path):
    names = ["n" * 300, "m" * 200]
    make_model_h5(tmp_path / "m.h5", names=names)
    for command in (["inspect"], ["cudnn-to-keras", "-n", "--verify", "none"]):
        lines = cli(*command, "m.h5").out.split("\n")
        for name in names:
            own = [line for line in lines if name in line and "CuDNN" in line]
            assert own
            assert all(line.split()[0] == name for line in own)


# --- the commands in a terminal -------------------------------------------------------------


@pytest.fixture(scope="module")
def inspected(tmp_path_factory):
    """What `inspect` prints at each width of a model with a long and a short name."""
    from terminals import in_terminal

    directory = tmp_path_factory.mktemp("terminal")
    make_model_h5(directory / "m.h5", names=(MIDDLE, "cu_gru"))
    return {width: in_terminal(width, directory, "inspect", "m.h5") for width in (40, 80, 120)}


@terminals
@pytest.mark.slow
@pytest.mark.parametrize("width", [40, 80, 120])
@pytest.mark.sampled(2)
def test_inspect_in_a_terminal_shows_every_layer(inspected, width):
    screen = inspected[width]
    assert screen.code == 0
    assert all(len(line.rstrip()) <= width for line in screen.lines)
    words = screen.text.replace(",", " ").split()
    assert words.count(MIDDLE) == words.count("cu_gru") == 2  # as a layer, and as a recurrent one
    for word in ("CuDNNLSTM", "GRU(reset_after)", "312", "288", "144"):
        assert word in words


@terminals
@pytest.mark.slow
def test_tables_above_their_width_and_paragraphs_below(inspected):
    assert re.search(r"^  recurrent layer +from ", inspected[120].text, re.MULTILINE)
    assert "recurrent layer" not in inspected[40].text
    assert f"  {MIDDLE}\n    from CuDNNLSTM, to LSTM," in inspected[40].text


SLOW = """
import sys, time
from rnnconvert.cli.main import main
from rnnconvert.commands import convert
from rnnconvert.progress import BYTES, tell

seconds = float(sys.argv.pop(1))

def slow(source, output, options):
    for done in range(4):
        tell("copying", done * 10**6, 4 * 10**6, BYTES)
        time.sleep(0.2)
    for done in range(5):
        tell("proving layers", done, 5, "layers")
        time.sleep(seconds if done == 0 else 0.2)
    return real(source, output, options)

real, convert.convert_path = convert.convert_path, slow
main()
"""


def in_slow_motion(directory, seconds: str, *arguments: str, width: int = 80):
    from terminals import run_in_terminal

    make_model_h5(directory / "m.h5")
    command = [sys.executable, "-c", SLOW, seconds, *arguments]
    return run_in_terminal(width, directory, command)


@terminals
@pytest.mark.slow
@pytest.mark.parametrize("width", [40, 80])
@pytest.mark.corpus
def test_a_bar_with_bytes_layers_and_time_left(tmp_path, width):
    screen = in_slow_motion(
        tmp_path, "0.7", "cudnn-to-keras", "m.h5", "--verify", "weights", width=width
    )
    assert screen.code == 0
    drawn = " ".join(screen.bar.split())
    assert re.search(r"m\.h5 proving (layers )?\S* ?[1-4]/5 layers 0:\d\d left", drawn)
    assert "━" in screen.bar or width == 40
    assert "proving layers" not in screen.text  # it is gone when the work is done
    assert "written m.portable.h5" in " ".join(screen.text.split())


@terminals
@pytest.mark.slow
@pytest.mark.parametrize("option", ["-q", "--json"])
@pytest.mark.corpus
def test_no_bar_with_quiet_or_json(tmp_path, option):
    screen = in_slow_motion(
        tmp_path, "0.7", "cudnn-to-keras", "m.h5", "--verify", "weights", option
    )
    assert screen.code == 0
    assert screen.bar == ""
    assert "proving" not in screen.text


def test_no_bar_into_a_pipe(cli, tmp_path, monkeypatch):
    make_model_h5(tmp_path / "m.h5")
    monkeypatch.setattr("rnnconvert.cli.progress_bar._AFTER", 0.0)
    monkeypatch.setenv("FORCE_COLOR", "1")
    result = cli("cudnn-to-keras", "m.h5", "--verify", "weights")
    assert (result.code, result.err) == (0, "")
    assert "\x1b[?25l" not in result.out


def test_no_bar_for_work_of_less_than_a_second():
    from rnnconvert.cli.progress_bar import ProgressBar

    console = make_console(True, io.StringIO())
    console._force_terminal = True
    with ProgressBar(console, [10]).running() as bar:
        bar.step(progress.Step("copying", 1, 10, progress.BYTES))
    assert console.file.getvalue() == ""


def test_time_left_runs_down_and_is_not_made_up():
    from rnnconvert.cli.progress_bar import ProgressBar, _TimeLeft

    bar = ProgressBar(make_console(True, io.StringIO()), [10])
    for done in range(6):
        bar.step(progress.Step("copying", done, 10, "layers"))
    task, now = bar._progress.tasks[-1], time.monotonic()

    def shown(begun: float, at: float) -> str:
        task.fields.update(begun=now + 0.5 - begun, at=now + 0.5 - at)  # seconds ago
        return _TimeLeft().render(task).plain

    assert shown(50, 0) == "0:50 left"  # half of it took 50 seconds
    assert shown(60, 10) == "0:40 left"
    assert shown(200, 150) == "3:19"  # nothing was heard for long: how long it has taken
    bar.step(progress.Step("running", 0, None))
    task = bar._progress.tasks[-1]
    assert shown(7, 0) == "0:06"


def test_work_tells_how_far_it_is(tmp_path):
    import rnnconvert

    steps: list[progress.Step] = []
    make_model_h5(tmp_path / "m.h5")
    with progress.listen(steps.append):
        rnnconvert.convert(tmp_path / "m.h5", tmp_path / "out.h5", verify="layers")
    size = (tmp_path / "m.h5").stat().st_size
    last = {step.what: step for step in steps}
    assert last["copying"] == progress.Step("copying", size, size, progress.BYTES)
    assert last["writing"].done == last["writing"].total == 4
    assert last["proving weights"] == progress.Step("proving weights", 6, 6, "tensors")
    assert last["proving layers"] == progress.Step("proving layers", 2, 2, "layers")


# --- several inputs -------------------------------------------------------------------------


def test_several_inputs_have_one_line_each_and_the_counts(cli, tmp_path):
    for name in ("a.h5", "b.h5"):
        make_model_h5(tmp_path / name)
    (tmp_path / "c.h5").write_bytes((tmp_path / "a.h5").read_bytes()[:3000])
    inputs = ["a.h5", "b.h5", "c.h5"]
    result = cli("cudnn-to-keras", *inputs, "--verify", "layers")
    assert result.code == 3
    assert [line.split() for line in result.out.splitlines()] == [
        ["input", "layers", "outcome", "written"],
        ["a.h5", "2", "converted", "equivalent", "(layers)", "a.portable.h5"],
        ["b.h5", "2", "converted", "equivalent", "(layers)", "b.portable.h5"],
        ["c.h5", "can't", "be", "read"],
        ["3", "inputs:", "2", "converted,", "1", "can't", "be", "read"],
    ]
    assert result.err.startswith("error: c.h5: the HDF5 file is truncated")
    found = cli("inspect", "a.h5", "a.portable.h5", "c.h5")
    assert "3 inputs: 1 convertible, 1 nothing to convert, 1 can't be read" in found.out
    assert "recurrent layer" not in found.out
    detailed = cli("inspect", "a.h5", "b.h5", "-v")
    assert detailed.out.count("recurrent layer") == 2
    assert "2 inputs: 2 convertible" in detailed.out
    assert cli("inspect", "a.h5", "b.h5", "-q").out == ""


def test_warnings_of_several_inputs_name_them(cli, tmp_path):
    odd = {"class_name": "MyLayer", "config": {"name": "odd"}}
    for name in ("a.h5", "b.h5"):
        make_model_h5(tmp_path / name, extra_layers=[odd])
    err = cli("inspect", "a.h5", "b.h5").err.splitlines()
    assert err
    assert {line.split(": ")[1] for line in err} == {"a.h5", "b.h5"}

"""The command line: options, exit codes, what goes to stdout and what to stderr, reports."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import pytest
from helpers import LSTM_BIAS, Result, make_model_h5, read_config, snapshot, write_config

import rnnconvert
from rnnconvert.keras_models import convert as conversion
from rnnconvert.keras_models.files import h5_patch
from rnnconvert.report import LevelResult

# Nothing that Python itself warns of may reach the user's terminal.
pytestmark = pytest.mark.filterwarnings("error::RuntimeWarning", "error::UserWarning")

CI = ["--summary", "--annotations"]
DISPLAY = ["--report", "--html", "--json", "--no-color", "-q, --quiet", "-v, --verbose", "--debug"]
VERIFICATION = [
    "--device", "--seed", "--batch", "--timesteps", "--rtol", "--atol", "--allow-code",
    "--custom-objects", "--strict", "--max-bytes",
]  # fmt: skip
STACKS = [
    "--scope", "--cell", "--layers", "--units", "--input-size", "--direction", "--forget-bias",
    "--activation",
]  # fmt: skip
FOLDERS = ["--include", "--exclude"]
OPTIONS = {
    "cudnn-to-keras": [
        "--target", "--names", "--ignore-dropout", "--unroll", *STACKS,
        "-o, --output", "--to", "--verify", "--optimizer", "--check", "-n, --dry-run",
        "-f, --force", "--in-place", "-j, --jobs", "--resume",
        "--engine", "--scheduler", *FOLDERS, *VERIFICATION, *CI, *DISPLAY,
    ],
    "keras-to-cudnn": [
        *STACKS, "-o, --output", "--to", "--verify", "--optimizer", "--check", "-n, --dry-run",
        "-f, --force", "--in-place", "-j, --jobs", "--resume",
        "--engine", "--scheduler", *FOLDERS, *VERIFICATION, *CI, *DISPLAY,
    ],
    "inspect": [*FOLDERS, "--target", "--max-bytes", *STACKS, *DISPLAY],
    "verify": ["--verify", *STACKS, *VERIFICATION, *CI, *DISPLAY],
}  # fmt: skip
COMMANDS = ["cudnn-to-keras", "inspect"]  # those that take one input


def strict_json(text: str) -> Any:
    """JSON as every other program reads it: without NaN and Infinity."""

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} in JSON")

    return json.loads(text, parse_constant=refuse)


def level_lines(text: str) -> list[str]:
    return re.findall(
        r"^  (?:ok|-) (?:weights|layers|model)(?: \(\wpu\))?: .*$", text, re.MULTILINE
    )


# --- help and usage -------------------------------------------------------------------------


@pytest.mark.parametrize("flag", ["-h", "--help"])
@pytest.mark.parametrize("command", OPTIONS)
def test_help_of_a_command_lists_every_option(cli, command, flag):
    result = cli(command, flag)
    assert (result.code, result.err) == (0, "")
    listed = re.findall(r"^  (-[\w, -]*?)(?: [A-Z\[].*|  .*)?$", result.out, re.MULTILINE)
    assert sorted(word.strip() for word in listed) == sorted([*OPTIONS[command], "-h, --help"])


@pytest.mark.parametrize("flag", ["-h", "--help"])
def test_help_of_the_program(cli, flag):
    result = cli(flag)
    assert (result.code, result.err) == (0, "")
    for command in OPTIONS:
        assert command in result.out
    for code in ("0 done", "1 a difference", "2 usage", "3 unreadable", "4 not", "5 output", "130"):
        assert code in " ".join(result.out.split())


def test_version(cli):
    result = cli("--version")
    assert result.code == 0
    assert re.fullmatch(
        rf"rnnconvert {re.escape(rnnconvert.__version__)} "
        r"\(numpy [\w.+]+, h5py [\w.+]+, hdf5 [\w.+]+(, \w+ [\w.+]+)*\)\n",
        result.out,
    )


@pytest.mark.parametrize(
    "arguments",
    [
        ["--bogus"],
        ["bogus"],
        ["inspect"],
        ["inspect", "m.h5", "--bogus"],
        ["cudnn-to-keras"],
        ["cudnn-to-keras", "m.h5", "--bogus"],
        ["cudnn-to-keras", "m.h5", "--to", "zip"],
        ["cudnn-to-keras", "m.h5", "--verify", "hard"],
        ["cudnn-to-keras", "m.h5", "--jobs", "0"],
        ["cudnn-to-keras", "m.h5", "--batch", "0"],
        ["cudnn-to-keras", "m.h5", "--timesteps", "-1"],
        ["cudnn-to-keras", "m.h5", "--atol", "-1"],
        ["cudnn-to-keras", "m.h5", "--atol", "nan"],
        ["cudnn-to-keras", "m.h5", "--rtol", "nan"],
        ["cudnn-to-keras", "m.h5", "--seed", "-1"],
        ["cudnn-to-keras", "m.h5", "--seed", "one"],
        ["cudnn-to-keras", "m.h5", "--in-place", "-o", "out.h5"],
        ["cudnn-to-keras", "m.h5", "--in-place", "--to", "keras"],
    ],
    ids=" ".join,
)
def test_usage_errors(cli, tmp_path, arguments):
    make_model_h5(tmp_path / "m.h5")
    before = snapshot(tmp_path)
    result = cli(*arguments)
    assert (result.code, result.out) == (2, "")
    assert result.err
    assert snapshot(tmp_path) == before


def test_a_wrong_option_is_one_clear_line(cli):
    last = cli("inspect", "m.h5", "--bogus").err.splitlines()[-1]
    assert last.startswith("Error: No such option")  # click 8.1 goes on in other words than 8.2
    assert "--bogus" in last


# --- what a conversion prints ---------------------------------------------------------------


def test_a_conversion(cli, tmp_path):
    model = make_model_h5(tmp_path / "m.h5")
    content = model.read_bytes()
    result = cli("cudnn-to-keras", "m.h5")
    assert (result.code, result.err) == (0, "")
    assert model.read_bytes() == content
    assert "cu_lstm" in result.out
    assert "cu_gru" in result.out
    assert "GRU(reset_after)" in result.out
    weights, layers, on_cpu, on_gpu = level_lines(result.out)
    assert weights == (
        "  ok weights: round trip bit-exact on 5 tensors, 1 merged bias within 0.5 ulp"
    )
    assert re.fullmatch(
        r"  ok layers: max difference \S+ \(tolerance \S+\), 2 layers, 7 time steps, batch 3, "
        r"random states",
        layers,
    )
    assert re.fullmatch(
        r"  ok model \(cpu\): max difference \S+ \(tolerance \S+\), 1 output, 2 layer calls, "
        r"input 3x7x5, keras \S+ \(\w+\)",
        on_cpu,
    )
    assert on_gpu.startswith("  - model (gpu): skipped, no CUDA device")
    size = (tmp_path / "m.portable.h5").stat().st_size
    written = f"  written m.portable.h5 ({size:,} bytes), equivalent (whole model)"
    assert result.out.splitlines()[-1] == written


def test_quiet_says_nothing_but_errors(cli, tmp_path):
    odd = {"class_name": "Odd", "config": {"name": "odd"}}
    make_model_h5(tmp_path / "m.h5", extra_layers=[odd])
    for command in COMMANDS:
        assert cli(command, "m.h5", "-q") == Result(0, "", "")
    assert (tmp_path / "m.portable.h5").exists()
    assert cli("inspect", "missing.h5", "-q").err == "error: missing.h5: no such file\n"


def test_verbose_lists_tensors_and_config_changes(cli, tmp_path):
    make_model_h5(tmp_path / "m.h5")
    for command in COMMANDS:
        out = cli(command, "m.h5", "-v").out
        assert f"tensor {LSTM_BIAS} (48,) -> (24,): input bias + recurrent bias" in out
        assert 'config model/cu_lstm class_name: "CuDNNLSTM" -> "LSTM"' in out


@pytest.mark.parametrize("level", ["none", "weights", "layers"])
def test_levels_that_did_not_run_say_so(cli, tmp_path, level):
    make_model_h5(tmp_path / "m.h5")
    lines = level_lines(cli("cudnn-to-keras", "m.h5", "--verify", level).out)
    ran = [line.split()[1].rstrip(":") for line in lines if line.startswith("  ok")]
    assert ran == {"none": [], "weights": ["weights"], "layers": ["weights", "layers"]}[level]
    assert all("skipped, " in line for line in lines if line.startswith("  -"))
    assert len(lines) == 3


def test_the_inputs_of_the_verification_can_be_chosen(cli, tmp_path):
    make_model_h5(tmp_path / "m.h5")
    words = ["--dry-run", "--batch", "2", "--timesteps", "11", "--atol", "0.5"]
    first = cli("cudnn-to-keras", "m.h5", *words, "--seed", "1").out
    assert "(tolerance 0.5), 2 layers, 11 time steps, batch 2" in first
    assert cli("cudnn-to-keras", "m.h5", *words, "--seed", "1").out == first
    assert cli("cudnn-to-keras", "m.h5", *words, "--seed", "2").out != first


def test_a_tolerance_of_zero_is_allowed_and_missed(cli, tmp_path):
    make_model_h5(tmp_path / "m.h5")
    result = cli("cudnn-to-keras", "m.h5", "--atol", "0")
    assert result.code == 1
    assert "tolerance 0; nothing was written" in result.err
    assert not (tmp_path / "m.portable.h5").exists()


# --- nothing to do --------------------------------------------------------------------------


def portable(directory: Path, name: str = "p.h5", **keywords: Any) -> Path:
    """A file that needs nothing any more."""
    model = make_model_h5(directory / "source.h5", **keywords)
    rnnconvert.convert(model, directory / name)
    model.unlink()
    return directory / name


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("options", [[], ["-o", "again.h5"], ["--force"], ["--in-place"]], ids=str)
@pytest.mark.sampled(3)
def test_a_converted_file_needs_nothing(cli, tmp_path, whole, options):
    portable(tmp_path, whole=whole, keras_version="2.4.0")
    before = snapshot(tmp_path)
    result = cli("cudnn-to-keras", "p.h5", *options)
    assert (result.code, result.err) == (0, "")
    assert "nothing to convert" in result.out
    assert snapshot(tmp_path) == before


def test_a_converted_fixture_needs_nothing(fixtures_dir, tmp_path):
    sources = sorted((fixtures_dir / "keras" / "tf215").glob("*/model.h5"))[::2]
    assert len(sources) > 10
    for index, source in enumerate(sources):
        target = tmp_path / f"{index}.h5"
        if rnnconvert.convert(source, target, verify="none").verdict == "unverified":
            again = rnnconvert.convert(target, tmp_path / "again.h5")
            assert again.verdict == "nothing-to-convert", source
            assert not (tmp_path / "again.h5").exists()


def test_the_same_input_gives_the_same_bytes(cli, tmp_path):
    make_model_h5(tmp_path / "m.h5")
    for name in ("one.h5", "two.h5"):
        command = [sys.executable, "-m", "rnnconvert.cli.main", "cudnn-to-keras", "m.h5"]
        environment = {**os.environ, "PYTHONHASHSEED": str(len(name) + ord(name[0]))}
        command += ["--verify", "layers"]
        subprocess.run([*command, "-qo", name], check=True, cwd=tmp_path, env=environment)
    assert (tmp_path / "one.h5").read_bytes() == (tmp_path / "two.h5").read_bytes()


# --- --check and --dry-run ------------------------------------------------------------------


def test_check(cli, tmp_path):
    make_model_h5(tmp_path / "m.h5")
    portable(tmp_path)
    before = snapshot(tmp_path)
    found = cli("cudnn-to-keras", "m.h5", "--check")
    assert (found.code, found.err) == (1, "")
    assert found.out.splitlines()[-1] == "  needs conversion"
    assert cli("cudnn-to-keras", "p.h5", "--check").code == 0
    assert cli("cudnn-to-keras", "p.h5", "m.h5", "--check").code == 1
    assert cli("cudnn-to-keras", "m.h5", "missing.h5", "--check").code == 3
    assert snapshot(tmp_path) == before


def test_check_needs_no_output_place(cli, tmp_path):
    make_model_h5(tmp_path / "m.h5")
    (tmp_path / "m.portable.h5").write_bytes(b"mine")
    assert cli("cudnn-to-keras", "m.h5", "--check").code == 1


def test_dry_run_does_all_but_write(cli, tmp_path, monkeypatch):
    make_model_h5(tmp_path / "m.h5")
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(scratch))
    before = snapshot(tmp_path)
    dry = cli("cudnn-to-keras", "m.h5", "--dry-run")
    assert snapshot(tmp_path) == before
    assert dry.code == 0
    assert dry.out.splitlines()[-1] == (
        "  would be written (dry run, nothing was written), equivalent (whole model)"
    )
    assert cli("cudnn-to-keras", "m.h5", "-n").out == dry.out
    wet = cli("cudnn-to-keras", "m.h5")
    assert level_lines(dry.out) == level_lines(wet.out)
    assert dry.out.splitlines()[:-1] == wet.out.splitlines()[:-1]


def test_dry_run_report_has_no_output(cli, tmp_path):
    make_model_h5(tmp_path / "m.h5")
    report = strict_json(cli("cudnn-to-keras", "m.h5", "-n", "--json").out)
    assert report["output"] is None
    assert report["verdict"] == "equivalent"


# --- the report -----------------------------------------------------------------------------

REPORT_KEYS = {
    "schema", "tool", "command", "input", "output", "layers", "config_changes", "optimizer",
    "verification", "warnings", "verdict", "target_points", "problems",
    "assumptions", "proved",
}  # fmt: skip


def hash_of(path: Path) -> str:
    import hashlib

    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_the_report(cli, tmp_path):
    odd = {"class_name": "Odd", "config": {"name": "odd"}}
    model = make_model_h5(tmp_path / "m.h5", extra_layers=[odd])
    result = cli("cudnn-to-keras", "m.h5", "--json")
    assert result.code == 0
    assert result.err.startswith("warning: model/odd: custom class Odd")
    report = strict_json(result.out)
    assert set(report) == REPORT_KEYS
    assert report["schema"] == 1
    assert report["command"] == "cudnn-to-keras"
    assert set(report["tool"]) == {
        "rnnconvert", "numpy", "h5py", "hdf5", "tensorflow", "keras"
    }  # fmt: skip
    written = tmp_path / "m.portable.h5"
    assert report["input"] == {
        "path": "m.h5",
        "sha256": hash_of(model),
        "bytes": model.stat().st_size,
        "container": "keras-h5-model",
        "keras_version": "2.2.4",
        "backend": "tensorflow",
    }
    assert {key: report["output"][key] for key in ("path", "sha256", "bytes", "container")} == {
        "path": "m.portable.h5",
        "sha256": hash_of(written),
        "bytes": written.stat().st_size,
        "container": "keras-h5-model",
    }
    lstm, gru = report["layers"]
    assert set(lstm) == {
        "path", "class_name", "cell", "from", "to", "units", "input_dim", "direction", "flags",
        "params", "tensors",
    }  # fmt: skip
    assert lstm["path"] == "model/cu_lstm"
    assert (lstm["cell"], lstm["from"], lstm["to"]) == ("lstm", "keras-cudnn", "keras")
    assert (lstm["units"], lstm["input_dim"], lstm["direction"]) == (6, 5, "forward")
    assert (lstm["params"]["from"], lstm["params"]["to"]) == (312, 288)
    assert (gru["params"]["from"], gru["params"]["to"]) == (144, 144)
    assert lstm["tensors"] == [
        {
            "source": f"model_weights/cu_lstm/cu_lstm/{kind}:0",
            "target": f"model_weights/cu_lstm/cu_lstm/{kind}:0",
            "operation": operation,
            "lossless": lossless,
        }
        for kind, operation, lossless in (
            ("kernel", "per-gate reshape+transpose", True),
            ("recurrent_kernel", "per-gate reshape+transpose", True),
            ("bias", "input bias + recurrent bias", False),
        )
    ]
    assert {
        "path": "model/cu_lstm", "key": "class_name", "from": "CuDNNLSTM", "to": "LSTM"
    } in report["config_changes"]  # fmt: skip
    assert report["optimizer"] == {"state": "absent", "notes": []}
    levels = report["verification"]
    assert set(levels) == {"weights", "layers", "model"}
    assert levels["weights"] == {
        "status": "passed",
        "detail": "round trip bit-exact on 5 tensors, 1 merged bias within 0.5 ulp",
    }
    assert {"status", "device", "max_abs", "max_rel", "tolerance", "worst"} <= set(levels["layers"])
    assert levels["layers"]["status"] == "passed"
    assert levels["layers"]["device"] == "cpu"
    assert levels["layers"]["max_abs"] <= levels["layers"]["tolerance"]
    on_cpu, on_gpu = levels["model"]
    assert (on_cpu["status"], on_cpu["device"]) == ("skipped", "cpu")
    assert "model/odd is of the custom class Odd" in on_cpu["reason"]
    assert (on_gpu["status"], on_gpu["device"]) == ("skipped", "gpu")
    assert len(report["warnings"]) == 1
    assert report["verdict"] == "equivalent"


def test_the_report_of_inspect(cli, tmp_path):
    make_model_h5(tmp_path / "m.h5")
    report = strict_json(cli("inspect", "m.h5", "--json").out)
    converted = strict_json(cli("cudnn-to-keras", "m.h5", "--json").out)
    only = {"output", "verification", "assumptions", "proved"}
    assert set(report) == REPORT_KEYS - only | {"model"}
    for key in ("schema", "tool", "input", "layers", "config_changes"):
        assert report[key] == converted[key], key
    assert report["model"] == [
        {"name": "cu_lstm", "class_name": "CuDNNLSTM", "parameters": 312},
        {"name": "cu_gru", "class_name": "CuDNNGRU", "parameters": 144},
    ]


def test_report_to_a_file(cli, tmp_path):
    make_model_h5(tmp_path / "m.h5")
    result = cli("cudnn-to-keras", "m.h5", "--report", "r.json")
    assert result.code == 0
    assert "written m.portable.h5" in result.out
    report = strict_json((tmp_path / "r.json").read_text())
    assert set(report) == REPORT_KEYS
    (tmp_path / "m.portable.h5").unlink()
    same = cli("cudnn-to-keras", "m.h5", "--report", "-")
    assert strict_json(same.out) == report
    assert not [name for name in os.listdir(tmp_path) if name.startswith(".")]


def test_verdicts(cli, tmp_path):
    make_model_h5(tmp_path / "m.h5")
    portable(tmp_path)

    def verdict(*arguments: str) -> str:
        return strict_json(cli("cudnn-to-keras", *arguments, "--json").out)["verdict"]

    assert verdict("m.h5", "-n") == "equivalent"
    assert verdict("m.h5", "-n", "--verify", "weights") == "equivalent"
    assert verdict("m.h5", "-n", "--verify", "none") == "unverified"
    assert verdict("p.h5") == "nothing-to-convert"


def failing_input(directory: Path, _: pytest.MonkeyPatch) -> tuple[int, str]:
    config = read_config(make_model_h5(directory / "m.h5"))
    config["config"]["layers"][0]["class_name"] = "MyCuDNNLSTM"
    write_config(directory / "m.h5", config)
    return 4, "not-convertible"


def failing_weights(directory: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[int, str]:
    """A conversion that gets a gate wrong, as a bug of ours would."""
    make_model_h5(directory / "m.h5")
    original = h5_patch.apply_edit

    def wrong(edit: Any, source: Any, target: Any) -> None:
        original(edit, source, target)
        if edit.kind == "kernel":
            target[0, 0] += 1.0

    monkeypatch.setattr(h5_patch, "apply_edit", wrong)
    return 1, "different"


def failing_layers(directory: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[int, str]:
    make_model_h5(directory / "m.h5")
    bad = LevelResult(
        "failed", device="cpu", max_abs=0.25, max_rel=1.0, tolerance=1e-6, worst="model/cu_lstm h"
    )
    monkeypatch.setattr(conversion, "check_layers", lambda *_: bad)
    return 1, "different"


@pytest.mark.parametrize("failing", [failing_input, failing_weights, failing_layers])
def test_the_report_is_written_on_failure_too(cli, tmp_path, monkeypatch, failing):
    code, verdict = failing(tmp_path, monkeypatch)
    before = snapshot(tmp_path)
    result = cli("cudnn-to-keras", "m.h5", "--report", "r.json")
    assert result.code == code
    report = strict_json((tmp_path / "r.json").read_text())
    assert set(report) == REPORT_KEYS
    assert report["verdict"] == verdict
    assert report["output"] is None
    assert report["input"]["sha256"] == hash_of(tmp_path / "m.h5")
    assert {name: data for name, data in snapshot(tmp_path).items() if name != "r.json"} == before


def test_the_message_of_a_difference(cli, tmp_path, monkeypatch):
    failing_layers(tmp_path, monkeypatch)
    result = cli("cudnn-to-keras", "m.h5")
    assert (result.code, result.out, result.err) == (
        1,
        "",
        "error: m.h5: verification failed at level layers: model/cu_lstm h differs by 0.25, "
        "tolerance 1e-06; nothing was written\n",
    )


def unreadable(directory: Path) -> tuple[int, list[str]]:
    return 3, ["missing.h5"]


def existing_output(directory: Path) -> tuple[int, list[str]]:
    make_model_h5(directory / "m.h5")
    (directory / "m.portable.h5").write_bytes(b"mine")
    return 5, ["m.h5"]


@pytest.mark.parametrize("failing", [unreadable, existing_output])
def test_reports_of_other_failures_have_the_same_keys(cli, tmp_path, failing):
    code, arguments = failing(tmp_path)
    result = cli("cudnn-to-keras", *arguments, "--json")
    assert result.code == code
    report = strict_json(result.out)
    assert set(report) >= REPORT_KEYS
    assert report["output"] is None
    assert report["problems"] == [result.err.removeprefix("error: ").rstrip("\n")]


# --- several inputs -------------------------------------------------------------------------


def four_inputs(directory: Path) -> list[str]:
    """One that converts, one missing, one that can't be converted, one that needs nothing."""
    make_model_h5(directory / "a.h5")
    config = read_config(make_model_h5(directory / "c.h5"))
    config["config"]["layers"][0]["config"]["units"] = 9
    write_config(directory / "c.h5", config)
    portable(directory, "d.h5")
    return ["a.h5", "b.h5", "c.h5", "d.h5"]


@pytest.mark.parametrize(
    "jobs",
    [[], pytest.param(["-j", "2"], marks=pytest.mark.corpus)],
    ids=["one by one", "two jobs"],
)
def test_the_worst_code_wins_and_the_rest_is_converted(cli, tmp_path, jobs):
    inputs = four_inputs(tmp_path)
    result = cli("cudnn-to-keras", *inputs, *jobs)
    assert result.code == 4
    assert (tmp_path / "a.portable.h5").exists()
    assert [line.split(":")[1].strip() for line in result.err.splitlines()] == ["b.h5", "c.h5"]
    again = cli("cudnn-to-keras", *inputs, *jobs)
    assert again.code == 5
    assert cli("cudnn-to-keras", "d.h5", "b.h5", *jobs).code == 3


@pytest.mark.parametrize(
    "jobs",
    [[], pytest.param(["-j", "2"], marks=pytest.mark.corpus)],
    ids=["one by one", "two jobs"],
)
@pytest.mark.sampled(2)
def test_reports_of_several_inputs_are_a_list(cli, tmp_path, jobs):
    inputs = four_inputs(tmp_path)
    result = cli("cudnn-to-keras", *inputs, "--json", *jobs)
    reports = strict_json(result.out)
    assert [report["input"]["path"] for report in reports] == inputs
    assert [report["verdict"] for report in reports][::3] == ["equivalent", "nothing-to-convert"]
    found = strict_json(cli("inspect", *inputs, "--json").out)
    assert [report["input"]["path"] for report in found] == inputs


@pytest.mark.parametrize("verify", ["layers", pytest.param("model", marks=pytest.mark.corpus)])
def test_jobs_make_no_difference(cli, tmp_path, verify):
    for directory in ("one", "two"):
        (tmp_path / directory).mkdir()
    names = [f"{letter}.h5" for letter in "abc"]
    for units, name in enumerate(names, 7):
        make_model_h5(tmp_path / name, units=(units, 4))
    one = cli("cudnn-to-keras", *names, "-o", "one", "--verify", verify)
    two = cli("cudnn-to-keras", *names, "-o", "two", "--verify", verify, "-j", "2")
    assert (one.code, two.code) == (0, 0)
    assert snapshot(tmp_path / "one") == snapshot(tmp_path / "two")
    assert sorted(snapshot(tmp_path / "one")) == [f"{letter}.portable.h5" for letter in "abc"]
    assert two.out == one.out.replace("one/", "two/")
    assert "3 inputs: 3 converted" in one.out


@pytest.mark.parametrize("output", ["missing", "a.out.h5"])
def test_several_inputs_need_a_directory(cli, tmp_path, output):
    make_model_h5(tmp_path / "a.h5")
    make_model_h5(tmp_path / "b.h5")
    (tmp_path / "a.out.h5").write_bytes(b"mine")
    before = snapshot(tmp_path)
    result = cli("cudnn-to-keras", "a.h5", "b.h5", "-o", output, "--force")
    assert (result.code, result.out, result.err) == (
        2,
        "",
        f"error: {output}: with several inputs the output must be an existing directory\n",
    )
    assert snapshot(tmp_path) == before


def test_inputs_of_one_name_do_not_overwrite_each_other(cli, tmp_path):
    for directory in ("a", "b", "out"):
        (tmp_path / directory).mkdir()
    make_model_h5(tmp_path / "a" / "m.h5")
    make_model_h5(tmp_path / "b" / "m.h5")
    before = snapshot(tmp_path)
    result = cli("cudnn-to-keras", "a/m.h5", "b/m.h5", "-o", "out", "--force")
    assert result.code == 2
    assert len(result.err.splitlines()) == 1
    assert snapshot(tmp_path) == before
    assert cli("cudnn-to-keras", "a/m.h5", "b/m.h5").code == 0
    assert (tmp_path / "b" / "m.portable.h5").exists()


# --- colours and hostile names --------------------------------------------------------------


@pytest.mark.parametrize(
    ("variables", "options", "coloured"),
    [
        ({}, [], False),
        ({"FORCE_COLOR": "1"}, [], True),
        ({"NO_COLOR": "1"}, [], False),
        ({"FORCE_COLOR": "1", "NO_COLOR": "1"}, [], False),
        ({"FORCE_COLOR": "1"}, ["--no-color"], False),
        ({"FORCE_COLOR": ""}, [], False),
        ({"FORCE_COLOR": "1", "NO_COLOR": ""}, [], True),
    ],
    ids=str,
)
def test_colours(cli, tmp_path, monkeypatch, variables, options, coloured):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("TERM", "xterm-256color")
    make_model_h5(tmp_path / "m.h5")
    for result in (
        cli("inspect", "m.h5", *options),
        cli("cudnn-to-keras", "m.h5", "-n", *options),
        cli("inspect", "missing.h5", *options),
    ):
        assert ("\x1b[" in result.out + result.err) == coloured
    assert "\x1b" not in cli("inspect", "m.h5", "--json", *options).out


HOSTILE = [
    "[bold red]x",
    "[/bold]",
    "a[/]b",
    "a\\",
    "\x1b[31mred\x1b[2J",
    "bell\x07back\x08",
    "\x9b31m",
    "left\u202eright",
    "two\nerror: lines",
    "two\rlines",
    "two\u2028lines",
    ":smile:",
    "name with blanks",
]


def run_everything(cli: Callable[..., Result]) -> list[Result]:
    return [
        cli("inspect", "m.h5", "-v"),
        cli("cudnn-to-keras", "m.h5", "-n", "-v"),
        cli("cudnn-to-keras", "m.h5", "-n", "--no-color"),
    ]


def shown(name: str) -> str:
    """How a name should be printed: what is no printable character, escaped."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in name)


def require_harmless(results: list[Result], name: str) -> None:
    for result in results:
        for line in (result.out + result.err).split("\n"):
            assert line.isprintable(), ascii(line)
            assert not line.startswith("error: lines"), ascii(line)
    assert shown(name) in results[0].out + results[0].err


@pytest.mark.parametrize("name", HOSTILE, ids=ascii)
@pytest.mark.sampled(3)
def test_names_in_the_file_are_printed_escaped(cli, tmp_path, name):
    odd = {"class_name": name, "config": {"name": "odd"}}
    model = make_model_h5(tmp_path / "m.h5", names=["cu_lstm", name], extra_layers=[odd])
    results = run_everything(cli)
    assert {result.code for result in results} == {0}
    require_harmless(results, name)
    assert all(shown(name) in result.out and shown(name) in result.err for result in results)
    config = read_config(model)
    config["config"]["layers"][1]["config"]["units"] = 9
    write_config(model, config)
    failed = cli("cudnn-to-keras", "m.h5")
    assert failed.code == 4
    require_harmless([failed], name)
    assert sum(line.startswith("error: ") for line in failed.err.split("\n")) == 1


@pytest.mark.parametrize("version", ["2.2.4\x1b[31m", "2.2.4[bold]x", "[/]", "2.2.4\nerror: lines"])
@pytest.mark.sampled(2)
def test_the_version_in_the_file_is_printed_escaped(cli, tmp_path, version):
    make_model_h5(tmp_path / "m.h5", keras_version=version)
    require_harmless(run_everything(cli), version)


def test_groups_of_a_foreign_file_are_printed_escaped(cli, tmp_path):
    with h5py.File(tmp_path / "m.h5", "w") as file:
        file.create_group("a\x1b[31m\nerror: lines")
    result = cli("inspect", "m.h5")
    assert result.code == 3
    require_harmless([result], "a\x1b[31m\nerror: lines")


@pytest.mark.parametrize("name", ["m[bold].h5", "[/].h5", "m\x1b[31m.h5", "ü.h5", "two\nlines.h5"])
@pytest.mark.sampled(3)
def test_file_names_are_printed_escaped(cli, tmp_path, name):
    path = tmp_path / name.replace("/", "_")
    make_model_h5(path)
    result = cli("cudnn-to-keras", path.name)
    assert result.code == 0
    require_harmless([result], path.name)
    assert cli("cudnn-to-keras", path.name).code == 5


def test_a_terminal_of_few_characters(tmp_path):
    """Names that stdout can't encode are no reason to fail: the file is already written."""
    make_model_h5(tmp_path / "ü.h5", names=["schicht_ü", "層"])
    command = [sys.executable, "-m", "rnnconvert.cli.main", "cudnn-to-keras", "ü.h5"]
    command += ["--verify", "layers"]
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(
        command, capture_output=True, check=False, cwd=tmp_path, env=environment
    )  # fmt: skip
    assert (tmp_path / "ü.portable.h5").exists()
    assert done.returncode == 0


def test_a_reader_that_has_seen_enough(tmp_path):
    """`rnnconvert inspect m.h5 | head -1` is no difference that verification found."""
    make_model_h5(tmp_path / "m.h5")
    command = [sys.executable, "-m", "rnnconvert.cli.main", "inspect", "m.h5"]
    with subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as child:
        assert child.stdout is not None
        assert child.stderr is not None
        child.stdout.close()
        messages = child.stderr.read()
    assert child.returncode != 1
    assert b"Traceback" not in messages

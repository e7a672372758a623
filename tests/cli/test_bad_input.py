"""Bad input: one clear line, the right exit code, nothing written, nothing left, nothing run."""

from __future__ import annotations

import base64
import errno
import json
import marshal
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from helpers import (
    GRU_BIAS,
    LSTM_BIAS,
    LSTM_KERNEL,
    make_model_h5,
    read_config,
    replace_dataset,
    snapshot,
    write_config,
)

from rnnconvert.keras_models.files import h5_patch

# Nothing that Python itself warns of may reach the user's terminal.
pytestmark = pytest.mark.filterwarnings("error::RuntimeWarning", "error::UserWarning")

COMMANDS = ["cudnn-to-keras", "inspect"]


def refused(cli: Callable[..., Any], directory: Path, *arguments: object) -> tuple[int, str]:
    """Exit code and the one line of a run that must leave all files as they were."""
    before = snapshot(directory)
    names = sorted(os.listdir(directory))
    result = cli(*arguments)
    assert snapshot(directory) == before
    assert sorted(os.listdir(directory)) == names
    assert result.out == ""
    assert result.err.endswith("\n")
    assert len(result.err.splitlines()) == 1, result.err
    return result.code, result.err.rstrip("\n")


# --- no model at all ------------------------------------------------------------------------


def missing(path: Path) -> None: ...


def directory(path: Path) -> None:
    path.mkdir()


def dangling_link(path: Path) -> None:
    path.symlink_to("nowhere")


def pipe(path: Path) -> None:
    os.mkfifo(path)


def empty(path: Path) -> None:
    path.write_bytes(b"")


def text(path: Path) -> None:
    path.write_text("<!DOCTYPE html>\n<html>404 Not Found</html>\n")


def text_of_escapes(path: Path) -> None:
    path.write_text("[bold]\\x1b\n")


def image(path: Path) -> None:
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(range(256)))


def git_lfs_pointer(path: Path) -> None:
    path.write_text(
        "version https://git-lfs.github.com/spec/v1\n"
        "oid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393\n"
        "size 12345\n"
    )


def truncated(path: Path) -> None:
    make_model_h5(path)
    content = path.read_bytes()
    path.write_bytes(content[:6000])


def other_hdf5(path: Path) -> None:
    with h5py.File(path, "w") as file:
        file["temperature"] = np.arange(3.0)
        file.create_group("wind")


def empty_hdf5(path: Path) -> None:
    h5py.File(path, "w").close()


NO_MODELS: list[tuple[Callable[[Path], None], str]] = [
    (missing, "no such file"),
    (dangling_link, "no such file"),
    (directory, "a directory without a model: no saved_model.pb and no checkpoint is in it"),
    (empty, "the file is empty"),
    (text, "a text file, not an HDF5 model; it begins with '<!DOCTYPE html>'"),
    (text_of_escapes, r"a text file, not an HDF5 model; it begins with '[bold]\\x1b'"),
    (image, "not an HDF5 file: expected a Keras .h5 model or weights file"),
    (
        git_lfs_pointer,
        "a git-lfs pointer, not the model itself; run 'git lfs pull' to fetch the model",
    ),
    (
        truncated,
        "the HDF5 file is truncated (it has 6000 bytes, its header says more); copy or download "
        "it again",
    ),
    (
        other_hdf5,
        "an HDF5 file, but no Keras model: expected the attribute model_config or layer_names, "
        "found the groups temperature, wind",
    ),
    (
        empty_hdf5,
        "an HDF5 file, but no Keras model: expected the attribute model_config or layer_names, "
        "found the groups none",
    ),
]


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize(("make", "message"), NO_MODELS, ids=[m.__name__ for m, _ in NO_MODELS])
def test_what_is_no_model(cli, tmp_path, command, make, message):
    make(tmp_path / "m.h5")
    assert refused(cli, tmp_path, command, "m.h5") == (3, f"error: m.h5: {message}")


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes with names on this system")
def test_a_pipe_is_refused_without_waiting_for_it(cli, tmp_path, command):
    pipe(tmp_path / "m.h5")
    line = "error: m.h5: not a regular file; expected a Keras .h5 file"
    assert refused(cli, tmp_path, command, "m.h5") == (3, line)


@pytest.mark.parametrize("size", [1, 8, 96, 9000])
@pytest.mark.parametrize("command", COMMANDS)
def test_truncation_anywhere(cli, tmp_path, command, size):
    model = make_model_h5(tmp_path / "m.h5")
    model.write_bytes(model.read_bytes()[:size])
    code, line = refused(cli, tmp_path, command, "m.h5")
    assert code == 3
    assert line.startswith("error: m.h5: ")


@pytest.mark.parametrize("command", COMMANDS)
def test_a_name_too_long_for_the_system(cli, tmp_path, command):
    name = "x" * 300 + ".h5"
    code, line = refused(cli, tmp_path, command, name)
    assert code == 3
    assert line.startswith(f"error: {name}: ")


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.skipif(os.name == "nt" or os.geteuid() == 0, reason="root may read everything")
def test_an_unreadable_file(cli, tmp_path, command):
    make_model_h5(tmp_path / "m.h5").chmod(0)
    line = "error: m.h5: can't be read: Permission denied"
    before = os.listdir(tmp_path)
    result = cli(command, "m.h5")
    assert (result.code, result.err) == (3, line + "\n")
    assert os.listdir(tmp_path) == before


@pytest.mark.parametrize("command", COMMANDS)
def test_a_file_that_another_program_writes(cli, tmp_path, command):
    fcntl = pytest.importorskip("fcntl")
    with make_model_h5(tmp_path / "m.h5").open("rb") as other:
        fcntl.flock(other, fcntl.LOCK_EX)  # as HDF5 does it
        code, line = refused(cli, tmp_path, command, "m.h5")
    assert code == 3
    assert "damaged" not in line


# --- models that contradict themselves ------------------------------------------------------


def edited_config(path: Path, edit: Callable[[dict[str, Any]], None]) -> None:
    config = read_config(path)
    edit(config["config"]["layers"])
    write_config(path, config)


def wrong_bias(path: Path) -> None:
    replace_dataset(path, LSTM_BIAS, np.ones(47, "float32"))


def wrong_gru_bias(path: Path) -> None:
    replace_dataset(path, GRU_BIAS, np.ones((2, 12), "float32"))


def wrong_recurrent_kernel(path: Path) -> None:
    name = LSTM_KERNEL.replace("kernel", "recurrent_kernel")
    replace_dataset(path, name, np.ones((5, 20), "float32"))


def wrong_kernel(path: Path) -> None:
    replace_dataset(path, LSTM_KERNEL, np.ones((5, 20), "float32"))


def whole_numbers(path: Path) -> None:
    replace_dataset(path, LSTM_KERNEL, np.ones((5, 24), "int32"))


def one_layer_too_many(path: Path) -> None:
    layer = {"class_name": "CuDNNLSTM", "config": {"name": "ghost", "units": 3}}
    edited_config(path, lambda layers: layers.append(layer))


def subclass(path: Path) -> None:
    edited_config(path, lambda layers: layers[0].update(class_name="MyCuDNNLSTM"))


def plain_class(path: Path) -> None:
    edited_config(path, lambda layers: layers[0].update(class_name="LSTM"))


CONTRADICTIONS: list[tuple[Callable[[Path], None], str]] = [
    (
        wrong_bias,
        "model/cu_lstm: bias of a CuDNNLSTM of 6 units: expected (48,), found (47,)",
    ),
    (
        wrong_gru_bias,
        "model/cu_gru: bias of a CuDNNGRU of 4 units: expected (24,), found (2, 12)",
    ),
    (
        wrong_recurrent_kernel,
        "model/cu_lstm: recurrent_kernel: expected (6, 24), found (5, 20)",
    ),
    (
        wrong_kernel,
        "model/cu_lstm: kernel and recurrent_kernel disagree: kernel (5, 20), recurrent_kernel "
        "(6, 24); expected a kernel of (input_dim, 24)",
    ),
    (
        whole_numbers,
        "model/cu_lstm: cu_lstm/kernel: expected float16, float32 or float64, found int32",
    ),
    (
        one_layer_too_many,
        "model/ghost: the config has this layer, the weights don't",
    ),
    (
        plain_class,
        "model/cu_lstm: bias of a LSTM of 6 units: expected (24,), found (48,); these are "
        "weights of a CuDNN layer under the config of a plain one",
    ),
]


@pytest.mark.parametrize(
    ("make", "message"), CONTRADICTIONS, ids=[m.__name__ for m, _ in CONTRADICTIONS]
)
def test_contradictions_are_never_guessed_away(cli, tmp_path, make, message):
    make(make_model_h5(tmp_path / "m.h5"))
    line = f"error: m.h5: {message}"
    assert refused(cli, tmp_path, "cudnn-to-keras", "m.h5") == (4, line)


def test_a_subclass_of_a_cudnn_layer(cli, tmp_path):
    subclass(make_model_h5(tmp_path / "m.h5"))
    before = snapshot(tmp_path)
    result = cli("cudnn-to-keras", "m.h5")
    assert result.code == 4
    assert result.err.splitlines() == [
        "warning: model/cu_lstm: custom class MyCuDNNLSTM kept as it is; Keras needs "
        "custom_objects to load it",
        "error: m.h5: model/cu_lstm: weights in CuDNN layout (cu_lstm/bias has 48 values) belong "
        "to a custom class, whose code rnnconvert neither knows nor runs; save the model with "
        "the plain CuDNNLSTM or CuDNNGRU class",
    ]
    assert snapshot(tmp_path) == before


def test_all_problems_are_listed_at_once(cli, tmp_path):
    model = make_model_h5(tmp_path / "m.h5")
    wrong_bias(model)
    wrong_gru_bias(model)
    before = snapshot(tmp_path)
    result = cli("cudnn-to-keras", "m.h5")
    assert result.code == 4
    assert result.err.splitlines() == [
        "error: m.h5: 2 problems",
        "  model/cu_lstm: bias of a CuDNNLSTM of 6 units: expected (48,), found (47,)",
        "  model/cu_gru: bias of a CuDNNGRU of 4 units: expected (24,), found (2, 12)",
    ]
    assert snapshot(tmp_path) == before


# --- configs that no Keras writes -----------------------------------------------------------


def sequential(*layers: object, **config: object) -> dict[str, object]:
    return {"class_name": "Sequential", "config": {"name": "s", "layers": list(layers), **config}}


def lstm(**config: object) -> dict[str, object]:
    return {"class_name": "LSTM", "config": {"name": "cu_lstm", "units": 6, **config}}


MALFORMED: dict[str, object] = {
    "sequential without layers": {"class_name": "Sequential", "config": {}},
    "sequential without config": {"class_name": "Sequential", "config": None},
    "layers that are numbers": sequential(1, 2),
    "functional without layers": {
        "class_name": "Model",
        "config": {"name": "m", "input_layers": [], "output_layers": []},
    },
    "functional with broken nodes": {
        "class_name": "Model",
        "config": {
            "name": "m",
            "layers": [{**lstm(), "inbound_nodes": [[[1], [2]]]}],
            "input_layers": 5,
            "output_layers": None,
        },
    },
    "policy without config": sequential(lstm(dtype={"class_name": "Policy"})),
    "activation of a wrong type": sequential(lstm(activation=[1])),
    "name of a wrong type": sequential(lstm(name=["a"])),
    "list-style with numbers": {"class_name": "Sequential", "config": [1, 2]},
    "cells that are no layers": sequential(
        {"class_name": "RNN", "config": {"name": "cu_lstm", "cell": 5}}
    ),
    "bidirectional of nothing": sequential(
        {"class_name": "Bidirectional", "config": {"name": "cu_lstm", "layer": {}}}
    ),
}


NOT_CONVERTIBLE = (
    "activation of a wrong type", "name of a wrong type", "cells that are no layers",
    "bidirectional of nothing",
)  # fmt: skip
"""Of the form of a config, but nothing that Keras builds; `inspect` shows them as such."""


@pytest.mark.parametrize("name", MALFORMED)
@pytest.mark.parametrize("command", COMMANDS)
def test_malformed_configs_end_in_words(cli, tmp_path, command, name):
    model = make_model_h5(tmp_path / "m.h5")
    write_config(model, MALFORMED[name])
    before = snapshot(tmp_path)
    result = cli(command, "m.h5")
    expected = {"cudnn-to-keras": 4, "inspect": 0} if name in NOT_CONVERTIBLE else {}
    assert result.code == expected.get(command, 3)
    assert snapshot(tmp_path) == before


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"a": 1, "a": 2}', "[" * 100_000])
@pytest.mark.parametrize("command", COMMANDS)
def test_configs_that_are_no_json_object(cli, tmp_path, command, text):
    model = make_model_h5(tmp_path / "m.h5")
    with h5py.File(model, "r+") as file:
        file.attrs["model_config"] = text
    code, line = refused(cli, tmp_path, command, "m.h5")
    assert code == 3
    assert "attribute model_config" in line


@pytest.mark.parametrize(
    "training",
    [{}, {"loss": 5}, {"loss": {"class_name": 3}}, {"loss": "mse"}, {"optimizer_config": {}}],
    ids=str,
)
@pytest.mark.sampled(2)
def test_malformed_training_configs_are_left_out(cli, tmp_path, training):
    model = make_model_h5(tmp_path / "m.h5")
    with h5py.File(model, "r+") as file:
        file.attrs["training_config"] = json.dumps(training)
    result = cli("cudnn-to-keras", "m.h5")
    assert result.code == 0
    assert result.err.startswith("warning: training config left out, so that load_model(path)")


def test_a_training_config_of_another_form(cli, tmp_path):
    model = make_model_h5(tmp_path / "m.h5")
    with h5py.File(model, "r+") as file:
        file.attrs["training_config"] = '{"loss": "mse", "optimizer_config": 5}'
    result = cli("cudnn-to-keras", "m.h5")
    assert result.code == 0
    assert "training config left out" in result.err
    assert len(result.err.splitlines()) == 1


# --- kept, named, never run -----------------------------------------------------------------


def test_an_unknown_layer_beside_is_kept_and_named(cli, tmp_path):
    attention = {"class_name": "AttentionDecoder", "config": {"name": "decoder", "depth": [1, {}]}}
    model = make_model_h5(tmp_path / "m.h5", extra_layers=[attention])
    with h5py.File(model, "r+") as file:
        group = file["model_weights"].create_group("decoder")
        group.attrs["weight_names"] = [b"decoder/W:0"]
        group["decoder/W:0"] = np.arange(12.0).reshape(3, 4)
        file["model_weights"].attrs["layer_names"] = [b"cu_lstm", b"cu_gru", b"decoder"]
    content = model.read_bytes()
    result = cli("cudnn-to-keras", "m.h5")
    assert result.code == 0
    assert result.err == (
        "warning: model/decoder: custom class AttentionDecoder kept as it is; Keras needs "
        "custom_objects to load it\n"
    )
    assert model.read_bytes() == content
    written = tmp_path / "m.portable.h5"
    assert attention in read_config(written)["config"]["layers"]
    with h5py.File(written) as file:
        kept = file["model_weights/decoder/decoder/W:0"][()]
    assert np.array_equal(kept, np.arange(12.0).reshape(3, 4))


@pytest.mark.parametrize("command", COMMANDS)
def test_a_lambda_is_kept_and_never_run(cli, tmp_path, command):
    trap = tmp_path / "the code of the model was run"
    code = compile(f"open({str(trap)!r}, 'w').close()", "lambda", "exec")
    layer = {
        "class_name": "Lambda",
        "config": {
            "name": "lambda_1",
            "function": [base64.b64encode(marshal.dumps(code)).decode(), None, None],
            "function_type": "lambda",
            "output_shape": None,
            "arguments": {},
        },
    }
    model = make_model_h5(tmp_path / "m.h5", extra_layers=[layer])
    content = model.read_bytes()
    result = cli(command, "m.h5")
    assert result.code == 0
    assert result.err == (
        "warning: model/lambda_1: Lambda layer kept, its code never run; Keras loads it only "
        "with safe_mode=False, and only in the version of Python that wrote it: it is bytecode\n"
    )
    assert not trap.exists()
    assert model.read_bytes() == content
    if command == "cudnn-to-keras":
        layers = read_config(tmp_path / "m.portable.h5")["config"]["layers"]
        code = layer["config"]["function"][0]
        inner = {"code": code, "defaults": None, "closure": None}
        assert layers[-1]["config"]["function"] == {"class_name": "__lambda__", "config": inner}


def poison(model: Path, name: str, place: object, value: float) -> None:
    with h5py.File(model, "r+") as file:
        file[name][place] = value


@pytest.mark.parametrize(
    ("value", "place"), [(np.nan, 0), (np.nan, ...), (-np.inf, 0)], ids=["one", "all", "infinite"]
)
@pytest.mark.parametrize("name", [LSTM_KERNEL, LSTM_BIAS, GRU_BIAS])
@pytest.mark.sampled(3)
def test_weights_that_are_no_numbers_are_a_warning(cli, tmp_path, name, place, value):
    model = make_model_h5(tmp_path / "m.h5")
    poison(model, name, place, value)
    result = cli("cudnn-to-keras", "m.h5")
    assert result.err == f"warning: {name} holds NaN or infinity\n"
    assert result.code == 0
    assert (tmp_path / "m.portable.h5").exists()


def test_a_kernel_of_zeros_is_a_warning(cli, tmp_path):
    poison(make_model_h5(tmp_path / "m.h5"), LSTM_KERNEL, ..., 0.0)
    result = cli("cudnn-to-keras", "m.h5")
    assert result.err == f"warning: {LSTM_KERNEL} is all zeros\n"
    assert result.code == 0


# --- outputs that can't be ------------------------------------------------------------------


def test_the_output_exists(cli, tmp_path):
    make_model_h5(tmp_path / "m.h5")
    (tmp_path / "m.portable.h5").write_bytes(b"mine")
    assert refused(cli, tmp_path, "cudnn-to-keras", "m.h5") == (
        5,
        "error: m.portable.h5: the output exists; use --force to overwrite it",
    )


def test_the_output_directory_is_missing(cli, tmp_path):
    make_model_h5(tmp_path / "m.h5")
    assert refused(cli, tmp_path, "cudnn-to-keras", "m.h5", "-o", "no/out.h5") == (
        5,
        "error: no/out.h5: the directory no does not exist",
    )


def test_the_output_directory_is_a_file(cli, tmp_path):
    make_model_h5(tmp_path / "m.h5")
    (tmp_path / "no").write_bytes(b"mine")
    code, line = refused(cli, tmp_path, "cudnn-to-keras", "m.h5", "-o", "no/out.h5")
    assert code == 5
    assert line.startswith("error: no/out.h5: ")


def test_an_output_directory_that_is_asked_for_by_a_slash(cli, tmp_path):
    make_model_h5(tmp_path / "m.h5")
    code, _ = refused(cli, tmp_path, "cudnn-to-keras", "m.h5", "-o", "new/")
    assert code == 5


def test_the_output_directory_is_read_only(cli, tmp_path, monkeypatch):
    make_model_h5(tmp_path / "m.h5")
    monkeypatch.setattr(os, "access", lambda path, mode, **_: mode != os.W_OK)
    assert refused(cli, tmp_path, "cudnn-to-keras", "m.h5") == (
        5,
        "error: m.portable.h5: the directory . is not writable",
    )


def test_input_and_output_are_the_same(cli, tmp_path):
    make_model_h5(tmp_path / "m.h5")
    for force in ([], ["--force"]):
        assert refused(cli, tmp_path, "cudnn-to-keras", "m.h5", "-o", "m.h5", *force) == (
            2,
            "error: m.h5: output and input are the same file; use --in-place to replace the input",
        )


@pytest.mark.parametrize("step", ["copy", "patch"])
def test_the_disk_is_full(cli, tmp_path, monkeypatch, step):
    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    make_model_h5(tmp_path / "m.h5")
    name = "copy_around" if step == "copy" else "apply_edit"
    monkeypatch.setattr(h5_patch, name, fail)
    assert refused(cli, tmp_path, "cudnn-to-keras", "m.h5") == (
        5,
        "error: m.portable.h5: can't be written: no space left on the device",
    )


# --- tracebacks are for --debug -------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "debug"), [("cudnn-to-keras", True), ("inspect", True), ("inspect", False)]
)
@pytest.mark.sampled(2)
def test_debug_shows_a_traceback_and_keeps_the_exit_code(tmp_path, command, debug):
    arguments = [command, "missing.h5", *(["--debug"] if debug else [])]
    done = subprocess.run(
        [sys.executable, "-m", "rnnconvert.cli.main", *arguments],
        capture_output=True, text=True, check=False, cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 3
    assert ("Traceback (most recent call last)" in done.stderr) == debug
    assert "missing.h5: no such file" in done.stderr

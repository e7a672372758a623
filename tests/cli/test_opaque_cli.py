"""`rnnconvert opaque size|unpack|pack`: results, files, messages and exit codes."""

from __future__ import annotations

import errno
import json
import os
import random
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
from helpers import snapshot

from rnnconvert.cli import main
from rnnconvert.cli.opaque import opaque
from rnnconvert.containers import safe_npz
from rnnconvert.layouts.opaque_shape import OpaqueShape

SIZE = 1584
NETWORK = "--cell lstm --layers 2 --units 6 --input-size 5 --direction bidirectional".split()
SHAPE = "cell=lstm, num_layers=2, num_units=6, input_size=5, direction=bidirectional, "
SHAPE += "input_mode=linear_input, num_proj=0"

pytestmark = pytest.mark.filterwarnings("error")


@pytest.fixture(autouse=True)
def _command(monkeypatch):
    monkeypatch.setitem(main.cli.commands, "opaque", opaque)


def buffer(size: int = SIZE, dtype="float32") -> np.ndarray:
    return np.random.default_rng(0).normal(size=size).astype(dtype)


@pytest.fixture
def params(tmp_path) -> Path:
    np.save(tmp_path / "params.npy", buffer())
    return tmp_path / "params.npy"


@pytest.fixture
def canonical(cli, params) -> Path:
    assert cli("opaque", "unpack", params, "-o", "canonical.npz", *NETWORK).code == 0
    params.unlink()
    return params.with_name("canonical.npz")


def refused(cli, directory: Path, *arguments) -> tuple[int, str]:
    """Exit code and the one line of a run that must leave all files as they were."""
    before = snapshot(directory)
    result = cli("opaque", *arguments)
    assert snapshot(directory) == before
    assert result.out == ""
    assert result.err.startswith("error: "), result.err
    assert len(result.err.splitlines()) == 1, result.err
    return result.code, result.err.rstrip("\n").removeprefix("error: ")


# --- size -----------------------------------------------------------------------------------


def test_size(cli):
    result = cli("opaque", "size", *NETWORK, "--dropout", "0.5")
    assert (result.code, result.err) == (0, "")
    assert result.out == (
        "elements  1584\nfloat16   3168 bytes\nfloat32   6336 bytes\nfloat64   12672 bytes\n"
    )


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ("--cell gru --layers 1 --units 4 --input-size 5", 3 * 4 * (5 + 4 + 2)),
        ("--cell rnn_tanh --layers 1 --units 4 --input-size 5", 4 * (5 + 4 + 2)),
        ("--cell rnn_relu --layers 2 --units 4 --input-size 4 --input-mode skip_input", 4 * 16),
        ("--cell rnn_relu --layers 2 --units 4 --input-size 4 --input-mode auto_select", 4 * 16),
        ("--cell lstm --layers 1 --units 4 --input-size 5 --num-proj 3", 4 * 4 * 10 + 3 * 4),
        (f"--cell gru --layers {10**15} --units 1 --input-size 1", 3 * 4 * 10**15),
    ],
)
def test_size_as_json(cli, options, expected):
    result = cli("opaque", "size", "--json", *options.split())
    document = json.loads(result.out)
    assert result.code == 0
    assert document["schema"] == 1
    assert document["elements"] == expected
    assert document["bytes"] == {
        "float16": 2 * expected,
        "float32": 4 * expected,
        "float64": 8 * expected,
    }
    assert document["hyperparameters"]["cell"] == options.split()[1]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--units 0", "num_units: expected a whole number from 1 on, found 0"),
        (
            "--input-mode skip_input",
            "skip_input needs as many inputs as units, found input_size=5 and num_units=6; "
            "use linear_input",
        ),
        ("--cell gru --num-proj 2", "cuDNN has projections for lstm only, not for gru"),
    ],
)
def test_hyperparameters_that_make_no_sense(cli, tmp_path, options, message):
    found = refused(cli, tmp_path, "size", *NETWORK, *options.split())
    assert found == (2, message)


@pytest.mark.parametrize(
    "options",
    ["--cell elman", "--layers two", "--dropout 2", "--direction both", "--input-mode skip"],
)
def test_options_that_click_refuses(cli, options):
    assert cli("opaque", "size", *NETWORK, *options.split()).code == 2


@pytest.mark.parametrize("missing", ["--cell", "--layers", "--units", "--input-size"])
def test_a_missing_option(cli, missing):
    at = NETWORK.index(missing)
    result = cli("opaque", "size", *NETWORK[:at], *NETWORK[at + 2 :])
    assert result.code == 2
    assert f"Missing option '{missing}'" in result.err


# --- unpack and pack ------------------------------------------------------------------------


def test_unpack_names_every_array(cli, params):
    result = cli("opaque", "unpack", params, "-o", "canonical.npz", *NETWORK)
    assert (result.code, result.err) == (0, "")
    assert result.out == (
        "written canonical.npz: 1,584 elements of float32, 64 arrays; read back bit for bit\n"
    )
    shape = OpaqueShape("lstm", 2, 6, 5, "bidirectional")
    flat = buffer()
    with np.load(params.with_name("canonical.npz")) as found:
        assert found.files == [region.name for region in sorted(shape.regions, key=by_layer)]
        for region in shape.regions:
            expected = flat[region.offset : region.end].reshape(region.shape)
            np.testing.assert_array_equal(found[region.name], expected, strict=True)


def by_layer(region):
    return region.layer, region.direction == "backward"


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", ">f4", "bfloat16"])
def test_pack_gives_the_same_file_back(cli, tmp_path, dtype):
    if dtype == "bfloat16":
        dtype = pytest.importorskip("ml_dtypes", reason="bfloat16 needs it").bfloat16
    np.save(tmp_path / "params.npy", buffer(dtype=dtype))
    dtype = np.load(tmp_path / "params.npy").dtype.str
    assert cli("opaque", "unpack", "params.npy", "-o", "canonical.npz", *NETWORK).code == 0
    assert cli("opaque", "pack", "canonical.npz", "-o", "again.npy").code == 0
    again = (tmp_path / "again.npy").read_bytes()
    if dtype == "|V2":  # ml_dtypes makes numpy write <V2 once, numpy reads and writes |V2
        again = again.replace(b"'|V2'", b"'<V2'")
    assert again == (tmp_path / "params.npy").read_bytes()


@pytest.mark.parametrize(
    "options",
    [
        "--cell gru --layers 3 --units 4 --input-size 5",
        "--cell rnn_relu --layers 2 --units 4 --input-size 4 --input-mode skip_input",
        "--cell lstm --layers 2 --units 4 --input-size 5 --num-proj 3 --direction bidirectional",
    ],
)
def test_pack_agrees_with_the_options_of_unpack(cli, tmp_path, options):
    options = options.split()
    size = json.loads(cli("opaque", "size", "--json", *options).out)["elements"]
    np.save(tmp_path / "params.npy", buffer(size))
    assert cli("opaque", "unpack", "params.npy", "-o", "canonical.npz", *options).code == 0
    assert cli("opaque", "pack", "canonical.npz", "-o", "again.npy", *options).code == 0
    assert (tmp_path / "again.npy").read_bytes() == (tmp_path / "params.npy").read_bytes()


def test_json_of_a_conversion(cli, canonical):
    result = cli("opaque", "pack", canonical, "-o", "params.npy", "--json")
    document = json.loads(result.out)
    assert (result.code, result.err) == (0, "")
    arrays = document.pop("arrays")
    assert arrays["lstm/layer_1/backward/input_kernel/o"] == [6, 12]
    assert document == {
        "schema": 1,
        "command": "opaque pack",
        "input": str(canonical),
        "output": "params.npy",
        "hyperparameters": {
            "cell": "lstm",
            "num_layers": 2,
            "num_units": 6,
            "input_size": 5,
            "direction": "bidirectional",
            "input_mode": "linear_input",
            "num_proj": 0,
        },
        "elements": SIZE,
        "dtype": "float32",
    }


def test_quiet(cli, canonical):
    result = cli("opaque", "pack", canonical, "-o", "params.npy", "-q")
    assert (result.code, result.out, result.err) == (0, "", "")


def test_archives_that_other_programs_write(cli, tmp_path, canonical):
    """Compressed, and with matrices in Fortran order."""
    with np.load(canonical) as arrays:
        other = {name: np.asfortranarray(arrays[name]) for name in reversed(arrays.files)}
    np.savez_compressed(tmp_path / "other.npz", **other)
    assert cli("opaque", "pack", "other.npz", "-o", "params.npy").code == 0
    np.testing.assert_array_equal(np.load(tmp_path / "params.npy"), buffer(), strict=True)


def test_an_archive_of_one_array(cli, tmp_path):
    np.savez_compressed(tmp_path / "model.npz", opaque_kernel=np.zeros(SIZE))
    result = cli("opaque", "unpack", "model.npz", "-o", "canonical.npz", *NETWORK)
    assert result.code == 0


def test_a_file_that_python_2_wrote(cli, tmp_path):
    """Its numpy wrote whole numbers like 1584L in the header."""
    np.save(tmp_path / "params.npy", buffer())
    content = (tmp_path / "params.npy").read_bytes()
    (tmp_path / "params.npy").write_bytes(content.replace(b"(1584,), } ", b"(1584L,), }"))
    result = cli("opaque", "unpack", "params.npy", "-o", "canonical.npz", *NETWORK)
    assert (result.code, result.err) == (0, "")


def test_arrays_of_any_name(tmp_path):
    """Also those that are keywords of `np.savez`; the same arrays give the same bytes."""
    names = ["file", "allow_pickle", "scope/layer_0/forward/kernel", "a b.npy", "größe"]
    arrays = {name: buffer(24).reshape(6, 4)[:n].T for n, name in enumerate(names)}
    contents = set()
    for _ in range(2):
        safe_npz.write_arrays(tmp_path / "any.npz", arrays)
        contents.add((tmp_path / "any.npz").read_bytes())
    assert len(contents) == 1
    with (
        np.load(tmp_path / "any.npz") as theirs,
        safe_npz.open_arrays(tmp_path / "any.npz") as ours,
    ):
        assert list(ours) == names
        assert "none" not in ours
        for name, array in arrays.items():
            np.testing.assert_array_equal(ours[name], array, strict=True)
            np.testing.assert_array_equal(theirs[f"{name}.npy"], array, strict=True)


@pytest.mark.parametrize(
    ("name", "array"), [("a\0b", np.zeros(2)), ("objects", np.array([object()]))]
)
def test_arrays_that_would_not_be_read_back(tmp_path, name, array):
    with pytest.raises(ValueError, match=r"can't be the name of an array|Object arrays cannot be"):
        safe_npz.write_arrays(tmp_path / "any.npz", {name: array})


# --- options that disagree with the file ----------------------------------------------------


def test_a_buffer_of_another_size(cli, tmp_path, params):
    found = refused(cli, tmp_path, "unpack", params, "-o", "out.npz", *NETWORK[:-2])
    one_way = SHAPE.replace("bidirectional", "unidirectional")
    assert found == (
        2,
        f"{params}: the buffer has 1584 elements; expected 648 for {one_way}; 1584 would fit "
        "input_size=44 or direction=bidirectional",
    )


@pytest.mark.parametrize(
    ("options", "disagree"),
    [
        ("--layers 3 --units 6", "num_layers=3"),
        ("--cell gru --direction unidirectional", "cell=gru, direction=unidirectional"),
        ("--num-proj 3", "num_proj=3"),
    ],
)
def test_arrays_of_another_network(cli, tmp_path, canonical, options, disagree):
    found = refused(cli, tmp_path, "pack", canonical, "-o", "out.npy", *options.split())
    assert found == (
        2,
        f"{canonical}: the arrays are those of {SHAPE}; the options say otherwise: {disagree}",
    )


# --- outputs --------------------------------------------------------------------------------


def test_an_existing_output_needs_force(cli, tmp_path, canonical):
    (tmp_path / "params.npy").write_text("precious")
    found = refused(cli, tmp_path, "pack", canonical, "-o", "params.npy")
    assert found == (5, "params.npy: the output exists; use --force to overwrite it")
    assert cli("opaque", "pack", canonical, "-o", "params.npy", "--force").code == 0
    np.testing.assert_array_equal(np.load(tmp_path / "params.npy"), buffer())


def test_the_input_is_never_the_output(cli, tmp_path, params):
    found = refused(cli, tmp_path, "unpack", params, "-fo", "params.npy", *NETWORK)
    assert found == (2, f"{params}: output and input are the same file")


def test_an_output_that_cannot_be_written(cli, tmp_path, canonical):
    (tmp_path / "folder").mkdir()
    for target, reason in (
        ("nowhere/params.npy", "the directory nowhere does not exist"),
        ("folder", "the output is not a regular file"),
        ("x" * 300, "can't be written: File name too long"),
    ):
        found = refused(cli, tmp_path, "pack", canonical, "-o", target)
        assert found == (5, f"{target}: {reason}")


@pytest.mark.parametrize("function", ["save", "replace"])
def test_a_full_disk_leaves_nothing(cli, tmp_path, canonical, monkeypatch, function):
    def full(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(np if function == "save" else os, function, full)
    found = refused(cli, tmp_path, "pack", canonical, "-o", "params.npy")
    assert found == (5, "params.npy: can't be written: no space left on the device")


@pytest.mark.parametrize("command", ["unpack", "pack"])
def test_what_reads_back_differently_is_not_published(cli, tmp_path, monkeypatch, command):
    np.save(tmp_path / "params.npy", buffer())
    assert cli("opaque", "unpack", "params.npy", "-o", "canonical.npz", *NETWORK).code == 0
    one, several = safe_npz.write_array, safe_npz.write_arrays
    monkeypatch.setattr(safe_npz, "write_array", lambda path, array: one(path, array[::-1]))
    monkeypatch.setattr(
        safe_npz,
        "write_arrays",
        lambda path, arrays: several(path, {name: -array for name, array in arrays.items()}),
    )
    arguments = {"unpack": ["params.npy", *NETWORK], "pack": ["canonical.npz"]}[command]
    found = refused(cli, tmp_path, command, *arguments, "-o", "out")
    assert found == (1, "what was written reads back differently; nothing was published")


# --- inputs that can't be read --------------------------------------------------------------


def npy(header: str, content: bytes = b"", version: bytes = b"\x01\x00") -> bytes:
    """A .npy file with any header."""
    text = header.encode() + b"\n"
    length = len(text).to_bytes(2 if version[0] == 1 else 4, "little")
    return b"\x93NUMPY" + version + length + text + content


def described(dtype: str, shape: str) -> str:
    return f"{{'descr': {dtype!r}, 'fortran_order': False, 'shape': {shape}}}"


PICKLED = b"\x80\x04\x95\x0b\x00\x00\x00\x00\x00\x00\x00\x8c\x07harmful\x94."
BAD_NPY = {
    "empty": (b"", "an empty file"),
    "text": (b"<!DOCTYPE html>\n", "neither a .npy nor a .npz file"),
    "magic only": (b"\x93NUMPY", "the file is damaged: EOF: reading magic string"),
    "header cut": (npy(described("<f4", "(1584,)"))[:30], "the file is damaged: EOF: reading arr"),
    "header without end": (npy("{'descr': '<f4'"), "the file is damaged: "),
    "header that is code": (npy("__import__('os').getcwd()"), "the file is damaged: "),
    "header nested": (npy("(" * 3000), "the file is damaged: "),
    "header long": (npy(" " * 60000), "the file is damaged: Header info length"),
    "truncated": (
        npy(described("<f4", "(1584,)"), bytes(6332)),
        "the array: the header says shape (1584,) of float32, 6,336 bytes, but 6,332 bytes "
        "follow; the file is truncated or damaged",
    ),
    "too long": (npy(described("<f4", "(1584,)"), bytes(6340)), "6,336 bytes, but 6,340 bytes"),
    "huge": (npy(described("<f4", "(10**15,)".replace("10**15", str(10**15))), bytes(8)),
             "the array: the header says shape (1000000000000000,) of float32"),
    "overflowing": (npy(described("<f4", f"({2**62}, 4)")), "the array: the header says shape"),
    "empty and huge": (npy(described("<f4", f"(0, {2**70})")), "the file is damaged: "),
    "negative": (npy(described("<f4", "(-2, -2)"), bytes(16)), "the array: the header says shape"),
    "objects": (
        npy(described("|O", "(1584,)"), PICKLED),
        "the array: expected floating-point numbers, found object",
    ),
    "whole numbers": (
        npy(described("<i4", "(1584,)"), bytes(6336)),
        "the array: expected floating-point numbers, found int32",
    ),
    "named fields": (
        npy(described([("a", "<f2")], "(1584,)"), bytes(3168)),
        "the array: expected floating-point numbers, found [('a', '<f2')]",
    ),
    "of arrays": (npy(described("(1,)V2", "(1584,)"), bytes(3168)), "the "),
    "matrix": (
        npy(described("<f4", "(2, 792)"), bytes(6336)),
        "expected a flat array of shape (elements,), found shape (2, 792)",
    ),
    "version 3": (
        npy(described("<f4", "(1584,)"), bytes(6336), b"\x03\x00"),
        "the array: format (3, 0) is not one for plain arrays",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD_NPY)
def test_a_file_that_holds_no_buffer(cli, tmp_path, case):
    content, message = BAD_NPY[case]
    (tmp_path / "params.npy").write_bytes(content)
    code, line = refused(cli, tmp_path, "unpack", "params.npy", "-o", "out.npz", *NETWORK)
    assert code == 3
    assert line.startswith("params.npy: ")
    assert message in line


def test_paths_that_are_no_files(cli, tmp_path):
    (tmp_path / "folder").mkdir()
    for path, message in (
        ("nothing.npy", "no such file"),
        ("folder", "not a regular file; expected a .npy or .npz file"),
        ("x" * 300, "can't be read: File name too long"),
    ):
        for command in (["unpack", *NETWORK], ["pack"]):
            found = refused(cli, tmp_path, *command, path, "-o", "out")
            assert found == (3, f"{path}: {message}")


def test_several_arrays_are_no_buffer(cli, tmp_path, canonical):
    found = refused(cli, tmp_path, "unpack", canonical, "-o", "out.npz", *NETWORK)
    assert found == (
        3,
        f"{canonical}: expected one flat array, found 64; 'rnnconvert opaque pack' makes a buffer "
        "of several arrays",
    )


def test_a_buffer_is_no_set_of_arrays(cli, tmp_path, params):
    found = refused(cli, tmp_path, "pack", params, "-o", "out.npy")
    message = "one array; expected the .npz file of 'rnnconvert opaque unpack'"
    assert found == (3, f"{params}: {message}")


def test_arrays_that_are_no_network(cli, tmp_path, canonical):
    with np.load(canonical) as arrays:
        arrays = dict(arrays)
    del arrays["lstm/layer_1/forward/recurrent_bias/o"]
    np.savez(tmp_path / "less.npz", **arrays)
    found = refused(cli, tmp_path, "pack", "less.npz", "-o", "out.npy")
    assert found == (
        3,
        "less.npz: 1 of 64 arrays are missing (lstm/layer_1/forward/recurrent_bias/o), 0 have no "
        "place (-)",
    )


def archive(path: Path, **options) -> Path:
    """A .npz of one array, its compression and so on as for `ZipFile.writestr`."""
    content = npy(described("<f4", "(1584,)"), bytes(6336))
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("params.npy", content, **options)
    return path


def patched(path: Path, old: bytes, new: bytes) -> None:
    content = path.read_bytes()
    assert old in content
    path.write_bytes(content.replace(old, new))


def twice(path: Path) -> None:
    with pytest.warns(UserWarning, match="Duplicate name"), zipfile.ZipFile(path, "a") as file:
        file.writestr("params.npy", b"")


def with_a_script(path: Path) -> None:
    with zipfile.ZipFile(path, "a") as file:
        file.writestr("setup.py", "raise SystemExit")


def with_objects(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("params.npy", npy(described("|O", "(1584,)"), PICKLED))


def claims(size: int):
    """The size of the unpacked array, as the directory of the archive claims it."""

    def spoil(path: Path) -> None:
        true = zipfile.ZipFile(path).infolist()[0].file_size
        patched(path, true.to_bytes(4, "little"), size.to_bytes(4, "little"))

    return spoil


def flipped(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[3000] ^= 1
    path.write_bytes(content)


BAD_NPZ = {
    "bzip2": ({"compress_type": 12}, lambda path: None, "'params.npy' is compressed in a way"),
    "twice": ({}, twice, "'params.npy' is there twice"),
    "a script": ({}, with_a_script, "setup.py: no array"),
    "objects": ({}, with_objects, "params: expected floating-point numbers, found object"),
    "bomb": ({"compress_type": 8}, claims(2**31 - 1), "stored bytes can't hold"),
    "false size": ({"compress_type": 8}, claims(6350), "but 6,2"),
    "stored, false size": ({}, claims(2**31 - 1), "its members are larger than itself"),
    "flipped": ({}, flipped, "the file is damaged: Bad CRC-32"),
    "truncated": ({}, lambda path: path.write_bytes(path.read_bytes()[:4000]), "the file is dam"),
}


@pytest.mark.parametrize("case", BAD_NPZ)
def test_a_damaged_archive(cli, tmp_path, case):
    options, spoil, message = BAD_NPZ[case]
    spoil(archive(tmp_path / "params.npz", **options))
    code, line = refused(cli, tmp_path, "unpack", "params.npz", "-o", "out.npz", *NETWORK)
    assert code == 3
    assert message in line


def test_members_that_lie_over_each_other(cli, tmp_path):
    """Many names for the same bytes: a bomb without compression."""
    path = archive(tmp_path / "params.npz")
    with zipfile.ZipFile(path, "a") as file:
        for number in range(9):
            info = zipfile.ZipInfo(f"{number}.npy")
            first = file.infolist()[0]
            info.header_offset, info.CRC = first.header_offset, first.CRC
            info.file_size = info.compress_size = first.file_size
            file.filelist.append(info)
            file.NameToInfo[info.filename] = info
        file._didModify = True
    found = refused(cli, tmp_path, "pack", "params.npz", "-o", "out.npy")
    assert found == (
        3,
        "params.npz: the file is damaged: its members are larger than itself, or far too many",
    )


@pytest.mark.parametrize("name", ["params.npy", "canonical.npz"])
def test_flipped_bytes_end_well(cli, tmp_path, name):
    """Any damage: either the result of the undamaged part of the file, or one clear line."""
    shape = "--cell gru --layers 1 --units 1 --input-size 2".split()
    np.save(tmp_path / "params.npy", buffer(15))
    assert cli("opaque", "unpack", "params.npy", "-o", "canonical.npz", *shape).code == 0
    content = (tmp_path / name).read_bytes()
    rng = random.Random(0)
    command = ["unpack", *shape] if name == "params.npy" else ["pack"]
    codes = set()
    for _ in range(150):
        damaged = bytearray(content)
        for _ in range(rng.randint(1, 3)):
            damaged[rng.randrange(min(len(damaged), 3000))] = rng.randrange(256)
        (tmp_path / "damaged").write_bytes(damaged)
        result = cli("opaque", *command, "damaged", "-fo", "out")
        assert "Traceback" not in result.err
        assert len(result.err.splitlines()) == (1 if result.code else 0), result.err
        codes.add(result.code)
    assert codes <= {0, 2, 3}
    assert 3 in codes


def test_debug_shows_the_traceback(cli, tmp_path):
    result = cli("opaque", "pack", "nothing.npz", "-o", "out.npy", "--debug")
    assert result.code == 3
    assert "Traceback" in result.err


@pytest.mark.parametrize("words", [["-h"], ["size", "--help"], ["pack", "-h"], ["unpack", "-h"]])
def test_help_does_not_wait_for_numpy(words):
    code = f"""
import sys
from rnnconvert.cli.opaque import opaque
try:
    opaque({words!r})
except SystemExit as stop:
    assert not stop.code
assert "numpy" not in sys.modules
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("Usage: ")

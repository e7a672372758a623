"""Reading what TensorFlow wrote: every type, both versions, slices, shards, and how it is found."""

from __future__ import annotations

import math
import os
import shutil
import struct
from pathlib import Path

import numpy as np
import pytest
from checkpoint_files import (
    SAVER_VALUES,
    SLICED_VALUES,
    VERSION_1_TYPES,
    VERSION_2_TYPES,
    every_type,
    random_array,
    restored,
    same,
    save_v2,
    strings,
)
from models import ROOT, SHARED

from rnnconvert.containers.checkpoint import data_path, find_checkpoint, index_path, open_checkpoint
from rnnconvert.containers.checkpoint.bundle import Entry, encode_entry, lengths_crc
from rnnconvert.containers.checkpoint.crc32c import crc32c, masked
from rnnconvert.containers.checkpoint.table import open_table, write_table
from rnnconvert.containers.checkpoint.wire import encode_number, encode_part
from rnnconvert.errors import NotConvertibleError, UnreadableInputError, UsageError

CASES = {
    "types1": every_type(VERSION_1_TYPES),
    "types2": every_type(VERSION_2_TYPES),
    "sliced1": SLICED_VALUES,
    "sliced2": SLICED_VALUES,
    "saver1/model.ckpt-100": SAVER_VALUES,
    "saver2/model.ckpt-100": SAVER_VALUES,
    "saver1_sharded/model.ckpt-100": SAVER_VALUES,
    "saver2_sharded/model.ckpt-100": SAVER_VALUES,
}


@pytest.mark.parametrize("case", CASES)
def test_every_tensor_bit_for_bit(written, case):
    values = CASES[case]
    checkpoint = open_checkpoint(written / case)
    assert list(checkpoint.variables) == sorted(values, key=str.encode)
    for name, expected in values.items():
        info = checkpoint.variables[name]
        found = checkpoint.read(name)
        assert same(found, expected), name
        assert found.flags.writeable
        assert (info.shape, info.size) == (expected.shape, expected.size)
        assert info.dtype == ("string" if expected.dtype == object else expected.dtype.name)
    assert checkpoint.missing_shards == ()
    assert checkpoint.nbytes == sum(path.stat().st_size for path in checkpoint.files)
    assert str(checkpoint.version) in case.split("/")[0]


def test_slices_and_files_of_a_partitioned_variable(written):
    for version in (1, 2):
        checkpoint = open_checkpoint(written / f"saver{version}_sharded" / "model.ckpt-100")
        kernel = checkpoint.variables["rnn/kernel"]
        assert kernel.slices == (((0, 3), (0, 12)), ((3, 2), (0, 12)), ((5, 2), (0, 12)))
        assert [path.name[-15:] for path in kernel.files] == [checkpoint.files[-1].name[-15:]]
        assert checkpoint.variables["rnn/bias"].slices == ()
        assert checkpoint.variables["rnn/bias"].files != kernel.files


def test_names_that_are_not_there_are_key_errors(written):
    with pytest.raises(KeyError):
        open_checkpoint(written / "types2").read("no such name")


def test_object_checkpoint(tf, tmp_path):
    kernel = random_array("float32", (3, 5), 1)
    optimizer = tf.Module()
    optimizer.slot = tf.Variable(kernel + 1)
    saved = tf.train.Checkpoint(layer=tf.Module(), optimizer=optimizer)
    saved.layer.kernel = tf.Variable(kernel)
    saved.save(str(tmp_path / "ckpt"))
    checkpoint = open_checkpoint(tmp_path)
    assert same(checkpoint.read("layer/kernel/.ATTRIBUTES/VARIABLE_VALUE"), kernel)
    assert checkpoint.read("save_counter/.ATTRIBUTES/VARIABLE_VALUE") == 1
    assert b"optimizer" in checkpoint.read("_CHECKPOINTABLE_OBJECT_GRAPH").item()


def test_values_as_tensorflow_reads_them(tf, written):
    """The values above are compared with what was saved; here with TensorFlow's own reader."""
    for case in CASES:
        if case == "sliced2":
            continue  # TensorFlow reads no slices of float16
        pattern = "-?????-of-00002" if "saver1_sharded" in case else ""
        prefix = written / (case + pattern)
        reader = tf.train.load_checkpoint(str(prefix))
        checkpoint = open_checkpoint(prefix)
        assert {
            name: list(info.shape) for name, info in checkpoint.variables.items()
        } == reader.get_variable_to_shape_map()
        for name in checkpoint.variables:
            expected = restored(tf, prefix, name, checkpoint.variables[name].dtype)
            assert same(checkpoint.read(name), expected), name


def _genuine(*folders: Path) -> list[Path]:
    """The prefixes of all checkpoints in some folders."""
    indexes = (path.with_suffix("") for folder in folders for path in folder.rglob("*.index"))
    version_1 = (path for folder in folders for path in folder.rglob("*v1/model.ckpt"))
    return sorted([*indexes, *version_1])


@pytest.mark.parametrize(
    "folders",
    [(ROOT / "fixtures",), (SHARED / "fixtures", SHARED / "real-models")],
    ids=["fixtures", "beside the checkout"],
)
def test_genuine_checkpoints_as_tensorflow_reads_them(tf, folders):
    """TensorFlow 1.5 to 2.15 wrote them; the V2 ones of SavedModels are among them."""
    if not any(map(_genuine, folders)):
        pytest.skip("there are no checkpoints in this folder")
    read = 0
    for prefix in _genuine(*folders):
        checkpoint = open_checkpoint(prefix)
        if checkpoint.missing_shards:
            continue
        reader = tf.train.load_checkpoint(str(prefix))
        assert set(checkpoint.variables) == set(reader.get_variable_to_shape_map())
        for name, info in checkpoint.variables.items():
            expected = restored(tf, prefix, name, info.dtype)
            assert same(checkpoint.read(name), expected), (prefix, name)
            assert info.shape == expected.shape
            read += 1
    assert read


@pytest.mark.skipif(
    not (SHARED / "real-models" / "calamari_index_only").exists(),
    reason="no index without data beside the checkout",
)
def test_an_index_whose_data_was_never_published():
    checkpoint = open_checkpoint(SHARED / "real-models" / "calamari_index_only" / "0.ckpt.index")
    assert [path.name for path in checkpoint.missing_shards] == ["0.ckpt.data-00000-of-00001"]
    assert len(checkpoint.variables) == 28
    with pytest.raises(UnreadableInputError, match=r"^0\.ckpt\.data-00000-of-00001 is missing"):
        checkpoint.read(next(iter(checkpoint.variables)))


# --- big-endian machines --------------------------------------------------------------------


def test_big_endian_bundle(tf, tmp_path):
    """No such machine is at hand: the file is made here, and TensorFlow must read the same."""
    values = {
        "complex": np.array([[1 + 2j, -3.5j]], np.complex64),
        "kernel": np.random.default_rng(0).standard_normal((3, 5), np.float32),
        "step": np.array(-(2**40) - 3, np.int64),
        "text": strings([b"one", b"", b"three"], (3,)),
    }
    entries = {b"": encode_number(1, 1) + encode_number(2, 1) + encode_part(3, b"\x08\x01")}
    data = b""
    for name, value in values.items():
        if value.dtype == object:
            lengths = [len(text) for text in value]
            crc = lengths_crc(lengths, ">")
            tail = struct.pack(">I", masked(crc)) + b"".join(value)
            content, crc = bytes(lengths) + tail, crc32c(tail, crc)
        else:
            content = value.byteswap().tobytes()
            crc = crc32c(content)
        dtype = "string" if value.dtype == object else value.dtype.name
        entry = Entry(dtype, value.shape, 0, len(data), len(content), masked(crc))
        entries[name.encode()] = encode_entry(entry)
        data += content
    data_path(tmp_path / "big").write_bytes(data)
    with index_path(tmp_path / "big").open("wb") as file:
        write_table(file, sorted(entries.items()))
    reader = tf.train.load_checkpoint(str(tmp_path / "big"))
    checkpoint = open_checkpoint(tmp_path / "big")
    for name, value in values.items():
        assert same(checkpoint.read(name), value)
        assert np.array_equal(reader.get_tensor(name), value)


# --- types that numpy lacks -----------------------------------------------------------------


def test_types_without_a_counterpart_are_listed_but_not_read(tf, tmp_path):
    tensor = tf.quantization.quantize([0.5, 1.0], 0.0, 1.0, tf.quint8).output
    tf.raw_ops.SaveV2(
        prefix=str(tmp_path / "q"), tensor_names=["q"], shape_and_slices=[""], tensors=[tensor]
    )
    checkpoint = open_checkpoint(tmp_path / "q")
    assert checkpoint.variables["q"].dtype == "quint8"
    with pytest.raises(NotConvertibleError, match="quint8 has no counterpart in numpy"):
        checkpoint.read("q")


def test_bfloat16_without_its_package(written, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "ml_dtypes", None)
    checkpoint = open_checkpoint(written / "types2")
    assert checkpoint.variables["type/bfloat16"].dtype == "bfloat16"
    with pytest.raises(UsageError, match="bfloat16 needs the package ml_dtypes: install it"):
        checkpoint.read("type/bfloat16")


# --- finding --------------------------------------------------------------------------------


@pytest.fixture
def folder(written, tmp_path) -> Path:
    """Copies of small checkpoints of both versions in one folder, with no state file."""
    for version in (1, 2):
        for path in (written / f"saver{version}").iterdir():
            if path.name != "checkpoint":
                shutil.copy(path, tmp_path / path.name.replace("model", f"v{version}"))
    return tmp_path


@pytest.mark.parametrize(
    ("given", "version", "prefix"),
    [
        ("v2.ckpt-100", 2, "v2.ckpt-100"),
        ("v2.ckpt-100.index", 2, "v2.ckpt-100"),
        ("v2.ckpt-100.data-00000-of-00001", 2, "v2.ckpt-100"),
        ("v2.ckpt-100.meta", 2, "v2.ckpt-100"),
        ("v1.ckpt-100", 1, "v1.ckpt-100"),
        ("v1.ckpt-100.meta", 1, "v1.ckpt-100"),
        (".", 2, "v2.ckpt-100"),
    ],
)
def test_every_name_of_a_checkpoint(folder, given, version, prefix):
    found = find_checkpoint(folder / given)
    assert (found.version, found.prefix) == (version, folder / prefix)


@pytest.mark.parametrize(
    "given",
    ["model.ckpt-100", "model.ckpt-100-00001-of-00002", "model.ckpt-100-?????-of-00002", "."],
)
def test_every_name_of_a_version_1_checkpoint_in_shards(written, tmp_path, given):
    shutil.copytree(written / "saver1_sharded", tmp_path / "moved")
    found = find_checkpoint(tmp_path / "moved" / given)
    assert found.prefix == tmp_path / "moved" / "model.ckpt-100"
    assert [path.name for path in found.tables] == [
        "model.ckpt-100-00000-of-00002",
        "model.ckpt-100-00001-of-00002",
    ]


def test_the_content_decides_not_the_name(folder):
    (folder / "v1.ckpt-100").rename(folder / "weights.bin")
    assert find_checkpoint(folder / "weights.bin").version == 1
    assert find_checkpoint(folder / "v1.ckpt-100") is None
    (folder / "v2.ckpt-100.index").rename(folder / "v2.ckpt-100.old")
    found = find_checkpoint(folder / "v2.ckpt-100.old")
    assert found.version == 2
    assert same(open_checkpoint(found).read("rnn/bias"), SAVER_VALUES["rnn/bias"])


def test_a_directory_with_one_version_1_file(folder):
    for path in folder.glob("v2*"):
        path.unlink()
    assert find_checkpoint(folder).prefix == folder / "v1.ckpt-100"


@pytest.mark.parametrize(
    "content",
    ["", "text", "version https://git-lfs.github.com/spec/v1\n", "\0\0\x08\x03 idx", "\x89HDF"],
)
def test_other_files_are_no_checkpoint(tmp_path, content):
    for name in ("model.h5", "a.index", "checkpoint", "frozen.pb"):
        (tmp_path / name).write_text(content, encoding="latin-1")
        if "git-lfs" not in content or not name.endswith(".index"):
            assert find_checkpoint(tmp_path / name) is None
    assert find_checkpoint(tmp_path / "missing") is None
    assert find_checkpoint(tmp_path / "missing" / "deeper") is None
    if "git-lfs" not in content:
        assert find_checkpoint(tmp_path) is None


def test_a_savedmodel_directory_is_none_but_its_variables_are(tf, tmp_path):
    module = tf.Module()
    module.kernel = tf.Variable(random_array("float32", (3, 5)))
    tf.saved_model.save(module, str(tmp_path / "saved"))
    assert find_checkpoint(tmp_path / "saved") is None
    assert (
        "kernel/.ATTRIBUTES/VARIABLE_VALUE"
        in open_checkpoint(tmp_path / "saved" / "variables").variables
    )


# --- the state file -------------------------------------------------------------------------


@pytest.fixture
def state(folder) -> Path:
    """The state file of a folder that also holds a checkpoint in a folder below."""
    (folder / "below").mkdir()
    for path in folder.glob("v2.ckpt-100.[id]*"):
        shutil.copy(path, folder / "below" / path.name.replace("100", "7"))
    return folder / "checkpoint"


@pytest.mark.parametrize(
    ("written_path", "found"),
    [
        ("v2.ckpt-100", "v2.ckpt-100"),
        ("v1.ckpt-100", "v1.ckpt-100"),
        ("below/v2.ckpt-7", "below/v2.ckpt-7"),
        ("/gone/on/another/machine/v2.ckpt-100", "v2.ckpt-100"),
        (r"C:\\Users\\me\\v2.ckpt-100", "v2.ckpt-100"),
        (r"v2\056ckpt-1\x30\60", "v2.ckpt-100"),
        ("../elsewhere/v2.ckpt-100", "v2.ckpt-100"),
    ],
)
def test_the_state_file_names_the_checkpoint(state, written_path, found):
    state.write_text(
        f'model_checkpoint_path: "{written_path}"\nall_model_checkpoint_paths: "other"\n'
    )
    assert find_checkpoint(state.parent).prefix == state.parent / found
    assert find_checkpoint(state).prefix == state.parent / found


@pytest.mark.parametrize("written_path", ["gone", "/gone/x", "../v3", "", "..", r"a\000b", "."])
def test_a_state_file_that_names_nothing_in_its_directory(state, written_path):
    state.write_text(f'model_checkpoint_path: "{written_path}"\n')
    with pytest.raises(UnreadableInputError, match="which is not in its directory; give the path"):
        find_checkpoint(state.parent)


def test_a_state_file_never_leads_out_of_its_directory(folder, tmp_path):
    inner = folder / "inner"
    inner.mkdir()
    for elsewhere in (folder / "v2.ckpt-100", "../v2.ckpt-100"):
        (inner / "checkpoint").write_text(f'model_checkpoint_path: "{elsewhere}"\n')
        with pytest.raises(UnreadableInputError, match="not in its directory"):
            find_checkpoint(inner)


def test_several_checkpoints_without_a_state_file(folder):
    for path in folder.glob("v2.ckpt-100.[id]*"):
        shutil.copy(path, folder / path.name.replace("100", "200"))
    with pytest.raises(UsageError) as caught:
        find_checkpoint(folder)
    assert caught.value.message == (
        "the directory holds several checkpoints: v2.ckpt-100.index, v2.ckpt-200.index; "
        "give one of them"
    )


def test_odd_paths(folder, monkeypatch):
    monkeypatch.chdir(folder)
    assert find_checkpoint(Path()).version == 2
    assert find_checkpoint(Path("/")) is None
    with pytest.raises(UnreadableInputError, match="can't be read"):
        find_checkpoint(folder / ("x" * 300))


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no pipes")
def test_a_pipe_is_not_opened(folder):
    os.mkfifo(folder / "pipe.index")
    assert find_checkpoint(folder / "pipe.index") is None
    assert find_checkpoint(folder / "pipe") is None
    assert find_checkpoint(folder).version == 2


# --- many variables -------------------------------------------------------------------------


def test_an_index_of_many_blocks(tf, tmp_path):
    values = {
        f"{n * 2654435761 % 2**32:08x}/{'kernel' * (n % 9)}/{n}": np.array(n, np.int32)
        for n in range(6000)
    }
    save_v2(tf, tmp_path / "many", values)
    assert index_path(tmp_path / "many").stat().st_size > 2 * 2**17
    checkpoint = open_checkpoint(tmp_path / "many")
    assert list(checkpoint.variables) == sorted(values)
    for name in list(values)[::97]:
        assert checkpoint.read(name) == values[name]
    assert math.prod(checkpoint.variables[name].shape) == 1
    assert len(list(open_table(index_path(tmp_path / "many")).items())) == 6001

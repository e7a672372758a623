"""What our writer writes, read by TensorFlow; the input's values and TensorFlow are the oracles."""

from __future__ import annotations

import gc
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from checkpoint_files import (
    SAVER_VALUES,
    SLICED_VALUES,
    VERSION_1_TYPES,
    VERSION_2_TYPES,
    every_type,
    from_tensorflow,
    random_array,
    same,
    strings,
)

from rnnconvert.containers.checkpoint import (
    data_path,
    index_path,
    open_checkpoint,
    write_checkpoint,
)
from rnnconvert.containers.checkpoint.table import open_table
from rnnconvert.errors import NotConvertibleError, UnreadableInputError


def write(prefix: Path, tensors) -> Path:
    write_checkpoint(index_path(prefix), data_path(prefix), tensors)
    return prefix


def copy(source: Path, prefix: Path, **changed) -> Path:
    checkpoint = open_checkpoint(source)
    return write(prefix, {n: checkpoint.source(n) for n in checkpoint.variables} | changed)


def assert_tensorflow_reads(tf, prefix: Path, values: dict[str, np.ndarray]) -> None:
    reader = tf.train.load_checkpoint(str(prefix))
    shapes = reader.get_variable_to_shape_map()
    assert shapes == {name: list(value.shape) for name, value in values.items()}
    for name, value in values.items():
        assert same(from_tensorflow(reader.get_tensor(name)), value), name


def test_every_type(tf, tmp_path):
    values = every_type(VERSION_2_TYPES)
    assert_tensorflow_reads(tf, write(tmp_path / "model.ckpt-5", values), values)


def test_functions_in_any_order_and_memory_layouts(tf, tmp_path):
    kernel = random_array("int32", (5, 7, 3), 1)
    given = {
        "z": lambda: kernel,
        "a/fortran": np.asfortranarray(kernel),
        "a/big": kernel.astype(">i4"),
        "a/strided": kernel[::2, ::-1],
        "a/bytes": np.array([b"one", b"fourteen"]),
        "Ω": lambda: np.array(True),
    }
    expected = {
        "z": kernel,
        "a/fortran": kernel,
        "a/big": kernel,
        "a/strided": kernel[::2, ::-1],
        "a/bytes": strings([b"one", b"fourteen"], (2,)),
        "Ω": np.array(True),
    }
    assert_tensorflow_reads(tf, write(tmp_path / "model", given), expected)


def test_the_entries_are_tensorflows_own(tf, written, tmp_path):
    """Names in sorted order, so that TensorFlow's data file has our order: then all is the same."""
    source = written / "saver2" / "model.ckpt-100"
    copied = copy(source, tmp_path / "copied")
    assert data_path(copied).read_bytes() == data_path(source).read_bytes()
    ours, theirs = (
        [(key, bytes(value)) for key, value in open_table(index_path(prefix)).items()]
        for prefix in (copied, source)
    )
    assert ours == theirs


def test_strings_are_written_byte_for_byte_as_tensorflow_writes_them(tf, tmp_path):
    value = every_type([])["strings"]
    tf.raw_ops.SaveV2(
        prefix=str(tmp_path / "theirs"),
        tensor_names=["s"],
        shape_and_slices=[""],
        tensors=[tf.constant(value.reshape(-1).tolist(), shape=value.shape)],
    )
    write(tmp_path / "ours", {"s": value})
    assert data_path(tmp_path / "ours").read_bytes() == data_path(tmp_path / "theirs").read_bytes()
    ours, theirs = (
        [bytes(value) for _, value in open_table(index_path(tmp_path / name)).items()]
        for name in ("ours", "theirs")
    )
    assert ours == theirs


@pytest.mark.parametrize(
    ("case", "values"),
    [
        ("types1", every_type(VERSION_1_TYPES)),
        ("types2", every_type(VERSION_2_TYPES)),
        ("sliced1", SLICED_VALUES),
        ("saver1_sharded/model.ckpt-100", SAVER_VALUES),
        ("saver2_sharded/model.ckpt-100", SAVER_VALUES),
    ],
)
def test_copies(tf, written, tmp_path, case, values):
    assert_tensorflow_reads(tf, copy(written / case, tmp_path / "copy"), values)


def test_slices_stay_slices_and_can_be_restored_as_such(tf, written, tmp_path):
    copied = copy(written / "sliced2", tmp_path / "copy")
    theirs = open_checkpoint(written / "sliced2").variables
    for name, info in open_checkpoint(copied).variables.items():
        assert info.slices == (() if info.dtype == "string" else theirs[name].slices)
        assert same(open_checkpoint(copied).read(name), SLICED_VALUES[name])
    # "half" is left out: TensorFlow itself reads no slices of float16.
    for name, whole in (("wide", "4 130"), ("long", "300 4")):
        for spec, part in ((f"{whole} 1,3:2,2", np.s_[1:4, 2:4]), ("", np.s_[:])):
            found = tf.raw_ops.RestoreV2(
                prefix=str(copied),
                tensor_names=[name],
                shape_and_slices=[spec],
                dtypes=[SLICED_VALUES[name].dtype],
            )
            assert same(found[0].numpy(), SLICED_VALUES[name][part])


def test_a_copy_with_a_changed_tensor_restores_in_a_saver(tf, written, tmp_path):
    bias = random_array("float32", (11,), 5)
    source = written / "saver2_sharded" / "model.ckpt-100"
    copied = copy(source, tmp_path / "copy", **{"rnn/bias": bias, "new/tensor": np.float32(3)})
    v1 = tf.compat.v1
    with tf.Graph().as_default(), v1.Session() as session:
        with v1.variable_scope("rnn"):
            read_bias = v1.get_variable("bias", shape=bias.shape).value()
            kernel = v1.get_variable(
                "kernel", shape=(7, 12), partitioner=v1.fixed_size_partitioner(3)
            )
        v1.train.Saver().restore(session, str(copied))
        assert same(session.run(read_bias), bias)
        assert same(session.run(tf.convert_to_tensor(kernel)), SAVER_VALUES["rnn/kernel"])


def test_variants_are_copied_though_they_can_not_be_read(tf, tmp_path):
    iterator = iter(tf.data.Dataset.range(10))
    next(iterator)
    saved = tf.train.Checkpoint(iterator=iterator, step=tf.Variable(7))
    source = Path(saved.save(str(tmp_path / "ckpt")))
    variables = open_checkpoint(source).variables
    assert "variant" in {info.dtype for info in variables.values()}
    copied = copy(source, tmp_path / "copy")
    restored = iter(tf.data.Dataset.range(10))
    tf.train.Checkpoint(iterator=restored, step=tf.Variable(0)).restore(str(copied))
    assert next(restored).numpy() == 1


def test_an_index_of_many_blocks(tf, tmp_path):
    values = {
        f"{n * 2654435761 % 2**32:08x}/{'kernel' * (n % 9)}/{n}": np.array(n, np.int32)
        for n in range(6000)
    }
    prefix = write(tmp_path / "many", values)
    assert index_path(prefix).stat().st_size > 2**18
    reader = tf.train.load_checkpoint(str(prefix))
    assert len(reader.get_variable_to_shape_map()) == 6000
    assert all(reader.get_tensor(name) == values[name] for name in list(values)[::53])


def test_without_tensors(tf, tmp_path):
    prefix = write(tmp_path / "none", {})
    assert tf.train.load_checkpoint(str(prefix)).get_variable_to_shape_map() == {}
    assert open_checkpoint(prefix).variables == {}


def test_same_input_same_bytes(written, tmp_path):
    for name in ("one", "two"):
        copy(written / "types2", tmp_path / name)
    for path in (index_path, data_path):
        assert path(tmp_path / "one").read_bytes() == path(tmp_path / "two").read_bytes()


def test_copying_streams(tmp_path):
    """48 MB in one tensor: a copy holds one chunk of it, a read hardly more than the tensor."""
    source = write(tmp_path / "big", {"kernel": np.zeros((3, 2**22), np.float32)})
    gc.collect()
    tracemalloc.start()
    try:
        copy(source, tmp_path / "copy")
        copying = tracemalloc.get_traced_memory()[1]
        tracemalloc.reset_peak()
        open_checkpoint(source).read("kernel")
        reading = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert copying < 10e6
    assert reading < 58e6


# --- what can't be written ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("when", np.zeros(2, "datetime64[s]"), "'when': TensorFlow has no type for numpy's"),
        ("text", np.array(["a", "b"]), "'text': TensorFlow has no type for numpy's <U1"),
        ("mixed", np.array([b"a", 3], object), "'mixed': strings must be bytes, found int"),
        ("", np.zeros(2), "a variable can't have the name ''"),
        ("\0x", np.zeros(2), "a variable can't have the name '\\x00x'"),
    ],
)
def test_what_a_checkpoint_can_not_hold(tmp_path, name, value, message):
    with pytest.raises(NotConvertibleError) as caught:
        write(tmp_path / "model", {name: value})
    assert caught.value.message.startswith(message)


def test_a_damaged_source_is_not_copied(written, tmp_path):
    source = copy(written / "types2", tmp_path / "source")
    data = bytearray(data_path(source).read_bytes())
    data[len(data) // 2] ^= 4  # in "large", which is copied without being decoded
    data_path(source).write_bytes(data)
    with pytest.raises(UnreadableInputError, match="'large': wrong checksum"):
        copy(source, tmp_path / "copy")


def test_errors_of_the_file_system_come_through(tmp_path):
    with pytest.raises(FileNotFoundError):
        write(tmp_path / "missing" / "model", {"a": np.zeros(2)})

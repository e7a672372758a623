"""Values of every type, and checkpoints of them that TensorFlow itself wrote."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from rnnconvert.containers.checkpoint import open_checkpoint
from rnnconvert.containers.checkpoint.table import open_table, write_table
from rnnconvert.errors import UnreadableInputError

VERSION_1_TYPES = (
    "float16 float32 float64 complex64 complex128 int8 int16 int32 int64 uint8 uint16 bool".split()
)
VERSION_2_TYPES = [*VERSION_1_TYPES, "uint32", "uint64", "bfloat16", "float8_e5m2"]


def strings(values: list[bytes], shape: tuple[int, ...]) -> np.ndarray:
    array = np.empty(len(values), object)
    for place, value in enumerate(values):
        array[place] = value
    return array.reshape(shape)


def random_array(dtype: str, shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
    """Numbers over a type's whole range, NaN and infinities among the floats."""
    kind = np.dtype(getattr(ml_dtypes, dtype, dtype))
    generator = np.random.default_rng(seed)
    if dtype == "bool":
        return generator.integers(0, 2, shape).astype(bool)
    count = int(np.prod(shape)) * kind.itemsize
    return np.frombuffer(generator.bytes(count), kind).reshape(shape).copy()


def every_type(names: list[str]) -> dict[str, np.ndarray]:
    """A tensor of every type, and scalars, empty, long and large tensors."""
    values = {f"type/{name}": random_array(name, (3, 5), seed) for seed, name in enumerate(names)}
    return values | {
        "strings": strings(
            [b"", b"a\0b\0", b"x" * 300, "Grüße".encode(), b"\xff\xfe", b"\0"], (2, 3)
        ),
        "scalar_string": strings([b"object graph " * 40], ()),
        "scalar": np.array(-5, np.int64),
        "empty": np.zeros((0, 3), np.float32),
        "empty_strings": strings([], (0,)),
        "large": random_array("float32", (700, 501), 90),
        "a/very/long/name/" + "kernel" * 30: random_array("float32", (2, 3), 91),
    }


def same(found: np.ndarray, expected: np.ndarray) -> bool:
    """Bit for bit the same, type and shape included."""
    if found.dtype != expected.dtype or found.shape != expected.shape:
        return False
    if found.dtype == object:
        return found.reshape(-1).tolist() == expected.reshape(-1).tolist()
    return found.tobytes() == expected.tobytes()


def as_tensor(tf: Any, array: np.ndarray) -> Any:
    if array.dtype == object:
        return tf.constant(array.reshape(-1).tolist(), tf.string, shape=array.shape)
    return tf.constant(array)


def from_tensorflow(value: Any) -> np.ndarray:
    """What TensorFlow's reader gives, which is no array for a scalar."""
    return strings([value], ()) if isinstance(value, bytes) else np.asarray(value)


def restored(tf: Any, prefix: Path, name: str, dtype: str) -> np.ndarray:
    """A tensor as TensorFlow restores it, from either version."""
    found = tf.raw_ops.RestoreV2(
        prefix=str(prefix), tensor_names=[name], shape_and_slices=[""], dtypes=[tf.as_dtype(dtype)]
    )
    return from_tensorflow(found[0].numpy())


def save_v2(tf: Any, prefix: Path, values: dict[str, np.ndarray]) -> None:
    names = list(values)
    tensors = [as_tensor(tf, values[name]) for name in names]
    tf.raw_ops.SaveV2(
        prefix=str(prefix),
        tensor_names=names,
        shape_and_slices=[""] * len(names),
        tensors=tensors,
    )


def save_v1(tf: Any, path: Path, values: dict[str, np.ndarray]) -> None:
    names = list(values)
    tensors = [as_tensor(tf, values[name]) for name in names]
    tf.raw_ops.Save(filename=str(path), tensor_names=names, data=tensors)


def save_slices(tf: Any, folder: Path, values: dict[str, np.ndarray]) -> None:
    """Matrices cut into quarters that are not equal, in both versions of the format."""
    names, specs, tensors = [], [], []
    for name, value in values.items():
        rows, columns = value.shape
        for top, height in ((0, 2), (2, rows - 2)):
            for left, width in ((0, 1), (1, columns - 1)):
                names.append(name)
                specs.append(f"{rows} {columns} {top},{height}:{left},{width}")
                part = value[top : top + height, left : left + width]
                tensors.append(as_tensor(tf, part))
    tf.raw_ops.SaveV2(
        prefix=str(folder / "sliced2"), tensor_names=names, shape_and_slices=specs, tensors=tensors
    )
    tf.raw_ops.SaveSlices(
        filename=str(folder / "sliced1"), tensor_names=names, shapes_and_slices=specs, data=tensors
    )


def save_by_saver(tf: Any, folder: Path, values: dict[str, np.ndarray]) -> None:
    """What `tf.train.Saver` writes for variables on two devices, one of them partitioned."""
    v1 = tf.compat.v1
    kernel = values["rnn/kernel"]
    with tf.Graph().as_default():
        with tf.device("/cpu:0"):
            v1.get_variable("rnn/bias", initializer=values["rnn/bias"], use_resource=False)
        with tf.device("/cpu:1"), v1.variable_scope("rnn"):
            v1.get_variable(
                "kernel",
                shape=kernel.shape,
                initializer=lambda shape, dtype, partition_info: kernel[
                    partition_info.var_offset[0] :
                ][: shape[0]],
                partitioner=v1.fixed_size_partitioner(3),
                use_resource=False,
            )
            v1.get_variable("step", initializer=values["rnn/step"], use_resource=False)
        with v1.Session(config=v1.ConfigProto(device_count={"CPU": 2})) as session:
            session.run(v1.global_variables_initializer())
            for version in (1, 2):
                for sharded in (False, True):
                    saver = v1.train.Saver(sharded=sharded, write_version=version)
                    target = folder / f"saver{version}{'_sharded' if sharded else ''}"
                    target.mkdir()
                    saver.save(session, str(target / "model.ckpt"), global_step=100)


SAVER_VALUES = {
    "rnn/bias": random_array("float32", (7,), 31),
    "rnn/kernel": np.random.default_rng(32).standard_normal((7, 12), np.float32),
    "rnn/step": np.array(17, np.int64),
}
SLICED_VALUES = {
    "half": random_array("float16", (5, 3), 41),
    "wide": random_array("float64", (4, 130), 42),
    "long": random_array("int64", (300, 4), 43),
    "names": strings([b"one", b"", b"three", b"\0\0", b"5" * 200, b"six"] * 2, (4, 3)),
}


def edit_table(path: Path, edit: Callable[[dict[bytes, bytes]], None]) -> None:
    """Change the entries of a table and write it anew, with right checksums."""
    entries = {key: bytes(value) for key, value in open_table(path).items()}
    edit(entries)
    with path.open("wb") as file:
        write_table(file, sorted(entries.items()))


def refusal(path: Path) -> str:
    """The message with which a checkpoint is refused as it is opened or read; one line."""
    with pytest.raises(UnreadableInputError) as caught:
        read_all(path)
    assert "\n" not in caught.value.message
    return caught.value.message


def read_all(path: Path) -> dict[str, np.ndarray]:
    checkpoint = open_checkpoint(path)
    return {name: checkpoint.read(name) for name in checkpoint.variables}

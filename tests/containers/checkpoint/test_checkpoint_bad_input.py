"""Damaged, incomplete and hostile checkpoints: one clear line, or the right values."""

from __future__ import annotations

import random
import shutil
import struct
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from checkpoint_files import (
    SAVER_VALUES,
    SLICED_VALUES,
    edit_table,
    every_type,
    read_all,
    refusal,
    same,
    save_v1,
    save_v2,
)

from rnnconvert.containers.checkpoint import (
    CheckpointPath,
    data_path,
    find_checkpoint,
    index_path,
    open_checkpoint,
    write_checkpoint,
)
from rnnconvert.containers.checkpoint.bundle import Entry, encode_entry, encode_header
from rnnconvert.containers.checkpoint.crc32c import crc32c, masked
from rnnconvert.containers.checkpoint.slices import slice_key
from rnnconvert.containers.checkpoint.table import MAGIC, open_table, write_table
from rnnconvert.containers.checkpoint.wire import encode_number, encode_part, encode_varint
from rnnconvert.errors import ConversionError, UnreadableInputError

LFS = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n"
DAMAGED = "; the file is damaged, copy or download it again"


@pytest.fixture
def small(tmp_path) -> Path:
    """A small checkpoint; its index is `small.index`, its values 3 x 5 floats and a step."""
    values = {"kernel": np.arange(15, dtype="float32").reshape(3, 5), "step": np.array(7)}
    write_checkpoint(index_path(tmp_path / "small"), data_path(tmp_path / "small"), values)
    return tmp_path / "small"


@pytest.fixture
def copy(written, tmp_path) -> Callable[[str], Path]:
    """A copy of a checkpoint's folder that a test may damage; gives the folder."""

    def copy(case: str) -> Path:
        return Path(shutil.copytree(written / case, tmp_path / case))

    return copy


def table_of(*payloads: bytes, last_keys: tuple[bytes, ...] = ()) -> bytes:
    """A table whose blocks hold `payloads`, however wrong, under right checksums."""
    content = b""

    def add(payload: bytes) -> bytes:
        nonlocal content
        place = encode_varint(len(content)) + encode_varint(len(payload))
        content += payload + b"\0" + struct.pack("<I", masked(crc32c(payload + b"\0")))
        return place

    keys = last_keys or tuple(b"\xff" * (number + 1) for number in range(len(payloads)))
    handles = [(key, add(payload)) for key, payload in zip(keys, payloads, strict=True)]
    footer = add(block()) + add(block(*handles))
    return content + footer.ljust(40, b"\0") + MAGIC


def block(*items: tuple[bytes, bytes]) -> bytes:
    """A block of entries in any order, keys written in full."""
    entries = (
        b"\0" + encode_varint(len(key)) + encode_varint(len(value)) + key + value
        for key, value in items
    )
    return b"".join(entries) + struct.pack("<II", 0, 1)


def entry(
    dtype: int = 1,
    shape: tuple[int, ...] = (3, 5),
    size: int = 60,
    shard: int = 0,
    offset: int = 0,
    more: bytes = b"",
) -> bytes:
    """A BundleEntryProto of any content."""
    dims = b"".join(encode_part(2, encode_number(1, dim)) for dim in shape)
    return (
        encode_number(1, dtype)
        + encode_part(2, dims)
        + encode_number(3, shard)
        + encode_number(4, offset)
        + encode_number(5, size)
        + more
    )


# --- missing files --------------------------------------------------------------------------


def test_an_index_without_data_is_listed(small):
    data_path(small).unlink()
    checkpoint = open_checkpoint(small)
    assert checkpoint.missing_shards == (data_path(small),)
    assert checkpoint.variables["kernel"].shape == (3, 5)
    assert checkpoint.nbytes == index_path(small).stat().st_size
    with pytest.raises(UnreadableInputError) as caught:
        checkpoint.read("kernel")
    assert caught.value.message == (
        "small.data-00000-of-00001 is missing; it holds 'kernel', put it beside the .index file"
    )


def test_data_without_an_index(small):
    index_path(small).unlink()
    for given in (data_path(small), small):
        with pytest.raises(UnreadableInputError) as caught:
            find_checkpoint(given)
        assert caught.value.message == (
            f"small.index is missing; {given.name} is of no use without it, put it beside"
        )


def test_one_shard_missing_of_a_bundle(copy):
    prefix = copy("saver2_sharded") / "model.ckpt-100"
    data_path(prefix, 0, 2).unlink()
    checkpoint = open_checkpoint(prefix)
    assert checkpoint.missing_shards == (data_path(prefix, 0, 2),)
    assert same(checkpoint.read("rnn/kernel"), SAVER_VALUES["rnn/kernel"])
    with pytest.raises(UnreadableInputError, match="00000-of-00002 is missing; it holds 'rnn/bia"):
        checkpoint.read("rnn/bias")


def test_one_shard_missing_of_a_version_1_checkpoint(copy):
    folder = copy("saver1_sharded")
    (folder / "model.ckpt-100-00000-of-00002").unlink()
    checkpoint = open_checkpoint(folder / "model.ckpt-100")
    assert [path.name for path in checkpoint.missing_shards] == ["model.ckpt-100-00000-of-00002"]
    assert same(checkpoint.read("rnn/kernel"), SAVER_VALUES["rnn/kernel"])
    assert "rnn/bias" not in checkpoint.variables


def test_a_version_1_variable_half_of_which_is_missing(tf, tmp_path):
    value = np.arange(20, dtype="float32").reshape(4, 5)
    for shard in range(2):
        tf.raw_ops.SaveSlices(
            filename=str(tmp_path / f"v-0000{shard}-of-00002"),
            tensor_names=["kernel"],
            shapes_and_slices=[f"4 5 {2 * shard},2:-"],
            data=[value[2 * shard :][:2]],
        )
    assert same(open_checkpoint(tmp_path).read("kernel"), value)
    (tmp_path / "v-00001-of-00002").unlink()
    assert open_checkpoint(tmp_path).variables["kernel"].shape == (4, 5)
    assert refusal(tmp_path) == (
        "v-00001-of-00002: missing; parts of 'kernel' lie there, put it beside v-00000-of-00002"
    )


def test_git_lfs_pointers_are_named(small, tmp_path):
    text = "is a git-lfs pointer, not the file itself; run 'git lfs pull' to fetch it"
    index = index_path(small).read_bytes()
    index_path(small).write_text(LFS)
    assert refusal(small) == refusal(index_path(small)) == f"small.index {text}"
    index_path(small).write_bytes(index)
    data_path(small).write_text(LFS)
    assert refusal(small) == f"small.data-00000-of-00001 {text}"
    (tmp_path / "v1.ckpt").write_text(LFS)
    assert refusal(tmp_path / "v1.ckpt") == f"v1.ckpt {text}"


def test_no_checkpoint_at_all(tmp_path):
    assert refusal(tmp_path / "nothing") == (
        f"{tmp_path / 'nothing'} is no TensorFlow checkpoint; expected its prefix, its .index "
        "file, a version 1 file, or a directory with a 'checkpoint' file"
    )


# --- cut short and flipped ------------------------------------------------------------------


def test_files_that_are_cut_short(small, written, tmp_path):
    index, data = index_path(small).read_bytes(), data_path(small).read_bytes()
    data_path(small).write_bytes(data[:-1])
    assert refusal(small) == (
        "small.data-00000-of-00001: 'step' should end at byte 68, the file has 67; it is cut "
        "short, copy or download it again"
    )
    data_path(small).write_bytes(data)
    for length in (0, 1, 47, len(index) // 2, len(index) - 1):
        index_path(small).write_bytes(index[:length])
        assert refusal(small) == (
            "small.index has no TensorFlow table's end in its last 48 bytes: it is cut short or "
            f"another kind of file ({length} bytes); copy or download it again"
        )
    version_1 = (written / "types1").read_bytes()
    (tmp_path / "types1").write_bytes(version_1[: len(version_1) // 3])
    assert refusal(tmp_path / "types1").startswith("types1 has no TensorFlow table's end")


def test_wrong_checksums_of_data_and_index(small):
    index, data = index_path(small).read_bytes(), data_path(small).read_bytes()
    data_path(small).write_bytes(data[:20] + b"\x01" + data[21:])
    stored = masked(crc32c(data[:60]))
    found = masked(crc32c(data[:20] + b"\x01" + data[21:60]))
    assert refusal(small) == (
        f"small.data-00000-of-00001: 'kernel': wrong checksum: expected {stored:08x}, "
        f"found {found:08x}{DAMAGED}"
    )
    assert open_checkpoint(small).read("step") == 7
    index_path(small).write_bytes(index[:20] + bytes([index[20] ^ 1]) + index[21:])
    assert refusal(small).startswith("small.index: block at byte 0: wrong checksum: expected ")


def test_damaged_strings(tmp_path):
    value = np.array([b"one", b"", b"three"], object)
    prefix = tmp_path / "text"
    write_checkpoint(index_path(prefix), data_path(prefix), {"s": value})
    good = data_path(prefix).read_bytes()
    for place in range(len(good)):
        data_path(prefix).write_bytes(good[:place] + bytes([good[place] ^ 1]) + good[place + 1 :])
        assert refusal(prefix).startswith("text.data-00000-of-00001: 's': ")


def test_compressed_blocks_are_refused(small):
    payload = block((b"", encode_header()))
    content = bytearray(table_of(payload))
    content[len(payload)] = 1
    checksum = struct.pack("<I", masked(crc32c(content[: len(payload) + 1])))
    content[len(payload) + 1 : len(payload) + 5] = checksum
    index_path(small).write_bytes(content)
    assert refusal(small) == (
        "small.index: its blocks are compressed (kind 1), which no released TensorFlow does to a "
        "checkpoint; save it again with TensorFlow"
    )


# --- tables that lie ------------------------------------------------------------------------

HEADER = (b"", encode_header())
TEN = b"\xff" * 9 + b"\x01"
BAD_TABLES = {
    "out of order": (
        [block(HEADER, (b"b", b""), (b"a", b""))],
        "the key b'a' is not above the one before, b'b'",
    ),
    "twice": (
        [block(HEADER, (b"a", b""), (b"a", b""))],
        "the key b'a' is not above the one before, b'a'",
    ),
    "no header": ([block((b"a", b""))], "its header is missing"),
    "shared": ([b"\x05\x01\x00a" + struct.pack("<II", 0, 1)], "an entry is out of bounds"),
    "beyond": ([b"\x00\x7f\x00a" + struct.pack("<II", 0, 1)], "an entry is out of bounds"),
    "huge": ([b"\0" + TEN + b"\0" + struct.pack("<II", 0, 1)], "an entry is out of bounds"),
    "overlong": (
        [b"\x80" * 10 + b"\x01\0\0" + struct.pack("<II", 0, 1)],
        "a number has more than 64 bits",
    ),
    "65 bits": (
        [b"\xff" * 9 + b"\x02\0\0" + struct.pack("<II", 0, 1)],
        "a number has more than 64 bits",
    ),
    "number cut short": ([b"\x80" + struct.pack("<II", 0, 1)], None),
    "restarts": ([b"\0\0\0" + struct.pack("<I", 2**31)], "the list of restarts is longer"),
    "no block": ([b"\0"], "too short"),
    "empty block": ([block(HEADER), block()], "a block of entries is empty or out of order"),
    "blocks out of order": (
        [block(HEADER, (b"m", entry())), block((b"a", entry()))],
        "a block of entries is empty or out of order",
    ),
}


@pytest.mark.parametrize("case", BAD_TABLES)
def test_tables_that_lie(small, case):
    payloads, message = BAD_TABLES[case]
    keys = (b"m", b"z")[: len(payloads)]
    index_path(small).write_bytes(table_of(*payloads, last_keys=keys))
    found = refusal(small)
    assert found.startswith("small.index")
    assert found.endswith(DAMAGED)
    assert message is None or message in found


def test_a_block_must_end_where_its_index_says(small):
    index_path(small).write_bytes(table_of(block(HEADER, (b"m", b"")), last_keys=(b"a",)))
    assert "reaches beyond its place in the index" in refusal(small)


@pytest.mark.parametrize("case", ["beyond the file", "the same block twice", "more than a place"])
def test_an_index_that_points_elsewhere(small, case):
    payload = block(HEADER)
    place = encode_varint(0) + encode_varint(len(payload))
    handles = {
        "beyond the file": [(b"z", encode_varint(2**40) + encode_varint(2**62))],
        "the same block twice": [(b"y", place), (b"z", place)],
        "more than a place": [(b"z", place + b"\0")],
    }[case]
    content = payload + b"\0" + struct.pack("<I", masked(crc32c(payload + b"\0")))
    start = len(content)
    content += block(*handles) + b"\0"
    content += struct.pack("<I", masked(crc32c(content[start:])))
    footer = b"\0\0" + encode_varint(start) + encode_varint(len(content) - start - 5)
    index_path(small).write_bytes(content + footer.ljust(40, b"\0") + MAGIC)
    expected = "a block should end at byte" if case == "beyond the file" else "out of order"
    assert expected in refusal(small)


def test_keys_that_would_fill_the_memory(small):
    """100 kB that stand for 20,000 keys of 20 kB each: 400 MB."""
    long = b"\0" + encode_varint(20_000) + b"\0" + b"k" * 20_000
    more = (encode_varint(20_000 + n) + b"\x01\0a" for n in range(20_000))
    index_path(small).write_bytes(table_of(long + b"".join(more) + struct.pack("<II", 0, 1)))
    tracemalloc.start()
    try:
        assert "its keys are far longer than the block itself" in refusal(small)
        assert tracemalloc.get_traced_memory()[1] < 50e6
    finally:
        tracemalloc.stop()


# --- entries that lie -----------------------------------------------------------------------


BAD_ENTRIES = {
    "type": (entry(dtype=77), "data type 77 is unknown"),
    "no type": (entry(dtype=0), "data type 0 is unknown"),
    "negative": (entry(shape=(3, -5)), "the shape [3, -5] has a negative dimension"),
    "dimensions": (entry(shape=(1,) * 33), "33 dimensions; 32 are the most"),
    "large": (entry(shape=(2**31, 2**31, 2)), "the shape [2147483648, 2147483648, 2] is too large"),
    "large and empty": (entry(shape=(0, 2**62), size=0), "is too large"),
    "small": (entry(size=56), "float32 of shape [3, 5] takes 60 bytes, found 56"),
    "strings": (entry(dtype=7, size=3), "string of shape [3, 5] takes 15 bytes, found 3"),
    "negative size": (entry(dtype=21, size=-4), "-4 bytes at byte 0"),
    "negative offset": (entry(offset=-1), "60 bytes at byte -1"),
    "shard": (entry(shard=1), "data file 1 of 1"),
    "negative shard": (entry(shard=-1), "data file -1 of 1"),
    "unknown rank": (b"\x08\x01" + encode_part(2, b"\x18\x01"), "its shape is unknown"),
    "field cut short": (entry() + b"\x3a\x7f", "a field of 127 bytes is cut short"),
    "group": (entry() + b"\x3b", "wire type 3 is unknown"),
    "bytes for a number": (b"\x0a\x00", "field 1 is not a number"),
    "number for bytes": (b"\x08\x01\x10\x05", "field 2 is a number, not bytes"),
    "two shapes": (entry() + b"\x12\x00", "field 2 stands 2 times"),
}


@pytest.mark.parametrize("case", BAD_ENTRIES)
def test_entries_that_lie(small, case):
    value, message = BAD_ENTRIES[case]
    edit_table(index_path(small), lambda entries: entries.update({b"kernel": value}))
    found = refusal(small)
    assert found.startswith("small.index: entry b'kernel': ")
    assert message in found
    assert found.endswith(DAMAGED)


BAD_HEADERS = {
    "no files": (b"\x10\x00", "0 data files; expected 1 to 99999"),
    "many files": (encode_number(1, 2**31), "2147483648 data files; expected 1 to 99999"),
    "byte order": (b"\x08\x01\x10\x02", "byte order 2 is unknown"),
    "later": (b"\x08\x01\x1a\x04\x08\x02\x10\x02", "it needs a reader of version 2"),
}


@pytest.mark.parametrize("case", BAD_HEADERS)
def test_headers_that_lie(small, case):
    value, message = BAD_HEADERS[case]
    edit_table(index_path(small), lambda entries: entries.update({b"": value}))
    assert message in refusal(small)


def test_tensors_that_share_bytes(small):
    """Otherwise a small data file could stand for any number of large tensors."""
    edit_table(index_path(small), lambda entries: entries.update({b"b": entry(offset=4)}))
    assert "two tensors share byte 4 of data file 0" in refusal(small)


def test_an_offset_beyond_the_file(small):
    edit_table(index_path(small), lambda entries: entries.update({b"x": entry(offset=2**62)}))
    assert "'x' should end at byte 4611686018427387964, the file has 68" in refusal(small)


def test_a_name_that_is_not_text(small):
    edit_table(index_path(small), lambda entries: entries.update({b"\xfe": entry(offset=100)}))
    assert "the name b'\\xfe' is not UTF-8" in refusal(small)


# --- slices that lie ------------------------------------------------------------------------


def sliced(prefix: Path, slices: list, stored: list | None = None, dtype: str = "float32") -> Path:
    """A variable "k" of shape (4, 6) that claims `slices` and has entries for `stored`."""
    entries = {b"": encode_header(), b"k": encode_entry(Entry("float32", (4, 6), slices=slices))}
    offset = 0
    for extents in stored if stored is not None else slices:
        shape = tuple(length for _, length in extents)
        size = max(4 * int(np.prod(shape)), 0)
        checksum = masked(crc32c(bytes(size)))
        part = Entry(dtype, shape, 0, offset, size, checksum)
        entries[slice_key("k", extents)] = encode_entry(part)
        offset += size
    data_path(prefix).write_bytes(bytes(offset))
    with index_path(prefix).open("wb") as file:
        write_table(file, sorted(entries.items()))
    return prefix


TOP, BOTTOM = ((0, 1), (0, 6)), ((1, 3), (0, 6))


def test_slices_that_fit_are_read(tmp_path):
    assert np.array_equal(read_all(sliced(tmp_path / "s", [TOP, BOTTOM]))["k"], np.zeros((4, 6)))


@pytest.mark.parametrize(
    ("slices", "stored", "message"),
    [
        ([TOP], None, "'k' has 24 elements, its slices hold 6"),
        ([TOP, BOTTOM, TOP], [TOP, BOTTOM], "it has slices that no variable names"),
        ([TOP, BOTTOM], [TOP], "the slice [(1, 3), (0, 6)] of 'k' is missing"),
        ([TOP, BOTTOM], [TOP, BOTTOM, ((0, 2), (0, 6))], "slices that no variable names"),
        ([((0, 5), (0, 6))], None, "a slice [(0, 5), (0, 6)] lies outside of the shape [4, 6]"),
        ([((-1, 4), (0, 6))], None, "a slice [(-1, 4), (0, 6)] lies outside"),
        ([((0, 4), (2, -3))], [], "a slice [(0, 4), (2, -3)] lies outside"),
        ([((0, 2**63 - 1), (0, 6))], [], "lies outside of the shape [4, 6]"),
        ([((0, 4),)], None, "a slice has 1 dimensions, its variable 2"),
        ([((0, 3), (0, 6)), ((2, 1), (0, 6))], None, "two slices of 'k' overlap"),
    ],
)
def test_slices_that_lie(tmp_path, slices, stored, message):
    assert message in refusal(sliced(tmp_path / "s", slices, stored))


def test_a_slice_of_another_type(tmp_path):
    prefix = sliced(tmp_path / "s", [TOP, BOTTOM], dtype="int32")
    assert "expected float32 of shape [1, 6], found int32 of shape [1, 6]" in refusal(prefix)


# --- version 1 that lies --------------------------------------------------------------------


def version_1(path: Path, dtype: int, data: bytes, shape: tuple[int, ...] = (3,), name="k") -> Path:
    """One variable "k" with a TensorProto of any content."""
    whole = ((0, -1),) * len(shape)
    extents = b"".join(encode_part(1, b"") for _ in shape)
    dims = b"".join(encode_part(2, encode_number(1, dim)) for dim in shape)
    meta = (
        encode_part(1, b"k") + encode_part(2, dims) + encode_number(3, dtype)
        + encode_part(4, extents)
    )  # fmt: skip
    saved = encode_part(1, name.encode()) + encode_part(2, extents) + encode_part(3, data)
    with path.open("wb") as file:
        items = [
            (b"", encode_part(1, encode_part(1, meta))),
            (slice_key("k", whole), encode_part(2, saved)),
        ]
        write_table(file, items)
    return path


FLOATS = encode_part(5, np.arange(3, dtype="<f4").tobytes())


def test_version_1_by_hand_is_read(tmp_path):
    assert np.array_equal(read_all(version_1(tmp_path / "a", 1, FLOATS))["k"], [0, 1, 2])
    assert np.array_equal(
        read_all(version_1(tmp_path / "b", 9, encode_part(10, TEN + b"\x05\x00")))["k"], [-1, 5, 0]
    )


@pytest.mark.parametrize(
    ("dtype", "data", "shape", "message"),
    [
        (1, FLOATS, (4,), "expected 16 bytes or strings, found 12"),
        (1, FLOATS, (2**40,), "expected 4398046511104 bytes or strings, found 12"),
        (1, b"", (3,), "expected 12 bytes or strings, found 0"),
        (1, b"\x2d\0\0\0\0", (1,), "field 5 is a number, not bytes"),
        (3, encode_part(7, b"\x01\x02"), (3,), "expected 3 numbers, found 2"),
        (3, encode_part(7, b"\x01\x02\x83"), (3,), "expected 3 numbers, found 2"),
        (3, encode_part(7, b"\x01\x02\x03\x84"), (3,), "expected 3 numbers, found 3"),
        (9, encode_part(10, b"\x80" * 10 + b"\x01"), (1,), "a number has more than 64 bits"),
        (9, encode_part(10, b"\xff" * 9 + b"\x02"), (1,), "a number has more than 64 bits"),
        (4, encode_part(7, b"\x80\x02"), (1,), "some of its numbers are out of range for uint8"),
        (19, encode_part(13, TEN), (1,), "some of its numbers are out of range for uint16"),
        (10, encode_part(11, b"\x02"), (1,), "some of its numbers are out of range for bool"),
        (7, encode_part(8, b"a") * 2, (3,), "expected 3 bytes or strings, found 2"),
        (77, b"", (1,), "data type 77 is unknown"),
    ],
)
def test_version_1_values_that_lie(tmp_path, dtype, data, shape, message):
    found = refusal(version_1(tmp_path / "model.ckpt", dtype, data, shape))
    assert found.startswith("model.ckpt: ")
    assert message in found


@pytest.mark.parametrize("payloads", [(), (block((b"a", b"")),)])
def test_version_1_without_its_contents(tmp_path, payloads):
    """A footer with a flipped bit can point to an empty index: not a checkpoint of nothing."""
    path = tmp_path / "model.ckpt"
    path.write_bytes(table_of(*payloads))
    with pytest.raises(UnreadableInputError, match="its table of contents is missing"):
        open_checkpoint(CheckpointPath(path, 1, (path,)))


def test_version_1_entry_of_another_variable(tmp_path):
    assert "the entry holds another variable or slice than its key says" in refusal(
        version_1(tmp_path / "model.ckpt", 1, FLOATS, name="other")
    )


def test_version_1_types_it_does_not_know(tmp_path):
    with pytest.raises(ConversionError, match="version 1 checkpoints don't hold uint64"):
        read_all(version_1(tmp_path / "model.ckpt", 23, b""))


def test_version_1_entry_that_is_missing(tmp_path):
    path = version_1(tmp_path / "model.ckpt", 1, FLOATS)
    edit_table(path, lambda entries: entries.pop(slice_key("k", ((0, -1),))))
    assert "the entry b'\\x00k\\x00\\x01\\x01\\x01\\x80\\x7f' is missing" in refusal(path)


def test_version_1_files_that_contradict_each_other(tf, tmp_path):
    for shard, columns in enumerate((5, 7)):
        tf.raw_ops.SaveSlices(
            filename=str(tmp_path / f"v-0000{shard}-of-00002"),
            tensor_names=["kernel"],
            shapes_and_slices=[f"4 {columns} {2 * shard},2:-"],
            data=[np.zeros((2, columns), np.float32)],
        )
    assert "'kernel' has another type or shape than in other files" in refusal(tmp_path)


def test_version_1_slices_without_data_do_not_fill_the_memory(tmp_path):
    """Two slices of 4 TB, in a file of 200 bytes."""
    half = 2**40
    shape = encode_part(2, encode_part(2, encode_number(1, 2 * half)))
    slices = b"".join(
        encode_part(4, encode_part(1, encode_number(1, start) + encode_number(2, half)))
        for start in (0, half)
    )
    meta = encode_part(1, b"k") + shape + encode_number(3, 1) + slices
    with (tmp_path / "model.ckpt").open("wb") as file:
        write_table(file, [(b"", encode_part(1, encode_part(1, meta)))])
    assert "'k' has more elements than its files have bytes" in refusal(tmp_path / "model.ckpt")


# --- random damage --------------------------------------------------------------------------


def small_values() -> dict[str, np.ndarray]:
    values = every_type(["float32", "int64", "bool", "float16"])
    return {name: value for name, value in values.items() if value.size < 100}


@pytest.fixture(scope="module")
def victims(tf, written, tmp_path_factory) -> dict[str, tuple[Path, dict[str, np.ndarray]]]:
    """Small checkpoints with what they hold; each file in turn gets damaged."""
    folder = tmp_path_factory.mktemp("victims")
    save_v1(tf, folder / "one", small_values())
    save_v2(tf, folder / "two", small_values())
    found = {"one": (folder / "one", small_values()), "two": (folder / "two", small_values())}
    for case in ("sliced1", "sliced2"):
        found[case] = (written / case, SLICED_VALUES)
    return found


def damage(content: bytes, chance: random.Random) -> bytes:
    """A few bytes flipped, overwritten, cut off, doubled or taken out."""
    changed = bytearray(content)
    for _ in range(chance.choice([1, 1, 2, 5])):
        place = chance.randrange(len(changed))
        kind = chance.randrange(5)
        if kind == 0:
            changed[place] ^= 1 << chance.randrange(8)
        elif kind == 1:
            changed[place] = chance.choice([0, 1, 0x7F, 0x80, 0xFF])
        elif kind == 2:
            del changed[max(place, 1) :]
        elif kind == 3:
            changed[place:place] = changed[place : place + chance.randrange(1, 9)]
        else:
            del changed[place : place + chance.randrange(1, 9)]
        if not changed:
            return b""
    return bytes(changed)


CASES = 80
"""Of each kind and checkpoint; the seeds are fixed."""


@pytest.mark.parametrize("case", ["one", "two", "sliced1", "sliced2"])
def test_random_damage_gives_the_right_values_or_one_clear_line(victims, tmp_path, case):
    source, values = victims[case]
    files = open_checkpoint(source).files
    chance = random.Random(case)
    messages: list[str] = []
    for _ in range(CASES):
        for file in files:
            shutil.copyfile(file, tmp_path / file.name)
        victim = chance.choice(files)
        (tmp_path / victim.name).write_bytes(damage(victim.read_bytes(), chance))
        try:
            found = read_all(tmp_path / source.name)
        except UnreadableInputError as error:
            messages.append(error.message)
        else:
            assert all(same(found[name], values[name]) for name in values)
            assert set(found) == set(values)
    assert len(messages) > 50
    assert not any("\n" in message for message in messages)


@pytest.mark.parametrize("case", ["one", "two", "sliced1", "sliced2"])
@pytest.mark.sampled(2)
def test_random_damage_under_right_checksums_ends_in_values_or_one_clear_line(
    victims, tmp_path, case
):
    """So that damage gets past the blocks' checksums, as a hostile file would."""
    source, _ = victims[case]
    files = open_checkpoint(source).files
    for file in files:
        shutil.copyfile(file, tmp_path / file.name)
    table = tmp_path / files[0].name
    payload = block(*((key, bytes(value)) for key, value in open_table(files[0]).items()))
    chance = random.Random(case)
    messages: list[str] = []
    tracemalloc.start()
    try:
        for _ in range(CASES):
            table.write_bytes(table_of(damage(payload, chance)))
            try:
                read_all(tmp_path / source.name)
            except ConversionError as error:
                messages.append(error.message)
        assert tracemalloc.get_traced_memory()[1] < 20e6
    finally:
        tracemalloc.stop()
    assert len(messages) > 25
    assert not any("\n" in message for message in messages)

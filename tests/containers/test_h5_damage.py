"""Damaged HDF5 files: exit code 3 and one line, whatever is damaged and wherever it is noticed."""

from __future__ import annotations

import os
import random
import struct
import subprocess
import sys
import time
from pathlib import Path

import h5py
import numpy as np
import pytest
from helpers import make_model_h5
from models import SHARED

import rnnconvert
from rnnconvert.containers import safe_h5
from rnnconvert.containers.h5_stream import PythonFile
from rnnconvert.containers.h5_texts import UNTOLD, claimed_by
from rnnconvert.errors import ConversionError, UnreadableInputError

ATTACKS = SHARED / "attacks"
HEAP = b"GCOL\x01\0\0\0"


def damaged(path: Path, at: int, content: bytes) -> Path:
    data = bytearray(path.read_bytes())
    data[at : at + len(content)] = content
    path.write_bytes(data)
    return path


def heap_of(path: Path) -> int:
    """Where the heap with the model's config begins."""
    return path.read_bytes().index(HEAP)


def free_object(path: Path) -> int:
    """Where the free space of the heap is described: the object with the number 0."""
    data, at = path.read_bytes(), heap_of(path) + 16
    while struct.unpack_from("<H", data, at)[0]:
        at += 16 + (struct.unpack_from("<Q", data, at + 8)[0] + 7) // 8 * 8
    return at


# --- the heap of texts ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("field", "value"),
    [("free", 0), ("free", 2**64 - 16), ("free", 10**6), ("first", 2**64 - 8), ("first", 2**63)],
)
@pytest.mark.parametrize("layers", [2, 60], ids=["small", "read in two pieces"])
def test_a_heap_that_contradicts_itself_is_refused(tmp_path, field, value, layers):
    """The free object of size 0 is what the HDF5 library loops on for ever."""
    names = [f"layer_{index}" for index in range(layers)]
    model = make_model_h5(
        tmp_path / "m.h5", cells=["gru"] * layers, names=names, units=[3, 4] * (layers // 2)
    )
    at = free_object(model) if field == "free" else heap_of(model) + 16
    damaged(model, at + 8, struct.pack("<Q", value))
    start = time.monotonic()
    for work in (rnnconvert.inspect, rnnconvert.convert):
        with pytest.raises(
            UnreadableInputError, match=r"m\.h5: the global heap at byte \d+ contra"
        ):
            work(model)
    assert time.monotonic() - start < 5
    assert [path.name for path in tmp_path.iterdir()] == ["m.h5"]


@pytest.mark.parametrize("options", [{}, {"libver": "latest"}, {"userblock_size": 1024}])
def test_sound_heaps_of_every_kind_are_read(tmp_path, options):
    path = tmp_path / "texts.h5"
    with h5py.File(path, "w", **options) as file:
        for index in range(40):
            file.create_group(f"g{index}").attrs["text"] = "x" * (997 * index)
        file["group"] = h5py.Empty("f")
    with safe_h5.open_h5(path) as file:
        for index in range(40):
            assert safe_h5.text_attribute(file[f"g{index}"], "text") == "x" * (997 * index)


def test_a_file_with_four_byte_lengths_is_read(tmp_path):
    """Not written by any Keras, but sound."""
    properties = h5py.h5p.create(h5py.h5p.FILE_CREATE)
    properties.set_sizes(4, 4)
    name = tmp_path / "small.h5"
    with h5py.File(h5py.h5f.create(str(name).encode(), fcpl=properties)) as file:
        file.attrs["text"] = "some text"
    with safe_h5.open_h5(name) as file:
        assert safe_h5.text_attribute(file, "text") == "some text"


def test_weights_that_look_like_a_heap_are_read(tmp_path):
    """Only eight bytes are the same; what follows is no heap that reaches beyond what is read."""
    path = tmp_path / "values.h5"
    values = np.frombuffer(HEAP + struct.pack("<Q", 2**40) + bytes(48), np.float32)
    with h5py.File(path, "w") as file:
        file["values"] = values
    with safe_h5.open_h5(path) as file:
        assert safe_h5.get_dataset(file, "values")[()].tobytes() == values.tobytes()


# --- texts longer than the file -------------------------------------------------------------


def test_a_text_longer_than_the_file_costs_no_memory(tmp_path):
    model = make_model_h5(tmp_path / "m.h5")
    data = model.read_bytes()
    with h5py.File(model) as file:
        length = len(file.attrs["model_config"])
    reference = struct.pack("<IQ", length, heap_of(model))
    damaged(model, data.index(reference), struct.pack("<I", 2**32 - 1))
    start = time.monotonic()
    with pytest.raises(UnreadableInputError, match="/: its text attributes claim to be longer"):
        rnnconvert.inspect(model)
    assert time.monotonic() - start < 2


def claimed_in(path: Path, name: str) -> int:
    """What the texts of one object claim, read without the HDF5 library."""
    with h5py.File(path) as file:
        properties = file.id.get_create_plist()
        address = h5py.h5o.get_info(file[name].id).addr
        return claimed_by(path, properties.get_userblock(), address, properties.get_sizes())


@pytest.mark.parametrize("libver", ["earliest", "v110", "latest"])
@pytest.mark.parametrize("userblock", [0, 1024])
def test_lengths_of_texts_are_added_up_as_they_are(tmp_path, libver, userblock):
    path = tmp_path / "texts.h5"
    with h5py.File(path, "w", libver=libver, userblock_size=userblock) as file:
        group = file.create_group("group", track_order=True)
        for index in range(7):
            group.attrs[f"text{index}"] = ["x" * (100 * index), "yy"]
        for index in range(30):  # a header that goes on elsewhere, or attributes that are apart
            file.attrs[f"number{index}"] = np.zeros(50)
        file.attrs["text"] = "z" * 77
    assert claimed_in(path, "/") == 77
    assert claimed_in(path, "group") == 100 * 21 + 14


@pytest.mark.parametrize(
    "options", [{"libver": "latest"}, {"libver": "v110", "userblock_size": 512}]
)
@pytest.mark.parametrize("count", [9, 30, 1500], ids=["one block", "some", "trees of nodes"])
def test_texts_of_attributes_that_are_kept_apart_are_counted(tmp_path, options, count):
    """In a "fractal heap", where newer forms of the file put more than eight; also large ones."""
    path = tmp_path / "texts.h5"
    with h5py.File(path, "w", **options) as file:
        group = file.create_group("group")
        for index in range(count):
            group.attrs[f"text{index}"] = "x" * (index + 1)
            if index % 10 == 0:
                group.attrs[f"numbers{index}"] = np.zeros(20)
        group.attrs["names"] = ["y" * 3] * 300  # larger than a heap takes them
    assert claimed_in(path, "group") == count * (count + 1) // 2 + 900
    with safe_h5.open_h5(path) as file:
        for index in range(0, count, 7):
            assert safe_h5.text_attribute(file["group"], f"text{index}") == "x" * (index + 1)


def checksum(data: bytes) -> int:
    """Bob Jenkins' lookup3 (hashlittle, public domain), by which HDF5 knows damage."""

    def turn(value: int, count: int) -> int:
        return (value << count | value >> 32 - count) & 0xFFFFFFFF

    a = b = c = 0xDEADBEEF + len(data) & 0xFFFFFFFF
    words = [int.from_bytes(data[at : at + 4], "little") for at in range(0, len(data), 4)]
    while len(words) > 3:
        a, b, c = (a + words[0]) % 2**32, (b + words[1]) % 2**32, (c + words[2]) % 2**32
        del words[:3]
        a, c = (a - c) % 2**32 ^ turn(c, 4), (c + b) % 2**32
        b, a = (b - a) % 2**32 ^ turn(a, 6), (a + c) % 2**32
        c, b = (c - b) % 2**32 ^ turn(b, 8), (b + a) % 2**32
        a, c = (a - c) % 2**32 ^ turn(c, 16), (c + b) % 2**32
        b, a = (b - a) % 2**32 ^ turn(a, 19), (a + c) % 2**32
        c, b = (c - b) % 2**32 ^ turn(b, 4), (b + a) % 2**32
    words += [0] * (3 - len(words))
    a, b, c = (a + words[0]) % 2**32, (b + words[1]) % 2**32, (c + words[2]) % 2**32
    for first, count in ((2, 14), (0, 11), (1, 25), (2, 16), (0, 4), (1, 14), (2, 24)):
        numbers = [a, b, c]
        other = numbers[first - 1]
        numbers[first] = ((numbers[first] ^ other) - turn(other, count)) % 2**32
        a, b, c = numbers
    return c


def test_one_of_them_that_claims_too_much_costs_no_memory(tmp_path):
    """The block that it lies in has a checksum, which is right again."""
    path = tmp_path / "texts.h5"
    with h5py.File(path, "w", libver="latest") as file:
        for index in range(9):
            file.attrs[f"text{index}"] = "x" * (1000 + index)
    data = path.read_bytes()
    reference = struct.pack("<IQ", 1007, heap_of(path))
    assert data.count(reference) == 1
    start = data.index(b"FHDB")
    at = start + 4 + 1 + 8 + 5  # of the checksum, behind the heap's address and the block's place
    old = int.from_bytes(data[at : at + 4], "little")

    def right(content: bytes, size: int) -> int:
        return checksum(content[start:at] + bytes(4) + content[at + 4 : start + size])

    size = next(size for size in (512, 1024, 2048, 4096) if right(data, size) == old)
    changed = damaged(path, data.index(reference), struct.pack("<I", 2**32 - 1)).read_bytes()
    damaged(path, at, struct.pack("<I", right(changed, size)))
    began = time.monotonic()
    with (
        safe_h5.open_h5(path) as file,
        pytest.raises(UnreadableInputError, match="text attributes claim to be longer"),
    ):
        safe_h5.text_attribute(file, "text7")
    assert time.monotonic() - began < 2


@pytest.mark.parametrize("signature", [b"FRHP", b"BTHD", b"BTLF"])
def test_what_can_not_be_counted_is_refused(tmp_path, signature):
    path = tmp_path / "texts.h5"
    with h5py.File(path, "w", libver="latest") as file:
        for index in range(40):
            file.attrs[f"text{index}"] = "x"
    with h5py.File(path) as file:
        address = h5py.h5o.get_info(file.id).addr
    damaged(path, path.read_bytes().index(signature), b"????")
    assert claimed_by(path, 0, address, (8, 8)) == UNTOLD


def test_names_that_are_no_text_are_refused(tmp_path):
    path = tmp_path / "names.h5"
    with h5py.File(path, "w") as file:
        file.create_group(b"layers\xff")
    with pytest.raises(UnreadableInputError, match="refused as unsafe: the name b'layers"):
        rnnconvert.inspect(path)


# --- whatever else --------------------------------------------------------------------------


def test_half_of_a_file_in_zeros(cli, tmp_path):
    """A download that was interrupted, and whose end was reserved already."""
    model = make_model_h5(tmp_path / "m.h5", units=[40, 30])
    size = model.stat().st_size
    damaged(model, size // 2, bytes(size - size // 2))
    for command in ("inspect", "cudnn-to-keras"):
        result = cli(command, "m.h5", *(["--verify", "weights"] if command != "inspect" else []))
        assert result.code == 3
        assert len(result.err.splitlines()) == 1
        assert result.err.startswith("error: m.h5: ")


def test_one_damaged_file_stops_no_batch(cli, tmp_path):
    for name in ("a.h5", "b.h5", "c.h5"):
        make_model_h5(tmp_path / name)
    size = (tmp_path / "b.h5").stat().st_size
    damaged(tmp_path / "b.h5", size // 4, bytes(size // 2))
    result = cli("cudnn-to-keras", "a.h5", "b.h5", "c.h5", "--verify", "weights", "-q")
    assert result.code == 3
    assert (tmp_path / "a.portable.h5").exists()
    assert (tmp_path / "c.portable.h5").exists()
    assert cli("inspect", "a.h5", "b.h5", "c.h5").code == 3


def test_only_errors_of_ours_leave_the_api(tmp_path):
    """Bytes changed anywhere: each run ends well, or in an error with a documented code."""
    generator = random.Random(12)
    original = make_model_h5(tmp_path / "m.h5").read_bytes()
    model, output = tmp_path / "x.h5", tmp_path / "out.h5"
    codes = []
    for _ in range(120):
        data = bytearray(original)
        for _ in range(generator.choice((1, 4, 12))):
            data[generator.randrange(len(data))] = generator.choice((0, 1, 0x7F, 0x80, 0xFF))
        model.write_bytes(data)
        for work in (rnnconvert.inspect, rnnconvert.convert):
            arguments = {"verify": "weights", "force": True} if work is rnnconvert.convert else {}
            try:
                work(model, *([output] if arguments else []), **arguments)
            except ConversionError as error:
                codes.append(error.exit_code)
    assert 3 in codes
    assert set(codes) <= {3, 4}


def test_what_nobody_foresaw_is_one_line(cli, tmp_path, monkeypatch):
    make_model_h5(tmp_path / "m.h5")

    def broken(*_: object) -> None:
        raise NotImplementedError("of some kind")

    monkeypatch.setattr(safe_h5, "strings", broken)
    for command in (["inspect"], ["cudnn-to-keras"], ["verify", "m.h5"]):
        result = cli(*command, "m.h5")
        assert result.code == 3
        assert result.err.count("\n") == 1
        assert "NotImplementedError: of some kind" in result.err


def test_too_little_memory_has_a_message(cli, tmp_path, monkeypatch):
    make_model_h5(tmp_path / "m.h5")

    def greedy(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr(safe_h5, "strings", greedy)
    result = cli("cudnn-to-keras", "m.h5")
    assert (result.code, result.err) == (
        3,
        "error: m.h5: there is not enough memory for this model\n",
    )


def test_a_disk_that_can_not_be_read_is_no_damage(tmp_path, monkeypatch):
    model = make_model_h5(tmp_path / "m.h5")

    def broken(self: PythonFile, buffer: object) -> int:
        self.failure = OSError(5, "Input/output error")
        raise self.failure

    monkeypatch.setattr(PythonFile, "readinto", broken)
    with pytest.raises(UnreadableInputError, match="can't be read: Input/output error"):
        rnnconvert.inspect(model)


def test_an_error_that_is_kept_does_not_crash_the_process_as_it_ends(tmp_path):
    """HDF5 is taken down after Python is, and must know no Python file then."""
    code = (
        "import ctypes, rnnconvert\n"
        "from rnnconvert.containers.h5_stream import PythonFile\n"
        "def broken(self, buffer):\n"
        "    raise OSError(5, 'Input/output error')\n"
        "PythonFile.readinto = broken\n"
        "try: rnnconvert.inspect('m.h5')\n"
        "except rnnconvert.ConversionError as error: kept = error\n"
        "ctypes.pythonapi.Py_IncRef(ctypes.py_object(kept))\n"  # for good
        "print(kept.exit_code)"
    )
    make_model_h5(tmp_path / "m.h5")
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "3\n")


def test_ctrl_c_while_hdf5_reads_is_ctrl_c(tmp_path, monkeypatch):
    model = make_model_h5(tmp_path / "m.h5")
    read, count = PythonFile.readinto, 0

    def interrupted(self: PythonFile, buffer: object) -> int:
        nonlocal count
        count += 1
        if count == 20:
            self.failure = KeyboardInterrupt()
            raise self.failure
        return read(self, buffer)

    monkeypatch.setattr(PythonFile, "readinto", interrupted)
    with pytest.raises(KeyboardInterrupt):
        rnnconvert.inspect(model)


@pytest.mark.skipif(not ATTACKS.exists(), reason="the folder ../shared/attacks is not here")
@pytest.mark.parametrize("command", ["inspect", "convert"])
def test_known_attacks_end_soon_and_in_errors_of_ours(tmp_path, command):
    output = tmp_path / "out.h5"
    for attack in sorted(ATTACKS.glob("*.h5")):
        start = time.monotonic()
        try:
            if command == "inspect":
                rnnconvert.inspect(attack)
                code = 3  # what is damaged may be noticed only as it is copied
            else:
                rnnconvert.convert(attack, output, verify="weights", force=True)
                code = 0
        except ConversionError as error:
            code = error.exit_code
        assert code == 3, attack.name
        assert time.monotonic() - start < 10, attack.name

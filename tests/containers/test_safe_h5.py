"""Each guard of the HDF5 gateway, always as a pair: what it refuses, and what it must accept."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path

import h5py
import numpy as np
import pytest
from helpers import make_model_h5

import rnnconvert
from rnnconvert.containers import budget, safe_h5
from rnnconvert.errors import UnreadableInputError

VALUES = np.arange(12, dtype="float32").reshape(3, 4)


@pytest.fixture
def file(tmp_path: Path) -> Iterator[h5py.File]:
    with h5py.File(tmp_path / "file.h5", "w") as opened:
        opened["group/inner/data"] = VALUES
        yield opened


def refused(file: h5py.File, name: str) -> str:
    with pytest.raises(UnreadableInputError) as caught:
        safe_h5.get_dataset(file, name)
    assert caught.value.exit_code == 3
    return caught.value.message


def accepted(file: h5py.File, name: str) -> None:
    assert np.array_equal(safe_h5.get_dataset(file, name)[()], VALUES)


@pytest.fixture
def other(tmp_path: Path) -> str:
    """Another file, whose content must never be read."""
    with h5py.File(tmp_path / "other.h5", "w") as opened:
        opened["group/data"] = VALUES + 1
    return "other.h5"


# --- links ----------------------------------------------------------------------------------


def test_plain_datasets_are_read(file):
    accepted(file, "group/inner/data")
    assert safe_h5.get_group(file, "group/inner").name == "/group/inner"
    assert safe_h5.has(file, "group")
    assert not safe_h5.has(file, "nothing")


@pytest.mark.parametrize("target", ["/group/inner/data", "/nowhere"])
def test_soft_links_are_refused(file, target):
    file["link"] = h5py.SoftLink(target)
    assert not safe_h5.has(file, "link")
    assert "link" in refused(file, "link")


def test_soft_links_in_the_middle_of_a_name_are_refused(file):
    file["link"] = h5py.SoftLink("/group")
    assert refused(file, "link/inner/data") == (
        "refused as unsafe: /link is a link out of its place"
    )


def test_external_links_are_refused(file, other):
    file["data"] = h5py.ExternalLink(other, "/group/data")
    file["group/away"] = h5py.ExternalLink(other, "/group")
    file["gone"] = h5py.ExternalLink("missing.h5", "/group")
    assert refused(file, "data") == "refused as unsafe: /data is a link out of its place"
    assert refused(file, "group/away/data") == (
        "refused as unsafe: /group/away is a link out of its place"
    )
    assert "gone" in refused(file, "gone/data")


def test_hard_links_are_followed(file):
    file["again"] = file["group/inner/data"]
    accepted(file, "again")


def test_a_loop_of_hard_links_is_harmless(file):
    file["group/loop"] = file["/"]
    accepted(file, "group/loop/group/loop/group/inner/data")


def test_a_model_with_a_loop_of_hard_links_converts(tmp_path):
    model = make_model_h5(tmp_path / "m.h5")
    with h5py.File(model, "r+") as opened:
        opened["model_weights/loop"] = opened["/"]
    assert rnnconvert.convert(model, verify="layers").verdict == "equivalent"


def test_groups_and_datasets_are_told_apart(file):
    file["type"] = np.dtype("float32")
    assert refused(file, "group") == "/group: expected a dataset, found a group"
    refused(file, "type")
    for name in ("group/inner/data", "type"):
        with pytest.raises(UnreadableInputError, match="expected a group"):
            safe_h5.get_group(file, name)
    assert refused(file, "group/inner/data/more") == "/group/inner/data/more is missing in the file"


# --- names ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    [
        "",
        ".",
        "..",
        "group/../group/inner/data",
        "group/./inner/data",
        "/group/inner/data",
        "group//inner/data",
        "group/inner/data/",
        "group/inner/data\0",
        "g" * 1025,
    ],
    ids=repr,
)
def test_unsafe_names_are_refused(file, name):
    assert refused(file, name) == f"refused as unsafe: the name {name!r} in the file"


@pytest.mark.parametrize(
    "name", ["a b", "..a", "a..", "kernel:0", "été", "[bold]", "n" * 1024, "a/b/c"], ids=ascii
)
def test_odd_but_safe_names_are_accepted(file, name):
    file[name] = VALUES
    accepted(file, name)


# --- data that is not there -----------------------------------------------------------------


def test_external_raw_storage_is_refused(file, tmp_path):
    (tmp_path / "secret.txt").write_bytes(b"TOP SECRET " * 20)
    file.create_dataset("data", (3, 4), "float32", external=[("secret.txt", 0, 48)])
    assert refused(file, "data") == "refused as unsafe: the data of /data lies in other files"


def test_virtual_datasets_are_refused(file, other):
    layout = h5py.VirtualLayout((3, 4), "float32")
    layout[...] = h5py.VirtualSource(other, "group/data", (3, 4))
    file.create_virtual_dataset("data", layout)
    assert refused(file, "data") == "refused as unsafe: the data of /data lies in other files"


@pytest.mark.parametrize("storage", [{}, {"chunks": (1, 4)}, {"chunks": (1, 4), "shuffle": True}])
def test_unwritten_datasets_are_refused(file, storage):
    file.create_dataset("data", (3, 4), "float32", **storage)
    assert refused(file, "data") == (
        "/data: parts of its data were never written; the file is incomplete"
    )


def test_half_written_datasets_are_refused(file):
    data = file.create_dataset("data", (3, 4), "float32", chunks=(1, 4))
    data[:2] = 1.0
    assert "never written" in refused(file, "data")


def test_a_dataset_without_dataspace_is_refused(file):
    file["data"] = h5py.Empty("float32")
    assert refused(file, "data")


def test_datasets_of_no_elements_are_accepted(file):
    file.create_dataset("data", (0, 4), "float32")
    file.create_dataset("chunked", (0, 4), "float32", chunks=(1, 4), maxshape=(None, 4))
    for name in ("data", "chunked"):
        assert safe_h5.get_dataset(file, name).shape == (0, 4)


def test_scalars_are_accepted(file):
    file["iterations"] = np.int64(17)
    assert safe_h5.get_dataset(file, "iterations")[()] == 17


def test_compact_datasets_are_accepted(file):
    properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    properties.set_layout(h5py.h5d.COMPACT)
    space = h5py.h5s.create_simple(VALUES.shape)
    data = h5py.h5d.create(file.id, b"data", h5py.h5t.IEEE_F32LE, space, properties)
    data.write(h5py.h5s.ALL, h5py.h5s.ALL, VALUES)
    accepted(file, "data")


# --- filters --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "storage", [{"compression": "lzf"}, {"scaleoffset": 2}], ids=["lzf", "scaleoffset"]
)
def test_unknown_filters_are_refused(file, storage):
    file.create_dataset("data", data=VALUES, **storage)
    assert refused(file, "data") == "/data: unknown HDF5 filter"


@pytest.mark.parametrize(
    "storage",
    [
        {"compression": "gzip"},
        {"compression": "gzip", "compression_opts": 9, "shuffle": True, "fletcher32": True},
        {"fletcher32": True},
        {"chunks": (2, 3)},
        {"chunks": (2, 3), "compression": "gzip"},
        {"chunks": (3, 4), "maxshape": (None, None)},
    ],
    ids=str,
)
def test_known_filters_and_chunks_are_accepted(file, storage):
    file.create_dataset("data", data=VALUES, **storage)
    accepted(file, "data")


FILTERED = [
    {"chunks": (3, 4)},
    {"fletcher32": True},
    {"compression": "gzip"},
    {"compression": "gzip", "fletcher32": True},
    {"compression": "gzip", "shuffle": True, "fletcher32": True},
]


@pytest.mark.parametrize("storage", FILTERED, ids=str)
def test_chunks_too_short_for_their_filters_are_refused(file, storage):
    """HDF5 crashes on some of them and reads past the end of others, so none may be read."""
    for mask in range(8):  # filters that the chunk says it was written without
        data = file.create_dataset(f"data{mask}", (3, 4), "float32", **storage)
        data.id.write_direct_chunk((0, 0), b"ab", filter_mask=mask)
        assert refused(file, f"data{mask}")


def test_a_chunk_that_left_out_a_filter_is_refused(file):
    """No Keras writes one: HDF5's own filters never leave themselves out."""
    data = file.create_dataset("data", (3, 4), "float32", chunks=(3, 4), compression="gzip")
    data.id.write_direct_chunk((0, 0), VALUES.tobytes(), filter_mask=1)
    assert refused(file, "data") == "/data: a chunk leaves out a filter"


def test_incompressible_chunks_are_accepted(file):
    noise = np.frombuffer(np.random.default_rng(1).bytes(4 * 4096), "float32").reshape(64, 64)
    file.create_dataset("data", data=noise, compression="gzip", fletcher32=True)
    assert safe_h5.get_dataset(file, "data")[()].tobytes() == noise.tobytes()


def test_many_chunks_are_accepted(file):
    file.create_dataset("data", data=np.ones((6000, 2), "float32"), chunks=(1, 2))
    assert safe_h5.get_dataset(file, "data").shape == (6000, 2)


# --- the file itself ------------------------------------------------------------------------


def test_what_is_no_hdf5_file_is_refused(tmp_path):
    path = tmp_path / "no.h5"
    path.write_bytes(b"\x89HDF\r\n\x1a\n" + b"\xff" * 4000)
    with (
        pytest.raises(UnreadableInputError, match="HDF5 can't open the file"),
        safe_h5.open_h5(path),
    ):
        pass


def test_a_userblock_in_front_is_accepted(tmp_path):
    path, plain = tmp_path / "m.h5", make_model_h5(tmp_path / "plain.h5")
    with h5py.File(plain) as source, h5py.File(path, "w", userblock_size=512) as target:
        for name in source:
            source.copy(name, target)
        for name, value in source.attrs.items():
            target.attrs[name] = value
    with path.open("r+b") as raw:
        raw.write(b"#!/bin/sh\n")
    assert rnnconvert.convert(path, verify="layers").verdict == "equivalent"
    assert (tmp_path / "m.portable.h5").read_bytes().startswith(b"#!/bin/sh\n")


# --- JSON -----------------------------------------------------------------------------------


def test_honest_json_is_accepted():
    value = {"a": [1, 2.5, None, True, "x"], "b": {"c": {}}}
    assert safe_h5.parse_json(json.dumps(value), "it") == value


def test_over_long_json_is_refused():
    with budget.max_bytes(19 + 64):  # the text and one dict
        assert safe_h5.parse_json('{"a": "0123456789"}', "it")
        with pytest.raises(UnreadableInputError, match="it would take 85 bytes, more than 83"):
            safe_h5.parse_json('{"a": "0123456789ab"}', "it")


def test_deep_json_is_refused():
    def nested(depth: int) -> str:
        return '{"a": ' + "[" * depth + "]" * depth + "}"

    assert safe_h5.parse_json(nested(100), "it")
    for depth in (500, 100_000):
        with pytest.raises(UnreadableInputError, match="nested too deeply"):
            safe_h5.parse_json(nested(depth), "it")


def test_brackets_inside_strings_are_no_nesting():
    text = "[{" * 1000
    assert safe_h5.parse_json(json.dumps({"vocabulary": text}), "it") == {"vocabulary": text}


@pytest.mark.parametrize("string", ["]", '\\"]', "}"])
def test_brackets_inside_strings_hide_no_nesting(string):
    text = '{"a": "' + string * 100_000 + '", "b": ' + "[" * 100_000 + "]" * 100_000 + "}"
    with pytest.raises(UnreadableInputError):
        safe_h5.parse_json(text, "it")


@pytest.mark.parametrize(
    "text",
    [
        json.dumps({"a": "x" * 5_000_000}),
        json.dumps({"a": '"[' * 20_000}),
        json.dumps({"a": "\\" * 20_000}),
        '{"a": "' + '\\"' * 6_000,
        '{"a": "' + "\\" * 20_001 + '"}',
    ],
    ids=["long", "quotes", "backslashes", "open", "open at the end"],
)
def test_long_strings(text):
    with contextlib.suppress(UnreadableInputError):
        assert safe_h5.parse_json(text, "it") == json.loads(text)


@pytest.mark.parametrize("text", ['{"a": 1, "a": 2}', '{"x": [{"a": 1, "b": 2, "a": 1}]}'])
def test_duplicate_keys_are_refused(text):
    with pytest.raises(UnreadableInputError) as caught:
        safe_h5.parse_json(text, "attribute model_config")
    assert caught.value.message == (
        "attribute model_config is no valid JSON: a key stands twice in one object"
    )


def test_the_same_key_in_two_objects_is_accepted():
    assert safe_h5.parse_json('{"a": {"a": 1}, "b": {"a": 2}}', "it")


@pytest.mark.parametrize("text", ["", "{", '{"a": }', "{'a': 1}", '{"a": ' + "1" * 5000 + "}"])
def test_invalid_json_is_refused(text):
    with pytest.raises(UnreadableInputError, match="it is no valid JSON: "):
        safe_h5.parse_json(text, "it")


@pytest.mark.parametrize("text", ["[]", "1", "null", '"text"'])
def test_json_that_is_no_object_is_refused(text):
    with pytest.raises(UnreadableInputError, match="it: expected a JSON object"):
        safe_h5.parse_json(text, "it")


# --- attributes -----------------------------------------------------------------------------


def test_lists_of_names_in_one_piece_or_in_chunks(file):
    file.attrs["whole"] = [b"a", b"b"]
    file.attrs["split0"] = [b"a", b"b"]
    file.attrs["split1"] = [b"c"]
    file.attrs["split2"] = [b"d"]
    file.attrs["gap0"] = [b"a"]
    file.attrs["gap2"] = [b"c"]
    file.attrs.create("text", ["a", "ü"], dtype=h5py.string_dtype())
    file.attrs["one"] = "a"
    file.attrs["none"] = np.array([], dtype="S1")
    file.attrs["float"] = np.array([], dtype="float64")  # how h5py writes an empty list
    expected = {
        "whole": ["a", "b"],
        "split": ["a", "b", "c", "d"],
        "gap": ["a"],
        "text": ["a", "ü"],
        "one": ["a"],
        "none": [],
        "float": [],
        "missing": None,
    }
    assert {name: safe_h5.strings(file, name) for name in expected} == expected


def test_lists_of_too_many_names_are_refused(file, monkeypatch):
    monkeypatch.setattr(safe_h5, "MAX_LAYERS", 3)
    file.attrs["three"] = [b"a", b"b", b"c"]
    file.attrs["four"] = [b"a", b"b", b"c", b"d"]
    assert safe_h5.strings(file, "three") == ["a", "b", "c"]
    with pytest.raises(UnreadableInputError, match="refused as unsafe"):
        safe_h5.strings(file, "four")


def test_names_that_are_no_text_are_refused(file):
    file.attrs["names"] = np.array([b"\xff\xfe"])
    with pytest.raises(UnreadableInputError):
        safe_h5.strings(file, "names")


def test_text_is_text_however_it_is_stored(file):
    file.attrs["str"] = "2.2.4"
    file.attrs["bytes"] = b"2.2.4"
    file.attrs.create("fixed", np.bytes_(b"2.2.4"))
    for name in ("str", "bytes", "fixed"):
        assert safe_h5.text_attribute(file, name) == "2.2.4"
    assert safe_h5.text_attribute(file, "missing") is None


@pytest.mark.parametrize("value", [5, [1.0, 2.0], h5py.Empty("S1")], ids=["int", "array", "empty"])
def test_text_that_is_no_text_is_refused(file, value):
    file.attrs["model_config"] = value
    with pytest.raises(UnreadableInputError, match="attribute model_config: expected text"):
        safe_h5.text_attribute(file, "model_config")

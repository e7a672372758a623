"""A small file can't ask for much memory or time; the good file beside it is still read."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import h5py
import hostile_models as hostile
import numpy as np
import pytest
from helpers import make_model_h5

import rnnconvert
from rnnconvert import UnreadableInputError
from rnnconvert.containers import budget
from rnnconvert.containers.safe_npz import open_arrays
from rnnconvert.keras_models.files.zip_file import checked_config, rebuild_zip, zip_config_of

KB, MB = 2**10, 2**20


def repacked(path: Path, config: str, compression: int = zipfile.ZIP_DEFLATED) -> Path:
    """The small model's `.keras` file with this text for its config."""
    plain = hostile.write_keras(path.with_suffix(".plain"), hostile.base_config())
    with zipfile.ZipFile(plain) as source, zipfile.ZipFile(path, "w", compression) as target:
        for name in source.namelist():
            data = config if name == "config.json" else source.read(name)
            target.writestr(name, data)
    return path


def many(item: str, count: int) -> str:
    return '{"class_name": "Functional", "config": {"layers": [' + ",".join([item] * count) + "]}}"


# --- JSON -----------------------------------------------------------------------------------


@pytest.mark.parametrize("item", ["[]", "{}", '{"class_name":"Dense","config":{"name":"a"}}', "0"])
@pytest.mark.sampled(2)
def test_json_that_grows_is_refused(item: str, tmp_path: Path) -> None:
    """189 kB of it, 180 MB unpacked, took 5.5 GB and 77 seconds."""
    path = repacked(tmp_path / "m.keras", many(item, 40 * MB // len(item)))
    assert path.stat().st_size < 200 * KB
    with pytest.raises(UnreadableInputError, match=r"config.json would take .*--max-bytes \d+"):
        zip_config_of(path)


def test_json_that_is_long_but_honest_is_read(tmp_path: Path) -> None:
    config = hostile.base_config()
    words = [f"word number {index}" for index in range(100_000)]
    config["config"]["layers"][1]["config"]["vocabulary"] = words
    path = repacked(tmp_path / "m.keras", json.dumps(config))
    assert zip_config_of(path)["config"]["layers"][1]["config"]["vocabulary"] == words


def test_more_is_read_where_it_is_asked_for(tmp_path: Path) -> None:
    config = hostile.base_config()
    config["more"] = [0] * 4_000_000
    path = repacked(tmp_path / "m.keras", json.dumps(config))
    with pytest.raises(UnreadableInputError, match="--max-bytes"):
        zip_config_of(path)
    with budget.max_bytes(10**9):
        assert len(zip_config_of(path)["more"]) == 4_000_000


def test_less_is_read_where_it_is_asked_for(tmp_path: Path) -> None:
    path = hostile.write_h5(tmp_path / "m.h5", hostile.base_config())
    assert rnnconvert.inspect(path, max_bytes=10**6).input.bytes
    with pytest.raises(UnreadableInputError, match=r"would take .* more than 100; --max-bytes"):
        rnnconvert.inspect(path, max_bytes=100)


def nested(depth: int, **beside: object) -> dict:
    layer: dict = {"class_name": "Dropout", "config": {"name": "d", "rate": 0.1}}
    for level in range(depth):
        config = {"name": f"b{level}", "layer": layer, **beside}
        layer = {"class_name": "Bidirectional", "config": config}
    return {"class_name": "Sequential", "config": {"name": "s", "layers": [layer]}}


@pytest.mark.parametrize("depth", [30, 90])
def test_layers_that_double_are_refused(depth: int, tmp_path: Path) -> None:
    """Each stands for two directions: 2 kB of them were never read to their end."""
    path = repacked(tmp_path / "m.keras", json.dumps(nested(depth)))
    with pytest.raises(UnreadableInputError, match="they stand for over 100,000 layers"):
        rebuild_zip(path, tmp_path / "out.h5")


def test_json_nested_too_deeply_is_refused(tmp_path: Path) -> None:
    path = repacked(tmp_path / "m.keras", '{"a":' * 500 + "1" + "}" * 500)
    with pytest.raises(UnreadableInputError, match="nested too deeply"):
        zip_config_of(path)


# --- arrays ---------------------------------------------------------------------------------

UNITS = 30


def zeros(path: Path, chunks: object, inputs: int) -> Path:
    """A CuDNNLSTM whose input kernel of zeros is compressed several hundredfold."""
    make_model_h5(path, cells=("lstm",), names=("cu_lstm",), units=(UNITS,), input_dim=7)
    with h5py.File(path, "r+") as file:
        config = json.loads(file.attrs["model_config"])
        first = config["config"]["layers"][0]["config"]
        first["batch_input_shape"] = [None, None, inputs]
        file.attrs["model_config"] = json.dumps(config)
        group = file["model_weights/cu_lstm/cu_lstm"]
        del group["kernel:0"]
        array = np.zeros((inputs, 4 * UNITS), "float32")
        group.create_dataset("kernel:0", data=array, chunks=chunks, compression="gzip")
    return path


@pytest.mark.parametrize(
    "chunks",
    [True, (500, 120), pytest.param((60_000, 1), marks=pytest.mark.corpus), (60_000, 120)],
    ids=str,
)
@pytest.mark.corpus
def test_honest_zeros_are_converted_each_chunk_unpacked_once(
    chunks: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Gate by gate, as plain tensors are, each chunk was unpacked dozens of times."""
    path = zeros(tmp_path / "m.h5", chunks, 60_000)
    assert path.stat().st_size < 400 * KB if chunks == (60_000, 120) else MB
    read: list[int] = []
    original = h5py.Dataset.__getitem__

    def counted(self: h5py.Dataset, key: object, **given: object) -> object:
        found = original(self, key, **given)
        read.append(getattr(found, "nbytes", 0))
        return found

    monkeypatch.setattr(h5py.Dataset, "__getitem__", counted)
    report = rnnconvert.convert(path, tmp_path / "out.h5", verify="weights", hashes=False)
    assert report.verdict == "equivalent"
    whole = 60_000 * 120 * 4
    assert sum(size > whole // 2 for size in read) <= 4
    assert sum(read) <= 5 * whole


def test_arrays_that_no_file_of_its_size_holds_are_refused(tmp_path: Path) -> None:
    path = make_model_h5(tmp_path / "m.h5")
    with h5py.File(path, "r+") as file:
        group = file["model_weights/cu_lstm/cu_lstm"]
        del group["kernel:0"]
        shape = (20_000, 20_000)
        made = group.create_dataset("kernel:0", shape, "f4", chunks=shape, compression="gzip")
        made.id.write_direct_chunk((0, 0), b"x" * 1_600_000)
    with pytest.raises(UnreadableInputError, match=r"its tensors would take 1,6\d\d,\d\d\d,\d\d\d"):
        rnnconvert.inspect(path)


def test_a_tensor_that_is_listed_too_often_is_refused(tmp_path: Path) -> None:
    path = make_model_h5(tmp_path / "m.h5")
    with h5py.File(path, "r+") as file:
        group = file["model_weights/cu_lstm"]
        group.attrs["weight_names"] = np.array([b"cu_lstm/kernel:0"] * 3000)
    with pytest.raises(UnreadableInputError, match="refused as unsafe"):
        rnnconvert.inspect(path)


@pytest.mark.parametrize(("size", "refused"), [(20 * MB, False), (1200 * MB, True)])
def test_weights_of_a_zip(size: int, refused: bool, tmp_path: Path) -> None:
    path = hostile.write_keras(tmp_path / "m.keras", hostile.base_config())
    weights = tmp_path / "w.h5"
    with h5py.File(weights, "w") as file:
        shape = (size // 4,)
        chunk = min(size // 4, 2 * MB)
        made = file.create_dataset(
            "layers/gru/vars/0", shape, "f4", chunks=(chunk,), compression="gzip"
        )
        for start in range(0, size // 4, chunk):
            made.id.write_direct_chunk((start,), b"x" * 64)
    with zipfile.ZipFile(path) as source, zipfile.ZipFile(tmp_path / "n.keras", "w") as target:
        for name in source.namelist():
            target.writestr(name, weights.read_bytes() if "weights" in name else source.read(name))
    if refused:
        with pytest.raises(UnreadableInputError, match="the weights would take"):
            checked_config(tmp_path / "n.keras")
    else:
        checked_config(tmp_path / "n.keras")


@pytest.mark.parametrize(("count", "refused"), [(40, True), (5, False)])
@pytest.mark.sampled(2)
def test_arrays_of_an_npz(count: int, refused: bool, tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for index in range(count):
            with archive.open(f"a{index}.npy", "w") as stream:
                np.lib.format.write_array(stream, np.zeros(7 * MB, "float32"))
    if refused:
        with (
            pytest.raises(UnreadableInputError, match="its arrays would take"),
            open_arrays(path) as _,
        ):
            pass
    else:
        with open_arrays(path) as arrays:
            assert arrays["a0"].size == 7 * MB

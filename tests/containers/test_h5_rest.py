"""What a conversion leaves alone stays as it is, and datasets do not share bytes."""

from __future__ import annotations

import struct
from pathlib import Path

import h5py
import numpy as np
import pytest
from helpers import LSTM_KERNEL, make_model_h5

import rnnconvert
from rnnconvert.errors import DifferenceError, UnreadableInputError
from rnnconvert.keras_models.files import h5_patch

OTHER = "model_weights/dense/dense/kernel:0"


def with_dense(path: Path, **storage: object) -> Path:
    dense = {"class_name": "Dense", "config": {"name": "dense", "units": 3}}
    make_model_h5(path, extra_layers=[dense])
    with h5py.File(path, "r+") as file:
        weights = file["model_weights"]
        weights.attrs["layer_names"] = [b"cu_lstm", b"cu_gru", b"dense"]
        group = weights.create_group("dense")
        group.attrs["weight_names"] = [b"dense/kernel:0"]
        values = np.random.default_rng(3).normal(size=(4, 30)).astype("float32")
        group.create_dataset("dense/kernel:0", data=values, **storage)
        group["dense/kernel:0"].attrs["note"] = "of somebody"
        file.create_group("notes").attrs["numbers"] = [1, 2, 3]
    return path


def overlap(path: Path, victim: str, onto: str) -> None:
    """Let `victim` lie where `onto` lies."""
    with h5py.File(path) as file:
        was, there = (file[name].id.get_offset() for name in (victim, onto))
    data = path.read_bytes()
    stored = struct.pack("<Q", was)
    assert data.count(stored) == 1
    path.write_bytes(data.replace(stored, struct.pack("<Q", there)))


def test_overlapping_datasets_are_refused(tmp_path):
    model = with_dense(tmp_path / "m.h5")
    overlap(model, OTHER, LSTM_KERNEL)
    with pytest.raises(UnreadableInputError, match=r"refused as unsafe: the data of .* same place"):
        rnnconvert.convert(model, verify="weights")
    with pytest.raises(UnreadableInputError, match="same place"):
        rnnconvert.inspect(model)


def test_one_dataset_under_two_names_is_accepted(tmp_path):
    model = with_dense(tmp_path / "m.h5")
    with h5py.File(model, "r+") as file:
        group = file["model_weights/dense"]
        group["dense/again:0"] = group["dense/kernel:0"]
        group.attrs["weight_names"] = [b"dense/kernel:0", b"dense/again:0"]
    assert rnnconvert.convert(model, verify="weights").verdict == "equivalent"


@pytest.mark.parametrize("storage", [{}, {"chunks": (2, 30)}, {"compression": "gzip"}], ids=str)
def test_a_changed_dataset_is_a_difference(tmp_path, monkeypatch, storage):
    model = with_dense(tmp_path / "m.h5", **storage)
    assert rnnconvert.convert(model, verify="weights").verdict == "equivalent"
    apply = h5_patch.apply

    def careless(plan, source, copy, **options):
        checked = apply(plan, source, copy, **options)
        with h5py.File(copy, "r+") as file:
            file[OTHER][1, 7] += 1
        return checked

    monkeypatch.setattr(h5_patch, "apply", careless)
    with pytest.raises(DifferenceError, match=rf"to stay as it is: {OTHER} is another"):
        rnnconvert.convert(model, verify="weights", force=True)


def spoil_attribute(file: h5py.File) -> None:
    file["notes"].attrs["numbers"] = [1, 2, 4]


def drop_attribute(file: h5py.File) -> None:
    del file[OTHER].attrs["note"]


def lose_group(file: h5py.File) -> None:
    del file["notes"]


@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        (spoil_attribute, "the attribute numbers of notes is another"),
        (drop_attribute, f"the attribute note of {OTHER} is another"),
        (lose_group, "notes is missing"),
    ],
)
def test_changed_attributes_and_lost_groups_are_differences(tmp_path, monkeypatch, spoil, told):
    model = with_dense(tmp_path / "m.h5")
    apply = h5_patch.apply

    def careless(plan, source, copy, **options):
        checked = apply(plan, source, copy, **options)
        with h5py.File(copy, "r+") as file:
            spoil(file)
        return checked

    monkeypatch.setattr(h5_patch, "apply", careless)
    with pytest.raises(DifferenceError) as caught:
        rnnconvert.convert(model, verify="weights")
    assert told in str(caught.value)
    assert not (tmp_path / "m.portable.h5").exists()

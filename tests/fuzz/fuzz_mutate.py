"""Damage done to model files, reproducible from a seed: bytes, texts and structure.

A mutator takes the file and a random generator, changes the file in place, and does one thing at a
time; a mutant is a file after a few of them.
"""

from __future__ import annotations

import io
import json
import random
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from rnnconvert.containers.checkpoint.table import open_table, write_table

Mutator = Callable[[Path, random.Random], None]
_NUMBERS = (None, True, -1, 0, 1, 2**31, 2**63, 10**30, 0.5, -0.0, 1e308, float("nan"))
_THINGS = ("", "x", "model/../x", "tanh", "CuDNNGRU", "\x1b[2J", "\ud800", [], {}, [[]], {"a": 1})


# --- bytes ------------------------------------------------------------------------------------


def flip(data: bytearray, rng: random.Random) -> None:
    data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)


def overwrite(data: bytearray, rng: random.Random) -> None:
    at, length = rng.randrange(len(data)), rng.choice((1, 2, 4, 8, 64))
    value = rng.choice((0, 255, 127, 128, rng.randrange(256)))
    data[at : at + length] = bytes([value]) * len(data[at : at + length])


def copy_within(data: bytearray, rng: random.Random) -> None:
    length = rng.choice((4, 8, 32, 256))
    start, at = rng.randrange(len(data)), rng.randrange(len(data))
    piece = data[start : start + length]
    data[at : at + len(piece)] = piece


def cut(data: bytearray, rng: random.Random) -> None:
    del data[rng.randrange(1, len(data)) :]


def zero_tail(data: bytearray, rng: random.Random) -> None:
    at = rng.randrange(1, len(data))
    data[at:] = bytes(len(data) - at)


def insert(data: bytearray, rng: random.Random) -> None:
    at = rng.randrange(len(data))
    data[at:at] = rng.randbytes(rng.choice((1, 8, 512)))


_BYTES = (flip, flip, flip, overwrite, overwrite, copy_within, cut, zero_tail, insert)


def mutate_bytes(data: bytes, rng: random.Random) -> bytes:
    changed = bytearray(data or b"\0")
    rng.choice(_BYTES)(changed, rng)
    return bytes(changed)


def of_bytes(path: Path, rng: random.Random) -> None:
    path.write_bytes(mutate_bytes(path.read_bytes(), rng))


# --- JSON -------------------------------------------------------------------------------------


def _places(value: Any) -> list[tuple[Any, Any]]:
    """Every container of a JSON value with every key of it."""
    found: list[tuple[Any, Any]] = []
    left = [value]
    while left:
        here = left.pop()
        keys = list(here) if isinstance(here, dict) else range(len(here))
        for key in keys:
            found.append((here, key))
            if isinstance(here[key], dict | list):
                left.append(here[key])
    return found


def mutate_json(text: str, rng: random.Random) -> str:
    """One value of a JSON text replaced, left out, doubled or put into another's place."""
    if rng.random() < 0.1:
        return mutate_bytes(text.encode(), rng).decode("utf-8", "replace")
    value = json.loads(text)
    places = _places(value)
    if not places:
        return json.dumps(rng.choice(_THINGS))
    here, key = rng.choice(places)
    what = rng.randrange(5)
    if what == 0:
        here[key] = rng.choice(_NUMBERS)
    elif what == 1:
        here[key] = rng.choice(_THINGS)
    elif what == 2:
        del here[key]
    elif what == 3 and isinstance(here, list):
        here.insert(key, here[key])
    else:
        other, name = rng.choice(places)
        here[key] = json.loads(json.dumps(other[name])) if name in _keys(other) else None
    return json.dumps(value)


def _keys(value: Any) -> Any:
    return value if isinstance(value, dict) else range(len(value))


# --- HDF5 -------------------------------------------------------------------------------------


def h5_json(path: Path, rng: random.Random) -> None:
    with h5py.File(path, "r+") as file:
        file.attrs["model_config"] = mutate_json(str(file.attrs["model_config"]), rng)


def h5_structure(path: Path, rng: random.Random) -> None:
    """A group, a dataset or an attribute taken away, replaced, doubled or led elsewhere."""
    with h5py.File(path, "r+") as file:
        names: list[str] = []
        file.visit(names.append)
        name = rng.choice(names)
        item = file[name]
        what = rng.randrange(8)
        if what == 0:
            del file[name]
        elif what == 1:
            file[f"{name}_again"] = item
        elif what == 2:
            _attribute(item if item.attrs else file, rng)
        elif what == 3:
            del file[name]
            file[name] = rng.choice((h5py.SoftLink("/"), h5py.ExternalLink("/etc/passwd", "/x")))
        elif what == 4:
            other = rng.choice(names)
            if not other.startswith(name):
                del file[name]
                file[name] = file[other]
        elif isinstance(item, h5py.Dataset):
            _replace(file, name, rng)
        else:
            file.create_group(f"{name}/new")


def _attribute(item: Any, rng: random.Random) -> None:
    key = rng.choice(list(item.attrs))
    old = item.attrs[key]
    values = (
        1,
        -1.5,
        "",
        "x" * 5000,
        b"\xff",
        np.zeros(3),
        np.array([b"a", b"a"]),
        h5py.Empty("f"),
    )
    if rng.random() < 0.3:
        del item.attrs[key]
    elif isinstance(old, np.ndarray) and old.size and rng.random() < 0.5:
        item.attrs[key] = np.concatenate([old[1:], old[:1], old[:1]])
    else:
        item.attrs[key] = values[rng.randrange(len(values))]


def _replace(file: h5py.File, name: str, rng: random.Random) -> None:
    old = file[name][()]
    shape = list(np.shape(old)) or [1]
    shape[rng.randrange(len(shape))] = rng.choice((0, 1, 3, 7, 24))
    dtype = rng.choice(("f2", "f4", "f8", "i4", "c8", "S3", "f4"))
    del file[name]
    file.create_dataset(name, shape, dtype, data=np.zeros(shape, dtype))


# --- .keras -----------------------------------------------------------------------------------


def zip_members(path: Path, rng: random.Random) -> None:
    """A member left out, doubled, renamed, or its text or bytes changed; checksums are right."""
    with zipfile.ZipFile(path) as archive:
        members = [(name, archive.read(name)) for name in archive.namelist()]
    at = rng.randrange(len(members))
    name, data = members[at]
    what = rng.randrange(8)
    if what == 0:
        del members[at]
    elif what == 1:
        members.append((name, data))
    elif what == 2:
        members[at] = (rng.choice(("../x", "/x", "", "assets/", "config.json\0")), data)
    elif name.endswith(".json"):
        members[at] = (name, mutate_json(data.decode(), rng).encode("utf-8", "replace"))
    else:
        members[at] = (name, mutate_bytes(data, rng))
    buffer = io.BytesIO()
    kind = rng.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED))
    with zipfile.ZipFile(buffer, "w", kind) as archive:
        for name, data in members:
            archive.writestr(name or "x", data)
    path.write_bytes(buffer.getvalue())


# --- checkpoints ------------------------------------------------------------------------------


def table_entries(path: Path, rng: random.Random) -> None:
    """An entry of the index taken away, renamed, or its protobuf changed; checksums are right."""
    items = [(bytes(key), bytes(value)) for key, value in open_table(path).items()]
    at = rng.randrange(len(items))
    key, value = items[at]
    what = rng.randrange(6)
    if what == 0:
        del items[at]
    elif what == 1:
        items[at] = (mutate_bytes(key, rng), value)
    elif what == 2:
        items[at] = (key, rng.choice(items)[1])
    else:
        items[at] = (key, mutate_bytes(value, rng))
    with path.open("wb") as file:
        write_table(file, sorted(dict(items).items()))

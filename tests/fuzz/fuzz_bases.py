"""The files that are damaged, small ones of each kind, and what is done with them."""

from __future__ import annotations

import io
import json
import shutil
import sys
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import fuzz_mutate as mutate
import fuzz_protobuf as protobuf
import h5py
import numpy as np

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "support")]
from helpers import GATES, make_model_h5

from rnnconvert.containers.checkpoint import find_checkpoint, open_checkpoint

_FIXTURES = ROOT / "fixtures"
_CHECKPOINT = _FIXTURES / "checkpoints" / "tf115" / "cudnn_lstm"
_LAYERS = {"cu_lstm": "lstm", "cu_gru": "gru"}
_STEMS = {"cu_lstm": "cu_dnnlstm", "cu_gru": "cu_dnngru"}
_KINDS = ("kernel", "recurrent_kernel", "bias")


@dataclass(frozen=True)
class Base:
    """A sound file and the ways to damage it.

    Attributes:
        make: writes it into a folder; returns the paths, the one that is given to commands first.
        damaged: which of those paths are damaged, by index.
        mutators: what damages one of them.
        extension: of the output.
        is_folder: commands are given the folder.
    """

    make: Callable[[Path], list[Path]]
    damaged: tuple[int, ...]
    mutators: tuple[mutate.Mutator, ...]
    extension: str
    is_folder: bool = False


def _h5(**storage: object) -> Callable[[Path], list[Path]]:
    return lambda folder: [make_model_h5(folder / "m.h5", **storage)]


def _copied(source: str, *damaged: str) -> Callable[[Path], list[Path]]:
    """Files of a folder of the fixtures; those that are damaged first."""

    def copy(folder: Path) -> list[Path]:
        shutil.copytree(_FIXTURES / source, folder, dirs_exist_ok=True)
        return [folder / name for name in damaged]

    return copy


def _keras(folder: Path) -> list[Path]:
    """The same model as Keras 2.15 writes it into a `.keras` file."""
    h5 = make_model_h5(folder / "source.h5")
    path = folder / "m.keras"
    weights = folder / "weights.h5"
    with h5py.File(h5) as source, h5py.File(weights, "w") as target:
        config = json.loads(source.attrs["model_config"])
        for layer, stem in _STEMS.items():
            for index, kind in enumerate(_KINDS):
                data = source[f"model_weights/{layer}/{layer}/{kind}:0"][()]
                target.create_dataset(f"layers/{stem}/vars/{index}", data=data)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("metadata.json", json.dumps({"keras_version": "2.15.0"}))
        archive.writestr("config.json", json.dumps(config))
        archive.write(weights, "model.weights.h5")
    return [path]


def _checkpoint(folder: Path) -> list[Path]:
    names = ("model.ckpt.index", "model.ckpt.data-00000-of-00001")
    return [Path(shutil.copy(_CHECKPOINT / name, folder)) for name in names]


def _slices(folder: Path) -> list[Path]:
    source = _FIXTURES / "checkpoints" / "tf115" / "cudnn_lstm2_v1" / "model.ckpt"
    return [Path(shutil.copy(source, folder))]


_OF_H5 = (mutate.of_bytes, mutate.of_bytes, mutate.h5_json, mutate.h5_structure)
_OF_TABLE = (mutate.of_bytes, mutate.table_entries, protobuf.table_messages)
_OF_GRAPH = (mutate.of_bytes, protobuf.of_message, *3 * (protobuf.graph,))
_VARIABLES = ("variables/variables.index", "variables/variables.data-00000-of-00001")
BASES: dict[str, Base] = {
    "h5": Base(_h5(), (0,), _OF_H5, ".h5"),
    "h5-gzip": Base(_h5(chunks=True, compression="gzip"), (0,), _OF_H5, ".h5"),
    "h5-fletcher32": Base(_h5(chunks=True, fletcher32=True), (0,), _OF_H5, ".h5"),
    "keras": Base(_keras, (0,), (mutate.of_bytes, mutate.zip_members, mutate.zip_members), ".h5"),
    "checkpoint": Base(_checkpoint, (0, 0, 1), _OF_TABLE, ""),
    "checkpoint-v1": Base(_slices, (0,), _OF_TABLE, ""),
    "frozen": Base(
        _copied("savedmodels/tf115/frozen_contrib_gru2", "frozen.pb"), (0,), _OF_GRAPH, ".pb"
    ),
    "savedmodel": Base(
        _copied("savedmodels/tf23/ops_v1/model", "saved_model.pb", *_VARIABLES),
        (0, 0, 0, 0, 0, 0, 1, 2), (*_OF_GRAPH, protobuf.table_messages), "", is_folder=True,
    ),
    "metagraph": Base(
        _copied("checkpoints/tf115/cudnn_lstm_raw_meta", "model.ckpt.meta"), (0,), _OF_GRAPH,
        ".meta",
    ),
}  # fmt: skip
GRAPHS = ("frozen", "savedmodel", "metagraph")
"""Kinds for which TensorFlow is imported."""


# --- what a converted file must hold ----------------------------------------------------------


def wrong_weights(kind: str, source: Path, written: Path) -> str | None:
    """What is wrong in a converted file, by a recomputation of its own; None where nothing is."""
    if kind.startswith("h5"):
        with h5py.File(source) as old:
            return _wrong_layers(lambda layer, index: _stored(old, layer, index), written)
    if kind == "keras":
        with zipfile.ZipFile(source) as archive:
            weights = io.BytesIO(archive.read("model.weights.h5"))
        with h5py.File(weights) as old:
            return _wrong_layers(lambda layer, index: _numbered(old, layer, index), written)
    if kind.startswith("checkpoint"):
        return _wrong_tensors(source, written)
    return _wrong_graph(kind, source, written)


def _stored(file: h5py.File, layer: str, index: int) -> np.ndarray | None:
    name = f"model_weights/{layer}/{layer}/{_KINDS[index]}:0"
    return file[name][()] if name in file else None


def _numbered(file: h5py.File, layer: str, index: int) -> np.ndarray | None:
    name = f"layers/{_STEMS[layer]}/vars/{index}"
    return file[name][()] if name in file else None


def _wrong_layers(read: Callable[[str, int], np.ndarray | None], written: Path) -> str | None:
    """A kernel of a CuDNN layer holds, gate by gate, a transposed matrix; LSTM adds its biases."""
    with h5py.File(written) as new:
        config = str(new.attrs["model_config"])
        for layer, cell in _LAYERS.items():
            if f'"{layer}"' not in config:  # what no layer has is copied as it is
                continue
            for index, kind in enumerate(_KINDS):
                name = f"model_weights/{layer}/{layer}/{kind}:0"
                old = read(layer, index)
                if old is None or name not in new:
                    continue
                if _converted(old, kind, cell).tobytes() != new[name][()].tobytes():
                    return f"{name} holds other values than it must"
    return None


def _converted(values: np.ndarray, kind: str, cell: str) -> np.ndarray:
    gates = GATES[cell]
    if kind == "bias":
        halves = values.reshape(2, -1)
        both = halves.astype(np.float64)
        return halves if cell == "gru" else (both[0] + both[1]).astype(values.dtype)
    parts = np.split(values, gates, axis=1)
    turned = [part.ravel().reshape(part.shape[::-1]).T for part in parts]
    return np.ascontiguousarray(np.concatenate(turned, axis=1))


def _wrong_tensors(source: Path, written: Path) -> str | None:
    """The kernel of each layer of an LSTM's buffer, column by column; biases are added.

    The buffer has for each layer eight matrices (four gates of the input, four of the state, as i,
    f, c, o), one after another, and behind all of them eight biases for each; the kernel wants
    i, c, f, o.
    """
    old, new = ({n: c.read(n) for n in c.variables} for c in map(_opened, (source, written)))
    buffers = [value for name, value in old.items() if "opaque_kernel" in name and value.ndim == 1]
    kernels = [n for n in sorted(new) if n.endswith("/kernel") and "cudnn_compatible" in n]
    if len(buffers) != 1 or not kernels:
        return None
    at, biases_at = 0, sum((new[n].shape[0]) * new[n].shape[1] for n in kernels)
    for name in kernels:
        rows, units = new[name].shape[0], new[name].shape[1] // 4
        gates = []
        for width in (rows - units, units):
            count = units * width
            blocks = [buffers[0][at + g * count :][:count].reshape(units, width) for g in range(4)]
            gates.append([blocks[g].T for g in (0, 2, 1, 3)])
            at += 4 * count
        made = np.concatenate([np.concatenate(part, axis=1) for part in gates])
        parts = (
            buffers[0][biases_at : biases_at + 8 * units].astype(np.float64).reshape(2, 4, units)
        )
        biases_at += 8 * units
        bias = (parts[0] + parts[1])[[0, 2, 1, 3]].ravel().astype(buffers[0].dtype)
        stem = name.removesuffix("kernel")
        if made.tobytes() != new[name].tobytes() or bias.tobytes() != new[f"{stem}bias"].tobytes():
            return f"{name} or its bias holds other values than it must"
    return None


def _opened(path: Path) -> Any:
    found = find_checkpoint(path)
    assert found is not None, path
    return open_checkpoint(found)


def _wrong_graph(kind: str, source: Path, written: Path) -> str | None:
    """A lowered graph's variables are files that are copied, its constants are where they were."""
    if kind == "savedmodel":
        names = [f"variables/{path.name}" for path in (source / "variables").iterdir()]
        pairs = [(source / name, written / name) for name in names]
    elif kind == "metagraph":
        stem = written.with_suffix("")
        ends = (".index", ".data-00000-of-00001")
        pairs = [(Path(f"{source.with_suffix('')}{e}"), Path(f"{stem}{e}")) for e in ends]
    else:
        return _other_constants(source, written)
    other = [str(new.name) for old, new in pairs if old.read_bytes() != new.read_bytes()]
    return f"{', '.join(other)}: other bytes than the input's" if other else None


def _other_constants(source: Path, written: Path) -> str | None:
    from rnnconvert.graphs.framework import GraphDef

    old, new = (GraphDef.FromString(path.read_bytes()) for path in (source, written))
    values = {node.name: node.attr["value"].tensor for node in new.node if node.op == "Const"}
    for node in old.node:
        tensor = node.attr["value"].tensor
        is_there = node.op == "Const" and node.name in values and tensor.tensor_content
        if is_there and tensor != values[node.name]:
            return f"the constant {node.name} is another"
    return None

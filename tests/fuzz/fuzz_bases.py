"""The files that are damaged, small ones of each kind, and what is done with them."""

from __future__ import annotations

import json
import shutil
import sys
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import fuzz_mutate as mutate
import h5py
import numpy as np

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]
from helpers import GATES, make_model_h5

_CHECKPOINT = ROOT / "fixtures" / "checkpoints" / "tf115" / "cudnn_lstm"
_LAYERS = {"cu_lstm": "lstm", "cu_gru": "gru"}


@dataclass(frozen=True)
class Base:
    """A sound file and the ways to damage it.

    Attributes:
        make: writes it into a folder; returns the paths, the one that is given to commands first.
        damaged: which of those paths are damaged, by index.
        mutators: what damages one of them.
        extension: of the output.
    """

    make: Callable[[Path], list[Path]]
    damaged: tuple[int, ...]
    mutators: tuple[mutate.Mutator, ...]
    extension: str


def _h5(**storage: object) -> Callable[[Path], list[Path]]:
    return lambda folder: [make_model_h5(folder / "m.h5", **storage)]


def _keras(folder: Path) -> list[Path]:
    """The same model as Keras 2.15 writes it into a `.keras` file."""
    h5 = make_model_h5(folder / "source.h5")
    path = folder / "m.keras"
    weights = folder / "weights.h5"
    with h5py.File(h5) as source, h5py.File(weights, "w") as target:
        config = json.loads(source.attrs["model_config"])
        for layer, stem in zip(_LAYERS, ("cu_dnnlstm", "cu_dnngru"), strict=True):
            for index, kind in enumerate(("kernel", "recurrent_kernel", "bias")):
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


_OF_H5 = (mutate.of_bytes, mutate.of_bytes, mutate.h5_json, mutate.h5_structure)
BASES: dict[str, Base] = {
    "h5": Base(_h5(), (0,), _OF_H5, ".h5"),
    "h5-gzip": Base(_h5(chunks=True, compression="gzip"), (0,), _OF_H5, ".h5"),
    "h5-fletcher32": Base(_h5(chunks=True, fletcher32=True), (0,), _OF_H5, ".h5"),
    "keras": Base(_keras, (0,), (mutate.of_bytes, mutate.zip_members, mutate.zip_members), ".h5"),
    "checkpoint": Base(
        _checkpoint, (0, 0, 1), (mutate.of_bytes, mutate.table_entries, mutate.table_entries), ""
    ),
}


# --- what a converted file must hold ----------------------------------------------------------


def wrong_weights(source: Path, written: Path) -> str | None:
    """What is wrong in a converted .h5, by a recomputation of its own; None where nothing is.

    A kernel of a CuDNN layer holds, gate by gate, a transposed matrix; LSTM adds its two biases.
    """
    with h5py.File(source) as old, h5py.File(written) as new:
        for layer, cell in _LAYERS.items():
            group = f"model_weights/{layer}/{layer}"
            if group not in old or group not in new:
                continue
            for kind in ("kernel", "recurrent_kernel", "bias"):
                name = f"{group}/{kind}:0"
                if name in old and name in new:
                    expected = _converted(old[name][()], kind, cell)
                    if expected.tobytes() != new[name][()].tobytes():
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

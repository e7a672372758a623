"""Wrong conversions whose error is in the file's config or wiring, not in one tensor's layout.

`FILE_MUTANTS` spoil a rightly converted file of a fixture. Together with `mutants.TENSOR_MUTANTS`
they are what the levels `layers` and `model` have to catch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from helpers import read_config, write_config


@dataclass(frozen=True)
class FileMutant:
    """`apply(path)` spoils the converted file of the fixture; its name says of which.

    `seen_by_layers` is False where every layer is right in itself, and only their connection, or
    what they carry over from batch to batch, is not.
    """

    name: str
    fixture: str
    apply: Callable[[Path], None]
    seen_by_layers: bool = True


def layers_of(config: dict[str, Any], *classes: str) -> list[dict[str, Any]]:
    """Configs of all layers of these classes, wrapped ones too, in the config's order."""
    found = []
    for layer in config["config"]["layers"]:
        inner = layer["config"].get("layer")
        for entry in (layer, inner) if inner else (layer,):
            if entry["class_name"] in classes:
                found.append(entry["config"])
    return found


def configure(classes: tuple[str, ...], **changes: Any) -> Callable[[Path], None]:
    """Set keys of the first layer of these classes."""

    def apply(path: Path) -> None:
        config = read_config(path)
        layers_of(config, *classes)[0].update(changes)
        write_config(path, config)

    return apply


def datasets(path: Path, kind: str) -> list[str]:
    """Paths of the datasets of this kind."""
    found: list[str] = []
    with h5py.File(path) as file:
        file["model_weights"].visit(found.append)
    return [f"model_weights/{name}" for name in found if name.endswith(f"/{kind}:0")]


def rewrite(path: Path, name: str, change: Callable[[Any], Any]) -> None:
    """Replace a dataset by what `change` makes of it."""
    with h5py.File(path, "r+") as file:
        values = np.asarray(change(file[name][()]))
        del file[name]
        file[name] = values


def reset_before(path: Path) -> None:
    """GRU(reset_after=False) with the sum of the biases, the shape that this layer wants."""
    configure(("GRU",), reset_after=False)(path)
    rewrite(path, datasets(path, "bias")[0], lambda bias: bias.sum(axis=0))


def other_share(path: Path) -> None:
    """h = z*n + (1-z)*h: the sign of everything that enters z turned round."""

    def negate(values: Any) -> Any:
        values[..., : values.shape[-1] // 3] *= -1
        return values

    for kind in ("kernel", "recurrent_kernel", "bias"):
        rewrite(path, next(name for name in datasets(path, kind) if "gru" in name), negate)


def exchange_directions(path: Path) -> None:
    """The weights of forward and backward layer exchanged."""
    for kind in ("kernel", "recurrent_kernel", "bias"):
        pair = [name for name in datasets(path, kind) if "bidirectional_1" in name]
        with h5py.File(path, "r+") as file:
            one, other = (file[name][()] for name in pair)
            file[pair[0]][...], file[pair[1]][...] = other, one


def merge_mode(path: Path) -> None:
    config = read_config(path)
    layers_of(config, "Bidirectional")[-1]["merge_mode"] = "ave"
    write_config(path, config)


def one_state_twice(path: Path) -> None:
    """The decoder gets h for c as well."""
    config = read_config(path)
    decoder = next(x for x in config["config"]["layers"] if x["config"]["name"] == "decoder")
    states = decoder["inbound_nodes"][0]["kwargs"]["initial_state"]
    states[1] = states[0]
    write_config(path, config)


def exchange_states(path: Path) -> None:
    """The decoder gets c for h and h for c."""
    config = read_config(path)
    decoder = next(x for x in config["config"]["layers"] if x["config"]["name"] == "decoder")
    decoder["inbound_nodes"][0]["kwargs"]["initial_state"].reverse()
    write_config(path, config)


BOTH = ("LSTM", "GRU")
HARD = {"recurrent_activation": "hard_sigmoid"}
FILE_MUTANTS: tuple[FileMutant, ...] = (
    FileMutant("lstm: hard_sigmoid", "seq_lstm", configure(BOTH, **HARD)),
    FileMutant("gru: hard_sigmoid", "seq_gru", configure(BOTH, **HARD)),
    FileMutant("lstm: relu instead of tanh", "seq_lstm", configure(BOTH, activation="relu")),
    FileMutant("gru: relu instead of tanh", "seq_gru", configure(BOTH, activation="relu")),
    FileMutant("lstm: the other direction in time", "seq_lstm", configure(BOTH, go_backwards=True)),
    FileMutant("gru: the other direction in time", "seq_gru", configure(BOTH, go_backwards=True)),
    FileMutant("go_backwards lost", "go_backwards", configure(BOTH, go_backwards=False)),
    FileMutant("gru: reset before the matmul", "seq_gru", reset_before),
    FileMutant("gru: z is the candidate's share", "seq_gru", other_share),
    FileMutant("bidirectional: halves exchanged", "bi", exchange_directions),
    FileMutant("bidirectional: other merge_mode", "tf215/bi_modes", merge_mode, False),
    FileMutant("initial state twice", "encdec", one_state_twice, False),
    FileMutant("initial states exchanged", "encdec", exchange_states, False),
    FileMutant("stateful lost", "stateful", configure(BOTH, stateful=False)),
)  # fmt: skip


NAMES = {"lstm": "cu_lstm", "gru": "cu_gru"}


def read_tensors(path, name):
    with h5py.File(path) as file:
        group = file[f"model_weights/{name}/{name}"]
        return {key.removesuffix(":0"): group[key][()] for key in group}


def overwrite(path, name, tensors):
    with h5py.File(path, "r+") as file:
        group = file[f"model_weights/{name}/{name}"]
        for key, values in tensors.items():
            group[f"{key}:0"][...] = values.reshape(group[f"{key}:0"].shape)

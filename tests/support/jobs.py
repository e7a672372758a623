"""What the tests of faults and of full disks do: every kind of model, every command.

Each job is a model, made anew in a folder, and what is done with it there.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from helpers import make_model_h5

import rnnconvert
from rnnconvert.containers.checkpoint import write_checkpoint
from rnnconvert.errors import ConversionError

FIXTURES = Path(__file__).parents[2] / "fixtures"
CELL = {"forget_bias": 1.0}


def model(folder: Path, **storage: Any) -> Path:
    return make_model_h5(folder / "m.h5", cells=["lstm"], names=["a"], units=[6], **storage)


@cache
def _portable() -> bytes:
    """The same model as Keras 2 has it without cuDNN: what the inverse begins with."""
    import tempfile

    with tempfile.TemporaryDirectory() as name:
        target = Path(name) / "p.h5"
        rnnconvert.convert(model(Path(name)), target, verify="none", target="keras2")
        return target.read_bytes()


def portable(folder: Path) -> Path:
    path = folder / "p.h5"
    path.write_bytes(_portable())
    return path


def checkpoint(folder: Path) -> Path:
    """An RNN stack of TensorFlow 1, in version 2 of the format."""
    values = np.random.default_rng(1).normal(size=(11, 24)).astype("float32")
    cell = "a/rnn/basic_lstm_cell"
    tensors = {f"{cell}/kernel": values, f"{cell}/bias": values[0]}
    write_checkpoint(folder / "c.index", folder / "c.data-00000-of-00001", tensors)
    return folder / "c"


def fixture(name: str) -> Callable[[Path], Path]:
    """A directory, or a file and those of its stem, copied."""

    def copied(folder: Path) -> Path:
        source, target = FIXTURES / name, folder / Path(name).name
        if source.is_dir():
            return Path(shutil.copytree(source, target))
        for file in source.parent.glob(f"{source.stem}*"):
            shutil.copy(file, folder)
        return target

    return copied


@dataclass(frozen=True)
class Job:
    """A model and what is done with it.

    Attributes:
        make: writes the model into a folder; returns its path.
        output: name of what is written; None where nothing is, or the input itself.
        options: of the command.
        command: "convert", or one of those that write a report at most.
        older: files that may be in the output's place; its own name by default.
        needs: a framework without which it can't be done.
    """

    make: Callable[[Path], Path]
    output: str | None = None
    options: dict[str, Any] = field(default_factory=dict)
    command: str = "convert"
    older: tuple[str, ...] = ()
    needs: str | None = None

    def old_files(self) -> tuple[str, ...]:
        return self.older or ((self.output,) if self.output else ())

    def run(self, source: Path, output: Path | None, *, force: bool, verify: str = "none") -> None:
        """Do it.

        Raises:
            ConversionError: it can't be done.
        """
        if self.command == "convert":
            options = {"verify": verify, "hashes": False, "force": force, **self.options}
            rnnconvert.convert(source, output, **options)
        elif self.command == "verify":
            rnnconvert.verify(source, source, verify="layers", **self.options)
        else:
            self._by_command_line(source, output)

    def _by_command_line(self, source: Path, output: Path | None) -> None:
        from rnnconvert.cli.main import main

        before = sys.argv
        sys.argv = ["rnnconvert", self.command, str(source), "--report", str(output)]
        try:
            main()
        except SystemExit as stop:
            if stop.code == 130:
                raise KeyboardInterrupt from stop
            if stop.code:
                error = ConversionError("by the command line")
                error.exit_code = int(stop.code)
                raise error from stop
        finally:
            sys.argv = before


_TWO = ("out.index", "out.data-00000-of-00001")
_META = ("o.meta", "o.index", "o.data-00000-of-00001")
_FOLDER = ("out_model/saved_model.pb", "out_model/variables/variables.index")
_V1 = fixture("checkpoints/tf115/cudnn_lstm2_v1/model.ckpt")
_WEIGHTS = fixture("keras_zip/tf212/seq_lstm/new.weights.h5")
_SAVED = fixture("savedmodels/tf115/keras_save/model")
_FROZEN = fixture("savedmodels/tf115/frozen_contrib_gru2/frozen.pb")
_CHECKPOINT_META = fixture("checkpoints/tf115/cudnn_lstm_raw_meta/model.ckpt.meta")
_INVERSE = {"command": "keras-to-cudnn"}
JOBS: dict[str, Job] = {
    "h5": Job(model, "out.h5"),
    "in place": Job(model, options={"in_place": True}),
    "gzip": Job(lambda folder: model(folder, compression="gzip"), "out.h5"),
    "to keras": Job(model, "out.keras", needs="keras"),
    "to weights": Job(model, "out.h5", {"to": "weights"}),
    "dry run": Job(model, "out.h5", {"dry_run": True}),
    "inverse": Job(portable, "out.h5", _INVERSE),
    "inverse in place": Job(portable, options={**_INVERSE, "in_place": True}),
    "verify h5": Job(model, command="verify"),
    "inspect h5": Job(model, "r.json", command="inspect", older=("",)),
    ".keras": Job(fixture("keras_zip/tf215/td_model/model.keras"), "out.keras", needs="keras"),
    ".keras to h5": Job(fixture("keras_zip/tf215/td_model/model.keras"), "out.h5"),
    "inspect .keras": Job(
        fixture("keras_zip/tf215/td_model/model.keras"), "r.json", command="inspect", older=("",)
    ),
    ".weights.h5": Job(_WEIGHTS, "out.weights.h5"),
    "verify .weights.h5": Job(_WEIGHTS, command="verify"),
    "checkpoint": Job(checkpoint, "out", {"names": "keras", **CELL}, older=_TWO),
    "checkpoint to h5": Job(checkpoint, "out.h5", {"to": "h5", **CELL}),
    "checkpoint to npz": Job(checkpoint, "out.npz", {"to": "npz", **CELL}),
    "inverse of a checkpoint": Job(checkpoint, "out", {**_INVERSE, **CELL}, older=_TWO),
    "verify checkpoint": Job(checkpoint, options=CELL, command="verify"),
    "inspect checkpoint": Job(checkpoint, "r.json", command="inspect", older=("",)),
    "checkpoint of version 1": Job(_V1, "out", older=_TWO),
    "graph": Job(_FROZEN, "out.pb", needs="tensorflow"),
    "savedmodel": Job(_SAVED, "out_model", older=_FOLDER, needs="tensorflow"),
    "savedmodel to h5": Job(_SAVED, "out.h5", {"to": "h5"}),
    "metagraph": Job(_CHECKPOINT_META, "o.meta", older=_META, needs="tensorflow"),
    "inspect graph": Job(_FROZEN, "r.json", command="inspect", older=("",), needs="tensorflow"),
}


def prepare(folder: Path, job: Job, *, old: bool) -> tuple[Path, Path | None]:
    """An empty folder with the input, and perhaps older files where the output goes."""
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "scratch").mkdir(parents=True)
    source = job.make(folder)
    for name in job.old_files() if old else ():
        if name:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(f"older {name}".encode())
    return source, None if job.output is None else folder / job.output

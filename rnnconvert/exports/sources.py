"""What can be exported: a Keras model, an RNN stack made one, or a TensorFlow graph.

CuDNN layers and whatever else Keras 3 does not load are converted first, in a temporary directory.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rnnconvert import layouts
from rnnconvert.checkpoints.inspect import open_stacks
from rnnconvert.commands import convert as conversion
from rnnconvert.errors import NotConvertibleError
from rnnconvert.exports import STACKS
from rnnconvert.exports.options import ExportOptions
from rnnconvert.exports.targets import Target
from rnnconvert.keras_models.files import writer as keras_writer
from rnnconvert.keras_models.files.h5 import MODEL, KerasH5, open_keras_h5
from rnnconvert.keras_models.files.saved_model import has_keras_config
from rnnconvert.keras_models.files.writer import LayerWeights
from rnnconvert.keras_models.opening import rebuilt_h5
from rnnconvert.keras_models.plan import Site
from rnnconvert.keras_models.planning import make_plan
from rnnconvert.keras_models.verify import keras_engine
from rnnconvert.kinds import Kind
from rnnconvert.layouts import RnnWeights
from rnnconvert.report import Assumption, FileInfo, Report
from rnnconvert.verification.frameworks import CannotRun, import_keras


@dataclass(frozen=True)
class State:
    """A state of a recurrent layer that the exported model takes and gives.

    Attributes:
        layer: name of the layer.
        input, output: names of the model's input and output.
        shape: without the batch.
        dtype: as Keras names it.
    """

    layer: str
    input: str
    output: str
    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True, eq=False)
class Source:
    """One model to export.

    Attributes:
        name: of the stack or layer, in a file that has several; "" where the file is one model.
        model: the Keras 3 model to write, uncompiled; None for a graph.
        original: file or directory that the proof runs as the original.
        stack: of a checkpoint or a weights-only file, the weights layer by layer from the bottom
            up; None for whole models.
        kind: of the input.
        states: which the model takes as its last inputs and gives as its last outputs; empty unless
            it was stateful, or for `--stateful-step`.
        is_step: the model takes one time step (`--stateful-step`).
        stepped: then, for each input of the original, whether it comes step by step.
    """

    name: str
    model: Any
    original: Path
    kind: Kind
    stack: tuple[LayerWeights, ...] | None = None
    states: tuple[State, ...] = ()
    is_step: bool = False
    stepped: tuple[bool, ...] = ()

    @property
    def is_graph(self) -> bool:
        return self.model is None


@dataclass(frozen=True)
class Sources:
    """All models of an input, and the report of the conversion that went before."""

    models: tuple[Source, ...]
    report: Report
    notes: tuple[str, ...] = ()


@contextmanager
def open_sources(
    path: Path, kind: Kind, target: Target, options: ExportOptions, work: Path
) -> Iterator[Sources]:
    """The models of a path, converted where that is needed.

    Args:
        path: of any kind.
        target: what they are for.
        work: a temporary directory.

    Raises:
        ConversionError: it can't be read or converted, or the target takes no such thing.
    """
    with ExitStack() as stack:
        if kind in STACKS:
            yield _of_checkpoint(path, kind, options, work)
        elif kind is Kind.GRAPH or (kind is Kind.SAVED_MODEL and not has_keras_config(path)):
            yield _of_graph(path, kind, target, options)
        elif kind is Kind.SAVED_MODEL and target.takes_graphs:
            yield _of_saved_model(path, target, options, work, stack)
        else:
            yield _of_keras(path, kind, options, work, stack)


# --- whole Keras models ---------------------------------------------------------------------


def _of_keras(
    path: Path, kind: Kind, options: ExportOptions, work: Path, stack: ExitStack
) -> Sources:
    if kind is Kind.KERAS_WEIGHTS or (kind is Kind.KERAS_H5 and not _is_whole(path)):
        return _of_weights(path, kind, options, work, stack)
    name = "converted.keras" if kind is Kind.KERAS else "converted.h5"
    report = conversion.convert_path(path, work / name, options.before)
    original = path
    converted = work / name
    is_old_keras = kind is Kind.KERAS and converted.exists()  # Keras 3 does not load it
    if is_old_keras or kind in (Kind.KERAS_1, Kind.THEANO, Kind.SAVED_MODEL):
        original, _ = stack.enter_context(rebuilt_h5(path, kind))
    model = load_keras(converted if converted.exists() else path, options)
    return Sources((Source("", model, original, kind),), report)


def _of_saved_model(
    path: Path, target: Target, options: ExportOptions, work: Path, stack: ExitStack
) -> Sources:
    """The Keras model that a SavedModel describes; its graph where that can't be rebuilt."""
    try:
        return _of_keras(path, Kind.SAVED_MODEL, options, work, stack)
    except NotConvertibleError as error:
        found = _of_graph(path, Kind.SAVED_MODEL, target, options)
        note = f"its graph is exported: the Keras model can't be rebuilt ({error.message})"
        return replace(found, notes=(*found.notes, note))


def _is_whole(path: Path) -> bool:
    with open_keras_h5(path) as file:
        return file.container == MODEL


def load_keras(path: Path, options: ExportOptions) -> Any:
    """A portable model, loaded by Keras 3.

    Raises:
        NotConvertibleError: it holds code that was not allowed, Keras does not load it, or it takes
            ragged or sparse tensors, which no other runtime has.
    """
    try:
        import_keras()  # before anything else imports it: quietly
        model = keras_engine.load(path, options.general.permissions)
    except CannotRun as error:
        raise NotConvertibleError(str(error)) from error
    for tensor in model.inputs or ():
        for form in ("ragged", "sparse"):
            if getattr(tensor, form, False):
                raise NotConvertibleError(
                    f"input {tensor.name} is {form}, which no other runtime takes; pad it, and mask"
                )
    return model


# --- stacks and layers without an architecture ----------------------------------------------


def _of_checkpoint(path: Path, kind: Kind, options: ExportOptions, work: Path) -> Sources:
    """A model for each RNN stack of a checkpoint."""
    before = replace(options.before, to="h5")
    folder = work / "stacks"
    if len(open_stacks(path, before)[1].stacks) > 1:
        folder.mkdir()
        report = conversion.convert_path(path, folder, before)
    else:
        report = conversion.convert_path(path, work / "stack.h5", before)
    files = sorted(folder.glob("*.h5")) if folder.is_dir() else [work / "stack.h5"]
    models = []
    for file in files:
        with open_keras_h5(file) as opened:
            layers = tuple(layers for _, layers in _layers(opened))
        name = file.stem if len(files) > 1 else ""
        models.append(Source(name, load_keras(file, options), file, kind, layers))
    return Sources(tuple(models), report)


def _of_weights(
    path: Path, kind: Kind, options: ExportOptions, work: Path, stack: ExitStack
) -> Sources:
    """A model for each recurrent layer of a weights-only file."""
    if kind is Kind.KERAS_WEIGHTS:
        path, _ = stack.enter_context(rebuilt_h5(path, kind))
    report = conversion.convert_path(path, work / "converted.h5", options.before)
    converted = work / "converted.h5"
    models = []
    assumptions: list[Assumption] = []
    with open_keras_h5(converted if converted.exists() else path) as file:
        found = list(_layers(file))
        if not found:
            raise NotConvertibleError("no recurrent layer is in this weights-only file")
        for number, (site, layer) in enumerate(found):
            name = re.sub(r"[^\w-]+", ".", site.path).strip(".") if len(found) > 1 else ""
            made = work / f"layer_{number}.h5"
            keras_writer.write_stack(made, site.path, [layer])
            models.append(Source(name, load_keras(made, options), made, kind, (layer,)))
            assumptions += _assumptions(site, report)
    report = replace(report, assumptions=(*report.assumptions, *dict.fromkeys(assumptions)))
    return Sources(tuple(models), report)


def _layers(file: KerasH5) -> Iterator[tuple[Site, LayerWeights]]:
    """The recurrent layers of a portable file; two directions of one layer are one.

    Raises:
        NotConvertibleError: a convolutional one, which no RNN stack has, or two directions that are
            not of one cell and size.
    """
    for forward, backward in _by_layer([change.site for change in make_plan(file).sites]):
        try:
            yield (
                forward,
                LayerWeights(
                    _weights(file, forward), None if backward is None else _weights(file, backward)
                ),
            )
        except ValueError as error:
            raise NotConvertibleError(f"{forward.path}: {error}") from error


def _by_layer(sites: Sequence[Site]) -> list[tuple[Site, Site | None]]:
    """Each layer's site, with that of its other direction if it has two.

    `.weights.h5` files have the backward direction first, other files the forward one.
    """
    pairs: list[tuple[Site, Site | None]] = []
    left = list(sites)
    while left:
        site = left.pop(0)
        other = _other_direction(site, left)
        if other is not None:
            left.remove(other)
        pairs.append((site, other) if site.direction == "forward" or not other else (other, site))
    return pairs


_DIRECTION = re.compile(r"(?:^|(?<=/))(?:forward|backward)_")
"""At the beginning of a name in a path: what Keras puts before the layer's own."""


def _other_direction(site: Site, sites: Sequence[Site]) -> Site | None:
    """The one of the same name but for the direction; or else the only one of the same layer."""
    if not _DIRECTION.search(site.path):
        return None
    others = [each for each in sites
              if each.direction != site.direction and _DIRECTION.search(each.path)]  # fmt: skip
    name = _DIRECTION.sub("", site.path)
    same = [each for each in others if _DIRECTION.sub("", each.path) == name]
    owner = _DIRECTION.split(site.path)[0]
    beside = [each for each in others if _DIRECTION.split(each.path)[0] == owner]
    if same or len(beside) == 1:
        return (same or beside)[0]
    return None


def _weights(file: KerasH5, site: Site) -> RnnWeights:
    if site.cell == "conv_lstm":
        raise NotConvertibleError(f"{site.path} is a ConvLSTM: weights alone are exported of "
                                  "LSTM, GRU and SimpleRNN layers only")  # fmt: skip
    tensors = {kind: file.read(tensor.path) for kind, tensor in site.tensors.items()}
    return layouts.unpack(layouts.find(site.layout, site.cell), tensors)


def _assumptions(site: Site, report: Report) -> Sequence[Assumption]:
    """What a weights-only file does not tell of a plain layer."""
    cudnn = {change.site.path for change in report.layers if change.site.is_cudnn}
    if site.path in cudnn:
        return ()
    why = "a weights-only file does not tell; another one changes the numbers"
    found = [Assumption("activation", "tanh", why)]
    if site.cell not in ("rnn_tanh", "rnn_relu"):
        found.append(Assumption("recurrent_activation", "sigmoid", why))
    return found


# --- graphs ---------------------------------------------------------------------------------


def _of_graph(path: Path, kind: Kind, target: Target, options: ExportOptions) -> Sources:
    if not target.takes_graphs:
        raise NotConvertibleError(
            f"{kind.title} without a Keras model in it can't be exported to {target.title}; "
            "--to onnx exports its graph"
        )
    if options.stateful_step:
        raise NotConvertibleError(
            "--stateful-step is for Keras models and RNN stacks; a graph does not tell its layers"
        )
    report = Report("export", FileInfo.of(path, kind.value, with_hash=options.general.hashes))
    return Sources((Source("", None, path, kind),), report)

"""The pipeline: open, plan, copy, patch, verify the copy, publish.

report = convert("model.h5", "out.h5")
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

from rnnconvert.containers import keras_h5
from rnnconvert.containers.checkpoint import find_checkpoint
from rnnconvert.containers.keras_h5 import KerasH5, open_keras_h5
from rnnconvert.containers.keras_v3 import save_as_keras
from rnnconvert.containers.sniff import exists, require_hdf5
from rnnconvert.errors import (
    ConversionError,
    DifferenceError,
    NotConvertibleError,
    UnreadableInputError,
    UsageError,
)
from rnnconvert.inverse_planning import make_inverse_plan
from rnnconvert.plan import Plan
from rnnconvert.planning import hard_sigmoid_flavours, make_plan
from rnnconvert.publish import (
    READ_FAILED,
    check_output,
    default_output,
    publish,
    temporary_file,
    write_errors,
)
from rnnconvert.report import FileInfo, LevelResult, Report, sha256
from rnnconvert.tf1.stack import StackOptions
from rnnconvert.verification.custom_objects import import_objects
from rnnconvert.verification.devices import require_gpu
from rnnconvert.verification.inputs import Inputs
from rnnconvert.verification.keras_engine import Permissions
from rnnconvert.verification.levels import check_layers, check_weights
from rnnconvert.verification.model_level import check_everywhere

LEVELS = ("none", "weights", "layers", "model")
CONTAINERS = ("h5", "keras", "weights")
OTHERS = ("checkpoint", "npz", "savedmodel", "graph")
"""Containers that other kinds of input become."""
SUFFIX = ".portable"
SUFFIXES = {"cudnn-to-keras": SUFFIX, "keras-to-cudnn": ".cudnn"}
"""Each converting command, and what it puts into the name of its output."""
_EXTENSIONS = {".h5": "h5", ".hdf5": "h5", ".keras": "keras"}
_INPUTS = tuple(field.name for field in fields(Inputs))
_STACK = tuple(field.name for field in fields(StackOptions))
NAMES = ("tf1", "keras")
DEVICES = ("auto", "cpu", "gpu")


@dataclass(frozen=True)
class Options:
    """Options of a conversion, as the command line names them.

    Attributes:
        command: a key of SUFFIXES.
        to: "h5", "keras" or "weights"; None follows the output's name, else the input.
        verify: how deep: one of LEVELS.
        target: "keras3" or "keras2", where one file can't serve both.
        optimizer: "convert" or "drop".
        force: overwrite an existing output.
        in_place: replace the input, atomically.
        dry_run: do everything, verification included, and write nothing.
        check: only plan; the report says whether the input needs conversion.
        hashes: put SHA-256 of input and output into the report.
        inputs: of the levels `layers` and `model`.
        device: where the level `model` runs: one of DEVICES.
        permissions: which code of the model file may run for that.
        stack: what a checkpoint does not tell of its RNN stacks.
        names: of the variables in a converted checkpoint: "tf1" or "keras".
        ignore_dropout, unroll: of the lowering of graphs, see `lowering.Options`.
        rebuilt_from: set by `graph_pipeline`: what the input was rebuilt from.
    """

    command: str = "cudnn-to-keras"
    to: str | None = None
    verify: str = "model"
    target: str = "keras3"
    optimizer: str = "convert"
    force: bool = False
    in_place: bool = False
    dry_run: bool = False
    check: bool = False
    hashes: bool = True
    inputs: Inputs = field(default_factory=Inputs)
    device: str = "auto"
    permissions: Permissions = field(default_factory=Permissions)
    stack: StackOptions = field(default_factory=StackOptions)
    names: str = "tf1"
    ignore_dropout: bool = False
    unroll: int | None = None
    rebuilt_from: str | None = None

    def __post_init__(self) -> None:
        choices = (
            ("command", self.command, tuple(SUFFIXES)),
            ("to", self.to, (None, *CONTAINERS, *OTHERS)),
            ("verify", self.verify, LEVELS),
            ("target", self.target, ("keras3", "keras2")),
            ("optimizer", self.optimizer, ("convert", "drop")),
            ("device", self.device, DEVICES),
            ("names", self.names, NAMES),
        )
        for name, value, known in choices:
            if value not in known:
                listed = ", ".join(str(choice) for choice in known if choice)
                raise UsageError(f"{name}={value!r}: expected one of {listed}")

    @classmethod
    def of(cls, **named: Any) -> Options:
        """Options from one flat list of keywords, as the command line and the API take them.

        Besides the attributes: those of `Inputs` (seed, batch, timesteps, rtol, atol), `allow_code`
        and `custom_objects`, a mapping or a list of "module:name".

        Raises:
            UsageError: an unknown keyword, or a value that is not allowed.
        """
        inputs = {name: named.pop(name) for name in _INPUTS if name in named}
        objects = named.pop("custom_objects", None) or {}
        if not isinstance(objects, Mapping):
            objects = import_objects(objects)
        stack = {name: named.pop(name) for name in _STACK if name in named}
        permissions = Permissions(bool(named.pop("allow_code", False)), objects)
        unknown = sorted(set(named) - {f.name for f in fields(cls)})
        if unknown:
            raise UsageError(f"unknown option {', '.join(unknown)}")
        return cls(
            inputs=Inputs(**inputs), permissions=permissions, stack=StackOptions(**stack), **named
        )

    @property
    def suffix(self) -> str:
        """What goes into the name of an output that was given none."""
        return SUFFIXES[self.command]

    @property
    def is_inverse(self) -> bool:
        return self.command == "keras-to-cudnn"

    @property
    def extension(self) -> str | None:
        """Extension of the output where it is not the input's."""
        return ".keras" if self.to == "keras" else None


def run(source: Path, output: Path | None, options: Options) -> Report:
    """Convert one file. A ConversionError that is raised carries a partial report, if there is one.

    Raises:
        ConversionError: a subclass for each exit code; see `errors`.
    """
    exists(source)  # raises for names that can't be, before anything looks for more
    if find_checkpoint(source) is not None:
        from rnnconvert import checkpoint_pipeline  # not above: it imports this module

        return checkpoint_pipeline.run(source, output, options)
    from rnnconvert import graph_pipeline

    if graph_pipeline.kind_of(source) is not None:
        return graph_pipeline.run(source, output, options)
    if options.device == "gpu" and options.verify == "model":
        require_gpu()
    if options.in_place:
        source = source.resolve()  # through a link, the file itself is replaced and not the link
    try:
        return _run(source, output, options)
    except ConversionError as error:
        error.path = error.path or str(source)
        raise
    except OSError as error:
        if READ_FAILED not in str(error):
            raise
        raise UnreadableInputError(
            f"the data of a tensor can't be read, the file is damaged ({error})", path=str(source)
        ) from error


def _run(source: Path, output: Path | None, options: Options) -> Report:
    require_hdf5(source)
    before = source.stat()
    with open_keras_h5(source) as file:
        to = _target_container(file, output, options)
        plan = _plan(file, options, to)
        report = _first_report(file, plan, options)
        if plan.problems:
            raise _with_report(
                NotConvertibleError("; ".join(plan.problems), problems=plan.problems),
                replace(report, verdict="not-convertible"),
            )
        own = "h5" if file.container == keras_h5.MODEL else "weights"
        same_container = (
            to == {"keras": "keras", "savedmodel": None, None: own}[options.rebuilt_from]
        )
        if plan.is_empty and same_container:
            return replace(report, verdict="nothing-to-convert")
        if options.check:
            return report
        output = _output_path(source, output, to, options)
        check_output(source, output, force=options.force or options.dry_run,
                     in_place=options.in_place)  # fmt: skip
        report = replace(report, warnings=(*report.warnings, *_name_warnings(output, to, options)))
        directory = Path(tempfile.gettempdir()) if options.dry_run else output.parent
        with temporary_file(directory, ".h5") as temporary:
            with write_errors(output):
                keras_h5.copy_around(plan, file, temporary)
                keras_h5.apply(plan, file, temporary)
            report = _verify(report, plan, file, temporary, options)
            with _finished(file, plan, temporary, to, output) as final:
                whole = final if to == "keras" else temporary
                report = _verify_model(report, plan, file, temporary, whole, options)
                _require_unchanged(source, before)
                info = _output_info(final, output, to, file, options)
                if not options.dry_run:
                    publish(final, output)
    return replace(report, output=None if options.dry_run else info)


def _plan(file: KerasH5, options: Options, to: str) -> Plan:
    if options.is_inverse:
        return make_inverse_plan(file, optimizer=options.optimizer)
    return make_plan(file, target=options.target, optimizer=options.optimizer, to=to)


def _target_container(file: KerasH5, output: Path | None, options: Options) -> str:
    """The output's container: asked for, or by the output's name, or the input's own."""
    own = "h5" if file.container == keras_h5.MODEL else "weights"
    to = options.to
    if to is None and output is not None:
        to = _EXTENSIONS.get(output.suffix, own)
        if to == "h5":
            to = own
    to = to or own
    if to not in CONTAINERS:
        raise UsageError(f"--to {to}: a Keras HDF5 file becomes one of {', '.join(CONTAINERS)}")
    if to == "keras" and options.is_inverse:
        raise UsageError(
            "a .keras file is Keras 3's, which has no CuDNN layers; write an .h5 file instead"
        )
    if own == "weights" and to == "h5":
        to = "weights"
    if own == "weights" and to == "keras":
        raise NotConvertibleError(
            "a weights-only file holds no architecture, so no .keras model can be made of it"
        )
    return to


def _output_path(source: Path, output: Path | None, to: str, options: Options) -> Path:
    if options.in_place:
        if output is not None:
            raise UsageError("--in-place and an output exclude each other")
        if to == "keras":
            raise UsageError("--in-place keeps the container; it can't go with --to keras")
        return source
    extension = {"keras": ".keras", "weights": None, "h5": None}[to]
    if output is None:
        extracted = to == "weights" and options.to == "weights"
        suffix = f".weights{options.suffix}" if extracted else options.suffix
        return default_output(source, suffix, extension)
    if output.is_dir():
        return output / default_output(source, options.suffix, extension).name
    return output


def _name_warnings(output: Path, to: str, options: Options) -> tuple[str, ...]:
    """Keras 3 goes by a file's name, so a good file under a wrong name does not load."""
    if options.is_inverse:
        return ()  # Keras 2 looks into the file
    if to == "keras" and output.suffix != ".keras":
        return ("Keras 3 loads this file only under a name that ends in .keras",)
    if to != "keras" and output.suffix not in (".h5", ".hdf5"):
        return ("Keras 3 loads this file only under a name that ends in .h5 or .hdf5",)
    if to == "weights" and output.name.endswith(".weights.h5"):
        return ("Keras 3 takes a name that ends in .weights.h5 for its own format; use another",)
    return ()


def _first_report(file: KerasH5, plan: Plan, options: Options) -> Report:
    skipped = LevelResult("skipped", reason="not reached")
    return Report(
        command=options.command,
        input=keras_h5.describe(file, with_hash=options.hashes),
        layers=plan.sites,
        config_changes=plan.config_changes,
        optimizer=plan.optimizer,
        weights_level=skipped,
        layers_level=skipped,
        model_level=(skipped,),
        target_points=plan.target_points,
        warnings=plan.warnings,
        problems=plan.problems,
    )


def _output_info(final: Path, output: Path, to: str, file: KerasH5, options: Options) -> FileInfo:
    container = {"h5": keras_h5.MODEL, "weights": keras_h5.WEIGHTS, "keras": "keras"}[to]
    return FileInfo(
        path=str(output),
        bytes=final.stat().st_size,
        container=container,
        sha256=sha256(final) if options.hashes else None,
        keras_version=file.keras_version,
        backend=file.backend,
    )


def _verify(report: Report, plan: Plan, file: KerasH5, written: Path, options: Options) -> Report:
    """Verify the patched copy as deep as asked for.

    Raises:
        DifferenceError: a level failed; it carries the report.
    """
    if options.verify == "none":
        asked = LevelResult("skipped", reason="not asked for (--verify none)")
        return replace(report, weights_level=asked, layers_level=asked, verdict="unverified")
    with open_keras_h5(written) as copy:
        again = _require_done(copy, options)
        weights, suspicions = check_weights(plan, file, copy)
        layers = LevelResult("skipped", reason=f"not asked for (--verify {options.verify})")
        if options.verify in ("layers", "model") and weights.status == "passed":
            flavours = hard_sigmoid_flavours(file, copy)
            sites = [change.site for change in again.sites]
            layers = check_layers(plan, file, copy, sites, flavours, options.inputs)
    warnings = (*report.warnings, *suspicions)
    report = replace(report, weights_level=weights, layers_level=layers, warnings=warnings,
                     verdict="equivalent")  # fmt: skip
    for name, level in (("weights", weights), ("layers", layers)):
        if level.status == "failed":
            raise _with_report(
                DifferenceError(level.failure(name) + "; nothing was written"),
                replace(report, verdict="different"),
            )
    return report


def _verify_model(
    report: Report, plan: Plan, file: KerasH5, copy: Path, written: Path, options: Options
) -> Report:
    """Run original and result, on the CPU and where there is one on a GPU.

    Raises:
        DifferenceError: they differ; it carries the report.
    """
    if options.verify != "model":
        asked = LevelResult("skipped", reason=f"not asked for (--verify {options.verify})")
        return replace(report, model_level=(asked,))
    with open_keras_h5(copy) as copied:
        levels = check_everywhere(
            file.path, written, options.inputs, options.permissions, options.device,
            partial(_on_torch, plan, file, copied, options.inputs),
        )  # fmt: skip
    report = replace(report, model_level=levels)
    for level in levels:
        if level.status == "failed":
            raise _with_report(
                DifferenceError(level.failure(f"model, {level.device}") + "; nothing was written"),
                replace(report, verdict="different"),
            )
    return report


def _on_torch(plan: Plan, file: KerasH5, copy: KerasH5, inputs: Inputs) -> LevelResult:
    from rnnconvert.verification.torch_engine import check_layers_on_cudnn

    return check_layers_on_cudnn(plan, file, copy, inputs)


def _require_done(copy: KerasH5, options: Options) -> Plan:
    """The copy, opened like any input, must need nothing more. Returns its (empty) plan."""
    again = _plan(copy, replace(options, optimizer="convert"), "h5")
    if again.problems or not again.is_empty:
        left = [*again.problems, *(f"{c.path} {c.key}" for c in again.config_changes)]
        raise DifferenceError(
            "the written file still needs conversion, a bug of rnnconvert: "
            + "; ".join(left or [change.target.path for change in again.tensor_changes])
        )
    return again


def _require_unchanged(source: Path, before: os.stat_result) -> None:
    now = source.stat()
    keys = ("st_ino", "st_size", "st_mtime_ns")
    if any(getattr(now, key) != getattr(before, key) for key in keys):
        raise UnreadableInputError("the input was changed while it was converted; try again")


def _with_report(error: ConversionError, report: Report) -> ConversionError:
    error.report = report
    return error


@contextmanager
def _finished(file: KerasH5, plan: Plan, temporary: Path, to: str, output: Path) -> Iterator[Path]:
    """The file to publish: the patched copy itself, or what is made of it (`--to`)."""
    if to == "h5" or (to == "weights" and file.container == keras_h5.WEIGHTS):
        yield temporary
        return
    extension = ".keras" if to == "keras" else ".h5"
    with temporary_file(temporary.parent, extension) as final:
        with write_errors(output):
            if to == "weights":
                keras_h5.extract_weights(temporary, final)
            else:
                save_as_keras(temporary, final, plan)
        yield final

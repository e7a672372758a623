"""The pipeline for SavedModels, frozen graphs and `.keras` files.

`--to savedmodel|graph` lowers cuDNN's ops to ordinary ones. `--to h5|keras|weights` rebuilds the
Keras model that a SavedModel or `.keras` file describes, and converts that.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rnnconvert import lowering, pipeline
from rnnconvert.containers import keras_savedmodel, keras_zip
from rnnconvert.containers.sniff import is_zip
from rnnconvert.errors import (
    ConversionError,
    DifferenceError,
    NotConvertibleError,
    OutputError,
    UsageError,
)
from rnnconvert.frameworks import CannotRun, import_tensorflow
from rnnconvert.pipeline import Options
from rnnconvert.publish import PREFIX, check_output, publish, temporary_file, write_errors
from rnnconvert.report import FileInfo, LevelResult, Report, sha256, tool_versions

SAVED_MODEL, GRAPH, KERAS = "savedmodel", "frozen-graph", "keras"
_EXTENSIONS = {".h5": "h5", ".hdf5": "h5", ".keras": "keras", ".pb": "graph"}
_KERAS_CONTAINERS = ("h5", "keras", "weights")


def kind_of(path: Path) -> str | None:
    """SAVED_MODEL, GRAPH or KERAS by the content of a path; None for anything else."""
    try:
        if path.is_dir():
            return SAVED_MODEL if (path / "saved_model.pb").is_file() else None
        if not path.is_file() or not path.stat().st_size:
            return None
        if is_zip(path):
            return KERAS
    except OSError:
        return None
    return GRAPH if path.suffix == ".pb" else None


def run(source: Path, output: Path | None, options: Options) -> Report:
    """Convert a SavedModel, a frozen graph or a `.keras` file.

    Raises:
        ConversionError: a subclass for each exit code; see `errors`.
    """
    try:
        kind = kind_of(source)
        assert kind is not None
        if options.is_inverse:
            raise NotConvertibleError("keras-to-cudnn converts Keras .h5 files, not graphs")
        to = _target(kind, output, options)
        if options.in_place:
            raise UsageError("--in-place is for .h5 files")
        if to in _KERAS_CONTAINERS:
            return _run_rebuilt(source, output, kind, replace(options, to=to))
        return _lower(source, output, kind, options)
    except ConversionError as error:
        error.path = error.path or str(source)
        raise


def _target(kind: str, output: Path | None, options: Options) -> str:
    own = {SAVED_MODEL: "savedmodel", GRAPH: "graph", KERAS: "keras"}[kind]
    known = {
        SAVED_MODEL: ("savedmodel", *_KERAS_CONTAINERS),
        GRAPH: ("graph",),
        KERAS: _KERAS_CONTAINERS,
    }[kind]
    to = options.to
    if to is None and output is not None:
        to = _EXTENSIONS.get(output.suffix)
    to = to or own
    if to not in known:
        raise UsageError(f"--to {to}: this input becomes one of {', '.join(known)}")
    return to


# --- rebuilt --------------------------------------------------------------------------------


def _run_rebuilt(source: Path, output: Path | None, kind: str, options: Options) -> Report:
    """Rebuild the Keras model as an HDF5 file of our own, and convert that."""
    extension = ".keras" if options.to == "keras" else ".h5"
    stem = source.stem if source.suffix == ".keras" else source.name
    name = f"{stem}{options.suffix}{extension}"
    if output is None:
        output = source.with_name(name)
    elif output.is_dir():
        output = output / name
    if output.exists() and output.samefile(source):
        raise UsageError("output and input are the same file", path=str(output))
    with rebuilt_h5(source, kind) as (file, warnings):
        info = describe(source, kind, options.hashes)
        try:
            report = pipeline.run(file, output, replace(options, rebuilt_from=kind))
        except ConversionError as error:
            if error.path == str(file):
                error.path = str(source)
            if error.report is not None:
                error.report = replace(error.report, input=info)
            raise
        info = replace(info, keras_version=report.input.keras_version, backend=report.input.backend)
    return replace(report, input=info, warnings=(*warnings, *report.warnings))


@contextmanager
def rebuilt_h5(source: Path, kind: str) -> Iterator[tuple[Path, tuple[str, ...]]]:
    """The Keras model of a SavedModel or `.keras` file as a temporary HDF5 file, and warnings."""
    rebuild = keras_savedmodel.rebuild_h5 if kind == SAVED_MODEL else keras_zip.rebuild_h5
    with temporary_file(Path(tempfile.gettempdir()), ".h5") as file:
        yield file, rebuild(source, file).warnings


# --- lowered --------------------------------------------------------------------------------


@dataclass(frozen=True)
class LoweredOp:
    """One op for the report."""

    op: lowering.CudnnOp

    def to_dict(self) -> dict[str, Any]:
        op = self.op
        return {
            "path": op.place,
            "class_name": op.op,
            "cell": op.mode,
            "from": "cudnn-op",
            "to": "tensorflow-ops" if op.needs_lowering else "left",
            "units": op.units,
            "input_dim": op.input_size,
            "layers": op.num_layers,
            "direction": op.direction,
            "flags": [f for f in ("time_major", "is_training") if getattr(op, f)],
            "params": {"from": None, "to": None, "formula": None},
            "tensors": [
                {"source": name, "target": name, "operation": "none", "lossless": True}
                for name in op.params
            ],
        }


def _lower(source: Path, output: Path | None, kind: str, options: Options) -> Report:
    _require_tensorflow()
    skipped = LevelResult("skipped", reason="not reached")
    info = describe(source, kind, options.hashes)
    report = Report("cudnn-to-keras", info, weights_level=skipped, layers_level=skipped,
                    model_level=(skipped,))  # fmt: skip
    output = _lowered_path(source, output, kind)
    if kind == SAVED_MODEL:
        _check_directory(source, output, options)
    else:
        force = options.force or options.dry_run or options.check
        check_output(source, output, force=force, in_place=False)
    folder = Path(tempfile.gettempdir()) if options.dry_run or options.check else output.parent
    work = Path(tempfile.mkdtemp(prefix=PREFIX, dir=folder))
    try:
        target = work / output.name
        chosen = lowering.Options(ignore_dropout=options.ignore_dropout, unroll=options.unroll)
        with write_errors(output):
            if kind == SAVED_MODEL:
                target.mkdir()
                files = lowering.lower_saved_model_dir(source, target, options=chosen)
            else:
                files = lowering.lower_frozen_graph(source, target, options=chosen)
        report = replace(
            report,
            layers=tuple(LoweredOp(op) for op in (*files.lowered, *files.left)),
            warnings=files.warnings,
        )
        if not files.lowered:
            return replace(report, verdict="nothing-to-convert")
        if options.check:
            return report
        report = _verify(report, source, target, kind, options)
        result = replace(describe(target, kind, options.hashes), path=str(output))
        if options.dry_run:
            return report
        _publish(target, output, kind, options)
        return replace(report, output=result)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _require_tensorflow() -> None:
    try:
        import_tensorflow()
    except CannotRun as error:
        raise UsageError(f"lowering a graph: {error}") from error


def _lowered_path(source: Path, output: Path | None, kind: str) -> Path:
    suffix = pipeline.SUFFIX
    name = f"{source.name}{suffix}" if kind == SAVED_MODEL else f"{source.stem}{suffix}.pb"
    if output is None:
        return source.with_name(name)
    if kind == GRAPH and output.is_dir():
        return output / name
    return output


def _check_directory(source: Path, output: Path, options: Options) -> None:
    """Refuse an output directory that can't or mustn't be written."""
    if not output.parent.is_dir():
        raise OutputError(f"the directory {output.parent} does not exist", path=str(output))
    if output.exists():
        if output.samefile(source):
            raise UsageError("output and input are the same directory", path=str(output))
        if not (options.force or options.dry_run or options.check):
            raise OutputError("the output exists; use --force to replace it", path=str(output))
        if output.is_dir() and not (output / "saved_model.pb").exists() and any(output.iterdir()):
            raise OutputError("the directory holds no SavedModel, and is kept", path=str(output))
    if not os.access(output.parent, os.W_OK):
        raise OutputError(f"the directory {output.parent} is not writable", path=str(output))


def _publish(target: Path, output: Path, kind: str, options: Options) -> None:
    if kind == GRAPH:
        publish(target, output)
        return
    with write_errors(output):
        mask = os.umask(0)
        os.umask(mask)
        target.chmod(0o777 & ~mask)
        if output.exists():  # --force: the old one steps aside, and is removed at the end
            os.rename(output, target.with_name("replaced"))
        os.rename(target, output)


def _verify(report: Report, source: Path, target: Path, kind: str, options: Options) -> Report:
    asked = LevelResult("skipped", reason=f"not asked for (--verify {options.verify})")
    if options.verify == "none":
        return replace(report, weights_level=asked, layers_level=asked, model_level=(asked,),
                       verdict="unverified")  # fmt: skip
    weights = _check_variables(source, target) if kind == SAVED_MODEL else LevelResult(
        "passed", detail="constants of the graph are not touched"
    )  # fmt: skip
    part_of_model = LevelResult(
        "skipped", reason="each op is computed by the float64 reference within the level model"
    )
    report = replace(report, weights_level=weights, layers_level=part_of_model,
                     model_level=(asked,), verdict="equivalent")  # fmt: skip
    if options.verify == "model":
        report = replace(report, model_level=_run_signatures(source, target, kind, options))
    for name, level in report.levels:
        if level.status == "failed":
            error = DifferenceError(level.failure(name) + "; nothing was written")
            error.report = replace(report, verdict="different")
            raise error
    return report


def _check_variables(source: Path, target: Path) -> LevelResult:
    """The variables' files are the source's, byte for byte."""
    files = sorted((source / "variables").glob("*")) if (source / "variables").is_dir() else []
    for file in files:
        if sha256(file) != sha256(target / "variables" / file.name):
            return LevelResult("failed", detail=f"variables/{file.name} is another file")
    return LevelResult("passed", detail=f"{len(files)} files of variables, byte for byte")


def _run_signatures(
    source: Path, target: Path, kind: str, options: Options
) -> tuple[LevelResult, ...]:
    inputs = options.inputs
    choices = lowering.Choices(
        inputs.seed, inputs.batch or 3, options.unroll or inputs.timesteps or 7
    )
    check = lowering.verify_saved_model if kind == SAVED_MODEL else lowering.verify_frozen_graph
    engine = "tensorflow, cuDNN ops of the original by the float64 reference"
    results = check(source, target, choices=choices)
    levels = [
        LevelResult(
            result.status, detail=f"signature {result.signature}", reason=result.reason,
            device="cpu", engine=engine, max_abs=result.max_abs, tolerance=result.tolerance,
            worst=result.worst, seed=result.seed,
        )
        for result in results
    ]  # fmt: skip
    gpu = LevelResult("skipped", device="gpu", reason="lowered graphs are run on the CPU only")
    none = LevelResult("skipped", device="cpu", reason="the SavedModel has no signature to run")
    return (*(levels or [none]), gpu)


def describe(path: Path, kind: str, with_hash: bool) -> FileInfo:
    """Of a directory, the SHA-256 is that of its files' names and hashes, in order."""
    container = {SAVED_MODEL: "savedmodel", GRAPH: "frozen-graph", KERAS: "keras"}[kind]
    if path.is_file():
        return FileInfo(
            str(path), path.stat().st_size, container, sha256(path) if with_hash else None
        )
    files = sorted(file for file in path.rglob("*") if file.is_file())
    digest = None
    if with_hash:
        lines = "".join(f"{file.relative_to(path).as_posix()} {sha256(file)}\n" for file in files)
        digest = hashlib.sha256(lines.encode()).hexdigest()
    return FileInfo(str(path), sum(file.stat().st_size for file in files), container, digest)


# --- inspection -----------------------------------------------------------------------------


@dataclass(frozen=True)
class GraphInspection:
    """What `inspect` found in a SavedModel or frozen graph.

    Attributes:
        input: the model.
        signatures: names, of a SavedModel.
        ops: every cuDNN op, twins of plain Keras layers included.
        has_keras_config: whether `--to keras` can rebuild a Keras model.
    """

    input: FileInfo
    signatures: tuple[str, ...]
    ops: tuple[lowering.CudnnOp, ...]
    has_keras_config: bool

    @property
    def verdict(self) -> str:
        needs = any(op.needs_lowering for op in self.ops)
        return "convertible" if needs else "nothing-to-convert"

    def to_dict(self) -> dict[str, Any]:
        return {
            "schema": 1,
            "tool": tool_versions(),
            "command": "inspect",
            "input": self.input.to_dict(),
            "signatures": list(self.signatures),
            "layers": [LoweredOp(op).to_dict() for op in self.ops],
            "has_keras_config": self.has_keras_config,
            "verdict": self.verdict,
        }


def inspect(path: Path, *, hashes: bool = True) -> GraphInspection:
    """The cuDNN ops of a SavedModel or frozen graph. Nothing is written, no graph is run.

    Raises:
        UnreadableInputError: it is no such model.
        UsageError: TensorFlow is missing.
    """
    kind = kind_of(path)
    _require_tensorflow()
    try:
        info = describe(path, str(kind), hashes)
        if kind == GRAPH:
            ops = lowering.find_ops(lowering.read_graph_def(path))
            return GraphInspection(info, (), tuple(ops), False)
        saved_model = lowering.read_saved_model(path)
        found = [
            op for meta in saved_model.meta_graphs for op in lowering.find_ops_in_meta_graph(meta)
        ]
        signatures = [name for meta in saved_model.meta_graphs for name in meta.signature_def]
        has_config = keras_savedmodel.has_keras_config(path)
    except ConversionError as error:
        error.path = error.path or str(path)
        raise
    return GraphInspection(info, tuple(signatures), tuple(found), has_config)

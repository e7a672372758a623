"""Keras HDF5 files: open, plan, copy, patch, verify the copy, publish."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

from rnnconvert.errors import ConversionError, NotConvertibleError, UnreadableInputError, UsageError
from rnnconvert.hashes import sha256, sha256_meanwhile
from rnnconvert.keras_models.files import h5 as keras_h5
from rnnconvert.keras_models.files import h5_patch
from rnnconvert.keras_models.files.h5 import KerasH5, open_keras_h5
from rnnconvert.keras_models.files.h5_patch import Checked
from rnnconvert.keras_models.plan import Plan
from rnnconvert.keras_models.planning import hard_sigmoid_flavours, make_plan
from rnnconvert.keras_models.save_keras import save_as_keras
from rnnconvert.keras_models.to_cudnn import make_inverse_plan
from rnnconvert.keras_models.verify.levels import check_layers, check_weights
from rnnconvert.keras_models.verify.loads import show_that_it_loads, without_keras
from rnnconvert.keras_models.verify.model_level import check_everywhere
from rnnconvert.kinds import EXTENSIONS, KERAS_FILES
from rnnconvert.options import Inputs, Options
from rnnconvert.outputs import Footprint, check_output, default_output
from rnnconvert.progress import tell
from rnnconvert.publish import publish, scratch_directory, temporary_file, write_errors
from rnnconvert.report import NOTHING_WRITTEN, FileInfo, LevelResult, OptimizerRecord, Report


def convert_keras_h5(
    source: Path, output: Path | None, options: Options, *, like: str | None = None
) -> Report:
    """Convert one Keras HDF5 file.

    Args:
        like: container of the output that a file without anything to convert need not be written
            to; default the source's own. "" for none: then a file is always written.

    Raises:
        ConversionError: a subclass for each exit code; see `errors`.
    """
    if options.in_place:
        source = source.resolve()  # through a link, the file itself is replaced and not the link
    return _run(source, output, options, like)


def _run(source: Path, output: Path | None, options: Options, like: str | None) -> Report:
    """Convert, while a thread computes the SHA-256 of the input, if it is asked for."""
    with sha256_meanwhile(source, wanted=options.hashes) as digest:
        try:
            report = _convert(source, output, options, like, digest)
        except ConversionError as error:
            if error.report is not None:
                error.with_report(_with_digest(error.report, digest()))
            raise
        return _with_digest(report, digest())


def _with_digest(report: Report, digest: str | None) -> Report:
    return replace(report, input=replace(report.input, sha256=digest))


def _convert(
    source: Path,
    output: Path | None,
    options: Options,
    like: str | None,
    digest: Callable[[], str | None],
) -> Report:
    before = source.stat()
    with open_keras_h5(source) as file:
        to = _target_container(file, output, options)
        plan = _plan(file, options, to)
        report = _first_report(file, plan, options)
        if plan.problems:
            error = NotConvertibleError("; ".join(plan.problems), problems=plan.problems)
            raise error.with_report(replace(report, verdict="not-convertible"))
        if plan.is_empty and to == (_own(file) if like is None else like):
            names = () if like is not None else _name_warnings(source, to, options)
            report = replace(
                report, verdict="nothing-to-convert", warnings=(*report.warnings, *names)
            )
            return report if like is not None else show_that_it_loads(report, source, options)
        if options.check:
            return report
        output = output_path(source, output, to, options)
        check_output(source, output, force=options.force or options.dry_run,
                     in_place=options.in_place)  # fmt: skip
        report = replace(report, warnings=(*report.warnings, *_name_warnings(output, to, options)))

        def require_unchanged() -> None:
            digest()  # has read all of it
            _require_unchanged(source, before)

        return _write(report, plan, file, to, output, options, require_unchanged)


def _write(
    report: Report,
    plan: Plan,
    file: KerasH5,
    to: str,
    output: Path,
    options: Options,
    require_unchanged: Callable[[], None],
) -> Report:
    """Write beside the output, verify what was written, publish."""
    directory = scratch_directory() if options.dry_run else output.parent
    with temporary_file(directory, ".h5") as temporary, ExitStack() as stack:
        with write_errors(output):
            h5_patch.copy_around(plan, file, temporary)
            checked = h5_patch.apply(plan, file, temporary, check=options.verify != "none")
        digest = stack.enter_context(sha256_meanwhile(temporary, wanted=options.hashes))
        with write_errors(output):
            report = _verify(report, plan, file, temporary, checked, options)
        with _finished(file, plan, temporary, to, output, options) as final:
            whole = final if to == "keras" else temporary
            report = _verify_model(report, plan, file, temporary, whole, options)
            if options.strict:
                report.raise_if_in_doubt(NOTHING_WRITTEN, gpu=options.device == "gpu")
            require_unchanged()
            if options.hashes and final != temporary:
                digest = partial(sha256, final)
            info = _output_info(final, output, to, file, digest())
            if not options.dry_run:
                publish(final, output)
    return replace(report, output=None if options.dry_run else info)


def keras_footprint(source: Path, output: Path | None, options: Options) -> Footprint:
    """What `run` would read and write; in place it is one file."""
    with open_keras_h5(source) as file:
        to = _target_container(file, output, options)
    written = output_path(source, output, to, options)
    return Footprint(() if options.in_place else (source,), (written,))


def _plan(file: KerasH5, options: Options, to: str) -> Plan:
    if options.is_inverse:
        return make_inverse_plan(file, optimizer=options.optimizer)
    return make_plan(file, target=options.target, optimizer=options.optimizer, to=to)


def _own(file: KerasH5) -> str:
    return "h5" if file.container == keras_h5.MODEL else "weights"


def _target_container(file: KerasH5, output: Path | None, options: Options) -> str:
    """The output's container: asked for, or by the output's name, or the input's own."""
    own = _own(file)
    to = options.to
    if to is None and output is not None:
        to = EXTENSIONS.get(output.suffix, own)
        if to == "h5":
            to = own
    to = to or own
    if to not in KERAS_FILES:
        raise UsageError(f"--to {to}: a Keras HDF5 file becomes one of {', '.join(KERAS_FILES)}")
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


def output_path(source: Path, output: Path | None, to: str, options: Options) -> Path:
    """Where a Keras HDF5 file is written to, as container `to`."""
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
    skipped = LevelResult.skipped("not reached")
    return Report(
        command=options.command,
        input=keras_h5.describe_h5(file, with_hash=False),
        layers=(*plan.sites, *plan.rescaled),
        config_changes=plan.config_changes,
        optimizer=OptimizerRecord(plan.optimizer.state, plan.optimizer.notes),
        weights_level=skipped,
        layers_level=skipped,
        model_level=(skipped,),
        target_points=plan.target_points,
        warnings=plan.warnings,
        problems=plan.problems,
    )


def _output_info(final: Path, output: Path, to: str, file: KerasH5, digest: str | None) -> FileInfo:
    container = {"h5": keras_h5.MODEL, "weights": keras_h5.WEIGHTS, "keras": "keras"}[to]
    return FileInfo(
        path=str(output),
        bytes=final.stat().st_size,
        container=container,
        sha256=digest,
        keras_version=file.keras_version,
        backend=file.backend,
    )


def _verify(
    report: Report,
    plan: Plan,
    file: KerasH5,
    written: Path,
    checked: Mapping[str, Checked],
    options: Options,
) -> Report:
    """Verify the patched copy as deep as asked for; `checked` was compared when it was written.

    Raises:
        DifferenceError: a level failed; it carries the report.
    """
    if options.verify == "none":
        asked = LevelResult.not_asked(options.verify)
        return replace(report, weights_level=asked, layers_level=asked, verdict="unverified")
    with open_keras_h5(written) as copy:
        again = _require_done(copy, options)
        found = h5_patch.found_in(plan, checked, file, copy)
        weights, suspicions = check_weights(plan, file, copy, found)
        same = {path for path, each in found.items() if not each.difference}
        rest = keras_h5.other_rest(plan, file, copy, same) if weights.status == "passed" else None
        if rest is not None:
            weights = LevelResult("failed", detail=f"what was to stay as it is: {rest}")
        layers = LevelResult.not_asked(options.verify)
        if options.verify in ("layers", "model") and weights.status == "passed":
            flavours = hard_sigmoid_flavours(file, copy)
            sites = [change.site for change in again.sites]
            layers = check_layers(plan, file, copy, sites, flavours, options.inputs)
    warnings = (*report.warnings, *suspicions)
    report = replace(report, weights_level=weights, layers_level=layers, warnings=warnings,
                     verdict="equivalent")  # fmt: skip
    report.raise_if_different(NOTHING_WRITTEN)
    return report


def _verify_model(
    report: Report, plan: Plan, file: KerasH5, copy: Path, written: Path, options: Options
) -> Report:
    """Run original and result, on the CPU and where there is one on a GPU.

    Raises:
        DifferenceError: they differ; it carries the report.
    """
    if options.verify != "model":
        return replace(report, model_level=(LevelResult.not_asked(options.verify),))
    if file.container == keras_h5.WEIGHTS:
        level = LevelResult.nothing_to_run("a weights-only file holds no architecture", "cpu")
        return replace(report, model_level=(level,))
    tell("running both models in Keras")
    with open_keras_h5(copy) as copied:
        levels = check_everywhere(
            file.path,
            written,
            options.inputs,
            options.permissions,
            options.device,
            partial(_on_torch, plan, file, copied, options.inputs),
            _loaded_in(written, options),
        )
        if _loaded_in(written, options) == "keras3" and copied.model_config is not None:
            levels = without_keras(levels, copied.model_config, copied.training_config)  # fmt: skip
    report = replace(report, model_level=levels)
    report.raise_if_different(NOTHING_WRITTEN)
    return report


def _loaded_in(written: Path, options: Options) -> str:
    """The Keras that the file was written for; CuDNN layers are for one that is not there."""
    if options.is_inverse:
        return "any"
    return "keras3" if written.suffix == ".keras" else options.target


def _on_torch(plan: Plan, file: KerasH5, copy: KerasH5, inputs: Inputs) -> LevelResult:
    from rnnconvert.keras_models.verify.torch_engine import check_layers_on_cudnn

    return check_layers_on_cudnn(plan, file, copy, inputs)


def _require_done(copy: KerasH5, options: Options) -> Plan:
    """The copy, opened like any input, must need nothing more. Returns its (empty) plan."""
    again = _plan(copy, replace(options, optimizer="convert"), "h5")
    if again.problems or not again.is_empty:
        left = [*again.problems, *(f"{c.path} {c.key}" for c in again.config_changes)]
        raise NotConvertibleError(
            "what was written would still need conversion, so the input contradicts itself, or "
            "this is a bug of rnnconvert; nothing was written: "
            + "; ".join(left or [change.target.path for change in again.tensor_changes])
        )
    return again


def _require_unchanged(source: Path, before: os.stat_result) -> None:
    now = source.stat()
    keys = ("st_ino", "st_size", "st_mtime_ns")
    if any(getattr(now, key) != getattr(before, key) for key in keys):
        raise UnreadableInputError("the input was changed while it was converted; try again")


@contextmanager
def _finished(
    file: KerasH5, plan: Plan, temporary: Path, to: str, output: Path, options: Options
) -> Iterator[Path]:
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
                save_as_keras(temporary, final, plan, options.permissions)
        yield final

"""That a file needs nothing is a claim, too: it is shown by loading the file."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path

from rnnconvert.containers.sniff import is_hdf5
from rnnconvert.errors import NotConvertibleError
from rnnconvert.keras_models.config.accepted import is_of_keras
from rnnconvert.keras_models.config.static_check import refused
from rnnconvert.keras_models.config.training import names_in
from rnnconvert.keras_models.config.tree import Config
from rnnconvert.keras_models.files.h5 import open_keras_h5
from rnnconvert.keras_models.verify.keras_engine import CannotLoad, engine_name, load_written
from rnnconvert.options import Options
from rnnconvert.report import LevelResult, Report
from rnnconvert.verification.frameworks import CannotRun, NothingToRun, import_keras


def show_that_it_loads(report: Report, path: Path, options: Options) -> Report:
    """The report of a file that needs nothing, with the level `model`: Keras loads it, compiled.

    Args:
        report: with the verdict "nothing-to-convert".
        path: of the file, under whatever name.

    Raises:
        NotConvertibleError: Keras 3 does not load it; the report goes with it.
    """
    if options.is_inverse or options.target != "keras3":
        level = LevelResult.nothing_to_run("not tried: it is for another Keras")
    elif options.check or options.verify != "model":
        asked = "--check" if options.check else f"--verify {options.verify}"
        level = LevelResult.nothing_to_run(f"not tried ({asked})")
    else:
        level = _load(path, options)
    report = replace(report, model_level=(level,))
    if level.status == "failed":
        text = f"nothing in it is known to need conversion, but {level.detail}"
        error = NotConvertibleError(text, path=str(path))
        raise error.with_report(replace(report, verdict="not-convertible"))
    if options.strict:
        report.raise_if_in_doubt()
    return report


def without_keras(
    levels: tuple[LevelResult, ...], model: Config, training: Config | None
) -> tuple[LevelResult, ...]:
    """The level `model`, where there is no Keras to run it: the table of what Keras accepts.

    Args:
        levels: as Keras left them.
        model, training: configs of the written file.
    """
    try:
        import_keras()
    except CannotRun as error:
        wrong = refused(model, training)
        if wrong:
            return (LevelResult("failed", detail="; ".join(wrong), device="cpu"), *levels[1:])
        reason = f"{error}; that it loads is checked against the table of Keras 3, not tried"
        return (replace(levels[0], reason=reason), *levels[1:])
    return levels


def _load(path: Path, options: Options) -> LevelResult:
    try:
        import_keras()
    except CannotRun as error:
        return LevelResult.skipped(f"not tried: no Keras here ({error})", "cpu")
    engine = engine_name()
    try:
        with tempfile.TemporaryDirectory(prefix=".rnnconvert-") as folder:
            load_written(_under_keras_name(path, Path(folder)), options.permissions)
    except NothingToRun as error:
        return LevelResult.nothing_to_run(str(error), "cpu")
    except CannotLoad as error:
        custom = _custom_names(path)
        if custom:
            reason = f"{', '.join(custom)} of its compile(...) is not of Keras"
            return LevelResult.skipped(
                f"not shown: {reason} (--custom-objects module:name names it)", "cpu"
            )
        return LevelResult("failed", detail=f"{engine}: {error}", device="cpu", engine=engine)
    except CannotRun as error:
        return LevelResult.skipped(f"not tried: {error}", "cpu")
    return LevelResult("passed", detail="loads as it is, compiled", device="cpu", engine=engine)


def _custom_names(path: Path) -> list[str]:
    """Losses and metrics of an HDF5 file that are not Keras' own."""
    if not is_hdf5(path):
        return []
    with open_keras_h5(path) as file:
        named = names_in(file.training_config or {})
    return [name for name in named if not is_of_keras(name)]


def _under_keras_name(path: Path, folder: Path) -> Path:
    """The file by a name that Keras 3 takes: it goes by the name, not by the content."""
    if path.suffix in (".h5", ".hdf5", ".keras"):
        return path
    link = folder / "model.h5"
    link.symlink_to(path.absolute())
    return link

"""The models in a folder: which files and directories they are, and where their outputs go.

A link is followed only to a file of the same folder. What is no model is left alone, and counted.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path, PurePath
from typing import TYPE_CHECKING

from rnnconvert.errors import ConversionError, OutputError, UsageError, last_resort
from rnnconvert.kinds import is_saved_model, seems_model
from rnnconvert.options import Options
from rnnconvert.publish import PREFIX
from rnnconvert.report import counted

if TYPE_CHECKING:
    from rnnconvert.stores.finding import StoredModel

_OF_CHECKPOINTS = re.compile(r"checkpoint|.*\.(index|meta|data-[0-9]{5}-of-[0-9]{5})")
_STATE = "checkpoint"


@dataclass(frozen=True)
class FoundModel:
    """A model, and the directory it was found in, from the folder that was given on.

    Attributes:
        stored: of a model in an object store; its `path` is then of no more than a beginning.
    """

    path: Path
    below: Path = Path()
    stored: StoredModel | None = None

    @property
    def source(self) -> Path | StoredModel:
        """Where the model is."""
        return self.stored or self.path


@dataclass
class Found:
    """What a walk finds.

    Attributes:
        models: in the order of their names.
        is_folder: a folder was walked, and not only models named.
        others, links, excluded: how many files were no model, led out of the folder, or were not
            asked for.
    """

    models: list[FoundModel] = field(default_factory=list)
    is_folder: bool = False
    others: int = 0
    links: int = 0
    excluded: int = 0

    def add(self, other: Found) -> None:
        """Take over what another walk found."""
        self.models += other.models
        self.is_folder = self.is_folder or other.is_folder
        self.others += other.others
        self.links += other.links
        self.excluded += other.excluded

    def left_alone(self) -> list[str]:
        """Sentences on what was no input."""
        told = (
            (self.others, "other file", "left alone"),
            (self.links, "link", "out of the folder or to a directory not followed"),
            (self.excluded, "file", "excluded"),
        )
        return [f"{counted(count, what, f'{what}s')} {why}" for count, what, why in told if count]


@dataclass(frozen=True)
class Wanted:
    """Which files of a folder are looked at: by patterns of their names or their paths in it.

    Attributes:
        seems: whether a file that is no part of a larger model is one.
    """

    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    seems: Callable[[Path], bool] = seems_model

    def __contains__(self, path: PurePath) -> bool:
        return not self.is_excluded(path) and (not self.include or _fits(path, self.include))

    def is_excluded(self, path: PurePath) -> bool:
        return _fits(path, self.exclude)


def _fits(path: PurePath, patterns: Iterable[str]) -> bool:
    names = (path.name, path.as_posix())
    return any(fnmatchcase(name, pattern) for pattern in patterns for name in names)


def find_models(paths: Sequence[Path], wanted: Wanted, output: Path | None = None) -> Found:
    """The models that some paths stand for.

    Args:
        paths: models, and folders, in which all models are meant.
        wanted: of the files in folders.
        output: a directory that is not walked.

    A path that is neither is kept as it is: who opens it, says why.
    """
    found = Found()
    for path in paths:
        if not os.path.isdir(path) or is_saved_model(path):  # takes names that are too long
            found.models.append(FoundModel(path))
            continue
        inside = Found()
        _walk(path, path, wanted, output, inside)
        if _is_one_model(path, inside) or not (inside.models or inside.excluded):
            found.models.append(FoundModel(path))
            continue
        inside.is_folder = True
        found.add(inside)
    if not found.models:
        raise UsageError("no model is left by --include and --exclude", path=str(paths[0]))
    return found


def _is_one_model(directory: Path, inside: Found) -> bool:
    """Whether all that a directory holds is one checkpoint, with or without its state file."""
    if len(inside.models) != 1:
        return False
    (model,) = inside.models
    if model.path == directory:
        return True
    from rnnconvert.containers.checkpoint import find_checkpoint

    with suppress(ConversionError):
        checkpoint = find_checkpoint(directory)
        return checkpoint is not None and checkpoint.prefix == model.path
    return False


def _walk(top: Path, directory: Path, wanted: Wanted, output: Path | None, found: Found) -> None:
    below = directory.relative_to(top)
    try:
        entries = sorted(directory.iterdir())
    except OSError:  # whoever opens it says why not
        found.models.append(FoundModel(directory, below.parent))
        return
    prefixes: set[Path] = set()
    if directory / _STATE in entries:
        prefixes |= _checkpoint_of(directory, wanted, below, found)
    is_one = bool(prefixes)
    for entry in entries:
        place = entry.relative_to(top)
        if entry.name.startswith(PREFIX):
            continue
        if entry.is_symlink() and not _stays_in(entry, top):
            found.links += 1
        elif entry.is_dir():
            if output is not None and output.exists() and entry.samefile(output):
                continue
            if wanted.is_excluded(place):
                found.excluded += 1
            elif is_saved_model(entry):
                _add(entry, below, place, wanted, found)
            else:
                _walk(top, entry, wanted, output, found)
        elif is_one and _OF_CHECKPOINTS.fullmatch(entry.name):
            continue  # the directory's checkpoint is one model
        else:
            _look_at(entry, below, place, wanted, prefixes, found)


def _stays_in(link: Path, top: Path) -> bool:
    """Whether a link leads to a file in the folder; one to a directory would be walked twice."""
    with suppress(OSError, RuntimeError):
        target = link.resolve(strict=True)
        return target.is_file() and top.resolve() in target.parents
    return False


def _checkpoint_of(directory: Path, wanted: Wanted, below: Path, found: Found) -> set[Path]:
    """The checkpoint that the directory's state file names, as one model: the directory."""
    from rnnconvert.containers.checkpoint import find_checkpoint

    with suppress(ConversionError):
        checkpoint = find_checkpoint(directory)
        if checkpoint is None:
            return set()
        _add(directory, below.parent, below, wanted, found)
        return {checkpoint.prefix}
    _add(directory, below.parent, below, wanted, found)  # damaged, which is told in its turn
    return {directory}


def _look_at(
    entry: Path, below: Path, place: Path, wanted: Wanted, prefixes: set[Path], found: Found
) -> None:
    """Add a file if it is a model; of a checkpoint's files only one, under the prefix."""
    from rnnconvert.containers.checkpoint import find_checkpoint

    if place not in wanted:
        found.excluded += 1
        return
    try:
        with last_resort():
            checkpoint = find_checkpoint(entry) if _may_be_checkpoint(entry) else None
            if checkpoint is not None:
                if checkpoint.prefix not in prefixes:
                    prefixes.add(checkpoint.prefix)
                    found.models.append(FoundModel(checkpoint.prefix, below))
                return
            is_model = entry.is_file() and wanted.seems(entry)
    except ConversionError:
        is_model = True  # a bad one, which is told in its turn
    if is_model:
        found.models.append(FoundModel(entry, below))
    else:
        found.others += 1


def _may_be_checkpoint(entry: Path) -> bool:
    """Data files and graphs are found by their index; a MetaGraph without one is of no use."""
    return entry.is_file() and not re.fullmatch(r".*\.data-[0-9]{5}-of-[0-9]{5}", entry.name)


def _add(path: Path, below: Path, place: Path, wanted: Wanted, found: Found) -> None:
    if place == Path() or place in wanted:
        found.models.append(FoundModel(path, below))
    else:
        found.excluded += 1


# --- outputs --------------------------------------------------------------------------------


@contextmanager
def mirrored(
    models: Sequence[FoundModel], output: Path | None, options: Options
) -> Iterator[list[Path | None]]:
    """Where the output of each model goes: into the directory that it was found in, below `output`.

    Directories are made as they are needed; those that stay empty are removed at the end. Where
    nothing is written they are temporary.

    Args:
        output: the folder of all outputs; None to write beside each model.

    Raises:
        OutputError: a directory can't be made.
    """
    if output is None:
        yield [None] * len(models)
        return
    if options.check or options.dry_run:
        import tempfile

        with tempfile.TemporaryDirectory(prefix=PREFIX) as scratch:
            yield [_target(model, _made(Path(scratch) / model.below), options) for model in models]
        return
    before = {directory for model in models for directory in _way_to(output / model.below)
              if directory.exists()}  # fmt: skip
    try:
        yield [_target(model, _made(output / model.below), options) for model in models]
    finally:
        ways = {directory for model in models for directory in _way_to(output / model.below)}
        for directory in sorted(ways - before, key=lambda way: len(way.parts), reverse=True):
            with suppress(OSError):  # there is something in it
                directory.rmdir()


def _way_to(directory: Path) -> tuple[Path, ...]:
    return (directory, *directory.parents)


def _made(directory: Path) -> Path:
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(f"can't be made: {error.strerror}", path=str(directory)) from error
    return directory


def _target(model: FoundModel, directory: Path, options: Options) -> Path:
    name = directory_name(model, options)
    return directory if name is None else directory / name


def directory_name(model: FoundModel, options: Options) -> str | None:
    """A file gets its name by its kind; a SavedModel is told the directory that it becomes."""
    if is_saved_model(model.path) and options.to in (None, "savedmodel"):
        return f"{model.path.resolve().name}{options.suffix}"
    return None

"""Work on models in stores: private local copies are worked on, what they become is put back.

report = convert_placed(StoredModel(...), StoreUrl("s3", "bucket/out", True), Options())
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import TypeAlias, TypeVar

from rnnconvert.commands.folder import Wanted
from rnnconvert.errors import (
    OutputError,
    UnreadableInputError,
    UsageError,
    errors_of,
    last_resort,
)
from rnnconvert.kinds import seems_model
from rnnconvert.options import Options
from rnnconvert.publish import scratch_directory, temporary_directory
from rnnconvert.report import Report
from rnnconvert.stores.access import StoredObject, exists_error, fetch, list_objects, remove, upload
from rnnconvert.stores.finding import NOTHING, StoredModel, find_stored
from rnnconvert.stores.translate import errors_renamed, renamed
from rnnconvert.stores.urls import StoreUrl, place_of

T = TypeVar("T")
Place: TypeAlias = str | PathLike[str] | StoreUrl | StoredModel
_FINDERS = (".index", ".meta", "saved_model.pb")
"""Ends of the names by which models in several files are found: these are uploaded last."""


class NotAModel(Exception):
    """A file that seemed a model by its beginning is none."""


def convert_placed(
    place: Path | StoreUrl | StoredModel, target: Path | StoreUrl | None, options: Options
) -> Report:
    """`commands.convert.convert_path` where the input, the output or both are in a store.

    Args:
        target: None for beside the input.

    Raises:
        ConversionError: as there; or the store can't be used, or has the output.
        NotAModel: of a folder's file, of which only the beginning had been looked at.
    """
    from rnnconvert.commands.convert import convert_path  # `inspect` needs none of it

    source = _one_model(place)
    if options.in_place:
        raise UsageError("--in-place is for local files: nothing is replaced in a store")

    def convert(local: Path) -> Report:
        if target is None and isinstance(source, StoredModel):
            return _uploading(
                lambda: convert_path(local, None, options), local.parent, source.url.parent,
                lambda: _writes(local, None, options), force=options.force,
            )  # fmt: skip
        if not isinstance(target, StoreUrl):
            return convert_path(local, target, options)
        return to_store(
            lambda output: convert_path(local, output, options),
            target,
            force=options.force,
            writes=lambda output: _writes(local, output, options),
        )

    report = on_models(convert, [source])
    if not isinstance(source, StoredModel):
        return report
    return replace(report, input=replace(report.input, stored=states_of(source.objects)))


def states_of(objects: Sequence[StoredObject]) -> dict[str, str]:
    """By their URLs, for a report."""
    return {str(each.url): each.state for each in objects}


def _writes(local: Path, output: Path | None, options: Options) -> Sequence[Path]:
    if options.check or options.dry_run:
        return ()
    from rnnconvert.commands.convert import footprint

    return footprint(local, output, options).writes


def on_models(work: Callable[..., T], places: Sequence[Place]) -> T:
    """What `work` makes of some models, as local paths: its result has the names of the objects.

    Raises:
        ConversionError: as `work` does; or a model can't be read.
        NotAModel: a folder's file is none, of which only the beginning had been looked at.
    """
    if not places:
        return work()
    first = places[0]
    source = _one_model(first if isinstance(first, StoredModel | StoreUrl) else place_of(first))
    if isinstance(source, Path):
        return on_models(lambda *more: work(source, *more), places[1:])
    with _fetched(source) as (local, names), errors_renamed(names):
        return renamed(on_models(lambda *more: work(local, *more), places[1:]), names)


def _one_model(place: Path | StoreUrl | StoredModel) -> Path | StoredModel:
    """The one model that a URL stands for."""
    if not isinstance(place, StoreUrl):
        return place
    with find_stored(place, Wanted()) as found:
        stored = found.models[0].stored
        if found.is_folder or stored is None:
            raise UnreadableInputError("expected a model, found a folder", path=str(place))
        return stored


@contextmanager
def _fetched(source: StoredModel) -> Iterator[tuple[Path, dict[str, str]]]:
    """A model's objects as local files, in a private directory that is removed at the end.

    Yields:
        The path of the model, and what its texts have to be renamed by.
    """
    if source.refused is not None:
        raise UnreadableInputError(source.refused, path=str(source))
    if not source.objects:
        raise UnreadableInputError(NOTHING, path=str(source))
    with temporary_directory(scratch_directory().resolve()) as scratch:
        with errors_of(source), last_resort():
            places = [scratch / name for name in source.names]
            for place in places:
                place.parent.mkdir(parents=True, exist_ok=True)
            fetch(source.objects, places)
            is_model = not source.sniffed or seems_model(scratch / source.local_name)
        if not is_model:
            raise NotAModel
        yield scratch / source.local_name, {str(scratch): str(source.url.parent)}


# --- output -----------------------------------------------------------------------------------


def to_place(
    work: Callable[[Path], Report], target: str | PathLike[str] | StoreUrl, options: Options
) -> Report:
    """Let `work` write to a path, or to a local one that is uploaded: see `to_store`."""
    place = target if isinstance(target, StoreUrl) else place_of(target)
    if isinstance(place, Path):
        return work(place)
    return to_store(work, place, force=options.force or options.dry_run)


def to_store(
    work: Callable[[Path], Report],
    target: StoreUrl,
    *,
    force: bool,
    writes: Callable[[Path], Sequence[Path]] = lambda output: (output,),
) -> Report:
    """Let `work` write into a private local directory, and upload what is there when it is done.

    Args:
        work: takes the path of its output.
        target: of the output, or the directory that it goes into.
        force: an output of one object that exists is replaced.
        writes: what `work` would write, given the same path.

    Raises:
        ConversionError: as `work` does; or the store has the output, or can't be written to.
    """
    with temporary_directory(scratch_directory().resolve()) as scratch:
        base = target if target.is_directory else target.parent
        output = scratch if target.is_directory else scratch / target.name
        return _uploading(lambda: work(output), scratch, base, lambda: writes(output), force=force)


def _uploading(
    work: Callable[[], Report],
    folder: Path,
    base: StoreUrl,
    writes: Callable[[], Sequence[Path]],
    *,
    force: bool,
) -> Report:
    """Do some work, and upload the files that are new in a private folder when it is done."""

    def url_of(path: Path) -> StoreUrl:
        return base.below(path.relative_to(folder).as_posix())

    names = {str(folder): str(base)}
    before = set(folder.rglob("*"))
    with errors_renamed(names):
        _refuse_existing([url_of(path) for path in writes()], force=force)
        report = work()
        new = sorted({path for path in folder.rglob("*") if path.is_file()} - before, key=_last)
        uploaded = _upload_all([(path, url_of(path)) for path in new], force=force)
    report = renamed(report, names)
    if report.output is None:
        return report
    return replace(report, output=replace(report.output, stored=states_of(uploaded)))


def _refuse_existing(urls: Sequence[StoreUrl], *, force: bool) -> None:
    """Refuse an output that is there, before any work is done.

    Several objects can't be replaced at once in a store: somebody would see new beside old ones.

    Raises:
        OutputError: it is there, and may not or can't be replaced.
    """
    for url in urls:
        found = list_objects(url)
        if not found:
            continue
        if not force:
            raise exists_error(url)
        if len(urls) > 1 or found[0].url != url:
            raise OutputError(
                "the output exists, and is several objects, which can't be replaced at once: "
                "remove it, or write to another place", path=str(url)
            )  # fmt: skip


def _last(path: Path) -> tuple[bool, str]:
    return path.name.endswith(_FINDERS), path.as_posix()


def _upload_all(files: Sequence[tuple[Path, StoreUrl]], *, force: bool) -> list[StoredObject]:
    """Upload all files or none: of several, none is replaced, and those that are new are removed.

    A kill leaves some of them, without the one by which they are found.
    """
    done: list[StoredObject] = []
    try:
        for path, url in files:
            done.append(upload(path, url, replace=force and len(files) == 1))
    except BaseException:
        remove(each.url for each in done)
        raise
    return done

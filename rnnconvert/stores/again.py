"""An output that is there because an earlier attempt wrote it, and was killed then."""

from __future__ import annotations

import filecmp
from dataclasses import replace
from pathlib import Path

from rnnconvert.errors import ConversionError
from rnnconvert.options import Options
from rnnconvert.publish import scratch_directory, temporary_directory
from rnnconvert.report import Report
from rnnconvert.stores.access import StoredObject, fetch, object_at
from rnnconvert.stores.finding import StoredModel
from rnnconvert.stores.folder import Source, Target
from rnnconvert.stores.translate import renamed
from rnnconvert.stores.urls import StoreUrl
from rnnconvert.stores.work import convert_placed, states_of


def made_before(source: Source, target: Target, options: Options) -> Report | None:
    """The report of a conversion whose output is there already; None if that is another one.

    The same input gives the same bytes, so it is converted into a private directory and compared.
    """
    with temporary_directory(scratch_directory().resolve()) as scratch:
        place, there = scratch / "again", scratch / "there"
        place.mkdir()
        there.mkdir()
        base, name = _directory(source, target)
        try:
            report = convert_placed(source, place if name is None else place / name, options)
            files = [path for path in place.rglob("*") if path.is_file()]
            stored = [_is_there(path, base, path.relative_to(place).as_posix(), there)
                      for path in files]  # fmt: skip
        except ConversionError:
            return None
    if not files or None in stored or report.output is None:
        return None
    report = renamed(report, {str(place): str(base)})
    states = states_of([each for each in stored if isinstance(each, StoredObject)])
    return replace(report, output=replace(report.output, stored=states or None))


def _directory(source: Source, target: Target) -> tuple[Path | StoreUrl, str | None]:
    """Where the output lies, and its name if that was given."""
    if target is None:
        return (source.url if isinstance(source, StoredModel) else source).parent, None
    is_directory = target.is_directory if isinstance(target, StoreUrl) else target.is_dir()
    return (target, None) if is_directory else (target.parent, target.name)


def _is_there(path: Path, base: Path | StoreUrl, name: str, folder: Path) -> object | None:
    """The file or object of that name, if it has the bytes of `path`."""
    if isinstance(base, Path):
        other = base / name
        return other if other.is_file() and filecmp.cmp(path, other, shallow=False) else None
    found = object_at(base.below(name))
    if found is None or found.bytes != path.stat().st_size:
        return None
    copy = folder / str(len(list(folder.iterdir())))
    fetch([found], [copy])
    return found if filecmp.cmp(path, copy, shallow=False) else None

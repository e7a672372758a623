"""Reading and writing objects by fsspec; whatever goes wrong there is one line of ours.

What a store demands of its users (keys, endpoints, regions) it takes from where its own tools do:
AWS_* variables and profiles, FSSPEC_S3_* variables, Google's default credentials.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rnnconvert.errors import (
    FULL_DISK,
    ConversionError,
    OutputError,
    UnreadableInputError,
    UsageError,
)
from rnnconvert.progress import BYTES, tell
from rnnconvert.stores.urls import StoreUrl

_CHUNK = 16 * 2**20
_STATES = ("ETag", "etag", "md5Hash", "created", "mtime")
"""What stores call that which changes whenever an object is written."""
_PACKAGES = {"gs": "gcsfs", "gcs": "gcsfs"}
"""That a protocol needs beyond the extra."""
_NO_SUCH = "no such object or bucket"


@dataclass(frozen=True)
class StoredObject:
    """An object in a store.

    Attributes:
        url: of it.
        bytes: its size.
        state: changes whenever it is written.
    """

    url: StoreUrl
    bytes: int
    state: str


def list_objects(top: StoreUrl) -> list[StoredObject]:
    """All objects whose names begin with that of `top` and a slash; else the object `top` itself.

    Raises:
        ConversionError: the store can't be reached, or does not allow it.
    """
    with _errors(top, UnreadableInputError):
        system = _system(top)
        try:
            found = system.find(top.path, detail=True)
        except FileNotFoundError:  # an empty bucket is none: it would be listed as nothing
            if "/" in top.path:
                return []
            raise
        files = (info for info in found.values() if not _is_folder(info))
        return sorted((_object(top, info) for info in files), key=lambda each: each.url.path)


def list_beside(url: StoreUrl, beginning: str) -> list[StoredObject]:
    """The objects in the directory of `url` whose names begin so."""
    with _errors(url, UnreadableInputError):
        try:
            found = _system(url).ls(url.parent.path, detail=True)
        except FileNotFoundError:
            return []
        files = (info for info in found if info["type"] != "directory" and not _is_folder(info))
        objects = (_object(url, info) for info in files)
        return sorted((each for each in objects if each.url.name.startswith(beginning)),
                      key=lambda each: each.url.path)  # fmt: skip


def object_at(url: StoreUrl) -> StoredObject | None:
    """The object of that very name; None where there is none.

    Raises:
        UnreadableInputError: the store can't be reached, or does not allow it.
    """
    with _errors(url, UnreadableInputError):
        try:
            info = _system(url).info(url.path, refresh=True)
        except FileNotFoundError:
            return None
        return None if info["type"] == "directory" else _object(url, info)


def starts_of(objects: Sequence[StoredObject], count: int) -> list[bytes]:
    """The first `count` bytes of each object, asked for side by side."""
    full = [each for each in objects if each.bytes]
    if not full:
        return [b""] * len(objects)
    with _errors(full[0].url, UnreadableInputError):
        paths = [each.url.path for each in full]
        ends = [min(each.bytes, count) for each in full]
        starts = _system(full[0].url).cat_ranges(paths, [0] * len(full), ends, on_error="raise")
    read = dict(zip((each.url for each in full), starts, strict=True))
    return [bytes(read.get(each.url, b"")) for each in objects]


def fetch(objects: Sequence[StoredObject], places: Sequence[Path]) -> None:
    """Copy objects to new local files: never more bytes than each had when it was listed.

    Raises:
        UnreadableInputError: one can't be read, or is another one by now.
        OutputError: the disk has no room for them.
    """
    total = sum(each.bytes for each in objects)
    free = shutil.disk_usage(places[0].parent).free
    if total > free:
        raise OutputError(f"it takes {total:,} bytes, more than the {free:,} that are free for "
                          f"temporary files (TMPDIR)", path=str(objects[0].url))  # fmt: skip
    done = 0
    for each, place in zip(objects, places, strict=True):
        with (
            _errors(each.url, UnreadableInputError),
            _system(each.url).open(each.url.path, "rb", cache_type="none") as source,
            place.open("xb") as target,
        ):
            done = _copy(source, target, each, done, total)
        if object_at(each.url) != each:
            raise UnreadableInputError("it was written while it was read; try again",
                                       path=str(each.url))  # fmt: skip


def _copy(source: Any, target: Any, each: StoredObject, done: int, total: int) -> int:
    left = each.bytes
    while left:
        tell("fetching", done, total, BYTES)
        chunk = source.read(min(left, _CHUNK))
        if not chunk:
            raise UnreadableInputError("it ends before its size; try again")
        target.write(chunk)
        left -= len(chunk)
        done += len(chunk)
    return done


def upload(place: Path, url: StoreUrl, *, replace: bool) -> StoredObject:
    """Put a file into the store as one object, which appears whole or not at all.

    Raises:
        OutputError: the store refuses it, or the object exists and may not be replaced.
    """
    tell("uploading", 0, place.stat().st_size, BYTES)
    with _errors(url, OutputError):
        try:
            _system(url).put_file(str(place), url.path, mode="overwrite" if replace else "create")
        except FileExistsError:
            raise exists_error(url) from None
    found = object_at(url)
    if found is None or found.bytes != place.stat().st_size:
        raise OutputError("the store has not kept it as it was sent", path=str(url))
    return found


def remove(urls: Iterable[StoreUrl]) -> None:
    """Take back what was uploaded, as far as that can be done."""
    for url in urls:
        with suppress(Exception):
            _system(url).rm_file(url.path)


def exists_error(url: StoreUrl) -> OutputError:
    return OutputError("the output exists; use --force to overwrite it", path=str(url))


# --- fsspec -----------------------------------------------------------------------------------


def _system(url: StoreUrl) -> Any:
    """The store's file system of fsspec, with what it needs.

    Raises:
        UsageError: a package is missing.
    """
    needed = " ".join(['"rnnconvert[stores]"', *filter(None, [_PACKAGES.get(url.protocol)])])
    try:
        import fsspec

        return fsspec.filesystem(url.protocol, use_listings_cache=False)
    except ImportError as error:
        raise UsageError(
            f"{url.protocol}:// needs packages that are not installed: pip install {needed}",
            path=str(url),
        ) from error


def _object(beside: StoreUrl, info: dict[str, Any]) -> StoredObject:
    url = StoreUrl(beside.protocol, info["name"].removeprefix("/" * (beside.protocol == "memory")))
    return StoredObject(url, int(info["size"]), _state(info))


def _state(info: dict[str, Any]) -> str:
    found = next((info[name] for name in _STATES if info.get(name)), "")
    if hasattr(found, "timestamp"):  # fsspec tells it in two forms
        found = found.timestamp()
    return f"{info['size']}-{str(found).strip(chr(34))}"


def _is_folder(info: dict[str, Any]) -> bool:
    """What some tools put in place of an empty directory: nothing, under a name with a slash."""
    return info["name"].endswith("/") and not info["size"]


@contextmanager
def _errors(url: StoreUrl, kind: type[ConversionError]) -> Iterator[None]:
    """Errors of a store as errors of ours, of the exit code that fits.

    Every package for a store has exceptions of its own, which need not be installed here.
    """
    try:
        yield
    except (ConversionError, MemoryError):
        raise
    except FileNotFoundError as error:
        raise kind(_NO_SUCH, path=str(url)) from error
    except PermissionError as error:
        raise kind(f"the store does not allow it: {_line(error)}", path=str(url)) from error
    except Exception as error:
        if isinstance(error, OSError) and error.errno in FULL_DISK:
            raise
        raise kind(f"the store can't be used: {_line(error)}", path=str(url)) from error


def _line(error: BaseException) -> str:
    lines = str(error).splitlines() or [""]
    return f"{lines[0][:300]} ({type(error).__name__})"

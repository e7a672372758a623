"""The one place that opens HDF5 files, and follows names in them.

HDF5 is a file system in a file, and a model file comes from anywhere: links can lead to other
files, datasets can lie in external files or not be written at all. Each guard here refuses one of
those; harmless files that look like them are accepted.
"""

from __future__ import annotations

import json
import math
import re
import traceback
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from rnnconvert.containers import h5_walk
from rnnconvert.containers.budget import charge_json
from rnnconvert.containers.deadline import deadline
from rnnconvert.containers.h5_stream import PythonFile, stream_of
from rnnconvert.containers.h5_texts import claimed_by
from rnnconvert.containers.h5_types import is_sound
from rnnconvert.errors import ConversionError, UnreadableInputError

ALLOWED_FILTERS = (
    h5py.h5z.FILTER_DEFLATE,
    h5py.h5z.FILTER_SHUFFLE,
    h5py.h5z.FILTER_FLETCHER32,
)
MAX_JSON_DEPTH = 400
MAX_NAME = 1024
MAX_LAYERS = 1_000_000
_OUTSIDE_BRACKETS = re.compile(r"[^][{}]+")


@contextmanager
def open_h5(path: str | Path, mode: str = "r") -> Iterator[h5py.File]:
    """Open an HDF5 file. Whatever h5py raises until it is closed is an error of ours from here on.

    Args:
        path: an existing file.
        mode: "r"; or "r+" and "w" for files that rnnconvert made itself.

    Raises:
        UnreadableInputError: the file, or another one that is read meanwhile, is damaged.
        OSError: a file that is written can't be.
    """
    if mode == "r":
        _walk_once(Path(path))
    with closing(_stream(Path(path), mode)) as stream:
        opened = False
        try:
            with h5py.File(stream, mode) as file:
                opened = True
                yield file
        except BaseException as error:
            _let_go(error)
            if not isinstance(error, Exception):
                raise
            _raise_failure(stream, error)
            if isinstance(error, ConversionError) or not is_of_h5py(error):
                raise
            raise UnreadableInputError(
                f"HDF5 can't read it ({_reason(error)}); it is damaged, copy or download it again"
                if opened
                else _why_unopenable(Path(path), error)
            ) from error
        _raise_failure(stream, None)


def _walk_once(path: Path) -> None:
    """Let the HDF5 library meet all of a new file, where the process may be ended by it."""
    with suppress(Exception):  # what is wrong is told where it is needed
        seconds = h5_walk.time_for(path)
        if seconds is None:
            return
        with (
            deadline(seconds),
            closing(PythonFile(path, "r")) as stream,
            h5py.File(stream, "r") as file,
        ):
            h5_walk.walk_file(file, attribute)


def _let_go(error: BaseException) -> None:
    """Clear what h5py's functions hold that failed: the HDF5 library crashes at the process's end
    where it still knows a Python file then.
    """
    for frame, _ in traceback.walk_tb(error.__traceback__):
        if frame.f_globals.get("__name__", "").startswith("h5py"):
            with suppress(RuntimeError):  # it is running
                frame.clear()


def _stream(path: Path, mode: str) -> PythonFile:
    try:
        return PythonFile(path, mode)
    except OSError as error:
        if mode != "r":
            raise
        if isinstance(error, BlockingIOError):
            raise UnreadableInputError(
                "another program has the file open for writing; try again when it is done"
            ) from error
        raise UnreadableInputError(f"can't be read: {error.strerror}") from error


def _raise_failure(stream: PythonFile, error: Exception | None) -> None:
    """Raise what went wrong underneath HDF5, which is why HDF5 failed, or was not told."""
    failure = stream.failure
    if isinstance(failure, OSError) and not stream.writes:
        raise UnreadableInputError(f"can't be read: {failure.strerror}") from error
    if failure is not None:
        raise failure from error


def is_of_h5py(error: Exception) -> bool:
    """Whether rnnconvert called h5py, and that failed, in whatever way."""
    frames = traceback.walk_tb(error.__traceback__)
    names = [frame.f_globals.get("__name__", "").partition(".")[0] for frame, _ in frames]
    return ("rnnconvert", "h5py") in pairwise(names)


def _reason(error: Exception) -> str:
    lines = str(error).splitlines() or [type(error).__name__]
    return lines[0].strip("'\"")[:200]


def _why_unopenable(path: Path, error: Exception) -> str:
    text = _reason(error)
    if "truncated file" in text:
        return (
            f"the HDF5 file is truncated (it has {path.stat().st_size} bytes, its header says "
            "more); copy or download it again"
        )
    return f"HDF5 can't open the file ({text}); it is damaged, copy or download it again"


def _parts(name: str) -> list[str]:
    parts = name.split("/")
    if len(name) > MAX_NAME or any(part in ("", ".", "..") or "\0" in part for part in parts):
        raise UnreadableInputError(f"refused as unsafe: the name {name!r} in the file")
    return parts


def _walk(group: h5py.Group, name: str) -> h5py.Group | h5py.Dataset:
    """Follow a name part by part, by hard links only: others lead out of the file."""
    here: h5py.Group | h5py.Dataset = group
    for part in _parts(name):
        link = _link(here, part) if isinstance(here, h5py.Group) else None
        if link is None:
            raise UnreadableInputError(f"{group.name.rstrip('/')}/{name} is missing in the file")
        if link != h5py.h5l.TYPE_HARD:
            raise UnreadableInputError(
                f"refused as unsafe: {here.name.rstrip('/')}/{part} is a link out of its place"
            )
        here = here[part]
    if h5py.h5f.get_name(here.id) != h5py.h5f.get_name(group.id):
        raise UnreadableInputError(f"refused as unsafe: {name} lies in another file")
    return here


def _link(group: h5py.Group, name: str) -> int | None:
    """What kind of link a name in a group is; None where there is none."""
    links, encoded = group.id.links, name.encode("utf-8", "surrogatepass")
    kind: int | None = links.get_info(encoded).type if links.exists(encoded) else None
    return kind


def get_group(group: h5py.Group, name: str) -> h5py.Group:
    found = _walk(group, name)
    if not isinstance(found, h5py.Group):
        raise UnreadableInputError(f"{found.name}: expected a group, found a dataset")
    return found


def get_member(group: h5py.Group, name: str) -> h5py.Group | h5py.Dataset:
    """What `name` stands for in `group`: a group or a dataset of this very file, never a link."""
    return _walk(group, name)


def get_dataset(group: h5py.Group, name: str) -> h5py.Dataset:
    """A dataset by its name below `group`, checked to hold its own data in this file.

    Raises:
        UnreadableInputError: missing, a link, virtual, external, with an unknown filter, or with
            parts that were never written.
    """
    found = _walk(group, name)
    if not isinstance(found, h5py.Dataset):
        raise UnreadableInputError(f"{found.name}: expected a dataset, found a group")
    properties = found.id.get_create_plist()
    if found.is_virtual or properties.get_external_count():
        raise UnreadableInputError(
            f"refused as unsafe: the data of {found.name} lies in other files"
        )
    for index in range(properties.get_nfilters()):
        if properties.get_filter(index)[0] not in ALLOWED_FILTERS:
            raise UnreadableInputError(f"{found.name}: unknown HDF5 filter")
    _check_written(found)
    return found


def _check_written(dataset: h5py.Dataset) -> None:
    """Data that was never written reads as zeros without any error: refuse it."""
    if dataset.shape is None:
        raise UnreadableInputError(f"{dataset.name}: the dataset is empty")
    if dataset.size == 0:
        return
    if dataset.chunks is None:
        missing = dataset.id.get_storage_size() < dataset.size * dataset.dtype.itemsize
    else:
        grid = math.prod(
            math.ceil(size / chunk)
            for size, chunk in zip(dataset.shape, dataset.chunks, strict=True)
        )
        missing = dataset.id.get_num_chunks() != grid
    if missing:
        raise UnreadableInputError(
            f"{dataset.name}: parts of its data were never written; the file is incomplete"
        )
    if dataset.chunks is not None:
        _check_chunks(dataset)


def _check_chunks(dataset: h5py.Dataset) -> None:
    """Every chunk must have a stored size that its filters can have made.

    A chunk too short for its checksum crashes the HDF5 library (HDFGroup/hdf5 issue 6488), so it
    must not be read.
    """
    raw = math.prod(dataset.chunks) * dataset.dtype.itemsize
    checksum = 4 if dataset.fletcher32 else 0
    least = most = raw + checksum
    if dataset.compression:
        least, most = 8 + checksum, raw + raw // 8 + 64 + checksum
    chunks: list[Any] = []
    dataset.id.chunk_iter(chunks.append)
    for chunk in chunks:
        if chunk.filter_mask:
            raise UnreadableInputError(f"{dataset.name}: a chunk leaves out a filter")
        if not least <= chunk.size <= most:
            raise UnreadableInputError(
                f"{dataset.name}: a chunk of {chunk.size} bytes does not fit {raw} bytes of data; "
                "the file is damaged"
            )


def has(group: h5py.Group, name: str) -> bool:
    return _link(group, name) == h5py.h5l.TYPE_HARD


def names(group: h5py.Group) -> list[str]:
    """The names of what a group holds; h5py gives bytes for those that are no text."""
    found = list(group)
    odd = [name for name in found if not isinstance(name, str)]
    if odd:
        raise UnreadableInputError(f"refused as unsafe: the name {odd[0]!r} in the file")
    return found


def strings(group: h5py.Group, name: str) -> list[str] | None:
    """A list of strings kept as an attribute, also where Keras split it into name0, name1, ..."""
    if name in group.attrs:
        return _decode(attribute(group, name))
    found: list[str] = []
    part = 0
    while f"{name}{part}" in group.attrs:
        found += _decode(attribute(group, f"{name}{part}"))
        part += 1
    return found if part else None


def attribute(group: h5py.Group, name: str) -> Any:
    """The value of an attribute that is there; no larger than the file can hold.

    Raises:
        UnreadableInputError: it claims to be.
    """
    stored, file = group.attrs.get_id(name), group.file
    datatype, size = stored.get_type(), file.id.get_filesize()
    if not is_sound(datatype):
        raise UnreadableInputError(f"{group.name}, attribute {name}: of no known type; damaged")
    claimed = math.prod(stored.shape or ()) * datatype.get_size()
    if claimed > size:
        raise UnreadableInputError(
            f"{group.name}, attribute {name}: claims to be longer than the file; it is damaged"
        )
    is_text = datatype.get_class() in (h5py.h5t.STRING, h5py.h5t.VLEN)
    if is_text and _claimed_by_texts(group, file) > size:
        raise UnreadableInputError(
            f"{group.name}: its text attributes claim to be longer than the file; it is damaged"
        )
    return group.attrs[name]


def _claimed_by_texts(group: h5py.Group, file: h5py.File) -> int:
    """Bytes that all texts of an object claim together; 0 where that was found to be right."""
    address = h5py.h5o.get_info(group.id).addr
    stream = stream_of(file)
    if stream is not None and address in stream.checked:
        return 0
    properties = file.id.get_create_plist()
    path = stream.path if stream is not None else Path(file.filename)
    claimed = claimed_by(path, properties.get_userblock(), address, properties.get_sizes())
    if stream is not None and claimed <= file.id.get_filesize():
        stream.checked.add(address)
    return claimed


def text_attribute(group: h5py.Group, name: str) -> str | None:
    """A string attribute, or None."""
    if name not in group.attrs:
        return None
    value = attribute(group, name)
    if isinstance(value, bytes | np.bytes_):
        value = value.decode("utf-8", "replace")
    if not isinstance(value, str):
        raise UnreadableInputError(f"attribute {name}: expected text, found {type(value).__name__}")
    return value


def json_attribute(group: h5py.Group, name: str) -> dict[str, Any] | None:
    """A JSON object kept as an attribute, or None."""
    value = text_attribute(group, name)
    return None if value is None else parse_json(value, f"attribute {name}")


def parse_json(value: str, what: str, stored: int | None = None) -> dict[str, Any]:
    """Parse a JSON object of bounded size and depth and without duplicate keys.

    Args:
        value: the JSON.
        what: its name, for messages.
        stored: bytes that it takes in the file, where it is compressed there.

    Raises:
        UnreadableInputError: it is none, or refused as unsafe.
    """
    charge_json(value, what, stored)
    if _depth(value) > MAX_JSON_DEPTH:
        raise UnreadableInputError(f"refused as unsafe: {what} is nested too deeply")
    try:
        parsed = json.loads(value, object_pairs_hook=_unique)
    except ValueError as error:
        raise UnreadableInputError(f"{what} is no valid JSON: {error}") from error
    if not isinstance(parsed, dict):
        raise UnreadableInputError(f"{what}: expected a JSON object")
    return parsed


def _depth(value: str) -> int:
    """How deeply the JSON is nested; brackets inside strings do not count."""
    plain = value.replace("\\\\", "").replace('\\"', "")  # no escaped quotes left
    brackets = _OUTSIDE_BRACKETS.sub("", "".join(plain.split('"')[::2]))
    deepest = depth = 0
    for bracket in brackets:
        if bracket in "[{":
            depth += 1
            deepest = max(deepest, depth)
        elif bracket in "]}":
            depth -= 1
    return deepest


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key stands twice in one object")
    return found


def _decode(values: Any) -> list[str]:
    array = np.atleast_1d(np.asarray(values))
    if array.size > MAX_LAYERS:
        raise UnreadableInputError("refused as unsafe: an attribute lists over a million names")
    try:
        return [v.decode("utf-8") if isinstance(v, bytes) else _text(v) for v in array.tolist()]
    except ValueError as error:
        raise UnreadableInputError("an attribute that should list names holds no text") from error


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(value)
    return value

"""Which checkpoint a path stands for. What a file is, its content decides, never its name.

Names matter only between files: an `.index` belongs to the data files of the same prefix, and
`name-00000-of-00002` is one of two files of a version 1 checkpoint.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path, PureWindowsPath

from rnnconvert.containers.checkpoint.bundle import index_path
from rnnconvert.containers.checkpoint.files import is_lfs_pointer, read_start, reading
from rnnconvert.containers.checkpoint.variables import CheckpointPath
from rnnconvert.errors import UnreadableInputError, UsageError

_STATE = "checkpoint"
"""The text file in which a Saver notes its latest checkpoint."""
_STATE_PATH = re.compile(
    rb"""\s*model_checkpoint_path\s*:\s*(?:"((?:[^"\\]|\\.)*)"|'((?:[^'\\]|\\.)*)')""", re.S
)
_STATE_BYTES = 2**16
_ESCAPE = re.compile(rb"\\([0-7]{1,3}|x[0-9a-fA-F]{1,2}|.)", re.S)
_CONTROLS = {b"n": b"\n", b"t": b"\t", b"r": b"\r"}
_DATA = re.compile(r"(.+)\.data-[0-9]{5}-of-[0-9]{5}")
_SHARD = re.compile(r"(.+)-(?:[0-9]{5}|\?{5})-of-([0-9]{5})")
"""A file of a version 1 checkpoint, or the pattern by which a Saver calls all of them."""
_VARINT = rb"[\x80-\xff]{0,9}[\x00-\x7f]"
_STARTS = {
    1: re.compile(rb"\0\0" + _VARINT + rb"\x0a" + _VARINT + rb"\x0a" + _VARINT + rb"\x0a", re.S),
    2: re.compile(rb"\0\0" + _VARINT + rb"\x08" + _VARINT + rb"(?:\x10\x01)?\x1a\x02\x08", re.S),
}
"""How the first entry of a table begins: the empty key, then a list of variables or a header."""
_START_BYTES = 64
_MOST_LISTED = 10


def find_checkpoint(path: Path) -> CheckpointPath | None:
    """The checkpoint that a path stands for, or None where there is none.

    Args:
        path: a prefix such as `model.ckpt-100`, any of a checkpoint's files, or a directory that
            holds one checkpoint or a `checkpoint` file naming one.

    Raises:
        UnreadableInputError: something of a checkpoint, but its index is missing or unreadable.
        UsageError: several checkpoints and no file that names one of them.
    """
    with reading(str(path)):
        if path.is_dir():
            found = _in_directory(path)
            return found or (_at_prefix(path) if path.name else None)
        return _of_file(path) if path.is_file() else _at_prefix(path)


def _of_file(path: Path) -> CheckpointPath | None:
    """The checkpoint that a file belongs to."""
    data = _DATA.fullmatch(path.name)
    if data:
        return _bundle(path.with_name(data[1]), path)
    version = _version(path)
    if version == 1:
        return _slices(path)
    if version == 2 or (path.suffix == ".index" and _seems_index(path)):
        return CheckpointPath(path.with_suffix(""), 2, (path,))
    if path.suffix == ".meta":
        return _at_prefix(path.with_suffix(""))
    return _named_by(path)


def _version(path: Path) -> int | None:
    """1 or 2 where a file begins like the table of such a checkpoint; its end may be missing."""
    start = read_start(path, _START_BYTES)
    return next((version for version, pattern in _STARTS.items() if pattern.match(start)), None)


def _seems_index(path: Path) -> bool:
    """Whether a file called `.index` without the content of one was one: opening it says more."""
    data_files = (_DATA.fullmatch(name) for name in _names(path.parent, f"{path.stem}.data-"))
    return any(data_files) or is_lfs_pointer(read_start(path, _START_BYTES))


def _at_prefix(prefix: Path) -> CheckpointPath | None:
    """The checkpoint that TensorFlow would call so."""
    index = index_path(prefix)
    if index.is_file():
        return CheckpointPath(prefix, 2, (index,))
    if prefix.is_file():
        return _slices(prefix) if _version(prefix) == 1 else None
    wanted = _SHARD.fullmatch(prefix.name)
    base, count = (wanted[1], wanted[2]) if wanted else (prefix.name, None)
    found = set()
    for name in _names(prefix.parent, f"{base}-"):
        shard = _SHARD.fullmatch(name)
        if shard and shard[1] == base and count in (None, shard[2]):
            path = prefix.with_name(name)
            found |= {_slices(path)} if _version(path) == 1 else set()
    if not found and any(map(_DATA.fullmatch, _names(prefix.parent, f"{prefix.name}.data-"))):
        return _bundle(prefix, prefix)
    return _only(found, prefix.name)


def _bundle(prefix: Path, given: Path) -> CheckpointPath:
    """A version 2 checkpoint, whose index must be there."""
    index = index_path(prefix)
    if not index.is_file():
        raise UnreadableInputError(
            f"{index.name} is missing; {given.name} is of no use without it, put it beside"
        )
    return CheckpointPath(prefix, 2, (index,))


def _slices(path: Path) -> CheckpointPath:
    """A version 1 checkpoint, by any of its files."""
    shard = _SHARD.fullmatch(path.name)
    if shard:
        count = int(shard[2])
        names = (f"{shard[1]}-{number:05d}-of-{count:05d}" for number in range(count))
        tables = tuple(path.with_name(name) for name in names)
        if path in tables:
            return CheckpointPath(path.with_name(shard[1]), 1, tables)
    return CheckpointPath(path, 1, (path,))


def _in_directory(directory: Path) -> CheckpointPath | None:
    """The checkpoint that the directory's state file names, or the only one in it."""
    names = _names(directory)
    if _STATE in names:
        named = _named_by(directory / _STATE)
        if named:
            return named
    found = {_of_file(directory / name) for name in names if name.endswith(".index")} - {None}
    if not found:
        paths = [directory / name for name in names if not name.endswith(".index")]
        found = {_slices(path) for path in paths if _version(path) == 1}
    return _only(filter(None, found), "the directory")


def _only(found: Iterable[CheckpointPath], where: str) -> CheckpointPath | None:
    several = set(found)
    names = sorted(checkpoint.tables[0].name for checkpoint in several)
    if len(names) > 1:
        listed = ", ".join(names[:_MOST_LISTED])
        more = f" and {len(names) - _MOST_LISTED} more" if len(names) > _MOST_LISTED else ""
        raise UsageError(f"{where} holds several checkpoints: {listed}{more}; give one of them")
    return several.pop() if several else None


def _named_by(state: Path) -> CheckpointPath | None:
    """The checkpoint that a state file names, or None where this is no state file.

    Only what lies in the file's own directory is opened: a path to elsewhere is of the machine that
    wrote it, or leads to other files than the user gave; there, the bare name decides.
    """
    match = _STATE_PATH.match(read_start(state, _STATE_BYTES))
    if not match:
        return None
    written = os.fsdecode(_ESCAPE.sub(_unescape, match[1] if match[1] is not None else match[2]))
    # Backslashes separate too: that machine may have been one with Windows.
    named = PureWindowsPath(written)
    for place in (named, PureWindowsPath(named.name)):
        if place.name and not place.anchor and ".." not in place.parts and "\0" not in written:
            found = _at_prefix(state.parent.joinpath(*place.parts))
            if found:
                return found
    raise UnreadableInputError(
        f"{state.name} names the checkpoint {written!r}, which is not in its directory; give the "
        "path of the checkpoint itself"
    )


def _unescape(match: re.Match[bytes]) -> bytes:
    """One escape of a protocol buffer's text form."""
    code = match[1]
    if code[:1] == b"x" and len(code) > 1:
        return bytes([int(code[1:], 16)])
    if code.isdigit():
        return bytes([int(code, 8) & 0xFF])
    return _CONTROLS.get(code, code)


def _names(directory: Path, beginning: str = "") -> list[str]:
    """The names of the files in a directory that begin so; none where the directory is missing."""
    if not directory.is_dir():
        return []
    with os.scandir(directory) as entries:
        return [e.name for e in entries if e.name.startswith(beginning) and e.is_file()]

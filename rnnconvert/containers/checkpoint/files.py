"""How the files of a checkpoint are opened, and how a bad one is refused."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path

from rnnconvert.errors import UnreadableInputError

COPY_AGAIN = "copy or download it again"
MAX_LFS_POINTER = 1024
"""Bytes that git-lfs allows a pointer (docs/spec.md of git-lfs)."""
_LFS = b"version https://git-lfs"


class Malformed(Exception):
    """What is wrong with some bytes; `reading` adds where they lie."""


@contextmanager
def reading(what: str) -> Iterator[None]:
    """Malformed bytes and errors of the file system as UnreadableInputError.

    Args:
        what: the file or the part of it that is being read; begins the message.
    """
    try:
        yield
    except Malformed as error:
        raise UnreadableInputError(f"{what}: {error}; the file is damaged, {COPY_AGAIN}") from error
    except OSError as error:
        raise UnreadableInputError(f"{what} can't be read: {error.strerror}") from error


@contextmanager
def open_file(path: Path) -> Iterator[tuple[BufferedReader, int]]:
    """A file of a checkpoint, and its size in bytes.

    Raises:
        UnreadableInputError: missing, unreadable, or not a regular file (opening a pipe hangs).
    """
    with reading(path.name):
        if not stat.S_ISREG(path.stat().st_mode):
            raise UnreadableInputError(f"{path.name} is not a regular file")
        with path.open("rb") as file:
            yield file, os.fstat(file.fileno()).st_size


def is_there(path: Path) -> bool:
    """Whether a path exists, as far as can be seen."""
    return os.path.exists(path)


def read_start(path: Path, count: int) -> bytes:
    """The first `count` bytes of a file, or all where it has fewer."""
    with open_file(path) as (file, _):
        return file.read(count)


def is_lfs_pointer(start: bytes) -> bool:
    """Whether a file that begins so is what git leaves in place of a large file."""
    return start.startswith(_LFS)


def require_no_lfs_pointer(path: Path) -> None:
    """Raise an UnreadableInputError that says how to fetch the file, if it is but a pointer."""
    if is_lfs_pointer(read_start(path, len(_LFS))):
        raise UnreadableInputError(
            f"{path.name} is a git-lfs pointer, not the file itself; run 'git lfs pull' to fetch it"
        )

"""The one place that opens zip archives, which `.keras` and `.npz` files are.

What an archive claims of its members is checked before any of them is read.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from rnnconvert.errors import ConversionError, UnreadableInputError

_RATIO = {zipfile.ZIP_STORED: 1, zipfile.ZIP_DEFLATED: 1032}
"""How many bytes one byte of a zip member can stand for at most."""
_MAX_MEMBERS = 100_000
_ENCRYPTED = 1
"""Bit of a zip member's flags."""


class SafeZip:
    """An archive with its members by name, checked.

    Raises:
        UnreadableInputError: no archive, damaged, or a member that is encrypted, there twice,
            compressed in an unknown way, or of a false size.
    """

    def __init__(self, file: Path | IO[bytes], size: int) -> None:
        with reading_zip():
            self._zip = zipfile.ZipFile(file)
        infos = self._zip.infolist()
        stored = sum(info.compress_size for info in infos)
        if stored > size or len(infos) > _MAX_MEMBERS:
            raise UnreadableInputError(
                "the file is damaged: its members are larger than itself, or far too many"
            )
        self.members: dict[str, zipfile.ZipInfo] = {}
        for info in infos:
            _require_true(info)
            if info.filename in self.members:
                raise UnreadableInputError(f"refused as unsafe: {info.filename!r} is there twice")
            self.members[info.filename] = info

    def __enter__(self) -> SafeZip:
        return self

    def __exit__(self, *_: object) -> None:
        self._zip.close()

    def open(self, name: str) -> IO[bytes]:
        """A member's bytes; reading stops at its length and checks its checksum."""
        with reading_zip():
            return self._zip.open(self.members[name])


def _require_true(info: zipfile.ZipInfo) -> None:
    name, claimed, stored = info.filename, info.file_size, info.compress_size
    if info.flag_bits & _ENCRYPTED:
        raise UnreadableInputError(f"refused: {name!r} is encrypted")
    if info.compress_type not in _RATIO:
        raise UnreadableInputError(f"{name!r} is compressed in a way that Keras does not use")
    if claimed > _RATIO[info.compress_type] * stored:
        raise UnreadableInputError(
            f"{name!r} claims {claimed:,} bytes, which {stored:,} stored bytes can't hold; "
            "the file is damaged"
        )


@contextmanager
def reading_zip() -> Iterator[None]:
    """Whatever goes wrong while reading an archive, as one clear error."""
    try:
        yield
    except ConversionError:
        raise
    except OSError as error:
        raise UnreadableInputError(f"can't be read: {error.strerror or error}") from error
    except MemoryError as error:
        raise UnreadableInputError("too large for the memory") from error
    except Exception as error:  # the parsers of zip, deflate and npy raise many classes
        reason = (str(error).splitlines() or [""])[0][:200] or type(error).__name__
        raise UnreadableInputError(f"the file is damaged: {reason}") from error


def ends_as_zip(path: Path) -> bool:
    """Whether Python, and so Keras, opens a file as an archive, whatever it begins with."""
    return zipfile.is_zipfile(path)


class ArchiveFile:
    """A file that an archive is written to, some bytes of which may be there already.

    Attributes:
        is_there: what is written now has the very bytes of the file at this place.
    """

    def __init__(self, file: IO[bytes]) -> None:
        self.is_there = False
        self._file = file

    def write(self, data: bytes) -> int:
        if not self.is_there:
            return self._file.write(data)
        self._file.seek(len(data), os.SEEK_CUR)
        return len(data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


@contextmanager
def new_zip(path: Path) -> Iterator[tuple[zipfile.ZipFile, ArchiveFile]]:
    """An archive to write, and its file."""
    with path.open("w+b") as file:
        target = ArchiveFile(file)
        with zipfile.ZipFile(target, "w") as archive:
            yield archive, target


def rewrite_members(path: Path, rewrite: Mapping[str, Callable[[bytes], bytes]]) -> None:
    """Write some members of an archive of our own anew, all else as it is, and no dates.

    Without dates the same content gives the same bytes.
    """
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=".rnnconvert-") as scratch:
        with zipfile.ZipFile(path) as old, zipfile.ZipFile(scratch, "w") as new:
            for member in old.infolist():
                undated = zipfile.ZipInfo(member.filename)
                undated.compress_type = member.compress_type
                undated.file_size = member.file_size  # or it has to fit into 2 GiB
                if member.filename in rewrite:
                    new.writestr(undated, rewrite[member.filename](old.read(member)))
                    continue
                with old.open(member) as source, new.open(undated, "w") as copy:
                    shutil.copyfileobj(source, copy)
        scratch.flush()
        shutil.copyfile(scratch.name, path)

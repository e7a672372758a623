"""URLs of objects in a store, and what of a command's arguments is one."""

from __future__ import annotations

import re
from dataclasses import dataclass
from os import PathLike
from pathlib import Path, PurePosixPath

from rnnconvert.errors import UsageError

PROTOCOLS = ("s3", "gs", "gcs", "memory")
_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+)://(.*)", re.DOTALL)
"""One letter before the colon is a drive of Windows."""


@dataclass(frozen=True)
class StoreUrl:
    """An object in a store, or all objects whose names begin so.

    Attributes:
        protocol: one of PROTOCOLS.
        path: bucket and name, without a slash at its end.
        is_directory: it was given with one, or is a bucket: what is written goes below it.

        >>> str(StoreUrl("s3", "bucket/models").below("a/m.h5"))
        's3://bucket/models/a/m.h5'
    """

    protocol: str
    path: str
    is_directory: bool = False
    bytes = 0  # not asked for

    def __str__(self) -> str:
        return f"{self.protocol}://{self.path}"

    @property
    def name(self) -> str:
        """The last part."""
        return self.path.rpartition("/")[2]

    @property
    def parent(self) -> StoreUrl:
        """What the last part is taken off; of a bucket the bucket itself."""
        above = self.path.rpartition("/")[0]
        return StoreUrl(self.protocol, above or self.path, is_directory=True)

    def below(self, name: str | PurePosixPath, *, is_directory: bool = False) -> StoreUrl:
        """The object of a name below this one."""
        inner = str(name)
        path = self.path if inner in ("", ".") else f"{self.path}/{inner}"
        return StoreUrl(self.protocol, path, is_directory)


def place_of(given: str | PathLike[str]) -> Path | StoreUrl:
    """What an argument of a command, or of a function, stands for.

    Raises:
        UsageError: a URL of another kind.
    """
    if not isinstance(given, str):
        return Path(given)
    text = given
    match = _URL.fullmatch(text)
    if match is None:
        return Path(text)
    protocol, path = match[1].lower(), match[2]
    if protocol not in PROTOCOLS:
        known = ", ".join(f"{each}://" for each in PROTOCOLS)
        raise UsageError(f"expected a path, or a URL that begins with {known}", path=text)
    if not path.strip("/") or path.startswith("/") or "::" in path:
        raise UsageError(f"expected {protocol}://BUCKET/NAME", path=text)
    return StoreUrl(protocol, path.rstrip("/"), path.endswith("/") or "/" not in path)

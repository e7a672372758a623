"""Names of objects, which anybody may have chosen, as names of local files: which are refused."""

from __future__ import annotations

import os
import unicodedata
from collections import Counter
from collections.abc import Iterable

_LONGEST = 255
"""Bytes of one part of a path, on every common file system."""
_CONTROLS = ("Cc", "Cs", "Zl", "Zp")
"""Unicode's categories of control characters, lone surrogates and separators of lines."""
_OF_WINDOWS = frozenset('<>:"|?*')


def refused_names(names: Iterable[str], *, windows: bool = os.name == "nt") -> dict[str, str]:
    """Of some names below one place, those that are no safe local paths, and why.

    Args:
        names: parts are separated by slashes.
        windows: whether the names that Windows can't have are refused too.

        >>> refused_names(["a/m.h5", "../m.h5"])
        {'../m.h5': 'a part of its name is ".."'}
    """
    everything = list(names)
    refused = {}
    for name in everything:
        why = _wrong_in(name, windows=windows)
        if why is not None:
            refused[name] = why
    folders = {above for name in everything for above in _above(name)}
    folded = Counter(map(_folded, everything))
    for name in everything:
        if name in refused:
            continue
        if name in folders:
            refused[name] = "it is an object and a folder of others"
        elif folded[_folded(name)] > 1:
            refused[name] = "another name differs from it in upper and lower case only"
    return refused


def _wrong_in(name: str, *, windows: bool) -> str | None:
    if name.startswith("/"):
        return "its name begins with a slash"
    if "\\" in name:
        return "there is a backslash in its name"
    if any(unicodedata.category(character) in _CONTROLS for character in name):
        return "there is a control character in its name"
    for part in name.split("/"):
        if part in ("", ".", ".."):
            return f'a part of its name is "{part}"'
        if len(os.fsencode(part)) > _LONGEST:
            return f"a part of its name is longer than {_LONGEST} bytes"
        if windows and (_OF_WINDOWS & set(part) or part[-1] in " ."):
            return "Windows can't have its name"
    return None


def _folded(name: str) -> str:
    """The same for names that some file systems take for one."""
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", name).casefold())


def _above(name: str) -> Iterable[str]:
    parts = name.split("/")
    return ("/".join(parts[:count]) for count in range(1, len(parts)))

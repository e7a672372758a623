"""Versions of what a report was made with."""

from __future__ import annotations

import functools

_TENSORFLOW = ("tensorflow", "tensorflow-cpu", "tensorflow-macos", "tf-nightly", "tf-nightly-cpu")
"""The packages that it comes in."""


def tool_versions() -> dict[str, str | None]:
    """Versions of rnnconvert and of what it stands on; None for what is not installed.

    Read from the packages' metadata: nothing is imported for it but numpy and h5py.
    """
    import h5py

    versions: dict[str, str | None] = {}
    for name in ("rnnconvert", "numpy", "h5py"):
        versions[name] = _version(name)
    versions["hdf5"] = h5py.version.hdf5_version
    versions["tensorflow"] = next(filter(None, map(_version, _TENSORFLOW)), None)
    versions["keras"] = _version("keras")
    return versions


@functools.cache
def _version(name: str) -> str | None:
    import importlib.metadata  # takes a while, and only a report needs it

    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None

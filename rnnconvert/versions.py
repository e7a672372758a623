"""Versions of what a report was made with."""

from __future__ import annotations

import functools


def tool_versions() -> dict[str, str | None]:
    """Versions of rnnconvert and of what it stands on; None for what is not installed.

    Read from the packages' metadata: nothing is imported for it but numpy and h5py.
    """
    import h5py

    versions: dict[str, str | None] = {}
    for name in ("rnnconvert", "numpy", "h5py"):
        versions[name] = _version(name)
    versions["hdf5"] = h5py.version.hdf5_version
    for name in ("tensorflow", "keras"):
        versions[name] = _version(name)
    return versions


@functools.cache
def _version(name: str) -> str | None:
    import importlib.metadata  # takes a while, and only a report needs it

    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None

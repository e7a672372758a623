"""Attributes of HDF5 files as Keras writes them, and every version of it reads them."""

from __future__ import annotations

from collections.abc import Sequence

import h5py
import numpy as np

_MOST_BYTES = 64512
"""Of one attribute: HDF5 refuses more than 64 KB, and Keras splits before that."""


def write_text_attribute(owner: h5py.Group, name: str, value: str) -> None:
    """Replace a string attribute; variable-length, so of any size, and ASCII, as Keras writes it.

    Keras before 2.4, with h5py 2, calls `decode` on what it reads, which UTF-8 strings don't have.
    """
    owner.attrs.create(name, value, dtype=h5py.string_dtype("ascii"))


def write_names(owner: h5py.Group, name: str, values: Sequence[str]) -> None:
    """Replace a list of names, split into NAME0, NAME1, ... as Keras does where it is too long."""
    for key in [key for key in owner.attrs if key.rstrip("0123456789") == name]:
        del owner.attrs[key]
    array = np.asarray([value.encode() for value in values], dtype=None if values else "S1")
    parts = 1
    while any(part.nbytes > _MOST_BYTES for part in np.array_split(array, parts)):
        parts += 1
    for index, part in enumerate(np.array_split(array, parts)):
        owner.attrs[name if parts == 1 else f"{name}{index}"] = part

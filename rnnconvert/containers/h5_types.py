"""Datatypes that the HDF5 library crashes on: it takes any number for a kind of variable length."""

from __future__ import annotations

from typing import Any

import h5py

_KIND_AT = 3
"""Byte of an encoded datatype whose low half says what kind of variable length it is."""
_SEQUENCE = 0


def is_sound(datatype: Any) -> bool:
    """Whether every part of variable length is a text or a sequence (h5py knows the texts).

    Args:
        datatype: an `h5py.h5t.TypeID`.
    """
    kind = datatype.get_class()
    if kind == h5py.h5t.VLEN:
        is_sequence = datatype.encode()[_KIND_AT] & 0x0F == _SEQUENCE
        return is_sequence and is_sound(datatype.get_super())
    if kind == h5py.h5t.ARRAY:
        return is_sound(datatype.get_super())
    if kind == h5py.h5t.COMPOUND:
        members = range(datatype.get_nmembers())
        return all(is_sound(datatype.get_member_type(index)) for index in members)
    return True

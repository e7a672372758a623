"""CRC-32C (Castagnoli), the checksum of TensorFlow's checkpoints."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_MASK_DELTA = 0xA282EAD8


def crc32c(data: bytes | bytearray | memoryview | NDArray[np.uint8], crc: int = 0) -> int:
    """The CRC-32C of `data`, or of what gave `crc` followed by `data`.

    Args:
        data: any contiguous bytes; they are not copied.
        crc: the checksum of what stands before `data`.
    """
    import google_crc32c  # few kinds of files need it

    found: int = google_crc32c.extend(crc, np.frombuffer(data, np.uint8))
    return found


def masked(crc: int) -> int:
    """A checksum as it is stored: rotated and shifted, so that a CRC of CRCs stays meaningful."""
    return ((crc >> 15 | crc << 17) + _MASK_DELTA) & 0xFFFFFFFF

"""CRC-32C (Castagnoli), the checksum of TensorFlow's checkpoints, at the speed of numpy's XOR.

A CRC is the remainder of the message, read as a polynomial over GF(2), modulo a generator (RFC
3720, appendix B.4), so a multiple of the generator may be added to the message freely.
x^5685 + x^1362 + x^426 + 1 is such a multiple, and squaring a polynomial over GF(2) doubles its
exponents, so the same four terms hold in x^8 and in x^64: counted in bytes and in 64-bit words.
Any word may therefore be XORed into the words 4323, 5259 and 5685 places behind it and be dropped
itself. That leaves a short end, whose remainder is the XOR of the remainders of its set bits.
(Sparse multiples in place of tables: Russell, "Chorba: A novel CRC32 implementation",
arXiv:2412.16398.)
"""

from __future__ import annotations

import functools
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

GENERATOR = 0x82F63B78
"""x^32 + x^28 + ... + 1, without its first term, the lowest power in the highest bit."""
MULTIPLE = (5685, 1362, 426)
"""Exponents of a multiple of the generator; its last term is 1."""
_PIECE = 2**20
_Unit = TypeVar("_Unit", np.uint8, np.uint64)
_MASK_DELTA = 0xA282EAD8


def crc32c(data: bytes | bytearray | memoryview | NDArray[np.uint8], crc: int = 0) -> int:
    """The CRC-32C of `data`, or of what gave `crc` followed by `data`.

    Args:
        data: any contiguous bytes; read in pieces, never copied as a whole.
        crc: the checksum of what stands before `data`.
    """
    source = np.frombuffer(data, np.uint8)
    register = crc ^ 0xFFFFFFFF
    scratch = np.empty((min(len(source), _PIECE) + 15) // 8, np.uint64)
    for start in range(0, len(source), _PIECE):
        register = _advance(register, source[start : start + _PIECE], scratch)
    return register ^ 0xFFFFFFFF


def masked(crc: int) -> int:
    """A checksum as it is stored: rotated and shifted, so that a CRC of CRCs stays meaningful."""
    return ((crc >> 15 | crc << 17) + _MASK_DELTA) & 0xFFFFFFFF


def _advance(register: int, piece: NDArray[np.uint8], scratch: NDArray[np.uint64]) -> int:
    """The CRC register after `piece`: (register, piece, 32 zero bits) modulo the generator.

    Args:
        register: 32 bits, which fall on the first four bytes.
        piece: at most _PIECE bytes.
        scratch: room for the piece and 15 bytes more; overwritten.
    """
    words = scratch[: (len(piece) + 11) // 8]
    message = words.view(np.uint8)
    start = len(message) - 4 - len(piece)  # leading zeros change no remainder
    message[:start] = 0
    message[start:-4] = piece
    message[-4:] = 0
    message[start : start + 4] ^= np.frombuffer(register.to_bytes(4, "little"), np.uint8)
    rest = _fold(_fold(words).view(np.uint8))
    bits = np.unpackbits(rest, bitorder="little")
    return int(np.bitwise_xor.reduce(_remainders()[-len(bits) :] * bits))


def _fold(units: NDArray[_Unit]) -> NDArray[_Unit]:
    """Move all but the last 5685 units (bytes or words) into later ones, which it returns.

    A step ends where its own first target begins, so no unit is moved before it is complete.
    """
    top, middle, low = MULTIPLE
    step = top - middle
    surplus = len(units) - top
    for start in range(0, surplus, step):
        count = min(step, surplus - start)
        moved = units[start : start + count]
        for distance in (step, top - low, top):
            target = units[start + distance : start + distance + count]
            np.bitwise_xor(target, moved, out=target)
    return units[-top:]


@functools.cache
def _remainders() -> NDArray[np.uint32]:
    """x^n modulo the generator for every bit of 5685 bytes, the last bit being x^0."""
    remainders = []
    remainder = 0x80000000
    for _ in range(8 * MULTIPLE[0]):
        remainders.append(remainder)
        remainder = remainder >> 1 ^ (GENERATOR if remainder & 1 else 0)
    return np.array(remainders[::-1], np.uint32)

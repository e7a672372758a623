"""CRC-32C against published values, and against the bit-by-bit definition."""

from __future__ import annotations

import numpy as np
import pytest

from rnnconvert.containers.checkpoint.crc32c import crc32c, masked

GENERATOR = 0x82F63B78
"""x^32 + x^28 + ... + 1, without its first term, the lowest power in the highest bit."""


def by_definition(data: bytes) -> int:
    """One bit of the message after the other through the shift register."""
    register = 0xFFFFFFFF
    for byte in data:
        register ^= byte
        for _ in range(8):
            register = register >> 1 ^ (GENERATOR if register & 1 else 0)
    return register ^ 0xFFFFFFFF


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", 0),
        (b"123456789", 0xE3069283),  # the check value of the catalogue of CRC algorithms
        (bytes(32), 0x8A9136AA),  # these four: RFC 3720, appendix B.4
        (b"\xff" * 32, 0x62A8AB43),
        (bytes(range(32)), 0x46DD794E),
        (bytes(range(31, -1, -1)), 0x113FDB5C),
    ],
)
def test_published_values(data, expected):
    assert crc32c(data) == expected


def test_masked_as_stored_in_files():
    # Rotated to the right by 15 bits, plus a constant: computed here digit by digit.
    bits = f"{crc32c(b'foo'):032b}"
    assert masked(crc32c(b"foo")) == (int(bits[-15:] + bits[:-15], 2) + 0xA282EAD8) % 2**32
    assert masked(crc32c(b"foo")) != crc32c(b"foo")


@pytest.mark.parametrize("length", [*range(1, 18), 4323, 99_991])
def test_all_lengths(length):
    data = np.random.default_rng(length).bytes(length)
    assert crc32c(data) == by_definition(data)


def test_long_data_in_pieces_and_as_a_whole():
    data = np.random.default_rng(0).integers(0, 256, 3 * 2**20 + 12_345, dtype=np.uint8)
    whole = crc32c(data)
    for cut in (1, 1000, 2**20, 2**21 + 1):
        assert crc32c(data[cut:], crc32c(data[:cut])) == whole
    data[2**20 + 17] ^= 1
    assert crc32c(data) != whole


def test_any_buffer():
    data = bytearray(b"some bytes, then more")
    assert crc32c(data) == crc32c(memoryview(data)) == crc32c(bytes(data))

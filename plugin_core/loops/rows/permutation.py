"""A random order of any number of rows, computed on demand instead of stored."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np

#: More rounds for halves of few bits, because each round mixes little.
_ROUNDS, _ROUNDS_OF_FEW_BITS, _FEW_BITS = 6, 12, 8
#: odd numbers without a pattern, from MurmurHash3's finalizer
_FACTORS = np.uint32(0x85EBCA6B), np.uint32(0xC2B2AE35)


class Permutation:
    """A pseudo-random permutation of 0 … size - 1 (size up to 2⁶²), fixed by `key` on any machine and with any NumPy.

    A Feistel network over the next power of two; values outside the range are encrypted again until they are inside
    ("cycle walking": J. Black, P. Rogaway, Ciphers with Arbitrary Finite Domains, CT-RSA 2002, methods 2 and 3). A value
    takes less than two passes on average. It shuffles, but hides nothing: the round function is a mixer, not a cipher.
    """

    def __init__(self, size: int, *key: int):
        self.size = size
        bits = max(2, (size - 1).bit_length())
        self._low, self._high = bits // 2, bits - bits // 2
        rounds = _ROUNDS_OF_FEW_BITS if bits <= _FEW_BITS else _ROUNDS
        digest = hashlib.blake2b(repr((size, *key)).encode(), digest_size=4 * rounds).digest()
        self._keys = np.frombuffer(digest, dtype="<u4").astype(np.uint32)

    def __call__(self, positions: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """The rows at these positions of the order, as int64."""
        found = self._encrypted(positions.astype(np.uint64))
        outside = np.flatnonzero(found >= self.size)
        while outside.size:
            found[outside] = again = self._encrypted(found[outside])
            outside = outside[again >= self.size]
        return found.astype(np.int64)

    def _encrypted(self, values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        low = (values & np.uint64((1 << self._low) - 1)).astype(np.uint32)
        high = (values >> np.uint64(self._low)).astype(np.uint32)
        for number, key in enumerate(self._keys):
            if number % 2:
                low ^= _mixed(high, key) >> np.uint32(32 - self._low)
            else:
                high ^= _mixed(low, key) >> np.uint32(32 - self._high)
        return (high.astype(np.uint64) << np.uint64(self._low)) | low


def _mixed(values: np.ndarray[Any, Any], key: np.uint32) -> np.ndarray[Any, Any]:
    """Each value mixed into 32 bits, the upper of which depend on every bit of the value. Overflow is intended."""
    mixed = values ^ key
    mixed *= _FACTORS[0]
    mixed ^= mixed >> np.uint32(15)
    mixed *= _FACTORS[1]
    return mixed

"""A random order of any number of rows, computed on demand instead of stored."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
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
        self._unsigned: Any = np.uint32 if bits <= 32 else np.uint64  # half as wide where it suffices, which is quicker
        rounds = _ROUNDS_OF_FEW_BITS if bits <= _FEW_BITS else _ROUNDS
        digest = hashlib.blake2b(repr((size, *key)).encode(), digest_size=4 * rounds).digest()
        self._keys = np.frombuffer(digest, dtype="<u4").astype(np.uint32)

    def __call__(self, positions: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """The rows at these positions of the order, as int64."""
        return self._inside(self._encrypted(positions.astype(self._unsigned)), self._encrypted).astype(np.int64)

    def whole(self) -> np.ndarray[Any, Any]:
        """The rows at all positions, as int64: faster than a call with all of them, since no value is encrypted twice."""
        table = self._encrypted(np.arange(1 << (self._low + self._high), dtype=self._unsigned)).astype(np.int64)
        return self._inside(table[: self.size].copy(), table.__getitem__)

    def _inside(
        self, found: np.ndarray[Any, Any], encrypted: Callable[[np.ndarray[Any, Any]], np.ndarray[Any, Any]]
    ) -> np.ndarray[Any, Any]:
        """`found`, with values outside the range encrypted again until they are inside."""
        outside = np.flatnonzero(found >= self.size)
        while outside.size:
            found[outside] = again = encrypted(found[outside])
            outside = outside[again >= self.size]
        return found

    def _encrypted(self, values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        low = (values & self._unsigned((1 << self._low) - 1)).astype(np.uint32, copy=False)
        high = (values >> self._unsigned(self._low)).astype(np.uint32, copy=False)
        mixed, shifted = np.empty_like(low), np.empty_like(low)
        for number, key in enumerate(self._keys):
            one, other, bits = (high, low, self._low) if number % 2 else (low, high, self._high)
            # mixed into 32 bits, the upper of which depend on every bit of the value; overflow is intended
            np.bitwise_xor(one, key, out=mixed)
            np.multiply(mixed, _FACTORS[0], out=mixed)
            np.right_shift(mixed, np.uint32(15), out=shifted)
            np.bitwise_xor(mixed, shifted, out=mixed)
            np.multiply(mixed, _FACTORS[1], out=mixed)
            np.right_shift(mixed, np.uint32(32 - bits), out=mixed)
            np.bitwise_xor(other, mixed, out=other)
        high = high.astype(self._unsigned, copy=False)
        whole: np.ndarray[Any, Any] = (high << self._unsigned(self._low)) | low
        return whole

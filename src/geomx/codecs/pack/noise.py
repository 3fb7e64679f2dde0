"""Random numbers that are the same on every machine: a function of where they are used, not of what came before.

Counter-based, after SplitMix64's finaliser (Steele, Lea, Flood, OOPSLA 2014): number `i` of a stream is a hash of the
stream's key and of `i`. Keys come from (seed, turn, slice, origin), so a resent or restarted encoding draws the same.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import torch

from geomx.layout import Slice

_GOLDEN = 0x9E3779B97F4A7C15
_FIRST, _SECOND = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
_MASK = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class RngKey:
    """Whose randomness an encoder draws: `seed` of the run, `origin` the node (down: "")."""

    seed: int = 0
    origin: str = ""

    def key(self, turn: int, slice_: Slice) -> int:
        """The key of what one encoding draws."""
        return key_of(self.seed, turn, slice_.index, self.origin)


def key_of(*parts: int | str) -> int:
    """A stream's key: 63 bits of a hash of what identifies it."""
    text = "\x1f".join(map(str, parts)).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little") >> 1


def uniform(key: int, count: int, device: torch.device) -> torch.Tensor:
    """`count` numbers of stream `key`: float32 in [0, 1), multiples of 2^-24."""
    x = torch.arange(1, count + 1, dtype=torch.int64, device=device).mul_(_signed(_GOLDEN)).add_(key)
    for shift, factor in ((30, _FIRST), (27, _SECOND), (31, 1)):
        x ^= (x >> shift) & ((1 << (64 - shift)) - 1)
        x *= _signed(factor)
    return ((x >> 40) & 0xFFFFFF).to(torch.float32).mul_(2.0**-24)


def below(key: int, bound: int) -> int:
    """One integer of stream `key` in [0, bound)."""
    return key % bound


def _signed(value: int) -> int:
    """The same 64 bits as torch's int64 has them."""
    return value - (1 << 64) if value >> 63 else value & _MASK

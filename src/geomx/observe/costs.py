"""What a codec saves and costs, measured on this machine: bytes, and seconds of one core beside the memory's floor."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from geomx.codecs.pack.noise import RngKey
from geomx.codecs.spec import make_codec
from geomx.layout import Slice

TYPICAL = 1e-3  # standard deviation of the numbers that stand for gradients
COPIED_ELEMENTS = 1 << 25  # far more than a cache holds


class Memory(NamedTuple):
    """Bytes a second that this thread, or the device, moves; reads and writes both counted (after STREAM).

    `updating`: in `a += b`, as an encoding that keeps a residual. `copying`: in `a = b`, as a decoding, which writes
    what it has not read.
    """

    updating: float
    copying: float

    def __str__(self) -> str:
        return f"{self.updating / 1e9:.3g} GB/s in a += b, {self.copying / 1e9:.3g} in a = b"


@dataclass(frozen=True, slots=True)
class Cost:
    """Of encoding and decoding every slice of a model once. `slices`: into how many it is cut.

    The floors are the seconds for the bytes that must be touched. Encoding: values and what the codec keeps read, that
    and the payload written, as fast as the memory is updated. Decoding: the payload read, values written, as fast as it
    is copied. 0 for a codec that only looks at the same memory anew.
    """

    spec: str
    dense_bytes: int
    sent_bytes: int
    encode_s: float
    decode_s: float
    floor_s: float
    lossless: bool
    decode_floor_s: float = 0.0
    slices: int = 1

    @property
    def ratio(self) -> float:
        """How many times smaller than float32."""
        return self.dense_bytes / self.sent_bytes


def cost(spec: str, slices: Iterable[Slice], memory: Memory, rounds: int = 5, device: str = "cpu") -> Cost:
    """Measure one codec on random numbers; seconds are medians over rounds. Raises what `make_codec` raises."""
    codec = make_codec(spec, RngKey())
    slices = list(slices)
    values = [
        TYPICAL * torch.randn(slice_.elements, dtype=getattr(torch, slice_.dtype)).to(device)
        for slice_ in slices
    ]
    turn = 0

    def encode() -> list[torch.Tensor]:
        nonlocal turn
        turn += 1
        return [codec.encode(slice_, turn, flat) for slice_, flat in zip(slices, values, strict=True)]

    encode_s = timed(encode, rounds)
    payloads = encode()
    decode_s = timed(
        lambda: [codec.decode(p, data) for p, data in zip(slices, payloads, strict=True)], rounds
    )
    dense = sum(slice_.size_bytes for slice_ in slices)
    sent = sum(payload.numel() for payload in payloads)
    kept = sum(held.nbytes for slice_ in slices for held in codec.state(slice_).values())
    encoding, decoding = (0, 0) if codec.lossless else (dense + 2 * kept + sent, sent + dense)
    floors = encoding / memory.updating, decoding / memory.copying
    return Cost(spec, dense, sent, encode_s, decode_s, floors[0], codec.lossless, floors[1], len(slices))


def memory_of(device: str = "cpu") -> Memory:
    """Measured now, on one thread."""
    a, b = torch.ones(COPIED_ELEMENTS, device=device), torch.ones(COPIED_ELEMENTS, device=device)
    return Memory(3 * a.nbytes / timed(lambda: a.add_(b), 5), 2 * a.nbytes / timed(lambda: a.copy_(b), 5))


def timed(work: Callable[[], Any], rounds: int) -> float:
    """The median of the seconds that `work` takes, after it was done once; a GPU is waited for."""

    def settle() -> None:
        if torch.cuda.is_available():
            torch.cuda.synchronize()

    work()
    seconds = []
    for _ in range(rounds):
        settle()
        start = time.perf_counter()
        work()
        settle()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)

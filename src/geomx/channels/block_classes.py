"""Which blocks of a payload must arrive, and how often the others are tried: see `contract.BlockClasses`.

`Alike` treats all blocks the same. `Dgt` is GeoMX's Differential Gradient Transmission (Zhou et al., FGCS 2021): blocks
are ranked by their contribution,

    C ← α · C + (1 - α) · mean |g|        (of each block, over its elements)

the k · n largest are reliable, and the others are spread over classes by rank: the lower a block's contribution, the
later it is sent, and the fewer tries it has. With `adaptive`, k follows the loss: max(k · loss / first loss, k_least).
The scripts' side divides, and checkpoints keep the first loss.

Where we deviate: what does not arrive goes back to its sender and comes with the next round, where DGT fills in zeros
and adds what is late to the round after. Blocks whose elements differ from round to round (sparse codecs) are ranked by
this round alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from random import Random

import torch

from geomx.channels.contract import NOT_SENT, Ranged
from geomx.errors import ConfigError, Fault, LossUnknown
from geomx.layout import Slice

ALWAYS = 1 << 30  # tries: until the receiver has closed
MOST_ROUND_TRIPS = 100
RANKINGS = ("contribution", "random")


class Alike:
    """All blocks in one class.

    Args:
        deadline: In round trips behind a payload's end, up to 100; 0: until all have come.
        fec: Parity pieces for each piece, up to 1; 0: as many as the measured loss asks for, of what must arrive.

    Raises:
        ConfigError: A parameter is out of range.
    """

    needs_loss = False
    tries: tuple[int, ...] = (ALWAYS,)

    def __init__(self, deadline: float = 0.0, fec: float = 0.0) -> None:
        faults = []
        if not 0.0 <= deadline <= MOST_ROUND_TRIPS:
            faults.append(
                Fault("deadline", f"{deadline}", f"a number of round trips from 0 to {MOST_ROUND_TRIPS}")
            )
        if not 0.0 <= fec <= 1.0:
            faults.append(Fault("fec", f"{fec}", "a number from 0 to 1"))
        if faults:
            raise ConfigError("channel datagram", faults)
        self.parity_share = fec
        self.grace = deadline
        self.loses = deadline > 0.0

    def levels(
        self,
        slice_: Slice,
        turn: int,
        blocks: Sequence[Ranged],
        values: Callable[[], torch.Tensor],
        relative_loss: float | None,
    ) -> list[int]:
        return [int(self.loses)] * len(blocks)


class Dgt:
    """DGT's classes. What it remembers of contributions begins anew when its node is started again.

    Args:
        k: The fraction of blocks that is reliable, from 0 to 1.
        k_least: The least that `adaptive` makes of it.
        channels: How many classes the other blocks are spread over; those of the first have as many tries.
        alpha: The share of a block's earlier contribution that is kept, from 0 to below 1.
        adaptive: Let k fall with the loss, which the script tells with `run.loss`.
        rank: "contribution", or "random": what that is to be compared with.
        drop: Do not send what is not reliable at all: what sending it is to be compared with.
        seed: Of the random ranks.

    Raises:
        ConfigError: A parameter is out of range.
    """

    loses = True
    grace = 0.0
    parity_share = 0.0

    def __init__(
        self,
        k: float = 0.8,
        k_least: float = 0.2,
        channels: int = 3,
        alpha: float = 0.3,
        adaptive: bool = True,
        rank: str = "contribution",
        drop: bool = False,
        seed: int = 0,
    ) -> None:
        faults = [
            Fault(name, f"{value}", "a number from 0 to 1")
            for name, value in (("k", k), ("k_least", k_least))
            if not 0.0 <= value <= 1.0
        ]
        if not 1 <= channels <= 254:
            faults.append(Fault("channels", f"{channels}", "an integer from 1 to 254"))
        if not 0.0 <= alpha < 1.0:
            faults.append(Fault("alpha", f"{alpha}", "a number from 0, below 1"))
        if rank not in RANKINGS:
            faults.append(Fault("rank", repr(rank), ", ".join(RANKINGS)))
        if faults:
            raise ConfigError("channel dgt", faults)
        self.tries: tuple[int, ...] = tuple(range(channels, 0, -1))
        self.needs_loss = adaptive
        self._k, self._k_least, self._alpha = k, min(k, k_least), alpha
        self._rank, self._drop, self._seed = rank, drop, seed
        self._contributions: dict[int, tuple[tuple[int, ...], torch.Tensor]] = {}

    def levels(
        self,
        slice_: Slice,
        turn: int,
        blocks: Sequence[Ranged],
        values: Callable[[], torch.Tensor],
        relative_loss: float | None,
    ) -> list[int]:
        count = len(blocks)
        reliable = math.ceil(self.k(relative_loss) * count)
        if self._rank == "random":
            order = list(range(count))
            Random(f"{self._seed} {slice_.index} {turn}").shuffle(order)
        else:
            found = self._contribution(slice_, blocks, values())
            order = torch.argsort(found, descending=True, stable=True).tolist()
        levels, others, classes = [0] * count, count - reliable, len(self.tries)
        for place, block in enumerate(order[reliable:]):
            levels[block] = NOT_SENT if self._drop else 1 + place * classes // others
        return levels

    def k(self, relative_loss: float | None) -> float:
        """The fraction of blocks that is reliable now.

        Args:
            relative_loss: The loss divided by the first; one that is not finite or not above 0 leaves k at its most.

        Raises:
            LossUnknown: It depends on the loss, and there is none.
        """
        if not self.needs_loss:
            return self._k
        if relative_loss is None:
            raise LossUnknown(
                "with adaptive=true, the channel dgt needs the loss: call run.loss(value) before each step, or set "
                "adaptive=false"
            )
        if not math.isfinite(relative_loss) or relative_loss <= 0.0:
            return self._k
        return min(max(self._k * relative_loss, self._k_least), 1.0)

    def _contribution(self, slice_: Slice, blocks: Sequence[Ranged], values: torch.Tensor) -> torch.Tensor:
        """Of each block; remembered as long as the blocks cover the same elements."""
        starts = tuple(block.start for block in blocks)
        sums = torch.cat((torch.zeros(1, dtype=torch.float64), values.abs().to(torch.float64).cumsum(0)))
        bounds = torch.tensor([*starts, blocks[-1].stop])
        now = (sums[bounds[1:]] - sums[bounds[:-1]]) / (bounds[1:] - bounds[:-1])
        before = self._contributions.get(slice_.index)
        if before is not None and before[0] == starts:
            now = self._alpha * before[1] + (1.0 - self._alpha) * now
        self._contributions[slice_.index] = starts, now
        return now

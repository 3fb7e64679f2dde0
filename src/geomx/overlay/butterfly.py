"""Recursive halving and doubling (Thakur, Rabenseifner and Gropp, IJHPCA 2005), with a holder beside it.

Among n = 2^k members, step t of k has member i exchange with i XOR n / 2^t: each gives away the half of its shares that
the other will own. So share s, which ends at member s, takes a binomial tree: who differs from s in the bits D sends to
the member that differs in D without its highest bit. Member s sends the sum to the holder. The update takes the same
edges back, which is recursive doubling.

*Binary blocks* (Rabenseifner, ICCS 2004) take any number of members: n is a sum of powers of two, each a block in which
the above is done. What a member of a block has summed goes to the owner of that share in the next larger block, and so
to the largest, which has as many shares as members.
"""

from __future__ import annotations

from collections.abc import Sequence

from geomx.errors import ConfigError, Fault
from geomx.overlay.contract import Links, Load, Routes
from geomx.overlay.tables import Share, fixed


class Butterfly:
    """See the module's text. For a power of two of members."""

    every_turns = 0

    def plan(self, links: Links, loads: Sequence[Load], number: int, current: Routes | None = None) -> Routes:
        """See `Planner`.

        Raises:
            ConfigError: The number of members is no power of two, or two of them cannot reach each other.
        """
        n = links.members
        if n & (n - 1):
            fault = Fault(
                "overlay", f"{n} members", "2, 4, 8, … members", "take `binary-blocks`, for any number"
            )
            raise ConfigError("overlay `butterfly`", [fault])
        return fixed("butterfly", links, loads, _shares(n))


class BinaryBlocks:
    """See the module's text."""

    every_turns = 0

    def plan(self, links: Links, loads: Sequence[Load], number: int, current: Routes | None = None) -> Routes:
        """See `Planner`.

        Raises:
            ConfigError: Two members cannot reach each other.
        """
        return fixed("binary-blocks", links, loads, _shares(links.members))


def _shares(members: int) -> list[Share]:
    """One for each member of the largest block."""
    blocks, first = [], 0  # of each its first member and how many it has, the largest first
    while first < members:
        size = 1 << ((members - first).bit_length() - 1)
        blocks.append((first, size))
        first += size
    largest = blocks[0][1]
    shares = []
    for owner in range(largest):
        parents: list[int] = []
        above = owner
        for start, size in blocks:
            mine = owner * size // largest  # who owns this share in the block
            for member in range(size):
                differs = member ^ mine
                parents.append(start + (mine ^ _without_highest_bit(differs)) if differs else above)
            above = start + mine
        shares.append(Share(owner, parents, parents))
    return shares


def _without_highest_bit(number: int) -> int:
    return number & ~(1 << (number.bit_length() - 1))

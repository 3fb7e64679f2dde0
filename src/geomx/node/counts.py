"""What became of the blocks that a node sent, for whoever watches a run: see `geomx.node.slices.blocks`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from geomx.wire.flow.counts import FlowCounts, textual


@dataclass(frozen=True, slots=True)
class BlockCounts:
    """Blocks by class; those that the channel is told not to send are of class `NOT_SENT`.

    Attributes:
        given: Given to the channel.
        answered: Of these, those of which the parent has told what became of them.
        returned: Of these, those that took no part in their round: the codec took back what they carried.
    """

    given: Counter[int] = field(default_factory=Counter)
    answered: Counter[int] = field(default_factory=Counter)
    returned: Counter[int] = field(default_factory=Counter)

    def give(self, levels: Iterable[int]) -> None:
        """A payload leaves in blocks of these classes."""
        self.given.update(levels)

    def answer(self, levels: Iterable[int], returned: Iterable[int]) -> None:
        """The parent has answered it."""
        self.answered.update(levels)
        self.returned.update(returned)

    @property
    def fields(self) -> dict[str, dict[str, int]]:
        """As a record has it: its keys are text."""
        counts = {"given": self.given, "answered": self.answered, "returned": self.returned}
        return {name: textual(by_class) for name, by_class in counts.items()}


def flows_and_blocks(flows: Mapping[str, FlowCounts], blocks: BlockCounts) -> dict[str, Any]:
    """Fields of a node's record `usage`: flows by peer, and blocks; nothing where there are none."""
    told = {peer: counts.fields for peer, counts in flows.items() if counts.fields}
    return ({"flows": told} if told else {}) | ({"blocks": blocks.fields} if blocks.given else {})

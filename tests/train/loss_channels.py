"""A channel that writes down the losses that it is told, for tests: `loss_channels:heard path=FILE`."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from geomx.channels.block_classes import Alike
from geomx.channels.contract import EdgeSettings, Ranged
from geomx.channels.datagram import Datagram
from geomx.layout import Slice


class Hearing(Alike):
    """Blocks might be lost, but all are reliable. `path`: a line for each slice that goes in blocks."""

    needs_loss = True

    def __init__(self, path: Path) -> None:
        super().__init__(deadline=1.0)
        self._path = path

    def levels(
        self,
        slice_: Slice,
        turn: int,
        blocks: Sequence[Ranged],
        values: Callable[[], torch.Tensor],
        relative_loss: float | None,
    ) -> list[int]:
        with self._path.open("a") as file:
            file.write(json.dumps([slice_.index, turn, relative_loss]) + "\n")
        return [0] * len(blocks)


def heard(edge: EdgeSettings, *, path: str = "") -> Datagram:
    """The channel."""
    return Datagram(edge, Hearing(Path(path)))


def losses_in(path: Path) -> dict[int, set[float | None]]:
    """By turn, what was heard, rounded."""
    found: dict[int, set[float | None]] = {}
    for line in path.read_text().splitlines():
        _, turn, loss = json.loads(line)
        found.setdefault(turn, set()).add(None if loss is None else round(loss, 9))
    return found

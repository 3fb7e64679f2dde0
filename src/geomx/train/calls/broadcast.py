"""Turns that are no gradient turns: the first worker's values for all, and means over the workers."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Literal

import torch

from geomx.layout import Slice
from geomx.node.port import Arrived
from geomx.node.slices.slice_state import Planes
from geomx.optim.contract import SliceState
from geomx.sync.contract import cohort_of
from geomx.train.calls.collective_client import Exchange, Packed
from geomx.train.model.model_slices import Carried, absent
from geomx.train.party.intra_party import ThroughServer
from geomx.wire.messages import Of

Holder = Literal["worker", "parent", "root"]
UNDER_WAY = 8  # slices of a model that is too large for one worker


class Sharing:
    """`members`: the run's workers. The first one gives the values, if need be with the help of its party."""

    def __init__(
        self, exchange: Exchange, carried: Carried, inside: ThroughServer, members: Sequence[str]
    ) -> None:
        self._exchange = exchange
        self._carried = carried
        self._inside = inside
        self._is_first = exchange.name == members[0]
        self._helps = cohort_of(exchange.name, "party") == cohort_of(members[0], "party")
        self._members = len(members)
        self._aside: dict[int, torch.Tensor] | None = None

    def assign(
        self,
        operation: str,
        slices: Iterable[Slice],
        states: Mapping[int, SliceState] | None = None,
        kept: Mapping[int, Planes] | None = None,
    ) -> None:
        """Give every worker the first one's values of these slices; `states`: their optimizer state, too.

        `kept`: what edges near this worker held back (`kept`); all others begin anew.
        """
        under_way: deque[int] = deque()
        for piece in slices:
            if self._carried.is_cut and len(under_way) == UNDER_WAY:
                self._exchange.wait([under_way.popleft()])
            under_way.append(piece.index)
            state = (states or {}).get(piece.index, SliceState()) if self._is_first else SliceState()
            planes = {**state.planes, **(kept or {}).get(piece.index, {})}
            self._assign(operation, piece, SliceState(planes, state.scalars))
        self._exchange.next_turn()
        self._exchange.wait()

    def average(
        self, operation: str, means: Iterable[Slice], firsts: Iterable[Slice], weight: float
    ) -> dict[int, torch.Tensor]:
        """The workers' means of some slices and the first worker's values of others, flat.

        The live tensors stay as they are. A slice is absent where no worker has a weight.
        """
        self._aside = {}
        try:
            for piece in means:
                packed = (
                    self._carried.gather(piece, self._carried.tensor, weight)
                    if weight
                    else (None, absent(piece))
                )
                self._exchange.contribute(piece.index, "mean", operation, weight, packed)
            for piece in firsts:
                self._assign(operation, piece, SliceState())
            self._exchange.next_turn()
            self._exchange.wait()
            return self._aside
        finally:
            self._aside = None

    def fetch(self, slices: Iterable[Slice], with_weights: bool = False) -> dict[int, SliceState]:
        """Their optimizer state, from the global servers; no other worker takes part. `with_weights`: as `WEIGHTS`."""
        of: Of = "weights" if with_weights else "optimizer"
        return self._exchange.fetch((piece.index for piece in slices), of)

    def kept(self, holders: Iterable[Holder]) -> dict[int, Planes]:
        """What these hold back on their edges, by slice; see `geomx.node.slices.slice_state`."""
        found: dict[int, Planes] = {}
        trained = [piece.index for piece in self._carried.slices("weight")]
        for holder in holders:
            for index, state in self._exchange.fetch(trained, holder).items():
                found.setdefault(index, {}).update(state.planes)
        return {index: planes for index, planes in found.items() if planes}

    def arrived(self, piece: Slice, arrived: Arrived) -> None:
        """The answer to one slice."""
        if arrived.values is None:
            return
        if self._aside is None:
            self._carried.scatter(piece, arrived.values)
        else:
            self._aside[piece.index] = arrived.values

    def _assign(self, operation: str, piece: Slice, state: SliceState) -> None:
        packed: Packed = (None, absent(piece))
        if self._is_first or (self._helps and self._carried.is_cut):
            found = self._inside.first(piece, self._source(piece))
            packed = found if self._is_first else packed
        weight = 1.0 if self._is_first else 0.0
        self._exchange.contribute(piece.index, "assign", operation, weight, packed, state=state)

    def _source(self, piece: Slice) -> Callable[[int], torch.Tensor]:
        if piece.role == "ledger":
            return lambda _: torch.zeros(self._members, dtype=torch.int64)
        return self._carried.tensor

"""Turns that are no gradient turns: the first worker's values for all, and means over the workers."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Literal

import torch

from geomx.codecs.contract import room_of
from geomx.errors import NotFinite
from geomx.layout import Slice
from geomx.node.slices.devices import on_host
from geomx.node.slices.finite import found_in, is_watched
from geomx.node.slices.slice_state import Planes
from geomx.optim.contract import SliceState
from geomx.train.calls.collective_client import CollectiveClient
from geomx.train.model.model_slices import ModelSlices, Plain, absent
from geomx.train.party.intra_party import ThroughServer
from geomx.tree import Tree
from geomx.wire.messages import Of

Holder = tuple[Literal["worker", "server", "root"], str]  # who holds back, and of a server its name
UNDER_WAY = 8  # slices of a model that is too large for one worker


class Broadcast:
    """`tree`: the run's. Its first worker gives the values, if need be with the help of its party.

    `goes_on`: the run may go on without that worker. What all have alike is given by others as well then.
    """

    def __init__(
        self,
        client: CollectiveClient,
        model_slices: ModelSlices,
        intra_party: ThroughServer,
        tree: Tree,
        goes_on: bool = False,
    ) -> None:
        self._client = client
        self._model_slices = model_slices
        self._intra_party = intra_party
        self._is_first = client.name == tree.workers[0]
        party = tree.party_members(client.name)
        self._helps = tree.workers[0] in party
        self.goes_on = goes_on
        # Where the workers of a party reduce among themselves, the party is lost with any of them.
        self._stands_in = goes_on and (intra_party.final_in_backward or client.name == party[0])
        self._members = len(tree.workers)
        self._aside: dict[int, torch.Tensor] | None = None

    def assign(
        self,
        operation: str,
        slices: Iterable[Slice],
        states: Mapping[int, SliceState] | None = None,
        kept: Mapping[int, Planes] | None = None,
        alike: bool = False,
        keeps_masters: bool = False,
    ) -> None:
        """Give every worker the first one's values of these slices; `states`: their optimizer state, too.

        `kept`: what edges near this worker held back (`kept`); all others begin anew. `alike`: every worker has these
        values, so those of any will do. `keeps_masters`: of what the model has rounded, the servers' values stay.
        """
        gives = self._is_first or (alike and self._stands_in)
        helps = self._helps or (alike and self.goes_on)
        under_way: deque[int] = deque()
        for slice_ in slices:
            if self._model_slices.is_cut and len(under_way) == UNDER_WAY:
                self._client.wait([under_way.popleft()])
            under_way.append(slice_.index)
            state = (states or {}).get(slice_.index, SliceState()) if gives else SliceState()
            planes = {**state.planes, **(kept or {}).get(slice_.index, {})}
            has_values = not (keeps_masters and slice_.stored)
            self._assign(operation, slice_, SliceState(planes, state.scalars), gives, helps, has_values)
        self._client.next_turn()
        self._client.wait()

    def average(
        self, operation: str, means: Iterable[Slice], firsts: Iterable[Slice], weight: float
    ) -> dict[int, torch.Tensor]:
        """The workers' means of some slices and the first worker's values of others, flat.

        The live tensors stay as they are. A slice is absent where no worker has a weight.
        """
        self._aside = {}
        try:
            for slice_ in means:
                packed = self._model_slices.gather(slice_, self._model_slices.exact, weight).packed
                self._client.contribute(slice_.index, "mean", operation, weight, packed)
            for slice_ in firsts:
                self._assign(operation, slice_, SliceState(), self._is_first, self._helps)
            self._client.next_turn()
            self._client.wait()
            return self._aside
        finally:
            self._aside = None

    def fetch(self, slices: Iterable[Slice], with_weights: bool = False) -> dict[int, SliceState]:
        """Their optimizer state, from the global servers; no other worker takes part. `with_weights`: as `WEIGHTS`."""
        of: Of = "weights" if with_weights else "optimizer"
        return self._client.fetch((slice_.index for slice_ in slices), of)

    def kept(self, holders: Iterable[Holder]) -> dict[int, Planes]:
        """What these hold back on their edges, by slice; see `geomx.node.slices.slice_state`."""
        found: dict[int, Planes] = {}
        trained = [slice_.index for slice_ in self._model_slices.slices("weight")]
        for holder in holders:
            for index, state in self._client.fetch(trained, *holder).items():
                found.setdefault(index, {}).update(state.planes)
        return {index: planes for index, planes in found.items() if planes}

    def arrived(self, slice_: Slice, values: torch.Tensor | None) -> None:
        """The answer to one slice; None: nobody had anything."""
        if values is None:
            return
        if self._aside is None or self._client.is_moving:
            self._model_slices.scatter(slice_, values)
        else:
            self._aside[slice_.index] = on_host(values)

    def _assign(
        self,
        operation: str,
        slice_: Slice,
        state: SliceState,
        gives: bool,
        helps: bool,
        has_values: bool = True,
    ) -> None:
        packed: Plain = (None, absent(slice_))
        if not has_values:
            pass
        elif gives or (helps and self._model_slices.is_cut):
            found = self._intra_party.first(slice_, self._source(slice_))
            packed = found if gives else packed
        self._check_finite(operation, slice_, packed[0])
        weight = 1.0 if gives else 0.0
        self._client.contribute(slice_.index, "assign", operation, weight, packed, state=state)

    def _check_finite(self, operation: str, slice_: Slice, values: torch.Tensor | None) -> None:
        """Weights that are not finite would be everybody's; the first gradient would be blamed, whosever it is."""
        if values is None or not is_watched(slice_):
            return
        if found := found_in(self._model_slices.layout, slice_, values, room_of(slice_)):
            what = room_of(slice_).beyond(found.value)
            raise NotFinite(
                f"{self._client.name}: {found.names} holds {what} in {operation}: begin with finite weights"
            )

    def _source(self, slice_: Slice) -> Callable[[int], torch.Tensor | None]:
        if slice_.role == "call":
            return lambda _: None
        if slice_.role == "ledger":
            return lambda _: torch.zeros(self._members, dtype=torch.int64)
        return self._model_slices.exact

"""What a root gives for a cut, and takes from one: its contract with `geomx.node.durable.cut`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import torch

from geomx.layout import Slice
from geomx.node.durable.records import Served, SliceCut
from geomx.optim.contract import SliceState
from geomx.rounds.round import Round
from geomx.wire.messages import Hyper, Scale
from geomx.wire.request_messages import Request
from geomx.wire.roster_messages import Roster


class Packed(NamedTuple):
    """A slice of a cut, and its pieces of the payload."""

    head: SliceCut
    pieces: list[torch.Tensor]


class RootSlice(NamedTuple):
    """What the root has of one slice. `state`: of the optimizer; `compensation`: by name, as `Compensation.export`.

    `version`, `seen`: how often it was updated, and what the cohorts have seen of that.
    """

    weights: torch.Tensor | None
    state: SliceState
    compensation: Mapping[str, torch.Tensor]
    version: int
    seen: dict[str, int]


class Stateful(Protocol):
    """The root of a server."""

    @property
    def above(self) -> Deciding: ...
    def told(self) -> list[Hyper | Scale]: ...
    def waiting(self) -> list[tuple[int, Round]]: ...
    def take(
        self, slice_: Slice, pack: Callable[[RootSlice], Packed], then: Callable[[Packed], None]
    ) -> None: ...
    def put_back(self, slice_: Slice, kept: RootSlice) -> None: ...


class Answering(Protocol):
    """What answers requests at the shard; see `geomx.node.requests`."""

    def again(self, request: Request, payload: Any) -> None: ...
    def state(self) -> tuple[Served, list[torch.Tensor]]: ...
    def put_back(self, served: Served, payload: torch.Tensor) -> None: ...


class Deciding(Protocol):
    """What the shard knows of rosters; see `geomx.node.members.top`."""

    @property
    def asked(self) -> Answering: ...

    @property
    def rosters(self) -> tuple[Roster, ...]: ...
    @property
    def settled(self) -> dict[str, int]: ...
    def put_back(self, rosters: Sequence[Roster], settled: Mapping[str, int]) -> None: ...

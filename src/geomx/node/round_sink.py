"""What a server does with the rounds that it has gathered: the contract of `Aggregator` and `Root`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from geomx.layout import Layout, Slice
from geomx.node.durable.records import Record
from geomx.node.durable.state import Stateful
from geomx.node.peers.beside import Companion
from geomx.node.peers.peer import Handler
from geomx.rounds.round import Round
from geomx.wire.messages import Calling, Fetch, Hyperparameters, Sampled, State, Stepped, Value
from geomx.wire.request_messages import Request
from geomx.wire.roster_messages import Asks, Complete, Lost


class Above(Handler, Protocol):
    """Whoever is above a server, or beside it: an `Uplink`, or at the top of the tree the `Root` itself."""

    def hyper(self, digest: bytes, values: Hyperparameters) -> None:
        """Hyper-parameters that pushes will name."""

    def for_first_shard(self, message: Stepped | Sampled | Lost | Asks) -> None:
        """Somebody below tells the first shard something."""

    def at_barrier(self, message: Calling) -> None:
        """Everybody below has come to a call of the whole run."""

    def leave(self, turns: dict[str, int], origins: tuple[str, ...], early: bool = False) -> None:
        """Members take no part after these turns of their cohorts. `early`: see `Leave`."""

    def ask(self, request: Request, payload: Any) -> None:
        """A worker below asks a shard something."""

    def others_take_part(self) -> None:
        """Others of those below than before."""

    def held_up(self) -> list[str]:
        """Who waits here for whom, of those who have asked something."""

    @property
    def quiet(self) -> bool:
        """Whether the node could end without taking anything with it that others need."""


class RoundSink(Protocol):
    """What a server does with what it has gathered.

    `is_top`: nobody is above; when all below is still, nothing will ever come.
    """

    is_top: bool

    @property
    def state(self) -> Stateful | None:
        """Of a shard: what it has, so that whoever is started in its place can have it."""

    @property
    def companion(self) -> Companion | None:
        """What has to do with nodes beside the server, if there is something."""

    @property
    def above(self) -> Above:
        """Whom the server tells, and who handles messages that do not come from children."""

    def holds(self, layout: Layout) -> list[Slice]:
        """The slices that this server gathers."""

    def attach(self, layout: Layout, settings: dict[str, Value]) -> None:
        """The model is known."""

    def closed(self, slice_: Slice, round_: Round) -> None:
        """A round is complete; ends in `Server.answer`."""

    def agrees(self, turn: Complete) -> bool:
        """Whether a turn that counts as a whole, and is complete here, may close at once."""

    def begin_anew(self) -> None:
        """Nobody above knows this server any more."""

    def forget(self) -> None:
        """This server was cut off, and the run went on."""

    def renewed(self, name: str) -> None:
        """A node beside this one is there for the first time, or was started again."""

    def replay(self, record: Record) -> None:
        """This stands in the log of who was here before."""

    def hand_over(self) -> None:
        """This server leaves, and others go on: give them what it has not shared."""

    def fetch(self, fetch: Fetch, reply: Callable[[State, Any], None]) -> None:
        """A child wants what belongs in a checkpoint."""

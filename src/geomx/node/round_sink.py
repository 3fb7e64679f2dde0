"""What a server does with what it has gathered: the contract of `Relay` and `Root`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from geomx.layout import Layout, Slice
from geomx.node.peers.peer import Peer
from geomx.rounds.round import Round
from geomx.wire.messages import Calling, Fetch, Hyperparameters, Message, State, Stepped, Value


class RoundSink(Protocol):
    """What a server does with what it has gathered."""

    def holds(self, layout: Layout) -> list[Slice]:
        """The slices that this server gathers."""

    def attach(self, layout: Layout, settings: dict[str, Value]) -> None:
        """The model is known."""

    def hyper(self, digest: bytes, values: Hyperparameters) -> None:
        """Hyper-parameters that pushes will name."""

    def closed(self, slice_: Slice, round_: Round) -> None:
        """A round is complete; ends in `Server.answer`."""

    def fetch(self, fetch: Fetch, reply: Callable[[State, Any], None]) -> None:
        """A child wants what belongs in a checkpoint."""

    def stepped(self, message: Stepped) -> None:
        """A worker below has taken a step on its own."""

    def at_barrier(self, message: Calling) -> None:
        """Everybody below has come to a call of the whole run."""

    def left(self, turns: dict[str, int], origins: tuple[str, ...]) -> None:
        """Members take no part after these turns of their cohorts."""

    def message(self, peer: Peer, message: Message, payload: Any) -> None:
        """From a peer that is no child: a parent, or a shard beside us."""

    def check_payload(self, peer: Peer, message: Message) -> None:
        """Whether such a message may carry that payload."""

    @property
    def quiet(self) -> bool:
        """Whether the node could end without taking anything with it that others need."""

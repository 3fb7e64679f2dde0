"""How a training loop talks with its worker node: the `Port`, what it says, and what it hears.

Calls go through `Port.call(method, ...)`; the methods are those of `geomx.node.worker.Worker` that are named here:

- `attach(layout, settings)`: the model is known. Answered by `Ready`.
- `contribute(contribution)`: push one slice in one turn. Answered by `Arrived`.
- `fetch(slice, of, server)`: what belongs in a checkpoint, see `Fetch`; of "worker": of its own edges. Answered by
  `Fetched`.
- `ask(shard, number, what, payload)`: a request, see `geomx.node.requests`. Answered by `Responded`.
- `reached(message)`: how far the script is, before the contributions of a step; see `Reached`.
- `sampled(digests)`: of the samples that the script begins with, see `geomx.node.same_data`.
- `stepped(turn, steps, seconds)`: it has taken a step of its own towards a round. Answered by `Allowed`.
- `paced(steps)`: how many of the policy's steps it has taken, where it takes some by itself.
- `waits(does)`: the loop waits in a call of geomx, for a while already; or no longer.
- `leave(turns, early)`: this worker takes no part in turns after the last of each of its cohorts. Answered by `Left`.
  `early`: it was asked to leave; before that, it contributes what it has not shared, and `drains`.
- `fail(reason, refusal)`: the user's script raised; the run is told, and ends. See `geomx.errors.refusal_of`.
- `give_up(reason)`: the same, where the run goes on without this worker.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from geomx.errors import GeomxError
from geomx.node.slices.devices import Queued
from geomx.optim.contract import SliceState
from geomx.tree import EVERYONE
from geomx.wire.messages import UNREAD, Hyperparameters, Kind, Push, Reached, Reading, Update
from geomx.wire.roster_messages import AT_FIRST, Roster, Standing


class Port(Protocol):
    """How a training loop reaches its worker node, whichever driver runs it."""

    def call(self, method: str, *arguments: Any) -> None:
        """Hand a `Called` event to the node; returns at once."""

    def wait(self, ready: Callable[[], bool], whom: Callable[[], str], *, on_run: bool = True) -> None:
        """Return as soon as `ready()`; items that came meanwhile have been given to the listener.

        `whom()` says for whom and for what, for the log when it takes long. `on_run`: what is waited for comes over the
        run's own edges, which the node can see. Raises the node's error if it has stopped.
        """

    def listen(self, listener: Callable[[Any], None]) -> None:
        """Give every `Notify` item to `listener`, on the training thread, within `wait` or `poll`."""

    def poll(self) -> None:
        """Give the items that have come to the listener; never blocks."""

    def give(self, item: Any) -> None:
        """Add an item for the listener, from any thread; whoever waits looks again."""

    def outcome(self, within_s: float) -> GeomxError | None:
        """The error with which the node ends, if it does within so many seconds."""

    def end(self) -> None:
        """Behind `Left`: return when the node's last word has gone out, for the process may end now."""

    def note(self, name: str, level: str = "debug", /, **fields: Any) -> None:
        """Something worth observing, from the training thread."""


@dataclass(frozen=True, slots=True)
class Contribution:
    """One slice's share of one turn.

    `push`: its header, to which the node adds whose it is and the digest of `hyper`. `values`: Σ w·x (flat, the slice's
    dtype and elements; `Queued` of a contribution to a step), or None where no part has a value; they belong to the
    node from now on. `state`: of `assign` alone, with planes of all owners (see `geomx.node.slices.slice_state`).
    """

    push: Push
    values: torch.Tensor | Queued | None
    hyper: Hyperparameters | None = None
    state: SliceState | None = None

    @classmethod
    def of(
        cls,
        turn: int,
        index: int,
        kind: Kind,
        operation: str,
        weight: float,
        values: torch.Tensor | Queued | None,
        present: bytes | None = None,
        hyper: Hyperparameters | None = None,
        *,
        reading: Reading = UNREAD,
        cohort: str = EVERYONE,
        step: int = -1,
        state: SliceState | None = None,
        relative_loss: float | None = None,
        together: bytes = b"",
        awaits: bool = False,
        drains: bool = False,
    ) -> Contribution:
        """Of slice `index`; the rest is as in `Push`, and as above."""
        push = Push(
            turn,
            index,
            kind,
            operation,
            weight,
            {},
            present,
            b"",
            reading,
            cohort,
            step,
            relative_loss=relative_loss,
            together=together,
            awaits=awaits,
            drains=drains,
        )
        return cls(push, values, hyper, state)


@dataclass(frozen=True, slots=True)
class Ready:
    """The run has taken the model. Where it had begun, all is as in `Attached`, and `Arrived`s follow.

    It may come again, to a worker that was cut off. `begins`: its own; empty: it has taken part all along.
    """

    by_slice: dict[int, tuple[int, int]] = field(default_factory=dict)
    standings: dict[str, Standing] = field(default_factory=dict)
    reached: tuple[Reached, ...] = ()
    begins: dict[str, int] = field(default_factory=dict)
    roster: Roster = AT_FIRST


@dataclass(frozen=True, slots=True)
class Away:
    """Some workers take no part from now on, and others do."""

    roster: Roster


@dataclass(frozen=True, slots=True)
class Departs:
    """Workers (a bitmap, see `Roster`) have left early, behind this turn of everybody's."""

    workers: bytes
    last: int


@dataclass(frozen=True, slots=True)
class Asked:
    """The server above is to leave: so is this worker."""


@dataclass(frozen=True, slots=True)
class Arrived:
    """A slice's round has closed. `values`: the new weights, mean gradient or mean (None: nothing changed)."""

    update: Update
    values: torch.Tensor | None


@dataclass(frozen=True, slots=True)
class Allowed:
    """So many steps may be taken before this worker contributes to round `turn`."""

    turn: int
    steps: int


@dataclass(frozen=True, slots=True)
class Fetched:
    """What belongs in a checkpoint, as it was when whoever was asked answered."""

    slice: int
    state: SliceState


@dataclass(frozen=True, slots=True)
class Left:
    """The tree above knows that this worker has left; nothing more will come."""

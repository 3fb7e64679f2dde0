"""Local steps: the worker's own optimizer takes them, and weights are averaged when the policy says so.

    nobody    nothing leaves
    party     w ← Σ n_j w_j / Σ n_j over the workers j of the party; the local server answers by itself
    run       Δ = w_start − w goes up as a gradient; the optimizer at the root makes of its mean what all go on from

w_start: the weights that all had behind the last `run`. n_j: how much worker j counts, over the steps since the last
mean of the same reach (in samples, or else as `sync.weight` says). Optimizers' states stay with their workers. A worker
whose data has ended goes on without steps until the run has averaged behind everybody's last.
"""

from __future__ import annotations

from typing import Any

import torch

from geomx.errors import Unsupported
from geomx.layout import Slice
from geomx.node.local import Arrived
from geomx.protocol.membership import EVERYONE
from geomx.sync.base import Local, cohort_of
from geomx.torch.exchange import Exchange, Packed
from geomx.torch.settings import Settings
from geomx.torch.tensors import Carried, absent
from geomx.torch.turns import STEP, Helpers, Turns


class LocalTurns(Turns):
    """See the module's text. `optimizer`: the user's; `alone`: its party has no other worker."""

    local = True

    def __init__(
        self,
        exchange: Exchange,
        carried: Carried,
        settings: Settings,
        member: int,
        helpers: Helpers,
        optimizer: torch.optim.Optimizer,
        alone: bool,
    ) -> None:
        super().__init__(exchange, carried, settings, member, helpers)
        self._optimizer = optimizer
        self._alone = alone
        self._party = cohort_of(exchange.name, "party")
        self._planned = 0  # steps of the policy's plan that lie behind us, idle ones too
        self._starts: dict[int, torch.Tensor] = {}  # by slice: w_start, flat
        self._weights = {"party": 0.0, "run": 0.0}

    @property
    def cohort(self) -> str:
        return EVERYONE

    def step(self) -> None:
        self._check_accumulation()
        with self._timeline.span("step", turn=self.turn):
            self._guard.check()
            self._optimizer.step()
            self._count()
            self.steps += 1
            self._average(self._next_plan())

    def _idle(self) -> None:
        plan = self._next_plan()
        while plan.average == "nobody":
            plan = self._next_plan()
        self._average(plan)

    def _next_plan(self) -> Local:
        plan = self._settings.policy.step(self._planned)
        self._planned += 1
        if not isinstance(plan, Local):
            name = type(self._settings.policy).__name__
            raise Unsupported(f"the sync policy {name} has local steps, and plans {plan}")
        return plan

    def _count(self) -> None:
        seen = self._samples.seen
        weight = self._samples.take()
        for reach in self._weights:
            adds = self._settings.weight == "samples"
            self._weights[reach] = weight + (self._weights[reach] if adds else 0.0)
        self._exchange.port.note("step", turn=self.turn, samples=self._samples.seen - seen)

    def _average(self, plan: Local) -> None:
        if plan.average == "party" and not self._alone:
            self._contribute("party", self._party, {})
        elif plan.average == "run":
            self._contribute("run", EVERYONE, plan.outer)

    def _contribute(self, reach: str, cohort: str, outer: dict[str, Any]) -> None:
        """Take part in a mean, and go on from it."""
        weight, self._weights["party"] = self._weights[reach], 0.0
        self._weights[reach] = 0.0
        for piece in self._trained:
            self._exchange.contribute(
                piece.index,
                "gradient" if cohort == EVERYONE else "mean",
                STEP,
                weight,
                self._share(piece, weight, cohort),
                cohort=cohort,
                hyper=outer or None,
                ended=self.ended,
            )
        if cohort == EVERYONE:
            self._count_in_ledger(self.ended)
        self._exchange.next_turn(cohort)
        self._exchange.wait()

    def _share(self, piece: Slice, weight: float, cohort: str) -> Packed:
        """Σ n · x: of the weights, or of how far they have moved."""
        if not weight:
            return None, absent(piece)
        values, present = self._carried.gather(piece, self._carried.tensor)
        assert values is not None  # weights are always there
        moved = self._starts[piece.index] - values if cohort == EVERYONE else values
        return moved.mul_(weight), present

    def _arrived(self, piece: Slice, arrived: Arrived) -> None:
        if arrived.cohort == EVERYONE:
            self.all_ended = arrived.ended
            if arrived.values is not None:
                self._starts[piece.index] = arrived.values
            self._carried.scatter(piece, self._starts[piece.index])
        elif arrived.values is not None:
            self._carried.scatter(piece, arrived.values)

    def _receive(self, arrived: Arrived) -> None:
        super()._receive(arrived)
        piece = self._carried.layout.slices[arrived.slice]
        if arrived.kind == "assign" and piece.role == "weight" and arrived.values is not None:
            self._starts[piece.index] = arrived.values
            self._weights = {"party": 0.0, "run": 0.0}

"""How many steps workers may take in a round: the first shard asks the policy, where that says so."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

from geomx.errors import ProtocolError
from geomx.sync.contract import StepController
from geomx.tree import EVERYONE
from geomx.wire.messages import Allowance, Push, Stepped, Update


class StepControl:
    """One server's part in it. `step_controller`: the policy on the first shard, None elsewhere.

    `tell`: sends a worker its allowance.
    """

    def __init__(self, step_controller: StepController | None, tell: Callable[[Allowance], None]) -> None:
        self._step_controller = step_controller
        self._tell = tell

    def stepped(self, message: Stepped, now: float) -> bool:
        """A worker has taken a step; whether that was for this server to know. Raises `ProtocolError`."""
        if message.steps < 1 or not 0.0 <= message.seconds < math.inf:
            raise ProtocolError(f"{message.worker} told step {message.steps} in {message.seconds} s")
        if self._step_controller is None:
            return False
        worker, turn = message.worker, message.turn
        self._allow(turn, self._step_controller.stepped(worker, turn, message.steps, message.seconds, now))
        return True

    def contributed(self, push: Push, now: float) -> None:
        """Something of a round has come."""
        if self._step_controller is not None and push.kind == "gradient":
            self._step_controller.contributed(push.origins, push.turn, now)

    def closed(self, update: Update, now: float) -> None:
        """A slice has been answered; in a turn of steps or of another call, behind which steps go on."""
        if self._step_controller is not None and update.cohort == EVERYONE:
            self._allow(update.turn + 1, self._step_controller.closed(update.turn, now))

    def left(self, workers: Iterable[str]) -> None:
        """These workers take no part in rounds to come."""
        if self._step_controller is not None:
            self._step_controller.left(workers)

    def _allow(self, turn: int, allowed: dict[str, int]) -> None:
        for worker, steps in allowed.items():
            self._tell(Allowance(worker, turn, steps))

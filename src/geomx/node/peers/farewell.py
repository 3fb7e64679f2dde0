"""The last thing that a node does which ends because of another: it waits for those who are still to come.

Else they would find nobody, wait for `limits.start_s`, and name this node for what another has done. They are told as
soon as they have been let in, for `limits.stop_s`. Where the fault is the node's own, being named is all that is due.
"""

from __future__ import annotations

from collections.abc import Iterable

from geomx.errors import GeomxError
from geomx.node.contract import Called, Closed, Event, Fired, Opened, Received
from geomx.wire.messages import Failure


class Farewell:
    """Of node `me`, which ended with `error`. `failure`: what is told; `late`: to whom, who have not come yet.

    `until`: when it is over, in seconds.
    """

    def __init__(
        self, me: str, error: GeomxError, failure: Failure, late: Iterable[str], until: float
    ) -> None:
        self.error = error
        self._failure = failure
        self._late = set(late) - {failure.node} if failure.node != me else set[str]()
        self._until = until

    def concerns(self, event: Event) -> bool:
        """Whether a node that ends still takes part in it: greetings, time, and being asked to end at once."""
        if isinstance(event, Called):
            return event.method == "fail"
        return isinstance(event, Opened | Closed | Received | Fired)

    def told(self, name: str) -> Failure:
        """What one that has come is to hear."""
        self._late.discard(name)
        return self._failure

    def is_over(self, now: float) -> bool:
        """Whether nobody is left to be told, or there is no more time for it."""
        return not self._late or now >= self._until

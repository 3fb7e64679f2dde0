"""What the tables of a server need of the node around it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

import torch


class Host(Protocol):
    """The node around it."""

    def run(
        self, index: int, function: Callable[[], Any], then: Callable[[Any], None], cost_bytes: int
    ) -> None:
        """Compute in a job behind all those of table `index` that came before; `then(result)` continues."""

    def respond(self, worker: str, number: int, what: bytes, payload: torch.Tensor | None) -> None:
        """Answer a request."""

    def present(self) -> Iterable[str]:
        """The workers that take part, in the order of the run."""

    def keeps_log(self) -> bool:
        """Whether the shard keeps one."""

    def announce(self, what: bytes) -> None:
        """Of the first shard: tell all others, and row servers; see `TableShard.told`."""

    def holders(self, names: Sequence[str]) -> None:
        """These servers hold rows from now on."""

"""A worker's requests to the shards and row servers, and what they have answered; see `geomx.node.requests`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence

import torch

from geomx.node.requests import Responded
from geomx.tables.keys import MOST_LISTS
from geomx.tables.requests import Asked, Done, Holders, Pull, read_answer, unpacked, written
from geomx.tables.ring import Ring
from geomx.tables.sandblaster.vectors import Answer
from geomx.train.calls.collective_client import CollectiveClient

# Requests to one place, pulls and others: what is asked again names lists that it still has.
MOST_OPEN, MORE_OPEN = MOST_LISTS // 2, MOST_LISTS // 4
Token = tuple[int, int]  # place, number


class Requests:
    """See the module's text.

    Attributes:
        shards: The global servers, by name.
        holders: Who holds rows of tables, as far as this worker knows; `ring`: which of them has which.
        goes_on: Whether the run does, without those who are lost.
    """

    def __init__(
        self, client: CollectiveClient, shards: Sequence[str], names: Sequence[str], goes_on: bool
    ) -> None:
        """`names`: of whoever may hold rows, by place; the first are the shards."""
        self._client, self.shards, self._names, self.goes_on = client, tuple(shards), tuple(names), goes_on
        self.holders, self.ring = Holders(0, tuple(range(len(shards)))), Ring(shards)
        self._numbers = Counter[int]()
        self._open = Counter[int]()  # requests that are not answered
        self._answers: dict[Token, tuple[Done | Holders | Answer, dict[str, torch.Tensor]]] = {}
        self.sent_bytes = self.made = 0
        self.evaluations = self.minimizations = 0  # so far, see `geomx.train.calls.minimizing`
        self.is_torn = False  # whether an exception has left one in the middle
        self.looks: list[
            Callable[[], None]
        ] = []  # of each table, when something is answered and others hold rows
        client.responded = self._responded

    def ask(self, place: int, asked: Asked, payload: torch.Tensor | None = None) -> Token:
        """Ask whoever has that place; returns what to wait for."""
        # Pushes never wait for pulls, which may wait for others: some server may need what another has taken.
        most = MOST_OPEN if isinstance(asked, Pull) else MOST_OPEN + MORE_OPEN
        if self._open[place] >= most:
            self._client.port.wait(
                lambda: self._open[place] < most, lambda: f"{self._names[place]} to answer about tables"
            )
        self._open[place] += 1
        self._numbers[place] += 1
        self.made += 1
        what = written(asked)
        self.sent_bytes += len(what) + (0 if payload is None else payload.nbytes)
        self._client.ask(place, self._numbers[place], what, payload)
        return place, self._numbers[place]

    def wait(self, tokens: Iterable[Token], whom: str) -> list[tuple[Done | None, dict[str, torch.Tensor]]]:
        """The answers to these, in order; None: others hold rows by now, and it is to be asked again.

        `whom`: it waits for.
        """
        wanted = list(tokens)
        self.until(lambda: self.has(wanted), whom)
        return self.taken(wanted)

    def until(self, ready: Callable[[], bool], whom: str) -> None:
        """Return when it is so. Meanwhile, what was sent back to other tables is asked anew, too."""
        self._client.port.wait(ready, lambda: whom)

    def taken(self, tokens: Iterable[Token]) -> list[tuple[Done | None, dict[str, torch.Tensor]]]:
        """The same as `wait`, of what is answered."""
        found = [self._answers.pop(token) for token in tokens]
        return [(answer if isinstance(answer, Done) else None, arrays) for answer, arrays in found]

    def are_sent_back(self, tokens: Iterable[Token]) -> bool:
        """Whether one of these, which are answered, is to be asked again."""
        return any(isinstance(self._answers[token][0], Holders) for token in tokens)

    @property
    def servers(self) -> str:
        """Whoever holds rows, by name."""
        return ", ".join(self._names[place] for place in self.holders.places)

    def has(self, tokens: Iterable[Token]) -> bool:
        """Whether all of these are answered."""
        return self._answers.keys() >= set(tokens)

    def wait_for_any(self, groups: Sequence[Sequence[Token]], whom: str) -> None:
        """Return when all of one of these groups are answered."""
        self.until(lambda: any(map(self.has, groups)), whom)

    def numbers(self, token: Token) -> tuple[tuple[float, ...], torch.Tensor | None]:
        """The answer to a request about vectors, which has come."""
        answer, arrays = self._answers.pop(token)
        return answer.numbers if isinstance(answer, Answer) else (), arrays.get("values")

    def _responded(self, item: Responded) -> None:
        self._open[item.shard] -= 1
        answer = read_answer(item.what)
        self._answers[item.shard, item.number] = answer, unpacked(item.payload)
        if isinstance(answer, Holders) and answer.epoch > self.holders.epoch:
            self.holders = answer
            self.ring = Ring([self._names[place] for place in answer.places])
        if self.holders.epoch:
            for look in self.looks:
                look()

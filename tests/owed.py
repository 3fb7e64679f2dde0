"""What nodes owe a run, written down beside the code that is tested: what their codecs were given and have not sent.

A node that leaves in order hands over exactly that, and what those below it have handed over and nobody has added yet.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

from geomx.codecs.dense import Dense
from geomx.codecs.error_feedback import Lossy
from geomx.layout import Slice
from geomx.node.slices.handed_over import Giver, HandedOver
from geomx.node.worker import Worker
from geomx.rounds.round import Round
from geomx.wire.messages import Push

Key = tuple[str, int]  # node and slice


@dataclass
class Owed:
    """Of the nodes of one run; see the module's text."""

    owed: dict[Key, torch.Tensor] = field(default_factory=dict)
    handed: dict[Key, torch.Tensor] = field(default_factory=dict)  # as it has arrived
    # By slice, cohort and turn: with whose contributions something was added, wherever that was; its weight and values.
    joined: dict[Any, list[tuple[frozenset[str], float, torch.Tensor]]] = field(default_factory=dict)
    _codecs: dict[int, str] = field(default_factory=dict)  # whose upward codec, by id
    _servers: dict[int, str] = field(default_factory=dict)  # at whom it lies until it is added, by id
    _nodes: list[Any] = field(default_factory=list)  # all that there were, so that no id comes twice

    def begin(self, node: Any) -> None:
        """A process begins: it owes nothing yet."""
        for of in (self.owed, self.handed):
            for key in [key for key in of if key[0] == node.name]:
                del of[key]
        self._nodes.append(node)
        uplink = node._uplink if isinstance(node, Worker) else node.sink.above
        up = getattr(uplink, "_up", None)  # a shard has none
        for codec in filter(None, (up, getattr(up, "large", None), getattr(up, "tiny", None))):
            self._codecs[id(codec)] = node.name
        if up is not None and not isinstance(node, Worker):
            self._servers[id(node.handed_over)] = node.name

    def owes(self, name: str, index: int, values: torch.Tensor | None) -> None:
        """So much more."""
        if values is not None:
            before = self.owed.get((name, index))
            self.owed[name, index] = values.double() if before is None else before + values.double()

    def watch(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Look on from now on."""
        encode, restore, take, join = Lossy.encode, Lossy.restore, HandedOver.take, HandedOver.join

        def encoding(
            codec: Lossy, slice_: Slice, turn: int, values: torch.Tensor, weight: float = 1.0
        ) -> Any:
            given, payload = values.double().clone(), encode(codec, slice_, turn, values, weight)
            if (name := self._codecs.get(id(codec))) is not None:
                self.owes(name, slice_.index, given - codec.decode(slice_, payload).double())
            return payload

        def restoring(codec: Lossy, slice_: Slice, state: Any) -> None:
            # Whoever is back begins with other weights, and owes nothing of before.
            restore(codec, slice_, state)
            self.owed.pop((self._codecs.get(id(codec), ""), slice_.index), None)

        def taking(at: HandedOver, giver: Giver, place: int, slice_: Slice, push: Push, payload: Any) -> Any:
            handed = take(at, giver, place, slice_, push, payload)
            self.handed[giver[0], slice_.index] = values = _dense(slice_, payload)
            if (name := self._servers.get(id(at))) is not None:
                self.owes(name, slice_.index, values)
            return handed

        def joining(at: HandedOver, slice_: Slice, round_: Round) -> None:
            join(at, slice_, round_)
            of_turn = self.joined.setdefault((slice_.index, round_.cohort, round_.turn), [])
            for _, push, payload in round_.handed_over:
                values = _dense(slice_, payload)
                of_turn.append((frozenset(round_.origins), push.weight, values))
                if (name := self._servers.get(id(at))) is not None:
                    self.owes(name, slice_.index, -values)

        monkeypatch.setattr(Lossy, "encode", encoding)
        monkeypatch.setattr(Lossy, "restore", restoring)
        monkeypatch.setattr(HandedOver, "take", taking)
        monkeypatch.setattr(HandedOver, "join", joining)

    def added(self, slice_: Slice, round_: Round) -> list[tuple[float, torch.Tensor]]:
        """What is in a round at a shard of those who have left, wherever below it was added."""
        of_turn = self.joined.get((slice_.index, round_.cohort, round_.turn), ())
        return [(weight, values) for among, weight, values in of_turn if among <= round_.origins.keys()]

    def faults_of(self, name: str) -> list[str]:
        """What a node has handed over that it did not owe, and the reverse."""
        found = []
        for (node, index), owed in self.owed.items():
            handed = self.handed.get((name, index), torch.zeros_like(owed))
            if node == name and not torch.allclose(handed, owed, rtol=1e-9, atol=1e-12):
                found.append(
                    f"{name} has given up {handed.abs().sum()} of slice {index}, and owed {owed.abs().sum()}"
                )
        return found


def _dense(slice_: Slice, payload: Any) -> torch.Tensor:
    return Dense().decode(slice_, payload).double().clone()

"""A delta says to which version of the weights it adds, and is taken in behind that."""

from __future__ import annotations

from typing import Any

import torch
from driven import LAYOUT, Driven, worker
from trees import topology_of

from geomx.codecs.pack.noise import RngKey
from geomx.codecs.spec import make_codec
from geomx.node.port import Arrived
from geomx.node.slices.update_stream import UpdateDecoder
from geomx.node.topology import Edge
from geomx.wire.messages import Reading, Update

SLICE = LAYOUT.slices[0]


def begun() -> Driven:
    node = worker(topology_of([1, 1], wan=Edge(codec_down="int8")))
    node.say(1, Update(0, 0, "assign", 0.0, None, Reading(), "", SLICE.size_bytes), values(1.0))
    return node


def values(number: float) -> torch.Tensor:
    return torch.full((SLICE.elements,), number).view(torch.uint8)


def delta(turn: int, base: int) -> tuple[Update, torch.Tensor]:
    payload = make_codec("int8", RngKey()).encode(SLICE, turn, torch.full((SLICE.elements,), 0.5))
    return Update(turn, 0, "gradient", 2.0, None, Reading(), "", payload.nbytes, base=base), payload


def arrived(node: Driven) -> list[tuple[int, Any]]:
    items = [item for item in node.notified() if isinstance(item, Arrived)]
    return [(item.update.turn, round(item.values[0].item(), 2)) for item in items]


def test_a_delta_waits_for_the_one_that_it_has_overtaken() -> None:
    node = begun()
    node.say(1, *delta(2, 1))
    assert arrived(node) == [(0, 1.0)]
    node.say(1, *delta(1, 0))
    assert arrived(node) == [(0, 1.0), (1, 1.5), (2, 2.0)]


def test_the_values_that_a_joiner_is_sent_have_a_version_as_well() -> None:
    """The last turn has changed nothing of this slice: the next delta adds to what an earlier one has made."""
    node = begun()
    node.say(1, Update(7, 0, "assign", 0.0, None, Reading(), "", SLICE.size_bytes, base=5), values(3.0))
    node.say(1, *delta(8, 5))
    assert arrived(node)[-1] == (8, 3.5)


def test_deltas_to_weights_that_never_come_are_an_error() -> None:
    node = begun()
    for turn in range(10, 15):
        node.say(1, *delta(turn, turn - 1))
    assert "deltas came to versions [9, 10, 11, 12, 13], and this end has version 0" in str(node.error)


def test_weights_that_a_later_update_has_overtaken_change_nothing() -> None:
    decoder = UpdateDecoder(make_codec("dense", RngKey()))
    decoder.begin(aggregates=False)
    update = Update(5, 0, "gradient", 1.0, None, Reading(), "", 4)
    later = Update(6, 0, "gradient", 1.0, None, Reading(), "", 4)
    assert decoder.in_order(SLICE, later, "later") == [(later, "later")]
    ((told, payload),) = decoder.in_order(SLICE, update, "late")
    assert (told.turn, payload) == (5, None)

"""What servers do with sums that are not finite, and with members that send what no worker of ours would."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from driven import LAYOUT, Driven, global_server, local_server, push
from trees import topology_of

from geomx.errors import NotFinite
from geomx.node.slices.finite import listed
from geomx.wire.messages import Push, Update

SLICE = LAYOUT.slices[0]


def payload(value: float) -> torch.Tensor:
    values = torch.ones(SLICE.elements)
    values[5] = value
    return values.view(torch.uint8)


def both(server: Driven, one: float, other: float, **more: Any) -> None:
    server.say(1, push("A/0", **more), payload(one))
    server.say(2, push("A/1", **more), payload(other))


@pytest.mark.parametrize(("value", "word"), [(math.nan, "NaN"), (math.inf, "Inf"), (-math.inf, "-Inf")])
def test_a_member_that_sends_what_is_no_number_is_named(value: float, word: str) -> None:
    server = local_server()
    both(server, 1.0, value, step=4, turn=5)
    assert isinstance(server.error, NotFinite)
    name = LAYOUT.tensors[SLICE.parts[0].tensor].name
    assert str(server.error).startswith(
        f"A: what A/1 sent for {name} holds {word} in step 5 (turn 5). Check the loss"
    )


def test_a_sum_that_is_skipped_goes_up_without_values_and_weight() -> None:
    server = local_server(topology_of([2, 1], skips=True))
    both(server, 3e38, 3e38)
    (sent,) = [message for message in server.written(9) if isinstance(message, Push)]
    assert (sent.weight, sent.size, set(sent.origins)) == (0.0, 0, {"A/0", "A/1"})
    (note,) = server.noted("skipped")
    assert "the sum of what A/0, A/1 sent for" in note["what"]


@pytest.mark.parametrize(("one", "other"), [(3e38, 3e38), (math.nan, 1.0)])
def test_a_mean_inside_a_party_that_is_skipped_is_answered_with_nothing(one: float, other: float) -> None:
    mean = {"kind": "mean", "cohort": "A", "hyper": b""}
    server = local_server()
    both(server, one, other, **mean)
    assert isinstance(server.error, NotFinite)
    server = local_server(topology_of([2, 1], skips=True))
    both(server, one, other, **mean)
    answers = [message for message in server.written(1) if isinstance(message, Update)]
    assert [(update.kind, update.size) for update in answers] == [("mean", 0)]
    assert len(server.noted("skipped")) == 1


def test_the_root_names_the_party_whose_sum_it_cannot_use() -> None:
    server = global_server()
    server.say(1, push("A/0", origins={"A/0": 1, "A/1": 1}), payload(1.0))
    server.say(2, push("B/0"), payload(math.nan))
    assert isinstance(server.error, NotFinite)
    assert str(server.error).startswith("global/0: what B/0 sent for ")


def test_long_lists_of_names_say_how_many_there_are() -> None:
    assert listed("abc") == "a, b, c"
    assert listed("abcdeab") == "a, b, c and 2 more"

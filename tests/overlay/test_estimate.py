"""What is known of a network follows from what senders have measured."""

from __future__ import annotations

from math import inf

import pytest

from geomx.overlay.estimate import FORGOTTEN_AFTER, Estimate

MEMBERS, HOLDERS = ("a", "b", "c"), ("hub",)


def anybody(one: str, other: str) -> bool:
    return one != other


def known(estimate: Estimate, may_send=anybody):
    links = estimate.links(MEMBERS, HOLDERS, may_send)
    names = (*MEMBERS, *HOLDERS)
    rates = {
        (one, other): links.rates[i][j]
        for i, one in enumerate(names)
        for j, other in enumerate(names)
        if i != j
    }
    return rates, dict(zip(names, links.leaving, strict=True)), dict(zip(names, links.entering, strict=True))


def test_flows_that_are_alike_share_the_link_of_their_receiver():
    estimate = Estimate()
    for member in MEMBERS:
        estimate.told(member, {"hub": 30.0})
    estimate.told("hub", {"a": 30.0, "b": 31.0, "c": 29.0})
    estimate.settle()
    rates, leaving, entering = known(estimate)
    assert (entering["hub"], leaving["hub"]) == (90.0, 90.0)
    assert rates["a", "hub"] == rates["a", "b"] == 90.0  # nobody knows better yet
    assert entering["a"] == 90.0


def test_a_flow_that_is_slower_than_the_others_is_limited_by_its_own_way():
    estimate = Estimate()
    estimate.told("a", {"hub": 5.0})
    estimate.told("b", {"hub": 40.0})
    estimate.told("c", {"hub": 40.0})
    estimate.settle()
    rates, _, entering = known(estimate)
    assert (rates["a", "hub"], entering["hub"]) == (5.0, 85.0)
    assert rates["a", "b"] == 85.0


def test_ways_of_their_own_are_what_was_measured():
    estimate = Estimate(own=(*MEMBERS, *HOLDERS))
    estimate.told("a", {"b": 10.0, "c": 10.0})
    estimate.settle()
    rates, leaving, _ = known(estimate)
    assert (rates["a", "b"], rates["a", "c"], rates["b", "c"]) == (10.0, 10.0, 10.0)
    assert leaving["a"] == inf


def test_a_fall_is_believed_soon_and_what_is_not_measured_is_forgotten():
    estimate = Estimate(own=MEMBERS)
    estimate.told("a", {"b": 100.0})
    estimate.told("b", {"c": 50.0})
    estimate.settle()
    for _ in range(3):
        estimate.told("a", {"b": 10.0})
        estimate.settle()
    assert known(estimate)[0]["a", "b"] == pytest.approx(10.0, rel=0.25)
    for _ in range(FORGOTTEN_AFTER):
        estimate.told("a", {"b": 10.0})
        estimate.settle()
    assert known(estimate)[0]["b", "c"] == pytest.approx(10.0, rel=0.01)  # no longer 50


def test_nothing_is_sent_where_nobody_may():
    rates, _, _ = known(Estimate(), lambda one, other: "hub" in (one, other))
    assert [pair for pair, rate in rates.items() if rate and "hub" not in pair] == []

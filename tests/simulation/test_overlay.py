"""Servers of one tier, and workers of one party, that add and pass on for each other: the sums are the same."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable
from typing import Any

import pytest
from storms import CODECS, Seen, Start, Storm, faults_of, run

from geomx.node.overlay.conductor import Conductor
from geomx.node.overlay.relay import Relay
from geomx.rounds.round import Round

POLICIES = "fsa", "hfa k1=2 k2=2", "diloco every=5", "esync"


def storm_of(seed: int, **more: Any) -> Storm:
    chance = random.Random(f"overlay {seed}")
    cell = chance.choice(POLICIES), chance.choice(list(CODECS)), chance.choice((1, 2)), chance.choice((2, 3))
    return Storm(*cell, seed, overlay=True, inside=chance.random() < 0.3, **more)


def check(
    storm: Storm, monkeypatch: pytest.MonkeyPatch, plan: Callable[[Seen, Start], None] = lambda *_: None
) -> Seen:
    seen = run(storm, monkeypatch, plan)
    found = faults_of(storm, seen)
    assert not found, f"{found[0]}\nrepeat it: {storm.command}"
    return seen


def states_of(seen: Seen, state: str) -> list[dict[str, Any]]:
    return [fields for _, _, fields in seen.simulator.noted("overlay") if fields["state"] == state]


def hash_of(seen: Seen) -> str:
    told = [(turn, sorted(states.items())) for turn, states in sorted(seen.states.items())]
    return hashlib.sha256(repr(told).encode()).hexdigest()


PAIRS = [(policy, codec) for codec in CODECS for policy in POLICIES]
DIAGONAL = {(POLICIES[place % len(POLICIES)], codec) for place, codec in enumerate(CODECS)}


@pytest.mark.parametrize(
    ("policy", "codec"),
    [pytest.param(*pair, marks=[] if pair in DIAGONAL else pytest.mark.grids) for pair in PAIRS],
)
def test_a_calm_run_has_the_same_bits_each_time(policy: str, codec: str) -> None:
    """Tables change every other turn, and each has ways of its own for three shares of the slices."""
    hashes = []
    for _ in range(2):
        with pytest.MonkeyPatch.context() as monkeypatch:
            seen = check(Storm(policy, codec, 2, 2, 7, faults=0, overlay=True, inside=True), monkeypatch)
        assert len(states_of(seen, "used")) >= 4
        assert not states_of(seen, "void")
        spans = [fields for _, _, fields in seen.simulator.noted("span") if fields["track"] == "adds for"]
        assert len(spans) > 20
        hashes.append(hash_of(seen))
    assert hashes[0] == hashes[1]


STORMS = [
    Storm("fsa", "dense", 2, 2, 5, overlay=True),  # the answer had gone with one that is cut off
    Storm("esync", "bisparse", 2, 2, 6, faults=2, rate_mbps=2.0, overlay=True),  # of the second shard, too
    Storm("fsa", "bisparse", 1, 2, 36, faults=1, rate_mbps=2.0, overlay=True),  # a server without workers
    # One has forgotten the other, who has not.
    Storm("esync", "bisparse", 2, 2, 66, faults=3, overlay=True, inside=True),
    # A sum comes late that has somebody in it who is out by then.
    Storm("fsa", "int4", 1, 2, 274, faults=4, rate_mbps=2.0, overlay=True, durable=True),
]
SEEDS = 8


@pytest.mark.parametrize("storm", STORMS, ids=lambda storm: f"{storm.policy} {storm.seed}")
def test_what_was_once_wrong(storm: Storm, monkeypatch: pytest.MonkeyPatch) -> None:
    check(storm, monkeypatch)


@pytest.mark.no_cover
@pytest.mark.parametrize(
    "seed", [*range(SEEDS), *(pytest.param(s, marks=pytest.mark.matrix) for s in range(SEEDS, 300))]
)
def test_storms(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    check(storm_of(seed, faults=3, leaves=seed % 2), monkeypatch)


def _in_the_middle(seen: Seen, act: Callable[[str], None], times: int = 3) -> None:
    """Do something to whoever adds for others, while it waits for them."""
    simulator, left = seen.simulator, [times]

    def look() -> None:
        for name in seen.topology.tree.servers:
            node: Any = simulator.hosts[name].node
            relay = node.sink.companion
            if relay is not None and relay._come and left[0] and not simulator.has_stopped(name):
                left[0] -= 1
                act(name)
                simulator.at(simulator.now + 3.0, look)
                return
        if left[0] and simulator.now < 8.0:
            simulator.at(simulator.now + 0.004, look)

    simulator.at(1.5, look)


@pytest.mark.parametrize("policy", ["fsa", *(pytest.param(p, marks=pytest.mark.grids) for p in POLICIES[1:])])
def test_a_turn_completes_without_the_one_that_adds_for_others(
    policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It dies with what was sent to it, and comes back."""

    def plan(seen: Seen, start: Start) -> None:
        def kill(name: str) -> None:
            seen.simulator.crash(name)
            seen.simulator.at(seen.simulator.now + 1.0, lambda: start(name))

        _in_the_middle(seen, kill)

    seen = check(Storm(policy, "int4", 2, 2, 3, faults=0, overlay=True), monkeypatch, plan)
    assert states_of(seen, "void")
    assert len(states_of(seen, "used")) > len(states_of(seen, "void"))


def test_two_that_do_not_reach_each_other_any_more_are_nobodys_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    def plan(seen: Seen, _: Start) -> None:
        def cut() -> None:
            for other in ("B", "C", "D"):
                seen.simulator.cut("A", other, 60.0)

        seen.simulator.at(2.0, cut)

    seen = check(Storm("fsa", "dense", 1, 2, 4, faults=0, overlay=True), monkeypatch, plan)
    assert not seen.simulator.noted("roster")
    assert "does not reach" in states_of(seen, "void")[0]["reason"]
    turns = sorted(turn for _, turn in seen.origins)
    assert turns == list(range(1, max(turns) + 1))


MISTAKES = {  # what is broken, and the seed whose storm finds it today
    "a sum is added to its parts": (Round, "give_place", 1),
    "a table stays when somebody was lost": (Conductor, "void", 7),
    "an answer is not asked for again": (Conductor, "misses", 17),
    "who was added to the lost does not send again": (Conductor, "apart", 11),
    "what others contribute is not taken": (Relay, "_on_push", 0),
}


@pytest.mark.no_cover
@pytest.mark.parametrize("mistake", MISTAKES)
def test_the_storms_would_find(mistake: str, monkeypatch: pytest.MonkeyPatch) -> None:
    where, name, first = MISTAKES[mistake]
    monkeypatch.setattr(where, name, lambda *_: None)
    for seed in range(first, first + 40):
        with pytest.MonkeyPatch.context() as inner:
            storm = storm_of(seed, faults=3)
            try:
                if faults_of(storm, run(storm, inner)):
                    return
            except AssertionError:  # one finds what cannot be
                return
    pytest.fail("no storm has found it")

"""Row servers that come and go while a run trains tables: nothing is lost, and nothing counts twice."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from live_runs import Faults, dies, place_of, sleep, train
from trees import topology_of

from geomx.errors import NodeLost, RunFailed
from geomx.node.factory import make_node
from geomx.rounds.losses import Losses
from geomx.simulate.simulator import Network, Simulator
from geomx.train import LiveRun, Settings
from geomx.wire.session import Patience

ROWS, STEPS, COLUMNS = 3000, 12, 2
SLOW = Network(rate_mbps=20.0, delay_ms=8.0)


def keys_of(step: int, place: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(1000 * step + place).integers(0, ROWS, 200)


def script(run: LiveRun, staleness: int | None, rule: str = "add", **how: Any) -> dict[str, Any]:
    """Pulls, pushes what depends on what was read where that is certain, and at the end reads all."""
    init = "normal std=0.1" if staleness == 0 else "zeros"  # else sums would be rounded as they come
    table = run.table("t", ROWS, COLUMNS, rule=rule, init=init, staleness=staleness, **how)
    for step in range(STEPS):
        keys = keys_of(step, place_of(run))
        rows = table.pull(keys)
        table.push(keys, torch.ones(len(keys), COLUMNS) + (0.1 * rows if staleness == 0 else 0))
        sleep(run, 0.02 * (1 + place_of(run)))
    table.sync()
    found = table.pull(range(ROWS))
    items = list(table.items())
    pushes = table.pushes()
    run.barrier()
    run.close()
    return {
        "rows": found,
        "pushes": pushes,
        "keys": np.concatenate([keys for keys, _ in items]),
        "items": torch.cat([rows for _, rows in items]),
    }


def servers(
    parties: tuple[int, ...], shards: int, *lives: tuple[int, float, float | None], **how: Any
) -> Faults:
    """Row servers: each with its number, when it comes, and when it is asked to go. Their links differ."""
    topology, chance = topology_of(list(parties), shards, **how), random.Random(repr(lives))
    delays_ms = [1.0, 8.0, 40.0] if len(lives) == 1 or "patience" in how else [1.0, 8.0, 120.0]

    def faults(simulator: Simulator, _: Callable[[str], None]) -> None:
        names = {f"global/rows-{number}" for number, _, _ in lives}
        for shard in topology.tree.shards:
            for other in sorted(names | {topology.tree.shards[0]} - {shard}):
                delay_ms = chance.choice(delays_ms)
                simulator.link(shard, other, Network(rate_mbps=20.0, delay_ms=delay_ms))
        for life, (number, comes_s, goes_s) in enumerate(lives, 1):
            name = f"global/rows-{number}"
            simulator.at(comes_s, partial(come, simulator, make_node(topology, name, incarnation=life)))
            if goes_s is not None:
                simulator.at(goes_s, partial(simulator.call, name, "retire_soon"))

    def come(simulator: Simulator, node: Any) -> None:
        """Once a former process of its name has ended."""
        if node.name in simulator.hosts and not simulator.has_stopped(node.name):
            simulator.at(simulator.now + 0.05, partial(come, simulator, node))
        else:
            simulator.add(node)

    return faults


def same(found: dict[str, Any], expected: dict[str, Any]) -> None:
    for name, each in found.items():
        assert torch.equal(each["rows"], expected[name]["rows"]), name
        assert len(np.unique(each["keys"])) == len(each["keys"])
        assert torch.equal(each["items"], each["rows"][torch.from_numpy(each["keys"])])
        assert set(each["keys"]) == set(expected[name]["keys"])


@pytest.mark.parametrize("staleness", [0, 2, None])
def test_one_comes_and_goes(staleness: int | None) -> None:
    main = partial(script, staleness=staleness)
    calm, _ = train((2, 1), main, shards=2, network=SLOW)
    found, simulator = train((2, 1), main, shards=2, network=SLOW, faults=servers((2, 1), 2, (1, 0.1, 0.7)))
    same(found, calm)
    assert [name for _, name, _ in simulator.noted("holds_rows")] == ["global/rows-1"]
    assert simulator.has_stopped("global/rows-1")
    assert simulator.error_of("global/rows-1") is None
    assert all(len(each["pushes"]) == 2 for each in found.values())


CALM: dict[tuple[Any, ...], dict[str, Any]] = {}


def calm(parties: tuple[int, ...], staleness: int | None, rule: str) -> dict[str, Any]:
    """Without row servers, with one shard."""
    key = parties, staleness, rule
    if key not in CALM:
        CALM[key], _ = train(parties, partial(script, staleness=staleness, rule=rule), network=SLOW)
    return CALM[key]


def drawn_lives(chance: random.Random) -> list[tuple[int, float, float | None]]:
    """Of up to three servers, which may come more than once."""
    lives: list[tuple[int, float, float | None]] = []
    for number in chance.sample(range(1, 9), chance.randint(1, 3)):
        comes_s = chance.uniform(0.0, 0.9)
        goes_s = comes_s + chance.uniform(0.0, 0.6) if chance.random() < 0.8 else None
        lives.append((number, comes_s, goes_s))
        if goes_s is not None and chance.random() < 0.4:
            lives.append((number, goes_s + 0.5, None))
    return lives


@pytest.mark.parametrize("seed", range(24))
def test_whoever_comes_and_goes_the_rows_are_the_same_bits(seed: int) -> None:
    """Sums of ones are exact; with staleness 0 every bit counts, with whatever rule."""
    chance = random.Random(seed)
    parties, shards = chance.choice([(1, 1), (2, 1), (1, 1, 1)]), chance.choice([1, 2, 3])
    staleness, rule = chance.choice([(0, "adagrad lr=0.1"), (0, "add"), (2, "add"), (None, "add")])
    found, _ = train(
        parties,
        partial(script, staleness=staleness, rule=rule),
        shards=shards,
        network=SLOW,
        faults=servers(parties, shards, *drawn_lives(chance)),
    )
    expected = calm(parties, staleness, rule)
    same(found, dict.fromkeys(found, expected["A/0"]))


BEATS = Patience(0.1, 0.4)


@pytest.mark.parametrize("seed", range(10))
def test_every_push_counts_once_in_all_lives_of_whoever_dies(seed: int) -> None:
    """With `wait`, whoever is started again makes the pushes that some server lacks."""
    chance = random.Random(seed)
    parties, shards = (2, 1), chance.choice([1, 2, 3])
    staleness = chance.choice([0, 2])

    def main(run: LiveRun) -> list[float]:
        table = run.table("t", 200, 3, rule="add", staleness=staleness)
        while table.clock < 20:
            sleep(run, 0.05)
            table.pull(range(120))
            table.push(range(120), torch.ones(120, 3))
        table.sync()
        rows = table.pull(range(120))
        run.close()
        return sorted(set(rows.flatten().tolist()))

    died_s = chance.uniform(0.2, 1.0)
    death = dies(chance.choice(["A", "B", "A/0", "B/0"]), at_s=died_s, back_s=died_s + 0.6)
    lives = servers(parties, shards, *drawn_lives(chance), losses=Losses("wait", 60.0), patience=BEATS)

    def faults(simulator: Simulator, restart: Callable[[str], None]) -> None:
        death(simulator, restart)
        lives(simulator, restart)

    found, _ = train(
        parties,
        main,
        Settings(on_loss="wait"),
        shards=shards,
        faults=faults,
        losses=Losses("wait", 60.0),
        patience=BEATS,
    )
    assert list(found.values()) == [[60.0]] * 3


@pytest.mark.parametrize("seed", range(10))
def test_others_go_on_and_nothing_of_theirs_is_lost(seed: int) -> None:
    chance = random.Random(1000 + seed)
    parties, shards = (2, 1), chance.choice([1, 2, 3])
    staleness, victim = chance.choice([0, 2, None]), chance.choice(["A", "B", "A/0", "B/0"])
    made: dict[str, list[int]] = {}

    def main(run: LiveRun) -> tuple[float, ...]:
        table = run.table("t", 300, rule="add", staleness=staleness)
        lives, own = made.setdefault(run.name, []), range(50 * place_of(run), 50 * place_of(run) + 50)
        lives.append(0)
        while table.clock < 60:
            sleep(run, 0.05)
            table.pull(range(0, 150, 7))
            table.push(own, torch.ones(50))
            lives[-1] += 1
        table.flush()
        run.barrier()
        rows = table.pull(range(150)).view(3, 50)
        for place, name in enumerate(run.workers):
            count = sum(made[name])
            least = count - 9 if name == victim else count
            assert least <= rows[place].min() <= rows[place].max() <= count
        run.close()
        return tuple(rows.flatten().tolist())

    died_s = chance.uniform(0.2, 1.0)
    death = dies(victim, at_s=died_s, back_s=died_s + 1.0)
    losses = Losses("continue", 60.0)
    lives = servers(parties, shards, *drawn_lives(chance), losses=losses, patience=BEATS)

    def faults(simulator: Simulator, restart: Callable[[str], None]) -> None:
        death(simulator, restart)
        lives(simulator, restart)

    found, _ = train(
        parties,
        main,
        Settings(on_loss="continue"),
        shards=shards,
        faults=faults,
        losses=losses,
        patience=BEATS,
    )
    assert len(found) == 3
    assert len(set(found.values())) == 1


@pytest.mark.parametrize("seed", range(16))
def test_one_that_dies_takes_its_rows_along_or_nothing(seed: int) -> None:
    """Before it holds rows nothing is lost, and behind that the run ends, and names it."""
    chance = random.Random(seed)
    staleness, comes_s = chance.choice([0, 2]), chance.uniform(0.0, 0.3)
    died_s = comes_s + chance.uniform(0.0, 0.3)
    comes = servers((1, 1), 2, (3, comes_s, None))
    held: list[bool] = []

    def faults(simulator: Simulator, restart: Callable[[str], None]) -> None:
        comes(simulator, restart)
        simulator.at(died_s, lambda: die(simulator))

    def die(simulator: Simulator) -> None:
        if "global/rows-3" in simulator.hosts and not simulator.has_stopped("global/rows-3"):
            simulator.crash("global/rows-3", silent=chance.random() < 0.5)
            told = [fields["servers"] for _, _, fields in simulator.noted("row_holders")]
            held.append(any("global/rows-3" in servers for servers in told))

    lost = ""
    try:
        found, _ = train((1, 1), partial(script, staleness=staleness), shards=2, network=SLOW, faults=faults)
        expected = calm((1, 1), staleness, "add")
        same(found, dict.fromkeys(found, expected["A/0"]))
    except (NodeLost, RunFailed) as error:
        lost = error.node
    assert lost == ("global/rows-3" if held == [True] else "")


@pytest.mark.parametrize("seed", range(8))
def test_rows_asked_for_ahead_are_those_of_their_step(seed: int) -> None:
    """What was asked for before a push does not see it, wherever its rows have gone meanwhile."""
    chance = random.Random(seed)

    def main(run: LiveRun) -> torch.Tensor:
        table = run.table("t", ROWS, COLUMNS, rule="adagrad lr=0.1", init="normal std=0.1")
        ahead = [table.pull(keys_of(0, place_of(run)), wait=False)]
        for step in range(STEPS):
            ahead.append(table.pull(keys_of(step + 1, place_of(run)), wait=False))
            rows = ahead.pop(0).result()
            table.push(keys_of(step, place_of(run)), 1 + rows)
            sleep(run, 0.03)
        table.sync()
        found = table.pull(range(ROWS))
        run.close()
        return found

    expected, _ = train((1, 1), main, network=SLOW)
    found, _ = train((1, 1), main, shards=2, network=SLOW, faults=servers((1, 1), 2, *drawn_lives(chance)))
    assert torch.equal(found["A/0"], expected["A/0"])
    assert torch.equal(found["B/0"], expected["A/0"])


@pytest.mark.parametrize("staleness", [0, 2, None])
def test_pushes_alone_count_through_two_changes_between_two_of_them(staleness: int | None) -> None:
    """What is sent anew is sent back once more."""

    def main(run: LiveRun) -> float:
        table = run.table("t", 100, rule="add", staleness=staleness)
        for _ in range(7):
            table.push(range(100), torch.ones(100))
            sleep(run, 0.2)
        table.sync()
        found = table.pull(range(100))
        run.close()
        assert found.min() == found.max()
        return float(found[0])

    for lives in [((1, 0.3, 0.8),), ((1, 0.3, None), (2, 0.8, None))]:
        found, _ = train((1, 1), main, shards=2, network=SLOW, faults=servers((1, 1), 2, *lives))
        assert set(found.values()) == {14.0}


def test_what_is_sent_back_is_asked_anew_while_its_worker_waits_elsewhere() -> None:
    def main(run: LiveRun) -> set[float]:
        table = run.table("t", 100, rule="add")
        for _ in range(3):
            if run.party == "A":
                ahead = table.pull(range(100), wait=False)
                table.push(range(100), torch.ones(100))
                sleep(run, 0.3)
                ahead.result()
                run.barrier()
            else:
                sleep(run, 0.3)
                run.barrier()
                table.push(range(100), torch.ones(100))
        table.sync()
        found = table.pull(range(100))
        run.close()
        return set(found.flatten().tolist())

    found, _ = train((1, 1), main, shards=2, network=SLOW, faults=servers((1, 1), 2, (1, 0.25, None)))
    assert list(found.values()) == [{6.0}] * 2

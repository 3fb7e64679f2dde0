"""Tables: what every worker reads of them, with whatever shards, orders, losses and filters."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from exploring import each_value
from live_runs import begin, descend, dies, drawn, pauses, place_of, sgd, sleep, train, weights

from geomx.errors import GeomxError, NotFinite, RunFailed, Unsupported
from geomx.rounds.losses import Losses
from geomx.simulate.simulator import Network
from geomx.tables import table_rules
from geomx.train import LiveRun, Settings
from geomx.wire.session import Patience

ROWS, STEPS = 1000, 6
Main = Callable[[LiveRun], Any]


def drawn_keys(step: int, place: int, count: int = 40) -> np.ndarray[Any, Any]:
    """Some twice."""
    return np.random.default_rng(100 * step + place).integers(0, ROWS, count)


def gradient(step: int, place: int, columns: int, count: int = 40) -> torch.Tensor:
    return torch.randn(count, columns, generator=torch.Generator().manual_seed(100 * step + place))


def script(rule: str, columns: int = 3, **how: Any) -> Main:
    """Every worker pulls, pushes what depends on what it has read, and at the end reads all."""

    def main(run: LiveRun) -> torch.Tensor:
        table = run.table("t", ROWS, columns, rule=rule, init="normal std=0.1", **how)
        for step in range(STEPS):
            keys = drawn_keys(step, place_of(run))
            rows = table.pull(keys)
            table.push(keys, gradient(step, place_of(run), columns) + 0.1 * rows)
        run.barrier()
        found = table.pull(range(ROWS))
        run.close()
        return found

    return main


def alone(rule: str, places: int, start: torch.Tensor, columns: int = 3) -> torch.Tensor:
    """The same in one array, with pushes of one number together."""
    rows, made = start.clone(), table_rules.make(rule)
    state = {name: torch.full_like(rows, value) for name, value in made.state.items()}
    for step in range(STEPS):
        total, touched = torch.zeros_like(rows), torch.zeros(ROWS, dtype=torch.bool)
        for place in range(places):
            keys = torch.from_numpy(drawn_keys(step, place))
            own = torch.zeros_like(rows)
            own.index_add_(0, keys, gradient(step, place, columns) + 0.1 * rows[keys])
            total += own
            touched[keys] = True
        some = {name: plane[touched] for name, plane in state.items()}
        values = rows[touched]
        made.step(values, some, total[touched])
        rows[touched] = values
        for name, plane in some.items():
            state[name][touched] = plane
    return rows


RULES = ["add", "sgd lr=0.1", "adagrad lr=0.1", "ftrl alpha=0.5 l1=0.05 l2=0.1"]


@pytest.mark.parametrize(
    ("rule", "tree"), each_value(RULES, [((1,), 1), ((2, 1), 1), ((1, 1), 3), ((2, 2), 2)])
)
def test_sequential_is_what_one_process_makes(rule: str, tree: tuple[tuple[int, ...], int]) -> None:
    def first(run: LiveRun) -> torch.Tensor:
        found = run.table("t", ROWS, 3, rule=rule, init="normal std=0.1").pull(range(ROWS))
        run.close()
        return found

    parties, shards = tree
    start = train(parties, first)[0]["A/0"]
    assert 0.09 < float(start.std()) < 0.11
    results, _ = train(parties, script(rule), shards=shards)
    for found in results.values():
        assert torch.equal(found, results["A/0"])
    assert torch.allclose(results["A/0"], alone(rule, sum(parties), start), atol=1e-5)


def test_the_same_bits_in_whatever_order_pushes_come() -> None:
    results = []
    for seed in range(3):
        faults = pauses("A/0" if seed else "B/0", 0.05 * seed, 0.3)
        found, _ = train((2, 1), script("adagrad lr=0.1"), shards=2, faults=faults)
        results.append(found["B/0"])
    assert all(torch.equal(found, results[0]) for found in results)


@pytest.mark.parametrize("staleness", [0, 1, 3, None])
def test_nobody_is_further_ahead_than_the_bound(staleness: int | None) -> None:
    """One worker is slow; what the others have seen of it tells how far they were ahead."""
    ahead: list[int] = []

    def main(run: LiveRun) -> None:
        table = run.table("t", 8, rule="add", staleness=staleness)
        for _ in range(12):
            sleep(run, 0.5 if run.name == "B/0" else 0.01)
            counts = table.pull(range(3))[:, 0]
            if place_of(run) != 2:
                ahead.append(int(table.clock - counts[2]))
                assert table.behind <= (12 if staleness is None else staleness)
            assert counts[place_of(run)] == table.clock  # it reads what it has written
            table.push([place_of(run)], [1.0])
        run.close()

    train((2, 1), main, shards=2)
    if staleness is None:
        assert max(ahead) > 3
    else:
        assert max(ahead) == staleness


def test_groups_wait_for_nobody_else() -> None:
    """One that serves reads while another trains, and sees whole pushes."""
    seen: list[float] = []

    def main(run: LiveRun) -> None:
        serves = run.name == "B/0"
        table = run.table("t", 100, rule="add", group="serving" if serves else "")
        for _ in range(20):
            sleep(run, 0.1 if serves else 0.25)
            if serves:
                rows = table.pull(range(100))
                assert rows.min() == rows.max()
                seen.append(float(rows[0]))
            else:
                table.pull([0])
                table.push(range(100), torch.ones(100))
        run.close()

    train((2, 1), main)
    assert len(set(seen)) > 4
    assert seen == sorted(seen)


@pytest.mark.parametrize("spec", ["zeros", "significant threshold=1.5", "random-skip probability=0.6"])
def test_filters_send_less_and_lose_nothing(spec: str) -> None:
    sent: dict[bool, list[int]] = {True: [], False: []}

    def main(run: LiveRun, filtered: bool) -> torch.Tensor:
        table = run.table("t", ROWS, 4, rule="add", filters=[spec] if filtered else [])
        keys = np.arange(ROWS)
        for step in range(STEPS):
            rows = gradient(step, place_of(run), 4, ROWS)
            rows[:: 2 + place_of(run)] = 0.0
            table.push(keys, rows)
        table.pull([0])
        sent[filtered].append(table.sent_bytes)
        table.flush()
        run.barrier()
        found = table.pull(keys)
        run.close()
        return found

    whole, _ = train((1, 1), partial(main, filtered=False))
    ours, _ = train((1, 1), partial(main, filtered=True))
    assert torch.allclose(ours["B/0"], whole["A/0"], atol=1e-4)
    assert max(sent[True]) < 0.9 * min(sent[False])


def test_keys_that_were_sent_are_not_sent_again() -> None:
    sizes: list[int] = []

    def main(run: LiveRun) -> None:
        table, keys = run.table("t", 1 << 40, values="int8"), np.arange(0, 1 << 40, 1 << 26)
        for _ in range(3):
            before = table.sent_bytes
            table.pull(keys)
            table.push(keys, np.ones(len(keys)))
            sizes.append(table.sent_bytes - before)
        run.close()

    train((1,), main, shards=2)
    assert len(sizes) == 3
    first, *others = sizes
    assert first > 4 * (1 << 14)
    assert max(others) < 1.1 * (1 << 14)


def test_no_heartbeat_waits_for_many_rows() -> None:
    """They take seconds to cross the link, which is several times as long as silence may last."""

    def main(run: LiveRun) -> float:
        table = run.table("t", 400_000, 4, rule="add", values="bf16")
        table.push(range(400_000), torch.ones(400_000, 4))
        found = table.pull(range(400_000))
        run.close()
        return float(found.min())

    slow = Network(rate_mbps=20.0, delay_ms=5.0)
    results, simulator = train((1, 1), main, shards=2, network=slow, patience=Patience(0.1, 0.5))
    assert set(results.values()) == {2.0}
    assert simulator.now > 2.0
    assert not simulator.noted("resumed")


def test_ranges_are_balanced_and_rows_are_there_when_touched() -> None:
    def main(run: LiveRun) -> tuple[list[int], list[dict[str, int]]]:
        table = run.table("t", 1 << 50, 2, init="uniform low=1.0 high=2.0", rule="sgd lr=0.5")
        keys = np.arange(30_000) * (1 << 20)
        assert float(table.pull(keys).min()) >= 1.0
        assert not list(table.items())  # to read makes none
        table.push(keys, torch.ones(30_000, 2))
        table.flush()
        counts, rows = [], {}
        for found, values in table.items():
            counts.append(len(found))
            rows |= dict(zip(found.tolist(), values.tolist(), strict=True))
        assert rows.keys() == set(keys.tolist())
        pushes = table.pushes()
        run.close()
        return counts, pushes

    counts, pushes = train((1,), main, shards=3)[0]["A/0"]
    assert pushes == [{"A/0": 1}] * 3
    assert max(counts) < 1.1 * 10_000 < 1.21 * min(counts)


def test_uneven_pushes_are_all_applied_by_a_sync() -> None:
    """And what was read into a file comes back."""

    def main(run: LiveRun) -> list[float]:
        table = run.table("t", 10, rule="add")
        for _ in range(3 + 5 * place_of(run)):
            table.push([1, 2], [1.0, 2.0])
        table.sync()
        assert [len(keys) for keys, _ in table.items()] in ([2], [1, 1])
        found = table.pull([1, 2, 3])[:, 0].tolist()
        other = run.table("other", 1 << 40, 2, rule="adagrad lr=1.0")
        if run.is_first:
            other.put([1 << 39, 7], [[1.0, 2.0], [3.0, 4.0]])
        run.barrier()
        assert other.pull([7, 1 << 39, 8]).tolist() == [[3.0, 4.0], [1.0, 2.0], [0.0, 0.0]]
        table.push([1], [1.0])  # clocks go on together
        assert table.pull([1])[0, 0] == found[0] + 2
        run.close()
        return found

    results, _ = train((1, 1), main, shards=2)
    assert list(results.values()) == [[11.0, 22.0, 0.0]] * 2


def test_what_waits_for_others_is_applied_when_they_have_left() -> None:
    def main(run: LiveRun) -> list[float]:
        serves = run.name == "B/0"
        table = run.table("t", 10, rule="add", group="serving" if serves else "")
        for _ in range(0 if serves else 3 + 2 * place_of(run)):
            table.push([1, 2], [1.0, 2.0])
        if serves:
            sleep(run, 5.0)
            return list(table.pull([1, 2])[:, 0].tolist())
        return []

    results, _ = train((2, 1), main)
    assert results["B/0"] == [8.0, 16.0]


@pytest.mark.parametrize("at_s", [0.3, 0.355, 0.4])
@pytest.mark.parametrize("staleness", [0, 2])
def test_where_the_run_waits_every_push_counts_once_in_all_lives(at_s: float, staleness: int) -> None:
    """Some have reached one server and not the other."""

    def main(run: LiveRun) -> tuple[list[float], list[int]]:
        table = run.table("t", 100, 8, rule="add", staleness=staleness)
        while table.clock < 20:
            sleep(run, 0.05)
            table.pull(range(40))
            table.push(range(40), torch.ones(40, 8))
        table.sync()
        found = (
            table.pull(range(40))[:, 0].tolist(),
            [count for of in table.pushes() for count in of.values()],
        )
        run.close()
        return found

    how: dict[str, Any] = {"losses": Losses("wait", 60.0), "patience": Patience(0.1, 0.4), "shards": 2}
    results, _ = train(
        (2, 1), main, Settings(on_loss="wait"), faults=dies("B/0", at_s=at_s, back_s=1.8), **how
    )
    for rows, counts in results.values():
        assert set(rows) == {60.0}
        assert set(counts) == {20}


def test_beside_a_model_tables_change_nothing_of_it() -> None:
    def main(run: LiveRun, has_table: bool) -> dict[str, torch.Tensor]:
        model, optimizer = begin(run, sgd)
        table = run.table("t", 50) if has_table else None
        for step in range(4):
            descend(model, optimizer, *drawn(run, step))
            if table is not None:
                table.push([step], [1.0])
                assert float(table.pull([step])[0, 0]) == pytest.approx(-0.03)
        run.close()
        return weights(model)

    with_table, _ = train((2, 1), partial(main, has_table=True))
    without, _ = train((2, 1), partial(main, has_table=False))
    for name, values in without["B/0"].items():
        assert torch.equal(with_table["B/0"][name], values)


LOST = {"losses": Losses("continue", 60.0), "patience": Patience(0.1, 0.4)}


@pytest.mark.parametrize("victims", [("B/0",), ("B", "B/0"), ("B",), ("A/1",)])
@pytest.mark.parametrize("staleness", [0, 2])
def test_the_others_go_on_and_whoever_comes_back_takes_part(victims: tuple[str, ...], staleness: int) -> None:
    """Every push that a script has made is counted once; where a server alone dies, nothing at all is lost."""
    made: dict[str, list[int]] = {}

    def main(run: LiveRun) -> float:
        table = run.table("t", 16, rule="add", staleness=staleness)
        lives = made.setdefault(run.name, [])
        lives.append(0)
        while table.clock < 80:
            sleep(run, 0.05)
            table.pull([0])
            table.push([place_of(run)], [1.0])
            lives[-1] += 1
        table.flush()
        run.barrier()
        rows = table.pull(range(16))[:, 0]
        counts = [sum(made[name]) for name in run.workers]
        dead = [name for name in victims if "/" in name]
        for place, name in enumerate(run.workers):
            if name in dead:
                assert counts[place] - 9 <= rows[place] <= counts[place]
            else:
                assert rows[place] == counts[place]
        run.close()
        return float(rows.sum())

    faults = dies(*victims, at_s=0.6, back_s=1.6)
    results, _ = train((2, 1), main, Settings(on_loss="continue"), faults=faults, shards=2, **LOST)
    assert len(results) == 3
    assert len(set(results.values())) == 1


def refused(match: str, main: Main, error: type[GeomxError] = Unsupported) -> None:
    with pytest.raises(error, match=match):
        train((1, 1), main)


def test_what_cannot_be_is_told() -> None:
    def push(keys: Any, values: Any) -> Main:
        return lambda run: run.table("t", 10, 2).push(keys, values)

    refused("rows=0: from 1", lambda run: run.table("t", 0))
    refused("staleness=-1", lambda run: run.table("t", 1, staleness=-1))
    refused("keys are integers from 0 to 9; found float64", push([1.5], [[1.0, 2.0]]))
    refused("found 10 among them", push([3, 10], torch.ones(2, 2)))
    refused(r"shape \[2\]; expected \[1, 2\]", push([1], [1.0, 2.0]))
    refused(r"shape \[2, 1\]; expected \[2, 2\]", push([1, 2], torch.ones(2, 1)))
    refused("has opened it before", lambda run: [run.table("t", 1) for _ in range(2)])
    refused("not finite any more", lambda run: [run.table("t", 9, rule="add").push([1], [3e38])], RunFailed)
    refused("NaN or Inf in push 0", push([1], [[1.0, float("nan")]]), NotFinite)
    refused("float32, bf16", lambda run: run.table("t", 1, values="int3"))
    refused("no rule|rule of a table", lambda run: run.table("t", 1, rule="nope"), GeomxError)
    refused("run.table_classes", lambda run: run.table("t", 1, rule="os:system"), GeomxError)
    refused("lr", lambda run: run.table("t", 1, rule="sgd lr=-1.0"), GeomxError)
    refused("open it alike", lambda run: run.table("t", 1 + place_of(run)), RunFailed)

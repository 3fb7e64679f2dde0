"""Collective calls: what NumPy makes of all workers' arrays, on every worker, beside training and alone."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from exploring import each_value
from live_runs import Faults, begin, cuts, descend, dies, drawn, place_of, sleep, train, weights
from policy_runs import settings, train_by

from geomx.errors import Disagreement, GeomxError, RunFailed, Unsupported
from geomx.node.topology import Edge
from geomx.rounds.losses import Losses
from geomx.simulate.simulator import Network, Simulator
from geomx.train import LiveRun
from geomx.wire.session import Patience

TREES = [((1,), 1), ((2, 1), 1), ((1, 1, 1), 2), ((2, 2), 3)]
Main = Callable[[LiveRun], Any]


def arrays_of(place: int, seed: int = 0) -> dict[str, Any]:
    rng = np.random.default_rng(100 * seed + place)
    return {
        "weights": torch.from_numpy(rng.standard_normal((3, 5))),
        "counts": rng.integers(-(2**62), 2**62, 4) // 4,
        "pair": (float(rng.standard_normal()), [int(rng.integers(1000)), rng.standard_normal(0)]),
        "half": torch.from_numpy(rng.standard_normal(7)).bfloat16(),
        "flags": rng.random(6) < 0.5,
    }


def flat(arrays: Any) -> list[torch.Tensor]:
    if isinstance(arrays, dict):
        return [each for value in arrays.values() for each in flat(value)]
    if isinstance(arrays, list | tuple):
        return [each for value in arrays for each in flat(value)]
    return [torch.as_tensor(arrays)]


@pytest.mark.parametrize(("parties", "shards"), TREES)
@pytest.mark.parametrize("op", ["sum", "max", "min"])
def test_arrays_of_all_become_one(op: Any, parties: tuple[int, ...], shards: int) -> None:
    results, _ = train(parties, lambda run: run.reduce(arrays_of(place_of(run)), op), shards=shards)
    every = [flat(arrays_of(place)) for place in range(sum(parties))]
    for result in results.values():
        assert isinstance(result["pair"][1][0], int)
        assert isinstance(result["counts"], np.ndarray)
        for mine, *theirs in zip(flat(result), *every, strict=True):
            is_whole = not theirs[0].is_floating_point()
            wide = torch.int64 if op == "sum" and is_whole else theirs[0].dtype
            assert mine.dtype == wide or mine.dtype == torch.float32
            whole = torch.stack(
                [each.to(torch.float64) if each.is_floating_point() else each for each in theirs]
            )
            made = whole.sum(0) if op == "sum" else whole.amax(0) if op == "max" else whole.amin(0)
            if mine.dtype == torch.bool:
                made = whole.any(0) if op == "max" else whole.all(0)
            assert torch.allclose(
                mine.double(), made.double(), rtol=0.02 if mine.dtype == torch.bfloat16 else 1e-14
            )
            if not mine.is_floating_point():
                assert torch.equal(mine, made)


def test_means_are_of_those_who_gave() -> None:
    """Of whole numbers they are float64's, of half precision rounded once."""
    given = [True, 200, torch.tensor([200, 100], dtype=torch.uint8), torch.full((3,), 300.0).bfloat16()]
    results, _ = train((2, 1), lambda run: run.reduce([float(place_of(run)), *given], "mean"))
    for mine, truth, small, large, half in results.values():
        assert (mine, truth, small) == (1.0, 1.0, 200.0)
        assert large.tolist() == [200.0, 100.0]
        assert half.dtype == torch.bfloat16
        assert half.tolist() == [300.0] * 3


@pytest.mark.parametrize("shards", [1, 2])
def test_large_arrays_travel_in_pieces(shards: int) -> None:
    """40 MB: more pieces than slices, in several turns."""

    def main(run: LiveRun) -> tuple[torch.Tensor, torch.Tensor, float]:
        generator = torch.Generator().manual_seed(place_of(run))
        large = torch.randn(5_000_000, generator=generator, dtype=torch.float64)
        return run.reduce(large), run.broadcast(large.view(1000, 5000), "B/0"), run.reduce(1.0)

    results, _ = train((1, 1), main, shards=shards, network=Network(10000.0, delay_ms=0.1))
    one, other = (
        torch.randn(5_000_000, generator=torch.Generator().manual_seed(place), dtype=torch.float64)
        for place in range(2)
    )
    for total, given, count in results.values():
        assert torch.equal(total, one + other)
        assert torch.equal(given, other.view(1000, 5000))
        assert count == 2.0


def test_gather_and_map_have_everybody_s_by_name() -> None:
    def main(run: LiveRun) -> Any:
        place = place_of(run)
        gathered = run.gather({"x": np.arange(place), "y": torch.full((place, 2), float(place))})
        mapped = run.map({"party": run.party, "loss": 0.5 * place, "all": [1, None, "a"]})
        run.barrier()
        return gathered, mapped

    results, _ = train((2, 1), main)
    for gathered, mapped in results.values():
        assert list(gathered) == list(mapped) == ["A/0", "A/1", "B/0"]
        for place, name in enumerate(gathered):
            assert np.array_equal(gathered[name]["x"], np.arange(place))
            assert torch.equal(gathered[name]["y"], torch.full((place, 2), float(place)))
            assert mapped[name] == {"party": name[0], "loss": 0.5 * place, "all": [1, None, "a"]}


def test_each_of_several_pending_calls_knows_what_became_of_it() -> None:
    """Large ones go one by one, and one that fails leaves the others."""

    def main(run: LiveRun) -> list[Any]:
        large = [run.gather(np.full(1 << 21, each, np.uint8), wait=False) for each in range(3)]
        x = torch.zeros(1)
        pending = [run.reduce(x.fill_(each), wait=False) for each in range(3)]  # x changes
        found = [int(each.result()["A/0"][0]) for each in large]
        return [*found, *(float(each.result()) for each in pending), run.reduce(5)]

    results, _ = train((1, 1), main)
    assert list(results.values()) == [[0, 1, 2, 0.0, 2.0, 4.0, 10]] * 2


def test_many_small_calls_are_one_turn() -> None:
    def main(run: LiveRun) -> Any:
        run.barrier()
        before = run.turn
        pending = [run.reduce(number + place_of(run), wait=False) for number in range(2000)]
        last = run.map("last", wait=False)
        assert run.turn == before
        results = [each.result() for each in pending]
        assert len(last.result()) == 3
        assert run.turn == before + 1
        return results

    results, _ = train((2, 1), main)
    for result in results.values():
        assert result == [3 * number + 3 for number in range(2000)]


def test_the_same_bits_in_whatever_order_contributions_come() -> None:
    """Numbers of which each order of adding makes another sum."""

    def main(run: LiveRun) -> tuple[float, ...]:
        values = (1e16, 1.0, -1e16, 3.0, 1e-3)
        return tuple(run.reduce(values[(place_of(run) + shift) % 5] * 1.1) for shift in range(5))

    seen = set()
    for seed in range(8):
        chance = random.Random(seed)

        def jitter(simulator: Simulator, _: Any, chance: random.Random = chance) -> None:
            for node, parent in [
                ("A", "global/0"),
                ("B", "global/0"),
                ("A/0", "A"),
                ("A/1", "A"),
                ("B/0", "B"),
                ("B/1", "B"),
            ]:
                simulator.link(node, parent, Network(1000.0, delay_ms=chance.uniform(0.1, 40.0)))

        results, _ = train((2, 2, 1), main, faults=jitter)
        seen |= set(results.values())
    assert len(seen) == 1


@pytest.mark.parametrize(
    ("spec", "codec"), each_value(["fsa", "hfa k1=2 k2=2", "diloco every=2", "mixed"], ["dense", "int4"])
)
def test_calls_beside_training_change_nothing_of_it(spec: str, codec: str) -> None:
    def script(calls: bool) -> Main:
        def main(run: LiveRun) -> Any:
            model, optimizer = begin(run)
            sums = []
            for step in range(8):
                descend(model, optimizer, *drawn(run, step))
                if calls and step % 2:
                    sums.append(run.reduce(step))
            run.close()
            return weights(model), sums

        return main

    how: dict[str, Any] = {"wan": Edge(codec, codec)}
    plain, _ = train_by(spec, (2, 1), script(False), **how)
    beside, _ = train_by(spec, (2, 1), script(True), {"calls": True}, **how)
    for name, (made, sums) in beside.items():
        assert sums == [3, 9, 15, 21]
        if spec != "mixed":  # whose parties wait for each other in a call
            for key, value in plain[name][0].items():
                assert torch.equal(made[key], value)


PATIENCE = Patience(heartbeat_s=0.1, timeout_s=0.4)


def sums(run: LiveRun) -> list[int]:
    found = []
    while len(found) < 40 and run.turn < 41:
        sleep(run, 0.05)
        found.append(run.reduce(1))
    return found


@pytest.mark.parametrize(
    ("faults", "within"),
    [
        (dies("B/0", at_s=0.5), {2, 3}),
        (dies("B/0", at_s=0.52, back_s=1.3), {2, 3}),
        (dies("B", "B/0", at_s=0.53, back_s=1.2), {2, 3}),
    ],
)
def test_the_others_go_on_and_whoever_comes_back_takes_part(faults: Faults, within: set[int]) -> None:
    given, how = {"on_loss": "continue"}, {"losses": Losses("continue", 60.0), "patience": PATIENCE}
    results, _ = train_by("fsa", (2, 1), sums, given, faults=faults, **how)  # type: ignore[arg-type]
    assert results["A/0"] == results["A/1"]
    assert set(results["A/0"]) == within
    assert results["A/0"][0] == 3
    if "B/0" in results:
        assert results["A/0"][-1] == 3
        assert results["B/0"] == results["A/0"][-len(results["B/0"]) :]


@pytest.mark.parametrize("at_s", [0.1, 0.2, 0.3, 0.4])
def test_sums_of_one_call_are_of_the_same_workers(at_s: float) -> None:
    """One dies while the pieces of a call are under way: what others have without it, they have of nothing."""

    def main(run: LiveRun) -> tuple[float, float, float]:
        x = torch.ones(5_000_000)
        found = run.reduce({"sum": x, "count": 1}, wait=False)
        mean = run.reduce(x, "mean")
        sums = found.result()
        assert torch.equal(sums["sum"], x * sums["count"])
        return float(mean.min()), float(mean.max()), sums["count"]

    given, how = {"on_loss": "continue"}, {"losses": Losses("continue", 60.0), "patience": PATIENCE}
    results, _ = train_by("fsa", (2, 1), main, given, faults=dies("B/0", at_s=at_s), **how)  # type: ignore[arg-type]
    assert results["A/0"] == results["A/1"]
    assert results["A/0"] in ((1.0, 1.0, 2), (1.0, 1.0, 3))


@pytest.mark.parametrize("victim", ["A", "B"])
def test_a_run_that_waits_counts_each_contribution_once(victim: str) -> None:
    given, how = {"on_loss": "wait"}, {"losses": Losses("wait", 60.0), "patience": PATIENCE}
    for at_s in (0.5, 0.511, 0.523):
        faults = dies(victim, at_s=at_s, back_s=1.5)
        results, _ = train_by("fsa", (2, 1), sums, given, faults=faults, **how)  # type: ignore[arg-type]
        assert all(result == [3] * 40 for result in results.values())


def test_a_cut_is_survived() -> None:
    given, how = {"on_loss": "wait"}, {"losses": Losses("wait", 60.0), "patience": PATIENCE}
    results, _ = train_by("fsa", (2, 1), sums, given, faults=cuts("A", "global/0", 0.5, 0.3), **how)  # type: ignore[arg-type]
    assert all(result == [3] * 40 for result in results.values())


def refused(match: str, main: Main, error: type[GeomxError], **given: Any) -> None:
    with pytest.raises(error, match=match):
        train((1, 1), main, settings(**given))


def test_what_cannot_be_is_told() -> None:
    def shapes(run: LiveRun) -> None:
        run.reduce(torch.zeros(2 + place_of(run)))

    def keys(run: LiveRun) -> None:
        run.reduce({"b": 1, "a": 2} if place_of(run) else {"a": 2, "b": 1})

    def types(run: LiveRun) -> None:
        run.reduce(1.5 if place_of(run) else 1)

    def counts(run: LiveRun) -> None:
        if not place_of(run):
            run.reduce(1, wait=False)
        run.reduce(1)

    def sources(run: LiveRun) -> None:
        run.broadcast(1, run.name)

    def fewer(run: LiveRun) -> None:
        for _ in range(1 + (not place_of(run))):
            run.reduce(1)

    def behind(run: LiveRun) -> None:
        run.reduce(1)
        begin(run)

    def itself(run: LiveRun) -> None:
        endless: list[Any] = []
        endless.append(endless)
        run.reduce(endless)

    def ops(run: LiveRun) -> None:
        run.reduce(1, "max" if place_of(run) else "sum")

    def calls(run: LiveRun) -> None:
        run.gather(1) if place_of(run) else run.reduce(1)

    def beside(run: LiveRun) -> None:
        begin(run)
        run.reduce(1)

    def instead(run: LiveRun) -> None:
        model, optimizer = begin(run)
        if place_of(run):
            run.reduce(1)
        else:
            descend(model, optimizer, *drawn(run, 0))

    of = r"A/0 called reduce\(op='sum'\) of {} where B/0 called reduce\(op='sum'\) of {};"
    refused(of.format(r"float32 \[2\]", r"float32 \[3\]"), shapes, RunFailed)
    refused(of.format(r"\{'a': .*, 'b': .*\}", r"\{'b': .*, 'a': .*\}"), keys, RunFailed)
    refused(of.format("int64 .*", "float64 .*"), types, RunFailed)
    refused(
        r"A/0 called reduce\(op='sum'\) of int64 \[\] where B/0 called reduce\(op='max'\)", ops, RunFailed
    )
    refused(r"A/0 called reduce.* where B/0 called gather of \.\.\.", calls, RunFailed)
    refused(r"A/0 called 2 calls where B/0 called 1 calls", counts, RunFailed)
    refused(r"broadcast\(source='A/0'\) .* broadcast\(source='B/0'\)", sources, RunFailed)
    refused("the workers are A/0, B/0", lambda run: run.broadcast(1, "A/7"), Unsupported)
    refused("1 of 2 workers made this call", fewer, Disagreement)
    refused(r"run.attach\(\) behind a collective call", behind, Unsupported)
    refused("holds itself", itself, Unsupported)
    refused("is no int64|too large|Overflow", lambda run: run.reduce(2**70), Unsupported)
    refused("set run.calls = true", beside, Unsupported)
    refused("same calls in the same order", instead, RunFailed, calls=True)
    refused("it takes tensors, arrays and numbers", lambda run: run.reduce("text"), Unsupported)
    refused("NumPy's", lambda run: run.reduce(np.array(["a"])), Unsupported)
    refused("sum, mean, max, min", partial(_reduce_by, "median"), Unsupported)
    refused("which have no order", lambda run: run.reduce(1j, "max"), Unsupported)
    refused("numbers, texts, None, lists and dicts", lambda run: run.map(object()), Unsupported)
    refused("map of .* at most 262144", lambda run: run.map("a" * (1 << 18)), Unsupported)
    refused(
        "gather of .* at most 134213632", lambda run: run.gather(np.empty(1 << 27, np.uint8)), Unsupported
    )


def _reduce_by(op: Any, run: LiveRun) -> None:
    run.reduce(1, op)

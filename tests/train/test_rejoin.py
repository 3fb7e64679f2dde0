"""A worker that is started again goes on where it was: its data, its steps, its schedules."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from live_runs import assert_equal, begin, descend, dies, sgd, sleep, train, weights
from policy_runs import KINDS
from restarts import BATCH, EPOCHS, Counted, N, Script, X, Y, assert_same, at, run_of
from torch.utils.data import BatchSampler, DataLoader, Dataset, IterableDataset, RandomSampler

from geomx.errors import Disagreement, RunFailed
from geomx.node.topology import Edge
from geomx.rounds.losses import Losses
from geomx.simulate.network import SimulatedLink
from geomx.simulate.simulator import Network, Simulator
from geomx.train import LiveRun

CALM: dict[Any, dict[str, Any]] = {}


def calm_of(**how: Any) -> dict[str, Any]:
    key = repr(sorted((name, repr(value)) for name, value in how.items() if name != "loader"))
    if key not in CALM:
        CALM[key] = run_of(Script(**how))
    return CALM[key]


# Of 23 samples A/0 and A/1 have 8 each, B/0 has 7: four steps in an epoch.
@pytest.mark.parametrize(
    ("victim", "step", "where", "every"),
    [
        ("A/1", 0, "step", "step"),  # before the run's first
        ("A/1", 1, "schedule", "step"),
        ("B/0", 2, "step", "epoch"),
        ("A/1", 3, "step", "epoch"),  # the last of a pass
        ("A/1", 4, "schedule", "step"),  # the same, with the gradients sent
        ("A/0", 4, "pass", "epoch"),  # between two passes
        ("B/0", 4, "step", "step"),  # the first of the second pass
        ("A/1", 12, "pass", "epoch"),  # behind all
    ],
)
def test_a_worker_that_is_started_again_ends_with_the_others_and_with_their_bits(
    victim: str, step: int, where: str, every: str
) -> None:
    script = Script(dies=at(victim, step, where), every=every)
    shaken = run_of(script)
    assert len(script.started) == 4
    assert_same(shaken, calm_of(every=every))


@pytest.mark.parametrize(("spec", "step"), [("fsa", 3), ("downpour n_push=1 n_fetch=1", 1)])
def test_whoever_is_started_again_hears_where_the_run_stands_before_its_weights_come(
    spec: str, step: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where datagrams take 1 ms, and the connection, which has lost a segment, 200 more."""
    put, late_s = SimulatedLink.put, 0.0

    def put_late(
        link: SimulatedLink, size: int, priority: int, arrive: Callable[[], None], surely: bool
    ) -> None:
        clock, by_s = link._clock, late_s if surely else 0.0
        put(link, size, priority, lambda: clock.at(clock.now + by_s, arrive), surely)

    monkeypatch.setattr(SimulatedLink, "put", put_late)
    how: dict[str, Any] = {
        "network": Network(rate_mbps=100.0, delay_ms=1.0, keeps_streams=True),
        "lan": Edge(channel="datagram"),
        "losses": Losses("wait", 60.0),
    }
    calm = run_of(Script(epochs=1), spec, **how)
    late_s = 0.2
    script = Script(epochs=1, dies=at("A/1", step, "schedule"))
    shaken = run_of(script, spec, **how)
    assert len(script.started) == 4
    if spec == "fsa":
        assert_same(shaken, calm)


@pytest.mark.parametrize("step", [1, 4])
def test_what_was_accumulated_is_accumulated_again(step: int) -> None:
    script = Script(dies=at("A/1", step, "step"), micro_batches=2)
    shaken = run_of(script)
    assert len(script.started) == 4
    assert_same(shaken, calm_of(micro_batches=2))


def test_a_worker_without_data_left_waits_for_the_others_again() -> None:
    """B/0 has one batch in each pass, A/0 has six; B/0 dies while it waits for A/0."""
    lives: list[str] = []

    def main(run: LiveRun) -> dict[str, torch.Tensor]:
        lives.append(run.name)
        model, optimizer = begin(run)
        batches = [(X[i : i + 3], Y[i : i + 3]) for i in range(1 if run.party == "B" else 6)]
        for _ in range(run.epoch, 3):
            for x, y in run.shard(batches):
                sleep(run, 0.1)
                descend(model, optimizer, x, y)
        return weights(model)

    calm, _ = train([1, 1], main)
    for at_s in (0.35, 0.55, 0.75, 1.05):
        lives.clear()
        shaken, _ = train([1, 1], main, faults=dies("B/0", at_s=at_s, back_s=at_s))
        assert lives.count("B/0") == 2
        for name, values in shaken.items():
            assert_equal(values, calm[name])


@pytest.mark.parametrize(("spec", "wan"), [("fsa", "dense"), ("fsa", "int8"), ("mixed", "dense")])
def test_a_step_of_which_a_part_has_been_answered_is_taken_once_more_from_its_weights(
    spec: str, wan: str
) -> None:
    """The worker dies while its slices leave; those of them that are answered have newer weights by then."""
    again: list[Any] = []
    parties = (2,) if spec == "mixed" else (2, 1)
    how: dict[str, Any] = {
        "network": Network(rate_mbps=2.0, delay_ms=2.0),
        "wan": Edge(wan, wan),
        "losses": Losses("wait", 60.0),
    }
    calm = run_of(Script(epochs=1), spec, parties, **how)
    for at_s in [0.3 + 0.034 * number for number in range(5)]:
        script = Script(epochs=1)

        def faults(simulator: Simulator, restart: Callable[[str], None], at_s: float = at_s) -> None:
            for party in ("A", "B"):
                simulator.link(party, "global/0", Network(rate_mbps=100.0, delay_ms=2.0))
            dies("A/1", at_s=at_s, back_s=at_s)(simulator, restart)

        script.faults = faults  # type: ignore[method-assign]
        script.joined = lambda run: again.append(run._client._again)
        assert_same(run_of(script, spec, parties, **how), calm)
    assert any(turn is not None for turn in again)


class Stream(IterableDataset[Any]):
    def __init__(self, data: Dataset[Any]) -> None:
        self._data = data

    def __iter__(self) -> Iterator[Any]:
        return (self._data[index] for index in range(N))


LOADERS: dict[str, Callable[[Any], Any]] = {
    "shuffled": lambda data: DataLoader(data, BATCH, shuffle=True),
    "in order": lambda data: DataLoader(data, BATCH, drop_last=True),
    "batches of indices": lambda data: DataLoader(
        data, batch_sampler=BatchSampler(RandomSampler(data), BATCH, False)
    ),
    "a stream": lambda data: DataLoader(Stream(data), BATCH),
    "a list": lambda data: list(DataLoader(data, BATCH)),
}


@pytest.mark.parametrize("name", LOADERS)
def test_data_goes_on_behind_what_steps_have_used(name: str) -> None:
    """Where the sampler can be seen, what was used is not even loaded."""
    script = Script(dies=at("A/1", 8, "step"), loader=LOADERS[name], every="epoch")
    run_of(script, parties=(2,))
    calm = Script(loader=LOADERS[name], every="epoch")
    run_of(calm, parties=(2,))
    first, then = script.seen["A/1"]
    (whole,) = calm.seen["A/1"]
    assert first[-BATCH:] == then[:BATCH]  # of the step in which it died
    assert first[:-BATCH] + then == whole
    if name not in ("a stream", "a list"):
        assert script.loaded["A/1"][1] == then


def test_two_shares_in_one_loop_go_on_together() -> None:
    seen: dict[int, list[tuple[int, int]]] = {}
    killing = Script()

    def main(run: LiveRun) -> None:
        life = seen.setdefault(len(seen), []) if run.name == "A/1" else []
        model, optimizer = begin(run)
        one, other = (DataLoader(Counted(), size) for size in (2, 3))
        for (x, y, a), (_, _, b) in zip(run.shard(one), run.shard(other), strict=False):
            life.append((int(a[0]), int(b[0])))
            if run.name == "A/1" and len(seen) == 1 and len(life) == 3:
                killing.kill(run.name)
                sleep(run, 1.0)
            descend(model, optimizer, x, y)

    train([2], main, faults=killing.faults)
    assert seen[0] == [(1, 1), (5, 7), (9, 13)]
    assert seen[1] == [(9, 13), (13, 19)]


@pytest.mark.parametrize("spec", ["hfa k1=4 k2=1", "diloco every=4"])
def test_local_steps_since_the_last_mean_are_taken_again(spec: str) -> None:
    """With the same bits, since this optimizer has no state of its own."""
    calm = run_of(Script(make=sgd), spec)
    for step in (2, 5, 7):
        script = Script(dies=at("A/1", step, "step"), make=sgd)
        shaken = run_of(script, spec)
        assert ("A/1", step // 4 * 4, step // 4) in script.started
        assert_same(shaken, calm)


@pytest.mark.parametrize("spec", KINDS[1:])
def test_with_every_policy_a_restarted_worker_has_only_its_own_data_left(spec: str) -> None:
    for step in (3, 6):
        script = Script(dies=at("A/1", step, "schedule"))
        results = run_of(script, spec)
        assert len(script.started) == 4, spec
        assert {result["at"][1] for result in results.values()} == {EPOCHS}
        assert script.started[-1][2] >= 0
        first, then = script.seen["A/1"]
        assert set(first + then) == set(range(N)) & {*first, *then}
        assert len(then) <= EPOCHS * 8 - len(first) + 6 * BATCH  # what no mean had, once more


# -- schedules that begin anew -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("parties", "victim"), [((1, 1), "B/0"), ((2, 1), "A/0")])
def test_a_schedule_that_begins_anew_is_told_with_what_to_do(parties: tuple[int, ...], victim: str) -> None:
    script = Script(dies=at(victim, 3, "step"), resumes=False)
    with pytest.raises((Disagreement, RunFailed)) as caught:
        run_of(script, parties=parties)
    told = f"{victim} was restarted at step 3: call run.resume(scheduler) before the loop"
    assert told in str(caught.value)


def test_nobody_else_is_told_to_resume() -> None:
    """A worker that was restarted and agrees is not to be blamed where two others differ."""

    class Odd(Script):
        def may_die(self, run: LiveRun, where: str) -> None:
            super().may_die(run, where)
            if run.name == "B/0" and run.step == 7 and run._attached is not None:
                run._attached.optimizer.param_groups[0]["lr"] = 0.5

    script = Odd(dies=at("A/1", 3, "step"))
    with pytest.raises((Disagreement, RunFailed), match="average a metric before it decides"):
        run_of(script)
    assert len(script.started) == 4

"""Workers that the others have gone on without: where their data, steps and schedules go on when they are back."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from live_runs import (
    Faults,
    assert_equal,
    begin,
    cuts,
    descend,
    dies,
    pauses,
    place_of,
    root_s,
    sgd,
    sleep,
    small_model,
    train,
    weights,
)
from policy_runs import train_by
from restarts import Script, X, Y
from torch import nn
from torch.optim import lr_scheduler
from torch.utils.data import DataLoader, TensorDataset

from geomx.errors import NodeLost, RunFailed
from geomx.rounds.losses import Losses
from geomx.simulate.simulator import Simulator
from geomx.train import LiveRun
from geomx.train.checkpoint import file as files
from geomx.wire.session import Patience

PATIENCE = Patience(heartbeat_s=0.1, timeout_s=0.4)
GO_ON = Losses("continue", 60.0)
Results = tuple[dict[str, Any], Simulator]


def run(faults: Faults, script: Any, policy: str = "fsa", parties: Any = (2, 1), **more: Any) -> Results:
    how: dict[str, Any] = {"losses": GO_ON, "patience": PATIENCE} | more
    return train_by(policy, parties, script, {"on_loss": "continue"}, faults=faults, **how)


def ends_as_the_others(results: dict[str, Any], steps: bool = False) -> None:
    """`steps`: it is where they are in their data."""
    first, *others = results.values()
    for other in others:
        assert_equal(first["weights"], other["weights"])
        assert first["turn"] == other["turn"]
        assert (first["at"] if steps else first["at"][1]) == (other["at"] if steps else other["at"][1])
        assert first.get("rates") == other.get("rates")


def trains(live: LiveRun, steps: int, behind: Callable[[int], Any] = lambda step: None) -> int:
    """A loop without `run.shard`; its last turn."""
    model, optimizer = begin(live)
    for step in range(steps):
        sleep(live, 0.05)
        live.weight(1)
        descend(model, optimizer, X[:2], Y[:2])
        behind(step)
    return live.turn


# Of 23 samples A/0 and A/1 have 8 each, B/0 has 7: four steps in a pass, of 0.02 to 0.06 s each.
@pytest.mark.parametrize(
    ("policy", "every"),
    [("fsa", "step"), ("hfa k1=1 k2=2", "epoch"), ("diloco every=2", "epoch"), ("esync", "epoch")],
)
def test_who_stood_still_over_the_end_of_passes_leaves_out_what_is_left_of_them(
    policy: str, every: str
) -> None:
    """Its schedule follows what the others have done, and it reads why it is not let in at once."""
    results, simulator = run(pauses("B/0", 0.15, 1.0), Script(epochs=9, every=every), policy)
    assert root_s(simulator, "roster")[-1]["joined"] == "B/0"
    ends_as_the_others(results, steps=policy == "fsa")
    told = [(node, fields.get("peer"), fields["reason"]) for _, node, fields in simulator.noted("refused")]
    why = "nothing was heard of B/0 for more than 0.4 s, and the run went on; it may ask to come back"
    assert told == [("B", "B/0", why)]
    assert [(node, fields["reason"]) for _, node, fields in simulator.noted("anew")] == [("B/0", why)]


@pytest.mark.parametrize(
    ("policy", "loads", "victims", "every"),
    [
        ("fsa", False, ("B/0",), "step"),
        ("fsa", True, ("B/0", "B"), "epoch"),
        ("hfa k1=1 k2=2", False, ("B/0", "B"), "epoch"),
        ("hfa k1=1 k2=2", True, ("B/0",), "epoch"),
    ],
)
def test_who_is_started_again_goes_on_in_the_pass_that_the_run_is_in(
    policy: str, loads: bool, victims: tuple[str, ...], every: str, tmp_path: Path
) -> None:
    """Also where nobody remembers how far it was, since its local server is new as well, and behind a checkpoint."""
    begun: list[tuple[str, int]] = []
    path, before = tmp_path / "model.safetensors", 3 if loads else 0

    def saves(live: LiveRun, where: str) -> bool:
        if where == "pass" and live.epoch == before:
            live.save(path)
        return False

    if loads:
        run(lambda *_: None, Script(epochs=before, every=every, dies=saves), policy)

    def joined(live: LiveRun) -> None:
        if loads:
            live.load(path)
        begun.append((live.name, live.epoch))

    script = Script(epochs=before + 11, every=every, joined=joined)
    results, _ = run(dies(*victims, at_s=0.2, back_s=1.2), script, policy)
    ends_as_the_others(results, steps=policy == "fsa")
    (name, epoch) = begun[-1]
    assert name == "B/0"
    assert before + 4 <= epoch < before + 11


@pytest.mark.parametrize("victims", [("B/0",), ("B/0", "B"), ("B",)])
def test_nobody_waits_until_a_party_has_made_up_for_its_absence(victims: tuple[str, ...]) -> None:
    """With a bound on staleness, turns that a party has missed do not count."""
    steps: list[tuple[str, int]] = []

    def script(live: LiveRun) -> None:
        model, optimizer = begin(live)
        for x, y in live.shard([(X[:2], Y[:2])] * 70):
            sleep(live, 0.02)
            descend(model, optimizer, x, y)
            steps.append((live.name, live._joined("").steps.turn))

    def faults(simulator: Simulator, _: Any) -> None:
        for victim in victims:
            pauses(victim, 0.15, 0.8)(simulator, _)

    run(faults, script, "mixed staleness=1", (1, 1))
    mine = [place for place, (name, _) in enumerate(steps) if name == "B/0"]
    back = next(other for one, other in pairwise(mine) if other - one > 5)
    ahead = max(turn for name, turn in steps[:back] if name == "A/0")
    assert 0 <= ahead - steps[back][1] <= 2


def test_a_run_that_has_ended_tells_whoever_is_late() -> None:
    with pytest.raises(NodeLost, match="the run has ended, and this worker took no part in its end"):
        run(cuts("B", "global/0", 0.15, 1.3), Script(epochs=4))


class Readers:
    """A script that writes down who reads what, of the data of the whole run."""

    def __init__(self, epochs: int, tmp_path: Path | None = None, loads: bool = False) -> None:
        self.epochs, self.checkpoint, self.loads = epochs, tmp_path and tmp_path / "model.safetensors", loads
        self.read: dict[int, list[tuple[str, int]]] = defaultdict(list)  # by pass: worker and sample

    def __call__(self, live: LiveRun) -> dict[str, Any]:
        torch.manual_seed(0)
        model, optimizer = begin(live)
        if self.loads and self.checkpoint is not None:
            live.load(self.checkpoint)
        loader = DataLoader(TensorDataset(torch.arange(len(X)), X, Y), 2, shuffle=True)
        for epoch in range(live.epoch, self.epochs):
            for at, (which, x, y) in enumerate(live.shard(loader, over="run")):
                self.read[epoch] += [(live.name, int(sample)) for sample in which]
                sleep(live, 0.02 * (1 + place_of(live)))
                descend(model, optimizer, x, y)
                if self.checkpoint is not None and not self.loads and (epoch, at) == (5, 1):
                    live.save(self.checkpoint)
        live.wait()
        return {"weights": weights(model), "turn": live.turn, "at": (live.step, live.epoch)}

    def readers(self, epoch: int) -> set[str]:
        return {name for name, _ in self.read[epoch]}

    def samples(self, epoch: int) -> list[int]:
        return sorted(sample for _, sample in self.read[epoch])


@pytest.mark.parametrize("policy", ["fsa", "hfa k1=1 k2=2"])
def test_the_next_pass_is_shared_among_those_who_take_part_in_it(policy: str) -> None:
    script = Readers(epochs=13)
    results, _ = run(dies("B/0", at_s=0.35, back_s=1.5), script, policy)
    ends_as_the_others(results)
    whole = [epoch for epoch in range(13) if script.samples(epoch) == list(range(len(X)))]
    without = [epoch for epoch in whole if script.readers(epoch) == {"A/0", "A/1"}]
    behind = [epoch for epoch in whole if script.readers(epoch) == {"A/0", "A/1", "B/0"}]
    assert without
    assert min(behind) < min(without) < max(without) < max(behind)
    assert len(whole) >= 13 - 2  # but for the passes amid which it was lost and came back


def test_a_checkpoint_knows_among_whom_the_running_pass_was_shared(tmp_path: Path) -> None:
    before = Readers(6, tmp_path)
    run(dies("B/0", at_s=0.2), before)
    behind = Readers(6, tmp_path, loads=True)
    run(lambda *_: None, behind)
    first = [read for read in before.read[5] if read[0] != "B/0"][: 2 * 2 * 2]  # two steps of two workers
    assert len({sample for _, sample in first}) == 8
    rest = [sample for name, sample in behind.read[5] if name != "B/0"]
    assert sorted([*(sample for _, sample in first), *rest]) == list(range(len(X)))


@pytest.mark.parametrize("policy", ["fsa", "hfa k1=1 k2=2"])
def test_who_was_cut_off_takes_no_part_in_calls_that_the_others_have_made(
    policy: str, tmp_path: Path
) -> None:
    """The script saves behind each pass, and the mean of BatchNorm's statistics is a call of everybody's."""

    def script(live: LiveRun) -> tuple[int, int]:
        torch.manual_seed(0)
        model, optimizer = begin(live, model=small_model().insert(1, nn.BatchNorm1d(64).double()))
        loader = DataLoader(TensorDataset(X, Y), 2, shuffle=True, drop_last=True)
        for _ in range(live.epoch, 9):
            for x, y in live.shard(loader, over="run"):
                sleep(live, 0.02 * (1 + place_of(live)))
                descend(model, optimizer, x, y)
            live.save(tmp_path / "model.safetensors")
        live.wait()
        return live.turn, live.epoch

    results, simulator = run(cuts("B/0", "B", 0.3, 1.0), script, policy)
    assert {epoch for _, epoch in results.values()} == {9}
    assert len(set(results.values())) == 1
    assert {node for _, node, _ in simulator.noted("unsaved")} == {"B/0"}


@dataclass
class Saves:
    """Trains, saves behind a step, and trains on. `strikes`: what befalls the first worker when it is about to save.

    `away_s`: how long it then is not heard of; `late_s`: what lies between that step and everybody's call.
    """

    path: Path
    strikes: Callable[[Simulator], None]
    away_s: float = 0.0
    late_s: float = 0.0
    steps: int = 60
    at: dict[tuple[str, int], dict[str, torch.Tensor]] = field(default_factory=dict)  # weights behind a step

    def run(self, policy: str = "fsa") -> Results:
        def faults(simulator: Simulator, _: Any) -> None:
            self.simulator = simulator

        return run(faults, self, policy)

    def __call__(self, live: LiveRun) -> dict[str, torch.Tensor]:
        model, optimizer = begin(live)
        for x, y in live.shard([(X[:2], Y[:2])] * 3 * self.steps, over="run"):
            sleep(live, 0.05)
            descend(model, optimizer, x, y)
            self.at[live.name, live.step] = weights(model)
            if live.step == 10:
                if live.is_first:
                    self.simulator.at(self.simulator.now, lambda: self.strikes(self.simulator))
                    sleep(live, self.away_s)
                sleep(live, self.late_s)
                live.save(self.path)
        live.wait()
        return weights(model)


@pytest.mark.parametrize("late_s", [0.0, 5.0])
def test_who_writes_is_who_has_come_to_the_call(late_s: float, tmp_path: Path) -> None:
    """Though the first worker has taken part in the step before, and nobody has heard anything since."""
    script = Saves(tmp_path / "model.safetensors", lambda s: s.crash("A/0"), 9.0, late_s, steps=20)
    _, simulator = script.run()
    assert {node for _, node, _ in simulator.noted("saves")} == {"A/1"}
    assert files.read(script.path).step == 10


@pytest.mark.parametrize("policy", ["fsa", "diloco every=5"])
def test_who_is_cut_off_in_a_save_writes_nothing_of_a_later_step(policy: str, tmp_path: Path) -> None:
    script = Saves(tmp_path / "model.safetensors", lambda s: s.cut("A/0", "A", 1.5))
    results, simulator = script.run(policy)
    assert [node for _, node, _ in simulator.noted("unsaved")] == ["A/0"]
    saved = files.read(script.path)
    assert saved.step == 10
    if policy == "fsa":
        assert_equal(saved.model, script.at["A/1", 10])
    assert_equal(results["A/0"], results["A/1"])


def test_who_is_cut_off_in_a_load_goes_on_beside_the_others(tmp_path: Path) -> None:
    path, places = tmp_path / "model.safetensors", dict[int, set[Any]]()
    simulators: list[Simulator] = []

    def script(live: LiveRun, loads: bool) -> tuple[int, int]:
        model, optimizer = begin(live)
        if loads and live.name == "B/0":
            simulators[0].at(simulators[0].now + 0.001, lambda: simulators[0].cut("B/0", "B", 1.0))
        if loads:
            live.load(path)
        schedule = lr_scheduler.ExponentialLR(optimizer, 0.99)
        live.resume(schedule)
        for _ in range(live.epoch, 7 if loads else 2):
            for x, y in live.shard([(X[:2], Y[:2])] * 24, over="run"):
                sleep(live, 0.05)
                descend(model, optimizer, x, y)
                schedule.step()
                places.setdefault(live.turn, set()).add((live.step, live.epoch))
        if not loads:
            live.save(path)
        return live.step, live.epoch

    run(lambda *_: None, partial(script, loads=False))
    places.clear()
    results, simulator = run(lambda simulator, _: simulators.append(simulator), partial(script, loads=True))
    assert [node for _, node, _ in simulator.noted("anew")] == ["B/0"]
    assert len(set(results.values())) == 1
    assert all(len(each) == 1 for each in places.values())


@pytest.mark.parametrize(
    ("faults", "batches", "over", "micro_batches", "workers"),
    [  # of seven batches, two make a step: in the turn for the last one nobody trains, and it is no step
        (pauses("B/0", 0.5, 1.0), 7, "party", 2, 3),
        (dies("B/0", at_s=0.5, back_s=1.5), 7, "party", 2, 3),
        # a loss has made shares unequal, of 8 and 7 batches: the last step of a pass is one worker's alone
        (dies("A/1", at_s=0.5), 15, "run", 1, 2),
    ],
)
def test_steps_are_counted_alike_where_passes_end_unevenly(
    faults: Faults, batches: int, over: Any, micro_batches: int, workers: int
) -> None:
    def script(live: LiveRun) -> tuple[int, float]:
        model, optimizer = begin(live)
        schedule = lr_scheduler.ExponentialLR(optimizer, 0.99)
        live.resume(schedule)
        for _ in range(live.epoch, 11):
            for number, (x, y) in enumerate(live.shard([(X[:2], Y[:2])] * batches, over=over), start=1):
                sleep(live, 0.03)
                is_last = number % micro_batches == 0
                with nullcontext() if is_last else live.accumulate():
                    F.mse_loss(model(x), y).backward()
                if is_last:
                    optimizer.step()
                    optimizer.zero_grad()
                    schedule.step()
        return live.step, optimizer.param_groups[0]["lr"]

    results, simulator = run(faults, script)
    if workers == 3:
        assert root_s(simulator, "roster")[-1]["joined"] == "B/0"
    assert len(results) == workers
    ((steps, rate),) = set(results.values())
    assert rate == pytest.approx(0.05 * 0.99**steps)


def test_where_the_first_worker_is_away_the_others_load_a_checkpoint_all_the_same(tmp_path: Path) -> None:
    path, saved = tmp_path / "model.safetensors", small_model(seed=7)

    def saves(live: LiveRun) -> None:
        live.attach(saved, sgd(saved))
        live.save(path)

    def loads(live: LiveRun) -> dict[str, torch.Tensor]:
        model, optimizer = begin(live)
        sleep(live, 2.0)
        live.load(path)
        live.weight(1)
        (0 * model(X[:2])).sum().backward()
        optimizer.step()
        return weights(model)

    train((), saves)
    results, _ = run(dies("A/0", at_s=0.5), loads)
    assert results.keys() == {"A/1", "B/0"}
    for found in results.values():
        assert_equal(found, weights(saved))


def test_a_server_that_is_started_again_knows_who_has_left() -> None:
    def script(live: LiveRun) -> int:
        return trains(live, 5 if live.name == "A/0" else 60)

    results, _ = run(dies("A", at_s=1.5, back_s=3.0), script, losses=Losses("wait", 60.0))
    assert results == {"A/0": 6, "A/1": 61, "B/0": 61}


def test_a_party_that_stays_cut_off_ends_without_the_others() -> None:
    """Not with those whom it can still reach."""
    taken: dict[str, int] = {}

    def script(live: LiveRun) -> None:
        trains(live, 100, lambda step: taken.update({live.name: step}))

    with pytest.raises((NodeLost, RunFailed), match="global/1 is lost"):
        run(cuts("B", "global/1", 0.2, 100.0), script, shards=2, losses=Losses("continue", 2.0))
    assert taken["A/0"] == taken["A/1"] == 99 > taken["B/0"]


@pytest.mark.parametrize("victim", ["A/1", "B/0"])
def test_where_too_few_are_left_everybody_names_whom_they_have_waited_for(victim: str) -> None:
    """Also those who hear of it from a local server: its end is the run's."""
    simulators: list[Simulator] = []

    def faults(simulator: Simulator, restart: Callable[[str], None]) -> None:
        simulators.append(simulator)
        dies(victim, at_s=0.5)(simulator, restart)

    with pytest.raises((NodeLost, RunFailed), match=f"{victim} is lost"):
        run(faults, lambda live: trains(live, 1000), losses=Losses("continue", 2.0, least_workers=3))
    failed = {node: fields["node"] for _, node, fields in simulators[0].noted("failed")}
    assert failed == dict.fromkeys({"global/0", "A", "B", "A/0", "A/1", "B/0"} - {victim}, victim)


def test_a_party_that_is_not_there_before_the_run_begins_is_not_awaited_for_ever() -> None:
    """Its server has no model yet when it tells of its worker."""

    def script(live: LiveRun) -> None:
        if live.name == "B/0":
            sleep(live, 100.0)
        begin(live)

    with pytest.raises((NodeLost, RunFailed), match="B/0 is lost"):
        run(dies("B/0", at_s=0.5), script, losses=Losses("continue", 2.0))

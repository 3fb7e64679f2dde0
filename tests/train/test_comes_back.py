"""Workers that the others have gone on without: where their data, steps and schedules go on when they are back."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from contextlib import nullcontext
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from live_runs import assert_equal, place_of, sgd, small_model, train, weights
from restarts import Script, X, Y
from torch import nn
from torch.optim import lr_scheduler
from torch.utils.data import DataLoader, TensorDataset

from geomx.errors import NodeLost, RunFailed
from geomx.rounds.losses import Losses
from geomx.simulate.simulator import Simulator
from geomx.sync import policies
from geomx.train import LiveRun, Settings
from geomx.train.checkpoint import file as files
from geomx.wire.session import Patience

PATIENCE = Patience(heartbeat_s=0.1, timeout_s=0.4)
GO_ON = Losses("continue", 60.0)


def run(
    faults: Callable[[Simulator, Callable[[str], None]], None],
    script: Script,
    policy: str = "fsa",
    **more: Any,
) -> tuple[dict[str, Any], Simulator]:
    settings = Settings(slice_elements=512, pack_below=100, policy=policies.make(policy), on_loss="continue")
    how: dict[str, Any] = {"policy": policy, "losses": GO_ON, "patience": PATIENCE} | more
    return train((2, 1), script, settings, faults=faults, **how)


def ends_as_the_others(results: dict[str, Any]) -> None:
    first, *others = results.values()
    for other in others:
        assert_equal(first["weights"], other["weights"])
        assert first["turn"] == other["turn"]
        assert first["at"][1] == other["at"][1]  # passes


# Of 23 samples A/0 and A/1 have 8 each, B/0 has 7: four steps in a pass, of 0.02 to 0.06 s each.
@pytest.mark.parametrize("policy", ["fsa", "hfa k1=1 k2=2", "diloco every=2", "esync"])
def test_who_stood_still_over_the_end_of_passes_leaves_out_what_is_left_of_them(policy: str) -> None:
    def faults(simulator: Simulator, _: Any) -> None:
        simulator.at(0.15, lambda: simulator.pause("B/0", 1.0))

    results, simulator = run(faults, Script(epochs=12, every="epoch"), policy)
    assert [fields["joined"] for _, node, fields in simulator.noted("roster") if node == "global/0"][
        -1
    ] == "B/0"
    ends_as_the_others(results)


def test_who_stood_still_reads_why_it_is_not_let_in_at_once() -> None:
    def faults(simulator: Simulator, _: Any) -> None:
        simulator.at(0.15, lambda: simulator.pause("B/0", 1.0))

    _, simulator = run(faults, Script(epochs=12, every="epoch"))
    told = [(node, fields.get("peer"), fields["reason"]) for _, node, fields in simulator.noted("refused")]
    why = "nothing was heard of B/0 for more than 0.4 s, and the run went on; it may ask to come back"
    assert told == [("B", "B/0", why)]
    assert [(node, fields["reason"]) for _, node, fields in simulator.noted("anew")] == [("B/0", why)]


@pytest.mark.parametrize("victims", [("B/0",), ("B/0", "B")])
@pytest.mark.parametrize("loads", [False, True])
@pytest.mark.parametrize("policy", ["fsa", "hfa k1=1 k2=2"])
def test_who_is_started_again_goes_on_in_the_pass_that_the_run_is_in(
    policy: str, loads: bool, victims: tuple[str, ...], tmp_path: Path
) -> None:
    """Also where nobody remembers how far it was, since its local server is new as well, and behind a checkpoint."""
    begun: list[tuple[str, int]] = []
    path, before = tmp_path / "model.safetensors", 5 if loads else 0

    def saves(live: LiveRun, where: str) -> bool:
        if where == "pass" and live.epoch == before:
            live.save(path)
        return False

    if loads:
        run(lambda *_: None, Script(epochs=before, every="epoch", dies=saves), policy)

    def faults(simulator: Simulator, restart: Callable[[str], None]) -> None:
        for victim in victims:
            simulator.at(0.2, lambda victim=victim: simulator.crash(victim))
        for victim in victims:
            simulator.at(1.2, lambda victim=victim: restart(victim))

    script = Script(epochs=before + 12, every="epoch")

    def joined(live: LiveRun) -> None:
        if loads:
            live.load(path)
        begun.append((live.name, live.epoch))

    script.joined = joined
    results, _ = run(faults, script, policy)
    ends_as_the_others(results)
    (name, epoch) = begun[-1]
    assert name == "B/0"
    assert before + 4 <= epoch < before + 12


@pytest.mark.parametrize("victims", [("B/0",), ("B/0", "B"), ("B",)])
def test_nobody_waits_until_a_party_has_made_up_for_its_absence(victims: tuple[str, ...]) -> None:
    """With a bound on staleness, turns that a party has missed do not count."""
    steps: list[tuple[str, int]] = []

    def script(live: LiveRun) -> None:
        model = small_model(seed=place_of(live))
        model, optimizer = live.attach(model, torch.optim.SGD(model.parameters(), lr=0.1))
        for x, y in live.shard([(X[:2], Y[:2])] * 120):
            live._client.port.sleep(0.02)  # type: ignore[attr-defined]  # virtual
            optimizer.zero_grad()
            F.mse_loss(model(x), y).backward()
            optimizer.step()
            steps.append((live.name, live._joined("").steps.turn))

    def faults(simulator: Simulator, _: Any) -> None:
        for victim in victims:
            simulator.at(0.15, lambda victim=victim: simulator.pause(victim, 1.0))

    policy = "mixed staleness=1"
    settings = Settings(slice_elements=512, pack_below=100, policy=policies.make(policy), on_loss="continue")
    train((1, 1), script, settings, faults=faults, policy=policy, losses=GO_ON, patience=PATIENCE)
    mine = [place for place, (name, _) in enumerate(steps) if name == "B/0"]
    back = next(other for one, other in pairwise(mine) if other - one > 5)
    ahead = max(turn for name, turn in steps[:back] if name == "A/0")
    assert 0 <= ahead - steps[back][1] <= 2


def test_a_run_that_has_ended_tells_whoever_is_late() -> None:
    def faults(simulator: Simulator, restart: Callable[[str], None]) -> None:
        simulator.at(0.15, lambda: simulator.cut("B", "global/0", 1.3))

    with pytest.raises(
        Exception, match="the run has ended, and this worker took no part in its end"
    ) as caught:
        run(faults, Script(epochs=4))
    assert type(caught.value).__name__ == "NodeLost"


@pytest.mark.parametrize("dies", [False, True])
@pytest.mark.parametrize("every", ["step", "epoch"])
def test_schedules_follow_what_the_others_have_done(every: str, dies: bool) -> None:
    def faults(simulator: Simulator, restart: Callable[[str], None]) -> None:
        if dies:
            simulator.at(0.17, lambda: simulator.crash("B/0"))
            simulator.at(1.2, lambda: restart("B/0"))
        else:
            simulator.at(0.15, lambda: simulator.pause("B/0", 1.0))

    results, _ = run(faults, Script(epochs=12, every=every))
    ends_as_the_others(results)
    assert results["B/0"]["rates"] == results["A/0"]["rates"]
    assert results["B/0"]["at"] == results["A/0"]["at"]  # its steps, too: it is where they are in their data


class Readers:
    """A script that writes down who reads what, of the data of the whole run."""

    def __init__(self, epochs: int, tmp_path: Path | None = None, loads: bool = False) -> None:
        self.epochs, self.checkpoint, self.loads = epochs, tmp_path and tmp_path / "model.safetensors", loads
        self.read: dict[int, list[tuple[str, int]]] = defaultdict(list)  # by pass: worker and sample

    def __call__(self, live: LiveRun) -> dict[str, Any]:
        torch.manual_seed(0)
        model: Any = small_model()
        model, optimizer = live.attach(model, torch.optim.SGD(model.parameters(), lr=0.1))
        if self.loads and self.checkpoint is not None:
            live.load(self.checkpoint)
        loader = DataLoader(TensorDataset(torch.arange(len(X)), X, Y), 2, shuffle=True)
        for epoch in range(live.epoch, self.epochs):
            for at, (which, x, y) in enumerate(live.shard(loader, over="run")):
                self.read[epoch] += [(live.name, int(sample)) for sample in which]
                live._client.port.sleep(0.02 * (1 + place_of(live)))  # type: ignore[attr-defined]  # virtual
                optimizer.zero_grad()
                F.mse_loss(model(x), y).backward()
                optimizer.step()
                if self.checkpoint is not None and not self.loads and (epoch, at) == (5, 1):
                    live.save(self.checkpoint)
        live.wait()
        return {"weights": weights(model), "turn": live.turn, "at": (live.step, live.epoch)}

    def readers(self, epoch: int) -> set[str]:
        return {name for name, _ in self.read[epoch]}

    def samples(self, epoch: int) -> list[int]:
        return sorted(sample for _, sample in self.read[epoch])


@pytest.mark.parametrize("policy", ["fsa", "diloco every=2", "hfa k1=1 k2=2"])
def test_the_next_pass_is_shared_among_those_who_take_part_in_it(policy: str) -> None:
    def faults(simulator: Simulator, restart: Callable[[str], None]) -> None:
        simulator.at(0.35, lambda: simulator.crash("B/0"))
        simulator.at(2.0, lambda: restart("B/0"))

    script = Readers(epochs=16)
    results, _ = run(faults, script, policy)
    ends_as_the_others(results)
    whole = [epoch for epoch in range(16) if script.samples(epoch) == list(range(len(X)))]
    without = [epoch for epoch in whole if script.readers(epoch) == {"A/0", "A/1"}]
    behind = [epoch for epoch in whole if script.readers(epoch) == {"A/0", "A/1", "B/0"}]
    assert without
    assert min(behind) < min(without) < max(without) < max(behind)
    assert len(whole) >= 16 - 2  # but for the passes amid which it was lost and came back


def test_a_checkpoint_knows_among_whom_the_running_pass_was_shared(tmp_path: Path) -> None:
    def faults(simulator: Simulator, restart: Callable[[str], None]) -> None:
        simulator.at(0.2, lambda: simulator.crash("B/0"))

    before = Readers(6, tmp_path)
    run(faults, before)
    behind = Readers(6, tmp_path, loads=True)
    run(lambda *_: None, behind)
    first = [read for read in before.read[5] if read[0] != "B/0"][: 2 * 2 * 2]  # two steps of two workers
    assert len({sample for _, sample in first}) == 8
    rest = [sample for name, sample in behind.read[5] if name != "B/0"]
    assert sorted([*(sample for _, sample in first), *rest]) == list(range(len(X)))


@pytest.mark.parametrize("policy", ["fsa", "esync", "hfa k1=1 k2=2"])
def test_who_was_cut_off_takes_no_part_in_calls_that_the_others_have_made(
    policy: str, tmp_path: Path
) -> None:
    """The script saves behind each pass, and the mean of BatchNorm's statistics is a call of everybody's."""

    def script(live: LiveRun) -> dict[str, Any]:
        torch.manual_seed(0)
        model: Any = nn.Sequential(nn.Linear(20, 64), nn.BatchNorm1d(64), nn.Linear(64, 5)).double()
        model, optimizer = live.attach(model, torch.optim.SGD(model.parameters(), lr=0.1))
        loader = DataLoader(TensorDataset(X, Y), 2, shuffle=True, drop_last=True)
        for _ in range(live.epoch, 12):
            for x, y in live.shard(loader, over="run"):
                live._client.port.sleep(0.02 * (1 + place_of(live)))  # type: ignore[attr-defined]  # virtual
                optimizer.zero_grad()
                F.mse_loss(model(x), y).backward()
                optimizer.step()
            live.save(tmp_path / "model.safetensors")
        live.wait()
        return {"weights": weights(model), "turn": live.turn, "at": (live.step, live.epoch)}

    def faults(simulator: Simulator, _: Any) -> None:
        simulator.at(0.3, lambda: simulator.cut("B/0", "B", 1.0))

    results, simulator = run(faults, script, policy)
    first, *others = results.values()
    assert all((other["turn"], other["at"][1]) == (first["turn"], 12) for other in others)
    assert {node for _, node, _ in simulator.noted("unsaved")} == {"B/0"}


def test_where_the_first_worker_is_away_the_next_writes_the_checkpoint(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"

    def script(live: LiveRun) -> int:
        model = small_model(seed=place_of(live))
        model, optimizer = live.attach(model, torch.optim.SGD(model.parameters(), lr=0.1))
        for step in range(30):
            live._client.port.sleep(0.05)  # type: ignore[attr-defined]  # of the virtual clock
            live.weight(1)
            optimizer.zero_grad()
            model(X[:2]).sum().backward()
            optimizer.step()
            if step == 20:
                live.save(path)
        return live.turn

    def faults(simulator: Simulator, _: Any) -> None:
        simulator.at(0.5, lambda: simulator.crash("A/0"))

    run(faults, script)
    assert path.exists()


class Saves:
    """Trains, saves behind a step, and trains on. `late_s`: what lies between that step and the call."""

    def __init__(self, path: Path, late_s: float = 0.0, steps: int = 100) -> None:
        self.path, self._late_s, self._steps = path, late_s, steps
        self.at: dict[tuple[str, int], dict[str, torch.Tensor]] = {}  # the weights of a worker behind a step
        self.simulator: Simulator

    def __call__(self, live: LiveRun) -> dict[str, torch.Tensor]:
        model = small_model(seed=place_of(live))
        model, optimizer = live.attach(model, torch.optim.SGD(model.parameters(), lr=0.01))
        for x, y in live.shard([(X[:2], Y[:2])] * 3 * self._steps, over="run"):
            live._client.port.sleep(0.05)  # type: ignore[attr-defined]  # of the virtual clock
            optimizer.zero_grad()
            F.mse_loss(model(x), y).backward()
            optimizer.step()
            self.at[live.name, live.step] = weights(model)
            if live.step == 10:
                self.saves(live)
                live._client.port.sleep(self._late_s)  # type: ignore[attr-defined]
                live.save(self.path)
        live.wait()
        return weights(model)

    def saves(self, live: LiveRun) -> None:
        """It is about to."""


@pytest.mark.parametrize("late_s", [0.0, 5.0])
def test_who_writes_is_who_has_come_to_the_call(late_s: float, tmp_path: Path) -> None:
    """Though the first worker has taken part in the step before, and nobody has heard anything since."""

    class Dies(Saves):
        def saves(self, live: LiveRun) -> None:
            if live.is_first:
                self.simulator.at(self.simulator.now, lambda: self.simulator.crash("A/0"))
                live._client.port.sleep(9.0)  # type: ignore[attr-defined]

    script = Dies(tmp_path / "model.safetensors", late_s)
    _, simulator = run(lambda simulator, _: setattr(script, "simulator", simulator), script)
    assert {node for _, node, _ in simulator.noted("saves")} == {"A/1"}
    assert files.read(script.path).step == 10


@pytest.mark.parametrize("policy", ["fsa", "diloco every=5"])
def test_who_is_cut_off_in_a_save_writes_nothing_of_a_later_step(policy: str, tmp_path: Path) -> None:
    class IsCutOff(Saves):
        def saves(self, live: LiveRun) -> None:
            if live.is_first:
                self.simulator.at(self.simulator.now, lambda: self.simulator.cut("A/0", "A", 2.0))

    script = IsCutOff(tmp_path / "model.safetensors")
    results, simulator = run(lambda simulator, _: setattr(script, "simulator", simulator), script, policy)
    assert [node for _, node, _ in simulator.noted("unsaved")] == ["A/0"]
    saved = files.read(script.path)
    assert saved.step == 10
    if policy == "fsa":
        assert_equal(saved.model, script.at["A/1", 10])
    assert_equal(results["A/0"], results["A/1"])


def test_who_is_cut_off_in_a_load_goes_on_beside_the_others(tmp_path: Path) -> None:
    path, places = tmp_path / "model.safetensors", dict[int, set[Any]]()

    def script(live: LiveRun, loads: bool) -> tuple[int, int]:
        model = small_model(seed=place_of(live))
        model, optimizer = live.attach(model, sgd(model))
        if loads and live.name == "B/0":
            simulators[0].at(simulators[0].now + 0.001, lambda: simulators[0].cut("B/0", "B", 2.0))
        if loads:
            live.load(path)
        schedule = lr_scheduler.ExponentialLR(optimizer, 0.99)
        live.resume(schedule)
        for _ in range(live.epoch, 14 if loads else 2):
            for x, y in live.shard([(X[:2], Y[:2])] * 30, over="run"):
                live._client.port.sleep(0.05)  # type: ignore[attr-defined]  # of the virtual clock
                optimizer.zero_grad()
                F.mse_loss(model(x), y).backward()
                optimizer.step()
                schedule.step()
                places.setdefault(live.turn, set()).add((live.step, live.epoch))
        if not loads:
            live.save(path)
        return live.step, live.epoch

    simulators: list[Simulator] = []
    run(lambda *_: None, lambda live: script(live, loads=False))
    places.clear()
    results, _ = run(lambda simulator, _: simulators.append(simulator), lambda live: script(live, loads=True))
    assert len(set(results.values())) == 1
    assert all(len(each) == 1 for each in places.values())


@pytest.mark.parametrize("dies", [False, True])
def test_steps_are_counted_alike_where_passes_end_with_half_a_step(dies: bool) -> None:
    """Of seven batches, two make a step: in the turn for the last one nobody trains, and it is no step."""

    def script(live: LiveRun) -> tuple[int, float]:
        model = small_model(seed=place_of(live))
        model, optimizer = live.attach(model, sgd(model))
        schedule = lr_scheduler.ExponentialLR(optimizer, 0.99)
        live.resume(schedule)
        for _ in range(live.epoch, 16):
            for number, (x, y) in enumerate(live.shard([(X[:2], Y[:2])] * 7)):
                live._client.port.sleep(0.03)  # type: ignore[attr-defined]  # of the virtual clock
                with nullcontext() if number % 2 else live.accumulate():
                    F.mse_loss(model(x), y).backward()
                if number % 2:
                    optimizer.step()
                    optimizer.zero_grad()
                    schedule.step()
        return live.step, optimizer.param_groups[0]["lr"]

    def faults(simulator: Simulator, restart: Callable[[str], None]) -> None:
        if not dies:
            simulator.at(0.5, lambda: simulator.pause("B/0", 1.0))
            return
        simulator.at(0.5, lambda: simulator.crash("B/0"))
        simulator.at(1.5, lambda: restart("B/0"))

    results, _ = run(faults, script)
    ((steps, rate),) = set(results.values())
    assert rate == pytest.approx(0.05 * 0.99**steps)


def test_schedules_of_steps_go_on_where_a_loss_has_made_shares_unequal() -> None:
    """Of 17 batches each, two workers have 26 and 25: the last step of a pass is one worker's alone."""

    def script(live: LiveRun) -> tuple[int, float]:
        model = small_model(seed=place_of(live))
        model, optimizer = live.attach(model, sgd(model))
        schedule = lr_scheduler.ExponentialLR(optimizer, 0.99)
        live.resume(schedule)
        for _ in range(live.epoch, 5):
            for x, y in live.shard([(X[:2], Y[:2])] * 51, over="run"):
                live._client.port.sleep(0.02)  # type: ignore[attr-defined]  # of the virtual clock
                optimizer.zero_grad()
                F.mse_loss(model(x), y).backward()
                optimizer.step()
                schedule.step()
        return live.step, optimizer.param_groups[0]["lr"]

    results, _ = run(lambda simulator, _: simulator.at(0.5, lambda: simulator.crash("A/1")), script)
    assert results.keys() == {"A/0", "B/0"}
    assert len(set(results.values())) == 1


def test_where_the_first_worker_is_away_the_others_load_a_checkpoint_all_the_same(tmp_path: Path) -> None:
    path, saved = tmp_path / "model.safetensors", small_model(seed=7)

    def attached(live: LiveRun, seed: int) -> tuple[Any, torch.optim.Optimizer]:
        model = small_model(seed=seed)
        return live.attach(model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))

    def saves(live: LiveRun) -> None:
        attached(live, seed=7)
        live.save(path)

    def loads(live: LiveRun) -> dict[str, torch.Tensor]:
        model, optimizer = attached(live, seed=place_of(live))
        live._client.port.sleep(2.0)  # type: ignore[attr-defined]  # of the virtual clock
        live.load(path)
        live.weight(1)
        optimizer.zero_grad()
        (0 * model(X[:2])).sum().backward()
        optimizer.step()
        return weights(model)

    def faults(simulator: Simulator, _: Any) -> None:
        simulator.at(0.5, lambda: simulator.crash("A/0"))

    train((), saves)
    results, _ = run(faults, loads)
    assert results.keys() == {"A/1", "B/0"}
    for found in results.values():
        assert_equal(found, weights(saved))


def test_a_server_that_is_started_again_knows_who_has_left() -> None:
    def script(live: LiveRun) -> int:
        model = small_model(seed=place_of(live))
        model, optimizer = live.attach(model, torch.optim.SGD(model.parameters(), lr=0.1))
        for _ in range(5 if live.name == "A/0" else 60):
            live._client.port.sleep(0.05)  # type: ignore[attr-defined]  # of the virtual clock
            live.weight(1)
            optimizer.zero_grad()
            model(X[:2]).sum().backward()
            optimizer.step()
        return live.turn

    def faults(simulator: Simulator, restart: Callable[[str], None]) -> None:
        simulator.at(1.5, lambda: simulator.crash("A"))
        simulator.at(3.0, lambda: restart("A"))

    results, _ = run(faults, script, losses=Losses("wait", 60.0))
    assert results == {"A/0": 6, "A/1": 61, "B/0": 61}


def test_a_party_that_stays_cut_off_ends_without_the_others() -> None:
    """Not with those whom it can still reach."""
    taken: dict[str, int] = {}

    def script(live: LiveRun) -> None:
        model = small_model(seed=place_of(live))
        model, optimizer = live.attach(model, torch.optim.SGD(model.parameters(), lr=0.1))
        for step in range(200):
            live._client.port.sleep(0.05)  # type: ignore[attr-defined]  # of the virtual clock
            live.weight(1)
            optimizer.zero_grad()
            model(X[:2]).sum().backward()
            optimizer.step()
            taken[live.name] = step + 1

    def faults(simulator: Simulator, _: Any) -> None:
        simulator.at(0.2, lambda: simulator.cut("B", "global/1", 100.0))

    with pytest.raises((NodeLost, RunFailed), match="global/1 is lost"):
        run(faults, script, shards=2, losses=Losses("continue", 2.0))
    assert taken["A/0"] == taken["A/1"] == 200 > taken["B/0"]


@pytest.mark.parametrize("victim", ["A/1", "B/0"])
def test_where_too_few_are_left_everybody_names_whom_they_have_waited_for(victim: str) -> None:
    """Also those who hear of it from a local server: its end is the run's."""
    simulators: list[Simulator] = []

    def script(live: LiveRun) -> None:
        model = small_model(seed=place_of(live))
        model, optimizer = live.attach(model, torch.optim.SGD(model.parameters(), lr=0.1))
        while True:
            live._client.port.sleep(0.05)  # type: ignore[attr-defined]  # of the virtual clock
            live.weight(1)
            optimizer.zero_grad()
            model(X[:2]).sum().backward()
            optimizer.step()

    def faults(simulator: Simulator, _: Any) -> None:
        simulators.append(simulator)
        simulator.at(0.5, lambda: simulator.crash(victim))

    with pytest.raises((NodeLost, RunFailed), match=f"{victim} is lost"):
        run(faults, script, losses=Losses("continue", 2.0, least_workers=3))
    failed = {node: fields["node"] for _, node, fields in simulators[0].noted("failed")}
    assert failed == dict.fromkeys({"global/0", "A", "B", "A/0", "A/1", "B/0"} - {victim}, victim)


def test_a_party_that_is_not_there_before_the_run_begins_is_not_awaited_for_ever() -> None:
    """Its server has no model yet when it tells of its worker."""

    def script(live: LiveRun) -> None:
        if live.name == "B/0":
            live._client.port.sleep(100.0)  # type: ignore[attr-defined]  # of the virtual clock
        model = small_model(seed=place_of(live))
        live.attach(model, torch.optim.SGD(model.parameters(), lr=0.1))

    def faults(simulator: Simulator, _: Any) -> None:
        simulator.at(0.5, lambda: simulator.crash("B/0"))

    with pytest.raises((NodeLost, RunFailed), match="B/0 is lost"):
        run(faults, script, losses=Losses("continue", 2.0))

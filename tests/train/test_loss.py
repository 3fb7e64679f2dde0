"""`run.loss`: what the script tells of its loss reaches the channel that adapts to it, under every policy."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import party_jobs
import pytest
import torch
import torch.nn.functional as F
from exploring import each_value
from live_runs import Script, begin, descend, dies, drawn, parts_of, place_of, samples_of, sleep, train
from loss_channels import losses_in
from party_jobs import play
from policy_runs import train_by
from torch import nn

from geomx.config import Run
from geomx.drive.secret import make_secret
from geomx.errors import CheckpointError, LossUnknown, RunFailed, Unsupported, refusal_of
from geomx.node.topology import Edge
from geomx.rounds.losses import Losses
from geomx.train import LiveRun, Settings
from geomx.train.checkpoint import file as files
from geomx.train.checkpoint.file import Checkpoint
from geomx.train.data.loss import Loss

NEEDED = 'wan.channel = "dgt"'
STEPS = 8
PARTIES = (2, 1)
POLICIES = [
    "fsa", "mixed", "hfa k1=2 k2=2", "diloco every=4", "diloco every=4 fragments=2 overlap=1", "esync wait=true",
    "downpour", "downpour n_push=2 n_fetch=4",
]  # fmt: skip


# The first step with which each contributes to the run.
FIRST = dict(zip(POLICIES, (0, 0, 3, 3, 1, 0, 0, 1), strict=True))


def run_of(script: Script, policy: str = "fsa", given: dict[str, Any] | None = None, **how: Any) -> Any:
    return train_by(
        policy, PARTIES, script, {"policy_spec": policy, "needs_loss": NEEDED} | (given or {}), **how
    )[0]


class Heard:
    """The channel of an edge that hears losses."""

    def __init__(self, tmp_path: Path) -> None:
        self._path = tmp_path / "heard"
        self.edge = Edge(channel=f"loss_channels:heard path={self._path}")

    @property
    def by_turn(self) -> list[set[float | None]]:
        return list(losses_in(self._path).values())

    @property
    def all(self) -> set[float | None]:
        return set().union(*self.by_turn)


@pytest.fixture
def heard(tmp_path: Path) -> Heard:
    return Heard(tmp_path)


def told(step: int, place: int) -> float:
    """What a worker tells in a step."""
    return 10.0 * (step + 1) + place


Tells = Callable[[LiveRun, int, torch.Tensor], Any]


def by_number(run: LiveRun, step: int, _: Any) -> None:
    run.loss(told(step, place_of(run)))


def relative(step: int, place: int, first: int = 0) -> float:
    """The relative loss of a worker that contributes since step `first`."""
    return round(told(step, place) / told(first, place), 9)


def mean(step: int, places: list[int], equal: bool = False, first: int = 0) -> float:
    weights = [1 if equal else samples_of(place) for place in places]
    losses = [told(step, place) / told(first, place) for place in places]
    return round(sum(w * x for w, x in zip(weights, losses, strict=True)) / sum(weights), 9)


def stepping(
    run: LiveRun, model: nn.Module, optimizer: torch.optim.Optimizer, which: range, tells: Tells
) -> None:
    for step in which:
        x, y = drawn(run, step)
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), y)
        tells(run, step, loss)
        loss.backward()
        sleep(run, 0.02)
        optimizer.step()


def training(run: LiveRun, tells: Tells = by_number) -> int:
    """Returns the steps that were taken."""
    model, optimizer = begin(run)
    stepping(run, model, optimizer, range(STEPS), tells)
    return run.step


@pytest.mark.parametrize(("policy", "push_at"), each_value(POLICIES, ["backward", "step"]))
def test_servers_hear_the_mean_of_the_newest_losses(policy: str, push_at: Any, heard: Heard) -> None:
    firsts: dict[int, float | None] = {}

    def script(run: LiveRun) -> None:
        training(run)
        firsts[place_of(run)] = run._loss.first

    run_of(script, policy, {"push_at": push_at}, wan=heard.edge)
    (first,) = (step for step in range(STEPS) if firsts == {place: told(step, place) for place in range(3)})
    assert first == FIRST[policy]
    if policy.startswith("downpour"):
        assert heard.all <= {relative(step, place, first) for step in range(STEPS) for place in range(3)}
        assert {1.0, relative(7, 2, first)} <= heard.all
        return
    equal = policy.startswith("esync")
    each = {(mean(step, [0, 1], equal, first), mean(step, [2], False, first)) for step in range(STEPS)}
    last = each if policy in ("fsa", "mixed") else {max(each)}
    assert heard.all <= {loss for pair in each for loss in pair}
    assert {loss for pair in last for loss in pair} <= heard.all


@pytest.mark.parametrize("policy", ["fsa", "hfa k1=2 k2=2", "esync wait=true", "downpour n_push=2 n_fetch=4"])
def test_a_script_that_does_not_tell_ends_in_its_first_step(policy: str) -> None:
    """With the real channel, on every node: nobody else fails before, or with another name."""
    steps: list[int] = []
    others: list[BaseException] = []

    def script(run: LiveRun) -> None:
        tells = (lambda *_: None) if run.name == "A/1" else by_number
        try:
            training(run, tells)
        except LossUnknown:
            steps.append(run.step)
            raise
        except RunFailed as error:
            others.append(error)
            raise

    text = r'wan\.channel = "dgt" .*A/1 has not told.*run\.loss\(loss\).*adaptive=false'
    with pytest.raises(LossUnknown, match=text):
        run_of(script, policy, wan=Edge(channel="dgt"))
    assert steps == [0]
    assert {refusal_of(error) for error in others} == {"LossUnknown"}


@pytest.mark.parametrize("policy", ["fsa", "hfa k1=2 k2=1", "downpour n_push=2 n_fetch=2"])
def test_a_script_that_stops_telling(policy: str) -> None:
    def once(run: LiveRun, step: int, loss: torch.Tensor) -> None:
        if step < 2:
            run.loss(loss)

    with pytest.raises(LossUnknown, match="has told for earlier steps, but not for this step"):
        run_of(lambda run: training(run, once), policy)


def test_behind_backward_it_is_too_late_unless_gradients_leave_in_step() -> None:
    def script(run: LiveRun) -> None:
        model, optimizer = begin(run)
        run.weight(4)
        loss = F.mse_loss(model(torch.ones(4, 20).double()), torch.ones(4, 5).double())
        loss.backward()
        run.loss(loss)
        optimizer.step()

    with pytest.raises(LossUnknown, match=r"before backward\(\)"):
        run_of(script)
    run_of(script, given={"push_at": "step"})


def test_accumulated_batches_may_tell_one_by_one(heard: Heard) -> None:
    def script(run: LiveRun) -> None:
        model, optimizer = begin(run)
        for step in range(3):
            x, y = drawn(run, step)
            total = torch.zeros(())
            with run.accumulate():
                loss = F.mse_loss(model(x), y)
                total += loss.detach()
                run.loss(total)
                loss.backward()
            run.loss(told(step, place_of(run)))
            F.mse_loss(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()

    run_of(script, wan=heard.edge)
    assert heard.by_turn == [{mean(step, [0, 1]), mean(step, [2])} for step in range(3)]


@pytest.mark.parametrize("policy", POLICIES)
def test_whose_data_has_ended_needs_no_loss(policy: str, heard: Heard) -> None:
    """Shares are unequal: A/0 has three batches, the others one."""

    def script(run: LiveRun) -> None:
        model, optimizer = begin(run)
        for _ in range(2):
            for x, y in run.shard([parts_of(s, 3)[place_of(run)] for s in range(6 if run.is_first else 3)]):
                run.loss(7.0)
                descend(model, optimizer, x, y)

    run_of(script, policy, wan=heard.edge)
    assert heard.all == {1.0}


@pytest.mark.parametrize("policy", ["fsa", "downpour", "hfa k1=1 k2=1"])
def test_a_checkpoint_keeps_the_first_loss(policy: str, heard: Heard, tmp_path: Path) -> None:
    """The first worker's, which is everybody's from then on."""

    def first(run: LiveRun) -> None:
        model, optimizer = begin(run)
        stepping(run, model, optimizer, range(3), by_number)
        run.save(tmp_path / "checkpoint", everywhere=policy == "fsa")

    def go_on(run: LiveRun) -> None:
        model, optimizer = begin(run)
        run.load(tmp_path / "checkpoint")
        stepping(run, model, optimizer, range(run.step, 5), by_number)
        assert run._loss.first == told(0, 0)

    run_of(first, policy)
    run_of(go_on, policy, lan=heard.edge)
    assert heard.all == {round(told(step, place) / told(0, 0), 9) for step in (3, 4) for place in range(3)}


def test_a_checkpoint_of_a_run_that_told_no_loss_begins_with_the_next(tmp_path: Path) -> None:
    def first(run: LiveRun) -> None:
        begin(run)
        run.save(tmp_path / "checkpoint")

    def go_on(run: LiveRun) -> float | None:
        model, optimizer = begin(run)
        run.load(tmp_path / "checkpoint")
        stepping(run, model, optimizer, range(2, 4), by_number)
        return run._loss.first

    run_of(first)
    assert run_of(go_on) == {"A/0": told(2, 0), "A/1": told(2, 1), "B/0": told(2, 2)}


@pytest.mark.parametrize("damage", [-1.0, 0.0, math.nan, "much"])
def test_a_first_loss_that_nobody_can_have_told_is_refused(damage: Any, tmp_path: Path) -> None:
    made = Checkpoint({"w": torch.zeros(1)}, "SGD", [], first_loss=damage)
    files.write(tmp_path / "checkpoint", made)
    with pytest.raises(CheckpointError, match="damaged description.*" + str(damage)):
        files.read(tmp_path / "checkpoint")


@pytest.mark.parametrize("at_s", [0.05, 0.35, 0.55])
def test_a_worker_that_is_started_again_keeps_its_first_loss(at_s: float) -> None:
    """Also without a checkpoint: the first time before its first step."""
    lives: list[str] = []

    def script(run: LiveRun) -> float | None:
        lives.append(run.name)
        model, optimizer = begin(run)
        for step in range(run.step, 6):
            sleep(run, 0.1)
            stepping(run, model, optimizer, range(step, step + 1), by_number)
        return run._loss.first

    faults = dies("B/0", at_s=at_s, back_s=at_s)
    found = run_of(script, faults=faults, losses=Losses("wait", 60.0))
    assert lives.count("B/0") == 2
    assert found == {"A/0": told(0, 0), "A/1": told(0, 1), "B/0": told(0, 2)}


@pytest.mark.parametrize("loss", [math.nan, math.inf, -1.0, 0.0])
def test_a_loss_that_is_no_measure_changes_nothing(loss: float) -> None:
    run_of(lambda run: training(run, lambda *_: run.loss(loss)), wan=Edge(channel="dgt"))


def test_alone_nobody_needs_it() -> None:
    for tells in (lambda *_: None, by_number):
        results, _ = train([], lambda run, tells=tells: training(run, tells))
        assert results == {"solo/0": STEPS}


def test_what_is_a_loss() -> None:
    weight = torch.tensor(2.0, requires_grad=True)
    total = weight * 3
    loss = Loss(Settings(needs_loss=NEEDED), "A/0")
    for value, expected in (
        (3, 3.0), (2.5, 2.5), (np.float32(1.5), 1.5), (total, 6.0), (torch.tensor([4]), 4.0),
        (torch.tensor(0.5, dtype=torch.bfloat16), 0.5), (10**400, math.inf),
    ):  # fmt: skip
        loss.give(value)
        loss.first = 2.0
        if isinstance(value, torch.Tensor):
            with torch.no_grad():
                value.mul_(0)  # as a script that adds up goes on with its tensor
        assert loss.take() == expected / 2
        assert loss.newest == expected / 2
    loss.give(math.nan)
    assert math.isnan(loss.take() or 0.0)


@pytest.mark.parametrize(
    "value",
    [True, "0.5", None, [1.0], torch.ones(2), torch.tensor(True), torch.tensor(1j), np.bool_(True), object()],
)
def test_what_is_no_loss(value: Any) -> None:
    with pytest.raises(Unsupported, match=r"run\.loss\(.*tensor with one element.*losses\.mean\(\)"):
        train([], lambda run: run.loss(value))


def test_a_description_says_whether_it_is_needed() -> None:
    parties = '[[party]]\nname = "A"\nworkers = 1\n'
    for changes, needed in (
        ([], ""),
        (["wan.channel=datagram"], ""),
        (["wan.channel=dgt adaptive=false"], ""),
        (["wan.channel=dgt k=0.5"], 'wan.channel = "dgt k=0.5"'),
        (["wan.channel=dgt", "lan.channel=dgt"], 'wan.channel = "dgt" and lan.channel = "dgt"'),
    ):
        assert Settings.of(Run.parse(parties, "run.toml", changes)).needs_loss == needed


@pytest.mark.processes
def test_a_party_that_reduces_among_itself_tells_its_mean(tmp_path: Path) -> None:
    """A/1 has one batch less, and speaks for slices all the same."""
    make_secret(tmp_path / "secret")
    channel = f"wan.channel=loss_channels:heard path={tmp_path / 'heard'}"
    more = (channel, f"run.secret_file={tmp_path / 'secret'}", "layout.slice_elements=650")
    play(party_jobs.tell_losses, {"A": "plain", "B": "ddp"}, more)
    found = losses_in(tmp_path / "heard")
    assert set(map(frozenset, found.values())) == {frozenset({1.0}), frozenset({1.0, 3.5})}

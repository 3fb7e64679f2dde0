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
from live_runs import parts_of, place_of, samples_of, sgd, small_model, train
from loss_channels import losses_in
from party_jobs import play
from torch import nn

from geomx.config import Run
from geomx.drive.secret import make_secret
from geomx.errors import CheckpointError, LossUnknown, RunFailed, Unsupported, refusal_of
from geomx.node.topology import Edge
from geomx.rounds.losses import Losses
from geomx.simulate.simulator import Simulator
from geomx.sync import policies
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


def settings(policy: str = "fsa", **more: Any) -> Settings:
    return Settings(
        slice_elements=512,
        pack_below=100,
        policy=policies.make(policy),
        policy_spec=policy,
        needs_loss=NEEDED,
        **more,
    )


def told(step: int, place: int) -> float:
    """What a worker tells in a step."""
    return 10.0 * (step + 1) + place


def relative(step: int, place: int, first: int = 0) -> float:
    """The relative loss of a worker that contributes since step `first`."""
    return round(told(step, place) / told(first, place), 9)


def mean(step: int, places: list[int], equal: bool = False, first: int = 0) -> float:
    weights = [1 if equal else samples_of(place) for place in places]
    losses = [told(step, place) / told(first, place) for place in places]
    return round(sum(w * x for w, x in zip(weights, losses, strict=True)) / sum(weights), 9)


def training(
    run: LiveRun, tells: Any = lambda run, step, loss: run.loss(told(step, place_of(run))), **options: Any
) -> int:
    """`tells(run, step, loss)` before `backward()`; returns the steps that were taken."""
    model = small_model()
    model, optimizer = run.attach(model, sgd(model), **options)
    for step in range(STEPS):
        x, y = parts_of(step, len(run.workers))[place_of(run)]
        run.weight(len(x))
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), y)
        tells(run, step, loss)
        loss.backward()
        run._client.port.sleep(0.02)  # type: ignore[attr-defined]  # of the virtual clock
        optimizer.step()
    return run.step


@pytest.mark.parametrize("push_at", ["backward", "step"])
@pytest.mark.parametrize("policy", POLICIES)
def test_servers_hear_the_mean_of_the_newest_losses(policy: str, push_at: Any, tmp_path: Path) -> None:
    channel = f"loss_channels:heard path={tmp_path / 'heard'}"
    firsts: dict[int, float | None] = {}

    def script(run: LiveRun) -> None:
        training(run)
        firsts[place_of(run)] = run._loss.first

    train(PARTIES, script, settings(policy, push_at=push_at), policy=policy, wan=Edge(channel=channel))
    heard = {loss for losses in losses_in(tmp_path / "heard").values() for loss in losses}
    (first,) = (step for step in range(STEPS) if firsts == {place: told(step, place) for place in range(3)})
    assert first == FIRST[policy]
    if policy.startswith("downpour"):
        assert heard <= {relative(step, place, first) for step in range(STEPS) for place in range(3)}
        assert {1.0, relative(7, 2, first)} <= heard
        return
    equal = policy.startswith("esync")
    each = {(mean(step, [0, 1], equal, first), mean(step, [2], False, first)) for step in range(STEPS)}
    last = each if policy in ("fsa", "mixed") else {max(each)}
    assert heard <= {loss for pair in each for loss in pair}
    assert {loss for pair in last for loss in pair} <= heard


def test_a_lossy_lan_hears_each_worker(tmp_path: Path) -> None:
    channel = f"loss_channels:heard path={tmp_path / 'heard'}"
    train(PARTIES, training, settings(), lan=Edge(channel=channel))
    found = losses_in(tmp_path / "heard")
    assert list(found.values()) == [{relative(step, place) for place in range(3)} for step in range(STEPS)]


@pytest.mark.parametrize("policy", POLICIES)
def test_a_script_that_does_not_tell_ends_in_its_first_step(policy: str) -> None:
    """With the real channel, on every node: nobody else fails before, or with another name."""
    steps: list[int] = []
    heard: list[BaseException] = []

    def script(run: LiveRun) -> None:
        tells = (lambda *_: None) if run.name == "A/1" else (lambda run, step, loss: run.loss(loss))
        try:
            training(run, tells)
        except LossUnknown:
            steps.append(run.step)
            raise
        except RunFailed as error:
            heard.append(error)
            raise

    with pytest.raises(
        LossUnknown, match=r'wan\.channel = "dgt" .*A/1 has not told.*run\.loss\(loss\).*adaptive=false'
    ):
        train(PARTIES, script, settings(policy), policy=policy, wan=Edge(channel="dgt"))
    assert steps == [0]
    assert {refusal_of(error) for error in heard} == {"LossUnknown"}


@pytest.mark.parametrize("policy", ["fsa", "hfa k1=2 k2=1", "downpour n_push=2 n_fetch=2"])
def test_a_script_that_stops_telling(policy: str) -> None:
    def once(run: LiveRun, step: int, loss: torch.Tensor) -> None:
        if step < 2:
            run.loss(loss)

    with pytest.raises(LossUnknown, match="has told for earlier steps, but not for this step"):
        train(PARTIES, lambda run: training(run, once), settings(policy), policy=policy)


def test_behind_backward_it_is_too_late_unless_gradients_leave_in_step() -> None:
    def script(run: LiveRun) -> float:
        model = small_model()
        model, optimizer = run.attach(model, sgd(model))
        run.weight(4)
        loss = F.mse_loss(model(torch.ones(4, 20).double()), torch.ones(4, 5).double())
        loss.backward()
        run.loss(loss)
        optimizer.step()
        return loss.item()

    with pytest.raises(LossUnknown, match=r"before backward\(\)"):
        train(PARTIES, script, settings())
    train(PARTIES, script, settings(push_at="step"))


def test_accumulated_batches_may_tell_one_by_one(tmp_path: Path) -> None:
    def script(run: LiveRun) -> None:
        model = small_model()
        model, optimizer = run.attach(model, sgd(model))
        for step in range(3):
            x, y = parts_of(step, len(run.workers))[place_of(run)]
            run.weight(len(x))
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

    channel = f"loss_channels:heard path={tmp_path / 'heard'}"
    train(PARTIES, script, settings(), wan=Edge(channel=channel))
    expected = [{mean(step, [0, 1]), mean(step, [2])} for step in range(3)]
    assert list(losses_in(tmp_path / "heard").values()) == expected


@pytest.mark.parametrize("policy", POLICIES)
def test_whose_data_has_ended_needs_no_loss(policy: str, tmp_path: Path) -> None:
    """Shares are unequal: A/0 has three batches, the others one."""

    def script(run: LiveRun) -> None:
        model = small_model()
        model, optimizer = run.attach(model, sgd(model))
        for _ in range(2):
            for x, y in run.shard([parts_of(s, 3)[place_of(run)] for s in range(6 if run.is_first else 3)]):
                optimizer.zero_grad()
                loss = F.mse_loss(model(x), y)
                run.loss(7.0)
                loss.backward()
                optimizer.step()

    channel = f"loss_channels:heard path={tmp_path / 'heard'}"
    train(PARTIES, script, settings(policy), policy=policy, wan=Edge(channel=channel))
    assert {loss for losses in losses_in(tmp_path / "heard").values() for loss in losses} == {1.0}


def stepping(run: LiveRun, model: nn.Module, optimizer: torch.optim.Optimizer, which: range) -> None:
    """Steps that tell, by their numbers in the run."""
    for step in which:
        x, y = parts_of(step, len(run.workers))[place_of(run)]
        run.weight(len(x))
        optimizer.zero_grad()
        run.loss(told(step, place_of(run)))
        F.mse_loss(model(x), y).backward()
        optimizer.step()


@pytest.mark.parametrize("policy", ["fsa", "downpour", "hfa k1=1 k2=1"])
def test_a_checkpoint_keeps_the_first_loss(policy: str, tmp_path: Path) -> None:
    """The first worker's, which is everybody's from then on."""

    def begin(run: LiveRun) -> None:
        model = small_model()
        model, optimizer = run.attach(model, sgd(model))
        stepping(run, model, optimizer, range(3))
        run.save(tmp_path / "checkpoint", everywhere=policy == "fsa")

    def go_on(run: LiveRun) -> None:
        model = small_model()
        model, optimizer = run.attach(model, sgd(model))
        run.load(tmp_path / "checkpoint")
        stepping(run, model, optimizer, range(run.step, 5))
        assert run._loss.first == told(0, 0)

    channel = f"loss_channels:heard path={tmp_path / 'heard'}"
    train(PARTIES, begin, settings(policy), policy=policy)
    train(PARTIES, go_on, settings(policy), policy=policy, lan=Edge(channel=channel))
    heard = {loss for losses in losses_in(tmp_path / "heard").values() for loss in losses}
    assert heard == {round(told(step, place) / told(0, 0), 9) for step in (3, 4) for place in range(3)}


def test_a_checkpoint_of_a_run_that_told_no_loss_begins_with_the_next(tmp_path: Path) -> None:
    def begin(run: LiveRun) -> None:
        model = small_model()
        run.attach(model, sgd(model))
        run.save(tmp_path / "checkpoint")

    def go_on(run: LiveRun) -> float | None:
        model = small_model()
        model, optimizer = run.attach(model, sgd(model))
        run.load(tmp_path / "checkpoint")
        stepping(run, model, optimizer, range(2, 4))
        return run._loss.first

    train(PARTIES, begin, settings())
    found, _ = train(PARTIES, go_on, settings())
    assert found == {"A/0": told(2, 0), "A/1": told(2, 1), "B/0": told(2, 2)}


@pytest.mark.parametrize("damage", [-1.0, 0.0, math.nan, "much"])
def test_a_first_loss_that_nobody_can_have_told_is_refused(damage: Any, tmp_path: Path) -> None:
    made = Checkpoint({"w": torch.zeros(1)}, "SGD", [], first_loss=damage)
    files.write(tmp_path / "checkpoint", made)
    with pytest.raises(CheckpointError, match="damaged description.*" + str(damage)):
        files.read(tmp_path / "checkpoint")


@pytest.mark.parametrize("at_s", [0.05, 0.35, 0.55])
def test_a_worker_that_is_started_again_keeps_its_first_loss(at_s: float) -> None:
    """Also without a checkpoint: the first time before its first step."""
    lives: list[tuple[str, int]] = []

    def script(run: LiveRun) -> float | None:
        lives.append((run.name, run.step))
        model = small_model()
        model, optimizer = run.attach(model, sgd(model))
        for step in range(run.step, 6):
            run._client.port.sleep(0.1)  # type: ignore[attr-defined]  # of the virtual clock
            stepping(run, model, optimizer, range(step, step + 1))
        return run._loss.first

    def faults(simulator: Simulator, restart: Callable[[str], None]) -> None:
        simulator.at(at_s, lambda: simulator.crash("B/0"))
        simulator.at(at_s, lambda: restart("B/0"))

    found, _ = train([1, 1], script, settings(), faults=faults, losses=Losses("wait", 60.0))
    assert [name for name, _ in lives].count("B/0") == 2
    assert found == {"A/0": told(0, 0), "B/0": told(0, 1)}


@pytest.mark.parametrize("loss", [math.nan, math.inf, -1.0, 0.0])
def test_a_loss_that_is_no_measure_changes_nothing(loss: float) -> None:
    train(PARTIES, lambda run: training(run, lambda *_: run.loss(loss)), settings(), wan=Edge(channel="dgt"))


def test_alone_nobody_needs_it() -> None:
    assert train([], lambda run: training(run, lambda *_: None))[0] == {"solo/0": STEPS}
    assert train([], training)[0] == {"solo/0": STEPS}


def test_what_is_a_loss() -> None:
    weight = torch.tensor(2.0, requires_grad=True)
    total = weight * 3
    loss = Loss(settings(), "A/0")
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
    play(
        party_jobs.tell_losses,
        {"A": "plain", "B": "ddp"},
        (channel, f"run.secret_file={tmp_path / 'secret'}", "layout.slice_elements=650"),
    )
    found = losses_in(tmp_path / "heard")
    assert set(map(frozenset, found.values())) == {frozenset({1.0}), frozenset({1.0, 3.5})}

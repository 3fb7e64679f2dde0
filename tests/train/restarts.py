"""A script whose worker dies once and is started again, for tests."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from live_runs import assert_equal, begin, place_of, sleep, train, weights
from torch.optim import lr_scheduler
from torch.utils.data import DataLoader, Dataset

from geomx.simulate.simulator import Simulator
from geomx.sync import policies
from geomx.train import LiveRun, Settings

N, BATCH, EPOCHS = 23, 2, 3
GENERATOR = torch.Generator().manual_seed(5)
X = torch.randn(N, 20, generator=GENERATOR, dtype=torch.float64)
Y = torch.randn(N, 5, generator=GENERATOR, dtype=torch.float64)


class Counted(Dataset[Any]):
    """Samples that say which of them were loaded."""

    def __init__(self) -> None:
        self.loaded: list[int] = []

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor, int]:
        self.loaded.append(index)
        return X[index], Y[index], index

    def __len__(self) -> int:
        return N


@dataclass
class Script:
    """A user's script: passes over a share, and a schedule. It dies once, where `dies` says.

    `dies(run, where, step)`: asked before the backward of a step of the first life ("step"), before the scheduler steps
    ("schedule"), and behind a pass ("pass").
    """

    dies: Callable[[LiveRun, str], bool] = lambda run, where: False
    every: Any = "step"
    micro_batches: int = 1
    resumes: bool = True
    epochs: int = EPOCHS
    over: Any = "run"
    make: Callable[[Any], torch.optim.Optimizer] = lambda model: torch.optim.SGD(
        model.parameters(), lr=0.1, momentum=0.9
    )
    loader: Callable[[Dataset[Any]], Any] = lambda data: DataLoader(data, BATCH, shuffle=True)
    seen: dict[str, list[list[int]]] = field(default_factory=dict)  # what each life of a worker has seen
    loaded: dict[str, list[list[int]]] = field(default_factory=dict)
    started: list[tuple[str, int, int]] = field(default_factory=list)
    kill: Callable[[str], None] = lambda name: None
    joined: Callable[[LiveRun], None] = lambda run: None
    resumed: Callable[[LiveRun], None] = lambda run: None

    def faults(self, simulator: Simulator, restart: Callable[[str], None]) -> None:
        def kill(name: str) -> None:
            def again() -> None:
                simulator.crash(name)
                restart(name)

            simulator.at(simulator.now, again)

        self.kill = kill

    def __call__(self, run: LiveRun) -> dict[str, Any]:
        data = Counted()
        model, optimizer = begin(run, self.make)
        schedule = lr_scheduler.ExponentialLR(optimizer, 0.9)
        self.started.append((run.name, run.step, run.epoch))
        self.joined(run)
        if self.resumes:
            run.resume(schedule, every=self.every)
        self.resumed(run)
        seen: list[int] = []
        self.seen.setdefault(run.name, []).append(seen)
        self.loaded.setdefault(run.name, []).append(data.loaded)
        for _ in range(run.epoch, self.epochs):
            for number, (x, y, index) in enumerate(run.shard(self.loader(data), over=self.over)):
                seen += index.tolist()
                sleep(run, 0.02 * (1 + place_of(run)))
                if number % self.micro_batches == 0:
                    optimizer.zero_grad()
                if number % self.micro_batches < self.micro_batches - 1:
                    with run.accumulate():
                        F.mse_loss(model(x), y).backward()
                    continue
                self.may_die(run, "step")
                F.mse_loss(model(x), y).backward()
                optimizer.step()
                self.may_die(run, "schedule")
                if self.every == "step":
                    schedule.step()
            self.may_die(run, "pass")
            if self.every == "epoch":
                schedule.step()
        run.wait()
        return {
            "weights": weights(model),
            "turn": run.turn,
            "at": (run.step, run.epoch),
            "rates": schedule.get_last_lr(),
        }

    def may_die(self, run: LiveRun, where: str) -> None:
        if len(self.seen[run.name]) == 1 and self.dies(run, where):
            self.kill(run.name)
            sleep(run, 1.0)


def run_of(
    script: Script, spec: str = "fsa", parties: tuple[int, ...] = (2, 1), **more: Any
) -> dict[str, Any]:
    settings = Settings(slice_elements=512, pack_below=100, policy=policies.make(spec))
    results, _ = train(parties, script, settings, policy=spec, faults=script.faults, **more)
    return results


def assert_same(shaken: dict[str, Any], calm: dict[str, Any]) -> None:
    assert shaken.keys() == calm.keys()
    for name, ours in shaken.items():
        assert_equal(ours["weights"], calm[name]["weights"])
        assert (ours["at"], ours["turn"]) == (calm[name]["at"], calm[name]["turn"]), name
        assert ours["rates"] == calm[name]["rates"]


def at(victim: str, step: int, where: str) -> Callable[[LiveRun, str], bool]:
    return lambda run, now: run.name == victim and run.step == step and now == where

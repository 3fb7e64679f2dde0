"""Where a script goes on: what its local server is told, and what a checkpoint keeps."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from live_runs import assert_equal, batch, place_of, small_model, train, weights
from restarts import BATCH, EPOCHS, Counted, Script
from torch.optim import lr_scheduler
from torch.utils.data import DataLoader

from geomx.train import LiveRun, Settings
from geomx.train.calls.joining import place_in
from geomx.wire.messages import Place, Reached
from geomx.wire.roster_messages import Standing


def told(turn: int, step: int, batches: int, cohort: str = "") -> Reached:
    before, behind = Place(1, (batches,), step, 8.0), Place(1, (batches + 1,), step + 1, 9.0)
    return Reached("A/1", cohort, turn, step, before, behind)


ENDED = {"": Standing(4, 3, 4, 3, 4, 2)}  # with its last step, the pass


def test_where_a_script_goes_on() -> None:
    two = (told(4, 3, 3), told(5, 4, 4))
    assert place_in((), {"": 5}, 4, {}) is None
    assert place_in(two, {"": 6}, 5, {}) == two[1].behind  # the last has closed
    assert place_in(two, {"": 5}, 4, {}) == two[1].before  # in part: it is taken once more
    assert place_in(two[:1], {"": 5}, 4, {}) == two[0].behind  # nothing of the next was sent
    assert place_in(two[:1], {"": 5}, 4, ENDED) == Place(2, (), 4, 9.0)
    load = told(5, -1, 7)
    assert place_in((two[0], load), {"": 6}, 4, ENDED) == load.behind  # whatever had ended before it
    assert place_in(two[1:], {"": 5}, 0, {}) is None  # local steps before any mean are lost
    means = (told(3, 1, 1, "A"), told(1, 3, 3))
    assert place_in(means, {"": 1, "A": 4}, 2, {}) == means[0].behind


@dataclass
class Saving:
    """Trains, writes a checkpoint behind a step, and may begin with one. `order`: of load and resume."""

    path: Path
    save_at: int | None
    every: str = "step"
    order: str = "load, resume"
    place: str = "auto"
    seen: dict[str, list[int]] = field(default_factory=dict)

    def __call__(self, run: LiveRun) -> dict[str, Any]:
        model = small_model(seed=place_of(run))
        optimizer: torch.optim.Optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        early = lr_scheduler.StepLR(optimizer, 2, 0.5) if "before" in self.order else None
        model, optimizer = run.attach(model, optimizer)
        goes_on = self.save_at is None
        if self.order == "resume, load":
            schedule: Any = lr_scheduler.StepLR(optimizer, 2, 0.5)
            run.resume(schedule, every=self.every)  # type: ignore[arg-type]
            if goes_on:
                run.load(self.path)
        else:
            if goes_on:
                run.load(self.path)
            schedule = early or lr_scheduler.StepLR(optimizer, 2, 0.5)
            run.resume(schedule, every=self.every)  # type: ignore[arg-type]
        seen = self.seen[run.name] = []
        loader = DataLoader(Counted(), BATCH, shuffle=True)
        for _ in range(run.epoch, EPOCHS):
            for x, y, index in run.shard(loader, over="run"):
                seen += index.tolist()
                optimizer.zero_grad()
                F.mse_loss(model(x), y).backward()
                optimizer.step()
                if self.every == "step":
                    schedule.step()
                if run.step == self.save_at:
                    run.save(self.path)
            if self.every == "epoch":
                schedule.step()
        return {
            "weights": weights(model),
            "at": (run.step, run.epoch),
            "turn": run.turn,
            "rates": schedule.get_last_lr(),
        }


@pytest.mark.parametrize(
    ("every", "order", "save_at"),
    [
        ("step", "load, resume", 5),
        ("epoch", "load, resume", 6),
        ("step", "resume, load", 7),
        ("epoch", "resume, load", 4),
        ("step", "made before, load, resume", 3),
        ("epoch", "made before, load, resume", 10),
    ],
)
def test_a_checkpoint_amid_an_epoch_goes_on_amid_it(
    every: str, order: str, save_at: int, tmp_path: Path
) -> None:
    path = tmp_path / "c.safetensors"
    settings = Settings(slice_elements=512, pack_below=100)
    whole, rest = Saving(path, save_at, every, order), Saving(path, None, every, order)
    saved, _ = train([2, 1], whole, settings)
    loaded, _ = train([2, 1], rest, settings)
    for name, ours in loaded.items():
        assert whole.seen[name][-len(rest.seen[name]) :] == rest.seen[name]
        assert len(rest.seen[name]) < len(whole.seen[name])
        assert_equal(ours["weights"], saved[name]["weights"])
        assert (ours["at"], ours["rates"]) == (saved[name]["at"], saved[name]["rates"])


def test_a_worker_that_is_restarted_behind_a_checkpoint_has_the_place_of_the_run(tmp_path: Path) -> None:
    """Its script loads the checkpoint again, which is older than the run."""
    path = tmp_path / "c.safetensors"
    train([2, 1], Saving(path, 3))
    calm, _ = train([2, 1], Saving(path, None))
    for order, step in (("load, resume", 3), ("load, resume", 6), ("resume, load", 8)):
        lives: list[str] = []
        killing, saving = Script(), Saving(path, None, order=order)

        def main(
            run: LiveRun,
            lives: list[str] = lives,
            killing: Script = killing,
            saving: Saving = saving,
            step: int = step,
        ) -> Any:
            lives.append(run.name)
            is_first_life = lives.count(run.name) == 1
            shard = run.shard

            def dying(*arguments: Any, **options: Any) -> Iterator[Any]:
                for drawn in shard(*arguments, **options):
                    if run.name == "A/1" and is_first_life and run.step == step:
                        killing.kill(run.name)
                        run._client.port.sleep(1.0)  # type: ignore[attr-defined]  # of the virtual clock
                    yield drawn

            run.shard = dying  # type: ignore[assignment]
            return saving(run)

        shaken, _ = train([2, 1], main, faults=killing.faults)
        assert lives.count("A/1") == 2
        for name, ours in shaken.items():
            assert_equal(ours["weights"], calm[name]["weights"])
            assert (ours["at"], ours["rates"]) == (calm[name]["at"], calm[name]["rates"])


def test_who_dies_behind_a_load_is_where_the_checkpoint_is(tmp_path: Path) -> None:
    """And not where it had been before all went back to that."""
    path, batches = tmp_path / "c.safetensors", [batch(number, 4) for number in range(12)]

    def run_once(victim: str) -> tuple[dict[str, Any], list[tuple[str, int]]]:
        killing, begun = Script(), list[tuple[str, int]]()

        def main(run: LiveRun) -> dict[str, torch.Tensor]:
            model = small_model()
            model, optimizer = run.attach(model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))
            begun.append((run.name, run.step))
            for phase in range(2) if run.step == 0 else range(1, 2):
                for x, y in run.shard(batches, over="run"):
                    optimizer.zero_grad()
                    F.mse_loss(model(x), y).backward()
                    optimizer.step()
                    if phase == 0 and run.step == 2:
                        run.save(path)
                    if phase == 0 and run.step == 4:
                        break
                if phase == 0:
                    run.load(path)
                    if run.name == victim:
                        killing.kill(victim)
                        run._client.port.sleep(1.0)  # type: ignore[attr-defined]  # of the virtual clock
            assert (run.step, run.epoch) == (6, 1)
            return weights(model)

        results, _ = train([2], main, faults=killing.faults)
        return results, begun

    calm, _ = run_once("nobody")
    shaken, begun = run_once("A/1")
    assert begun[2:] == [("A/1", 2)]
    for name, values in shaken.items():
        assert_equal(values, calm[name])

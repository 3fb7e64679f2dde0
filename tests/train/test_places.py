"""Where a script goes on: what its local server is told, and what a checkpoint keeps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from live_runs import assert_equal, batch, descend, sleep, small_model, train, weights
from restarts import Script, assert_same, at, run_of
from torch import nn

from geomx.train import LiveRun
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


def adam(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adam(model.parameters(), lr=0.01)


def whole(path: Path, save_at: int, **how: Any) -> Script:
    """Trains, and writes a checkpoint behind a step."""

    def saves(run: LiveRun, where: str) -> bool:
        if where == "schedule" and run.step == save_at:
            run.save(path)
        return False

    return Script(dies=saves, make=adam, **how)


def rest(path: Path, loads_last: bool = False, **how: Any) -> Script:
    """Begins with that checkpoint. `loads_last`: behind `run.resume`."""
    return Script(make=adam, **{"resumed" if loads_last else "joined": lambda run: run.load(path)}, **how)


@pytest.mark.parametrize(
    ("every", "loads_last", "save_at"),
    [("step", False, 5), ("epoch", False, 4), ("step", True, 7), ("epoch", True, 6)],
)
def test_a_checkpoint_amid_an_epoch_goes_on_amid_it(
    every: str, loads_last: bool, save_at: int, tmp_path: Path
) -> None:
    path = tmp_path / "c.safetensors"
    before, behind = whole(path, save_at, every=every), rest(path, loads_last, every=every)
    saved, loaded = run_of(before), run_of(behind)
    for name, ours in loaded.items():
        (all_seen,), (seen,) = before.seen[name], behind.seen[name]
        assert all_seen[-len(seen) :] == seen
        assert len(seen) < len(all_seen)
        assert_equal(ours["weights"], saved[name]["weights"])
        assert (ours["at"], ours["rates"]) == (saved[name]["at"], saved[name]["rates"])


def test_a_worker_that_is_restarted_behind_a_checkpoint_has_the_place_of_the_run(tmp_path: Path) -> None:
    """Its script loads the checkpoint again, which is older than the run."""
    path = tmp_path / "c.safetensors"
    run_of(whole(path, 3))
    calm = run_of(rest(path))
    for loads_last, step in ((False, 3), (False, 6), (True, 8)):
        script = rest(path, loads_last, dies=at("A/1", step, "step"))
        assert_same(run_of(script), calm)
        assert len(script.started) == 4


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
                    descend(model, optimizer, x, y)
                    if phase == 0 and run.step == 2:
                        run.save(path)
                    if phase == 0 and run.step == 4:
                        break
                if phase == 0:
                    run.load(path)
                    if run.name == victim:
                        killing.kill(victim)
                        sleep(run, 1.0)
            assert (run.step, run.epoch) == (6, 1)
            return weights(model)

        results, _ = train([2], main, faults=killing.faults)
        return results, begun

    calm, _ = run_once("nobody")
    shaken, begun = run_once("A/1")
    assert begun[2:] == [("A/1", 2)]
    for name, values in shaken.items():
        assert_equal(values, calm[name])

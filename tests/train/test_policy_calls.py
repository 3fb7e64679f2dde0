"""Calls of the whole run, where parties and workers do not wait for each other."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from live_runs import adam, assert_equal, begin, dies, lockstep, sleep, small_model, weights
from policy_runs import assert_differ, train_by
from torch import nn

from geomx.errors import Disagreement, RunFailed
from geomx.simulate.simulator import Network
from geomx.train import LiveRun
from geomx.wire.session import Patience


def normed() -> nn.Module:
    """Save() averages its buffers."""
    return nn.Sequential(small_model(), nn.BatchNorm1d(5).double())


@pytest.mark.parametrize(("staleness", "shards"), [(0, 2), (1, 1)])
def test_a_bound_does_not_hold_up_calls_of_the_whole_run(staleness: int, shards: int, tmp_path: Path) -> None:
    """A party that waits in one makes no steps: nobody waits for it, at shards neither that have no part in the call.

    Behind the call the bound holds again.
    """
    spec = f"mixed staleness={staleness}"

    def main(run: LiveRun) -> dict[str, torch.Tensor]:
        model, optimizer = begin(run, model=normed())
        lockstep(run, model, optimizer, range(3 if run.party == "A" else 8))
        run.save(tmp_path / "c.safetensors")
        lockstep(run, model, optimizer, range(9))
        optimizer.load_state_dict(optimizer.state_dict())
        return {name: value for name, value in weights(model).items() if name.startswith("0")}

    results, simulator = train_by(spec, [1, 1], main, shards=shards, network=Network(40.0, 15.0))
    assert_equal(results["A/0"], results["B/0"])
    for shard in range(shards):
        noted = simulator.noted("round")
        order = [fields["cohort"] for _, node, fields in noted if node == f"global/{shard}"]
        ninth = [place for place, cohort in enumerate(order) if cohort == "B"][8]
        assert order[:ninth].count("A") >= 8 - staleness


def test_nor_where_a_worker_in_the_call_is_started_again(tmp_path: Path) -> None:
    """It steps anew while another party is still to come, which does not wait for the third, still in the call."""

    def main(run: LiveRun) -> None:
        model, optimizer = begin(run, model=normed())
        for _ in range(12 if run.party == "B" else 2):
            sleep(run, 0.3 if run.party == "B" else 0.01)
            lockstep(run, model, optimizer, range(1))
        run.save(tmp_path / "c.safetensors")

    faults = dies("A/0", at_s=1.2, back_s=1.2)
    train_by("mixed staleness=1", [1, 1, 1], main, shards=2, faults=faults)


def test_call_after_call_is_not_held_up_where_messages_are_lost(tmp_path: Path) -> None:
    again = Patience(heartbeat_s=0.5, timeout_s=30.0, resend_s=0.15)

    def main(run: LiveRun) -> None:
        model, optimizer = begin(run, model=normed())
        for call in range(6):
            lockstep(run, model, optimizer, range(1 + (run.parties.index(run.party) + call) % 3))
            run.save(tmp_path / "c.safetensors")
            run.save(tmp_path / "d.safetensors")

    network = Network(50.0, 20.0, 10.0, loss=0.1, duplicate=0.2, reorder=0.5)
    train_by("mixed staleness=0", [1, 1, 1], main, shards=2, network=network, patience=again)


@pytest.mark.parametrize("spec", ["mixed", "hfa k1=1 k2=4"])
def test_workers_in_different_calls_are_told_so(spec: str, tmp_path: Path) -> None:
    def main(run: LiveRun) -> None:
        model, optimizer = begin(run, model=normed())
        lockstep(run, model, optimizer, range(2 if run.is_first else 3))
        run.save(tmp_path / "c.safetensors")

    said = (
        r"A/0 called save\(\), which waits for the whole run, and A/1 called step\(\), "
        r"which waits for all of A"
    )
    with pytest.raises((Disagreement, RunFailed), match=said):
        train_by(spec, [2, 1], main)


@pytest.mark.parametrize("spec", ["mixed", "downpour"])
def test_a_checkpoint_has_the_weights_that_belong_to_the_optimizer_s_state(spec: str, tmp_path: Path) -> None:
    """Those of the global servers, not those that the first worker had last."""
    path, seen = tmp_path / "c.safetensors", {}

    def main(run: LiveRun) -> None:
        model, optimizer = begin(run, adam)
        lockstep(run, model, optimizer, range(3 if run.is_first else 8))
        if run.is_first:
            sleep(run, 10.0)
        run.save(path)
        seen[run.name] = weights(model)
        if run.is_first:
            assert {"step", "exp_avg", "exp_avg_sq"} == set(optimizer.state_dict()["state"][0])

    def later(run: LiveRun) -> dict[str, torch.Tensor]:
        model, optimizer = begin(run, adam, small_model(seed=5))
        run.load(path)
        if run.is_first:
            assert float(optimizer.state_dict()["state"][0]["step"]) == 11
        return weights(model)

    train_by(spec, [1, 1], main, shards=2)
    loaded, _ = train_by(spec, [1, 1], later, shards=2)
    assert_equal(loaded["A/0"], seen["B/0"])
    assert_equal(loaded["B/0"], seen["B/0"])
    assert_differ(
        {f"0.{name}": value for name, value in loaded["A/0"].items()},
        {f"0.{name}": value for name, value in seen["A/0"].items()},
    )

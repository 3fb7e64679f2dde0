"""Calls of the whole run, where parties and workers do not wait for each other."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from live_runs import (
    adam,
    assert_equal,
    sgd,
    small_model,
    train,
    weights,
)
from policy_runs import assert_differ, lockstep, settings
from torch import nn

from geomx.errors import Disagreement, RunFailed
from geomx.simulate.simulator import Network, Simulator
from geomx.sync import policies
from geomx.train import LiveRun
from geomx.wire.session import Patience


@pytest.mark.parametrize("shards", [1, 2])
@pytest.mark.parametrize("staleness", [0, 1])
def test_a_bound_does_not_hold_up_calls_of_the_whole_run(staleness: int, shards: int, tmp_path: Path) -> None:
    """A party that waits in one makes no steps: nobody waits for it, at shards neither that have no part in the call.

    Behind the call the bound holds again.
    """
    spec = f"mixed staleness={staleness}"

    def main(run: LiveRun) -> dict[str, torch.Tensor]:
        model = nn.Sequential(small_model(), nn.BatchNorm1d(5).double())  # whose buffers save() averages
        model, optimizer = run.attach(model, sgd(model))
        lockstep(run, model, optimizer, 3 if run.party == "A" else 8)
        run.save(tmp_path / "c.safetensors")
        lockstep(run, model, optimizer, 9)
        optimizer.load_state_dict(optimizer.state_dict())
        return {name: value for name, value in weights(model).items() if name.startswith("0")}

    results, simulator = train(
        [1, 1], main, settings(policies.make(spec)), shards=shards, policy=spec, network=Network(40.0, 15.0)
    )
    assert_equal(results["A/0"], results["B/0"])
    for shard in range(shards):
        noted = simulator.noted("round")
        order = [fields["cohort"] for _, node, fields in noted if node == f"global/{shard}"]
        ninth = [place for place, cohort in enumerate(order) if cohort == "B"][8]
        assert order[:ninth].count("A") >= 8 - staleness


@pytest.mark.parametrize("shards", [1, 2])
def test_nor_where_a_worker_in_the_call_is_started_again(shards: int, tmp_path: Path) -> None:
    """It steps anew while another party is still to come, which does not wait for the third, still in the call."""
    spec = "mixed staleness=1"

    def main(run: LiveRun) -> None:
        model = nn.Sequential(small_model(), nn.BatchNorm1d(5).double())
        model, optimizer = run.attach(model, sgd(model))
        for _ in range(12 if run.party == "B" else 2):
            run._client.port.sleep(0.3 if run.party == "B" else 0.01)  # type: ignore[attr-defined]  # virtual
            lockstep(run, model, optimizer, 1)
        run.save(tmp_path / "c.safetensors")

    def faults(simulator: Simulator, restart: Callable[[str], None]) -> None:
        simulator.at(1.2, lambda: simulator.crash("A/0"))
        simulator.at(1.2, lambda: restart("A/0"))

    train([1, 1, 1], main, settings(policies.make(spec)), shards=shards, faults=faults, policy=spec)


def test_call_after_call_is_not_held_up_where_messages_are_lost(tmp_path: Path) -> None:
    spec = "mixed staleness=0"
    again = Patience(heartbeat_s=0.5, timeout_s=30.0, resend_s=0.15)

    def main(run: LiveRun) -> None:
        model = nn.Sequential(small_model(), nn.BatchNorm1d(5).double())
        model, optimizer = run.attach(model, sgd(model))
        for call in range(6):
            lockstep(run, model, optimizer, 1 + (run.parties.index(run.party) + call) % 3)
            run.save(tmp_path / "c.safetensors")
            run.save(tmp_path / "d.safetensors")

    network = Network(50.0, 20.0, 10.0, loss=0.1, duplicate=0.2, reorder=0.5)
    policy = policies.make(spec)
    train([1, 1, 1], main, settings(policy), shards=2, network=network, policy=spec, patience=again)


@pytest.mark.parametrize(("spec", "cohort"), [("mixed", "A"), ("hfa k1=1 k2=4", "A")])
def test_workers_in_different_calls_are_told_so(spec: str, cohort: str, tmp_path: Path) -> None:
    def main(run: LiveRun) -> None:
        model = nn.Sequential(small_model(), nn.BatchNorm1d(5).double())
        model, optimizer = run.attach(model, sgd(model))
        lockstep(run, model, optimizer, 2 if run.is_first else 3)
        run.save(tmp_path / "c.safetensors")

    said = (
        r"A/0 called save\(\), which waits for the whole run, and A/1 called step\(\), "
        rf"which waits for all of {cohort}"
    )
    with pytest.raises((Disagreement, RunFailed), match=said):
        train([2, 1], main, settings(policies.make(spec)), policy=spec)


@pytest.mark.parametrize("spec", ["mixed", "downpour"])
def test_a_checkpoint_has_the_weights_that_belong_to_the_optimizer_s_state(spec: str, tmp_path: Path) -> None:
    """Those of the global servers, not those that the first worker had last."""
    path, seen = tmp_path / "c.safetensors", {}

    def main(run: LiveRun) -> None:
        model = small_model()
        model, optimizer = run.attach(model, adam(model))
        lockstep(run, model, optimizer, 3 if run.is_first else 8)
        if run.is_first:
            run._client.port.sleep(10.0)  # type: ignore[attr-defined]  # of the virtual clock: all have stepped
        run.save(path)
        seen[run.name] = weights(model)
        if run.is_first:
            assert {"step", "exp_avg", "exp_avg_sq"} == set(optimizer.state_dict()["state"][0])

    def later(run: LiveRun) -> dict[str, torch.Tensor]:
        model = small_model(seed=5)
        model, optimizer = run.attach(model, adam(model))
        run.load(path)
        if run.is_first:
            assert float(optimizer.state_dict()["state"][0]["step"]) == 11
        return weights(model)

    train([1, 1], main, settings(policies.make(spec)), policy=spec, shards=2)
    loaded, _ = train([1, 1], later, settings(policies.make(spec)), policy=spec, shards=2)
    assert_equal(loaded["A/0"], seen["B/0"])
    assert_equal(loaded["B/0"], seen["B/0"])
    assert_differ(
        {f"0.{name}": value for name, value in loaded["A/0"].items()},
        {f"0.{name}": value for name, value in seen["A/0"].items()},
    )

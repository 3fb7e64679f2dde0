"""Local servers that are started again: their workers keep their processes, and nothing counts twice or is lost."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from live_runs import Faults, assert_equal, batch, begin, descend, dies, place_of, root_s, sleep, weights
from policy_runs import train_by
from restarts import Script, assert_same

from geomx.errors import NodeLost, RunFailed
from geomx.node.topology import Edge
from geomx.rounds.losses import Losses
from geomx.simulate.simulator import Network, Simulator
from geomx.train import LiveRun
from geomx.wire.session import Patience

PATIENCE = Patience(heartbeat_s=0.4, timeout_s=1.6)


WAIT = Losses("wait", 60.0)


def run(
    faults: Faults, losses: Losses = WAIT, policy: str = "fsa", script: Any = None, **more: Any
) -> tuple[Any, Simulator]:
    how: dict[str, Any] = {"parties": (2, 1), "losses": losses, "patience": PATIENCE} | more
    given = {"on_loss": losses.on_loss} | how.pop("given", {})
    return train_by(policy, how.pop("parties"), script or Script(), given, faults=faults, **how)


@functools.cache
def calm(policy: str = "fsa") -> Any:
    return run(lambda *_: None, policy=policy)[0]


@pytest.mark.parametrize("at_s", [0.301, 0.342, 0.383, 0.5])
@pytest.mark.parametrize("server", ["A", "B"])
def test_a_run_that_waits_for_a_local_server_ends_with_the_same_bits(server: str, at_s: float) -> None:
    """Workers send again what was not committed; what was is not counted twice."""
    shaken, _ = run(dies(server, at_s=at_s, back_s=at_s + 5.0))
    assert_same(shaken, calm())


@pytest.mark.parametrize("near", ["global/0", "global/1"])
def test_a_local_server_returns_to_shards_that_are_at_unequal_distances(near: str) -> None:
    """The nearer has sent its weights before the farther one has said where the run stands."""

    def faults(simulator: Simulator, restart: Callable[[str], None]) -> None:
        for shard in ("global/0", "global/1"):
            simulator.link("A", shard, Network(100.0, delay_ms=1.0 if shard == near else 40.0))
        dies("A", at_s=0.5, back_s=1.0)(simulator, restart)

    results, _ = run(faults, shards=2, given={"slice_elements": 64, "pack_below": 10})
    assert len({ours["at"] for ours in results.values()}) == 1


@pytest.mark.parametrize("policy", ["hfa k1=1 k2=2", "diloco every=2", "mixed"])
def test_a_run_of_any_policy_waits_for_a_local_server(policy: str) -> None:
    shaken, _ = run(dies("A", at_s=0.4, back_s=3.0), policy=policy)
    assert {name: ours["at"] for name, ours in shaken.items()} == {
        name: ours["at"] for name, ours in calm(policy).items()
    }


def test_what_goes_down_in_deltas_goes_on_from_the_weights_of_the_run() -> None:
    shaken, _ = run(dies("A", at_s=0.4, back_s=3.0), wan=Edge("int8", "int8"))
    for ours in shaken.values():
        assert_equal(ours["weights"], shaken["A/0"]["weights"])


@pytest.mark.parametrize("at_s", [2.1, 2.3])
def test_who_waits_for_a_party_s_own_stream_of_updates_takes_all_of_it_anew(at_s: float) -> None:
    """Its server dies with one worker ahead of the other; what is lost on the LAN is not what was lost before."""
    seen: dict[int, dict[str, torch.Tensor]] = {}

    def script(live: LiveRun) -> None:
        model, optimizer = begin(live)
        for x, y in live.shard([batch(100 * step + place_of(live), 4) for step in range(8)]):
            sleep(live, 0.02 * (1 + place_of(live)))
            optimizer.zero_grad()
            flat = torch.cat([parameter.detach().reshape(-1) for parameter in model.parameters()])
            seen.setdefault(live.turn, {})[live.name] = flat
            F.mse_loss(model(x), y).backward()
            optimizer.step()

    def faults(simulator: Simulator, restart: Callable[[str], None]) -> None:
        simulator.link("A", "A/1", Network(rate_mbps=0.2, delay_ms=30.0))
        dies("A", at_s=at_s, back_s=at_s + 1.5)(simulator, restart)

    how = {"network": Network(rate_mbps=1.0, delay_ms=1.0), "lan": Edge(codec_down="int8")}
    run(faults, script=script, parties=(2, 2), **how)
    assert all(torch.equal(of["A/0"], of["A/1"]) for of in seen.values())


def test_a_worker_that_comes_back_with_its_server_counts_in_the_turn_that_is_open() -> None:
    """Its server had pushed the others' sum before it was started again; the whole party's takes its place."""

    def script(live: LiveRun) -> dict[str, torch.Tensor]:
        model, optimizer = begin(live)
        for x, y in live.shard([batch(100 * step + place_of(live), 4) for step in range(4)]):
            sleep(live, 3.0 if live.party == "B" else 0.02)
            descend(model, optimizer, x, y)
        return weights(model)

    def faults(simulator: Simulator, restart: Callable[[str], None]) -> None:
        dies("A/1", at_s=1.0, back_s=4.1)(simulator, restart)
        dies("A", at_s=4.0, back_s=4.05)(simulator, restart)

    results, simulator = run(faults, Losses("continue", 60.0), script=script)
    for values in results.values():
        assert_equal(values, results["A/0"])
    counted = {fields["turn"]: fields["counted"] for fields in root_s(simulator, "round")}
    assert (counted[1], counted[2]) == (3, 3)


def test_a_server_that_does_not_come_back_ends_the_run() -> None:
    with pytest.raises((NodeLost, RunFailed), match=r"A.*not back within 20 s more \(run\.wait_s\)"):
        run(dies("A", at_s=0.4), Losses("wait", 20.0))


def test_below_the_least_number_of_parties_the_others_wait_as_well() -> None:
    shaken, simulator = run(dies("B", at_s=0.4, back_s=9.0), Losses("continue", 60.0, least_parties=2))
    assert_same(shaken, calm())
    rosters = root_s(simulator, "roster")
    short = "1 party would be left, and run.least_parties is 2"
    assert {fields["reason"] for fields in rosters} == {f"B is awaited: {short}"}
    assert all((fields["awaited"], fields["lost"]) == ({"B": short}, {}) for fields in rosters)


def test_only_a_shard_ends_a_run_that_goes_on() -> None:
    with pytest.raises((NodeLost, RunFailed), match="global/1"):
        run(dies("global/1", at_s=0.4), Losses("continue", 20.0), shards=2)

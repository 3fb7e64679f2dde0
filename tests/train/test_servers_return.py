"""Local servers that are started again: their workers keep their processes, and nothing counts twice or is lost."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from live_runs import batch, place_of, small_model, train, weights
from restarts import Script, assert_same

from geomx.errors import NodeLost, RunFailed
from geomx.node.topology import Edge
from geomx.rounds.losses import Losses
from geomx.simulate.simulator import Network, Simulator
from geomx.sync import policies
from geomx.train import LiveRun, Settings
from geomx.wire.session import Patience

PATIENCE = Patience(heartbeat_s=0.4, timeout_s=1.6)
CALM: dict[str, Any] = {}


def run(server: str, at_s: float, back_s: float | None, losses: Losses, **how: Any) -> tuple[Any, Simulator]:
    def faults(simulator: Simulator, restart: Callable[[str], None]) -> None:
        if server:
            simulator.at(at_s, lambda: simulator.crash(server))
        if back_s is not None:
            simulator.at(back_s, lambda: restart(server))

    policy = how.get("policy", "fsa")
    settings = Settings(
        slice_elements=512, pack_below=100, policy=policies.make(policy), on_loss=losses.on_loss
    )
    return train(
        (2, 1),
        Script(),
        settings,
        faults=faults,
        losses=losses,
        patience=PATIENCE,
        **({"policy": policy} | how),
    )


def calm(key: str, **how: Any) -> Any:
    if key not in CALM:
        CALM[key], _ = run("", 0.0, None, Losses("wait", 60.0), **how)
    return CALM[key]


@pytest.mark.parametrize("at_s", [0.301, 0.342, 0.383, 0.42, 0.5, 0.61])
@pytest.mark.parametrize("server", ["A", "B"])
def test_a_run_that_waits_for_a_local_server_ends_with_the_same_bits(server: str, at_s: float) -> None:
    """Workers send again what was not committed; what was is not counted twice."""
    shaken, _ = run(server, at_s, at_s + 5.0, Losses("wait", 60.0))
    assert_same(shaken, calm("fsa"))


@pytest.mark.parametrize("near", ["global/0", "global/1"])
def test_a_local_server_returns_to_shards_that_are_at_unequal_distances(near: str) -> None:
    """The nearer has sent its weights before the farther one has said where the run stands."""

    def faults(simulator: Simulator, restart: Callable[[str], None]) -> None:
        simulator.link("A", near, Network(100.0, delay_ms=1.0))
        simulator.link("A", {"global/0", "global/1"}.difference({near}).pop(), Network(100.0, delay_ms=40.0))
        simulator.at(0.5, lambda: simulator.crash("A"))
        simulator.at(1.0, lambda: restart("A"))

    settings = Settings(slice_elements=64, pack_below=10, policy=policies.make("fsa"), on_loss="wait")
    how: dict[str, Any] = {"losses": Losses("wait", 60.0), "patience": PATIENCE, "shards": 2}
    results, _ = train((2, 1), Script(), settings, faults=faults, **how)
    assert len({ours["at"] for ours in results.values()}) == 1


@pytest.mark.parametrize("policy", ["hfa k1=1 k2=2", "diloco every=2", "mixed"])
def test_a_run_of_any_policy_waits_for_a_local_server(policy: str) -> None:
    shaken, _ = run("A", 0.4, 3.0, Losses("wait", 60.0), policy=policy)
    assert {name: ours["at"] for name, ours in shaken.items()} == {
        name: ours["at"] for name, ours in calm(policy, policy=policy).items()
    }


def test_what_goes_down_in_deltas_goes_on_from_the_weights_of_the_run() -> None:
    wan = Edge("int8", "int8")
    shaken, _ = run("A", 0.4, 3.0, Losses("wait", 60.0), wan=wan)
    first, *others = (ours["weights"] for ours in shaken.values())
    for other in others:
        assert all((first[key] == other[key]).all() for key in first)


@pytest.mark.parametrize("at_s", [2.1, 2.3])
def test_who_waits_for_a_party_s_own_stream_of_updates_takes_all_of_it_anew(at_s: float) -> None:
    """Its server dies with one worker ahead of the other; what is lost on the LAN is not what was lost before."""
    seen: dict[int, dict[str, torch.Tensor]] = {}

    def script(live: LiveRun) -> None:
        model = small_model(seed=place_of(live))
        model, optimizer = live.attach(model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))
        for x, y in live.shard([batch(100 * step + place_of(live), 4) for step in range(8)]):
            live._client.port.sleep(0.02 * (1 + place_of(live)))  # type: ignore[attr-defined]  # virtual
            optimizer.zero_grad()
            flat = torch.cat([parameter.detach().reshape(-1) for parameter in model.parameters()])
            seen.setdefault(live.turn, {})[live.name] = flat
            F.mse_loss(model(x), y).backward()
            optimizer.step()

    def faults(simulator: Simulator, restart: Callable[[str], None]) -> None:
        simulator.link("A", "A/1", Network(rate_mbps=0.2, delay_ms=30.0))
        simulator.at(at_s, lambda: simulator.crash("A"))
        simulator.at(at_s + 1.5, lambda: restart("A"))

    settings = Settings(slice_elements=512, pack_below=100, on_loss="wait")
    how: dict[str, Any] = {
        "losses": Losses("wait", 60.0),
        "patience": PATIENCE,
        "lan": Edge(codec_down="int8"),
    }
    train((2, 2), script, settings, network=Network(rate_mbps=1.0, delay_ms=1.0), faults=faults, **how)
    assert all(torch.equal(of["A/0"], of["A/1"]) for of in seen.values())


def test_a_worker_that_comes_back_with_its_server_counts_in_the_turn_that_is_open() -> None:
    """Its server had pushed the others' sum before it was started again; the whole party's takes its place."""

    def script(live: LiveRun) -> dict[str, torch.Tensor]:
        model = small_model(seed=place_of(live))
        model, optimizer = live.attach(model, torch.optim.SGD(model.parameters(), lr=0.1))
        for x, y in live.shard([batch(100 * step + place_of(live), 4) for step in range(4)]):
            live._client.port.sleep(3.0 if live.party == "B" else 0.02)  # type: ignore[attr-defined]  # virtual
            optimizer.zero_grad()
            F.mse_loss(model(x), y).backward()
            optimizer.step()
        return weights(model)

    def faults(simulator: Simulator, restart: Callable[[str], None]) -> None:
        simulator.at(1.0, lambda: simulator.crash("A/1"))
        simulator.at(4.0, lambda: simulator.crash("A"))
        simulator.at(4.05, lambda: restart("A"))
        simulator.at(4.1, lambda: restart("A/1"))

    settings = Settings(slice_elements=512, pack_below=100, on_loss="continue")
    how: dict[str, Any] = {"losses": Losses("continue", 60.0), "patience": PATIENCE}
    results, simulator = train((2, 1), script, settings, faults=faults, **how)
    first, *others = results.values()
    assert all(torch.equal(first[key], other[key]) for other in others for key in first)
    counted = {
        fields["turn"]: fields["counted"]
        for _, node, fields in simulator.noted("round")
        if node == "global/0"
    }
    assert (counted[1], counted[2]) == (3, 3)


def test_a_server_that_does_not_come_back_ends_the_run() -> None:
    with pytest.raises((NodeLost, RunFailed), match=r"A.*not back within 20 s more \(run\.wait_s\)"):
        run("A", 0.4, None, Losses("wait", 20.0))


def test_below_the_least_number_of_parties_the_others_wait_as_well() -> None:
    shaken, simulator = run("B", 0.4, 9.0, Losses("continue", 60.0, least_parties=2))
    assert_same(shaken, calm("fsa"))
    rosters = [fields for _, node, fields in simulator.noted("roster") if node == "global/0"]
    short = "1 party would be left, and run.least_parties is 2"
    assert {fields["reason"] for fields in rosters} == {f"B is awaited: {short}"}
    assert all((fields["awaited"], fields["lost"]) == ({"B": short}, {}) for fields in rosters)


def test_only_a_shard_ends_a_run_that_goes_on() -> None:
    with pytest.raises((NodeLost, RunFailed), match="global/1"):
        run("global/1", 0.4, None, Losses("continue", 20.0), shards=2)

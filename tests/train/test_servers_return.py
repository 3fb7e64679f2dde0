"""Local servers that are started again: their workers keep their processes, and nothing counts twice or is lost."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from live_runs import train
from restarts import Script, assert_same

from geomx.errors import NodeLost, RunFailed
from geomx.node.topology import Edge
from geomx.rounds.losses import Losses
from geomx.simulate.simulator import Simulator
from geomx.sync import policies
from geomx.train import Settings
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


def test_a_server_that_does_not_come_back_ends_the_run() -> None:
    with pytest.raises((NodeLost, RunFailed), match=r"A.*not back within 20 s more \(run\.wait_s\)"):
        run("A", 0.4, None, Losses("wait", 20.0))


def test_below_the_least_number_of_parties_the_others_wait_as_well() -> None:
    shaken, simulator = run("B", 0.4, 9.0, Losses("continue", 60.0, least_parties=2))
    assert_same(shaken, calm("fsa"))
    reasons = {fields["reason"] for _, node, fields in simulator.noted("roster") if node == "global/0"}
    assert reasons == {"B is awaited: 1 party would be left, and run.least_parties is 2"}


def test_only_a_shard_ends_a_run_that_goes_on() -> None:
    with pytest.raises((NodeLost, RunFailed), match="global/1"):
        run("global/1", 0.4, None, Losses("continue", 20.0), shards=2)

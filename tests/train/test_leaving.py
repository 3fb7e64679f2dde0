"""Workers that are asked to leave: their scripts end well and at once, and the others go on as if they had not been."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from exploring import each_value
from live_runs import assert_equal, begin, descend, now, place_of, sgd, sleep, small_model, weights
from policy_runs import train_by
from restarts import X, Y
from torch.optim import lr_scheduler
from torch.utils.data import DataLoader, TensorDataset

from geomx.errors import AskedToLeave
from geomx.node.topology import AS_ABOVE, Edge
from geomx.rounds.losses import Losses
from geomx.simulate.simulator import Simulator
from geomx.train import LiveRun
from geomx.wire.session import Patience

POLICIES = [
    "fsa", "hfa k1=2 k2=2", "diloco every=5", "diloco every=6 fragments=2 overlap=2", "esync", "mixed", "downpour",
]  # fmt: skip


class Leaving:
    """Runs a script on each worker, and has some nodes leave: `asks(simulator, lives)` plans it."""

    def __init__(self, script: Callable[[LiveRun], Any], policy: str = "fsa", codec: str = "dense") -> None:
        self.lives: dict[str, LiveRun] = {}
        self.ended: dict[str, float] = {}  # who has left early, and when
        self.statuses = set[Any]()  # with which their scripts end
        self._script = script
        self._policy = policy
        self._how: dict[str, Any] = {
            "losses": Losses("continue", 60.0),
            "patience": Patience(heartbeat_s=0.1, timeout_s=0.4),
            "lan": Edge(codec, AS_ABOVE),
            "wan": Edge(codec, codec),
        }

    def run(
        self, at_s: float, *nodes: str, also: Callable[[Simulator], None] = lambda _: None
    ) -> tuple[dict[str, Any], Simulator]:
        def main(live: LiveRun) -> Any:
            self.lives[live.name] = live
            try:
                return self._script(live)
            except AskedToLeave as left:
                self.statuses.add(left.code)
                self.ended[live.name] = now(live)
                return None

        def faults(simulator: Simulator, _: Any) -> None:
            for node in nodes:
                simulator.at(at_s, lambda node=node: self._ask(simulator, node))
            also(simulator)

        given = {"on_loss": "continue"}
        results, simulator = train_by(self._policy, (2, 1), main, given, faults=faults, **self._how)
        return {name: result for name, result in results.items() if result is not None}, simulator

    def _ask(self, simulator: Simulator, node: str) -> None:
        if node in self.lives:
            self.lives[node].ask_to_leave()
        else:
            simulator.call(node, "retire")


def loop(live: LiveRun, epochs: int = 6, save: Path | None = None, schedule: bool = False) -> dict[str, Any]:
    model, optimizer = begin(live)
    scheduler = lr_scheduler.ExponentialLR(optimizer, 0.9) if schedule else None
    for _ in range(live.epoch, epochs):
        for x, y in live.shard(DataLoader(TensorDataset(X, Y), 2, shuffle=True), over="run"):
            sleep(live, 0.02 * (1 + place_of(live)))
            descend(model, optimizer, x, y)
            if scheduler is not None:
                scheduler.step()
            if save is not None:
                live.save(save)
    live.wait()
    return {"weights": weights(model), "at": (live.step, live.epoch)}


@pytest.mark.parametrize(("policy", "codec"), each_value(POLICIES, ["dense", "int4"]))
def test_a_worker_leaves_and_the_others_go_on(policy: str, codec: str) -> None:
    """With a schedule, too, which it may leave before it has stepped."""
    leaving = Leaving(lambda live: loop(live, schedule=policy == "fsa"), policy, codec)
    results, simulator = leaving.run(0.5, "A/1")
    assert results.keys() == {"A/0", "B/0"}
    assert leaving.statuses == {0}
    assert leaving.ended["A/1"] < 0.8  # behind its step, for which it may have waited
    if policy not in ("mixed", "downpour"):
        assert_equal(results["A/0"]["weights"], results["B/0"]["weights"])
    assert results["A/0"]["at"][1] == 6
    told = {node: fields for _, node, fields in simulator.noted("left") if fields.get("early")}
    assert {(node, fields["peer"]) for node, fields in told.items()} == {("A", "A/1"), ("global/0", "A/1")}
    assert simulator.noted("lost") == []


@pytest.mark.parametrize("policy", ["diloco every=5", "mixed"])
def test_a_server_leaves_with_all_below_it(policy: str) -> None:
    results, simulator = Leaving(loop, policy, "int4").run(0.5, "A")
    assert results.keys() == {"B/0"}
    ended = [at for at, node, _ in simulator.noted("left") if node == "global/0"]
    assert max(ended[:2]) < 1.0
    assert simulator.noted("lost") == []


def test_whoever_is_left_alone_is_awaited_as_ever() -> None:
    """That others have left is no sign that the run is at its end."""
    leaving = Leaving(lambda live: loop(live, 12))
    results, simulator = leaving.run(0.5, "A", also=lambda s: s.at(1.2, lambda: s.pause("B/0", 1.5)))
    assert results["B/0"]["at"][1] == 12
    reasons = [fields["reason"] for _, node, fields in simulator.noted("roster") if node == "global/0"]
    assert reasons
    assert all(reason.startswith("B/0 is awaited: 0 workers would be left") for reason in reasons)


def test_all_may_leave() -> None:
    results, _ = Leaving(loop).run(0.5, "A", "B")
    assert results == {}


def test_who_is_at_the_end_of_its_data_does_not_wait_for_the_others() -> None:
    def script(live: LiveRun) -> float:
        model, optimizer = begin(live)
        count = 2 if live.name == "B/0" else 40
        for x, y in live.shard([(X[:2], Y[:2])] * 3 * count, over="run"):
            sleep(live, 0.1)
            descend(model, optimizer, x, y)
        return now(live)

    leaving = Leaving(script)
    results, _ = leaving.run(1.0, "B/0")
    assert leaving.ended["B/0"] < 1.3
    assert results["A/0"] > 3.0


def test_who_is_asked_while_its_close_waits_for_the_others_does_not_wait_any_more() -> None:
    """And `close` returns: its script has more to do."""
    closed: dict[str, float] = {}

    def script(live: LiveRun) -> bool:
        model, optimizer = begin(live)
        for step, (x, y) in enumerate(live.shard([(X[:2], Y[:2])] * 120, over="run")):
            sleep(live, 0.1)
            descend(model, optimizer, x, y)
            if live.name == "B/0" and step == 3:
                break
        live.close()
        closed[live.name] = now(live)
        return live.is_closed

    results, _ = Leaving(script, "esync").run(1.0, "B/0")
    assert results == dict.fromkeys(("A/0", "A/1", "B/0"), True)
    assert closed["B/0"] < 1.5
    assert closed["A/0"] > 3.0


def test_a_run_whose_other_workers_save_behind_each_step_does_not_disagree(tmp_path: Path) -> None:
    """Whoever leaves takes part in no call of its own: the others may be in another one."""
    path = tmp_path / "model.safetensors"
    for at_s in (0.45, 0.5, 0.55, 0.6):
        results, _ = Leaving(lambda live: loop(live, 2, save=path), codec="int4").run(at_s, "A/1")
        assert_equal(results["A/0"]["weights"], results["B/0"]["weights"])


@pytest.mark.parametrize("asked", ["A/0", "A"])
def test_where_the_first_worker_has_left_the_next_writes_the_checkpoint(asked: str, tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"

    def script(live: LiveRun) -> None:
        loop(live)
        live.save(path)

    Leaving(script).run(0.5, asked)
    assert path.exists()


def test_what_was_not_shared_of_local_steps_counts_in_the_next_mean() -> None:
    """One step of each of three workers, of which one leaves: the mean is over all three."""
    start, made = small_model(seed=0), dict[str, dict[str, torch.Tensor]]()

    def script(live: LiveRun) -> dict[str, torch.Tensor]:
        model, optimizer = begin(live)
        for step in range(2):
            live.weight(1)
            optimizer.zero_grad()
            F.mse_loss(model(X[place_of(live) : place_of(live) + 2]), Y[:2]).backward()
            if step == 0 and live.name == "A/1":
                live.ask_to_leave()
            if step == 0:
                plain = small_model(seed=0)
                plain.load_state_dict(weights(model))
                optimized = sgd(plain)
                for ours, theirs in zip(plain.parameters(), model.parameters(), strict=True):
                    assert theirs.grad is not None
                    ours.grad = theirs.grad.clone()
                optimized.step()
                made[live.name] = weights(plain)
            else:
                for parameter in model.parameters():
                    parameter.grad = torch.zeros_like(parameter)
            optimizer.step()
        return weights(model)

    results, _ = Leaving(script, "diloco every=2 lr=1 momentum=0").run(1e9)
    began = weights(start)
    for name, mean in results["A/0"].items():
        # A/0 and B/0 have taken two steps, of which the second moved nothing; A/1 one.
        moved = [(2, made["A/0"][name]), (1, made["A/1"][name]), (2, made["B/0"][name])]
        expected = began[name] + sum(n * (w - began[name]) for n, w in moved) / 5
        torch.testing.assert_close(mean, expected, rtol=1e-12, atol=1e-14)
    assert_equal(results["A/0"], results["B/0"])


def test_only_a_run_that_goes_on_lets_workers_leave() -> None:
    def script(live: LiveRun) -> int:
        live.ask_to_leave()
        model, optimizer = begin(live)
        for _ in live.shard([(X[:2], Y[:2])] * 4, over="run"):
            optimizer.zero_grad()
            model(X[:2]).sum().backward()
            optimizer.step()
        return live.step

    results, _ = train_by("fsa", (1, 1), script, {"on_loss": "wait"}, losses=Losses("wait", 60.0))
    assert results == {"A/0": 2, "B/0": 2}

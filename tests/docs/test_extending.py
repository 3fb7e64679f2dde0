"""The examples of docs/extending.md, taken out of the page and run."""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import re
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import forks
import pytest
import torch
from live_runs import (
    Script,
    assert_equal,
    begin,
    lockstep,
    now,
    place_of,
    plain,
    sgd,
    sleep,
    small_model,
    train,
    weights,
)
from torch import nn
from trees import Loop, assert_well, layout_of, run_tree, topology_of
from wires import ANY_PORT, LOOPS, Witness, run_on

from geomx.channels.contract import EdgeSettings
from geomx.codecs import codecs
from geomx.codecs.dense import Dense
from geomx.codecs.pack.noise import RngKey
from geomx.layout import Layout, Tensor
from geomx.node.factory import make_node
from geomx.node.port import Arrived
from geomx.node.topology import Edge
from geomx.simulate.programs import Program
from geomx.simulate.simulator import Simulator
from geomx.sync import policies
from geomx.train import LiveRun, Settings

PAGE = Path(__file__).parents[2] / "docs" / "extending.md"
FILES = dict(re.findall(r"```python\n# (\w+)\.py\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL))
DESCENT = "descent:Descent"
STEPS = 6
SCRIPT = """
import geomx, torch
run = geomx.join()
model = torch.nn.Linear(20, 5)
model, optimizer = run.attach(model, torch.optim.SGD(model.parameters(), lr=0.05))
for _ in range(3):
    optimizer.zero_grad()
    run.weight(4)
    model(torch.ones(4, 20)).square().mean().backward()
    optimizer.step()
run.close()
"""
DESCRIPTION = """
[run]
script = "train.py"
[wan]
channel = "marked:Marked dscp=8"
link = { rate_mbps = 100, delay_ms = 1 }
[[party]]
name = "A"
workers = 1
[[party]]
name = "B"
workers = 1
"""


@pytest.fixture(autouse=True)
def beside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with the page's files, from which they can be imported for as long as the test runs."""
    for name, code in FILES.items():
        (tmp_path / f"{name}.py").write_text(code, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    for name in FILES:
        sys.modules.pop(name, None)


def load(name: str) -> ModuleType:
    return importlib.import_module(name)


def descend(make: Callable[[nn.Module], torch.optim.Optimizer], slow: int | None = None) -> Script:
    """A training loop; returns the weights that it ends with, and when. A slow worker takes ten seconds a step."""

    def script(run: LiveRun) -> tuple[dict[str, torch.Tensor], float]:
        model, optimizer = begin(run, make)
        for step in range(STEPS):
            sleep(run, 10.0 if place_of(run) == slow else 0.1)
            lockstep(run, model, optimizer, [step])
        return weights(model), now(run)

    return script


def test_every_example_is_run_here() -> None:
    assert FILES.keys() == {"half", "majority", "lion", "descent", "marked", "last_first", "chain"}


def test_the_codec_halves_what_goes_up_and_training_stays_near() -> None:
    assert codecs.find("half:Half") is load("half").Half
    layout = Layout((Tensor("weights", (300, 100), "float32"),))
    dense = topology_of([1, 1])
    half = topology_of([1, 1], wan=Edge(codec_up="half:Half scale=8.0"))
    sent, ended = [], []
    for topology in (dense, half):
        loop = Loop(layout, topology.tree.workers, rounds=5)
        simulator, programs = run_tree(topology, loop)
        assert_well(simulator, topology, programs)
        assert torch.equal(loop.weights["A/0"][0], loop.weights["B/0"][0])
        sent.append(simulator.sent_bytes("B", "global/0"))
        ended.append(loop.weights["A/0"][0])
    assert sent[1] < 0.55 * sent[0]
    assert not torch.equal(ended[0], ended[1])
    torch.testing.assert_close(ended[1], ended[0], rtol=0.0, atol=2e-3)


def test_the_codec_refuses_other_sizes() -> None:
    codec = load("half").Half(RngKey())
    slice_ = layout_of(2).slices[0]
    assert codec.accepts(slice_, 2 * slice_.elements)
    assert not codec.accepts(slice_, 2 * slice_.elements + 1)


def test_a_worker_that_starts_anew_is_told_in_which_form_its_values_come() -> None:
    """Between `attach` and the first step they are dense, whatever the codec."""
    topology = topology_of([2], lan=Edge(codec_down="half:Half"))
    loop = Loop(layout_of(2), topology.tree.workers, rounds=2, compute_s=3.0)
    again: dict[int, torch.Tensor] = {}

    def rejoin(program: Program) -> None:
        def hear(item: Any) -> None:
            if isinstance(item, Arrived):
                again[item.update.slice] = item.values

        program.listen(hear)
        program.call("attach", loop.layout, loop.settings)
        program.wait(lambda: len(again) == len(loop.layout.slices), lambda: "the current weights")
        first = [loop.contribution(index, 0, 0, {}).values for index in again]
        assert all(map(torch.equal, again.values(), first))
        program.call("leave", {"": 0})

    def restart(simulator: Simulator) -> None:
        simulator.crash("A/1")
        simulator.add(make_node(topology, "A/1", incarnation=2))
        simulator.program("A/1", rejoin)

    simulator, programs = run_tree(
        topology, loop, faults=lambda simulator: simulator.at(1.0, lambda: restart(simulator))
    )
    assert len(again) == len(loop.layout.slices)
    assert programs["A/0"].error is None
    assert [simulator.error_of(name) for name in topology.tree.nodes] == [None] * len(topology.tree.nodes)


@pytest.mark.parametrize("policy", ["fsa", "majority:Majority"])
def test_a_majority_does_not_wait_for_the_slow_one(policy: str) -> None:
    """Six workers, one of which takes a hundred times as long: who steps together with it, and who does not?"""
    settings = Settings(policy=policies.find(policy)())
    results, _ = train([3, 3], descend(sgd, slow=5), settings, policy=policy)
    ended = {name: end for name, (_, end) in results.items()}
    if policy == "fsa":
        assert min(ended.values()) > 10.0 * STEPS
    else:
        assert ended["A/0"] < 10.0 < 10.0 * STEPS <= ended["B/2"]
    for trained, _ in results.values():
        assert_equal(trained, results["A/0"][0])


def test_the_datagram_channel_sends_the_last_blocks_until_they_have_come() -> None:
    edge = Edge(channel="last_first:last_first k=0.25")
    classes = edge.classes(RngKey())
    assert isinstance(classes, load("last_first").LastFirst)
    layout = Layout((Tensor("weights", (300, 100), "float32"),))
    (slice_, *_), topology = layout.slices, topology_of([1, 1], wan=edge)
    blocks = Dense().cut(slice_, torch.zeros(slice_.size_bytes, dtype=torch.uint8), slice_.size_bytes // 8)
    assert classes.levels(slice_, 1, blocks, lambda: torch.zeros(slice_.elements), None) == [1] * 6 + [0] * 2
    loop = Loop(layout, topology.tree.workers, rounds=5)
    simulator, programs = run_tree(topology, loop)
    assert_well(simulator, topology, programs)
    assert simulator.hosts["A"].node.blocks.given.keys() == {0, 1}


def test_the_overlay_has_each_party_send_to_the_one_before_it() -> None:
    load("chain")
    topology, layout = topology_of([1, 1, 1], overlays={"": "chain:Chain"}), layout_of(3)
    loop = Loop(layout, topology.tree.workers, rounds=8)
    simulator, programs = run_tree(topology, loop)
    assert_well(simulator, topology, programs)
    (used,) = [fields for _, _, fields in simulator.noted("overlay")]
    assert (used["state"], used["relays"]) == ("used", "A, B")
    assert simulator.sent_bytes("C", "B") > 4 * layout.slices[0].size_bytes


def test_the_optimizer_on_the_workers_does_what_it_does_alone() -> None:
    lion = load("lion").Lion
    results, _ = train([2, 1], descend(lambda model: lion(model.parameters(), lr=0.01)))
    model = small_model()
    expected = plain(model, lion(model.parameters(), lr=0.01), range(STEPS), 3)
    for trained, _ in results.values():
        assert_equal(trained, results["A/0"][0])
        torch.testing.assert_close(trained, expected, rtol=1e-9, atol=1e-12)


def test_the_rule_at_the_root_is_plain_gradient_descent() -> None:
    layout, ended = layout_of(3), []
    for name, hyper in (("torch.optim.SGD", None), (DESCENT, {"lr": 0.05})):
        topology = topology_of([1, 2], shards=2, rule="" if hyper is None else name)
        loop = Loop(layout, topology.tree.workers, rounds=5, settings={"optimizer": name, "clip_norm": None})
        loop.hyper = hyper or {**loop.hyper, "momentum": 0.0}
        simulator, programs = run_tree(topology, loop)
        assert_well(simulator, topology, programs)
        ended.append(loop.weights["B/1"])
    assert ended[0].keys() == ended[1].keys()
    for index, values in ended[0].items():
        assert torch.equal(values, ended[1][index])


def test_a_description_names_the_rule_at_the_root() -> None:
    """The training script has an optimizer of PyTorch's, whose learning rate is all that the rule takes of it."""
    adam = descend(lambda model: torch.optim.Adam(model.parameters(), lr=0.05))
    ruled, _ = train([2, 1], adam, Settings(rule=DESCENT), rule=DESCENT)
    plain, _ = train([2, 1], descend(sgd))
    for name, (trained, _) in ruled.items():
        assert_equal(trained, plain[name][0])


def test_a_rule_that_the_description_does_not_have_is_not_imported() -> None:
    topology, layout = topology_of([1, 1]), layout_of(3)
    loop = Loop(
        layout, topology.tree.workers, rounds=1, settings={"optimizer": "antigravity:Fly", "clip_norm": None}
    )
    simulator, _ = run_tree(topology, loop)
    assert "the workers ask for the rule 'antigravity:Fly'" in str(simulator.error_of("global/0"))
    assert "antigravity" not in sys.modules


@pytest.mark.parametrize("loop", LOOPS)
def test_the_channel_marks_both_ends_of_a_connection(loop: str) -> None:
    async def marks() -> list[int]:
        channel, accepted = load("marked").Marked(EdgeSettings(), dscp=10), asyncio.Queue[Any]()
        listener = await channel.listen(ANY_PORT, Witness(), accepted.put_nowait)
        ends = [await channel.dial(listener.address, Witness()), await accepted.get()]
        found = [end.socket.getsockopt(socket.IPPROTO_IP, socket.IP_TOS) >> 2 for end in ends]
        for end in ends:
            end.abort()
            await end.gone()
        await listener.close()
        return found

    assert run_on(loop, marks) == [10, 10]


@pytest.mark.processes
@pytest.mark.grids
def test_the_channel_carries_a_run(beside: Path) -> None:
    (beside / "train.py").write_text(SCRIPT, encoding="utf-8")
    (beside / "run.toml").write_text(DESCRIPTION, encoding="utf-8")
    command = ["run", "run.toml", "--plain", "--report", "report.json"]
    done = forks.geomx(command, os.environ, beside)
    assert done.returncode == 0, done.stderr
    report = json.loads((beside / "report.json").read_text(encoding="utf-8"))
    assert (report["ended"], report["steps"]) == ("well", 3)

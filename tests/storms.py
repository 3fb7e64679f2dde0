"""Whole runs on the virtual clock whose members die, are cut off, stand still, come back, and leave, as a seed has it.

What is checked does not come from the code that is tested: every worker's contributions are written down as they leave
its training loop, and what a shard adds is held against those that it says it has added. What nodes give up as they
leave is held against what they owe (`owed.py`).
"""

from __future__ import annotations

import random
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from owed import Owed
from torch import nn

from geomx.errors import AskedToLeave, NodeLost
from geomx.layout import Slice
from geomx.node.factory import make_node
from geomx.node.port import Contribution
from geomx.node.root import Root
from geomx.node.topology import AS_ABOVE, Edge, Topology
from geomx.node.worker import Worker
from geomx.rounds.losses import Losses
from geomx.rounds.round import Round
from geomx.simulate.network import Network
from geomx.simulate.programs import Program
from geomx.simulate.simulator import Simulator
from geomx.simulate.stores import MemoryStore
from geomx.store.log import Log
from geomx.sync import policies
from geomx.sync.contract import LocalStep
from geomx.train import LiveRun, Settings
from geomx.tree import TOP
from geomx.wire.session import Patience

PATIENCE = Patience(heartbeat_s=0.4, timeout_s=1.6)
QUIET_S = 5.0  # without faults, before the data ends
FLAGS = "-v", "rough", "durable", "replicas", "overlay", "inside", "rows"
BACK_S = 4.0  # until the next shard may die, where they keep each other's logs
LEAST_STAY = 3  # workers, of six
POLICIES = (
    "fsa",
    "hfa k1=2 k2=2",
    "hfa k1=2 k2=2 k3=2",
    "diloco every=5",
    "esync",
    "mixed",
    "mixed staleness=1",
    "downpour",
)
# Also of tensors as small as these.
CODECS = {
    "dense": "dense",
    "int4": "int4 size_lower_bound=1",
    "bisparse": "bisparse ratio=0.2 size_lower_bound=1",
}


@dataclass
class Storm:
    """What a run is, and what happens to it: all follows from the seed."""

    policy: str
    codec: str
    shards: int
    tiers: int
    seed: int
    faults: int = 4
    rate_mbps: float = 200.0
    ends_s: float = 8.0  # when the last fault may begin
    leaves: int = 0  # how many nodes are asked to leave
    # Servers are hit as often as workers, who is killed may die again at once, shards lie apart.
    rough: bool = False
    durable: bool = False  # shards keep logs, and are hit as often as all others together
    replicas: bool = False  # the same, in each other's memory
    overlay: bool = False  # servers below the shards add and pass on for each other
    inside: bool = False  # and so do the workers of a party
    rows: bool = False  # one of the model's tensors has sparse gradients

    @property
    def command(self) -> str:
        """What repeats this run."""
        cell = f"{self.policy!r} {self.codec!r} {self.shards} {self.tiers} {self.seed}"
        words = [word for word in FLAGS[1:] if getattr(self, word)]
        return f"python tests/storms.py {cell} {' '.join([f'{self.faults} {self.rate_mbps:g} {self.leaves}', *words])}"

    @property
    def is_local(self) -> bool:
        """Whether a turn counts as a whole."""
        return policies.make(self.policy).plans is LocalStep

    @property
    def topology(self) -> Topology:
        parties = {"A": ("A/0", "A/1"), "B": ("B/0",), "C": ("C/0",), "D": ("D/0", "D/1")}
        return Topology.of_parties(
            "storm",
            parties,
            regions={"R": ("A", "B"), "S": ("C", "D")} if self.tiers == 3 else None,
            shards=[f"global/{shard}" for shard in range(self.shards)],
            wan=Edge(CODECS[self.codec], CODECS[self.codec]),
            lan=Edge(CODECS[self.codec], AS_ABOVE) if self.leaves else None,
            policy=self.policy,
            losses=Losses("continue", 60.0),
            is_durable=self.durable or self.replicas,
            replicas=int(self.replicas),
            cut_every_s=1.0,
            overlays=dict.fromkeys(
                [TOP] * self.overlay + [*parties] * self.inside, "shuffled:Shuffled every=2"
            ),
        ).with_patience(PATIENCE)


@dataclass
class Seen:
    """What a run came to."""

    simulator: Simulator
    topology: Topology
    programs: dict[str, Program] = field(default_factory=dict)
    given: dict[Any, tuple[float, torch.Tensor | None]] = field(default_factory=dict)  # as it left a loop
    counted: Counter[str] = field(default_factory=Counter)  # in the ledger, by worker
    twice: list[Any] = field(default_factory=list)
    added: set[Any] = field(default_factory=set)
    stored: set[Any] = field(default_factory=set)  # rounds that count
    wrong: list[str] = field(default_factory=list)  # sums that are not those of their origins
    origins: dict[Any, set[frozenset[str]]] = field(default_factory=dict)  # by cohort and turn, of gradients
    # By turn: the weights behind it, by worker.
    states: dict[Any, dict[str, str]] = field(default_factory=dict)
    ledgers: dict[str, list[int]] = field(default_factory=dict)
    steps: Counter[str] = field(default_factory=Counter)
    asked: set[str] = field(default_factory=set)  # to leave, and all below them
    asked_at: dict[str, float] = field(default_factory=dict)
    live: dict[str, LiveRun] = field(default_factory=dict)
    # Node, from, until: what a fault has concerned.
    hit: list[tuple[str, float, float]] = field(default_factory=list)
    deaths: list[tuple[float, float]] = field(default_factory=list)  # of shards
    owed: Owed = field(default_factory=Owed)
    did: list[str] = field(default_factory=list)


class Table(nn.Module):
    """Adds to what it is given the rows of a table that its numbers stand for."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = nn.Embedding(200, 6, sparse=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.rows((1000 * x).long().abs() % 200).mean(1)


def model_of(seed: int, rows: bool = False) -> nn.Sequential:
    generator = torch.Generator().manual_seed(seed)
    layers = nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 3)
    model = nn.Sequential(*([Table()] if rows else []), *layers).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64) * 0.3)
    return model


Start = Callable[[str], None]


def run(
    storm: Storm, monkeypatch: pytest.MonkeyPatch, plan: Callable[[Seen, Start], None] = lambda *_: None
) -> Seen:
    """Run it, to the end or until it stands still. `plan`: what else happens; it is given what starts a node again."""
    topology, chance = storm.topology, random.Random(f"storm {storm.seed}")
    simulator = Simulator(storm.seed, Network(storm.rate_mbps, delay_ms=2.0))
    if storm.rough:
        for server in (node for node in topology.tree.servers if "global/1" in topology.tree.parents(node)):
            simulator.link(server, "global/1", Network(storm.rate_mbps, delay_ms=15.0))
    seen = Seen(simulator, topology)
    _write_down(seen, storm, monkeypatch)
    settings = Settings(
        slice_elements=64, pack_below=20, policy=policies.make(storm.policy), ledger=True, on_loss="continue"
    )
    lives: Counter[str] = Counter()
    store = MemoryStore()

    def main(program: Program) -> None:
        torch.set_num_threads(1)
        run = seen.live[program.name] = LiveRun(
            program, name=program.name, tree=topology.tree, settings=settings, clock=lambda: program.now
        )
        place = topology.tree.workers.index(program.name)
        generator = torch.Generator().manual_seed(1000 * lives[program.name] + place)

        def data() -> Iterator[Any]:
            while program.now < storm.ends_s + QUIET_S:
                program.sleep(0.1 * (1 + place / 10))
                x = torch.randn(2, 6, generator=generator, dtype=torch.float64)
                yield x, torch.randn(2, 3, generator=generator, dtype=torch.float64)

        with suppress(AskedToLeave), run:
            model = model_of(place, storm.rows)
            model, optimizer = run.attach(model, torch.optim.SGD(model.parameters(), lr=0.05))
            for x, y in run.shard(data()):
                optimizer.zero_grad()
                F.mse_loss(model(x), y).backward()
                optimizer.step()
                seen.steps[program.name] += 1
                _keep_state(seen, run, model)
            run.wait()
            assert run.ledger is not None
            seen.ledgers[program.name] = run.ledger.tolist()

    def start(name: str) -> None:
        if name in seen.asked:  # whoever is to leave is not started again
            return
        lives[name] += 1
        node = make_node(topology, name, incarnation=1000 * lives[name])
        if storm.durable and topology.tree.is_shard(name):
            simulator.add(node, log=Log(store, name), latency_s=0.05)
        else:
            simulator.add(node)
        seen.owed.begin(node)
        if topology.tree.is_worker(name):
            seen.programs[name] = simulator.program(name, main)

    for name in topology.tree.nodes:
        start(name)
    for _ in range(storm.faults):
        _plan_fault(storm, seen, chance, start)
    for _ in range(storm.leaves):
        _plan_leave(storm, seen, chance)
    plan(seen, start)
    simulator.run(until=10 * (storm.ends_s + QUIET_S))
    return seen


def _plan_fault(storm: Storm, seen: Seen, chance: random.Random, start: Callable[[str], None]) -> None:
    simulator, tree = seen.simulator, seen.topology.tree
    at_s, for_s = chance.uniform(0.3, storm.ends_s), chance.uniform(0.1, 4.0)
    name = chance.choice([*tree.workers, *tree.servers])
    kind = chance.choice(["kill", "kill", "cut", "pause", "reset"])
    if storm.rough and chance.random() < 0.5:
        name = chance.choice(tree.servers)
    if (storm.durable or storm.replicas) and chance.random() < 0.5:
        name = chance.choice(tree.shards)
        kind = chance.choice(["kill", "kill", "cut", "pause", "zombie"])
    again_s = chance.uniform(0.0, 0.1) if storm.rough and chance.random() < 0.5 else 0.0
    is_shard = tree.is_shard(name)
    if storm.replicas and is_shard and kind in ("kill", "zombie"):
        if any(at_s < until + BACK_S and since < at_s + for_s + BACK_S for since, until in seen.deaths):
            kind = "pause"
        else:
            seen.deaths.append((at_s, at_s + for_s))
    seen.did.append(f"{at_s:.2f} s: {kind} {name} for {for_s:.2f} s")
    above = (*tree.children(name), *tree.shards) if is_shard else tree.parents(name)
    seen.hit += [(node, at_s, at_s + for_s) for node in (name, *above)]

    def kill(away_s: float = for_s, again_s: float = again_s) -> None:
        if not simulator.has_stopped(name):
            simulator.crash(name, silent=chance.random() < 0.3)
            simulator.at(simulator.now + away_s, lambda: start(name))
            if again_s:
                simulator.at(simulator.now + away_s + again_s, lambda: kill(0.3, 0.0))

    def cut() -> None:
        for parent in above:
            simulator.cut(name, parent, 0.0 if kind == "reset" else for_s, reset=kind == "reset")

    def replace() -> None:
        """One stands still and is taken for dead; it goes on beside the other."""
        if not simulator.has_stopped(name):
            simulator.pause(name, for_s)
            simulator.at(simulator.now + for_s / 2, lambda: start(name))

    pause = partial(simulator.pause, name, for_s)
    action = {"kill": kill, "cut": cut, "reset": cut, "pause": pause, "zombie": replace}[kind]
    simulator.at(at_s, action)


def _plan_leave(storm: Storm, seen: Seen, chance: random.Random) -> None:
    simulator, tree = seen.simulator, seen.topology.tree
    at_s, name = chance.uniform(0.3, storm.ends_s), chance.choice([*tree.workers, *tree.servers])
    seen.did.append(f"{at_s:.2f} s: {name} is asked to leave")

    def leave() -> None:
        if name in seen.asked or simulator.has_stopped(name):
            return
        below = [node for node in (*tree.workers, *tree.servers) if name in tree.ancestors(node)]
        if len(set(tree.workers) - seen.asked - {name, *below}) < LEAST_STAY:
            return
        seen.asked |= {name, *below}
        seen.asked_at |= dict.fromkeys({name, *below} - seen.asked_at.keys(), simulator.now)
        if tree.is_worker(name):
            seen.live[name].ask_to_leave()
        else:
            simulator.call(name, "retire")

    simulator.at(at_s, leave)


def _keep_state(seen: Seen, run: LiveRun, model: nn.Module) -> None:
    """Behind a step after which all have the same weights."""
    attached = run._attached
    assert attached is not None
    if not attached.steps.lockstep:
        return
    key = attached.steps.turn
    flat = torch.cat([parameter.detach().reshape(-1) for parameter in model.parameters()])
    seen.states.setdefault(key, {})[run.name] = flat.numpy().tobytes().hex()


def _write_down(seen: Seen, storm: Storm, monkeypatch: pytest.MonkeyPatch) -> None:
    contribute, closed = Worker.contribute, Root.closed

    def contributing(worker: Worker, contribution: Contribution) -> None:
        push, values = contribution.push, contribution.values
        key = worker.name, worker.identity.incarnation, push.slice, push.cohort, push.turn
        if push.drains:
            seen.owed.owes(worker.name, push.slice, values)
        elif push.kind != "assign":
            seen.given[key] = push.weight, None if values is None else values.detach().clone()
        contribute(worker, contribution)

    def closing(root: Root, slice_: Slice, round_: Round) -> None:
        root._server.journal.behind(lambda: checking(root, slice_, round_))
        closed(root, slice_, round_)

    def checking(root: Root, slice_: Slice, round_: Round) -> None:
        once = slice_.index, round_.cohort, round_.turn
        is_former = seen.simulator.hosts[root._server.name].node is not root._server
        is_known = once in seen.stored and (root._server.journal.is_replaying or is_former)
        if round_.kind != "assign" and not is_known:
            seen.stored.add(once)
            _check(seen, storm, root, slice_, round_)

    seen.owed.watch(monkeypatch)
    monkeypatch.setattr(Worker, "contribute", contributing)
    monkeypatch.setattr(Root, "closed", closing)


def _check(seen: Seen, storm: Storm, root: Root, slice_: Slice, round_: Round) -> None:
    """What a shard adds is what its origins have given, and each of them once."""
    where = f"slice {slice_.index}, cohort {round_.cohort!r}, turn {round_.turn}"
    if round_.kind == "gradient":
        seen.origins.setdefault((round_.cohort, round_.turn), set()).add(frozenset(round_.origins))
    given = []
    for name, incarnation in round_.origins.items():
        once = name, slice_.index, round_.cohort, round_.turn
        if once in seen.added:
            seen.twice.append(once)
        seen.added.add(once)
        found = seen.given.get((name, incarnation, slice_.index, round_.cohort, round_.turn))
        if found is None:
            seen.wrong.append(f"{where}: {name} {incarnation} has given nothing")
            return
        given.append(found)
        if slice_.role == "ledger":
            seen.counted[name] += 1
    given += seen.owed.added(slice_, round_)
    if abs(sum(weight for weight, _ in given) - round_.weight) > 1e-9:
        seen.wrong.append(f"{where}: weight {round_.weight} of {dict(round_.origins)}")
    values = [_dense(each) for _, each in given if each is not None]
    decoders = [partial(_whole, decode) for decode in root._server.decoders(slice_, round_)]
    exact = storm.codec == "dense" or slice_.role == "ledger"
    if values and exact and not torch.allclose(sum(d() for d in decoders).double(), sum(values).double()):
        seen.wrong.append(f"{where}: not the sum of {dict(round_.origins)}")


def _dense(values: torch.Tensor) -> torch.Tensor:
    return values.to_dense().reshape(-1) if values.is_sparse else values


def _whole(decode: Callable[[], torch.Tensor]) -> torch.Tensor:
    return _dense(decode())


def not_drained(seen: Seen) -> list[str]:
    """Who has left in order, undisturbed, and has given up something else than what it had not sent of its sums."""
    tree, found = seen.topology.tree, []
    left = {(node, fields["peer"]) for _, node, fields in seen.simulator.noted("left") if fields.get("early")}
    for name, asked_at in seen.asked_at.items():
        parents = tree.parents(name)
        near = {name, *tree.leaves(name), *(parent for parent in parents if not tree.is_shard(parent))}
        if any(
            node in near and since < asked_at + 6.0 and until + 4.0 > asked_at
            for node, since, until in seen.hit
        ):
            continue
        if not all(any((parent, leaf) in left for parent in parents) for leaf in tree.leaves(name)):
            continue
        found += seen.owed.faults_of(name)
    return found


def _is_excused(storm: Storm, was_asked: bool, error: BaseException | None) -> bool:
    """Of those asked to leave, whoever's server has died, since that is not started again; and who was away when the
    last of the others was asked to leave.
    """
    was_away = storm.leaves > 0 and "took no part in its end" in str(error)
    return error is None or was_away or (was_asked and isinstance(error, NodeLost))


def faults_of(storm: Storm, seen: Seen) -> list[str]:
    """What is wrong with a run; empty: nothing."""
    found = [*seen.wrong, *(f"{each} was added twice" for each in seen.twice), *not_drained(seen)]
    for name, program in seen.programs.items():
        if program.error is None and not program.finished:
            found.append(f"{name} has not come to its end")
        elif not _is_excused(storm, name in seen.asked, program.error):
            found.append(f"{name}: {program.error!r}")
    for name in seen.topology.tree.nodes:
        error = seen.simulator.error_of(name)
        if name not in seen.asked and not _is_excused(storm, False, error):
            found.append(f"{name}: {error!r}")
    for turn, states in seen.states.items():
        if len(set(states.values())) > 1:
            alike: dict[str, list[str]] = {}
            for name, state in states.items():
                alike.setdefault(state, []).append(name)
            found.append(f"turn {turn}: replicas differ: {list(alike.values())}")
            break
    torn = {(fields["cohort"], fields["turn"]) for _, _, fields in seen.simulator.noted("torn")}
    for turn, origins in seen.origins.items():
        if len(origins) > 1 and (turn not in torn or storm.is_local):
            found.append(f"turn {turn} is of different workers: {sorted(map(sorted, origins))}")
    order = seen.topology.tree.workers
    newest = [
        max(of[place] for of in seen.ledgers.values()) if seen.ledgers else 0 for place in range(len(order))
    ]
    if seen.ledgers and newest != [seen.counted[name] for name in order]:
        found.append(f"the ledger says {newest}, and added were {[seen.counted[name] for name in order]}")
    return found


def main() -> None:
    """Repeat one run, and show what happened."""
    policy, codec, shards, tiers, seed, *more = (each for each in sys.argv[1:] if each not in FLAGS)
    faults, rate_mbps, leaves = (*more, *("4", "200", "0")[len(more) :])
    storm = Storm(
        policy,
        codec,
        int(shards),
        int(tiers),
        int(seed),
        int(faults),
        float(rate_mbps),
        leaves=int(leaves),
        rough="rough" in sys.argv,
        durable="durable" in sys.argv,
        replicas="replicas" in sys.argv,
        overlay="overlay" in sys.argv,
        inside="inside" in sys.argv,
        rows="rows" in sys.argv,
    )
    with pytest.MonkeyPatch.context() as monkeypatch:
        seen = run(storm, monkeypatch)
    for told in (*seen.did, *faults_of(storm, seen), dict(seen.steps)):
        print(told)
    if "-v" in sys.argv:
        names = (
            "roster",
            "torn",
            "anew",
            "failed",
            "awaited",
            "away",
            "joined",
            "resumed",
            "left",
            "retires",
            "overlay",
            "relayed",
        )
        for at_s, node, note in seen.simulator.notes:
            if note.name in names:
                print(f"{at_s:8.3f} {node:9} {note.name} {note.fields}")


if __name__ == "__main__":
    main()

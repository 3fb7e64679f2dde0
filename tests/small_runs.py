"""Small whole runs on the virtual clock: a linear model, one process for each node, and what became of each worker."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

from geomx.errors import GeomxError
from geomx.node.factory import make_node
from geomx.node.topology import Topology
from geomx.simulate.network import Network
from geomx.simulate.programs import Program
from geomx.simulate.simulator import Simulator
from geomx.simulate.stores import MemoryStore
from geomx.store.log import Log
from geomx.sync import policies
from geomx.train import LiveRun, Settings
from geomx.wire.session import Patience

PATIENCE = Patience(heartbeat_s=0.4, timeout_s=1.6)
Pause = Callable[[str, float], float]


class SmallRun:
    """`pause(worker, now)`: how long its next step computes, in seconds. It takes `steps` steps, or until `ends_s`.

    Attributes:
        steps: By worker, how many it has taken.
        gave: How often it has contributed, in all processes of its name.
        weights: Of those that came to the run's end.
        ledgers: As they knew it in the end.
        errors: What training loops have ended with.
    """

    def __init__(
        self, topology: Topology, pause: Pause, *, steps: int = 1 << 30, ends_s: float = 1e9, **settings: Any
    ) -> None:
        self.topology = topology.with_patience(PATIENCE)
        self.simulator = Simulator(1, Network(200.0, delay_ms=2.0))
        self.steps: Counter[str] = Counter()
        self.gave: Counter[str] = Counter()
        self.weights: dict[str, str] = {}
        self.ledgers: dict[str, list[int]] = {}
        self.errors: list[BaseException] = []
        self.runs: dict[str, LiveRun] = {}
        self._pause, self._steps, self._ends_s, self._settings = pause, steps, ends_s, settings
        self._lives: Counter[str] = Counter()
        self.store = MemoryStore()

    def start(self, *names: str, party: tuple[str, ...] = ()) -> None:
        """Start processes, for the first time or again. `party`: of workers that come later, see `LiveRun`."""
        for name in names:
            self._lives[name] += 1
            tree, node = self.topology.tree, make_node(self.topology, name, 1000 * self._lives[name])
            if self.topology.is_durable and not self.topology.replicas and tree.is_shard(name):
                self.simulator.add(node, log=Log(self.store, name), latency_s=0.02)
            else:
                self.simulator.add(node)
            if tree.is_worker(name):
                self.simulator.program(name, lambda program: self._train(program, party))

    def kill(self, name: str, away_s: float) -> None:
        """End a process, unless it has, and start another after so long."""
        if not self.simulator.has_stopped(name):
            self.simulator.crash(name)
            self.simulator.at(self.simulator.now + away_s, lambda: self.start(name))

    def counted(self) -> Counter[str]:
        """How often each worker was counted, as the newest ledger says."""
        order = self.topology.tree.workers
        return Counter(
            {name: max(of[place] for of in self.ledgers.values()) for place, name in enumerate(order)}
        )

    def _train(self, program: Program, party: tuple[str, ...]) -> None:
        try:
            self._loop(program, party)
        except GeomxError as error:
            self.errors.append(error)
            raise

    def _loop(self, program: Program, party: tuple[str, ...]) -> None:
        torch.set_num_threads(1)
        tree, name = self.topology.tree, program.name
        losses, policy = self.topology.losses, policies.make(self.topology.policy)
        settings = Settings(
            pack_below=20,
            policy=policy,
            ledger=True,
            on_loss=losses.on_loss,
            has_quorum=losses.quorum.share < 1.0,
            **self._settings,
        )
        run = LiveRun(
            program, name=name, tree=tree, settings=settings, clock=lambda: program.now, party=party
        )
        self.runs[name] = run
        generator = torch.Generator().manual_seed(tree.workers.index(name))
        torch.manual_seed(tree.workers.index(name))

        def data() -> Iterator[torch.Tensor]:
            for _ in range(self._steps):
                if program.now >= self._ends_s:
                    return
                program.sleep(self._pause(name, program.now))
                yield torch.randn(2, 6, generator=generator, dtype=torch.float64)

        with run:
            model: nn.Module = nn.Linear(6, 12).double()
            model, optimizer = run.attach(model, torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.5))
            self._count(run, name)
            for x in run.shard(data()):
                optimizer.zero_grad()
                (model(x) - x.sum(1, keepdim=True)).square().mean().backward()
                optimizer.step()
                self.steps[name] += 1
            run.wait()
            assert run.ledger is not None
            self.ledgers[name] = run.ledger.tolist()
            self.weights[name] = str([parameter.tolist() for parameter in model.parameters()])

    def _count(self, run: LiveRun, name: str) -> None:
        attached = run._attached
        assert attached is not None
        count = attached.ledger.count

        def counting(*of: Any, **more: Any) -> None:
            self.gave[name] += 1
            count(*of, **more)

        attached.ledger.count = counting  # type: ignore[method-assign]

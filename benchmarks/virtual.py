"""Real nodes and gradients on the simulator's virtual clock: what becomes of a training, however slow the machine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from benchmarks import training, workloads
from geomx.channels.memory import reuse_freed_blocks
from geomx.node.factory import make_node
from geomx.node.root import Root
from geomx.node.server import Server
from geomx.node.topology import Topology
from geomx.simulate.programs import Program
from geomx.simulate.simulator import Simulator
from geomx.train import LiveRun, Settings

BATCH = 32
PARTIES = {"A": ("A/0", "A/1"), "B": ("B/0", "B/1")}


@dataclass(frozen=True, slots=True)
class Seat:
    """One worker's place: its run, its share of the workload, and its clock. `roots`: the run's shards."""

    run: LiveRun
    task: workloads.Task
    program: Program
    roots: tuple[Root, ...]

    def copy_global(self, model: nn.Module) -> None:
        """Give `model` the weights that the global servers have now, in no time."""
        tensors = dict(model.named_parameters())
        with torch.no_grad():
            for root in self.roots:
                for name, part, values in root.parts():
                    tensors[name].view(-1)[part.start : part.stop] = values


def train(
    plan: Topology,
    simulator: Simulator,
    settings: Settings,
    model: str,
    seed: int,
    loop: Callable[[Seat], None],
    goes_on: Callable[[], bool] = lambda: True,
) -> None:
    """Run `loop` on every worker until all have ended, or as long as `goes_on()`. Raises what a worker has raised."""
    torch.set_num_threads(1)
    reuse_freed_blocks()

    def main(program: Program) -> None:
        torch.set_num_threads(1)
        party, _, rank = program.name.partition("/")
        run = LiveRun(
            program,
            name=program.name,
            members=plan.workers,
            party_members=plan.parties[party],
            settings=settings,
            clock=lambda: program.now,
        )
        job = _job(plan, program.name, list(plan.parties).index(party), int(rank), model)
        with run:
            loop(Seat(run, workloads.task(job, seed), program, roots))

    nodes = [make_node(plan, name) for name in plan.nodes]
    for node in nodes:
        simulator.add(node)
    upsides = [node.upside for node in nodes if isinstance(node, Server)]
    roots = tuple(upside for upside in upsides if isinstance(upside, Root))
    programs = [simulator.program(worker, main) for worker in plan.workers]
    simulator.run(while_=goes_on)
    for program in programs:
        if program.error is not None and goes_on():
            raise program.error


def wan_bytes(plan: Topology, simulator: Simulator) -> tuple[float, float]:
    """What all parties have sent to the global servers, and what came back."""
    ways = [(party, shard) for party in plan.parties for shard in plan.shards]
    up = sum(simulator.sent_bytes(party, shard) for party, shard in ways)
    return up, sum(simulator.sent_bytes(shard, party) for party, shard in ways)


def _job(plan: Topology, name: str, party: int, rank: int, model: str) -> training.Job:
    workers = len(plan.workers) // len(plan.parties)
    return training.Job(
        name=name, party=party, rank=rank, parties=len(plan.parties), workers=workers, workload=model, parameters=0,
        batch=BATCH, step_ms=0.0, steps=0, evaluate_every=0, target_accuracy=None, options={}, addresses={},
        folder=Path(),
    )  # fmt: skip

"""Real nodes and gradients on the simulator's virtual clock: what becomes of a training, however slow the machine."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

from benchmarks import workloads
from benchmarks.cells import Cell
from benchmarks.training import Job
from geomx.channels.memory import reuse_freed_blocks
from geomx.node.factory import make_node
from geomx.node.root import Root
from geomx.node.topology import Topology
from geomx.simulate.programs import Program
from geomx.simulate.simulator import Simulator
from geomx.train import LiveRun, Settings


def parties(workers: int = 2, parties: int = 2) -> dict[str, tuple[str, ...]]:
    """A, B, ..., of so many workers each."""
    names = (chr(65 + place) for place in range(parties))
    return {party: tuple(f"{party}/{rank}" for rank in range(workers)) for party in names}


@dataclass(frozen=True, slots=True)
class Seat:
    """One worker's place: its run, its share of the workload, and its clock. `roots`: the run's shards."""

    run: LiveRun
    task: workloads.Task
    program: Program
    roots: list[Root]

    @torch.no_grad()
    def copy_global(self, model: nn.Module) -> None:
        """Give `model` the weights that the global servers have now, in no time."""
        tensors = dict(model.named_parameters())
        for root in self.roots:
            for name, part, values in root.parts():
                tensors[name].view(-1)[part.start : part.stop] = values


def train(
    plan: Topology,
    simulator: Simulator,
    settings: Settings,
    model: str,
    loop: Callable[[Seat], None],
    goes_on: Callable[[], bool] = lambda: True,
    batch: int = 32,
) -> None:
    """Run `loop` on every worker until all have ended, or as long as `goes_on()`. Raises what a worker has raised."""
    torch.set_num_threads(1)
    reuse_freed_blocks()
    workers = len(plan.tree.workers) // len(plan.tree.parties)
    cell = Cell("geomx", "", model, 0, "", parties=len(plan.tree.parties), workers=workers, batch=batch)

    def main(program: Program) -> None:
        torch.set_num_threads(1)
        job = Job(cell, program.name)
        with LiveRun(
            program, name=job.name, tree=plan.tree, settings=settings, clock=lambda: program.now
        ) as run:
            loop(Seat(run, workloads.task(job, settings.seed), program, roots))

    nodes = [make_node(plan, name) for name in plan.tree.nodes]
    for node in nodes:
        simulator.add(node)
    roots = [node.sink for node in nodes if isinstance(getattr(node, "sink", None), Root)]
    programs = [simulator.program(worker, main) for worker in plan.tree.workers]
    simulator.run(while_=goes_on)
    for program in programs:
        if program.error is not None and goes_on():
            raise program.error


def wan_bytes(plan: Topology, simulator: Simulator) -> tuple[float, float]:
    """What all parties have sent to the global servers, and what came back."""
    ways = [(party, shard) for party in plan.tree.parties for shard in plan.tree.shards]
    up = sum(simulator.sent_bytes(party, shard) for party, shard in ways)
    return up, sum(simulator.sent_bytes(shard, party) for party, shard in ways)

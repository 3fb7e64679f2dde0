"""Runs whose parties are jobs of processes, as torchrun would start them."""

from __future__ import annotations

import logging
import os
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerProcess
from typing import Any

import torch
import torch.distributed as dist
from forks import context
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import geomx
from geomx.config import Run
from geomx.drive import loops
from geomx.launch.environment import job_environment
from geomx.launch.local.local_run import with_free_ports
from geomx.launch.local.ports import Ports
from geomx.observe.records import Recorder
from geomx.train import LiveRun

BOUND_S = 300.0
TOML = """
[run]
name = "jobs"
ledger = true
[wan]
timeout_s = 120
[lan]
timeout_s = 120
[limits]
stop_s = 120
[layout]
slice_elements = 300
pack_below = 100
[[party]]
name = "A"
workers = 2
inside = "collective"
[[party]]
name = "B"
workers = 2
inside = "collective"
"""

Script = Callable[[LiveRun, dict[str, Any]], Any]


@dataclass
class Job:
    """The processes of a run. `results`: by worker, what its script gave or raised."""

    processes: dict[str, ForkServerProcess] = field(default_factory=dict)
    pipes: dict[str, Connection] = field(default_factory=dict)
    results: dict[str, Any] = field(default_factory=dict)
    ports: Ports = field(default_factory=Ports)

    def finish(self) -> dict[str, Any]:
        """Wait for what every worker gives, and where all is well for every process; returns `results`."""
        waiting: dict[Any, str] = {pipe: name for name, pipe in self.pipes.items()}
        while waiting:
            ready = wait(list(waiting), BOUND_S)
            assert ready, f"{', '.join(waiting.values())} have not ended"
            for pipe in ready:
                name = waiting.pop(pipe)
                try:
                    self.results[name] = pipe.recv()
                except EOFError:
                    self.results[name] = None  # it was killed
        if not any(isinstance(result, BaseException) for result in self.results.values()):
            for name, process in self.processes.items():
                process.join(BOUND_S)
                assert process.exitcode is not None, f"{name} has not ended"
        return self.results

    def stop(self) -> None:
        """Kill whatever is left."""
        for process in self.processes.values():
            process.kill()
            process.join()
        self.ports.close()


def start(
    script: Script,
    ways: Mapping[str, str] | None = None,
    overrides: tuple[str, ...] = (),
    environment: Mapping[str, str] | None = None,
    **options: Any,
) -> Job:
    """Start a run of parties A and B; `ways`: how each party's model is wrapped (see `wrapped`).

    `script(run, options)` is a function of a module that a process can import.
    """
    ways = dict(ways or {})
    by_server = tuple(f"party.{party}.inside=server" for party, way in ways.items() if way == "server")
    job, ends = Job(), list[Connection]()
    run = with_free_ports(Run.parse(TOML, "jobs.toml", (*by_server, *overrides)), job.ports)
    for name in (*run.shard_names, *run.servers):
        job.processes[name] = context.Process(target=_serve, args=(run, name), daemon=True)
    for party in run.parties:
        port = job.ports.hold()
        for rank, name in enumerate(party.worker_names):
            job.pipes[name], theirs = context.Pipe(duplex=False)
            ends.append(theirs)
            there = {"GEOMX_PARTY": party.name, **(environment or {})}
            if party.inside == "collective":
                there = job_environment(rank, party.workers, port) | there
            else:
                there["GEOMX_RANK"] = str(rank)
            told = {"way": ways.get(party.name, "plain"), **options}
            arguments = (run, script, there, told, theirs)
            job.processes[name] = context.Process(target=_work, args=arguments, daemon=True)
    for process in job.processes.values():
        process.start()
    for end in ends:
        end.close()  # so that it is heard when a process has gone
    return job


def ended(script: Script, *arguments: Any, **options: Any) -> dict[str, Any]:
    """A run from its start to its end: what its scripts gave or raised, by worker."""
    job = start(script, *arguments, **options)
    try:
        return job.finish()
    finally:
        job.stop()


def play(script: Script, *arguments: Any, **options: Any) -> dict[str, Any]:
    """What the scripts of a run gave, by worker. Raises the first that one raised."""
    results = ended(script, *arguments, **options)
    for result in results.values():
        if isinstance(result, BaseException):
            raise result
    return results


def _serve(run: Run, name: str) -> None:
    torch.set_num_threads(1)
    try:
        loops.serve(run, name, Recorder(None, name))
    except geomx.GeomxError:
        os._exit(1)  # the workers tell


def _work(
    run: Run, script: Script, environment: dict[str, str], options: dict[str, Any], pipe: Connection
) -> None:
    torch.set_num_threads(1)
    os.environ.update(environment)
    try:
        with geomx.join(run) as live:
            result = script(live, options)
    except Exception as error:
        if not isinstance(error, geomx.GeomxError):
            traceback.print_exc()
        result = error
    pipe.send(result)
    pipe.close()


# -- scripts ---------------------------------------------------------------------------------------------------------


def build(seed: int) -> nn.Sequential:
    """Tensors of odd extents: 65 rows over two, one row over two, tiny ones and some that are cut into slices."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(20, 65), nn.Tanh(), nn.Linear(65, 5), nn.Tanh(), nn.Linear(5, 1))


def wrapped(model: nn.Sequential, way: str) -> nn.Module:
    """`plain` or `server`: the model itself; `ddp` and `fsdp`: as a user wraps it."""
    if way in ("ddp", "fsdp"):
        dist.init_process_group("gloo")
    if way == "ddp":
        return DistributedDataParallel(model)
    if way == "fsdp":
        from torch.distributed.fsdp import fully_shard  # noqa: PLC0415 (slow)

        fully_shard(model[0])
        return fully_shard(model)
    return model


OPTIMIZERS: dict[str, Callable[[nn.Module], torch.optim.Optimizer]] = {
    "sgd": lambda model: torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9),
    "adamw": lambda model: torch.optim.AdamW(model.parameters(), lr=0.01, foreach=False),
}


def attached(run: LiveRun, options: dict[str, Any]) -> tuple[nn.Module, torch.optim.Optimizer]:
    """A model and an optimizer in the run, as the options say; each worker begins with another model."""
    seed = 0 if options["way"] == "fsdp" else run.workers.index(run.name)
    model = wrapped(build(seed), options["way"])
    optimizer = OPTIMIZERS[options.get("optimizer", "sgd")](model)
    return run.attach(model, optimizer, clip_norm=options.get("clip_norm"))


def epoch(run: LiveRun, model: nn.Module, optimizer: torch.optim.Optimizer, batches: int) -> int:
    """One pass over so many batches, which the whole run shares; returns how many were this worker's."""
    generator = torch.Generator().manual_seed(7)
    data = [torch.randn(8, 20, generator=generator) for _ in range(batches)]
    count = 0
    for x in run.shard(data, over="run"):
        optimizer.zero_grad()
        (model(x) - x[:, :1]).square().mean().backward()
        optimizer.step()
        count += 1
    return count


def skip(run: LiveRun, options: dict[str, Any]) -> tuple[str | None, list[int]]:
    """A few steps. `spoiled`: by step, which workers have NaN in their loss; `weightless`: who counts nothing."""
    model, optimizer = attached(run, options)
    for step in range(4):
        seed = run.workers.index(run.name) + 10 * step
        x = torch.randn(8, 20, generator=torch.Generator().manual_seed(seed))
        run.weight(0 if run.name in options.get("weightless", {}).get(step, ()) else 8)
        optimizer.zero_grad()
        loss = (model(x) - x[:, :1]).square().mean()
        (loss * float("nan") if run.name in options.get("spoiled", {}).get(step, ()) else loss).backward()
        optimizer.step()
    assert run.ledger is not None
    return sha256(run), run.ledger.tolist()


def sha256(run: LiveRun) -> str | None:
    """Of the weights as the run will report them."""
    assert run._attached is not None
    return run._attached.intra_party.trained_sha256()


def train(run: LiveRun, options: dict[str, Any]) -> tuple[str | None, list[int]]:
    """Two passes; the weights' hash, and the ledger."""
    model, optimizer = attached(run, options)
    for _ in range(2):
        epoch(run, model, optimizer, options.get("batches", 20))
    assert run.ledger is not None
    return sha256(run), run.ledger.tolist()


def tell_losses(run: LiveRun, options: dict[str, Any]) -> None:
    """Workers tell 1 first, then 1, -, 3 and 4. A/1 has one batch, the others have two each."""
    model, optimizer = attached(run, options)
    for x in run.shard([torch.ones(8, 20)] * (4 if run.party == "B" else 3), over="party"):
        optimizer.zero_grad()
        run.loss(1.0 + run.workers.index(run.name) * run.step)
        (model(x) - x[:, :1]).square().mean().backward()
        optimizer.step()


class Warnings(logging.Handler):
    """What geomx warns of."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.told: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.told.append(record.getMessage())


def leave(run: LiveRun, options: dict[str, Any]) -> tuple[str | None, list[str]]:
    """The weights behind a loop that is left, and what was warned of. `steps`, `backwards`: each worker's number."""
    warnings = Warnings()
    logging.getLogger("geomx").addHandler(warnings)
    model, optimizer = attached(run, options)
    generator = torch.Generator().manual_seed(run.workers.index(run.name))
    for step in range(options["backwards"][run.name]):
        x = torch.randn(8, 20, generator=generator)
        run.weight(8)
        optimizer.zero_grad()
        (model(x) - x[:, :1]).square().mean().backward()
        if step < options["steps"][run.name]:
            optimizer.step()
    run.close()
    return sha256(run), [text for text in warnings.told if "not averaged" in text]


def save_and_load(run: LiveRun, options: dict[str, Any]) -> list[str | None]:
    """The weights behind a second pass, and behind it again from the checkpoint before it."""
    model, optimizer = attached(run, options)
    found = []
    epoch(run, model, optimizer, 8)
    run.save(options["path"])
    for _ in range(2):
        epoch(run, model, optimizer, 8)
        found.append(sha256(run))
        run.load(options["path"])
    return found


def end_early(run: LiveRun, options: dict[str, Any]) -> None:
    """A/1 is sent a signal by itself, in the third step."""
    model, optimizer = attached(run, options)
    for step in range(1000):
        if run.name == "A/1" and step == 2:
            os.kill(os.getpid(), options["signal"])
        run.weight(8)
        model(torch.ones(8, 20)).sum().backward()
        optimizer.step()


def attach_only(run: LiveRun, options: dict[str, Any]) -> None:
    """What `attach` refuses comes from it."""
    attached(run, options)

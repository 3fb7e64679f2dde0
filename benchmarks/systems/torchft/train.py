"""A replica of torchft, over gloo."""

from __future__ import annotations

from datetime import timedelta

import torch
import torch.distributed as dist
from torchft.ddp import DistributedDataParallel
from torchft.local_sgd import DiLoCo
from torchft.manager import Manager
from torchft.optim import OptimizerWrapper
from torchft.process_group import ProcessGroupGloo

from benchmarks import training, workloads

PATIENCE = timedelta(seconds=120)


def main() -> None:
    job, watch = training.begin()
    task = workloads.task(job)
    manager, store = managed(job, task.model)
    if job.options["every"] == 1:
        each_step(job, watch, task, manager)
    else:
        diloco(job, watch, task, manager)
    manager.shutdown(wait=False)
    del store


def managed(job: training.Job, model: torch.nn.Module) -> tuple[Manager, dist.TCPStore]:
    """A replica group of one; all begin with the same weights, so there is nothing to copy at the start."""
    here = job.addresses[job.name.partition("/")[0]]
    store = dist.TCPStore(here, 0, is_master=True, wait_for_workers=False)
    manager = Manager(
        pg=ProcessGroupGloo(timeout=PATIENCE),
        load_state_dict=model.load_state_dict,
        state_dict=model.state_dict,
        min_replica_size=job.everyone,
        use_async_quorum=job.options["every"] == 1,
        timeout=PATIENCE,
        quorum_timeout=PATIENCE,
        connect_timeout=PATIENCE,
        rank=0,
        world_size=1,
        store_addr=here,
        store_port=store.port,
        lighthouse_addr=f"http://{job.addresses['lighthouse']}",
        replica_id=f"replica-{job.place}",
        hostname=here,
        init_sync=False,
    )
    return manager, store


def each_step(job: training.Job, watch: training.Watch, task: workloads.Task, manager: Manager) -> None:
    model = DistributedDataParallel(manager, task.model)
    optimizer = OptimizerWrapper(manager, workloads.optimizer(job, task.model))
    for _ in watch.steps(task.accuracy):
        optimizer.zero_grad()
        task.loss(model).backward()
        optimizer.step()
        if manager.num_participants() != job.everyone:
            raise RuntimeError(f"a step had {manager.num_participants()} of {job.everyone} replicas")


def diloco(job: training.Job, watch: training.Watch, task: workloads.Task, manager: Manager) -> None:
    inner = workloads.optimizer(job, task.model)
    outer = torch.optim.SGD(task.model.parameters(), lr=0.7, momentum=0.9, nesterov=True)
    with DiLoCo(manager, [task.model], inner, outer, sync_every=job.options["every"], pin_memory=False):
        for _ in watch.steps(task.accuracy):
            inner.zero_grad()
            task.loss(task.model).backward()
            inner.step()


if __name__ == "__main__":
    main()

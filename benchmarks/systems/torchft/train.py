"""A replica of torchft, over gloo."""

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


def main(job: training.Job) -> None:
    watch, task, every = training.Watch(job), workloads.task(job), job.cell.every
    here = job.addresses[job.party]
    store = dist.TCPStore(here, 0, is_master=True, wait_for_workers=False)
    manager = Manager(  # of a replica group of one; all begin with the same weights, so nothing is copied at the start
        pg=ProcessGroupGloo(timeout=PATIENCE),
        load_state_dict=task.model.load_state_dict,
        state_dict=task.model.state_dict,
        min_replica_size=job.everyone,
        use_async_quorum=every == 1,
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

    def everyone_took_part(_: int) -> None:
        if manager.num_participants() != job.everyone:
            raise RuntimeError(f"a step had {manager.num_participants()} of {job.everyone} replicas")

    optimizer = workloads.optimizer(job, task.model)
    if every == 1:
        model = DistributedDataParallel(manager, task.model)
        optimizer = OptimizerWrapper(manager, optimizer)
        workloads.train(watch, task, optimizer, model, behind=everyone_took_part)
    else:
        outer = torch.optim.SGD(task.model.parameters(), lr=0.7, momentum=0.9, nesterov=True)
        with DiLoCo(manager, [task.model], optimizer, outer, sync_every=every, pin_memory=False):
            workloads.train(watch, task, optimizer)
    manager.shutdown(wait=False)
    del store

"""A worker of PyTorch's DistributedDataParallel over gloo.

Without `from __future__ import annotations`: a hook's annotations must be classes, not their names.
"""

from concurrent.futures import ThreadPoolExecutor

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, post_localSGD_hook, powerSGD_hook
from torch.distributed.algorithms.model_averaging import averagers
from torch.distributed.optim import PostLocalSGDOptimizer
from torch.nn.parallel import DistributedDataParallel

from benchmarks import training, workloads

WARMUP = 2  # steps that PowerSGD and post-local SGD make in full before they begin


def main(job: training.Job) -> None:
    store = f"tcp://{job.addresses['store']}"
    dist.init_process_group("gloo", init_method=store, rank=job.place, world_size=job.everyone)
    task = workloads.task(job)
    # One bucket: PowerSGD over gloo takes no more, and the model's tensors are few.
    bucket_mb = 1000 if job.options["hook"] == "powersgd" else None
    model = DistributedDataParallel(task.model, bucket_cap_mb=bucket_mb)
    optimizer = hooked(job, model, workloads.optimizer(job, task.model))
    workloads.train(training.Watch(job), task, optimizer, model)
    dist.barrier()
    dist.destroy_process_group()


def hooked(
    job: training.Job, model: DistributedDataParallel, optimizer: torch.optim.Optimizer
) -> torch.optim.Optimizer:
    """The model gets the job's hook; returns the optimizer that goes with it."""
    hook = job.options["hook"]
    if hook == "fp16":
        model.register_comm_hook(None, default_hooks.fp16_compress_hook)
    elif hook == "powersgd":
        state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=2, start_powerSGD_iter=WARMUP)
        model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    elif hook == "post-local":
        subgroup, _ = dist.new_subgroups(1)
        state = post_localSGD_hook.PostLocalSGDState(None, subgroup, start_localSGD_iter=WARMUP)
        model.register_comm_hook(state, post_localSGD_hook.post_localSGD_hook)
        return PostLocalSGDOptimizer(optimizer, averagers.PeriodicModelAverager(**averaging(job.cell.every)))
    elif hook == "hierarchical":
        model.register_comm_hook(Tiers(job), through_leaders)
    return optimizer


def averaging(every: int) -> dict[str, int]:
    """What makes PyTorch's averager do so behind every so many steps, where it is looked at: it counts from 0."""
    return {"period": every, "warmup_steps": every - 1}


class Tiers:
    """The groups of a party, and of the first workers of all parties; and a thread for each leg of the way.

    So buckets follow each other, and backward goes on meanwhile, as with PyTorch's own hooks. Each leg has a group of
    its own: a group's calls must come in the same order everywhere.
    """

    def __init__(self, job: training.Job) -> None:
        workers, place = job.cell.workers, job.place
        parties = [list(range(first, first + workers)) for first in range(0, job.everyone, workers)]
        self.up, self.down = (
            [dist.new_group(ranks) for ranks in parties][place // workers] for _ in range(2)
        )
        self.leaders = dist.new_group([ranks[0] for ranks in parties])
        self.leader = place - place % workers
        self.leads = place == self.leader
        self.everyone = job.everyone
        self.half = bool(job.options.get("half"))
        self.legs = [ThreadPoolExecutor(1) for _ in range(3)]


def through_leaders(tiers: Tiers, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Add within the party, among the leaders across parties, and hand the sum down."""
    values = bucket.buffer().div_(tiers.everyone)
    done: torch.futures.Future[torch.Tensor] = torch.futures.Future()

    def up() -> None:
        dist.reduce(values, tiers.leader, group=tiers.up)

    def across() -> None:
        if tiers.leads:
            crossing = values.half() if tiers.half else values
            dist.all_reduce(crossing, group=tiers.leaders)
            values.copy_(crossing)

    def down() -> None:
        dist.broadcast(values, tiers.leader, group=tiers.down)
        done.set_result(values)

    def go(leg: int) -> None:
        try:
            (up, across, down)[leg]()
            if leg < 2:
                tiers.legs[leg + 1].submit(go, leg + 1)
        except Exception as error:
            done.set_exception(error)

    tiers.legs[0].submit(go, 0)
    return done

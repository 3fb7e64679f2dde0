"""A worker of PyTorch's DistributedDataParallel over gloo.

Without `from __future__ import annotations`: a hook's annotations must be classes, not their names.
"""

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, post_localSGD_hook, powerSGD_hook
from torch.distributed.algorithms.model_averaging import averagers
from torch.distributed.optim import PostLocalSGDOptimizer
from torch.nn.parallel import DistributedDataParallel

from benchmarks import training, workloads

WARMUP = 2  # steps that PowerSGD and post-local SGD make in full before they begin


def main() -> None:
    job, watch = training.begin()
    dist.init_process_group(
        "gloo", init_method=f"tcp://{job.addresses['store']}", rank=job.place, world_size=job.everyone
    )
    task = workloads.task(job)
    # One bucket: PowerSGD over gloo takes no more, and the model's tensors are few.
    model = DistributedDataParallel(
        task.model, bucket_cap_mb=1000 if job.options["hook"] == "powersgd" else None
    )
    optimizer = hooked(job, model, workloads.optimizer(job, task.model))
    for _ in watch.steps(task.accuracy):
        optimizer.zero_grad()
        task.loss(model).backward()
        optimizer.step()
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
        averager = averagers.PeriodicModelAverager(period=job.options["every"], warmup_steps=WARMUP)
        return PostLocalSGDOptimizer(optimizer, averager)
    elif hook == "hierarchical":
        model.register_comm_hook(Tiers(job), through_leaders)
    return optimizer


class Tiers:
    """The groups of a party, and of the first workers of all parties."""

    def __init__(self, job: training.Job) -> None:
        parties = [range(p * job.workers, (p + 1) * job.workers) for p in range(job.parties)]
        groups = [dist.new_group(list(ranks)) for ranks in parties]
        self.party = groups[job.party]
        self.leaders = dist.new_group([ranks[0] for ranks in parties])
        self.leader = parties[job.party][0]
        self.leads = job.rank == 0
        self.everyone = job.everyone
        self.half = bool(job.options.get("half"))


def through_leaders(tiers: Tiers, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Add within the party, among the leaders across parties, and hand the sum down."""
    values = bucket.buffer().div_(tiers.everyone)
    dist.reduce(values, tiers.leader, group=tiers.party)
    if tiers.leads:
        crossing = values.half() if tiers.half else values
        dist.all_reduce(crossing, group=tiers.leaders)
        values.copy_(crossing)
    dist.broadcast(values, tiers.leader, group=tiers.party)
    done: torch.futures.Future[torch.Tensor] = torch.futures.Future()
    done.set_result(values)
    return done


if __name__ == "__main__":
    main()

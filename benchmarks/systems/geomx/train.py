"""A worker of geomx: a plain PyTorch loop."""

from __future__ import annotations

import geomx
from benchmarks import training, workloads


def main() -> None:
    job, watch = training.begin()
    task = workloads.task(job)
    run = geomx.join()
    model, optimizer = run.attach(task.model, workloads.optimizer(job, task.model))
    if job.options.get("sync.policy", "").startswith("esync"):
        watch.note = "it chooses how many steps lie between two exchanges; a round here is ten steps"
    for _ in watch.steps(task.accuracy):
        optimizer.zero_grad()
        task.loss(model).backward()
        optimizer.step()
    run.close()


if __name__ == "__main__":
    main()

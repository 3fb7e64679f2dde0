"""A worker of geomx: a plain PyTorch loop."""

import geomx
from benchmarks import training, workloads


def main(job: training.Job) -> None:
    task, watch = workloads.task(job, job.options.get("seed", 0)), training.Watch(job)
    run = geomx.join()
    model, optimizer = run.attach(task.model, workloads.optimizer(job, task.model))
    if job.options.get("sync.policy", "").startswith("esync"):
        watch.note = "it chooses how many steps lie between two exchanges; a round here is ten steps"
    workloads.train(watch, task, optimizer, model)
    run.close()

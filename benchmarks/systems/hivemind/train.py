"""A peer of hivemind.

hivemind goes on, and reports success, where averaging reached only some peers or some elements. Here the first ends
the run, and so does the second where more than `SPARED` were left out; less is noted beside the figures.
"""

import hivemind
import torch
from hivemind.averaging import DecentralizedAverager
from hivemind.compression import Float16Compression, NoCompression, Uniform8BitQuantization

from benchmarks import training, workloads

COMPRESSIONS = {"none": NoCompression, "fp16": Float16Compression, "8-bit": Uniform8BitQuantization}
TIMEOUT_S = 60.0
SPARED = 0.05


def main(job: training.Job) -> None:
    watch, dht, task = training.Watch(job), join(job), workloads.task(job)
    parameters, every = list(task.model.parameters()), job.cell.every
    averager = DecentralizedAverager(
        [torch.zeros_like(parameter) for parameter in parameters],
        dht,
        prefix="bench",
        target_group_size=job.everyone,
        min_group_size=job.everyone,
        compression=COMPRESSIONS[job.options["compression"]](),
        allow_state_sharing=False,
        start=True,
    )
    watch.note = probe(averager, job)

    def gradients(_: int) -> None:
        if every == 1:
            average(averager, [parameter.grad for parameter in parameters], job.everyone)

    def weights(step: int) -> None:
        if every > 1 and step % every == 0:
            average(averager, [parameter.data for parameter in parameters], job.everyone)

    optimizer = workloads.optimizer(job, task.model)
    workloads.train(watch, task, optimizer, before=gradients, behind=weights)
    done = [job.folder / f"{name.replace('/', '.')}.done" for name in job.cell.worker_names]
    training.publish(done[job.place], "")
    for path in done:  # a peer that leaves takes its part of the last average with it
        training.wait_for(path)
    averager.shutdown()
    dht.shutdown()


def join(job: training.Job) -> hivemind.DHT:
    """The first peer publishes its address, the others begin from there."""
    known = job.folder / "first-peer"
    dht = hivemind.DHT(
        training.wait_for(known).split() if job.place else None,
        start=True,
        host_maddrs=[f"/ip4/{job.addresses[job.party]}/tcp/0"],
        use_relay=False,
        use_auto_relay=False,
        auto_nat=False,
        nat_port_map=False,
    )
    if not job.place:
        training.publish(known, " ".join(map(str, dht.get_visible_maddrs())))
    return dht


def average(averager: DecentralizedAverager, mine: list[torch.Tensor], everyone: int) -> None:
    """Put the mean over all peers into each tensor; raises where not all of them took part."""
    with averager.get_tensors() as shared:
        for target, source in zip(shared, mine, strict=True):
            target.copy_(source)
    group = averager.step(timeout=TIMEOUT_S)
    if group is None or len(group) != everyone:
        raise RuntimeError(f"averaging reached {len(group or ())} of {everyone} peers")
    with averager.get_tensors() as shared:
        for target, source in zip(mine, shared, strict=True):
            target.copy_(source)


def probe(averager: DecentralizedAverager, job: training.Job) -> str:
    """Average values whose mean is known; raises where many elements were left as they were, and tells of few."""
    with averager.get_tensors() as shared:
        ramps = [torch.linspace(-1.0, 1.0, tensor.numel()).reshape(tensor.shape) for tensor in shared]
    mine = [ramp + job.place for ramp in ramps]
    average(averager, mine, job.everyone)
    mean = (job.everyone - 1) / 2
    pairs = zip(mine, ramps, strict=True)
    right = sum(int(((found - ramp - mean).abs() < 0.2).sum()) for found, ramp in pairs)
    elements = sum(ramp.numel() for ramp in ramps)
    missing = f"averaging left out {1 - right / elements:.1%} of the elements, and reported success"
    if right < (1 - SPARED) * elements:
        raise RuntimeError(missing)
    return missing if right < elements else ""

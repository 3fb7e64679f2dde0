"""Whether the policies, codecs and rules that a description names can be made, and go together.

It makes them, which imports torch: so it is no part of reading a description.
"""

from __future__ import annotations

from collections.abc import Iterator

from geomx.codecs.pack.noise import RngKey
from geomx.codecs.spec import make_codec
from geomx.config.run import Run
from geomx.errors import ConfigError, Fault
from geomx.optim import compensations, optimizers
from geomx.sync import policies
from geomx.sync.contract import AccumulateStep, GradientStep, LocalStep, Policy, StepController


def check_choices(run: Run) -> None:
    """Check what the types of a description's keys cannot say.

    Args:
        run: a valid description.

    Raises:
        ConfigError: every pair of choices that does not go together, each with the reason.
        UnknownName: a name stands in no registry, and cannot be imported.
    """
    policy = policies.make(run.sync.policy)
    if run.optimizer.compensation:
        compensations.make(run.optimizer.compensation)
    if run.optimizer.rule:
        optimizers.find(run.optimizer.rule)
    faults = [
        *_of_parties(run, policy),
        *_of_restarts(run, policy),
        *_of_codecs(run, policy),
        *_of_steps(run, policy),
    ]
    if faults:
        raise ConfigError(f"run {run.run.name}", faults)


def _of_parties(run: Run, policy: Policy) -> Iterator[Fault]:
    if policy.sync_group == "worker" or isinstance(policy, StepController):
        for party in run.parties:
            if party.inside == "collective":
                why = f"{_with(run)} each worker of a party has its own pace"
                yield Fault(f"party.{party.name}.inside", "'collective'", "'server'", why)


def _of_restarts(run: Run, policy: Policy) -> Iterator[Fault]:
    """Where nobody can be started again, nobody is to be awaited."""
    if not run.lan.rejoin_s:
        return
    found, allowed = f"{run.lan.rejoin_s:g}", "0"
    if run.optimizer.place == "workers" and policy.plans is not LocalStep:
        why = "with optimizer.place = 'workers' a worker that is restarted cannot come back: its state is nobody else's"
        yield Fault("lan.rejoin_s", found, f"{allowed}, or optimizer.place = 'auto'", why)
    if all(party.inside == "collective" for party in run.parties):
        why = (
            "with inside = 'collective' in every party no worker can come back: its party's job ends with it"
        )
        yield Fault("lan.rejoin_s", found, allowed, why)


def _of_codecs(run: Run, policy: Policy) -> Iterator[Fault]:
    """Momentum counts once, and never in an update."""
    momentum = {spec: make_codec(spec, RngKey(run.run.seed)).momentum for spec in run.codecs}
    for tier, edge in (("wan", run.wan), ("lan", run.lan)):
        up, down = edge.codec_up, edge.codec_down
        if momentum.get(down):
            why = "an update is how far the weights have moved already, and momentum would carry it beyond"
            yield Fault(f"{tier}.codec_down", repr(down), "a codec without momentum", why)
        if momentum.get(up) and getattr(policy, "momentum", 0.0):
            why = f"sync.policy = {run.sync.policy!r} has momentum as well: it would count twice"
            allowed = "a codec without momentum, or a policy without"
            yield Fault(f"{tier}.codec_up", repr(up), allowed, why)


def _of_steps(run: Run, policy: Policy) -> Iterator[Fault]:
    """What a policy's kind of step leaves of other choices."""
    apart, step = policy.sync_group != "run", policy.plans
    optimizer, sync = run.optimizer, run.sync
    if optimizer.compensation and (not apart or step is not GradientStep):
        yield Fault(
            "optimizer.compensation",
            repr(optimizer.compensation),
            "only with a policy whose parties do not wait for each other, such as mixed",
            f"{_with(run)} the servers know of no gradient how old it is",
        )
    if sync.buffers == "average" and step is not LocalStep:
        yield Fault("sync.buffers", "'average'", "'own'", f"{_with(run)} no weights are averaged")
    if sync.weight == "dataset_size" and step is AccumulateStep:
        why = f"{_with(run)} every push counts whole"
        yield Fault("sync.weight", "'dataset_size'", "'samples' or 'equal'", why)
    if optimizer.place == "workers" and apart:
        why = f"{_with(run)} parties share nothing but what the global servers optimize"
        yield Fault("optimizer.place", "'workers'", "'auto' or 'server'", why)
    if optimizer.rule and (step is LocalStep or optimizer.place == "workers"):
        why = f"{_with(run)} and optimizer.place = {optimizer.place!r} the workers run the optimizer"
        yield Fault("optimizer.rule", repr(optimizer.rule), "nothing", why)
    if optimizer.place == "server" and step is LocalStep:
        why = f"{_with(run)} each worker's own optimizer takes the steps"
        yield Fault("optimizer.place", "'server'", "'auto' or 'workers'", why)
    if run.worker.overlap == "forward" and step is not GradientStep:
        why = f"{_with(run)} steps are each worker's own, and wait for no weights"
        yield Fault("worker.overlap", "'forward'", "'none'", why)


def _with(run: Run) -> str:
    return f"with sync.policy = {run.sync.policy!r}"

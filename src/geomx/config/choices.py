"""Whether the policies, codecs and rules that a description names can be made, and go together.

It makes them, which imports torch: so it is no part of reading a description.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from geomx.channels import channels
from geomx.channels.contract import Channel, EdgeSettings, ShapingChannel
from geomx.codecs.pack.noise import RngKey
from geomx.codecs.spec import make_codec
from geomx.config.run import Run
from geomx.config.tables import EdgeTable
from geomx.errors import ConfigError, Fault
from geomx.optim import compensations, optimizers
from geomx.sync import policies
from geomx.sync.contract import AccumulateStep, GradientStep, LocalStep, Policy, StepController

Tier = Literal["wan", "lan"]
TIERS: tuple[Tier, ...] = ("wan", "lan")


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
        *_of_codecs(run, policy),
        *_of_steps(run, policy),
        *(fault for tier in TIERS for fault in of_channel(run, tier, _made(run, tier))),
    ]
    if faults:
        raise ConfigError(f"run {run.run.name}", faults)


def of_channel(run: Run, tier: Tier, channel: Channel) -> Iterator[Fault]:
    """What a description asks of a tier's edges, and their channel does not carry out."""
    edge: EdgeTable = getattr(run, tier)
    shapes = run.lan.link is not None
    if tier == "wan":
        shapes = any(run.link_of(party) is not None or run.pace_mbps_of(party) for party in run.servers)
    carries: frozenset[str] = getattr(channel, "carries", frozenset())
    asked = {
        "link and pace_mbps": shapes and not isinstance(channel, ShapingChannel),
        "[tls]": run.tls.certificate is not None and "tls" not in carries,
        "congestion": edge.congestion != "system" and "congestion" not in carries,
    }
    for what in (what for what, is_missing in asked.items() if is_missing):
        hint = f"it does not carry out {what}: take `tcp`, or leave that out"
        yield Fault(f"{tier}.channel", repr(edge.channel), "`tcp`", hint)


def _made(run: Run, tier: Tier) -> Channel:
    edge: EdgeTable = getattr(run, tier)
    channel: Channel = channels.make(edge.channel, EdgeSettings())
    return channel


def _of_parties(run: Run, policy: Policy) -> Iterator[Fault]:
    if policy.sync_group == "worker" or isinstance(policy, StepController):
        for party in run.parties:
            if party.inside == "collective":
                why = f"{_with(run)} each worker of a party has its own pace"
                yield Fault(f"party.{party.name}.inside", "'collective'", "'server'", why)


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

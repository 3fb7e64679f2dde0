"""Whether the policies, codecs and rules that a description names can be made, and go together.

It makes them, which imports what makes them: a codec other than `dense` imports torch. So it is no part of reading a
description.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

from geomx.channels import channels
from geomx.channels.contract import Channel, EdgeSettings, ShapingChannel
from geomx.config.compatibility.lossy_channels import LAN, PLAIN, WAN, channels_that_lose, edge_tables, named
from geomx.config.reading.document import Document
from geomx.config.reading.problems import KeyPath, Problem, shown
from geomx.config.run import Run
from geomx.config.tables import EdgeTable
from geomx.config.tables.sites import engines
from geomx.errors import ConfigError
from geomx.optim import compensations, optimizers
from geomx.overlay import overlays
from geomx.overlay.contract import Load, Planner, alike
from geomx.sync import policies
from geomx.sync.contract import (
    AccumulateStep,
    GradientStep,
    LocalStep,
    Policy,
    StepController,
    has_own_means,
    next_run_mean,
)
from geomx.tree import TOP

LOSSLESS = ("dense", "wan")  # codecs that need not be made to know what they are


def check_choices(run: Run) -> None:
    """Check what the types of a description's keys cannot say.

    Args:
        run: a valid description.

    Raises:
        ConfigError: every choice that does not exist, or does not go together with another, each with the reason.
    """
    if problems := problems_of_choices(run):
        raise ConfigError(f"run {run.run.name}", Document({}).faults(problems))


def _of_engines(run: Run) -> Iterator[Problem]:
    """An engine is made when its job is known; its parameters are known before."""
    for index, site in enumerate(run.sites):
        try:
            engines.bound(site.engine)
        except ConfigError as error:
            for fault in error.faults:
                found = f"{fault.where}: {fault.found}"
                yield Problem(("site", index, "engine"), found, fault.allowed, fault.hint)


def _of_store(run: Run) -> Iterator[Problem]:
    """A shard's log has whole payloads."""
    with suppress(ConfigError):  # which is told elsewhere
        for path, classes in channels_that_lose(run).items():
            if path == WAN and classes.loses:
                key = "store.url" if run.store.url else "run.replicas"
                found = f"{named(run, path)} with {key}"
                yield Problem((*path, "channel"), found, "a channel that loses nothing", f"or no {key}")


def problems_of_choices(run: Run) -> list[Problem]:
    """The same, as problems at keys."""
    making = _Making()
    policy = making.of(("sync", "policy"), policies.make, run.sync.policy)
    policy = making.keeping(("sync", "policy"), run.sync.policy, policy, Policy)
    for table, spec in (("run", run.run.overlay), ("lan", run.lan.overlay)):
        if spec:
            where: KeyPath = (table, "overlay")
            making.keeping(where, spec, making.of(where, overlays.make, spec), Planner)
    if run.optimizer.compensation:
        making.of(("optimizer", "compensation"), compensations.make, run.optimizer.compensation)
    if run.optimizer.rule:
        _make_rule(run.optimizer.rule, making)
    made = {path: _made_channel(edge, path, making) for path, edge in edge_tables(run).items()}
    lossy = _lossy_codecs(run, making)
    problems = [*making.problems, *_of_momentum(run, policy, lossy), *_of_decay(run, lossy)]
    for path, channel in made.items():
        if channel is not None:
            problems += _of_channel(run, path, channel)
    problems += _of_engines(run)
    if run.is_durable:
        problems += _of_store(run)
    if policy is not None:
        problems += [*_of_parties(run, policy), *_of_restarts(run, policy), *_of_steps(run, policy)]
        problems += [*_of_tiers(run, policy), *_of_quorum(run, policy), *_of_overlays(run, policy)]
    return problems


OPTIONAL = {"carries"}  # what a contract says of classes without it


class _Making:
    """Makes what specs name, and keeps what is wrong with those that cannot be made."""

    def __init__(self) -> None:
        self.problems: list[Problem] = []

    def of(self, path: KeyPath, make: Callable[[str], Any], spec: str) -> Any:
        """What the spec at `path` names; None where that is a problem. A parameter is a key of its own."""
        try:
            return make(spec)
        except ConfigError as error:
            name = spec.split(maxsplit=1)[0]
            self.problems += [
                Problem(
                    path if fault.where == name else (*path, fault.where),
                    f"{shown(name)}: {fault.found}" if fault.where == name else fault.found,
                    fault.allowed,
                    fault.hint,
                )
                for fault in error.faults
            ]
        return None

    def keeping(self, path: KeyPath, spec: str, made: Any, contract: type) -> Any:
        """What was made, or the class, where it has all that its contract asks for; None where that is a problem."""
        if made is not None and (missing := sorted(_members(contract) - set(dir(made)))):
            found = f"{shown(spec)} without `{'`, `'.join(missing)}`"
            kept = f"a class with all that {contract.__module__}.{contract.__name__} has"
            self.problems.append(Problem(path, found, kept))
            return None
        return made


def _members(contract: type) -> set[str]:
    """The names that a class must have which keeps a contract."""
    members = {*contract.__annotations__, *(name for name in vars(contract) if not name.startswith("_"))}
    return members - OPTIONAL


def _make_rule(spec: str, making: _Making) -> None:
    if making.of(("optimizer", "rule"), optimizers.bound, spec) is not None:
        from geomx.optim.contract import RootOptimizer  # noqa: PLC0415 (it imports torch)

        making.keeping(("optimizer", "rule"), spec, optimizers.find(spec.split(maxsplit=1)[0]), RootOptimizer)


def _made_channel(edge: EdgeTable, path: KeyPath, making: _Making) -> Channel | None:
    where = (*path, "channel")
    made = making.of(where, _channel, edge.channel)
    channel: Channel | None = making.keeping(where, edge.channel, made, Channel)
    return channel


def _channel(spec: str) -> Channel | None:
    """None for ours, which carries out all that a description may ask for, and imports torch."""
    made: Channel | None = None if spec in channels.names else channels.make(spec, EdgeSettings())
    return made


def check_channel(run: Run, path: KeyPath, channel: Channel) -> None:
    """Check that a channel carries out what the description asks of its edges; raises `ConfigError`.

    `path`: where their table stands.
    """
    if problems := list(_of_channel(run, path, channel)):
        raise ConfigError(f"run {run.run.name}", Document({}).faults(problems))


def _of_channel(run: Run, path: KeyPath, channel: Channel) -> Iterator[Problem]:
    edge = edge_tables(run)[path]
    shapes = run.lan.link is not None
    if path != LAN:
        below = [server for server in run.tree.servers if run.edge_above(server) is edge]
        shapes = any(run.link_of(server) is not None or run.pace_mbps_of(server) for server in below)
    carries: frozenset[str] = getattr(channel, "carries", frozenset())
    asked = {
        "link and pace_mbps": shapes and not isinstance(channel, ShapingChannel),
        "[tls]": run.tls.certificate is not None and "tls" not in carries,
        "congestion": edge.congestion != "system" and "congestion" not in carries,
    }
    for what in (what for what, is_missing in asked.items() if is_missing):
        hint = f"it does not support {what}: use `tcp`, or leave that out"
        yield Problem((*path, "channel"), shown(edge.channel), "`tcp`", hint)


def _lossy_codecs(run: Run, making: _Making) -> dict[KeyPath, Any]:
    """Those that can be made, by key."""
    lossy: dict[KeyPath, Any] = {}
    for table, edge in edge_tables(run).items():
        for way, spec in (("codec_up", edge.codec_up), ("codec_down", edge.codec_down)):
            path: KeyPath = (*table, way)
            if spec not in LOSSLESS:
                codec = making.of(path, _codec, spec)
                if codec is not None:
                    lossy[path] = codec
    return lossy


def _codec(spec: str) -> Any:
    from geomx.codecs.pack.noise import RngKey  # noqa: PLC0415 (it imports torch)
    from geomx.codecs.spec import make_codec  # noqa: PLC0415

    return make_codec(spec, RngKey())


def _spec(run: Run, path: KeyPath) -> str:
    *table, way = path
    return str(getattr(edge_tables(run)[tuple(table)], str(way)))


def _of_decay(run: Run, lossy: dict[KeyPath, Any]) -> Iterator[Problem]:
    for path in (path for path, codec in lossy.items() if codec.decay < 1.0):
        if path[-1] == "codec_down":
            why = "an update must arrive whole in the end, and decay would lose a part"
            yield Problem(path, shown(_spec(run, path)), "a codec without decay", why)


def _of_momentum(run: Run, policy: Policy | None, lossy: dict[KeyPath, Any]) -> Iterator[Problem]:
    """It counts once, and never in an update."""
    for path in (path for path, codec in lossy.items() if codec.momentum):
        way, spec = path[-1], _spec(run, path)
        if way == "codec_down":
            why = "an update says how far the weights have moved, and momentum would move them further"
            yield Problem(path, shown(spec), "a codec without momentum", why)
        elif getattr(policy, "momentum", 0.0):
            why = f"sync.policy = {shown(run.sync.policy)} has momentum as well: it would count twice"
            yield Problem(path, shown(spec), "a codec without momentum, or a policy without", why)


def _of_parties(run: Run, policy: Policy) -> Iterator[Problem]:
    if policy.sync_group == "worker" or isinstance(policy, StepController):
        for index, party in enumerate(run.parties):
            if party.inside == "collective":
                why = f"{_with(run)} each worker of a party has its own pace"
                yield Problem(("party", index, "inside"), shown(party.inside), '"server"', why)


def _of_tiers(run: Run, policy: Policy) -> Iterator[Problem]:
    """Each of a policy's averages has a tier of its own."""
    tiers, averages = run.tree.tiers, getattr(policy, "tiers", 0)
    if averages > tiers:
        why = f"this tree has {tiers} tiers: leave out the periods above, or add a [[region]]"
        yield Problem(("sync", "policy"), shown(run.sync.policy), f"averages of {tiers} tiers at most", why)


def _of_quorum(run: Run, policy: Policy) -> Iterator[Problem]:
    """A turn closes without some where what they lack does no harm, and what they bring later still counts."""
    if run.sync.quorum == 1.0:
        return
    path, found = ("sync", "quorum"), f"{run.sync.quorum:g}"
    _, mean = next_run_mean(policy) or (0, LocalStep())
    if policy.plans is not LocalStep or policy.sync_group != "run" or mean.average == "told":
        why = {
            "party": "parties do not wait for each other anyway",
            "worker": "workers do not wait for each other anyway",
            "run": "it already has nobody wait for long"
            if mean.average == "told"
            else "each step is the mean over all workers, which one without some is not: with local steps, "
            "as of hfa and diloco, what comes late still counts",
        }[policy.sync_group]
        yield Problem(path, found, "1", f"{_with(run)} {why}")
        return
    if mean.overlap or mean.fragment[1] > 1:
        why = "a part that comes late would be of another moment than the rest"
        yield Problem(path, found, "1, or a policy without fragments and overlap", why)
    elif has_own_means(policy):
        why = "between the run's means, the workers of a party wait for each other"
        yield Problem(path, found, "1, or a policy whose parties have no means of their own", why)
    elif run.run.shards > 1:
        yield Problem(path, found, "1, or run.shards = 1", "one global server decides who was in time")
    elif run.run.on_loss != "continue":
        yield Problem(path, found, '1, or run.on_loss = "continue"', "else everybody is waited for")


def _of_overlays(run: Run, policy: Policy) -> Iterator[Problem]:
    """What a description asks for that an overlay cannot do."""
    for path, spec in ((("run", "overlay"), run.run.overlay), (("lan", "overlay"), run.lan.overlay)):
        if not spec:
            continue
        if policy.sync_group != "run" or not policy.lockstep:
            why = "parties do not wait for each other, so nobody has something of others to add"
            yield Problem(path, shown(spec), "nothing", f"with sync.policy = {shown(run.sync.policy)} {why}")
        if run.sync.quorum < 1.0:
            why = (
                "with sync.quorum others are not waited for, and whoever adds waits for those who send to it"
            )
            yield Problem(path, shown(spec), "nothing", why)
        table = WAN if path == ("run", "overlay") else LAN
        if edge_tables(run)[table].channel != PLAIN:
            why = f"{named(run, table)} goes from a node to its parent alone"
            yield Problem(path, shown(spec), 'nothing, or channel = "tcp"', why)
        yield from _of_members(run, path, spec)
    if run.lan.overlay and any(party.inside == "collective" for party in run.parties):
        why = 'with inside = "collective" workers add by torch.distributed'
        yield Problem(("lan", "overlay"), shown(run.lan.overlay), "nothing", why)


def _of_members(run: Run, path: KeyPath, spec: str) -> Iterator[Problem]:
    """Some tables are of certain numbers of members alone."""
    tiers = [run.tree.children(TOP)] if path == ("run", "overlay") else [p.worker_names for p in run.parties]
    try:
        planner = overlays.make(spec)
    except ConfigError:  # which is told where it is made
        return
    for count in dict.fromkeys(map(len, tiers)):
        try:
            planner.plan(alike(count), [Load(0, 1, 1)], 1)
        except ConfigError as error:
            for fault in error.faults:
                yield Problem(path, f"{shown(spec)} with {fault.found}", fault.allowed, fault.hint)


def _of_restarts(run: Run, policy: Policy) -> Iterator[Problem]:
    """Where nobody can come back, a loss ends the run."""
    if run.run.on_loss == "stop":
        return
    path, found, allowed = ("run", "on_loss"), shown(run.run.on_loss), shown("stop")
    if run.optimizer.place == "workers" and policy.plans is not LocalStep:
        why = (
            "with optimizer.place = 'workers' a restarted worker cannot come back: nobody else has its state"
        )
        yield Problem(path, found, f"{allowed}, or optimizer.place = 'auto'", why)
    if all(party.inside == "collective" for party in run.parties):
        why = (
            "with inside = 'collective' in every party no worker can come back: its party's job ends with it"
        )
        yield Problem(path, found, allowed, why)


def _of_steps(run: Run, policy: Policy) -> Iterator[Problem]:
    """What a policy's kind of step leaves of other choices."""
    apart, step = policy.sync_group != "run", policy.plans
    optimizer, sync = run.optimizer, run.sync
    place = ("optimizer", "place")
    if optimizer.compensation and (not apart or step is not GradientStep):
        yield Problem(
            ("optimizer", "compensation"),
            shown(optimizer.compensation),
            "only with a policy whose parties do not wait for each other, such as mixed",
            f"{_with(run)} the servers do not know with which weights a gradient was computed",
        )
    if sync.buffers == "average" and step is not LocalStep:
        why = f"{_with(run)} no weights are averaged"
        yield Problem(("sync", "buffers"), shown(sync.buffers), '"auto" or "own"', why)
    if sync.weight == "dataset_size" and step is AccumulateStep:
        why = f"{_with(run)} every push counts the same"
        yield Problem(("sync", "weight"), shown(sync.weight), '"samples" or "equal"', why)
    if optimizer.place == "workers" and apart:
        why = f"{_with(run)} parties do not wait for each other, so the global servers must run the optimizer"
        yield Problem(place, shown(optimizer.place), '"auto" or "server"', why)
    if optimizer.rule and (step is LocalStep or optimizer.place == "workers"):
        why = f"{_with(run)} and optimizer.place = {shown(optimizer.place)} the workers run the optimizer"
        yield Problem(("optimizer", "rule"), shown(optimizer.rule), "nothing", why)
    if optimizer.place == "server" and step is LocalStep:
        why = f"{_with(run)} each worker's own optimizer takes the steps"
        yield Problem(place, shown(optimizer.place), '"auto" or "workers"', why)
    if run.worker.overlap == "forward" and step is not GradientStep:
        why = f"{_with(run)} workers step on their own, so there is nothing to overlap"
        yield Problem(("worker", "overlap"), shown(run.worker.overlap), '"none"', why)


def _with(run: Run) -> str:
    return f"with sync.policy = {shown(run.sync.policy)}"

"""What `geomx plan` goes by: parties, links, the model, and how long steps take; from wherever that is known."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import msgspec
from rich.console import Console

from geomx.codecs.spec import size_bounds_of
from geomx.config import Run
from geomx.config.compatibility.script import Script
from geomx.errors import ConfigError, Fault
from geomx.launch.inspect_codec import model_of, slices_like, slices_of
from geomx.launch.local.local_run import rehearse
from geomx.layout import SLICES_WANTED, Slice
from geomx.observe.records import Record
from geomx.observe.report import make_report
from geomx.predict.facts import Region, Site
from geomx.sync import policies
from geomx.sync.contract import GradientStep
from geomx.train.model.rows import rows_of

WARM_STEPS = 2
LONG_PERIOD = 1 << 20
BACKWARD_SHARE = 2 / 3  # of a step's computing, where nobody has measured it: twice as long as forward
MEASURED_STEPS = 10

# What a run of another policy has in place of what goes with the description's own.
PLAIN = (
    "wan.codec_up=dense",
    "wan.codec_down=dense",
    "optimizer={}",
    "worker.overlap=none",
    "sync.buffers=auto",
    "run.on_loss=stop",
    "run.wait_s=300",
    "run.least_parties=1",
    "run.least_workers=1",
)

# What a run on this machine alone, as fast as it can, has in place of the description's.
FREE = (
    "wan.link={}", "lan.link={}", "wan.pace_mbps=0", "event=[]", "global.addresses=[]", "global.listen=[]", "tls={}",
    "run.strict=false",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Sources:
    """Where to look. `step_ms`: of every worker, or `PARTY=MS`; what is given is believed before what is measured.

    `steps`: how many each worker will take.
    """

    measure: bool = False
    report: Path | None = None
    model: str | None = None
    parameters: int | None = None
    step_ms: Sequence[str] = ()
    steps: int | None = None


@dataclass(frozen=True, slots=True)
class Known:
    """`cut`: into about so many slices, the model. `origin`: how it is known, in words."""

    sites: tuple[Site, ...]
    regions: tuple[Region, ...]
    cut: Callable[[int], Sequence[Slice]]
    origin: str
    script: Script = field(default_factory=Script)

    @property
    def parameters(self) -> int:
        return sum(slice_.elements for slice_ in self.cut(SLICES_WANTED))


@dataclass(frozen=True, slots=True)
class _Seconds:
    """Of a step: computing, and the part of it in which gradients leave. `local`: a step of the worker's own."""

    compute: float
    backward: float
    local: float | None = None


def known(run: Run, sources: Sources, local: bool = False) -> Known:
    """Raises `ConfigError` with everything that is missing, and which option gives it.

    `local`: steps of the workers' own are to be measured as well, where something is measured.
    """
    steps, faults = _given_steps(run, sources.step_ms)
    faults += _missing_links(run)
    if not (sources.measure or sources.report):
        if sources.parameters is None and sources.model is None:
            allowed = "--parameters N, --model MODULE:FUNCTION, --measure or --report FILE"
            faults.append(Fault("the model's size", "nothing", allowed))
        if len(steps) < len(run.parties) and not faults:
            faults.append(_no_step(run, steps))
    if faults:
        raise ConfigError("geomx plan", faults)
    report, origin = _report(run, sources)
    script = Script(steps=sources.steps)
    if report is not None:
        steps = _measured_steps(run, report) | steps
        taken = report.get("steps") if sources.report else None
        script = Script.of(report.get("script", {}), sources.steps or taken)
    if len(steps) < len(run.parties):
        raise ConfigError("geomx plan", [_no_step(run, steps)])
    if sources.measure and local:
        steps = _with_local(steps, _measured_local(run), sources.step_ms)
    if sources.model is not None and rows_of(model_of(sources.model)):
        origin = f"{origin}; of embeddings with sparse=True it counts whole tables, of which a step sends some rows"
    return Known(tuple(_sites(run, steps)), tuple(_regions(run)), _cut(run, sources, report), origin, script)


def _sites(run: Run, steps: Mapping[str, _Seconds]) -> list[Site]:
    found = []
    for party in run.parties:
        wan, step = run.link_of(party.name), steps[party.name]
        assert wan is not None  # it was looked for
        lan = run.lan.link or type(wan)()
        found.append(
            Site(party.name, party.workers, step.compute, step.backward, wan, lan, step.local, party.parent)
        )
    return found


def _regions(run: Run) -> Iterator[Region]:
    for region in run.regions:
        wan = run.link_of(region.name)
        assert wan is not None  # it was looked for
        yield Region(region.name, region.parent, wan)


def _missing_links(run: Run) -> list[Fault]:
    hint = "given after the file's name, it is assumed for this prediction only"
    return [
        Fault(
            f"{'party' if server.name in run.servers else 'region'}.{server.name}.link",
            "nothing",
            f"rate_mbps and delay_ms, here or in {f'{server.parent}.below.link' if server.parent else 'wan.link'}",
            hint,
        )
        for server in run.server_tables
        if run.link_of(server.name) is None
    ]


def _no_step(run: Run, steps: Mapping[str, _Seconds]) -> Fault:
    missing = ", ".join(name for name in run.servers if name not in steps)
    return Fault(f"the seconds of a step in {missing}", "nothing", "--step-ms MS, --measure or --report FILE")


def _given_steps(run: Run, given: Sequence[str]) -> tuple[dict[str, _Seconds], list[Fault]]:
    """By party, with what `worker_delay` makes of them."""
    steps: dict[str, _Seconds] = {}
    faults = []
    for text in given:
        name, _, number = text.rpartition("=")
        try:
            seconds = 1e-3 * float(number)
        except ValueError:
            seconds = -1.0
        if not 0.0 <= seconds < float("inf") or (name and name not in run.servers):
            parties = ", ".join(run.servers)
            faults.append(
                Fault("--step-ms", text, f"milliseconds, or PARTY=milliseconds with one of {parties}")
            )
            continue
        for party in run.parties:
            if name in ("", party.name):
                factor = party.worker_delay.factor if party.worker_delay else 1.0
                steps[party.name] = _Seconds(factor * seconds, BACKWARD_SHARE * seconds)
    return steps, faults


# -- a run that has been ---------------------------------------------------------------------------------------------


def _report(run: Run, sources: Sources) -> tuple[dict[str, Any] | None, str]:
    """That of an earlier run, or of a short one now."""
    if sources.report is not None:
        return _read(sources.report), f"as {sources.report.name} tells"
    if not sources.measure:
        return None, "as given"
    with Console(stderr=True).status("measuring: the run trains a few steps here, without its links"):
        policy = policies.make(run.sync.policy)
        gradients = run if policy.plans is GradientStep else run.changed(["sync.policy=fsa", *PLAIN])
        records = rehearse(_free(gradients), _enough(run))
    return make_report(run, records, 0.0), "measured here, with all workers at once on this machine"


def _measured_local(run: Run) -> dict[str, float]:
    """By party: how long its slowest worker takes for a step of its own, between which nothing is exchanged."""
    times: dict[str, list[float]] = {}
    with Console(stderr=True).status("measuring: the same with steps of the workers' own"):
        alone = run.changed([f"sync.policy=hfa k1={LONG_PERIOD} k2=1", *PLAIN])
        for record in rehearse(_free(alone), _enough(run)):
            if record.name == "step":
                times.setdefault(record.node, []).append(record.t)
    taken = {
        worker: median(end - start for start, end in pairwise(each[WARM_STEPS:]))
        for worker, each in times.items()
    }
    return {party.name: max(taken[worker] for worker in party.worker_names) for party in run.parties}


def _with_local(
    steps: Mapping[str, _Seconds], local: Mapping[str, float], given: Sequence[str]
) -> dict[str, _Seconds]:
    """What was given on the command line stays as it was given."""
    said = {text.rpartition("=")[0] for text in given}
    return {
        party: seconds if {"", party} & said else replace(seconds, local=local[party])
        for party, seconds in steps.items()
    }


def _free(run: Run) -> Run:
    keys = ("link={}", "pace_mbps=0", "address=", "listen=")
    free = [f"party[{place}].{key}" for place in range(len(run.parties)) for key in keys]
    for place in range(len(run.regions)):
        free += [f"region[{place}].{key}" for key in (*keys, "below.link={}", "below.pace_mbps=0")]
    return run.changed([*FREE, *free])


def _enough(run: Run) -> Any:
    counted: Counter[str] = Counter()
    seen = 0

    def enough(records: Sequence[Record]) -> bool:
        nonlocal seen
        new, seen = records[seen:], len(records)
        counted.update(r.node for r in new if r.name == "step" and r.fields["compute_s"] is not None)
        return all(counted[worker] >= MEASURED_STEPS for worker in run.workers)

    return enough


def _read(path: Path) -> dict[str, Any]:
    try:
        report = msgspec.json.decode(path.read_bytes())
    except (OSError, msgspec.DecodeError) as error:
        raise _no_report(path, str(error)) from error
    if (
        not isinstance(report, dict)
        or not {"parameters", "compute_s_median", "backward_s_median"} <= report.keys()
    ):
        raise _no_report(path, "it tells no seconds of steps")
    return report


def _no_report(path: Path, reason: str) -> ConfigError:
    return ConfigError(
        "the command line", [Fault("--report", str(path), "what `geomx run --report` wrote", reason)]
    )


def _measured_steps(run: Run, report: Mapping[str, Any]) -> dict[str, _Seconds]:
    """Of each party's slowest worker; parties of which the report tells nothing are left out."""
    steps = {}
    for party in run.parties:
        told = report["compute_s_median"]
        seconds = [(told[worker], worker) for worker in party.worker_names if worker in told]
        if seconds:
            compute, worker = max(seconds)
            backward = report["backward_s_median"].get(worker, BACKWARD_SHARE * compute)
            steps[party.name] = _Seconds(compute, min(backward, compute))
    return steps


def _cut(run: Run, sources: Sources, report: Mapping[str, Any] | None) -> Callable[[int], Sequence[Slice]]:
    """How the model is cut, which is as the codecs want it where the description leaves that open."""
    pack_below, largest = run.layout.pack_below, run.layout.slice_elements
    bounds = size_bounds_of(*run.codecs)
    if sources.model is not None:
        model = model_of(sources.model)
        return lambda slices: slices_of(model, pack_below, largest, slices, bounds)
    parameters = sources.parameters or (report["parameters"] if report else 0)
    if not parameters:
        raise ConfigError("geomx plan", [Fault("the model's size", "nothing", "--parameters N or --model")])
    return lambda slices: slices_like(parameters, slices, largest)

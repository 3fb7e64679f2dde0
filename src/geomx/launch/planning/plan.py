"""`geomx plan`: which algorithm and codecs would be fastest for a run, and what each gives for it."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import torch
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from geomx.channels.memory import reuse_freed_blocks
from geomx.codecs.pack.noise import RngKey
from geomx.codecs.spec import make_codec, slices_wanted
from geomx.config import Run
from geomx.config.compatibility.choice_rules import check_choices
from geomx.config.compatibility.choices import Choices
from geomx.config.compatibility.decision import Decision, decide
from geomx.config.compatibility.script import Script
from geomx.config.tables import EdgeTable, LinkTable
from geomx.errors import ConfigError, Fault, GeomxError, Unsupported
from geomx.launch.local.outputs import check_outputs, write_outputs
from geomx.launch.overlay_tables import compared as overlays_compared
from geomx.launch.planning.plan_channels import Transports, Way, channel_table, remarks, transports, ways
from geomx.launch.planning.plan_facts import Known, Sources, known
from geomx.launch.planning.plan_rows import PRESET, PRESET_NAME, Pair, Row, as_dict, named_pair
from geomx.layout import SLICES_WANTED, Slice
from geomx.node.topology import AS_ABOVE
from geomx.observe.costs import Cost, Memory, cost, memory_of
from geomx.observe.files import write_whole
from geomx.observe.report import size
from geomx.observe.sentences import counted
from geomx.predict.facts import Codecs, EdgeCodecs, Facts, Rhythm
from geomx.predict.steps import Prediction, predict
from geomx.predict.words import trade_of_codec, trade_of_rhythm
from geomx.sync import policies
from geomx.sync.contract import GradientStep

ALGORITHMS = ("fsa", "mixed", "esync", "hfa", "diloco", "diloco fragments=5 overlap=5", "downpour")
CODECS = ("dense", "fp16", "int8", "int4", "bisparse ratio=0.01")
PLAIN_COLUMNS = 110  # where nothing says how wide lines may be
OWN = "*"  # marks the description's own row
SAMPLED_ELEMENTS = 1 << 23  # of a larger model, codecs are tried on a part


@dataclass(frozen=True, slots=True)
class PlanOptions:
    """What to compare; nothing given: `ALGORITHMS` and `CODECS`, beside what the description has. `json`: a file.

    `hub_mbps`: of the link that all parties share at each global server; overlays are compared where it is given.
    """

    sources: Sources
    algorithms: Sequence[str] = ()
    codecs: Sequence[str] = ()
    json: Path | None = None
    hub_mbps: float = 0.0

    @property
    def narrows(self) -> bool:
        """Whether the user has said what to compare."""
        return bool(self.algorithms or self.codecs)


def plan(run: Run, options: PlanOptions) -> None:
    """Predict and print. Raises `ConfigError` where something is not known that a prediction needs."""
    algorithms = options.algorithms or _with(run.sync.policy, ALGORITHMS)
    codecs = pairs(run, options)
    _check_names(algorithms, codecs)
    check_outputs({"--json": options.json})
    local = any(policies.make(algorithm).plans is not GradientStep for algorithm in algorithms)
    facts = known(run, options.sources, local)
    rows, refused = compared(run, facts, algorithms, codecs, None if options.narrows else PRESET)
    channels = _channels(run, facts, rows)
    show(run, facts, rows, refused, channels)
    told = as_dict(run, facts, rows, channels, refused)
    if options.hub_mbps and rows:
        told["overlays"] = _compare_overlays(run, _shown(rows), options.hub_mbps)
    content = msgspec.json.format(msgspec.json.encode(told), indent=2) + b"\n"
    write_outputs({options.json: lambda path: write_whole(path, content)})


def pairs(run: Run, options: PlanOptions) -> list[Pair]:
    """The codecs up and down that are compared: of `sign; int4`, or one for both ways."""
    own = run.wan.codec_up, run.wan.codec_down
    if not options.codecs:
        return list(_with(own, [(spec, spec) for spec in CODECS]))
    return [_pair(text) for text in options.codecs]


def _check_names(algorithms: Sequence[str], codecs: Sequence[Pair]) -> None:
    """Raises `ConfigError` before anything is measured."""
    for algorithm in algorithms:
        policies.make(algorithm)
    for spec in itertools.chain.from_iterable(codecs):
        make_codec(spec, RngKey())


def _pair(text: str) -> Pair:
    up, semicolon, down = (part.strip() for part in text.partition(";"))
    if ";" in down or not up or (semicolon and not down):
        raise ConfigError(
            "the command line", [Fault("--codec", text, "a codec, or one up and one down: `UP; DOWN`")]
        )
    return up, down or up


def _with(own: Any, others: Sequence[Any]) -> Sequence[Any]:
    return others if own in others else [own, *others]


# -- predictions ---------------------------------------------------------------------------------------------------


def compared(
    run: Run,
    facts: Known,
    algorithms: Sequence[str],
    codecs: Sequence[Pair],
    also: tuple[str, ...] | None = None,
) -> tuple[list[Row], dict[str, str]]:
    """A row for each that this run can have, the fastest first; and why it cannot have the others.

    `also`: an algorithm and its codecs up and down, beside all pairs.
    """
    torch.set_num_threads(1)
    reuse_freed_blocks()  # as every node does
    asked = [(algorithm, up, down) for algorithm in algorithms for up, down in codecs]
    if also is not None and also not in asked:
        asked.append((also[0], also[1], also[2]))
    predictor = _Predictor(run, facts, {pair[1:] for pair in asked})
    rows, reasons = [], dict[tuple[str, ...], str]()
    for algorithm, up, down in asked:
        try:
            decision = _decided(run, facts.script, algorithm, up, down)
        except GeomxError as error:
            reasons[algorithm, up, down] = _reason(error)
            continue
        pair, on_workers = (up, down), not decision.on_server
        predicted = predictor.of(algorithm, pair, on_workers)
        own = (algorithm, *pair) == (run.sync.policy, run.wan.codec_up, run.wan.codec_down)
        costs = "; ".join(cost.text for cost in decision.costs)
        over = partial(predictor.over, algorithm, pair, on_workers)
        rows.append(Row(algorithm, pair, *predicted, own, costs, over=over))
    return sorted(rows, key=lambda row: row.prediction.step_s), _listed(
        reasons, {row.algorithm for row in rows}
    )


def _channels(run: Run, facts: Known, rows: Sequence[Row]) -> list[Way]:
    """How channels compare with the pair that `_shown` picks."""
    return ways(run, facts.sites, _shown(rows).over) if rows else []


def _shown(rows: Sequence[Row]) -> Row:
    """The description's own, or else the fastest."""
    return next((row for row in rows if row.described), rows[0])


def _listed(reasons: dict[tuple[str, ...], str], compared: set[str]) -> dict[str, str]:
    """By algorithm where none of its codecs will do, else by algorithm and codecs."""
    listed = {}
    for (algorithm, up, down), reason in reasons.items():
        listed[f"{algorithm} with {named_pair((up, down))}" if algorithm in compared else algorithm] = reason
    return listed


class _Predictor:
    """Predicts algorithms with codecs, each of which is measured once."""

    def __init__(self, run: Run, facts: Known, pairs: Iterable[Pair]) -> None:
        self._run, self._facts = run, facts
        memory = memory_of()
        self._wanted = {pair: slices_wanted(*pair) for pair in pairs}
        self._cuts = {count: facts.cut(count) for count in set(self._wanted.values())}
        inner = [run.lan, *(region.below for region in run.regions)]
        others = [spec for edge in inner for spec in (edge.codec_up, edge.codec_down) if spec != AS_ABOVE]
        specs = dict.fromkeys([*itertools.chain.from_iterable(self._wanted), *others])
        self._costs = {spec: _cost(spec, facts.cut(slices_wanted(spec)), memory) for spec in specs}
        self._world = Facts(
            sites=facts.sites,
            size_bytes=sum(slice_.size_bytes for slice_ in facts.cut(SLICES_WANTED)),
            memory_bytes_per_s=memory.updating,
            shards=run.run.shards,
            regions=facts.regions,
            in_backward=run.worker.push_at == "backward",
            overlap=run.worker.overlap == "forward",
            clips=facts.script.clips,
        )
        self._carriers = transports(run, run.wan.channel)

    def of(self, algorithm: str, pair: Pair, on_workers: bool) -> tuple[Prediction, tuple[str, str]]:
        """What to expect over the description's channel, and the trades of both."""
        prediction = self.over(algorithm, pair, on_workers, self._carriers)
        trades = (
            trade_of_rhythm(Rhythm.of(algorithm), prediction),
            _trade_of(*map(self._costs.__getitem__, pair)),
        )
        return prediction, trades

    def over(self, algorithm: str, pair: Pair, on_workers: bool, carriers: Transports) -> Prediction:
        """What to expect with this up and down the WAN."""
        run, costs, (up, down) = self._run, self._costs, pair
        wan = EdgeCodecs(costs[up], costs[down])
        regions: dict[str, EdgeCodecs] = {}
        for region in sorted(run.regions, key=lambda region: len(run.tree.ancestors(region.name))):
            above = regions.get(region.parent, wan).down
            regions[region.name] = self._codecs(region.below, above)
        slices = len(self._cuts[self._wanted[pair]])
        edges = Codecs(slices, wan, self._codecs(run.lan, wan.down), regions)
        wan_up, wan_down = carriers
        world = replace(self._world, on_workers=on_workers, wan_up=wan_up, wan_down=wan_down)
        return predict(world, Rhythm.of(algorithm), edges)

    def _codecs(self, edge: EdgeTable, above: Cost) -> EdgeCodecs:
        """`above`: the codec down of the edges above these."""
        passes = edge.codec_down == AS_ABOVE
        return EdgeCodecs(
            self._costs[edge.codec_up], above if passes else self._costs[edge.codec_down], passes
        )


def _cost(spec: str, slices: Sequence[Slice], memory: Memory) -> Cost:
    """That of one codec for a model; of a large one it is measured on a part."""
    ends = itertools.accumulate(slice_.elements for slice_ in slices)
    sample = [slice_ for slice_, end in zip(slices, ends, strict=True) if end <= SAMPLED_ELEMENTS] or slices[
        :1
    ]
    of_sample = cost(spec, sample, memory, rounds=3)
    times = sum(slice_.size_bytes for slice_ in slices) / of_sample.dense_bytes
    return replace(
        of_sample,
        slices=len(slices),
        dense_bytes=round(times * of_sample.dense_bytes),
        sent_bytes=round(times * of_sample.sent_bytes),
        encode_s=times * of_sample.encode_s,
        decode_s=times * of_sample.decode_s,
    )


def _decided(run: Run, script: Script, algorithm: str, up: str, down: str) -> Decision:
    """What follows for this run with these in place of its own. Raises `GeomxError` where it cannot have them."""
    changes = [f"sync.policy={algorithm}", f"wan.codec_up={up}", f"wan.codec_down={down}"]
    if algorithm != run.sync.policy:
        changes.append("optimizer.compensation=")  # which is of the description's own policy
    changed = run.changed(changes)
    check_choices(changed)
    decision = decide(Choices.of(changed), script)
    if decision.refusals:
        raise Unsupported("; ".join(decision.refusals))
    return decision


def _reason(error: GeomxError) -> str:
    return "; ".join(map(str, error.faults)) if isinstance(error, ConfigError) else str(error)


def _trade_of(up: Cost, down: Cost) -> str:
    one, other = (trade_of_codec(make_codec(each.spec, RngKey()), each) for each in (up, down))
    return one if up.spec == down.spec else f"up: {one}; down: {other}"


# -- what is shown -------------------------------------------------------------------------------------------------


def _way(link: LinkTable, parent: str) -> str:
    """`20 Mbit/s, 100 ms there and back`; `parent`: a region's server at its other end."""
    rate = f"{link.rate_mbps:g} Mbit/s" if link.rate_mbps else "any rate"
    lost = f", {100 * link.loss:.3g} % lost" if link.loss else ""
    return f"{rate}, {2 * link.delay_ms:g} ms there and back{lost}" + (f", to {parent}" if parent else "")


def show(
    run: Run, facts: Known, rows: Sequence[Row], refused: dict[str, str], channels: Sequence[Way] = ()
) -> None:
    """Print what is known, the ranking, and the trades."""
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = max(console.width, PLAIN_COLUMNS)
    console.print(f"{run.run.name}: {facts.parameters:,} parameters, {facts.origin}")
    parties = Table(box=None, pad_edge=False, show_header=False)
    for region in facts.regions:
        parties.add_row(f"  {region.name}", "region", "", _way(region.wan, region.parent))
    for site in facts.sites:
        computing = f"{1e3 * site.compute_s:.3g} ms of computing a step"
        parties.add_row(
            f"  {site.name}", counted(site.workers, "worker"), computing, _way(site.wan, site.parent)
        )
    console.print(parties)
    console.print(ranking(rows))
    if any(row.described for row in rows):
        console.print(f"{OWN} as the description has it.")
    if rows and rows[0].costs and (free := [row for row in rows if not row.costs]):
        console.print(
            f"Fastest without !: {free[0].named}, {free[0].prediction.step_s:.3g} s/step.", soft_wrap=True
        )
    if channels:
        console.print(f"Channels, for {_shown(rows).named}:")
        console.print(channel_table(channels, OWN))
    for remark in remarks(run, facts.sites):
        console.print(remark, soft_wrap=True)
    for text in dict.fromkeys(row.costs for row in rows if row.costs):
        console.print(f"! Known to cost accuracy: {text}.", soft_wrap=True)
    trades = Table(box=None, pad_edge=False, show_header=False)
    trades.add_column(style="dim", no_wrap=True)
    trades.add_column()
    listed = {row.algorithm: row.trades[0] for row in rows if not row.is_preset} | {
        named_pair(row.codecs): row.trades[1] for row in rows if not row.is_preset
    }
    if any(row.is_preset for row in rows):
        listed[f'run.preset = "{PRESET_NAME}"'] = (
            f"{PRESET[0]}, up {PRESET[1]}, down {PRESET[2]}: see docs/settings.md"
        )
    for name, trade in listed.items():
        trades.add_row(f"  {name}", trade)
    console.print("What each trades:")
    console.print(trades)
    for algorithm, reason in refused.items():
        console.print(f"Not with this run: {algorithm}: {reason}", soft_wrap=True)
    if facts.script.steps is None:
        console.print(
            "The number of steps is not known: give --steps N to leave out policies that average too rarely for it.",
            soft_wrap=True,
        )
    console.print(
        "\nAccuracy is not predicted, and differs: try the best few on your own model.", soft_wrap=True
    )


def _compare_overlays(run: Run, row: Row, hub_mbps: float) -> dict[str, float]:
    """Print how long a round's bytes take by each overlay, and give that."""
    steps = row.prediction.round_s / row.prediction.step_s
    up_bytes, down_bytes = row.prediction.bytes_up * steps, row.prediction.bytes_down * steps
    seconds = overlays_compared(run, up_bytes, down_bytes, hub_mbps)
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for column, justify in (("run.overlay", "left"), ("s/round on links", "right"), ("× star", "right")):
        table.add_column(column, justify=justify)  # type: ignore[arg-type]
    for spec, taken_s in sorted(seconds.items(), key=lambda each: each[1]):
        table.add_row(spec, f"{taken_s:.3g}", f"{taken_s / seconds['star']:.2f}")
    console = Console(highlight=False)
    console.print(
        f"Overlays, for {row.named}, where the global servers share {hub_mbps:g} Mbit/s:", soft_wrap=True
    )
    console.print(table)
    return seconds


def ranking(rows: Sequence[Row]) -> Table:
    """A line for each, the fastest first."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for column in ("algorithm", "codecs"):
        table.add_column(column, min_width=10)
    for column in ("s/step", "× best", "s/round", "up/step", "down/step", "computing"):
        table.add_column(column, justify="right", no_wrap=True)
    best = rows[0].prediction.step_s if rows else 1.0
    for row in rows:
        its = row.prediction
        algorithm, codecs = row.algorithm, named_pair(row.codecs)
        if row.is_preset:
            algorithm, codecs = PRESET_NAME, "the preset's"
        table.add_row(
            f"{algorithm} {OWN}" if row.described else algorithm,
            f"{codecs} !" if row.costs else codecs,
            f"{its.step_s:.3g}",
            f"{its.step_s / best:.2f}",
            f"{its.round_s:.3g}",
            size(its.bytes_up),
            size(its.bytes_down),
            f"{its.computing:.0%}",
            style="bold" if row.described else None,
        )
    return table

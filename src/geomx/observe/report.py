"""What remains of a run: the report, a dict for JSON, and the table that a run ends with."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from statistics import fmean, median
from typing import Any, Literal

import msgspec
from rich.box import SIMPLE_HEAD
from rich.table import Table

from geomx.config import Run
from geomx.observe.datagrams import datagram_lines
from geomx.observe.files import write_whole
from geomx.observe.members import in_short, out_at_end
from geomx.observe.overlays import overlay_lines
from geomx.observe.records import Record
from geomx.observe.sentences import counted, sentence
from geomx.observe.totals import Totals
from geomx.observe.traffic import Tier, Traffic

Report = dict[str, Any]
How = Literal["well", "interrupted", "failed"]

MUCH_SAVED = 0.985  # more would be shown as 99% or 100%, which are far apart
LEAST_SAVED = 0.005  # less would be shown as 0%
CHANGES_SHOWN = 4
MOSTLY = 0.75  # a party that comes last so often is the slowest
WORTH_A_WORD = 0.1  # of a round, by which it comes later


def make_report(
    run: Run,
    records: Iterable[Record],
    wall_s: float,
    ended: How = "well",
    failure: str | None = None,
    lost: Mapping[str, str] | None = None,
) -> Report:
    """The report of a run, or of what one has done that did not end well.

    `wall_s`: from the first process's start to the last one's end, in seconds. `failure`: what it failed with. `lost`:
    the nodes without which it went on, and how each ended.
    """
    totals = Totals(run)
    for record in records:
        totals.take(record)
    finished = totals.finished.values()
    floor_party, floor_s = totals.round_floor() or (None, None)
    return {
        "ended": ended,
        "failure": failure,
        "lost": dict(lost or {}),
        "members": totals.members.told(),
        "algorithm": run.sync.policy,
        "codec_up": run.wan.codec_up,
        "codec_down": run.wan.codec_down,
        "parties": len(run.parties),
        "workers": len(run.workers),
        "shards": run.run.shards,
        "regions": len(run.regions),
        "steps": max(map(totals.steps_of, run.workers)),
        "rounds": totals.rounds,
        "samples": sum(map(totals.samples_of, run.workers)),
        "wall_s": _rounded(wall_s),
        "train_s": _rounded(max((fields["train_s"] for fields in finished), default=None)),
        **{f"final_{value}": _mean(totals.of_those_there(last)) for value, last in totals.logged.items()},
        **_traffic_of(totals.traffic, "wan"),
        **_traffic_of(totals.traffic, "region"),
        **_traffic_of(totals.traffic, "lan"),
        "datagrams": totals.datagrams.by_tier(),
        "datagram_paths": totals.datagrams.paths,
        "overlay": totals.overlays.told(),
        "first_weights_s": _rounded(totals.first_weights_s()),
        "wan_bytes_without_local_servers": totals.wan_bytes_without_local_servers(),
        "wan_bytes_dense": totals.wan_bytes_dense(),
        "parameters": max((fields["parameters"] for fields in finished), default=totals.parameters),
        "parameters_sha256": totals.weights(),
        "calls": max((fields.get("calls", 0) for fields in finished), default=0),
        "requests": max((fields.get("requests", 0) for fields in finished), default=0),
        "rewritten": totals.rewritten(),
        "script": totals.script,
        "cohorts": totals.cohorts,
        "staleness_mean": _rounded(fmean(totals.staleness)) if totals.staleness else None,
        "staleness_max": max(totals.staleness, default=None),
        "round_s_median": _rounded(totals.round_s_median),
        "round_floor_s": _rounded(floor_s),
        "round_floor_party": floor_party,
        "slowest_party": totals.slowest_party(),
        "link_changes": totals.link_changes,
        "compute_s_median": _medians(totals.compute_s),
        "backward_s_median": _medians(totals.backward_s),
        "skipped": {node: len(steps) for node, steps in sorted(totals.skipped.items())},
        "counted_exactly_once": totals.ledger(),
        "ledger_workers": len(totals.ledger_workers()),
        "wrong": totals.wrong(),
        "node_cpu_s": totals.cpu_s(),
        "node_rss_mb": dict(sorted(totals.rss_mb.items())),
        "config": run.as_dict(),
    }


def _traffic_of(traffic: Traffic, tier: Tier) -> dict[str, int | None]:
    """Bytes over all edges of a tier, and how many of them were the first weights."""
    crossed, first = traffic.all(tier), traffic.first_weights(tier)
    return {
        f"{tier}_bytes_up": crossed.up,
        f"{tier}_bytes_down": crossed.down,
        f"first_weights_{tier}_bytes_up": None if first is None else first.up,
        f"first_weights_{tier}_bytes_down": None if first is None else first.down,
    }


def _medians(of_workers: dict[str, list[float]]) -> dict[str, float]:
    return {worker: round(median(seconds), 6) for worker, seconds in sorted(of_workers.items())}


def _rounded(seconds: float | None) -> float | None:
    """To microseconds: clocks know no more."""
    return None if seconds is None else round(seconds, 6)


def _mean(last: dict[str, float | None]) -> float | None:
    """The mean over the workers that told a number; None where one of them is not finite, or none told one."""
    values = list(last.values())
    if not values or any(value is None or not math.isfinite(value) for value in values):
        return None
    return fmean(value for value in values if value is not None)


def write_report(report: Report, path: Path) -> None:
    """Write a report as JSON, which only the user may read: it has the script's arguments. Raises `FileUnwritable`."""
    write_whole(path, msgspec.json.format(msgspec.json.encode(report), indent=2) + b"\n", private=True)


Verdict = Literal["", "good", "bad"]
MARKS: dict[Verdict, str] = {"": " ", "good": "[green]✓[/green]", "bad": "[yellow]![/yellow]"}


def closing_table(report: Report) -> Table:
    """What a run ends with on the terminal; fits 80 columns."""
    table = Table(box=SIMPLE_HEAD, show_header=False, pad_edge=False, padding=0)
    table.add_column(width=2)
    table.add_column(style="dim", min_width=15)
    table.add_column()
    for name, value, verdict in closing_rows(report):
        table.add_row(MARKS[verdict], name, value)
    return table


def closing_rows(report: Report) -> list[tuple[str, str, Verdict]]:
    """The closing table's rows, and whether a row is as it should be; what is not known has none."""
    counts = [(report["regions"], "region")] if report["regions"] else []
    counts += [(report["parties"], "party"), (report["workers"], "worker"), (report["shards"], "shard")]
    rounds, train_s, samples = report["rounds"], report["train_s"], report["samples"]
    proved = report["counted_exactly_once"]
    weights, all_have = _weights(report)
    rows: list[tuple[str, str, Verdict]] = [
        (
            "run",
            f"{report['config']['run']['name']}, {report['algorithm']}, "
            + ", ".join(counted(*count) for count in counts),
            "",
        ),
        (
            "ended",
            "" if report["ended"] == "well" else f"{report['ended']}: this is what was done until then",
            "bad",
        ),
        ("lost", ", ".join(f"{node} {how}" for node, how in report["lost"].items()), "bad"),
        ("members", *_members(report)),
        ("steps", f"{report['steps']:,} of each worker" if report["steps"] != rounds else "", ""),
        (
            "rounds",
            f"{rounds:,}" + _if(report["round_s_median"], ", {:.4g} s each (median)")
            if rounds or report["parameters"]
            else "",
            "",
        ),
        ("calls", f"{report['calls']:,} of each worker" if report["calls"] else "", ""),
        ("tables", f"{report['requests']:,} requests of each worker" if report["requests"] else "", ""),
        (
            "samples",
            f"{samples:,}" + _if(train_s and samples / train_s, ", {:,.0f} per second") if samples else "",
            "",
        ),
        ("time", f"{report['wall_s']:.1f} s" + _if(train_s, ", {:.1f} s of it training"), ""),
        ("computing", _computing(report), ""),
        ("loss", _if(report["final_loss"], "{:.4f}"), ""),
        ("validation loss", _if(report["final_validation_loss"], "{:.4f}"), ""),
        ("accuracy", _if(report["final_accuracy"], "{:.2%}"), ""),
        ("WAN", _traffic(report, "wan", rounds), ""),
        ("in regions", _traffic(report, "region", rounds) if report["regions"] else "", ""),
        ("LAN", _traffic(report, "lan", rounds), ""),
        (
            "datagrams",
            datagram_lines(report["datagrams"].get("wan", {}), report["datagram_paths"], rounds),
            "",
        ),
        ("in regions", datagram_lines(report["datagrams"].get("region", {}), rounds=rounds), ""),
        ("LAN datagrams", datagram_lines(report["datagrams"].get("lan", {}), rounds=rounds), ""),
        ("overlay", overlay_lines(report["overlay"]), ""),
        ("first weights", _first_weights(report), ""),
        ("WAN saved", _saved(report), ""),
        ("round", _cost(report), ""),
        ("slowest", _slowest(report), "bad"),
        ("links", _links(report), ""),
        ("staleness", _staleness(report), ""),
        ("skipped", _skipped(report), "bad"),
        ("parameters", f"{report['parameters']:,}" if report["parameters"] else "", ""),
        ("weights", weights, all_have),
        (
            "exactly once",
            "" if proved is None else _proof(report) if proved else "NO: the ledger differs",
            "good" if proved else "bad",
        ),
    ]
    return [row for row in rows if row[1]]


def _members(report: Report) -> tuple[str, Verdict]:
    """Who was lost and came back; as it should be where all are there in the end, and no turn is torn."""
    told = report["members"]
    is_bad = out_at_end(told) or any(change["kind"] == "torn" for change in told)
    return in_short(told, report["workers"]), "bad" if is_bad else ""


def _proof(report: Report) -> str:
    """What the ledger proves, and of whom; it has no blocks, so nothing of them."""
    checked, workers = report["ledger_workers"], report["workers"]
    whom = f", of {checked} of {workers} workers: the rest were away" if checked < workers else ""
    parties = (party for tier in report["datagrams"].values() for party in tier.values())
    lost = any(counts["returned"] for party in parties for counts in party["classes"].values())
    return (
        f"every contribution, proved by the ledger{whom}; not every block: see datagrams"
        if lost
        else f"proved by the ledger{whom}"
    )


def _computing(report: Report) -> str:
    """Which share of the training time workers compute; the rest goes into waiting for each other and for links."""
    medians, train_s = report["compute_s_median"], report["train_s"]
    if not train_s or len(medians) < report["workers"]:
        return ""
    share = min(1.0, report["steps"] * fmean(medians.values()) / train_s)
    return f"{share:.0%} of the training time"


def _if(value: float | None, form: str) -> str:
    return "" if value is None else form.format(value)


def _traffic(report: Report, tier: Tier, rounds: int) -> str:
    in_steps = _step_bytes(report, tier)
    each = f", {size(in_steps / rounds)} per round" if rounds and in_steps is not None else ""
    return f"{size(report[f'{tier}_bytes_up'])} up, {size(report[f'{tier}_bytes_down'])} down{each}"


def _step_bytes(report: Report, tier: Tier) -> int | None:
    """All bytes of a tier but the first weights, both directions; None: not known."""
    both = ("bytes_up", "bytes_down")
    first = [report[f"first_weights_{tier}_{way}"] for way in both]
    if None in first:
        return None
    return int(sum(report[f"{tier}_{way}"] for way in both) - sum(first))


def _first_weights(report: Report) -> str:
    down = report["first_weights_wan_bytes_down"]
    if down is None:
        return ""
    return f"{size(down / report['parties'])} to each party" + _if(report["first_weights_s"], ", {:.3g} s")


def _saved(report: Report) -> str:
    """What steps spare the WAN, and by what: a line each."""
    codecs = (report["codec_up"], report["codec_down"]) != ("dense", "dense")
    rounds = report["rounds"] < report["steps"]
    by = " and ".join(["codecs"] * codecs + ["fewer rounds"] * rounds)
    found = [_spared(report, "local servers", report["wan_bytes_without_local_servers"])]
    found += [_spared(report, by, report["wan_bytes_dense"])] if by else []
    return "\n".join(filter(None, found))


def _spared(report: Report, by: str, otherwise: int | None) -> str:
    in_steps = _step_bytes(report, "wan")
    if not otherwise or in_steps is None or (saved := 1 - in_steps / otherwise) < LEAST_SAVED:
        return ""
    share = f"{saved:.1%}" if saved > MUCH_SAVED else f"{saved:.0%}"
    return f"{share} by {by} (otherwise {size(otherwise)})"


def _cost(report: Report) -> str:
    """How near a round comes to what its bytes take on the link."""
    round_s, floor_s = report["round_s_median"], report["round_floor_s"]
    if not round_s or not floor_s:
        return ""
    party = report["round_floor_party"]
    return f"{round_s / floor_s:.2f} × the {floor_s:.3g} s that {party}'s link needs"


def _slowest(report: Report) -> str:
    """The party for which the others wait, where they do."""
    slowest, round_s = report["slowest_party"], report["round_s_median"]
    if not slowest or not round_s or slowest["share"] < MOSTLY:
        return ""
    later_s = slowest["later_s_median"]
    if later_s < WORTH_A_WORD * round_s:
        return ""
    return f"{slowest['party']}, last in {slowest['share']:.0%} of rounds, by {later_s:.3g} s (median)"


def size(count: float) -> str:
    """Bytes as people read them: `999 B`, `2.87 MB`."""
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:,.4g} GB"


def _staleness(report: Report) -> str:
    """How many updates of others a gradient has missed, where cohorts do not wait for each other."""
    if len(report["cohorts"]) < 2 or report["staleness_mean"] is None:
        return ""
    return f"{report['staleness_mean']:.2g} updates of others on average, at most {report['staleness_max']}"


def _skipped(report: Report) -> str:
    """What was left out for not being finite: `A/0 in 3 steps`."""
    each = [f"{node} in {counted(steps, 'step')}" for node, steps in report["skipped"].items()]
    return f"NaN or Inf: {', '.join(each)}" if each else ""


def _links(report: Report) -> str:
    """What events have made of links: `B from 30.0 s on: 5 Mbit/s, 20 ms one way`."""
    changes = [sentence("link", change).removeprefix("link of ") for change in report["link_changes"]]
    more = [f"{len(changes) - CHANGES_SHOWN} more"] if len(changes) > CHANGES_SHOWN else []
    return "; ".join([*changes[:CHANGES_SHOWN], *more])


def _weights(report: Report) -> tuple[str, Verdict]:
    """Which weights workers end with: all the same, where they are to be."""
    sha256 = report["parameters_sha256"]
    if isinstance(sha256, dict):
        each = ", ".join(f"{name} {value[:12]}" for name, value in sha256.items())
        if list(sha256) == sorted(report["cohorts"]):
            return f"each its own: {each}", ""
        return f"workers DIFFER: {each}", "bad"
    told = report["members"]
    has_left = any(change["kind"] == "left" for change in told)
    lacks_some = out_at_end(told) or has_left if told else report["lost"]
    whom = "all workers that are left" if lacks_some else "all workers"
    if rewritten := report["rewritten"]:
        why = f"the script of {', '.join(rewritten)} has changed them since its last step"
        return f"{'the same on all others' if sha256 else 'not compared'}: {why}", ""
    return (f"the same on {whom}, sha256 {sha256[:12]}…", "good") if sha256 else ("", "")

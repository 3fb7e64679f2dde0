"""`lab check`: what the lab does, against what it was told, seen by plain sockets.

| what  | how                                                                      | must be           |
|-------|--------------------------------------------------------------------------|-------------------|
| rate  | one TCP connection with BBR; cubic beside it                             | within 5 %        |
| delay | median round trip of a small datagram on an idle link                    | within 2 ms       |
| loss  | small datagrams                                                          | within 10 %, or 3 |
|       |                                                                          | standard errors   |
| two   | two connections, each alone, then at once; sharing no site, then one     | within 5 %        |

The share of segments that TCP sent again stands beside the loss: it shows that loss is drawn for each segment
of a large packet.
"""

from __future__ import annotations

import json
import os
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from math import sqrt
from pathlib import Path
from typing import Any

from lab import awake, measure
from lab.describe import Pair, describe
from lab.errors import LabError
from lab.lab import Lab, RouterState

RATES_MBPS = (20, 50, 100, 200, 500, 1000)
ROUND_TRIPS_MS = (10, 40, 100)
LOSSES = {0.001: 200_000, 0.01: 20_000, 0.05: 10_000}  # and how many datagrams
QUICK_CELLS = ((20, 40), (100, 10), (1000, 40))
QUICK_LOSSES = {0.01: 8_000}
OUTPUT = Path("out/bench/lab_check.jsonl")
QUICK_OUTPUT = Path("out/bench/lab_check_quick.jsonl")

_RATE_TOLERANCE = 0.05
_DELAY_TOLERANCE_MS = 2.0
_LOSS_TOLERANCE = 0.1
_SETTLED_AFTER_S = 10.0
_PAIR: Pair = ("A", "B")
_PAIRS_AT_ONCE: dict[str, tuple[Pair, Pair]] = {
    "A-B, C-D": (("A", "B"), ("C", "D")),
    "A-B, A-C": (("A", "B"), ("A", "C")),
}


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table. `set` and `found` are in `unit`; `ok` is None where nothing is demanded."""

    what: str
    where: str
    unit: str
    set: float
    found: float
    off: str
    ok: bool | None
    router_cpu: float  # share of one core
    late: float  # share of the router's handovers that came more than 1 ms late
    load: float


class Check:
    """Makes the measurements on a lab of four sites, whose links it sets anew for each of them."""

    def __init__(self, lab: Lab, quick: bool) -> None:
        self._lab = lab
        self._quick = quick
        self._before: tuple[float, RouterState] = (time.perf_counter(), lab.router())

    def rows(self) -> Iterator[Row]:
        """All of them, as they are measured."""
        cells = (
            QUICK_CELLS if self._quick else [(rate, trip) for rate in RATES_MBPS for trip in ROUND_TRIPS_MS]
        )
        for rate_mbps, round_trip_ms in cells:
            yield from self._cell(rate_mbps, round_trip_ms)
        for loss, datagrams in (QUICK_LOSSES if self._quick else LOSSES).items():
            yield from self._loss(loss, datagrams)
        for where, pairs in _PAIRS_AT_ONCE.items():
            yield from self._two(where, pairs)
            if self._quick:
                return

    def _set(self, rate_mbps: float, round_trip_ms: float, loss: float = 0.0) -> None:
        """Every link alike; the queue holds as much as the link, so that cubic can fill it."""
        queue_ms = max(50.0, round_trip_ms)
        self._settle()
        self._lab.set("*", "*", rate_mbps=rate_mbps, delay_ms=round_trip_ms / 2, queue_ms=queue_ms, loss=loss)

    def _settle(self) -> None:
        """Wait for what the last measurement left in the queues; it would hold up the next one, or crowd it out."""
        give_up_at = time.monotonic() + _SETTLED_AFTER_S
        while any(link.counters.under_way for link in self._lab.links().values()):
            if time.monotonic() > give_up_at:
                raise LabError(
                    f"the links are not idle {_SETTLED_AFTER_S:g} s after a measurement; who uses them?"
                )
            time.sleep(0.01)

    def _mark(self) -> None:
        self._before = (time.perf_counter(), self._lab.router())

    def _row(
        self, what: str, where: str, unit: str, wanted: float, found: float, off: str, ok: bool | None
    ) -> Row:
        began_at, before = self._before
        after = self._lab.router()
        cpu = (after.cpu_s - before.cpu_s) / (time.perf_counter() - began_at)
        late = (after.late - before.late) / max(1, after.handed - before.handed)
        return Row(what, where, unit, wanted, found, off, ok, cpu, late, os.getloadavg()[0])

    def _cell(self, rate_mbps: float, round_trip_ms: float) -> Iterator[Row]:
        where = f"{rate_mbps} Mbit/s {round_trip_ms} ms"
        self._set(rate_mbps, round_trip_ms)
        self._mark()
        trips = measure.round_trips_ms(self._lab, *_PAIR, count=10 if self._quick else 20)
        found = statistics.median(trips)
        error_ms = found - round_trip_ms
        yield self._row(
            "delay",
            where,
            "ms",
            round_trip_ms,
            found,
            f"{error_ms:+.2f} ms",
            abs(error_ms) <= _DELAY_TOLERANCE_MS,
        )
        for congestion in ("bbr",) if self._quick else ("bbr", "cubic"):
            self._mark()
            (flow,) = self._flows([_PAIR], congestion, round_trip_ms)
            error = flow.wire_mbps / rate_mbps - 1
            ok = abs(error) <= _RATE_TOLERANCE if congestion == "bbr" else None
            yield self._row(
                f"rate, {congestion}", where, "Mbit/s", rate_mbps, flow.wire_mbps, f"{error:+.1%}", ok
            )

    def _flows(self, pairs: Sequence[Pair], congestion: str, round_trip_ms: float) -> list[measure.Flow]:
        for_s = 1.0 if self._quick else 4.0
        return measure.flows(self._lab, pairs, congestion, 0.5 + 0.02 * round_trip_ms, for_s)

    def _loss(self, loss: float, datagrams: int) -> Iterator[Row]:
        where = f"{loss:.1%}, 1000 Mbit/s 20 ms"
        self._set(1000, 20, loss)
        self._mark()
        found = measure.loss(self._lab, *_PAIR, count=datagrams)
        standard_error = sqrt(loss * (1 - loss) / datagrams)
        ok = abs(found - loss) <= max(_LOSS_TOLERANCE * loss, 3 * standard_error)
        off = f"{(found - loss) / standard_error:+.1f} s.e."
        yield self._row("loss, datagrams", where, "%", loss * 100, found * 100, off, ok)
        self._mark()
        (flow,) = self._flows([_PAIR], "bbr", 20)
        again = flow.retransmitted
        yield self._row(
            "loss, sent again by TCP", where, "%", loss * 100, again * 100, f"{again / loss - 1:+.1%}", None
        )

    def _two(self, where: str, pairs: Sequence[Pair]) -> Iterator[Row]:
        self._set(100, 40)
        alone = [self._flows([pair], "bbr", 40)[0].wire_mbps for pair in pairs]
        self._mark()
        together = [flow.wire_mbps for flow in self._flows(pairs, "bbr", 40)]
        for (a, b), before, beside in zip(pairs, alone, together, strict=True):
            error = beside / before - 1
            yield self._row(
                f"two at once, {a}-{b}",
                f"{where}, 100 Mbit/s 40 ms",
                "Mbit/s",
                before,
                beside,
                f"{error:+.1%}",
                abs(error) <= _RATE_TOLERANCE,
            )


def network(seed: int) -> dict[str, Any]:
    """The description of the network that is checked."""
    sites = [{"name": name} for name in ("A", "B", "C", "D")]
    return {"seed": seed, "site": sites, "default": {"rate_mbps": 100, "delay_ms": 20}}


def check(quick: bool, seed: int, show: Callable[[str], None]) -> bool:
    """Measure, print the table line by line, write the rows as JSON lines; whether all is as it must be.

    A loss is more than 3 standard errors off in 1 of 370 measurements, by chance; with the same `seed` the same
    segments are lost again.
    """
    began_at = time.time()
    rows = []
    show(_line("what", "where", "set", "found", "off by", "", "router", "late", "load"))
    with awake.cores(), Lab(describe(network(seed), "lab check")) as lab:
        for row in Check(lab, quick).rows():
            rows.append(row)
            show(_shown(row))
    output = QUICK_OUTPUT if quick else OUTPUT
    output.parent.mkdir(parents=True, exist_ok=True)
    with output.open("w") as file:
        for row in rows:
            file.write(json.dumps({**asdict(row), "quick": quick, "seed": seed, "began_at": began_at}) + "\n")
    failed = sum(row.ok is False for row in rows)
    judged = sum(row.ok is not None for row in rows)
    took_s = time.time() - began_at
    show(f"{judged - failed} of {judged} within bounds, in {took_s:.0f} s with seed {seed}; rows in {output}")
    return failed == 0


def _shown(row: Row) -> str:
    verdict = {True: "ok", False: "NOT ok", None: ""}[row.ok]
    return _line(
        row.what,
        row.where,
        f"{row.set:.4g} {row.unit}",
        f"{row.found:.4g} {row.unit}",
        row.off,
        verdict,
        f"{row.router_cpu:.0%}",
        f"{row.late:.1%}",
        f"{row.load:.1f}",
    )


def _line(*cells: str) -> str:
    widths = (25, 31, 13, 14, 11, 8, 8, 7, 5)
    return "".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)).rstrip()

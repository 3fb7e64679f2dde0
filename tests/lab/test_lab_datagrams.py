"""Whole runs whose payloads travel in datagrams, on networks that treat UDP as those in the wild do.

Whatever happens to datagrams, the run ends well, no connection breaks, every step counts once, and all workers have the
same weights: those of plain PyTorch where the channel sends again until everything has come.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from lab_runs import HUB, PARTIES, LabRun, weights_after
from real_runs import BOUND_S

from lab import Lab, system
from lab.describe import describe

MISSING = system.missing_here()
pytestmark = [
    pytest.mark.lab,
    pytest.mark.processes,
    pytest.mark.skipif(bool(MISSING), reason="; ".join(MISSING)),
]

SMALL_MTU = 1280


@contextmanager
def run_in_lab(folder: Path, channel: str = "datagram", **table: Any) -> Iterator[tuple[Lab, LabRun]]:
    """A run that has not begun; A is behind a NAT."""
    sites = [{"name": HUB}, {"name": "A", "nat": True}, {"name": "B"}]
    default = {"rate_mbps": 50, "delay_ms": 10, "queue_ms": 200}
    network = describe({"site": sites, "default": default, "congestion": "cubic", **table}, "test")
    with Lab(network) as lab:
        run = LabRun(lab, folder / "run", f"wan.channel={channel}")
        try:
            yield lab, run
        finally:
            run.close()


def until(run: LabRun, condition: Callable[[], bool]) -> None:
    give_up_at = time.monotonic() + BOUND_S
    while not condition():
        assert time.monotonic() < give_up_at, f"what was waited for did not come:\n{run.report()}"
        assert all(process.is_alive() for process in run.processes.values()), run.report()
        time.sleep(0.05)


def datagrams(lab: Lab, site: str = HUB) -> int:
    """How many datagrams the processes of a site have received."""
    with lab.inside(site):
        lines = Path("/proc/thread-self/net/snmp").read_text().splitlines()
    names, counts = (line.split() for line in lines if line.startswith("Udp:"))
    return int(counts[names.index("InDatagrams")])


def until_they_travel(lab: Lab, run: LabRun) -> None:
    """Until so many more datagrams have come that they were no probes."""
    before = datagrams(lab)
    until(run, lambda: datagrams(lab) > before + 200)


def check_end(run: LabRun, channel: str = "datagram") -> None:
    run.stop()
    told = run.ended()
    assert told["counted_exactly_once"] is True
    assert isinstance(told["parameters_sha256"], str)  # of several: by worker
    assert len(run.weights()) == 1
    if channel == "datagram":
        assert run.weights() == {weights_after(told["steps"])}
    assert run.connections_lost() == []


def test_udp_is_blocked_from_the_start_or_in_the_middle_and_let_through_again(
    tmp_path: Path,
) -> None:
    """From the start are the answers to B, in the middle what A sends."""
    with run_in_lab(tmp_path) as (lab, run):
        lab.set(HUB, "B", udp_blocked=True)
        run.begin()
        until_they_travel(lab, run)
        until(run, lambda: run.paths("B") == [False])
        lab.set("A", HUB, udp_blocked=True)
        until(run, lambda: run.paths("A") == [False])
        run.until_further(5)
        lab.set("A", HUB, udp_blocked=False)
        until(run, lambda: run.paths("A") == [False, True])
        until_they_travel(lab, run)
        check_end(run)
        assert [run.paths(party) for party in PARTIES] == [[False, True], [False]]


def test_large_datagrams_vanish(tmp_path: Path) -> None:
    """In a black hole: no router tells. From the start to B, and later to A; TCP is told of both as it connects."""
    small = {"both": True, "mtu": SMALL_MTU}
    event = {"at_s": 0, "from": "A", "to": HUB, **small}
    with run_in_lab(tmp_path, event=[event]) as (lab, run):
        lab.set("B", HUB, **small)
        run.begin()
        until_they_travel(lab, run)
        lab.begin()
        until(run, lambda: oversized(lab, "A") > 0)
        run.until_further(5)
        until_they_travel(lab, run)
        before = oversized(lab, *PARTIES)
        until_they_travel(lab, run)
        assert oversized(lab, *PARTIES) == before
        check_end(run)
        assert not any(run.paths(party) for party in PARTIES)


def oversized(lab: Lab, *parties: str) -> int:
    return sum(lab.links()[party, HUB].counters.oversized_segments for party in parties)


@pytest.mark.parametrize("channel", ["datagram", pytest.param("dgt adaptive=false", marks=pytest.mark.grids)])
def test_datagrams_are_lost_come_twice_and_overtake_each_other_and_a_nat_forgets_who_sends_from_where(
    channel: str, tmp_path: Path
) -> None:
    with run_in_lab(tmp_path, channel) as (lab, run):
        lab.set("*", HUB, both=True, loss=0.05, reorder=0.1, reorder_ms=10, duplicate=0.05)
        run.begin()
        for _ in range(2):
            until_they_travel(lab, run)
            lab.rebind("A")
        until_they_travel(lab, run)
        run.until_further(10)
        check_end(run, channel)
        assert not any(run.paths(party) for party in PARTIES)

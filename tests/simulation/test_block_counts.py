"""What both ends of flows count is what happened, and people read it in reports: on links that lose datagrams."""

from __future__ import annotations

from functools import cache
from itertools import pairwise
from statistics import mean
from typing import Any

import pytest
import torch
from trees import Loop, assert_well, run_tree, topology_of

from geomx.config import Run
from geomx.layout import Layout, Tensor
from geomx.node.topology import Edge, Topology
from geomx.observe.records import Record
from geomx.observe.report import closing_rows, make_report
from geomx.observe.trace import trace_events
from geomx.simulate.network import Network
from geomx.simulate.simulator import Simulator

ROUNDS = 12
DATAGRAM_BYTES = 1472
LAYOUT = Layout(
    (
        Tensor("large", (300, 100), "float32"),
        Tensor("tiny", (40,), "float32"),
        Tensor("geomx.ledger", (2,), "int64", role="ledger"),
    )
)
TOML = '[[party]]\nname = "A"\nworkers = 1\n[[party]]\nname = "B"\nworkers = 1\n'


@cache
def ran(channel: str, loss: float, later: float | None = None) -> tuple[Simulator, Loop]:
    """Two parties on links that lose datagrams alone. `later`: what they lose from 4 s on."""
    topology: Topology = topology_of([1, 1], wan=Edge(channel=channel))

    def set_loss(simulator: Simulator, share: float) -> None:
        for party in topology.tree.parties:
            network = Network(rate_mbps=20.0, delay_ms=50.0, loss=share, keeps_streams=True)
            simulator.link(party, "global/0", network)

    def lose(simulator: Simulator) -> None:
        set_loss(simulator, loss)
        if later is not None:
            simulator.at(4.0, lambda: set_loss(simulator, later))

    compute_s = 0.02 if later is None else 2.0
    loop = Loop(LAYOUT, topology.tree.workers, ROUNDS, compute_s=compute_s)
    simulator, programs = run_tree(topology, loop, faults=lose)
    assert_well(simulator, topology, programs)
    return simulator, loop


def run_over(channel: str) -> Run:
    return Run.parse(TOML, "two.toml", [f"wan.channel={channel}"])


def records_of(simulator: Simulator) -> list[Record]:
    process = {"cpu_s": 0.0, "rss_mb": 0.0}
    notes = [Record(t, node, note.name, note.level, note.fields) for t, node, note in simulator.notes]
    nodes = ("global/0", "A", "B", "A/0", "B/0")
    return [*notes, *(Record(0.0, n, "usage", "debug", process | simulator.usage(n)) for n in nodes)]


def classes_of(report: dict[str, Any], party: str) -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = report["datagrams"]["wan"][party]["classes"]
    return found


@pytest.mark.parametrize(
    ("channel", "names"),
    [
        ("datagram deadline=1.0", ["reliable", "class 1"]),
        ("dgt adaptive=false k=0.5 channels=2", ["reliable", "class 1", "class 2"]),
    ],
)
def test_every_block_is_answered_and_those_that_did_not_come_return(channel: str, names: list[str]) -> None:
    simulator, _ = ran(channel, 0.1)
    records = records_of(simulator)
    report = make_report(run_over(channel), records, 1.0)
    lost = 0
    for party in "AB":
        classes = classes_of(report, party)
        assert list(classes) == names
        for name, counts in classes.items():
            assert counts["given"] == counts["answered"]
            assert (counts["returned"] > 0) == (name != "reliable")
            lost += counts["returned"]
            if name == "reliable":
                continue
            assert (counts["again"] > 0) == (name != "class 2")  # which has one try
            # A block is one datagram here, but for those before datagrams were known to pass.
            assert 0.5 * counts["given"] < counts["sent"] <= counts["given"]
        lossy = [counts for name, counts in classes.items() if name != "reliable"]
        missed = sum(counts["sent"] - counts["came"] for counts in lossy)
        rebuilt = report["datagrams"]["wan"][party]["up"]["rebuilt"]
        assert missed - rebuilt <= sum(counts["returned"] for counts in lossy) <= missed
        check_down(report, party)
    spans = [event["args"] for event in trace_events(records) if "blocks" in event["args"]]
    assert sum(details["lost"] for details in spans) == lost
    assert sum(details["blocks"] for details in spans) == sum(
        counts["given"] for party in "AB" for counts in classes_of(report, party).values()
    )
    (row,) = [text for name, text, _ in closing_rows(report) if name == "datagrams"]
    assert row.splitlines()[-1] == (
        f"lost blocks go with the next contribution; the last one's (about {round(lost / ROUNDS)}) did not"
    )


def test_payloads_that_travel_as_they_stand_have_no_blocks_and_all_come() -> None:
    report = make_report(run_over("datagram"), records_of(ran("datagram", 0.1)[0]), 1.0)
    for party in "AB":
        ((name, counts),) = classes_of(report, party).items()
        assert name == "reliable"
        assert counts["sent"] == counts["came"] + report["datagrams"]["wan"][party]["up"]["rebuilt"] > 0
        assert counts["again"] > 0
        assert not counts["given"]
        check_down(report, party)
    (row,) = [text for name, text, _ in closing_rows(report) if name == "datagrams"]
    assert [line.partition(" ")[0] for line in row.splitlines()] == ["up:", "down:"]


def check_down(report: dict[str, Any], party: str) -> None:
    """Updates go down in datagrams, and all of them come."""
    down = report["datagrams"]["wan"][party]["down"]
    assert down["sent"] == down["came"] + down["rebuilt"] > 0
    assert down["again"] > 0


@pytest.mark.parametrize("k", [0.5, 0.0])
def test_blocks_that_are_not_sent_return(k: float) -> None:
    """Also where that are all of them: the round closes behind the tail."""
    channel = f"dgt adaptive=false k={k} drop=true"
    report = make_report(run_over(channel), records_of(ran(channel, 0.1)[0]), 1.0)
    for party in "AB":
        classes = classes_of(report, party)
        unsent = classes.pop("not sent")
        assert unsent["given"] == unsent["answered"]
        assert 0.5 * unsent["given"] < unsent["returned"]  # the first went over TCP
        assert not unsent["sent"]
        assert list(classes) == ["reliable"]
        assert classes["reliable"]["given"] == classes["reliable"]["answered"]
        assert (classes["reliable"]["given"] > 0) == (k > 0)
        rebuilt = report["datagrams"]["wan"][party]["up"]["rebuilt"]
        assert classes["reliable"]["sent"] == classes["reliable"]["came"] + rebuilt


def test_bytes_of_datagrams_are_bytes() -> None:
    """Whatever carries a payload: what is sent again comes on top."""
    calm, lossy = (ran("datagram", loss)[0] for loss in (0.0, 0.1))
    over_tcp, _ = ran("tcp", 0.0)
    sent = [simulator.usage("A")["sent"]["global/0"] for simulator in (over_tcp, calm, lossy)]
    payload = ROUNDS * LAYOUT.tensors[0].elements * 4
    assert payload < sent[0] < sent[1] < sent[2] < 1.5 * payload
    assert "flows" not in over_tcp.usage("A")


def test_where_datagrams_do_not_pass_is_noted_once_and_when_they_pass_again() -> None:
    simulator, _ = ran("datagram", 0.9999999, later=0.0)
    noted = [(node, fields["peer"], fields["passes"]) for _, node, fields in simulator.noted("datagrams")]
    told = [each for each in noted if each[0] in ("A", "B")]
    assert sorted(told) == [(p, "global/0", passes) for p in "AB" for passes in (False, True)]
    levels = [
        note.level for _, node, note in simulator.notes if note.name == "datagrams" and node in ("A", "B")
    ]
    assert levels == ["warning", "warning", "info", "info"]
    report = make_report(run_over("datagram"), records_of(simulator), 1.0)
    assert [(path["node"], path["passes"]) for path in report["datagram_paths"]] == [
        (node, passes) for node, _, passes in told
    ]
    for party in "AB":
        counts = classes_of(report, party)["reliable"]
        assert 0 < counts["sent"] == counts["came"] < ROUNDS * LAYOUT.tensors[0].elements * 4 / DATAGRAM_BYTES
        assert not counts["given"]


# -- parity pieces: hardly anything is sent again, and weights are TCP's, bit for bit ---------------------------------


def round_s(loop: Loop) -> float:
    ends = sorted({turn: time for time, _, turn, _ in loop.arrived}.items())
    return mean(after - before for (_, before), (_, after) in pairwise(ends[2:]))


def counted(simulator: Simulator, name: str) -> int:
    flows = [*simulator.usage("A")["flows"].values(), *simulator.usage("global/0")["flows"].values()]
    return sum(
        sum(found.values()) if isinstance(found := flow.get(name, 0), dict) else found for flow in flows
    )


def test_what_is_lost_is_mostly_rebuilt_and_weights_are_those_of_tcp() -> None:
    simulator, lossy = ran("datagram", 0.05)
    assert counted(simulator, "rebuilt") > 3 * counted(simulator, "again")
    _, over_tcp = ran("tcp", 0.0)
    assert round_s(lossy) < round_s(over_tcp) + 0.1, (
        "less than one more round trip, where to send again takes one or two"
    )
    for worker, slices in over_tcp.weights.items():
        assert all(torch.equal(lossy.weights[worker][index], values) for index, values in slices.items())


@pytest.mark.parametrize(
    ("channel", "least", "most"), [("datagram", 0.0, 0.0), ("datagram fec=0.5", 0.5, 0.6)]
)
def test_where_nothing_is_lost_there_is_no_parity_but_the_share_that_is_asked_for(
    channel: str, least: float, most: float
) -> None:
    simulator, _ = ran(channel, 0.0)
    assert not counted(simulator, "again")
    assert not counted(simulator, "rebuilt")
    sent = counted(simulator, "sent")
    assert least * sent <= counted(simulator, "parity") <= most * sent

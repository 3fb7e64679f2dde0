"""What people are told of datagrams: in the live view, in lines, and in the report."""

from __future__ import annotations

import json
from typing import Any

import pytest
from config_runs import two_parties

from geomx.config import Run
from geomx.observe.datagrams import LostShares, datagram_lines, percent
from geomx.observe.live import plain_line
from geomx.observe.progress import RunProgress
from geomx.observe.records import Record
from geomx.observe.report import closing_rows, make_report
from geomx.observe.sentences import sentence


def run_over(channel: str) -> Run:
    return two_parties("run.shards=2", f"wan.channel={channel}")


@pytest.fixture
def run() -> Run:
    return run_over("dgt adaptive=false")


@pytest.fixture
def plain() -> Run:
    """Payloads travel as they stand."""
    return run_over("datagram")


def usage(node: str, t: float = 0.0, blocks: dict[str, Any] | None = None, **flows: Any) -> Record:
    """`flows`: by peer; an underscore stands for the slash of its name."""
    told = {peer.replace("_", "/"): flow for peer, flow in flows.items()}
    fields: dict[str, Any] = {"sent": {}, "received": {}, "cpu_s": 1.0, "rss_mb": 1.0}
    fields |= ({"flows": told} if told else {}) | ({"blocks": blocks} if blocks else {})
    return Record(t, node, "usage", "debug", fields)


def path(node: str, peer: str, passes: bool) -> Record:
    return Record(0.0, node, "datagrams", "info", {"peer": peer, "passes": passes, "why": "as seen"})


FROM_A = {"came": {"0": 15, "1": 57}, "late": {"1": 2}, "early": 3, "parity": 9, "rebuilt": 1}
ROUND = Record(0.0, "A", "round", "debug", {"kind": "gradient", "cohort": "", "seconds": 0.1})


def whole_run() -> list[Record]:
    """Party A sends to two shards, and loses 4 of 100 blocks of class 1; B sends reliable blocks alone. The first shard
    answers A in datagrams, of which one does not come."""
    all_ = {"-1": 7, "0": 20, "1": 100}
    blocks = {"given": all_, "answered": all_, "returned": {"-1": 7, "1": 4}}
    old = usage("A", global_0={"sent": {"0": 1}})
    shards = {
        "global_0": {
            "sent": {"0": 15, "1": 60},
            "again": {"0": 2, "1": 3},
            "came": {"0": 30},
            "late": {"0": 6},
        },
        "global_1": {"sent": {"0": 5, "1": 40}, "again": {"0": 1}, "parity": 8},
    }
    return [
        old,
        usage("A", blocks=blocks, **shards),
        usage("B", blocks={"given": {"0": 9}, "answered": {"0": 9}, "returned": {}}, global_0={"sent": {"0": 9}}),
        usage("global/0", A=FROM_A | {"sent": {"0": 31}, "again": {"0": 7}}, B={"came": {"0": 9}}),
        usage("global/1", A={"came": {"0": 5, "1": 39}}),
    ]  # fmt: skip


def test_a_node_that_was_started_again_counts_from_zero(run: Run) -> None:
    began = Record(0.0, "A", "clock", "debug", {"unix_s": 0.0})
    again = usage(
        "A",
        blocks={"given": {"1": 10}, "answered": {"1": 8}, "returned": {"1": 1}},
        global_0={"sent": {"0": 2, "1": 10}, "parity": 1},
    )
    told = make_report(run, [began, *whole_run(), began, again], 1.0)["datagrams"]["wan"]["A"]
    once = make_report(run, whole_run(), 1.0)["datagrams"]["wan"]["A"]
    for name, more in (("sent", 10), ("again", 0), ("given", 10), ("answered", 8), ("returned", 1)):
        assert told["classes"]["class 1"][name] == once["classes"]["class 1"][name] + more
    assert told["up"]["parity"] == once["up"]["parity"] + 1
    assert told["down"] == once["down"]


def test_what_goes_down_is_not_taken_for_what_goes_up(run: Run) -> None:
    """Both ends of each flow have sent, and have heard; on both tiers."""
    records = [
        usage(
            "A", global_0={"sent": {"0": 15}, "came": {"0": 70}}, A_0={"sent": {"0": 80}, "came": {"0": 24}}
        ),
        usage("A/0", A={"sent": {"0": 25}, "again": {"0": 1}, "came": {"0": 79}}),
        usage("global/0", A={"sent": {"0": 71}, "again": {"0": 5}, "came": {"0": 14}, "early": 2}),
    ]
    told = make_report(run, records, 1.0)["datagrams"]
    assert {tier: list(parties) for tier, parties in told.items()} == {"wan": ["A", "B"], "lan": ["A"]}
    up, below = told["wan"]["A"]["classes"]["reliable"], told["lan"]["A"]["classes"]["reliable"]
    assert (up["sent"], up["again"], up["came"], told["wan"]["A"]["dropped_early"]) == (15, 0, 14, 2)
    assert (below["sent"], below["again"], below["came"]) == (25, 1, 24)


def rows_of(run: Run, records: list[Record]) -> dict[str, str]:
    return {name: text for name, text, _ in closing_rows(make_report(run, records, 1.0))}


def test_the_report_has_all_counts_by_party_and_class(run: Run) -> None:
    report = make_report(run, whole_run(), 1.0)
    json.dumps(report, allow_nan=False)
    assert list(report["datagrams"]) == ["wan"]
    a, b = (report["datagrams"]["wan"][party] for party in "AB")
    counts = ("sent", "again", "came", "late", "given", "answered", "returned")
    assert {name: tuple(counted[count] for count in counts) for name, counted in a["classes"].items()} == {
        "reliable": (20, 3, 20, 0, 20, 20, 0),
        "class 1": (100, 3, 96, 2, 100, 100, 4),
        "not sent": (0, 0, 0, 0, 7, 7, 7),
    }
    assert list(a["classes"]) == ["reliable", "class 1", "not sent"]
    assert (a["dropped_early"], b["dropped_early"]) == (3, 0)
    assert a["down"] == {"sent": 31, "again": 7, "came": 30, "late": 6, "parity": 9, "rebuilt": 0}
    assert a["up"] == {"parity": 8, "rebuilt": 1}
    assert not any(b["down"].values())
    assert a["may_lose"]
    assert b["classes"]["reliable"]["came"] == 9


def test_the_table_tells_them_in_words(run: Run) -> None:
    """11 blocks came back, in two rounds."""
    assert rows_of(run, [*whole_run(), ROUND, ROUND])["datagrams"].splitlines() == [
        "up: reliable 29 sent (+3 again), class 1 100 sent (+3 again), 7 blocks not sent, "
        "8 of parity (1 rebuilt)",
        "down: reliable 31 sent (+7 again), 9 of parity (0 rebuilt)",
        "3.1% of blocks lost",
        "lost blocks and blocks not sent go with the next contribution; the last one's (about 6) did not",
    ]


def test_a_run_over_tcp_has_neither_counts_nor_a_row() -> None:
    tcp, records = run_over("tcp"), [usage("A"), usage("global/0"), ROUND]
    report = make_report(tcp, records, 1.0)
    assert (report["datagrams"], report["datagram_paths"]) == ({}, [])
    assert "datagrams" not in rows_of(tcp, records)


@pytest.mark.parametrize(
    ("answered", "returned", "told"),
    [(8, 2, "25.0% of blocks lost, 2 not answered when the run ended"), (10, 0, "no blocks lost")],
)
def test_what_was_not_answered_is_not_said_to_have_returned(answered: int, returned: int, told: str) -> None:
    counts = {"sent": 10, "again": 0, "given": 10, "answered": answered, "returned": returned}
    party = {"classes": {"class 1": counts}, "up": {}, "down": {}, "may_lose": True}
    assert datagram_lines({"A": party}).splitlines()[:2] == ["up: class 1 10 sent", told]


@pytest.mark.parametrize("channel", ["dgt adaptive=false", "datagram"])
def test_where_none_was_sent_that_is_told(channel: str) -> None:
    """The servers' UDP ports were taken: no flow has opened, and nobody has tried whether datagrams pass."""
    run = run_over(channel)
    gone = {"given": {"-1": 2, "0": 4}, "answered": {"-1": 2, "0": 4}, "returned": {}}
    blocks = gone if channel.startswith("dgt") else None
    records = [usage("A", blocks=blocks), usage("B", blocks=blocks), usage("global/0")]
    assert rows_of(run, [*records, ROUND])["datagrams"] == "none sent: TCP carried everything"
    assert list(make_report(run, records, 1.0)["datagrams"]["wan"]) == ["A", "B"]
    assert "datagrams" not in rows_of(run, records)  # it has failed before there was anything to send


@pytest.mark.parametrize(
    ("told", "rows"),
    [
        (
            {"blocks": {name: {"-1": 60} for name in ("given", "answered", "returned")}},
            [
                "up: 60 blocks not sent",
                "blocks not sent go with the next contribution; the last one's (about 20) did not",
            ],
        ),
        (  # every payload fits one datagram
            {"global_0": {"sent": {"0": 50}}},
            ["up: reliable 50 sent", "no payload was cut into blocks: each was sent until it had arrived"],
        ),
    ],
)  # fmt: skip
def test_where_no_blocks_are_sent_that_is_told(run: Run, told: dict[str, Any], rows: list[str]) -> None:
    assert rows_of(run, [usage("A", **told), *[ROUND] * 3])["datagrams"].splitlines() == rows


def test_payloads_as_they_stand_have_datagrams_and_no_blocks(plain: Run) -> None:
    records = [
        usage("A", global_0={"sent": {"0": 50}, "again": {"0": 4}, "came": {"0": 40}}),
        usage("global/0", A={"sent": {"0": 40}, "again": {"0": 2}, "came": {"0": 50}, "late": {"0": 1}}),
        ROUND,
    ]
    assert not make_report(plain, records, 1.0)["datagrams"]["wan"]["A"]["may_lose"]
    row = "up: reliable 50 sent (+4 again)\ndown: reliable 40 sent (+2 again)"
    assert rows_of(plain, records)["datagrams"] == row


@pytest.mark.parametrize(
    ("returned", "told"),
    [
        ({}, "proved by the ledger"),
        ({"-1": 4}, "every contribution, proved by the ledger; not every block: see datagrams"),
    ],
)
def test_the_ledger_proves_nothing_of_blocks(run: Run, returned: dict[str, int], told: str) -> None:
    """Its slice never travels in blocks."""
    blocks = {"given": {"-1": 9, "1": 9}, "answered": {"-1": 9, "1": 9}, "returned": returned}
    ledger = {"steps": 2, "samples": 8, "train_s": 1.0, "cohort": "", "contributions": 2, "ledger": [2, 2, 2]}
    ledger |= {"parameters": 1, "parameters_sha256": "ab"}
    records = [usage("A", blocks=blocks), ROUND]
    records += [Record(0.0, worker, "finished", "info", ledger) for worker in run.workers]
    assert rows_of(run, records)["exactly once"] == told


def test_workers_datagrams_are_their_party_s_and_of_the_lan() -> None:
    tcp = run_over("tcp")
    blocks = {"given": {"0": 4}, "answered": {"0": 4}, "returned": {}}
    records = [usage(f"A/{rank}", blocks=blocks, A={"sent": {"0": 4}}) for rank in range(2)]
    records += [usage("A", A_0={"came": {"0": 4}}, A_1={"came": {"0": 3}, "sent": {"0": 2}})]
    report = make_report(tcp, records, 1.0)
    assert list(report["datagrams"]) == ["lan"]
    found = report["datagrams"]["lan"]["A"]["classes"]["reliable"]
    assert (found["sent"], found["came"], found["given"]) == (8, 7, 8)
    rows = rows_of(tcp, records)
    assert rows["LAN datagrams"] == "up: reliable 8 sent\ndown: reliable 2 sent\nno blocks lost"
    assert "datagrams" not in rows


def test_where_datagrams_do_not_pass_is_told_with_what_carries_everything(run: Run) -> None:
    records = [path("A", "global/0", True), path("A", "global/0", False), path("B", "global/0", False)]
    report = make_report(run, records, 1.0)
    assert report["datagram_paths"] == [
        {"node": node, "peer": "global/0", "passes": False, "why": "as seen"} for node in "AB"
    ]
    assert rows_of(run, records)["datagrams"].splitlines() == [
        f"do not pass from {node} to global/0: TCP carries everything" for node in "AB"
    ]
    records.append(path("A", "global/0", True))
    told = make_report(run, records, 1.0)["datagram_paths"]
    assert [path["passes"] for path in told] == [False, False, True]
    first, second = rows_of(run, records)["datagrams"].splitlines()
    assert first == "did not pass from A to global/0 for a while: TCP carried everything then"
    assert second == "do not pass from B to global/0: TCP carries everything"


def test_many_paths_are_not_all_listed() -> None:
    paths = [{"node": f"P{n}", "peer": "global/0", "passes": False} for n in range(7)]
    assert datagram_lines({}, paths).splitlines()[4:] == ["3 more"]


def test_sentences() -> None:
    fields = {"peer": "global/0", "passes": False, "why": "nothing of what is sent by UDP is answered"}
    assert sentence("datagrams", fields) == (
        "datagrams do not pass to global/0, so TCP carries everything: nothing of what is sent by UDP is answered"
    )
    assert sentence("datagrams", fields | {"passes": True}) == "datagrams pass to global/0 again"


def grown(t: float, sent: int, again: int, answered: int, returned: int) -> Record:
    counts = {"given": sent, "answered": answered, "returned": returned}
    blocks = {name: {"-1": 50, "1": count} for name, count in counts.items()}
    return usage("A", t, blocks, global_0={"sent": {"1": sent}, "again": {"1": again}})


def test_shares_are_those_of_the_last_seconds() -> None:
    shares = LostShares()
    assert not shares.are_known
    shares.take(usage("A"))
    assert not shares.are_known
    for counts in ((0.0, 0, 0, 0, 0), (1.0, 1000, 1000, 1000, 900), (9.0, 1990, 1010, 2000, 1000)):
        shares.take(grown(*counts))
    assert shares.are_known
    assert shares.again(9.0) == pytest.approx(0.01)
    assert shares.lost(9.0) == pytest.approx(0.1)
    assert shares.figures(9.0) == ("1.0%", "10.0%")
    assert shares.words(9.0) == ", 1.0% of datagrams sent again, 10.0% of blocks lost"
    assert shares.figures(60.0) == ("·", "·")
    assert shares.words(60.0) == ""


def test_a_line_of_progress_has_them_where_a_party_sends_datagrams(run: Run) -> None:
    progress = RunProgress(run)
    for t in (0.0, 1.0):
        progress.take(usage("B", t))
        progress.take(grown(t, 1 + int(200 * t), int(2 * t), int(100 * t), int(5 * t)))
    assert progress.datagram_figures == 2
    a, b = (plain_line(progress.parties[party], 1.0) for party in "AB")
    assert a.endswith("Mbit/s, 1.0% of datagrams sent again, 5.0% of blocks lost, starting, 0 of 2 workers")
    assert "datagrams" not in b


def test_what_a_local_server_sends_down_is_not_among_its_shares(plain: Run) -> None:
    """And without blocks, the share of those that are lost is no figure."""
    progress = RunProgress(plain)
    assert progress.datagram_figures == 0
    for t in (0.0, 1.0):
        down = {"sent": {"0": int(500 * t)}, "again": {"0": int(500 * t)}}
        up = {"sent": {"0": 1 + int(99 * t)}, "again": {"0": int(t)}}
        progress.take(usage("A", t, global_0=up, A_0=down))
    assert progress.datagram_figures == 1
    assert progress.parties["A"].shares.figures(1.0) == ("1.0%", "·")


def test_few_are_not_none() -> None:
    assert [percent(share) for share in (0.0, 0.0001, 0.0314, 1.0)] == ["0.0%", "<0.1%", "3.1%", "100.0%"]

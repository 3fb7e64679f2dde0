"""The report of a run, and the closing table."""

from __future__ import annotations

import json
import re

import pytest
from recorded import TWO, finished, first_step, record, shown, usage

from geomx.config import Run
from geomx.observe.records import Record
from geomx.observe.report import Report, closing_rows, make_report, size

KEYS = [
    "ended", "failure", "lost", "members", "algorithm", "codec_up", "codec_down", "parties", "workers", "shards",
    "regions", "steps", "rounds", "samples", "wall_s", "train_s", "final_loss", "final_validation_loss",
    "final_accuracy", "wan_bytes_up", "wan_bytes_down", "first_weights_wan_bytes_up", "first_weights_wan_bytes_down",
    "region_bytes_up", "region_bytes_down", "first_weights_region_bytes_up", "first_weights_region_bytes_down",
    "lan_bytes_up", "lan_bytes_down", "first_weights_lan_bytes_up", "first_weights_lan_bytes_down",
    "datagrams", "datagram_paths", "overlay", "first_weights_s", "wan_bytes_without_local_servers", "wan_bytes_dense",
    "parameters", "parameters_sha256", "calls", "requests", "rewritten", "script", "cohorts", "staleness_mean",
    "staleness_max",
    "round_s_median", "round_floor_s", "round_floor_party", "slowest_party", "link_changes", "compute_s_median",
    "backward_s_median", "skipped", "counted_exactly_once", "ledger_workers", "wrong", "node_cpu_s", "node_rss_mb",
    "config",
]  # fmt: skip


@pytest.fixture
def run() -> Run:
    return Run.parse(TWO, "two.toml")


def loading(node: str, *shares: tuple[float, float]) -> list[Record]:
    """How much of the first weights was there, and when."""
    return [Record(t, node, "first_weights", "debug", {"share": share}) for share, t in shares]


def whole_run() -> list[Record]:
    return [
        record("A/0", "log", turn=1, loss=9.0, accuracy=0.1),
        *[record("A/0", "log", turn=2, loss=1.0, accuracy=0.9), record("B/0", "log", turn=2, loss=3.0)],
        *[
            record(node, "round", turn=1, seconds=s)
            for node, s in (("A", 0.1), ("B", 0.2), ("global/0", 7.0))
        ],
        record("A", "round", turn=2, seconds=0.4),
        record("A", "round", turn=2, kind="assign", seconds=50.0),
        *loading("A/0", (0.0, 3.0), (0.5, 4.0), (1.0, 5.5)),
        *loading("B/0", (0.0, 4.0), (1.0, 5.0)),
        first_step("A", {"global/0": 20, "A/0": 1}, {"global/0": 15}),
        first_step("B", {"global/1": 0}, {"global/1": 15}),
        first_step("A/0", {"A": 3}, {"A": 5}),
        first_step("B/0", {"B": 0}, {"B": 6}),
        usage("A", {"global/0": 1, "A/0": 1}, {"global/0": 1}, 0.5, 90.0),
        usage("A", {"global/0": 100, "global/1": 20, "A/0": 7}, {"global/0": 50, "A/0": 11}, 1.5, 80.0),
        usage("B", {"global/1": 1000, "B/0": 70}, {"global/1": 500, "B/0": 110}, 2.5, 85.0),
        usage("global/0", {"A": 50}, {"A": 100}, 3.5, 100.0),
        finished("A/0"),
        finished("B/0", train_s=5.0),
    ]


def test_the_report_of_a_whole_run(run: Run) -> None:
    report = make_report(run, whole_run(), wall_s=12.3456)
    assert list(report) == KEYS
    json.dumps(report, allow_nan=False)
    assert report | {
        "algorithm": "fsa", "codec_up": "dense", "codec_down": "dense", "parties": 2, "workers": 2, "shards": 2,
        "steps": 3, "rounds": 2, "samples": 128, "wall_s": 12.3456, "train_s": 5.0, "final_loss": 2.0,
        "final_accuracy": 0.9,
        "wan_bytes_up": 1120, "wan_bytes_down": 550, "lan_bytes_up": 121, "lan_bytes_down": 77, "parameters": 10,
        "first_weights_wan_bytes_up": 20, "first_weights_wan_bytes_down": 30, "first_weights_lan_bytes_up": 3,
        "first_weights_lan_bytes_down": 11, "first_weights_s": 1.5,
        "parameters_sha256": "ab" * 32, "round_s_median": 0.2, "node_cpu_s": {"A": 1.5, "B": 2.5, "global/0": 3.5},
        "node_rss_mb": {"A": 90.0, "B": 85.0, "global/0": 100.0}, "config": run.as_dict(),
    } == report  # fmt: skip


def test_a_validation_loss_is_told_beside_the_loss(run: Run) -> None:
    logged = [record("A/0", "log", turn=turn, loss=1.0, validation_loss=turn / 2) for turn in (1, 5)]
    report = make_report(run, [*logged, finished("A/0")], 1.0)
    assert (report["final_loss"], report["final_validation_loss"]) == (1.0, 2.5)
    assert "validation loss" in shown(report)
    assert "2.5000" in shown(report)
    assert "validation loss" not in shown(make_report(run, whole_run(), 1.0))


def test_weights_that_a_script_has_rewritten_are_said_to_be_compared_with_nobody_s(run: Run) -> None:
    own, other = (finished(name, None, rewritten=name == "A/0") for name in ("A/0", "B/0"))
    report = make_report(run, [own, finished("B/0")], 1.0)
    assert (report["rewritten"], report["wrong"]) == (["A/0"], [])
    said = " +weights +the same on all others: the script of A/0 has changed them since its last step"
    assert re.search(said, shown(report))
    assert "✓ +weights" not in shown(report)
    both = make_report(run, [own, other], 1.0)
    assert re.search(" +weights +not compared: the script of A/0 has changed", shown(both))


def test_workers_that_differ_are_named(run: Run) -> None:
    report = make_report(run, [finished("A/0", "aa" * 32), finished("B/0", "bb" * 32)], 1.0)
    assert report["parameters_sha256"] == {"A/0": "aa" * 32, "B/0": "bb" * 32}
    assert re.search("! +weights +workers DIFFER: A/0 aaaaaaaaaaaa, B/0 bbbbbbbbbbbb", shown(report))
    assert report["wrong"] == ["workers have different weights behind the same step"]
    ends = [
        record("A/0", "apart", why="A/1 has left"),
        finished("A/0", "aa" * 32),
        finished("B/0", "bb" * 32),
    ]
    assert make_report(run, ends, 1.0)["wrong"] == []  # it was told of that


def test_who_was_lost_is_told_and_the_others_have_the_weights(run: Run) -> None:
    lost = {"A/0": "was killed by SIGKILL"}
    report = make_report(run, [finished("B/0", "bb" * 32)], 1.0, lost=lost)
    assert report["lost"] == lost
    assert ("lost", "A/0 was killed by SIGKILL", "bad") in closing_rows(report)
    assert "the same on all workers that are left, sha256 bbbbbbbbbbbb" in shown(report)
    assert "lost" not in shown(make_report(run, whole_run(), 1.0))


def test_cohorts_may_differ_and_their_staleness_is_told(run: Run) -> None:
    records = [finished("A/0", "aa" * 32, cohort="A"), finished("B/0", "bb" * 32, cohort="B")]
    records += [record("global/0", "round", seconds=1.0, staleness=age) for age in (0, 3, 1)]
    report = make_report(run, records, 1.0)
    assert report["parameters_sha256"] == {"A": "aa" * 32, "B": "bb" * 32}
    assert (report["cohorts"], report["staleness_max"]) == (["A", "B"], 3)
    assert "each its own: A aaaaaaaaaaaa, B bbbbbbbbbbbb" in shown(report)
    assert "1.3 updates of others on average, at most 3" in shown(report)


def test_steps_that_were_left_out_are_counted_by_node(run: Run) -> None:
    """Of one step, a server may have left out several slices."""
    steps = [("A/0", 1), ("A/0", 3), ("A", 2), ("A", 2)]
    report = make_report(run, [record(node, "skipped", step=step) for node, step in steps], 1.0)
    assert report["skipped"] == {"A": 1, "A/0": 2}
    assert "NaN or Inf: A in 1 step, A/0 in 2 steps" in shown(report)
    assert "skipped" not in shown(make_report(run, [], 1.0))


@pytest.mark.parametrize(
    ("cohorts", "ledgers", "proved"),
    [
        (("", ""), ([3, 3], [3, 3]), True),
        (("", ""), ([3, 3], [3, 2]), False),
        (("A", "B"), ([3, 2], [1, 3]), True),  # of the other cohort, not everything has come yet
        (("A", "B"), ([4, 3], [3, 3]), False),
        (("", ""), ([3, 3], None), None),
    ],
)
def test_the_ledger_proves_what_a_worker_has_seen_whole(
    run: Run, cohorts: tuple[str, str], ledgers: tuple[list[int], list[int] | None], proved: bool | None
) -> None:
    nodes = zip(("A/0", "B/0"), cohorts, ledgers, strict=True)
    records = [finished(node, cohort=cohort, ledger=ledger) for node, cohort, ledger in nodes]
    report = make_report(run, records, 1.0)
    assert report["counted_exactly_once"] is proved
    assert (report["wrong"] == []) is (proved is not False)


def test_a_run_that_told_nothing_has_a_report(run: Run) -> None:
    report = make_report(run, [], 1.0, "interrupted")
    assert list(report) == KEYS
    told = ("steps", "rounds", "samples", "final_loss", "train_s")
    assert tuple(report[key] for key in told) == (0, 0, 0, None, None)
    assert "accuracy" not in shown(report)
    assert re.search(r"! +ended +interrupted", shown(report))


def test_rounds_are_not_steps_where_workers_synchronize_seldom(run: Run) -> None:
    records = [record("A/0", "step", samples=0)] * 20
    assert "samples" not in {name for name, *_ in closing_rows(make_report(run, records, 1.0))}
    records = [record("A/0", "step", samples=8)] * 20
    records += [record("A", "round", seconds=2.0, cohort=cohort) for cohort in ("A/0", "A/0", "A/1")]
    records += [record("B", "round", seconds=2.0, cohort="B/0")]
    for party, worker in (("A", "A/0"), ("B", "B/0")):
        records += [
            first_step(party, {"global/0": 0}, {"global/0": 4_000_000}),
            first_step(worker, {}, {party: 4_000_000}),
        ]
        records += [usage(party, {"global/0": 10_000_000}, {"global/0": 14_000_000})]
    linked = Run.parse(TWO + "\n[wan]\nlink = { rate_mbps = 100, delay_ms = 20 }\n", "two.toml")
    report = make_report(linked, records, 1.0)
    assert (report["samples"], report["steps"], report["rounds"]) == (160, 20, 2)  # though none has finished
    assert report["round_floor_s"] == pytest.approx(0.04 + 0.4)
    text = shown(report)
    assert all(
        part in text for part in ("20 of each worker", "2, 2 s each", "20 MB per round", "4 MB to each party")
    )


def test_how_long_workers_compute(run: Run) -> None:
    told = [(None, None), (0.2, 0.1), (0.4, 0.3), (9.0, 0.2)]
    records = [record("A/0", "step", samples=8, compute_s=c, backward_s=b) for c, b in told]
    records += [record("B/0", "step", samples=8, compute_s=0.5, backward_s=None)]
    report = make_report(run, records, 1.0)
    assert report["compute_s_median"] == {"A/0": 0.4, "B/0": 0.5}
    assert report["backward_s_median"] == {"A/0": 0.2}


@pytest.mark.parametrize("bad", [None, float("nan"), "diverged"])
def test_a_loss_that_is_not_finite_is_no_number(run: Run, bad: object) -> None:
    records = [record("A/0", "log", loss=1.0), record("B/0", "log", loss=bad)]
    assert make_report(run, records, 1.0)["final_loss"] is None


def test_the_closing_table_fits_80_columns_and_says_what_is_good(run: Run) -> None:
    report = make_report(run, whole_run(), 12.0)
    for expected in (
        "two, fsa, 2 parties, 2 workers, 2 shards",
        "1.12 kB up, 550 B down, 810 B per round",
        "121 B up, 77 B down, 92 B per round",
        "15 B to each party, 1.5 s",
        "2, 0.2 s each (median)",
        "12.0 s, 5.0 s of it training",
        "90.00%",
        "sha256 abababababab…",
    ):
        assert expected in shown(report)
    lines = shown(report, width=80).splitlines()
    assert max(map(len, lines)) <= 80
    marked = [line.split() for line in lines if "✓" in line or "!" in line]
    assert [words[:2] for words in marked] == [["✓", "weights"]]


@pytest.mark.parametrize("node", ["B", "B/0"])
def test_where_not_all_nodes_have_told_no_bytes_of_a_round_are_made_up(run: Run, node: str) -> None:
    records = [each for each in whole_run() if (each.node, each.name) != (node, "first_step")]
    report = make_report(run, records, 1.0)
    tier, other = ("wan", "lan") if node == "B" else ("lan", "wan")
    assert report[f"first_weights_{tier}_bytes_up"] is report[f"first_weights_{tier}_bytes_down"] is None
    assert report[f"first_weights_{other}_bytes_down"] is not None
    assert shown(report).count("per round") == 1
    assert report["first_weights_s"] == 1.5


def test_what_a_worker_gets_that_comes_back_is_no_round_s(run: Run) -> None:
    back = [*loading("A/0", (0.0, 60.0), (1.0, 70.0)), first_step("A/0", {"A": 1}, {"A": 5})]
    report = make_report(run, [*whole_run(), *back], 1.0)
    assert (report["first_weights_lan_bytes_up"], report["first_weights_lan_bytes_down"]) == (4, 16)
    assert report["first_weights_s"] == 1.5
    some = [each for each in whole_run() if (each.name, each.fields.get("share")) != ("first_weights", 1.0)]
    assert make_report(run, some, 1.0)["first_weights_s"] is None


TOPK = {"wan_codec_up": "topk ratio=0.01", "wan_codec_down": "topk ratio=0.01"}


def trained(
    workers: int,
    moved: int,
    cohorts: tuple[str, ...] = ("",),
    steps: int = 10,
    rounds: int = 10,
    **settings: str,
) -> Report:
    """Of two parties of so many workers, each of which moved so many bytes in each round, and 100 before."""
    overrides = [f"party.{party}.workers={workers}" for party in "AB"]
    overrides += [f"{key.replace('_', '.', 1)}={value}" for key, value in settings.items()]
    run = Run.parse(TWO, "two.toml", overrides)
    records = [record(w, "attached", parameters=250, trained_bytes=1000, slices=1) for w in run.workers]
    records += [first_step(w, {}, {w[0]: 100}) for w in run.workers]
    records += [record(w, "step", samples=1) for w in run.workers for _ in range(steps)]
    for party in "AB":
        records.append(first_step(party, {"global/0": 0}, {"global/0": 100}))
        own = {"A": cohorts, "B": tuple(cohort.replace("A", "B") for cohort in cohorts)}[party]
        records += [record(party, "round", seconds=1.0, cohort=name) for name in own for _ in range(rounds)]
        records.append(usage(party, {"global/0": moved * rounds}, {"global/0": 100 + moved * rounds}))
    return make_report(run, records, 1.0)


@pytest.mark.parametrize(
    ("report", "told"),
    [
        (trained(2, 1000), ["50% by local servers (otherwise 80 kB)"]),
        (trained(4, 1000), ["75% by local servers (otherwise 160 kB)"]),
        (trained(1, 1000), []),
        (trained(2, 2000, ("A/0", "A/1")), []),  # each worker is a cohort
        (trained(1, 100, **TOPK), ["90% by codecs (otherwise 40 kB)"]),
        (trained(1, 1000, rounds=2), ["80% by fewer rounds (otherwise 40 kB)"]),
        (
            trained(2, 500, rounds=2, wan_codec_up="fp16", wan_codec_down="fp16"),
            ["50% by local servers (otherwise 8 kB)", "90% by codecs and fewer rounds (otherwise 40 kB)"],
        ),
    ],
)
def test_what_was_saved_is_told_with_what_has_saved_it(report: Report, told: list[str]) -> None:
    assert re.findall(r"\d+% by .*?\)", shown(report)) == told


def test_how_much_of_the_time_workers_compute(run: Run) -> None:
    steps = [
        record(w, "step", samples=8, compute_s=0.1, backward_s=None) for w in run.workers for _ in range(20)
    ]
    ends = [finished(worker, train_s=10.0) for worker in run.workers]
    assert "3% of the training time" in shown(make_report(run, [*steps, *ends], 12.0))
    assert "of the training time" not in shown(make_report(run, [*steps[:20], *ends], 12.0))


def last_came(party: str, later_s: float) -> Record:
    return record("global/0", "round", turn=1, seconds=0.2, last=f"{party}/0, {party}/1", later_s=later_s)


def test_the_party_for_which_the_others_wait_is_named(run: Run) -> None:
    slow = [last_came("B", 0.15) for _ in range(9)] + [last_came("A", 0.01)]
    report = make_report(run, [*whole_run(), *slow], 12.0)
    assert report["slowest_party"] == {"party": "B", "share": 0.9, "later_s_median": 0.15}
    assert re.search(r"! +slowest +B, last in 90% of rounds, by 0\.15 s", shown(report))
    for taking_turns in ([last_came(party, 0.15) for party in "AB"], [last_came("B", 0.001)]):
        assert "slowest" not in shown(make_report(run, [*whole_run(), *taking_turns], 12.0))


def test_changes_of_links_are_told_by_their_party_and_leave_no_floor(run: Run) -> None:
    linked = Run.parse(f"wan.link = {{ rate_mbps = 1 }}\n{TWO}", "two.toml")
    changes = [
        {"party": "B", "at_s": at_s, "state": state} for at_s, state in ((30.0, "cut"), (32.0, "1 Mbit/s"))
    ]
    records = [record(node, "link", **change) for change in changes for node in ("B", "global/0")]
    assert make_report(linked, whole_run(), 1.0)["round_floor_s"] is not None
    report = make_report(linked, [*whole_run(), *records], 1.0)
    assert (report["link_changes"], report["round_floor_s"]) == (changes, None)
    assert "B from 30.0 s on: cut; B from 32.0 s on: 1 Mbit/s" in shown(report)
    assert "; 2 more" in shown(make_report(linked, 3 * records, 1.0))


def test_sizes() -> None:
    assert [size(n) for n in (0, 999, 2_873_800, 5.5e9)] == ["0 B", "999 B", "2.87 MB", "5.5 GB"]

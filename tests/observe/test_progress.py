"""What is known of a run's parties while it goes on."""

from __future__ import annotations

import pytest
import recorded
from config_runs import two_parties

from geomx.config import Run
from geomx.observe.progress import RunProgress, few
from geomx.observe.rates import WINDOW_S, Rate
from geomx.observe.records import Record


@pytest.fixture
def run() -> Run:
    return two_parties()


def told(progress: RunProgress, *notes: tuple[str, str, dict[str, object]]) -> None:
    for number, (node, name, fields) in enumerate(notes):
        progress.take(Record(float(number), node, name, "debug", fields))


def test_a_rate_is_over_the_window_alone() -> None:
    rate = Rate()
    assert rate.at(0.0) == 0.0
    for second in range(101):
        rate.reach(second, 10.0 * second if second < 90 else 900.0 + 50.0 * (second - 90))
    assert rate.at(100.0) == pytest.approx(50.0)


@pytest.mark.parametrize(
    ("points", "at", "rate"),
    [
        pytest.param([(0, 0.0), (60, 180.0), (120, 240.0)], 150.0, 1.0, id="rare: between the last two"),
        pytest.param([(0, 0.0), (1, 5.0)], 1.0 + WINDOW_S, 5.0, id="long ago"),
        pytest.param([(0, 0.0), (1, 5.0)], 1.1 + WINDOW_S, 0.0, id="it has ended"),
    ],
)
def test_a_rate_of_few_points(points: list[tuple[float, float]], at: float, rate: float) -> None:
    found = Rate()
    for second, total in points:
        found.reach(second, total)
    assert found.at(at) == pytest.approx(rate)


def test_the_state_names_whom_a_party_waits_for(run: Run) -> None:
    progress = RunProgress(run)
    a = progress.parties["A"]
    assert a.state == "starting, 0 of 2 workers"
    told(progress, ("A", "joined", {"peer": "A/0"}), ("A/1", "joined", {"peer": "A"}))
    assert (a.state, a.is_calm) == ("starting, 1 of 2 workers", True)
    told(progress, ("A", "joined", {"peer": "A/1"}))
    assert a.state == "starting"
    told(progress, ("A", "round", {"turn": 0, "kind": "assign"}))
    assert (a.state, a.rounds) == ("starting", 0)
    told(progress, ("A/0", "no_model", {}))
    assert a.state == "running"
    told(progress, ("A", "round", {"turn": 1, "kind": "gradient"}))
    assert (a.state, a.rounds) == ("training", 1)
    told(progress, ("A", "waiting", {"turn": 2, "whom": "A/1", "seconds": 30}))
    assert (a.state, a.is_calm) == ("waiting for A/1", False)
    told(progress, ("A", "round", {"turn": 2}), ("A", "away", {"peer": "A/1", "reason": "cut"}))
    assert a.state == "A/1 disconnected"
    told(progress, ("A", "resumed", {"peer": "A/1"}))
    assert a.state == "training"
    told(progress, ("A", "left", {"peer": "A/0", "turn": 9}))
    assert a.state == "finishing"
    told(progress, ("A/1", "finished", {}), ("A", "away", {"peer": "A/1", "reason": "closed"}))
    assert a.state == "finished"


REGIONS = """
[[region]]
name = "R"
[[party]]
name = "A"
parent = "R"
workers = 2
[[party]]
name = "B"
parent = "R"
workers = 1
[[party]]
name = "C"
workers = 1
"""


def trains(run: Run) -> RunProgress:
    """A run that is under way."""
    progress = RunProgress(run)
    tree = run.tree
    for server in tree.servers:
        told(progress, *[(server, "joined", {"peer": child}) for child in tree.children(server)])
        told(progress, (server, "round", {"turn": 1}))
    return progress


def states(progress: RunProgress) -> dict[str, str]:
    return {name: party.state for name, party in progress.parties.items()}


def roster(out: str = "", joined: str = "", node: str = "global/0") -> tuple[str, str, dict[str, object]]:
    return node, "roster", recorded.roster(0.0, out, joined).fields


def test_parties_that_have_left_their_region_in_order_are_not_disconnected() -> None:
    progress = trains(Run.parse(REGIONS, "regions.toml"))
    left = [("R", "left", {"peer": worker, "turn": 9}) for worker in ("A/0", "A/1", "B/0")]
    told(progress, *left[:1], ("R", "away", {"peer": "A", "reason": "cut"}))
    assert progress.parties["R"].state == "A disconnected"
    told(progress, ("R", "resumed", {"peer": "A"}), *left[1:])
    told(progress, *[("R", "away", {"peer": party, "reason": "closed"}) for party in "AB"])
    assert (progress.parties["R"].state, progress.parties["R"].is_calm) == ("finished", True)


def test_so_is_a_party_some_of_whose_workers_take_no_part() -> None:
    progress = trains(Run.parse(REGIONS, "regions.toml"))
    told(progress, roster("A/1"), ("A", "left", {"peer": "A/0"}), ("R", "left", {"peer": "A/0"}))
    told(progress, ("R", "away", {"peer": "A", "reason": "closed"}))
    assert progress.parties["A"].state == "finished, A/1 out"
    assert progress.parties["R"].state == "finishing, A/1 out"
    told(progress, ("R", "left", {"peer": "B/0"}))
    assert progress.parties["R"].state == "finished, A/1 out"


def test_a_worker_is_lost_then_out_then_back() -> None:
    progress = trains(Run.parse(REGIONS, "regions.toml"))
    told(progress, ("A", "away", {"peer": "A/1", "reason": "reset"}))
    assert progress.parties["A"].state == "A/1 disconnected"
    told(progress, ("A", "lost", {"peer": "A/1", "reason": "silence"}))
    assert states(progress) == {"R": "training", "A": "A/1 lost", "B": "training", "C": "training"}
    told(progress, roster("A/1"), roster("A/1", node="A"))
    assert progress.parties["A"].state == "training, A/1 out"
    assert progress.parties["R"].state == "training, A/1 out"
    assert [progress.parties[name].is_calm for name in "RABC"] == [False, False, True, True]
    told(progress, ("A", "joined", {"peer": "A/1"}))
    assert progress.parties["A"].state == "training, A/1 out"
    told(progress, roster(joined="A/1"))
    assert set(states(progress).values()) == {"training"}
    assert all(party.is_calm for party in progress.parties.values())


def test_a_server_is_lost_then_out_then_back() -> None:
    progress = trains(Run.parse(REGIONS, "regions.toml"))
    told(progress, ("R", "lost", {"peer": "B", "reason": "silence"}))
    told(progress, ("global/0", "lost", {"peer": "C", "reason": "silence"}))
    assert states(progress) == {"R": "B lost", "A": "training", "B": "lost", "C": "lost"}
    told(progress, ("B", "waiting", {"turn": 2, "whom": "B/0", "seconds": 30}), roster("B/0, C/0"))
    assert states(progress) == {"R": "training, B out", "A": "training", "B": "out", "C": "out"}
    told(progress, ("R", "joined", {"peer": "B"}), roster("C/0", joined="B/0"))
    assert states(progress) == {"R": "training", "A": "training", "B": "training", "C": "out"}


@pytest.mark.parametrize("here_again", ["joined", "resumed"])
def test_who_is_awaited_is_lost_until_it_is_there_again(run: Run, here_again: str) -> None:
    progress = trains(run)
    told(progress, ("A", "awaited", {"peer": "A/0", "seconds": 60.0}), ("B/0", "awaited", {"peer": "B"}))
    assert states(progress) == {"A": "A/0 lost", "B": "training"}
    told(progress, ("global/0", "awaited", {"peer": "B", "seconds": 60.0}))
    assert states(progress) == {"A": "A/0 lost", "B": "lost"}
    told(progress, ("A", here_again, {"peer": "A/0"}), ("global/0", here_again, {"peer": "B"}))
    assert states(progress) == {"A": "training", "B": "training"}


def test_the_loss_of_a_party_is_that_of_its_workers_that_take_part(run: Run) -> None:
    progress = trains(run)
    told(progress, ("A/0", "log", {"loss": 1.0}), ("A/1", "log", {"loss": 9.0}))
    told(progress, ("A", "left", {"peer": "A/1", "turn": 3, "early": True}))
    assert progress.parties["A"].loss == 1.0


def test_a_loss_that_is_read_behind_its_roster_changes_nothing(run: Run) -> None:
    """Records of several nodes come as their files are written."""
    progress = trains(run)
    told(progress, roster("A/1"), ("A", "lost", {"peer": "A/1"}))
    told(progress, ("A", "away", {"peer": "A/1", "reason": ""}))
    assert progress.parties["A"].state == "training, A/1 out"


def test_a_server_that_was_started_again_has_no_first_weights_and_no_rate_below_nothing(run: Run) -> None:
    progress = trains(run)
    for t, sent in ((1.0, 500), (2.0, 600), (3.0, 10), (4.0, 30)):
        fields = {"sent": {"global/0": sent}, "received": {"global/0": sent}}
        progress.take(Record(t, "A", "usage", "debug", fields))
        assert progress.parties["A"].up_rate.at(t) in (0.0, 100.0, 20.0)
    told(progress, ("A", "first_weights", {"share": 0.1, "arrived_mb": 1.0, "of_mb": 10.0}))
    assert not progress.loads


def test_first_weights_come_to_a_party_until_they_are_all_there(run: Run) -> None:
    progress = RunProgress(run)
    a = progress.parties["A"]
    assert (a.loading, progress.loads) == (None, False)
    told(progress, *[("A", "joined", {"peer": worker}) for worker in ("A/0", "A/1")])
    told(progress, ("A/0", "first_weights", {"share": 1.0, "arrived_mb": 5.0, "of_mb": 5.0}))
    assert a.loading is None
    told(
        progress,
        ("A", "first_weights", {"share": 0.0, "arrived_mb": 0.0, "of_mb": 5.0}),
        ("A", "waiting", {"turn": 0, "whom": "A/1", "seconds": 30}),
        ("A", "first_weights", {"share": 0.4, "arrived_mb": 2.0, "of_mb": 5.0}),
    )
    assert (a.loads, progress.loads, a.state) == (True, True, "starting")
    assert a.loading is not None
    assert (a.loading.share, a.loading.left_s(2.0)) == (0.4, 3.0)
    told(progress, ("A", "first_weights", {"share": 1.0, "arrived_mb": 5.0, "of_mb": 5.0}))
    assert (a.loads, progress.loads) == (False, False)


def test_a_changed_link_stands_beside_the_state_until_it_is_as_described() -> None:
    progress = RunProgress(two_parties("wan.link={ rate_mbps = 100 }"))
    for node, party in (("A", "A"), ("global/0", "B")):
        told(progress, (node, "link", {"party": party, "state": "cut"}))
    assert progress.parties["A"].standing == "starting, 0 of 2 workers; link cut"
    assert progress.parties["B"].standing == progress.parties["B"].state
    told(progress, ("A", "link", {"party": "A", "state": "100 Mbit/s, 0 ms one way"}))
    assert progress.parties["A"].standing == "starting, 0 of 2 workers"


def test_parties_wait_for_the_one_that_the_root_waits_for(run: Run) -> None:
    progress = RunProgress(run)
    told(
        progress,
        *[(p, "joined", {"peer": w}) for p, w in (("A", "A/0"), ("A", "A/1"), ("B", "B/0"))],
        *[(p, "round", {"turn": 1}) for p in "AB"],
        ("global/0", "waiting", {"turn": 2, "whom": "B/0", "seconds": 31.0}),
    )
    assert progress.parties["A"].state == "waiting for B/0"
    assert progress.parties["B"].state == "training"


def test_losses_samples_and_traffic(run: Run) -> None:
    progress = RunProgress(run)
    told(
        progress,
        ("A/0", "log", {"loss": 1.0}),
        ("A/0", "log", {"loss": 0.5}),
        ("A/1", "log", {"loss": 0.25, "accuracy": 0.5}),
        *[("B/0", "log", {"loss": loss}) for loss in (None, "diverged")],
        ("A/0", "step", {"samples": 8.0}),
        ("A/1", "step", {"samples": 8.0}),
        ("A", "usage", {"sent": {"global/0": 100, "A/0": 9}, "received": {"global/0": 10}}),
        ("A", "usage", {"sent": {"global/0": 150, "A/0": 9}, "received": {"global/0": 30}}),
        ("A/0", "usage", {"sent": {"A": 7}, "received": {"A": 7}}),
    )
    a, b = progress.parties["A"], progress.parties["B"]
    assert a.loss == pytest.approx(0.375)
    assert b.loss is None
    assert a.samples_rate.at(9.0) == 8.0
    assert (a.up_rate.at(9.0), a.down_rate.at(9.0)) == (50.0, 20.0)


def test_only_a_few_names_are_listed() -> None:
    assert [few(["A/0"]), few(["A/0", "A/1"]), few(["A/0", "A/1", "A/2", "A/3"])] == [
        "A/0", "A/0, A/1", "A/0, A/1 and 2 more",
    ]  # fmt: skip


def test_a_global_server_is_no_worker_of_a_party(run: Run) -> None:
    progress = RunProgress(run)
    a = progress.parties["A"]
    told(progress, ("A", "joined", {"peer": "global/0"}))
    assert a.state == "starting, 0 of 2 workers"
    told(progress, *[("A", "joined", {"peer": f"A/{rank}"}) for rank in range(2)])
    told(progress, ("A", "round", {"turn": 1}))
    told(progress, *[("A", "left", {"peer": f"A/{rank}", "turn": 2}) for rank in range(2)])
    assert a.state == "finished"

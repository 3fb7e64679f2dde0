from __future__ import annotations

import pytest

from geomx.config import Run
from geomx.observe.progress import Progress, few
from geomx.observe.rates import WINDOW_S, Rate
from geomx.observe.records import Record

TOML = """
[run]
name = "two"
[[party]]
name = "A"
workers = 2
[[party]]
name = "B"
workers = 1
"""


@pytest.fixture
def run() -> Run:
    return Run.parse(TOML, "two.toml")


def told(progress: Progress, *notes: tuple[str, str, dict[str, object]]) -> None:
    for number, (node, name, fields) in enumerate(notes):
        progress.take(Record(float(number), node, name, "debug", fields))


def test_a_rate_is_over_the_window_alone() -> None:
    rate = Rate()
    assert rate.at(0.0) == 0.0
    for second in range(101):
        rate.reach(second, 10.0 * second if second < 90 else 900.0 + 50.0 * (second - 90))
    assert rate.at(100.0) == pytest.approx(50.0)


def test_rare_points_give_the_rate_between_the_last_two() -> None:
    rate = Rate()
    for second in (0, 60, 120):
        rate.reach(second, second * 3.0 if second < 120 else 180.0 + 60.0)
    assert rate.at(150.0) == pytest.approx(1.0)


def test_a_rate_ends_when_nothing_comes() -> None:
    rate = Rate()
    rate.reach(0.0, 0.0)
    rate.reach(1.0, 5.0)
    assert rate.at(1.0 + WINDOW_S) == 5.0
    assert rate.at(1.1 + WINDOW_S) == 0.0


def test_the_state_names_whom_a_party_waits_for(run: Run) -> None:
    progress = Progress(run)
    a = progress.parties["A"]
    assert a.state == "starting, 0 of 2 workers"
    told(progress, ("A", "joined", {"peer": "A/0"}), ("A/1", "joined", {"peer": "A"}))
    assert (a.state, a.is_calm) == ("starting, 1 of 2 workers", True)
    told(progress, ("A", "joined", {"peer": "A/1"}))
    assert a.state == "starting"
    told(progress, ("A", "round", {"turn": 0, "kind": "assign"}))
    assert (a.state, a.rounds) == ("starting", 0)
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


def test_first_weights_come_to_a_party_until_they_are_all_there(run: Run) -> None:
    progress = Progress(run)
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
    run = Run.parse(f"wan.link = {{ rate_mbps = 100 }}\n{TOML}", "two.toml")
    progress = Progress(run)
    told(
        progress,
        ("A", "link", {"party": "A", "state": "cut"}),
        ("global/0", "link", {"party": "B", "state": "cut"}),
    )
    assert progress.parties["A"].standing == "starting, 0 of 2 workers; link cut"
    assert progress.parties["B"].standing == progress.parties["B"].state
    told(progress, ("A", "link", {"party": "A", "state": "100 Mbit/s, 0 ms one way"}))
    assert progress.parties["A"].standing == "starting, 0 of 2 workers"


def test_parties_wait_for_the_one_that_the_root_waits_for(run: Run) -> None:
    progress = Progress(run)
    told(
        progress,
        *[(p, "joined", {"peer": w}) for p, w in (("A", "A/0"), ("A", "A/1"), ("B", "B/0"))],
        *[(p, "round", {"turn": 1}) for p in "AB"],
        ("global/0", "waiting", {"turn": 2, "whom": "B/0", "seconds": 31.0}),
    )
    assert progress.parties["A"].state == "waiting for B/0"
    assert progress.parties["B"].state == "training"


def test_losses_samples_and_traffic(run: Run) -> None:
    progress = Progress(run)
    told(
        progress,
        ("A/0", "log", {"loss": 1.0}),
        ("A/0", "log", {"loss": 0.5}),
        ("A/1", "log", {"loss": 0.25, "accuracy": 0.5}),
        ("B/0", "log", {"loss": None}),
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


def test_text_is_no_loss(run: Run) -> None:
    progress = Progress(run)
    told(progress, ("A/0", "log", {"loss": "diverged"}))
    assert progress.parties["A"].loss is None


def test_a_global_server_is_no_worker_of_a_party(run: Run) -> None:
    progress = Progress(run)
    a = progress.parties["A"]
    told(progress, ("A", "joined", {"peer": "global/0"}))
    assert a.state == "starting, 0 of 2 workers"
    told(
        progress, *[("A", "joined", {"peer": f"A/{rank}"}) for rank in range(2)], ("A", "round", {"turn": 1})
    )
    told(progress, *[("A", "left", {"peer": f"A/{rank}", "turn": 2}) for rank in range(2)])
    assert a.state == "finished"

"""Who hangs on whom."""

from __future__ import annotations

import pytest

from geomx.tree import EVERYONE, TOP, Tree

PARTIES = {"A": ("A/0", "A/1"), "B": ("B/0",), "C": ("C/0",), "D": ("D/0",)}
# D hangs on the shards itself, B and C on a region, which hangs on another one, beside A.
DEEP = Tree.of_parties(PARTIES, {"europe": ("alps", "A"), "alps": ("B", "C")}, ("global/0", "global/1"))


def test_every_node_is_a_shard_a_server_or_a_worker() -> None:
    assert DEEP.nodes == (
        "global/0", "global/1", "europe", "alps", "A", "B", "C", "D", "A/0", "A/1", "B/0", "C/0", "D/0",
    )  # fmt: skip
    assert DEEP.parties == ("A", "B", "C", "D")
    assert [name for name in DEEP.nodes if DEEP.is_worker(name)] == list(DEEP.workers)
    assert DEEP.tiers == 4
    assert Tree.of_parties(PARTIES).tiers == 2


@pytest.mark.parametrize(
    ("name", "parents", "children"),
    [
        ("europe", ("global/0", "global/1"), ("alps", "A")),
        ("alps", ("europe",), ("B", "C")),
        ("B", ("alps",), ("B/0",)),
        ("D", ("global/0", "global/1"), ("D/0",)),
        ("D/0", ("D",), ()),
    ],
)
def test_a_node_dials_its_parents_and_is_dialled_by_its_children(
    name: str, parents: tuple[str, ...], children: tuple[str, ...]
) -> None:
    assert (DEEP.parents(name), DEEP.children(name)) == (parents, children)


def test_all_shards_have_the_same_children() -> None:
    assert DEEP.children("global/0") == DEEP.children("global/1") == DEEP.children(TOP) == ("europe", "D")


def test_a_cohort_is_the_workers_below_one_node_in_the_order_of_the_run() -> None:
    assert DEEP.leaves("europe") == ("A/0", "A/1", "B/0", "C/0")
    assert DEEP.leaves("alps") == ("B/0", "C/0")
    assert DEEP.leaves("A/1") == ("A/1",)
    assert DEEP.leaves(EVERYONE) == DEEP.leaves("global/1") == DEEP.workers
    assert DEEP.leaves("nobody") == ()


def test_where_a_branch_is_shallow_it_stays_with_its_largest_cohort() -> None:
    assert [DEEP.cohort_at("B/0", tier) for tier in (1, 2, 3, 4)] == ["B", "alps", "europe", "europe"]
    assert [DEEP.cohort_at("A/0", tier) for tier in (1, 2, 3)] == ["A", "A", "europe"]
    assert DEEP.cohort_at("D/0", 3) == "D"
    assert DEEP.cohorts("B/0", 2) == ("B", "alps")


@pytest.mark.parametrize("tier", [1, 2, 3, 4])
def test_all_members_of_a_cohort_agree_on_it_in_each_tier(tier: int) -> None:
    for worker in DEEP.workers:
        cohort = DEEP.cohort_at(worker, tier)
        assert {DEEP.cohort_at(other, tier) for other in DEEP.leaves(cohort)} == {cohort}


def test_the_cohort_of_steps_is_by_the_tree_and_not_by_a_name() -> None:
    tree = Tree({"paris": TOP, "first": "paris", "second": "paris"})
    assert tree.cohort("second", "party") == "paris"
    assert tree.party_members("second") == ("first", "second")
    assert [tree.cohort("second", group) for group in ("run", "worker")] == ["", "second"]


def test_a_run_of_one_has_its_worker_at_the_top() -> None:
    tree = Tree.solo()
    assert tree.parents("solo/0") == tree.shards
    assert tree.cohort("solo/0", "party") == EVERYONE
    assert tree.tiers == 1

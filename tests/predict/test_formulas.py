"""What the formulas of `geomx plan` must be to each other, whatever the figures."""

from __future__ import annotations

from dataclasses import replace

import pytest
from exploring import examples
from hypothesis import example, given
from hypothesis import strategies as st

from geomx.config.tables import LinkTable
from geomx.errors import ConfigError
from geomx.observe.costs import Cost
from geomx.predict.facts import Codecs, EdgeCodecs, Facts, Rhythm, Site
from geomx.predict.formulas import PassTimes, link_bytes, link_s, through, together, travel_s
from geomx.predict.steps import Prediction, predict

POLICIES = (
    "fsa", "mixed", "mixed staleness=2", "esync", "hfa k1=3 k2=4", "diloco every=10",
    "diloco every=10 fragments=2 overlap=3", "downpour", "downpour n_push=2 n_fetch=3",
)  # fmt: skip

seconds = st.floats(0.0, 10.0)
links = st.builds(
    LinkTable,
    rate_mbps=st.floats(1.0, 1000.0),
    delay_ms=st.floats(0.0, 300.0),
    jitter_ms=st.just(0.0) | st.floats(0.001, 20.0),
    loss=st.floats(0.0, 0.05),
)
policies = st.sampled_from(POLICIES)


@st.composite
def sites(draw: st.DrawFn, name: str = "A") -> Site:
    compute_s = draw(st.floats(1e-3, 5.0))
    backward_s = draw(st.floats(0.0, 1.0)) * compute_s
    return Site(name, draw(st.integers(1, 4)), compute_s, backward_s, draw(links), LinkTable())


@st.composite
def worlds(draw: st.DrawFn, parties: int = 3) -> Facts:
    found = tuple(draw(sites(name)) for name in "ABC"[: draw(st.integers(1, parties))])
    size_bytes, overlap = draw(st.integers(1000, 10**8)), draw(st.booleans())
    return Facts(found, size_bytes, 5e9, draw(st.integers(1, 3)), draw(st.booleans()), overlap)


def codecs_of(facts: Facts, ratio: float = 1.0, encode_s: float = 0.0, slices: int = 16) -> Codecs:
    dense = Cost("dense", facts.size_bytes, facts.size_bytes, 0.0, 0.0, 0.0, lossless=True)
    wan = replace(dense, spec="half", sent_bytes=round(facts.size_bytes / ratio), lossless=ratio == 1.0)
    wan = replace(wan, encode_s=encode_s, decode_s=encode_s)
    return Codecs(slices, EdgeCodecs(wan, wan), EdgeCodecs(dense, dense))


# A link that loses one segment in twenty, and a model of so few segments that parts of them matter.
FEW_SEGMENTS = Facts(
    (Site("A", 1, 0.001, 0.0, LinkTable(rate_mbps=54.0, delay_ms=50.0, loss=0.05), LinkTable()),),
    16934,
    5e9,
    overlap=True,
)


def plain(site: Site, size_bytes: int = 4_000_000) -> Facts:
    """Arithmetic that takes no time to speak of."""
    return Facts((site,), size_bytes, 1e15)


def predicted(facts: Facts, policy: str, codecs: Codecs | None = None) -> Prediction:
    return predict(facts, Rhythm.of(policy), codecs or codecs_of(facts))


# -- streams ------------------------------------------------------------------------------------------------


@given(st.just(0.0) | st.floats(0.0, 5.0), st.integers(1, 20), st.lists(seconds, min_size=1, max_size=4))
def test_streams_are_those_of_slices_one_by_one(gap: float, slices: int, stages: list[float]) -> None:
    """Slices that come at equal distances pass as if each were followed by itself."""
    ends = [number * gap for number in range(slices)]
    stream = PassTimes(ends[0], ends[-1])
    for stage_s in stages:
        free = 0.0
        for number, ready in enumerate(ends):
            free = ends[number] = max(free, ready) + stage_s / slices
        stream = through(stream, stage_s, slices)
    assert (stream.first, stream.last) == (pytest.approx(ends[0]), pytest.approx(ends[-1]))


@given(st.lists(st.tuples(seconds, seconds), min_size=1, max_size=4))
def test_nobody_is_there_before_the_last(pairs: list[tuple[float, float]]) -> None:
    streams = [PassTimes(min(pair), max(pair)) for pair in pairs]
    both = together(streams)
    assert all(both.first >= stream.first and both.last >= stream.last for stream in streams)


@given(links, st.integers(1, 10**7))
def test_the_last_byte_is_under_way_for_the_delay_and_at_most_a_round_trip_more(
    link: LinkTable, size: int
) -> None:
    least = 1e-3 * link.delay_ms
    assert least <= travel_s(size, link) + 1e-12
    assert travel_s(size, link) <= least + 2e-3 * link.delay_ms + 1e-9
    assert travel_s(size, link.model_copy(update={"loss": 0.0})) == pytest.approx(least)


# -- predictions --------------------------------------------------------------------------------------------


@examples(30)
@given(worlds(), policies)
def test_no_step_is_shorter_than_its_computing_and_bytes_are_those_of_the_pushes(
    facts: Facts, policy: str
) -> None:
    found = predicted(facts, policy)
    for site in facts.sites:
        assert found.step_s_of[site.name] >= site.compute_s * (1 - 1e-9)
    assert 0.0 < found.computing <= 1.0 + 1e-9
    assert min(found.step_s_of.values()) <= found.step_s * (1 + 1e-9)
    assert found.step_s <= max(found.step_s_of.values()) * (1 + 1e-9)
    if policy not in ("esync", "downpour n_push=2 n_fetch=3"):
        rhythm = Rhythm.of(policy)
        pushes = sum(rhythm.cohorts(site) for site in facts.sites) / len(facts.sites)
        whole = facts.size_bytes * (1.0 if rhythm.exchanges == rhythm.steps else 1.0 / rhythm.steps)
        assert found.bytes_up == pytest.approx(pushes * whole, rel=0.02, abs=100 * 16 * pushes)


@examples(30)
@given(worlds(), st.sampled_from(["fsa", "mixed", "hfa k1=3 k2=4", "diloco every=10", "downpour"]))
def test_no_round_is_shorter_than_bytes_by_rate_and_a_round_trip(facts: Facts, policy: str) -> None:
    facts, found = replace(facts, overlap=False), predicted(replace(facts, overlap=False), policy)
    for site in facts.sites:
        round_s = found.step_s_of[site.name] * found.steps_of[site.name]
        least = link_s(facts.size_bytes, site.wan) + 2e-3 * site.wan.delay_ms
        assert round_s >= least * (1 - 1e-6)


@given(links, st.integers(1, 10**8), st.floats(0.0, 1.0))
@example(
    LinkTable(rate_mbps=54.0, delay_ms=50.0, loss=0.05), 5733, 0.7584
)  # both have a part of a fourth segment
def test_fewer_bytes_are_held_up_no_longer(link: LinkTable, size: int, part: float) -> None:
    # The first slice waits no less than the last, but has only a slice of what the link saves.
    assert travel_s(part * size, link) <= travel_s(size, link) * (1 + 1e-6)


@examples(30)
@given(
    worlds(), policies.filter(lambda policy: policy != "esync"), st.floats(1.0, 50.0), st.floats(1.0, 10.0)
)
@example(FEW_SEGMENTS, "fsa", 3.994670101841852, 1.4923973340878631)
def test_fewer_bytes_are_never_slower(facts: Facts, policy: str, ratio: float, more: float) -> None:
    lossy = [codecs_of(facts, 1.01 * ratio), codecs_of(facts, 1.01 * ratio * more)]
    many, few = (predicted(facts, policy, codecs) for codecs in lossy)
    assert few.step_s <= many.step_s * (1 + 1e-6)
    assert few.bytes_up <= many.bytes_up


@examples(30)
@given(worlds(), policies.filter(lambda policy: policy != "esync"), st.floats(0.0, 3.0))
def test_a_codec_that_takes_time_is_never_faster(facts: Facts, policy: str, encode_s: float) -> None:
    free, slow = (predicted(facts, policy, codecs_of(facts, 4.0, cost)) for cost in (0.0, encode_s))
    assert slow.step_s >= free.step_s * (1 - 1e-6)


@examples(30)
@given(worlds(), st.integers(1, 30))
def test_mixed_sync_with_one_party_is_fsa_and_diloco_hfa_without_means_inside(
    facts: Facts, every: int
) -> None:
    pairs = [(replace(facts, sites=facts.sites[:1]), "mixed", "fsa")]
    for world, one, other in [*pairs, (facts, f"diloco every={every}", f"hfa k1={every} k2=1")]:
        assert predicted(world, one).step_s == pytest.approx(predicted(world, other).step_s)


@examples(30)
@given(worlds())
def test_parties_that_do_not_wait_are_never_slower_than_those_that_do(facts: Facts) -> None:
    mixed, bounded, fsa = (predicted(facts, policy) for policy in ("mixed", "mixed staleness=0", "fsa"))
    assert mixed.step_s <= bounded.step_s * (1 + 1e-9)
    slowest = max(mixed.step_s_of.values())
    assert bounded.step_s == pytest.approx(slowest)
    if facts.shards * facts.size_bytes < 10**6:  # nobody waits for the global servers
        assert mixed.step_s <= fsa.step_s * 1.05


@examples(30)
@given(worlds())
def test_a_forward_that_overlaps_is_never_slower(facts: Facts) -> None:
    plain_, overlapping = (predicted(replace(facts, overlap=o), "fsa") for o in (False, True))
    assert overlapping.step_s <= plain_.step_s * (1 + 1e-6)


# -- the closed forms of the document -------------------------------------------------------------------------

SITE = Site("A", 2, 0.3, 0.0, LinkTable(rate_mbps=100.0, delay_ms=20.0), LinkTable())


def exchange_s(facts: Facts, part: float = 1.0, slices: int = 16, sharing: int = 1) -> float:
    """R + T + T/n: up and down, each of which takes T."""
    wan, many = facts.sites[0].wan, max(1, round(part * slices))
    across_s = sharing * link_s(link_bytes(part * facts.size_bytes, many), wan)
    return 2e-3 * wan.delay_ms + across_s * (1 + 1 / many)


@pytest.mark.parametrize(
    ("policy", "steps", "round_s"),
    [
        ("fsa", 1, lambda c, e: c + e()),
        ("hfa k1=5 k2=4", 20, lambda c, e: 20 * c + e()),  # without a LAN to speak of
        ("diloco every=12", 12, lambda c, e: 12 * c + e()),
        ("diloco every=12 fragments=4 overlap=2", 3, lambda c, e: 3 * c + max(0.0, e(0.25) - 2 * c)),
        ("diloco every=12 fragments=4", 3, lambda c, e: 3 * c + e(0.25)),
        ("downpour", 1, lambda c, e: c + e(sharing=2)),
        ("downpour n_push=6 n_fetch=6", 6, lambda c, e: 6 * c + e(sharing=2)),
    ],
)
@pytest.mark.parametrize("compute_s", [0.3, 0.03])
def test_closed_forms(policy: str, steps: int, round_s: object, compute_s: float) -> None:
    facts = plain(replace(SITE, compute_s=compute_s))
    found = predicted(facts, policy)
    expected = round_s(compute_s, lambda *part, **more: exchange_s(facts, *part, **more))  # type: ignore[operator]
    assert found.steps_of == {"A": steps}
    assert found.round_s == pytest.approx(expected, rel=1e-4)
    assert found.step_s == pytest.approx(expected / steps, rel=1e-4)


def test_backward_and_push_pass_at_the_same_time() -> None:
    early = plain(replace(SITE, backward_s=0.2))
    late = replace(early, in_backward=False)
    saved = predicted(late, "fsa").step_s - predicted(early, "fsa").step_s
    assert saved == pytest.approx(
        0.2 * 15 / 16, rel=1e-3
    )  # the link is the longer stage, and waits for one slice


def test_fast_parties_take_as_many_steps_as_fit() -> None:
    slow = replace(SITE, name="B", compute_s=1.0)
    found = predicted(Facts((SITE, slow), 4_000_000, 1e15), "esync")
    assert found.steps_of == {"A": 3.0, "B": 1.0}
    assert found.round_s == pytest.approx(1.0 + exchange_s(plain(SITE)), rel=1e-4)


def test_the_slowest_sets_the_pace_of_all_only_where_all_wait() -> None:
    both = Facts((SITE, replace(SITE, name="B", compute_s=3.0)), 4_000_000, 1e15)
    alone = predicted(plain(SITE), "fsa").step_s
    assert predicted(both, "mixed").step_s_of["A"] == pytest.approx(alone)
    assert predicted(both, "fsa").step_s_of["A"] == pytest.approx(3.0 - 0.3 + alone)
    assert predicted(both, "mixed staleness=4").step_s_of["A"] == pytest.approx(3.0 - 0.3 + alone)


# -- rhythms ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("policy", "steps", "exchanges", "bounded"),
    [
        ("fsa", 1, 1, False),
        ("mixed staleness=3", 1, 1, True),
        ("hfa k1=20 k2=10", 200, 1, False),
        ("diloco every=500", 500, 1, False),
        ("diloco every=500 fragments=5 overlap=5", 500, 5, False),
        ("diloco every=7000", 7000, 1, False),  # longer than what is asked for first
        ("downpour n_push=2 n_fetch=3", 6, 4, False),
        ("esync", 1, 1, False),
    ],
)
def test_a_policy_is_asked_for_its_rhythm(policy: str, steps: int, exchanges: int, bounded: bool) -> None:
    rhythm = Rhythm.of(policy)
    assert (rhythm.steps, rhythm.exchanges, rhythm.bounded) == (steps, exchanges, bounded)


def test_a_policy_that_is_none_is_refused() -> None:
    with pytest.raises(ConfigError, match="every"):
        Rhythm.of("diloco every=0")

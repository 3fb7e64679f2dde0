from itertools import pairwise
from math import inf, sqrt
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from geomx.channels.emulation.link import Jitter, Line, LinkSpec, LossProcess, geometric


def losing(chance, loss, enter, leave, burst_loss):
    return LossProcess(
        chance, LinkSpec(loss=loss, burst_enter=enter, burst_leave=leave, burst_loss=burst_loss)
    )


def lost(model, counts):
    """The numbers of the lost segments, over packets of `counts` segments each."""
    numbers, base = [], 0
    for count in counts:
        alive, before = set(), -1
        for first, end in model.survivors(count):
            assert before < first < end <= count  # apart, and in order
            before = end
            alive |= set(range(first, end))
        numbers += [base + number for number in range(count) if number not in alive]
        base += count
    return numbers


@given(st.integers(0, 2**32), st.lists(st.integers(1, 60), min_size=1, max_size=40))
def test_losses_do_not_depend_on_how_segments_are_packed(seed, counts):
    together = lost(losing(Random(seed), 0.1, 0.05, 0.3, 0.9), counts)
    alone = lost(losing(Random(seed), 0.1, 0.05, 0.3, 0.9), [1] * sum(counts))
    assert together == alone


@pytest.mark.parametrize("share", [0.001, 0.01, 0.05, 0.5])
def test_random_loss_loses_its_share(share):
    count = 400_000
    found = len(lost(losing(Random(1), share, 0.0, 1.0, 1.0), [40] * (count // 40))) / count
    assert abs(found - share) < 4 * sqrt(share * (1 - share) / count)


def test_bursts_have_their_share_and_their_length():
    enter, leave = 0.002, 0.1
    count = 1_000_000
    numbers = lost(losing(Random(2), 0.0, enter, leave, 1.0), [50] * (count // 50))
    bursts = 1 + sum(b - a > 1 for a, b in pairwise(numbers))
    assert len(numbers) / count == pytest.approx(enter / (enter + leave), rel=0.1)
    assert len(numbers) / bursts == pytest.approx(1 / leave, rel=0.1)


def test_the_good_state_loses_too():
    count = 1_000_000
    found = len(lost(losing(Random(3), 0.01, 0.01, 0.09, 0.5), [50] * (count // 50))) / count
    assert found == pytest.approx(0.9 * 0.01 + 0.1 * 0.5, rel=0.05)


@pytest.mark.parametrize(("enter", "leave"), [(0.0, 1.0), (0.5, 0.5), (1e-9, 1e-9)])
def test_a_link_without_loss_loses_nothing_and_does_not_search_for_ever(enter, leave):
    model = losing(Random(4), 0.0, enter, leave, 0.0)
    assert lost(model, [45] * 1000) == []


def test_geometric_at_its_ends():
    chance = Random(5)
    assert geometric(chance, 0.0) == inf
    assert geometric(chance, 1.0) == 0
    assert geometric(chance, 5e-324) == inf
    assert sum(geometric(chance, 0.25) for _ in range(40_000)) / 40_000 == pytest.approx(3.0, rel=0.05)


@given(st.integers(0, 2**32), st.lists(st.floats(0.0, 0.2), min_size=2, max_size=100))
def test_jitter_never_reorders_and_stays_within_its_width(seed, gaps):
    width_s = 0.01
    jitter = Jitter(Random(seed), width_s)
    now, before = 100.0, -inf
    for gap in gaps:
        now += gap
        offset = jitter.offset_s(now)
        assert abs(offset) <= width_s + 1e-12
        assert now + offset >= before - 1e-9
        before = now + offset


@given(st.integers(0, 2**32), st.lists(st.tuples(st.integers(1, 100_000), st.floats(0.0, 0.2)), max_size=40))
def test_nothing_overtakes_on_a_line_whatever_becomes_of_it(seed, sent):
    specs = [LinkSpec(100.0, 20.0, 15.0), LinkSpec(delay_ms=5.0, jitter_ms=30.0), LinkSpec(1.0, 60.0)]
    line = Line(specs[0], Random(seed))
    ready_at, before = 0.0, -inf
    for number, (size_bytes, pause_s) in enumerate(sent):
        line.change(specs[number // 4 % 3])
        ready_at += pause_s
        left_at = line.send(size_bytes, ready_at)
        assert left_at >= ready_at + size_bytes * line.spec.s_per_byte - 1e-9
        arrival = line.arrival(left_at)
        assert arrival >= max(before, left_at)
        before = arrival


def test_a_delay_wanders_to_both_sides_of_its_mean_within_its_bounds():
    line = Line(LinkSpec(delay_ms=20.0, jitter_ms=5.0), Random(7))
    travels = [line.arrival(at) - at for at in (step * 0.001 for step in range(100_000))]
    assert min(travels) == pytest.approx(0.015, abs=3e-4)
    assert max(travels) == pytest.approx(0.025, abs=3e-4)
    assert sum(travels) / len(travels) == pytest.approx(0.020, abs=3e-4)


def test_a_seed_draws_the_same_again():
    drawn = []
    for seed in (1, 1, 2):
        line = Line(LinkSpec(100.0, 20.0, 5.0, 0.05), Random(seed))
        drawn.append([(line.arrival(line.send(1500, 0.0)), line.losing.survivors(40)) for _ in range(50)])
    assert drawn[0] == drawn[1] != drawn[2]


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        (LinkSpec(), "any rate, 0 ms one way"),
        (LinkSpec(100.0, 20.0, 2.0, 0.01), "100 Mbit/s, 20 ± 2 ms one way, loss 1 %"),
        (LinkSpec(5.0, burst_enter=0.01, burst_leave=0.09), "5 Mbit/s, 0 ms one way, loss 10 %"),
        (LinkSpec(5.0, cut=True), "cut"),
    ],
)
def test_a_link_in_words(spec, words):
    assert spec.words == words

from hypothesis import given
from hypothesis import strategies as st

from geomx.sync import policies
from geomx.sync.contract import Apply, GradientStep, RoundView, Wait
from geomx.sync.fsa import FSA

names = st.frozensets(st.sampled_from(["A/0", "A/1", "B/0", "B/1", "C/0"]))


@given(st.integers(0, 1000))
def test_every_step_pushes_every_slice(turn):
    assert FSA().step(turn) == GradientStep()


@given(origins=names, members=names, now=st.floats(0, 1e9))
def test_a_round_waits_for_exactly_the_members_that_are_missing(origins, members, now):
    plan = FSA().gathered(RoundView(3, 0, "gradient", "", origins, members, 0.0, {}), now)
    if members <= origins:
        assert plan == Apply()
    else:
        assert plan == Wait(tuple(sorted(members - origins)))


def test_it_is_registered():
    assert policies.find("fsa") is FSA

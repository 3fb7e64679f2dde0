"""What lies over a link from each moment on."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from geomx.config import EventTable
from geomx.config.link_changes import overlays

moments = st.integers(0, 6).map(float)
events = st.builds(
    EventTable,
    at_s=moments,
    party=st.just("A"),
    for_s=st.none() | st.integers(1, 4).map(float),
    rate_mbps=st.none() | st.integers(1, 3).map(float),
    delay_ms=st.none() | st.integers(1, 3).map(float),
)


@given(st.lists(events, max_size=8))
def test_of_the_events_that_last_the_later_ones_in_the_file_win(drawn: list[EventTable]) -> None:
    for at_s, changes in overlays(drawn):
        expected: dict[str, float | bool] = {}
        for event in drawn:
            if event.at_s <= at_s and (event.for_s is None or at_s < event.at_s + event.for_s):
                expected |= event.changes
        assert changes == expected

"""The floors, against figures worked out by hand."""

import pytest

from benchmarks.grounds import Way, round_s

FAST, SLOW = Way(100, 100, 0.03), Way(20, 20, 0.1)
CNN_BYTES = 4 * 1_068_490


@pytest.mark.parametrize(
    ("size_bytes", "ways", "floor_s"),
    [
        pytest.param(CNN_BYTES, [FAST], 0.372, id="bytes at the rate, and one round trip"),
        pytest.param(CNN_BYTES, [SLOW], 1.81, id="where it is slow"),
        pytest.param(CNN_BYTES / 2, [FAST], 0.201, id="half of the bytes, and the whole round trip"),
        pytest.param(1e6, [Way(100, 20, 0.0)], 0.4, id="the slower direction, down"),
        pytest.param(1e6, [Way(20, 100, 0.0)], 0.4, id="the slower direction, up"),
        pytest.param(CNN_BYTES, [FAST, SLOW], 1.81, id="the slowest party"),
        pytest.param(CNN_BYTES, [], 0.0, id="nobody over the WAN"),
    ],
)
def test_push_and_update_at_once_take(size_bytes, ways, floor_s):
    assert round_s(size_bytes, ways) == pytest.approx(floor_s, rel=3e-3)

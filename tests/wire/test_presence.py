import pytest
from hypothesis import given
from hypothesis import strategies as st

from geomx.errors import ProtocolError
from geomx.wire import presence


@given(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=70))
def test_unpack_undoes_pack_also_of_a_union(pairs):
    first, second = ([pair[side] for pair in pairs] for side in (0, 1))
    assert presence.unpack(presence.pack(first), len(pairs)) == first
    assert presence.is_absent(presence.pack(first), len(pairs)) == (not any(first))
    joined = presence.union(presence.pack(first), presence.pack(second))
    assert presence.unpack(joined, len(pairs)) == [a or b for a, b in pairs]


def test_part_0_is_the_lowest_bit_of_the_first_byte():
    assert presence.pack([True] + 7 * [False] + [False, True]) == b"\x01\x02"


@pytest.mark.parametrize("parts", [1, 7, 8, 9])
def test_every_part_is_none(parts):
    assert presence.pack([True] * parts) is None
    assert presence.unpack(None, parts) == [True] * parts


@pytest.mark.parametrize("bitmap", [b"", b"\x01\x01", b"\x08", b"\xff"])
@pytest.mark.parametrize("reader", [presence.unpack, presence.is_absent])
def test_a_bitmap_of_other_parts_is_refused(reader, bitmap):
    with pytest.raises(ProtocolError, match="bitmap"):
        reader(bitmap, 3)


def test_bitmaps_of_different_lengths_have_no_union():
    with pytest.raises(ProtocolError, match="1 and 2 bytes"):
        presence.union(b"\x00", b"\x00\x00")

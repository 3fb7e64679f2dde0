import itertools
from bisect import bisect_right
from collections import Counter

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from geomx.errors import Unsupported
from geomx.layout import (
    FEWEST_SLICES,
    ITEM_BYTES,
    LARGEST_SLICE,
    MOST_PARTS,
    SLICES_WANTED,
    SMALLEST_SLICE,
    Layout,
    Tensor,
    automatic_slice_elements,
)

shapes = st.lists(st.integers(0, 40), max_size=3).map(tuple)


@st.composite
def layouts(draw):
    kinds = draw(
        st.lists(
            st.tuples(
                shapes,
                st.sampled_from(["float32", "float64", "int64"]),
                st.integers(0, 2),
                st.sampled_from(["weight", "buffer"]),
            ),
            min_size=1,
            max_size=12,
        )
    )
    tensors = tuple(Tensor(f"t{number}", *kind) for number, kind in enumerate(kinds))
    return Layout(
        tensors,
        draw(st.sampled_from([1, 50, 1000])),
        draw(st.sampled_from([0, 7, 64, 1000])),
        draw(st.sampled_from([(), (1000,), (20,), (20, 300, 200_000)])),
    )


def weights(*counts, **options):
    return Layout(tuple(Tensor(f"t{n}", (count,), "float32") for n, count in enumerate(counts)), **options)


@given(layouts())
def test_every_element_is_in_exactly_one_slice(layout):
    seen = Counter(
        (part.tensor, element)
        for slice_ in layout.slices
        for part in slice_.parts
        for element in range(part.start, part.stop)
    )
    everything = {(n, element) for n, t in enumerate(layout.tensors) for element in range(t.elements)}
    assert seen.keys() == everything
    assert set(seen.values()) <= {1}


@given(layouts())
def test_parts_lie_in_a_slice_one_behind_the_other(layout):
    for slice_ in layout.slices:
        end = 0
        for part in slice_.parts:
            assert part.offset == end
            end += part.elements
        assert slice_.elements == end > 0
        assert slice_.size_bytes == end * ITEM_BYTES[slice_.dtype]


@given(layouts(), st.data())
def test_a_part_of_a_slice_holds_its_elements(layout, data):
    for slice_ in layout.slices:
        start = data.draw(st.integers(0, slice_.elements - 1))
        stop = data.draw(st.integers(start + 1, slice_.elements))
        within = slice_.within(start, stop)
        assert elements_of(within) == elements_of(slice_)[start:stop]
        assert (within.index, within.elements) == (slice_.index, stop - start)
        assert within.smallest_tensor == slice_.smallest_tensor
        assert [part.offset for part in within.parts] == [
            0,
            *itertools.accumulate(p.elements for p in within.parts),
        ][:-1]


def elements_of(slice_):
    return [(part.tensor, element) for part in slice_.parts for element in range(part.start, part.stop)]


@given(layouts())
def test_a_slice_is_of_one_kind_and_one_size_class(layout):
    for slice_ in layout.slices:
        tensors = [layout.tensors[part.tensor] for part in slice_.parts]
        assert {(t.dtype, t.group, t.role) for t in tensors} == {(slice_.dtype, slice_.group, slice_.role)}
        assert len({t.elements >= layout.pack_below for t in tensors}) == 1
        assert len({bisect_right(layout.size_bounds, t.elements) for t in tensors}) == 1
        assert slice_.smallest_tensor == min(t.elements for t in tensors)


@given(layouts())
def test_large_tensors_have_slices_of_their_own_and_packed_ones_are_never_cut(layout):
    largest = layout.slice_elements or automatic_slice_elements(layout.tensors)
    for slice_ in layout.slices:
        assert slice_.elements <= largest or len(slice_.parts) == 1
        if slice_.smallest_tensor >= layout.pack_below:
            assert len(slice_.parts) == 1
            assert slice_.elements <= largest
        else:
            assert all(part.elements == layout.tensors[part.tensor].elements for part in slice_.parts)


@given(layouts())
def test_slices_are_numbered_in_the_order_of_first_use(layout):
    assert [slice_.index for slice_ in layout.slices] == list(range(len(layout.slices)))
    firsts = [(slice_.parts[0].tensor, slice_.parts[0].start) for slice_ in layout.slices]
    assert firsts == sorted(firsts)
    assert [slice_.priority for slice_ in layout.slices] == [tensor for tensor, _ in firsts]


@given(layouts(), st.integers(1, 5))
def test_shards_are_balanced_and_do_not_change_the_cuts(layout, count):
    untouched = msgspec.structs.replace(layout).slices
    table = layout.shards(count)
    assert layout.slices == untouched
    assert len(table) == len(layout.slices)
    loads = [0] * count
    for slice_, shard in zip(layout.slices, table, strict=True):
        loads[shard] += slice_.size_bytes
    assert max(loads) - min(loads) <= max((slice_.size_bytes for slice_ in layout.slices), default=0)


@given(layouts(), st.integers(1, 5))
def test_every_node_computes_the_same_table(layout, count):
    copy = msgspec.msgpack.decode(msgspec.msgpack.encode(layout), type=Layout)
    assert (copy.slices, copy.shards(count)) == (layout.slices, layout.shards(count))
    assert copy.fingerprint == layout.fingerprint


@given(layouts(), st.data())
def test_fingerprints_differ_when_anything_differs(layout, data):
    first = layout.tensors[0]
    tensor = data.draw(
        st.sampled_from(
            [
                msgspec.structs.replace(first, name="another"),
                msgspec.structs.replace(first, shape=(*first.shape, 1)),
                msgspec.structs.replace(first, dtype="bfloat16"),
                msgspec.structs.replace(first, group=first.group + 1),
                msgspec.structs.replace(first, role="frozen"),
            ]
        )
    )
    other = data.draw(
        st.sampled_from(
            [
                msgspec.structs.replace(layout, tensors=(tensor, *layout.tensors[1:])),
                msgspec.structs.replace(layout, tensors=layout.tensors[1:]),
                msgspec.structs.replace(layout, pack_below=layout.pack_below + 1),
                msgspec.structs.replace(layout, slice_elements=layout.slice_elements + 1),
                msgspec.structs.replace(layout, size_bounds=(*layout.size_bounds, 200_001)),
            ]
        )
    )
    assert other.fingerprint != layout.fingerprint


def test_cutting_leaves_the_fingerprint_alone():
    layout = weights(10, 20)
    before = msgspec.structs.replace(layout).fingerprint
    assert layout.slices
    assert layout.fingerprint == before


@pytest.mark.parametrize(("count", "slices"), [(999, 1), (1000, 2), (1001, 2)])
def test_pack_below_is_the_smallest_tensor_that_has_slices_of_its_own(count, slices):
    assert len(weights(count, count, pack_below=1000).slices) == slices


def test_packed_tensors_on_both_sides_of_a_bound_share_no_slice():
    slices = weights(50, 100, 99, 500, 3000, size_bounds=(100, 500)).slices
    assert [[part.tensor for part in slice_.parts] for slice_ in slices] == [[0, 2], [1], [3], [4]]
    assert [slice_.smallest_tensor for slice_ in slices] == [50, 100, 500, 3000]


def test_bounds_of_tensors_that_are_not_packed_leave_the_cuts_alone():
    counts = (450, 30, 150_000, 10, 250_000)
    assert weights(*counts, size_bounds=(1000, 200_000)).slices == weights(*counts).slices


def test_tiny_tensors_share_slices_across_large_ones():
    slices = weights(10, 2000, 10, 500, 400).slices
    assert [[part.tensor for part in slice_.parts] for slice_ in slices] == [[0, 2, 3, 4], [1]]


def test_a_full_slice_makes_room_for_the_next():
    slices = weights(600, 300, 200, 900, slice_elements=1000, pack_below=1000).slices
    assert [[part.tensor for part in slice_.parts] for slice_ in slices] == [[0, 1], [2], [3]]


def test_a_slice_has_a_bounded_number_of_parts():
    slices = weights(*[1] * (MOST_PARTS + 1)).slices
    assert [len(slice_.parts) for slice_ in slices] == [MOST_PARTS, 1]


def test_tensors_without_elements_are_in_no_slice():
    layout = weights(0, 5, 0)
    assert [part.tensor for slice_ in layout.slices for part in slice_.parts] == [1]
    assert weights(0).slices == ()
    assert weights().shards(2) == ()


def test_a_scalar_has_one_element():
    (slice_,) = Layout((Tensor("scale", (), "float32"),)).slices
    assert slice_.elements == 1


def test_two_thousand_million_elements_are_cheap_to_lay_out():
    slices = weights(2**31).slices
    assert len(slices) == 2**31 // LARGEST_SLICE
    assert slices[-1].parts[0].stop == 2**31


@pytest.mark.parametrize(
    ("elements", "expected"),
    [
        (0, SMALLEST_SLICE),
        (178_762, SMALLEST_SLICE),
        (64 * 20_000, 1 << 15),
        (64 << 17, 1 << 17),
        (2**31, LARGEST_SLICE),
    ],
)
def test_automatic_slices_fit_the_model(elements, expected):
    assert automatic_slice_elements((Tensor("w", (elements,), "float32"),)) == expected


def test_slices_of_which_little_is_sent_may_be_larger():
    huge = (Tensor("w", (2**31,), "float32"),)
    assert automatic_slice_elements(huge, SLICES_WANTED) == LARGEST_SLICE
    assert automatic_slice_elements(huge, SLICES_WANTED // 2) == 2 * LARGEST_SLICE
    assert automatic_slice_elements(huge, SLICES_WANTED // 7) == 4 * LARGEST_SLICE
    assert automatic_slice_elements(huge, 1) == 8 * LARGEST_SLICE


def test_no_model_is_cut_into_few_slices():
    small = (Tensor("w", (16 * 30_000,), "float32"),)
    assert automatic_slice_elements(small, 1) == automatic_slice_elements(small, FEWEST_SLICES) == 1 << 15


def test_only_what_is_trained_decides_the_cut():
    buffer = Tensor("b", (2**31,), "float32", role="buffer")
    assert automatic_slice_elements((buffer,)) == SMALLEST_SLICE


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ([Tensor("a", (1,), "float32"), Tensor("a", (2,), "float32")], "found twice: a"),
        ([Tensor("a", (1,), "complex64")], "complex64; allowed: float64"),
        ([Tensor("a", (2, -1), "float32")], "negative extent"),
    ],
)
def test_models_that_cannot_be_carried_are_refused(tensors, message):
    with pytest.raises(Unsupported, match=message):
        Layout(tuple(tensors))


def test_cuts_that_go_backwards_are_refused():
    with pytest.raises(Unsupported, match="slice_elements is -1"):
        weights(1, slice_elements=-1)


def test_bounds_that_do_not_rise_are_refused():
    for bounds in ((200, 100), (100, 100)):
        with pytest.raises(Unsupported, match="numbers that rise"):
            weights(1, size_bounds=bounds)


def test_packed_tensors_count_towards_the_most_slices(monkeypatch):
    monkeypatch.setattr("geomx.layout.MOST_SLICES", 3)
    tensors = tuple(Tensor(f"t{number}", (9,), "float32") for number in range(4))
    with pytest.raises(Unsupported, match="raise slice_elements"):
        Layout(tensors, pack_below=10, slice_elements=10).slices  # noqa: B018


def test_a_layout_from_a_stranger_cannot_fill_the_memory():
    with pytest.raises(Unsupported, match="raise slice_elements"):
        weights(2**40, slice_elements=1).slices  # noqa: B018

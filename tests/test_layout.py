import itertools
from bisect import bisect_right

import msgspec
import pytest
from exploring import examples
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

shapes = st.lists(st.integers(0, 12), max_size=3).map(tuple)


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
def test_every_element_is_in_exactly_one_slice_one_part_behind_the_other(layout):
    parts = []
    for slice_ in layout.slices:
        offsets = [0, *itertools.accumulate(part.elements for part in slice_.parts)]
        assert [*(part.offset for part in slice_.parts), slice_.elements] == offsets
        assert slice_.elements > 0
        assert slice_.size_bytes == slice_.elements * ITEM_BYTES[slice_.dtype]
        parts += [(part.tensor, part.start, part.stop) for part in slice_.parts]
    ends = {}
    for tensor, start, stop in sorted(parts):
        assert ends.get(tensor, 0) == start < stop
        ends[tensor] = stop
    assert ends == {number: t.elements for number, t in enumerate(layout.tensors) if t.elements}


@examples(40)
@given(layouts(), st.data())
def test_a_part_of_a_slice_holds_its_elements(layout, data):
    for slice_ in layout.slices:
        start = data.draw(st.integers(0, slice_.elements - 1))
        stop = data.draw(st.integers(start + 1, slice_.elements))
        within = slice_.within(start, stop)
        assert elements_of(within) == elements_of(slice_)[start:stop]
        assert (within.index, within.elements) == (slice_.index, stop - start)
        assert within.smallest_tensor == slice_.smallest_tensor
        offsets = [0, *itertools.accumulate(part.elements for part in within.parts)]
        assert [part.offset for part in within.parts] == offsets[:-1]


def elements_of(slice_):
    return [(part.tensor, element) for part in slice_.parts for element in range(part.start, part.stop)]


@given(layouts())
def test_slices_are_of_one_kind_and_size_class_and_in_the_order_of_first_use(layout):
    """Large tensors have slices of their own, and packed ones are never cut."""
    largest = layout.slice_elements or automatic_slice_elements(layout.tensors)
    for slice_ in layout.slices:
        tensors = [layout.tensors[part.tensor] for part in slice_.parts]
        assert {(t.dtype, t.group, t.role) for t in tensors} == {(slice_.dtype, slice_.group, slice_.role)}
        assert len({t.elements >= layout.pack_below for t in tensors}) == 1
        assert len({bisect_right(layout.size_bounds, t.elements) for t in tensors}) == 1
        assert slice_.smallest_tensor == min(t.elements for t in tensors)
        assert slice_.elements <= largest or len(slice_.parts) == 1
        if slice_.smallest_tensor >= layout.pack_below:
            assert len(slice_.parts) == 1
            assert slice_.elements <= largest
        else:
            assert all(part.elements == layout.tensors[part.tensor].elements for part in slice_.parts)
    assert [slice_.index for slice_ in layout.slices] == list(range(len(layout.slices)))
    firsts = [(slice_.parts[0].tensor, slice_.parts[0].start) for slice_ in layout.slices]
    assert firsts == sorted(firsts)


@given(layouts(), st.integers(1, 5))
def test_shards_are_balanced_and_every_node_computes_the_same_table(layout, count):
    copy = msgspec.msgpack.decode(msgspec.msgpack.encode(layout), type=Layout)
    uncut, table = copy.fingerprint, layout.shards(count)
    assert (copy.slices, copy.shards(count)) == (layout.slices, table)
    assert layout.fingerprint == uncut
    assert len(table) == len(layout.slices)
    loads = [0] * count
    for slice_, shard in zip(layout.slices, table, strict=True):
        loads[shard] += slice_.size_bytes
    assert max(loads) - min(loads) <= max((slice_.size_bytes for slice_ in layout.slices), default=0)


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


@pytest.mark.parametrize(("count", "slices"), [(999, 1), (1000, 2), (1001, 2)])
def test_pack_below_is_the_smallest_tensor_that_has_slices_of_its_own(count, slices):
    assert len(weights(count, count, pack_below=1000).slices) == slices


@pytest.mark.parametrize(
    ("counts", "options", "parts"),
    [
        pytest.param(
            (50, 100, 99, 500, 3000), {"size_bounds": (100, 500)}, [[0, 2], [1], [3], [4]],
            id="packed ones on both sides of a bound share none",
        ),
        pytest.param((10, 2000, 10, 500, 400), {}, [[0, 2, 3, 4], [1]], id="tiny ones share across large ones"),
        pytest.param(
            (600, 300, 200, 900), {"slice_elements": 1000, "pack_below": 1000}, [[0, 1], [2], [3]],
            id="a full slice makes room for the next",
        ),
        pytest.param((0, 5, 0), {}, [[1]], id="none without elements"),
        pytest.param((0,), {}, [], id="nothing"),
    ],
)  # fmt: skip
def test_which_tensors_share_a_slice(counts, options, parts):
    slices = weights(*counts, **options).slices
    assert [[part.tensor for part in slice_.parts] for slice_ in slices] == parts
    assert [slice_.smallest_tensor for slice_ in slices] == [min(counts[n] for n in each) for each in parts]


def test_bounds_of_tensors_that_are_not_packed_leave_the_cuts_alone():
    counts = (450, 30, 150_000, 10, 250_000)
    assert weights(*counts, size_bounds=(1000, 200_000)).slices == weights(*counts).slices


def test_a_slice_has_a_bounded_number_of_parts():
    slices = weights(*[1] * (MOST_PARTS + 1)).slices
    assert [len(slice_.parts) for slice_ in slices] == [MOST_PARTS, 1]


def test_a_scalar_has_one_element_and_no_tensors_no_shards():
    (slice_,) = Layout((Tensor("scale", (), "float32"),)).slices
    assert slice_.elements == 1
    assert weights().shards(2) == ()


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
    ("tensors", "options", "message"),
    [
        ([Tensor("a", (1,), "float32"), Tensor("a", (2,), "float32")], {}, "found twice: a"),
        ([Tensor("a", (1,), "complex64")], {}, "complex64; allowed: float64"),
        ([Tensor("a", (2, -1), "float32")], {}, "negative extent"),
        ([], {"slice_elements": -1}, "slice_elements is -1"),
        ([], {"size_bounds": (200, 100)}, "numbers that rise"),
        ([], {"size_bounds": (100, 100)}, "numbers that rise"),
    ],
)
def test_models_and_cuts_that_cannot_be_are_refused(tensors, options, message):
    with pytest.raises(Unsupported, match=message):
        Layout(tuple(tensors), **options)


def test_packed_tensors_count_towards_the_most_slices(monkeypatch):
    monkeypatch.setattr("geomx.layout.MOST_SLICES", 3)
    tensors = tuple(Tensor(f"t{number}", (9,), "float32") for number in range(4))
    with pytest.raises(Unsupported, match="raise slice_elements"):
        Layout(tensors, pack_below=10, slice_elements=10).slices  # noqa: B018


def test_a_layout_from_a_stranger_cannot_fill_the_memory():
    with pytest.raises(Unsupported, match="raise slice_elements"):
        weights(2**40, slice_elements=1).slices  # noqa: B018

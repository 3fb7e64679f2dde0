import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from geomx.errors import Unsupported
from geomx.node.slices.accumulate import accumulator, float_ordered, int_ring

numbers = st.floats(-1e6, 1e6, width=32)


@given(st.lists(numbers, min_size=1, max_size=6))
def test_floats_are_added_from_left_to_right(terms):
    expected = torch.tensor(terms[0])
    for term in terms[1:]:
        expected = expected + torch.tensor(term)
    total = float_ordered.add([torch.tensor([term]) for term in terms])
    assert total.item() == expected.item()


@given(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=6), st.randoms())
def test_integers_wrap_and_their_order_does_not_matter(terms, random):
    expected = (sum(terms) + 2**63) % 2**64 - 2**63
    random.shuffle(terms)
    assert int_ring.add([torch.tensor([term]) for term in terms]).item() == expected


@pytest.mark.parametrize("adder", [float_ordered, int_ring])
@pytest.mark.parametrize("count", [1, 2, 3])
def test_terms_stay_as_they_are(adder, count):
    """A term may be a payload as it was received."""
    dtype = min(adder.dtypes, key=str)
    values = [torch.tensor([1, 2], dtype=dtype) * 10**place for place in range(count)]
    before = [value.clone() for value in values]
    total = adder.add(values)
    assert total.tolist() == [[1, 2], [11, 22], [111, 222]][count - 1]
    total.zero_()
    assert all(map(torch.equal, values, before))


def test_nothing_adds_up_to_none():
    assert float_ordered.add([]) is None


def test_a_domain_refuses_the_values_of_another():
    with pytest.raises(Unsupported, match=r"int_ring .* torch.float32"):
        int_ring.add([torch.zeros(1, dtype=torch.int64), torch.zeros(1)])


@pytest.mark.parametrize(
    ("dtype", "domain"),
    [(torch.float64, float_ordered), (torch.bfloat16, float_ordered), (torch.int64, int_ring)],
)
def test_a_dtype_has_one_domain(dtype, domain):
    assert accumulator(dtype) is domain


def test_a_dtype_without_a_domain_is_refused():
    with pytest.raises(Unsupported, match=r"torch.bool cannot be added"):
        accumulator(torch.bool)

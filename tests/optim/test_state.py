import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from geomx.errors import ProtocolError
from geomx.layout import Layout, Tensor
from geomx.optim.contract import SliceState
from geomx.optim.state import pack, unpack

PIECE = Layout(
    (Tensor("a", (3,), "float32"), Tensor("b", (1,), "float32"), Tensor("c", (2,), "float32"))
).slices[0]
SIZES = [part.elements for part in PIECE.parts]
numbers = st.floats(width=32, allow_nan=False)


@st.composite
def part_states(draw):
    """What torch could keep for each part: any subset of two planes and two numbers."""
    states = []
    for size in SIZES:
        state = {}
        for key in ("plane", "other plane"):
            if draw(st.booleans()):
                state[key] = torch.tensor(draw(st.lists(numbers, min_size=size, max_size=size)))
        for key in ("step", "mu_product"):
            if draw(st.booleans()):
                state[key] = torch.tensor(draw(numbers))
        states.append(state)
    return states


@given(part_states())
def test_unpack_undoes_pack(states):
    back = unpack(PIECE, pack(PIECE, states))
    assert [state.keys() for state in back] == [state.keys() for state in states]
    for ours, theirs in zip(back, states, strict=True):
        assert all(torch.equal(ours[key], theirs[key]) for key in theirs)


def test_none_is_no_value():
    assert pack(PIECE, [{"momentum_buffer": None}] * 3) == SliceState()


def test_a_plane_that_some_parts_lack_is_marked():
    packed = pack(PIECE, [{"buffer": torch.ones(3)}, {}, {"buffer": torch.zeros(2)}])
    assert packed.planes["buffer"].tolist() == [1, 1, 1, 0, 0, 0]
    first, second, third = packed.scalars["buffer"]
    assert (first, third) == (1.0, 1.0)
    assert math.isnan(second)


def test_a_plane_that_all_parts_hold_is_not_marked():
    packed = pack(PIECE, [{"buffer": torch.ones(size), "step": 2.0} for size in SIZES])
    assert packed.scalars == {"step": (2.0, 2.0, 2.0)}


def test_diverged_state_stays_as_it_is():
    packed = pack(PIECE, [{"buffer": torch.full((size,), math.nan)} for size in SIZES])
    assert [state["buffer"].isnan().sum().item() for state in unpack(PIECE, packed)] == list(SIZES)


@pytest.mark.parametrize(
    "wrong",
    [
        SliceState(planes={"exp_avg": torch.zeros(5)}),
        SliceState(planes={"exp_avg": torch.zeros(2, 3)}),
        SliceState(planes={"exp_avg": torch.zeros(6, dtype=torch.float64)}),
        SliceState(scalars={"step": (1.0, 2.0)}),
    ],
)
def test_the_state_of_another_slice_is_refused(wrong):
    with pytest.raises(ProtocolError, match="slice 0: optimizer state"):
        unpack(PIECE, wrong)


def test_numbers_are_kept_in_float64_where_that_is_the_default():
    torch.set_default_dtype(torch.float64)
    try:
        (state, *_) = unpack(PIECE, SliceState(scalars={"mu_product": (0.1, 0.2, 0.3)}))
    finally:
        torch.set_default_dtype(torch.float32)
    assert state["mu_product"].item() == 0.1

"""The erasure code: any k of k + m symbols give all, and parity is what the field's definition says."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from random import Random

import pytest
from exploring import examples
from hypothesis import example, given
from hypothesis import strategies as st

from geomx.wire.flow.erasure import MOST_SYMBOLS, decode, encode


def product(a: int, b: int) -> int:
    """In GF(2^8) with the polynomial 0x11D: multiplied without carries, and divided with remainder."""
    total = 0
    for place in range(8):
        if b >> place & 1:
            total ^= a << place
    for place in range(14, 7, -1):
        if total >> place & 1:
            total ^= 0x11D << place - 8
    return total


def parity_of(symbols: Sequence[bytes], place: int) -> bytes:
    """Σ d_i / (128 + place + i): slow, and from the definition alone."""
    made = bytearray(len(symbols[0]))
    for number, symbol in enumerate(symbols):
        factor = next(f for f in range(256) if product(f, 128 + place ^ number) == 1)
        for at, value in enumerate(symbol):
            made[at] ^= product(factor, value)
    return bytes(made)


def symbols_of(count: int, size: int, seed: int = 1) -> list[bytes]:
    chance = Random(seed)
    return [chance.randbytes(size) for _ in range(count)]


def test_parity_of_known_symbols_is_known() -> None:
    """1/128 = 27 and 1/129 = 84 in this field: 128 · 27 = 1 = 129 · 84."""
    assert (product(128, 27), product(129, 84)) == (1, 1)
    assert encode([b"\1\0", b"\0\1"], 2) == [bytes([27, 84]), bytes([84, 27])]


@pytest.mark.parametrize("count", [1, 2, 7, MOST_SYMBOLS])
def test_parity_is_what_slow_multiplication_makes(count: int) -> None:
    symbols = symbols_of(count, 5)
    made = encode(symbols, MOST_SYMBOLS)
    assert [made[place] for place in (0, 1, 77, 127)] == [
        parity_of(symbols, place) for place in (0, 1, 77, 127)
    ]


def test_all_products_are_those_of_the_field() -> None:
    """Each coefficient by each value: a symbol of all values makes 255 products visible at once."""
    values = bytes(range(256))
    factors = set()
    for number in range(MOST_SYMBOLS):
        symbols = [bytes(256)] * number + [values]
        for place in range(0, MOST_SYMBOLS, 1 if number < 2 else MOST_SYMBOLS):
            (made,) = encode(symbols, 1, place)
            assert made == bytes(product(made[1], value) for value in values)
            assert product(made[1], 128 + place ^ number) == 1
            factors.add(made[1])
    assert len(factors) == 128


@pytest.mark.parametrize("count", range(1, 6))
def test_every_pattern_of_loss_in_small_groups(count: int) -> None:
    symbols = symbols_of(count, 9)
    everything = [*symbols, *encode(symbols, count)]
    for chosen in combinations(range(2 * count), count):
        assert decode({place: everything[place] for place in chosen}, count) == symbols


@examples(20)
@given(st.randoms(use_true_random=False), st.integers(1, MOST_SYMBOLS), st.integers(1, 1500))
@example(Random(1), MOST_SYMBOLS, 1500)
def test_random_patterns_of_loss_whatever_the_order(chance: Random, count: int, size: int) -> None:
    symbols = symbols_of(count, size, chance.randrange(1 << 30))
    parities = chance.randint(0, MOST_SYMBOLS)
    everything = [*symbols, *encode(symbols, parities)]
    chosen = chance.sample(range(len(everything)), count)
    assert decode({place: everything[place] for place in chosen}, count) == symbols


@examples(20)
@given(st.data(), st.integers(1, MOST_SYMBOLS), st.integers(1, 40))
def test_parity_does_not_depend_on_what_else_is_made(data: st.DataObject, count: int, size: int) -> None:
    symbols = symbols_of(count, size)
    made = encode(symbols, MOST_SYMBOLS)
    first = data.draw(st.integers(0, MOST_SYMBOLS - 1))
    stop = data.draw(st.integers(first, MOST_SYMBOLS))
    assert encode(symbols, stop - first, first) == made[first:stop]
    assert encode(symbols, 1, first) == [made[first]]


@pytest.mark.parametrize(
    ("symbols", "parities", "first"),
    [([], 1, 0), ([b"1"] * 129, 1, 0), ([b"1"], 129, 0), ([b"1"], 2, 127), ([b"1"], 1, -1), ([b"1"], -1, 1)],
)
def test_more_than_the_code_has_room_for_is_refused(symbols: list[bytes], parities: int, first: int) -> None:
    with pytest.raises(ValueError, match="at most 128"):
        encode(symbols, parities, first)


@pytest.mark.parametrize(
    ("known", "count"), [({}, 0), ({0: b"1"}, 2), ({0: b"1", 1: b"2"}, 1), ({-1: b"1"}, 1), ({129: b"1"}, 1)]
)
def test_symbols_that_cannot_be_enough_are_refused(known: dict[int, bytes], count: int) -> None:
    with pytest.raises(ValueError, match="cannot be rebuilt"):
        decode(known, count)


def test_symbols_of_different_lengths_are_refused() -> None:
    with pytest.raises(ValueError, match="same length"):
        encode([b"12", b"1", b"123"], 1)
    with pytest.raises(ValueError, match="same length"):
        decode({0: b"1", 2: b"12"}, 2)

"""Bundles on the wire: what is given comes back, several become one, and nonsense is refused."""

from __future__ import annotations

import msgspec
import pytest
import torch

from geomx.codecs.bundle import DTYPES, Bundle, Bundles, Entry, combined
from geomx.errors import Disagreement, ProtocolError
from geomx.layout import Layout, Tensor

SLICE = Layout((Tensor("calls", (9,), "uint8", role="call"),)).slices[0]
CODEC = Bundles()


def bundle(*given: tuple[Entry, torch.Tensor]) -> Bundle:
    return Bundle(tuple(entry for entry, _ in given), tuple(array.reshape(-1) for _, array in given))


def entry(name: str, op: str, array: torch.Tensor, origin: str = "") -> tuple[Entry, torch.Tensor]:
    dtype = str(array.dtype).removeprefix("torch.")
    return Entry(name, op, dtype, tuple(array.shape), origin), array  # type: ignore[arg-type]


def test_every_type_and_shape_comes_back() -> None:
    shapes = [(), (0,), (3,), (2, 0, 5), (3, 5)]
    given = [
        entry(f"{dtype}{shape}", "sum", (torch.randn(shape) * 9).to(getattr(torch, dtype)))
        for dtype in sorted(DTYPES)
        for shape in shapes
    ]
    whole = bundle(*given)
    payload = CODEC.encode(SLICE, 0, whole)
    assert CODEC.accepts(SLICE, payload.numel())
    back = CODEC.decode(SLICE, payload)
    assert back.entries == whole.entries
    for mine, theirs in zip(back.arrays, whole.arrays, strict=True):
        assert mine.dtype == theirs.dtype
        assert torch.equal(mine, theirs)


def test_several_become_one_in_the_order_in_which_they_are_given() -> None:
    x = [torch.tensor([1e16, 3.0], dtype=torch.float64), torch.tensor([1.0, -5.0], dtype=torch.float64)]
    x.append(torch.tensor([-1e16, 4.0], dtype=torch.float64))
    given = [
        bundle(
            entry("s", "sum", values),
            entry("m", "max", values),
            entry("n", "min", values),
            entry("g", "gather", values[: 1 + place % 2], f"A/{place}"),
            *([entry("f", "first", values)] if place else []),
        )
        for place, values in enumerate(x)
    ]
    made = combined(given)
    found = dict(zip((each.key for each in made.entries), made.arrays, strict=True))
    counts = {each.name: each.count for each in made.entries}
    assert torch.equal(found["s", ""], x[0] + x[1] + x[2])
    assert torch.equal(found["m", ""], torch.tensor([1e16, 4.0], dtype=torch.float64))
    assert torch.equal(found["n", ""], torch.tensor([-1e16, -5.0], dtype=torch.float64))
    assert torch.equal(found["f", ""], x[1])
    assert [len(found["g", f"A/{place}"]) for place in range(3)] == [1, 2, 1]
    assert counts["s"] == 3
    assert torch.equal(x[0], torch.tensor([1e16, 3.0], dtype=torch.float64))  # stays as it was


@pytest.mark.parametrize(
    "other",
    [
        bundle(entry("s", "sum", torch.zeros(4))),
        bundle(entry("s", "max", torch.zeros(3))),
        bundle(entry("s", "sum", torch.zeros(3, dtype=torch.float64))),
        bundle(entry("t", "sum", torch.zeros(3))),
        bundle(),
        bundle(entry("s", "gather", torch.zeros(3))),
    ],
)
def test_calls_that_differ_are_told(other: Bundle) -> None:
    with pytest.raises(Disagreement, match="same calls in the same order"):
        combined([bundle(entry("s", "sum", torch.zeros(3))), other])


WHOLE = CODEC.encode(
    SLICE, 0, bundle(entry("s", "sum", torch.arange(5.0)), entry("t", "max", torch.zeros(2)))
)


def changed(place: int, value: int) -> torch.Tensor:
    payload = WHOLE.clone()
    payload[place] = value
    return payload


@pytest.mark.parametrize(
    "payload",
    [
        torch.zeros(0, dtype=torch.uint8),
        torch.zeros(8, dtype=torch.uint8),
        torch.zeros(64, dtype=torch.uint8),
        WHOLE[:-8],
        torch.cat((WHOLE, torch.zeros(8, dtype=torch.uint8))),
        changed(0, 255),
        changed(7, 127),  # a head of more bytes than there are
        changed(8, 1),  # nor is that
        changed(16, 0xC1),  # no msgpack
        changed(16, 0x91),
    ],
)
def test_what_nobody_can_have_encoded_is_refused(payload: torch.Tensor) -> None:
    with pytest.raises(ProtocolError):
        CODEC.decode(SLICE, payload)


@pytest.mark.parametrize(
    "bad",
    [
        Entry("s", "sum", "float31", (5,)),
        Entry("s", "sum", "float32", (-5,)),
        Entry("s", "sum", "float32", (1 << 40,)),
        Entry("s", "sum", "float32", (1 << 28, 1 << 28, 1 << 28)),
        Entry("s", "sum", "float32", (1,) * 65),
        Entry("s", "sum", "float32", (5,), count=0),
    ],
)
def test_entries_that_cannot_be_are_refused(bad: Entry) -> None:
    head = msgspec.msgpack.encode((bad,))
    payload = torch.zeros(8 + -(-len(head) // 8) * 8 + 24, dtype=torch.uint8)
    payload[:8].view(torch.int64)[0] = len(head)
    payload[8 : 8 + len(head)] = torch.frombuffer(bytearray(head), dtype=torch.uint8)
    with pytest.raises(ProtocolError):
        CODEC.decode(SLICE, payload)

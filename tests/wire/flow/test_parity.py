"""Parity pieces: any k of k + m rebuild a group, what was rebuilt is not sent again, and nonsense is refused."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil

import msgspec
import pytest
from exploring import examples
from hypothesis import given
from hypothesis import strategies as st

from geomx.errors import ProtocolError
from geomx.wire.flow import receiver as receiver_module
from geomx.wire.flow.inbox import LEAST_PIECE_BYTES, Delivered
from geomx.wire.flow.packets import MOST_BLOCKS, MOST_IN_GROUP, PIECE_COST_BYTES, Parity, Piece, unpack
from geomx.wire.flow.parity import GroupOut, groups
from geomx.wire.flow.receiver import FlowReceiver
from geomx.wire.flow_messages import Beside
from geomx.wire.messages import Push, Reading
from geomx.wire.presence import pack

LOAD = 3


def message(blocks: Sequence[bytes], load: int) -> Push:
    size = sum(map(len, blocks))
    most = LEAST_PIECE_BYTES * size  # so that every byte may be a piece
    beside = Beside(load, len(blocks), pack([True] * len(blocks)), most)
    return Push(1, 0, "gradient", "step()", 1.0, {"A/0": 1}, None, b"", Reading(), size=size, beside=beside)


def pieces_of(blocks: Sequence[bytes], step: int) -> list[Piece]:
    """Each block in pieces of at most `step` bytes."""
    made = []
    for number, block in enumerate(blocks):
        parts = [block[start : start + step] for start in range(0, len(block), step)]
        made += [
            Piece(LOAD, number, place, len(parts), 0, 10 * number, 10 * number + 10, part)
            for place, part in enumerate(parts)
        ]
    return made


def parities_of(pieces: Sequence[Piece], share: float) -> list[Parity]:
    """Those of a load with one group, as they are on the wire."""
    (group,) = groups(pieces)
    out = GroupOut[None](group)
    out.items = [None] * len(group)
    made = [unpack(parity.pack()) for parity in out.more(ceil(share * len(group)))]
    return [parity for parity in made if isinstance(parity, Parity)]


def blocks_of(count: int, size: int) -> list[bytes]:
    return [bytes((7 * number + place) % 251 for place in range(size)) for number in range(count)]


def opened(blocks: Sequence[bytes]) -> FlowReceiver:
    receiver = FlowReceiver()
    announce(receiver, blocks)
    return receiver


def announce(receiver: FlowReceiver, blocks: Sequence[bytes], load: int = LOAD) -> None:
    push = message(blocks, load)
    assert push.beside is not None
    receiver.announced(1, push, push.beside, 0.0)


def closed(receiver: FlowReceiver) -> list[Delivered]:
    return list(receiver.closed(0.0))


def rebuilt(receiver: FlowReceiver) -> list[bytes]:
    """The blocks of the load that closes now."""
    (delivery,) = receiver.closed(0.0)
    return [bytes(block.data) for block in delivery.payload.blocks]


def received(receiver: FlowReceiver, packets: Sequence[Piece | Parity]) -> list[bool]:
    """Which of these are taken."""
    return [bool(receiver.received(number, packet, 0.0)) for number, packet in enumerate(packets)]


@examples(60)
@given(st.data(), st.integers(1, 3), st.integers(1, 30), st.sampled_from([0.01, 0.3, 1.0]))
def test_any_k_of_k_plus_m_rebuild_the_group(
    data: st.DataObject, step: int, count: int, share: float
) -> None:
    """Whatever their order, and also where all but one come before the header."""
    pieces_each = data.draw(st.integers(1, 3))
    sizes = data.draw(
        st.lists(
            st.integers((pieces_each - 1) * step + 1, pieces_each * step), min_size=count, max_size=count
        )
    )
    blocks = [data.draw(st.binary(min_size=size, max_size=size)) for size in sizes]
    pieces = pieces_of(blocks, step)
    everything = [*pieces, *parities_of(pieces, share)]
    chosen = data.draw(st.permutations(everything))[: len(pieces)]
    early = data.draw(st.integers(0, len(chosen) - 1))
    receiver = FlowReceiver()
    for number, packet in enumerate(chosen[:early]):
        assert receiver.received(number, packet, 0.0)
    announce(receiver, blocks)
    for number, packet in enumerate(chosen[early:], early):
        assert not closed(receiver)
        assert receiver.received(number, packet, 0.0)
    (delivery,) = closed(receiver)
    assert [bytes(block.data) for block in delivery.payload.blocks] == blocks
    assert [(b.start, b.stop) for b in delivery.payload.blocks] == [
        (10 * n, 10 * n + 10) for n in range(count)
    ]
    assert receiver.rebuilt == sum(not isinstance(packet, Piece) for packet in chosen)


def test_groups_are_even_and_have_blocks_of_equally_many_pieces() -> None:
    pieces = pieces_of([*blocks_of(300, 10), *blocks_of(100, 20), *blocks_of(1, 10 * MOST_IN_GROUP + 1)], 10)
    found = [(len(group), group[0].pieces) for group in groups(pieces)]
    assert found == [*[(100, 1)] * 3, *[(100, 2)] * 2, (MOST_IN_GROUP + 1, MOST_IN_GROUP + 1)]


def test_reliable_blocks_form_groups_across_others_which_form_groups_in_a_row() -> None:
    levels = [0, 1, 1, 0, 2, 0, 1]
    pieces = [
        piece._replace(level=level)
        for piece, level in zip(pieces_of(blocks_of(7, 10), 10), levels, strict=True)
    ]
    found = [[piece.block for piece in group] for group in groups(pieces)]
    assert sorted(found) == [[0, 3, 5], [1, 2], [4], [6]]


def test_a_group_may_reach_from_the_first_block_to_the_last() -> None:
    ends = [Piece(LOAD, block, 0, 1, 0, block, block + 1, b"x") for block in (0, MOST_BLOCKS - 1)]
    (parity,) = parities_of(ends, 0.5)
    assert (parity.block, parity.blocks) == (0, MOST_BLOCKS)


BLOCKS = blocks_of(6, 20)
PIECES = pieces_of(BLOCKS, 20)
PARITY = parities_of(PIECES, 0.5)[0]


@pytest.mark.parametrize(
    ("parity", "match"),
    [
        (PARITY._replace(block=1), "of a load of 6"),
        (PARITY._replace(data=bytes(PARITY.data)[:-1]), "in a group whose parity pieces have 28"),
        (PARITY._replace(data=bytes(len(PARITY.data))), "fit none"),
        (PARITY._replace(data=bytes(5)), "in a group whose parity pieces have 5"),
        (PARITY._replace(blocks=3, pieces=2), "did not come in 2 pieces"),
    ],
)
def test_parity_that_does_not_fit_is_refused(parity: Parity, match: str) -> None:
    receiver = opened(BLOCKS)
    received(receiver, PIECES[1:])
    with pytest.raises(ProtocolError, match=match):
        receiver.received(9, parity, 0.0)


@pytest.mark.parametrize("size", [0, 1, 7, 8, 9])
def test_parity_too_short_for_any_piece_is_refused(size: int) -> None:
    """Also where nothing else has come of its group."""
    with pytest.raises(ProtocolError, match="fit none"):
        opened(blocks_of(1, 20)).received(0, Parity(LOAD, 0, 1, 1, 0, 0, b"\1" * size), 0.0)


@pytest.mark.parametrize(
    "other",
    [
        PARITY._replace(parity=1, data=bytes(4)),
        PARITY._replace(parity=1, blocks=5),
        PARITY._replace(block=2, blocks=3),
    ],
)
def test_parity_of_two_groups_for_one_block_is_refused(other: Parity) -> None:
    receiver = opened(BLOCKS)
    receiver.received(0, PARITY, 0.0)
    with pytest.raises(ProtocolError, match=r"two groups|another group"):
        receiver.received(1, other, 0.0)


@pytest.mark.parametrize("changed", [{"parity": MOST_IN_GROUP}, {"level": 2}, {"blocks": 0}, {"pieces": 0}])
def test_counts_that_no_code_has_are_refused(changed: dict[str, int]) -> None:
    with pytest.raises(ProtocolError):
        unpack(PARITY._replace(**changed).pack())
    with pytest.raises(ProtocolError):
        unpack(PARITY.pack()[:8])


def test_what_is_missing_is_counted_right_where_a_piece_was_refused() -> None:
    """A piece that is larger than what is left of its load changes nothing."""
    pieces = pieces_of(blocks_of(2, 2800), 1400)
    first, *others = parities_of(pieces, 0.75)
    push = message(blocks_of(2, 10), LOAD)
    assert push.beside is not None
    receiver = FlowReceiver()
    receiver.announced(1, push, msgspec.structs.replace(push.beside, size=2799), 0.0)
    receiver.received(0, first, 0.0)
    receiver.received(1, pieces[0], 0.0)
    with pytest.raises(ProtocolError, match="more bytes than were announced"):
        receiver.received(2, pieces[1], 0.0)
    receiver.received(3, others[0], 0.0)
    with pytest.raises(ProtocolError, match="more bytes than were announced"):
        receiver.received(4, others[1], 0.0)  # now that is rebuilt


def test_of_a_block_that_is_whole_its_pieces_stand_in_for_others() -> None:
    """Pieces of different lengths, of blocks that came in several."""
    blocks = [*blocks_of(2, 25), *blocks_of(1, 30)]
    pieces = pieces_of(blocks, 10)
    receiver = opened(blocks)
    received(receiver, [*pieces[:7], *parities_of(pieces, 1.0)[7:]])
    assert rebuilt(receiver) == blocks
    assert receiver.rebuilt == 2


def room(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    """For so many parity pieces."""
    monkeypatch.setattr(receiver_module, "PARITY_BYTES", count * (len(PARITY.data) + PIECE_COST_BYTES))


def test_parity_for_which_there_is_no_room_is_not_acknowledged(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor kept; there is room again as soon as some was used, or its load has closed."""
    room(monkeypatch, 2)
    receiver, three = opened(BLOCKS), parities_of(PIECES, 0.5)
    assert received(receiver, three) == [True, True, False]
    assert all(receiver.received(number, piece, 0.0) for number, piece in enumerate(PIECES[:4], 3))
    assert rebuilt(receiver) == BLOCKS
    assert receiver.received(8, three[2], 0.0)
    for load in (LOAD + 1, LOAD + 2):
        receiver.forget(load)
        announce(receiver, BLOCKS, load)
        assert receiver.received(10 * load, three[0]._replace(load=load), 0.0)
        assert receiver.received(10 * load + 1, three[1]._replace(load=load), 0.0)


def test_parity_that_came_before_its_header_takes_room_for_parity(monkeypatch: pytest.MonkeyPatch) -> None:
    """So what was acknowledged then is kept, and headers do not make room for more and more."""
    room(monkeypatch, 2)
    first, second, third = parities_of(PIECES, 0.5)
    receiver = FlowReceiver()
    assert received(receiver, [first, second._replace(load=LOAD + 1), third]) == [True, True, False]
    announce(receiver, BLOCKS)
    assert not receiver.received(2, third, 0.0)
    receiver.forget(LOAD + 2)
    announce(receiver, BLOCKS, LOAD + 2)
    again = [packet._replace(load=LOAD + 2) for packet in (first, second, third)]
    taken = [bool(receiver.received(number, packet, 0.0)) for number, packet in enumerate(again, 3)]
    assert taken == [True, True, False]


def test_what_is_sent_again_are_pieces_until_as_many_are_under_way_as_are_needed() -> None:
    group = GroupOut[int](PIECES)
    group.items = list(range(9))  # three are of parity pieces
    assert not any(group.came(place) for place in range(2, 6))
    assert [group.lost(0), group.lost(1)] == [[], []]
    assert not group.came(0)  # it was overtaken: one more is needed, and three parity pieces are under way
    assert [group.lost(6), group.lost(7)] == [[], []]
    assert group.lost(8) == [1]
    assert group.lost(1) == [1]
    assert not group.came(0)
    assert group.came(7)
    assert group.lost(1) == []

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
from geomx.wire.flow.congestion import Congestion
from geomx.wire.flow.ends import FlowEnd
from geomx.wire.flow.inbox import LEAST_PIECE_BYTES, Delivery
from geomx.wire.flow.outbox import BlockOut, FlowTerms
from geomx.wire.flow.packets import (
    MOST_BLOCKS,
    MOST_IN_GROUP,
    PIECE_COST_BYTES,
    Ack,
    Head,
    Parity,
    Piece,
    Tail,
    unpack,
)
from geomx.wire.flow.parity import GroupOut, groups
from geomx.wire.flow.receiver import FlowReceiver
from geomx.wire.flow.sender import FlowSender
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


def closed(receiver: FlowReceiver) -> list[Delivery]:
    return list(receiver.closed(0.0))


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
    for number, piece in enumerate(PIECES[1:]):
        receiver.received(number, piece, 0.0)
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


@pytest.mark.parametrize(
    "changed",
    [{"parity": MOST_IN_GROUP}, {"level": 2}, {"blocks": 0}, {"pieces": 0}],
)
def test_counts_that_no_code_has_are_refused(changed: dict[str, int]) -> None:
    with pytest.raises(ProtocolError):
        unpack(PARITY._replace(**changed).pack())
    with pytest.raises(ProtocolError):
        unpack(PARITY.pack()[:8])


def test_an_end_takes_parity_although_nothing_was_agreed_on() -> None:
    end = FlowEnd(Congestion(1500), FlowTerms(), lambda message: None, 0.0, dials=False)
    announce(end.receiver, BLOCKS)
    for number, packet in enumerate([*PIECES[1:], PARITY]):
        end.received(number, packet.pack(), 0.0)
    (delivery,) = end.closed(0.0)
    assert [bytes(block.data) for block in delivery.payload.blocks] == BLOCKS


def test_parity_that_was_made_later_rebuilds_with_what_was_made_first() -> None:
    first, later = parities_of(PIECES, 0.1)[0], parities_of(PIECES, 1.0)[5]
    assert (first.parity, later.parity) == (0, 5)
    receiver = opened(BLOCKS)
    for number, packet in enumerate([*PIECES[2:], first, later]):
        receiver.received(number, packet, 0.0)
    (delivery,) = closed(receiver)
    assert [bytes(block.data) for block in delivery.payload.blocks] == BLOCKS


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
    for number, packet in enumerate([*pieces[:7], *parities_of(pieces, 1.0)[7:]]):
        receiver.received(number, packet, 0.0)
    (delivery,) = closed(receiver)
    assert [bytes(block.data) for block in delivery.payload.blocks] == blocks
    assert receiver.rebuilt == 2


def test_parity_for_which_there_is_no_room_is_not_acknowledged(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor kept; there is room again as soon as some was used."""
    first, second, third = parities_of(PIECES, 0.5)
    monkeypatch.setattr(receiver_module, "PARITY_BYTES", 2 * (len(first.data) + PIECE_COST_BYTES))
    receiver = opened(BLOCKS)
    assert receiver.received(0, first, 0.0)
    assert receiver.received(1, second, 0.0)
    assert not receiver.received(2, third, 0.0)
    for number, piece in enumerate(PIECES[:4], 3):
        assert receiver.received(number, piece, 0.0)
    (delivery,) = closed(receiver)
    assert [bytes(block.data) for block in delivery.payload.blocks] == BLOCKS
    assert receiver.received(8, third, 0.0)


def test_what_was_kept_of_a_load_that_has_closed_takes_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(receiver_module, "PARITY_BYTES", len(PARITY.data) + PIECE_COST_BYTES)
    receiver = opened(BLOCKS)
    assert receiver.received(0, PARITY, 0.0)
    receiver.forget(LOAD + 1)
    announce(receiver, BLOCKS, LOAD + 1)
    assert receiver.received(1, PARITY._replace(load=LOAD + 1), 0.0)


def test_parity_that_came_before_its_header_takes_room_for_parity(monkeypatch: pytest.MonkeyPatch) -> None:
    """So what was acknowledged then is kept, and headers do not make room for more and more."""
    first, second, third = parities_of(PIECES, 0.5)
    monkeypatch.setattr(receiver_module, "PARITY_BYTES", 2 * (len(first.data) + PIECE_COST_BYTES))
    receiver = FlowReceiver()
    assert receiver.received(0, first, 0.0)
    assert receiver.received(1, second._replace(load=LOAD + 1), 0.0)
    assert not receiver.received(2, third, 0.0)
    announce(receiver, BLOCKS)
    assert not receiver.received(2, third, 0.0)
    receiver.forget(LOAD + 2)
    announce(receiver, BLOCKS, LOAD + 2)
    assert receiver.received(3, first._replace(load=LOAD + 2), 0.0)
    assert receiver.received(4, second._replace(load=LOAD + 2), 0.0)
    assert not receiver.received(5, third._replace(load=LOAD + 2), 0.0)


# -- the sender ----------------------------------------------------------------------------------------------------


class Sending:
    """A sender of one load of eight blocks with two parity pieces, and what has left."""

    def __init__(self) -> None:
        self.sender = FlowSender(Congestion(1500), FlowTerms(parity_share=0.25))
        blocks = [BlockOut(n, n + 1, memoryview(data), 0) for n, data in enumerate(blocks_of(8, 20))]
        self.sender.add(1, b"head", blocks, 1, 1000, 0.0)
        self.sent = self.leaving(0.0)
        self.came: set[int] = set()

    def leaving(self, now: float) -> list[tuple[int, object]]:
        left = []
        while (datagram := self.sender.next(now)) is not None:
            left.append((datagram[0], unpack(datagram[1])))
        return left

    def acknowledge(self, numbers: Sequence[int], now: float) -> list[object]:
        """These and those before have come. Returns what leaves then, without tails."""
        self.came |= set(numbers)
        runs = tuple((number, number) for number in sorted(self.came, reverse=True))
        self.sender.acknowledged(Ack(0.0, 0, 0, runs), now)
        return [packet for _, packet in self.leaving(now) if not isinstance(packet, Tail)]

    def numbers(self, lost: int) -> list[int]:
        """All but the first so many pieces."""
        pieces = [number for number, packet in self.sent if isinstance(packet, Piece)]
        return [number for number, _ in self.sent if number not in pieces[:lost]]


def test_parity_leaves_once_behind_its_group() -> None:
    """And the header once more, as nothing else is left to be sent."""
    kinds = [type(packet) for _, packet in Sending().sent]
    assert kinds == [Head, *[Piece] * 8, Tail, *[Parity] * 2, Head]


@pytest.mark.parametrize("lost", [1, 2])
def test_what_parity_has_rebuilt_is_not_sent_again(lost: int) -> None:
    sending = Sending()
    assert not sending.acknowledge(sending.numbers(lost), 0.1)
    assert not sending.sender.again


def test_while_parity_is_under_way_nothing_is_sent_again() -> None:
    sending = Sending()
    pieces = [number for number, packet in sending.sent if isinstance(packet, Piece)]
    assert not sending.acknowledge([0, *pieces[2:]], 0.1)
    parities = [number for number, packet in sending.sent if isinstance(packet, Parity)]
    assert not sending.acknowledge(parities[:1], 0.11)
    sending.sender.time_out(5.0)  # the other parity piece is lost
    (again,) = {packet.block for _, packet in sending.leaving(5.0) if isinstance(packet, Piece)}
    assert again in (0, 1)


def test_only_so_many_pieces_are_sent_again_as_parity_cannot_rebuild() -> None:
    sending = Sending()
    again = {
        packet.block for packet in sending.acknowledge(sending.numbers(4), 0.1) if isinstance(packet, Piece)
    }
    assert len(again) == 2


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


def test_what_waits_to_be_sent_again_is_not_sent_once_the_group_is_rebuilt() -> None:
    sending = Sending()
    numbers = sending.numbers(3)
    sending.sender.acknowledged(Ack(0.0, 0, 0, tuple((n, n) for n in reversed(numbers))), 0.1)
    sending.came = set(numbers)
    (second,) = [n for n, packet in sending.sent if isinstance(packet, Piece) and packet.block == 1]
    assert not sending.acknowledge([second], 0.101)


def test_pieces_that_were_only_overtaken_count() -> None:
    sending = Sending()
    numbers = sending.numbers(3)
    (again,) = {p.block for p in sending.acknowledge(numbers, 0.1) if isinstance(p, Piece)}
    late = next(n for n, p in sending.sent if isinstance(p, Piece) and p.block not in (again, *range(3, 8)))
    assert not sending.acknowledge([late], 0.101)
    sending.sender.time_out(9.0)
    assert not [p for _, p in sending.leaving(9.0) if isinstance(p, Piece)]

"""Both ends of a flow joined: what goes beside the connection, and what comes back onto it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from heapq import heappop, heappush
from math import inf
from random import Random

import msgspec
import pytest

from geomx.errors import ProtocolError
from geomx.wire.flow import ends as ends_module
from geomx.wire.flow import sender as sender_module
from geomx.wire.flow.congestion import Congestion
from geomx.wire.flow.ends import LOOK_EVERY_S, SILENT_S, STUCK_S, Carried, FlowEnd, OnConnection, Outgoing
from geomx.wire.flow.inbox import Delivered
from geomx.wire.flow.outbox import BlockOut, FlowTerms
from geomx.wire.flow.packets import MOST_BLOCKS, MOST_OPEN, Head, Piece, Probe, Probed, Receipt, unpack
from geomx.wire.flow.path import LIMIT_S, RETRY_S, SIZES
from geomx.wire.flow.sender import MOST_LARGE_LOST
from geomx.wire.messages import Ack as Acknowledged
from geomx.wire.messages import Beside, FlowBroken, Message, Push, Reading, Update, encode_head

TRIP_S, ENVELOPE_BYTES = 0.1, 54
PUSH = Push(1, 0, "gradient", "step()", 1.0, {"A/0": 1}, None, b"", Reading())
UPDATE = Update(1, 0, "gradient", 1.0, None, Reading())


def block(place: int, level: int = 0, size: int = 1000) -> BlockOut:
    return BlockOut(place, place + 1, memoryview(bytes([place % 256]) * size), level)


class Side:
    """An end, and what has come of it. `passes`: which of its datagrams reach the other end.

    `held`: what its connection carries only when `Both.release` is called; None: nothing is held back.
    """

    def __init__(self, terms: FlowTerms, dials: bool) -> None:
        self.admitted: list[Message] = []
        congestion = Congestion(SIZES[0] + ENVELOPE_BYTES)
        self.end = FlowEnd(congestion, terms, self.admitted.append, 0.0, dials=dials)
        self.passes: Callable[[bytes], bool] = lambda body: True
        self.delivered: list[Delivered] = []
        self.headers: list[OnConnection] = []
        self.fallen_back: list[OnConnection] = []
        self.held: list[OnConnection] | None = None
        self.came: list[int] = []  # messages, whichever way


class Both:
    """Two ends, and a network between them that carries what passes, in half a round trip; connections take no time."""

    def __init__(self, terms: FlowTerms | None = None, announces: bool = True) -> None:
        self.now = 0.0
        self.mine, self.theirs = (Side(terms or FlowTerms(), dials) for dials in (True, False))
        self.announces = announces
        self.heard_at = 0.0  # on the connection, beside what a test writes
        self.is_cut = False
        self.sizes: list[int] = []
        self._coming: list[tuple[float, int, Callable[[], None]]] = []

    def filter(self, passes: Callable[[bytes], bool]) -> None:
        """In both directions."""
        self.mine.passes = self.theirs.passes = passes

    def write(self, number: int, blocks: list[BlockOut], slice_: int | None = None) -> Push | None:
        """The header that goes over the connection; None: the connection has to carry all."""
        payload = b"".join(each.data for each in blocks)
        message = msgspec.structs.replace(PUSH, slice=number if slice_ is None else slice_, size=len(payload))
        if not self.mine.end.write(Outgoing(OnConnection(number, message, payload, 1), blocks), self.now):
            return None
        self._over_the_connection(self.mine, self.theirs)
        headers = [each.message for each in self.mine.headers if each.number == number]
        assert all(isinstance(header, Push) for header in headers)
        return headers[-1] if headers else message  # type: ignore[return-value]

    def write_whole(self, side: Side, number: int, payload: bytes, slice_: int) -> bool:
        """An update on its way down, or up."""
        return side.end.write(update(number, payload, slice_), self.now)

    def step(self) -> None:
        """What is due now, at both ends."""
        self.heard_at = self.heard_at if self.is_cut else self.now
        for side, other in ((self.mine, self.theirs), (self.theirs, self.mine)):
            for number, body in side.end.datagrams(self.now, ENVELOPE_BYTES, 1000):
                self.sizes.append(len(body))
                if side.passes(body):
                    arrive = partial(self._arrive, other, number, body)
                    heappush(self._coming, (self.now + TRIP_S / 2, len(self.sizes), arrive))
            self._over_the_connection(side, other)
            self._hand_on(side)

    def _hand_on(self, side: Side) -> None:
        closed = list(side.end.closed(self.now))
        side.delivered += closed
        side.came += [each.number for each in closed]
        assert not side.end.why_stuck(self.now, self.heard_at)

    def _arrive(self, side: Side, number: int, body: bytes) -> None:
        side.end.received(number, body, self.now)

    def _over_the_connection(self, side: Side, other: Side) -> None:
        for each in side.end.to_write(self.now, self.heard_at):
            self.carry(side, other, each)

    def carry(self, side: Side, other: Side, each: OnConnection) -> None:
        """What a connection is given."""
        if side.held is not None:
            side.held.append(each)
        elif isinstance(each.message, FlowBroken):
            other.end.broken(each.message)
        elif isinstance(each.message, Carried) and each.message.beside is None:
            side.fallen_back.append(each)
            other.came.append(each.number)
        else:
            side.headers.append(each)
            if self.announces:
                assert isinstance(each.message, Carried)
                other.end.announced(each.number, each.message, self.now)
                self._hand_on(other)

    def release(self, side: Side, other: Side) -> None:
        """What is held back comes: the most urgent first, and in order (see `geomx.wire.lanes`)."""
        held, side.held = side.held, None
        for each in sorted(held or [], key=lambda each: each.priority):
            self.carry(side, other, each)

    def run(self, until: float, while_: Callable[[], bool] = lambda: True) -> None:
        while while_():
            self.step()
            coming = self._coming[0][0] if self._coming else inf
            due_at = min(coming, self.mine.end.next_at(), self.theirs.end.next_at())
            if due_at > until:
                self.now = until
                return
            self.now = max(self.now, due_at)
            while self._coming and self._coming[0][0] <= self.now:
                heappop(self._coming)[2]()

    def open(self) -> None:
        """Until datagrams pass both ways."""
        self.run(self.now + 40.0, lambda: not (self.mine.end.path.is_open and self.theirs.end.path.is_open))
        assert self.mine.end.path.is_open
        assert self.theirs.end.path.is_open


def opened(terms: FlowTerms | None = None, announces: bool = True) -> Both:
    """Datagrams pass both ways."""
    both = Both(terms, announces)
    both.open()
    return both


def update(number: int, payload: bytes | None, slice_: int) -> Outgoing:
    message = msgspec.structs.replace(UPDATE, slice=slice_, size=len(payload or b""))
    return Outgoing(OnConnection(number, message, payload, 1), memoryview(payload) if payload else ())


def listening(admit: Callable[[Message], None] = lambda message: None) -> FlowEnd:
    return FlowEnd(Congestion(SIZES[0] + ENVELOPE_BYTES), FlowTerms(), admit, 0.0, dials=False)


def losing(share: float, seed: int = 1) -> Callable[[bytes], bool]:
    chance = Random(seed)
    return lambda body: chance.random() >= share


def test_a_header_says_what_comes_beside_it() -> None:
    both = opened(FlowTerms((1,)))
    header = both.write(7, [block(0, 0, 10), block(1, 1, 20), block(2, 0, 30)])
    assert header is not None
    assert header.beside is not None
    assert (header.beside.load, header.beside.blocks, header.beside.size) == (0, 3, 60)
    assert header.beside.reliable == b"\5"
    assert both.write(8, [block(0), block(1)]).beside.load == 1  # type: ignore[union-attr]
    both.run(both.now + 1.0)
    assert [each.number for each in both.theirs.delivered] == [7, 8]
    assert [bytes(each.data) for each in both.theirs.delivered[0].payload.blocks] == [
        b"\0" * 10,
        b"\1" * 20,
        b"\2" * 30,
    ]


def test_reliable_blocks_come_whatever_is_lost_and_datagrams_fit() -> None:
    both = Both()
    both.filter(losing(0.2))
    both.open()
    largest = both.mine.end.path.datagram_bytes
    both.sizes.clear()
    for number in range(20):
        both.write(number, [block(place, size=3000) for place in range(10)])
    both.run(both.now + 60.0, lambda: len(both.theirs.delivered) + len(both.mine.fallen_back) < 20)
    whole = {each.number for each in both.mine.fallen_back}
    assert len(whole) < 10
    assert sorted([*whole, *(each.number for each in both.theirs.delivered)]) == list(range(20))
    for each in both.theirs.delivered:
        assert [bytes(b.data) for b in each.payload.blocks] == [bytes([place]) * 3000 for place in range(10)]
    assert max(both.sizes) <= largest or whole


def test_no_more_loads_are_open_than_the_receiver_takes_and_what_waits_is_seldom_looked_at(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looks: list[int] = []

    class Looked(Outgoing):
        @property
        def message(self) -> Carried:
            looks.append(self.whole.number)
            return super().message

    monkeypatch.setattr(sender_module, "MOST_OPEN", 4)
    both = opened()
    both.filter(lambda body: False)
    for number in range(200):
        message = msgspec.structs.replace(PUSH, slice=number // 2, size=1)
        send(both, both.mine, both.theirs, Looked(OnConnection(number, message, b"x", 1), [block(0, size=1)]))
    assert not both.mine.end.sender.has_room
    assert [each.number for each in both.mine.headers] == [0, 2, 4, 6]
    both.filter(lambda body: True)
    both.run(both.now + 60.0, lambda: len(both.theirs.delivered) < 200)
    numbers = [each.number for each in both.theirs.delivered]
    assert sorted(numbers) == [*range(200)]
    assert all(numbers.index(number) < numbers.index(number + 1) for number in range(0, 200, 2))
    assert len(looks) < 10 * 200


# -- back onto the connection -------------------------------------------------------------------------------------


def test_where_nothing_is_heard_everything_open_goes_over_the_connection() -> None:
    both = opened()
    both.write(1, [block(0), block(1)])
    both.run(both.now + 1.0)
    assert [each.number for each in both.theirs.delivered] == [1]
    both.filter(lambda body: False)
    began = both.now
    both.write(2, [block(0), block(1)])
    both.write(3, [block(0), block(1)], 2)  # waits for that
    both.write(6, [block(0), block(1)])
    both.run(began + 0.99 * SILENT_S)
    assert not both.mine.fallen_back
    both.run(began + SILENT_S)
    assert [each.number for each in both.mine.fallen_back] == [2, 6, 3]
    assert {each.payload for each in both.mine.fallen_back} == {
        block(0).data.tobytes() + block(1).data.tobytes()
    }
    assert not both.mine.end.path.is_open
    assert both.write(4, [block(0), block(1)]) is None
    assert not both.mine.end._under_way
    both.filter(lambda body: True)
    both.open()
    assert both.write(5, [block(0), block(1)]) is not None
    both.run(both.now + 1.0)
    assert [each.number for each in both.theirs.delivered] == [1, 5]
    assert len(both.mine.fallen_back) == 3


def test_a_piece_that_never_passes_is_noticed_though_others_do() -> None:
    both = opened()
    both.filter(lambda body: len(body) < 1300)
    both.write(1, [block(0, size=1400), *(block(place, size=500) for place in range(1, 30))])
    both.run(both.now + 30.0, lambda: not both.mine.fallen_back)
    assert [each.number for each in both.mine.fallen_back] == [1]
    assert both.mine.end.sender.again[0] <= 3 * MOST_LARGE_LOST
    both.open()
    assert both.mine.end.path.datagram_bytes == SIZES[-1]


@pytest.mark.parametrize("was_open", [True, False])
def test_what_has_become_of_the_path_is_told_once(was_open: bool) -> None:
    both = Both()
    assert both.mine.end.news(both.now) is None
    if was_open:
        both.open()
        assert both.mine.end.news(both.now) is True
        assert both.mine.end.news(both.now) is None
        both.write(1, [block(0), block(1)])
    both.filter(lambda body: False)
    both.run(both.now + SILENT_S + LIMIT_S + 1.0)
    assert both.mine.end.news(both.now) is False
    assert both.mine.end.news(both.now) is None
    both.filter(lambda body: True)
    both.open()
    assert both.mine.end.news(both.now) is True
    assert both.mine.end.news(both.now) is None


@pytest.mark.parametrize("pass_again", [True, False])
def test_where_the_connection_is_silent_too_nothing_falls_back_until_it_speaks(pass_again: bool) -> None:
    both = opened()
    both.write(1, [block(0), block(1)])
    both.filter(lambda body: False)
    both.is_cut = True
    both.run(both.now + 3.3 * STUCK_S)
    assert not both.mine.fallen_back
    both.filter(lambda body: pass_again)
    both.is_cut = False
    both.run(both.now + (0.5 * STUCK_S if pass_again else LOOK_EVERY_S))
    assert [each.number for each in [*both.mine.fallen_back, *both.theirs.delivered]] == [1]


def test_where_probes_pass_and_nothing_else_the_path_is_soon_left_alone() -> None:
    both = Both()
    both.filter(lambda body: isinstance(unpack(body), Probe | Probed | Receipt))
    for attempt in range(3):
        both.open()
        began = both.now
        assert both.write(attempt, [block(0), block(1)]) is not None
        both.run(began + SILENT_S)
        assert [each.number for each in both.mine.fallen_back] == [*range(attempt + 1)]
        assert both.mine.end.news(both.now) is False
        both.run(began + SILENT_S + 0.99 * RETRY_S * 2**attempt)
        assert both.mine.end.path.state == "blocked"
        both.run(both.now + RETRY_S)
        assert both.mine.end.news(both.now) is True
    both.filter(lambda body: True)
    both.write(3, [block(0), block(1)])
    both.run(both.now + 1.0)
    assert [each.number for each in both.theirs.delivered] == [3]
    both.filter(lambda body: False)
    both.write(4, [block(0), block(1)])
    both.run(both.now + SILENT_S)
    assert both.mine.end.path.state == "trying", "it was of use: what is new may be its largest size"


# -- liars ----------------------------------------------------------------------------------------------------------


def test_whoever_sends_a_little_now_and_then_is_awaited_and_nobody_else() -> None:
    receiving, both = listening(), opened(announces=False)
    header = both.write(1, [block(place) for place in range(5)])
    assert header is not None
    receiving.announced(1, header, 0.0)
    assert receiving.next_at() == STUCK_S
    for place in range(4):
        now = (place + 1) * 0.9 * STUCK_S
        receiving.received(place, Piece(0, place, 0, 1, 0, place, place + 1, b"x").pack(), now)
        assert not receiving.why_stuck(now, now)
    assert "sent none" in receiving.why_stuck(now + STUCK_S, now + STUCK_S)


def header(beside: Beside | None) -> bytes:
    return encode_head(msgspec.structs.replace(PUSH, beside=beside))


def test_a_header_in_a_datagram_announces_its_load_once_it_was_admitted() -> None:
    admitted: list[Message] = []
    no: list[Message] = [PUSH]

    def admit(message: Message) -> None:
        if no:
            raise ProtocolError(f"not {no.pop()}")
        admitted.append(message)

    receiving = listening(admit)
    with pytest.raises(ProtocolError, match="not Push"):
        receiving.received(0, Head(0, 7, header(Beside(0, 1, None, 1))).pack(), 0.0)
    assert receiving.receiver.still_since == inf
    for number in (1, 1, 2):  # once more, and the same again
        receiving.received(number, Head(0, 7, header(Beside(0, 1, None, 1))).pack(), 0.0)
    assert [type(message) for message in admitted] == [Push, Push]
    receiving.received(3, Piece(0, 0, 0, 1, 0, 0, 1, b"x").pack(), 0.0)
    ((number, message, payload),) = receiving.closed(0.0)
    assert (number, message, payload.came) == (7, admitted[0], (True,))


@pytest.mark.parametrize(
    "head",
    [
        b"",
        b"\xc1",
        b"\xff" * 1400,
        b"\x91" * 1400,
        encode_head(PUSH).replace(b"gradient", b"gradi\xff\xff\xff"),
        encode_head(PUSH).replace(b"step()", b"step\xff\xff"),
        encode_head(Acknowledged(3)),
        header(None),
        header(Beside(1, 1, None, 1)),
        header(Beside(0, 1, None, 1))[:-1],
        header(Beside(0, 1, None, 1)) + b"\0",
    ],
)
def test_a_header_that_is_none_of_its_load_is_refused(head: bytes) -> None:
    both = Both()
    with pytest.raises(ProtocolError):
        both.theirs.end.received(0, Head(0, 7, head).pack(), 0.0)
    assert not both.theirs.admitted
    assert both.theirs.end.receiver.still_since == inf


def test_a_probe_is_answered_once_and_whoever_listens_sends_only_then() -> None:
    receiving = listening()
    assert receiving.next_at() == inf
    receiving.received(0, Probe(1350).pack(), 0.0)
    receiving.received(1, Probe(1206).pack(), 0.0)
    receiving.received(1, Probe(1206).pack(), 0.0)
    found = [unpack(body) for _, body in receiving.datagrams(0.0, ENVELOPE_BYTES, 1000)]
    assert [each.size for each in found if isinstance(each, Probed)] == [1350, 1206]
    assert [each.size for each in found if isinstance(each, Probe)] == list(SIZES)
    assert not [
        each for _, each in receiving.datagrams(10.0, ENVELOPE_BYTES, 9) if isinstance(unpack(each), Probed)
    ]


# -- payloads as they stand, both ways --------------------------------------------------------------------------------


@pytest.mark.parametrize(("size", "loss"), [(1, 0.2), (1400, 0.0), (100_000, 0.2)])
def test_payloads_come_as_they_stand_both_ways_at_once(size: int, loss: float) -> None:
    both = opened()
    both.mine.passes, both.theirs.passes = losing(loss, 1), losing(loss, 2)
    payload = Random(1).randbytes(size)
    for number in range(1, 6):
        for side in (both.mine, both.theirs):
            assert both.write_whole(side, number, payload, number)
    both.run(both.now + 60.0, lambda: len(both.theirs.delivered) + len(both.mine.delivered) < 10)
    for side in (both.mine, both.theirs):
        assert sorted(each.number for each in side.delivered) == [1, 2, 3, 4, 5]
        assert {bytes(each.payload) for each in side.delivered} == {payload}  # type: ignore[arg-type]
        assert all(each.message.beside is None for each in side.delivered)  # type: ignore[attr-defined]
        assert not side.fallen_back


def test_what_belongs_to_one_slice_comes_in_order_and_the_rest_as_it_can() -> None:
    both = opened()
    for number, slice_ in ((1, 7), (2, 8)):
        assert both.write_whole(both.theirs, number, bytes([number]), slice_)
    both.run(both.now + 1.0)
    dropped: list[bytes] = []
    both.theirs.passes = lambda body: (
        not (isinstance(unpack(body), Piece) and not dropped and not dropped.append(body))
    )
    for number, slice_ in ((3, 7), (4, 7), (5, 8), (6, 7)):
        assert both.write_whole(both.theirs, number, bytes([number]), slice_)
    assert [each.number for each in both.theirs.end.to_write(both.now, both.now)] == [3, 5]
    both.announces = False
    both.run(both.now + 10.0, lambda: len(both.mine.delivered) < 6)
    assert dropped
    assert [each.number for each in both.mine.delivered] == [1, 2, 5, 3, 4, 6]


# -- what the connection still carries --------------------------------------------------------------------------------


def up_and_down(both: Both, is_up: bool) -> tuple[Side, Side]:
    return (both.mine, both.theirs) if is_up else (both.theirs, both.mine)


def send(both: Both, side: Side, other: Side, outgoing: Outgoing) -> None:
    """As `DatagramConnection.write` does: beside the connection, or on it."""
    if side.end.write(outgoing, both.now):
        both._over_the_connection(side, other)
    else:
        both.carry(side, other, outgoing.whole)


@pytest.mark.parametrize("is_up", [True, False])
def test_no_header_overtakes_that_the_path_is_broken(is_up: bool) -> None:
    """The connection has lost a segment, and the path is open again before that comes."""
    both = Both()
    side, other = up_and_down(both, is_up)
    both.open()
    send(both, side, other, update(1, bytes(10), 7))
    both.run(both.now + 1.0)
    both.filter(lambda body: False)
    send(both, side, other, update(2, bytes(10), 7))
    side.held = []
    both.run(both.now + SILENT_S)
    assert [type(each.message) for each in side.held] == [FlowBroken, Update]
    both.filter(lambda body: True)
    both.open()
    send(both, side, other, update(3, bytes(10), 7))
    both.run(both.now + 1.0)
    assert other.came == [1]
    both.release(side, other)
    both.run(both.now + 1.0)
    assert other.came == [1, 2, 3]
    assert len(other.delivered) == 2


def test_as_many_loads_are_announced_behind_a_broken_path_as_before() -> None:
    both = opened()
    both.filter(lambda body: False)
    for number in range(MOST_OPEN):
        assert both.write_whole(both.mine, number, b"x", number)
    both.mine.held = []
    both.run(both.now + SILENT_S)
    both.filter(lambda body: True)
    both.open()
    assert both.write_whole(both.mine, MOST_OPEN, b"x", MOST_OPEN)
    both.run(both.now + 1.0)
    both.release(both.mine, both.theirs)
    both.run(both.now + 1.0)
    assert both.theirs.came == [*range(MOST_OPEN + 1)]


@pytest.mark.parametrize("is_up", [True, False])
def test_nothing_overtakes_what_its_slice_had_on_the_connection_before_the_path_was_open(is_up: bool) -> None:
    both = Both()
    side, other = up_and_down(both, is_up)
    side.held = []
    send(both, side, other, update(1, bytes(10), 7))
    assert [each.number for each in side.held] == [1]
    both.open()
    send(both, side, other, update(2, bytes(10), 7))
    both.run(both.now + 1.0)
    assert other.came == []
    both.release(side, other)
    both.run(both.now + 1.0)
    assert other.came == [1, 2]


@pytest.mark.parametrize(("is_up", "blocks"), [(True, 0), (False, MOST_BLOCKS + 1)])
def test_what_cannot_go_in_datagrams_keeps_its_place_among_those_of_its_slice(
    is_up: bool, blocks: int
) -> None:
    both = Both()
    side, other = up_and_down(both, is_up)
    both.open()
    send(both, side, other, update(1, bytes(10), 7))
    both.run(both.now + 1.0)
    dropped: list[bytes] = []
    side.passes = lambda body: (
        not (isinstance(unpack(body), Piece) and not dropped and not dropped.append(body))
    )
    send(both, side, other, update(2, bytes(10), 7))
    alone = update(3, None, 7)._replace(data=[block(0, size=1)] * blocks)
    send(both, side, other, alone)
    for number in (4, 5):
        send(both, side, other, update(number, bytes(10), 7))
    send(both, side, other, update(6, None, 8))
    assert other.came == [1, 6]
    side.held = []
    both.run(both.now + 1.0)
    assert dropped
    assert other.came == [1, 6, 2]
    both.release(side, other)
    both.run(both.now + 1.0)
    assert other.came == [1, 6, 2, 3, 4, 5]


def test_a_header_travels_twice_where_the_message_before_it_came_in_datagrams() -> None:
    both = opened()
    heads: list[Head] = []

    def passes(body: bytes) -> bool:
        heads.extend(filter(lambda packet: isinstance(packet, Head), [unpack(body)]))  # type: ignore[arg-type]
        return True

    both.mine.passes = passes
    for number in (1, 2, 3):
        assert both.write_whole(both.mine, number, bytes(10), 7)
        both.run(both.now + 1.0)
        assert {head.number for head in heads} == {*range(2, number + 1)}
    assert both.theirs.came == [1, 2, 3]


@pytest.mark.parametrize(
    ("beside", "size"),
    [
        pytest.param(Beside(0, 1, None, 10, True), 11, id="another size"),
        pytest.param(Beside(0, 2, b"\1", 10, True), 10, id="some may be lost"),
        pytest.param(Beside(0, 1, None, 10, False), 10, id="blocks of a codec"),
        *((Beside(0, blocks, None, 10, True), 10) for blocks in (0, -1, 11)),
        (Beside(0, 0, None, 0, True), 0),
        (Beside(0, MOST_BLOCKS + 1, None, 1 << 20, True), 1 << 20),
        (Beside(0, 1 << 40, None, 1 << 41, True), 1 << 41),
    ],
)
def test_an_update_is_announced_as_its_bytes_or_refused_before_memory_is_taken(
    beside: Beside, size: int
) -> None:
    message = msgspec.structs.replace(UPDATE, size=size, beside=beside)
    with pytest.raises(ProtocolError, match="are announced beside Update"):
        listening().announced(1, message, 0.0)


@pytest.mark.parametrize(("first", "second"), [((0, 5), (6, 11)), ((0, 5), (4, 9)), ((0, 4), (5, 10))])
def test_bytes_that_do_not_follow_each_other_are_refused(
    first: tuple[int, int], second: tuple[int, int]
) -> None:
    receiving = listening()
    receiving.announced(1, msgspec.structs.replace(UPDATE, size=10, beside=Beside(0, 2, None, 10, True)), 0.0)
    for number, (start, stop) in enumerate((first, second)):
        receiving.received(number, Piece(0, number, 0, 1, 0, start, stop, bytes(5)).pack(), 0.0)
    with pytest.raises(ProtocolError, match="of a payload follow byte"):
        receiving.closed(0.0)


@pytest.mark.parametrize("comes", [True, False])
def test_whoever_listens_tells_what_the_other_end_cannot_know_and_nothing_where_nothing_comes(
    comes: bool,
) -> None:
    both = opened()
    assert both.theirs.end.news(both.now) is True
    both.theirs.passes = lambda body: comes and isinstance(unpack(body), Receipt | Probed)
    both.mine.passes = lambda body: comes
    assert both.write_whole(both.theirs, 1, bytes(10), 7)
    told = set()
    for number in range(2, 40):
        if comes:
            both.write(number, [block(0), block(1)])
        both.run(both.now + 0.5)
        told.add(both.theirs.end.news(both.now))
    assert told == ({None, False} if comes else {None})
    assert both.mine.end.path.is_open
    assert [each.number for each in both.theirs.fallen_back] == [1]
    assert comes or both.theirs.end.path.state == "blocked"


def test_limits_are_in_an_order_that_works() -> None:
    """The sender takes to the connection before the receiver takes it for a liar."""
    assert 2 * ends_module.SILENT_S < ends_module.STUCK_S

"""Both ends of a flow joined: what goes beside the connection, and what comes back onto it."""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from random import Random

import msgspec
import pytest

from geomx.errors import ProtocolError
from geomx.wire.flow import ends as ends_module
from geomx.wire.flow.congestion import Congestion
from geomx.wire.flow.ends import LOOK_EVERY_S, SILENT_S, STUCK_S, ReceivingEnd, SendingEnd, Whole
from geomx.wire.flow.packets import MOST_BLOCKS, MOST_OPEN, Ack, Head, Piece, Probe, Probed, Tail, unpack
from geomx.wire.flow.path import LIMIT_S, RETRY_S, SIZES
from geomx.wire.flow.receiver import Delivery
from geomx.wire.flow.sender import MOST_SENDINGS, BlockOut, FlowTerms
from geomx.wire.messages import Ack as Acknowledged
from geomx.wire.messages import Beside, Message, Push, encode_head

TRIP_S, ENVELOPE_BYTES = 0.1, 54
PUSH = Push(1, 0, "gradient", "step()", 1.0, {"A/0": 1}, None, b"", False)


def block(place: int, level: int = 0, size: int = 1000) -> BlockOut:
    return BlockOut(place, place + 1, memoryview(bytes([place % 256]) * size), level)


class Both:
    """Two ends, and a network between them that carries what `passes` lets through, in half a round trip."""

    def __init__(self, terms: FlowTerms | None = None) -> None:
        self.now = 0.0
        self.sending = SendingEnd(Congestion(SIZES[0] + ENVELOPE_BYTES), terms or FlowTerms(), 0.0)
        self.admitted: list[Message] = []
        self.receiving = ReceivingEnd(self.admitted.append)
        self.heard_at = 0.0  # on the connection, beside what a test writes
        self.is_cut = False
        self.passes: Callable[[bytes], bool] = lambda body: True
        self.delivered: list[Delivery] = []
        self.fallen_back: list[Whole] = []
        self.sizes: list[int] = []
        self._coming: list[tuple[float, int, Callable[[], None]]] = []

    def write(self, number: int, blocks: list[BlockOut], announces: bool = True) -> Push | None:
        payload = b"".join(each.data for each in blocks)
        header = self.sending.write(Whole(number, PUSH, payload, 1), blocks, self.now)
        if header is not None and announces:
            self.receiving.announced(number, header, self.now)
        return header

    def step(self) -> None:
        """What is due now, at both ends."""
        for number, body in self.sending.datagrams(self.now, ENVELOPE_BYTES, 1000):
            self.sizes.append(len(body))
            self._send(body, lambda n=number, b=body: self.receiving.received(n, b, self.now))
        self.heard_at = self.heard_at if self.is_cut else self.now
        wholes = self.sending.fallen_back(self.now, self.heard_at)
        if wholes:
            self.receiving.receiver.forget(self.sending.sender.next_load)
            self.fallen_back += wholes
        self.delivered += self.receiving.closed(self.now, self.heard_at)
        for body in self.receiving.bodies(self.now):
            self._send(body, lambda b=body: self.sending.received(b, self.now))

    def _send(self, body: bytes, arrive: Callable[[], None]) -> None:
        if self.passes(body):
            self._coming.append((self.now + TRIP_S / 2, len(self._coming), arrive))

    def run(self, until: float, while_: Callable[[], bool] = lambda: True) -> None:
        while while_():
            self.step()
            coming = min((at for at, _, _ in self._coming), default=inf)
            due_at = min(coming, self.sending.next_at(), self.receiving.next_at())
            if due_at > until:
                self.now = until
                return
            self.now = max(self.now, due_at)
            here = [each for each in self._coming if each[0] <= self.now]
            self._coming = [each for each in self._coming if each[0] > self.now]
            for _, _, arrive in here:
                arrive()

    def open(self) -> None:
        self.run(self.now + 20.0, lambda: not self.sending.path.is_open)
        assert self.sending.path.is_open


def losing(share: float, seed: int = 1) -> Callable[[bytes], bool]:
    chance = Random(seed)
    return lambda body: chance.random() >= share


def test_before_the_path_is_open_the_connection_carries_all() -> None:
    both = Both()
    assert both.write(1, [block(0), block(1)]) is None
    both.open()
    assert both.write(2, [block(0), block(1)]) is not None


def test_a_header_says_what_comes_beside_it() -> None:
    both = Both(FlowTerms((1,)))
    both.open()
    header = both.write(7, [block(0, 0, 10), block(1, 1, 20), block(2, 0, 30)])
    assert header is not None
    assert header.beside is not None
    assert (header.beside.load, header.beside.blocks, header.beside.size) == (0, 3, 60)
    assert header.beside.reliable == b"\5"
    assert both.write(8, [block(0), block(1)]).beside.load == 1  # type: ignore[union-attr]
    both.run(both.now + 1.0)
    assert [each.number for each in both.delivered] == [7, 8]
    assert [bytes(each.data) for each in both.delivered[0].payload.blocks] == [
        b"\0" * 10,
        b"\1" * 20,
        b"\2" * 30,
    ]


def test_reliable_blocks_come_whatever_is_lost_and_datagrams_fit() -> None:
    both = Both()
    both.passes = losing(0.2)
    both.open()
    largest = both.sending.path.datagram_bytes
    both.sizes.clear()
    for number in range(20):
        both.write(number, [block(place, size=3000) for place in range(10)])
    both.run(both.now + 60.0, lambda: len(both.delivered) + len(both.fallen_back) < 20)
    whole = {each.number for each in both.fallen_back}
    assert len(whole) < 10
    assert sorted([*whole, *(each.number for each in both.delivered)]) == list(range(20))
    for each in both.delivered:
        assert [bytes(b.data) for b in each.payload.blocks] == [bytes([place]) * 3000 for place in range(10)]
    assert max(both.sizes) <= largest or whole


@pytest.mark.parametrize("count", [0, MOST_BLOCKS + 1])
def test_a_payload_in_too_many_blocks_goes_over_the_connection(count: int) -> None:
    both = Both()
    both.open()
    assert both.write(1, [block(place, size=1) for place in range(count)]) is None


def test_no_more_loads_are_open_than_the_receiver_takes() -> None:
    both = Both()
    both.open()
    both.passes = lambda body: False
    headers = [both.write(number, [block(0, size=1), block(1, size=1)]) for number in range(MOST_OPEN + 3)]
    assert [header is None for header in headers] == [False] * MOST_OPEN + [True] * 3
    both.passes = lambda body: True
    both.run(both.now + 60.0, lambda: not both.sending.sender.has_room)
    assert both.write(9999, [block(0), block(1)]) is not None


# -- back onto the connection -------------------------------------------------------------------------------------


def test_where_nothing_is_heard_everything_open_goes_over_the_connection() -> None:
    both = Both()
    both.open()
    both.write(1, [block(0), block(1)])
    both.run(both.now + 1.0)
    assert [each.number for each in both.delivered] == [1]
    both.passes = lambda body: False
    began = both.now
    both.write(2, [block(0), block(1)])
    both.write(3, [block(0), block(1)])
    both.run(began + 0.99 * SILENT_S)
    assert not both.fallen_back
    both.run(began + SILENT_S)
    assert [each.number for each in both.fallen_back] == [2, 3]
    assert [each.payload for each in both.fallen_back] == [
        block(0).data.tobytes() + block(1).data.tobytes()
    ] * 2
    assert not both.sending.path.is_open
    assert both.write(4, [block(0), block(1)]) is None
    assert not both.sending._wholes
    both.passes = lambda body: True
    both.open()
    assert both.write(5, [block(0), block(1)]) is not None
    both.run(both.now + 1.0)
    assert [each.number for each in both.delivered] == [1, 5]
    assert len(both.fallen_back) == 2


def test_a_sender_with_nothing_to_say_falls_back_on_nothing() -> None:
    both = Both()
    both.open()
    both.passes = lambda body: False
    both.run(both.now + 100.0)
    assert both.sending.path.is_open
    assert both.sending.next_at() == inf


def test_a_piece_that_never_passes_is_noticed_though_others_do() -> None:
    both = Both()
    both.open()
    both.passes = lambda body: len(body) < 1300
    both.write(1, [block(0, size=1400), *(block(place, size=500) for place in range(1, 30))])
    both.run(both.now + 30.0, lambda: not both.fallen_back)
    assert [each.number for each in both.fallen_back] == [1]
    assert both.sending.sender.again[0] <= 3 * MOST_SENDINGS
    both.open()
    assert both.sending.path.datagram_bytes == SIZES[-1]


def test_what_has_become_of_the_path_is_told_once() -> None:
    both = Both()
    assert both.sending.news() is None
    both.open()
    assert both.sending.news() is True
    assert both.sending.news() is None
    both.passes = lambda body: False
    both.write(1, [block(0), block(1)])
    both.run(both.now + SILENT_S + LIMIT_S + 1.0)
    assert both.sending.news() is False
    assert both.sending.news() is None
    both.passes = lambda body: True
    both.open()
    assert both.sending.news() is True
    assert both.sending.news() is None


def test_a_path_that_never_was_is_told() -> None:
    both = Both()
    both.passes = lambda body: False
    both.run(LIMIT_S + 1.0)
    assert both.sending.news() is False


def test_the_first_that_is_heard_may_be_that_all_is_broken() -> None:
    receiving, both = ReceivingEnd(lambda message: None), Both()
    both.open()
    header = both.write(1, [block(0), block(1)], announces=False)
    assert header is not None
    receiving.announced(1, header, 0.0)
    receiving.receiver.forget(1)
    (body,) = receiving.bodies(0.0)
    both.sending.received(body, both.now)
    assert not both.sending.sender.open_loads


def test_where_the_connection_is_silent_too_nothing_falls_back_and_nobody_is_blamed() -> None:
    both = Both()
    both.open()
    both.write(1, [block(0), block(1)])
    both.passes, both.is_cut = lambda body: False, True
    both.run(both.now + 3.3 * STUCK_S)
    assert not both.fallen_back
    both.passes, both.is_cut = lambda body: True, False
    both.run(both.now + 0.5 * STUCK_S)
    assert [each.number for each in [*both.fallen_back, *both.delivered]] == [1]


def test_a_connection_that_speaks_seldom_is_soon_seen_to_speak() -> None:
    both = Both()
    both.open()
    both.write(1, [block(0), block(1)])
    both.passes, both.is_cut = lambda body: False, True
    both.run(both.now + 3.3 * STUCK_S)
    both.is_cut, heard_at = False, both.now
    both.run(heard_at + LOOK_EVERY_S)
    assert [each.number for each in both.fallen_back] == [1]


def test_where_probes_pass_and_nothing_else_the_path_is_soon_left_alone() -> None:
    both = Both()
    both.passes = lambda body: isinstance(unpack(body), Probe | Probed | Ack)
    for attempt in range(3):
        both.open()
        began = both.now
        assert both.write(attempt, [block(0), block(1)]) is not None
        both.run(began + SILENT_S)
        assert [each.number for each in both.fallen_back] == [*range(attempt + 1)]
        assert both.sending.news() is False
        both.run(began + SILENT_S + 0.99 * RETRY_S * 2**attempt)
        assert both.sending.path.state == "blocked"
        both.run(both.now + RETRY_S)
        assert both.sending.news() is True
    both.passes = lambda body: True
    both.write(3, [block(0), block(1)])
    both.run(both.now + 1.0)
    assert [each.number for each in both.delivered] == [3]
    both.passes = lambda body: False
    both.write(4, [block(0), block(1)])
    both.run(both.now + SILENT_S)
    assert both.sending.path.state == "trying", "it was of use: what is new may be its largest size"


# -- liars ----------------------------------------------------------------------------------------------------------


def test_whoever_announces_and_never_sends_is_noticed_though_nothing_else_happens() -> None:
    both = Both()
    both.open()
    both.run(both.now + 1.0)
    both.write(1, [block(0), block(1)])  # its sender is silent from now on
    announced_at = both.now
    assert both.receiving.next_at() == announced_at + STUCK_S
    assert list(both.receiving.closed(announced_at + 0.99 * STUCK_S, announced_at)) == []
    due_at = both.receiving.next_at()
    with pytest.raises(ProtocolError, match="announced blocks, and sent none"):
        both.receiving.closed(due_at, due_at)


def test_whoever_sends_a_little_now_and_then_is_awaited() -> None:
    receiving, both = ReceivingEnd(lambda message: None), Both()
    both.open()
    header = both.write(1, [block(place) for place in range(5)], announces=False)
    assert header is not None
    receiving.announced(1, header, 0.0)
    for place in range(4):
        now = (place + 1) * 0.9 * STUCK_S
        receiving.received(place, Piece(0, place, 0, 1, 0, place, place + 1, b"x").pack(), now)
        assert list(receiving.closed(now, now)) == []
    with pytest.raises(ProtocolError, match="sent none"):
        receiving.closed(now + STUCK_S, now + STUCK_S)


@pytest.mark.parametrize(
    "packet",
    [Piece(0, 0, 0, 1, 0, 0, 1, b"x"), Tail((0,), 0.1, 0.0), Probe(1206), Head(0, 1, encode_head(PUSH))],
)
def test_what_only_a_sender_says_is_refused_by_a_sender(packet: Piece | Tail | Probe | Head) -> None:
    both = Both()
    with pytest.raises(ProtocolError, match="sent down"):
        both.sending.received(packet.pack(), 0.0)


@pytest.mark.parametrize("packet", [Ack(0.0, 0, 0, ()), Probed(1206)])
def test_what_only_a_receiver_says_is_refused_by_a_receiver(packet: Ack | Probed) -> None:
    with pytest.raises(ProtocolError, match="sent up"):
        ReceivingEnd(lambda message: None).received(0, packet.pack(), 0.0)


def header(beside: Beside | None) -> bytes:
    return encode_head(msgspec.structs.replace(PUSH, beside=beside))


def test_a_header_in_a_datagram_announces_its_load_once_it_was_admitted() -> None:
    admitted: list[Message] = []
    receiving = ReceivingEnd(admitted.append)
    for number in (0, 0, 1):  # once more, and the same again
        receiving.received(number, Head(0, 7, header(Beside(0, 1, None, 1))).pack(), 0.0)
    assert [type(message) for message in admitted] == [Push, Push]
    receiving.received(2, Piece(0, 0, 0, 1, 0, 0, 1, b"x").pack(), 0.0)
    ((number, message, payload),) = receiving.closed(0.0, 0.0)
    assert (number, message, payload.came) == (7, admitted[0], (True,))


def test_a_header_that_is_not_admitted_announces_nothing() -> None:
    def admit(message: Message) -> None:
        raise ProtocolError("no")

    receiving = ReceivingEnd(admit)
    with pytest.raises(ProtocolError, match="no"):
        receiving.received(0, Head(0, 7, header(Beside(0, 1, None, 1))).pack(), 0.0)
    assert receiving.receiver.still_since == inf


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
        both.receiving.received(0, Head(0, 7, head).pack(), 0.0)
    assert not both.admitted
    assert both.receiving.receiver.still_since == inf


def test_a_probe_is_answered_once_and_leaves_nothing_behind() -> None:
    receiving = ReceivingEnd(lambda message: None)
    receiving.received(0, Probe(1350).pack(), 0.0)
    receiving.received(1, Probe(1206).pack(), 0.0)
    assert list(receiving.bodies(0.0)) == [Probed(1350).pack(), Probed(1206).pack()]
    assert list(receiving.bodies(10.0)) == []
    assert receiving.next_at() == inf


def test_limits_are_in_an_order_that_works() -> None:
    """The sender takes to the connection before the receiver takes it for a liar."""
    assert 2 * ends_module.SILENT_S < ends_module.STUCK_S

"""Datagrams on an emulated link: how the model treats them, and that real ones go through it in both directions."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from exploring import examples
from hypothesis import given
from hypothesis import strategies as st
from relays import Relay, relay
from streams import CHUNK, MBIT_100, Stream, streams
from wires import Witness, listening, run_on, tensor, until_open, write_blocks

from geomx.channels.block_classes import Alike
from geomx.channels.contract import EdgeSettings
from geomx.channels.datagram import Datagram, DatagramConnection
from geomx.channels.emulation.link import LinkSpec
from geomx.channels.emulation.shaping import QUEUE_S, UDP_BYTES, EmulatedLink
from geomx.wire.flow import path as path_module
from geomx.wire.flow.inbox import Blocks
from geomx.wire.flow.outbox import FlowTerms

FULL = 1500 - UDP_BYTES  # a datagram that fills a packet of 1,500 bytes
PACKET_S = 1500 * 8e-8  # at 100 Mbit/s


class Sender:
    """Offers numbered datagrams, and remembers which arrived, and when its clock was read."""

    def __init__(self, link: EmulatedLink) -> None:
        self.link = link
        self.now = 0.0
        self.offered = 0
        self.arrived: list[int] = []
        self.times: list[float] = []

    def offer(self, count: int = 1, size: int = FULL) -> None:
        for number in range(self.offered, self.offered + count):
            self.link.offer(size, self._arrival(number), self.now)
        self.offered += count

    def _arrival(self, number: int) -> Callable[[], None]:
        def arrive() -> None:
            self.arrived.append(number)
            self.times.append(self.now)

        return arrive

    def drive(self, late_s: float = 0.0, until: float = math.inf) -> None:
        """Run what is due, each time a little late, until nothing is or the time has come."""
        while (due := self.link.run(self.now)) is not None and due <= until:
            self.now = max(self.now, due) + late_s
        if until < math.inf:
            self.now = max(self.now, until)
            self.link.run(self.now)


def test_datagrams_leave_at_the_rate_and_arrive_a_delay_later() -> None:
    sender = Sender(EmulatedLink(LinkSpec(rate_mbps=100, delay_ms=20)))
    sender.offer(100)
    sender.drive()
    assert sender.arrived == list(range(100))
    assert sender.times == pytest.approx([0.020 + (n + 1) * PACKET_S for n in range(100)])


@pytest.mark.parametrize("rate_mbps", [1, 20, 100])
def test_what_finds_no_room_in_the_queue_is_dropped(rate_mbps: float) -> None:
    sender = Sender(EmulatedLink(LinkSpec(rate_mbps=rate_mbps)))
    sender.offer(2000)
    sender.drive()
    fit = int(rate_mbps * 125_000 * QUEUE_S / 1500)
    assert sender.arrived == list(range(fit + 1))  # one is on the line already
    assert sender.now <= QUEUE_S + 1500 * 8e-6 / rate_mbps


def test_a_queue_that_holds_less_than_one_datagram_lets_one_pass() -> None:
    sender = Sender(EmulatedLink(LinkSpec(rate_mbps=0.05)))
    sender.offer(2)
    sender.drive()
    assert sender.arrived == [0, 1]  # one on the line, and one that waits
    sender.offer(3)
    sender.drive()
    assert sender.arrived == [0, 1, 2, 3]


def test_a_link_without_a_rate_has_no_queue() -> None:
    sender = Sender(EmulatedLink(LinkSpec(delay_ms=20)))
    sender.offer(5000)
    sender.drive()
    assert sender.arrived == list(range(5000))
    assert sender.now == pytest.approx(0.020)


@pytest.mark.parametrize("late_s", [0.001, 0.04, 0.3])
def test_timers_that_fire_late_cost_neither_rate_nor_datagrams(late_s: float) -> None:
    """Also where more is offered between two of them than the queue holds."""
    sender, runs_at = Sender(EmulatedLink(LinkSpec(rate_mbps=100))), 0.0
    for number in range(5000):
        sender.now = number * PACKET_S  # as fast as the line
        sender.offer()
        if sender.now >= runs_at:
            sender.link.run(sender.now)
            runs_at = sender.now + late_s
    sender.drive()
    assert sender.arrived == list(range(5000))
    assert sender.now == pytest.approx(5000 * PACKET_S)


@given(
    spec=st.builds(
        LinkSpec,
        rate_mbps=st.sampled_from([0.0, 5.0, 100.0]),
        delay_ms=st.floats(0, 50),
        jitter_ms=st.sampled_from([0.0, 0.1, 5.0, 50.0]),
        loss=st.floats(0, 0.5),
    ),
    pauses=st.lists(st.floats(0, 0.05), max_size=60),
    seed=st.integers(0, 9),
)
@examples(100)
def test_datagrams_arrive_in_order_at_most_once_and_never_early(
    spec: LinkSpec, pauses: list[float], seed: int
) -> None:
    sender, offered_at = Sender(EmulatedLink(spec, seed)), []
    for pause in pauses:
        sender.drive(until=sender.now + pause)
        offered_at.append(sender.now)
        sender.offer()
    sender.drive()
    assert sender.arrived == sorted(set(sender.arrived))
    least_s = max(spec.delay_ms - spec.jitter_ms, 0.0) / 1e3
    most_s = QUEUE_S + (spec.delay_ms + spec.jitter_ms) / 1e3 + 2 * 1500 * spec.s_per_byte
    for number, at in zip(sender.arrived, sender.times, strict=True):
        assert offered_at[number] + least_s - 1e-9 <= at <= offered_at[number] + most_s + 1e-9


@pytest.mark.parametrize(
    "spec",
    [
        LinkSpec(rate_mbps=100, loss=0.05),
        LinkSpec(rate_mbps=100, burst_enter=0.05 / 0.95 / 8, burst_leave=1 / 8),
    ],
    ids=["single", "bursts"],
)
def test_lost_datagrams_do_not_come_but_take_their_time_on_the_line(spec: LinkSpec) -> None:
    sender, count = Sender(EmulatedLink(spec, seed=3)), 50_000
    for _ in range(count // 500):
        sender.offer(500)
        sender.drive()
    assert 1 - len(sender.arrived) / count == pytest.approx(0.05, rel=0.1)
    gaps = [b - a for a, b in zip(sender.arrived, sender.arrived[1:], strict=False) if b - a > 1]
    mean_burst = sum(gap - 1 for gap in gaps) / len(gaps)
    assert mean_burst == pytest.approx(8 if spec.burst_enter else 1 / 0.95, rel=0.1)
    assert sender.now == pytest.approx(count * PACKET_S, rel=0.001)


def test_the_same_seed_loses_the_same_datagrams() -> None:
    def arrived(seed: int) -> list[int]:
        sender = Sender(EmulatedLink(LinkSpec(rate_mbps=100, jitter_ms=5, loss=0.1), seed))
        sender.offer(500)
        sender.drive()
        return sender.arrived

    assert arrived(1) == arrived(1) != arrived(2)


def test_a_stream_and_datagrams_each_have_half_of_the_line() -> None:
    link = EmulatedLink(LinkSpec(rate_mbps=100))
    sender, stream = Sender(link), Stream("a", [CHUNK] * 60)
    taken = streams(stream)
    link.want(stream, 0.0)
    for _ in range(350):
        sender.offer(20)
        sender.drive(until=sender.now + 10 * PACKET_S)
    assert 0 < len(taken) < 60
    of_stream = len(stream.delivered) * CHUNK * MBIT_100
    of_datagrams = len(sender.arrived) * PACKET_S
    assert of_datagrams / of_stream == pytest.approx(1.0, abs=0.1)
    assert of_datagrams + of_stream == pytest.approx(sender.now, rel=0.05)


def test_a_message_does_not_wait_behind_the_queue_of_datagrams() -> None:
    link = EmulatedLink(LinkSpec(rate_mbps=100))
    sender, stream = Sender(link), Stream("a", [100])
    streams(stream)
    sender.offer(800)
    sender.drive(until=10 * PACKET_S)
    link.want(stream, sender.now)
    sender.drive(until=sender.now + 2 * PACKET_S)
    assert stream.delivered == [("a", 100)]
    assert len(sender.arrived) < 13


def test_a_chunk_holds_datagrams_up_no_longer_than_it_takes() -> None:
    link = EmulatedLink(LinkSpec(rate_mbps=100))
    sender, stream = Sender(link), Stream("a", [CHUNK] * 3)
    streams(stream)
    link.want(stream, 0.0)
    link.run(0.0)
    sender.offer(1, size=100)
    sender.drive()
    assert sender.times == pytest.approx([CHUNK * MBIT_100 + (100 + UDP_BYTES) * 8e-8])


def test_a_line_that_fell_idle_belongs_to_whoever_could_begin_first() -> None:
    """The timer fires late: in virtual time, the stream had begun before the datagram was offered."""
    link = EmulatedLink(LinkSpec(rate_mbps=100))
    sender, stream = Sender(link), Stream("a", [1000] * 2)
    streams(stream)
    link.want(stream, 0.0)
    link.run(0.0)
    sender.now = 1.5e-4
    sender.offer(1)
    sender.drive()
    assert stream.delivered == [("a", 1000)] * 2
    assert sender.times == pytest.approx([2 * 1000 * MBIT_100 + PACKET_S])


def test_a_cut_drops_datagrams_for_good_and_delays_streams() -> None:
    spec = LinkSpec(rate_mbps=100, delay_ms=20)
    link = EmulatedLink(spec)
    sender, stream = Sender(link), Stream("a", [CHUNK])
    streams(stream)
    link.want(stream, 0.0)
    sender.offer(50)
    sender.drive(until=CHUNK * MBIT_100 + 10 * PACKET_S)  # some travel, some wait
    link.change(spec.changed({"cut": True}), sender.now)
    sender.offer(50)
    sender.drive(until=1.0)
    link.change(spec, sender.now)
    sender.drive()
    assert sender.arrived == []
    assert stream.delivered == [("a", CHUNK)]
    sender.offer(830)  # nearly what an empty queue holds
    sender.drive()
    assert sender.arrived == list(range(100, 930))


def test_a_queue_drains_at_the_new_rate() -> None:
    link = EmulatedLink(LinkSpec(rate_mbps=100))
    sender = Sender(link)
    sender.offer(100)
    sender.drive(until=10 * PACKET_S)
    link.change(LinkSpec(rate_mbps=10), sender.now)
    sender.drive()
    assert sender.arrived == list(range(100))
    # The one that was leaving keeps its rate.
    assert sender.now == pytest.approx((11 + 89 * 10) * PACKET_S)


# -- real sockets -------------------------------------------------------------------------------------------


async def played(up: LinkSpec | None, down: LinkSpec | None, play: Callable[..., object]) -> None:
    """`play(sender, sends, receives, relay)`, with both flows open; the relay counts what passes in between."""
    sends, receiving = Witness(), Datagram(EdgeSettings(link=down), Alike())
    async with listening(receiving) as (door, receives), relay(door.address) as between:
        sender = await Datagram(EdgeSettings(link=up), Alike()).dial(between.address, sends)
        await receives.until(lambda: bool(receives.accepted))
        (receiver,) = receives.accepted
        sender.open_flow(b"s" * 32, FlowTerms((1,)))
        receiver.open_flow(b"s" * 32, FlowTerms())
        await play(sender, sends, receives, between)  # type: ignore[misc]
        sender.close("the test is over")


@pytest.mark.parametrize("level", [0, 1], ids=["reliable", "once"])
def test_an_emulated_link_loses_real_datagrams(loop_name: str, level: int) -> None:
    link = LinkSpec(rate_mbps=50, delay_ms=2, jitter_ms=1, loss=0.2)

    async def play(sender: DatagramConnection, sends: Witness, receives: Witness, between: Relay) -> None:
        await until_open(sender)
        payload = tensor(300_000, 1)
        write_blocks(sender, 1, payload, level)
        await receives.until(lambda: bool(receives.messages))
        ((_, _, blocks),) = receives.messages
        assert isinstance(blocks, Blocks)
        missing = blocks.came.count(False)
        assert 0.1 < missing / len(blocks.came) < 0.3 if level else missing == 0
        for start, stop, data in blocks.blocks:
            assert torch.equal(torch.frombuffer(bytearray(data), dtype=torch.uint8), payload[start:stop])

    run_on(loop_name, lambda: played(link, link, play))


@pytest.mark.parametrize("way", ["up", "down"])
def test_both_ways_lead_through_a_link_of_their_own(
    loop_name: str, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A link that loses every datagram: streams send it again, until it has come."""
    monkeypatch.setattr(path_module, "LIMIT_S", 0.3)
    lost, whole = LinkSpec(loss=1.0), LinkSpec()

    async def play(sender: DatagramConnection, sends: Witness, receives: Witness, between: Relay) -> None:
        await sends.until(lambda: bool(sends.flows))
        assert sends.flows == [False]
        assert [count > 0 for count in between.datagrams] == [way == "down", False]
        payload = tensor(50_000, 1)
        write_blocks(sender, 1, payload)
        await receives.until(lambda: bool(receives.messages))
        assert torch.equal(receives.messages[0][2], payload)

    run_on(loop_name, lambda: played(*((lost, whole) if way == "up" else (whole, lost)), play))

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from geomx.errors import ProtocolError
from geomx.layout import MOST_SLICES
from geomx.wire import session as session_module
from geomx.wire.messages import Attach, Leave
from geomx.wire.session import ACK_EVERY_BYTES, ACK_EVERY_MESSAGES, MOST_FRUITLESS, WINDOW, Patience, Session

PATIENCE = Patience(heartbeat_s=1.0, timeout_s=15.0)
BYE = Leave({"": 1}, ("A/0",))


def session(patience: Patience = PATIENCE, now: float = 0.0) -> Session:
    return Session("B", 1, patience, now)


def test_what_is_acknowledged_is_not_kept():
    ours = session()
    for _ in range(5):
        ours.enqueue(BYE, None, 0, 0.0)
    ours.acknowledged(3)
    ours.acknowledged(2)  # an older word, overtaken
    assert list(ours.unacknowledged) == [4, 5]
    ours.acknowledged(5)
    assert ours.unacknowledged == {}


@pytest.mark.parametrize("number", [-1, 3, 1 << 62])
def test_an_acknowledgement_of_what_was_never_sent_is_refused(number):
    ours = session()
    ours.enqueue(BYE, None, 0, 0.0)
    ours.enqueue(BYE, None, 0, 0.0)
    with pytest.raises(ProtocolError, match=f"message {number} is acknowledged, 2 were sent"):
        ours.acknowledged(number)


def test_the_window_of_a_sender_is_bounded_and_holds_any_layout_twice(monkeypatch):
    assert WINDOW >= 2 * MOST_SLICES
    monkeypatch.setattr(session_module, "WINDOW", 4)
    ours = session()
    for _ in range(4):
        ours.enqueue(BYE, None, 0, 0.0)
    with pytest.raises(ProtocolError, match="B has not acknowledged 4 messages"):
        ours.enqueue(BYE, None, 0, 0.0)
    ours.acknowledged(1)
    assert ours.enqueue(BYE, None, 0, 0.0) == 5


@pytest.mark.parametrize("number", [WINDOW + 1, (1 << 64) - 1])
def test_a_number_beyond_the_window_is_refused_by_name_of_the_gap(number):
    with pytest.raises(ProtocolError, match=f"message {number} came when 0 was the last without a gap"):
        session().accept(number, BYE)


@given(st.lists(st.integers(1, 12), max_size=60))
def test_each_number_is_delivered_once_in_whatever_order_they_come(numbers):
    theirs = session()
    delivered = [number for number in numbers if theirs.accept(number, BYE)]
    assert sorted(delivered) == sorted(set(numbers))
    assert theirs.received == next(n for n in range(13) if n + 1 not in set(numbers))


def test_acknowledgements_are_owed_by_count_by_bytes_and_for_what_comes_again():
    theirs = session()
    for number in range(1, ACK_EVERY_MESSAGES):
        theirs.accept(number, BYE)
    assert not theirs.owes_ack()
    theirs.accept(ACK_EVERY_MESSAGES, BYE)
    assert theirs.owes_ack()
    assert theirs.ack_watermark(3.0) == ACK_EVERY_MESSAGES
    assert not theirs.owes_ack()
    theirs.accept(ACK_EVERY_MESSAGES + 1, Attach("f", {}, ACK_EVERY_BYTES))
    assert theirs.owes_ack()
    theirs.ack_watermark(4.0)
    theirs.accept(1, BYE)
    assert theirs.owes_ack()


def test_a_new_connection_gets_what_was_not_acknowledged_in_order():
    ours = session()
    for priority in (5, 0, 3):
        ours.enqueue(BYE, None, priority, 0.0)
    ours.opened(7, 0, 1.0)
    assert ours.is_open
    ours.away()
    assert not ours.is_open
    again = ours.opened(8, 1, 2.0)
    assert [(number, kept.priority) for number, kept in again] == [(2, 0), (3, 3)]


@given(seed=st.integers(0, 10_000), cuts=st.integers(0, 6))
def test_after_any_cuts_everything_has_been_delivered_once_with_the_same_content(seed, cuts):
    """Two ends; at each cut, what was under way is lost, and so are the acknowledgements."""
    chance = random.Random(seed)
    ours, theirs = session(), session()
    delivered: dict[int, object] = {}
    wire = []

    def carry(count: int) -> None:
        for _ in range(min(count, len(wire))):
            number, message = wire.pop(chance.randrange(len(wire)))
            if theirs.accept(number, message):
                assert number not in delivered
                delivered[number] = message
            if theirs.owes_ack() and chance.random() < 0.5:
                ours.acknowledged(theirs.ack_watermark(0.0))

    messages = [Leave({"": turn}, ()) for turn in range(50)]
    places = sorted(chance.sample(range(50), cuts))
    for place, message in enumerate(messages):
        wire.append((ours.enqueue(message, None, 0, 0.0), message))
        carry(chance.randrange(3))
        if place in places:
            wire[:] = [
                (n, kept.message) for n, kept in ours.opened(place + 1, theirs.ack_watermark(0.0), 0.0)
            ]
    carry(1000)
    assert [delivered[number] for number in sorted(delivered)] == messages
    ours.acknowledged(theirs.ack_watermark(0.0))
    assert ours.unacknowledged == {}


def test_only_a_lossy_channel_resends_by_the_clock():
    lossy = session(Patience(resend_s=0.5))
    lossy.enqueue(BYE, None, 0, 0.0)
    assert lossy.overdue(9.0) == []  # there is nothing to send it on
    lossy.opened(1, 0, 9.0)
    assert lossy.overdue(9.4) == []
    assert [number for number, _ in lossy.overdue(9.5)] == [1]
    assert lossy.overdue(9.9) == []
    assert [number for number, _ in lossy.overdue(10.0)] == [1]
    sure = session()
    sure.enqueue(BYE, None, 0, 0.0)
    sure.opened(1, 0, 0.0)
    assert sure.overdue(1e6) == []


def test_silence_is_the_sign_of_death_and_our_own_standstill_is_not():
    ours = session(now=10.0)
    assert ours.silent_s(25.0) == 15.0
    assert not ours.is_lost(25.0)
    assert ours.is_lost(25.1)
    ours.excuse(200.0, 100.0)
    assert not ours.is_lost(125.0)
    assert ours.is_lost(125.1)
    ours.excuse(120.0, 100.0)  # never heard in the time to come
    assert ours.silent_s(120.0) == 0.0


def test_a_heartbeat_is_wanted_when_nothing_was_said_on_a_connection():
    ours = session()
    assert not ours.wants_beat(100.0)
    ours.opened(1, 0, 100.0)
    assert not ours.wants_beat(100.7)
    assert ours.wants_beat(101.0)
    ours.ack_watermark(101.0)
    assert not ours.wants_beat(101.5)


def test_a_link_that_has_often_broken_may_be_slow_once_it_stands():
    ours = session()
    ours.enqueue(BYE, None, 0, 0.0)
    for now in range(MOST_FRUITLESS + 1):
        ours.opened(now + 1, 0, now)
    ours.heard = 1000.0
    assert not ours.is_lost(1000.0)  # it stands, and what it carries may take a while
    ours.opened(99, 0, 1000.0)
    assert ours.is_lost(1000.0)
    ours.acknowledged(1)
    assert not ours.is_lost(1000.0)

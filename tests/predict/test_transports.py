"""What TCP and datagrams make of a link that loses packets."""

from __future__ import annotations

import math
from typing import Any

import pytest

from geomx.channels.block_classes import ALWAYS, Alike, Dgt
from geomx.config.tables import LinkTable
from geomx.predict.formulas import link_s, travel_s
from geomx.predict.transports import BbrTcp, CubicTcp, Datagrams, EmulatedTcp, cubic_mbps

LINK = LinkTable(rate_mbps=20.0, delay_ms=50.0, loss=0.01)
WITHOUT = LINK.model_copy(update={"loss": 0.0})


@pytest.mark.parametrize(
    ("classes", "expected"),
    [
        (Alike(), Datagrams()),
        (Alike(1.5), Datagrams(0.0, ((1.0, ALWAYS),), 1.5)),
        (Dgt(k=0.75, channels=2, adaptive=False), Datagrams(0.75, ((0.125, 2), (0.125, 1)))),
        (Dgt(k=0.5, channels=1), Datagrams(0.5, ((0.5, 1),))),  # adaptive: as it begins
        (Dgt(k=1.0), Datagrams(1.0)),
        (Dgt(k=0.25, drop=True, adaptive=False), Datagrams(0.25)),
    ],
)
def test_a_channel_is_asked_for_its_classes(classes: Alike | Dgt, expected: Datagrams) -> None:
    assert Datagrams.of(classes) == expected


def test_bytes_grow_by_parity_and_by_what_is_sent_again() -> None:
    assert Datagrams().copies(0.0) == 1.0
    assert Datagrams().copies(0.02) == pytest.approx(1 + 0.02 + 2 * 0.0125)
    once, twice = Datagrams(0.0, ((1.0, 1),)), Datagrams(0.0, ((1.0, 2),))
    assert once.copies(0.2) == pytest.approx(1.0)
    assert twice.copies(0.2) == pytest.approx(1.2)
    assert Datagrams(0.5, ((0.25, 1),)).copies(0.02) == pytest.approx(0.5 * 1.045 + 0.25)  # 0.25 is not sent


def test_headers_are_charged() -> None:
    """1,428 bytes of a payload in a packet of 1,500."""
    assert Datagrams().busy_s(1428e3, WITHOUT) == pytest.approx(8 * 1500e3 / 20e6)
    assert Datagrams().busy_s(1428e3, LINK) == pytest.approx(8 * 1500e3 / 20e6 * Datagrams().copies(0.01))
    assert Datagrams().busy_s(1428e3, LinkTable()) == 0.0


def test_the_end_waits_for_what_was_lost_in_the_last_round_trip() -> None:
    assert Datagrams().travel_s(1e6, WITHOUT) == pytest.approx(0.05)

    def held_up(size_bytes: float, *given: Any) -> float:
        """In round trips, of 100 ms."""
        return (Datagrams(*given).travel_s(size_bytes, LINK) - 0.05) / 0.1

    whole = 0.0, ((1.0, ALWAYS),), 9.0
    assert held_up(10 * 1428) == 0.0, "parity replaces it"
    assert held_up(10 * 1428, *whole) == pytest.approx(1 - 0.99**10)
    last = 0.1 * 0.99 * 20e6 / 8 / 1500  # so many new ones leave in a round trip
    assert held_up(1e9, *whole) == pytest.approx(1 - 0.99**last)
    assert held_up(10 * 1428, 0.5, ((0.5, ALWAYS),), 9.0) == pytest.approx(held_up(5 * 1428, *whole))
    assert held_up(1e6, 0.0, ((1.0, 3),)) == 0.0  # nothing is waited for
    assert held_up(10 * 1428, 0.0, ((1.0, ALWAYS),), 0.5) == pytest.approx(held_up(10 * 1428, *whole) / 2)


@pytest.mark.parametrize(
    ("loss", "segments"), [(1e-2, 12.2), (1e-3, 38.7), (1e-4, 187.4), (1e-5, 1054.0), (1e-6, 5927.0)]
)
def test_cubic_has_the_window_of_its_specification(loss: float, segments: float) -> None:
    """At a round trip of 100 ms; the last three are those of RFC 9438, Table 1."""
    link = LinkTable(delay_ms=50.0, loss=loss)
    assert cubic_mbps(link) * 0.1 / 8e-6 / 1500 == pytest.approx(segments, rel=1e-2)


def test_cubic_is_steady_where_its_window_is_enough() -> None:
    for link in (WITHOUT, LinkTable(rate_mbps=1.0, delay_ms=50.0, loss=0.01), LinkTable(loss=0.01)):
        for size_bytes in (1e3, 1e6):
            assert CubicTcp().busy_s(size_bytes, link) == link_s(size_bytes, link)
            assert CubicTcp().travel_s(size_bytes, link) == BbrTcp().travel_s(size_bytes, link)
    assert math.isinf(cubic_mbps(WITHOUT))


def test_cubic_slows_down_and_more_connections_help() -> None:
    steady, slow = EmulatedTcp().busy_s(1e6, LINK), CubicTcp().busy_s(1e6, LINK)
    assert slow / steady == pytest.approx(20.0 / cubic_mbps(LINK))
    assert CubicTcp(2).busy_s(1e6, LINK) == pytest.approx(slow / 2)
    assert CubicTcp(100).busy_s(1e6, LINK) == steady


def test_sockets_count_what_is_sent_again_in_datagrams_alone() -> None:
    assert EmulatedTcp().sent_bytes(1e6, LINK) == 1e6
    assert Datagrams().sent_bytes(1428.0, LINK) == pytest.approx(1472 * Datagrams().copies(0.01))


def test_what_tcp_loses_last_comes_a_round_trip_later() -> None:
    assert BbrTcp().travel_s(10 * 1448, LINK) == pytest.approx(0.05 + 0.1 * (1 - 0.99**10))
    assert BbrTcp().busy_s(1e6, LINK) == EmulatedTcp().busy_s(1e6, LINK) == link_s(1e6, LINK)
    assert EmulatedTcp().travel_s(1e6, LINK) == travel_s(1e6, LINK)
    few = 0.1 * 0.99 * cubic_mbps(LINK) * 1e6 / 8 / 1500  # a slow sender has few under way
    assert CubicTcp().travel_s(1e9, LINK) == pytest.approx(0.05 + 0.1 * (1 - 0.99**few))


def test_rounds_that_were_played_segment_by_segment() -> None:
    """docs/lossy-links.md at 1 %, 2.14 MB both ways: 0.99 s without loss; TCP at best 1.23, up may lose 1.11."""
    down = BbrTcp().travel_s(2.14e6, LINK) - 0.05
    assert 0.99 + down + down == pytest.approx(1.23, rel=0.07)
    assert 0.99 + down + Datagrams(0.0, ((1.0, 1),)).travel_s(2.14e6, LINK) - 0.05 == pytest.approx(
        1.11, rel=0.05
    )

import json
from math import inf

import pytest
from segments import on_the_wire, tcp

from geomx.errors import ConfigError
from lab.control import MAX_MESSAGE_BYTES
from lab.describe import MAX_SITES, describe
from lab.switch import Switch

SITES = [{"name": "A"}, {"name": "B"}, {"name": "C"}]


def switch(**table):
    return Switch(describe({"site": SITES, "default": {"rate_mbps": 12, "delay_ms": 10}, **table}))


def test_what_is_told_of_the_most_sites_is_one_message():
    sites = [{"name": f"long-name-{number:05}"} for number in range(MAX_SITES)]
    state = switch(site=sites).state(0.0)
    assert len(state["links"]) == MAX_SITES * (MAX_SITES - 1)
    assert len(json.dumps(state)) < MAX_MESSAGE_BYTES / 2


def to_site(number, sequence=0):
    return tcp(bytes(1448), 1448, sequence, target=bytes([10, 77, number, 1]))


def handed(switch, until=inf):
    """(when, site, sequence number) of all that is handed over, looking only when the switch says so."""
    seen = []
    while (now := switch.next_at()) <= until and now < inf:
        for site, _, packets in switch.due(now):
            seen += [(round(now, 6), site, on_the_wire(data)[0][1]) for data in packets]
    return seen


def conditions(switch, a, b):
    (found,) = [link for link in switch.state(0.0)["links"] if (link["from"], link["to"]) == (a, b)]
    return found["conditions"]


def test_packets_take_the_link_of_their_pair_and_links_do_not_wait_for_each_other():
    net = switch(link=[{"from": "A", "to": "C", "delay_ms": 2}])
    net.arrive(0, to_site(2, 1), 0.0)
    net.arrive(0, to_site(3, 2), 0.0)
    net.arrive(1, to_site(1, 3), 0.0005)
    assert handed(net) == [(0.003, 2, 2), (0.011, 1, 1), (0.0115, 0, 3)]


@pytest.mark.parametrize("raw", [to_site(1), to_site(0), to_site(4), to_site(255), b"noise"])
def test_packets_to_nowhere_are_counted_and_dropped(raw):
    net = switch()
    net.arrive(0, raw, 0.0)
    assert net.next_at() == inf
    assert net.state(0.0)["strays"] == 1


def test_a_script_stands_still_until_it_begins():
    net = switch(event=[{"at_s": 0, "from": "A", "to": "B", "rate_mbps": 5}])
    assert net.next_at() == inf
    assert conditions(net, "A", "B")["rate_mbps"] == 12
    net.begin(100.0)
    assert conditions(net, "A", "B")["rate_mbps"] == 5
    assert conditions(net, "B", "A")["rate_mbps"] == 12


def test_events_lie_upon_each_other_and_show_what_they_covered():
    net = switch(
        event=[
            {"at_s": 5, "from": "A", "to": "B", "rate_mbps": 50},
            {"at_s": 10, "for_s": 20, "from": "*", "to": "B", "rate_mbps": 5},
            {"at_s": 20, "for_s": 2, "from": "A", "to": "B", "both": True, "cut": True},
        ]
    )
    net.begin(1000.0)
    seen = []
    while (now := net.next_at()) < inf:
        handed(net, now)
        both = [conditions(net, *pair) for pair in (("A", "B"), ("B", "A"), ("C", "B"))]
        seen.append((now - 1000.0, *((each["rate_mbps"], each["cut"]) for each in both)))
    assert seen == [
        (5, (50, False), (12, False), (12, False)),
        (10, (5, False), (12, False), (5, False)),
        (20, (5, True), (12, True), (5, False)),
        (22, (5, False), (12, False), (5, False)),
        (30, (50, False), (12, False), (12, False)),
    ]


def test_what_is_set_by_hand_lies_below_events_and_a_script_can_begin_again():
    net = switch(event=[{"at_s": 1, "for_s": 1, "from": "A", "to": "B", "rate_mbps": 5}])
    net.begin(0.0)
    handed(net, 1.0)
    net.change({"from": "A", "to": "B", "rate_mbps": 99}, 1.5)
    assert conditions(net, "A", "B")["rate_mbps"] == 5
    handed(net, 2.0)
    assert conditions(net, "A", "B")["rate_mbps"] == 99
    net.begin(10.0)
    handed(net, 11.0)
    assert conditions(net, "A", "B")["rate_mbps"] == 5
    net.begin(11.5)
    assert conditions(net, "A", "B")["rate_mbps"] == 99


def test_what_travels_at_a_cut_is_lost_and_the_agenda_goes_on():
    net = switch()
    net.arrive(0, to_site(2, 1), 0.0)
    net.change({"from": "A", "to": "B", "both": True, "cut": True}, 0.005)
    net.change({"from": "A", "to": "B", "both": True, "cut": False}, 0.006)
    net.arrive(0, to_site(2, 2), 0.006)
    assert handed(net) == [(0.017, 1, 2)]


@pytest.mark.parametrize(
    ("a", "b", "changes", "named"),
    [
        ("A", "Z", {"loss": 0.1}, 'to: found "Z"; allowed: `A`, `B`, `C`, `*`'),
        ("A", "A", {"loss": 0.1}, "another site"),
        ("A", "B", {"lost": 0.1}, "lost: found an unknown key"),
        ("A", "B", {"loss": 1}, "loss: found 1; allowed: number ≥ 0, ≤ 0.9"),
        (
            "*",
            "*",
            {"jitter_ms": 11},
            "jitter_ms: found 11 from A to B; allowed: number ≤ 10, the `delay_ms` there",
        ),
    ],
)
def test_a_change_that_is_not_allowed_changes_nothing(a, b, changes, named):
    net = switch()
    before = net.state(0.0)
    with pytest.raises(ConfigError) as refused:
        net.change({"from": a, "to": b, **changes}, 0.0)
    assert named in str(refused.value)
    assert net.state(0.0) == before
